# SPDX-License-Identifier: Apache-2.0
"""Realtime calls of providers without item ids: the real Gemini Live service, and one that traces nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.genai")

from gemini_doubles import Message, complete, content, record_gemini, says, transcript
from google.genai.types import FunctionCall, LiveServerMessage, LiveServerToolCall
from pc_doubles import MadeUpVoice, Said
from pc_record import Outcome, check, said, spoke
from pipecat.services.llm_service import FunctionCallParams

LONG = "It is sunny today and tomorrow it will rain all day"
ASKED = "What is the forecast?"
# it warns that it tells of no turns, and the aggregator that it takes none of the transcripts
COMPLAINTS = ("llm is not emitting turn frames", "LLMUserAggregator#", "Received turn_complete without")

Play = Callable[..., Outcome]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Play a call with the agent's audio recorded, and check what holds for every call."""

    def play(messages: Sequence[Message], *, vad: bool = True, **changes: Any) -> Outcome:
        return check(record_gemini(messages, tmp_path / "calls", vad=vad, complaints=COMPLAINTS, **changes))

    return play


@pytest.fixture
def voice() -> MadeUpVoice:
    """Every word of a call sounds different."""
    return MadeUpVoice(lead=0.0)


def heard(name: str, seq: int, text: str, start: int, end: int, **changes: Any) -> dict[str, Any]:
    return said(name, seq, text, [(start, end)], text_source="realtime_input_transcript", **changes)


def answered(
    name: str, seq: int, text: str, start: int, end: int, step: str, **changes: Any
) -> dict[str, Any]:
    facts = {"text_source": "realtime_output_transcript", "produced_by_span_id": step}
    return spoke(name, seq, text, [(start, end)], **{**facts, **changes})


def test_turns_with_a_local_vad_end_with_the_first_of_the_reply(play: Play, voice: MadeUpVoice) -> None:
    call = play(
        [
            transcript(2.9, ASKED),
            *says(3.5, "It is sunny today", voice=voice),
            transcript(7.4, "Thanks."),
            *says(7.6, "Bye now", voice=voice),
        ],
        said=[Said(2, 3), Said(6, 7)],
        until=10,
    )
    assert call.named() == [
        heard("u1", 0, ASKED, 2000, 3000, end_of_turn_ms=3500, transcript_final_ms=2900),
        answered("a1", 1, "It is sunny today", 3500, 4300, "llm1"),
        heard("u2", 2, "Thanks.", 6000, 7000, end_of_turn_ms=7600, transcript_final_ms=7400),
        answered("a2", 3, "Bye now", 7600, 8000, "llm2"),
    ]
    assert call.steps() == [
        {"context": ["u1"], "output": ["a1"], "speculative": False},
        {"context": ["u1", "a1", "u2"], "output": ["a2"], "speculative": False},
    ]
    assert [s.name for s in call.call.llm_steps] == ["llm_response", "llm_response"]


def test_without_a_vad_nobody_knows_when_the_user_spoke(play: Play, voice: MadeUpVoice) -> None:
    call = play([transcript(2.9, ASKED), *says(3.5, "It is sunny today", voice=voice)], vad=False, until=6)
    unknown = {"start_ms": None, "end_ms": None, "timing_source": None}
    times = {"end_of_turn_ms": 3500, "transcript_final_ms": 2900}
    assert call.named() == [
        heard("u1", 0, ASKED, 0, 0, **unknown, **times),
        answered("a1", 1, "It is sunny today", 3500, 4300, "llm1"),
    ]


def test_sentences_that_come_after_the_reply_began_are_of_what_it_answers(
    play: Play, voice: MadeUpVoice
) -> None:
    call = play(
        [*says(3.5, LONG, voice=voice), transcript(4.0, ASKED), transcript(4.2, " In Paris.")],
        said=[Said(2, 3)],
        until=8,
    )
    assert call.named()[0] == heard(
        "u1", 0, f"{ASKED} In Paris.", 2000, 3000, end_of_turn_ms=3500, transcript_final_ms=4200
    )
    assert len(call.named()) == 2
    # the model had the audio in its context, whenever the text came
    assert call.steps()[0]["context"] == ["u1"]


def test_the_order_is_that_of_speech_when_the_answer_is_committed_first(
    play: Play, voice: MadeUpVoice
) -> None:
    call = play(
        [
            *says(3.5, LONG, voice=voice),
            transcript(5.2, ASKED),  # after the user cut the answer
            transcript(6.4, "Stop."),
            *says(7, "Okay", voice=voice),
        ],
        said=[Said(2, 3), Said(4.6, 5.5)],
        until=9,
    )
    assert call.stage.texts()[0][0] == "assistant"
    assert [(m["id"], m["text"]) for m in call.named()][:1] == [("u1", ASKED)]
    assert [m["id"] for m in call.named()] == ["u1", "a1", "u2", "a2"]
    assert call.named()[2]["text"] == "Stop."


def test_an_interruption_ends_the_response_that_will_never_complete(play: Play, voice: MadeUpVoice) -> None:
    call = play(
        [
            transcript(2.9, ASKED),
            *says(3.5, LONG, voice=voice, done=False)[:16],
            transcript(5.4, "Stop."),
            *says(7, "Okay", voice=voice),
        ],
        said=[Said(2, 3), Said(4.2, 5.5)],
        until=9,
    )
    cut = call.named()[1]
    assert (cut["state"], cut["committed"], cut["produced_by_span_id"]) == ("interrupted", True, "llm1")
    assert "provider_audio_end_ms" not in cut
    # the service opens no span for it, so it is ours
    assert [s.name for s in call.call.llm_steps] == ["voicetrace.llm_step", "llm_response"]
    # the context's own order: the cut answer was appended before the question it answers
    assert call.steps()[1] == {"context": ["a1", "u1", "u2"], "output": ["a2"], "speculative": False}


def test_an_interruption_by_the_server_cuts_the_answer(play: Play, voice: MadeUpVoice) -> None:
    call = play(
        [
            transcript(2.9, ASKED),
            *says(3.5, LONG, voice=voice),
            content(4.61, interrupted=True),
            transcript(5.4, "Stop."),
            *says(7, "Okay", voice=voice),
        ],
        vad=False,
        until=9,
    )
    assert [m["state"] for m in call.named()] == ["complete", "interrupted", "complete", "complete"]
    assert call.named()[1]["generated_text"] == LONG
    assert call.named()[1]["text"] == "It is sunny today and"
    assert call.named()[1]["interrupted_at_ms"] == 4620


def test_text_that_the_model_sends_before_its_audio_is_that_of_its_message(
    play: Play, voice: MadeUpVoice
) -> None:
    messages = says(3.5, "It is sunny today", voice=voice)
    early = [(3.2, m) for _, m in messages if m.server_content and m.server_content.output_transcription]
    rest = [m for m in messages if not (m[1].server_content and m[1].server_content.output_transcription)]
    call = play([transcript(2.9, ASKED), *early, *rest], said=[Said(2, 3)], until=6)
    assert call.named()[1] == answered("a1", 1, "It is sunny today", 3500, 4300, "llm1")
    assert call.named()[0]["end_of_turn_ms"] == 3200


async def weather(params: FunctionCallParams, city: str) -> None:
    """Look up the weather.

    Args:
        params: The call.
        city: Where.
    """
    await params.result_callback("sunny")


def test_a_tool_call_is_part_of_the_turn_that_it_is_made_in(play: Play, voice: MadeUpVoice) -> None:
    calls = [FunctionCall(id="call_1", name="weather", args={"city": "Paris"})]
    asks = (3.2, LiveServerMessage(tool_call=LiveServerToolCall(function_calls=calls)))
    call = play(
        [transcript(2.9, ASKED), asks, *says(3.5, "It is sunny", voice=voice)],
        said=[Said(2, 3)],
        tools=[weather],
        until=6,
    )
    assert [(m["id"], m["text"]) for m in call.named()] == [("u1", ASKED), ("a1", "It is sunny")]
    assert [s["output"] for s in call.steps()] == [["a1"]]
    assert call.named()[1]["produced_by_span_id"] == "llm1"


def test_a_turn_complete_that_comes_twice_or_for_nothing_makes_no_step(
    play: Play, voice: MadeUpVoice
) -> None:
    call = play(
        [transcript(2.9, ASKED), *says(3.5, "Yes", voice=voice), complete(3.7), complete(5)],
        said=[Said(2, 3)],
        until=6,
    )
    assert [m["id"] for m in call.named()] == ["u1", "a1"]
    assert len(call.call.llm_steps) == 1
