# SPDX-License-Identifier: Apache-2.0
"""Where a channel holds sound: an energy detector that follows the channel's own noise.

It needs numpy only, is the same on every machine, and answers what a bundle asks: when was something to be
heard. It does not tell speech from a cough or music; where that matters, say so with better evidence.

The signal is cut into 10 ms frames. A frame's level is its power around its own mean (an offset of the
microphone is no sound), in dBFS: 0 is a full-scale square wave. Per second of signal the quietest tenth
of its frames is its noise, and the noise at a moment is the lowest of the eight seconds before and after:
speech pauses sooner than that, noise does not (and noise that sets in is sound for that long). Frames
`VadSettings.above_noise_db` above the noise, and at least at ``minimum_dbfs``, are sound; once it sounds,
``hysteresis_db`` less is enough to go on.

A channel's levels are one byte a frame, 720 kB for a two-hour call, so noise may be judged with hindsight.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from voicetrace.audio.pcm import Samples

FRAME_MS: Final = 10
SILENT_BELOW_DBFS: Final = -65.0
"""A stretch without a single frame this loud holds nothing anybody can hear."""

_BOTTOM_DBFS: Final = -127.0  # level 0: digital silence; a level is half a dB
_SECOND: Final = 1000 // FRAME_MS
_NOISE_REACH: Final = 8  # seconds looked at on either side
_SPEECH_ABOVE_NOISE_DB: Final = 20.0  # noise is never assumed nearer than this to the loudest frames


class Interval(NamedTuple):
    """A stretch of time in ms, the end excluded."""

    start_ms: int
    end_ms: int


@dataclass(frozen=True)
class VadSettings:
    """What counts as sound, and how pieces of it belong together.

    ``min_silence_ms``: a shorter pause does not end a sound. ``min_sound_ms``: a shorter sound is a click.
    """

    minimum_dbfs: float = -50.0
    above_noise_db: float = 9.0
    hysteresis_db: float = 4.0
    min_sound_ms: int = 50
    min_silence_ms: int = 200


@dataclass(frozen=True)
class Activity:
    """A channel's sound: its stretches in ms, and how loud it is anywhere."""

    intervals: tuple[Interval, ...]
    duration_ms: int
    levels: NDArray[np.uint8]
    min_silence_ms: int = VadSettings.min_silence_ms

    def loudest_dbfs(self, start_ms: int, end_ms: int) -> float:
        """The loudest frame of a stretch; -127 for digital silence and where the channel has ended."""
        part = self.levels[max(0, start_ms) // FRAME_MS : -(-max(0, end_ms) // FRAME_MS)]
        return _BOTTOM_DBFS + int(part.max(initial=0)) / 2

    def is_silent(self, start_ms: int, end_ms: int) -> bool:
        """Tell whether there is nothing to be heard in a stretch."""
        return self.loudest_dbfs(start_ms, end_ms) < SILENT_BELOW_DBFS

    def within(self, start_ms: int, end_ms: int) -> list[Interval]:
        """The sound inside a stretch, cut at its bounds."""
        first = bisect_right(self.intervals, start_ms, key=lambda interval: interval.end_ms)
        last = bisect_left(self.intervals, end_ms, key=lambda interval: interval.start_ms)
        return [Interval(max(start_ms, a), min(end_ms, b)) for a, b in self.intervals[first:last]]


class SoundMeter:
    """Listens to a channel piece by piece; `finish` says where it sounded. Not thread-safe."""

    def __init__(self, sample_rate_hz: int) -> None:
        self._rate = sample_rate_hz
        self._frame = max(1, round(sample_rate_hz * FRAME_MS / 1000))
        self._rest: Samples = np.zeros(0, np.int16)
        self._levels = bytearray()
        self._samples = 0

    def feed(self, pcm: Samples) -> None:
        """Take the next samples, int16 mono, any number of them."""
        self._samples += pcm.size
        whole = np.concatenate((self._rest, pcm)) if self._rest.size else pcm
        frames = whole.size // self._frame
        self._levels += _levels(whole[: frames * self._frame].reshape(frames, self._frame))
        self._rest = whole[frames * self._frame :].copy()

    def finish(self, settings: VadSettings | None = None) -> Activity:
        """Say where there was sound. May be asked again, with other settings."""
        settings = settings or VadSettings()
        levels = np.frombuffer(bytes(self._levels), np.uint8)
        frame_ms = self._frame * 1000 / self._rate
        duration_ms = round(self._samples * 1000 / self._rate)
        intervals = (Interval(round(a * frame_ms), round(b * frame_ms)) for a, b in _runs(levels, settings))
        return Activity(tuple(intervals), duration_ms, levels, settings.min_silence_ms)


def activity_of(
    blocks: Iterable[Samples], sample_rate_hz: int, settings: VadSettings | None = None
) -> Activity:
    """Where a channel, given in pieces, holds sound."""
    meter = SoundMeter(sample_rate_hz)
    for block in blocks:
        meter.feed(block)
    return meter.finish(settings)


def _levels(frames: Samples) -> bytes:
    if not frames.size:
        return b""
    x = frames.astype(np.float32)
    x -= x.mean(axis=1, keepdims=True)
    power = np.einsum("ij,ij->i", x, x) / (frames.shape[1] * 32768.0**2)
    dbfs = 10 * np.log10(np.maximum(power, 1e-13))
    levels: NDArray[np.uint8] = np.clip(np.rint(2 * (dbfs - _BOTTOM_DBFS)), 0, 254).astype(np.uint8)
    return levels.tobytes()


def _runs(levels: NDArray[np.uint8], settings: VadSettings) -> list[tuple[int, int]]:
    """The stretches of sound, in frames."""
    if not levels.size:
        return []
    start_at = _threshold(levels, settings)
    loud = levels >= start_at
    less = np.uint8(_level(settings.hysteresis_db))
    going_on = levels >= np.maximum(start_at, less) - less
    edges = np.flatnonzero(np.diff(going_on & (levels > 0), prepend=False, append=False))
    joined: list[tuple[int, int]] = []
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if not loud[start:end].any():
            continue
        if joined and (start - joined[-1][1]) * FRAME_MS < settings.min_silence_ms:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return [(a, b) for a, b in joined if (b - a) * FRAME_MS >= settings.min_sound_ms]


def _threshold(levels: NDArray[np.uint8], settings: VadSettings) -> NDArray[np.uint8]:
    """The level from which each frame is sound."""
    least = _level(settings.minimum_dbfs - _BOTTOM_DBFS)
    # a channel that never pauses has no noise to measure: it is then put well below its loudest frames
    above = _level(settings.above_noise_db)
    highest = max(least - above, int(levels.max()) - _level(_SPEECH_ABOVE_NOISE_DB))
    seconds = range(0, levels.size, _SECOND)
    noise = np.array([_quantile(levels[at : at + _SECOND], 0.1) or 255 for at in seconds], np.int16)
    around = np.pad(noise, _NOISE_REACH, constant_values=255)
    lowest = np.lib.stride_tricks.sliding_window_view(around, 2 * _NOISE_REACH + 1).min(axis=1)
    wanted = np.minimum(lowest, highest) + above
    per_second = np.minimum(np.maximum(wanted, max(1, least)), 255).astype(np.uint8)
    return np.repeat(per_second, _SECOND)[: levels.size]


def _level(decibels: float) -> int:
    return min(255, max(0, round(2 * decibels)))


def _quantile(levels: NDArray[np.uint8], share: float) -> int:
    """The level below which this share of the frames lies, digital silence aside; 0 where all is silent."""
    counts = np.bincount(levels, minlength=256)
    counts[0] = 0  # digital silence is no noise of the room
    total = int(counts.sum())
    return int(np.searchsorted(np.cumsum(counts), share * total, side="right")) if total else 0
