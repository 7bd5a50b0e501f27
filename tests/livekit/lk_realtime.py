# SPDX-License-Identifier: Apache-2.0
"""A realtime provider, scripted: subclasses of the framework's own base classes, on virtual time.

The script drives the session like a server would: speech starts and stops, items, transcripts and responses
come when an action says so. Words last `WORD_S` and each sounds different, as in `lk_doubles`.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from livekit import rtc
from livekit.agents import llm, utils
from livekit.agents.types import NOT_GIVEN
from lk_doubles import RATE, WORD_S, WORD_SAMPLES, word_samples


@dataclass
class Message:
    """One message of a response: what it says, and how it is streamed."""

    id: str
    text: str
    modalities: Sequence[str] = ("audio", "text")
    first: float = 0.1
    hangs: bool = False


@dataclass
class Answer:
    """What the provider answers when it is asked to: messages, then perhaps calls of tools."""

    messages: Sequence[Message] = ()
    tool: tuple[str, str] | None = None
    after: float = 0.1
    early_items: bool = True  # the response's own items enter the context at once (T20)
    items_first: bool = False  # and even before the response is announced


def capabilities(**changes: Any) -> llm.RealtimeCapabilities:
    values: dict[str, Any] = {
        "message_truncation": True,
        "turn_detection": True,
        "user_transcription": True,
        "auto_tool_reply_generation": False,
        "audio_output": True,
        "manual_function_calls": True,
    }
    known = llm.RealtimeCapabilities.__dataclass_fields__
    return llm.RealtimeCapabilities(**{k: v for k, v in {**values, **changes}.items() if k in known})


class FakeRealtimeModel(llm.RealtimeModel):
    """Gives every session the answers in order; ``raw`` makes it one of the OpenAI family."""

    def __init__(self, answers: Sequence[Answer] = (), *, items: bool = True, raw: bool = False, **can: Any):
        super().__init__(capabilities=capabilities(**can))
        self.answers = list(answers)
        self.items = items
        self.raw = raw
        self.sessions: list[FakeRealtimeSession] = []

    @property
    def model(self) -> str:
        return "fake-realtime"

    @property
    def provider(self) -> str:
        return "fake"

    def session(self, *, turn_detection_disabled: bool = False) -> llm.RealtimeSession:
        self.sessions.append(FakeRealtimeSession(self))
        return self.sessions[-1]

    async def aclose(self) -> None:
        pass


class FakeRealtimeSession(llm.RealtimeSession):
    """The server's side is in the methods that `does` schedules."""

    def __init__(self, model: FakeRealtimeModel) -> None:
        super().__init__(model)
        self._owner = model
        self._context = llm.ChatContext.empty()
        self._tools = llm.ToolContext.empty()
        self.truncated: list[tuple[str, int]] = []
        self.interrupts = 0
        self.commits = 0
        self.responses = 0
        self.words = 0
        self.buffered_ms = 0.0
        self.deaf = False  # drops the audio it is given, as while it has no connection
        self._tasks: list[asyncio.Task[Any]] = []

    # -- what the framework asks ---------------------------------------------------------------------
    @property
    def chat_ctx(self) -> llm.ChatContext:
        return self._context

    @property
    def tools(self) -> llm.ToolContext:
        return self._tools

    async def update_instructions(self, instructions: str) -> None:
        pass

    async def update_chat_ctx(self, chat_ctx: llm.ChatContext) -> None:
        known = {i.id for i in self._context.items}
        for item in chat_ctx.items:
            if item.type in ("message", "function_call", "function_call_output") and item.id not in known:
                self._add(item)

    async def update_tools(self, tools: list[llm.Tool]) -> None:
        self._tools = llm.ToolContext(tools)

    def update_options(self, *, tool_choice: Any = NOT_GIVEN) -> None:
        pass

    def push_audio(self, frame: rtc.AudioFrame) -> None:
        if self.deaf:
            return
        self.buffered_ms += frame.duration * 1000
        if self._owner.raw:
            ms24 = bytes(2 * round(frame.duration * RATE))
            event = {"type": "input_audio_buffer.append", "audio": base64.b64encode(ms24).decode()}
            self.emit("openai_client_event_queued", event)

    def push_video(self, frame: rtc.VideoFrame) -> None:
        pass

    def generate_reply(
        self, *, instructions: Any = NOT_GIVEN, tool_choice: Any = NOT_GIVEN, tools: Any = NOT_GIVEN
    ) -> asyncio.Future[llm.GenerationCreatedEvent]:
        return self._asked(self._next_answer())

    def say(self, text: Any) -> asyncio.Future[llm.GenerationCreatedEvent]:
        return self._asked(Answer([Message(f"said_{self.responses}", text)]))

    def _asked(self, answer: Answer) -> asyncio.Future[llm.GenerationCreatedEvent]:
        future: asyncio.Future[llm.GenerationCreatedEvent] = asyncio.get_running_loop().create_future()

        def create() -> None:
            if not future.done():
                future.set_result(self.respond(answer, user_initiated=True))

        asyncio.get_running_loop().call_later(answer.after, create)
        return future

    def _next_answer(self) -> Answer:
        return self._owner.answers.pop(0)

    def commit_audio(self) -> None:
        self.commits += 1

    def clear_audio(self) -> None:
        pass

    def interrupt(self) -> None:
        self.interrupts += 1

    def truncate(
        self, *, message_id: str, modalities: Any, audio_end_ms: int, audio_transcript: Any = NOT_GIVEN
    ) -> None:
        self.truncated.append((message_id, audio_end_ms))

    async def aclose(self) -> None:
        await utils.aio.cancel_and_wait(*self._tasks)

    # -- what the server does ------------------------------------------------------------------------
    def _add(self, item: Any) -> None:
        self._context.items.append(item)
        if self._owner.items:
            previous = self._context.items[-2].id if len(self._context.items) > 1 else None
            self.emit("remote_item_added", llm.RemoteItemAddedEvent(previous_item_id=previous, item=item))

    def speech_started(self, item_id: str = "", at_ms: int | None = None) -> None:
        if self._owner.raw:
            raw = {"type": "input_audio_buffer.speech_started", "item_id": item_id, "audio_start_ms": at_ms}
            self.emit("openai_server_event_received", raw)
        self.emit("input_speech_started", llm.InputSpeechStartedEvent())

    def speech_stopped(self, item_id: str = "", at_ms: int | None = None) -> None:
        if self._owner.raw:
            raw = {"type": "input_audio_buffer.speech_stopped", "item_id": item_id, "audio_end_ms": at_ms}
            self.emit("openai_server_event_received", raw)
        self.emit("input_speech_stopped", llm.InputSpeechStoppedEvent(user_transcription_enabled=True))

    def user_item(self, item_id: str) -> None:
        self._add(llm.ChatMessage(role="user", content=[], id=item_id))

    def transcript(self, item_id: str, text: str, *, final: bool = True) -> None:
        self.emit(
            "input_audio_transcription_completed",
            llm.InputTranscriptionCompleted(item_id=item_id, transcript=text, is_final=final),
        )

    def respond(
        self, answer: Answer | None = None, *, user_initiated: bool = False
    ) -> llm.GenerationCreatedEvent:
        """A response is created: announced, unless the framework waits for it, and streamed."""
        answer = answer or self._next_answer()
        self.responses += 1
        messages: utils.aio.Chan[llm.MessageGeneration] = utils.aio.Chan()
        functions: utils.aio.Chan[llm.FunctionCall] = utils.aio.Chan()
        event = llm.GenerationCreatedEvent(
            message_stream=messages,
            function_stream=functions,
            user_initiated=user_initiated,
            response_id=f"resp_{self.responses}",
        )
        own = [llm.ChatMessage(role="assistant", content=[], id=message.id) for message in answer.messages]
        for item in own if answer.early_items and answer.items_first else ():
            self._add(item)
        self.emit("generation_created", event)
        for item in own if answer.early_items and not answer.items_first else ():
            self._add(item)
        self._tasks.append(asyncio.create_task(self._stream(answer, messages, functions)))
        return event

    async def _stream(self, answer: Answer, messages: Any, functions: Any) -> None:
        for message in answer.messages:
            texts: utils.aio.Chan[str] = utils.aio.Chan()
            frames: utils.aio.Chan[rtc.AudioFrame] = utils.aio.Chan()
            modalities: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            modalities.set_result(list(message.modalities))
            await asyncio.sleep(message.first)
            messages.send_nowait(llm.MessageGeneration(message.id, texts, frames, modalities))
            words = message.text.split(" ") if message.text else []
            for index, word in enumerate(words):
                texts.send_nowait(word if index == 0 else f" {word}")
                if "audio" in message.modalities:
                    data = word_samples(self.words).tobytes()
                    frames.send_nowait(rtc.AudioFrame(data, RATE, 1, WORD_SAMPLES))
                self.words += 1
                await asyncio.sleep(WORD_S / 4)
            if message.hangs:
                await asyncio.Event().wait()
            texts.close()
            frames.close()
            item = self._context.get_by_id(message.id)
            if item is not None and item.type == "message":
                item.content = [message.text]
        if answer.tool is not None:
            name, arguments = answer.tool
            functions.send_nowait(llm.FunctionCall(call_id=f"call_{name}", name=name, arguments=arguments))
        messages.close()
        functions.close()


@dataclass
class Heard:
    """What a server makes of one utterance: the usual order of its events, in seconds of the script."""

    start: float
    end: float
    item: str
    text: str | None = None
    answer: Answer | None = None
    noticed: float = 0.5  # the server's voice detection waits so long before it says that speech ended
    transcribed: float = 0.4  # after the end was noticed
    answered: float = 0.1
    raw_ms: tuple[int, int] | None = field(default=None)


def hears(heard: Heard, session: Callable[[Any], FakeRealtimeSession]) -> list[tuple[float, Any]]:
    """The utterance as actions of a script."""
    end = heard.end + heard.noticed
    start_ms, end_ms = heard.raw_ms or (None, None)
    actions = [
        (heard.start, lambda stage: session(stage).speech_started(heard.item, start_ms)),
        (end, lambda stage: session(stage).speech_stopped(heard.item, end_ms)),
        (end + 0.01, lambda stage: session(stage).user_item(heard.item)),
    ]
    if heard.text is not None:
        text = heard.text
        actions.append((end + heard.transcribed, lambda stage: session(stage).transcript(heard.item, text)))
    if heard.answer is not None:
        answer = heard.answer
        actions.append((end + heard.answered, lambda stage: session(stage).respond(answer) and None))
    return actions
