# SPDX-License-Identifier: Apache-2.0
"""P1, audio consistency: turns as loud and as high as one another, without clipping, holes or cut words.

Steps of pitch below 3.5 semitones are how people speak, and no evidence.
"""

from __future__ import annotations

import statistics
from typing import Final

from voicetrace.judge.dimensions import common
from voicetrace.judge.features.table import AgentTurn, CallFeatures
from voicetrace.judge.result import DimensionScore, NullReason
from voicetrace.judge.rubric import Rubric
from voicetrace.judge.score import Finding, combine, spot
from voicetrace.messages import State

NEEDS: Final = ("vad",)
_NAME: Final = "audio_consistency"
_WHY: Final = {
    "loudness_lu": "{:.1f} LU from the loudness of the call",
    "clipped_share": "clipping ({:.1%} of the samples)",
    "crowded_share": "clipping before a telephone's filter ({:.1%} of the samples near the peak)",
    "dropouts_per_s": "{:.1f} holes a second",
    "pitch_st": "{:.1f} semitones from the pitch of the call",
}


def judge(features: CallFeatures, rubric: Rubric) -> DimensionScore:
    """One finding for each agent turn of a second or more, its worst measurement; and one for each cut."""
    unheard = common.no_audio(features, "vad")
    if unheard is not None:
        return unheard
    least = 1000 * rubric.number(_NAME, "min_turn_s")
    usable = [m for m in features.agent_turns if (features.turn_of(m).speech_ms or 0) >= least]
    if not usable:
        return DimensionScore.none(NullReason.TOO_SHORT, "no agent turn holds a second of speech")
    enough = len(usable) >= rubric.number(_NAME, "min_turns")
    loudness = _median([m.loudness_lufs for m in usable]) if enough else None
    pitch = _median([m.pitch_st for m in usable]) if enough else None
    findings = []
    for measured in usable:
        values = {
            "clipped_share": measured.clipped_share,
            "crowded_share": measured.crowded_share,
            "dropouts_per_s": measured.dropouts_per_s,
        }
        if loudness is not None and measured.loudness_lufs is not None:
            values["loudness_lu"] = abs(measured.loudness_lufs - loudness)
        if pitch is not None and measured.pitch_st is not None:
            values["pitch_st"] = abs(measured.pitch_st - pitch)
        findings.append(_worst(features, measured, values, rubric))
    findings += _cuts(features, usable, rubric)
    return combine(
        findings,
        rubric,
        confidence=0.85 if enough else 0.6,
        fine=f"{common.words(len(usable), 'turn')} of one level, pitch and quality",
    )


def _worst(
    features: CallFeatures, measured: AgentTurn, values: dict[str, float | None], rubric: Rubric
) -> Finding:
    turn = features.turn_of(measured)
    known = {key: value for key, value in values.items() if value is not None}
    scores = {key: rubric.curve(_NAME, key)(value) for key, value in known.items()}
    if not scores:
        return Finding(1.0, spot(turn.message_id, turn.start_ms, turn.end_ms, "clipped_share", 0.0))
    key = min(scores, key=lambda k: scores[k])
    threshold = rubric.curve(_NAME, key).threshold
    evidence = spot(turn.message_id, turn.start_ms, turn.end_ms, key, known[key], threshold)
    return Finding(scores[key], evidence, _WHY[key].format(known[key]))


def _cuts(features: CallFeatures, usable: list[AgentTurn], rubric: Rubric) -> list[Finding]:
    """Turns that were not interrupted and yet end in the middle of a word, or before their last words."""
    hard, soft = rubric.number(_NAME, "cut_level_db"), rubric.number(_NAME, "cut_words_level_db")
    cut = [
        m
        for m in usable
        if features.turn_of(m).state is State.COMPLETE
        and m.end_level_db is not None
        and (m.end_level_db > hard or (m.missing_end and m.end_level_db > soft))
    ]
    score = rubric.number(_NAME, "cut_score" if len(cut) == 1 else "cuts_score")
    return [
        Finding(
            score,
            spot(
                (turn := features.turn_of(m)).message_id,
                max(turn.start_ms, turn.end_ms - 1500),
                turn.end_ms,
                "end_level_db",
                m.end_level_db,
                soft if m.missing_end else hard,
                turn.text[-40:] if m.missing_end and turn.text else None,
            ),
            "the turn ends in the middle of a word",
        )
        for m in cut
    ]


def _median(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.median(known) if len(known) >= 3 else None
