# SPDX-License-Identifier: Apache-2.0
"""Run the demo call: a real `AgentSession`, in real time, with no room and no network.

`run_call` builds the session around the doubles of `voicetrace.demo.doubles_livekit` and the Silero VAD
that ships with livekit-agents, plays the scenario, and returns the `GroundTruth` of what truly happened:
from the samples and clocks of the doubles, not from what the framework reported.

``python -m voicetrace.demo.livekit_call`` runs the default scenario and prints truth and events.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from voicetrace.demo.director import Director, Hear
from voicetrace.demo.doubles_livekit import (
    RealtimeSpeaker,
    RecordedMic,
    RecordedTTS,
    ScriptedLLM,
    ScriptedSTT,
    TextSink,
)
from voicetrace.demo.line import Spoken
from voicetrace.demo.script import Scenario, load_clip, travel_call
from voicetrace.demo.truth import GroundTruth, LLMCall, agent_truth, caller_truth

# after the doubles, whose import error names the extra to install
from livekit.agents import Agent, AgentSession, RunContext, function_tool, inference  # isort: skip
from livekit.agents.voice import TranscriptSynchronizer  # isort: skip

TICK_S = 0.25


class DemoAgent(Agent):
    """The agent of the demo: greets by `say`, and has one tool."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(instructions="You are a travel agent on the phone. Be brief.", id="northwind")
        self.scenario = scenario

    async def on_enter(self) -> None:
        """Speak what the scenario wants said without the LLM, when it comes first."""
        first = self.scenario.agent[0]
        if first.source == "say":
            self.session.say(load_clip(first.clip).text)

    @function_tool
    async def get_weather(self, context: RunContext[None], city: str) -> str:
        """Look up the weather in a city.

        Args:
            context: The run this call belongs to.
            city: The city's name.
        """
        await asyncio.sleep(self.scenario.tool_ms / 1000)
        return self.scenario.tool_results["get_weather"]


@dataclass
class Stage:
    """The doubles of one call: who hears the caller, what plays, and every call the model got."""

    scenario: Scenario
    mic: RecordedMic
    speaker: RealtimeSpeaker
    hear: Hear
    llm_calls: Sequence[LLMCall]


async def run_call(
    scenario: Scenario | None = None,
    *,
    on_session: Callable[[AgentSession[None]], None] | None = None,
    on_tick: Callable[[float], None] | None = None,
    agent_cls: Callable[[Scenario], Agent] = DemoAgent,
) -> GroundTruth:
    """Run one call in real time and return its truth.

    ``on_session`` is called with the session before it starts; ``on_tick`` about four times a second with
    the seconds since the start. ``agent_cls`` makes the agent from the scenario.

    Raises:
        TimeoutError: the call was not over after ``scenario.limit_s``.
        RuntimeError: the agent spoke something else than the scenario says.
    """
    scenario = scenario or travel_call()
    stt, model = ScriptedSTT(), ScriptedLLM(scenario.replies)
    stage = Stage(scenario, RecordedMic(load_clip("room")), RealtimeSpeaker(), stt.hear, model.calls)
    # what each service and the network would decide is fixed here, so that nothing reaches for the cloud
    session: AgentSession[None] = AgentSession(
        stt=stt,
        llm=model,
        tts=RecordedTTS([load_clip(utterance.clip) for utterance in scenario.agent]),
        # lets go of speech at the threshold that took it: its default holds on about 15 ms longer
        vad=inference.VAD(model="silero", deactivation_threshold=0.5),
        turn_handling={
            "turn_detection": "vad",
            "endpointing": {"min_delay": scenario.endpointing_ms / 1000},
            "interruption": {
                "mode": "vad",
                "false_interruption_timeout": scenario.false_interruption_ms / 1000,
            },
        },
        use_tts_aligned_transcript=True,
        aec_warmup_duration=None,  # there is no echo in a wire
        session_close_transcript_timeout=0.3,  # at the end nothing is left to transcribe
    )
    return await play(stage, session, agent_cls(scenario), on_session=on_session, on_tick=on_tick)


async def play(
    stage: Stage,
    session: AgentSession[None],
    agent: Agent,
    *,
    on_session: Callable[[AgentSession[None]], None] | None = None,
    on_tick: Callable[[float], None] | None = None,
) -> GroundTruth:
    """Run the stage's scenario with this session, whose services are the stage's; see `run_call`."""
    scenario, speaker = stage.scenario, stage.speaker
    director = Director(scenario, stage.mic.line, stage.hear, speaker.segments)
    speaker.on_change = director.changed
    synchronizer = TranscriptSynchronizer(next_in_chain_audio=speaker, next_in_chain_text=TextSink())
    session.input.audio = stage.mic
    session.output.audio = synchronizer.audio_output
    session.output.transcription = synchronizer.text_output
    events = _EventLog()
    events.listen(session)
    if on_session is not None:
        on_session(session)

    started = time.time()
    ticker = asyncio.create_task(_tick(on_tick)) if on_tick is not None else None
    try:
        async with asyncio.timeout(scenario.limit_s):
            await session.start(agent)
            await director.direct()
    except TimeoutError:
        raise TimeoutError(
            f"the demo call was not over after {scenario.limit_s:g} s: it waited for {director.waiting_for}"
        ) from None
    finally:
        await session.aclose()
        await synchronizer.aclose()
        if ticker is not None:
            ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ticker
    return _truth(stage, director.spoken, events, started, time.time())


async def _tick(on_tick: Callable[[float], None]) -> None:
    started = time.monotonic()
    while True:
        on_tick(time.monotonic() - started)
        await asyncio.sleep(TICK_S)


class _EventLog:
    """What the framework announced, in order, as small dicts with ``at_unix`` and ``event``."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.items: list[dict[str, Any]] = []

    def add(self, event: str, at_unix: float | None = None, **facts: Any) -> None:
        self.events.append({"at_unix": at_unix or time.time(), "event": event, **facts})

    def listen(self, session: AgentSession[None]) -> None:
        session.on(
            "user_state_changed",
            lambda ev: self.add("user_state", ev.created_at, old=ev.old_state, new=ev.new_state),
        )
        session.on(
            "agent_state_changed",
            lambda ev: self.add("agent_state", ev.created_at, old=ev.old_state, new=ev.new_state),
        )
        session.on(
            "user_input_transcribed",
            lambda ev: self.add("transcribed", ev.created_at, text=ev.transcript, final=ev.is_final),
        )
        session.on(
            "speech_created",
            lambda ev: self.add("speech_created", id=ev.speech_handle.id, source=ev.source),
        )
        session.on("agent_false_interruption", lambda ev: self.add("false_interruption", resumed=ev.resumed))
        session.on(
            "function_tools_executed",
            lambda ev: self.add("tools_executed", names=[call.name for call in ev.function_calls]),
        )
        session.on("error", lambda ev: self.add("error", error=str(ev.error)))
        session.on("close", lambda ev: self.add("close", reason=ev.reason.value, error=str(ev.error or "")))
        session.on("conversation_item_added", self._item)

    def _item(self, ev: Any) -> None:
        item = ev.item
        if item.type != "message":
            self.add("item", id=item.id, type=item.type)
            return
        facts = {"id": item.id, "role": item.role, "text": item.text_content or ""}
        facts["interrupted"] = item.interrupted
        self.items.append(facts)
        self.add("item", type=item.type, **facts)


def _truth(
    stage: Stage, spoken: dict[str, Spoken], log: _EventLog, started: float, ended: float
) -> GroundTruth:
    scenario, segments = stage.scenario, stage.speaker.segments
    if len(segments) != len(scenario.agent):
        raise RuntimeError(f"the agent spoke {len(segments)} times, the scenario has {len(scenario.agent)}")
    assert stage.mic.started_unix is not None
    return GroundTruth(
        scenario=scenario.name,
        started_unix=started,
        ended_unix=ended,
        line_started_unix=stage.mic.started_unix,
        caller_rate=stage.mic.sample_rate,
        caller_samples=stage.mic.delivered(),
        caller=tuple(caller_truth(u, spoken[u.clip]) for u in scenario.caller),
        agent=tuple(
            agent_truth(u, load_clip(u.clip), segment, stage.llm_calls)
            for u, segment in zip(scenario.agent, segments, strict=True)
        ),
        llm_calls=tuple(stage.llm_calls),
        messages=scenario.messages(),
        items=tuple(log.items),
        framework_events=tuple(log.events),
    )


def main() -> int:
    """Run the default call and print the truth and the framework's events, as JSON lines."""
    print_truth(asyncio.run(run_call()))
    return 0


def print_truth(truth: GroundTruth) -> None:
    """Print the truth and the framework's events."""
    zero = truth.started_unix
    out = sys.stdout.write
    for event in truth.framework_events:
        at_unix, name = event["at_unix"], event["event"]
        facts = {key: value for key, value in event.items() if key not in ("at_unix", "event")}
        out(f"{at_unix - zero:7.3f} {name:18} {json.dumps(facts)}\n")
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
        out(f"llm {call.ordinal} {call.heard!r} -> {call.reply_text!r} {call.tool_calls}{done}\n")
    out(f"{truth.ended_unix - zero:.1f} s\n")


if __name__ == "__main__":
    sys.exit(main())
