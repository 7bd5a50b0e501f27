# SPDX-License-Identifier: Apache-2.0
"""The server at the other end of Pipecat's realtime services, so that the real services run offline.

`RealtimeServer` speaks OpenAI's protocol over a websocket that is none: it says when the user spoke (from
the script, not from the audio it gets), answers, and keeps every event it was sent.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from pc_doubles import WORD_S, MadeUpVoice
from pc_record import Outcome as Recorded
from pc_record import record
from pc_script import Outcome, Parts, Script, push, run_script
from pipecat.frames import frames
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.openai.realtime import llm as openai_realtime
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService

from voicetrace.demo.script import tokenize

CANCEL_S = 0.05  # from the user's first sound to the end of the response it cuts


@dataclass(frozen=True)
class Answer:
    """What the model says, or calls; its words are sent ``ahead`` of their audio, by so many words."""

    text: str = ""
    tool: tuple[str, str] | None = None
    first: float = 0.3
    speedup: float = 4.0
    ahead: int = 0


@dataclass(frozen=True)
class Turn:
    """The user speaks in [start, end]; the server tells `noticed` later, and the transcript after the end.

    ``transcript_after=None``: never. The answer is that to ``text``, or ``*``.
    """

    start: float
    end: float
    text: str
    transcript_after: float | None = 0.6
    noticed: float = 0.2


@dataclass(eq=False)
class RealtimeServer:
    """One session. ``sent`` is what the service sent but audio, ``(seconds, event)``; ``items`` by role."""

    turns: Sequence[Turn] = ()
    answers: dict[str, Answer] = field(default_factory=lambda: {"*": Answer("Fine.")})
    sent: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    items: dict[str, list[str]] = field(default_factory=lambda: {"user": [], "assistant": []})
    audio_bytes: int = 0

    def __post_init__(self) -> None:
        self._out: asyncio.Queue[str | None] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._answering: asyncio.Task[None] | None = None
        self._voice = MadeUpVoice(lead=0.0)
        self._events = 0
        self._responses = 0
        self._asked = "greeting"
        self._names: dict[str, str] = {}
        self._began = 0.0

    # -- the websocket
    async def connect(self, *args: Any, **kwargs: Any) -> RealtimeServer:
        self._began = asyncio.get_running_loop().time()
        self._push("session.created", session={})
        for turn in self.turns:
            self._run(self._hear(turn))
        return self

    async def send(self, text: str) -> None:
        event = json.loads(text)
        if event["type"] == "input_audio_buffer.append":
            self.audio_bytes += len(base64.b64decode(event["audio"]))
            return
        self.sent.append((round(asyncio.get_running_loop().time() - self._began, 4), event))
        if event["type"] == "session.update":
            self._push("session.updated", session={})
        elif event["type"] == "conversation.item.create":
            item = event["item"]
            if item["type"] == "function_call_output":
                self._asked = f"tool:{self._names[item['call_id']]}"
            self._push("conversation.item.added", item=item)
        elif event["type"] == "conversation.item.truncate":
            names = ("item_id", "content_index", "audio_end_ms")
            self._push("conversation.item.truncated", **{n: event[n] for n in names})
        elif event["type"] == "response.create":
            self._answer(self._asked)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._out.put_nowait(None)

    def __aiter__(self) -> RealtimeServer:
        return self

    async def __anext__(self) -> str:
        text = await self._out.get()
        if text is None:
            raise StopAsyncIteration
        return text

    # -- the session
    def _push(self, kind: str, **facts: Any) -> None:
        self._events += 1
        self._out.put_nowait(json.dumps({"event_id": f"event_{self._events}", "type": kind, **facts}))

    def _run(self, coroutine: Any) -> asyncio.Task[None]:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        return task

    async def _until(self, at: float) -> None:
        await asyncio.sleep(max(0.0, self._began + at - asyncio.get_running_loop().time()))

    async def _hear(self, turn: Turn) -> None:
        await self._until(turn.start + turn.noticed)
        number = len(self.items["user"]) + 1
        item_id = f"item_u{number}"
        self.items["user"].append(item_id)
        self._push(
            "input_audio_buffer.speech_started", audio_start_ms=round(turn.start * 1000), item_id=item_id
        )
        if self._answering is not None and not self._answering.done():
            await asyncio.sleep(CANCEL_S)
            self._answering.cancel()
        await self._until(turn.end + turn.noticed)
        self._push("input_audio_buffer.speech_stopped", audio_end_ms=round(turn.end * 1000), item_id=item_id)
        self._push("input_audio_buffer.committed", item_id=item_id)
        content = [{"type": "input_audio"}]
        item = {"id": item_id, "type": "message", "role": "user", "status": "completed", "content": content}
        self._push("conversation.item.added", item=item)
        self._answer(turn.text)
        if turn.transcript_after is not None:
            await self._until(turn.end + turn.transcript_after)
            self._push(
                "conversation.item.input_audio_transcription.completed",
                item_id=item_id,
                content_index=0,
                transcript=turn.text,
            )

    def _answer(self, asked: str) -> None:
        answer = self.answers[asked if asked in self.answers else "*"]
        self._answering = self._run(self._respond(answer))

    async def _respond(self, answer: Answer) -> None:
        self._responses += 1
        response: dict[str, Any] = {"id": f"resp_{self._responses}", "object": "realtime.response"}
        response |= {"output": [], "status_details": None}
        self._push("response.created", response={**response, "status": "in_progress"})
        response["usage"] = {"total_tokens": 20, "input_tokens": 12, "output_tokens": 8}
        response["usage"] |= {"input_token_details": {}, "output_token_details": {}}
        item: dict[str, Any] | None = None
        try:
            await asyncio.sleep(answer.first)
            if answer.text:
                item = {"id": f"item_a{len(self.items['assistant']) + 1}", "type": "message"}
                item |= {"role": "assistant", "status": "in_progress", "content": []}
                self.items["assistant"].append(item["id"])
                self._push("conversation.item.added", item=item)
                await self._speak(answer, response["id"], item["id"])
                self._push("conversation.item.done", item={**item, "status": "completed"})
                response["output"] = [{**item, "status": "completed"}]
            if answer.tool is not None:
                self._call(answer.tool, str(response["id"]))
        except asyncio.CancelledError:
            self._push("response.done", response={**response, "status": "cancelled"})
            raise
        self._push("response.done", response={**response, "status": "completed"})

    async def _speak(self, answer: Answer, response_id: Any, item_id: str) -> None:
        where = {"response_id": response_id, "item_id": item_id, "output_index": 0, "content_index": 0}
        tokens, told = tokenize(answer.text), 0
        for number, word in enumerate(self._voice.speak("", answer.text)):
            while told < min(len(tokens), number + 1 + answer.ahead):
                self._push("response.output_audio_transcript.delta", delta=tokens[told], **where)
                told += 1
            audio = base64.b64encode(word.samples.tobytes()).decode()
            self._push("response.output_audio.delta", delta=audio, **where)
            await asyncio.sleep(WORD_S / answer.speedup)
        self._push("response.output_audio_transcript.done", transcript=answer.text, **where)
        self._push("response.output_audio.done", **where)

    def _call(self, tool: tuple[str, str], response_id: str) -> None:
        name, arguments = tool
        call_id = f"call_{len(self._names) + 1}"
        self._names[call_id] = name
        item = {"id": f"item_{call_id}", "type": "function_call", "call_id": call_id, "name": name}
        self._push("conversation.item.added", item={**item, "arguments": ""})
        self._push(
            "response.function_call_arguments.done",
            response_id=response_id,
            item_id=item["id"],
            output_index=0,
            call_id=call_id,
            arguments=arguments,
        )


def speech_to_speech(parts: Parts) -> list[FrameProcessor]:
    """A pipeline without speech-to-text and text-to-speech."""
    return [parts.mic, parts.user, parts.llm, parts.speaker, parts.assistant]


def realtime_script(**changes: Any) -> Script:
    """A script around the real OpenAI service. The model greets when the session is ready."""
    options: dict[str, Any] = {
        "llm": lambda script: OpenAIRealtimeLLMService(
            api_key="none",
            settings=OpenAIRealtimeLLMService.Settings(system_instruction="Be brief."),
            name="llm",
        ),
        "messages": (),
        "shape": speech_to_speech,
        "at": [(0, push(lambda stage: frames.LLMRunFrame()))],
        # the service's own strategies, which it announces
        "user": {"vad_analyzer": None, "user_turn_strategies": None},
        **changes,
    }
    return Script(**options)


def record_realtime(
    turns: Sequence[Turn], answers: dict[str, Answer], directory: Path, **changes: Any
) -> tuple[Recorded, RealtimeServer]:
    """As `run_realtime`, with voicetrace in the pipeline; ``options`` are those of `record`."""
    servers: list[RealtimeServer] = []
    options = {"configure": {"audio": "agent"}, **changes.pop("options", {})}

    def script() -> Script:
        servers.append(RealtimeServer(turns, {"greeting": Answer("Hello there."), **answers}))
        return realtime_script(**changes)

    async def connect(*args: Any, **kwargs: Any) -> RealtimeServer:
        return await servers[0].connect(*args, **kwargs)

    with mock.patch.object(openai_realtime, "websocket_connect", connect):
        return record(script, directory, **options), servers[0]


def run_realtime(
    turns: Sequence[Turn], answers: dict[str, Answer], **changes: Any
) -> tuple[Outcome, RealtimeServer]:
    """Run a call with the real service against the server; ``changes`` are those of the script."""
    servers: list[RealtimeServer] = []
    on_stage = changes.pop("on_stage", None)

    def script() -> Script:
        # made on the loop, and there before anybody connects
        servers.append(RealtimeServer(turns, {"greeting": Answer("Hello there."), **answers}))
        return realtime_script(**changes)

    async def connect(*args: Any, **kwargs: Any) -> RealtimeServer:
        return await servers[0].connect(*args, **kwargs)

    with mock.patch.object(openai_realtime, "websocket_connect", connect):
        return run_script(script, on_stage=on_stage), servers[0]
