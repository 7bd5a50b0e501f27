# SPDX-License-Identifier: Apache-2.0
"""One channel of a recording by call-ms, at the file's rate or at 16 kHz, without holding it in memory."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Final

import numpy as np
from numpy.typing import NDArray

from voicetrace.audio.source import Source
from voicetrace.judge.features.dsp import scipy_signal

RATE_HZ: Final = 16_000
_PIECE_MS: Final = 10_000
_MARGIN_MS: Final = 100

Floats = NDArray[np.float32]


class Track:
    """A channel whose sample 0 is call-ms 0. Reads past either end give what is there."""

    def __init__(self, source: Source, column: int) -> None:
        self._source = source
        self._column = column
        self.rate_hz = source.sample_rate_hz
        self.duration_ms = source.frames * 1000 // source.sample_rate_hz

    def native(self, start_ms: int, end_ms: int) -> Floats:
        """A stretch as it is in the file, -1 to 1."""
        low, high = (max(0, ms) * self.rate_hz // 1000 for ms in (start_ms, end_ms))
        return self._source.read(low, high)[:, self._column].astype(np.float32) / np.float32(32768)

    def speech(self, start_ms: int, end_ms: int) -> Floats:
        """A stretch at 16 kHz; the filter sees what lies before and after it, so that it has no edges."""
        if self.rate_hz == RATE_HZ:
            return self.native(start_ms, end_ms)
        start_ms, end_ms = max(0, start_ms), min(end_ms, self.duration_ms)
        before = max(0, start_ms - _MARGIN_MS)
        samples = self.native(before, end_ms + _MARGIN_MS)
        factor = gcd(RATE_HZ, self.rate_hz)
        out = (
            scipy_signal()
            .resample_poly(samples, RATE_HZ // factor, self.rate_hz // factor)
            .astype(np.float32)
        )
        skip = (start_ms - before) * RATE_HZ // 1000
        return np.asarray(out[skip : skip + max(0, end_ms - start_ms) * RATE_HZ // 1000], np.float32)

    def pieces(self) -> Iterator[Floats]:
        """The whole channel at 16 kHz, ten seconds at a time."""
        for start in range(0, self.duration_ms, _PIECE_MS):
            yield self.speech(start, min(start + _PIECE_MS, self.duration_ms))
