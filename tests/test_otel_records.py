# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import format_span_id, use_span

from voicetrace.messages import Role, Selection, State, TextSource, TextStatus, VoiceMessage
from voicetrace.otel.records import MessageRecords, record_attributes
from voicetrace.otel.sizes import attributes_size, estimated_size


def spoken(**changes):
    fields = {
        "id": "item_a1",
        "role": Role.ASSISTANT,
        "seq": 2,
        "committed": True,
        "state": State.INTERRUPTED,
        "text_status": TextStatus.FINAL,
        "text": "We are open",
        "generated_text": "We are open until nine.",
        "text_source": TextSource.PLAYOUT_ALIGNED,
        "start_ms": 1000,
        "end_ms": 2000,
        "interrupted_at_ms": 2000,
        "selections": [Selection(segment_id="seg_1", channel="agent", start_ms=1000, end_ms=2000)],
        "produced_by_span_id": "00000000000000aa",
    }
    return VoiceMessage(**(fields | changes))


def tracing():
    memory = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    return provider, memory


def test_a_record_is_a_zero_length_child_of_the_call_span_at_the_end_of_the_message():
    provider, memory = tracing()
    call = provider.get_tracer("t").start_span("call")
    other = provider.get_tracer("t").start_span("current span of the callback")

    with use_span(other):
        MessageRecords("span", provider).emit(
            spoken(), call.get_span_context(), 1_700_000_000_000, 3, "call_1", conversation_id="conv"
        )
    (span,) = [s for s in memory.get_finished_spans() if s.name == "voice.message"]
    assert span.parent.span_id == call.get_span_context().span_id
    assert span.context.trace_id == call.get_span_context().trace_id
    assert span.start_time == span.end_time == 1_700_000_002_000_000_000
    assert dict(span.attributes) == {
        "voice.message.id": "item_a1",
        "voice.message.revision": 3,
        "voice.call_id": "call_1",
        "gen_ai.conversation.id": "conv",
        "voice.message.role": "assistant",
        "voice.message.seq": 2,
        "voice.message.committed": True,
        "voice.message.state": "interrupted",
        "voice.message.text_status": "final",
        "voice.message.text_source": "playout_aligned",
        "voice.message.start_ms": 1000,
        "voice.message.end_ms": 2000,
        "voice.message.interrupted_at_ms": 2000,
        "voice.message.produced_by_span_id": "00000000000000aa",
        "voice.message.selections": '[["seg_1","agent",1000,2000]]',
        "voice.message.text": "We are open",
        "voice.message.generated_text": "We are open until nine.",
    }
    call.end()
    other.end()


@given(text=st.text(max_size=3000), generated=st.none() | st.text(max_size=3000), count=st.integers(0, 30))
def test_a_record_stays_well_below_the_smallest_backend_limit(text, generated, count):
    selection = Selection(segment_id="segment_with_a_name", channel="agent", start_ms=0, end_ms=1)
    message = spoken(text=text * 3, generated_text=generated, selections=[selection] * count)
    found = record_attributes(message, 1, "c" * 500, "d" * 500)
    assert attributes_size(found) < 1900
    assert all(isinstance(value, str | int | bool) for value in found.values())
    assert (text * 3).startswith(found["voice.message.text"])
    cut = found["voice.message.text"] != text * 3 or found.get("voice.message.generated_text") != generated
    assert found.get("voice.message.text_truncated", False) is cut


def test_a_long_text_is_cut_at_a_character_and_says_so():
    found = record_attributes(spoken(text="😀" * 1000, generated_text=None), 1, "c")
    assert set(found["voice.message.text"]) == {"😀"}
    assert found["voice.message.text_truncated"] is True


def test_without_content_there_is_no_text():
    silent = spoken(text=None, generated_text=None, text_status=TextStatus.NOT_CAPTURED)
    assert (
        not {"voice.message.text", "voice.message.generated_text"} & record_attributes(silent, 1, "c").keys()
    )


def test_the_size_of_a_whole_exported_record():
    provider, memory = tracing()
    call = provider.get_tracer("t").start_span("call")
    MessageRecords("span", provider).emit(spoken(text="x" * 9999), call.get_span_context(), 0, 1, "c")
    assert estimated_size(memory.get_finished_spans()[0]) < 2048
    call.end()


def test_off_emits_nothing():
    provider, memory = tracing()
    call = provider.get_tracer("t").start_span("call")
    MessageRecords("off", provider).emit(spoken(), call.get_span_context(), 0, 1, "c")
    assert memory.get_finished_spans() == ()
    call.end()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_log_event_carries_the_call_spans_ids():
    from opentelemetry.sdk import _logs as sdk_logs
    from opentelemetry.sdk._logs import export as logs_export

    memory_type = getattr(logs_export, "InMemoryLogRecordExporter", None)
    if memory_type is None:
        pytest.skip("this SDK has no named events")
    memory = memory_type()
    logger_provider = sdk_logs.LoggerProvider(shutdown_on_exit=False)
    logger_provider.add_log_record_processor(logs_export.SimpleLogRecordProcessor(memory))
    provider, spans = tracing()
    call = provider.get_tracer("t").start_span("call")
    emitter = MessageRecords("log", provider, logger_provider)
    assert emitter.kind == "log"
    emitter.emit(spoken(), call.get_span_context(), 1000, 1, "call_1")
    (found,) = memory.get_finished_logs()
    assert found.log_record.event_name == "voice.message"
    assert format_span_id(found.log_record.span_id) == format_span_id(call.get_span_context().span_id)
    assert found.log_record.timestamp == 3_000_000_000
    assert found.log_record.attributes["voice.message.text"] == "We are open"
    assert spans.get_finished_spans() == ()
    call.end()


def test_a_logs_api_without_named_events_means_spans_and_one_warning(monkeypatch, caplog):
    class Old:
        def emit(self, record):
            raise AssertionError("not to be used")

    import opentelemetry._logs

    monkeypatch.setattr(opentelemetry._logs, "get_logger", lambda *a, **k: Old())
    provider, memory = tracing()
    call = provider.get_tracer("t").start_span("call")
    with caplog.at_level(logging.WARNING):
        emitter = MessageRecords("log", provider)
    emitter.emit(spoken(), call.get_span_context(), 0, 1, "c")
    assert len(memory.get_finished_spans()) == 1
    assert "message records are child spans" in caplog.text
    call.end()
