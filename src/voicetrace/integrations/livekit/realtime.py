# SPDX-License-Identifier: Apache-2.0
"""Realtime models: a provider's session as events (livekit-capture.md, section 1.5).

`RealtimeAdapter` listens to the realtime session that is in use now. Which hook gives which field, and the
traps, are in ``specs/livekit.md``.
"""

from __future__ import annotations

import asyncio
import copy
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

from livekit.agents import llm
from livekit.agents.voice import SpeechHandle
from opentelemetry.trace import Span, format_span_id

from voicetrace import events as ev
from voicetrace.integrations.input_clock import InputClock
from voicetrace.messages import TextSource, TimingSource

if TYPE_CHECKING:
    from voicetrace.integrations.livekit.session import SessionTrace, Speech, Step

T = TypeVar("T")

GENERATION_KEYWORDS: Final = ("speech_handle", "generation_ev", "model_settings", "instructions")

# raw events of the OpenAI family, which carry item ids and the provider's own ms
_SERVER_EVENT: Final = "openai_server_event_received"
_CLIENT_EVENT: Final = "openai_client_event_queued"
_TRANSCRIPTS: Final = {
    "response.output_audio_transcript.done": "transcript",
    "response.audio_transcript.done": "transcript",
    "response.output_text.done": "text",
    "response.text.done": "text",
}
_INPUT_RATE: Final = 24_000  # what the OpenAI family's input buffer counts its ms in, 16-bit mono
_KEPT: Final = 100  # generations and transcripts that nobody asked for yet

# whose realtime session the code that runs in this task is about to open
_OPENING: ContextVar[RealtimeAdapter | None] = ContextVar("voicetrace_opening", default=None)
# the generation whose task runs: how `realtime_inference` finds it
GENERATION: ContextVar[Generation | None] = ContextVar("voicetrace_generation", default=None)


class Tap(AsyncIterator[T]):
    """Passes a stream through; `took` sees each item and may give another in its place.

    Everything else that one may do with the stream, `aclose` included, is the stream's own.
    """

    def __init__(
        self, source: AsyncIterable[T], took: Callable[[T], T | None], began: Callable[[], Any] | None = None
    ) -> None:
        self._source = source
        self._took = took
        self._began = began
        self._iterator: AsyncIterator[T] | None = None

    async def __anext__(self) -> T:
        if self._iterator is None:
            self._iterator = aiter(self._source)
            if self._began is not None:
                self._began()
        item = await anext(self._iterator)
        taken = self._took(item)
        return item if taken is None else taken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


@dataclass(slots=True, eq=False)
class Generation:
    """One response of the provider, from its creation until its span ended."""

    event: Any
    context_ids: tuple[str, ...]
    speech: Speech | None = None
    step: Step | None = None  # of its first message
    span_id: str | None = None
    steps: list[Step] = field(default_factory=list)  # of its messages, in order


class RealtimeAdapter:
    """Follows the realtime sessions of one `AgentSession`, one at a time. Loop-affine; hooks are guarded."""

    def __init__(self, trace: SessionTrace, *, server_vad_silence_ms: int = 0) -> None:
        self._trace = trace
        self._silence_ms = server_vad_silence_ms
        self._session: Any = None
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()
        self._seen: set[str] = set()  # user items that are no news: older, or pushed as text
        self._messages: dict[str, Step] = {}  # by message id
        self._generations: dict[int, Generation] = {}  # created, and not yet begun; by the event's identity
        self._said: dict[str, str] = {}  # whole transcripts of the provider, by message id
        self._clock = InputClock()
        self._names_items = False
        self._raw = False  # the provider's own speech events are visible
        self._speaking_since: int | None = None
        self._speaking_item: str | None = None

    @cached_property
    def opened(self) -> Callable[[Any], Any]:
        """`follow`, guarded: nothing of ours reaches the opening of a session."""
        return self._trace.call.guard.wrap("realtime_session", self.follow)

    @cached_property
    def _handlers(self) -> dict[str, Any]:
        wrap = self._trace.call.guard.wrap
        return {
            "input_speech_started": wrap("input_speech_started", self._on_speech_started),
            "input_speech_stopped": wrap("input_speech_stopped", self._on_speech_stopped),
            "generation_created": wrap("generation_created", self._on_generation),
            "remote_item_added": wrap("remote_item_added", self._on_remote_item),
            "session_reconnected": wrap("session_reconnected", self._on_reconnected),
            _SERVER_EVENT: wrap(_SERVER_EVENT, self._on_server_event),
            _CLIENT_EVENT: wrap(_CLIENT_EVENT, self._on_client_event),
        }

    @property
    def active(self) -> bool:
        """Whether the agent of now speaks through a realtime model."""
        return self._session is not None

    # -- which session -------------------------------------------------------------------------------
    def agent_changed(self) -> None:
        """Another agent is about to start, in this task; its realtime session will be opened in it."""
        session = self._trace.session
        if session is None:
            return
        agent = session.current_agent
        model = agent.llm if isinstance(agent.llm, llm.RealtimeModel | llm.LLM) else session.llm
        if not isinstance(model, llm.RealtimeModel):
            if self._speaking_since is not None:  # mid-speech: the session goes on, and tells when it ends
                self._speaking_since = self._speaking_item = None
                self._trace.voice_goes_on()
            self.leave()
            return
        _hook_model(model, self)
        self._models.add(model)
        _OPENING.set(self)

    def ensure(self) -> None:
        """Follow the session that is in use, should its opening have been missed."""
        session = self._trace.session
        if session is None:
            return
        try:
            found = session.current_agent.realtime_llm_session
        except RuntimeError:
            return  # no agent yet, or its activity is not running
        if found is not None:
            self.follow(found)

    def follow(self, found: Any) -> None:
        """Listen to this realtime session from now on."""
        if found is self._session:
            return
        self.leave()
        self._session = found
        for name, handler in self._handlers.items():
            found.on(name, handler)
        self._wrap_truncate(found)
        session = self._trace.session
        known = [] if session is None else [*session.history.items, *session.current_agent.chat_ctx.items]
        self._seen.update(item.id for item in (*known, *found.chat_ctx.items))

    def leave(self) -> None:
        """Stop listening, and leave the realtime session as it was."""
        found, self._session = self._session, None
        if found is None:
            return
        for name, handler in self._handlers.items():
            found.off(name, handler)
        if getattr(vars(found).get("truncate"), "_voicetrace", None) is self:
            del found.truncate
        if self._speaking_since is not None:  # mid-speech; the next agent's pipeline tells the rest
            self._stopped(self._now(), TimingSource.LOCAL_RECEIPT, self._speaking_item)
        self._clock, self._raw, self._names_items = InputClock(), False, False

    def close(self) -> None:
        """The call is over: leave the session and the models."""
        self.leave()
        for model in self._models:
            _unhook_model(model, self)
        self._models.clear()
        self._generations.clear()

    def _wrap_truncate(self, found: Any) -> None:
        original, told = found.truncate, self._trace.call.guard.wrap("truncate", self._on_truncate)

        def truncate(*args: Any, **kwargs: Any) -> Any:
            told(kwargs.get("message_id"), kwargs.get("audio_end_ms"))
            return original(*args, **kwargs)

        truncate._voicetrace = self  # type: ignore[attr-defined]  # noqa: SLF001
        found.truncate = truncate

    def _now(self) -> int:
        return self._trace.call.now_ms()

    # -- the user ------------------------------------------------------------------------------------
    @property
    def hears_by_server(self) -> bool:
        """Whether the provider's voice detection is what takes turns, not a VAD the application gave."""
        activity = getattr(self._trace.session, "_activity", None)
        own_vad = (
            getattr(activity, "vad", None) is not None
            and getattr(activity, "using_default_vad", True) is False
        )
        return self.active and not own_vad

    def _on_speech_started(self, _: Any) -> None:
        if not self._raw and self.hears_by_server:
            self._started(self._now(), TimingSource.LOCAL_RECEIPT, None)

    def _on_speech_stopped(self, _: Any) -> None:
        if not self._raw and self.hears_by_server:
            self._stopped(self._now() - self._silence_ms, TimingSource.LOCAL_RECEIPT, None)

    def _started(self, at: int, source: TimingSource, item_id: str | None) -> None:
        if self._speaking_since is not None and item_id != self._speaking_item:
            self._stopped(at, source, self._speaking_item)  # its end was never told
        self._speaking_since, self._speaking_item = at, item_id
        self._trace.call.emit(
            ev.UserSpeechStarted(at_ms=self._now(), start_ms=at, source=source, item_id=item_id)
        )

    def _stopped(self, at: int, source: TimingSource, item_id: str | None) -> None:
        since, self._speaking_since, self._speaking_item = self._speaking_since, None, None
        self._trace.call.emit(
            ev.UserSpeechStopped(
                at_ms=self._now(), end_ms=max(at, since or 0), source=source, item_id=item_id
            )
        )

    def _on_server_event(self, raw: Any) -> None:
        kind = raw.get("type")
        if kind in _TRANSCRIPTS:
            _keep(self._said, raw.get("item_id"), raw.get(_TRANSCRIPTS[kind]))
        elif kind == "input_audio_buffer.speech_started" and self.hears_by_server:
            self._raw = self._names_items = True
            self._started(*self._provider_time(raw.get("audio_start_ms"), 0), _item_id(raw))
        elif kind == "input_audio_buffer.speech_stopped" and self.hears_by_server:
            self._raw = self._names_items = True
            self._stopped(*self._provider_time(raw.get("audio_end_ms"), self._silence_ms), _item_id(raw))

    def _provider_time(self, provider_ms: Any, silence_ms: int) -> tuple[int, TimingSource]:
        """The provider's own ms on the call's clock; the receipt where we did not see the audio leave."""
        now, at = self._now(), self._clock.call_ms(provider_ms)
        if at is None or at > now:
            return now - silence_ms, TimingSource.LOCAL_RECEIPT
        return at, TimingSource.PROVIDER_EVENTS

    def _on_client_event(self, raw: Any) -> None:
        if raw.get("type") == "input_audio_buffer.append":
            audio = raw.get("audio", "")
            size = len(audio) * 3 // 4 - audio.count("=", -2)
            self._clock.sent(self._trace.call.precise_ms(), size / 2 / _INPUT_RATE * 1000)

    def _on_reconnected(self, _: Any) -> None:
        self._clock = InputClock()  # the buffer counts from 0 again

    def _on_remote_item(self, event: Any) -> None:
        item = event.item
        self._names_items = True
        if not _is_message(item, "user") or item.id in self._seen:
            return
        if item.raw_text_content:
            self._seen.add(item.id)  # text that the application pushed
        elif not self._raw:
            self._trace.call.emit(ev.UserItemNamed(at_ms=self._now(), item_id=item.id))

    def knows_spoken(self, item_id: str | None) -> TextSource:
        """Where the text of a spoken item comes from."""
        if item_id is not None and self.active:
            return TextSource.REALTIME_INPUT_TRANSCRIPT
        return TextSource.STT

    # -- responses -----------------------------------------------------------------------------------
    def _on_generation(self, event: Any) -> None:
        self._generation_of(event)

    def _generation_of(self, event: Any) -> Generation:
        """The response; at its creation what it has in context is noted, before its own output is (T20)."""
        known = self._generations.get(id(event))
        if known is not None:
            return known
        items = list(self._session.chat_ctx.items) if self._session is not None else []
        session = self._trace.session
        ours = {} if session is None else {i.id: i for i in session.current_agent.chat_ctx.items}
        context = [i.id for i in items if not self._is_own_output(i, ours.get(i.id))]
        generation = Generation(event, tuple(context))
        while len(self._generations) >= _KEPT:
            del self._generations[next(iter(self._generations))]
        self._generations[id(event)] = generation
        heard = tuple(
            i.id for i in items if _is_message(i, "user") and not self._is_pushed(i, ours.get(i.id))
        )
        self._seen.update(heard)
        asked_for = bool(getattr(event, "user_initiated", False)) and self._takes_turns()
        self._trace.call.emit(
            ev.ResponseStarted(
                at_ms=self._now(), item_ids=heard, unnamed=not (self._names_items or asked_for)
            )
        )
        return generation

    def _takes_turns(self) -> bool:
        """Whether the provider decides by itself when to answer."""
        return bool(getattr(getattr(self._session, "capabilities", None), "turn_detection", False))

    def _is_pushed(self, item: Any, ours: Any) -> bool:
        """Text that the application put there, or an item that an earlier response had already.

        `ours` is the agent's own copy. A spoken item is an empty placeholder there until it is transcribed,
        and has a confidence then.
        """
        text = getattr(ours, "raw_text_content", "")
        return item.id in self._seen or (bool(text) and ours.transcript_confidence is None)

    def _is_own_output(self, item: Any, ours: Any) -> bool:
        """An agent's message that no earlier response made and nobody pushed: the response's own."""
        if not _is_message(item, "assistant") or item.id in self._seen or item.id in self._messages:
            return False
        return not getattr(ours, "raw_text_content", "")

    def begin(self, handle: SpeechHandle, event: Any) -> tuple[Generation, Any]:
        """The task of a response begins: whose speech it is. Gives the event with its streams tapped."""
        generation = self._generation_of(event)
        self._generations.pop(id(event), None)
        self._claim(generation, handle)
        tapped = copy.copy(event)
        took = self._trace.call.guard.wrap("realtime_message", self._on_message)
        tapped.message_stream = Tap(event.message_stream, lambda message: took(generation, message))
        return generation, tapped

    def _claim(self, generation: Generation, handle: SpeechHandle) -> None:
        speech = self._trace.speech_of(handle)
        if speech is not None:
            generation.speech = speech
            self._trace.step_began(speech, handle.num_steps)
            generation.step = self._next_step(generation, handle.num_steps)

    def _next_step(self, generation: Generation, number: int) -> Step | None:
        """The record for another message: the step's own, and one more for each that follows."""
        speech = generation.speech
        if speech is None:
            return None
        first = speech.step(number)
        if not first.taken:
            first.taken = True
            first.source = TextSource.REALTIME_OUTPUT_TRANSCRIPT
            return first
        step = speech.another(number)
        step.taken, step.source = True, TextSource.REALTIME_OUTPUT_TRANSCRIPT
        now = self._now()
        self._trace.call.emit(ev.SpeechCreated(at_ms=now, speech_id=step.key, origin="realtime"))
        if generation.span_id is not None:
            self._trace.call.emit(ev.LLMStepSpoken(at_ms=now, span_id=generation.span_id, speech_id=step.key))
        return step

    def _on_message(self, generation: Generation, message: Any) -> Any:
        """The response brings a message: a record of its own, and taps on what it streams."""
        speech, first = generation.speech, generation.step
        if speech is None or first is None:
            return None
        number = speech.number_of(first)
        step = first if not generation.steps else self._next_step(generation, number)
        if step is None:
            return None
        generation.steps.append(step)
        step.message_id = message.message_id
        self._messages[message.message_id] = step
        self._trace.link_item(message.message_id, step)
        tapped = copy.copy(message)
        wrap = self._trace.call.guard.wrap
        took = wrap("realtime_text", self._on_text)

        def begins() -> None:
            speech.now = step  # messages are played one after the other
            modalities = message.modalities
            known = isinstance(modalities, asyncio.Future) and modalities.done()
            if known and not modalities.cancelled() and "audio" not in modalities.result():
                step.source = TextSource.TTS_INPUT  # a voice of the application speaks it

        guarded = wrap("realtime_playout", begins)
        tapped.text_stream = Tap(message.text_stream, lambda text: took(step, text), guarded)
        tapped.audio_stream = Tap(message.audio_stream, lambda _: None, guarded)
        return tapped

    def _on_text(self, step: Step, text: str) -> None:
        if not step.said:  # a say() told its text when it was called
            step.pulled = True
            self._trace.tell(step, str(text))

    def tell_unheard(self, step: Step) -> None:
        """The text of a message that was never forwarded, where the provider has it."""
        if step.message_id is None or step.pulled or step.said:
            return
        text = self._said.pop(step.message_id, None)
        if text is None and self._session is not None:
            item = self._session.chat_ctx.get_by_id(step.message_id)
            text = getattr(item, "raw_text_content", None)
        if text:
            step.pulled = True
            self._trace.tell(step, text)

    def _on_truncate(self, message_id: Any, audio_end_ms: Any) -> None:
        step = self._messages.get(message_id)
        self._trace.call.emit(
            ev.ProviderTruncated(
                at_ms=self._now(),
                speech_id=step.key if step is not None else str(message_id),
                audio_end_ms=int(audio_end_ms),
            )
        )

    # -- spans ---------------------------------------------------------------------------------------
    def inference_started(self, span: Span, handle: SpeechHandle | None) -> None:
        """`realtime_inference` began: the LLM span of the response whose task this is."""
        generation = GENERATION.get()
        if generation is None:  # the private hook is not in force: the oldest response that nobody took
            generation = next((g for g in self._generations.values()), None)
            if generation is None or handle is None:
                return
            self._generations.pop(id(generation.event), None)
            self._claim(generation, handle)
        generation.span_id = format_span_id(span.get_span_context().span_id)
        self._trace.call.start_step(
            span,
            name=getattr(span, "name", ""),
            context_ids=generation.context_ids,
            speech_id=generation.step.key if generation.step is not None else None,
            answers=None,
            awaits_speech=True,
        )

    def inference_ended(self, span_id: str) -> None:
        """The response's messages are all known and added."""
        self._trace.call.emit(ev.LLMStepSpoken(at_ms=self._now(), span_id=span_id))


def _is_message(item: Any, role: str) -> bool:
    return getattr(item, "type", "") == "message" and item.role == role


def _item_id(raw: Any) -> str | None:
    found = raw.get("item_id")
    return found if isinstance(found, str) and found else None


def _keep(said: dict[str, str], key: Any, text: Any) -> None:
    if isinstance(key, str) and isinstance(text, str):
        while len(said) >= _KEPT:
            del said[next(iter(said))]
        said[key] = text


# -- how the opening of a realtime session is seen ---------------------------------------------------
_HOOKED: weakref.WeakKeyDictionary[Any, tuple[Any, set[RealtimeAdapter]]] = weakref.WeakKeyDictionary()


def _hook_model(model: Any, adapter: RealtimeAdapter) -> None:
    """Replace ``model.session`` on this instance, once for all calls that share the model."""
    known = _HOOKED.get(model)
    if known is not None:
        known[1].add(adapter)
        return
    original = model.session

    def session(*args: Any, **kwargs: Any) -> Any:
        opened = original(*args, **kwargs)
        opening = _OPENING.get()
        if opening is not None:
            _OPENING.set(None)
            opening.opened(opened)
        return opened

    if "session" not in vars(model):
        model.session = session
        _HOOKED[model] = (session, {adapter})


def _unhook_model(model: Any, adapter: RealtimeAdapter) -> None:
    known = _HOOKED.get(model)
    if known is None:
        return
    wrapper, users = known
    users.discard(adapter)
    if not users:
        del _HOOKED[model]
        if vars(model).get("session") is wrapper:
            del model.session
