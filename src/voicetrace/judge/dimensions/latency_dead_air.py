# SPDX-License-Identifier: Apache-2.0
"""P0, latency and dead air: how long the caller waits for the agent's first sound.

An acknowledgment counts. The greeting is no answer, and the last word of a call needs none. More than 3 s
is at least a Flag.
"""

from __future__ import annotations

from typing import Final

from voicetrace.judge.dimensions import common
from voicetrace.judge.features.table import CallFeatures
from voicetrace.judge.result import DimensionScore, NullReason
from voicetrace.judge.rubric import Rubric
from voicetrace.judge.score import Finding, combine, spot

NEEDS: Final[tuple[str, ...]] = ()
_NAME: Final = "latency_dead_air"


def judge(features: CallFeatures, rubric: Rubric) -> DimensionScore:
    """One finding for each user turn that the agent answered, or should have."""
    silent = common.no_speech(features)
    if silent is not None:
        return silent
    curve = rubric.curve(_NAME, "gap_s")
    limit, cap = rubric.number(_NAME, "prolonged_s"), rubric.number(_NAME, "prolonged_cap")
    findings, doubtful = [], 0
    for exchange in features.exchanges:
        user = features.turns[exchange.user]
        if not common.trusted(user, features.caller_audio):
            doubtful += 1
            continue
        gap = exchange.gap_ms / 1000
        answer = None if exchange.answer is None else features.turns[exchange.answer]
        who = answer or user
        what = "response_gap_s" if answer is not None else "unanswered_s"
        why = f"{gap:.1f} s of silence after the caller's turn" if answer else f"no answer for {gap:.1f} s"
        findings.append(
            Finding(
                curve(gap),
                spot(
                    who.message_id,
                    user.end_ms,
                    user.end_ms + max(0, exchange.gap_ms),
                    what,
                    gap,
                    curve.threshold,
                ),
                why,
                cap if gap > limit else None,
            )
        )
    if not findings:
        if doubtful:
            why = "the ends of the caller's turns are arrivals of events, and their audio was not recorded"
            return DimensionScore.none(NullReason.UNTRUSTED_TIMING, why)
        return DimensionScore.none(
            NullReason.NO_EVENTS, "the caller said nothing that the agent could answer"
        )
    return combine(
        findings,
        rubric,
        confidence=common.timing_confidence(features),
        fine=f"{common.words(len(findings), 'answer')}, each within {curve.threshold:g} s",
    )
