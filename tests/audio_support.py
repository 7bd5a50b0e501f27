# SPDX-License-Identifier: Apache-2.0
"""A caller's device and network in virtual time, and calls to cut clips from."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from voicetrace.audio import RecordingWriter
from voicetrace.messages import Channel, Recording, Role, Segment, Selection, State, TextStatus, VoiceMessage
from voicetrace.voice_call import VoiceCall

ORIGIN = 1_800_000_000_000


def tone(samples: int, seed: int = 1) -> np.ndarray:
    """Noise that is never zero: every sample can be recognised."""
    rng = np.random.default_rng(seed)
    return (rng.integers(1, 20_000, samples) * rng.choice([-1, 1], samples)).astype(np.int16)


NOISE = tone(1_000_003, seed=99)


def frames(
    *,
    length_ms: float,
    rate: int,
    frame_ms: int = 20,
    ppm: float = 0.0,
    jitter_ms: float = 0.0,
    seed: int = 1,
    stalls: tuple[tuple[float, float], ...] = (),
    losses: tuple[tuple[float, float], ...] = (),
    sound: Callable[[int, int, float], np.ndarray] | None = None,
) -> Iterator[tuple[float, np.ndarray]]:
    """(arrival, frame) of a device whose clock runs `ppm` fast, over a network that stalls and loses.

    A frame captured in a stall (start, end) arrives at its end, in a burst; in a loss it never arrives.
    `sound(first_sample, samples, samples_per_ms)` is what the device hears.
    """
    rng = random.Random(seed)
    per_ms = rate * (1 + ppm / 1e6) / 1000
    size = rate * frame_ms // 1000
    first, last_arrival = 0, 0.0
    stall_starts, loss_starts = [low for low, _ in stalls], [low for low, _ in losses]
    while (end_ms := (first + size) / per_ms) <= length_ms:
        pcm = sound(first, size, per_ms) if sound else np.take(NOISE, range(first, first + size), mode="wrap")
        first += size
        k = bisect_right(loss_starts, end_ms)
        if k and end_ms < losses[k - 1][1]:
            continue
        arrival = end_ms + (rng.expovariate(1 / jitter_ms) if jitter_ms else 0.0)
        k = bisect_right(stall_starts, arrival)
        last_arrival = max(arrival, last_arrival, stalls[k - 1][1] if k else 0.0)
        yield last_arrival, pcm


def marks(every_ms: float, rate: int, length_ms: float = 200) -> Callable[[int, int, float], np.ndarray]:
    """Silence with a burst of sound at every multiple of `every_ms`, as heard by any device's clock."""
    burst = tone(int(rate * length_ms / 1000))

    def sound(first: int, samples: int, per_ms: float) -> np.ndarray:
        out = np.zeros(samples, np.int16)
        nearest = round((first / per_ms) // every_ms)
        for k in (nearest, nearest + 1):
            at = round(k * every_ms * per_ms) - first
            low, high = max(at, 0), min(at + burst.size, samples)
            if low < high:
                out[low:high] = burst[low - at : high - at]
        return out

    return sound


def onset_ms(channel: np.ndarray, rate: int, near_ms: float, within_ms: float = 500) -> float | None:
    """When the first sound in a window around `near_ms` begins."""
    low = max(0, int((near_ms - within_ms) * rate / 1000))
    window = channel[low : int((near_ms + within_ms) * rate / 1000)]
    sounding = np.flatnonzero(window)
    return None if not sounding.size else (low + int(sounding[0])) * 1000 / rate


def writer(path: Path, rate: int = 24_000, **options: object) -> RecordingWriter:
    return RecordingWriter(path, sample_rate_hz=rate, origin_unix_ms=ORIGIN, **options)  # type: ignore[arg-type]


def call_of(
    path: Path,
    rate: int,
    ranges: list[tuple[int, int]],
    *,
    channel: Channel = Channel.AGENT,
    segments: dict[str, Segment] | None = None,
    segment_id: str = "seg_0",
    channels: tuple[Channel, ...] = tuple(Channel),
) -> tuple[VoiceCall, VoiceMessage]:
    """A call with one message that selects these stretches (segment ms) of the recording at `path`."""
    message = VoiceMessage(
        id="m",
        role=Role.ASSISTANT if channel is Channel.AGENT else Role.USER,
        seq=0,
        committed=True,
        state=State.COMPLETE,
        text_status=TextStatus.NOT_CAPTURED,
        selections=[
            Selection(segment_id=segment_id, channel=channel, start_ms=a, end_ms=b) for a, b in ranges
        ],
    )
    recording = Recording(
        recording_id="r",
        uri=str(path),
        format="wav",
        sample_rate_hz=rate,
        channels=list(channels),
        origin_unix_ms=ORIGIN,
        segments=segments or {"seg_0": Segment(start_ms=0, length_ms=10_000_000)},
    )
    return VoiceCall(call_id="c", messages=(message,), recording=recording), message
