# SPDX-License-Identifier: Apache-2.0
"""P2, accent and language: is the agent heard in the language it should speak?

Accent itself takes the listener. Expected is the language of the service, else the caller's own. A turn
surely in another one is Critical.
"""

from __future__ import annotations

from typing import Final

from voicetrace.judge.dimensions import common
from voicetrace.judge.features.table import CallFeatures
from voicetrace.judge.result import DimensionScore, NullReason
from voicetrace.judge.rubric import Rubric
from voicetrace.judge.score import Finding, combine, spot
from voicetrace.messages import Role

NEEDS: Final = ("text_language",)
_NAME: Final = "accent_quality"


def judge(features: CallFeatures, rubric: Rubric) -> DimensionScore:
    """One finding for each agent turn whose language is known, else one for all of its text."""
    silent = common.no_speech(features)
    if silent is not None:
        return silent
    expected = features.expected_language
    if expected is None:
        return _unknown(features, "the caller's language is not known, and the service names none")
    sure = rubric.number(_NAME, "sure")
    findings = []
    for measured in features.agent_turns:
        if measured.language is not None:
            turn = features.turn_of(measured)
            found = (measured.language, measured.language_probability or 0.0)
            place = (turn.message_id, turn.start_ms, turn.end_ms)
            findings.append(_finding(place, found, expected, sure, rubric, turn.text))
    if not findings and features.agent_text_language is not None:
        own = [t for t in features.turns if t.role is Role.ASSISTANT]
        found = (features.agent_text_language, features.agent_text_language_probability or 0.0)
        place = (None, own[0].start_ms, own[-1].end_ms)
        findings.append(_finding(place, found, expected, sure, rubric, own[0].text))
    if not findings:
        return _unknown(features, "the agent said too little to tell its language")
    return combine(findings, rubric, confidence=0.8, fine=f"the agent speaks {expected}, as expected")


def _finding(
    place: tuple[str | None, int, int],
    found: tuple[str, float],
    expected: str,
    sure: float,
    rubric: Rubric,
    quote: str | None,
) -> Finding:
    language, probability = found
    evidence = spot(
        *place, "language", f"{language} ({probability:.2f})", expected, quote[:80] if quote else None
    )
    if language == expected:
        return Finding(1.0, evidence)
    if probability < sure:
        return Finding(
            rubric.number(_NAME, "unsure_score"), evidence, f"sounds like {language}, expected {expected}"
        )
    cap = rubric.number(_NAME, "wrong_cap")
    return Finding(cap, evidence, f"the agent speaks {language} where {expected} is expected", cap)


def _unknown(features: CallFeatures, why: str) -> DimensionScore:
    missing = features.missing.get("text_language")
    if missing and "asr_multilingual" in features.missing:
        return DimensionScore.none(NullReason.PROVIDER_UNAVAILABLE, missing)
    if not any(t.text for t in features.turns):
        return DimensionScore.none(NullReason.NO_TEXT, why)
    return DimensionScore.none(NullReason.TOO_SHORT, why)
