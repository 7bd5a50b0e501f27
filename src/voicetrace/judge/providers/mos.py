# SPDX-License-Identifier: Apache-2.0
"""How clean and how whole speech sounds: DNSMOS P.835 and PLCMOS (MIT, Microsoft).

DNSMOS depends on the level below about -30 dBFS, so the caller of these brings speech to one level first
(`normalised`). It hardly minds the bandwidth of a telephone; PLCMOS does, and minds noise in no useful way:
it is read for loss and garbling only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from voicetrace.judge.providers.onnx import session

RATE_HZ: Final = 16_000
WINDOW: Final = 144_160
"""Samples of one DNSMOS window: 9.01 s."""
LEVEL_DBFS: Final = -26.0
_RATERS: Final = 3

Floats = NDArray[np.float32]


class Mos(NamedTuple):
    """Mean opinion scores 1 to 5 of the signal, its background, and overall."""

    signal: float
    background: float
    overall: float


def normalised(samples: Floats) -> Floats:
    """The samples at -26 dBFS RMS, measured over what is louder than 40 dB below the loudest 20 ms."""
    size = samples.size // 320 * 320
    if not size:
        return samples
    frames = samples[:size].reshape(-1, 320).astype(np.float64)
    power = np.asarray(np.mean(frames**2, axis=1))
    loud = power[power > power.max() * 1e-4]
    if not loud.size or power.max() <= 0:
        return samples
    gain = 10 ** (LEVEL_DBFS / 20) / np.sqrt(loud.mean())
    return np.asarray(np.clip(samples * np.float32(gain), -1, 1), np.float32)


class Dnsmos:
    """DNSMOS P.835, one 9.01 s window at a time."""

    def __init__(self, path: Path) -> None:
        self._session = session(path)

    def __call__(self, samples: Floats) -> Mos:
        """The scores of 16 kHz mono speech; what is shorter than a window is repeated to fill one."""
        if samples.size < WINDOW:
            samples = np.tile(samples, -(-WINDOW // max(1, samples.size)))
        window = np.ascontiguousarray(samples[None, :WINDOW], np.float32)
        signal, background, overall = (float(x) for x in self._session.run(None, {"input_1": window})[0][0])
        return Mos(
            signal=-0.08397278 * signal**2 + 1.22083953 * signal + 0.0052439,
            background=-0.13166888 * background**2 + 1.60915514 * background - 0.39604546,
            overall=-0.06766283 * overall**2 + 1.11546468 * overall + 0.04602535,
        )


class Plcmos:
    """PLCMOS v2. Its raters are drawn at random upstream; here they are the same three every time."""

    def __init__(self, path: Path) -> None:
        self._session = session(path)
        raters = np.random.default_rng(20230601).normal(size=(_RATERS, 1, 64))
        self._raters = raters.astype(np.float32)

    def __call__(self, samples: Floats) -> float:
        """The score 1 to 5 of 16 kHz mono speech."""
        spectrum = _log_power(samples)[None, None]
        scores = [
            float(self._session.run(None, {"degraded_audio": spectrum, "rater_embed": rater})[0])
            for rater in self._raters
        ]
        return sum(scores) / len(scores)


def _log_power(samples: Floats) -> Floats:
    """Upstream's front end: 32 ms Hamming windows every 16 ms, the log of the power, divided by 20."""
    count = -(-(samples.size + 256) // 256)
    padded = np.zeros((count - 1) * 256 + 512, np.float64)
    padded[256 : 256 + samples.size] = samples
    frames = np.lib.stride_tricks.sliding_window_view(padded, 512)[::256][:count]
    power = np.abs(np.fft.rfft(frames * np.hamming(513)[:-1], axis=1)) ** 2
    heard = power > 0
    if not heard.any():
        return np.full(power.shape, -80 / 10 * np.log(10) / 20, np.float32)
    floor = np.log(power[heard].min()) - 12 * np.log(10)
    log = np.full(power.shape, floor)
    log[heard] = np.log(power[heard])
    return (log / 20).astype(np.float32)
