# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from audio_support import frames, tone
from voicetrace.audio.placement import AHEAD_MS, GAP_MS, HOLD_AUDIO_MS, CallerPlacer, Placed

RATE = 8000


class Line:
    """Where placed samples lie: runs of (start, samples), as the writer would put them down."""

    def __init__(self) -> None:
        self.placer = CallerPlacer()
        self.runs: list[tuple[float, list[np.ndarray]]] = []
        self.end = 0.0

    def add(self, arrived: float, pcm: np.ndarray, rate: int = RATE) -> None:
        self.take(self.placer.add(arrived, pcm, rate))

    def take(self, placed: list[Placed]) -> None:
        for piece in placed:
            if piece.start_ms is not None:
                self.runs.append((piece.start_ms, []))
                self.end = piece.start_ms
            self.end += piece.pcm.size * 1000 / RATE
            self.runs[-1][1].append(piece.pcm)

    def finish(self) -> list[tuple[float, float, np.ndarray]]:
        self.take(self.placer.settle(ended=True))
        out = []
        for start, parts in self.runs:
            pcm = np.concatenate(parts)
            out.append((start, start + pcm.size * 1000 / RATE, pcm))
        return out


def play(**options: object) -> list[tuple[float, float, np.ndarray]]:
    line = Line()
    for arrived, pcm in frames(rate=RATE, **options):  # type: ignore[arg-type]
        line.add(arrived, pcm)
    return line.finish()


def sent(length_ms: int, frame_ms: int = 20) -> np.ndarray:
    return np.concatenate([pcm for _, pcm in frames(rate=RATE, length_ms=length_ms, frame_ms=frame_ms)])


def test_punctual_frames_make_one_run_of_untouched_samples() -> None:
    ((start, end, pcm),) = play(length_ms=10_000)
    assert (start, end) == (0, 10_000)
    np.testing.assert_array_equal(pcm, sent(10_000))


@pytest.mark.parametrize("frame_ms", [10, 20, 30, 50])
def test_jitter_neither_moves_nor_changes_a_sample(frame_ms: int) -> None:
    ((start, _, pcm),) = play(length_ms=30_000, jitter_ms=8, frame_ms=frame_ms)
    assert 0 <= start < 5
    np.testing.assert_array_equal(pcm, sent(30_000, frame_ms)[: pcm.size])


def test_vt_42_a_stall_and_its_burst_are_counted_once() -> None:
    ((start, end, pcm),) = play(length_ms=20_000, stalls=((5_000, 6_500), (9_000, 12_000)))
    assert (start, end) == (0, 20_000)
    np.testing.assert_array_equal(pcm, sent(20_000))


def test_vt_42_many_stalls_never_run_ahead_of_the_clock() -> None:
    stalls = tuple((s, s + 1500.0) for s in range(3_000, 110_000, 5_000))
    ((start, end, _),) = play(length_ms=120_000, stalls=stalls)
    assert start == 0
    assert end == pytest.approx(120_000, abs=1)


def test_a_loss_is_a_gap_of_its_own_length() -> None:
    (_, end, _), (start, last, pcm) = play(length_ms=20_000, losses=((5_000, 6_500),))
    assert (end, start, last) == pytest.approx((4_980, 6_480, 20_000), abs=0.2)
    np.testing.assert_array_equal(pcm, sent(20_000)[-pcm.size :])


def test_a_stall_that_loses_half_of_its_frames_leaves_half_a_gap() -> None:
    runs = play(length_ms=20_000, stalls=((5_000, 6_500),), losses=((5_000, 5_800),))
    assert [end - start for start, end, _ in runs] == pytest.approx([4_980, 14_220], abs=0.2)
    assert runs[1][0] - runs[0][1] == pytest.approx(800, abs=1)


def test_a_slow_burst_is_waited_for_while_its_delay_shrinks() -> None:
    """Twice real time: a stall of 3 s takes 3 s to make up."""
    line = Line()
    for k in range(1000):
        due = (k + 1) * 20.0
        line.add(due if due <= 5_000 else max(due, 8_000 + (due - 5_000) / 2), tone(160, k))
    ((start, end, _),) = line.finish()
    assert (start, end) == (0, 20_000)


def test_a_muted_hour_is_one_gap() -> None:
    runs = play(length_ms=3_700_000, losses=((20_000, 3_620_000),), frame_ms=50)
    assert len(runs) == 2
    assert runs[1][0] - runs[0][1] == pytest.approx(3_600_000, abs=1)


def test_a_burst_later_than_we_wait_is_cut_and_counted_not_placed_in_the_future() -> None:
    line = Line()
    for k in range(250):
        line.add((k + 1) * 20.0, tone(160, k))
    for k in range(250, 300):  # 2 s late and steady for a second: taken for a loss
        line.add((k + 1) * 20.0 + 2_000, tone(160, k))
    for k in range(300, 400):  # and then it is made up after all
        line.add(max(8_000.0, (k + 1) * 20.0), tone(160, k))
    runs = line.finish()
    assert runs[-1][1] == pytest.approx(8_000, abs=AHEAD_MS)
    assert line.placer.cut_ms == pytest.approx(2_000, abs=2 * AHEAD_MS)


@pytest.mark.parametrize("ppm", [-200, -50, 50, 200])
def test_vt_47_a_drifting_clock_stays_within_ten_ms(ppm: int) -> None:
    line = Line()
    worst = 0.0
    for arrived, pcm in frames(rate=RATE, length_ms=400_000, ppm=ppm, jitter_ms=3, frame_ms=50):
        line.add(arrived, pcm)
        if line.runs and not line.placer._held:
            heard = line.placer._seen_ms / (1 + ppm / 1e6)
            worst = max(worst, abs(line.end - heard))
    runs = line.finish()
    assert len(runs) == 1
    assert worst < 10
    assert runs[0][1] == pytest.approx(400_000, abs=60)


def test_drift_correction_keeps_the_sound() -> None:
    ramp = np.arange(0, 32_000, 40, dtype=np.int16)
    line = Line()
    for k in range(3_000):
        line.add((k + 1) * 100 * 1.0002, ramp)
    ((_, _, pcm),) = line.finish()
    changed = pcm.size - 3_000 * ramp.size
    assert changed == pytest.approx(3_000 * 800 * 0.0002, rel=0.2)
    steps = np.diff(pcm.astype(int))
    assert set(np.unique(steps[steps > 0])) <= set(range(39, 42))


def test_vt_44_the_source_may_reuse_its_buffer() -> None:
    buffer = np.zeros(160, np.int16)
    line = Line()
    wanted = []
    for k in range(100):
        buffer[:] = tone(160, k)
        wanted.append(buffer.copy())
        placed = line.placer.add((k + 1) * 20.0, buffer, RATE)
        line.take([Placed(p.pcm.copy(), p.rate_hz, p.start_ms) for p in placed])
        np.testing.assert_array_equal(buffer, wanted[-1])
    np.testing.assert_array_equal(line.finish()[0][2], np.concatenate(wanted))


def test_held_audio_is_bounded_however_long_a_burst() -> None:
    line = Line()
    line.add(20, tone(160))
    line.take(line.placer.advance(1_000))
    most = 0.0
    for k in range(10_000):  # 200 s at once, all of it late
        line.add(400_000 + k * 0.001, tone(160))
        most = max(most, line.placer._seen_ms - line.placer._placed_ms)
    assert most <= HOLD_AUDIO_MS


def test_advance_gives_what_waits_after_half_a_second() -> None:
    line = Line()
    line.add(100, tone(160))
    assert line.placer.advance(400) == []
    (placed,) = line.placer.advance(600)
    assert placed.start_ms == 80
    assert line.placer.advance(5_000) == []


network = st.lists(
    st.tuples(
        st.sampled_from([80, 160, 400]),  # samples
        st.floats(0, 60) | st.sampled_from([0.0, 700.0, 1_500.0, 20_000.0]),  # delay
        st.booleans(),  # lost
        st.booleans(),  # advance after it
    ),
    max_size=400,
)


@settings(max_examples=150, deadline=None)
@example([(80, 700.0, False, True), (80, 0.0, False, False), (80, 700.0, False, False)])
@given(network)
def test_whatever_the_network_does(plan: list[tuple[int, float, bool, bool]]) -> None:
    """Nothing overlaps, nothing moves back, nothing lies in the future, nothing is counted twice."""
    line = Line()
    spoken = arrived = end = 0.0
    given_samples = 0

    def check(placed: list[Placed], now: float) -> None:
        nonlocal end, given_samples
        for piece in placed:
            if piece.start_ms is not None:
                assert piece.start_ms >= end - 0.001
                end = piece.start_ms
            end += piece.pcm.size * 1000 / RATE
            given_samples += piece.pcm.size
        assert not placed or end <= now + AHEAD_MS + 0.001

    taken = 0
    for samples, delay, lost, idle in plan:
        spoken += samples * 1000 / RATE
        if lost:
            continue
        arrived = max(arrived, spoken + delay)
        taken += samples
        check(line.placer.add(arrived, tone(samples), RATE), arrived)
        if idle:
            check(line.placer.advance(arrived + 600), arrived + 600)
    check(line.placer.settle(ended=True), arrived)
    cut = line.placer.cut_ms * RATE / 1000
    assert given_samples + cut == pytest.approx(taken, rel=1 / 200, abs=1)
    assert GAP_MS > AHEAD_MS
