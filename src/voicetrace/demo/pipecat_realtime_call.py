# SPDX-License-Identifier: Apache-2.0
"""Run the demo call of Pipecat with a realtime model: the same caller, and a provider that takes turns.

`run_call` builds a real pipeline around `RecordedRealtimeService` and returns the `GroundTruth` of what truly
happened, as `voicetrace.demo.pipecat_call` does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from voicetrace.demo.doubles_pipecat import SimInput, SimOutput
from voicetrace.demo.doubles_pipecat_realtime import RecordedRealtimeServer, RecordedRealtimeService
from voicetrace.demo.line import CallerLine
from voicetrace.demo.pipecat_call import FrameLog, conduct, weather_tool
from voicetrace.demo.script import Scenario, load_clip, travel_call_realtime
from voicetrace.demo.truth import AgentTruth, GroundTruth, agent_truth, caller_truth

# after the doubles, whose import error names the extra to install
from pipecat.frames import frames  # isort: skip
from pipecat.pipeline.worker import PipelineWorker  # isort: skip
from pipecat.processors.aggregators.llm_context import LLMContext  # isort: skip
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair  # isort: skip
from pipecat.processors.frame_processor import FrameProcessor  # isort: skip


async def run_call(
    scenario: Scenario | None = None,
    *,
    pipeline_extra: Sequence[FrameProcessor] = (),
    on_worker: Callable[[PipelineWorker], None] | None = None,
    on_tick: Callable[[float], None] | None = None,
    tracing: bool = True,
) -> GroundTruth:
    """Run one call in real time and return its truth; see `voicetrace.demo.pipecat_call.run_call`."""
    scenario = scenario or travel_call_realtime()
    clips = [load_clip(utterance.clip) for utterance in scenario.agent]
    server = RecordedRealtimeServer(scenario.replies, clips, silence_ms=scenario.endpointing_ms)
    line = CallerLine(load_clip("room"), frame_s=0.02)
    speaker = SimOutput(sample_rate=clips[0].sample_rate)
    context = LLMContext(tools=[weather_tool(scenario)])
    user, assistant = LLMContextAggregatorPair(context)
    log = FrameLog()
    service = RecordedRealtimeService(server)
    started = time.time()
    spoken = await conduct(
        scenario,
        [SimInput(line), user, service, speaker, assistant, *pipeline_extra],
        line=line,
        speaker=speaker,
        hear=server.hear,
        opening=frames.LLMRunFrame(),
        log=log,
        on_worker=on_worker,
        on_tick=on_tick,
        tracing=tracing,
    )
    assert line.started_unix is not None
    cuts = iter(_last_of_each(server.truncations))
    agent: list[AgentTruth] = []
    for utterance, played in zip(scenario.agent, speaker.utterances, strict=True):
        clip = load_clip(utterance.clip)
        truth = agent_truth(utterance, clip, played, server.calls)
        agent.append(replace(truth, truncated_ms=next(cuts, None)) if truth.cut else truth)
    return GroundTruth(
        scenario=scenario.name,
        started_unix=started,
        ended_unix=time.time(),
        line_started_unix=line.started_unix,
        caller_rate=line.sample_rate,
        caller_samples=line.delivered(),
        caller=tuple(caller_truth(u, spoken[u.clip]) for u in scenario.caller),
        agent=tuple(agent),
        llm_calls=tuple(server.calls),
        messages=scenario.messages(),
        items=tuple(_item(item) for item in server.items),
        framework_events=tuple(log.events),
    )


def _last_of_each(truncations: Sequence[tuple[str, int]]) -> list[int]:
    """Where each message was cut, by what the provider was told last."""
    return list(dict(truncations).values())


def _item(item: dict[str, Any]) -> dict[str, Any]:
    return {"id": item["id"], "role": item.get("role", "tool"), "text": "", "tool_calls": []}


if __name__ == "__main__":
    asyncio.run(run_call())
