# SPDX-License-Identifier: Apache-2.0
"""P1, filler and silence: what the agent does with a pause that is its own.

Silence while it has the floor (inside a turn, or between two of its turns), the same filler again and
again, and long waits that nothing announced. Whether a filler matches the result it announced takes the
listener.
"""

from __future__ import annotations

from typing import Final

from voicetrace.judge.dimensions import common
from voicetrace.judge.features.table import CallFeatures
from voicetrace.judge.features.text import fillers, repeated_fillers
from voicetrace.judge.result import DimensionScore
from voicetrace.judge.rubric import Rubric
from voicetrace.judge.score import Finding, combine, spot
from voicetrace.messages import Role

NEEDS: Final[tuple[str, ...]] = ()
_NAME: Final = "filler_silence"


def judge(features: CallFeatures, rubric: Rubric) -> DimensionScore:
    """One finding for each agent turn's longest silence, each filler phrase, and each wait."""
    silent = common.no_speech(features)
    if silent is not None:
        return silent
    findings = _silences(features, rubric) + _repeats(features, rubric) + _waits(features, rubric)
    return combine(
        findings,
        rubric,
        confidence=common.timing_confidence(features),
        fine="no long silence and no filler said again and again",
    )


def _silences(features: CallFeatures, rubric: Rubric) -> list[Finding]:
    curve = rubric.curve(_NAME, "silence_s")
    out = []
    for index, turn in enumerate(features.turns):
        if turn.role is not Role.ASSISTANT:
            continue
        own = [p for p in features.pauses if p.turn == index]
        longest = max(own, key=lambda p: p.end_ms - p.start_ms, default=None)
        low, high = (longest.start_ms, longest.end_ms) if longest else (turn.start_ms, turn.start_ms)
        seconds = (high - low) / 1000
        evidence = spot(turn.message_id, low, high, "silence_s", seconds, curve.threshold)
        out.append(
            Finding(curve(seconds), evidence, f"{seconds:.1f} s of silence while the agent has the floor")
        )
    return out


def _repeats(features: CallFeatures, rubric: Rubric) -> list[Finding]:
    curve = rubric.curve(_NAME, "repeats")
    said = {m.turn: m.heard or "" for m in features.agent_turns}
    texts = {
        index: turn.text or said.get(index, "")
        for index, turn in enumerate(features.turns)
        if turn.role is Role.ASSISTANT
    }
    out = []
    for phrase, count in sorted(repeated_fillers(texts.values()).items()):
        last = features.turns[max(i for i, text in texts.items() if phrase in fillers(text))]
        evidence = spot(
            last.message_id,
            last.start_ms,
            last.end_ms,
            "filler_repeats",
            float(count),
            curve.threshold,
            phrase,
        )
        out.append(Finding(curve(count), evidence, f"{phrase!r} was said {count} times"))
    return out


def _waits(features: CallFeatures, rubric: Rubric) -> list[Finding]:
    """Long silences after the caller's turn that no word announced."""
    limit = rubric.number(_NAME, "unacknowledged_s")
    out = []
    for exchange in features.exchanges:
        gap = exchange.gap_ms / 1000
        if gap > limit and common.trusted(features.turns[exchange.user], features.caller_audio):
            user = features.turns[exchange.user]
            evidence = spot(user.message_id, user.end_ms, user.end_ms + exchange.gap_ms, "wait_s", gap, limit)
            score = rubric.number(_NAME, "unacknowledged_score")
            out.append(Finding(score, evidence, f"a wait of {gap:.1f} s that nothing announced"))
    return out
