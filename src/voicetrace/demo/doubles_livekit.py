# SPDX-License-Identifier: Apache-2.0
"""The outside world of the demo call, as subclasses of LiveKit's own base classes.

`RecordedMic` is the caller, `ScriptedSTT`, `ScriptedLLM` and `RecordedTTS` are the services, and
`RealtimeSpeaker` and `TextSink` are what the agent's output reaches. Each keeps what truly happened, so a
call made with them has a ground truth. All times are Unix seconds (``time.time()``, LiveKit's own clock).
Everything lives on the event loop that runs the session; nothing here is thread-safe.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

try:
    from livekit import rtc
    from livekit.agents import APIConnectOptions, APIError, llm, stt, tts, utils
    from livekit.agents.language import LanguageCode
    from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS, NOT_GIVEN, NotGivenOr, TimedString
    from livekit.agents.voice import io
except ImportError as error:
    raise ImportError(
        "the demo call needs LiveKit Agents, which is not installed; run: pip install 'voicetrace[livekit]'"
    ) from error

from voicetrace.demo.line import CallerLine, Spoken
from voicetrace.demo.script import RecordedClip, Reply, Samples, Word, tokenize
from voicetrace.demo.truth import LLMCall, Run, Segment


class RecordedMic(io.AudioInput):
    """The caller's line (`CallerLine`) as an input of the session."""

    def __init__(self, room: RecordedClip) -> None:
        super().__init__(label="RecordedMic")
        self.line = CallerLine(room)

    @property
    def sample_rate(self) -> int:
        """The line's rate, in Hz."""
        return self.line.sample_rate

    @property
    def started_unix(self) -> float | None:
        """When the first frame was asked for."""
        return self.line.started_unix

    def speak(self, clip: RecordedClip, at_unix: float) -> Spoken:
        """See `CallerLine.speak`."""
        return self.line.speak(clip, at_unix)

    def delivered(self) -> Samples:
        """Every sample handed over so far, from ``started_unix`` on."""
        return self.line.delivered()

    async def __anext__(self) -> rtc.AudioFrame:
        frame = await self.line.read()
        return rtc.AudioFrame(frame.tobytes(), self.sample_rate, 1, len(frame))


class ScriptedSTT(stt.STT[Any]):
    """Speech-to-text whose results are told to it by `hear`; they arrive when a service's would."""

    def __init__(self) -> None:
        super().__init__(
            capabilities=stt.STTCapabilities(streaming=True, interim_results=True, offline_recognize=False)
        )
        self._ready: asyncio.Queue[stt.SpeechEvent] = asyncio.Queue()
        self._idle = asyncio.Event()
        self._idle.set()
        self._count = 0
        self._pending = 0

    @property
    def model(self) -> str:
        """The name shown in traces."""
        return "scripted-stt"

    @property
    def provider(self) -> str:
        """The provider shown in traces."""
        return "voicetrace-demo"

    def hear(
        self, spoken: Spoken, interims: Iterable[tuple[str, int]], final: str | None, final_delay_ms: int
    ) -> None:
        """Queue one utterance's results: interims by ms after its start, the final by ms after its end."""
        for text, after_ms in interims:
            self._queue(spoken.start_unix + after_ms / 1000, text, stt.SpeechEventType.INTERIM_TRANSCRIPT)
        if final is not None:
            self._queue(spoken.end_unix + final_delay_ms / 1000, final, stt.SpeechEventType.FINAL_TRANSCRIPT)

    def _queue(self, at_unix: float, text: str, kind: stt.SpeechEventType) -> None:
        data = stt.SpeechData(language=LanguageCode("en"), text=text, confidence=0.93)
        self._count += 1
        event = stt.SpeechEvent(type=kind, request_id=f"stt_{self._count}", alternatives=[data])
        self._pending += 1
        self._idle.clear()
        asyncio.get_running_loop().call_later(max(0.0, at_unix - time.time()), self._ready.put_nowait, event)

    async def next_result(self) -> stt.SpeechEvent:
        """Wait for the next result to be due."""
        event = await self._ready.get()
        event.created_at = time.time()
        return event

    def result_sent(self) -> None:
        """The result that `next_result` gave is out."""
        self._pending -= 1
        if not self._pending:
            self._idle.set()

    async def all_sent(self) -> None:
        """Wait until nothing queued is left."""
        await self._idle.wait()

    async def _recognize_impl(
        self,
        buffer: utils.AudioBuffer,
        *,
        language: NotGivenOr[str] = NOT_GIVEN,
        conn_options: APIConnectOptions,
    ) -> stt.SpeechEvent:
        raise NotImplementedError("the scripted speech-to-text only streams; use stream()")

    def stream(
        self,
        *,
        language: NotGivenOr[str] = NOT_GIVEN,
        conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS,
    ) -> stt.RecognizeStream:
        """A stream that takes audio, and gives the queued results when they are due."""
        return _ScriptedSTTStream(self, conn_options)


class _ScriptedSTTStream(stt.RecognizeStream):
    def __init__(self, owner: ScriptedSTT, conn_options: APIConnectOptions) -> None:
        super().__init__(stt=owner, conn_options=conn_options)
        self._owner = owner

    async def _run(self) -> None:
        results = asyncio.create_task(self._send_results())
        try:
            async for _ in self._input_ch:  # the audio is real; only its meaning is scripted
                pass
            await self._owner.all_sent()
        finally:
            await utils.aio.cancel_and_wait(results)

    async def _send_results(self) -> None:
        while True:
            self._event_ch.send_nowait(await self._owner.next_result())
            self._owner.result_sent()


class ScriptedLLM(llm.LLM[Any]):
    """Streams the scripted reply to the newest user text or tool result, and keeps every call it got."""

    def __init__(self, replies: Sequence[Reply]) -> None:
        super().__init__()
        self.calls: list[LLMCall] = []
        self._by_text = {r.heard: r for r in replies if r.heard is not None}
        self._by_tool = {r.tool: r for r in replies if r.tool is not None}

    @property
    def model(self) -> str:
        """The name shown in traces."""
        return "scripted-llm"

    @property
    def provider(self) -> str:
        """The provider shown in traces."""
        return "voicetrace-demo"

    def chat(
        self,
        *,
        chat_ctx: llm.ChatContext,
        tools: list[llm.Tool] | None = None,
        conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS,
        parallel_tool_calls: NotGivenOr[bool] = NOT_GIVEN,
        tool_choice: NotGivenOr[llm.ToolChoice] = NOT_GIVEN,
        extra_kwargs: NotGivenOr[dict[str, Any]] = NOT_GIVEN,
    ) -> llm.LLMStream:
        """Answer the context.

        Raises:
            LookupError: the script has no reply to it.
        """
        reply, heard = self._choose(chat_ctx)
        call = LLMCall(len(self.calls), time.time(), [item.id for item in chat_ctx.items], heard)
        self.calls.append(call)
        return _ScriptedLLMStream(self, reply, call, chat_ctx, tools or [], conn_options)

    def _choose(self, chat_ctx: llm.ChatContext) -> tuple[Reply, str]:
        for item in reversed(chat_ctx.items):
            if item.type == "function_call_output" and item.name in self._by_tool:
                return self._by_tool[item.name], item.output
            if item.type == "message" and item.role == "user":
                heard = item.text_content or ""
                if heard in self._by_text:
                    return self._by_text[heard], heard
                raise LookupError(f"the scripted LLM has no reply to {heard!r}; add a Reply to the scenario")
        raise LookupError("the scripted LLM was asked before anybody said anything")


class _ScriptedLLMStream(llm.LLMStream):
    def __init__(
        self,
        owner: ScriptedLLM,
        reply: Reply,
        call: LLMCall,
        chat_ctx: llm.ChatContext,
        tools: list[llm.Tool],
        conn_options: APIConnectOptions,
    ) -> None:
        super().__init__(owner, chat_ctx=chat_ctx, tools=tools, conn_options=conn_options)
        self._reply = reply
        self._call = call

    async def _run(self) -> None:
        request_id = utils.shortuuid("chatcmpl_")
        await asyncio.sleep(self._reply.first_token_ms / 1000)
        tokens = tokenize(self._reply.text)
        for token in tokens:
            self._send(request_id, llm.ChoiceDelta(role="assistant", content=token))
            self._call.reply_text += token
            await asyncio.sleep(self._reply.token_ms / 1000)
        if self._reply.call is not None:
            call = llm.FunctionToolCall(
                name=self._reply.call.name,
                arguments=self._reply.call.arguments,
                call_id=utils.shortuuid("call_"),
            )
            self._send(request_id, llm.ChoiceDelta(role="assistant", tool_calls=[call]))
            self._call.tool_calls.append(call.name)
        prompt = sum(len(i.text_content or "") for i in self._chat_ctx.messages()) // 4
        usage = llm.CompletionUsage(
            completion_tokens=len(tokens), prompt_tokens=prompt, total_tokens=prompt + len(tokens)
        )
        self._event_ch.send_nowait(llm.ChatChunk(id=request_id, usage=usage))
        self._call.finished = True

    def _send(self, request_id: str, delta: llm.ChoiceDelta) -> None:
        self._event_ch.send_nowait(llm.ChatChunk(id=request_id, delta=delta))


class RecordedTTS(tts.TTS[Any]):
    """Speaks the recorded clip whose text it is given, word by word, with the clip's true word timings.

    It starts as soon as the text so far fits one clip only, and streams ``speedup`` times faster than the
    speech plays. All clips must be mono at ``sample_rate`` and carry words.
    """

    def __init__(
        self,
        clips: Sequence[RecordedClip],
        *,
        sample_rate: int = 24_000,
        first_audio_ms: int = 120,
        speedup: float = 4.0,
    ) -> None:
        super().__init__(
            capabilities=tts.TTSCapabilities(streaming=True, aligned_transcript=True),
            sample_rate=sample_rate,
            num_channels=1,
        )
        self._clips = tuple(clips)
        self.first_audio_s = first_audio_ms / 1000
        self.speedup = speedup

    @property
    def model(self) -> str:
        """The name shown in traces."""
        return "recorded-tts"

    @property
    def provider(self) -> str:
        """The provider shown in traces."""
        return "voicetrace-demo"

    def find(self, typed: str, *, complete: bool) -> RecordedClip | None:
        """The clip whose text is ``typed``, or begins with it and is the only one that does.

        ``None`` while several clips may follow.

        Raises:
            APIError: no clip fits.
        """
        if complete:
            fitting = [clip for clip in self._clips if clip.text == typed.strip()]
        else:
            fitting = [clip for clip in self._clips if clip.text.startswith(typed.lstrip())]
        if not fitting:
            raise APIError(f"no recorded speech for the text {typed!r}", retryable=False)
        return fitting[0] if len(fitting) == 1 else None

    def synthesize(
        self, text: str, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> tts.ChunkedStream:
        """Speak a whole text."""
        return self._synthesize_with_stream(text, conn_options=conn_options)

    def stream(
        self, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> tts.SynthesizeStream:
        """Speak a text while it arrives."""
        return _RecordedTTSStream(self, conn_options)


class _RecordedTTSStream(tts.SynthesizeStream):
    def __init__(self, owner: RecordedTTS, conn_options: APIConnectOptions) -> None:
        super().__init__(tts=owner, conn_options=conn_options)
        self._owner = owner

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        output_emitter.initialize(
            request_id=utils.shortuuid("tts_"),
            sample_rate=self._owner.sample_rate,
            num_channels=1,
            mime_type="audio/pcm",
            stream=True,
        )
        output_emitter.start_segment(segment_id=utils.shortuuid("seg_"))
        typed, spoken = "", 0
        async for token in self._input_ch:
            if not isinstance(token, str):
                continue
            self._mark_started()
            typed += token
            clip = self._owner.find(typed, complete=False)
            if clip is not None:
                # the last word typed may still grow, so it waits for the next token
                spoken = await self._speak(output_emitter, clip, spoken, len(typed.split()) - 1)
        if not typed.strip():
            return
        clip = self._owner.find(typed, complete=True)
        assert clip is not None
        await self._speak(output_emitter, clip, spoken, len(clip.words))
        output_emitter.end_segment()

    async def _speak(self, emitter: tts.AudioEmitter, clip: RecordedClip, first: int, last: int) -> int:
        """Push words ``[first, last)`` of the clip; returns how many words of it are out."""
        if first == 0 < last:
            await asyncio.sleep(self._owner.first_audio_s)
        for index in range(first, last):
            word = clip.words[index]
            is_last = index == len(clip.words) - 1
            begin = word.start if index else 0
            end = len(clip.samples) if is_last else clip.words[index + 1].start
            emitter.push_timed_transcript(_timed(word, clip.sample_rate, is_last))
            emitter.push(clip.samples[begin:end].tobytes())
            await asyncio.sleep((end - begin) / clip.sample_rate / self._owner.speedup)
        return max(first, last)


def _timed(word: Word, sample_rate: int, is_last: bool) -> TimedString:
    text = word.text if is_last else f"{word.text} "
    return TimedString(text, start_time=word.start / sample_rate, end_time=word.end / sample_rate)


class RealtimeSpeaker(io.AudioOutput):
    """A loudspeaker that plays at the speed of time, can pause, and remembers exactly what it played.

    There is no tick: the playhead is computed from the clock whenever something happens (a frame, a pause,
    a resume, a clear, the end), so positions are exact to the sample however busy the machine is. A run
    ends where it truly ended even if the loop learns of it late. A segment starts to play once
    ``prebuffer_ms`` of it are there, or all of it. ``on_change`` is called, with no arguments, after a
    segment started or finished.
    """

    def __init__(
        self,
        *,
        sample_rate: int = 24_000,
        prebuffer_ms: int = 80,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(
            label="RealtimeSpeaker",
            capabilities=io.AudioOutputCapabilities(pause=True),
            sample_rate=sample_rate,
        )
        self.segments: list[Segment] = []
        self.on_change: Callable[[], None] = lambda: None
        self._rate = sample_rate
        self._clock = clock
        self._prebuffer = sample_rate * prebuffer_ms // 1000
        self._open: Segment | None = None
        self._run: tuple[float, int] | None = None  # when the running stretch began, and at which sample
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._free = asyncio.Event()
        self._free.set()

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        """Queue a frame; frames may come faster than they play."""
        if self._open is not None and self._open.flushed:
            await self._free.wait()  # the segment before this one still plays
        await super().capture_frame(frame)
        if self._open is None:
            self._open = Segment()
            self._free.clear()
            self.segments.append(self._open)
        if self._open.interrupted:
            return  # cleared before it was flushed: the rest of it is not wanted
        self._advance(self._clock())
        self._open.push(np.frombuffer(frame.data, dtype=np.int16).copy())
        self._play()

    def flush(self) -> None:
        """End the segment: it is finished once it has played."""
        super().flush()
        if self._open is not None and not self._open.flushed:
            self._open.flushed = True
            self._advance(self._clock())
            self._play()
            self._settle()

    def clear_buffer(self) -> None:
        """Stop at once and drop what has not played."""
        if self._open is None:
            return
        self._stop(self._clock())
        if not (self._open.flushed and self._open.position == self._open.size):
            self._open.interrupted = True
        self._settle()

    def pause(self) -> None:
        """Stop at the current sample and keep the rest."""
        super().pause()
        if not self._paused:
            self._paused = True
            self._stop(self._clock())
            self._settle()

    def resume(self) -> None:
        """Go on where `pause` stopped."""
        super().resume()
        self._paused = False
        self._play()

    def _play(self) -> None:
        """Begin a run if there is anything to play and nothing forbids it; arm the timer for its end."""
        segment = self._open
        if segment is None or self._paused or segment.interrupted or segment.position >= segment.size:
            return
        if segment.started_unix is None and segment.size < self._prebuffer and not segment.flushed:
            return
        if self._run is None:
            now = self._clock()
            self._run = (now, segment.position)
            if segment.started_unix is None:
                segment.started_unix = now
                self.on_playback_started(created_at=now)
                self.on_change()
        self._arm()

    def _arm(self) -> None:
        assert self._open is not None
        assert self._run is not None
        began, offset = self._run
        if self._timer is not None:
            self._timer.cancel()
        left = began + (self._open.size - offset) / self._rate - self._clock()
        self._timer = asyncio.get_running_loop().call_later(max(0.001, left), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._advance(self._clock())
        if self._run is not None:
            self._arm()  # timers may fire a little early
        else:
            self._settle()

    def _advance(self, now: float) -> None:
        """Move the playhead to ``now``; a run that reached the end of the audio ended when it got there."""
        if self._run is None or self._open is None:
            return
        began, offset = self._run
        # Unix seconds in a float are good to a hundredth of a sample, so that much is forgiven
        elapsed = max(0, int((now - began) * self._rate + 0.01))
        self._open.position = min(offset + elapsed, self._open.size)
        if self._open.position == self._open.size:
            self._end_run()

    def _stop(self, now: float) -> None:
        self._advance(now)
        if self._run is not None:
            self._end_run()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_run(self) -> None:
        assert self._open is not None
        assert self._run is not None
        (began, offset), self._run = self._run, None
        samples = self._open.position - offset
        if samples:
            self._open.runs.append(Run(began, offset, samples))
            self.on_playback_progressed(
                started_at=began, offset=offset / self._rate, duration=samples / self._rate
            )

    def _settle(self) -> None:
        """Finish the segment if it is over, from the loop: wrappers must see flush and clear return first."""
        segment = self._open
        if segment is None or not segment.flushed or segment.finished_unix is not None:
            return
        if segment.interrupted or segment.position == segment.size:
            segment.finished_unix = self._clock()
            asyncio.get_running_loop().call_soon(self._finish, segment)

    def _finish(self, segment: Segment) -> None:
        self._open = None
        self._free.set()
        self.on_playback_finished(
            playback_position=segment.position / self._rate, interrupted=segment.interrupted
        )
        self.on_change()


class TextSink(io.TextOutput):
    """The agent's transcript as it comes out: finished texts in ``texts``."""

    def __init__(self) -> None:
        super().__init__(label="TextSink", next_in_chain=None)
        self.texts: list[str] = []
        self._text = ""

    async def capture_text(self, text: str) -> None:
        """Take a piece of text."""
        self._text += text

    def flush(self) -> None:
        """End the current text."""
        if self._text:
            self.texts.append(self._text)
            self._text = ""
