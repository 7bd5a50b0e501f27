# SPDX-License-Identifier: Apache-2.0
"""P0, clarity: clean sound (DNSMOS), whole sound (PLCMOS), and words that can be made out (a recogniser).

Noise and intelligibility are different things: noise over which every word is understood ends at a Flag;
words that cannot be made out are Critical. Words that were made out clearly and are other words than the
text's are no matter of clarity.
"""

from __future__ import annotations

from typing import Final

from voicetrace.judge.dimensions import common
from voicetrace.judge.dimensions.pronunciation import is_foreign
from voicetrace.judge.features.table import AgentTurn, CallFeatures
from voicetrace.judge.result import DimensionScore, NullReason
from voicetrace.judge.rubric import Rubric
from voicetrace.judge.score import Finding, combine, spot
from voicetrace.messages import State, TextSource

NEEDS: Final = ("mos",)
_NAME: Final = "clarity"
_WHY: Final = {
    "mos_overall": "noisy or distorted speech",
    "loss_mos": "broken or garbled speech",
    "character_errors": "words that cannot be made out",
}


def judge(features: CallFeatures, rubric: Rubric) -> DimensionScore:
    """One finding for each agent turn that is long enough: the worst of what was measured."""
    unheard = common.no_audio(features, "vad", "mos")
    if unheard is not None:
        return unheard
    findings = [f for m in features.agent_turns if (f := _finding(features, m, rubric)) is not None]
    if not findings:
        least = rubric.number(_NAME, "min_speech_s")
        return DimensionScore.none(NullReason.TOO_SHORT, f"no agent turn holds {least:g} s of speech")
    heard = any(m.heard is not None for m in features.agent_turns)
    return combine(
        findings,
        rubric,
        confidence=0.9 if heard else 0.7,
        fine=f"{common.words(len(findings), 'turn')}, all clear",
    )


def _finding(features: CallFeatures, measured: AgentTurn, rubric: Rubric) -> Finding | None:
    turn = features.turn_of(measured)
    if (turn.speech_ms or 0) < 1000 * rubric.number(_NAME, "min_speech_s"):
        return None
    scores: dict[str, tuple[float, float]] = {}
    if measured.mos_overall is not None:
        floor = rubric.number(_NAME, "noise_floor")
        value = measured.mos_overall
        scores["mos_overall"] = max(floor, rubric.curve(_NAME, "mos_overall")(value)), value
    if measured.loss_mos is not None:
        allowed = rubric.number(_NAME, "narrow_allowance") if measured.narrow else 0.0
        scores["loss_mos"] = rubric.curve(_NAME, "loss_mos")(measured.loss_mos + allowed), measured.loss_mos
    cap = None
    errors = measured.character_errors
    unsure = (measured.heard_log_probability or -9.0) < rubric.number(_NAME, "unheard_log_probability")
    # of a turn that was cut, the text may say more than was played
    whole = turn.state is State.COMPLETE or turn.text_source is TextSource.PLAYOUT_ALIGNED
    if errors is not None and whole and unsure and not is_foreign(features, measured.turn, rubric):
        scores["character_errors"] = rubric.curve(_NAME, "character_errors")(errors), errors
        if errors > rubric.number(_NAME, "unintelligible_errors"):
            cap = rubric.number(_NAME, "unintelligible_cap")
    if not scores:
        return None
    metric = min(scores, key=lambda name: scores[name][0])
    score, value = scores[metric]
    threshold = rubric.curve(_NAME, metric).threshold
    quote = measured.heard if metric == "character_errors" else None
    evidence = spot(turn.message_id, turn.start_ms, turn.end_ms, metric, value, threshold, quote)
    return Finding(score, evidence, _WHY[metric], cap)
