# SPDX-License-Identifier: Apache-2.0
"""From findings to a score: the soft minimum, the caps, and what is shown as evidence."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from jfeatures import RUBRIC

from voicetrace.judge.result import Severity
from voicetrace.judge.score import MOST_EVIDENCE, Finding, combine, spot

scores = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def finding(score, cap=None, at=0, why="bad"):
    return Finding(score, spot("m", at, at + 10, "metric", score, 0.5), why, cap)


def test_mostly_the_worst_and_a_little_of_all():
    assert combine([finding(1.0), finding(0.5)], RUBRIC).score == round(0.7 * 0.5 + 0.3 * 0.75, 3)
    assert combine([finding(1.0)], RUBRIC).score == 1.0


def test_a_cap_bounds_the_dimension():
    judged = combine([finding(1.0)] * 9 + [finding(0.9, cap=0.49)], RUBRIC)
    assert judged.score == 0.49
    assert judged.severity is Severity.FLAG
    assert judged.evidence[0].value == 0.9


@given(scores, st.floats(0, 1))
def test_a_repeated_defect_never_raises_the_score(values, worse):
    before = combine([finding(v) for v in values], RUBRIC).score
    after = combine([finding(v) for v in [*values, min(worse, *values)]], RUBRIC).score
    assert after <= before + 0.001


@given(scores, st.floats(-0.02, 0.02))
def test_a_little_jitter_moves_it_a_little(values, step):
    before = combine([finding(v) for v in values], RUBRIC).score
    after = combine([finding(v + step) for v in values], RUBRIC).score
    assert abs(after - before) <= abs(step) + 0.0011


def test_evidence_is_the_worst_first_and_bounded():
    many = combine([finding(0.5 - i / 100, at=i) for i in range(30)], RUBRIC)
    assert len(many.evidence) == MOST_EVIDENCE
    assert many.evidence[0].start_ms == 29
    assert many.reason == "bad (and 29 more)"
    fine = combine([finding(0.9), finding(0.8)], RUBRIC, fine="all good")
    assert len(fine.evidence) == 1
    assert fine.reason == "all good"
