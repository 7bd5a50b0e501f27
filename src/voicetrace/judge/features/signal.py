# SPDX-License-Identifier: Apache-2.0
"""What can be measured of audio without a model: loudness, clipping, dropouts, and how it ends."""

from __future__ import annotations

from functools import cache
from math import pi, tan
from typing import Final

import numpy as np
from numpy.typing import NDArray

from voicetrace.judge.features.dsp import scipy_signal

Floats = NDArray[np.float32]

_BLOCK_S: Final = 0.4
_ABSOLUTE_LUFS: Final = -70.0
_RELATIVE_LU: Final = -10.0


def blocks_lufs(samples: Floats, rate_hz: int) -> NDArray[np.float64]:
    """Momentary loudness (ITU-R BS.1770-4): of 400 ms every 100 ms, in LUFS."""
    weighted = samples.astype(np.float64)
    for b, a in _k_weighting(rate_hz):
        weighted = scipy_signal().lfilter(b, a, weighted)
    size, hop = int(_BLOCK_S * rate_hz), rate_hz // 10
    if weighted.size < size:
        weighted = np.pad(weighted, (0, size - weighted.size))
    power = np.concatenate([[0.0], np.cumsum(weighted**2)])
    starts = np.arange(0, weighted.size - size + 1, hop)
    mean = (power[starts + size] - power[starts]) / size
    return np.asarray(-0.691 + 10 * np.log10(np.maximum(mean, 1e-12)))


def gated_lufs(blocks: NDArray[np.float64]) -> float | None:
    """Integrated loudness of blocks, gated at -70 LUFS and 10 LU below their mean; ``None`` for silence."""
    loud = blocks[blocks > _ABSOLUTE_LUFS]
    if not loud.size:
        return None
    relative = _mean_lufs(loud) + _RELATIVE_LU
    return _mean_lufs(loud[loud > relative])


def clipped_share(samples: Floats) -> float:
    """The share of samples in flat tops: three or more in a row within 0.1 % of the stretch's own peak.

    Flat tops, not full scale: a call that was turned down after it clipped is clipped all the same. Steps
    of a coarse codec are flat too, so only peaks on which the signal rests more often than on the levels
    next below it count.
    """
    size = np.abs(samples)
    peak = float(size.max(initial=0))
    if peak < 0.01:
        return 0.0
    top = _run_samples(size >= 0.999 * peak, 3)
    if not top:
        return 0.0
    # mu-law has 16 steps to each halving: the level below its highest is 3 % down, and as crowded
    below = _run_samples((size >= 0.90 * peak) & (size < 0.985 * peak), 3)
    return 0.0 if below > 0.5 * top else top / size.size


def crowded_share(samples: Floats) -> float:
    """The share of samples above 0.8 of the peak (the one that a sample in 2000 exceeds).

    A filter after clipping, such as a telephone's, makes the flat tops round and leaves them as crowded:
    3 % and more, where speech has 1 %.
    """
    size = np.abs(samples)
    peak = float(np.quantile(size, 0.9995)) if size.size else 0.0
    return float(np.mean(size > 0.8 * peak)) if peak >= 0.01 else 0.0


def dropouts(samples: Floats, rate_hz: int) -> int:
    """How often speech falls into digital silence and comes back: holes of 8 to 300 ms with hard edges."""
    edge = rate_hz // 200
    active = _active_power(samples, rate_hz)
    if active <= 0:
        return 0
    quiet = np.abs(samples) <= 1.5 / 32768 if samples.size else np.zeros(0, bool)
    count = 0
    for start, end in _runs(quiet):
        if not 0.008 * rate_hz <= end - start <= 0.3 * rate_hz:
            continue
        before, after = samples[max(0, start - edge) : start], samples[end : end + edge]
        if before.size < edge or after.size < edge:
            continue
        hard = sum(float(np.mean(x.astype(np.float64) ** 2)) > active * 10**-3 for x in (before, after))
        count += hard == 2
    return count


def end_level_db(samples: Floats, rate_hz: int) -> float | None:
    """The level of the last 40 ms that hold anything, relative to the active level.

    Speech that ends by itself fades: -15 dB and less. Speech that was cut does not. ``None`` for silence, and
    for sound that goes on to the last sample: how it ends is not in these samples.
    """
    active = _active_power(samples, rate_hz)
    if active <= 0:
        return None
    step = rate_hz // 100
    frames = samples[: samples.size // step * step].reshape(-1, step).astype(np.float64)
    power = np.mean(frames**2, axis=1)
    heard = np.flatnonzero(power > active * 10**-4.5)
    last = int(heard[-1]) + 1
    if last == len(power):
        return None
    ending = float(power[max(0, last - 4) : last].mean())
    return 10 * float(np.log10(max(ending, 1e-12) / active))


def is_narrow(samples: Floats, rate_hz: int) -> bool:
    """Tell whether the sound ends at 4 kHz: above it there is less than a ten-thousandth of its power."""
    size = 1024
    count = samples.size // size
    if not count:
        return False
    frames = samples[: count * size].reshape(count, size) * np.hanning(size)
    power = (np.abs(np.fft.rfft(frames, axis=1)) ** 2).sum(axis=0)
    split = int(4500 / rate_hz * size)
    return bool(power[split:].sum() < 1e-4 * power.sum())


def _active_power(samples: Floats, rate_hz: int) -> float:
    """Mean power of the 20 ms frames that are no more than 25 dB below the loudest; 0 for silence."""
    step = rate_hz // 50
    size = samples.size // step * step
    if not size:
        return 0.0
    power = np.mean(samples[:size].reshape(-1, step).astype(np.float64) ** 2, axis=1)
    top = float(power.max())
    return float(power[power >= top * 10**-2.5].mean()) if top > 1e-9 else 0.0


def _runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def _run_samples(mask: NDArray[np.bool_], least: int) -> int:
    return sum(b - a for a, b in _runs(mask) if b - a >= least)


def _mean_lufs(blocks: NDArray[np.float64]) -> float:
    return float(-0.691 + 10 * np.log10(np.mean(10 ** ((blocks + 0.691) / 10))))


Biquad = tuple[NDArray[np.float64], NDArray[np.float64]]


@cache
def _k_weighting(rate_hz: int) -> tuple[Biquad, Biquad]:
    """The two filters of BS.1770 at any rate, from their analogue prototypes."""
    k = tan(pi * 1681.974450955533 / rate_hz)
    q, high = 0.7071752369554196, 10 ** (3.999843853973347 / 20)
    band = high**0.4996667741545416
    a0 = 1 + k / q + k * k
    shelf = (
        np.array([high + band * k / q + k * k, 2 * (k * k - high), high - band * k / q + k * k]) / a0,
        np.array([a0, 2 * (k * k - 1), 1 - k / q + k * k]) / a0,
    )
    k, q = tan(pi * 38.13547087602444 / rate_hz), 0.5003270373238773
    a0 = 1 + k / q + k * k
    highpass = (np.array([1.0, -2.0, 1.0]), np.array([a0, 2 * (k * k - 1), 1 - k / q + k * k]) / a0)
    return shelf, highpass
