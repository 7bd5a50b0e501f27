# SPDX-License-Identifier: Apache-2.0
"""Samples as the recording holds them: 16-bit mono, and streams that change their rate."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from voicetrace.audio.errors import RecordingError

Samples: TypeAlias = NDArray[np.int16]


def to_mono(pcm: Samples | bytes | bytearray | memoryview, channels: int = 1) -> Samples:
    """A frame as mono int16 samples; several channels are averaged. The input is never changed.

    Args:
        pcm: int16 samples, interleaved when one-dimensional, or of shape ``(samples, channels)``; or the
            same as bytes.
        channels: how many are interleaved; not needed for a two-dimensional array.

    Raises:
        ValueError: the samples are not int16, or do not divide into the channels.
    """
    frame = pcm if isinstance(pcm, np.ndarray) else np.frombuffer(pcm, dtype="<i2")
    if frame.dtype != np.int16:
        raise ValueError(f"audio must be int16, not {frame.dtype}")
    if frame.ndim == 1 and channels > 1:
        if frame.size % channels:
            raise ValueError(f"{frame.size} samples do not divide into {channels} channels")
        frame = frame.reshape(-1, channels)
    if frame.ndim == 1:
        return frame
    if frame.ndim != 2:
        raise ValueError(f"audio must have one or two dimensions, not {frame.ndim}")
    if frame.shape[1] == 1:
        return np.ascontiguousarray(frame[:, 0])
    mono: Samples = np.rint(frame.mean(axis=1)).astype(np.int16)
    return mono


class RateStream:
    """One contiguous run on its way from its source's rate to the file's; equal rates pass untouched.

    After `flush` exactly ``round(samples in * to_hz / from_hz)`` samples have come out, so what follows is
    placed as if nothing had been resampled.
    """

    def __init__(self, from_hz: int, to_hz: int) -> None:
        self.from_hz = from_hz
        self._to_hz = to_hz
        self._in = 0
        self._out = 0
        self._soxr: Any = None if from_hz == to_hz else _soxr_stream(from_hz, to_hz)

    @property
    def due(self) -> int:
        """How many samples will have come out once the stream is flushed."""
        return (self._in * self._to_hz + self.from_hz // 2) // self.from_hz

    def push(self, pcm: Samples) -> Samples:
        """Take samples in; give those that are ready."""
        self._in += pcm.size
        out: Samples = pcm if self._soxr is None else self._soxr.resample_chunk(pcm)
        out = out[: self.due - self._out]
        self._out += out.size
        return out

    def flush(self) -> Samples:
        """Give the rest."""
        owed = self.due - self._out
        tail = np.zeros(owed, np.int16)
        if self._soxr is not None and owed:
            rest = self._soxr.resample_chunk(np.zeros(0, np.int16), last=True)[:owed]
            tail[: rest.size] = rest
        self._out += owed
        return tail


def _soxr_stream(from_hz: int, to_hz: int) -> Any:
    try:
        import soxr  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise RecordingError(
            f"recording {from_hz} Hz audio at {to_hz} Hz needs soxr: install voicetrace[livekit] "
            "or voicetrace[pipecat]"
        ) from error
    return soxr.ResampleStream(from_hz, to_hz, 1, dtype="int16")
