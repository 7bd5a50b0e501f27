# SPDX-License-Identifier: Apache-2.0
"""`run_script`: a scripted call through a real Pipecat pipeline, in virtual time, and what is left of it."""

from __future__ import annotations

import asyncio
import re
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from unittest import mock

from loguru import logger
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pc_doubles import EnergyVAD, FakeLLM, MadeUpVoice, Reply, Said, quiet_line, tone
from pc_time import run_virtually
from pipecat.frames import frames
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMAssistantAggregator,
    LLMContextAggregatorPair,
    LLMUserAggregator,
    LLMUserAggregatorParams,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.llm_service import LLMService
from pipecat.services.tts_service import TTSService
from pipecat.turns.user_stop import SpeechTimeoutUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies
from pipecat.workers.runner import WorkerRunner

from virtual_time import EPOCH
from voicetrace.demo.doubles_pipecat import ScriptedSTT, SentenceTTS, SimInput, SimOutput, WordTTS
from voicetrace.demo.line import CallerLine
from voicetrace.demo.truth import Run

Ends = Literal["end", "end_worker", "stop", "cancel", "cancel_worker", "cancel_runner", "cancel_task", "wait"]


def words(**kwargs: Any) -> WordTTS:
    """A speech service that times its words. ``stalls`` makes it hang after so many words."""
    return WordTTS(MadeUpVoice(lead=kwargs.pop("lead", 0.04)), **kwargs)


def sentences(**kwargs: Any) -> SentenceTTS:
    """A speech service that speaks a sentence per request."""
    return SentenceTTS(MadeUpVoice(lead=kwargs.pop("lead", 0.04)), **kwargs)


# -- the script --------------------------------------------------------------------------------------
@dataclass
class Parts:
    """The processors of one call, by role."""

    mic: SimInput
    stt: ScriptedSTT
    user: LLMUserAggregator
    llm: LLMService[Any]
    tts: TTSService
    speaker: SimOutput
    assistant: LLMAssistantAggregator


def plain(parts: Parts) -> list[FrameProcessor]:
    """The usual order."""
    return [parts.mic, parts.stt, parts.user, parts.llm, parts.tts, parts.speaker, parts.assistant]


@dataclass
class Script:
    """What happens in a call, in seconds since the caller's line began.

    The turn is over 0.8 s after the VAD's stop (which is 0.2 s after the sound's), and 2 s after it when
    nothing was understood. Empty turns that cut the bot are not answered unless ``user`` says so.
    """

    said: Sequence[Said] = ()
    replies: dict[str, Reply] = field(default_factory=lambda: {"*": Reply("Fine.")})
    greeting: str | None = None
    at: Sequence[tuple[float, Callable[[Stage], Any]]] = ()
    until: float = 10.0
    #: length of the microphone's frames; phones send 20 ms, which takes five times as long
    frame: float = 0.1
    ends: Ends = "end"
    llm: Callable[[Script], LLMService[Any]] = lambda script: FakeLLM(script.replies, name="llm")
    tts: Callable[[], TTSService] = words
    speaker: Callable[[], SimOutput] = lambda: SimOutput(lead_ms=0)
    shape: Callable[[Parts], list[FrameProcessor]] = plain
    #: processors at the end of the pipeline
    extra: Sequence[FrameProcessor] = ()
    messages: Sequence[dict[str, Any]] = ({"role": "system", "content": "Be brief."},)
    tools: Sequence[Any] = ()
    #: fields of LLMUserAggregatorParams; ``vad_analyzer=None`` leaves turns to the transcripts
    user: dict[str, Any] = field(default_factory=dict)
    #: arguments of PipelineWorker
    worker: dict[str, Any] = field(default_factory=dict)
    tracing: bool = True


@dataclass
class Stage:
    """One running call."""

    script: Script
    parts: Parts
    context: LLMContext
    line: CallerLine
    worker: PipelineWorker
    runner: WorkerRunner
    began: float = 0.0
    running: asyncio.Task[None] | None = None
    finished: list[tuple[float, str]] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def llm(self) -> FakeLLM:
        assert isinstance(self.parts.llm, FakeLLM)
        return self.parts.llm

    def s(self, unix: float) -> float:
        """Unix seconds as seconds since the line began."""
        return round(unix - self.began, 4)

    def played(self) -> list[tuple[list[tuple[float, float]], bool]]:
        """What the speaker played: per utterance its ranges, and whether it was cut."""
        rate = self.parts.speaker.rate

        def span(run: Run) -> tuple[float, float]:
            return self.s(run.started_unix), self.s(run.started_unix + run.samples / rate)

        return [([span(run) for run in u.runs], u.interrupted) for u in self.parts.speaker.utterances]

    def texts(self) -> list[tuple[str, str]]:
        """The context as ``(role, text)``."""
        return [(str(m["role"]), str(m.get("content"))) for m in self.context.messages]  # type: ignore[union-attr]


def build(script: Script) -> Stage:
    """The real pipeline around the doubles; nothing runs yet."""
    line = quiet_line(script.frame)
    context = LLMContext(list(script.messages), tools=list(script.tools))  # type: ignore[arg-type]
    options: dict[str, Any] = {
        "vad_analyzer": EnergyVAD(),
        "user_turn_strategies": UserTurnStrategies(
            stop=[SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=0.8)]
        ),
        "user_turn_stop_timeout": 2.0,
        "empty_user_turn": None,
        **script.user,
    }
    user, assistant = LLMContextAggregatorPair(context, user_params=LLMUserAggregatorParams(**options))
    parts = Parts(
        mic=SimInput(line, name="mic"),
        stt=ScriptedSTT(name="stt"),
        user=user,
        llm=script.llm(script),
        tts=script.tts(),
        speaker=script.speaker(),
        assistant=assistant,
    )
    worker = PipelineWorker(
        Pipeline([*script.shape(parts), *script.extra]),
        params=PipelineParams(enable_metrics=True, enable_usage_metrics=True),
        enable_tracing=script.tracing,
        **{"enable_rtvi": False, **script.worker},
    )
    return Stage(script, parts, context, line, worker, WorkerRunner(handle_sigint=False))


async def play(script: Script, *, on_stage: Callable[[Stage], None] | None = None) -> Stage:
    """Run one call as scripted. Actions run in tasks of their own, as an application's code would."""
    stage = build(script)
    started = asyncio.Event()

    async def on_started(worker: PipelineWorker, frame: frames.Frame) -> None:
        started.set()

    async def on_finished(worker: PipelineWorker, frame: frames.Frame) -> None:
        stage.finished.append((time.time(), type(frame).__name__))

    stage.worker.add_event_handler("on_pipeline_started", on_started)
    stage.worker.add_event_handler("on_pipeline_finished", on_finished)
    if on_stage is not None:
        on_stage(stage)
    await stage.runner.add_workers(stage.worker)
    stage.running = asyncio.create_task(stage.runner.run())
    await started.wait()
    await stage.line.started.wait()
    assert stage.line.started_unix is not None
    stage.began = stage.line.started_unix
    for said in script.said:
        speak(stage, said)
    if script.greeting is not None:
        await stage.worker.queue_frame(frames.TTSSpeakFrame(script.greeting))
    acting = []
    for at, action in sorted(script.at, key=lambda pair: pair[0]):
        await asyncio.sleep(stage.began + at - time.time())
        result = action(stage)
        if isinstance(result, Awaitable):
            acting.append(asyncio.ensure_future(result))
    await asyncio.sleep(max(0.0, stage.began + script.until - time.time()))
    await end(stage, script.ends)
    await asyncio.gather(*acting)
    return stage


def speak(stage: Stage, said: Said) -> None:
    """Let the user make a sound, and speech-to-text hear it."""
    stage.line.speak(tone(said), stage.began + said.start)
    for at, text in said.interims:
        stage.parts.stt.say(stage.began + at, text, final=False)
    if said.text is not None:
        stage.parts.stt.say(stage.began + said.end + said.final_after, said.text, final=True)


async def end(stage: Stage, how: Ends) -> None:
    """End the call by one of the ways a call ends; returns when the runner is done."""
    worker, running = stage.worker, stage.running
    assert running is not None
    if how == "end":
        await worker.queue_frame(frames.EndFrame())
    elif how == "end_worker":
        await worker.queue_frame(frames.EndWorkerFrame(), FrameDirection.UPSTREAM)
    elif how == "stop":
        await worker.queue_frame(frames.StopFrame())
    elif how == "cancel":
        await worker.cancel(reason="scripted")
    elif how == "cancel_worker":
        await worker.queue_frame(frames.CancelWorkerFrame(), FrameDirection.UPSTREAM)
    elif how == "cancel_runner":
        await stage.runner.cancel(reason="scripted")
    elif how == "cancel_task":
        running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    if how == "stop":  # a stopped pipeline stays ready for another worker; here there is none
        for processor in every_processor(worker.pipeline):
            await processor.cleanup()


def every_processor(of: FrameProcessor) -> list[FrameProcessor]:
    """The processor's own processors, at any depth."""
    return [p for child in of.processors for p in (child, *every_processor(child))]


# -- actions -----------------------------------------------------------------------------------------
def say(text: str, **options: Any) -> Callable[[Stage], Any]:
    """Queue a `TTSSpeakFrame`."""

    def action(stage: Stage) -> Any:
        frame = frames.TTSSpeakFrame(
            text, **{name: value for name, value in options.items() if name != "interruptible"}
        )
        frame.interruptible = options.get("interruptible", True)
        return stage.worker.queue_frame(frame)

    return action


def push(frame: Callable[[Stage], frames.Frame]) -> Callable[[Stage], Any]:
    """Queue any frame, made when its time has come."""
    return lambda stage: stage.worker.queue_frame(frame(stage))


# -- what the framework did --------------------------------------------------------------------------
_IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_FACTS = (
    "text",
    "context_id",
    "pts",
    "start_secs",
    "stop_secs",
    "timestamp",
    "finalized",
    "result",
    "function_name",
    "append_to_context",
    "interruptible",
    "error",
)


class PushLog:
    """Everything the processors pushed, in order, with virtual times; ids of contexts renamed.

    Handlers are synchronous, so a line stands where the push was. The microphone's frames are a checksum at
    the end, audio of the bot a checksum each, what says when it was made is left out.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[str, str] = {}
        self._heard: dict[str, int] = {}

    def listen(self, stage: Stage) -> None:
        for processor in every_processor(stage.worker.pipeline):
            processor.add_event_handler("on_before_push_frame", self._on_push)

    async def _on_push(self, processor: FrameProcessor, frame: frames.Frame) -> None:
        if isinstance(frame, frames.MetricsFrame):
            return  # how long things took in real time
        name = re.sub(r"#\d+", "", processor.name)
        if isinstance(frame, frames.InputAudioRawFrame):
            self._heard[name] = zlib.crc32(frame.audio, self._heard.get(name, 0))
            return
        facts = {f: getattr(frame, f) for f in _FACTS if getattr(frame, f, None) is not None}
        if isinstance(facts.get("timestamp"), str):
            del facts["timestamp"]  # the wall's, not ours
        if isinstance(frame, frames.OutputAudioRawFrame):
            facts["audio"] = zlib.crc32(frame.audio)
        at = round((time.time() - EPOCH) * 1000, 1)
        line = f"{at} {name} {type(frame).__name__} {facts}"
        self.lines.append(_IDS.sub(lambda m: self._names.setdefault(m[0], f"#{len(self._names)}"), line))

    def settle(self, stage: Stage) -> list[str]:
        return [
            *self.lines,
            f"heard {sorted(self._heard.items())}",
            f"context {stage.texts()}",
            f"played {stage.played()} {[zlib.crc32(u.played()) for u in stage.parts.speaker.utterances]}",
        ]


# -- what is left of it ------------------------------------------------------------------------------
@dataclass
class Outcome:
    """One run: what the framework did."""

    stage: Stage
    log: list[str]
    spans: list[ReadableSpan]
    #: what Pipecat logged at warning level or above
    complaints: list[str]

    def pushed(self, processor: str, *types: str) -> list[tuple[float, str]]:
        """``(seconds, frame type)`` of what a processor pushed, by name; broadcasts twice."""
        found = []
        for line in self.log:
            at, name, kind, *_ = line.split(" ")
            if name.startswith(processor) and (not types or kind in types):
                found.append((float(at) / 1000, kind))
        return found

    def spans_named(self, name: str) -> list[ReadableSpan]:
        return sorted((s for s in self.spans if s.name == name), key=lambda s: s.start_time or 0)


def run_script(
    script: Callable[[], Script],
    *,
    on_stage: Callable[[Stage], None] | None = None,
    complaints: Sequence[str] = (),
) -> Outcome:
    """Run a script to its end in virtual time.

    The script is a function, because processors and strategies can only be made on the loop that runs them.
    ``complaints`` are beginnings of what Pipecat may log as a warning or error; anything else fails.
    """
    exporter, log = InMemorySpanExporter(), PushLog()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    messages: list[str] = []
    sink = logger.add(lambda m: messages.append(m.record["message"]), level="WARNING")

    def listen(stage: Stage) -> None:
        log.listen(stage)
        if on_stage is not None:
            on_stage(stage)

    async def main() -> Stage:
        return await play(script(), on_stage=listen)

    try:
        with mock.patch.object(trace, "get_tracer_provider", return_value=provider):
            stage = run_virtually(main)
    finally:
        logger.remove(sink)
    unexpected = [m for m in messages if not any(re.match(c, m) for c in complaints)]
    assert unexpected == [], unexpected
    return Outcome(stage, log.settle(stage), list(exporter.get_finished_spans()), messages)
