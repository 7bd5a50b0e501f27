# SPDX-License-Identifier: Apache-2.0
"""P2, warmth and tone: flat affect only, from how little the pitch moves; the rest takes the listener.

A lively pitch says nothing of whether the tone fits the caller. So a voice that is not flat has no score
here: null, not 1.
"""

from __future__ import annotations

import statistics
from typing import Final

from voicetrace.judge.dimensions import common
from voicetrace.judge.features.table import CallFeatures
from voicetrace.judge.result import DimensionScore, NullReason
from voicetrace.judge.rubric import Rubric
from voicetrace.judge.score import Finding, combine, spot

NEEDS: Final = ("vad", "pitch")
_NAME: Final = "warmth_tone"
METHOD: Final = "acoustic_proxy"


def judge(features: CallFeatures, rubric: Rubric) -> DimensionScore:
    """The median movement of pitch over the call, where it is below the bar."""
    unheard = common.no_audio(features, *NEEDS)
    if unheard is not None:
        return unheard
    spreads = {m.turn: m.pitch_sd_st for m in features.agent_turns if m.pitch_sd_st is not None}
    if not spreads:
        return DimensionScore.none(
            NullReason.TOO_SHORT, "too little voiced speech to tell how its pitch moves"
        )
    curve = rubric.curve(_NAME, "flat_st")
    median = statistics.median(spreads.values())
    if curve(median) >= 0.75:
        return DimensionScore.none(
            NullReason.NO_EVENTS,
            f"the voice is not flat ({median:.1f} semitones); whether its tone fits takes a listener",
        )
    index = min(spreads, key=lambda i: (abs(spreads[i] - median), i))
    turn = features.turns[index]
    evidence = spot(turn.message_id, turn.start_ms, turn.end_ms, "pitch_sd_st", median, curve.threshold)
    why = f"flat: the pitch moves by {median:.1f} semitones only"
    return combine([Finding(curve(median), evidence, why)], rubric, method=METHOD, confidence=0.5)
