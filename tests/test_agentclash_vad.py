# SPDX-License-Identifier: Apache-2.0
"""The energy detector: by hand on signals of known bounds, and against a neural one on recorded speech."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf

from voicetrace.agentclash.vad import Activity, Interval, SoundMeter, VadSettings, activity_of

RATE = 16_000
CLIPS = sorted((Path(__file__).parents[1] / "src" / "voicetrace" / "demo" / "data").glob("*.flac"))


def tone(ms: int, dbfs: float, rate: int = RATE) -> np.ndarray:
    """A sine whose power is this many dBFS."""
    t = np.arange(ms * rate // 1000) / rate
    return (np.sin(2 * np.pi * 400 * t) * 32768 * 10 ** (dbfs / 20) * np.sqrt(2)).astype(np.int16)


def quiet(ms: int, dbfs: float | None = None, rate: int = RATE) -> np.ndarray:
    size = ms * rate // 1000
    if dbfs is None:
        return np.zeros(size, np.int16)
    return np.random.default_rng(ms).normal(0, 32768 * 10 ** (dbfs / 20), size).astype(np.int16)


def heard(
    parts: list[np.ndarray], rate: int = RATE, settings: VadSettings | None = None
) -> list[tuple[int, int]]:
    return [tuple(i) for i in activity_of([np.concatenate(parts)], rate, settings).intervals]  # type: ignore[misc]


@pytest.mark.parametrize("rate", [8000, 16_000, 24_000, 44_100, 48_000])
@pytest.mark.parametrize("noise", [None, -70, -60])
def test_bounds_are_those_of_the_sound(rate: int, noise: float | None) -> None:
    parts = [quiet(500, noise, rate), tone(700, -20, rate), quiet(400, noise, rate), tone(300, -20, rate)]
    parts.append(quiet(600, noise, rate))
    found = heard(parts, rate)
    assert len(found) == 2
    for got, wanted in zip(np.ravel(found), (500, 1200, 1600, 1900), strict=True):
        assert abs(int(got) - wanted) <= 10


def test_a_shorter_pause_is_none_and_a_click_is_no_sound() -> None:
    parts = [quiet(500), tone(300, -20), quiet(190), tone(300, -20), quiet(300), tone(30, -20), quiet(300)]
    assert heard(parts) == [(500, 1290)]
    assert heard(parts, settings=VadSettings(min_silence_ms=190)) == [(500, 800), (990, 1290)]
    assert heard(parts, settings=VadSettings(min_sound_ms=30)) == [(500, 1290), (1590, 1620)]


def test_noise_is_followed() -> None:
    # a quiet room, then a loud one: the same speech is 36 dB over the first and 15 dB over the second
    parts = [quiet(6000, -66), tone(500, -30), quiet(6000, -66), quiet(20_000, -45), tone(500, -30)]
    parts.append(quiet(10_000, -45))
    first, rise, second = heard(parts)
    for got, wanted in zip((*first, *second), (6000, 6500, 32_500, 33_000), strict=True):
        assert abs(got - wanted) <= 20
    # what the louder room itself brought counts as sound for as long as the quiet one is remembered
    assert abs(rise[0] - 12_500) <= 20
    assert 7000 <= rise[1] - rise[0] <= 9000


def test_a_channel_that_never_pauses_is_sound_and_an_offset_is_not() -> None:
    assert heard([tone(20_000, -12)]) == [(0, 20_000)]
    assert heard([np.full(RATE * 2, 9000, np.int16)]) == []
    assert heard([quiet(5000)]) == []
    assert heard([quiet(5000, -60)]) == []
    assert heard([np.zeros(0, np.int16)]) == []


def test_the_sound_threshold_is_the_minimum_where_there_is_no_noise() -> None:
    assert heard([quiet(300), tone(300, -49), quiet(300)]) == [(300, 600)]
    assert heard([quiet(300), tone(300, -52), quiet(300)]) == []
    assert heard([quiet(300), tone(300, -52), quiet(300)], settings=VadSettings(minimum_dbfs=-55)) == [
        (300, 600)
    ]


def test_once_it_sounds_less_is_enough() -> None:
    fading = [quiet(300), tone(200, -40), tone(200, -53), tone(200, -60), quiet(300)]
    assert heard(fading) == [(300, 700)]
    assert heard(fading, settings=VadSettings(hysteresis_db=0)) == [(300, 500)]


def test_pieces_of_any_size_give_the_same() -> None:
    whole = np.concatenate(
        [quiet(500, -60), tone(700, -20), quiet(777, -60), tone(123, -25), quiet(600, -60)]
    )
    expected = activity_of([whole], RATE)
    for size in (1, 7, 159, 160, 161, 4096):
        if size == 1:
            pieces = [whole[i : i + 1] for i in range(2000)] + [whole[2000:]]
        else:
            pieces = [whole[i : i + size] for i in range(0, whole.size, size)]
        got = activity_of(pieces, RATE)
        assert (got.intervals, got.duration_ms) == (expected.intervals, expected.duration_ms)
        np.testing.assert_array_equal(got.levels, expected.levels)


def test_levels_are_dbfs() -> None:
    activity = activity_of([np.concatenate([tone(500, -20), tone(500, -40), quiet(500)])], RATE)
    assert abs(activity.loudest_dbfs(0, 1500) + 20) <= 0.5
    assert abs(activity.loudest_dbfs(500, 1000) + 40) <= 0.5
    assert activity.loudest_dbfs(1000, 1500) == -127
    assert activity.loudest_dbfs(2000, 3000) == -127
    assert activity.is_silent(1010, 1500)
    assert not activity.is_silent(900, 1500)


def test_what_is_within_a_stretch() -> None:
    activity = Activity(
        (Interval(100, 200), Interval(300, 400), Interval(500, 600)), 1000, np.zeros(100, np.uint8)
    )
    assert activity.within(150, 550) == [(150, 200), (300, 400), (500, 550)]
    assert activity.within(200, 300) == []
    assert activity.within(310, 320) == [(310, 320)]
    assert activity.within(0, 1000) == list(activity.intervals)
    assert activity.within(700, 800) == []


def test_it_may_be_asked_again() -> None:
    meter = SoundMeter(RATE)
    meter.feed(np.concatenate([quiet(500), tone(300, -20), quiet(150), tone(300, -20)]))
    assert len(meter.finish().intervals) == 1
    assert len(meter.finish(VadSettings(min_silence_ms=100)).intervals) == 2
    meter.feed(np.concatenate([quiet(500), tone(300, -20)]))
    assert len(meter.finish().intervals) == 2


# -- against another detector ------------------------------------------------------------------------
def silero(samples: np.ndarray, rate: int) -> list[tuple[float, float]]:
    """Speech by the Silero model, in ms."""
    rtc = pytest.importorskip("livekit.rtc")
    inference = pytest.importorskip("livekit.agents.inference")
    events = pytest.importorskip("livekit.agents.vad").VADEventType

    async def listen() -> list[tuple[float, float]]:
        vad = inference.VAD(model="silero", min_silence_duration=0.2, prefix_padding_duration=0.0)
        stream = vad.stream()
        for at in range(0, samples.size, rate // 100):
            frame = samples[at : at + rate // 100]
            stream.push_frame(rtc.AudioFrame(frame.tobytes(), rate, 1, frame.size))
        stream.end_input()
        found: list[tuple[float, float]] = []
        start = 0.0
        async for event in stream:
            if event.type == events.START_OF_SPEECH:
                start = event.timestamp - event.speech_duration
            elif event.type == events.END_OF_SPEECH:
                found.append((1000 * start, 1000 * (event.timestamp - event.silence_duration)))
        await stream.aclose()
        return found

    return asyncio.run(listen())


def frames(intervals: list[tuple[float, float]], length_ms: int) -> np.ndarray:
    out = np.zeros(length_ms // 10, np.bool_)
    for start, end in intervals:
        out[round(start / 10) : round(end / 10)] = True
    return out


@pytest.mark.parametrize("noise", [0, 14])
@pytest.mark.parametrize("clip", CLIPS, ids=lambda path: path.stem)
def test_recorded_speech_begins_and_ends_where_another_detector_hears_it(clip: Path, noise: int) -> None:
    samples, rate = sf.read(clip, dtype="int16")
    second = np.zeros(rate, np.int16)
    whole = np.concatenate([second, samples, second])
    if noise:
        room = np.random.default_rng(1).normal(0, noise, whole.size)
        whole = np.clip(whole + room, -32768, 32767).astype(np.int16)
    ours = activity_of([whole], rate).intervals
    theirs = silero(whole, rate)
    assert bool(ours) == bool(theirs) == (clip.stem != "room")
    if not ours:
        return
    assert abs(ours[0].start_ms - theirs[0][0]) <= 100
    assert abs(ours[-1].end_ms - theirs[-1][1]) <= 200  # the model's tail, on a cough's decay the longest
    length_ms = whole.size * 1000 // rate
    a, b = frames([tuple(i) for i in ours], length_ms), frames(theirs, length_ms)  # type: ignore[misc]
    assert (a != b).mean() < 0.12  # pauses near 200 ms: one of the two hears a break
