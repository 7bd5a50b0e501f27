# SPDX-License-Identifier: Apache-2.0
"""Realtime calls through the real OpenAI service, one trap of pipecat-capture.md, section 3, each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")

from pc_record import Outcome, check, said, spoke
from pipecat.services.openai.realtime import events
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from realtime_doubles import Answer, Turn, record_realtime
from test_pipecat_realtime_doubles import weather

LONG = "The forecast for tomorrow is sunny with light winds in the afternoon and rain at night"
ASK = Turn(2, 3, "what is the forecast")
STOP = Turn(6, 7, "stop please")

Play = Callable[..., Outcome]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Play a call with the agent's audio recorded, and check what holds for every call."""

    def play(turns: Sequence[Turn], answers: dict[str, Answer], **changes: Any) -> Outcome:
        warnings = changes.pop("warnings", ())
        call, play.server = record_realtime(turns, answers, tmp_path / "calls", **changes)  # type: ignore[attr-defined]
        return check(call, warnings=warnings)

    return play


def heard(name: str, seq: int, text: str | None, start: int, end: int, **changes: Any) -> dict[str, Any]:
    """A user message as the server double tells it: 200 ms late, transcribed 600 ms after its end."""
    facts = {
        "text_source": "realtime_input_transcript",
        "timing_source": "provider_events",
        "end_of_turn_ms": end + 200,
        "transcript_final_ms": end + 600,
    }
    return said(name, seq, text, [(start, end)], **{**facts, **changes})


def answered(
    name: str, seq: int, text: str, start: int, end: int, step: str, **changes: Any
) -> dict[str, Any]:
    """An answer as played; its text is never called aligned."""
    facts = {"text_source": "realtime_output_transcript", "produced_by_span_id": step}
    return spoke(name, seq, text, [(start, end)], **{**facts, **changes})


GREETED = answered("a1", 0, "Hello there.", 300, 700, "llm1")
ASKED = heard("u1", 1, ASK.text, 2000, 3000)


@pytest.mark.parametrize("tracing", [True, False])
def test_a_greeting_and_a_turn_with_the_providers_ms_and_ids(play: Play, tracing: bool) -> None:
    call = play([ASK], {"*": Answer("Sunny.")}, until=6, tracing=tracing)
    assert call.named() == [GREETED, ASKED, answered("a2", 2, "Sunny.", 3500, 3700, "llm2")]
    assert [m.id for m in call.call.messages] == ["item_a1", "item_u1", "item_a2"]
    assert call.steps() == [
        {"context": [], "output": ["a1"], "speculative": False},
        {"context": ["a1", "u1"], "output": ["a2"], "speculative": False},
    ]
    # the service's own spans where it makes them
    native = "llm_response" if tracing else "voicetrace.llm_step"
    assert [s.name for s in call.call.llm_steps] == [native, native]


def test_vt38_a_barge_in_is_cut_where_it_played_and_where_the_provider_was_told(play: Play) -> None:
    call = play([ASK, STOP], {ASK.text: Answer(LONG), "*": Answer("Okay.")}, until=9)
    words = LONG.split()
    assert call.named()[2:] == [
        answered(
            "a2",
            2,
            " ".join(words[:14]),  # 13.6 words played
            3500,
            6220,
            "llm2",
            state="interrupted",
            generated_text=LONG,
            interrupted_at_ms=6220,
            provider_audio_end_ms=2700,
        ),
        heard("u2", 3, STOP.text, 6000, 7000),
        answered("a3", 4, "Okay.", 7500, 7700, "llm3"),
    ]
    assert call.steps()[2]["context"] == ["a1", "u1", "a2", "u2"]


def test_a_transcript_that_runs_ahead_of_its_audio_is_never_called_aligned(play: Play) -> None:
    call = play([ASK, STOP], {ASK.text: Answer(LONG, ahead=5), "*": Answer("Okay.")}, until=9)
    cut = call.call.messages[2]
    assert (cut.state, cut.text_source) == ("interrupted", "realtime_output_transcript")
    assert len((cut.text or "").split()) > 14  # more than was heard, as its source says
    assert cut.generated_text is None or cut.generated_text == LONG


def test_a_response_that_is_ended_twice_is_one_message_and_one_step(play: Play) -> None:
    call = play(
        [ASK, Turn(4.3, 5, "stop please")],
        {ASK.text: Answer(LONG, speedup=1.0), "*": Answer("Okay.")},
        until=7,
    )
    assert [m["state"] for m in call.named()] == [
        "complete",
        "complete",
        "interrupted",
        "complete",
        "complete",
    ]
    assert len(call.call.llm_steps) == 3
    truncated = [e["audio_end_ms"] for _, e in play.server.sent if e["type"] == "conversation.item.truncate"]  # type: ignore[attr-defined]
    assert truncated == [1000, 0]  # audio that came between the two was another answer to the service
    assert call.named()[2]["provider_audio_end_ms"] == 0


def test_the_order_is_that_of_speech_also_when_the_context_has_the_answer_first(play: Play) -> None:
    call = play(
        [Turn(2, 3, ASK.text, transcript_after=2.5), Turn(4, 5, "stop please")],
        {ASK.text: Answer(LONG), "*": Answer("Okay.")},
        until=8,
    )
    assert [role for role, _ in call.stage.texts()] == ["assistant", "assistant", "user", "assistant"]
    roles = [(m["id"], m["text"]) for m in call.named() if m["role"] == "user"]
    assert roles == [("u1", ASK.text), ("u2", "stop please")]  # one message of the context
    assert [m["id"] for m in call.named()] == ["a1", "u1", "a2", "u2", "a3"]
    assert call.named()[1]["transcript_final_ms"] == 5500


def test_an_utterance_without_a_transcript_is_committed_without_text(play: Play) -> None:
    call = play(
        [Turn(2, 3, ASK.text, transcript_after=None), Turn(6, 7, "hello")], {"*": Answer("Sunny.")}, until=10
    )
    silent = heard("u1", 1, None, 2000, 3000, transcript_final_ms=None)
    assert call.named()[1] == silent
    assert call.named()[3] == heard("u2", 3, "hello", 6000, 7000)


def test_a_transcript_that_comes_twice_and_late_is_told_once(play: Play) -> None:
    def again(stage: Any) -> Any:
        event = events.parse_server_event(
            '{"type": "conversation.item.input_audio_transcription.completed", "event_id": "e", '
            '"item_id": "item_u1", "content_index": 0, "transcript": "what is the forecast"}'
        )
        return stage.parts.llm.handle_evt_input_audio_transcription_completed(event)

    call = play([ASK], {"*": Answer("Sunny.")}, until=8, at=_greet(again))
    assert call.named()[1] == ASKED
    assert len(call.named()) == 3


def _greet(later: Callable[[Any], Any]) -> list[tuple[float, Any]]:
    from pc_script import push
    from pipecat.frames import frames

    return [(0, push(lambda stage: frames.LLMRunFrame())), (6, later)]


def test_a_tool_call_is_a_step_of_its_own_with_the_providers_items_in_context(play: Play) -> None:
    call = play(
        [ASK],
        {ASK.text: Answer(tool=("weather", '{"city": "Paris"}')), "tool:weather": Answer("It is sunny.")},
        tools=[weather],
        until=7,
    )
    assert call.named() == [GREETED, ASKED, answered("a2", 2, "It is sunny.", 3800, 4400, "llm3")]
    assert call.steps() == [
        {"context": [], "output": ["a1"], "speculative": False},
        {"context": ["a1", "u1"], "output": [], "speculative": False},
        {"context": ["a1", "u1", "other", "other"], "output": ["a2"], "speculative": False},
    ]
    assert call.call.llm_steps[2].context_ids[2] == "item_call_1"


def test_a_service_whose_private_handlers_changed_tells_the_receipt(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = OpenAIRealtimeLLMService._handle_evt_speech_started

    async def renamed(self: Any, evt: Any, more: Any = None) -> None:
        await original(self, evt)

    monkeypatch.setattr(OpenAIRealtimeLLMService, "_handle_evt_speech_started", renamed)
    call = play([ASK], {"*": Answer("Sunny.")}, until=6)
    assert call.named()[1] == heard("u1", 1, ASK.text, 2200, 3200, timing_source="local_receipt") | {
        "end_of_turn_ms": 3200,
        "transcript_final_ms": 3600,
    }


def test_the_silence_that_the_server_waits_for_is_taken_off(play: Play) -> None:
    call = play(
        [ASK],
        {"*": Answer("Sunny.")},
        until=6,
        options={"configure": {"audio": "agent", "server_vad_silence_ms": 150}},
    )
    assert (call.named()[1]["start_ms"], call.named()[1]["end_ms"]) == (2000, 2850)


def test_the_service_is_left_as_it_was(play: Play) -> None:
    call = play([ASK], {"*": Answer("Sunny.")}, until=6)
    assert "send_client_event" not in vars(call.stage.parts.llm)
    assert "_handle_evt_speech_started" not in vars(call.stage.parts.llm)
