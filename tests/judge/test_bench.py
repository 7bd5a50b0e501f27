# SPDX-License-Identifier: Apache-2.0
"""The benchmark itself: its calls are what they say, and its numbers count what they should."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy", reason="needs voicetrace[judge]")
sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.judge_bench import defects, generate, report, run, scripts, voices
from benchmarks.judge_bench.voices import RATE

from voicetrace.audio import clip_message
from voicetrace.judge.features import timing
from voicetrace.judge.result import Dimension
from voicetrace.judge.rubric import load
from voicetrace.messages import writer_problems


def speech(seconds, seed=1):
    """Something with the shape of speech, quiet at both ends as a synthesiser's is."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(seconds * RATE)) / RATE
    wave = 0.1 * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * t)) * rng.standard_normal(t.size)
    wave[: RATE // 10] = wave[-RATE // 10 :] = 0
    return wave.astype(np.float32)


class Talker(voices.Voice):
    """A voice that needs nothing installed: as long as its text."""

    female = False

    def __init__(self, name):
        self.name = name

    def make(self, text, speed=1.0):
        return speech(0.28 * len(text.split()) / speed + 0.4, seed=len(text))


NAMES = ("joe", "hibari", "flite-rms", "flite-slt", "flite-awb")


@pytest.fixture
def scene(monkeypatch, tmp_path):
    voices.catalogue.cache_clear()
    monkeypatch.setattr(voices, "catalogue", lambda: {n: Talker(n) for n in NAMES})
    return lambda seed=500: generate.scene(
        scripts.TEST[0], "joe", "flite-rms", seed, tmp_path / "cache", "call"
    )


def ends(call):
    return {m.id: (m.start_ms, m.end_ms) for m in call.messages}


def test_a_clean_call_is_as_a_capture_would_leave_it(scene, tmp_path):
    call = generate.render(scene(), tmp_path / "a")
    assert [writer_problems(m) for m in call.messages] == [[]] * len(call.messages)
    assert [m.role for m in call.messages] == ["assistant", "user"] * 5 + ["assistant"]
    for message in call.messages:
        clip = clip_message(call, message)
        assert np.abs(clip.samples).max() > 1000  # the message's own audio, where the trace says
    again = generate.render(scene(), tmp_path / "b")
    assert ends(again) == ends(call)
    assert (tmp_path / "a" / "call.flac").read_bytes() == (tmp_path / "b" / "call.flac").read_bytes()


def test_values_are_said_right_and_known_wrong():
    for script in (*scripts.CALIBRATION, *scripts.TEST):
        agent = [t for role, t in script if role == "agent"]
        assert sum(bool(generate.VALUE.search(t)) for t in agent) >= 3
        assert len(agent) == 6
    texts = [{t for script in s for _, t in script} for s in (scripts.CALIBRATION, scripts.TEST)]
    assert not texts[0] & texts[1]  # the sets are apart, by script and by voice
    assert not set(run.SETS["test"]["agents"]) & set(run.SETS["calibration"]["agents"])


def gap_after_user(call):
    turns = timing.turns_of(call.messages, call.recording, None, None)
    return [e.gap_ms for e in timing.exchanges_of(turns, call.duration_ms)]


def test_latency_is_planted_as_long_as_it_says(scene, tmp_path):
    family = next(f for f in defects.FAMILIES if f.name == "latency")
    for gap, count in family.levels:
        call = generate.render(defects.latency(scene(), (gap, count), None), tmp_path / "c")
        long = [g for g in gap_after_user(call) if g > 2500]
        assert len(long) == count
        assert all(abs(g - gap * 1000) < 150 for g in long)


def test_interruptions_are_what_they_say(scene, tmp_path):
    call = generate.render(defects.slow_yield(scene(), 1.8, tmp_path / "cache"), tmp_path / "c")
    turns = timing.turns_of(call.messages, call.recording, None, None)
    [found] = [o for o in timing.overlaps_of(turns, None) if o.kind == "barge_in"]
    assert found.value_ms == pytest.approx(1800, abs=60)
    calm = generate.render(defects.backchannel(scene(), 0, tmp_path / "cache"), tmp_path / "d")
    turns = timing.turns_of(calm.messages, calm.recording, None, None)
    assert [(o.kind, o.value_ms) for o in timing.overlaps_of(turns, None)] == [("backchannel", -1)]
    over = generate.render(defects.talk_over(scene(), 0.8, None), tmp_path / "e")
    turns = timing.turns_of(over.messages, over.recording, None, None)
    [found] = [o for o in timing.overlaps_of(turns, None) if o.kind == "talk_over"]
    assert 700 < found.value_ms < 1050


def test_false_triggers_are_as_many_as_they_say_wherever_they_fall(scene, tmp_path):
    for seed in range(500, 505):
        for count in (1, 2, 3):
            call = generate.render(defects.false_trigger(scene(seed), count, None), tmp_path / "c")
            turns = timing.turns_of(call.messages, call.recording, None, None)
            assert [o.kind for o in timing.overlaps_of(turns, None)] == ["false_trigger"] * count


CHANGED = ("noise", "garble", "volume", "cutoff", "dropouts", "clipping", "fast", "slow")


@pytest.mark.parametrize("name", CHANGED)
def test_more_of_a_defect_changes_more(scene, tmp_path, name):
    family = next(f for f in defects.FAMILIES if f.name == name)
    clean = generate.render(scene(), tmp_path / "clean")
    far = []
    for level in family.levels:
        call = generate.render(family.plant(scene(), level, tmp_path / "cache"), tmp_path / "planted")
        pairs = [
            (clip_message(clean, a).samples, clip_message(call, b).samples)
            for a, b in zip(clean.messages, call.messages, strict=True)
            if a.role == "assistant"
        ]
        far.append(
            sum(
                np.abs(a.astype(float)[: b.size] - b.astype(float)[: a.size]).mean() + abs(a.size - b.size)
                for a, b in pairs
            )
        )
    assert far[0] > 0
    assert far == sorted(far)


def test_stretching_keeps_the_pitch_and_shifting_the_length():
    tone = np.sin(2 * np.pi * 200 * np.arange(2 * RATE) / RATE).astype(np.float32)

    def hertz(x):
        return np.abs(np.fft.rfft(x * np.hanning(x.size))).argmax() * RATE / x.size

    for speed in (0.5, 1.5):
        out = voices.stretched(tone, speed)
        assert out.size == pytest.approx(tone.size / speed, rel=0.05)
        assert hertz(out) == pytest.approx(200, abs=3)
    up = voices.shifted(tone, 4)
    assert up.size == pytest.approx(tone.size, rel=0.06)
    assert hertz(up) == pytest.approx(200 * 2 ** (4 / 12), abs=4)


def test_noise_has_the_ratio_it_says(scene):
    the = defects.noise(scene(), 8, None)
    samples = speech(3.0)
    noisy = the.agent_filters[0](samples, np.random.default_rng(0))
    ratio = 10 * np.log10(defects._active(samples) / np.mean((noisy - samples) ** 2))
    assert ratio == pytest.approx(8, abs=0.3)


# -- the report ------------------------------------------------------------------------------------------
def test_the_report_counts_what_was_found(scene, tmp_path):
    items = [i for i in run.plan("test", 2, 2) if i.family in ("clean", "latency", "empty", "good_barge_in")]
    items = [i for i in items if i.agent in ("joe", "hibari")]

    class Nothing(run.Providers):
        def __init__(self, *_):
            super().__init__(enabled=frozenset())

    original = run.Remembering
    run.Remembering = Nothing
    try:
        run.measure(items, tmp_path / "out", tmp_path)
    finally:
        run.Remembering = original
    numbers = report.numbers_of("test", items, tmp_path / "out", load())
    assert numbers.calls == len(items)
    assert numbers.found(0)["latency"] == (1, 1)
    assert numbers.monotone() == (2, 2)
    assert not numbers.false_alarms
    assert numbers.no_speech == {"empty": []}
    page = report.markdown(numbers, [("speed", "<= 1", "0.5")])
    assert "| latency | latency_dead_air |" in page
    assert "| speed | <= 1 | 0.5 |" in page


def test_the_plan_is_the_same_each_time_and_covers_all():
    items = run.plan("test", 5, 30)
    assert items == run.plan("test", 5, 30)
    assert len({i.name for i in items}) == len(items)
    found = {d for f in defects.FAMILIES for d in f.dimensions}
    assert found == {d.value for d in Dimension}
    assert {i.agent for i in items if i.family == "noise"} == set(run.SETS["test"]["agents"])
    assert any(i.telephone for i in items)
