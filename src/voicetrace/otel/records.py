# SPDX-License-Identifier: Apache-2.0
"""One small record per message (architecture, "On the wire"): a live view that no backend truncates.

Flat scalar attributes ``voice.message.<field>``, below `RECORD_BYTES` with every field that is short by
nature; long texts are cut at a character boundary and say so.
"""

from __future__ import annotations

import inspect
import json
import logging
import time
from typing import TYPE_CHECKING, Any, Final, Literal

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TracerProvider, set_span_in_context

from voicetrace import semconv
from voicetrace.messages import VoiceMessage
from voicetrace.otel.encode import valid_unicode

if TYPE_CHECKING:
    from opentelemetry._logs import Logger, LoggerProvider

logger = logging.getLogger("voicetrace.otel")

RecordKind = Literal["span", "log", "off"]

# the smallest limit of the backends we know is 2,048 bytes; the rest is for the envelope
RECORD_BYTES: Final = 1700
_SELECTIONS_BYTES: Final = 400
_ID_BYTES: Final = 128
_TEXTS: Final = ("text", "generated_text")


class MessageRecords:
    """Emits the records of one tracer (or logger) provider.

    ``kind`` is ``span`` for a zero-length child span of the call span, ``log`` for an OpenTelemetry log
    event (needs an API that can name events, else spans are used, with one warning), or ``off``. Thread-safe;
    one `emit` costs about as much as one span.
    """

    def __init__(
        self,
        kind: RecordKind,
        tracer_provider: TracerProvider | None = None,
        logger_provider: LoggerProvider | None = None,
    ) -> None:
        self.kind: RecordKind = kind
        self._logger: Logger | None = None
        if kind == "log":
            self._logger = _event_logger(logger_provider)
            if self._logger is None:
                self.kind = "span"
        self._tracer = trace.get_tracer(
            semconv.INSTRUMENTATION_NAME, tracer_provider=tracer_provider, schema_url=semconv.SCHEMA_URL
        )

    def emit(
        self,
        message: VoiceMessage,
        call_span_context: SpanContext,
        origin_unix_ms: int,
        revision: int,
        call_id: str,
        *,
        conversation_id: str = "",
    ) -> None:
        """Emit the record of a message that settled, at the time the message ended.

        ``revision`` grows with every record of one message; a reader keeps the highest.
        """
        if self.kind == "off":
            return
        attributes = record_attributes(message, revision, call_id, conversation_id)
        at_ms = next((ms for ms in (message.end_ms, message.start_ms) if ms is not None), None)
        at_ns = time.time_ns() if at_ms is None else (origin_unix_ms + at_ms) * 1_000_000
        context = set_span_in_context(NonRecordingSpan(call_span_context), Context())
        if self._logger is not None:
            self._logger.emit(
                timestamp=at_ns, context=context, event_name=semconv.MESSAGE_RECORD, attributes=attributes
            )
            return
        span = self._tracer.start_span(
            semconv.MESSAGE_RECORD, context=context, start_time=at_ns, attributes=attributes
        )
        span.end(at_ns)


def record_attributes(
    message: VoiceMessage, revision: int, call_id: str, conversation_id: str = ""
) -> dict[str, str | int | bool]:
    """The flat attributes of one record, about `RECORD_BYTES` at most; no text when none was captured."""
    prefix = semconv.MESSAGE_FIELD_PREFIX
    out: dict[str, str | int | bool] = {
        semconv.MESSAGE_ID: valid_unicode(message.id),
        semconv.MESSAGE_REVISION: revision,
        semconv.VOICE_CALL_ID: _cut(call_id, _ID_BYTES),
    }
    if conversation_id:
        out[semconv.GEN_AI_CONVERSATION_ID] = _cut(conversation_id, _ID_BYTES)
    wire = message.to_wire()
    selections = wire.pop("selections")
    texts = {name: valid_unicode(wire.pop(name)) for name in _TEXTS if name in wire}
    out |= {prefix + name: value for name, value in wire.items()}
    compact = _compact_selections(selections)
    if len(compact.encode()) <= _SELECTIONS_BYTES:
        out[prefix + "selections"] = compact

    left = RECORD_BYTES - sum(len(key) + len(str(value).encode()) + 8 for key, value in out.items())
    for remaining, (name, text) in zip(range(len(texts), 0, -1), texts.items(), strict=True):
        cut = _cut(text, max(0, left // remaining - len(prefix + name) - 8))
        out[prefix + name] = cut
        if len(cut) < len(text):
            out[semconv.MESSAGE_TEXT_TRUNCATED] = True
        left -= len(prefix + name) + len(cut.encode()) + 8
    return out


def _compact_selections(selections: list[dict[str, Any]]) -> str:
    """``[[segment_id, channel, start_ms, end_ms], ...]`` as JSON, segment ms."""
    rows = [[s["segment_id"], s["channel"], s["start_ms"], s["end_ms"]] for s in selections]
    return valid_unicode(json.dumps(rows, ensure_ascii=False, separators=(",", ":")))


def _cut(text: str, max_bytes: int) -> str:
    """The longest start of the text within ``max_bytes`` of UTF-8, whole characters only."""
    # more characters than bytes never fit, so the encoding is of a short string
    return valid_unicode(text[:max_bytes]).encode()[:max_bytes].decode(errors="ignore")


def _event_logger(provider: LoggerProvider | None) -> Logger | None:
    from opentelemetry._logs import get_logger

    found = get_logger(semconv.INSTRUMENTATION_NAME, logger_provider=provider, schema_url=semconv.SCHEMA_URL)
    if "event_name" in inspect.signature(found.emit).parameters:
        return found
    logger.warning(
        "this opentelemetry version cannot emit named events (1.39 can): message records are child spans"
    )
    return None
