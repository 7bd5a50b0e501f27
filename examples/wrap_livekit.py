# SPDX-License-Identifier: Apache-2.0
"""A LiveKit agent whose calls are readable: two lines, at the start of the job's entry point.

Run it as any LiveKit worker, ``python examples/wrap_livekit.py dev``; then look at its calls with
``voicetrace inspect voicetrace-calls``.
"""

from livekit.agents import Agent, AgentSession, JobContext, WorkerOptions, cli, inference

import voicetrace
from voicetrace.integrations.livekit import LiveKitInstrumentor


class TravelAgent(Agent):
    """The agent, as it was before."""

    def __init__(self) -> None:
        super().__init__(instructions="You are a travel agent on the phone. Be brief.")

    async def on_enter(self) -> None:
        """Greet the caller."""
        self.session.say("Hello, this is Northwind Travel. How can I help?")


async def entrypoint(ctx: JobContext) -> None:
    """One call. LiveKit runs each job in a process of its own, so this is where to instrument."""
    voicetrace.configure(audio="both")  # recording is opt-in: ask the people who talk
    LiveKitInstrumentor().instrument()

    session: AgentSession[None] = AgentSession(
        vad=inference.VAD(model="silero"),
        stt="deepgram/nova-3",
        llm="openai/gpt-4.1-mini",
        tts="cartesia/sonic-3",
    )
    await session.start(TravelAgent(), room=ctx.room)


if __name__ == "__main__":
    cli.run_app(WorkerOptions(entrypoint_fnc=entrypoint))
