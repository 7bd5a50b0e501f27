# SPDX-License-Identifier: Apache-2.0
"""The writer's rules and the forward-only rule, each with a record that breaks it."""

from __future__ import annotations

import itertools

import pytest
from pydantic import ValidationError

from voicetrace.messages import (
    Channel,
    Recording,
    Role,
    Segment,
    Selection,
    State,
    TextStatus,
    VoiceMessage,
    is_span_id,
    regressions,
    writer_problems,
)

SELECTION = Selection(segment_id="s", channel=Channel.AGENT, start_ms=5, end_ms=9)


def agent(**fields):
    base = {
        "id": "a",
        "role": "assistant",
        "seq": 0,
        "committed": True,
        "state": "complete",
        "text_status": "final",
        "text": "Hi",
    }
    return VoiceMessage(**(base | fields))


def user(**fields):
    return agent(**({"role": "user"} | fields))


MISSING = {"text": None, "text_status": "missing"}
UNPLAYED = {"state": "unplayed", "text_source": "tts_input"}


@pytest.mark.parametrize(
    "good",
    [
        agent(),
        user(),
        agent(state="open", **MISSING),
        user(state="open", text_status="partial"),
        agent(**UNPLAYED),
        agent(**UNPLAYED | {"text_status": "not_captured", "text": None}),
        agent(state="interrupted", interrupted_at_ms=0),
        agent(**MISSING, generated_text="x", text_source="playout_aligned"),
        user(start_ms=3, end_ms=3, end_of_turn_ms=1),
    ],
)
def test_records_that_keep_the_rules(good):
    assert writer_problems(good) == []


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (user(generated_text="x"), "user message has generated_text"),
        (user(interrupted_at_ms=1), "user message has interrupted_at_ms"),
        (user(provider_audio_end_ms=1), "user message has provider_audio_end_ms"),
        (user(produced_by_span_id="0" * 15 + "1"), "user message has produced_by_span_id"),
        (agent(end_of_turn_ms=1), "assistant message has end_of_turn_ms"),
        (agent(transcript_final_ms=0), "assistant message has transcript_final_ms"),
        (user(text_source="tts_input"), "user message has text_source tts_input"),
        (agent(text_source="stt"), "assistant message has text_source stt"),
        (user(state="interrupted"), "user message is interrupted"),
        (user(state="unplayed"), "user message is unplayed"),
        (agent(state="interrupted"), "interrupted without interrupted_at_ms"),
        (agent(start_ms=5, end_ms=4), "end_ms 4 is before start_ms 5"),
        (agent(selections=[SELECTION.model_copy(update={"end_ms": 1})]), "selection ends"),
        (agent(state="open"), "open assistant message has text"),
        (agent(text_status="partial"), "assistant message has text_status partial"),
        (agent(**UNPLAYED, selections=[SELECTION]), "unplayed message has played audio"),
        (agent(**UNPLAYED, start_ms=1), "unplayed message has played audio"),
        (agent(**UNPLAYED | MISSING), "unplayed message has no generated text"),
        (
            agent(**UNPLAYED | {"text_source": "playout_aligned"}),
            "unplayed message has text_source playout_aligned",
        ),
        (agent(text=None), "text is absent with text_status final"),
        (user(text_status="missing"), "text is present with text_status missing"),
        (agent(text=None, text_status="not_captured", generated_text="x"), "generated_text is present"),
    ],
)
def test_records_that_break_a_rule(bad, problem):
    assert any(problem in p for p in writer_problems(bad))


def test_a_state_moves_from_open_to_one_terminal_state_for_good():
    for before, after in itertools.product(State, State):
        moves = regressions(agent(state=before), agent(state=after))
        assert bool(moves) == (before is not after and before is not State.OPEN)


def test_a_text_status_moves_forward_only():
    allowed = {("partial", "final"), ("partial", "missing"), ("missing", "final")}
    for before, after in itertools.product(TextStatus, TextStatus):
        moves = regressions(user(text_status=before), user(text_status=after))
        assert bool(moves) == (before is not after and (before, after) not in allowed)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (user(), agent()),
        (user(), user(seq=1)),
        (user(), user(committed=False)),
        (user(), user(text="other")),
        (user(start_ms=1), user()),
        (user(end_of_turn_ms=1), user()),
        (agent(interrupted_at_ms=1), agent()),
        (agent(produced_by_span_id="0" * 15 + "1"), agent()),
    ],
)
def test_what_moves_backwards_is_named(before, after):
    assert len(regressions(before, after)) == 1


def test_a_record_may_take_its_items_id():
    assert regressions(user(committed=False, id="vad_0"), user(id="item")) == []


def test_on_the_wire_unknown_fields_are_absent_and_selections_are_not():
    assert user().to_wire() == {
        "role": "user",
        "seq": 0,
        "committed": True,
        "state": "complete",
        "text_status": "final",
        "text": "Hi",
        "selections": [],
    }


def test_an_unfinished_recording_has_no_digest_on_the_wire():
    recording = Recording(
        recording_id="r",
        uri="r.wav",
        format="wav",
        sample_rate_hz=8000,
        channels=list(Channel),
        origin_unix_ms=0,
        segments={"s": Segment(start_ms=0, length_ms=5)},
    )
    wire = recording.to_wire()
    assert "sha256" not in wire
    assert "duration_ms" not in wire
    assert wire["channels"] == ["caller", "agent"]


@pytest.mark.parametrize(
    "wrong", [{"seq": -1}, {"role": "system"}, {"produced_by_span_id": "XYZ"}, {"note": 1}]
)
def test_a_record_of_another_shape_is_refused(wrong):
    with pytest.raises(ValidationError):
        agent(**wrong)


@pytest.mark.parametrize(
    ("value", "is_one"),
    [
        ("00000000000000ab", True),
        ("0" * 16, False),
        ("00000000000000AB", False),
        ("00000000000000ab\n", False),
        ("ab", False),
        (7, False),
    ],
)
def test_a_span_id_is_16_lower_case_hex_digits_and_not_all_zero(value, is_one):
    assert is_span_id(value) is is_one


def test_roles_and_channels_are_two():
    assert [r.value for r in Role] == ["user", "assistant"]
    assert [c.value for c in Channel] == ["caller", "agent"]
