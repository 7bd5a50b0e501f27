# SPDX-License-Identifier: Apache-2.0
"""`PlayoutClock` alone: chunks that were written, with the time at which each was pushed, become runs."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from voicetrace.integrations.pipecat.playout import STALL_MS, Bracket, PlayoutClock

RATE = 24_000
CHUNK_MS = 40


class World:
    """A clock, and what it told: runs, and the audio at its place."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, int]] = []
        self.pieces: list[tuple[int, np.ndarray]] = []
        self.clock = PlayoutClock(lambda a, b: self.runs.append((a, b)), self._audio)
        self.bracket = Bracket("context", "speech")
        self.sent = 0

    def _audio(self, start_ms: int, pcm: bytes, rate_hz: int, channels: int) -> None:
        assert channels == 1
        self.pieces.append((start_ms, np.frombuffer(pcm, np.int16)))

    def push(self, *moments: float, ms: int = CHUNK_MS, rate: int = RATE) -> list[bool]:
        """Chunks, each pushed then; every sample of them all is another number."""
        firsts = []
        for moment in moments:
            size = ms * rate // 1000
            pcm = ((np.arange(size) + self.sent) % 30_000 + 1).astype(np.int16)
            self.sent += size
            firsts.append(self.clock.chunk(self.bracket, moment, pcm.tobytes(), rate, 1))
        return firsts

    def end(self) -> list[tuple[int, int]]:
        self.clock.end_run(self.bracket)
        return self.runs

    @property
    def audio(self) -> np.ndarray:
        """What was told of the samples, without silence."""
        every = np.concatenate([np.zeros(0, np.int16), *(pcm for _, pcm in self.pieces)])
        return every[every != 0]


def test_chunks_on_time_are_one_run_of_their_samples() -> None:
    world = World()
    assert world.push(140, 180, 220) == [True, False, False]
    assert world.bracket.started_ms == 100
    assert world.end() == [(100, 220)]
    assert world.bracket.position_ms == 120
    assert [start for start, _ in world.pieces] == [100]
    assert world.audio.size == world.sent


def test_what_is_late_and_catches_up_was_no_silence() -> None:
    world = World()
    world.push(140, 195, 222, 271, 300, 340)
    assert world.end() == [(100, 340)]


def test_what_stays_late_was_a_silence_and_is_written_out() -> None:
    world = World()
    world.push(*(140 + 40 * n for n in range(10)), *(560 + 40 * n for n in range(10)))
    assert world.end() == [(100, 500), (520, 920)]
    (_, first), (at, silence), (second_at, second) = world.pieces
    assert (first.size, at, silence.size) == (400 * RATE // 1000, 500, 20 * RATE // 1000)
    assert not silence.any()
    assert (second_at, second.size) == (520, 400 * RATE // 1000)
    assert world.audio.size == world.sent


def test_the_last_chunks_lateness_shows_nothing() -> None:
    world = World()
    world.push(*(140 + 40 * n for n in range(10)), 560, 600)
    assert world.end() == [(100, 580)]


def test_behind_a_stall_begins_another_run() -> None:
    world = World()
    world.push(140, 180, 220 + STALL_MS + 1)
    assert world.runs == [(100, 180)]
    assert world.end() == [(100, 180), (261, 301)]


def test_a_first_chunk_that_came_late_began_when_the_bot_was_said_to_speak() -> None:
    world = World()
    world.clock.speaks(100)
    world.push(190, 180 + 4, 220)
    assert world.end() == [(100, 220)]


def test_it_began_when_it_was_written_if_that_was_long_ago() -> None:
    world = World()
    world.clock.speaks(100)
    world.push(400, 440)
    assert world.end() == [(360, 440)]


def test_a_transport_that_is_a_chunk_ahead_leaves_no_gap() -> None:
    world = World()
    world.clock.speaks(100)
    world.push(100, 140, 180, 220, 260, 300, 340, 380)  # each is pushed when it begins
    assert world.end() == [(100, 420)]


def test_a_silence_of_a_transport_that_is_a_chunk_ahead_is_found_too() -> None:
    world = World()
    world.clock.speaks(100)
    world.push(*(100 + 40 * n for n in range(10)), *(520 + 40 * n for n in range(10)))
    assert world.end() == [(100, 500), (520, 920)]


def test_another_rate_begins_another_run() -> None:
    world = World()
    world.push(140, 180)
    world.push(220, rate=16_000)
    assert world.end() == [(100, 180), (180, 220)]


def test_an_empty_chunk_is_none() -> None:
    world = World()
    assert world.push(140, ms=0) == [False]
    assert world.bracket.started_ms is None
    assert world.end() == []


def test_a_context_begins_behind_the_one_before() -> None:
    world = World()
    world.push(140, 180)
    world.end()
    world.bracket = Bracket("next", "speech")
    world.push(215)  # it would begin 5 ms before the end of the first
    assert world.end() == [(100, 180), (180, 220)]


def test_a_long_run_is_told_in_pieces_that_fit() -> None:
    world = World()
    world.push(*(140 + 40 * n for n in range(100)))
    assert len(world.pieces) >= 3
    for (start, pcm), (following, _) in zip(world.pieces, world.pieces[1:], strict=False):
        assert start + pcm.size * 1000 // RATE == following
    assert world.end() == [(100, 4100)]
    assert world.audio.size == world.sent


@given(
    st.lists(
        st.tuples(st.floats(0, 200), st.sampled_from([7, 10, 20, 40]), st.booleans()), min_size=1, max_size=80
    )
)
def test_whatever_the_lateness_every_sample_is_told_once_in_order_and_runs_never_overlap(
    chunks: list[tuple[float, int, bool]],
) -> None:
    world, now, expected = World(), 0.0, 0
    for late, ms, speaks in chunks:
        if speaks:
            world.clock.speaks(now)
        now += ms
        world.push(now + late, ms=ms)
        expected += ms
    world.end()
    numbers = (np.arange(world.sent) % 30_000 + 1).astype(np.int16)
    assert np.array_equal(world.audio, numbers)
    assert math.isclose(world.bracket.position_ms, expected)
    assert sum(end - start for start, end in world.runs) == expected
    assert all(a < b for a, b in world.runs)
    assert all(b <= c for (_, b), (c, _) in zip(world.runs, world.runs[1:], strict=False))
