# SPDX-License-Identifier: Apache-2.0
"""A two-channel WAV that is readable at every moment of its life, and costs nothing where it is silent.

While a recording runs, both sizes in its header are 0xFFFFFFFF, which every reader we know takes for "to
the end of the file": a process killed at any point leaves a file that plays. Silence is never written: it
is a hole in the file, which reads as zeros and takes no disk.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from voicetrace.audio.pcm import Samples
from voicetrace.messages import Channel

CHANNELS: Final = tuple(Channel)
"""What the file's channels hold, in file order; always both, silent where one is not captured."""
HEADER_BYTES: Final = 44
FRAME_BYTES: Final = 2 * len(CHANNELS)
OPEN_SIZE: Final = 0xFFFFFFFF
_BLOCK: Final = 1 << 16  # frames written at a time: what a write costs in memory, however long it is


def header(sample_rate_hz: int, data_bytes: int | None = None) -> bytes:
    """The file's first 44 bytes. Without a size, and beyond 4 GiB, the sizes are left open."""
    is_open = data_bytes is None or data_bytes + 36 >= OPEN_SIZE
    riff, data = (OPEN_SIZE, OPEN_SIZE) if is_open or data_bytes is None else (data_bytes + 36, data_bytes)
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        *(b"RIFF", riff, b"WAVE", b"fmt ", 16, 1, len(CHANNELS), sample_rate_hz),
        *(sample_rate_hz * FRAME_BYTES, FRAME_BYTES, 16, b"data", data),
    )


@dataclass(frozen=True, slots=True)
class WavInfo:
    """What a 16-bit PCM WAV holds, by its header and its real size. A torn last frame is not counted."""

    sample_rate_hz: int
    channels: int
    data_offset: int
    frames: int


def read_info(path: Path) -> WavInfo | None:
    """Describe a 16-bit PCM WAV, finished or not; ``None`` when the file is something else.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(12)
        if len(start) < 12 or start[:4] != b"RIFF" or start[8:] != b"WAVE":
            return None
        rate = channels = 0
        while len(head := file.read(8)) == 8:
            name, length = struct.unpack("<4sI", head)
            if name == b"data":
                offset = file.tell()
                if not rate:
                    return None
                there = size - offset
                # 0 and OPEN_SIZE both mean "still being written"
                data = there if length in (0, OPEN_SIZE) else min(length, there)
                return WavInfo(rate, channels, offset, data // (2 * channels))
            if name == b"fmt ":
                fmt = file.read(length + length % 2)
                if len(fmt) < 16:
                    return None
                kind, channels, rate, _, _, bits = struct.unpack("<HHIIHH", fmt[:16])
                if kind == 0xFFFE and len(fmt) >= 26:
                    kind = struct.unpack("<H", fmt[24:26])[0]
                if kind != 1 or bits != 16 or not channels or not rate:
                    return None
            else:
                file.seek(length + length % 2, os.SEEK_CUR)
    return None


class SparseWav:
    """The file while it is written. Every method may raise `OSError`; nothing is buffered."""

    def __init__(self, path: Path, sample_rate_hz: int) -> None:
        self.sample_rate_hz = sample_rate_hz
        path.parent.mkdir(parents=True, exist_ok=True)
        # a call is private, and one recording never overwrites another
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _pwrite(self._fd, header(sample_rate_hz), 0)
        except OSError:
            self.close()
            raise

    def write(self, channel: Channel, start: int, pcm: Samples) -> None:
        """Put samples at sample `start` of one channel; the other channel stays as it is."""
        column = CHANNELS.index(channel)
        for at in range(0, pcm.size, _BLOCK):
            part = pcm[at : at + _BLOCK]
            if not part.any():
                continue  # silence is a hole
            offset = HEADER_BYTES + (start + at) * FRAME_BYTES
            frames = np.zeros((part.size, len(CHANNELS)), "<i2")
            there = os.pread(self._fd, part.size * FRAME_BYTES, offset)
            frames.reshape(-1)[: len(there) // 2] = np.frombuffer(there, "<i2", len(there) // 2)
            frames[:, column] = part
            _pwrite(self._fd, frames.tobytes(), offset)

    def silence(self, channel: Channel, start: int, end: int) -> None:
        """Put silence over what was written from sample `start` to `end` of one channel."""
        silence(self._fd, channel, start, end)

    def finish(self, frames: int) -> None:
        """Make the file exactly this long, say so in its header, and put it on the disk."""
        os.ftruncate(self._fd, HEADER_BYTES + frames * FRAME_BYTES)
        _pwrite(self._fd, header(self.sample_rate_hz, frames * FRAME_BYTES), 0)
        os.fsync(self._fd)

    def close(self) -> None:
        """Let go of the file as it is; harmless when done twice."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def samples_within(start_ms: int, end_ms: int, sample_rate_hz: int) -> tuple[int, int]:
    """The samples of a stretch in call-ms, those that it cuts included."""
    return max(0, start_ms) * sample_rate_hz // 1000, -(-max(0, end_ms) * sample_rate_hz // 1000)


def silence(fd: int, channel: Channel, start: int, end: int) -> None:
    """Put silence over samples of one channel of an open WAV of ours; it does not get longer by that.

    Raises:
        OSError: the disk refuses.
    """
    column = CHANNELS.index(channel)
    for at in range(max(0, start), end, _BLOCK):
        offset = HEADER_BYTES + at * FRAME_BYTES
        there = os.pread(fd, (min(end, at + _BLOCK) - at) * FRAME_BYTES, offset)
        samples = np.frombuffer(there, "<i2", len(there) // 2).copy()
        if not samples[column :: len(CHANNELS)].any():
            continue  # a hole stays one
        samples[column :: len(CHANNELS)] = 0
        _pwrite(fd, samples.tobytes(), offset)


def _pwrite(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written
