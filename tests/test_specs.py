# SPDX-License-Identifier: Apache-2.0
"""The committed schemas are the models' own, and say the writer's rules as `writer_problems` does."""

from __future__ import annotations

import json
import re
import runpy
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from voicetrace import events as ev
from voicetrace.call import fold
from voicetrace.journal import MARK, VERSION, read_journal
from voicetrace.messages import (
    Channel,
    Recording,
    Role,
    Selection,
    State,
    TextSource,
    TextStatus,
    TimingSource,
    VoiceMessage,
    writer_problems,
)

ROOT = Path(__file__).parent.parent
SPECS = ROOT / "specs"
NAMES = ("voice-message", "voice-messages", "recording", "journal-event")
JOURNALS = sorted((ROOT / "examples" / "calls").glob("*.jsonl"))
EXAMPLES = {path.stem: read_journal(path).events for path in JOURNALS}


def validator(name):
    schema = json.loads((SPECS / "schemas" / f"{name}.schema.json").read_text("utf-8"))
    return Draft202012Validator(schema)


ENTRY, MAP, RECORDING, EVENT = map(validator, NAMES)


def test_what_is_committed_is_what_is_generated():
    generated = runpy.run_path(str(SPECS / "generate.py"))["generate"]()
    committed = {path.name: path.read_text("utf-8") for path in (SPECS / "schemas").iterdir()}
    assert committed == generated, "run `make specs`"


@pytest.mark.parametrize("name", NAMES)
def test_each_is_a_valid_schema_and_stands_alone(name):
    schema = json.loads((SPECS / "schemas" / f"{name}.schema.json").read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    references = re.findall(r'"\$ref": "([^"]*)"', json.dumps(schema))
    assert references
    for reference in references:
        assert reference.removeprefix("#/$defs/") in schema["$defs"]


# -- the rules are the same twice ------------------------------------------------------------------
MS = st.integers(0, 20_000)
SELECTIONS = st.lists(
    st.builds(
        Selection, segment_id=st.just("seg_0"), channel=st.sampled_from(Channel), start_ms=MS, end_ms=MS
    ),
    max_size=2,
)
MESSAGES = st.builds(
    VoiceMessage,
    id=st.just("item"),
    role=st.sampled_from(Role),
    seq=st.integers(0, 9),
    committed=st.booleans(),
    state=st.sampled_from(State),
    text_status=st.sampled_from(TextStatus),
    text=st.none() | st.text(max_size=3),
    generated_text=st.none() | st.none() | st.text(max_size=3),
    text_source=st.none() | st.sampled_from(TextSource),
    start_ms=st.none() | MS,
    end_ms=st.none() | MS,
    timing_source=st.none() | st.sampled_from(TimingSource),
    end_of_turn_ms=st.none() | st.none() | MS,
    transcript_final_ms=st.none() | st.none() | MS,
    interrupted_at_ms=st.none() | MS,
    provider_audio_end_ms=st.none() | st.none() | MS,
    selections=st.just([]) | SELECTIONS,
    produced_by_span_id=st.none() | st.none() | st.just("00112233445566aa"),
)
# JSON Schema cannot compare two numbers
NOT_EXPRESSIBLE = re.compile(r"^end_ms -?\d+ is before start_ms|^selection ends")


def expressible_problems(message):
    return [p for p in writer_problems(message) if not NOT_EXPRESSIBLE.match(p)]


@settings(max_examples=600)
@given(MESSAGES)
def test_the_schema_and_writer_problems_agree(message):
    assert ENTRY.is_valid(message.to_wire()) == (expressible_problems(message) == [])


COMPLETE = {"seq": 1, "committed": True, "state": "complete", "text_status": "final", "text": "Yes."}
USER = COMPLETE | {"role": "user", "text_source": "stt", "selections": []}
ASSISTANT = COMPLETE | {"role": "assistant", "text_source": "tts_input", "selections": []}
UNPLAYED = ASSISTANT | {"state": "unplayed"}
SELECTION = {"segment_id": "seg_0", "channel": "agent", "start_ms": 0, "end_ms": 5}


def without(entry, *names):
    return {name: value for name, value in entry.items() if name not in names}


@pytest.mark.parametrize(
    "entry",
    [
        USER,
        ASSISTANT,
        UNPLAYED,
        USER | {"text_status": "partial", "state": "open"},
        without(ASSISTANT, "text") | {"state": "open", "text_status": "missing"},
        without(UNPLAYED, "text") | {"text_status": "not_captured"},
        without(USER, "text") | {"text_status": "missing"},
        ASSISTANT | {"state": "interrupted", "interrupted_at_ms": 5, "generated_text": "Yes, sir."},
    ],
)
def test_valid_entries(entry):
    ENTRY.validate(entry)
    assert writer_problems(VoiceMessage.model_validate({"id": "x"} | entry)) == []


@pytest.mark.parametrize(
    "entry",
    [
        USER | {"interrupted_at_ms": 5},
        USER | {"produced_by_span_id": "00112233445566aa"},
        USER | {"state": "unplayed"},
        USER | {"text_source": "tts_input"},
        without(USER, "text"),
        USER | {"text_status": "not_captured"},
        ASSISTANT | {"state": "interrupted"},
        ASSISTANT | {"end_of_turn_ms": 5},
        ASSISTANT | {"text_status": "partial"},
        ASSISTANT | {"state": "open"},
        ASSISTANT | {"text_source": "stt"},
        ASSISTANT | {"produced_by_span_id": "00112233445566AA"},
        UNPLAYED | {"selections": [SELECTION]},
        UNPLAYED | {"start_ms": 5},
        UNPLAYED | {"text_source": "playout_aligned"},
        without(UNPLAYED, "text") | {"text_status": "missing"},
        without(USER, "selections"),
        USER | {"text": None},
        USER | {"seq": -1},
        USER | {"seq": "1"},
        USER | {"turn_span_id": "x"},
        USER | {"selections": [SELECTION | {"channel": "both"}]},
    ],
)
def test_invalid_entries(entry):
    assert not ENTRY.is_valid(entry)
    assert not MAP.is_valid({"item": entry})


# -- what the fold writes --------------------------------------------------------------------------
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_prefix_of_a_call_is_valid(name):
    assert len(EXAMPLES[name]) > 30
    for length in range(len(EXAMPLES[name]) + 1):
        recorder = fold(EXAMPLES[name][:length], strict=True)
        MAP.validate({m.id: m.to_wire() for m in recorder.ordered()})
        if recorder.recording is not None:
            RECORDING.validate(recorder.recording.to_wire())


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(EXAMPLES)), st.data())
def test_a_call_with_lost_and_late_events_is_valid(name, data):
    first, *rest = EXAMPLES[name]
    kept = data.draw(st.lists(st.sampled_from(rest), unique_by=id, max_size=len(rest)))
    recorder = fold([first, *kept], strict=True)
    MAP.validate({m.id: m.to_wire() for m in recorder.ordered()})


def test_a_recording_that_is_not_whole_says_less_and_one_with_null_is_wrong():
    facts = {"recording_id": "r", "uri": "r.wav", "format": "wav", "sample_rate_hz": 8000}
    wire = Recording(**facts, channels=[Channel.CALLER], origin_unix_ms=1).to_wire()
    RECORDING.validate(wire)
    assert "sha256" not in wire
    assert not RECORDING.is_valid(wire | {"sha256": None})
    assert not RECORDING.is_valid(wire | {"sample_rate_hz": 0})


# -- the journal -----------------------------------------------------------------------------------
@pytest.mark.parametrize("path", JOURNALS, ids=lambda p: p.stem)
def test_the_lines_of_a_journal(path):
    header, *lines = map(json.loads, path.read_text("utf-8").splitlines())
    assert header[MARK] == VERSION
    for line in lines:
        EVENT.validate(line)
    assert {"UserTranscript", "PlayoutFinished", "RecordingFinished"} <= {line["event"] for line in lines}


@given(st.one_of([st.from_type(cls) for cls in ev.EVENTS.values()]))
def test_every_event_is_valid_as_it_is_stored(event):
    stored = json.loads(json.dumps(ev.to_dict(event)))
    EVENT.validate(stored)
    assert ev.from_dict(stored) == event


@pytest.mark.parametrize("name", sorted(ev.EVENTS))
def test_what_is_no_event_is_neither_valid_nor_read(name):
    required = {f.name: 5 for f in fields(ev.EVENTS[name])}
    for stored in (
        {"event": name} | required | {"at_ms": "5"},
        {"event": name} | required | {"unknown": 1},
        {"event": name},
        {"event": f"{name}ed"} | required,
    ):
        assert not EVENT.is_valid(stored)
        with pytest.raises(ValueError, match=r"event|fields|\."):
            ev.from_dict(stored)


# -- the pages -------------------------------------------------------------------------------------
def test_every_event_and_field_is_described():
    page = (SPECS / "events.md").read_text("utf-8")
    sections = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL))
    assert sorted(sections) == sorted(ev.EVENTS)
    for name, text in sections.items():
        for field in fields(ev.EVENTS[name]):
            if field.name not in ("at_ms", "redacted"):
                assert f"`{field.name}`" in text, f"{name}.{field.name} is not described"


def test_every_message_field_and_value_is_described():
    page = (SPECS / "voice-messages.md").read_text("utf-8")
    names = [n for model in (VoiceMessage, Recording, Selection) for n in model.model_fields if n != "id"]
    values = [v.value for enum in (State, TextStatus, TextSource, TimingSource, Channel) for v in enum]
    for word in names + values:
        assert f"`{word}`" in page, f"{word} is not described"


def test_every_attribute_of_ours_is_described():
    from voicetrace import semconv

    page = (SPECS / "wire.md").read_text("utf-8")
    ours = [
        v for k, v in vars(semconv).items() if k.startswith(("VOICE_", "MESSAGE_", "SPAN_")) and k.isupper()
    ]
    assert len(ours) > 20
    for name in ours:
        assert f"`{name}" in page, f"{name} is not described"


@pytest.mark.parametrize("page", sorted(SPECS.glob("*.md")), ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text("utf-8")):
        assert target.startswith("https://") or (page.parent / target).exists(), target
