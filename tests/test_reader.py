# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator

from voicetrace import events as ev
from voicetrace.journal import JournalWriter
from voicetrace.messages import Role, Selection, State, TextSource, TextStatus, VoiceMessage
from voicetrace.otel import LINKS, wrap_exporter
from voicetrace.otel.encode import encode_entry, set_call_attributes
from voicetrace.otel.otlp_json import JsonFileExporter, SpanData, span_data, spans_to_otlp, write_trace
from voicetrace.otel.records import MessageRecords
from voicetrace.reader import read_calls

ORIGIN = 1_700_000_000_000
TRACE = "a" * 32


# -- building spans ------------------------------------------------------------------------------
def ns(call_ms):
    return (ORIGIN + call_ms) * 1_000_000


def entry(role="user", seq=0, **fields):
    base = {"role": role, "seq": seq, "committed": True, "state": "complete", "text_status": "final"}
    return base | {"text": "Hi.", "selections": []} | fields


def reply(seq=1, **fields):
    return entry("assistant", seq, text_source="playout_aligned", **fields)


ENTRIES = {"u1": entry(), "a1": reply(produced_by_span_id="00000000000000b1")}


def call_span(messages=None, span_id="00000000000000a1", trace_id=TRACE, parent=None, **attributes):
    found = {"voice.call_id": f"call-{span_id}", "voice.origin_unix_ms": ORIGIN, **attributes}
    if messages is not None:
        found["voice.messages"] = messages if isinstance(messages, str) else json.dumps(messages)
    return SpanData("agent_session", trace_id, span_id, parent, 1, ns(0), ns(9000), attributes=found)


def llm_span(
    context=("u1",), output="a1", span_id="00000000000000b1", parent="00000000000000a1", **attributes
):
    found = {"voice.context_message_ids": list(context), **attributes}
    if output is not None:
        found["voice.output_message_id"] = output
    return SpanData("llm_node", TRACE, span_id, parent, 1, ns(1000), ns(1500), attributes=found)


def only(spans):
    (call,) = read_calls(spans)
    return call


# -- a whole call, written and read --------------------------------------------------------------
class Ids(IdGenerator):
    """Ids in order, so that a trace can be compared as a whole."""

    def __init__(self):
        self.next_span = 0xA0

    def generate_trace_id(self):
        return 0xABC

    def generate_span_id(self):
        self.next_span += 1
        return self.next_span


def voice_messages():
    caller = Selection(segment_id="seg_1", channel="caller", start_ms=300, end_ms=1400)
    agent = Selection(segment_id="seg_1", channel="agent", start_ms=2000, end_ms=3100)
    yield VoiceMessage(
        id="item_u1",
        role=Role.USER,
        seq=0,
        committed=True,
        state=State.COMPLETE,
        text_status=TextStatus.FINAL,
        text="Are you open?",
        text_source=TextSource.STT,
        start_ms=300,
        end_ms=1400,
        selections=[caller],
    )
    yield VoiceMessage(
        id="item_a1",
        role=Role.ASSISTANT,
        seq=1,
        committed=True,
        state=State.INTERRUPTED,
        text_status=TextStatus.FINAL,
        text="We are open",
        generated_text="We are open until nine.",
        text_source=TextSource.PLAYOUT_ALIGNED,
        start_ms=2000,
        end_ms=3100,
        interrupted_at_ms=3100,
        selections=[agent],
        produced_by_span_id="00000000000000a2",
    )


RECORDING = {
    "recording_id": "rec_1",
    "uri": "file:///calls/1/recording.flac",
    "format": "flac",
    "sample_rate_hz": 24000,
    "channels": ["caller", "agent"],
    "origin_unix_ms": ORIGIN,
    "duration_ms": 4000,
    "sha256": "0" * 64,
    "segments": {"seg_1": {"start_ms": 0, "length_ms": 4000}},
}


def traced_call(exporter):
    """One call as the capture writes it: records when messages settle, links late, the map last."""
    provider = TracerProvider(
        resource=Resource({"service.name": "front-desk"}), id_generator=Ids(), shutdown_on_exit=False
    )
    provider.add_span_processor(SimpleSpanProcessor(wrap_exporter(exporter)))
    tracer = provider.get_tracer("t")
    with tracer.start_as_current_span("agent_session", start_time=ns(0), end_on_exit=False) as call:
        LINKS.expect_call(call.get_span_context().span_id, call.get_span_context().trace_id)
        llm = tracer.start_span("llm_node", start_time=ns(1500))
        LINKS.expect(llm.get_span_context().span_id, llm.get_span_context().trace_id)
        llm.set_attributes(
            {"voice.context_message_ids": ["sys", "item_u0"], "voice.context_message_count": 2}
        )
        llm.end(ns(1900))
        records = MessageRecords("span", provider)
        messages = list(voice_messages())
        for message in messages:
            records.emit(message, call.get_span_context(), ORIGIN, 1, "call_1")
        own = {"voice.call_id": "call_1", "voice.origin_unix_ms": ORIGIN, "voice.framework": "livekit"}
        set_call_attributes(call, [(m.id, encode_entry(m)) for m in messages], attributes=own)
    call.end(ns(4000))
    LINKS.resolve(
        llm.get_span_context().span_id,
        {"voice.context_message_ids": ["sys", "item_u1"], "voice.output_message_id": "item_a1"},
    )
    LINKS.resolve(call.get_span_context().span_id, {"voice.recording": json.dumps(RECORDING)})
    provider.shutdown()


def test_vt80_golden_trace():
    memory = InMemorySpanExporter()
    traced_call(memory)
    found = [
        (
            s.name,
            format(s.parent.span_id, "x") if s.parent else None,
            s.start_time,
            s.end_time,
            dict(s.attributes),
        )
        for s in sorted(memory.get_finished_spans(), key=lambda s: s.context.span_id)
    ]
    user = {
        "voice.message.id": "item_u1",
        "voice.message.revision": 1,
        "voice.call_id": "call_1",
        "voice.message.role": "user",
        "voice.message.seq": 0,
        "voice.message.committed": True,
        "voice.message.state": "complete",
        "voice.message.text_status": "final",
        "voice.message.text_source": "stt",
        "voice.message.start_ms": 300,
        "voice.message.end_ms": 1400,
        "voice.message.selections": '[["seg_1","caller",300,1400]]',
        "voice.message.text": "Are you open?",
    }
    assistant = {
        "voice.message.id": "item_a1",
        "voice.message.revision": 1,
        "voice.call_id": "call_1",
        "voice.message.role": "assistant",
        "voice.message.seq": 1,
        "voice.message.committed": True,
        "voice.message.state": "interrupted",
        "voice.message.text_status": "final",
        "voice.message.text_source": "playout_aligned",
        "voice.message.start_ms": 2000,
        "voice.message.end_ms": 3100,
        "voice.message.interrupted_at_ms": 3100,
        "voice.message.produced_by_span_id": "00000000000000a2",
        "voice.message.selections": '[["seg_1","agent",2000,3100]]',
        "voice.message.text": "We are open",
        "voice.message.generated_text": "We are open until nine.",
    }
    messages = (
        '{"item_u1":{"role":"user","seq":0,"committed":true,"state":"complete","text_status":"final",'
        '"text":"Are you open?","text_source":"stt","start_ms":300,"end_ms":1400,'
        '"selections":[{"segment_id":"seg_1","channel":"caller","start_ms":300,"end_ms":1400}]},'
        '"item_a1":{"role":"assistant","seq":1,"committed":true,"state":"interrupted","text_status":"final",'
        '"text":"We are open","generated_text":"We are open until nine.","text_source":"playout_aligned",'
        '"start_ms":2000,"end_ms":3100,"interrupted_at_ms":3100,'
        '"selections":[{"segment_id":"seg_1","channel":"agent","start_ms":2000,"end_ms":3100}],'
        '"produced_by_span_id":"00000000000000a2"}}'
    )
    assert found == [
        (
            "agent_session",
            None,
            ns(0),
            ns(4000),
            {
                "voice.call_id": "call_1",
                "voice.origin_unix_ms": ORIGIN,
                "voice.framework": "livekit",
                "voice.messages": messages,
                "voice.recording": json.dumps(RECORDING),
            },
        ),
        (
            "llm_node",
            "a1",
            ns(1500),
            ns(1900),
            {
                "voice.context_message_count": 2,
                "voice.context_message_ids": ["sys", "item_u1"],
                "voice.output_message_id": "item_a1",
            },
        ),
        ("voice.message", "a1", ns(1400), ns(1400), user),
        ("voice.message", "a1", ns(3100), ns(3100), assistant),
    ]


def check_traced_call(call):
    assert call.messages == tuple(voice_messages())
    assert call.warnings == ()
    assert (call.call_id, call.framework, call.origin_unix_ms, call.duration_ms) == (
        "call_1",
        "livekit",
        ORIGIN,
        4000,
    )
    assert call.ended
    assert call.recording.to_wire() == RECORDING
    (step,) = call.llm_steps
    assert call.produced_by(call.message("item_a1")) is step
    assert call.read_by(call.message("item_u1")) == (step,)
    assert (step.start_ms, step.end_ms, step.error) == (1500, 1900, "")


def test_a_call_reads_the_same_from_every_form_of_its_spans(tmp_path):
    memory = InMemorySpanExporter()
    traced_call(memory)
    spans = memory.get_finished_spans()
    check_traced_call(only(spans))
    check_traced_call(only(spans_to_otlp(spans)))
    check_traced_call(only(write_trace(tmp_path / "trace.json", spans)))
    lines = tmp_path / "spans.jsonl"
    traced_call(JsonFileExporter(lines))
    check_traced_call(only(str(lines)))
    check_traced_call(only(tmp_path))  # both files tell the same call: it is given once


def test_a_call_without_its_span_is_read_from_its_records():
    memory = InMemorySpanExporter()
    traced_call(memory)
    call = only([s for s in memory.get_finished_spans() if s.name != "agent_session"])
    assert call.messages == tuple(voice_messages())
    assert not call.ended
    assert call.call_id == "call_1"
    assert [step.output_ids for step in call.llm_steps] == [("item_a1",)]
    assert call.warnings == ("the call span is missing; messages are from their records",)


# -- whole, cut, broken, absent maps --------------------------------------------------------------
def record(message_id, fields, revision=1, parent="00000000000000a1", span_id=None):
    attributes = {f"voice.message.{k}": v for k, v in fields.items() if k != "selections"}
    attributes |= {"voice.message.id": message_id, "voice.message.revision": revision}
    attributes["voice.message.selections"] = "[]"
    span_id = span_id or format(hash((message_id, revision)) & (2**64 - 1) | 1, "016x")
    return SpanData("voice.message", TRACE, span_id, parent, 1, ns(5000), ns(5000), attributes=attributes)


def test_a_whole_map_needs_no_records():
    stale = record("u9", entry(seq=9))
    assert [m.id for m in only([call_span(ENTRIES), llm_span(), stale]).messages] == ["u1", "a1"]


@pytest.mark.parametrize("cut_at", [0, 1, 30, 80, 200])
def test_vt_67_a_map_that_a_backend_cut_is_completed_from_the_records(cut_at):
    text = json.dumps(ENTRIES)[:cut_at]
    call = only([call_span(text), llm_span(), *(record(k, v) for k, v in ENTRIES.items())])
    assert [m.to_wire() for m in call.messages] == list(ENTRIES.values())
    assert len(call.warnings) == 1
    assert "voice.messages is broken" in call.warnings[0]


def test_every_cut_of_a_map_keeps_the_whole_entries_before_it():
    text = json.dumps({"a": entry(seq=0), "b": entry(seq=1), "c": entry(seq=2)}, indent=1)
    counts = [len(only([call_span(text[:i])]).messages) for i in range(len(text) + 1)]
    assert counts == sorted(counts)
    assert set(counts) == {0, 1, 2, 3}


def test_an_absent_map_is_completed_and_the_newest_record_counts_also_after_a_move():
    old = record("vad_0", entry(seq=0, text_status="missing", text=None), revision=1)
    old = replace(old, attributes={k: v for k, v in old.attributes.items() if v is not None})
    call = only(
        [call_span(), llm_span(), record("u1", ENTRIES["u1"], revision=2), old, record("a1", ENTRIES["a1"])]
    )
    assert [(m.id, m.text) for m in call.messages] == [("u1", "Hi."), ("a1", "Hi.")]
    assert call.warnings == ("the call span has no voice.messages",)


def test_omitted_messages_come_from_the_file_beside_the_recording(tmp_path):
    for name, document in {
        "map": ENTRIES,
        "record": {"voice.call_id": "c", "voice.messages": ENTRIES},
    }.items():
        path = tmp_path / f"{name} file.json"
        path.write_text(json.dumps(document))
        attributes = {"voice.messages.omitted": 1, "voice.messages.uri": path.as_uri()}
        call = only([call_span({"u1": ENTRIES["u1"]}, **attributes), llm_span()])
        assert [m.id for m in call.messages] == ["u1", "a1"]
        assert call.warnings == ()


@pytest.mark.parametrize(
    "uri",
    [
        "file:///nowhere/x.json",
        "https://example.test/x",
        "file://host/x",
        "file:///dev/zero",
        "file:///%00",
        7,
    ],
)
def test_omitted_messages_that_are_nowhere_are_a_warning(uri):
    attributes = {"voice.messages.omitted": 1, "voice.messages.uri": uri}
    call = only([call_span({"u1": ENTRIES["u1"]}, **attributes), llm_span(output=None)])
    assert call.warnings == ("voice.messages leaves out 1 messages, 0 of them were found",)


def test_a_record_that_was_cut_says_so():
    cut = record("a1", reply(start_ms=0, end_ms=5))
    attributes = dict(cut.attributes) | {"voice.message.text_truncated": True}
    del attributes["voice.message.selections"]
    call = only(
        [call_span({}, **{"voice.messages.omitted": 1}), llm_span(), replace(cut, attributes=attributes)]
    )
    assert call.warnings == (
        "message a1: its text is cut off in its record",
        "message a1: its selections are not in its record",
    )


def test_the_structured_form_is_read_as_well():
    structured = {"u1": {**ENTRIES["u1"], "seq": 0.0}, "a1": ENTRIES["a1"]}
    recording = {**RECORDING, "sample_rate_hz": 24000.0}
    span = call_span(**{"voice.messages": None, "voice.recording": None})
    attributes = dict(span.attributes) | {"voice.messages": structured, "voice.recording": recording}
    call = only([replace(span, attributes=attributes), llm_span()])
    assert [m.to_wire() for m in call.messages] == list(ENTRIES.values())
    assert call.recording.to_wire() == RECORDING
    assert call.warnings == ()


# -- the warnings of the contract, section 6 -------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"a1": reply(end_of_turn_ms=5)}, "message a1: assistant message has end_of_turn_ms"),
        ({"u1": entry(generated_text="x")}, "message u1: user message has generated_text"),
        ({"u1": entry(state="unplayed")}, "message u1: user message is unplayed"),
        ({"a1": reply(state="interrupted")}, "message a1: interrupted without interrupted_at_ms"),
        ({"u1": entry(start_ms=9, end_ms=8)}, "message u1: end_ms 8 is before start_ms 9"),
        (
            {"a1": entry("assistant", 1, state="unplayed", text=None, text_status="missing")},
            "message a1: unplayed message has no generated text",
        ),
    ],
)
def test_a_broken_rule_is_a_warning_and_the_entry_stays_as_logged(changes, warning):
    call = only([call_span(ENTRIES | changes), llm_span()])
    assert call.warnings == (warning,)
    for message_id, logged in changes.items():
        expected = {k: v for k, v in logged.items() if v is not None}
        assert call.message(message_id).to_wire() == expected


def test_an_output_that_is_in_no_record():
    call = only([call_span(ENTRIES), llm_span(output="gone")])
    assert call.warnings == ("LLM span 00000000000000b1: its output message 'gone' is in no record",)


def test_messages_without_ids_on_any_llm_span():
    call = only([call_span(ENTRIES)])
    assert call.warnings == ("the call has messages but no LLM span carries message ids",)


def test_a_recording_with_another_origin():
    recording = json.dumps(RECORDING | {"origin_unix_ms": ORIGIN + 250})
    call = only([call_span(ENTRIES, **{"voice.recording": recording}), llm_span()])
    assert call.warnings == ("the recording's origin is +250 ms from voice.origin_unix_ms",)
    assert call.origin_unix_ms == ORIGIN
    assert call.recording.origin_unix_ms == ORIGIN + 250


def test_the_warnings_of_the_capture_are_passed_on_once():
    for logged in (["seen", "seen"], '["seen"]'):
        assert only([call_span(ENTRIES, **{"voice.warnings": logged}), llm_span()]).warnings == ("seen",)


CHAT = json.dumps({"items": [{}, {}]})


@pytest.mark.parametrize(
    ("attributes", "logged"),
    [
        ({}, None),
        ({"voice.context_message_count": 1}, None),
        ({"voice.context_message_count": 3}, 3),
        ({"voice.context_message_count": 1, "lk.pii.chat_ctx": CHAT}, None),
        ({"lk.pii.chat_ctx": CHAT}, 2),
        ({"lk.pii.chat_ctx": CHAT, "lk.input.delta": True}, None),
        ({"lk.pii.chat_ctx": "not json"}, None),
        ({"lk.speech_id": "s", "gen_ai.input.messages": "[{}, {}]"}, None),
        ({"gen_ai.input.messages": "[{}, {}]"}, 2),
        ({"input": '[{"role": "user"}]'}, None),
        ({"input": '["a", "b", "c"]'}, 3),
        ({"input": "just a text"}, None),
    ],
)
def test_the_context_list_is_as_long_as_the_logged_input(attributes, logged):
    call = only([call_span(ENTRIES), llm_span(**attributes)])
    expected = (
        ()
        if logged is None
        else (
            (
                "LLM span 00000000000000b1: voice.context_message_ids has 1 entries, "
                f"the logged input has {logged}"
            ),
        )
    )
    assert call.warnings == expected
    assert call.llm_steps[0].context_ids == ("u1",)


def test_context_ids_in_no_record_are_normal_and_null_is_kept_from_a_list_or_a_string():
    for context in (["sys", None, "u1"], '["sys",null,"u1"]'):
        step = llm_span()
        step = replace(step, attributes=dict(step.attributes) | {"voice.context_message_ids": context})
        call = only([call_span(ENTRIES), step])
        assert call.warnings == ()
        assert call.llm_steps[0].context_ids == ("sys", None, "u1")


def test_outputs_speculation_and_errors_of_a_step():
    made = llm_span(output="a1", **{"voice.output_message_ids": ["a1", "a2"]})
    discarded = llm_span(
        output=None,
        span_id="00000000000000b2",
        **{"voice.speculative": True, "voice.context_message_ids": [None]},
    )
    failed = replace(
        llm_span(output=None, span_id="00000000000000b3"), status_code=2, status_message="timeout"
    )
    call = only([call_span(ENTRIES | {"a2": reply(2)}), failed, discarded, made])
    by_id = {s.span_id: s for s in call.llm_steps}
    assert by_id["00000000000000b1"].output_ids == ("a1", "a2")
    assert by_id["00000000000000b2"].speculative
    assert by_id["00000000000000b3"].error == "timeout"
    assert call.warnings == ()


# -- which step belongs to which call -------------------------------------------------------------
def test_vt_57_two_calls_in_one_trace_stay_apart_also_when_one_is_the_others_child():
    """Trap T9: a second session in the same task becomes a child of the first."""
    first = call_span(ENTRIES)
    second = call_span(ENTRIES, span_id="00000000000000a2", parent="00000000000000a1")
    turn = SpanData("agent_turn", TRACE, "00000000000000c1", "00000000000000a2", 1, ns(1), ns(2))
    steps = [llm_span(), llm_span(span_id="00000000000000b2", parent="00000000000000c1")]
    one, two = sorted(read_calls([*steps, turn, second, first]), key=lambda call: call.call_id)
    assert [s.span_id for s in one.llm_steps] == ["00000000000000b1"]
    assert [s.span_id for s in two.llm_steps] == ["00000000000000b2"]


def test_vt_55_a_first_reply_in_a_trace_of_its_own_is_found_by_its_messages():
    stray = replace(llm_span(parent=None), trace_id="b" * 32)
    other = call_span({"u7": entry(seq=0)}, span_id="00000000000000a7", trace_id="c" * 32)
    mine, theirs = sorted(read_calls([stray, other, call_span(ENTRIES)]), key=lambda call: call.call_id)
    assert [s.trace_id for s in mine.llm_steps] == ["b" * 32]
    assert theirs.llm_steps == ()


def test_a_step_that_could_be_anybodys_is_nobodys():
    stray = replace(llm_span(parent=None), trace_id="b" * 32)
    spans = [stray, call_span(ENTRIES), call_span(ENTRIES, span_id="00000000000000a2")]
    assert [call.llm_steps for call in read_calls(spans)] == [(), ()]


def test_parents_in_a_circle_end():
    a = replace(llm_span(parent="00000000000000b2"), attributes={"voice.speculative": True})
    b = replace(a, span_id="00000000000000b2", parent_span_id="00000000000000b1")
    assert len(only([a, b, call_span(ENTRIES)]).llm_steps) == 2


def test_a_span_given_twice_counts_once_as_it_was_linked():
    unlinked = llm_span(output=None)
    for spans in ([unlinked, llm_span()], [llm_span(), unlinked]):
        call = only([call_span(ENTRIES), *spans])
        assert [s.output_ids for s in call.llm_steps] == [("a1",)]


# -- anything goes --------------------------------------------------------------------------------
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(st.characters(), max_size=6)
    | st.sampled_from(["user", "assistant", "complete", "open", "final", "caller", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*VoiceMessage.model_fields, *RECORDING, "segment_id"]) | st.text(max_size=4),
            inner,
            max_size=6,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(
    messages=JSON,
    recording=JSON,
    ids=JSON,
    rest=st.dictionaries(st.text(max_size=4), JSON, max_size=2),
    text=st.booleans(),
)
def test_no_content_makes_the_reader_raise(messages, recording, ids, rest, text):
    def value(found):
        return json.dumps(found) if text else found

    attributes = {
        "voice.messages": value({"m": messages, "u1": entry(), **rest}),
        "voice.recording": value(recording),
        "voice.warnings": value(ids),
        "voice.messages.omitted": ids,
        "voice.messages.uri": recording,
        "voice.call_id": ids,
    }
    step = llm_span(parent=None)
    changed = {
        "voice.context_message_ids": value(ids),
        "voice.output_message_id": ids,
        "voice.speculative": ids,
    }
    small = record("r", {"seq": messages, "role": recording, "text": ids})
    call = only([call_span(**attributes), replace(step, attributes=changed), small, call_span_record(ids)])
    assert call.message("u1").to_wire() == entry()
    for warning in call.warnings:
        warning.encode()
    json.dumps([m.to_wire() for m in call.messages])


def call_span_record(value):
    return replace(record("x", {}), attributes={"voice.message.id": value, "voice.message.revision": value})


@settings(max_examples=100, deadline=None)
@given(value=JSON)
def test_no_value_of_the_whole_map_makes_the_reader_raise(value):
    for attribute in (value, json.dumps(value), json.dumps(value)[:-1]):
        call = only(
            [replace(call_span(), attributes={"voice.messages": attribute, "voice.origin_unix_ms": value})]
        )
        assert call.warnings


def test_what_is_valid_of_an_entry_is_kept_and_the_rest_is_named():
    messages = {
        "a": {"text": "Hello", "end_of_turn_ms": 5, "mystery": 1, "start_ms": "soon", "seq": True},
        "b": 7,
        "c": {"text": "whose?"},
        "d": entry("assistant", 3, selections=[{"segment_id": "s"}, SELECTION], produced_by_span_id="xyz"),
    }
    call = only([call_span(messages), llm_span(output=None)])
    found = {m.id: m for m in call.messages}
    assert found.keys() == {"a", "d"}
    assert (found["a"].text, found["a"].seq, found["a"].role, found["a"].state) == (
        "Hello",
        4,
        "user",
        "open",
    )
    assert [s.model_dump(mode="json") for s in found["d"].selections] == [SELECTION]
    assert set(call.warnings) == {
        "message a: start_ms is not valid and is left out",
        "message a: seq is not valid and is left out",
        "message a: mystery is an unknown field and is left out",
        'message a: role is missing and read as "user"',
        "message a: seq is missing and read as 4",
        "message a: committed is missing and read as false",
        'message a: state is missing and read as "open"',
        'message a: text_status is missing and read as "final"',
        "message b: the entry is no object and is left out",
        "message c: it does not say whose it is (role) and is left out",
        "message d: a selection is not valid and is left out",
        "message d: produced_by_span_id is not valid and is left out",
    }


SELECTION = {"segment_id": "s", "channel": "agent", "start_ms": 0, "end_ms": 5}


def test_what_is_valid_of_a_recording_is_kept():
    broken = RECORDING | {
        "duration_ms": "4 s",
        "extra": 1,
        "segments": {"seg_1": {"start_ms": 0}, "seg_2": SEGMENT},
    }
    call = only([call_span(ENTRIES, **{"voice.recording": json.dumps(broken)}), llm_span()])
    assert call.recording.segments.keys() == {"seg_2"}
    assert call.recording.duration_ms is None
    assert len(call.warnings) == 3
    call = only([call_span(ENTRIES, **{"voice.recording": '{"uri": "x"}'}), llm_span()])
    assert call.recording is None
    assert "voice.recording has no valid channels, format" in call.warnings[0]


SEGMENT = {"start_ms": 0, "length_ms": 5}


# -- sources --------------------------------------------------------------------------------------
def write_journal(path, call_id="call_j", origin=ORIGIN, end=True):
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = JournalWriter(path)
    writer.append(ev.CallStarted(at_ms=0, call_id=call_id, origin_unix_ms=origin, framework="pipecat"))
    writer.append(ev.MessageNoted(at_ms=5, message_id="m1", role=Role.USER, text="1 2 3"))
    if end:
        writer.append(ev.CallEnded(at_ms=9))
    writer.close()


def test_a_journal_is_read_by_the_same_function(tmp_path):
    write_journal(tmp_path / "journal.jsonl")
    call = only(tmp_path / "journal.jsonl")
    assert (call.call_id, call.framework, [m.text for m in call.messages]) == ("call_j", "pipecat", ["1 2 3"])
    assert call.events


def test_a_directory_gives_all_calls_in_order_and_each_once(tmp_path, caplog):
    write_journal(tmp_path / "calls" / "1" / "journal.jsonl", origin=ORIGIN + 5)
    write_journal(tmp_path / "calls" / "2" / "journal.jsonl", call_id="call-00000000000000a1", end=False)
    (tmp_path / "calls" / "3").mkdir()
    (tmp_path / "calls" / "3" / "journal.jsonl").write_text('{"voicetrace_journal": 999}\n')
    (tmp_path / "voice_artifact_manifest.json").write_text('{"schema": "no trace"}')
    (tmp_path / "recording.flac").write_bytes(b"\0\1\2")
    # one call's spans spread over two files, as after a rotation
    for name, spans in {"a": [call_span(ENTRIES)], "b": [llm_span()]}.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(otlp(spans)))
    with caplog.at_level(logging.WARNING):
        calls = read_calls(tmp_path)
    assert [(c.call_id, bool(c.events), len(c.llm_steps)) for c in calls] == [
        ("call-00000000000000a1", False, 1),  # its journal has no end: the spans know more
        ("call_j", True, 0),
    ]
    assert "999" in caplog.text


def otlp(spans):
    """Hand-written OTLP JSON of the few values these tests use."""

    def value(v):
        kinds = {str: "stringValue", int: "intValue", list: "arrayValue"}
        inner = {"values": [value(i) for i in v]} if isinstance(v, list) else v
        return {kinds[type(v)]: inner}

    return {
        "resourceSpans": [
            {
                "scopeSpans": [
                    {
                        "spans": [
                            {
                                "traceId": s.trace_id,
                                "spanId": s.span_id,
                                "parentSpanId": s.parent_span_id or "",
                                "name": s.name,
                                "startTimeUnixNano": str(s.start_unix_ns),
                                "endTimeUnixNano": str(s.end_unix_ns),
                                "attributes": [
                                    {"key": k, "value": value(v)} for k, v in s.attributes.items()
                                ],
                            }
                            for s in spans
                        ]
                    }
                ]
            }
        ]
    }


def test_broken_lines_are_a_warning_and_line_separators_in_texts_are_no_line_ends(tmp_path):
    path = tmp_path / "spans.jsonl"
    messages = json.dumps({"u1": entry(text="one\u2028two\x85three")}, ensure_ascii=False)
    lines = [
        json.dumps(otlp([call_span(messages)]), ensure_ascii=False),
        json.dumps(otlp([llm_span(output=None)])),
    ]
    path.write_text("\n".join([lines[0], lines[1], '{"resourceSpans": [{"sco']), encoding="utf-8")
    call = only(path)
    assert call.message("u1").text == "one\u2028two\x85three"
    assert call.warnings == ("1 lines of spans.jsonl are no OTLP JSON and were passed over",)
    assert call.source == str(path)


def test_sources_that_are_none_are_one_clear_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no trace or journal at"):
        read_calls(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="holds no OTLP JSON trace"):
        read_calls(tmp_path)
    for content in ("", "hello", "[]", "{}", '{"spans": []}', "[" * 100_000):
        path = tmp_path / "x.json"
        path.write_text(content)
        with pytest.raises(ValueError, match="neither an OTLP JSON trace nor a journal"):
            read_calls(path)
    with pytest.raises(ValueError, match="no OTLP trace"):
        read_calls({"a": 1})
    with pytest.raises(ValueError, match="holds a str, which is no span"):
        read_calls(["x"])
    assert read_calls([]) == []
    assert read_calls({"resourceSpans": []}) == []


def test_sdk_spans_without_a_call_are_no_call():
    memory = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    provider.get_tracer("t").start_span("GET /").end()
    assert read_calls(memory.get_finished_spans()) == []
    assert span_data(memory.get_finished_spans()[0]).name == "GET /"


def test_a_recovered_call_is_finished_and_says_how_it_ended():
    call = only(
        [call_span(ENTRIES, **{"voice.recovered": True, "voice.end_reason": "process died"}), llm_span()]
    )
    assert call.ended
    assert call.end_reason == "process died"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_or_a_device_is_refused_and_not_read_for_ever(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for source in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ValueError, match="is no regular file"):
            read_calls(source)
