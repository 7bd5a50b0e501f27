# SPDX-License-Identifier: Apache-2.0
"""Whose voice it is: the speaker encoder of Resemblyzer (Apache-2.0), as the ONNX graph in ``judge/weights``.

Three LSTM layers over 40 mel bands, 1.6 s at a time; an utterance is the mean of its pieces. Speech is
always brought to one level first: upstream only ever raises it, which makes the embedding depend on gain.
Good for comparing turns of one call on one channel; not for telling people apart across calls.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from voicetrace.judge.providers.mel import power_mel
from voicetrace.judge.providers.onnx import session

RATE_HZ: Final = 16_000
_PIECE: Final = 160  # frames of 10 ms
_STEP: Final = 100
_COVERED: Final = 0.75
_LEVEL_DBFS: Final = -27.0

Floats = NDArray[np.float32]


class SpeakerEncoder:
    """Embeddings of voices: unit vectors of 256, whose dot product says how alike two voices are."""

    def __init__(self, path: Path) -> None:
        self._session = session(path)

    def embed(self, samples: Floats) -> Floats:
        """The embedding of 16 kHz mono speech, silences cut out; best of 3 s or more."""
        power = float(np.mean(samples**2, dtype=np.float64))
        if power > 0:
            samples = samples * np.float32(10 ** (_LEVEL_DBFS / 20) / np.sqrt(power))
        frames = power_mel(samples, 40).T
        starts = list(range(0, max(1, frames.shape[0] - _PIECE + _STEP), _STEP))
        if len(starts) > 1 and (frames.shape[0] - starts[-1]) / _PIECE < _COVERED:
            starts.pop()
        padded = np.pad(frames, ((0, max(0, starts[-1] + _PIECE - frames.shape[0])), (0, 0)))
        pieces = np.stack([padded[at : at + _PIECE] for at in starts])
        mean = self._session.run(None, {"mel": pieces})[0].mean(axis=0)
        return np.asarray(mean / max(1e-9, float(np.linalg.norm(mean))), np.float32)
