# SPDX-License-Identifier: Apache-2.0
"""The world around a scripted LiveKit call, as subclasses of the framework's own base classes.

All times in scripts are seconds since the script began. Speech of the user is a list of `Said`; what the
model answers is looked up by what it was told last; the speech service speaks every word in the same time,
in samples that occur only once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from livekit import rtc
from livekit.agents import APIConnectOptions, APIError, llm, stt, tts, utils, vad
from livekit.agents.language import LanguageCode
from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS, NOT_GIVEN, TimedString
from livekit.agents.voice import io

RATE = 24_000
WORD_S = 0.2
WORD_SAMPLES = int(WORD_S * RATE)
SILENCE_S = 0.3  # what the fake VAD waits before it says that speech ended
ONSET_S = 0.1  # what it needs before it says that speech began


@dataclass(frozen=True)
class Said:
    """The user makes a sound in [start, end]; speech-to-text makes `text` of it, `final_after` its end."""

    start: float
    end: float
    text: str | None = None
    final_after: float = 0.2
    interims: tuple[tuple[float, str], ...] = ()
    vad: bool = True


@dataclass(frozen=True)
class Reply:
    """What the model answers: a text, then perhaps a call of a tool; or it fails."""

    text: str = ""
    tool: tuple[str, str] | None = None
    first: float = 0.1
    pace: float = 0.02
    fails: bool = False
    hangs: bool = False  # after its text it never ends


# -- the user ----------------------------------------------------------------------------------------
class FakeVAD(vad.VAD):
    def __init__(self, said: Sequence[Said], began: float) -> None:
        super().__init__(capabilities=vad.VADCapabilities(update_interval=0.1))
        self.sounds = [s for s in said if s.vad]
        self.began = began

    def stream(self) -> vad.VADStream:
        return _VADStream(self)


class _VADStream(vad.VADStream):
    async def _main_task(self) -> None:
        drain = asyncio.create_task(self._drain())
        try:
            for sound in self._vad.sounds:
                await self._sound(sound.start, sound.end)
            await asyncio.Event().wait()
        finally:
            drain.cancel()

    async def _drain(self) -> None:
        async for _ in self._input_ch:
            pass

    async def _until(self, at: float) -> None:
        await asyncio.sleep(self._vad.began + at - time.time())

    async def _sound(self, start: float, end: float) -> None:
        start = max(start, round(time.time() - self._vad.began, 6))
        if end <= start:
            return  # over before this stream began
        await self._until(start + ONSET_S)
        self._say(vad.VADEventType.START_OF_SPEECH, ONSET_S, 0.0, speaking=True)
        step = 1
        while start + ONSET_S + step * 0.1 <= end + 1e-9:
            await self._until(start + ONSET_S + step * 0.1)
            spoken = ONSET_S + step * 0.1
            self._say(vad.VADEventType.INFERENCE_DONE, spoken, 0.0, speaking=True, raw=spoken)
            step += 1
        await self._until(end + SILENCE_S)
        self._say(vad.VADEventType.END_OF_SPEECH, end - start, SILENCE_S, speaking=False)

    def _say(
        self, kind: vad.VADEventType, speech: float, silence: float, *, speaking: bool, raw: float = 0.0
    ) -> None:
        self._event_ch.send_nowait(
            vad.VADEvent(
                type=kind,
                samples_index=0,
                timestamp=time.time(),
                speech_duration=round(speech, 6),
                silence_duration=silence,
                speaking=speaking,
                probability=1.0 if speaking else 0.0,
                raw_accumulated_speech=raw,
            )
        )


class FakeSTT(stt.STT[Any]):
    """Its transcripts come when the script says, whichever stream is open then."""

    def __init__(self, said: Sequence[Said], began: float) -> None:
        super().__init__(
            capabilities=stt.STTCapabilities(streaming=True, interim_results=True, offline_recognize=False)
        )
        self.ready: asyncio.Queue[stt.SpeechEvent] = asyncio.Queue()
        self.heard: list[tuple[float, int]] = []  # when frames came, and a checksum of each
        loop = asyncio.get_running_loop()
        for s in said:
            for at, text in s.interims:
                self._at(loop, began + at, text, stt.SpeechEventType.INTERIM_TRANSCRIPT)
            if s.text is not None:
                self._at(loop, began + s.end + s.final_after, s.text, stt.SpeechEventType.FINAL_TRANSCRIPT)

    def _at(self, loop: Any, at: float, text: str, kind: stt.SpeechEventType) -> None:
        data = stt.SpeechData(language=LanguageCode("en"), text=text, confidence=0.9)
        event = stt.SpeechEvent(type=kind, request_id="r", alternatives=[data])
        loop.call_later(at - time.time(), self.ready.put_nowait, event)

    async def _recognize_impl(self, *args: Any, **kwargs: Any) -> stt.SpeechEvent:
        raise NotImplementedError

    def stream(
        self, *, language: Any = NOT_GIVEN, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> stt.RecognizeStream:
        return _STTStream(stt=self, conn_options=conn_options)


class _STTStream(stt.RecognizeStream):
    async def _run(self) -> None:
        results = asyncio.create_task(self._results())
        try:
            async for frame in self._input_ch:
                if isinstance(frame, rtc.AudioFrame):
                    self._stt.heard.append((time.time(), int(np.frombuffer(frame.data, np.int16).sum())))
        finally:
            await utils.aio.cancel_and_wait(results)

    async def _results(self) -> None:
        while True:
            event = await self._stt.ready.get()
            event.created_at = time.time()
            self._event_ch.send_nowait(event)


class FakeMic(io.AudioInput):
    """The caller's line: 16 kHz in frames of 100 ms, each of another value, from when it is read first."""

    def __init__(self) -> None:
        super().__init__(label="FakeMic")
        self.started: float | None = None
        self.frames = 0

    async def __anext__(self) -> rtc.AudioFrame:
        if self.started is None:
            self.started = time.time()
        self.frames += 1
        await asyncio.sleep(max(0.0, self.started + self.frames * 0.1 - time.time()))
        samples = np.full(1600, self.frames, np.int16)
        return rtc.AudioFrame(samples.tobytes(), 16_000, 1, len(samples))


# -- the services ------------------------------------------------------------------------------------
class FakeLLM(llm.LLM[Any]):
    """Answers the newest user text, or ``tool:<name>`` for a tool's result, or else ``*``."""

    def __init__(self, replies: dict[str, Reply]) -> None:
        super().__init__()
        self.replies = replies
        self.contexts: list[list[str]] = []

    @property
    def model(self) -> str:
        return "fake-llm"

    @property
    def provider(self) -> str:
        return "fake"

    def chat(
        self,
        *,
        chat_ctx: llm.ChatContext,
        tools: list[llm.Tool] | None = None,
        conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS,
        **kwargs: Any,
    ) -> llm.LLMStream:
        self.contexts.append([i.id for i in chat_ctx.items])
        return _LLMStream(
            self, self._choose(chat_ctx), chat_ctx=chat_ctx, tools=tools or [], conn_options=conn_options
        )

    def _choose(self, chat_ctx: llm.ChatContext) -> Reply:
        for item in reversed(chat_ctx.items):
            if item.type == "function_call_output" and f"tool:{item.name}" in self.replies:
                return self.replies[f"tool:{item.name}"]
            if item.type == "message" and item.role == "user" and (item.text_content or "") in self.replies:
                return self.replies[item.text_content or ""]
        return self.replies["*"]


class _LLMStream(llm.LLMStream):
    def __init__(self, owner: FakeLLM, reply: Reply, **kwargs: Any) -> None:
        super().__init__(owner, **kwargs)
        self._reply = reply

    async def _run(self) -> None:
        await asyncio.sleep(self._reply.first)
        words = self._reply.text.split(" ") if self._reply.text else []
        for index, word in enumerate(words):
            self._send(llm.ChoiceDelta(role="assistant", content=word if index == 0 else f" {word}"))
            await asyncio.sleep(self._reply.pace)
        if self._reply.fails:
            raise APIError("the model failed", retryable=False)
        if self._reply.hangs:
            await asyncio.Event().wait()
        if self._reply.tool is not None:
            name, arguments = self._reply.tool
            call = llm.FunctionToolCall(name=name, arguments=arguments, call_id=f"call_{name}")
            self._send(llm.ChoiceDelta(role="assistant", tool_calls=[call]))

    def _send(self, delta: llm.ChoiceDelta) -> None:
        self._event_ch.send_nowait(llm.ChatChunk(id="chat", delta=delta))


class FakeTTS(tts.TTS[Any]):
    """Speaks every word in `WORD_S`, four times faster than it plays; ``aligned`` says when each word is.

    The word ``[fail]`` makes it fail, after the words before it.
    """

    def __init__(self, *, aligned: bool = True, first: float = 0.1) -> None:
        super().__init__(
            capabilities=tts.TTSCapabilities(streaming=True, aligned_transcript=aligned),
            sample_rate=RATE,
            num_channels=1,
        )
        self.first = first
        self.words = 0  # over all streams: each word sounds different

    def synthesize(
        self, text: str, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> tts.ChunkedStream:
        return self._synthesize_with_stream(text, conn_options=conn_options)

    def stream(
        self, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> tts.SynthesizeStream:
        return _TTSStream(tts=self, conn_options=conn_options)


def word_samples(number: int) -> np.ndarray:
    """The samples of the word spoken as number so-and-so: never zero, and each word another pattern.

    Soft, for the synchronizer takes it for silence and does not spend most of the test's time on it.
    """
    return ((np.arange(WORD_SAMPLES) * (number % 50 + 1) + number) % 101 + 1).astype(np.int16)


class _TTSStream(tts.SynthesizeStream):
    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        output_emitter.initialize(
            request_id="tts", sample_rate=RATE, num_channels=1, mime_type="audio/pcm", stream=True
        )
        output_emitter.start_segment(segment_id="segment")
        typed, spoken = "", 0
        async for token in self._input_ch:
            if not isinstance(token, str):
                continue
            self._mark_started()
            typed += token
            words = typed.split()
            whole = words if typed[-1:].isspace() else words[:-1]  # the last word may still grow
            spoken = await self._speak(output_emitter, whole, spoken, more=True)
        if typed.strip():
            await self._speak(output_emitter, typed.split(), spoken, more=False)
            output_emitter.end_segment()

    async def _speak(self, emitter: tts.AudioEmitter, words: list[str], spoken: int, *, more: bool) -> int:
        for index in range(spoken, len(words)):
            if index == 0:
                await asyncio.sleep(self._tts.first)
            if words[index] == "[fail]":
                raise APIError("the voice failed", retryable=False)
            text = words[index] if not more and index == len(words) - 1 else f"{words[index]} "
            start = index * WORD_S
            if self._tts.capabilities.aligned_transcript:
                emitter.push_timed_transcript(TimedString(text, start_time=start, end_time=start + WORD_S))
            emitter.push(word_samples(self._tts.words).tobytes())
            self._tts.words += 1
            await asyncio.sleep(WORD_S / 4)
        return max(spoken, len(words))


# -- the speakers ------------------------------------------------------------------------------------
@dataclass(eq=False)
class Played:
    """One segment: what was sent of it, and how far it played."""

    sent: np.ndarray
    position: int = 0
    started_unix: float | None = None
    flushed: bool = False
    cut: bool = False
    over: bool = False

    def played(self) -> np.ndarray:
        return self.sent[: self.position]


class Speaker(io.AudioOutput):
    """Plays at the speed of virtual time, pauses, and reports what played."""

    pauses = True

    def __init__(self) -> None:
        super().__init__(
            label="Speaker",
            capabilities=io.AudioOutputCapabilities(pause=self.pauses),
            sample_rate=RATE,
        )
        self.segments: list[Played] = []
        self._now: Played | None = None
        self._began: tuple[float, int] | None = None  # the run that plays: since when, from which sample
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._free = asyncio.Event()
        self._free.set()

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        if self._now is not None and self._now.flushed:
            await self._free.wait()  # the segment before this one still plays
        await super().capture_frame(frame)
        if self._now is None:
            self._now = Played(np.zeros(0, np.int16))
            self._free.clear()
            self.segments.append(self._now)
        if not self._now.cut:
            self._now.sent = np.concatenate([self._now.sent, np.frombuffer(frame.data, np.int16)])
            self._go_on()

    def flush(self) -> None:
        super().flush()
        if self._now is not None:
            self._now.flushed = True
            self._settle()

    def clear_buffer(self) -> None:
        if self._now is not None:
            self._stop()
            self._now.cut = self._now.cut or not (
                self._now.flushed and self._now.position == self._now.sent.size
            )
            self._settle()

    def pause(self) -> None:
        super().pause()
        self._paused = True
        self._stop()

    def resume(self) -> None:
        super().resume()
        self._paused = False
        self._go_on()

    def _go_on(self) -> None:
        now = self._now
        if now is None or now.cut or self._paused:
            return
        if self._began is None and now.position < now.sent.size:
            self._began = (time.time(), now.position)
            if now.started_unix is None:
                now.started_unix = time.time()
                self.on_playback_started(created_at=now.started_unix)
        if self._began is not None:
            if self._timer is not None:
                self._timer.cancel()
            since, first = self._began
            left = since + (now.sent.size - first) / RATE - time.time()
            self._timer = asyncio.get_running_loop().call_later(max(0.0, left), self._ran_out)

    def _ran_out(self) -> None:
        self._stop(everything=True)
        self._settle()

    def _stop(self, *, everything: bool = False) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._began is None or self._now is None:
            return
        (since, first), self._began = self._began, None
        elapsed = round((time.time() - since) * RATE)
        self._now.position = self._now.sent.size if everything else min(first + elapsed, self._now.sent.size)
        if self._now.position > first and hasattr(self, "on_playback_progressed"):  # since 1.8
            self.on_playback_progressed(
                started_at=since, offset=first / RATE, duration=(self._now.position - first) / RATE
            )

    def _settle(self) -> None:
        now = self._now
        if now is None or not now.flushed or now.over:
            return
        if now.cut or now.position == now.sent.size:
            now.over = True
            # from the loop: wrappers must see flush and clear return first
            asyncio.get_running_loop().call_soon(self._finish, now)

    def _finish(self, now: Played) -> None:
        self._now = None
        self._free.set()
        self.on_playback_finished(playback_position=now.position / RATE, interrupted=now.cut)


class QuietSpeaker(Speaker):
    """Does not say which stretches it played."""

    def on_playback_progressed(self, **_: Any) -> None:
        pass


class StubbornSpeaker(QuietSpeaker):
    """Cannot pause either."""

    pauses = False


class EndlessSpeaker(QuietSpeaker):
    """Never says that a playback is finished."""

    def on_playback_finished(self, **_: Any) -> None:
        pass


@dataclass
class TextSink(io.TextOutput):
    """The agent's transcript as it comes out."""

    texts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        io.TextOutput.__init__(self, label="TextSink", next_in_chain=None)

    async def capture_text(self, text: str) -> None:
        self.texts.append(str(text))

    def flush(self) -> None:
        self.texts.append("|")
