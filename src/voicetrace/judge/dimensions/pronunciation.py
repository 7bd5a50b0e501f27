# SPDX-License-Identifier: Apache-2.0
"""P0, pronunciation: values that were read back wrongly, by contradiction (`voicetrace.judge.readback`).

A recogniser heard a different valid value than the text has, and finds the text's own value improbable in
the audio. A right word in the wrong sounds is not caught by this: that takes the listener.
"""

from __future__ import annotations

from typing import Final

from voicetrace.judge.dimensions import common
from voicetrace.judge.features.table import CallFeatures
from voicetrace.judge.result import DimensionScore, NullReason
from voicetrace.judge.rubric import Rubric
from voicetrace.judge.score import Finding, combine, spot
from voicetrace.messages import Role

NEEDS: Final = ("asr",)
_NAME: Final = "pronunciation"


def judge(features: CallFeatures, rubric: Rubric) -> DimensionScore:
    """One finding for each value of the agent's text that was held against the audio."""
    unheard = common.no_audio(features)
    if unheard is not None:
        return unheard
    if not any(t.role is Role.ASSISTANT and t.text for t in features.turns):
        return DimensionScore.none(
            NullReason.NO_TEXT, "the text of what the agent should have said is not known"
        )
    if features.values_checked is None:
        name = "asr" if features.expected_language in (None, "en") else "asr_multilingual"
        why = features.missing.get(name, f"no recogniser of {features.expected_language}")
        return DimensionScore.none(NullReason.PROVIDER_UNAVAILABLE, why)
    if not features.values_checked:
        return DimensionScore.none(
            NullReason.NO_EVENTS, "the agent read out no number, date or name of the lexicon"
        )
    foreign = {m.turn for m in features.agent_turns if is_foreign(features, m.turn, rubric)}
    limit = rubric.number(_NAME, "support")
    findings = []
    for found in features.read_backs:
        if found.turn in foreign or (found.support is not None and found.support >= limit):
            continue  # another language is its own finding; a text that the audio supports was said
        turn = features.turns[found.turn]
        sure = found.support is not None
        findings.append(
            Finding(
                rubric.number(_NAME, "wrong_cap" if sure else "unsure_score"),
                spot(
                    turn.message_id,
                    turn.start_ms,
                    turn.end_ms,
                    "read_back_log_probability",
                    found.support,
                    limit,
                    f"text: {found.said}; heard: {found.heard}",
                ),
                f"the text says {found.said!r}, the audio {found.heard!r}",
                rubric.number(_NAME, "wrong_cap") if sure else None,
            )
        )
    right = features.values_checked - len(findings)
    first = next(t for t in features.turns if t.role is Role.ASSISTANT)
    good = spot(first.message_id, first.start_ms, first.end_ms, "values_read_back", float(max(0, right)))
    findings += [Finding(1.0, good)] * max(0, right)
    return combine(
        findings or [Finding(1.0, good)],
        rubric,
        confidence=0.8,
        fine=f"{common.words(features.values_checked, 'value')} read out, none contradicted",
    )


def is_foreign(features: CallFeatures, turn: int, rubric: Rubric) -> bool:
    """Tell whether a turn was surely spoken in another language than expected."""
    expected = features.expected_language
    return expected is not None and any(
        m.turn == turn
        and m.language not in (None, expected)
        and (m.language_probability or 0) >= rubric.number("accent_quality", "sure")
        for m in features.agent_turns
    )
