# SPDX-License-Identifier: Apache-2.0
"""The connection at the other end of Pipecat's real Gemini Live service: it plays a script of messages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from google.genai.types import (
    Blob,
    Content,
    LiveServerContent,
    LiveServerMessage,
    Part,
    Transcription,
    UsageMetadata,
)
from pc_doubles import WORD_S, EnergyVAD, MadeUpVoice
from pc_record import Outcome, record
from pc_script import Script, push
from pipecat.frames import frames
from pipecat.services.google.gemini_live.llm import GeminiLiveLLMService
from realtime_doubles import speech_to_speech

from voicetrace.demo.script import tokenize

Message = tuple[float, LiveServerMessage]


def content(at: float, **fields: Any) -> Message:
    """A message of the server, at so many seconds after the connection."""
    return at, LiveServerMessage(server_content=LiveServerContent(**fields))


def transcript(at: float, text: str) -> Message:
    """What the user said, as far as it is known."""
    return content(at, input_transcription=Transcription(text=text))


def complete(at: float) -> Message:
    """The model's turn is over."""
    usage = UsageMetadata(prompt_token_count=3, response_token_count=2, total_token_count=5)
    message = LiveServerMessage(server_content=LiveServerContent(turn_complete=True), usage_metadata=usage)
    return at, message


def says(at: float, text: str, *, voice: MadeUpVoice, done: bool = True) -> list[Message]:
    """The model speaks, four times faster than it plays: of each word the audio, and then the text."""
    out: list[Message] = []
    words = voice.speak("", text)
    for number, (word, token) in enumerate(zip(words, tokenize(text), strict=True)):
        when = at + number * WORD_S / 4
        blob = Blob(data=word.samples.tobytes(), mime_type="audio/pcm;rate=24000")
        out.append(content(when, model_turn=Content(parts=[Part(inline_data=blob)])))
        out.append(content(when, output_transcription=Transcription(text=token)))
    if done:
        out.append(complete(at + len(words) * WORD_S / 4))
    return out


class GeminiServer:
    """One session, as `google.genai` gives it: what it was sent is counted, what it says is scripted."""

    def __init__(self, script: Sequence[Message]) -> None:
        self._script = sorted(script, key=lambda message: message[0])
        self._began: float | None = None
        self.sent: list[str] = []
        self.aio = SimpleNamespace(live=SimpleNamespace(connect=self._connect))

    @contextlib.asynccontextmanager
    async def _connect(self, **_: Any) -> AsyncIterator[GeminiServer]:
        if self._began is None:
            self._began = asyncio.get_running_loop().time()
        yield self

    async def send_realtime_input(self, **what: Any) -> None:
        self.sent += what

    async def send_client_content(self, **what: Any) -> None:
        self.sent += what

    async def send_tool_response(self, **what: Any) -> None:
        self.sent += what

    async def close(self) -> None:
        """Nothing is open."""

    async def receive(self) -> AsyncIterator[LiveServerMessage]:
        loop = asyncio.get_running_loop()
        while self._script:
            at, _ = self._script[0]
            await asyncio.sleep(max(0.0, (self._began or 0.0) + at - loop.time()))
            yield self._script.pop(0)[1]
        await asyncio.Event().wait()


def record_gemini(messages: Sequence[Message], directory: Path, *, vad: bool, **changes: Any) -> Outcome:
    """Run a call with the real service against the server, and voicetrace in its pipeline."""

    def service(_: Script) -> GeminiLiveLLMService:
        llm = GeminiLiveLLMService(api_key="none", inference_on_context_initialization=False, name="llm")
        llm._client = GeminiServer(messages)  # type: ignore[assignment]
        return llm

    options: dict[str, Any] = {
        "llm": service,
        "messages": (),
        "shape": speech_to_speech,
        "at": [(0, push(lambda stage: frames.LLMRunFrame()))],
        **changes,
    }
    if not vad:
        options["user"] = {"vad_analyzer": None, "user_turn_strategies": None}
    else:
        options.setdefault("user", {"vad_analyzer": EnergyVAD()})
    complaints = options.pop("complaints", ())
    return record(lambda: Script(**options), directory, configure={"audio": "agent"}, complaints=complaints)
