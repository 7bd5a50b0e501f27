# SPDX-License-Identifier: Apache-2.0
"""Any recording read back: by sample, as much as is asked for, whatever its state."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import soundfile as sf  # type: ignore[import-untyped,unused-ignore]

from voicetrace.audio.errors import ClipError
from voicetrace.audio.pcm import Samples
from voicetrace.audio.wav import CHANNELS, read_info
from voicetrace.messages import Channel


class Source:
    """A WAV (also one that is still being written, or torn), FLAC, Ogg/Opus: all that libsndfile reads.

    Raises:
        ClipError: the file is missing or is no audio we can read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._sound: Any = None
        try:
            info = read_info(path)
            if info is not None:
                self.sample_rate_hz, self.channels, self.frames = (
                    info.sample_rate_hz,
                    info.channels,
                    info.frames,
                )
                self._offset = info.data_offset
                self._fd = os.open(path, os.O_RDONLY)
                return
            self._sound = sf.SoundFile(path)
        except FileNotFoundError as error:
            raise ClipError(f"the recording {path} does not exist") from error
        except (OSError, sf.SoundFileError) as error:
            raise ClipError(f"{path} is not audio that can be read: {error}") from error
        self.sample_rate_hz, self.channels = self._sound.samplerate, self._sound.channels
        self.frames = self._sound.frames

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file; harmless when done twice."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
        if self._sound is not None:
            self._sound.close()

    def read(self, start: int, end: int) -> Samples:
        """Frames `start` to `end` (shape ``(frames, channels)``), fewer where the file ends before."""
        start, end = max(0, start), min(end, self.frames)
        if start >= end:
            return np.zeros((0, self.channels), np.int16)
        try:
            if self._sound is not None:
                self._sound.seek(start)
                if self._sound.subtype in ("FLOAT", "DOUBLE"):  # libsndfile would not scale these: all zeros
                    x = self._sound.read(end - start, dtype="float32", always_2d=True)
                    scaled: Samples = np.clip(np.rint(np.nan_to_num(x) * 32768), -32768, 32767).astype(
                        np.int16
                    )
                    return scaled
                frames: Samples = self._sound.read(end - start, dtype="int16", always_2d=True)
                return frames
            width = 2 * self.channels
            data = os.pread(self._fd, (end - start) * width, self._offset + start * width)
        except (OSError, sf.SoundFileError) as error:
            raise ClipError(f"{self._path} cannot be read: {error}") from error
        return np.frombuffer(data, "<i2", len(data) // width * self.channels).reshape(-1, self.channels)

    def blocks(self, size: int) -> Iterator[Samples]:
        """The whole file in pieces of `size` frames."""
        for start in range(0, self.frames, size):
            yield self.read(start, start + size)

    def column(self, channel: Channel, channels: tuple[Channel, ...] = CHANNELS) -> int:
        """Which channel of the file holds a channel of the call, given what the file's channels hold."""
        if channel not in channels:
            raise ClipError(f"the recording {self._path} has no {channel} channel")
        # a file of two columns of which one was captured has both at their usual place
        held = channels if len(channels) >= self.channels else CHANNELS
        column = held.index(channel)
        if column >= self.channels:
            raise ClipError(f"the recording {self._path} has only {self.channels} channel(s), no {channel}")
        return column


def read_channel(path: Path, channel: Channel, *, block: int = 1 << 16) -> Iterator[Samples]:
    """One channel of a two-channel recording, in int16 pieces of `block` samples.

    Raises:
        ClipError: the file is missing, is no audio, or has no such channel.
    """
    with Source(path) as source:
        column = source.column(channel)
        for frames in source.blocks(block):
            yield np.ascontiguousarray(frames[:, column])
