# SPDX-License-Identifier: Apache-2.0
"""Judging one call so that whatever happens there is a judgement: the function that every engine runs."""

from __future__ import annotations

import contextlib
import re
import tempfile
from pathlib import Path
from typing import Any, Final, Protocol

from voicetrace.judge.batch.source import CallRef, Kind
from voicetrace.judge.result import CallJudgement, Dimension, DimensionScore, NullReason
from voicetrace.reader import read_calls
from voicetrace.voice_call import VoiceCall

_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_LONGEST: Final = 500


class JudgeConfig(Protocol):
    """What a run needs to know of the judge. Picklable: every worker process gets a copy."""

    @property
    def version(self) -> str:
        """Changes whenever scores may change."""

    @property
    def rubric_sha256(self) -> str:
        """The digest of the thresholds."""


class JudgeCall(Protocol):
    """`voicetrace.judge.judge_call`, or something like it."""

    def __call__(self, source: Path | VoiceCall, *, judge: Any) -> CallJudgement:
        """Judge one call: as it was read, or the one at a path."""


def judge_ref(ref: CallRef, judge: JudgeConfig, judge_call: JudgeCall) -> CallJudgement:
    """Judge one call; what goes wrong becomes a judgement without scores that says so.

    The same call gives the same judgement on every engine: names and owner are those that were planned.
    """
    if ref.problem:
        return failed(ref, judge, ref.problem)
    try:
        with contextlib.ExitStack() as stack:
            judgement = judge_call(_call(ref, stack), judge=judge)
    except Exception as error:  # noqa: BLE001  kept in the call's row
        return failed(ref, judge, said(error))
    # the recording of a bundle was made for this, so what the judge read of its place means nothing
    inputs = {"bundle_sha256": ref.digest} if ref.kind is Kind.BUNDLE else judgement.inputs
    return judgement.model_copy(
        update={
            "inputs": inputs,
            "call_sid": ref.call_sid,
            "workspace_id": ref.workspace_id,
            "service_id": ref.service_id,
            "started_at": judgement.started_at or ref.started_at,
            "judge_version": judge.version,
        }
    )


def _call(ref: CallRef, stack: contextlib.ExitStack) -> Path | VoiceCall:
    """What is judged: a path on this machine that holds this one call, or the call itself."""
    path = Path(ref.path)
    if "://" in ref.path:
        from voicetrace.judge.batch.remote import fetched

        path = stack.enter_context(fetched(ref.path))
    if ref.kind is Kind.BUNDLE:
        from voicetrace.judge.batch.bundle import call_of_bundle

        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="voicetrace-judge-"))
        return call_of_bundle(path, Path(folder))
    if ref.one_of_many:
        return next(call for call in read_calls(path) if call.call_id == ref.call_sid)
    return path


def failed(ref: CallRef, judge: JudgeConfig, why: str) -> CallJudgement:
    """A judgement of nulls: the call could not be judged, and why."""
    why = why[:_LONGEST]
    return CallJudgement(
        call_sid=ref.call_sid,
        workspace_id=ref.workspace_id,
        service_id=ref.service_id,
        started_at=ref.started_at,
        judge_version=judge.version,
        rubric_sha256=judge.rubric_sha256,
        dimensions={name: DimensionScore.none(NullReason.JUDGE_ERROR, why) for name in Dimension},
        error=why,
    )


def said(error: BaseException) -> str:
    """An error as one sentence that is the same each time it happens."""
    text = " ".join(str(error).split())
    return _ADDRESS.sub("", f"{type(error).__name__}: {text}" if text else type(error).__name__)


def real_judge_call(source: Path | VoiceCall, *, judge: Any) -> CallJudgement:
    """`voicetrace.judge.judge_call`, imported when it is first needed."""
    from voicetrace.judge.judging import judge_call

    return judge_call(source, judge=judge)
