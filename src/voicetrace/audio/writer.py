# SPDX-License-Identifier: Apache-2.0
"""Writes the recording of one call as it happens: two channels, placed absolutely from call-ms 0."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from voicetrace.audio.errors import ClipError, RecordingError
from voicetrace.audio.facts import RecordingFacts, encode, facts_of
from voicetrace.audio.index import IndexWriter, index_path
from voicetrace.audio.pcm import RateStream, Samples, to_mono
from voicetrace.audio.placement import AHEAD_MS, CallerPlacer, Placed
from voicetrace.audio.repair import repair
from voicetrace.audio.segments import Segments
from voicetrace.audio.transcode import RecordingFormat
from voicetrace.audio.wav import CHANNELS, SparseWav, samples_within, silence
from voicetrace.messages import Channel

JOIN_MS: Final = 30
"""An agent run that starts this near to the end of the one before goes on where that one ended."""
INDEX_EVERY_MS: Final = 10_000
IDLE_MS: Final = 500


@dataclass(slots=True)
class _Track:
    """Where a channel is: `end` is the first sample that is free, `indexed` the first not in the index."""

    stream: RateStream | None = None
    start: int = 0
    written: int = 0
    end: int = 0
    indexed: int = 0
    muted: list[tuple[int, int]] = field(default_factory=list)  # what may still come of it is not written


class RecordingWriter:
    """One call's recording while it runs: a two-channel WAV that plays at any moment, and its index.

    Plain and synchronous: it does file I/O, so it belongs on the call's writer thread, and on one thread
    only. Memory does not grow with the call. All times are call-ms.

    The first `OSError` closes the files as they are, what was written so far stays readable, and one
    `RecordingError` says so; from then on writes only count `lost_ms`.

    Args:
        path: the WAV to create; the index is created beside it. Neither may exist.
        sample_rate_hz: the file's rate. Audio of that rate is written as it is; other rates are resampled,
            which needs soxr (the extra ``livekit`` or ``pipecat``).
        origin_unix_ms: Unix time of call-ms 0.
        channels: what to capture; a channel that is not captured stays silent.
        format: what `finish` makes of the WAV.
        recording: whether recording runs from call-ms 0, or waits for `resume` (consent).

    Raises:
        RecordingError: the files cannot be created.
    """

    def __init__(
        self,
        path: Path,
        *,
        sample_rate_hz: int,
        origin_unix_ms: int,
        channels: Collection[Channel] = CHANNELS,
        format: RecordingFormat = "wav",  # noqa: A002  the contract's word
        recording: bool = True,
    ) -> None:
        self.path = path
        self.sample_rate_hz = sample_rate_hz
        self.origin_unix_ms = origin_unix_ms
        self.segments = Segments()
        if recording:
            self.segments.begin(0)
        self._channels = frozenset(channels)
        self._format: RecordingFormat = format
        self._lost_ms = 0.0
        self._failed = False
        self._facts: RecordingFacts | None = None
        self._placer = CallerPlacer()
        self._tracks = {channel: _Track() for channel in CHANNELS}
        self._wav: SparseWav | None = None
        self._index: IndexWriter | None = None
        with self._guarded("created"):
            self._wav = SparseWav(path, sample_rate_hz)
            self._index = IndexWriter(index_path(path), sample_rate_hz)

    @property
    def failed(self) -> bool:
        """Whether the disk failed; nothing is written any more."""
        return self._failed

    @property
    def lost_ms(self) -> int:
        """How much audio is not in the recording that should be, both channels together."""
        return round(self._lost_ms)

    def write_caller(
        self, arrived_ms: float, pcm: Samples | bytes | memoryview, rate_hz: int, channels: int = 1
    ) -> None:
        """A frame of the caller that arrived, complete, at `arrived_ms`. Placed as `placement` says.

        The frame is not changed, and copied where it has to be kept.

        Raises:
            RecordingError: the disk failed just now.
            ValueError: the frame is not int16.
        """
        frame = to_mono(pcm, channels)
        if self._takes(Channel.CALLER, frame.size * 1000 / rate_hz) and frame.size:
            cut_ms = self._placer.cut_ms
            placed = self._placer.add(arrived_ms, frame, rate_hz)
            self._place(placed)
            if (cut_ms := self._placer.cut_ms - cut_ms) > 0:
                end_ms = max(0, int(arrived_ms))
                self.note_lost(Channel.CALLER, max(0, end_ms - round(cut_ms)), end_ms, "arrived too late")

    def write_agent_run(
        self,
        start_ms: int,
        pcm: Samples | bytes | memoryview,
        rate_hz: int | None = None,
        channels: int = 1,
    ) -> None:
        """Audio of the agent that was *played*, without a break, from `start_ms` on.

        It begins exactly at that ms, except that a run which starts within `JOIN_MS` of the end of the one
        before, or earlier, goes on where that one ended; the index keeps both, so clips stay exact. Write
        each run as a whole or in a few large pieces: each call is a line of the index.

        Raises:
            RecordingError: the disk failed just now.
            ValueError: the audio is not int16.
        """
        run = to_mono(pcm, channels)
        rate = rate_hz or self.sample_rate_hz
        run = self._said_in_segments(run, start_ms * rate // 1000, rate)
        if not self._takes(Channel.AGENT, run.size * 1000 / rate) or not run.size:
            return
        track = self._tracks[Channel.AGENT]
        start = start_ms * self.sample_rate_hz // 1000
        with self._guarded("written", at_stake_ms=run.size * 1000 / rate):
            if start > track.end + JOIN_MS * self.sample_rate_hz // 1000 or not track.end:
                self._end_run(Channel.AGENT)
                track.start = track.written = track.end = start
            before = track.end
            self._append(Channel.AGENT, run, rate)
            self._note_run(Channel.AGENT, before, track.end - before, at_ms=start_ms)

    def note_lost(self, channel: Channel, start_ms: int, end_ms: int, reason: str) -> None:
        """Audio that never came here, such as frames dropped because a queue was full.

        Raises:
            RecordingError: the disk failed just now.
        """
        self._lost_ms += max(0, end_ms - start_ms)
        with self._guarded("written"):
            if self._index is not None:
                self._index.lost(channel, start_ms, end_ms, reason)

    def mute(self, channel: Channel, start_ms: int, end_ms: int) -> None:
        """Silence a stretch of a channel; also what of it still comes, and what a closed file has.

        Raises:
            RecordingError: the disk failed just now, or the closed file is no longer there.
        """
        low, high = samples_within(start_ms, end_ms, self.sample_rate_hz)
        track = self._tracks[channel]
        track.muted = [(a, b) for a, b in track.muted if b > track.written]
        track.muted.append((low, high))
        if self._wav is None:
            with self._guarded("silenced"), self.path.open("r+b") as file:
                silence(file.fileno(), channel, low, high)
            return
        with self._guarded("written"):
            assert self._index is not None
            self._wav.silence(channel, low, high)
            self._index.lost(channel, start_ms, end_ms, "redacted")

    def advance(self, now_ms: float) -> None:
        """Nothing came up to `now_ms`, and nothing waits in a queue: write what is still held back.

        Call it now and then while idle, so that a kill loses less than a second.

        Raises:
            RecordingError: the disk failed just now.
        """
        if self._wav is None:
            return
        self._place(self._placer.advance(now_ms))
        idle = IDLE_MS * self.sample_rate_hz // 1000
        with self._guarded("written"):
            for channel, track in self._tracks.items():
                if now_ms * self.sample_rate_hz / 1000 - track.end > idle:
                    self._end_run(channel)

    def pause(self, at_ms: int) -> str | None:
        """Stop recording at `at_ms` (consent withdrawn): what was heard from then on is not written.

        What was written of it already goes: on another thread audio may overtake the withdrawal.

        Returns:
            The id of the segment that ended, if one was running.

        Raises:
            RecordingError: the disk failed just now.
        """
        ended = self.segments.end(at_ms)
        first = at_ms * self.sample_rate_hz // 1000
        with self._guarded("written"):
            for channel, track in self._tracks.items():
                if ended is not None and self._wav is not None:
                    self._wav.silence(channel, first, track.written)
        return ended

    def resume(self, at_ms: int) -> str:
        """Record from `at_ms` on; gives the id of the segment that begins."""
        return self.segments.begin(at_ms)

    def finish(self, end_ms: int) -> RecordingFacts:
        """Write what is held, make the file exactly as long as the call, and encode it if that was asked.

        May take long for a long call in another format than WAV (see `encode`). After a failure of the
        disk it makes the best of what is there; the facts then tell of less than the call.

        Raises:
            RecordingError: the disk failed, or nothing can be read back.
        """
        if self._facts is not None:
            return self._facts
        if self._failed:
            return self._finish_failed()
        self._place(self._placer.settle(ended=True))
        frames = max(0, end_ms) * self.sample_rate_hz // 1000
        self.segments.end(end_ms)
        with self._guarded("finished"):
            for channel, track in self._tracks.items():
                self._end_run(channel)
                if (over := (track.end - frames) * 1000 // self.sample_rate_hz) > AHEAD_MS:
                    self.note_lost(channel, end_ms, end_ms + over, "after the end of the call")
            assert self._wav is not None
            assert self._index is not None
            self._wav.finish(frames)
            self._index.sync()
            self.close()
            self._facts = encode(facts_of(self.path, lost_ms=self.lost_ms), self._format)
        return self._facts

    def close(self) -> None:
        """Let go of the files as they are, unfinished unless `finish` was called. Harmless when repeated."""
        if self._wav is not None:
            self._wav.close()
            self._wav = None
        if self._index is not None:
            self._index.close()
            self._index = None

    # -- inside --------------------------------------------------------------------------------------
    def _finish_failed(self) -> RecordingFacts:
        facts = repair(self.path)
        self.segments.end(facts.duration_ms)
        note = "recording stopped early: the disk failed"
        self._facts = replace(facts, lost_ms=self.lost_ms, note=note)
        return self._facts

    def _said_in_segments(self, run: Samples, start: int, rate_hz: int) -> Samples:
        """A run with silence where it was not said in a segment; it may be placed a little beside that."""
        kept = list(self.segments.covered(start, run.size, rate_hz))
        if kept == [(start, start + run.size)]:
            return run
        out = np.zeros_like(run)
        for low, high in kept:
            out[low - start : high - start] = run[low - start : high - start]
        return out

    def _takes(self, channel: Channel, duration_ms: float) -> bool:
        if channel not in self._channels:
            return False
        if self._wav is None:
            self._lost_ms += duration_ms
            return False
        return True

    @contextmanager
    def _guarded(self, done: str, at_stake_ms: float = 0) -> Iterator[None]:
        try:
            yield
        except (OSError, ClipError) as error:
            self._failed = True
            self._lost_ms += at_stake_ms
            self.close()
            raise RecordingError(f"the recording {self.path} could not be {done}: {error}") from error

    def _place(self, placed: list[Placed]) -> None:
        if not placed:
            return
        track = self._tracks[Channel.CALLER]
        at_stake_ms = sum(piece.pcm.size * 1000 / piece.rate_hz for piece in placed)
        with self._guarded("written", at_stake_ms):
            for piece in placed:
                pcm = piece.pcm
                if piece.start_ms is not None:
                    self._end_run(Channel.CALLER)
                    start = int(piece.start_ms * self.sample_rate_hz // 1000)
                    track.start = track.written = track.end = track.indexed = max(start, track.end, 0)
                    if start < 0:  # spoken before the call began
                        pcm = pcm[int(-piece.start_ms * piece.rate_hz // 1000) :]
                self._append(Channel.CALLER, pcm, piece.rate_hz)
                if track.written - track.indexed >= INDEX_EVERY_MS * self.sample_rate_hz // 1000:
                    self._note_caller()

    def _append(self, channel: Channel, pcm: Samples, rate_hz: int) -> None:
        """Go on with the channel's run, sample by sample."""
        track = self._tracks[channel]
        if track.stream is not None and track.stream.from_hz != rate_hz:
            self._flush(channel)
        if track.stream is None:
            track.stream = RateStream(rate_hz, self.sample_rate_hz)
            track.start = track.end
        self._put(channel, track.stream.push(pcm))
        track.end = track.start + track.stream.due

    def _flush(self, channel: Channel) -> None:
        track = self._tracks[channel]
        if track.stream is not None:
            self._put(channel, track.stream.flush())
            track.stream = None

    def _end_run(self, channel: Channel) -> None:
        self._flush(channel)
        if channel is Channel.CALLER:
            self._note_caller()

    def _put(self, channel: Channel, pcm: Samples) -> None:
        track = self._tracks[channel]
        assert self._wav is not None
        for low, high in track.muted:
            begin, end = max(low - track.written, 0), min(high - track.written, pcm.size)
            if begin < end:
                pcm = pcm.copy()
                pcm[begin:end] = 0
        for low, high in self.segments.covered(track.written, pcm.size, self.sample_rate_hz):
            self._wav.write(channel, low, pcm[low - track.written : high - track.written])
        track.written += pcm.size

    def _note_caller(self) -> None:
        track = self._tracks[Channel.CALLER]
        self._note_run(Channel.CALLER, track.indexed, track.written - track.indexed)
        track.indexed = track.written

    def _note_run(self, channel: Channel, start: int, samples: int, at_ms: int | None = None) -> None:
        assert self._index is not None
        for low, high in self.segments.covered(start, samples, self.sample_rate_hz):
            later_ms = (low - start) * 1000 // self.sample_rate_hz
            said = None if at_ms is None else at_ms + later_ms
            self._index.run(channel, low, high - low, said)
