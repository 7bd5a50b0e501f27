# SPDX-License-Identifier: Apache-2.0
"""Judging many calls: found, judged in worker processes or on Ray, written once."""

from voicetrace.judge.batch.evaluations import EvaluationEvents
from voicetrace.judge.batch.pool import PoolError
from voicetrace.judge.batch.ray_engine import RayError
from voicetrace.judge.batch.run import NO_ID, BatchOptions, BatchReport, run_batch
from voicetrace.judge.batch.source import CallRef, SourceError, find_calls
from voicetrace.judge.batch.work import JudgeCall, JudgeConfig

__all__ = [
    "NO_ID",
    "BatchOptions",
    "BatchReport",
    "CallRef",
    "EvaluationEvents",
    "JudgeCall",
    "JudgeConfig",
    "PoolError",
    "RayError",
    "SourceError",
    "find_calls",
    "run_batch",
]
