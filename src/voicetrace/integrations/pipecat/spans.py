# SPDX-License-Identifier: Apache-2.0
"""Pipecat's live spans, which it hands out only as ids: the `conversation`s, and the `llm` span of each run.

One processor per provider, registered before anything runs: a `conversation` starts with the pipeline
(pipecat-capture.md, section 0, rule 1).
"""

from __future__ import annotations

import threading
import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider

from voicetrace import semconv

if TYPE_CHECKING:
    from voicetrace.integrations.pipecat.speech import Run
    from voicetrace.live import LiveCall

# the LLM run that the running task works for; a native `llm` span that starts in it is the run's
CURRENT_RUN: ContextVar[Run | None] = ContextVar("voicetrace_pipecat_run", default=None)


class PipecatSpanProcessor(SpanProcessor):
    """Knows each live `conversation`, and tells each run of its `llm` span. Never blocks, never raises."""

    def __init__(self) -> None:
        self._live: dict[int, Span] = {}
        self._runs: dict[int, Run] = {}
        self._lock = threading.Lock()
        self.calls: weakref.WeakSet[LiveCall] = weakref.WeakSet()
        """The calls whose spans the provider makes."""

    def shutdown(self) -> None:
        """The provider goes: no span that is open now will be sent."""
        for call in list(self.calls):
            call.guard.wrap("provider_gone", call.provider_gone)()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """A span began: a conversation is remembered, an LLM span belongs to its task's run."""
        if span.context is None:
            return
        if span.name in (semconv.PIPECAT_SPAN_CONVERSATION, semconv.PIPECAT_SPAN_LLM_RESPONSE):
            with self._lock:
                self._live[span.context.span_id] = span
        elif span.name == semconv.PIPECAT_SPAN_LLM:
            run = CURRENT_RUN.get()
            if run is not None:
                with self._lock:
                    self._runs[span.context.span_id] = run
                run.adapter.span_started(run, span)

    def on_end(self, span: ReadableSpan) -> None:
        """A span ended."""
        if span.context is None:
            return
        with self._lock:
            self._live.pop(span.context.span_id, None)
            run = self._runs.pop(span.context.span_id, None)
        if run is not None:
            run.adapter.span_ended(run, span)

    def live(self, span_id: int) -> Span | None:
        """The `conversation` or `llm_response` of this id that has not ended."""
        with self._lock:
            return self._live.get(span_id)

    def follow(self, span_id: int, run: Run) -> None:
        """Tell this run when the span ends."""
        with self._lock:
            self._runs[span_id] = run


_PROCESSORS: weakref.WeakKeyDictionary[TracerProvider, PipecatSpanProcessor] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def span_processor(provider: TracerProvider) -> PipecatSpanProcessor:
    """The one span processor of ours on this provider."""
    with _LOCK:
        found = _PROCESSORS.get(provider)
        if found is None:
            found = _PROCESSORS[provider] = PipecatSpanProcessor()
            provider.add_span_processor(found)
        return found
