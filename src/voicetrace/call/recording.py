# SPDX-License-Identifier: Apache-2.0
"""The recording's side of the fold: what was recorded when, and where messages lie in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from voicetrace import events as ev
from voicetrace.call.book import Book, Handlers
from voicetrace.messages import Channel, Recording, Segment, Selection

MUTE_AROUND_MS: Final = 200
"""How much before and behind a redacted message is silenced too: bounds of speech are not exact."""

# (channel, start, end) in call-ms
Stretch = tuple[Channel, int, int]


class Tape:
    """Keeps what is known of the call's recording, and says which stretches of it hold some call-ms."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._recording: ev.RecordingStarted | None = None
        self._recording_end: ev.RecordingFinished | None = None
        self._segments: dict[str, tuple[int, int | None]] = {}
        self._withdrawn: list[int] = []  # when consent was withdrawn, in call-ms
        self.muted: dict[Stretch, None] = {}
        """Every stretch of audio that had to go, in the order in which that was known."""
        self.handlers: Handlers = {
            ev.RecordingStarted: self._on_started,
            ev.SegmentStarted: self._on_segment_started,
            ev.SegmentEnded: self._on_segment_ended,
            ev.RecordingFinished: self._on_finished,
        }

    def withdrawn(self, at_ms: int) -> None:
        """Consent ended: nothing is recorded from here on, whenever the disk comes to say so."""
        self._withdrawn.append(at_ms)
        for segment_id, (start, end) in self._segments.items():
            if end is None:
                self._segments[segment_id] = (start, max(start, at_ms))
        self._book.touch_all()

    def close(self) -> None:
        """The call is over: what is still being recorded ends now."""
        for segment_id, (start, end) in self._segments.items():
            if end is None:
                self._segments[segment_id] = (start, max(start, self._book.now_ms))

    @property
    def recording(self) -> Recording | None:
        """The recording as far as it is known; an unfinished one has no digest and no duration."""
        start, end = self._recording, self._recording_end
        if start is None:
            return None
        return Recording(
            recording_id=start.recording_id,
            uri=end.uri if end else start.uri,
            format=end.format if end else start.format,
            sample_rate_hz=start.sample_rate_hz,
            channels=list(start.channels),
            origin_unix_ms=start.origin_unix_ms,
            duration_ms=end.duration_ms if end else None,
            sha256=end.sha256 if end else None,
            segments={
                name: Segment(
                    start_ms=begin, length_ms=max(0, (self._book.now_ms if stop is None else stop) - begin)
                )
                for name, (begin, stop) in self._segments.items()
            },
        )

    def _on_started(self, e: ev.RecordingStarted) -> None:
        if e.sample_rate_hz <= 0:
            self._book.warn(
                f"the recording {e.recording_id} has a sample rate of {e.sample_rate_hz}; ignored"
            )
        elif self._recording is None:
            self._recording = e
            self._book.touch_all()
        elif self._recording.recording_id != e.recording_id:
            self._book.warn(f"a second recording {e.recording_id} was started; the first one is kept")

    def _on_segment_started(self, e: ev.SegmentStarted) -> None:
        if e.segment_id in self._segments:
            return
        start = max(0, e.start_ms)
        # of consent that was given again in the same ms in which it was withdrawn, the disk says the end
        given = self._book.consented
        ends = [at_ms for at_ms in self._withdrawn if at_ms > start or (at_ms == start and not given)]
        if self._book.ended is not None:  # a slow disk may learn of it after the end
            ends.append(max(start, self._book.ended.at_ms))
        self._segments[e.segment_id] = (start, min(ends, default=None))
        self._book.touch_all()

    def _on_segment_ended(self, e: ev.SegmentEnded) -> None:
        start, end = self._segments.get(e.segment_id, (None, None))
        if start is not None and end is None:
            self._segments[e.segment_id] = (start, max(start, e.end_ms))
            self._book.touch_all()

    def _on_finished(self, e: ev.RecordingFinished) -> None:
        if self._recording is not None:
            self._recording_end = e  # told again: something was silenced after the end

    def selections(self, ranges: Iterable[tuple[int, int]], channel: Channel) -> list[Selection]:
        """The stretches of the recording that hold these call-ms ranges, in segment ms."""
        if self._recording is None or channel not in self._recording.channels:
            return []
        out: list[Selection] = []
        for start, end in ranges:
            for segment_id, (begin, stop) in self._segments.items():
                low, high = max(start, begin), end if stop is None else min(end, stop)
                for a, b in self._audible(channel, low, high):
                    out.append(
                        Selection(
                            segment_id=segment_id, channel=channel, start_ms=a - begin, end_ms=b - begin
                        )
                    )
        return out

    def mute(self, channel: Channel, ranges: Iterable[tuple[int, int]]) -> list[Stretch]:
        """What was heard there must go, with a little around it; gives what of that is new."""
        wanted = [(channel, max(0, a - MUTE_AROUND_MS), b + MUTE_AROUND_MS) for a, b in ranges]
        new = [stretch for stretch in wanted if stretch not in self.muted]
        self.muted.update(dict.fromkeys(new))
        return new

    def holds(self, channel: Channel) -> bool:
        """Whether the call is recorded, and that side of it."""
        return self._recording is not None and channel in self._recording.channels

    def _audible(self, channel: Channel, low: int, high: int) -> list[tuple[int, int]]:
        """What of a stretch was not silenced."""
        left = [(low, high)]
        for muted, start, end in self.muted:
            if muted is channel:
                left = [part for a, b in left for part in ((a, min(b, start)), (max(a, end), b))]
        return [(a, b) for a, b in left if a < b]
