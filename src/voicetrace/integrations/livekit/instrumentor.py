# SPDX-License-Identifier: Apache-2.0
"""`LiveKitInstrumentor`: every `AgentSession` of this process becomes a call, until `uninstrument`."""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import AsyncIterable, Callable, Collection
from contextvars import ContextVar
from typing import Any, Final

from livekit.agents import AgentSession, llm, telemetry
from livekit.agents.voice import SpeechHandle, agent_activity
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.trace import format_span_id

from voicetrace import semconv, settings
from voicetrace.guard import Guard
from voicetrace.integrations.livekit import package
from voicetrace.integrations.livekit.realtime import GENERATION, GENERATION_KEYWORDS
from voicetrace.integrations.livekit.session import TRACES_BY_SPEECH, SessionTrace, tell_chunks
from voicetrace.integrations.patches import Patches, takes_keywords
from voicetrace.live import LiveCall, finish_calls
from voicetrace.otel.hold import FINISH_S
from voicetrace.otel.setup import get_provider
from voicetrace.owners import register_call
from voicetrace.writer import WRITER

logger = logging.getLogger("voicetrace")

LLM_KEYWORDS: Final = ("node", "chat_ctx", "tool_ctx", "model_settings")

# the trace whose session is starting in this task: how `agent_session` finds its call (T9)
_STARTING: ContextVar[SessionTrace | None] = ContextVar("voicetrace_starting", default=None)


class VoiceSpanProcessor(SpanProcessor):
    """Tells each native span of interest to the call it belongs to, found by walking parent ids.

    Several calls may share one provider, one trace and even one ancestor (T9); a span belongs to the call
    of its nearest known ancestor. Never blocks, never raises; a processor cannot be removed from a
    provider, so `enabled` switches it off.
    """

    def __init__(self) -> None:
        self.enabled = True
        self._traces: dict[int, Callable[[], SessionTrace | None]] = {}  # by the id of a span that is open

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """A span began: remember whose it is."""
        if not self.enabled:
            return
        context, parent = span.context, span.parent
        found = _STARTING.get() if span.name == semconv.LK_SPAN_SESSION else None
        if found is None and parent is not None:
            found = self._found(self._traces.get(parent.span_id))
        if found is None or context is None:
            return
        # a session that is dropped and never closed never ends its span, and must not live on in here
        key = context.span_id
        self._traces[key] = (
            weakref.ref(found, lambda _: self._traces.pop(key, None))
            if span.name == semconv.LK_SPAN_SESSION
            else functools.partial(_same, found)
        )
        found.span_started(span, span.name, format_span_id(context.span_id))

    def on_end(self, span: ReadableSpan) -> None:
        """A span ended: tell its call what it says."""
        context = span.context
        found = self._found(self._traces.pop(context.span_id, None)) if context is not None else None
        if found is not None and context is not None and self.enabled:
            found.span_ended(span, span.name, format_span_id(context.span_id))

    def shutdown(self) -> None:
        """The provider goes: no span that is open now will be sent.

        A call that still runs goes on without it; one whose session was never closed, and whose loop is
        gone, ends here.
        """
        over = set()
        for found in {self._found(t) for t in list(self._traces.values())}:
            if found is None:
                continue
            found.provider_gone()
            if not found.call.runs:
                over.add(found)
                found.end("provider shut down")
        self._traces = {key: t for key, t in list(self._traces.items()) if self._found(t) not in over}
        if over:  # the process is likely to end now, and would not wait for the writer
            finish_calls(FINISH_S)

    @staticmethod
    def _found(reference: Callable[[], SessionTrace | None] | None) -> SessionTrace | None:
        return reference() if reference is not None else None


def _same(found: SessionTrace) -> SessionTrace:
    return found


class LiveKitInstrumentor:
    """Instruments livekit-agents. One per process is in force; `instrument` is idempotent.

    ``LiveKitInstrumentor().instrument()`` goes where the session is made: in the job process, at the start
    of its entry point (LiveKit runs every job in a process of its own, T25).
    """

    _active: LiveKitInstrumentor | None = None

    def __init__(self) -> None:
        self._patches = Patches()
        self._guard = Guard()
        self._processor = VoiceSpanProcessor()
        self._attached: weakref.WeakSet[Any] = weakref.WeakSet()
        # weak: the session's own handlers keep its trace, and nothing of ours keeps the session
        self._live: dict[int, tuple[weakref.ref[AgentSession[Any]], weakref.ref[SessionTrace]]] = {}
        self._provider: TracerProvider | None = None
        self._own_livekit_provider: Any = None
        self._adopt_recording = False
        self._private_llm = False  # LLM steps are told by the private function

    @classmethod
    def is_in_force(cls) -> bool:
        """Whether any instrumentor follows every session of this process."""
        return cls._active is not None

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """As `is_instrumented`; the name that OpenTelemetry's auto-instrumentation uses."""
        return self.is_instrumented

    def instrumentation_dependencies(self) -> Collection[str]:
        """What must be installed, for OpenTelemetry's auto-instrumentation."""
        return package._instruments  # noqa: SLF001

    @property
    def is_instrumented(self) -> bool:
        """Whether this instrumentor is in force."""
        return LiveKitInstrumentor._active is self

    @property
    def calls(self) -> list[LiveCall]:
        """The calls that are going on."""
        return [t.call for t in self._traces() if not t.call.closed]

    def _traces(self) -> list[SessionTrace]:
        return [found for _, t in list(self._live.values()) if (found := t()) is not None]

    def instrument(
        self, tracer_provider: TracerProvider | None = None, *, adopt_recording: bool = False, **_: Any
    ) -> LiveKitInstrumentor:
        """Follow every `AgentSession` that starts from now on.

        Other keywords are what OpenTelemetry's auto-instrumentation passes, and mean nothing here.

        Args:
            tracer_provider: Where LiveKit's and our spans go. Default: `configure`'s, else the global one,
                else the one given to LiveKit's ``set_tracer_provider``, else one of ours.
            adopt_recording: Where LiveKit records a call itself, copy its file when the call is over,
                instead of recording it once more. Needs ``configure(audio="both")``; not where redacted
                speech is to be silenced or consent is awaited, for that file has everything.
        """
        active = LiveKitInstrumentor._active
        if active is not None:
            if active is not self:
                logger.warning(
                    "voicetrace already instruments livekit-agents; this second call changes nothing"
                )
            return self
        LiveKitInstrumentor._active = self
        self._adopt_recording = adopt_recording
        installed = package.installed()
        private = package.is_supported(installed)
        if not private:
            logger.warning(
                "livekit-agents %s is not among the versions voicetrace was tested with (%s): only public "
                "hooks are used; several messages of one realtime response are not told apart, and a reply "
                "cut before its first sound has no text",
                installed,
                package._instruments[0],  # noqa: SLF001
            )
        self._set_up_provider(tracer_provider)
        self._patches.replace(AgentSession, "start", self._wrap_start)
        self._patches.replace(AgentSession, "say", self._wrap_say)
        self._patches.replace(AgentSession, "generate_reply", self._wrap_generate_reply)
        self._patches.replace(AgentSession, "clear_user_turn", self._wrap_clear_user_turn)
        if private:
            if takes_keywords(getattr(agent_activity, "perform_llm_inference", None), LLM_KEYWORDS):
                self._private_llm = True
                self._patches.replace(agent_activity, "perform_llm_inference", self._wrap_llm)
            else:
                logger.warning(
                    "livekit-agents %s changed perform_llm_inference: a reply cut before its first sound has "
                    "no text",
                    installed,
                )
            if takes_keywords(
                getattr(agent_activity.AgentActivity, "_realtime_generation_task", None), GENERATION_KEYWORDS
            ):
                self._patches.replace(
                    agent_activity.AgentActivity, "_realtime_generation_task", self._wrap_generation
                )
            else:
                logger.warning(
                    "livekit-agents %s changed _realtime_generation_task: the messages of one realtime "
                    "response are not told apart",
                    installed,
                )
        return self

    def follow_one(
        self,
        session: AgentSession[Any],
        tracer_provider: TracerProvider | None = None,
        *,
        adopt_recording: bool = False,
    ) -> None:
        """Follow this session only, by replacing names on its instance; see `trace_session`."""
        self._adopt_recording = adopt_recording
        self._set_up_provider(tracer_provider)
        for name, wrap in (
            ("start", self._wrap_start),
            ("say", self._wrap_say),
            ("generate_reply", self._wrap_generate_reply),
            ("clear_user_turn", self._wrap_clear_user_turn),
        ):
            self._patches.replace(session, name, functools.partial(_on_instance, session, wrap))

    def uninstrument(self, **_: Any) -> None:
        """Put back every name that was replaced, and leave running sessions without a handler of ours.

        Calls that are going on end here, with the reason ``uninstrumented``.
        """
        if not self.is_instrumented:
            return
        LiveKitInstrumentor._active = None
        self.stop()

    def stop(self) -> None:
        """End the calls that are going on, and put back every name that was replaced."""
        for running in self._traces():
            running.end("uninstrumented")
        self._live.clear()
        for name in self._patches.restore():
            logger.warning("%s was replaced by someone else after voicetrace; it is left as it is", name)
        self._processor.enabled = False
        if self._own_livekit_provider is not None and telemetry.tracer._tracer_provider is self._provider:  # noqa: SLF001
            telemetry.tracer.set_provider(self._own_livekit_provider)
        self._own_livekit_provider = None

    # -- providers -----------------------------------------------------------------------------------
    def _set_up_provider(self, tracer_provider: TracerProvider | None) -> None:
        chosen = settings.current()
        wanted = tracer_provider or chosen.tracer_provider
        native = getattr(telemetry.tracer, "_tracer_provider", None)
        provider, _ = get_provider(wanted, chosen.directory, framework_provider=native)
        if not isinstance(provider, TracerProvider):
            logger.warning(
                "%s is no OpenTelemetry SDK provider: voicetrace keeps its journal, but no spans",
                type(provider).__name__,
            )
            return
        self._provider = provider
        if native is not provider and (wanted is not None or not isinstance(native, TracerProvider)):
            # LiveKit must write to the same provider, or its spans and ours never meet
            self._own_livekit_provider = native
            telemetry.set_tracer_provider(provider)
        self._attach_processor()

    def _attach_processor(self) -> None:
        """Listen on the provider LiveKit writes to now; users may set one after `instrument`."""
        native = getattr(telemetry.tracer, "_tracer_provider", None)
        for provider in (self._provider, native):
            if isinstance(provider, TracerProvider) and provider not in self._attached:
                provider.add_span_processor(self._processor)
                self._attached.add(provider)

    # -- AgentSession.start --------------------------------------------------------------------------
    def _wrap_start(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        async def start(session: AgentSession[Any], *args: Any, **kwargs: Any) -> Any:
            begun = begin(session, args, kwargs)
            if begun is None:
                return await original(session, *args, **kwargs)
            token = _STARTING.set(begun)
            try:
                result = await original(session, *args, **kwargs)
            except BaseException as error:
                failed(begun, error)
                raise
            finally:
                _STARTING.reset(token)
            begun_started(begun)
            return result

        begin = self._guard.wrap("start", self._begin)
        failed = self._guard.wrap("start", lambda t, e: t.finish(f"start failed: {type(e).__name__}"))
        begun_started = self._guard.wrap("start", self._started)
        return start

    def _begin(self, session: AgentSession[Any], args: Any, kwargs: dict[str, Any]) -> SessionTrace | None:
        if self._trace_of(session) is not None:
            return None  # start() on a started session does nothing
        self._attach_processor()
        chosen = settings.current()
        agent = args[0] if args else kwargs.get("agent")
        call = LiveCall(
            settings=chosen,
            framework="livekit",
            framework_version=package.installed(),
            tracer_provider=self._provider,
            content_captured=chosen.content == "full" and content_allowed(kwargs.get("record")),
            agent_name=str(getattr(agent, "label", "")),
        )
        running = SessionTrace(
            session, call, own_nodes=not self._private_llm, adopt_recording=self._adopt_recording
        )
        register_call(session, call)
        key = id(session)
        self._live[key] = (
            weakref.ref(session, lambda _: self._live.pop(key, None)),
            weakref.ref(running),
        )
        # on the writer thread, for the garbage collector may come while any lock of ours is held
        lost = weakref.finalize(session, WRITER.submit, call.close, "session lost")
        lost.atexit = False

        def closed(_: LiveCall) -> None:
            lost.detach()

        call.on_closed.append(closed)
        return running

    def _started(self, running: SessionTrace) -> None:
        if running.call.span is None:  # LiveKit's own span does not record: the call gets one of ours
            tracer = trace.get_tracer(semconv.INSTRUMENTATION_NAME, tracer_provider=self._provider)
            running.call.bind_span(tracer.start_span(semconv.SPAN_CALL), own=True)
        running.started()

    # -- AgentSession.say, generate_reply and clear_user_turn -----------------------------------------
    def _trace_of(self, session: AgentSession[Any]) -> SessionTrace | None:
        known = self._live.get(id(session))
        running = known[1]() if known is not None and known[0]() is session else None
        return running if running is not None and not running.call.closed else None

    def _wrap_say(self, original: Callable[..., SpeechHandle]) -> Callable[..., SpeechHandle]:
        @functools.wraps(original)
        def say(session: AgentSession[Any], text: Any, *args: Any, **kwargs: Any) -> SpeechHandle:
            return original(session, before(session, text) or text, *args, **kwargs)

        before = self._guard.wrap("say", self._before_say)
        return say

    def _before_say(self, session: AgentSession[Any], text: Any) -> AsyncIterable[str] | None:
        running = self._trace_of(session)
        if running is None:
            return None
        if isinstance(text, str):
            running.say_next(text)
            return None
        if not isinstance(text, AsyncIterable):
            return None
        key = running.say_next(None)

        def tell(chunk: str) -> None:
            if key:
                running.say_piece(key[0], chunk)

        return tell_chunks(text, running.call.guard.wrap("say_text", tell))

    def _wrap_generate_reply(self, original: Callable[..., SpeechHandle]) -> Callable[..., SpeechHandle]:
        @functools.wraps(original)
        def generate_reply(session: AgentSession[Any], *args: Any, **kwargs: Any) -> SpeechHandle:
            token = before(session, kwargs.get("user_input"))
            handle = original(session, *args, **kwargs)
            if token is not None:
                after(session, token, handle)
            return handle

        before = self._guard.wrap("generate_reply", self._before_reply)
        after = self._guard.wrap("generate_reply", self._after_reply)
        return generate_reply

    def _before_reply(self, session: AgentSession[Any], user_input: Any) -> str | None:
        running = self._trace_of(session)
        if running is None:
            return None
        if isinstance(user_input, llm.ChatMessage):
            running.typed_for(running.text_typed(user_input.raw_text_content), user_input.id)
        elif isinstance(user_input, str) and user_input:
            return running.text_typed(user_input)
        return None

    def _after_reply(self, session: AgentSession[Any], token: str, handle: SpeechHandle) -> None:
        running = self._trace_of(session)
        if running is not None:
            running.typed_for(token, handle.id)

    def _wrap_clear_user_turn(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def clear_user_turn(session: AgentSession[Any]) -> None:
            original(session)
            cleared(session)

        cleared = self._guard.wrap("clear_user_turn", self._after_clear)
        return clear_user_turn

    def _after_clear(self, session: AgentSession[Any]) -> None:
        running = self._trace_of(session)
        if running is not None:
            running.turn_cleared()

    # -- the LLM node --------------------------------------------------------------------------------
    def _wrap_llm(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def perform_llm_inference(**kwargs: Any) -> Any:
            found = find()
            if found is None:
                return original(**kwargs)
            running, handle = found
            node = kwargs["node"]
            called = running.call.guard.wrap("llm_node", running.llm_called)

            def traced_node(chat_ctx: llm.ChatContext, *args: Any, **kw: Any) -> Any:
                # runs inside the llm_node span; what the user's node returns is passed on as it is (T28)
                called(handle, chat_ctx, trace.get_current_span())
                return node(chat_ctx, *args, **kw)

            task, data = original(**{**kwargs, "node": traced_node})
            running.call.guard.wrap("llm_data", running.llm_data)(handle, data)
            return task, data

        find = self._guard.wrap("llm_inference", self._current_speech)
        return perform_llm_inference

    # -- realtime responses --------------------------------------------------------------------------
    def _wrap_generation(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        async def _realtime_generation_task(activity: Any, **kwargs: Any) -> Any:
            begun = begin(kwargs.get("speech_handle"), kwargs.get("generation_ev"))
            if begun is None:
                return await original(activity, **kwargs)
            generation, tapped = begun
            token = GENERATION.set(generation)
            try:
                return await original(activity, **{**kwargs, "generation_ev": tapped})
            finally:
                GENERATION.reset(token)

        begin = self._guard.wrap("realtime_generation", self._begin_generation)
        return _realtime_generation_task

    def _begin_generation(self, handle: Any, event: Any) -> tuple[Any, Any] | None:
        running = TRACES_BY_SPEECH.get(handle.id)
        return None if running is None or running.call.closed else running.realtime.begin(handle, event)

    def _current_speech(self) -> tuple[SessionTrace, SpeechHandle] | None:
        handle = agent_activity._SpeechHandleContextVar.get(None)  # noqa: SLF001
        running = TRACES_BY_SPEECH.get(handle.id) if handle is not None else None
        return (running, handle) if running is not None and handle is not None else None


def _on_instance(session: Any, wrap: Callable[..., Any], original: Callable[..., Any]) -> Any:
    """A wrapper made for the class, bound to one session."""

    @functools.wraps(original)
    def unbound(_: Any, *args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    return functools.partial(wrap(unbound), session)


def content_allowed(record: Any = None) -> bool:
    """Whether LiveKit's own switches let text be kept (livekit-capture.md, fact 10 and T24)."""
    if isinstance(record, dict) and record.get("redaction"):
        return False
    return all(
        allows()
        for allows in (_gen_ai_allows, _pii_allowed, _provider_allows, lambda: not _redaction_enabled())
    )


def _gen_ai_allows() -> bool:
    try:
        from livekit.agents.telemetry import gen_ai
    except ImportError:  # before 1.8
        return True
    return gen_ai.capture_content_enabled()


def _pii_allowed() -> bool:
    from_env = getattr(telemetry.utils, "allow_pii_from_env", None)
    return from_env is None or from_env() is not False


def _provider_allows() -> bool:
    """Whether `set_tracer_provider(..., allow_pii=False)` was not said of the provider LiveKit writes to."""
    native = getattr(getattr(telemetry, "tracer", None), "_tracer_provider", None)
    processors = getattr(getattr(native, "_active_span_processor", None), "_span_processors", ())
    return all(getattr(processor, "_allow_pii", True) is not False for processor in processors)


def _redaction_enabled() -> bool:
    utils = telemetry.utils
    enabled = getattr(utils, "redaction_enabled", None) or getattr(utils, "_redaction_enabled", None)
    return enabled is not None and bool(enabled())
