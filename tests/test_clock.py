# SPDX-License-Identifier: Apache-2.0
"""A call's clock: nobody sets it."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import voicetrace
from voicetrace import events as ev
from voicetrace import live
from voicetrace.clock import CallClock
from voicetrace.live import LiveCall
from voicetrace.messages import TimingSource
from voicetrace.settings import Settings
from voicetrace.writer import Writer


class Machine:
    """A machine's two clocks; `wall_s` is set, `steady_s` only goes on."""

    def __init__(self, wall_s: float = 1_700_000_000.0) -> None:
        self.wall_s, self.steady_s = wall_s, 50.0
        self.wait_s = 0.0

    def wall(self) -> float:
        self.steady_s += self.wait_s
        return self.wall_s

    def steady(self) -> float:
        return self.steady_s

    def sleep(self, seconds: float) -> None:
        self.wall_s += seconds
        self.steady_s += seconds


@pytest.mark.parametrize("by", [3600.0, -3600.0, 0.5, -0.5, 1.7e9])
def test_a_clock_that_is_set_changes_no_time(by):
    machine, told = Machine(), []
    clock = CallClock(machine.wall, machine.steady, told.append)
    machine.sleep(10)
    before = machine.wall_s
    machine.sleep(0.2)
    machine.wall_s += by
    machine.sleep(0.1)
    assert clock.now() == pytest.approx(clock.origin + 10.3)
    assert clock.true(machine.wall_s) == pytest.approx(clock.origin + 10.3)
    assert clock.true(before) == pytest.approx(clock.origin + 10)  # told now, read before
    assert told == [pytest.approx(by)]


def test_a_clock_that_is_set_and_set_back():
    machine, told = Machine(), []
    clock = CallClock(machine.wall, machine.steady, told.append)
    for by in (7200.0, -7200.0):
        machine.wall_s += by
        machine.sleep(5)
        assert clock.true(machine.wall_s) == pytest.approx(clock.now())
    assert clock.now() == pytest.approx(clock.origin + 10)
    assert told == [pytest.approx(7200), pytest.approx(-7200)]


def test_a_thread_that_had_to_wait_between_two_readings_sees_no_step():
    machine, told = Machine(), []
    clock = CallClock(machine.wall, machine.steady, told.append)
    machine.wait_s = 3.0
    assert clock.now() == machine.wall_s
    assert told == []


def test_a_clock_that_only_drifts_is_left_as_it_is():
    machine, told = Machine(), []
    clock = CallClock(machine.wall, machine.steady, told.append)
    machine.sleep(100)
    machine.wall_s += 0.2
    assert clock.now() == clock.true(machine.wall_s) == machine.wall_s
    assert told == []


def test_without_a_steady_clock_the_wall_clock_is_believed():
    machine = Machine()
    clock = CallClock(machine.wall, None)
    machine.wall_s += 3600
    assert clock.now() == clock.true(machine.wall_s) == machine.wall_s


def test_a_step_that_several_threads_see_at_once_is_told_once():
    machine, told, gate = Machine(), [], threading.Barrier(4)
    clock = CallClock(machine.wall, machine.steady, told.append)
    machine.wall_s += 100

    def look():
        gate.wait()
        for _ in range(100):
            clock.now()

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == [100]


@pytest.mark.parametrize("by", [3600.0, -3600.0, 1.7e9])
def test_a_call_during_which_the_clock_is_set_is_recorded_to_its_end(tmp_path, monkeypatch, by):
    machine, writer = Machine(), Writer()
    wall = machine.wall
    monkeypatch.setattr(live, "_WALL_CLOCK", wall)
    monkeypatch.setattr(live, "_STEADY_CLOCK", machine.steady)
    settings = Settings(directory=tmp_path, audio="both")
    call = LiveCall(settings=settings, framework="test", clock=wall, writer=writer, strict=True)
    call.files.start_recording(8000)
    for turn in range(4):
        call.emit(
            ev.UserSpeechStarted(
                at_ms=call.now_ms(), start_ms=call.ms(machine.wall_s), source=TimingSource.LOCAL_VAD
            )
        )
        for frame in range(50):
            if (turn, frame) == (1, 25):
                machine.wall_s += by
            machine.sleep(0.02)
            call.files.caller_audio(call.precise_ms(), np.full(160, 9, np.int16).tobytes(), 8000, 1)
        call.emit(
            ev.UserSpeechStopped(
                at_ms=call.now_ms(), end_ms=call.ms(machine.wall_s), source=TimingSource.LOCAL_VAD
            )
        )
        machine.sleep(4)
        call.emit(ev.TimePassed(at_ms=call.now_ms()))
    call.close("done")
    assert writer.drain(30)
    (read,) = voicetrace.read_calls(tmp_path)
    assert [(m.start_ms, m.end_ms) for m in read.messages] == [(n * 5000, n * 5000 + 1000) for n in range(4)]
    assert [round((read.clip(m).samples == 9).mean(), 2) for m in read.messages] == [1.0] * 4
    assert read.recording is not None
    assert read.recording.duration_ms == 20_000
    assert [w for w in read.warnings if "clock" in w] == [
        f"the system's clock was set by {by:+.1f} s; the call's times go on as if it was not"
    ]
