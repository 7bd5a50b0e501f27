# SPDX-License-Identifier: Apache-2.0
"""Which hooks of each framework fit the installed release, and what is lost without them; for `doctor`.

Each hook is its name, whether it would be active, and what is lost when it is not. A framework that cannot
be instrumented at all raises `ImportError` or `AttributeError`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any

Hook = tuple[str, bool, str]


def livekit_hooks(*, supported: bool) -> Iterator[Hook]:
    """LiveKit's: public ones always, private ones in supported releases."""
    from livekit.agents import AgentSession
    from livekit.agents.voice import agent_activity, io
    from livekit.agents.voice.recorder_io import RecorderIO

    from voicetrace.integrations.livekit.instrumentor import LLM_KEYWORDS
    from voicetrace.integrations.livekit.realtime import GENERATION_KEYWORDS
    from voicetrace.integrations.patches import takes_keywords

    yield "AgentSession.start", _has(AgentSession, "start"), "no call is captured"
    yield "AgentSession.say", _has(AgentSession, "say"), "texts of say() are missing"
    yield "AgentSession.generate_reply", _has(AgentSession, "generate_reply"), "typed input is numbered late"
    cleared = "what an application threw away joins the next message"
    yield "AgentSession.clear_user_turn", _has(AgentSession, "clear_user_turn"), cleared
    inference = getattr(agent_activity, "perform_llm_inference", None)
    fits = supported and takes_keywords(inference, LLM_KEYWORDS)
    yield "perform_llm_inference", fits, "a reply cut before its first sound has no text"
    task = getattr(agent_activity.AgentActivity, "_realtime_generation_task", None)
    fits = supported and takes_keywords(task, GENERATION_KEYWORDS)
    yield "_realtime_generation_task", fits, "messages of one realtime response are not told apart"
    sink = all(_has(io.AudioOutput, name) for name in ("capture_frame", "flush"))
    yield "AudioOutput.capture_frame", sink, "the agent's audio is not recorded"
    own = all(hasattr(RecorderIO, name) for name in ("recording_started_at", "output_path"))
    yield "RecorderIO.recording_started_at", own, "LiveKit's own recording is not in step, nor adopted"


def pipecat_hooks() -> Iterator[Hook]:
    """Pipecat's. All are public; a processor or service whose hook does not fit is not listened to."""
    from pipecat.pipeline.worker import PipelineWorker
    from pipecat.processors.frame_processor import FrameProcessor
    from pipecat.services.tts_service import TTSService
    from pipecat.utils.tracing.tracing_context import TracingContext

    from voicetrace.integrations.patches import takes_keywords

    class Service(TTSService):
        async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Any, None]:
            """Speak nothing."""
            yield None

    yield "PipelineWorker.run", _has(PipelineWorker, "run"), "PipecatInstrumentor follows no pipeline"
    walks = None not in (
        getattr(PipelineWorker, "pipeline", None),
        getattr(FrameProcessor, "processors", None),
    )
    yield "PipelineWorker.pipeline", walks, "no call is captured"
    inline = _inline_events(FrameProcessor())
    yield "on_before_push_frame", "on_before_push_frame" in inline, "no message is captured"
    for event in ("on_before_process_frame", "on_after_process_frame"):
        yield event, event in inline, "replies are not linked to the LLM calls that wrote them"
    events = getattr(Service(), "_event_handlers", {})
    yield "on_tts_request", "on_tts_request" in events, "texts that were not spoken to their end are missing"
    words = takes_keywords(getattr(TTSService, "add_word_timestamps", None), ("word_times", "context_id"))
    yield "add_word_timestamps", words, "no text is aligned to what was heard"
    conversation = _has(TracingContext, "get_conversation_context")
    yield "get_conversation_context", conversation, "calls have a span of ours beside Pipecat's own"


def _has(owner: Any, name: str) -> bool:
    return callable(getattr(owner, name, None))


def _inline_events(processor: Any) -> set[str]:
    """The events whose handlers run in the task that pushes the frame: later would be too late."""
    events = getattr(processor, "_event_handlers", {})
    return {name for name, handlers in events.items() if getattr(handlers, "is_sync", False)}
