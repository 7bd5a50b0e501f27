# SPDX-License-Identifier: Apache-2.0
"""`VoiceTraceProcessor`: the one processor a user adds; anywhere in the pipeline.

It does not rely on the frames that pass through it, for no place sees them all. When it is set up it finds
the pipeline's role processors by type and listens to their synchronous events, which run inline, in
program order, in the task that pushes the frame (pipecat-capture.md, section 0).
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from pipecat.frames.frames import CancelFrame, Frame, InputAudioRawFrame
from pipecat.observers.base_observer import BaseObserver
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_response_universal import LLMAssistantAggregator, LLMUserAggregator
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor, FrameProcessorSetup
from pipecat.services.llm_service import LLMService
from pipecat.services.stt_service import STTService
from pipecat.services.tts_service import TTSService
from pipecat.transports.base_input import BaseInputTransport
from pipecat.transports.base_output import BaseOutputTransport

from voicetrace import semconv, settings
from voicetrace.integrations.pipecat.ids import ContextIds
from voicetrace.integrations.pipecat.speech import CURRENT_RUN, Run, SpeechAdapter
from voicetrace.integrations.pipecat.user import UserAdapter
from voicetrace.live import LiveCall
from voicetrace.messages import Channel
from voicetrace.otel.setup import get_provider

logger = logging.getLogger("voicetrace")

DEFAULT_SAMPLE_RATE: Final = 24_000

_Handler = Callable[..., None]


class PipecatSpanProcessor(SpanProcessor):
    """Knows Pipecat's live spans: the `conversation` of each pipeline, and the `llm` span of each run.

    One per provider; never blocks, never raises.
    """

    def __init__(self) -> None:
        self._conversations: dict[int, Span] = {}
        self._runs: dict[int, Run] = {}
        self._lock = threading.Lock()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """A span began: a conversation is remembered, an LLM span belongs to its task's run."""
        if span.context is None:
            return
        if span.name == semconv.PIPECAT_SPAN_CONVERSATION:
            with self._lock:
                self._conversations[span.context.span_id] = span
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
            self._conversations.pop(span.context.span_id, None)
            run = self._runs.pop(span.context.span_id, None)
        if run is not None:
            run.adapter.span_ended(span)

    def conversation(self, span_id: int) -> Span | None:
        """The live `conversation` span of this id."""
        with self._lock:
            return self._conversations.get(span_id)


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


class _AtCleanup(BaseObserver):
    """An observer that only waits for the worker's cleanup, the last moment of the conversation's span."""

    def __init__(self, finish: Callable[[], None]) -> None:
        super().__init__()
        self._finish = finish

    async def cleanup(self) -> None:
        self._finish()
        await super().cleanup()  # type: ignore[no-untyped-call]


class VoiceTraceProcessor(FrameProcessor):
    """Makes a pipeline a readable call. ``Pipeline([..., VoiceTraceProcessor()])`` is all there is to do.

    Frames pass through unchanged. The settings are `voicetrace.configure`'s at the time the pipeline is
    set up. Build it before the pipeline runs: it registers for spans when it is made.
    """

    def __init__(self, *, tracer_provider: TracerProvider | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        chosen = settings.current()
        provider, _ = get_provider(tracer_provider or chosen.tracer_provider, chosen.directory)
        self._provider = provider if isinstance(provider, TracerProvider) else None
        self._spans = span_processor(self._provider) if self._provider is not None else None
        self._trace: PipelineTrace | None = None

    @property
    def call(self) -> LiveCall | None:
        """The call of the pipeline that is running, or ran last."""
        return self._trace.call if self._trace is not None else None

    async def setup(self, setup: FrameProcessorSetup) -> None:  # type: ignore[override]  # as Pipecat's own
        """Find the roles and listen to them."""
        await super().setup(setup)
        try:
            self._trace = PipelineTrace(setup, self._provider, self._spans)
        except Exception as error:  # logged: the pipeline runs on, without a trace
            logger.warning(
                "voicetrace could not follow this pipeline (%s: %s); it runs on, untraced",
                type(error).__name__,
                error,
                exc_info=error,
            )

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Pass everything on."""
        await super().process_frame(frame, direction)
        await self.push_frame(frame, direction)

    async def cleanup(self) -> None:
        """The last resort, for a pipeline that never started."""
        if self._trace is not None:
            self._trace.finish("cleanup")
        await super().cleanup()  # type: ignore[no-untyped-call]


class PipelineTrace:
    """Follows one run of one pipeline. Loop-affine; every handler is guarded."""

    def __init__(
        self,
        setup: FrameProcessorSetup,
        provider: TracerProvider | None,
        spans: PipecatSpanProcessor | None,
    ) -> None:
        chosen = settings.current()
        worker = setup.pipeline_worker
        self.call = LiveCall(
            settings=chosen,
            framework="pipecat",
            framework_version=version("pipecat-ai"),
            tracer_provider=provider,
        )
        self._spans = spans
        self._provider = provider
        self._tracing = setup.tracing_context if setup.enable_tracing else None
        ids = ContextIds()
        self.user = UserAdapter(self.call, ids)
        self.speech = SpeechAdapter(self.call, ids)
        self._attached: list[tuple[FrameProcessor, str, _Handler]] = []
        self._rate = setup.audio_out_sample_rate or DEFAULT_SAMPLE_RATE
        self._worker = worker
        self.call.attach_loop(setup.task_manager.get_event_loop())
        if provider is not None:
            self.speech.use_tracer(trace.get_tracer(semconv.INSTRUMENTATION_NAME, tracer_provider=provider))
        if self._tracing is None:
            self._own_span()
        if self.call.files.wants_audio:
            self.call.files.start_recording(self._rate)
        for processor in walk(worker.pipeline):
            self._attach(processor)
        worker.add_event_handler("on_pipeline_finished", self._on_finished)
        worker.add_observer(_AtCleanup(lambda: self.finish("pipeline over")))

    # -- roles ---------------------------------------------------------------------------------------
    def _attach(self, processor: FrameProcessor) -> None:
        user, speech = self.user, self.speech
        if isinstance(processor, BaseInputTransport):
            if Channel.CALLER in self.call.files.wants_audio:
                self._on(processor, "on_before_push_frame", lambda _, f: self._caller_audio(f))
        elif isinstance(processor, STTService):
            self._on(processor, "on_before_push_frame", lambda _, f: user.transcribed(f))
        elif isinstance(processor, LLMUserAggregator):
            self._on(processor, "on_before_push_frame", user.pushed)
        elif isinstance(processor, LLMService):
            self._on(processor, "on_before_process_frame", lambda _, f: speech.llm_receives(f))
            self._on(processor, "on_before_push_frame", lambda _, f: speech.llm_pushes(f))
        elif isinstance(processor, TTSService):
            self._on(processor, "on_before_process_frame", lambda _, f: speech.tts_receives(f))
            self._on(processor, "on_after_process_frame", lambda _, f: speech.tts_received(f))
            self._on(processor, "on_before_push_frame", lambda _, f: speech.tts_pushes(f))
            self._on(processor, "on_tts_request", self._requested)
            self._time_words(processor)
        elif isinstance(processor, BaseOutputTransport):
            self._on(processor, "on_before_push_frame", lambda _, f: speech.output_pushes(f))
        elif isinstance(processor, LLMAssistantAggregator):
            self._on(processor, "on_after_process_frame", lambda _, f: speech.aggregator_received(f))
            self._on(processor, "on_before_push_frame", speech.aggregator_pushes)

    def _on(self, processor: FrameProcessor, event: str, handler: _Handler) -> None:
        hook = f"{type(processor).__name__}.{event}"
        guarded = self.call.guard.wrap(hook, handler)

        def handle(source: Any, *args: Any) -> None:
            if not self.call.closed:
                self._bind_conversation()
                guarded(source, *args)

        processor.add_event_handler(event, handle)
        self._attached.append((processor, event, handle))

    def _requested(self, tts: TTSService, context_id: str, text: str) -> None:
        tokens = bool(getattr(tts, "_is_streaming_tokens", False))
        self.speech.tts_requested(context_id, text, tokens=tokens)

    def _time_words(self, tts: TTSService) -> None:
        """Listen in on the public `add_word_timestamps`, the only place with the provider's own offsets."""
        original = tts.add_word_timestamps
        timed = self.call.guard.wrap("add_word_timestamps", self.speech.words_timed)
        call = self.call

        async def add_word_timestamps(
            word_times: list[tuple[str, float]], context_id: str | None = None, *args: Any, **kwargs: Any
        ) -> None:
            if not call.closed:
                spaced = bool(kwargs.get("includes_inter_frame_spaces", args[0] if args else None))
                timed(context_id, list(word_times), spaced=spaced)
            await original(word_times, context_id, *args, **kwargs)

        add_word_timestamps._voicetrace = self  # type: ignore[attr-defined]  # noqa: SLF001
        tts.add_word_timestamps = add_word_timestamps  # type: ignore[method-assign]

    def _caller_audio(self, frame: Frame) -> None:
        if isinstance(frame, InputAudioRawFrame):
            self.call.files.caller_audio(
                self.call.precise_ms(), bytes(frame.audio), frame.sample_rate, frame.num_channels
            )

    # -- spans ---------------------------------------------------------------------------------------
    def _own_span(self) -> None:
        tracer = trace.get_tracer(semconv.INSTRUMENTATION_NAME, tracer_provider=self._provider)
        self.call.bind_span(tracer.start_span(semconv.SPAN_CALL), own=True)

    def _bind_conversation(self) -> None:
        """Pipecat's own call span opens with the StartFrame; its context is all that is handed out."""
        if self.call.span is not None or self._tracing is None or self._spans is None:
            return
        context = self._tracing.get_conversation_context()
        if context is None:
            return
        span_id = trace.get_current_span(context).get_span_context().span_id
        span = self._spans.conversation(span_id)
        if span is not None:
            self.call.bind_span(span)

    # -- the end -------------------------------------------------------------------------------------
    async def _on_finished(self, _: PipelineWorker, frame: Frame) -> None:
        self.finish("cancelled" if isinstance(frame, CancelFrame) else type(frame).__name__)

    def finish(self, reason: str) -> None:
        """The run is over, however it ended. Harmless when repeated."""
        if self.call.closed:
            return
        self._bind_conversation()
        self.speech.finish()
        self.call.close(reason)
        self.detach()

    def detach(self) -> None:
        """Take every handler away, and leave the services as they were."""
        for processor, event, handle in self._attached:
            handlers = getattr(processor, "_event_handlers", {}).get(event)
            if handlers is not None and handle in handlers.handlers:
                handlers.handlers.remove(handle)
        self._attached.clear()
        for processor in walk(self._worker.pipeline):
            wrapped = vars(processor).get("add_word_timestamps")
            if getattr(wrapped, "_voicetrace", None) is self:
                del processor.add_word_timestamps  # type: ignore[attr-defined]


def walk(processor: FrameProcessor) -> Iterator[FrameProcessor]:
    """A processor and all it contains: pipelines, parallel branches, switchers."""
    yield processor
    for inner in processor.processors:
        yield from walk(inner)
