# SPDX-License-Identifier: Apache-2.0
"""Where the caller's audio belongs in time, told only by when each frame arrived.

A frame cannot arrive before it was spoken, only later. So for each frame compute where its stream would
have begun had the frame come without delay, ``arrival - audio so far``: the *smallest* such value seen
lately is the truth, anything above it is delay. That one number, the anchor, places the whole run:

* A late frame is simply late: it goes where the audio before it ended.
* When frames are more than `GAP_MS` late, something stalled. They are held, not placed, until either the
  delay is made up (a burst: they continue the run, nothing is counted twice), or it has stopped shrinking
  for `HOLD_MS` (a loss: the smallest delay among the held frames is the length of what is missing, and a
  new run begins behind that much silence).
* A stream begins like a loss: it is held for `HOLD_MS` to learn the anchor.
* Clocks differ by some hundred parts per million, so the anchor creeps. Once it is off by `SLEW_FROM_MS`,
  the stream is made at most 1/`SLEW` longer or shorter (of short frames only every so many) until the
  anchor fits again. A stream whose clock does not drift is never touched.
* A frame that would end more than `AHEAD_MS` after it arrived would lie in the future: what is too much is
  cut off its front. (Only a burst that came later than we were willing to wait does that.)

Pure: no clock, no file. Not thread-safe.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np

from voicetrace.audio.pcm import Samples

GAP_MS: Final = 15.0
JITTER_MS: Final = 100.0
HOLD_MS: Final = 500.0
HOLD_AUDIO_MS: Final = 30_000.0  # the most that is ever held; it bounds memory
SHRINKING_MS: Final = 5.0  # a delay that shrank by less has stopped shrinking
SLEW_FROM_MS: Final = 5.0
SLEW_TO_MS: Final = 0.5
SLEW: Final = 400
AHEAD_MS: Final = 10.0
WINDOW_MS: Final = 10_000.0
_BUCKET_MS: Final = 1_000.0


@dataclass(frozen=True, slots=True)
class Placed:
    """Samples with their place: a new run begins at `start_ms`, or (``None``) the last one goes on."""

    pcm: Samples
    rate_hz: int
    start_ms: float | None


@dataclass(frozen=True, slots=True)
class _Frame:
    pcm: Samples
    rate_hz: int
    arrived_ms: float
    offset_ms: float  # call-ms of the stream's first sample, had this frame come without delay

    @property
    def duration_ms(self) -> float:
        return self.pcm.size * 1000 / self.rate_hz


class CallerPlacer:
    """Places one stream of frames. What comes out never overlaps, and keeps the order of what went in."""

    def __init__(self) -> None:
        self.cut_ms = 0.0
        """How much was cut so far because its place in time was already taken."""
        self._anchor: float | None = None
        self._arrived = -np.inf
        self._seen_ms = 0.0  # audio that arrived, held frames included
        self._placed_ms = 0.0  # audio that arrived and is placed or cut
        self._held: list[_Frame] = []
        self._lowest = np.inf  # the smallest offset among the held
        self._settling_from = (np.inf, 0.0)  # the offset and the arrival since which it hardly shrank
        self._recent: deque[tuple[float, float]] = deque()  # (bucket's start, its smallest offset)
        self._slewing = False
        self._allowance = 0.0  # how many samples slewing may add or take by now

    def add(self, arrived_ms: float, pcm: Samples, rate_hz: int) -> list[Placed]:
        """Take a frame that arrived, complete, at `arrived_ms`; give what can be placed now."""
        self._arrived = max(self._arrived, arrived_ms)
        self._seen_ms += pcm.size * 1000 / rate_hz
        frame = _Frame(pcm, rate_hz, self._arrived, self._arrived - self._seen_ms)
        late = self._anchor is None or frame.offset_ms > self._anchor + GAP_MS
        if not late:
            return [*self._release(), *self._continue(frame)]
        return self._hold(frame)

    def advance(self, now_ms: float) -> list[Placed]:
        """Nothing arrived up to `now_ms`: give what was held long enough."""
        waited = now_ms - self._settling_from[1]
        return self.settle() if self._held and waited >= HOLD_MS else []

    def settle(self, *, ended: bool = False) -> list[Placed]:
        """Place what is held by what is known: at the stream's start, or behind a gap.

        A stream that `ended` before that could be known gets no gap that may as well be jitter.
        """
        if not self._held:
            return []
        if ended and self._anchor is not None and self._lowest <= self._anchor + JITTER_MS:
            return self._release()
        self._anchor = self._lowest
        self._recent.clear()
        self._recent.append((self._arrived, self._lowest))
        self._slewing = False
        return self._release(starts=True)

    def _hold(self, frame: _Frame) -> list[Placed]:
        if not self._held:
            self._lowest, self._settling_from = np.inf, (np.inf, frame.arrived_ms)
        # the source owns its buffer and may fill it again
        self._held.append(_Frame(frame.pcm.copy(), frame.rate_hz, frame.arrived_ms, frame.offset_ms))
        self._lowest = min(self._lowest, frame.offset_ms)
        if self._lowest < self._settling_from[0] - SHRINKING_MS:
            self._settling_from = (self._lowest, frame.arrived_ms)
        waited = frame.arrived_ms - self._settling_from[1]
        if waited >= HOLD_MS or self._seen_ms - self._placed_ms >= HOLD_AUDIO_MS:
            return self.settle()
        return []

    def _release(self, *, starts: bool = False) -> list[Placed]:
        out: list[Placed] = []
        for frame in self._held:
            assert self._anchor is not None
            out.append(Placed(frame.pcm, frame.rate_hz, self._anchor + self._placed_ms if starts else None))
            starts = False
            self._placed_ms += frame.duration_ms
        self._held.clear()
        return out

    def _continue(self, frame: _Frame) -> list[Placed]:
        assert self._anchor is not None
        error = self._recent_lowest(frame) - self._anchor
        self._placed_ms += frame.duration_ms
        pcm, per_ms = frame.pcm, frame.rate_hz / 1000
        if error < -AHEAD_MS:
            cut = min(int(np.ceil(-error * per_ms)), pcm.size)
            self._anchor -= cut / per_ms
            self.cut_ms += cut / per_ms
            return [Placed(pcm[cut:], frame.rate_hz, None)] if cut < pcm.size else []
        self._slewing = abs(error) > (SLEW_TO_MS if self._slewing else SLEW_FROM_MS)
        self._allowance = self._allowance + pcm.size / SLEW if self._slewing else 0.0
        most = min(int(self._allowance), pcm.size - 1)
        if most > 0:
            by = int(np.clip(round(error * per_ms), -most, most))
            self._allowance -= most
            self._anchor += by / per_ms
            pcm = _stretched(pcm, pcm.size + by)
        return [Placed(pcm, frame.rate_hz, None)]

    def _recent_lowest(self, frame: _Frame) -> float:
        if not self._recent or frame.arrived_ms - self._recent[-1][0] >= _BUCKET_MS:
            self._recent.append((frame.arrived_ms, frame.offset_ms))
            while frame.arrived_ms - self._recent[0][0] > WINDOW_MS:
                self._recent.popleft()
        else:
            start, lowest = self._recent[-1]
            self._recent[-1] = (start, min(lowest, frame.offset_ms))
        return min(lowest for _, lowest in self._recent)


def _stretched(pcm: Samples, size: int) -> Samples:
    """The same sound in a sample more or less; linear, which at 1/400 of a frame cannot be heard."""
    at = np.linspace(0, pcm.size - 1, size)
    return np.rint(np.interp(at, np.arange(pcm.size), pcm)).astype(np.int16)
