# SPDX-License-Identifier: Apache-2.0
"""P2, pacing: syllables a second of speech, pauses not counted, from the text and the audio."""

from __future__ import annotations

import statistics
from typing import Final

from voicetrace.judge.dimensions import common
from voicetrace.judge.features.table import CallFeatures
from voicetrace.judge.result import DimensionScore, NullReason
from voicetrace.judge.rubric import Rubric
from voicetrace.judge.score import Finding, combine, spot
from voicetrace.messages import Role, State

NEEDS: Final = ("vad",)
_NAME: Final = "pacing"


def judge(features: CallFeatures, rubric: Rubric) -> DimensionScore:
    """One finding: the median rate of the turns that are long enough to have one."""
    unheard = common.no_audio(features, "vad")
    if unheard is not None:
        return unheard
    if not any(t.role is Role.ASSISTANT and t.text for t in features.turns):
        return DimensionScore.none(NullReason.NO_TEXT, "the text of what the agent said is not known")
    least = rubric.number(_NAME, "min_syllables")
    rates = {}
    for measured in features.agent_turns:
        turn = features.turn_of(measured)
        # of an interrupted turn the text may say more than was heard
        if turn.state is State.COMPLETE and (measured.syllables or 0) >= least and turn.speech_ms:
            rates[measured.turn] = 1000 * (measured.syllables or 0) / turn.speech_ms
    if len(rates) < rubric.number(_NAME, "min_turns"):
        return DimensionScore.none(NullReason.TOO_SHORT, f"fewer than two agent turns of {least:g} syllables")
    scale = rubric.table(_NAME, "language").get(features.expected_language or "en", 1.0)
    median = statistics.median(rates.values())
    fast, slow = rubric.curve(_NAME, "fast"), rubric.curve(_NAME, "slow")
    rate = median / scale
    curve = fast if fast(rate) <= slow(rate) else slow
    # press play on the turn that shows it best
    index = min(rates, key=lambda i: (abs(rates[i] - median), i))
    turn = features.turns[index]
    threshold = round(curve.threshold * scale, 3)
    evidence = spot(turn.message_id, turn.start_ms, turn.end_ms, "syllables_per_s", median, threshold)
    word = "fast" if curve is fast else "slow"
    return combine(
        [Finding(curve(rate), evidence, f"{median:.1f} syllables a second is {word}")],
        rubric,
        confidence=0.8 if len(rates) >= 4 else 0.65,
        fine=f"{median:.1f} syllables a second",
    )
