# SPDX-License-Identifier: Apache-2.0
"""`PipelineTrace`: one run of one pipeline, followed from its set-up to its end.

It finds the pipeline's role processors by type, wherever they are, and listens to their synchronous events,
which run inline, in program order, in the task that pushes the frame (pipecat-capture.md, section 0).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from pipecat.frames import frames as f
from pipecat.observers.base_observer import BaseObserver
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_response_universal import LLMAssistantAggregator, LLMUserAggregator
from pipecat.processors.frame_processor import FrameProcessor, FrameProcessorSetup
from pipecat.services.llm_service import LLMService
from pipecat.services.stt_service import STTService
from pipecat.services.tts_service import TTSService
from pipecat.transports.base_input import BaseInputTransport
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.utils.text.word_timestamp_utils import merge_punct_tokens

from voicetrace import semconv, settings
from voicetrace.guard import Guard
from voicetrace.integrations.pipecat.ids import ContextIds
from voicetrace.integrations.pipecat.playout import Bracket
from voicetrace.integrations.pipecat.realtime import RealtimeAdapter
from voicetrace.integrations.pipecat.spans import CURRENT_RUN, PipecatSpanProcessor
from voicetrace.integrations.pipecat.speech import Run, SpeechAdapter, any_of
from voicetrace.integrations.pipecat.taps import Taps
from voicetrace.integrations.pipecat.user import UserAdapter
from voicetrace.live import LiveCall
from voicetrace.messages import Channel

DEFAULT_SAMPLE_RATE: Final = 24_000
CALL_KEY: Final = "voicetrace.call"

# the calls that are going on, by id: a context frame names its call, also in another worker's pipeline
_CALLS: weakref.WeakValueDictionary[str, PipelineTrace] = weakref.WeakValueDictionary()


class _UntilStarted(BaseObserver):
    """Waits for the worker's cleanup while nothing else would tell it: until the pipeline has started.

    Every observer costs each frame a queue and a task, so it is taken off as soon as it can be.
    """

    observe_every_push = False

    def __init__(self, finish: Callable[[], None]) -> None:
        super().__init__()
        self._finish: Callable[[], None] | None = finish

    def disarm(self) -> None:
        self._finish = None

    async def cleanup(self) -> None:
        if self._finish is not None:
            self._finish()
        await super().cleanup()  # type: ignore[no-untyped-call]


class PipelineTrace:
    """Follows one run of one pipeline. Loop-affine; every handler is guarded."""

    def __init__(
        self,
        setup: FrameProcessorSetup,
        provider: TracerProvider | None,
        spans: PipecatSpanProcessor | None,
        version: str,
    ) -> None:
        chosen = settings.current()
        self.worker = weakref.ref(setup.pipeline_worker)
        self.call = LiveCall(
            settings=chosen,
            framework="pipecat",
            framework_version=version,
            tracer_provider=provider,
        )
        self._provider = provider
        self._spans = spans
        if spans is not None:
            spans.calls.add(self.call)
        self._tracing = setup.tracing_context if setup.enable_tracing else None
        self._ids = ids = ContextIds()
        self.user = UserAdapter(self.call, ids)
        self.speech = SpeechAdapter(self.call, ids)
        self._realtime: list[RealtimeAdapter] = []
        self._bind = self.call.guard.wrap("call_span", self._bind_conversation)
        self.taps = Taps(self.call.guard, self._is_going_on)
        self._roles: set[type] = set()
        self._heard_caller = False
        self._finish = self.call.guard.wrap("finish", self._finish_now)
        self._until_started = _UntilStarted(lambda: self.finish("the pipeline never started"))
        self.call.attach_loop(setup.task_manager.get_event_loop())
        if provider is not None:
            self.speech.use_tracer(trace.get_tracer(semconv.INSTRUMENTATION_NAME, tracer_provider=provider))
        if self._tracing is None:
            self._own_span()
        if self.call.files.wants_audio:
            self.call.files.start_recording(setup.audio_out_sample_rate or DEFAULT_SAMPLE_RATE)
        for processor in walk(setup.pipeline_worker.pipeline):
            self._attach(processor)
        self._say_what_is_missing()
        self.taps.event(setup.pipeline_worker, "on_pipeline_started", self._on_started)
        self.taps.event(setup.pipeline_worker, "on_pipeline_finished", self._on_finished)
        setup.pipeline_worker.add_observer(self._until_started)
        _CALLS[self.call.call_id] = self

    # -- roles ---------------------------------------------------------------------------------------
    def _attach(self, processor: FrameProcessor) -> None:
        for role, attach in _ROLES.items():
            if isinstance(processor, role):
                self._roles.add(role)
                attach(self, processor)
                return

    def _attach_mic(self, mic: BaseInputTransport) -> None:
        if Channel.CALLER in self.call.files.wants_audio:
            self.taps.frames(
                "mic.push", mic, "on_before_push_frame", {f.InputAudioRawFrame: lambda _, x: self._hears(x)}
            )

    def _attach_stt(self, stt: STTService) -> None:
        told = (f.TranscriptionFrame, f.InterimTranscriptionFrame)
        transcribed = self.user.transcribed
        self.taps.frames("stt.push", stt, "on_before_push_frame", any_of(told, lambda _, x: transcribed(x)))

    def _attach_user(self, aggregator: LLMUserAggregator) -> None:
        user, call_id = self.user, self.call.call_id
        muted = (f.UserMuteStartedFrame, f.UserMuteStoppedFrame)
        self.taps.frames(
            "user.push",
            aggregator,
            "on_before_push_frame",
            {
                f.VADUserStartedSpeakingFrame: lambda _, x: user.vad_started(x),
                f.VADUserStoppedSpeakingFrame: lambda _, x: user.vad_stopped(x),
                f.UserStartedSpeakingFrame: lambda _, x: user.turn_started(x),
                f.UserStoppedSpeakingFrame: lambda _, x: user.turn_stopped(x),
                f.LLMContextUserTurnFrame: user.message_added,
                f.LLMContextFrame: lambda _, x: x.metadata.__setitem__(CALL_KEY, call_id),
                f.EagerEndOfTurnCancelFrame: lambda _, x: self.speech.attempt_dropped(),
                **any_of(muted, lambda _, x: user.muted(x)),
            },
        )
        closed = self.call.guard.wrap("user.turn", user.turn_closed)
        self.taps.event(
            aggregator, "on_user_turn_stopped", lambda _, strategy, message: closed(message.content)
        )

    def _attach_llm(self, llm: LLMService[Any]) -> None:
        listen_to_llm(self, self.taps, llm)

    def follow_realtime(self, llm: LLMService[Any], announced: f.LLMServiceMetadataFrame | None) -> None:
        """This service hears and speaks by itself."""
        adapter = RealtimeAdapter(self.call, self._ids, self.user, self.speech, self._spans)
        self._realtime.append(adapter)
        adapter.attach(self.taps, llm, announced)

    def _attach_tts(self, tts: TTSService) -> None:
        speech, guard = self.speech, self.call.guard
        speech.has_tts = True
        spoken = (f.LLMTextFrame, f.LLMFullResponseStartFrame, f.LLMFullResponseEndFrame, f.TTSSpeakFrame)
        self.taps.frames(
            "tts.process", tts, "on_before_process_frame", any_of(spoken, lambda _, x: speech.tts_receives(x))
        )
        self.taps.frames(
            "tts.push",
            tts,
            "on_before_push_frame",
            {
                f.TTSStartedFrame: lambda _, x: speech.tts_starts(x),
                f.LLMFullResponseEndFrame: lambda _, x: speech.tts_ends(x),
            },
        )
        requested = guard.wrap("tts.request", self._requested)
        self.taps.event(
            tts, "on_tts_request", lambda *args: requested(*args) if not self.call.closed else None
        )
        self.taps.method(tts, "add_word_timestamps", self._timed(tts))

    def _requested(self, tts: TTSService, context_id: str, text: str) -> None:
        tokens = bool(getattr(tts, "_is_streaming_tokens", False))
        self.speech.tts_requested(context_id, text, tokens=tokens)

    def _timed(self, tts: TTSService) -> Callable[..., Any]:
        """Listen in on the public `add_word_timestamps`, the only place with the provider's own offsets."""
        original, call = tts.add_word_timestamps, self.call
        timed = call.guard.wrap("tts.words", self.speech.words_timed)

        async def add_word_timestamps(
            word_times: list[tuple[str, float]], context_id: str | None = None, *args: Any, **kwargs: Any
        ) -> None:
            if not call.closed:
                spaced = bool(kwargs.get("includes_inter_frame_spaces", args[0] if args else None))
                merge = bool(kwargs.get("pre_merge_tokens", args[1] if len(args) > 1 else None))
                timed(context_id, merge_punct_tokens(word_times) if merge else word_times, spaced=spaced)
            await original(word_times, context_id, *args, **kwargs)

        return add_word_timestamps

    def _attach_speaker(self, speaker: BaseOutputTransport) -> None:
        speech = self.speech
        self.taps.frames(
            "speaker.push",
            speaker,
            "on_before_push_frame",
            {
                f.TTSAudioRawFrame: lambda t, x: speech.output_plays(x, t),
                f.TTSStartedFrame: lambda t, x: speech.output_starts(x, t),
                f.TTSTextFrame: lambda _, x: speech.output_tells(x),
                f.BotStartedSpeakingFrame: lambda t, x: speech.output_speaks(x, t),
                f.TTSStoppedFrame: lambda t, x: speech.output_stops(x, t),
                f.InterruptionFrame: lambda _, x: speech.interrupted(x),
            },
        )
        if type(speaker).__module__.startswith("pipecat.transports.livekit"):
            self.speech.on_cut = lambda bracket: self._buffer_cleared(speaker, bracket)

    def _buffer_cleared(self, speaker: BaseOutputTransport, bracket: Bracket) -> None:
        limit = getattr(getattr(speaker, "_params", None), "audio_out_queue_size_ms", None)
        most = f"up to {limit} ms" if isinstance(limit, int) else "a part"
        self.call.fault(
            f"the LiveKit transport throws its buffer away when it is interrupted: {most} of what "
            "interrupted messages are said to have played was never heard"
        )

    def _attach_assistant(self, aggregator: LLMAssistantAggregator) -> None:
        speech, call_id = self.speech, self.call.call_id
        speech.has_assistant = True
        received = (
            f.TTSTextFrame,
            f.LLMTextFrame,
            f.LLMFullResponseEndFrame,
            f.LLMAssistantPushAggregationFrame,
            f.InterruptionFrame,
            f.EndFrame,
            f.CancelFrame,
        )
        self.taps.frames(
            "assistant.process",
            aggregator,
            "on_before_process_frame",
            any_of(received, lambda _, x: speech.assistant_receives(x)),
        )
        self.taps.frames(
            "assistant.push",
            aggregator,
            "on_before_push_frame",
            {
                f.LLMContextAssistantTimestampFrame: lambda a, _: speech.assistant_commits(a),
                f.LLMContextFrame: lambda _, x: x.metadata.__setitem__(CALL_KEY, call_id),
            },
        )

    def _hears(self, frame: f.InputAudioRawFrame) -> None:
        self._heard_caller = True
        self.call.files.caller_audio(
            self.call.precise_ms(), bytes(frame.audio), frame.sample_rate, frame.num_channels
        )

    def _say_what_is_missing(self) -> None:
        wanted = self.call.files.wants_audio
        if Channel.CALLER in wanted and BaseInputTransport not in self._roles:
            self.call.fault("the pipeline has no input transport: the caller's channel is silent")
        if Channel.AGENT in wanted and BaseOutputTransport not in self._roles:
            self.call.fault("the pipeline has no output transport: the agent's channel is silent")

    # -- spans ---------------------------------------------------------------------------------------
    def _is_going_on(self) -> bool:
        if self.call.closed:
            return False
        if self.call.span is None:
            self._bind()
        return True

    def _own_span(self) -> None:
        tracer = trace.get_tracer(semconv.INSTRUMENTATION_NAME, tracer_provider=self._provider)
        self.call.bind_span(tracer.start_span(semconv.SPAN_CALL), own=True)

    def _bind_conversation(self) -> None:
        """Pipecat's own call span opens with the StartFrame; its context is all that is handed out."""
        if self.call.span is not None or self._tracing is None:
            return
        context = self._tracing.get_conversation_context()
        if context is None:
            return
        span_id = trace.get_current_span(context).get_span_context().span_id
        span = self._spans.live(span_id) if self._spans is not None else None
        if span is not None:
            self.call.bind_span(span)
        else:  # it goes to another provider than ours, or is not sampled
            self._own_span()

    # -- the end -------------------------------------------------------------------------------------
    async def _on_started(self, worker: PipelineWorker, _: f.Frame) -> None:
        self._until_started.disarm()
        await worker.remove_observer(self._until_started)

    def _on_finished(self, _: PipelineWorker, frame: f.Frame) -> None:
        drained = not isinstance(frame, f.CancelFrame)
        self.finish(type(frame).__name__ if drained else "cancelled", drained=drained)

    def finish(self, reason: str, *, drained: bool = False) -> None:
        """The run is over, however it ended. Harmless when repeated; never raises."""
        if self.call.closed:
            return
        self._finish(drained)
        self.call.guard.wrap("close", self.call.close)(reason)
        self.call.guard.wrap("detach", self.taps.detach)()

    def _finish_now(self, drained: bool) -> None:
        self._bind_conversation()
        for adapter in self._realtime:
            adapter.finish()
        self.speech.finish(drained=drained)
        silent = BaseInputTransport in self._roles and not self._heard_caller
        if silent and Channel.CALLER in self.call.files.wants_audio:
            self.call.fault("the input transport passed no audio on: the caller's channel is silent")


_ROLES: Final[dict[type, Callable[[PipelineTrace, Any], None]]] = {
    BaseInputTransport: PipelineTrace._attach_mic,  # noqa: SLF001
    STTService: PipelineTrace._attach_stt,  # noqa: SLF001
    LLMUserAggregator: PipelineTrace._attach_user,  # noqa: SLF001
    LLMService: PipelineTrace._attach_llm,  # noqa: SLF001
    TTSService: PipelineTrace._attach_tts,  # noqa: SLF001
    BaseOutputTransport: PipelineTrace._attach_speaker,  # noqa: SLF001
    LLMAssistantAggregator: PipelineTrace._attach_assistant,  # noqa: SLF001
}


class HelperTrace:
    """Follows a worker that only answers for others over the bus: its LLM works for the call that asked.

    With a bus inside the process frames cross it as they are, stamps and all; over a network they do not.
    """

    def __init__(self, setup: FrameProcessorSetup) -> None:
        self._guard = Guard()
        self.taps = Taps(self._guard, lambda: True)
        for processor in walk(setup.pipeline_worker.pipeline):
            if isinstance(processor, LLMService):
                listen_to_llm(None, self.taps, processor)
        self.taps.event(setup.pipeline_worker, "on_pipeline_finished", self._on_finished)

    def _on_finished(self, _: PipelineWorker, __: f.Frame) -> None:
        self._guard.wrap("detach", self.taps.detach)()


def listen_to_llm(owner: PipelineTrace | None, taps: Taps, llm: LLMService[Any]) -> None:
    """Follow an LLM service; the context frame says for which call it works."""
    realtime = False
    held: list[Run] = []  # the attempt whose frames the service holds back until the turn is over

    def announces(service: LLMService[Any], frame: f.Frame) -> None:
        nonlocal realtime
        metadata = frame if isinstance(frame, f.LLMServiceMetadataFrame) else None
        if owner is not None and not realtime and (metadata is None or metadata.is_realtime_service):
            realtime = True
            owner.follow_realtime(service, metadata)

    def receives(_: Any, frame: f.LLMContextFrame) -> None:
        if realtime:
            return
        asked = _CALLS.get(frame.metadata.get(CALL_KEY, ""), owner)
        CURRENT_RUN.set(None)
        if asked is not None and not asked.call.closed:
            run = asked.speech.llm_receives(frame)
            held[:] = [run] if run.attempt else []

    def passes(_: Any, frame: f.Frame) -> None:
        CURRENT_RUN.set(None)  # text that someone else wrote goes through

    def pushes(_: Any, frame: f.Frame) -> None:
        if realtime:
            return
        run = CURRENT_RUN.get()
        if run is None and held:  # let go by the frame that ended the turn, in that frame's task
            run = held[0]
        if run is not None:
            run.adapter.llm_pushes(run, frame)

    taps.frames(
        "llm.process",
        llm,
        "on_before_process_frame",
        {
            f.LLMContextFrame: receives,
            **any_of((f.LLMFullResponseStartFrame, f.LLMTextFrame, f.LLMFullResponseEndFrame), passes),
        },
    )
    pushed = (
        f.LLMFullResponseStartFrame,
        f.LLMTextFrame,
        f.FunctionCallsStartedFrame,
        f.LLMFullResponseEndFrame,
    )
    announced = (f.LLMServiceMetadataFrame, f.TTSStartedFrame)
    taps.frames(
        "llm.push",
        llm,
        "on_before_push_frame",
        {**any_of(pushed, pushes), **any_of(announced, announces)},
    )


def walk(processor: FrameProcessor) -> Iterator[FrameProcessor]:
    """A processor and all it contains: pipelines, parallel branches, switchers."""
    yield processor
    for inner in processor.processors:
        yield from walk(inner)
