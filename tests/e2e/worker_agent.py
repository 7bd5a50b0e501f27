# SPDX-License-Identifier: Apache-2.0
"""A LiveKit worker whose jobs are traced by the one documented line; run by `worker.py`.

Everything but LiveKit's own parts is scripted: the recogniser hears one sentence whenever sound came, the
model answers it, and the voice is a tone.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import livekit_gateway  # noqa: F401  before any livekit import

from voicetrace import configure
from voicetrace.integrations.livekit import LiveKitInstrumentor

from livekit.agents import (  # isort: skip
    Agent,
    AgentSession,
    AutoSubscribe,
    JobContext,
    JobExecutorType,
    WorkerOptions,
    cli,
    inference,
)

sys.path.insert(0, str(Path(__file__).parent.parent / "livekit"))
sys.path.insert(0, str(Path(__file__).parent.parent))
import lk_doubles
from lk_doubles import FakeLLM, FakeSTT, FakeTTS, Reply

soft = lk_doubles.word_samples
lk_doubles.word_samples = lambda number: soft(number) * 100  # a telephone line does not carry the soft ones


async def entrypoint(ctx: JobContext) -> None:
    configure(directory=os.environ["E2E_CALLS"], audio="both")
    adopt = os.environ["E2E_ADOPT"] == "yes"
    # the documented line, at the start of the job's entry point
    LiveKitInstrumentor().instrument(adopt_recording=adopt)
    await ctx.connect(auto_subscribe=AutoSubscribe.AUDIO_ONLY)
    await ctx.wait_for_participant()
    session: AgentSession[None] = AgentSession(
        stt=FakeSTT([], time.time()),
        llm=FakeLLM({"*": Reply("Here is your answer")}),
        tts=FakeTTS(),
        vad=inference.VAD(model="silero"),
        turn_handling={
            "turn_detection": "vad",
            "interruption": {"mode": "vad"},
            "preemptive_generation": {"enabled": False},
        },
        session_close_transcript_timeout=0.3,
    )
    record = {"audio": adopt, "traces": False, "logs": False, "transcript": False}
    await session.start(Agent(instructions="Be brief.", id="agent"), room=ctx.room, record=record)
    await session.say("Welcome to the call")
    session.generate_reply(user_input="a typed question")
    await asyncio.sleep(0)


if __name__ == "__main__":
    cli.run_app(
        WorkerOptions(
            entrypoint_fnc=entrypoint,
            job_executor_type=JobExecutorType[os.environ["E2E_EXECUTOR"].upper()],
            num_idle_processes=1,
            port=int(os.environ["E2E_PORT"]),
        )
    )
