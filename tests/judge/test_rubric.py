# SPDX-License-Identifier: Apache-2.0
"""Rubrics: presets, files of one's own, and everything that makes one wrong."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicetrace.judge.dimensions import DIMENSIONS
from voicetrace.judge.rubric import PRESETS, Curve, RubricError, load


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name):
    rubric = load(name)
    assert rubric.name == name
    assert {d.value for d in DIMENSIONS} <= set(rubric.sections)
    assert len(rubric.sha256) == 64


def test_presets_differ_only_in_timing():
    base, eva = load("default"), load("eva")
    assert base.sha256 != eva.sha256
    changed = {s for s in base.sections if dict(base.sections[s]) != dict(eva.sections[s])}
    assert changed == {"latency_dead_air", "interruption_handling"}


def test_thresholds_are_the_borders_of_severities():
    gap = load("default").curve("latency_dead_air", "gap_s")
    assert [gap(x) for x in (0, 1.2, 2.0, 3.0, 5.0, 10.0, 99)] == [1, 1, 0.75, 0.5, 0.25, 0, 0]
    assert gap.threshold == 2.0
    slow = load("default").curve("pacing", "slow")
    assert slow(3.5) == 1
    assert slow(1.0) == 0
    assert slow.threshold == pytest.approx(2.75)


def test_eva_curve():
    gap = load("eva").curve("latency_dead_air", "gap_s")
    assert [gap(x) for x in (-1, -0.5, 0, 0.5, 2, 2.75, 3.5)] == [0, 0, 0.5, 1, 1, 0.5, 0]
    assert load("tau_voice").curve("latency_dead_air", "gap_s")(2.1) == 0


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=6, unique=True), st.data())
def test_a_curve_is_between_its_points(xs, data):
    x = tuple(sorted(xs))
    y = tuple(data.draw(st.lists(st.floats(0, 1), min_size=len(x), max_size=len(x))))
    curve = Curve(x, y)
    for (a, p), (b, q) in pairwise(zip(x, y, strict=True)):
        value = data.draw(st.floats(a, b))
        assert min(p, q) - 1e-9 <= curve(value) <= max(p, q) + 1e-9
    assert curve(x[0] - 1) == y[0]
    assert curve(x[-1] + 1) == y[-1]


def test_ones_own(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text('extends = "default"\nname = "own"\n[clarity]\nnoise_floor = 0.3\n')
    rubric = load(own)
    assert rubric.number("clarity", "noise_floor") == 0.3
    assert rubric.curve("clarity", "mos_overall") == load("default").curve("clarity", "mos_overall")
    same = tmp_path / "same.toml"
    same.write_text(own.read_text() + "# a comment is no change\n")
    assert load(same).sha256 == rubric.sha256


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name = ", "is no TOML"),
        ('extends = "other"', "extends 'other'"),
        ('extends = "default"\n[clarify]\nx = 1', r"no section \[clarify\]"),
        ('extends = "default"\n[clarity]\nmos_overal = 1', "no mos_overal"),
        ('extends = "default"\n[clarity]\nmos_overall = [1, 2, 3]', "3 values for 5 scores"),
        ('extends = "default"\n[clarity]\nmos_overall = [3, 2, 2, 1, 0]', "does not rise or fall"),
        ('extends = "default"\n[clarity]\nmos_overall = "high"', "neither a number nor a curve"),
        ('extends = "default"\n[clarity]\nmos_overall = {x = [1, 2], y = [0, 2]}', "outside of 0 to 1"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, says):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(RubricError, match=says):
        load(path)


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(RubricError, match="there is no rubric"):
        load(tmp_path / "none.toml")
    with pytest.raises(RubricError, match=r"has no \[pacing\] none"):
        load("default").number("pacing", "none")
    with pytest.raises(RubricError, match="is no curve"):
        load("default").curve("pacing", "min_turns")
    with pytest.raises(RubricError, match="is no number"):
        load("default").number("pacing", "fast")
