# SPDX-License-Identifier: Apache-2.0
"""P1, interruption handling: who gives way when both speak, and what stops the agent.

A call in which nobody spoke over anybody has no evidence, and no score.
"""

from __future__ import annotations

from typing import Final

from voicetrace.judge.dimensions import common
from voicetrace.judge.features.table import CallFeatures, Overlap
from voicetrace.judge.result import DimensionScore, NullReason
from voicetrace.judge.rubric import Rubric
from voicetrace.judge.score import Finding, combine, spot

NEEDS: Final[tuple[str, ...]] = ()
_NAME: Final = "interruption_handling"


def judge(features: CallFeatures, rubric: Rubric) -> DimensionScore:
    """One finding for each overlap, and each answer to an interruption."""
    silent = common.no_speech(features)
    if silent is not None:
        return silent
    events = [
        o
        for o in features.overlaps
        if o.user is None or common.trusted(features.turns[o.user], features.caller_audio)
    ]
    findings = [_finding(features, o, rubric) for o in events]
    curve = rubric.curve(_NAME, "recovery_s")
    for exchange in features.exchanges:
        if exchange.after_interruption and exchange.answer is not None:
            gap = exchange.gap_ms / 1000
            answer, user = features.turns[exchange.answer], features.turns[exchange.user]
            evidence = spot(
                answer.message_id,
                user.end_ms,
                max(user.end_ms, answer.start_ms),
                "recovery_s",
                gap,
                curve.threshold,
            )
            findings.append(
                Finding(curve(gap), evidence, f"{gap:.1f} s until the agent answered an interruption")
            )
    if not findings:
        if features.overlaps:
            why = "the caller's bounds are arrivals of events, and their audio was not recorded"
            return DimensionScore.none(NullReason.UNTRUSTED_TIMING, why)
        return DimensionScore.none(NullReason.NO_EVENTS, "nobody spoke over anybody in this call")
    return combine(
        findings,
        rubric,
        confidence=common.timing_confidence(features),
        fine=f"{common.words(len(findings), 'event')}, handled well",
    )


def _finding(features: CallFeatures, event: Overlap, rubric: Rubric) -> Finding:
    agent = features.turns[event.agent]
    seconds = event.value_ms / 1000
    if event.kind == "false_trigger":
        evidence = spot(
            agent.message_id, max(0, event.at_ms - 1000), event.at_ms, "stopped_without_speech", None
        )
        why = "the agent stopped although the caller said nothing"
        return Finding(rubric.number(_NAME, "false_trigger_score"), evidence, why)
    until = event.at_ms + max(0, event.value_ms)
    if event.kind == "backchannel":
        stopped = event.value_ms >= 0
        evidence = spot(agent.message_id, event.at_ms, until, "stopped_by_backchannel", float(stopped))
        score = rubric.number(_NAME, "stopped_by_backchannel_score") if stopped else 1.0
        return Finding(score, evidence, "the agent stopped at a word of assent")
    key, why = {
        "barge_in": ("yield_s", "the agent spoke on for {:.1f} s after the caller began"),
        "talk_over": ("talk_over_s", "the agent began while the caller spoke, for {:.1f} s"),
    }[event.kind]
    curve = rubric.curve(_NAME, key)
    evidence = spot(agent.message_id, event.at_ms, until, key, seconds, curve.threshold)
    return Finding(curve(seconds), evidence, why.format(seconds))
