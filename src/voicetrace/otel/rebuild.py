# SPDX-License-Identifier: Apache-2.0
"""Spans for a call that is known only from its journal, with the ids its live spans had."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from voicetrace import semconv
from voicetrace.call import CallRecorder
from voicetrace.messages import LLMStep
from voicetrace.otel.attributes import call_attributes, step_attributes
from voicetrace.otel.encode import call_attributes as with_messages
from voicetrace.otel.encode import encode_entry, valid_unicode


def call_spans(
    recorder: CallRecorder, *, recording_uri: str | None, messages_uri: str | None
) -> list[ReadableSpan]:
    """The call span of a finished fold, then its LLM steps. Steps that ran on end where the call ends.

    A call whose process died before it had a span gets ids that follow from its call id, so that
    recovering it twice gives the same spans.
    """
    start, end = recorder.started, recorder.ended
    assert start is not None
    assert end is not None
    bound = recorder.span
    digest = hashlib.sha256(start.call_id.encode()).hexdigest()
    trace_id = bound.trace_id if bound else digest[:32]
    span_id = bound.span_id if bound else digest[32:48]
    attributes = call_attributes(recorder, final=True) | {semconv.VOICE_RECOVERED: True}
    recording = recorder.recording
    if recording is not None:
        wire = recording.to_wire() | ({"uri": recording_uri} if recording_uri else {})
        attributes[semconv.VOICE_RECORDING] = json.dumps(wire, separators=(",", ":"))
    entries = [(m.id, encode_entry(m)) for m in recorder.ordered()]
    call = _span(
        bound.name if bound else semconv.SPAN_CALL,
        (trace_id, span_id),
        bound.parent_span_id if bound else None,
        bound.start_unix_ms if bound else start.origin_unix_ms,
        start.origin_unix_ms + end.at_ms,
        with_messages(entries, attributes=attributes, messages_uri=messages_uri),
    )
    return [
        call,
        *(_step_span(s, trace_id, span_id, start.origin_unix_ms, end.at_ms) for s in recorder.steps),
    ]


def _step_span(step: LLMStep, trace_id: str, call_span_id: str, origin_ms: int, end_ms: int) -> ReadableSpan:
    # a step's own parent (a turn span) died unexported with the process; the call span did not
    attributes = step_attributes(step) | {
        semconv.VOICE_CONTEXT_MESSAGE_COUNT: len(step.context_ids),
        semconv.VOICE_RECOVERED: True,
    }
    started = step.start_ms or 0
    return _span(
        step.name,
        (step.trace_id or trace_id, step.span_id),
        call_span_id,
        origin_ms + started,
        origin_ms + max(started, step.end_ms if step.end_ms is not None else end_ms),
        attributes,
        error=step.error,
    )


def _span(
    name: str,
    ids: tuple[str, str],
    parent_id: str | None,
    start_ms: int,
    end_ms: int,
    attributes: dict[str, Any],
    *,
    error: str = "",
) -> ReadableSpan:
    def context(span_id: str) -> SpanContext:
        flags = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(_id(ids[0], 32), _id(span_id, 16), is_remote=False, trace_flags=flags)

    return ReadableSpan(
        name=name,
        context=context(ids[1]),
        parent=context(parent_id) if parent_id else None,
        resource=Resource.create({semconv.SERVICE_NAME: "voicetrace"}),
        attributes=attributes,
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, error) if error else Status(StatusCode.UNSET),
        start_time=start_ms * 1_000_000,
        end_time=max(start_ms, end_ms) * 1_000_000,
        instrumentation_scope=InstrumentationScope(
            semconv.INSTRUMENTATION_NAME, schema_url=semconv.SCHEMA_URL
        ),
    )


def _id(text: str, digits: int) -> int:
    """The id as a number; of a text that is none (a damaged journal), always the same one."""
    is_one = len(text) == digits and set(text) <= set("0123456789abcdef") and text.strip("0")
    return int(text if is_one else hashlib.sha256(valid_unicode(text).encode()).hexdigest()[:digits], 16)
