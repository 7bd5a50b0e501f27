# SPDX-License-Identifier: Apache-2.0
"""Events as the journal stores them."""

from __future__ import annotations

import dataclasses
import json

import pytest
from pydantic import TypeAdapter

from strategies import start
from voicetrace import events as ev
from voicetrace.call import CallRecorder


def test_every_event_has_a_handler_in_the_fold():
    assert CallRecorder()._handlers.keys() == set(ev.EVENTS.values())


def test_defaults_are_not_stored():
    assert ev.to_dict(ev.TimePassed(at_ms=3)) == {"event": "TimePassed", "at_ms": 3}
    assert "uncommitted_timeout_ms" not in ev.to_dict(start())
    assert ev.to_dict(start(uncommitted_timeout_ms=5))["uncommitted_timeout_ms"] == 5


def test_no_text_and_text_that_was_not_captured_stay_apart():
    for text in ("", None):
        event = ev.SpeechText(at_ms=1, speech_id="s", text=text, source="tts_input")
        assert ev.from_dict(json.loads(json.dumps(ev.to_dict(event)))).text == text


@pytest.mark.parametrize(
    ("stored", "sentence"),
    [
        ({}, "unknown event None"),
        ({"event": "Nothing"}, "unknown event 'Nothing'"),
        ({"event": 3}, "unknown event 3"),
        ({"event": "Event", "at_ms": 1}, "unknown event 'Event'"),
        ({"event": "TimePassed"}, "TimePassed.at_ms: Field required"),
        ({"event": "TimePassed", "at_ms": "3"}, "TimePassed.at_ms"),
        ({"event": "TimePassed", "at_ms": 3.5}, "TimePassed.at_ms"),
        ({"event": "TimePassed", "at_ms": True}, "TimePassed.at_ms"),
        ({"event": "TimePassed", "at_ms": 3, "x": 1}, r"TimePassed has unknown fields \['x'\]"),
        ({"event": "SpeechCreated", "at_ms": 1, "speech_id": "s", "origin": "other"}, "SpeechCreated.origin"),
        ({"event": "ResponseStarted", "at_ms": 1, "item_ids": "ab"}, "ResponseStarted.item_ids"),
    ],
)
def test_what_is_no_event_is_said_in_one_sentence(stored, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        ev.from_dict(stored)
    assert "\n" not in str(caught.value)


def test_reading_does_not_change_what_was_read():
    stored = {"event": "TimePassed", "at_ms": 3}
    ev.from_dict(stored)
    assert stored == {"event": "TimePassed", "at_ms": 3}


def test_events_are_valid_unicode_live_and_read_back():
    live = ev.LLMStepStarted(
        at_ms=1, span_id="s", trace_id="t", name="a\ud800b", context_ids=("\udfff", None, "\ud83d\ude00")
    )
    assert (live.name, live.context_ids) == ("a\ufffdb", ("\ufffd", None, "\U0001f600"))
    assert ev.from_dict(ev.to_dict(live) | {"name": "a\ud800b"}) == live
    text = ev.SpeechText(at_ms=1, speech_id="s", text="\udc00!", source="tts_input").text
    assert text == "\ufffd!"


def test_events_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        start().at_ms = 3


def test_a_journal_of_thousands_of_lines_builds_one_reader_for_each_kind(monkeypatch):
    built = []

    def counting(cls):
        built.append(cls)
        return TypeAdapter(cls)

    monkeypatch.setattr(ev, "TypeAdapter", counting)
    monkeypatch.setattr(ev, "_ADAPTERS", {})
    for at_ms in range(20):
        ev.from_dict({"event": "TimePassed", "at_ms": at_ms})
        ev.from_dict({"event": "CallEnded", "at_ms": at_ms})
    assert built == [ev.TimePassed, ev.CallEnded]
