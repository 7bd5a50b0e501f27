# SPDX-License-Identifier: Apache-2.0
"""Speech in a channel, by Silero's detector (MIT): one small recurrent network, 32 ms a step."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from voicetrace.judge.providers.onnx import session

RATE_HZ: Final = 16_000
STEP: Final = 512
_CONTEXT: Final = 64
_STEP_MS: Final = STEP * 1000 / RATE_HZ
_ON: Final = 0.5
_OFF: Final = 0.35
_MIN_SPEECH_MS: Final = 120
_MIN_SILENCE_MS: Final = 100

Floats = NDArray[np.float32]


class SileroVad:
    """Speech segments of a signal that is given in pieces; memory does not grow with its length."""

    def __init__(self, path: Path) -> None:
        self._session = session(path)

    def segments(self, pieces: Iterable[Floats]) -> tuple[tuple[int, int], ...]:
        """Where 16 kHz mono speech is, as (start, end) in ms of the signal, in order.

        A shorter pause than 100 ms does not end a segment; a shorter sound than 120 ms is no speech.
        """
        return _segments(self._probabilities(pieces))

    def _probabilities(self, pieces: Iterable[Floats]) -> list[float]:
        state = np.zeros((2, 1, 128), np.float32)
        context = np.zeros(_CONTEXT, np.float32)
        rest = np.zeros(0, np.float32)
        rate = np.array(RATE_HZ, np.int64)
        out: list[float] = []
        for piece in pieces:
            signal = np.concatenate([rest, piece])
            whole = signal.size // STEP * STEP
            for at in range(0, whole, STEP):
                chunk = np.concatenate([context, signal[at : at + STEP]])
                context = chunk[-_CONTEXT:]
                if not chunk.any():  # digital silence: the network would say so too, at a cost
                    state = np.zeros_like(state)
                    out.append(0.0)
                    continue
                probability, state = self._session.run(
                    None, {"input": chunk[None], "state": state, "sr": rate}
                )
                out.append(float(probability[0, 0]))
            rest = signal[whole:]
        return out


def _segments(probabilities: list[float]) -> tuple[tuple[int, int], ...]:
    """Hysteresis, then short pauses are closed and short sounds dropped."""
    raw: list[tuple[int, int]] = []
    start: int | None = None
    for index, probability in enumerate(probabilities):
        if start is None and probability >= _ON:
            start = index
        elif start is not None and probability < _OFF:
            raw.append((start, index))
            start = None
    if start is not None:
        raw.append((start, len(probabilities)))
    joined: list[tuple[int, int]] = []
    for low, high in raw:
        if joined and (low - joined[-1][1]) * _STEP_MS < _MIN_SILENCE_MS:
            joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    return tuple(
        (round(low * _STEP_MS), round(high * _STEP_MS))
        for low, high in joined
        if (high - low) * _STEP_MS >= _MIN_SPEECH_MS
    )
