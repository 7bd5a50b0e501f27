# SPDX-License-Identifier: Apache-2.0
"""Speech-to-speech services: one model hears and speaks (pipecat-capture.md, section 3).

A *response* is one generation: an LLM run, with one speech for its audio. Its frames name no TTS context and
its end may be told twice, so the adapter stamps what the service pushes, and knows a response's end by the
span that it comes in. Where the provider names items they are the messages' ids, and link them; the order of
the context is not the order of speech, for a message is appended when its transcript has come.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from opentelemetry import trace as otel
from pipecat.frames import frames as f
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMUserAggregator
from pipecat.services.llm_service import LLMService

from voicetrace import events as ev
from voicetrace import semconv
from voicetrace.integrations.input_clock import InputClock
from voicetrace.integrations.pipecat.ids import ContextIds, role_of
from voicetrace.integrations.pipecat.spans import PipecatSpanProcessor
from voicetrace.integrations.pipecat.speech import (
    RUN_KEY,
    SPEECH_KEY,
    Context,
    Run,
    Speech,
    SpeechAdapter,
    any_of,
)
from voicetrace.integrations.pipecat.taps import Taps
from voicetrace.integrations.pipecat.user import UserAdapter
from voicetrace.live import LiveCall
from voicetrace.messages import TextSource, TimingSource

_INPUT_RATE: Final = 24_000  # what the OpenAI family's input buffer counts its ms in, 16-bit mono
_ITEM_CREATED: Final = "on_conversation_item_created"
_HELD_BACK_MS: Final = 100.0  # of audio, by a resampler
_REMEMBERED: Final = 256  # items whose speech may still be truncated
_INSTRUCTIONS: Final = ("system", "developer")

# the running task processes an interruption: what it pushes ends nothing but what was being said
_INTERRUPTING: ContextVar[bool] = ContextVar("voicetrace_pipecat_interrupting", default=False)


@dataclass(slots=True, eq=False)
class Response:
    """One generation of the provider, from the first that is seen of it until its end."""

    run: Run
    own: set[str] = field(default_factory=set)  # the provider's items that it made
    calls: set[str] = field(default_factory=set)  # of tools
    item_id: str | None = None  # of its first message
    speech: Speech | None = None
    context: Context | None = None  # what is being streamed now
    begun: bool = False
    ended_once: bool = False  # by an interruption; the provider will say so itself
    untold: str = ""  # of its text, before there was a speech


class RealtimeAdapter:
    """Follows one realtime service. Loop-affine; every hook is guarded."""

    def __init__(
        self,
        call: LiveCall,
        ids: ContextIds,
        user: UserAdapter,
        speech: SpeechAdapter,
        spans: PipecatSpanProcessor | None,
    ) -> None:
        self._call = call
        self._ids = ids
        self._user = user
        self._speech = speech
        self._spans = spans
        self._clock = InputClock()
        self._received_ms = 0.0  # of the caller's audio, not yet sent on
        self._context: LLMContext | None = None
        self._response: Response | None = None
        self._last: Response | None = None  # the one before; an item may be told just after its end
        # where the provider names its items
        self._names_items = False
        self._items: list[str] = []  # of the conversation, in order
        self._spoken: list[str] = []  # of the user, which no response has answered yet
        self._ours: set[str] = set()  # that the service itself put there: text, tool results
        self._speeches: dict[str, str] = {}  # assistant items -> speech key
        self._calls: dict[str, str] = {}  # tool calls -> their items
        # where it does not
        self._utterance: str | None = None  # what the user says since the last response began
        self._answered: str | None = None  # what that response answers, until its message is appended
        # transcripts
        self._partial: dict[str, str] = {}
        self._texts: dict[str, str] = {}
        self._transcribed_ms: dict[str, int] = {}
        self._unappended: list[str] = []  # transcribed, and not yet in a message of the context

    # -- what is listened to -------------------------------------------------------------------------
    def attach(self, taps: Taps, llm: LLMService[Any], announced: f.LLMServiceMetadataFrame | None) -> None:
        """Listen to the service, which has just said that it is a realtime one, or spoken."""
        self._user.realtime = self
        bracket = (f.LLMFullResponseStartFrame, f.FunctionCallsStartedFrame)
        taps.frames(
            "realtime.push",
            llm,
            "on_before_push_frame",
            {
                **any_of(bracket, lambda _, x: self._starts(x)),
                f.TTSStartedFrame: lambda _, x: self._speaks(x),
                f.LLMTextFrame: lambda _, x: self._writes(x),
                f.TTSTextFrame: lambda _, x: self._tells(x),
                f.TTSStoppedFrame: lambda _, x: self._stops(x),
                f.LLMFullResponseEndFrame: lambda _, x: self._ends(x),
                f.TranscriptionFrame: lambda _, x: self._transcribed(x, final=True),
                f.InterimTranscriptionFrame: lambda _, x: self._transcribed(x, final=False),
            },
        )
        taps.frames(
            "realtime.process",
            llm,
            "on_before_process_frame",
            {
                f.InterruptionFrame: lambda _, __: self._interrupts(),
                f.LLMContextFrame: lambda _, x: self._receives(x),
                f.InputAudioRawFrame: lambda _, x: self._takes(x),
            },
        )
        taps.frames(
            "realtime.processed",
            llm,
            "on_after_process_frame",
            {f.InterruptionFrame: lambda _, __: self._interrupted()},
        )
        # the provider takes turns: what it says of the user's speech is better than the turns' frames
        takes_turns = announced is None or announced.user_turn_strategies is not None
        self._listen_to_speech(taps, llm, takes_turns=takes_turns)
        self._listen_to_items(taps, llm)

    def _listen_to_speech(self, taps: Taps, llm: Any, *, takes_turns: bool) -> None:
        """The provider's ms and item ids reach no frame: its events are seen on their way (private)."""
        started: Any = getattr(llm, "_handle_evt_speech_started", None)
        stopped: Any = getattr(llm, "_handle_evt_speech_stopped", None)
        if not takes_turns or not (_takes_event(started) and _takes_event(stopped)):
            return  # the turns' own frames tell when they were received
        self._user.provider_hears = True
        wrap = self._call.guard.wrap
        taps.method(llm, "_handle_evt_speech_started", _first(wrap("speech_started", self._hears), started))
        taps.method(llm, "_handle_evt_speech_stopped", _first(wrap("speech_stopped", self._silent), stopped))

    def _listen_to_items(self, taps: Taps, llm: Any) -> None:
        wrap = self._call.guard.wrap
        if inspect.iscoroutinefunction(getattr(llm, "send_client_event", None)):
            told = wrap("client_event", self._sent)
            taps.method(llm, "send_client_event", _first(told, llm.send_client_event))
        if inspect.iscoroutinefunction(getattr(llm, "reset_conversation", None)):
            again = wrap("reset_conversation", self._reset)
            taps.method(llm, "reset_conversation", _first(again, llm.reset_conversation))
        if _ITEM_CREATED in getattr(llm, "_event_handlers", ()):
            created = wrap("item_created", self._item_created)
            taps.event(llm, _ITEM_CREATED, lambda _, i, x: created(i, x) if not self._call.closed else None)

    # -- the provider: the user's speech -------------------------------------------------------------
    def _hears(self, event: Any) -> None:
        self._names(event)
        at, source = self._provider_time(getattr(event, "audio_start_ms", None), 0)
        if self._user.speaking:
            self._user.speech_stopped(at, source)  # its end was never told
        self._user.speech_started(at, source, _item_id(event))

    def _silent(self, event: Any) -> None:
        self._names(event)
        silence_ms = self._call.settings.server_vad_silence_ms
        at, source = self._provider_time(getattr(event, "audio_end_ms", None), silence_ms)
        self._user.speech_stopped(at, source, _item_id(event))

    def _names(self, event: Any) -> None:
        self._names_items = self._names_items or _item_id(event) is not None

    def _provider_time(self, provider_ms: Any, silence_ms: int) -> tuple[int, TimingSource]:
        """The provider's own ms on the call's clock; the receipt where they cannot be."""
        now, at = self._call.now_ms(), self._clock.call_ms(provider_ms)
        if at is None or at > now:
            return now - silence_ms, TimingSource.LOCAL_RECEIPT
        return at - silence_ms, TimingSource.PROVIDER_EVENTS

    # -- the provider: what it is sent, and its items ------------------------------------------------
    def _sent(self, event: Any) -> None:
        kind = getattr(event, "type", "")
        if kind == "input_audio_buffer.append":
            size = len(event.audio) * 3 // 4 - event.audio.count("=", -2)
            # a resampler holds some of it back, which is sent with what follows
            sent_ms = self._received_ms or size / 2 / _INPUT_RATE * 1000
            self._clock.sent(self._call.precise_ms(), sent_ms)
            self._received_ms = 0.0
        elif kind == "conversation.item.create":
            if item_id := getattr(event.item, "id", None):
                self._ours.add(item_id)
        elif kind == "conversation.item.truncate":
            self._call.emit(
                ev.ProviderTruncated(
                    at_ms=self._call.now_ms(),
                    speech_id=self._speeches.get(event.item_id, event.item_id),
                    audio_end_ms=int(event.audio_end_ms),
                )
            )

    def _reset(self) -> None:
        """Another connection: its buffer counts from 0, and it is told the conversation anew."""
        self._clock, self._received_ms = InputClock(), 0.0
        self._items.clear()
        self._spoken.clear()

    def _item_created(self, item_id: str, item: Any) -> None:
        """An item is in the provider's conversation. Told in a task of its own, in order."""
        self._names_items = True
        if item_id in self._items:
            return
        self._items.append(item_id)
        role, kind = getattr(item, "role", None), getattr(item, "type", "message")
        if item_id in self._ours:
            return
        if role == "user":
            self._spoken.append(item_id)
            if not self._user.provider_hears:
                self._call.emit(ev.UserItemNamed(at_ms=self._call.now_ms(), item_id=item_id))
        elif kind == "function_call":
            self._calls[str(getattr(item, "call_id", ""))] = item_id
            if len(self._calls) > _REMEMBERED:
                del self._calls[next(iter(self._calls))]
        elif role == "assistant" and (response := self._response or self._last) is not None:
            response.own.add(item_id)
            response.item_id = response.item_id or item_id
            self._name_speech(response)

    def _name_speech(self, response: Response) -> None:
        if response.speech is not None and response.item_id is not None:
            taken = self._speeches.get(response.item_id, response.speech.key) != response.speech.key
            if not taken:
                response.speech.item_id = response.item_id
            for item_id in response.own:
                self._remember(item_id, response.speech)

    def _remember(self, item_id: str, speech: Speech) -> None:
        self._speeches.setdefault(item_id, speech.key)
        while len(self._speeches) > _REMEMBERED:
            del self._speeches[next(iter(self._speeches))]

    # -- responses -----------------------------------------------------------------------------------
    def _now(self) -> Response:
        """The response that is going on; a new one if there is none."""
        if self._response is None:
            self._user.realtime = self
            run = self._speech.new_run((), None)
            run.realtime = True
            run.started_ns = int((self._call.origin_unix_ms + self._call.precise_ms()) * 1e6)
            self._response = Response(run)
            # items are told in tasks: those that were made before this response come first
            asyncio.get_running_loop().call_soon(
                self._call.guard.wrap("realtime_response", self._begin), self._response
            )
        return self._response

    def _begin(self, response: Response) -> None:
        """What the response has in its context, and which of the user's speech it is the first to answer."""
        if response.begun or self._call.closed:
            return
        response.begun = True
        if self._names_items:
            own = response.own | {self._calls[c] for c in response.calls if c in self._calls}
            context: list[str] = [i for i in self._items if i not in own]
            heard, self._spoken = tuple(self._spoken), []
        else:
            if self._utterance is None and self._user.unanswered and not self._user.speaking:
                self._utterance = self._ids.make()
            heard = (self._utterance,) if self._utterance is not None else ()
            context = self._context_ids()
            context += [i for i in (self._answered, *heard) if i is not None and i not in context]
            if heard:
                self._answered, self._utterance = self._utterance, None
        self._user.unanswered = False
        response.run.context_ids = tuple(context)
        self._call.emit(ev.ResponseStarted(at_ms=self._call.now_ms(), item_ids=heard, unnamed=False))

    def _context_ids(self) -> list[str]:
        if self._context is None:
            return []
        messages, ids = self._context.messages, self._ids.of(self._context)
        return [i for m, i in zip(messages, ids, strict=True) if role_of(m) not in _INSTRUCTIONS]

    def _receives(self, frame: f.LLMContextFrame) -> None:
        self._context = frame.context

    def _takes(self, frame: f.InputAudioRawFrame) -> None:
        """The caller's audio is about to be sent; at most the resampler's share stays behind."""
        duration_ms = len(frame.audio) / (2 * frame.num_channels * frame.sample_rate) * 1000
        self._received_ms = min(self._received_ms + duration_ms, max(duration_ms, _HELD_BACK_MS))

    def _starts(self, frame: f.Frame) -> None:
        """A response starts; asked for by the client, it starts again with each of its messages."""
        calls = isinstance(frame, f.FunctionCallsStartedFrame)
        if self._response is not None and self._response.ended_once and not calls:
            self._close(self._response)  # the end of the one that was cut was never told
        response = self._now()
        frame.metadata[RUN_KEY] = response.run.run_id
        if isinstance(frame, f.FunctionCallsStartedFrame):
            response.calls.update(call.tool_call_id for call in frame.function_calls)

    def _speaks(self, frame: f.TTSStartedFrame) -> None:
        context = self._streams(self._now())
        frame.metadata[SPEECH_KEY] = context.context_id
        self._speech.tell(context.speech)

    def _streams(self, response: Response) -> Context:
        """The bracket that audio and text go to; a speech that is over already is not continued."""
        if response.context is None:
            speech = response.speech
            if speech is None or speech.ended or speech.committed:
                number = len(response.run.speeches)
                key = f"{response.run.run_id}_{number}" if number else response.run.run_id
                speech = response.speech = self._speech.new_speech(key, response.run, origin="realtime")
                speech.source = TextSource.REALTIME_OUTPUT_TRANSCRIPT
                self._name_speech(response)
            key = f"{speech.key}/{len(speech.contexts)}"
            response.context = self._speech.add_context(key, speech)
            if response.untold:
                response.context.texts.append(response.untold)
                response.untold = ""
        return response.context

    def _writes(self, frame: f.LLMTextFrame) -> None:
        """Text of the model: beside its audio a transcript, else what a voice will speak."""
        response = self._now()
        frame.metadata[RUN_KEY] = response.run.run_id
        response.run.text += frame.text
        context = response.context
        if context is None:
            response.untold += frame.text
        elif not (context.cut or context.finished):
            context.texts.append(frame.text)
            if context.speech.told:
                self._speech.tell_text(context.speech, frame.text)

    def _tells(self, frame: f.TTSTextFrame) -> None:
        response = self._response
        if response is not None and not response.ended_once:
            frame.metadata[SPEECH_KEY] = self._streams(response).context_id

    def _stops(self, frame: f.TTSStoppedFrame) -> None:
        response = self._response
        if response is not None and response.context is not None:
            frame.metadata[SPEECH_KEY] = response.context.context_id
            response.context = None

    def _ends(self, frame: f.LLMFullResponseEndFrame) -> None:
        """A response ends, or is cut: that one ends again when the provider says so."""
        native = self._native_span()
        response = self._response
        if response is None:
            if native is None:
                return  # said twice
            response = self._now()  # it was cancelled before it brought anything
        frame.metadata[RUN_KEY] = response.run.run_id
        if _INTERRUPTING.get() and native is None:
            response.ended_once = True
            return
        self._begin(response)
        if native is not None:
            self._speech.bind_step(response.run, native)
            if self._spans is not None:
                self._spans.follow(native.get_span_context().span_id, response.run)
        self._close(response)

    def _native_span(self) -> Any:
        """The service's own span of the response, which it opens when the response is done."""
        span_id = otel.get_current_span().get_span_context().span_id
        span = self._spans.live(span_id) if self._spans is not None else None
        return span if span is not None and span.name == semconv.PIPECAT_SPAN_LLM_RESPONSE else None

    def _interrupts(self) -> None:
        _INTERRUPTING.set(True)

    def _interrupted(self) -> None:
        _INTERRUPTING.set(False)
        response = self._response
        if response is None or response.speech is None or response.ended_once:
            return
        if response.context is None:  # it stopped, and a service that says no more ends with that
            self._close(response)

    def _close(self, response: Response) -> None:
        self._begin(response)
        self._response, self._last = None, response
        run = response.run
        self._speech.span_of_our_own(run)
        if response.context is not None and not response.context.speech.told:
            self._speech.never_played(response.context)
        if response.speech is not None or not run.text:
            self._speech.close_run(run)
        else:
            self._speech.end_own_span(run)  # a voice of the application speaks it, or it is only text

    def finish(self) -> None:
        """The pipeline is over."""
        if self._response is not None:
            self._close(self._response)
        for item_id in self._unappended if not self._names_items else ():
            self._tell_transcript(item_id, self._texts[item_id], final=True)

    # -- transcripts ---------------------------------------------------------------------------------
    def _transcribed(self, frame: Any, *, final: bool) -> None:
        """The service tells what the user said: upstream, with the item in the provider's own event."""
        text = frame.text or ""
        item_id = _item_id(frame.result)
        if item_id is None:
            self._transcribed_in_part(text.strip())
            return
        if final:
            self._partial.pop(item_id, None)
            self._said(item_id, text)
        else:
            text = self._partial[item_id] = self._partial.get(item_id, "") + text
        self._tell_transcript(item_id, text, final=final)

    def _transcribed_in_part(self, text: str) -> None:
        """Without items a transcript comes sentence by sentence: it is final when it enters the context."""
        if text:
            item_id = self._being_said()
            before = self._texts.get(item_id)
            self._said(item_id, f"{before} {text}" if before else text)
            self._tell_transcript(item_id, self._texts[item_id], final=False)

    def _said(self, item_id: str, text: str) -> None:
        self._texts[item_id] = text
        self._transcribed_ms[item_id] = self._call.now_ms()
        if item_id not in self._unappended and text.strip():
            self._unappended.append(item_id)

    def _tell_transcript(self, item_id: str, text: str, *, final: bool) -> None:
        self._call.emit(
            ev.UserTranscript(
                at_ms=self._call.now_ms(),
                text=text,
                final=final,
                source=TextSource.REALTIME_INPUT_TRANSCRIPT,
                item_id=item_id,
            )
        )

    def _being_said(self) -> str:
        """Which utterance a transcript without an item is of.

        The one that the response of now answers while nothing was said since, or it has no transcript yet.
        """
        answered = self._answered
        again = self._user.unanswered or self._user.speaking
        if answered is not None and (answered not in self._texts or not again):
            return answered
        if self._utterance is None:
            self._utterance = self._ids.make()
        return self._utterance

    def user_message(self, aggregator: LLMUserAggregator) -> bool:
        """The transcripts so far are in the context now, in one message, however many utterances they are."""
        said, self._unappended = self._unappended, []
        if not said:
            return False
        self._context = aggregator.context
        self._ids.name_newest(aggregator.context, said[-1])
        for item_id in said:
            self._call.emit(
                ev.UserMessageAdded(
                    at_ms=self._call.now_ms(),
                    item_id=item_id,
                    text=self._texts.pop(item_id, ""),
                    source=TextSource.REALTIME_INPUT_TRANSCRIPT,
                    transcript_final_ms=self._transcribed_ms.pop(item_id, None),
                )
            )
        if self._answered in said:
            self._answered = None
        if self._utterance in said:
            self._utterance = None
        return True


def _item_id(event: Any) -> str | None:
    found = getattr(event, "item_id", None)
    return found if isinstance(found, str) and found else None


def _takes_event(method: Any) -> bool:
    """Whether a private handler still is what we know it as: a coroutine of one event."""
    return inspect.iscoroutinefunction(method) and len(inspect.signature(method).parameters) == 1


def _first(told: Callable[..., Any], original: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """The method, which is preceded by what was told (guarded: it never raises)."""

    async def method(*args: Any, **kwargs: Any) -> Any:
        told(*args, *kwargs.values())
        return await original(*args, **kwargs)

    return method
