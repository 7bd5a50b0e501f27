# SPDX-License-Identifier: Apache-2.0
"""The ten dimensions: from tables of features to scores, nulls and evidence, without audio or models."""

from __future__ import annotations

import pytest
from jfeatures import RUBRIC, message, table

from voicetrace.judge.dimensions import DIMENSIONS, score_features
from voicetrace.judge.features.table import ReadBack
from voicetrace.judge.result import Dimension, NullReason, Severity
from voicetrace.messages import TimingSource

D = Dimension


def judged(features, dimension):
    return DIMENSIONS[dimension].judge(features, RUBRIC)


def talk(gap_ms=800, turns=4, **each):
    """A plain conversation, the agent first; ``each`` is measured of every agent turn."""
    messages, at = (
        [message("a", 0, 4000, id="a0", text="Hello, how can I help you with your booking today?")],
        4000,
    )
    for n in range(1, turns):
        messages.append(message("u", at + 500, at + 2500, id=f"u{n}", text="I would like to change it."))
        at += 2500 + gap_ms
        messages.append(
            message("a", at, at + 4000, id=f"a{n}", text="Of course, I have changed the time for you.")
        )
        at += 4000
    fields = {f"a{n}": {k: v[n] if isinstance(v, list) else v for k, v in each.items()} for n in range(turns)}
    return messages, fields


GOOD = {
    "loudness_lufs": -23.0,
    "clipped_share": 0.0,
    "dropouts_per_s": 0.0,
    "end_level_db": -30.0,
    "mos_overall": 3.3,
    "loss_mos": 4.5,
    "pitch_st": 15.0,
    "pitch_sd_st": 2.8,
    "syllables": 17,
    "heard": "fine",
    "heard_log_probability": -0.1,
    "character_errors": 0.02,
    "missing_end": False,
    "language": "en",
    "language_probability": 0.99,
}


def call(gap_ms=800, turns=4, more=None, **measured):
    messages, fields = talk(gap_ms, turns, **{**GOOD, **measured})
    alike = tuple(tuple(1.0 if i == j else 0.9 for j in range(turns)) for i in range(turns))
    return table(*messages, measured=fields, **{"similarities": alike, "values_checked": 3, **(more or {})})


# -- all of them ------------------------------------------------------------------------------------
def test_a_good_call_has_nothing_below_the_bar():
    scores = score_features(call(), RUBRIC)
    assert set(scores) == set(Dimension)
    null = {d for d, s in scores.items() if s.score is None}
    assert null == {D.INTERRUPTION_HANDLING, D.WARMTH_TONE}  # no events, and no proxy for warmth: never 1
    assert all(s.score >= 0.9 for d, s in scores.items() if d not in null)
    assert all(s.reason for s in scores.values())


@pytest.mark.parametrize("dimension", Dimension)
def test_vt77_silence_is_no_good_speech(dimension):
    features = call(more={"agent_speech_ms": 0, "agent_sounds": False})
    silent = features.model_copy(
        update={"turns": tuple(t.model_copy(update={"speech_ms": 0}) for t in features.turns)}
    )
    assert judged(silent, dimension).null_reason is NullReason.NO_AGENT_SPEECH


@pytest.mark.parametrize("dimension", Dimension)
def test_an_empty_call_has_no_scores(dimension):
    score = judged(table(), dimension)
    assert score.score is None
    assert score.null_reason in (NullReason.NO_AGENT_SPEECH, NullReason.NO_AUDIO)


HEARD = [D.PRONUNCIATION, D.CLARITY, D.AUDIO_CONSISTENCY, D.PACING, D.WARMTH_TONE, D.VOICE_IDENTITY]


@pytest.mark.parametrize("dimension", HEARD)
def test_what_listens_needs_a_recording(dimension):
    messages, _ = talk()
    assert judged(table(*messages, audio=False), dimension).null_reason is NullReason.NO_AUDIO


def test_time_is_told_from_messages_alone():
    messages, _ = talk(gap_ms=3600)
    score = judged(table(*messages, audio=False), D.LATENCY_DEAD_AIR)
    assert score.severity is Severity.FLAG
    assert score.confidence < judged(call(gap_ms=3600), D.LATENCY_DEAD_AIR).confidence


@pytest.mark.parametrize(
    ("dimension", "provider"),
    [(D.CLARITY, "mos"), (D.CLARITY, "vad"), (D.AUDIO_CONSISTENCY, "vad"), (D.PACING, "vad"),
     (D.VOICE_IDENTITY, "speaker"),
     (D.WARMTH_TONE, "pitch")],
)  # fmt: skip
def test_a_missing_provider_is_a_null_that_says_what_to_install(dimension, provider):
    why = f"the provider {provider} needs onnxruntime: pip install 'voicetrace[judge]'"
    score = judged(call(more={"missing": {provider: why}}), dimension)
    assert (score.null_reason, score.reason) == (NullReason.PROVIDER_UNAVAILABLE, why)


# -- latency ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("gap_ms", "severity"),
    [(300, "None"), (1900, "None"), (2700, "Warning"), (3100, "Flag"), (6000, "Critical")],
)
def test_latency(gap_ms, severity):
    score = judged(call(gap_ms=gap_ms), D.LATENCY_DEAD_AIR)
    assert score.severity == severity


def test_one_silence_of_more_than_three_seconds_is_at_least_a_flag():
    messages, _ = talk(turns=9)
    late = [
        m.model_copy(update={"start_ms": m.start_ms + 2300, "end_ms": m.end_ms + 2300}) for m in messages[16:]
    ]
    score = judged(table(*messages[:16], *late), D.LATENCY_DEAD_AIR)
    assert score.score == 0.49
    assert score.evidence[0].message_id == "a8"
    assert score.evidence[0].value == pytest.approx(3.1)
    assert (score.evidence[0].start_ms, score.evidence[0].end_ms) == (
        late[0].start_ms - 3100,
        late[0].start_ms,
    )


def test_arrivals_are_no_ends_of_speech():
    messages, _ = talk()
    received = [
        m.model_copy(update={"timing_source": TimingSource.LOCAL_RECEIPT}) if m.role == "user" else m
        for m in messages
    ]
    assert (
        judged(table(*received, audio=False), D.LATENCY_DEAD_AIR).null_reason is NullReason.UNTRUSTED_TIMING
    )
    assert judged(table(*received), D.LATENCY_DEAD_AIR).score == 1.0  # the audio says when


# -- pronunciation ------------------------------------------------------------------------------------
def wrong(support=-6.0, turn=2):
    return {"read_backs": (ReadBack(turn=turn, said="fifteen", heard="50", support=support),)}


def test_a_wrong_read_back_is_critical():
    score = judged(call(more=wrong()), D.PRONUNCIATION)
    assert score.severity is Severity.CRITICAL
    assert score.evidence[0].quote == "text: fifteen; heard: 50"
    assert score.evidence[0].message_id == "a1"


def test_a_contradiction_that_the_audio_does_not_bear_out_is_none():
    assert judged(call(more=wrong(support=-1.0)), D.PRONUNCIATION).score == 1.0


def test_a_turn_in_another_language_is_its_own_finding():
    features = call(language=["en", "es", "en", "en"], more=wrong())
    assert judged(features, D.PRONUNCIATION).score == 1.0
    assert judged(features, D.ACCENT_QUALITY).severity is Severity.CRITICAL


def test_nothing_to_check_and_nobody_to_check_it():
    assert judged(call(more={"values_checked": 0}), D.PRONUNCIATION).null_reason is NullReason.NO_EVENTS
    unheard = call(more={"values_checked": None, "missing": {"asr": "the provider asr needs ctranslate2"}})
    assert judged(unheard, D.PRONUNCIATION).null_reason is NullReason.PROVIDER_UNAVAILABLE


# -- clarity ------------------------------------------------------------------------------------------
def test_noise_ends_at_a_flag_and_unintelligible_is_critical():
    noisy = judged(call(mos_overall=1.0), D.CLARITY)
    assert (noisy.score, noisy.severity) == (0.25, Severity.FLAG)
    lost = judged(call(mos_overall=1.0, character_errors=0.7, heard_log_probability=-1.0), D.CLARITY)
    assert lost.severity is Severity.CRITICAL


def test_other_words_heard_clearly_are_no_matter_of_clarity():
    assert judged(call(character_errors=0.7, heard_log_probability=-0.1), D.CLARITY).score == 1.0


def test_words_that_were_cut_off_are_no_unclear_words():
    messages, fields = talk(**{**GOOD, "character_errors": 0.7, "heard_log_probability": -1.0})
    cut = [
        m.model_copy(update={"state": "interrupted", "interrupted_at_ms": m.end_ms})
        for m in messages
        if m.role != "user"
    ]
    assert judged(table(*messages, measured=fields), D.CLARITY).severity is Severity.CRITICAL
    assert judged(table(*cut, measured=fields), D.CLARITY).score == 1.0


def test_a_telephone_is_allowed_its_band():
    assert judged(call(loss_mos=2.6), D.CLARITY).severity is Severity.WARNING
    assert judged(call(loss_mos=2.6, narrow=True), D.CLARITY).severity is Severity.NONE


def test_too_short_for_clarity():
    features = table(message("a", 0, 600), measured={"item_a0": GOOD})
    assert judged(features, D.CLARITY).null_reason is NullReason.TOO_SHORT


# -- filler and silence ---------------------------------------------------------------------------------
def test_silence_while_it_has_the_floor():
    messages = [message("a", 0, 2000), message("a", 6000, 8000)]
    score = judged(table(*messages), D.FILLER_SILENCE)
    assert score.severity is Severity.FLAG
    assert (score.evidence[0].start_ms, score.evidence[0].end_ms) == (2000, 6000)


@pytest.mark.parametrize(("times", "severity"), [(1, "None"), (3, "Warning"), (5, "Flag")])
def test_the_same_filler_again(times, severity):
    said = [message("a", 5000 * n, 5000 * n + 4000, text="One moment, please.") for n in range(times)]
    score = judged(table(*said), D.FILLER_SILENCE)
    assert score.severity == severity
    if times > 1:
        assert score.evidence[0].quote == "one moment"
        assert score.evidence[0].start_ms == 5000 * (times - 1)


# -- interruptions --------------------------------------------------------------------------------------
@pytest.mark.parametrize(("yield_ms", "severity"), [(300, "None"), (1400, "Warning"), (2600, "Critical")])
def test_yielding(yield_ms, severity):
    messages = [
        message("a", 0, 3000 + yield_ms, state="interrupted"),
        message("u", 3000, 6500, text="No, wait, that is wrong."),
        message("a", 7000, 9000),
    ]
    assert judged(table(*messages), D.INTERRUPTION_HANDLING).severity == severity


def test_a_slow_answer_to_an_interruption():
    messages = [
        message("a", 0, 3300, state="interrupted"),
        message("u", 3000, 6500, text="No, wait, that is wrong."),
        message("a", 10_500, 12_000),
    ]
    score = judged(table(*messages), D.INTERRUPTION_HANDLING)
    assert score.evidence[0].metric == "recovery_s"
    assert score.severity is Severity.FLAG


def test_assent_and_false_alarms():
    calm = table(message("a", 0, 9000), message("u", 3000, 3400, text="mhm", committed=False))
    assert judged(calm, D.INTERRUPTION_HANDLING).score == 1.0
    stopped = table(message("a", 0, 3000, state="interrupted"), message("a", 4000, 6000))
    score = judged(stopped, D.INTERRUPTION_HANDLING)
    assert score.severity is Severity.WARNING
    assert score.evidence[0].metric == "stopped_without_speech"


# -- consistency ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("each", "metric"),
    [
        ({"loudness_lufs": [-23.0, -23.0, -15.0, -23.0]}, "loudness_lu"),
        ({"clipped_share": 0.05}, "clipped_share"),
        ({"crowded_share": 0.12}, "crowded_share"),
        ({"dropouts_per_s": 2.0}, "dropouts_per_s"),
        ({"pitch_st": [15.0, 15.0, 15.0, 24.0]}, "pitch_st"),
        ({"end_level_db": [-30.0, -2.0, -3.0, -30.0]}, "end_level_db"),
    ],
)
def test_consistency(each, metric):
    score = judged(call(**each), D.AUDIO_CONSISTENCY)
    assert score.score < 0.75
    assert score.evidence[0].metric == metric


def test_how_people_speak_is_consistent():
    features = call(
        loudness_lufs=[-23.0, -25.5, -21.0, -23.0], pitch_st=[15.0, 11.0, 19.0, 15.0], end_level_db=-12.0
    )
    assert judged(features, D.AUDIO_CONSISTENCY).score >= 0.75


def test_an_interrupted_turn_is_no_cut():
    messages, fields = talk(**{**GOOD, "end_level_db": -1.0})
    cut = [
        m.model_copy(update={"state": "interrupted", "interrupted_at_ms": m.end_ms})
        for m in messages
        if m.role != "user"
    ]
    assert judged(table(*cut, measured=fields), D.AUDIO_CONSISTENCY).score == 1.0


# -- pacing, warmth, accent, identity ---------------------------------------------------------------------
@pytest.mark.parametrize(
    ("syllables", "severity"), [(10, "Warning"), (17, "None"), (27, "Warning"), (40, "Critical")]
)
def test_pacing(syllables, severity):
    assert judged(call(syllables=syllables), D.PACING).severity == severity


def test_a_faster_language_has_its_own_rate():
    english, spanish = call(syllables=26), call(syllables=26, more={"expected_language": "es"})
    assert judged(english, D.PACING).severity is Severity.WARNING
    assert judged(spanish, D.PACING).severity is Severity.NONE


def test_flat_is_seen_and_lively_is_null():
    assert judged(call(pitch_sd_st=0.8), D.WARMTH_TONE).severity is Severity.FLAG
    assert judged(call(pitch_sd_st=0.8), D.WARMTH_TONE).method == "acoustic_proxy"
    assert judged(call(pitch_sd_st=2.0), D.WARMTH_TONE).null_reason is NullReason.NO_EVENTS


def test_language():
    assert judged(call(), D.ACCENT_QUALITY).score == 1.0
    unsure = call(language=["en", "es", "en", "en"], language_probability=0.4)
    assert judged(unsure, D.ACCENT_QUALITY).severity is Severity.WARNING
    assert (
        judged(call(more={"expected_language": None}), D.ACCENT_QUALITY).null_reason is NullReason.TOO_SHORT
    )
    whole = call(language=None, more={"agent_text_language": "fr", "agent_text_language_probability": 0.9})
    assert judged(whole, D.ACCENT_QUALITY).severity is Severity.CRITICAL


def test_another_voice():
    alike = ((1.0, 0.9, 0.5, 0.9), (0.9, 1.0, 0.52, 0.9), (0.5, 0.52, 1.0, 0.51), (0.9, 0.9, 0.51, 1.0))
    score = judged(call(more={"similarities": alike}), D.VOICE_IDENTITY)
    assert score.severity in (Severity.FLAG, Severity.CRITICAL)
    assert score.evidence[0].message_id == "a2"


def test_noisy_turns_are_not_compared():
    assert judged(call(mos_overall=1.5), D.VOICE_IDENTITY).null_reason is NullReason.TOO_SHORT
    assert judged(call(turns=2), D.VOICE_IDENTITY).null_reason is NullReason.TOO_SHORT
