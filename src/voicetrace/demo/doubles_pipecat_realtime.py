# SPDX-License-Identifier: Apache-2.0
"""A realtime provider for the demo call of Pipecat: OpenAI's protocol over a connection that is none.

Pipecat's own `OpenAIRealtimeLLMService` talks to a `RecordedRealtimeServer`, which hears and speaks by
itself. The voice detection is real: Silero on the audio that the server is sent, which waits for
``silence_ms`` of silence. What was said, and what is answered, is scripted; the answers are recorded speech,
sent faster than it plays. Lives on the event loop that runs the pipeline; nothing here is thread-safe.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

try:
    from pipecat.audio.vad.silero import SileroVADAnalyzer
    from pipecat.audio.vad.vad_analyzer import VADParams
    from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
except ImportError as error:
    raise ImportError(
        "the realtime demo call needs Pipecat with its OpenAI services, which is not installed; run: "
        "pip install 'voicetrace[pipecat]' 'pipecat-ai[openai]'"
    ) from error

from voicetrace.demo.line import Spoken
from voicetrace.demo.script import RecordedClip, Reply, tokenize
from voicetrace.demo.truth import LLMCall

_RATE: Final = 24_000  # of the protocol, both ways
_VAD_RATE: Final = 16_000
_CREATED_S: Final = 0.04  # from the end of a turn, or a request, to the response that it gets


class RecordedRealtimeService(OpenAIRealtimeLLMService):
    """Pipecat's service, connected to this server instead of the network's."""

    def __init__(self, server: RecordedRealtimeServer, **kwargs: Any) -> None:
        super().__init__(api_key="none", **kwargs)
        self._server = server

    async def _connect(self) -> None:
        if not self._websocket:
            self._websocket = self._server.connect()  # type: ignore[assignment]
            receiving: Any = self._receive_task_handler()  # type: ignore[no-untyped-call]
            self._receive_task = self.create_task(receiving)  # type: ignore[assignment]


class RecordedRealtimeServer:
    """One session of the provider, as the websocket that the service reads and writes.

    ``calls`` are its responses, in order; ``truncations`` the ``(item id, ms)`` at which it was told to cut
    its memory of a message. ``items`` is its conversation.
    """

    def __init__(
        self,
        replies: Sequence[Reply],
        clips: Sequence[RecordedClip],
        *,
        silence_ms: int,
        speedup: float = 4.0,
    ) -> None:
        self.calls: list[LLMCall] = []
        self.truncations: list[tuple[str, int]] = []
        self.items: list[dict[str, Any]] = []
        self._heard: list[tuple[Spoken, str | None, int]] = []
        self._replies = tuple(replies)
        self._clips = {clip.text: clip for clip in clips}
        self._speedup = speedup
        self._silence_ms = silence_ms
        self._texts: dict[str, str] = {}  # what each user item says, known to the provider at once
        self._tools: dict[str, str] = {}  # call id -> name
        self._numbers: dict[str, int] = {}
        self._out: asyncio.Queue[str | None] = asyncio.Queue()
        self._response: asyncio.Task[None] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        # tells of speech in the first window that has it, as a server does that answers at once
        self._vad = SileroVADAnalyzer(
            sample_rate=_VAD_RATE, params=VADParams(start_secs=0.0, stop_secs=silence_ms / 1000, min_volume=0)
        )
        self._vad.set_sample_rate(_VAD_RATE)
        self._window = self._vad.num_frames_required()
        self._incoming = np.zeros(0, np.int16)  # at the rate of the protocol
        self._heard_ms = 0.0
        self._speaking: str | None = None
        self._meant: tuple[str | None, int] = (None, 0)  # what is being said, and its transcript's delay
        self._quiet_ms = 0.0

    def hear(
        self, spoken: Spoken, interims: Iterable[tuple[str, int]], final: str | None, final_delay_ms: int
    ) -> None:
        """Say what to make of one utterance.

        ``final`` is its transcript, which comes ``final_delay_ms`` after its item; ``""`` for an item that
        never gets one, and ``None`` for a sound that becomes no item. There are no interims.
        """
        self._heard.append((spoken, final, final_delay_ms))

    # -- the connection ------------------------------------------------------------------------------
    def connect(self) -> RecordedRealtimeServer:
        """Begin the session."""
        self._push("session.created", session={})
        return self

    async def send(self, text: str) -> None:
        """Take an event of the client."""
        event = json.loads(text)
        kind = event["type"]
        if kind == "input_audio_buffer.append":
            self._listen(np.frombuffer(base64.b64decode(event["audio"]), np.int16))
        elif kind == "session.update":
            self._push("session.updated", session={})
        elif kind == "conversation.item.create":
            self._add(event["item"])
        elif kind == "conversation.item.truncate":
            self.truncations.append((event["item_id"], event["audio_end_ms"]))
            names = ("item_id", "content_index", "audio_end_ms")
            self._push("conversation.item.truncated", **{name: event[name] for name in names})
        elif kind == "response.create":
            self._later(_CREATED_S, self._answer)

    async def close(self) -> None:
        """Hang up."""
        for timer in self._timers:
            timer.cancel()
        if self._response is not None:
            self._response.cancel()
            await asyncio.gather(self._response, return_exceptions=True)
        self._out.put_nowait(None)

    def __aiter__(self) -> RecordedRealtimeServer:
        return self

    async def __anext__(self) -> str:
        text = await self._out.get()
        if text is None:
            raise StopAsyncIteration
        return text

    def _push(self, kind: str, **facts: Any) -> None:
        self._out.put_nowait(json.dumps({"event_id": self._id("event"), "type": kind, **facts}))

    def _id(self, kind: str) -> str:
        self._numbers[kind] = self._numbers.get(kind, 0) + 1
        return f"{kind}_{self._numbers[kind]}"

    def _later(self, delay_s: float, do: Any) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(delay_s, do))

    def _add(self, item: dict[str, Any]) -> None:
        self.items.append(item)
        self._push("conversation.item.added", item=item)

    # -- hearing -------------------------------------------------------------------------------------
    def _listen(self, samples: np.ndarray) -> None:
        self._incoming = np.concatenate([self._incoming, samples])
        size = self._window * _RATE // _VAD_RATE
        while len(self._incoming) >= size:
            window, self._incoming = self._incoming[:size], self._incoming[size:]
            at = np.arange(self._window) * _RATE / _VAD_RATE
            low = np.interp(at, np.arange(size), window).astype(np.int16)
            self._judge(self._vad.voice_confidence(low.tobytes()) >= 0.5, size * 1000 / _RATE)

    def _judge(self, speech: bool, length_ms: float) -> None:
        began_ms, self._heard_ms = self._heard_ms, self._heard_ms + length_ms
        if speech:
            self._quiet_ms = 0.0
            if self._speaking is None:
                self._speaking = self._id("item")
                begun = [heard for heard in self._heard if heard[0].start_unix <= time.time()]
                self._meant = begun[-1][1:] if begun else (None, 0)
                self._interrupt()
                self._push(
                    "input_audio_buffer.speech_started",
                    audio_start_ms=round(began_ms),
                    item_id=self._speaking,
                )
        elif self._speaking is not None:
            self._quiet_ms += length_ms
            if self._quiet_ms >= self._silence_ms:
                item_id, self._speaking = self._speaking, None
                quiet_ms = self._heard_ms - self._quiet_ms  # since when
                self._push(
                    "input_audio_buffer.speech_stopped",
                    audio_end_ms=round(quiet_ms + self._silence_ms),
                    item_id=item_id,
                )
                self._commit(item_id)

    def _commit(self, item_id: str) -> None:
        """A stretch of speech is over: an item, its transcript, and an answer if the turn is over too."""
        text, delay_ms = self._meant
        if text is None:
            return
        self._texts[item_id] = text
        self._push("input_audio_buffer.committed", item_id=item_id)
        content = [{"type": "input_audio"}]
        self._add({"id": item_id, "type": "message", "role": "user", "content": content})
        if text:
            told = {"item_id": item_id, "content_index": 0, "transcript": text}
            kind = "conversation.item.input_audio_transcription.completed"
            self._later(delay_ms / 1000, lambda: self._push(kind, **told))
        if self._reply() is not None:
            self._later(_CREATED_S, self._answer)

    # -- speaking ------------------------------------------------------------------------------------
    def _reply(self) -> Reply | None:
        """The scripted answer to the conversation; ``None`` where the turn is not over yet."""
        for item in reversed(self.items):
            if item["type"] == "function_call_output":
                name = self._tools[item["call_id"]]
                return next((r for r in self._replies if r.tool == name), None)
            if item.get("role") == "user":
                text = self._texts.get(item["id"], "")
                wanted = (r for r in self._replies if (r.heard == text if text else r.unheard))
                return next(wanted, None)
        opening = (r for r in self._replies if r.heard is None and r.tool is None and not r.unheard)
        return next(opening, None)

    def _interrupt(self) -> None:
        if self._response is not None:
            self._response.cancel()

    def _answer(self) -> None:
        reply = self._reply()
        if reply is not None:
            self._interrupt()  # one response at a time
            context = [str(item["id"]) for item in self.items]
            call = LLMCall(len(self.calls), time.time(), context, reply.heard or "")
            self.calls.append(call)
            self._response = asyncio.create_task(self._respond(reply, call))

    async def _respond(self, reply: Reply, call: LLMCall) -> None:
        response: dict[str, Any] = {"id": self._id("resp"), "object": "realtime.response"}
        response |= {"output": [], "status_details": None, "usage": None}
        self._push("response.created", response={**response, "status": "in_progress"})
        try:
            await asyncio.sleep(reply.first_token_ms / 1000)
            if reply.text:
                await self._speak(self._clip(reply.text), call, response["id"])
            if reply.call is not None:
                self._ask(reply.call.name, reply.call.arguments, response["id"])
                call.tool_calls.append(reply.call.name)
            call.finished = True
        except asyncio.CancelledError:
            self._push("response.done", response={**response, "status": "cancelled"})
            raise
        self._push("response.done", response={**response, "status": "completed"})

    def _clip(self, text: str) -> RecordedClip:
        try:
            return self._clips[text]
        except KeyError:
            raise LookupError(f"no recorded speech for the text {text!r}") from None

    async def _speak(self, clip: RecordedClip, call: LLMCall, response_id: str) -> None:
        """One message: of each word the text, and then its audio."""
        item = {"id": self._id("item"), "type": "message", "role": "assistant", "content": []}
        self._add(item)
        where = {"response_id": response_id, "item_id": item["id"], "output_index": 0, "content_index": 0}
        last = len(clip.words) - 1
        for index, (word, token) in enumerate(zip(clip.words, tokenize(clip.text), strict=True)):
            begin = word.start if index else 0
            end = len(clip.samples) if index == last else clip.words[index + 1].start
            self._push("response.output_audio_transcript.delta", delta=token, **where)
            audio = base64.b64encode(clip.samples[begin:end].tobytes()).decode()
            self._push("response.output_audio.delta", delta=audio, **where)
            call.reply_text += token
            await asyncio.sleep((end - begin) / clip.sample_rate / self._speedup)
        self._push("response.output_audio.done", **where)
        self._push("conversation.item.done", item=item)

    def _ask(self, name: str, arguments: str, response_id: str) -> None:
        call_id = self._id("call")
        self._tools[call_id] = name
        item = {"id": self._id("item"), "type": "function_call", "call_id": call_id, "name": name}
        self._add({**item, "arguments": ""})
        self._push(
            "response.function_call_arguments.done",
            response_id=response_id,
            item_id=item["id"],
            output_index=0,
            call_id=call_id,
            arguments=arguments,
        )
