# SPDX-License-Identifier: Apache-2.0
"""Pipecat's real OpenAI Realtime service against the server double: what the adapter has to live with."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("openai")

from pipecat.services.llm_service import FunctionCallParams
from realtime_doubles import Answer, Turn, run_realtime

LONG = "The forecast for tomorrow is sunny with light winds in the afternoon and rain at night"
ASK = Turn(2, 3, "what is the forecast")


def context(call: Any) -> list[tuple[str, str]]:
    return call.stage.texts()


def test_a_greeting_and_a_turn() -> None:
    call, server = run_realtime([ASK], {"*": Answer("Sunny.")}, until=6)
    assert context(call) == [
        ("assistant", "Hello there."),
        ("user", "what is the forecast"),
        ("assistant", "Sunny."),
    ]
    assert call.stage.played() == [([(0.3, 0.7)], False), ([(3.5, 3.7)], False)]
    # a response that the client asked for starts twice, one that the server's turn made starts once
    starts = call.pushed("llm", "LLMFullResponseStartFrame")
    assert [at for at, _ in starts] == [0.0, 0.3, 3.5]
    assert [at for at, _ in call.pushed("llm", "TTSStartedFrame")] == [0.3, 3.5]
    assert [s.name for s in sorted(call.spans, key=lambda s: s.start_time or 0) if "llm" in s.name] == [
        "llm_setup",
        "llm_request",
        "llm_response",
        "llm_response",
    ]
    assert server.items == {"user": ["item_u1"], "assistant": ["item_a1", "item_a2"]}
    assert server.audio_bytes > 0


def test_a_barge_in_after_all_audio_has_arrived_commits_text_that_nobody_heard() -> None:
    call, server = run_realtime(
        [ASK, Turn(6, 7, "stop please")], {ASK.text: Answer(LONG), "*": Answer("Okay.")}, until=9
    )
    assert call.stage.played() == [([(0.3, 0.7)], False), ([(3.5, 6.22)], True), ([(7.5, 7.7)], False)]
    ((at, event),) = [(at, e) for at, e in server.sent if e["type"] == "conversation.item.truncate"]
    assert (at, event["item_id"], event["audio_end_ms"]) == (6.2, "item_a2", 2700)
    assert [at for at, _ in call.pushed("LLMUserAggregator", "InterruptionFrame")] == [2.2, 2.2, 6.2, 6.2]
    heard = " ".join(LONG.split()[:14])  # 13.6 words of 200 ms
    assert context(call)[2] == ("assistant", heard)


def test_a_barge_in_while_the_answer_arrives_closes_it_twice() -> None:
    call, _ = run_realtime(
        [ASK, Turn(4.3, 5, "stop please")],
        {ASK.text: Answer(LONG, speedup=1.0), "*": Answer("Okay.")},
        until=7,
    )
    ends = [t for t, _ in call.pushed("llm", "LLMFullResponseEndFrame")]
    assert [t for t in ends if t > 1] == [4.5, 4.55, 5.55]
    assert call.stage.played()[1] == ([(3.5, 4.5)], True)


def test_a_barge_in_before_the_transcript_puts_the_answer_before_its_question() -> None:
    call, _ = run_realtime(
        [Turn(2, 3, "what is the forecast", transcript_after=2.5), Turn(4, 5, "stop please")],
        {ASK.text: Answer(LONG), "*": Answer("Okay.")},
        until=8,
    )
    roles = [role for role, _ in context(call)]
    assert roles[:3] == ["assistant", "assistant", "user"]


async def weather(params: FunctionCallParams, city: str) -> None:
    """Look up the weather.

    Args:
        params: The call.
        city: Where.
    """
    await params.result_callback("sunny")


def test_a_tool_call() -> None:
    call, server = run_realtime(
        [ASK],
        {ASK.text: Answer(tool=("weather", '{"city": "Paris"}')), "tool:weather": Answer("It is sunny.")},
        tools=[weather],
        until=7,
    )
    # the question is written after its answer's tool call, when its transcript has come
    assert [role for role, _ in context(call)] == ["assistant", "assistant", "tool", "user", "assistant"]
    assert context(call)[-1] == ("assistant", "It is sunny.")
    outputs = [e["item"] for _, e in server.sent if e["type"] == "conversation.item.create"]
    assert [item["output"] for item in outputs if item["type"] == "function_call_output"] == ['"sunny"']
