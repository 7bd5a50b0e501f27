# SPDX-License-Identifier: Apache-2.0
"""Read-back by contradiction: one form for what is the same, and only what differs is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicetrace.judge.readback import (
    canonical,
    character_errors,
    contradictions,
    count_values,
    misses_end,
    shared,
)


def form(text):
    return " ".join(t.form for t in canonical(text))


@pytest.mark.parametrize(
    ("text", "one"),
    [
        ("two hundred fifty", "250"), ("two hundred and five", "205"), ("one thousand two hundred", "1200"),
        ("twenty five", "25"), ("nineteen ninety nine", "19 99"), ("fifteenth", "15"),
        ("twenty-first", "20 first"),
        ("1,200", "1200"), ("double five", "55"), ("2:15 p.m.", "2 15 pm"), ("two fifteen PM", "2 15 pm"),
        ("Doctor Patel", "dr patel"), ("500 mg", "500 milligrams"), ("oh five", "0 5"), ("oh no", "oh no"),
    ],
)  # fmt: skip
def test_one_form(text, one):
    assert form(text) == one


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ("at two fifteen p.m.", "at 2.15 pm."),
        ("the total is fifteen dollars and forty cents", "The total is $15.40."),
        ("on March fifteenth", "on March 15th"),
        ("ending in two zero eight five", "ending in 2085"),
        ("from seven to ten thirty", "from 7 to 1030"),
        ("room two oh five", "room 205"),
        ("take metformin twice", "take met foreman twice"),  # misspelled, and no other drug
        ("one hundred sixty dollars", "$160"),
        ("call nine one one now please", "call 911 now, please"),
    ],
)
def test_the_same_value_is_no_contradiction(said, heard):
    assert contradictions(said, heard) == []


@pytest.mark.parametrize(
    ("said", "heard", "values"),
    [
        ("the fee is fifteen dollars today", "the fee is $50 today", ("15", "50")),
        ("it is on Monday at noon", "it is on Tuesday at noon", ("monday", "tuesday")),
        ("on June third", "on July 3rd", ("june", "july")),
        ("please take metformin daily", "please take metoprolol daily", ("metformin", "metoprolol")),
        ("code five five one nine", "code 5591", ("5519", "5591")),
        ("at two thirty in the afternoon", "at 2.13 in the afternoon", ("30", "13")),
    ],
)
def test_another_value_is_one(said, heard, values):
    [found] = contradictions(said, heard)
    assert (found.said, found.heard) == values
    assert said[slice(*found.said_at)]
    assert heard[slice(*found.heard_at)]


def test_two_hearings_must_both_have_another_value():
    said = "your room is sixteen and you leave on Monday"
    first = "your room is 69 and you leave on Sunday"
    found = contradictions(said, first)
    assert [f.said for f in found] == ["16", "monday"]
    assert shared(found, said, "your room is 16 and you leave on Sunday") == found[1:]
    assert shared(found, said, "your room is 60 and you leave on Monday") == found[:1]
    assert shared(found, said, said) == []


def test_values_are_counted():
    assert (
        count_values("on Monday, March fifteenth at two thirty, take five hundred milligrams of metformin")
        == 6
    )
    assert count_values("How can I help you today?") == 0


@given(st.text(alphabet="abc onetwfifty 0123", max_size=40))
def test_a_text_does_not_contradict_itself(text):
    assert contradictions(text, text) == []
    assert character_errors(text, text) == 0
    assert not misses_end(text, text)


@given(st.text(alphabet="ab cd", min_size=1, max_size=30), st.text(alphabet="ab cd", max_size=30))
def test_errors_are_a_share(said, heard):
    assert 0 <= character_errors(said, heard) <= 1


def test_character_errors():
    assert character_errors("at two fifteen", "at 2 15") == 0
    assert character_errors("abcd", "abxd") == 0.25
    assert character_errors("hello there", "") == 1.0


def test_a_missing_end():
    said = "I have moved your visit to the next week in the morning"
    assert misses_end(said, "I have moved your visit to the next")
    assert not misses_end(said, "I have moved your visit to the next week in the mourning")
    assert not misses_end(said, said)
    assert not misses_end(said, "")
    assert not misses_end(said, "something else was heard here entirely")
