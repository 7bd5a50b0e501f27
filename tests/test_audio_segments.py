# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from voicetrace.audio import OpenSegment, Segments, selections_for
from voicetrace.messages import Channel, Segment


def picked(ranges: list[tuple[int, int]], segments: Segments) -> list[tuple[str, int, int]]:
    found = selections_for(ranges, Channel.AGENT, segments.as_mapping())
    assert all(s.channel is Channel.AGENT for s in found)
    return [(s.segment_id, s.start_ms, s.end_ms) for s in found]


def test_one_segment_runs_from_the_start() -> None:
    segments = Segments()
    assert segments.begin(0) == "seg_0"
    assert segments.as_mapping() == {"seg_0": OpenSegment(0)}
    assert picked([(100, 200), (5_000, 9_000)], segments) == [("seg_0", 100, 200), ("seg_0", 5_000, 9_000)]


def test_selections_are_segment_ms_clipped_and_split() -> None:
    segments = Segments()
    segments.begin(1_000)
    assert segments.begin(1_500) == "seg_0"
    assert segments.end(3_000) == "seg_0"
    assert segments.end(3_500) is None
    assert segments.begin(4_000) == "seg_1"
    assert segments.as_mapping()["seg_0"] == Segment(start_ms=1_000, length_ms=2_000)
    assert picked([(500, 1_200), (2_900, 4_100)], segments) == [
        ("seg_0", 0, 200),
        ("seg_0", 1_900, 2_000),
        ("seg_1", 0, 100),
    ]
    assert picked([(3_000, 4_000), (2_000, 2_000), (2_000, 1_000)], segments) == []


def test_without_segments_nothing_is_selected() -> None:
    assert picked([(0, 1_000)], Segments()) == []


def test_a_segment_never_begins_inside_the_one_before() -> None:
    segments = Segments()
    segments.begin(0)
    segments.end(2_000)
    segments.begin(1_500)
    assert segments.as_mapping()["seg_1"] == OpenSegment(2_000)


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=6),
    st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 2_000)), max_size=4),
)
def test_exactly_the_recorded_ms_of_the_ranges(
    steps: list[tuple[int, int]], ranges: list[tuple[int, int]]
) -> None:
    segments, at, recorded = Segments(), 0, set()
    for gap, length in steps:
        segments.begin(at + gap)
        segments.end(at + gap + length)
        recorded |= set(range(at + gap, at + gap + length))
        at += gap + length
    spans = segments.as_mapping()
    played = [
        spans[s.segment_id].start_ms + ms
        for s in selections_for(ranges, Channel.CALLER, spans)
        for ms in range(s.start_ms, s.end_ms)
    ]
    assert played == [ms for low, high in ranges for ms in range(low, high) if ms in recorded]
