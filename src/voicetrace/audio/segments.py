# SPDX-License-Identifier: Apache-2.0
"""Contiguous stretches of the recording, and selections of them (contract, section 5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from voicetrace.messages import Channel, Segment, Selection


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """A segment that is still being recorded: it has no length yet. ``start_ms`` is call-ms."""

    start_ms: int


class Segments:
    """The stretches of a call in which it was recorded, ``seg_0``, ``seg_1``, … in order of time.

    Normally one, from call-ms 0 to the end. Not thread-safe: keep one per thread that needs it.
    """

    def __init__(self) -> None:
        self._all: dict[str, Segment | OpenSegment] = {}
        self._open: str | None = None

    def begin(self, start_ms: int) -> str:
        """Recording runs from `start_ms` on; gives the segment's id, the running one if there is one."""
        if self._open is None:
            self._open = f"seg_{len(self._all)}"
            last = max((s.start_ms + _length(s) for s in self._all.values()), default=0)
            self._all[self._open] = OpenSegment(max(start_ms, last))
        return self._open

    def end(self, end_ms: int) -> str | None:
        """Recording stopped at `end_ms`; gives the id of the segment that ended, if one was running."""
        ended, self._open = self._open, None
        if ended is not None:
            start = self._all[ended].start_ms
            self._all[ended] = Segment(start_ms=start, length_ms=max(0, end_ms - start))
        return ended

    def as_mapping(self) -> dict[str, Segment | OpenSegment]:
        """All of them by id, as `selections_for` takes them."""
        return dict(self._all)

    def covered(self, start: int, samples: int, sample_rate_hz: int) -> Iterator[tuple[int, int]]:
        """The parts of a run of samples that lie in a segment, as (start, end) samples."""
        for segment in self._all.values():
            low = max(start, segment.start_ms * sample_rate_hz // 1000)
            high = start + samples
            if isinstance(segment, Segment):
                high = min(high, (segment.start_ms + segment.length_ms) * sample_rate_hz // 1000)
            if low < high:
                yield low, high


def _length(segment: Segment | OpenSegment) -> int:
    return segment.length_ms if isinstance(segment, Segment) else 0


def selections_for(
    ranges: Sequence[tuple[int, int]],
    channel: Channel,
    segments: Mapping[str, Segment | OpenSegment],
) -> list[Selection]:
    """The selections that play these stretches of a channel, and nothing else (contract, section 5).

    Args:
        ranges: (start, end) in call-ms, in the order to be played; empty ones select nothing.
        channel: whose voice it is.
        segments: the recording's segments by id; an `OpenSegment` reaches as far as asked.

    Returns:
        Selections in *segment* ms. A range over several segments is split; what was not recorded is left
        out.
    """
    ordered = sorted(segments.items(), key=lambda item: item[1].start_ms)
    selections = []
    for start, end in ranges:
        for segment_id, segment in ordered:
            low, high = max(start, segment.start_ms), end
            if isinstance(segment, Segment):
                high = min(high, segment.start_ms + segment.length_ms)
            if low < high:
                selections.append(
                    Selection(
                        segment_id=segment_id,
                        channel=channel,
                        start_ms=low - segment.start_ms,
                        end_ms=high - segment.start_ms,
                    )
                )
    return selections
