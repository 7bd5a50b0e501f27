# SPDX-License-Identifier: Apache-2.0
"""The pitch of speech, by SwiftF0 (MIT): 16 ms frames, with a confidence each."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from voicetrace.judge.providers.onnx import session

RATE_HZ: Final = 16_000
HOP: Final = 256
_LOWEST_HZ: Final = 60.0
_HIGHEST_HZ: Final = 500.0
_SURE: Final = 0.8
_SILENCE: Final = 1e-3

Floats = NDArray[np.float32]


class SwiftF0:
    """Pitch of speech in semitones above 55 Hz, of the frames that are surely voiced."""

    def __init__(self, path: Path) -> None:
        self._session = session(path)

    def semitones(self, samples: Floats) -> NDArray[np.float64]:
        """The voiced frames' pitch, in order of time; 16 kHz mono, any level."""
        if samples.size < 2 * HOP:
            return np.zeros(0)
        pitch, confidence = self._session.run(
            ["pitch", "confidence"],
            {
                "audio": np.ascontiguousarray(samples[None], np.float32),
                "fmin": np.asarray(_LOWEST_HZ, np.float32),
                "fmax": np.asarray(_HIGHEST_HZ, np.float32),
            },
        )
        hertz = np.asarray(pitch[0], np.float64)
        frames = samples[: hertz.size * HOP]
        peaks = np.abs(np.pad(frames, (0, hertz.size * HOP - frames.size)).reshape(-1, HOP)).max(axis=1)
        voiced = (np.asarray(confidence[0]) >= _SURE) & (peaks >= _SILENCE)
        return np.asarray(12 * np.log2(hertz[voiced] / 55.0), np.float64)
