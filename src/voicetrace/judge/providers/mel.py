# SPDX-License-Identifier: Apache-2.0
"""Mel spectra as the models were trained on: Slaney's scale and area normalisation, 16 kHz."""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

RATE_HZ: Final = 16_000
_N_FFT: Final = 400
_HOP: Final = 160

Floats = NDArray[np.float32]


def power_mel(samples: Floats, bands: int) -> Floats:
    """Mel power spectra, 25 ms every 10 ms, centred, the ends mirrored: shape ``(bands, frames)``."""
    padded = np.pad(samples, _N_FFT // 2, mode="reflect" if samples.size > _N_FFT // 2 else "constant")
    frames = np.lib.stride_tricks.sliding_window_view(padded, _N_FFT)[::_HOP]
    window = np.hanning(_N_FFT + 1)[:-1].astype(np.float32)
    spectrum = np.fft.rfft(frames * window, axis=1)
    power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
    return np.ascontiguousarray(filters(bands) @ power.T)


@cache
def filters(bands: int) -> Floats:
    """Triangular filters of equal area on Slaney's mel scale: shape ``(bands, 201)``."""
    bins = np.linspace(0, RATE_HZ / 2, 1 + _N_FFT // 2)
    edges = _hz(np.linspace(_mel(0.0), _mel(RATE_HZ / 2), bands + 2))
    ramps = edges[:, None] - bins[None, :]
    steps = np.diff(edges)
    lower = -ramps[:-2] / steps[:-1, None]
    upper = ramps[2:] / steps[1:, None]
    triangles = np.maximum(0, np.minimum(lower, upper))
    return (triangles * (2 / (edges[2:] - edges[:-2]))[:, None]).astype(np.float32)


_LINEAR: Final = 200 / 3
_KNEE_HZ: Final = 1000.0
_KNEE: Final = _KNEE_HZ / _LINEAR
_STEP: Final = np.log(6.4) / 27


def _mel(hz: float) -> float:
    return hz / _LINEAR if hz < _KNEE_HZ else _KNEE + float(np.log(hz / _KNEE_HZ)) / _STEP


def _hz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(mel < _KNEE, mel * _LINEAR, _KNEE_HZ * np.exp(_STEP * (mel - _KNEE)))
