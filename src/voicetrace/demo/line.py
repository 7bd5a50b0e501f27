# SPDX-License-Identifier: Apache-2.0
"""The caller's line: room noise in real time, with clips mixed in. Needs no framework."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import numpy as np

from voicetrace.demo.script import RecordedClip, Samples

FRAME_S = 0.01


@dataclass(frozen=True)
class Spoken:
    """A clip in the caller's audio: its speech sounds in ``[start_unix, end_unix]``, sample-exact."""

    clip: RecordedClip
    start_unix: float
    end_unix: float


class CallerLine:
    """The caller's line: room noise in frames of ``frame_s`` in real time, with clips mixed in by `speak`.

    Sample ``k`` of the line sounds at ``started_unix + k / sample_rate``, where ``started_unix`` is when the
    first frame was asked for; ``started`` is set then. A frame is handed over when its last sample has
    sounded, as a sound card does.
    """

    def __init__(self, room: RecordedClip, *, frame_s: float = FRAME_S) -> None:
        self.sample_rate = room.sample_rate
        self.started_unix: float | None = None
        self.started = asyncio.Event()
        self._room = room.samples
        self._frame_samples = round(room.sample_rate * frame_s)
        self._position = 0
        self._clips: list[tuple[int, Samples]] = []
        self._delivered: list[Samples] = []

    def speak(self, clip: RecordedClip, at_unix: float) -> Spoken:
        """Let the clip's speech begin at ``at_unix``, or at once when that is no longer possible.

        Raises:
            RuntimeError: nobody listens yet.
            ValueError: the clip has another sample rate than the line.
        """
        if self.started_unix is None:
            raise RuntimeError("the microphone is not being read yet; start the session first")
        if clip.sample_rate != self.sample_rate:
            raise ValueError(f"clip {clip.name!r} has {clip.sample_rate} Hz, the line {self.sample_rate} Hz")
        wanted = round((at_unix - self.started_unix) * self.sample_rate) - clip.speech_start
        first = max(wanted, self._position)
        self._clips.append((first, clip.samples))
        return Spoken(clip, self._unix(first + clip.speech_start), self._unix(first + clip.speech_end))

    def delivered(self) -> Samples:
        """Every sample handed over so far, from ``started_unix`` on."""
        return np.concatenate(self._delivered) if self._delivered else np.zeros(0, np.int16)

    async def read(self) -> Samples:
        """The next frame, once all of it has sounded."""
        if self.started_unix is None:
            self.started_unix = time.time()
            self.started.set()
        end = self._position + self._frame_samples
        await asyncio.sleep(max(0.0, self._unix(end) - time.time()))
        frame = self._mix(self._position, end)
        self._position = end
        self._delivered.append(frame)
        return frame

    def _unix(self, sample: int) -> float:
        assert self.started_unix is not None
        return self.started_unix + sample / self.sample_rate

    def _mix(self, start: int, end: int) -> Samples:
        mixed = self._room[np.arange(start, end) % len(self._room)].astype(np.int32)
        for first, samples in self._clips:
            low, high = max(start, first), min(end, first + len(samples))
            if low < high:
                mixed[low - start : high - start] += samples[low - first : high - first]
        self._clips = [(first, samples) for first, samples in self._clips if first + len(samples) > end]
        return np.clip(mixed, -32768, 32767).astype(np.int16)
