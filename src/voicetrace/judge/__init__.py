# SPDX-License-Identifier: Apache-2.0
"""The Voice Judge: ten audio dimensions per call, with evidence one can press play on.

    from voicetrace.judge import Judge, judge_call

    judgement = judge_call(Path("voicetrace-calls/call-1"), judge=Judge())

``docs/judge.md`` says what it hears, what it cannot hear, and how it was measured.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from voicetrace.judge.judging import Judge, judge_call, judgement_of
    from voicetrace.judge.listener import Listener
    from voicetrace.judge.result import CallJudgement, Dimension, DimensionScore, JudgeRow, Severity

__all__ = [
    "CallJudgement",
    "Dimension",
    "DimensionScore",
    "Judge",
    "JudgeRow",
    "Listener",
    "Severity",
    "judge_call",
    "judgement_of",
]

# imported on first use: the warehouse and the API need none of what listens
_HOMES = dict.fromkeys(("Judge", "judge_call", "judgement_of"), "voicetrace.judge.judging")
_HOMES |= dict.fromkeys(
    ("CallJudgement", "Dimension", "DimensionScore", "JudgeRow", "Severity"), "voicetrace.judge.result"
)
_HOMES["Listener"] = "voicetrace.judge.listener"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'voicetrace.judge' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
