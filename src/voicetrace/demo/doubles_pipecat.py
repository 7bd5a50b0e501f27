# SPDX-License-Identifier: Apache-2.0
"""The outside world of the demo call, as subclasses of Pipecat's own base classes.

`SimInput` and `SimOutput` are the two halves of a transport, `ScriptedSTT`, `ScriptedLLM` and `WordTTS` or
`SentenceTTS` are the services. Each keeps what truly happened, so a call made with them has a ground truth.
All times are Unix seconds (``time.time()``). Everything lives on the event loop that runs the pipeline;
nothing here is thread-safe.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

try:
    from pipecat.frames.frames import (
        CancelFrame,
        EndFrame,
        Frame,
        FunctionCallFromLLM,
        InputAudioRawFrame,
        InterimTranscriptionFrame,
        InterruptionFrame,
        LLMContextFrame,
        LLMFullResponseEndFrame,
        LLMFullResponseStartFrame,
        OutputAudioRawFrame,
        StartFrame,
        TranscriptionFrame,
        TTSAudioRawFrame,
        TTSStartedFrame,
        TTSStoppedFrame,
    )
    from pipecat.metrics.metrics import LLMTokenUsage
    from pipecat.processors.aggregators.llm_context import LLMContext
    from pipecat.processors.frame_processor import FrameDirection
    from pipecat.services.llm_service import LLMService
    from pipecat.services.settings import LLMSettings, STTSettings, TTSSettings
    from pipecat.services.stt_service import STTService
    from pipecat.services.tts_service import TTSService
    from pipecat.transports.base_input import BaseInputTransport
    from pipecat.transports.base_output import BaseOutputTransport
    from pipecat.transports.base_transport import TransportParams
    from pipecat.utils.time import time_now_iso8601
    from pipecat.utils.tracing.service_decorators import traced_llm, traced_stt, traced_tts
except ImportError as error:
    raise ImportError(
        "the demo call needs Pipecat, which is not installed; run: pip install 'voicetrace[pipecat]'"
    ) from error

from voicetrace.demo.line import CallerLine, Spoken
from voicetrace.demo.script import RecordedClip, Reply, Samples, Word, tokenize
from voicetrace.demo.truth import LLMCall, Run, Segment


class SimInput(BaseInputTransport):
    """The caller's line (`CallerLine`) as the input of a transport, in real time."""

    def __init__(self, line: CallerLine, **kwargs: Any) -> None:
        params = TransportParams(audio_in_enabled=True, audio_in_sample_rate=line.sample_rate)
        super().__init__(params, **kwargs)
        self.line = line
        self._reader: asyncio.Task[None] | None = None

    async def start(self, frame: StartFrame) -> None:
        """Begin to read the line."""
        await super().start(frame)
        await self.set_transport_ready(frame)
        if self._reader is None:  # a worker may be started again after a StopFrame
            self._reader = self.create_task(self._read())

    async def stop(self, frame: EndFrame) -> None:
        """Stop reading."""
        await self._stop_reading()
        await super().stop(frame)

    async def cancel(self, frame: CancelFrame) -> None:
        """Stop reading."""
        await self._stop_reading()
        await super().cancel(frame)

    async def cleanup(self) -> None:
        """Stop reading."""
        await self._stop_reading()
        await super().cleanup()  # type: ignore[no-untyped-call]

    async def _stop_reading(self) -> None:
        if self._reader is not None:
            await self.cancel_task(self._reader)
            self._reader = None

    async def _read(self) -> None:
        while True:
            samples = await self.line.read()
            await self.push_audio_frame(InputAudioRawFrame(samples.tobytes(), self.line.sample_rate, 1))


@dataclass(eq=False)
class Utterance(Segment):
    """What the speaker played of one TTS context, ``context_id``; the silence that fills it up included."""

    context_id: str | None = None


class SimOutput(BaseOutputTransport):
    """A loudspeaker as the output of a transport: it plays at the speed of time and remembers what it played.

    A chunk is taken ``lead_ms`` before the one before it has ended, so an event loop that is a little late
    leaves no gap; a loop that is later than that does, and the next chunk begins a new run. What was taken is
    played, also when an interruption comes while it sounds. ``utterances`` has one entry per TTS context that
    reached the speaker, ``chunks`` every chunk as ``(sounds from unix, context_id, samples)``, also those
    outside any context. ``on_change`` is called, with no arguments, after an utterance started or finished.
    """

    def __init__(self, *, sample_rate: int = 24_000, lead_ms: int = 10, **kwargs: Any) -> None:
        params = TransportParams(
            audio_out_enabled=True, audio_out_sample_rate=sample_rate, audio_out_end_silence_secs=0
        )
        super().__init__(params, **kwargs)
        self.utterances: list[Utterance] = []
        self.chunks: list[tuple[float, str | None, Samples]] = []
        self.on_change: Callable[[], None] = lambda: None
        self.rate = sample_rate
        self._lead_s = lead_ms / 1000
        self._busy_until = 0.0
        self._playing: Utterance | None = None
        self._interruptible = True

    async def start(self, frame: StartFrame) -> None:
        """Be ready to play."""
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        """Play a chunk; returns when the next one is wanted."""
        samples = np.frombuffer(frame.audio, np.int16).copy()
        began = max(time.time(), self._busy_until)
        self._busy_until = began + len(samples) / frame.sample_rate
        self.chunks.append((began, self._playing.context_id if self._playing else None, samples))
        if self._playing is not None:
            self._play(self._playing, began, samples, frame.sample_rate)
        await asyncio.sleep(max(0.0, self._busy_until - self._lead_s - time.time()))
        return True

    def _play(self, utterance: Utterance, began: float, samples: Samples, rate: int) -> None:
        utterance.push(samples)
        offset, utterance.position = utterance.position, utterance.size
        run = utterance.runs[-1] if utterance.runs else None
        if run is not None and abs(run.started_unix + (offset - run.offset) / rate - began) * rate < 0.5:
            utterance.runs[-1] = Run(run.started_unix, run.offset, run.samples + len(samples))
        else:
            utterance.runs.append(Run(began, offset, len(samples)))
        if utterance.started_unix is None:
            utterance.started_unix = began
            self.on_change()

    async def write_transport_frame(self, frame: Frame) -> None:
        """See a frame that waited its turn behind the audio: where the next utterance begins."""
        if isinstance(frame, TTSStartedFrame):
            self._interruptible = frame.interruptible
            self._playing = Utterance(context_id=frame.context_id)
            self.utterances.append(self._playing)

    async def push_frame(self, frame: Frame, direction: FrameDirection = FrameDirection.DOWNSTREAM) -> None:
        """Pass a frame on, and see where an utterance ends."""
        if isinstance(frame, TTSStoppedFrame) and self._playing is not None:
            self._finish(self._playing, interrupted=False)
        elif self._playing is not None and (
            isinstance(frame, CancelFrame) or (isinstance(frame, InterruptionFrame) and self._interruptible)
        ):
            self._finish(self._playing, interrupted=True)
        await super().push_frame(frame, direction)

    def _finish(self, utterance: Utterance, *, interrupted: bool) -> None:
        self._playing = None
        utterance.interrupted = interrupted
        utterance.finished_unix = max(time.time(), self._busy_until)
        if utterance.started_unix is None:
            self.utterances.remove(utterance)  # announced, and cut before its first sound
        self.on_change()


class ScriptedSTT(STTService):
    """Speech-to-text whose results are told to it by `hear`; they arrive when a service's would."""

    def __init__(self, *, finalized: bool = True, **kwargs: Any) -> None:
        kwargs.setdefault("ttfs_p99_latency", 0.6)
        super().__init__(settings=STTSettings(model="scripted-stt", language=None), **kwargs)
        self._finalized = finalized
        self._pending: set[asyncio.TimerHandle] = set()

    def can_generate_metrics(self) -> bool:
        """Services do."""
        return True

    def hear(
        self, spoken: Spoken, interims: Iterable[tuple[str, int]], final: str | None, final_delay_ms: int
    ) -> None:
        """Queue one utterance's results: interims by ms after its start, the final by ms after its end."""
        for text, after_ms in interims:
            self.say(spoken.start_unix + after_ms / 1000, text, final=False)
        if final is not None:
            self.say(spoken.end_unix + final_delay_ms / 1000, final, final=True)

    def say(self, at_unix: float, text: str, *, final: bool) -> None:
        """Queue one result."""

        def due() -> None:
            self._pending.discard(handle)
            self.create_task(self._result(text, final), name="result")

        handle = asyncio.get_running_loop().call_later(max(0.0, at_unix - time.time()), due)
        self._pending.add(handle)

    async def cleanup(self) -> None:
        """Forget what is still queued."""
        for handle in self._pending:
            handle.cancel()
        self._pending.clear()
        await super().cleanup()  # type: ignore[no-untyped-call]

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        """Take audio; the audio is real, only its meaning is scripted."""
        yield None

    @traced_stt
    async def _handle_transcription(self, transcript: str, is_final: bool, language: Any = None) -> None:
        """What the tracing of Pipecat hangs on."""

    async def _result(self, text: str, final: bool) -> None:
        if final:
            await self._handle_transcription(text, True)
            await self.emit_stt_usage_metrics()  # type: ignore[no-untyped-call]
            await self.push_frame(
                TranscriptionFrame(text, "caller", time_now_iso8601(), finalized=self._finalized)
            )
        else:
            await self.push_frame(InterimTranscriptionFrame(text, "caller", time_now_iso8601()))


class ContextLabels:
    """Names for the messages of a context, which have none in Pipecat: ``ctx_0``, ``ctx_1``, by identity."""

    def __init__(self) -> None:
        self._seen: list[tuple[Any, str]] = []

    def label(self, message: Any) -> str:
        """The message's name; a message is the same one while it is the same object."""
        for known, name in self._seen:
            if known is message:
                return name
        name = f"ctx_{len(self._seen)}"
        self._seen.append((message, name))
        return name


class ScriptedLLM(LLMService[Any]):
    """Streams the scripted reply to the newest message of the context, and keeps every call it got."""

    def __init__(
        self, replies: Sequence[Reply], *, system_instruction: str | None = None, **kwargs: Any
    ) -> None:
        settings = LLMSettings(
            model="scripted-llm",
            system_instruction=system_instruction,
            temperature=None,
            max_tokens=None,
            top_p=None,
            top_k=None,
            frequency_penalty=None,
            presence_penalty=None,
            seed=None,
            filter_incomplete_user_turns=False,
            user_turn_completion_config=None,
        )
        super().__init__(settings=settings, **kwargs)
        self.calls: list[LLMCall] = []
        self.labels = ContextLabels()
        self._replies = replies

    def can_generate_metrics(self) -> bool:
        """Services do."""
        return True

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Answer a context, in the order of events of Pipecat's OpenAI service."""
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame):
            await self.push_frame(frame, direction)
            return
        try:
            await self.push_frame(LLMFullResponseStartFrame())
            await self.start_processing_metrics()
            await self._process_context(frame.context)
        except LookupError as error:
            await self.push_error(str(error), exception=error)
        finally:
            await self.stop_processing_metrics()
            await self.push_frame(LLMFullResponseEndFrame())

    @traced_llm
    async def _process_context(self, context: LLMContext) -> None:
        messages = context.messages
        ids = [self.labels.label(message) for message in messages]
        call = LLMCall(len(self.calls), time.time(), ids, "")
        self.calls.append(call)
        reply, call.heard = choose_reply(self._replies, messages)
        await self.start_ttfb_metrics()
        await asyncio.sleep(reply.first_token_ms / 1000)
        await self.stop_ttfb_metrics()
        tokens = tokenize(reply.text)
        for token in tokens:
            call.reply_text += token
            await self._push_llm_text(token)
            await asyncio.sleep(reply.token_ms / 1000)
        prompt = sum(len(str(message)) for message in messages) // 4
        await self.start_llm_usage_metrics(
            LLMTokenUsage(
                prompt_tokens=prompt, completion_tokens=len(tokens), total_tokens=prompt + len(tokens)
            )
        )
        if reply.call is not None:
            call.tool_calls.append(reply.call.name)
            function_call = FunctionCallFromLLM(
                function_name=reply.call.name,
                tool_call_id=f"call_{uuid.uuid4().hex[:12]}",
                arguments=json.loads(reply.call.arguments),
                context=context,
            )
            await self.run_function_calls([function_call])
        call.finished = True


def choose_reply(replies: Sequence[Reply], messages: Sequence[Any]) -> tuple[Reply, str]:
    """The reply to the newest message, and what that message says.

    Raises:
        LookupError: the script has no reply to it.
    """
    newest = messages[-1] if messages else {}
    said = str(newest.get("content") or "")
    if newest.get("role") == "tool":
        names = {call["id"]: call["function"]["name"] for m in messages for call in m.get("tool_calls") or ()}
        fitting = [r for r in replies if r.tool == names.get(newest["tool_call_id"])]
    elif newest.get("role") == "developer":
        fitting = [r for r in replies if r.unheard]
    else:
        fitting = [r for r in replies if r.heard == said and newest.get("role") == "user"]
    if not fitting:
        raise LookupError(f"the scripted LLM has no reply to {newest!r}; add a Reply to the scenario")
    return fitting[0], said


@dataclass(frozen=True, eq=False)
class SpokenWord:
    """A word as a voice speaks it: its ``samples``, in which it begins at ``onset``."""

    text: str
    samples: Samples = field(repr=False)
    onset: int = 0


class Voice(ABC):
    """What a speech service sounds like."""

    sample_rate: int

    @abstractmethod
    def speak(self, before: str, text: str) -> list[SpokenWord]:
        """The words of ``text``, which follows ``before`` in the same utterance."""


class RecordedVoice(Voice):
    """Speaks the recorded clip whose text it is given, sentence by sentence, with its true word timings."""

    def __init__(self, clips: Sequence[RecordedClip]) -> None:
        self.sample_rate = clips[0].sample_rate
        self._clips = tuple(clips)

    def speak(self, before: str, text: str) -> list[SpokenWord]:
        """The part of the one clip that says ``before`` and then ``text``.

        Raises:
            LookupError: no clip says that, or several do.
        """
        first, wanted = len(before.split()), [*before.split(), *text.split()]
        fitting = [c for c in self._clips if [w.text for w in c.words[: len(wanted)]] == wanted]
        if len(fitting) != 1:
            raise LookupError(f"{len(fitting)} recorded clips say {' '.join(wanted)!r}; exactly one must")
        return [_word_of(fitting[0], index) for index in range(first, len(wanted))]


def _word_of(clip: RecordedClip, index: int) -> SpokenWord:
    """A word with the silence after it, and the first one with the silence before it too."""
    word: Word = clip.words[index]
    begin = word.start if index else 0
    end = clip.words[index + 1].start if index + 1 < len(clip.words) else len(clip.samples)
    return SpokenWord(word.text, clip.samples[begin:end], word.start - begin)


class WordTTS(TTSService):
    """A streaming speech service over a connection: audio and word times arrive on their own.

    It synthesises ``speedup`` times faster than the speech plays. ``sent`` is how many samples each context
    got, by context id. ``stalls`` makes it hang: seconds by the number of words sent in the context before.
    """

    def __init__(
        self,
        voice: Voice,
        *,
        first_audio_ms: int = 120,
        speedup: float = 4.0,
        stalls: dict[int, float] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            push_text_frames=False,
            push_start_frame=True,
            sample_rate=voice.sample_rate,
            settings=TTSSettings(model="word-tts", voice="recorded", language=None),
            **kwargs,
        )
        self.sent: dict[str, int] = {}
        self._voice = voice
        self._first_audio_s = first_audio_ms / 1000
        self._speedup = speedup
        self._stalls = stalls or {}
        self._typed: dict[str, str] = {}
        self._words: dict[str, asyncio.Queue[SpokenWord | None]] = {}
        self._speakers: dict[str, asyncio.Task[None]] = {}

    def can_generate_metrics(self) -> bool:
        """Services do."""
        return True

    @traced_tts
    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        """Send text to the voice; what it speaks arrives later."""
        before = self._typed.get(context_id, "")
        words = self._voice.speak(before, text)
        self._typed[context_id] = f"{before} {text}"
        if context_id not in self._words:
            self._words[context_id] = asyncio.Queue()
            self._speakers[context_id] = self.create_task(self._speak(context_id), name="speak")
        for word in words:
            self._words[context_id].put_nowait(word)
        await self.start_tts_usage_metrics(text)
        yield None

    async def flush_audio(self, context_id: str | None = None) -> None:
        """Tell the voice that nothing more follows in the context."""
        if context_id in self._words:
            self._words[context_id].put_nowait(None)

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        """Let the voice stop."""
        await self._silence(context_id)

    async def cancel(self, frame: CancelFrame) -> None:
        """Let the voice stop."""
        await super().cancel(frame)
        for context_id in list(self._speakers):
            await self._silence(context_id)

    async def cleanup(self) -> None:
        """Let the voice stop."""
        for context_id in list(self._speakers):
            await self._silence(context_id)
        await super().cleanup()  # type: ignore[no-untyped-call]

    async def _silence(self, context_id: str) -> None:
        self._words.pop(context_id, None)
        speaker = self._speakers.pop(context_id, None)
        if speaker is not None:
            await self.cancel_task(speaker)

    async def _speak(self, context_id: str) -> None:
        words, number = self._words[context_id], 0
        self.sent[context_id] = 0
        await asyncio.sleep(self._first_audio_s)
        while (word := await words.get()) is not None:
            await asyncio.sleep(self._stalls.get(number, 0.0))
            at_s = (self.sent[context_id] + word.onset) / self._voice.sample_rate
            audio = TTSAudioRawFrame(word.samples.tobytes(), self._voice.sample_rate, 1)
            audio.context_id = context_id
            self.sent[context_id] += len(word.samples)
            await self.append_to_audio_context(context_id, audio)
            await self.add_word_timestamps([(word.text, at_s)], context_id)
            await asyncio.sleep(len(word.samples) / self._voice.sample_rate / self._speedup)
            number += 1
        if self.audio_context_available(context_id):  # or it was quiet for too long, and was given up
            await self.append_to_audio_context(context_id, TTSStoppedFrame(context_id=context_id))
            await self.remove_audio_context(context_id)
        self._words.pop(context_id, None)
        self._speakers.pop(context_id, None)


class SentenceTTS(TTSService):
    """A speech service over requests: the audio of a sentence comes inline, and no word times.

    It synthesises ``speedup`` times faster than the speech plays. ``sent`` is how many samples each context
    got, by context id.
    """

    def __init__(
        self, voice: Voice, *, first_audio_ms: int = 120, speedup: float = 4.0, **kwargs: Any
    ) -> None:
        super().__init__(
            push_text_frames=True,
            push_start_frame=True,
            push_stop_frames=True,
            sample_rate=voice.sample_rate,
            settings=TTSSettings(model="sentence-tts", voice="recorded", language=None),
            **kwargs,
        )
        self.sent: dict[str, int] = {}
        self._voice = voice
        self._first_audio_s = first_audio_ms / 1000
        self._speedup = speedup
        self._typed: dict[str, str] = {}

    def can_generate_metrics(self) -> bool:
        """Services do."""
        return True

    @traced_tts
    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        """Synthesise a sentence."""
        before = self._typed.get(context_id, "")
        words = self._voice.speak(before, text)
        self._typed[context_id] = f"{before} {text}"
        await self.start_tts_usage_metrics(text)
        await asyncio.sleep(self._first_audio_s)
        for word in words:
            self.sent[context_id] = self.sent.get(context_id, 0) + len(word.samples)
            audio = TTSAudioRawFrame(word.samples.tobytes(), self._voice.sample_rate, 1)
            audio.context_id = context_id
            yield audio
            await asyncio.sleep(len(word.samples) / self._voice.sample_rate / self._speedup)
