# SPDX-License-Identifier: Apache-2.0
"""One `AgentSession` run as a call: its public events become `voicetrace.events`.

Which hook gives which field, and the traps (T..), are in ``specs/livekit.md``.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from livekit import rtc
from livekit.agents import NOT_GIVEN, AgentSession, llm
from livekit.agents.utils import is_given
from livekit.agents.voice import SpeechHandle, io
from livekit.agents.voice import events as lk
from opentelemetry import trace
from opentelemetry.trace import Span

from voicetrace import events as ev
from voicetrace import semconv
from voicetrace.integrations.livekit.nodes import AgentNodes
from voicetrace.integrations.livekit.playout import PlayoutAdapter
from voicetrace.integrations.livekit.realtime import RealtimeAdapter
from voicetrace.integrations.livekit.recording import OwnRecording
from voicetrace.live import LiveCall
from voicetrace.messages import Channel, TextSource, TimingSource

DEFAULT_SAMPLE_RATE: Final = 24_000

# the traces that have a running speech, by speech id: how code inside a reply task finds its call
TRACES_BY_SPEECH: weakref.WeakValueDictionary[str, SessionTrace] = weakref.WeakValueDictionary()


def step_key(speech_id: str, step: int) -> str:
    """The record's key: LiveKit reuses one handle over tool steps (decision 3, T31)."""
    return speech_id if step <= 1 else f"{speech_id}_{step}"


@dataclass(slots=True, eq=False)
class Step:
    """One record of a handle: an LLM step, a `say`, or one message of a realtime response."""

    key: str
    data: Any = None  # LiveKit's `_LLMGenerationData`, whose text grows while the model streams
    told: int = 0
    pieces: list[str] = field(default_factory=list)  # of streamed text, kept back for the redactor
    source: TextSource = TextSource.TTS_INPUT
    said: bool = False  # by `say`, which told the text
    # of a realtime message
    message_id: str | None = None
    taken: bool = False
    pulled: bool = False  # its text was forwarded


@dataclass(slots=True, eq=False)
class Speech:
    """One `SpeechHandle` and the records that come of it."""

    handle: SpeechHandle
    source: str
    steps: dict[int, Step] = field(default_factory=dict)
    more: list[tuple[int, Step]] = field(default_factory=list)  # further messages of a realtime response
    now: Step | None = None  # the realtime message whose audio is being played

    @property
    def current(self) -> Step:
        """The record that what happens now belongs to."""
        return self.now or self.step(self.handle.num_steps)

    @property
    def all_steps(self) -> list[Step]:
        """Every record of the handle so far."""
        return [*self.steps.values(), *(step for _, step in self.more)]

    def another(self, number: int) -> Step:
        """The record of one more message in the same step."""
        count = 2 + sum(n == number for n, _ in self.more)
        step = Step(f"{step_key(self.handle.id, number)}/{count}")
        self.more.append((number, step))
        return step

    def number_of(self, step: Step) -> int:
        """Which tool step of the handle a record belongs to."""
        return next((n for n, s in (*self.steps.items(), *self.more) if s is step), self.handle.num_steps)

    def step(self, number: int) -> Step:
        """The (first) record of a tool step."""
        found = self.steps.get(number)
        if found is None:
            found = self.steps[number] = Step(step_key(self.handle.id, number))
        return found


class CallerTap(io.AudioInput):
    """Passes the caller's frames through unchanged, and gives a copy of each to the recording."""

    def __init__(self, source: io.AudioInput, on_frame: Any, on_swap: Any = None) -> None:
        super().__init__(label=source.label, source=source)
        self._on_frame = on_frame
        self._on_swap = on_swap
        self._inner = source

    async def __anext__(self) -> rtc.AudioFrame:
        frame = await self._inner.__anext__()
        if self._on_frame is not None:
            self._on_frame(frame)
        return frame

    def on_detached(self) -> None:
        """The session reads another input from now on, or none for a while."""
        super().on_detached()
        if self._on_swap is not None:
            self._on_swap()

    def leave(self) -> None:
        """Pass frames through, and nothing more."""
        self._on_frame = self._on_swap = None


class SessionTrace:
    """Follows one run of one session, from `start` to `close`. Loop-affine; every handler is guarded."""

    def __init__(
        self,
        session: AgentSession[Any],
        call: LiveCall,
        *,
        own_nodes: bool = False,
        adopt_recording: bool = False,
    ) -> None:
        self.call = call
        self._session = weakref.ref(session)
        self._speeches: dict[str, Speech] = {}
        self._step_by_item: dict[str, Step] = {}
        self._saying: tuple[str | None, list[str]] | None = None
        self._typed: dict[str, str] = {}  # item id or speech id -> token of the typed text
        self._typed_count = 0
        self._voice_on = False  # a "speaking" of ours to close: a claimed turn is no voice (T17)
        self._tap: CallerTap | None = None
        self._rate_chosen = False
        # a redactor must see a text whole: what it looks for may lie across two pieces
        self._whole = call.settings.redact is not None
        self.playout = PlayoutAdapter(call, self.current_key)
        self._own_recording = OwnRecording(call, adopt=adopt_recording)
        self.realtime = RealtimeAdapter(self, server_vad_silence_ms=call.settings.server_vad_silence_ms)
        wrap = call.guard.wrap
        # LLM steps by public hooks, where the private function does not tell them
        self._nodes = AgentNodes(wrap("llm_node", self._node_called)) if own_nodes else None
        self._turns: dict[int, Span] = {}  # the open agent_turn spans, by id
        self._handlers: dict[Any, Any] = {
            "user_state_changed": wrap("user_state_changed", self._on_user_state),
            "agent_state_changed": wrap("agent_state_changed", self._on_agent_state),
            "user_input_transcribed": wrap("user_input_transcribed", self._on_transcript),
            "speech_created": wrap("speech_created", self._on_speech_created),
            "conversation_item_added": wrap("conversation_item_added", self._on_item),
            "close": wrap("close", self._on_close),
        }
        self._speech_done = wrap("speech_done", self._on_speech_done)
        self._caller_frame = wrap("caller_frame", self._on_caller_frame)
        self._input_swapped = wrap("input_swapped", self._on_input_swapped)
        self._tap_swapped = wrap("input_swapped", self._tap_again)
        self.span_started = wrap("span_started", self._on_span_started)
        self.span_ended = wrap("span_ended", self._on_span_ended)
        self._finish, self._detach = wrap("finish", self.finish), wrap("detach", self.detach)
        self.provider_gone = wrap("provider_gone", call.provider_gone)
        for name, handler in self._handlers.items():
            session.on(name, handler)
        call.attach_loop(asyncio.get_running_loop())

    @property
    def session(self) -> AgentSession[Any] | None:
        """The session, while it lives."""
        return self._session()

    # -- life ----------------------------------------------------------------------------------------
    def started(self) -> None:
        """`AgentSession.start` returned, and no frame of the caller has been read yet."""
        session = self._session()
        if session is None:
            return
        self._watch_output(session)
        self._watch_recording(session)
        self.realtime.ensure()
        self._tap_input(session)

    def detach(self) -> None:
        """Stop following, and leave the session, its sink and its input as they were."""
        session = self._session()
        self.playout.leave()
        self.realtime.close()
        if self._nodes is not None:
            self._nodes.leave()
        if session is None:
            return
        for name, handler in self._handlers.items():
            session.off(name, handler)
        tap, self._tap = self._tap, None
        if tap is None:
            return
        tap.leave()
        if session.input.audio is tap and _a_loop_runs():
            session.input.audio = tap.source

    def end(self, reason: str) -> None:
        """`finish` and `detach` for callers outside the session; never raises."""
        self._finish(reason)
        self._detach()

    def finish(self, reason: str) -> None:
        """The run is over, however it ended. Harmless when repeated."""
        if self.call.closed:
            return
        for speech in self._speeches.values():
            for step in speech.all_steps:
                self._tell_text(step)
        if self._wants_caller and self._tap is None:
            self.call.fault("the session had no audio input: the caller's channel is silent")
        if self._own_recording.adopted:
            self.call.files.hold_adopted()
        self.call.close(reason)
        self.detach()

    def _watch_output(self, session: AgentSession[Any]) -> None:
        self.playout.follow(session.output.audio)

    def _watch_recording(self, session: AgentSession[Any]) -> None:
        """Before what is told of the session now: LiveKit may record it, else we may have to begin."""
        self._own_recording.look(session)
        sink = session.output.audio
        if self._own_recording.adopted:
            self.playout.keep_no_audio()
        elif sink is not None and not self._rate_chosen and self.call.files.wants_audio:
            self._rate_chosen = True
            tts = session.current_agent.tts or session.tts if _has_agent(session) else session.tts
            rate = sink.sample_rate or getattr(tts, "sample_rate", None) or DEFAULT_SAMPLE_RATE
            self.call.files.start_recording(rate)

    @property
    def _wants_caller(self) -> bool:
        return Channel.CALLER in self.call.files.wants_audio and not self._own_recording.adopted

    def _tap_input(self, session: AgentSession[Any]) -> None:
        source = session.input.audio
        if source is None or isinstance(source, CallerTap) or not self._wants_caller:
            return
        self._tap = CallerTap(source, self._caller_frame, self._input_swapped)
        session.input.audio = self._tap

    def _on_input_swapped(self) -> None:
        """The tap was detached; what comes in its place is known when the setter returns."""
        if _a_loop_runs():
            asyncio.get_running_loop().call_soon(self._tap_swapped)

    def _tap_again(self) -> None:
        session, tap = self._session(), self._tap
        if session is None or tap is None or session.input.audio is tap or self.call.closed:
            return
        self._tap_input(session)
        if self._tap is not tap:
            tap.leave()

    def _on_caller_frame(self, frame: rtc.AudioFrame) -> None:
        call = self.call
        if not self._rate_chosen:
            self._rate_chosen = True
            call.files.start_recording(DEFAULT_SAMPLE_RATE)
        call.files.caller_audio(call.precise_ms(), bytes(frame.data), frame.sample_rate, frame.num_channels)

    # -- the user ------------------------------------------------------------------------------------
    def _on_user_state(self, event: lk.UserStateChangedEvent) -> None:
        call, session = self.call, self._session()
        if session is not None:
            self._own_recording.look(session)
        now = call.now_ms()
        at = min(call.ms(event.created_at), now)
        if event.new_state == "speaking":
            # text input claims the turn and looks like speech; real voice runs in a user_turn span
            name = getattr(trace.get_current_span(), "name", None)
            if name is None and self.realtime.hears_by_server:
                return  # the realtime adapter tells it
            if name is not None and name != semconv.LK_SPAN_USER_TURN:
                return
            self._voice_on = True
            call.emit(ev.UserSpeechStarted(at_ms=now, start_ms=at, source=self._heard_by()))
        elif event.old_state == "speaking" and self._voice_on:
            self._voice_on = False
            call.emit(ev.UserSpeechStopped(at_ms=now, end_ms=at, source=self._heard_by()))

    def voice_goes_on(self) -> None:
        """The provider that hears the user speak is left for a VAD, whose next stop ends that speech."""
        self._voice_on = True

    def _heard_by(self) -> TimingSource:
        """Who tells of speech: a VAD in this process, else the recogniser, whose messages are received."""
        session = self._session()
        if session is None:
            return TimingSource.LOCAL_VAD
        own = session.current_agent.vad if _has_agent(session) else NOT_GIVEN
        vad = own if is_given(own) else session.vad
        return TimingSource.LOCAL_RECEIPT if vad is None else TimingSource.LOCAL_VAD

    def turn_cleared(self) -> None:
        """`clear_user_turn()`: what was said since the last turn is thrown away."""
        self.call.emit(ev.UserTurnCleared(at_ms=self.call.now_ms()))

    def _on_transcript(self, event: lk.UserInputTranscribedEvent) -> None:
        self.call.emit(
            ev.UserTranscript(
                at_ms=min(self.call.ms(event.created_at), self.call.now_ms()),
                text=event.transcript,
                final=event.is_final,
                source=self.realtime.knows_spoken(event.item_id),
                item_id=event.item_id,
            )
        )

    def text_typed(self, text: str | None) -> str:
        """`generate_reply(user_input=...)` is being called; typed input takes its place now (decision 6)."""
        self._typed_count += 1
        token = f"typed_{self._typed_count}"
        self.call.emit(ev.UserTextSubmitted(at_ms=self.call.now_ms(), token=token, text=text))
        return token

    def typed_for(self, token: str, key: str) -> None:
        """The typed text's item has this id, or is answered by this speech."""
        self._typed[key] = token

    # -- the assistant -------------------------------------------------------------------------------
    def current_key(self) -> str | None:
        """The record's key of the speech that is current now."""
        session = self._session()
        handle = session.current_speech if session is not None else None
        if handle is None:
            return None
        speech = self._speeches.get(handle.id)
        return speech.current.key if speech is not None else handle.id

    def say_next(self, text: str | None) -> list[str]:
        """`say()` is being called with this text, or with a stream of it.

        Its `speech_created` follows at once and puts the record's key into the list returned.
        """
        key: list[str] = []
        self._saying = (text, key)
        return key

    def _on_speech_created(self, event: lk.SpeechCreatedEvent) -> None:
        session = self._session()
        if session is not None:
            self._watch_output(session)
            self._watch_recording(session)
            self.realtime.ensure()
            self._tap_again()
        handle = event.speech_handle
        speech = self._speeches[handle.id] = Speech(handle, event.source)
        TRACES_BY_SPEECH[handle.id] = self
        now = self.call.now_ms()
        key = speech.current.key
        self.call.emit(ev.SpeechCreated(at_ms=now, speech_id=key, origin=self._origin(event.source)))
        if event.source == "say" and self._saying is not None:
            (text, said_as), self._saying = self._saying, None
            said_as.append(key)
            speech.current.said = True
            if text is not None:
                self.say_chunk(key, text)
        handle.add_done_callback(self._speech_done)

    def _origin(self, source: str) -> Literal["say", "reply", "realtime"]:
        if source == "say":
            return "say"
        return "realtime" if self.realtime.active else "reply"

    def say_piece(self, speech_id: str, text: str) -> None:
        """The next piece of a streamed `say()`."""
        speech = self._speeches.get(speech_id)
        if self._whole and speech is not None:
            speech.step(1).pieces.append(text)
        else:
            self.say_chunk(speech_id, text)

    def say_chunk(self, speech_id: str, text: str, source: TextSource = TextSource.TTS_INPUT) -> None:
        """Text of a `say()`, or of another speech whose text is streamed."""
        self.call.emit(ev.SpeechText(at_ms=self.call.now_ms(), speech_id=speech_id, text=text, source=source))

    def tell(self, step: Step, text: str) -> None:
        """The next piece of a realtime message's text."""
        if self._whole:
            step.pieces.append(text)
        else:
            self.say_chunk(step.key, text, step.source)

    def speech_of(self, handle: SpeechHandle) -> Speech | None:
        """The speech of a handle, if it was announced."""
        return self._speeches.get(handle.id)

    def link_item(self, item_id: str, step: Step) -> None:
        """The item of this id will be this record's."""
        self._step_by_item[item_id] = step

    def step_began(self, speech: Speech, number: int) -> None:
        """A step of the handle begins; the one before is over: its tools ran, and what it said has played."""
        speech.now = None
        if number <= 1 or number in speech.steps:
            return
        now = self.call.now_ms()
        for before in [speech.step(number - 1), *(s for n, s in speech.more if n == number - 1)]:
            self._tell_text(before)
            self.call.emit(ev.SpeechEnded(at_ms=now, speech_id=before.key))
        key = speech.step(number).key
        self.call.emit(ev.SpeechCreated(at_ms=now, speech_id=key, origin=self._origin("")))

    def llm_called(self, handle: SpeechHandle, chat_ctx: llm.ChatContext, span: Span) -> None:
        """The LLM node runs in `span` with this context: one LLM step of this handle."""
        speech = self._speeches.get(handle.id)
        if speech is None:
            return
        number = handle.num_steps
        self.step_began(speech, number)
        items = chat_ctx.items
        users = [i.id for i in items if i.type == "message" and i.role == "user"]
        self.call.start_step(
            span,
            name=getattr(span, "name", semconv.LK_SPAN_LLM_NODE),
            context_ids=tuple(i.id for i in items),
            speech_id=speech.step(number).key,
            answers=users[-1] if users else None,
        )

    def _node_called(self, chat_ctx: llm.ChatContext, span: Span) -> None:
        """An agent's node runs in `span`; the turn around it says whose words it writes."""
        parent = getattr(span, "parent", None)
        turn = self._turns.get(parent.span_id) if parent is not None else None
        speech = self._speech_in(turn)
        if speech is not None:
            self.llm_called(speech.handle, chat_ctx, span)

    def llm_data(self, handle: SpeechHandle, data: Any) -> None:
        """LiveKit's own record of the step that is about to run: its text, and its item's id to be."""
        speech = self._speeches.get(handle.id)
        if speech is not None:
            step = speech.step(handle.num_steps)
            step.data = data
            self._step_by_item[data.id] = step

    def _tell_text(self, step: Step, *, whole: bool = True) -> None:
        """Tell what the model has said since the last time; ``whole`` when no more will come."""
        if self._whole and not whole:
            return
        if step.pieces:
            text, step.pieces = "".join(step.pieces), []
            self.say_chunk(step.key, text, step.source)
        text = getattr(step.data, "generated_text", "")
        if isinstance(text, str) and len(text) > step.told:
            more, step.told = text[step.told :], len(text)
            self.call.emit(
                ev.SpeechText(
                    at_ms=self.call.now_ms(), speech_id=step.key, text=more, source=TextSource.TTS_INPUT
                )
            )

    def _on_agent_state(self, event: lk.AgentStateChangedEvent) -> None:
        session = self._session()
        if session is not None:
            self._watch_output(session)
            if event.new_state != "initializing":  # inside `start`: whether LiveKit records is not known yet
                self._watch_recording(session)
            self.realtime.ensure()
        playing = self.playout.playing
        if event.old_state == "speaking" and playing is not None:
            self.call.emit(
                ev.PlayoutStopped(
                    at_ms=self.call.now_ms(), speech_id=playing, stopped_ms=self.call.ms(event.created_at)
                )
            )

    def _on_speech_done(self, handle: SpeechHandle) -> None:
        speech = self._speeches.get(handle.id)
        if speech is None:
            return
        now = self.call.now_ms()
        # a reply that was never scheduled was a speculative attempt; a say() is always scheduled
        discarded = not handle.scheduled and speech.source != "say"
        for item in handle.chat_items:
            if isinstance(item, llm.ChatMessage) and item.role == "assistant":
                self._item_of(self._step_by_item.get(item.id) or speech.current, item)
        for step in speech.all_steps:
            self.realtime.tell_unheard(step)
            self._tell_text(step)
            self.call.emit(
                ev.SpeechEnded(at_ms=now, speech_id=step.key, outcome="discarded" if discarded else "done")
            )
            step.data = None
        over = [i for i, s in self._step_by_item.items() if s in speech.all_steps]
        for item_id in over:
            del self._step_by_item[item_id]
        del self._speeches[handle.id]

    # -- items ---------------------------------------------------------------------------------------
    def _on_item(self, event: lk.ConversationItemAddedEvent) -> None:
        item = event.item
        if item.type == "agent_handoff":
            self.realtime.agent_changed()
            session = self._session()
            if self._nodes is not None and session is not None:
                self._nodes.follow(session.current_agent)
        if not isinstance(item, llm.ChatMessage):
            return
        if item.role == "user":
            self._user_item(item)
        elif item.role == "assistant":
            step = self._step_by_item.get(item.id) or self._step_in_context()
            self._item_of(step, item)

    def _user_item(self, item: llm.ChatMessage) -> None:
        typed = item.transcript_confidence is None  # spoken items always carry a float
        if not typed and not item.raw_text_content and not self.realtime.active:
            return  # a manual turn that is open at the close is committed, though nothing was said in it
        token: str | None = None
        if typed and self._typed:
            speech = self._speech_in_context()
            token = self._typed.pop(item.id, None)
            if token is None and speech is not None:
                token = self._typed.pop(speech.handle.id, None)
        self.call.emit(
            ev.UserMessageAdded(
                at_ms=self.call.now_ms(),
                item_id=item.id,
                text=item.raw_text_content or "",
                source=TextSource.TEXT_INPUT if typed else self._spoken_source(item.id),
                end_of_turn_ms=None if typed else self._end_of_turn(item),
                token=token,
            )
        )

    def _spoken_source(self, item_id: str) -> TextSource:
        return self.realtime.knows_spoken(item_id)

    def _end_of_turn(self, item: llm.ChatMessage) -> int | None:
        stopped = item.metrics.get("stopped_speaking_at")
        delay = item.metrics.get("end_of_turn_delay")
        return None if stopped is None or delay is None else self.call.ms(stopped + delay)

    def _item_of(self, step: Step | None, item: llm.ChatMessage) -> None:
        if step is None:
            self.call.fault(f"assistant item {item.id} belongs to no speech that was seen")
            step = Step(item.id)
        self._tell_text(step)
        self.call.emit(
            ev.AssistantMessageAdded(
                at_ms=self.call.now_ms(),
                item_id=item.id,
                speech_id=step.key,
                text=item.raw_text_content or "",
                cut=item.interrupted,
            )
        )

    def _speech_in_context(self) -> Speech | None:
        """The speech whose task runs now: its turn span names the generation; else the current one."""
        speech = self._speech_in(trace.get_current_span())
        if speech is not None:
            return speech
        session = self._session()
        handle = session.current_speech if session is not None else None
        return self._speeches.get(handle.id) if handle is not None else None

    def _speech_in(self, turn: Any) -> Speech | None:
        """The speech whose generation this turn span names."""
        generation = (getattr(turn, "attributes", None) or {}).get(semconv.LK_GENERATION_ID)
        return self._speeches.get(generation.rpartition("_")[0]) if isinstance(generation, str) else None

    def _step_in_context(self) -> Step | None:
        speech = self._speech_in_context()
        return speech.current if speech is not None else None

    # -- native spans --------------------------------------------------------------------------------
    def _on_span_started(self, span: Span, name: str, span_id: str) -> None:
        if name == semconv.LK_SPAN_SESSION:
            if getattr(self._session(), "_redaction_enabled", False):
                self.call.withhold_content()  # decided inside `start`, before anything is said
            self.call.bind_span(span)
        elif name == semconv.LK_SPAN_AGENT_TURN:
            self._turns[span.get_span_context().span_id] = span
        elif name == semconv.LK_SPAN_REALTIME:
            speech = self._speech_in_context()
            self.realtime.inference_started(span, speech.handle if speech is not None else None)
        elif name in (semconv.LK_SPAN_EOU_WAIT, semconv.LK_SPAN_TURN_HOOK):
            self.call.emit(ev.EndOfTurnPending(at_ms=self.call.now_ms(), token=span_id))

    def _on_span_ended(self, span: Any, name: str, span_id: str) -> None:
        now = self.call.now_ms()
        self._turns.pop(span.context.span_id, None)
        if name == semconv.LK_SPAN_EOU_WAIT:
            outcome = (span.attributes or {}).get(semconv.LK_EOU_OUTCOME)
            decided: Any = {"committed": "committed", "user_resumed": "resumed"}.get(str(outcome), "dropped")
            self.call.emit(ev.EndOfTurnDecided(at_ms=now, token=span_id, outcome=decided))
        elif name == semconv.LK_SPAN_TURN_HOOK:
            self.call.emit(ev.EndOfTurnDecided(at_ms=now, token=span_id, outcome="done"))
            names = {e.name for e in span.events}
            if names & {semconv.LK_EVENT_STOP_RESPONSE, "exception"}:
                self.call.emit(ev.UserTurnDropped(at_ms=now))
        elif name in (semconv.LK_SPAN_LLM_NODE, semconv.LK_SPAN_REALTIME):
            for speech in self._speeches.values():
                for step in speech.steps.values():
                    self._tell_text(step, whole=False)
            if name == semconv.LK_SPAN_REALTIME:
                self.realtime.inference_ended(span_id)
            error = "" if span.status.is_ok or span.status.is_unset else (span.status.description or "error")
            self.call.emit(ev.LLMStepEnded(at_ms=now, span_id=span_id, error=error))
        elif name == semconv.LK_SPAN_SESSION:
            # close is not emitted when the teardown raised
            self.finish("span ended")

    def _on_close(self, event: lk.CloseEvent) -> None:
        reason = event.reason.value
        if event.error is not None:
            reason = f"{reason}: {event.error.type}"
        self.finish(reason)


def _a_loop_runs() -> bool:
    """Whether code runs on a loop here: LiveKit starts a task for each input that is set."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _has_agent(session: AgentSession[Any]) -> bool:
    try:
        return session.current_agent is not None
    except RuntimeError:
        return False


async def tell_chunks(text: AsyncIterable[str], tell: Any) -> AsyncIterator[str]:
    """Pass streamed text through, telling each chunk first; closing it closes the source."""
    try:
        async for chunk in text:
            tell(chunk)
            yield chunk
    finally:
        aclose = getattr(text, "aclose", None)
        if aclose is not None:
            await aclose()
