# SPDX-License-Identifier: Apache-2.0
"""Scores on the call's own trace: one standard ``gen_ai.evaluation.result`` event a dimension.

An OpenTelemetry log event where the API can name events (1.39 and later), bound to the call's span; else,
or on request, a zero-length child span of that name, for backends that take traces only.
"""

from __future__ import annotations

import inspect
from datetime import datetime
from typing import TYPE_CHECKING, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from voicetrace import semconv
from voicetrace.judge.batch.source import CallRef
from voicetrace.judge.result import CallJudgement, Dimension
from voicetrace.otel.encode import valid_unicode

if TYPE_CHECKING:
    from opentelemetry._logs import Logger, LoggerProvider
    from opentelemetry.trace import TracerProvider

OVERALL: Final = "overall"
_LONGEST: Final = 1000  # bytes are cut by backends, from about 2,000 on


def evaluation_attributes(ref: CallRef, judgement: CallJudgement) -> list[dict[str, str | float]]:
    """The attributes of each event: ten dimensions and the mean. What has no score says why, and has none."""
    shared: dict[str, str | float] = {semconv.VOICE_CALL_ID: valid_unicode(judgement.call_sid)}
    for name, value in (
        (semconv.GEN_AI_CONVERSATION_ID, ref.conversation_id),
        (semconv.VOICE_WORKSPACE_ID, judgement.workspace_id),
        (semconv.VOICE_SERVICE_ID, judgement.service_id or ""),
    ):
        if value:
            shared[name] = valid_unicode(value)
    out = []
    for dimension in Dimension:
        found = judgement.dimensions[dimension]
        one = shared | {semconv.GEN_AI_EVALUATION_NAME: dimension.value}
        explanation = found.reason
        if found.score is not None:
            one[semconv.GEN_AI_EVALUATION_SCORE_VALUE] = found.score
            one[semconv.GEN_AI_EVALUATION_SCORE_LABEL] = str(found.severity)
        elif found.null_reason is not None:
            explanation = f"{found.null_reason}: {found.reason}" if found.reason else str(found.null_reason)
        if explanation:
            one[semconv.GEN_AI_EVALUATION_EXPLANATION] = valid_unicode(explanation[:_LONGEST])
        out.append(one)
    if judgement.overall is not None:
        out.append(
            shared
            | {
                semconv.GEN_AI_EVALUATION_NAME: OVERALL,
                semconv.GEN_AI_EVALUATION_SCORE_VALUE: judgement.overall,
            }
        )
    return out


class EvaluationEvents:
    """Emits the events of judged calls. Give a logger provider, or, for spans, a tracer provider."""

    def __init__(
        self, *, logger_provider: LoggerProvider | None = None, tracer_provider: TracerProvider | None = None
    ) -> None:
        self._logger = _named_events(logger_provider) if logger_provider is not None else None
        self._tracer = trace.get_tracer(
            semconv.INSTRUMENTATION_NAME, tracer_provider=tracer_provider, schema_url=semconv.SCHEMA_URL
        )

    def emit(self, ref: CallRef, judgement: CallJudgement, computed_at: datetime) -> int:
        """Emit the events of one call, and say how many. Without the ids of its span they stand alone."""
        context = _context(ref)
        at_ns = int(computed_at.timestamp() * 1_000_000) * 1000
        found = evaluation_attributes(ref, judgement)
        for attributes in found:
            if self._logger is not None:
                self._logger.emit(
                    timestamp=at_ns,
                    context=context,
                    event_name=semconv.GEN_AI_EVALUATION_RESULT,
                    attributes=attributes,
                )
            else:
                self._tracer.start_span(
                    semconv.GEN_AI_EVALUATION_RESULT, context=context, start_time=at_ns, attributes=attributes
                ).end(at_ns)
        return len(found)


def _context(ref: CallRef) -> Context:
    try:
        trace_id, span_id = int(ref.trace_id, 16), int(ref.span_id, 16)
    except ValueError:
        return Context()
    span = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return set_span_in_context(NonRecordingSpan(span), Context()) if span.is_valid else Context()


def _named_events(provider: LoggerProvider) -> Logger | None:
    from opentelemetry._logs import get_logger

    found = get_logger(semconv.INSTRUMENTATION_NAME, logger_provider=provider, schema_url=semconv.SCHEMA_URL)
    return found if "event_name" in inspect.signature(found.emit).parameters else None
