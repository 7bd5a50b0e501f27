# SPDX-License-Identifier: Apache-2.0
"""A realtime service that Pipecat does not trace, such as Nova Sonic or Ultravox: its steps are ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pc_doubles import MadeUpVoice, Said
from pc_record import Outcome, check, record, said, spoke
from pc_script import Script, Stage
from pipecat.frames import frames
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.llm_service import LLMService
from pipecat.services.settings import LLMSettings
from realtime_doubles import speech_to_speech

COMPLAINTS = ("LLMUserAggregator#", "llm is not emitting")


class Untraced(LLMService[Any]):
    """A model that hears and speaks; it pushes what the script says."""

    def __init__(self) -> None:
        fields = dict.fromkeys(
            ("system_instruction", "temperature", "max_tokens", "top_p", "top_k", "frequency_penalty")
        )
        more = dict.fromkeys(("presence_penalty", "seed", "user_turn_completion_config"))
        configured = LLMSettings(model="untraced", filter_incomplete_user_turns=False, **fields, **more)
        super().__init__(settings=configured, name="llm")
        self.voice = MadeUpVoice(lead=0.0)

    def service_metadata_frame(self) -> frames.LLMServiceMetadataFrame:
        return frames.LLMServiceMetadataFrame(service_name=self.name, is_realtime_service=True)

    async def process_frame(self, frame: frames.Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        await self.push_frame(frame, direction)

    async def do(self, kind: str) -> None:
        """Push one frame, as a provider's event makes it."""
        if kind == "transcript":
            frame = frames.TranscriptionFrame("what is new", "", "")
            await self.push_frame(frame, FrameDirection.UPSTREAM)
        elif kind == "start":
            await self.push_frame(frames.LLMFullResponseStartFrame())
        elif kind == "speak":
            await self.push_frame(frames.TTSStartedFrame())
        elif kind == "word":
            text = frames.LLMTextFrame("nothing ")
            text.append_to_context = False
            await self.push_frame(text)
            told = frames.TTSTextFrame("nothing ", "sentence")
            told.includes_inter_frame_spaces = True
            await self.push_frame(told)
            (word,) = self.voice.speak("", "nothing")
            await self.push_frame(frames.TTSAudioRawFrame(word.samples.tobytes(), 24_000, 1))
        elif kind == "stop":
            await self.push_frame(frames.TTSStoppedFrame())
        elif kind == "end":
            await self.push_frame(frames.LLMFullResponseEndFrame())
        elif kind == "interrupt":
            await self.broadcast_interruption()


def play(events: list[tuple[float, str]], directory: Path, **changes: Any) -> Outcome:
    def event(kind: str) -> Any:
        return lambda stage: _do(stage, kind)

    options = {
        "llm": lambda _: Untraced(),
        "messages": (),
        "shape": speech_to_speech,
        "at": [(at, event(kind)) for at, kind in events],
        "until": 7,
        **changes,
    }
    return record(lambda: Script(**options), directory, configure={"audio": "agent"}, complaints=COMPLAINTS)


def _do(stage: Stage, kind: str) -> Any:
    assert isinstance(stage.parts.llm, Untraced)
    return stage.parts.llm.do(kind)


@pytest.mark.parametrize("tracing", [True, False])
def test_an_untraced_service_has_steps_of_our_own(tmp_path: Path, tracing: bool) -> None:
    kinds = ("start", "speak", "word", "word", "stop", "end")
    events = [(2.9, "transcript"), *((3.5 + n / 100, kind) for n, kind in enumerate(kinds))]
    call = check(play(events, tmp_path / "calls", said=[Said(2, 3)], tracing=tracing))
    assert call.named() == [
        said(
            "u1",
            0,
            "what is new",
            [(2000, 3000)],
            text_source="realtime_input_transcript",
            end_of_turn_ms=3500,
            transcript_final_ms=2900,
        ),
        spoke(
            "a1",
            1,
            "nothing nothing",
            [(3520, 3920)],
            text_source="realtime_output_transcript",
            produced_by_span_id="llm1",
        ),
    ]
    assert call.steps() == [{"context": ["u1"], "output": ["a1"], "speculative": False}]
    (step,) = call.spans_named("voicetrace.llm_step")
    assert step.end_time is not None
    assert step.start_time is not None
    assert (step.end_time - step.start_time) // 10**6 == 50


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.sampled_from(["transcript", "start", "speak", "word", "stop", "end", "interrupt"]), max_size=14
    )
)
def test_events_in_any_order_break_nothing(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str]
) -> None:
    events = [(1 + n * 0.15, kind) for n, kind in enumerate(kinds)]
    call = play(events, tmp_path_factory.mktemp("hostile"), said=[Said(0.5, 1.5)], until=4)
    assert not call.live[0].guard.failures
    assert call.warnings == []
    assert call.call.ended
    made = {step.span_id: step.output_ids for step in call.call.llm_steps}
    for message in call.call.messages:
        assert message.text_source != "playout_aligned"
        if message.role == "assistant" and message.committed:
            assert message.id in made[message.produced_by_span_id or ""]
    for step in call.call.llm_steps:
        assert not set(step.output_ids) & set(step.context_ids)
