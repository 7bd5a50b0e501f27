# SPDX-License-Identifier: Apache-2.0
"""What the output transport wrote: brackets of a TTS context, and the samples between them.

The transport cuts audio into chunks of its own that no longer name their context; the order of its queue
does: `TTSStartedFrame`, chunks, `TTSStoppedFrame` (pipecat-capture.md, section 2). A chunk is pushed once
it was written, so it played from its duration ago until now; an event loop that is late pushes later. What
is late and catches up is jitter; what stays late was a silence, and the audio behind it is placed behind it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

# Lateness that lasts, by more than this, was a gap; so the two channels stay within it of each other.
DRIFT_MS: Final = 4.0
# The recording gets what played in pieces of about this length, so that a crash loses little.
PIECE_MS: Final = 1000
# The newest chunks are kept back until it shows whether their lateness lasts.
KEPT_BACK: Final = 4
# A late first chunk began when the transport said that the bot speaks, if that is not too long ago.
START_SLACK_MS: Final = 100.0
# A chunk this late is not waited for: something like a stalled speech service.
STALL_MS: Final = 80.0


@dataclass(slots=True)
class _Chunk:
    pcm: bytes
    samples: int
    pushed_ms: float
    end_sample: int  # of its run, exclusive


@dataclass(slots=True)
class Run:
    """A stretch that played without a break, placed by its first chunk and long by its samples."""

    start_ms: int
    rate_hz: int
    channels: int
    samples: int = 0
    flushed: int = 0
    lead_ms: float | None = None  # how early the transport pushes, by its earliest chunk
    pending: list[_Chunk] = field(default_factory=list)

    def at(self, sample: int) -> float:
        """Where a sample plays, in call-ms."""
        return self.start_ms + sample * 1000 / self.rate_hz

    @property
    def end_ms(self) -> int:
        """Where it ends, in whole call-ms that hold all of its samples."""
        return math.ceil(self.at(self.samples) - 1e-6)


@dataclass(slots=True)
class Bracket:
    """A TTS context that is playing at one destination; `recorded`: the recording holds that one's audio."""

    context_id: str
    speech_id: str
    recorded: bool = True
    started_ms: int | None = None
    position_ms: float = 0.0  # of this context's audio, over all its runs
    run: Run | None = None


class PlayoutClock:
    """Turns written chunks into runs. One per destination; loop-affine.

    `on_run(start_ms, end_ms)` is told when a run is over, `on_audio(start_ms, pcm, rate, channels)` each
    piece of it before that.
    """

    def __init__(
        self,
        on_run: Callable[[int, int], None],
        on_audio: Callable[[int, bytes, int, int], None] | None,
    ) -> None:
        self._on_run = on_run
        self._on_audio = on_audio
        self._last_end_ms = 0
        self._speaks_ms: float | None = None

    def speaks(self, now_ms: float) -> None:
        """The transport says that the bot speaks, just before it writes the first chunk."""
        self._speaks_ms = now_ms

    def chunk(self, bracket: Bracket, now_ms: float, pcm: bytes, rate_hz: int, channels: int) -> bool:
        """A chunk was written just now; True when it is the first of its context."""
        samples = len(pcm) // (2 * channels)
        if not samples:
            return False
        duration_ms = samples * 1000 / rate_hz
        run = bracket.run
        if run is not None:
            late = now_ms - run.at(run.samples) - duration_ms
            if late > STALL_MS or (run.rate_hz, run.channels) != (rate_hz, channels):
                self.end_run(bracket)
                run = None
        first = bracket.started_ms is None
        if run is None:
            run = bracket.run = Run(self._start(now_ms - duration_ms), rate_hz, channels)
            if first:
                bracket.started_ms = run.start_ms
        run.samples += samples
        run.pending.append(_Chunk(pcm if self._on_audio else b"", samples, now_ms, run.samples))
        bracket.position_ms += duration_ms
        self._last_end_ms = run.end_ms
        if (run.samples - run.flushed) * 1000 >= (PIECE_MS + KEPT_BACK * duration_ms) * rate_hz:
            # whole milliseconds only, so that the next piece begins exactly where this one ends
            whole = [n for n, c in enumerate(run.pending, 1) if c.end_sample * 1000 % rate_hz == 0]
            count = max((n for n in whole if n <= len(run.pending) - KEPT_BACK), default=0)
            if count:
                self._last_end_ms = self._settle(bracket, run, count).end_ms
        return first

    def _start(self, at_ms: float) -> int:
        speaks, self._speaks_ms = self._speaks_ms, None
        if speaks is not None and abs(at_ms - speaks) <= START_SLACK_MS:
            at_ms = speaks
        return max(self._last_end_ms, round(at_ms), 0)

    def end_run(self, bracket: Bracket) -> None:
        """The context paused or ended: its run is over."""
        run = bracket.run
        if run is None:
            return
        run = self._settle(bracket, run, len(run.pending))
        bracket.run = None
        self._last_end_ms = run.end_ms
        self._on_run(run.start_ms, run.end_ms)

    def _settle(self, bracket: Bracket, run: Run, count: int) -> Run:
        """Pass on the first `count` chunks, and let a run end where there was a silence."""
        late = [c.pushed_ms - run.at(c.end_sample) for c in run.pending]
        lasting = late[:]
        for index in range(len(late) - 2, -1, -1):
            lasting[index] = min(lasting[index], lasting[index + 1])
        if run.lead_ms is None:
            run.lead_ms = min(lasting[0], 0.0)
        shift_ms = run.lead_ms
        group: list[_Chunk] = []
        ending = len(late) == count  # the last ones show nothing: what follows them is not known
        chunks, rest = run.pending[:count], run.pending[count:]
        for index, chunk in enumerate(chunks):
            known = not ending or index < len(late) - KEPT_BACK
            gap_ms = lasting[index] - shift_ms
            if known and gap_ms > DRIFT_MS and (group or run.flushed):
                self._flush(run, group)
                run, shift_ms, group = self._split(bracket, run, gap_ms), lasting[index], []
            group.append(chunk)
        self._flush(run, group)
        moved = sum(c.samples for c in rest)
        run.pending = rest
        run.samples = run.flushed + moved
        at = run.flushed
        for chunk in rest:
            at += chunk.samples
            chunk.end_sample = at
        return run

    def _split(self, bracket: Bracket, run: Run, gap_ms: float) -> Run:
        """There was silence behind what was flushed: another run begins after it."""
        run.samples = run.flushed
        end_ms, gap = run.end_ms, round(gap_ms)
        self._on_run(run.start_ms, end_ms)
        if self._on_audio is not None:  # written out, for a gap this small would be closed
            silence = bytes(2 * run.channels * (gap * run.rate_hz // 1000))
            self._on_audio(end_ms, silence, run.rate_hz, run.channels)
        bracket.run = Run(end_ms + gap, run.rate_hz, run.channels, lead_ms=run.lead_ms)
        return bracket.run

    def _flush(self, run: Run, chunks: Sequence[_Chunk]) -> None:
        if not chunks:
            return
        if self._on_audio is not None:
            start_ms = round(run.at(run.flushed))
            self._on_audio(start_ms, b"".join(c.pcm for c in chunks), run.rate_hz, run.channels)
        run.flushed += sum(c.samples for c in chunks)
        run.samples = max(run.samples, run.flushed)
