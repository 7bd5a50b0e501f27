# SPDX-License-Identifier: Apache-2.0
"""A Pipecat bot whose calls are readable: one processor, anywhere in the pipeline.

Run it with Pipecat's own runner, ``python examples/wrap_pipecat.py``; then look at its calls with
``voicetrace inspect voicetrace-calls``. It needs the keys of its services, and
``pip install 'pipecat-ai[runner,webrtc,silero,deepgram,openai,cartesia]'``.
"""

import os
from typing import Any

from pipecat.frames.frames import TTSSpeakFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.workers.runner import WorkerRunner

import voicetrace
from voicetrace.integrations.pipecat import VoiceTraceProcessor


def services() -> tuple[Any, Any, Any, Any]:
    """Speech to text, the model, text to speech, and voice activity."""
    from pipecat.audio.vad.silero import SileroVADAnalyzer
    from pipecat.services.cartesia.tts import CartesiaTTSService
    from pipecat.services.deepgram.stt import DeepgramSTTService
    from pipecat.services.openai.llm import OpenAILLMService

    return (
        DeepgramSTTService(api_key=os.environ["DEEPGRAM_API_KEY"]),
        OpenAILLMService(api_key=os.environ["OPENAI_API_KEY"]),
        CartesiaTTSService(api_key=os.environ["CARTESIA_API_KEY"]),
        SileroVADAnalyzer(),
    )


async def run_bot(transport: Any) -> None:
    """One call."""
    voicetrace.configure(audio="both")  # recording is opt-in: ask the people who talk
    stt, llm, tts, vad = services()
    context = LLMContext([{"role": "system", "content": "You are a travel agent on the phone. Be brief."}])
    user, assistant = LLMContextAggregatorPair(context, user_params=LLMUserAggregatorParams(vad_analyzer=vad))
    worker = PipelineWorker(
        Pipeline(
            [
                transport.input(),
                stt,
                user,
                llm,
                tts,
                transport.output(),
                assistant,
                VoiceTraceProcessor(),  # the one line that is new
            ]
        ),
        enable_tracing=True,  # Pipecat's own spans, where a tracer provider is set; else voicetrace's
    )

    @transport.event_handler("on_client_connected")
    async def greet(*_: Any) -> None:
        await worker.queue_frame(TTSSpeakFrame("Hello, this is Northwind Travel. How can I help?"))

    @transport.event_handler("on_client_disconnected")
    async def hang_up(*_: Any) -> None:
        await worker.cancel(reason="the caller hung up")

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    await runner.run()


async def bot(arguments: Any) -> None:
    """What Pipecat's runner calls for each caller."""
    from pipecat.runner.utils import create_transport
    from pipecat.transports.base_transport import TransportParams

    def params() -> TransportParams:
        return TransportParams(audio_in_enabled=True, audio_out_enabled=True)

    await run_bot(await create_transport(arguments, {"webrtc": params}))


if __name__ == "__main__":
    from pipecat.runner.run import main

    main()
