# SPDX-License-Identifier: Apache-2.0
"""Run the demo call: a real Pipecat pipeline, in real time, with no network.

`run_call` builds the pipeline around the doubles of `voicetrace.demo.doubles_pipecat` and the Silero VAD
that ships with Pipecat, plays the scenario, and returns the `GroundTruth` of what truly happened: from the
samples and clocks of the doubles, not from what the framework reported.

``python -m voicetrace.demo.pipecat_call [words|sentences]`` runs the default scenario and prints truth and
frames.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from voicetrace.demo.director import Director, Hear
from voicetrace.demo.doubles_pipecat import (
    RecordedVoice,
    ScriptedLLM,
    ScriptedSTT,
    SentenceTTS,
    SimInput,
    SimOutput,
    WordTTS,
)
from voicetrace.demo.line import CallerLine, Spoken
from voicetrace.demo.script import Scenario, load_clip, travel_call_without_resume
from voicetrace.demo.truth import GroundTruth, agent_truth, caller_truth

# after the doubles, whose import error names the extra to install
from pipecat.audio.vad.silero import SileroVADAnalyzer  # isort: skip
from pipecat.frames import frames  # isort: skip
from pipecat.observers.base_observer import BaseObserver, FramePushed  # isort: skip
from pipecat.pipeline.pipeline import Pipeline  # isort: skip
from pipecat.pipeline.worker import PipelineParams, PipelineWorker  # isort: skip
from pipecat.processors.aggregators.llm_context import LLMContext  # isort: skip
from pipecat.processors.aggregators.llm_response_universal import (  # isort: skip
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.processors.frame_processor import FrameProcessor  # isort: skip
from pipecat.services.llm_service import FunctionCallParams  # isort: skip
from pipecat.turns.user_stop import SpeechTimeoutUserTurnStopStrategy  # isort: skip
from pipecat.turns.user_turn_strategies import UserTurnStrategies  # isort: skip
from pipecat.workers.runner import WorkerRunner  # isort: skip

TICK_S = 0.25
_INSTRUCTIONS = "You are a travel agent on the phone. Be brief."


@dataclass
class _Stage:
    """The doubles of one call."""

    scenario: Scenario
    line: CallerLine
    stt: ScriptedSTT
    llm: ScriptedLLM
    tts: WordTTS | SentenceTTS
    speaker: SimOutput
    context: LLMContext


async def run_call(
    scenario: Scenario | None = None,
    *,
    pipeline_extra: Sequence[FrameProcessor] = (),
    on_worker: Callable[[PipelineWorker], None] | None = None,
    on_tick: Callable[[float], None] | None = None,
    tts: Literal["words", "sentences"] = "words",
    tracing: bool = True,
) -> GroundTruth:
    """Run one call in real time and return its truth.

    ``pipeline_extra`` ends the pipeline. ``on_worker`` is called with the worker before it starts;
    ``on_tick`` about four times a second with the seconds since the start. ``tts`` is the kind of speech
    service: one that times its words, or one that speaks a sentence per request. ``tracing`` turns on
    Pipecat's own spans.

    Raises:
        TimeoutError: the call was not over after ``scenario.limit_s``.
        RuntimeError: the agent spoke something else than the scenario says.
    """
    scenario = scenario or travel_call_without_resume()
    stage = _stage(scenario, tts)
    log = FrameLog()
    first = scenario.agent[0]
    started = time.time()
    spoken = await conduct(
        scenario,
        [*_processors(stage), *pipeline_extra],
        line=stage.line,
        speaker=stage.speaker,
        hear=stage.stt.hear,
        opening=frames.TTSSpeakFrame(load_clip(first.clip).text) if first.source == "say" else None,
        log=log,
        on_worker=on_worker,
        on_tick=on_tick,
        tracing=tracing,
    )
    return _truth(stage, spoken, log, started, time.time())


async def conduct(
    scenario: Scenario,
    processors: Sequence[FrameProcessor],
    *,
    line: CallerLine,
    speaker: SimOutput,
    hear: Hear,
    opening: frames.Frame | None,
    log: FrameLog,
    on_worker: Callable[[PipelineWorker], None] | None,
    on_tick: Callable[[float], None] | None,
    tracing: bool,
) -> dict[str, Spoken]:
    """Run the pipeline through the scenario, and say what the caller spoke, by clip.

    ``opening`` is queued first. Raises as `run_call` does.
    """
    director = Director(scenario, line, hear, speaker.utterances)
    speaker.on_change = director.changed
    worker = PipelineWorker(
        Pipeline(list(processors)),
        params=PipelineParams(
            audio_in_sample_rate=line.sample_rate,
            audio_out_sample_rate=speaker.rate,
            enable_metrics=True,
            enable_usage_metrics=True,
        ),
        enable_tracing=tracing,
        observers=[log],
    )
    if on_worker is not None:
        on_worker(worker)
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)

    running = asyncio.create_task(runner.run())
    ticker = asyncio.create_task(_tick(on_tick)) if on_tick is not None else None
    try:
        async with asyncio.timeout(scenario.limit_s):
            if opening is not None:
                await worker.queue_frame(opening)
            await director.direct()
            await worker.queue_frame(frames.EndFrame())
            await running
    except TimeoutError:
        raise TimeoutError(
            f"the demo call was not over after {scenario.limit_s:g} s: it waited for {director.waiting_for}"
        ) from None
    finally:
        if not running.done():
            await runner.cancel()
            await running
        if ticker is not None:
            ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ticker
    return director.spoken


def weather_tool(scenario: Scenario) -> Callable[..., Coroutine[Any, Any, None]]:
    """The tool of the scenario."""

    async def get_weather(params: FunctionCallParams, city: str) -> None:
        """Look up the weather in a city.

        Args:
            params: The call and the way to answer it.
            city: The city's name.
        """
        await asyncio.sleep(scenario.tool_ms / 1000)
        await params.result_callback(scenario.tool_results["get_weather"])

    return get_weather


def _stage(scenario: Scenario, tts: Literal["words", "sentences"]) -> _Stage:
    voice = RecordedVoice([load_clip(utterance.clip) for utterance in scenario.agent])

    return _Stage(
        scenario=scenario,
        line=CallerLine(load_clip("room"), frame_s=0.02),  # as phones and browsers send it
        stt=ScriptedSTT(),
        llm=ScriptedLLM(scenario.replies, system_instruction=_INSTRUCTIONS),
        tts=WordTTS(voice) if tts == "words" else SentenceTTS(voice),
        speaker=SimOutput(sample_rate=voice.sample_rate),
        context=LLMContext(tools=[weather_tool(scenario)]),
    )


def _processors(stage: _Stage) -> list[FrameProcessor]:
    vad = SileroVADAnalyzer()
    # both are counted from when the VAD says that speech stopped
    stop = SpeechTimeoutUserTurnStopStrategy(
        user_speech_timeout=stage.scenario.endpointing_ms / 1000 - vad.params.stop_secs
    )
    params = LLMUserAggregatorParams(
        vad_analyzer=vad,
        user_turn_strategies=UserTurnStrategies(stop=[stop]),
        user_turn_stop_timeout=stage.scenario.empty_turn_ms / 1000,
    )
    user, assistant = LLMContextAggregatorPair(stage.context, user_params=params)
    return [SimInput(stage.line), stage.stt, user, stage.llm, stage.tts, stage.speaker, assistant]


async def _tick(on_tick: Callable[[float], None]) -> None:
    started = time.monotonic()
    while True:
        on_tick(time.monotonic() - started)
        await asyncio.sleep(TICK_S)


#: what is worth a line of the log, with the fields that say something
_LOGGED: dict[type[frames.Frame], tuple[str, ...]] = {
    frames.VADUserStartedSpeakingFrame: ("start_secs", "timestamp"),
    frames.VADUserStoppedSpeakingFrame: ("stop_secs", "timestamp"),
    frames.UserStartedSpeakingFrame: (),
    frames.UserStoppedSpeakingFrame: (),
    frames.InterruptionFrame: (),
    frames.InterimTranscriptionFrame: ("text",),
    frames.TranscriptionFrame: ("text", "finalized"),
    frames.LLMContextFrame: (),
    frames.LLMContextUserTurnFrame: ("text",),
    frames.LLMContextAssistantTurnFrame: ("text",),
    frames.LLMContextAssistantTimestampFrame: (),
    frames.LLMFullResponseStartFrame: (),
    frames.LLMFullResponseEndFrame: (),
    frames.FunctionCallInProgressFrame: ("function_name",),
    frames.FunctionCallResultFrame: ("function_name", "result"),
    frames.TTSStartedFrame: ("context_id",),
    frames.TTSStoppedFrame: ("context_id",),
    frames.BotStartedSpeakingFrame: (),
    frames.BotStoppedSpeakingFrame: (),
    frames.ErrorFrame: ("error",),
    frames.StartFrame: (),
    frames.EndFrame: (),
}


class FrameLog(BaseObserver):
    """What the processors pushed for the first time, in order, as small dicts; a broadcast is one line.

    Frames that the speaker passes on when their time has come are logged again, from the speaker.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []
        self._seen: set[int] = set()

    async def on_push_frame(self, data: FramePushed) -> None:
        """Log one push."""
        frame, source = data.frame, data.source
        fields = _LOGGED.get(type(frame))
        spoken = isinstance(source, SimOutput) and isinstance(
            frame, frames.TTSStartedFrame | frames.TTSStoppedFrame
        )
        twin = frame.broadcast_sibling_id
        if fields is None or (not spoken and (frame.id in self._seen or twin in self._seen)):
            return
        self._seen.add(frame.id)
        origin_unix = (time.time_ns() - source.get_clock().get_time()) / 1e9
        facts = {name: getattr(frame, name) for name in fields}
        event = {"at_unix": origin_unix + data.timestamp / 1e9, "event": type(frame).__name__}
        self.events.append({**event, "source": type(source).__name__, **facts})


def _truth(
    stage: _Stage, spoken: dict[str, Spoken], log: FrameLog, started: float, ended: float
) -> GroundTruth:
    scenario, utterances = stage.scenario, stage.speaker.utterances
    if len(utterances) != len(scenario.agent):
        raise RuntimeError(f"the agent spoke {len(utterances)} times, the scenario has {len(scenario.agent)}")
    assert stage.line.started_unix is not None
    return GroundTruth(
        scenario=scenario.name,
        started_unix=started,
        ended_unix=ended,
        line_started_unix=stage.line.started_unix,
        caller_rate=stage.line.sample_rate,
        caller_samples=stage.line.delivered(),
        caller=tuple(caller_truth(u, spoken[u.clip]) for u in scenario.caller),
        agent=tuple(
            agent_truth(
                u,
                load_clip(u.clip),
                utterance,
                stage.llm.calls,
                generated_samples=stage.tts.sent.get(utterance.context_id or "", 0),
            )
            for u, utterance in zip(scenario.agent, utterances, strict=True)
        ),
        llm_calls=tuple(stage.llm.calls),
        messages=scenario.messages(),
        items=tuple(_item(stage, message) for message in stage.context.messages),
        framework_events=tuple(log.events),
        items_have_ids=False,
    )


def _item(stage: _Stage, message: Any) -> dict[str, Any]:
    """A message of the context as it is at the end, under the name that the LLM calls use for it."""
    return {
        "id": stage.llm.labels.label(message),
        "role": message["role"],
        "text": str(message.get("content") or ""),
        "tool_calls": [call["function"]["name"] for call in message.get("tool_calls") or ()],
    }


def main(tts: Literal["words", "sentences"] = "words") -> int:
    """Run the default call and print the truth and the framework's frames."""
    from loguru import logger

    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    truth = asyncio.run(run_call(tts=tts))
    zero = truth.started_unix
    out = sys.stdout.write
    for event in truth.framework_events:
        at_unix, name, source = event["at_unix"], event["event"], event["source"]
        facts = {key: value for key, value in event.items() if key not in ("at_unix", "event", "source")}
        if "timestamp" in facts:
            facts["timestamp"] = round(facts["timestamp"] - zero, 3)
        out(f"{at_unix - zero:7.3f} {source:24} {name:34} {json.dumps(facts)}\n")
    for caller in truth.caller:
        span = f"{caller.start_unix - zero:7.3f}-{caller.end_unix - zero:7.3f}"
        out(f"caller {span} {caller.clip} {caller.text!r}\n")
    for agent in truth.agent:
        runs = [
            (round(at - zero, 3), round(offset, 3), round(length, 3)) for at, offset, length in agent.runs
        ]
        out(f"agent  {agent.clip} llm_call={agent.llm_call} cut={agent.cut} runs={runs}\n")
        if agent.cut:
            out(f"       heard: {' '.join(agent.heard_words())}\n")
    for call in truth.llm_calls:
        done = "" if call.finished else " (cancelled)"
        seen = " ".join(call.context_item_ids)
        out(f"llm {call.ordinal} {seen} {call.heard!r} -> {call.reply_text!r} {call.tool_calls}{done}\n")
    for item in truth.items:
        out(f"context {json.dumps(item)}\n")
    out(f"{truth.ended_unix - zero:.1f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main("sentences" if "sentences" in sys.argv[1:] else "words"))
