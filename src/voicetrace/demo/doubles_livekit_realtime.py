# SPDX-License-Identifier: Apache-2.0
"""A realtime provider for the demo call: a model that hears and speaks by itself, without a network.

`RecordedRealtimeModel` is the provider and `RecordedRealtimeSession` one connection to it, as subclasses of
LiveKit's own base classes. The voice detection is real: Silero on the audio that the session is sent, which
waits for ``silence_ms`` of silence as a server does. What was said, and what is answered, is scripted; the
answers are recorded speech with true word timings, streamed faster than it plays. Lives on the event loop
that runs the session; nothing here is thread-safe.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from livekit import rtc
from livekit.agents import inference, llm, utils, vad
from livekit.agents.types import NOT_GIVEN, NotGivenOr, TimedString

from voicetrace.demo.line import Spoken
from voicetrace.demo.script import RecordedClip, Reply, tokenize
from voicetrace.demo.truth import LLMCall

_WINDOW_MS: Final = 32  # Silero judges windows of this length, and is late by the one that it is in
_CREATED_MS: Final = 40  # from the end of a turn, or a request, to the response that it gets


class RecordedRealtimeModel(llm.RealtimeModel):
    """The provider: opens sessions that answer by ``replies`` and speak ``clips``.

    ``calls`` are the responses of all its sessions, in order; ``truncations`` are the ``(message id, ms)``
    at which it was told to cut its memory of a message, in order.
    """

    def __init__(
        self,
        replies: Sequence[Reply],
        clips: Sequence[RecordedClip],
        *,
        silence_ms: int,
        speedup: float = 4.0,
    ) -> None:
        super().__init__(
            capabilities=llm.RealtimeCapabilities(
                message_truncation=True,
                turn_detection=True,
                user_transcription=True,
                auto_tool_reply_generation=False,
                audio_output=True,
                manual_function_calls=False,
            )
        )
        self.silence_ms = silence_ms
        self.speedup = speedup
        self.calls: list[LLMCall] = []
        self.truncations: list[tuple[str, int]] = []
        self.heard: list[tuple[Spoken, str | None, int]] = []
        self._replies = tuple(replies)
        self._clips = {clip.text: clip for clip in clips}

    @property
    def model(self) -> str:
        """The name shown in traces."""
        return "recorded-realtime"

    @property
    def provider(self) -> str:
        """The provider shown in traces."""
        return "voicetrace-demo"

    def hear(
        self, spoken: Spoken, interims: Iterable[tuple[str, int]], final: str | None, final_delay_ms: int
    ) -> None:
        """Say what to make of one utterance.

        ``final`` is its transcript, which comes ``final_delay_ms`` after its item; ``""`` for an item that
        never gets one, and ``None`` for a sound that becomes no item. There are no interims.
        """
        self.heard.append((spoken, final, final_delay_ms))

    def reply_to(self, context: llm.ChatContext, texts: dict[str, str]) -> Reply | None:
        """The scripted answer to a context; ``None`` where the turn is not over yet.

        ``texts`` is what each user item of the context says.
        """
        for item in reversed(context.items):
            if item.type == "function_call_output":
                return next((r for r in self._replies if r.tool == item.name), None)
            if item.type == "message" and item.role == "user":
                text = texts.get(item.id, "")
                wanted = (r for r in self._replies if (r.heard == text if text else r.unheard))
                return next(wanted, None)
        opening = (r for r in self._replies if r.heard is None and r.tool is None and not r.unheard)
        return next(opening, None)

    def clip(self, text: str) -> RecordedClip:
        """The recording of a text.

        Raises:
            LookupError: there is none.
        """
        try:
            return self._clips[text]
        except KeyError:
            raise LookupError(f"no recorded speech for the text {text!r}") from None

    def session(self, *, turn_detection_disabled: bool = False) -> llm.RealtimeSession[Any]:
        """Open a connection."""
        return RecordedRealtimeSession(self)

    async def aclose(self) -> None:
        """Nothing is open but the sessions."""


class RecordedRealtimeSession(llm.RealtimeSession[Any]):
    """One connection: the provider's side of a call."""

    def __init__(self, owner: RecordedRealtimeModel) -> None:
        super().__init__(owner)
        self._owner = owner
        self._context = llm.ChatContext.empty()
        self._tools = llm.ToolContext.empty()
        self._texts: dict[str, str] = {}  # what each user item says, known to the provider at once
        self._response: asyncio.Task[None] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        # tells of speech in the first window that has it, as a server does that answers at once, and lets go
        # of it at the threshold that took it: its default holds on about 15 ms longer
        self._vad = inference.VAD(
            model="silero",
            min_speech_duration=0.0,
            min_silence_duration=(owner.silence_ms - _WINDOW_MS) / 1000,
            deactivation_threshold=0.5,
        ).stream()
        self._listening = asyncio.create_task(self._listen())

    # -- what the framework asks ---------------------------------------------------------------------
    @property
    def chat_ctx(self) -> llm.ChatContext:
        """The provider's own list of items."""
        return self._context

    @property
    def tools(self) -> llm.ToolContext:
        """The tools it may call."""
        return self._tools

    async def update_instructions(self, instructions: str) -> None:
        """The script does not change with them."""

    async def update_chat_ctx(self, chat_ctx: llm.ChatContext) -> None:
        """Take what is new; nothing that was there is forgotten."""
        known = {item.id for item in self._context.items}
        for item in chat_ctx.items:
            if item.id not in known and item.type in ("message", "function_call", "function_call_output"):
                self._add(item)

    async def update_tools(self, tools: list[llm.Tool]) -> None:
        """Remember the tools."""
        self._tools = llm.ToolContext(tools)

    def update_options(self, *, tool_choice: NotGivenOr[llm.ToolChoice | None] = NOT_GIVEN) -> None:
        """The script decides."""

    def push_audio(self, frame: rtc.AudioFrame) -> None:
        """The caller's audio, as it comes."""
        self._vad.push_frame(frame)

    def push_video(self, frame: rtc.VideoFrame) -> None:
        """The model is blind."""

    def generate_reply(
        self,
        *,
        instructions: NotGivenOr[str] = NOT_GIVEN,
        tool_choice: NotGivenOr[llm.ToolChoice] = NOT_GIVEN,
        tools: NotGivenOr[list[llm.Tool]] = NOT_GIVEN,
    ) -> asyncio.Future[llm.GenerationCreatedEvent]:
        """Answer what is there now: a tool's result, or nobody yet."""
        created: asyncio.Future[llm.GenerationCreatedEvent] = asyncio.get_running_loop().create_future()

        def create() -> None:
            reply = self._owner.reply_to(self._context, self._texts)
            if created.done():
                return
            if reply is None:
                created.set_exception(llm.RealtimeError("the script has no answer to what is there"))
            else:
                created.set_result(self._respond(reply, user_initiated=True))

        self._later(_CREATED_MS, create)
        return created

    def commit_audio(self) -> None:
        """The provider takes turns by itself."""

    def clear_audio(self) -> None:
        """Nothing is kept."""

    def interrupt(self) -> None:
        """Stop the response that is being made."""
        if self._response is not None:
            self._response.cancel()

    def truncate(
        self,
        *,
        message_id: str,
        modalities: list[Any],
        audio_end_ms: int,
        audio_transcript: NotGivenOr[str] = NOT_GIVEN,
    ) -> None:
        """Remember where the message was cut."""
        self._owner.truncations.append((message_id, audio_end_ms))

    async def aclose(self) -> None:
        """Hang up."""
        for timer in self._timers:
            timer.cancel()
        await utils.aio.cancel_and_wait(self._listening, *filter(None, [self._response]))
        await self._vad.aclose()

    # -- what the provider does ----------------------------------------------------------------------
    def _later(self, delay_ms: float, do: Any) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(delay_ms / 1000, do))

    def _add(self, item: Any) -> None:
        previous = self._context.items[-1].id if self._context.items else None
        self._context.items.append(item)
        self.emit("remote_item_added", llm.RemoteItemAddedEvent(previous_item_id=previous, item=item))

    async def _listen(self) -> None:
        async for event in self._vad:
            if event.type == vad.VADEventType.START_OF_SPEECH:
                self.interrupt()
                self.emit("input_speech_started", llm.InputSpeechStartedEvent())
            elif event.type == vad.VADEventType.END_OF_SPEECH:
                stopped = llm.InputSpeechStoppedEvent(user_transcription_enabled=True)
                self.emit("input_speech_stopped", stopped)
                self._commit()

    def _commit(self) -> None:
        """A stretch of speech is over: an item, its transcript, and an answer if the turn is over too."""
        begun = [heard for heard in self._owner.heard if heard[0].start_unix <= time.time()]
        _, text, delay_ms = begun[-1] if begun else (None, None, 0)
        if text is None:
            return
        item = llm.ChatMessage(role="user", content=[], id=utils.shortuuid("item_"))
        self._texts[item.id] = text
        self._add(item)
        if text:
            told = llm.InputTranscriptionCompleted(item_id=item.id, transcript=text, is_final=True)
            self._later(delay_ms, lambda: self.emit("input_audio_transcription_completed", told))
        reply = self._owner.reply_to(self._context, self._texts)
        if reply is not None:
            self._later(_CREATED_MS, lambda: self._respond(reply, user_initiated=False))

    def _respond(self, reply: Reply, *, user_initiated: bool) -> llm.GenerationCreatedEvent:
        owner = self._owner
        context = [item.id for item in self._context.items]
        call = LLMCall(len(owner.calls), time.time(), context, reply.heard or "")
        owner.calls.append(call)
        messages: utils.aio.Chan[llm.MessageGeneration] = utils.aio.Chan()
        functions: utils.aio.Chan[llm.FunctionCall] = utils.aio.Chan()
        created = llm.GenerationCreatedEvent(
            message_stream=messages,
            function_stream=functions,
            user_initiated=user_initiated,
            response_id=utils.shortuuid("resp_"),
        )
        self.emit("generation_created", created)
        self.interrupt()  # one response at a time
        self._response = asyncio.create_task(self._stream(reply, call, messages, functions))
        return created

    async def _stream(
        self,
        reply: Reply,
        call: LLMCall,
        messages: utils.aio.Chan[llm.MessageGeneration],
        functions: utils.aio.Chan[llm.FunctionCall],
    ) -> None:
        try:
            await asyncio.sleep(reply.first_token_ms / 1000)
            if reply.text:
                await self._speak(self._owner.clip(reply.text), call, messages)
            if reply.call is not None:
                asked = llm.FunctionCall(
                    call_id=utils.shortuuid("call_"), name=reply.call.name, arguments=reply.call.arguments
                )
                call.tool_calls.append(asked.name)
                self._add(asked)
                functions.send_nowait(asked)
            call.finished = True
        finally:
            messages.close()
            functions.close()

    async def _speak(
        self, clip: RecordedClip, call: LLMCall, messages: utils.aio.Chan[llm.MessageGeneration]
    ) -> None:
        """One message: its words, each with its time, and their audio."""
        item = llm.ChatMessage(role="assistant", content=[], id=utils.shortuuid("item_"))
        texts: utils.aio.Chan[str] = utils.aio.Chan()
        frames: utils.aio.Chan[rtc.AudioFrame] = utils.aio.Chan()
        modalities: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        modalities.set_result(["audio", "text"])
        self._add(item)
        messages.send_nowait(llm.MessageGeneration(item.id, texts, frames, modalities))
        rate, last = clip.sample_rate, len(clip.words) - 1
        try:
            for index, (word, token) in enumerate(zip(clip.words, tokenize(clip.text), strict=True)):
                begin = word.start if index else 0
                end = len(clip.samples) if index == last else clip.words[index + 1].start
                texts.send_nowait(TimedString(token, start_time=word.start / rate, end_time=word.end / rate))
                frames.send_nowait(rtc.AudioFrame(clip.samples[begin:end].tobytes(), rate, 1, end - begin))
                call.reply_text += token
                await asyncio.sleep((end - begin) / rate / self._owner.speedup)
            item.content = [clip.text]
        finally:
            texts.close()
            frames.close()
