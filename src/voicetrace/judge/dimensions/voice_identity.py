# SPDX-License-Identifier: Apache-2.0
"""P2, voice identity: does the agent sound like one and the same from turn to turn?

Compared within the call only, where the channel is the same for all turns; turns that are too noisy or
clipped to tell are left out.
"""

from __future__ import annotations

import statistics
from typing import Final

from voicetrace.judge.dimensions import common
from voicetrace.judge.features.table import AgentTurn, CallFeatures
from voicetrace.judge.result import DimensionScore, NullReason
from voicetrace.judge.rubric import Rubric
from voicetrace.judge.score import Finding, combine, spot

NEEDS: Final = ("vad", "speaker")
_NAME: Final = "voice_identity"


def judge(features: CallFeatures, rubric: Rubric) -> DimensionScore:
    """One finding for each usable turn: its median similarity to the others."""
    unheard = common.no_audio(features, *NEEDS)
    if unheard is not None:
        return unheard
    usable = [(i, m) for i, m in enumerate(features.agent_turns) if _is_usable(features, i, m, rubric)]
    if len(usable) < rubric.number(_NAME, "min_turns"):
        least = rubric.number(_NAME, "min_speech_s")
        return DimensionScore.none(
            NullReason.TOO_SHORT, f"fewer than three clean agent turns of {least:g} s to compare"
        )
    curve = rubric.curve(_NAME, "similarity")
    findings = []
    for index, measured in usable:
        row = features.similarities[index]
        alike = statistics.median(
            s for other, _ in usable if other != index and (s := row[other]) is not None
        )
        turn = features.turn_of(measured)
        short = (turn.speech_ms or 0) < 1000 * rubric.number(_NAME, "short_speech_s")
        allowed = rubric.number(_NAME, "short_allowance") if short else 0.0
        threshold = curve.threshold - allowed
        evidence = spot(turn.message_id, turn.start_ms, turn.end_ms, "voice_similarity", alike, threshold)
        findings.append(Finding(curve(alike + allowed), evidence, "another voice than in the other turns"))
    return combine(
        findings,
        rubric,
        confidence=0.85 if len(usable) >= 5 else 0.7,
        fine=f"one voice in {common.words(len(usable), 'turn')}",
    )


def _is_usable(features: CallFeatures, index: int, measured: AgentTurn, rubric: Rubric) -> bool:
    if index >= len(features.similarities) or features.similarities[index][index] is None:
        return False
    if (features.turn_of(measured).speech_ms or 0) < 1000 * rubric.number(_NAME, "min_speech_s"):
        return False
    noisy = (
        measured.mos_overall is not None
        and measured.mos_overall < rubric.curve("clarity", "mos_overall").threshold
    )
    clipped = (measured.clipped_share or 0) > rubric.curve("audio_consistency", "clipped_share").threshold
    return not noisy and not clipped
