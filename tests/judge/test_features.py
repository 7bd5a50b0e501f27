# SPDX-License-Identifier: Apache-2.0
"""Features without models: who spoke when, words, and what a signal shows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jfeatures import message, table, turn

from voicetrace.judge.features import CallFeatures, signal, text, timing
from voicetrace.messages import Recording, Segment, Selection, State

RATE = 16_000


# -- turns -------------------------------------------------------------------------------------------
def test_bounds_move_to_the_speech_they_mean():
    agent = ((1150, 2900), (3200, 4600))
    [found] = timing.turns_of([message("a", 1000, 5000)], None, None, agent)
    assert (found.start_ms, found.end_ms) == (
        1150,
        4600,
    )  # silence that a synthesiser puts around is no speech
    assert found.speech_ms == 1750 + 1400


def test_speech_up_to_250_ms_outside_belongs_to_it():
    [found] = timing.turns_of([message("a", 1000, 5000)], None, None, ((760, 5240),))
    assert (found.start_ms, found.end_ms) == (760, 5240)
    [found] = timing.turns_of([message("a", 1000, 5000)], None, None, ((700, 5300),))
    assert (found.start_ms, found.end_ms) == (1000, 5000)  # further out it is a neighbour's


def test_a_neighbours_last_sound_is_not_its_own():
    [found] = timing.turns_of([message("a", 1000, 5000)], None, None, ((200, 1060), (1300, 4900)))
    assert (found.start_ms, found.end_ms) == (1300, 4900)


@given(st.integers(-80, 80), st.integers(-80, 80))
def test_jittered_bounds_give_the_same_turn(first, last):
    agent = ((1100, 2900), (3200, 4600))
    [found] = timing.turns_of([message("a", 1050 + first, 4700 + last)], None, None, agent)
    assert (found.start_ms, found.end_ms) == (1100, 4600)


def test_without_speech_bounds_stay():
    [found] = timing.turns_of([message("a", 1000, 5000)], None, None, ())
    assert (found.start_ms, found.end_ms, found.speech_ms) == (1000, 5000, 0)
    [found] = timing.turns_of([message("a", 1000, 5000)], None, None, None)
    assert found.speech_ms is None


def test_selections_are_placed_by_their_segment():
    recording = Recording(
        recording_id="r",
        uri="call.wav",
        format="wav",
        sample_rate_hz=16_000,
        channels=["caller", "agent"],
        origin_unix_ms=0,
        segments={"s": Segment(start_ms=10_000, length_ms=9000)},
    )
    said = message(
        "a",
        10_500,
        14_000,
        selections=[Selection(segment_id="s", channel="agent", start_ms=500, end_ms=1500),
                    Selection(segment_id="s", channel="agent", start_ms=3000, end_ms=4000)],
    )  # fmt: skip
    [found] = timing.turns_of([said], recording, None, None)
    assert found.ranges == ((10_500, 11_500), (13_000, 14_000))


def test_messages_without_bounds_are_told_from_the_audio():
    turns = timing.turns_of([], None, ((5000, 6000),), ((0, 1000), (1400, 2000), (7000, 8000)))
    assert [(t.role.value, t.start_ms, t.end_ms, t.message_id) for t in turns] == [
        ("assistant", 0, 2000, None),
        ("user", 5000, 6000, None),
        ("assistant", 7000, 8000, None),
    ]


# -- exchanges ---------------------------------------------------------------------------------------
def gaps(*turns, end=60_000):
    turns = tuple(turns)
    return [(e.gap_ms, e.answer is not None) for e in timing.exchanges_of(turns, end)]


def test_a_gap_is_from_the_last_word_to_the_first_sound():
    assert gaps(turn("a", 0, 900), turn("u", 1000, 2000), turn("a", 2800, 4000), end=4100) == [(800, True)]


def test_user_turns_in_a_row_are_one():
    assert gaps(turn("u", 0, 1000), turn("u", 1500, 2500), turn("a", 3500, 5000), end=5000) == [(1000, True)]


def test_an_unanswered_turn_counts_when_the_call_goes_on():
    assert gaps(turn("a", 0, 500), turn("u", 1000, 2000), end=9000) == [(7000, False)]
    assert gaps(turn("a", 0, 500), turn("u", 1000, 2000), end=4500) == []


def test_what_asks_for_no_answer_has_none():
    assert gaps(turn("a", 0, 5000), turn("u", 2000, 2400, text="mhm"), end=5000) == []
    assert gaps(turn("u", 0, 500, committed=False), turn("a", 3000, 5000), end=5000) == []


def test_an_answer_after_an_interruption_says_so():
    turns = (turn("a", 0, 3000, state="interrupted"), turn("u", 2500, 4000), turn("a", 5000, 6000))
    [exchange] = timing.exchanges_of(turns, 6000)
    assert exchange.after_interruption
    assert exchange.gap_ms == 1000


# -- pauses and overlaps -------------------------------------------------------------------------------
def test_pauses_are_the_agents_own():
    turns = (turn("a", 0, 6000), turn("a", 8000, 9000), turn("u", 9500, 9900), turn("a", 14_000, 15_000))
    found = timing.pauses_of(turns, ((0, 2000), (5000, 6000), (8000, 9000), (14_000, 15_000)))
    assert [(p.start_ms, p.end_ms) for p in found] == [(2000, 5000), (6000, 8000)]


def kinds(*turns, agent=None):
    return [(o.kind, o.value_ms) for o in timing.overlaps_of(tuple(turns), agent)]


def test_a_barge_in_is_timed_to_the_agents_last_sound():
    cut = turn("a", 0, 3000, state="interrupted")
    assert kinds(cut, turn("u", 2000, 5000, text="no, wait please")) == [("barge_in", 1000)]
    assert kinds(turn("a", 0, 9000), turn("u", 2000, 5000, text="no, wait please")) == [("barge_in", 3000)]


def test_breaking_in_during_a_pause_counts_when_the_agent_goes_on():
    heard = ((0, 2000), (2900, 4000))
    cut = turn("a", 0, 4000, state="interrupted")
    assert kinds(cut, turn("u", 2200, 6000, text="no, wait please"), agent=heard) == [("barge_in", 1800)]
    assert kinds(turn("a", 0, 2300), turn("u", 2100, 6000), agent=((0, 2000),)) == []


def test_a_backchannel_is_no_barge_in():
    assert kinds(turn("a", 0, 9000), turn("u", 2000, 2400)) == [("backchannel", -1)]
    assert kinds(turn("a", 0, 9000), turn("u", 2000, 2900, text="Yeah, okay.")) == [("backchannel", -1)]
    stopped = turn("a", 0, 2700, state="interrupted")
    assert kinds(stopped, turn("u", 2000, 2400)) == [("backchannel", 700)]


def test_talking_over_the_caller():
    assert kinds(turn("u", 0, 3000), turn("a", 2200, 5000)) == [("talk_over", 800)]
    assert kinds(turn("u", 0, 3000), turn("a", 2950, 5000)) == []


def test_an_agent_that_stops_for_nobody():
    assert kinds(turn("a", 0, 3000, state="interrupted"), turn("a", 4000, 5000)) == [("false_trigger", 0)]
    in_a_pause = turn("a", 0, 3000, state="interrupted", interrupted_at_ms=3800)
    assert kinds(in_a_pause, turn("u", 3500, 5000)) == []
    assert kinds(in_a_pause, turn("u", 5000, 6000)) == [("false_trigger", 0)]
    assert kinds(turn("a", 0, 3000, state="interrupted"), turn("u", 2900, 5000)) == []


# -- words ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("said", "count"),
    [
        ("hello", 2), ("one two three", 3), ("the table is here", 5), ("walked", 1), ("wanted", 2), ("15", 2),
        ("70", 3), ("27", 4), ("2085", 5), ("I'm fine", 2), ("appointment", 3), ("", 0), ("mm", 2),
    ],
)  # fmt: skip
def test_syllables(said, count):
    assert text.syllables(said) == count


def test_backchannels():
    assert text.is_backchannel("Mhm, yeah.")
    assert not text.is_backchannel("yes I would like that")
    assert not text.is_backchannel("")
    assert not text.is_backchannel(None)


def test_fillers_are_counted_by_phrase():
    counts = text.repeated_fillers(["One moment, please.", "Let me check that.", "One moment while I look."])
    assert counts["one moment"] == 2
    assert counts["let me check that"] == 1
    assert not text.is_filler("Your appointment is on Monday.")


# -- signal ----------------------------------------------------------------------------------------------
def voice(seconds=3.0, rate=RATE, seed=1):
    """Something with the level of speech: noise in syllables, faded at its end."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(seconds * rate)) / rate
    envelope = (0.55 + 0.45 * np.sin(2 * np.pi * 4 * t)) * np.minimum(1, (seconds - t) / 0.25)
    return (0.1 * envelope * rng.standard_normal(t.size)).astype(np.float32)


def test_loudness_of_a_reference_tone():
    pytest.importorskip("scipy", reason="needs voicetrace[judge]")
    for rate in (16_000, 48_000):
        tone = np.sin(2 * np.pi * 997 * np.arange(rate * 3) / rate).astype(np.float32)
        value = signal.gated_lufs(signal.blocks_lufs(tone, rate))
        assert value == pytest.approx(-3.01, abs=0.1)  # ITU-R BS.1770-4
        quiet = signal.gated_lufs(signal.blocks_lufs(tone * 0.1, rate))
        assert quiet == pytest.approx(value - 20, abs=0.05)


def test_silence_has_no_loudness():
    pytest.importorskip("scipy", reason="needs voicetrace[judge]")
    assert signal.gated_lufs(signal.blocks_lufs(np.zeros(RATE, np.float32), RATE)) is None


@pytest.mark.parametrize("gain", [1.0, 0.3])
def test_clipping_is_seen_at_any_level(gain):
    clean = voice()
    assert signal.clipped_share(clean) < 0.001
    clipped = np.clip(clean * 8, -0.3, 0.3) * gain
    assert signal.clipped_share(clipped.astype(np.float32)) > 0.02


def test_clipping_is_seen_behind_a_filter():
    clean = voice()

    def telephone(samples):
        spectrum = np.fft.rfft(samples)
        spectrum[3400 * 3 :] = 0
        return np.fft.irfft(spectrum, samples.size).astype(np.float32)

    clipped = telephone(np.clip(clean * 8, -0.3, 0.3))
    assert signal.clipped_share(clipped) < 0.001  # the flat tops are round now
    assert signal.crowded_share(clipped) > 3 * signal.crowded_share(telephone(clean))
    assert signal.crowded_share(0.3 * clipped) == pytest.approx(signal.crowded_share(clipped), abs=0.001)
    assert signal.crowded_share(np.zeros(RATE, np.float32)) == 0.0


def test_holes_with_hard_edges_are_dropouts():
    clean = voice()
    assert signal.dropouts(clean, RATE) == 0
    holed = clean.copy()
    for at in (8000, 16_000, 24_000):
        holed[at : at + 320] = 0
    assert signal.dropouts(holed, RATE) == 3
    paused = clean.copy()
    paused[16_000:24_000] = 0  # half a second is a pause
    assert signal.dropouts(paused, RATE) == 0


def test_an_ending_that_fades_and_one_that_does_not():
    silence = np.zeros(3000, np.float32)
    assert signal.end_level_db(np.concatenate([voice(), silence]), RATE) < -15
    cut = voice()[: int(1.56 * RATE)]
    assert signal.end_level_db(np.concatenate([cut, silence]), RATE) > -6
    assert signal.end_level_db(cut, RATE) is None  # music or another sound that goes on is no cut
    assert signal.end_level_db(np.zeros(RATE, np.float32), RATE) is None


def test_a_telephones_band_is_narrow():
    wide = voice()
    assert not signal.is_narrow(wide, RATE)
    spectrum = np.fft.rfft(wide)
    spectrum[(3800 * 3) :] = 0
    assert signal.is_narrow(np.fft.irfft(spectrum, wide.size).astype(np.float32), RATE)


# -- the table ------------------------------------------------------------------------------------------
def test_a_table_survives_json():
    before = table(
        message("a", 0, 3000), message("u", 3500, 5000), message("a", 6000, 8000, state="interrupted")
    )
    after = CallFeatures.from_json(before.to_json())
    assert after == before
    assert after.turns[2].state is State.INTERRUPTED
    with pytest.raises(ValueError, match="of version 99"):
        CallFeatures.from_json('{"version":99}')
