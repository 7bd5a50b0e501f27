# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import INVALID_SPAN

from voicetrace import semconv
from voicetrace.messages import Role, Selection, State, TextStatus, VoiceMessage
from voicetrace.otel import encode
from voicetrace.otel.encode import (
    DEFAULT_MAX_BYTES,
    Entries,
    call_attributes,
    encode_entry,
    encode_messages,
    id_list,
    sdk_version,
    set_call_attributes,
    value_length_limit,
)


def message(i=0, text="Hello.", **kwargs):
    return VoiceMessage(
        id=f"item_{i}",
        role=Role.USER,
        seq=i,
        committed=True,
        state=State.COMPLETE,
        text_status=TextStatus.FINAL,
        text=text,
        start_ms=100,
        end_ms=900,
        **kwargs,
    )


def fragments(count, text="Hello."):
    return [(m.id, encode_entry(m)) for m in (message(i, text) for i in range(count))]


def span_with(**limits):
    memory = InMemorySpanExporter()
    provider = TracerProvider(span_limits=SpanLimits(**limits), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    return provider.get_tracer("t").start_span("call"), memory


def exported(span, memory):
    span.end()
    return memory.get_finished_spans()[0].attributes


def test_an_entry_is_compact_json_without_absent_fields():
    selection = Selection(segment_id="s", channel="caller", start_ms=100, end_ms=900)
    assert encode_entry(message(selections=[selection])) == (
        '{"role":"user","seq":0,"committed":true,"state":"complete","text_status":"final","text":"Hello.",'
        '"start_ms":100,"end_ms":900,'
        '"selections":[{"segment_id":"s","channel":"caller","start_ms":100,"end_ms":900}]}'
    )


def test_an_entry_is_valid_unicode_and_within_63_bits():
    odd = message().model_copy(
        update={"text": "é\ud800😀", "end_ms": 2**63, "start_ms": -(2**80), "seq": 2**70, "end_of_turn_ms": 5}
    )
    decoded = json.loads(encode_entry(odd).encode())
    assert decoded["text"] == "é\ufffd😀"
    assert decoded["seq"] == 2**63 - 1
    assert "end_ms" not in decoded
    assert "start_ms" not in decoded
    assert decoded["end_of_turn_ms"] == 5


def test_the_map_keeps_order_and_needs_no_limit():
    encoded = encode_messages(fragments(3), max_bytes=None)
    assert list(json.loads(encoded.json)) == ["item_0", "item_1", "item_2"]
    assert (encoded.omitted, encoded.kept) == (0, 3)
    assert encode_messages([], max_bytes=0).json == "{}"


@given(
    texts=st.lists(st.text(max_size=40), max_size=8),
    ids=st.lists(st.text(st.characters(), max_size=8), min_size=8, max_size=8, unique=True),
    max_bytes=st.none() | st.integers(2, 600),
    max_chars=st.none() | st.integers(2, 600),
)
def test_vt_67_any_limit_cuts_at_a_message_and_stays_valid_json(texts, ids, max_bytes, max_chars):
    parts = [(ids[i], encode_entry(message(i, text))) for i, text in enumerate(texts)]
    encoded = encode_messages(parts, max_bytes=max_bytes, max_chars=max_chars)
    found = json.loads(encoded.json)
    assert len(found) == encoded.kept == len(parts) - encoded.omitted
    assert [entry["text"] for entry in found.values()] == texts[: encoded.kept]
    assert max_bytes is None or len(encoded.json.encode()) <= max_bytes
    assert max_chars is None or len(encoded.json) <= max_chars
    if encoded.omitted:  # the next one would not have fitted
        more = encode_messages(parts[: encoded.kept + 1], max_bytes=None).json
        assert (max_bytes is not None and len(more.encode()) > max_bytes) or (
            max_chars is not None and len(more) > max_chars
        )


def test_the_default_budget_stays_far_below_a_grpc_message_and_holds_any_real_call():
    assert DEFAULT_MAX_BYTES * 4 < 4 * 1024 * 1024
    assert "voice.messages.omitted" not in call_attributes(
        fragments(1000, "A sentence of usual length. " * 10)
    )


def test_voice_messages_is_set_last_so_that_a_count_limit_drops_others():
    span, memory = span_with(max_span_attributes=3)
    span.set_attributes({"framework.a": 1, "framework.b": 2, "framework.c": 3})
    set_call_attributes(span, fragments(2), attributes={"voice.call_id": "c", "voice.origin_unix_ms": 5})
    found = exported(span, memory)
    assert list(found) == ["voice.call_id", "voice.origin_unix_ms", "voice.messages"]
    assert len(json.loads(found["voice.messages"])) == 2


@pytest.mark.parametrize("limit", [16, 300, 1000])
def test_the_sdks_length_limit_leaves_valid_json(limit):
    span, memory = span_with(max_span_attribute_length=limit)
    omitted = set_call_attributes(span, fragments(20), messages_uri="file:///m")
    found = exported(span, memory)
    kept = json.loads(found["voice.messages"])
    assert found["voice.messages.omitted"] == omitted == 20 - len(kept)
    assert found["voice.messages.uri"] == "file:///m"
    assert list(found)[-1] == "voice.messages"


def test_the_length_limit_from_the_environment_on_a_span_that_does_not_tell_its_limit(monkeypatch):
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "700")
    memory = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    span = provider.get_tracer("t").start_span("call")
    assert value_length_limit(span) == 700
    monkeypatch.setattr(encode, "value_length_limit", lambda _: None)  # read back instead
    assert set_call_attributes(span, fragments(20, "é" * 30)) > 0
    found = exported(span, memory)
    assert 0 < len(json.loads(found["voice.messages"])) < 20


def test_a_byte_budget_says_what_is_left_out():
    span, memory = span_with()
    assert set_call_attributes(span, fragments(10), max_bytes=500) == 7
    found = exported(span, memory)
    assert found["voice.messages.omitted"] == 7
    assert "voice.messages.uri" not in found


def test_nothing_is_done_on_a_span_that_does_not_record():
    assert set_call_attributes(INVALID_SPAN, fragments(3), max_bytes=2) == 0


@given(st.lists(st.tuples(st.sampled_from("ndc"), st.integers(0, 9)), max_size=40))
def test_entries_are_what_encoding_every_message_in_order_would_give(steps):
    """n: a new message of that seq, d: it is dropped, as a renamed key is, c: it changes."""
    entries, there = Entries(), {}
    for revision, (step, seq) in enumerate(steps):
        if (step == "n" and seq not in there) or (step == "c" and seq in there):
            there[seq] = message(seq, f"text {revision}")
            entries.put(there[seq])
        elif step == "d":
            entries.drop(f"item_{seq}")
            there.pop(seq, None)
        assert entries.fragments() == [(m.id, encode_entry(m)) for _, m in sorted(there.items())]


def test_only_what_changed_is_encoded_again(monkeypatch):
    encoded = []
    monkeypatch.setattr(encode, "encode_entry", lambda m: encoded.append(m.id) or "{}")
    entries = Entries()
    for n in range(300):
        entries.put(message(n))
        entries.fragments()
    assert encoded == [f"item_{n}" for n in range(300)]


@pytest.mark.skipif(sdk_version() < (1, 45), reason="older SDKs drop maps")
def test_the_structured_form_by_option():
    span, memory = span_with(max_span_attribute_length=10)
    set_call_attributes(span, fragments(2, "a text longer than ten"), structured=True)
    found = exported(span, memory)["voice.messages"]
    assert found["item_1"]["seq"] == 1
    assert found["item_1"]["text"] == "a text lon"


def test_the_structured_form_falls_back_to_a_string_with_one_warning(monkeypatch, caplog):
    encode._structured_supported.cache_clear()
    monkeypatch.setattr(encode, "sdk_version", lambda: (1, 44))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert isinstance(call_attributes(fragments(1), structured=True)[semconv.VOICE_MESSAGES], str)
    encode._structured_supported.cache_clear()
    assert caplog.text.count("1.44 cannot") == 1


def test_vt_53_audio_is_only_ever_referred_to():
    """Nothing in an entry grows with the audio: an hour of it is as long as a second."""

    def size(length_ms):
        selection = Selection(segment_id="s", channel="agent", start_ms=1_000_000, end_ms=length_ms)
        return len(encode_entry(message(selections=[selection])))

    assert size(1_001_000) == size(4_600_000)


def test_a_list_of_ids_survives_exporters_that_know_no_null(monkeypatch):
    assert id_list(["a", "b"]) == ["a", "b"]
    monkeypatch.setattr(encode, "sdk_version", lambda: (1, 44))
    assert id_list(("a", "b")) == ["a", "b"]
    assert id_list(["a", None]) == '["a",null]'
    monkeypatch.setattr(encode, "sdk_version", lambda: (1, 45))
    assert id_list(["a", None]) == ["a", None]
