# SPDX-License-Identifier: Apache-2.0
"""The picture of the sound: the loudest sample of every bin, one byte each."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from voicetrace.audio.pcm import Samples

BINS_PER_S: Final = 50
_FULL_SCALE: Final = 32768


def bin_samples(sample_rate_hz: int) -> int:
    """How many samples are one bin: about 20 ms."""
    return max(1, sample_rate_hz // BINS_PER_S)


def peaks(frames: Samples, size: int) -> NDArray[np.uint8]:
    """The peaks of every column of `frames` (shape ``(samples, columns)``), in bins of `size` samples.

    A byte is ``255 * sqrt(loudest / 32768)``, rounded up, so that quiet speech keeps its shape and only
    digital silence is 0. The shape is ``(bins, columns)``; the last bin may be short.
    """
    short = -len(frames) % size
    columns = np.ascontiguousarray(np.pad(frames, ((0, short), (0, 0))).T)
    bins = columns.reshape(frames.shape[1], -1, size)
    highest = np.maximum(bins.max(axis=2), -bins.min(axis=2).astype(np.int32)).T
    scaled: NDArray[np.uint8] = np.ceil(255 * np.sqrt(highest / _FULL_SCALE)).astype(np.uint8)
    return scaled
