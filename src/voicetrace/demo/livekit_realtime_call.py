# SPDX-License-Identifier: Apache-2.0
"""Run the demo call with a realtime model: the same caller, and a provider that hears and speaks by itself.

`run_call` builds a real `AgentSession` around `RecordedRealtimeModel` and returns the `GroundTruth` of what
truly happened, as `voicetrace.demo.livekit_call` does.

``python -m voicetrace.demo.livekit_realtime_call`` runs the default scenario and prints truth and events.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace

from voicetrace.demo.doubles_livekit import RealtimeSpeaker, RecordedMic
from voicetrace.demo.livekit_call import DemoAgent, Stage, play, print_truth
from voicetrace.demo.script import Scenario, load_clip, travel_call_realtime
from voicetrace.demo.truth import GroundTruth

# after the doubles, whose import error names the extra to install
from livekit.agents import AgentSession  # isort: skip
from voicetrace.demo.doubles_livekit_realtime import RecordedRealtimeModel  # isort: skip


class RealtimeDemoAgent(DemoAgent):
    """The agent of the demo, which asks the model for its greeting."""

    async def on_enter(self) -> None:
        """Let the model greet."""
        self.session.generate_reply(instructions="Greet the caller.")


async def run_call(
    scenario: Scenario | None = None,
    *,
    on_session: Callable[[AgentSession[None]], None] | None = None,
    on_tick: Callable[[float], None] | None = None,
) -> GroundTruth:
    """Run one call in real time and return its truth; see `voicetrace.demo.livekit_call.run_call`."""
    scenario = scenario or travel_call_realtime()
    model = RecordedRealtimeModel(
        scenario.replies,
        [load_clip(utterance.clip) for utterance in scenario.agent],
        silence_ms=scenario.endpointing_ms,
    )
    stage = Stage(scenario, RecordedMic(load_clip("room")), RealtimeSpeaker(), model.hear, model.calls)
    session: AgentSession[None] = AgentSession(
        llm=model,
        vad=None,
        turn_handling={"turn_detection": "realtime_llm"},
        aec_warmup_duration=None,  # there is no echo in a wire
    )
    agent = RealtimeDemoAgent(scenario)
    truth = await play(stage, session, agent, on_session=on_session, on_tick=on_tick)
    cuts = iter(model.truncations)
    told = (replace(a, truncated_ms=next(cuts, (None, None))[1]) if a.cut else a for a in truth.agent)
    return replace(truth, agent=tuple(told))


def main() -> int:
    """Run the default call and print the truth and the framework's events, as JSON lines."""
    print_truth(asyncio.run(run_call()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
