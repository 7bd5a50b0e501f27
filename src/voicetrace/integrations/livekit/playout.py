# SPDX-License-Identifier: Apache-2.0
"""What the sink played: its playback events as playout events, and the samples of each played run.

Listens on the *top* of the output chain, the only place with the aligned transcript
(livekit-capture.md, section 1.3). Pauses are gaps between runs; a run is reported once it can no longer be
discarded, so the agent channel of the recording holds exactly what played.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from livekit import rtc
from livekit.agents.voice import io

from voicetrace import events as ev
from voicetrace.live import LiveCall
from voicetrace.messages import Channel

# A run that starts this soon after the one before is the same stretch, reported in pieces.
_CONTIGUOUS_MS: Final = 2


@dataclass(slots=True)
class _Segment:
    """Audio pushed between two flushes, until its playback is finished."""

    chunks: deque[bytes] = field(default_factory=deque)
    start: int = 0  # the first sample still kept, counted from the segment's first
    samples: int = 0
    rate_hz: int = 0
    channels: int = 1
    flushed: bool = False

    def push(self, frame: rtc.AudioFrame) -> None:
        if not self.samples:
            self.rate_hz, self.channels = frame.sample_rate, frame.num_channels
        elif (frame.sample_rate, frame.num_channels) != (self.rate_hz, self.channels):
            raise ValueError(
                f"the sink's audio changed from {self.rate_hz} to {frame.sample_rate} Hz within a segment"
            )
        self.chunks.append(bytes(frame.data))
        self.samples += frame.samples_per_channel

    def take(self, first: int, last: int) -> bytes:
        """Samples [first, last) of the segment; what comes before is let go, for it was discarded."""
        width = 2 * self.channels
        low, high = max(0, first - self.start), max(0, min(last, self.samples) - self.start)
        self._pop(min(low, high) * width)
        taken = self._pop(max(0, high - low) * width)
        self.start += high
        return taken

    def _pop(self, size: int) -> bytes:
        """The next bytes; what lies behind them is not touched, for a long reply is taken in many pieces."""
        out: list[bytes] = []
        while size > 0 and self.chunks:
            chunk = self.chunks.popleft()
            if len(chunk) > size:
                self.chunks.appendleft(chunk[size:])
                chunk = chunk[:size]
            out.append(chunk)
            size -= len(chunk)
        return b"".join(out)


class PlayoutAdapter:
    """Follows one session's output, whichever sink is on top of it.

    Loop-affine. `speech_key` gives the record's key of the speech that is current now.
    """

    def __init__(self, call: LiveCall, speech_key: Callable[[], str | None]) -> None:
        self._call = call
        self._speech_key = speech_key
        self._sink: io.AudioOutput | None = None
        self._playing: str | None = None
        self._segments: deque[_Segment] = deque()
        self._last_end_ms = 0
        self._started_ms: int | None = None  # of the segment that is playing
        self._had_run = False
        self._keep_audio = Channel.AGENT in call.files.wants_audio
        wrap = call.guard.wrap
        self._handlers: dict[Any, Any] = {
            "playback_started": wrap("playback_started", self._on_started),
            "playback_progressed": wrap("playback_progressed", self._on_progressed),
            "playback_finished": wrap("playback_finished", self._on_finished),
        }
        self._pushed = wrap("capture_frame", self._on_frame)
        self._flushed = wrap("flush", self._on_flush)

    @property
    def playing(self) -> str | None:
        """The key of the speech whose segment is playing, if one is."""
        return self._playing

    def follow(self, sink: io.AudioOutput | None) -> None:
        """Listen to this sink from now on; sinks are wrapped and swapped while calls run (T10)."""
        if sink is self._sink:
            return
        self.leave()
        self._sink = sink
        if sink is None:
            return
        for name, handler in self._handlers.items():
            sink.on(name, handler)
        if self._keep_audio:
            self._tap(sink)

    def keep_no_audio(self) -> None:
        """Someone else records what is played."""
        self._keep_audio = False
        self._segments.clear()
        if self._sink is not None:
            self._untap(self._sink)

    def leave(self) -> None:
        """Stop listening, and leave the sink as it was."""
        sink, self._sink = self._sink, None
        if sink is None:
            return
        for name, handler in self._handlers.items():
            sink.off(name, handler)
        self._untap(sink)

    def _untap(self, sink: io.AudioOutput) -> None:
        for name in ("capture_frame", "flush"):
            if getattr(vars(sink).get(name), "_voicetrace", None) is self:
                delattr(sink, name)

    def _tap(self, sink: io.AudioOutput) -> None:
        # instance attributes, not a sink of ours in the chain: that could turn off pausing (T11)
        capture, flush = sink.capture_frame, sink.flush
        if "capture_frame" in vars(sink) or "flush" in vars(sink):
            self._call.fault(
                "the output's methods are already replaced by someone; agent audio is not recorded"
            )
            return
        pushed, flushed = self._pushed, self._flushed

        async def capture_frame(frame: rtc.AudioFrame) -> None:
            pushed(frame)
            await capture(frame)

        def flush_segment() -> None:
            flushed()
            flush()

        capture_frame._voicetrace = self  # type: ignore[attr-defined]  # noqa: SLF001
        flush_segment._voicetrace = self  # type: ignore[attr-defined]  # noqa: SLF001
        sink.capture_frame = capture_frame  # type: ignore[method-assign]
        sink.flush = flush_segment  # type: ignore[method-assign]

    # -- pushed audio --------------------------------------------------------------------------------
    def _on_frame(self, frame: rtc.AudioFrame) -> None:
        if not self._segments or self._segments[-1].flushed:
            self._segments.append(_Segment())
        self._segments[-1].push(frame)

    def _on_flush(self) -> None:
        if self._segments:
            self._segments[-1].flushed = True

    # -- playback ------------------------------------------------------------------------------------
    def _on_started(self, event: io.PlaybackStartedEvent) -> None:
        # what is current now owns the segment, whatever is current when it ends (T30)
        self._playing = self._speech_key()
        self._started_ms = self._call.ms(event.created_at)
        if self._playing is not None:
            self._call.emit(
                ev.PlayoutStarted(
                    at_ms=self._call.now_ms(), speech_id=self._playing, start_ms=self._started_ms
                )
            )

    def _on_progressed(self, event: io.PlaybackProgressedEvent) -> None:
        key = self._playing or self._speech_key()
        if key is None or event.duration <= 0:
            return
        start_ms = self._call.ms(event.started_at)
        if start_ms <= self._last_end_ms + _CONTIGUOUS_MS:
            start_ms = self._last_end_ms
        end_ms = start_ms + math.ceil(event.duration * 1000 - 1e-6)
        self._last_end_ms, self._had_run = end_ms, True
        self._record(start_ms, event.offset, event.duration)
        self._call.emit(
            ev.PlayoutRun(at_ms=self._call.now_ms(), speech_id=key, start_ms=start_ms, end_ms=end_ms)
        )

    def _record(self, start_ms: int, offset_s: float, duration_s: float) -> None:
        if not self._segments:
            return
        segment = self._segments[0]
        rate = segment.rate_hz
        first = round(offset_s * rate)
        pcm = segment.take(first, first + round(duration_s * rate))
        if pcm:
            self._call.files.agent_audio(start_ms, pcm, rate, segment.channels)

    def _on_finished(self, event: io.PlaybackFinishedEvent) -> None:
        key, self._playing = self._playing or self._speech_key(), None
        position = event.playback_position
        if not self._had_run and self._started_ms is not None:
            # a sink that reports no runs is described by its end points
            if event.interrupted:  # and some say that all they were given has played (T13)
                position = min(position, max(0, self._call.now_ms() - self._started_ms) / 1000)
            self._record(self._started_ms, 0.0, position)
        if self._segments:
            self._segments.popleft()
        self._started_ms, self._had_run = None, False
        if key is None:
            return
        self._call.emit(
            ev.PlayoutFinished(
                at_ms=self._call.now_ms(),
                speech_id=key,
                interrupted=event.interrupted,
                position_ms=max(0, round(position * 1000)),
                aligned=event.synchronized_transcript is not None,
                heard_text=event.synchronized_transcript,
            )
        )
