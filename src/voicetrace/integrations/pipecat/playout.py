# SPDX-License-Identifier: Apache-2.0
"""What the output transport wrote: brackets of a TTS context, and the samples between them.

The transport cuts audio into chunks of its own that no longer name their context; the order of its queue
does: `TTSStartedFrame`, chunks, `TTSStoppedFrame` (pipecat-capture.md, section 2). A chunk is pushed once
it was written, so it played from its duration ago until now.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

# Chunks that follow each other within this are one stretch; the transport paces to a chunk of up to 40 ms.
GAP_MS: Final = 80.0
# The recording gets what played in pieces of about this length, so that a crash loses little.
PIECE_MS: Final = 1000


@dataclass(slots=True)
class Run:
    """A stretch that played without a break, placed by its first chunk and long by its samples."""

    start_ms: int
    rate_hz: int
    channels: int
    samples: int = 0
    pending: list[bytes] = field(default_factory=list)
    pending_samples: int = 0

    @property
    def exact_ms(self) -> float:
        """How long it is by its samples."""
        return self.samples * 1000 / self.rate_hz

    @property
    def end_ms(self) -> int:
        """Where it ends, in whole call-ms that hold all of its samples."""
        return self.start_ms + math.ceil(self.exact_ms - 1e-6)


@dataclass(slots=True)
class Bracket:
    """A TTS context that is playing at one destination."""

    context_id: str
    speech_id: str
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

    def chunk(self, bracket: Bracket, now_ms: float, pcm: bytes, rate_hz: int, channels: int) -> bool:
        """A chunk was written just now; True when it is the first of its context."""
        samples = len(pcm) // (2 * channels)
        if not samples:
            return False
        duration_ms = samples * 1000 / rate_hz
        run = bracket.run
        if run is not None:
            late = now_ms - (run.start_ms + run.exact_ms + duration_ms)
            if late > GAP_MS or (run.rate_hz, run.channels) != (rate_hz, channels):
                self.end_run(bracket)
                run = None
        first = bracket.started_ms is None
        if run is None:
            start_ms = max(self._last_end_ms, round(now_ms - duration_ms), 0)
            run = bracket.run = Run(start_ms, rate_hz, channels)
            if first:
                bracket.started_ms = start_ms
        run.samples += samples
        bracket.position_ms += duration_ms
        self._last_end_ms = run.end_ms
        if self._on_audio is not None:
            run.pending.append(pcm)
            run.pending_samples += samples
            # whole milliseconds only, so that the next piece begins exactly where this one ends
            if run.pending_samples * 1000 >= PIECE_MS * rate_hz and run.samples * 1000 % rate_hz == 0:
                self._flush(run)
        return first

    def end_run(self, bracket: Bracket) -> None:
        """The context paused or ended: its run is over."""
        run, bracket.run = bracket.run, None
        if run is None:
            return
        self._flush(run)
        self._on_run(run.start_ms, run.end_ms)

    def _flush(self, run: Run) -> None:
        if self._on_audio is None or not run.pending:
            return
        before_ms = (run.samples - run.pending_samples) * 1000 // run.rate_hz
        self._on_audio(run.start_ms + before_ms, b"".join(run.pending), run.rate_hz, run.channels)
        run.pending.clear()
        run.pending_samples = 0
