# SPDX-License-Identifier: Apache-2.0
"""The scripted provider of the realtime demo: what it answers, streams, and stops. On virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from livekit.agents import llm
from livekit.agents.types import TimedString
from lk_time import run_virtually

from voicetrace.demo.doubles_livekit_realtime import RecordedRealtimeModel, RecordedRealtimeSession
from voicetrace.demo.script import Reply, ToolCall, load_clip

BYE = load_clip("agent_bye")
REPLIES = (
    Reply(text=load_clip("agent_greeting").text),
    Reply(heard="Bye.", text=BYE.text),
    Reply(heard="Weather?", call=ToolCall("get_weather", "{}")),
    Reply(tool="get_weather", text=load_clip("agent_weather").text),
    Reply(unheard=True, text=load_clip("agent_pardon").text),
)


def model() -> RecordedRealtimeModel:
    clips = [load_clip(n) for n in ("agent_greeting", "agent_bye", "agent_weather", "agent_pardon")]
    return RecordedRealtimeModel(REPLIES, clips, silence_ms=500)


def asked(*texts: str, tool: str | None = None) -> tuple[llm.ChatContext, dict[str, str]]:
    """A context in which the caller said this, and perhaps a tool answered."""
    context, known = llm.ChatContext.empty(), {}
    for number, text in enumerate(texts):
        context.add_message(role="user", content=[], id=f"u{number}")
        known[f"u{number}"] = text
    if tool is not None:
        output = llm.FunctionCallOutput(name=tool, call_id="c", output="sunny", is_error=False)
        context.items.append(output)
    return context, known


@pytest.mark.parametrize(
    ("texts", "tool", "answer"),
    [
        ((), None, REPLIES[0]),
        (("Bye.",), None, REPLIES[1]),
        (("Weather?",), None, REPLIES[2]),
        (("Weather?",), "get_weather", REPLIES[3]),
        (("Bye.", ""), None, REPLIES[4]),
        (("Could you",), None, None),
    ],
)
def test_it_answers_the_newest_thing_it_heard(
    texts: tuple[str, ...], tool: str | None, answer: Reply | None
) -> None:
    assert model().reply_to(*asked(*texts, tool=tool)) == answer


def test_a_text_that_was_not_recorded_is_named() -> None:
    with pytest.raises(LookupError, match="no recorded speech for the text 'Well'"):
        model().clip("Well")


def connected(use: Callable[[RecordedRealtimeSession], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        session = model().session()
        assert isinstance(session, RecordedRealtimeSession)
        try:
            return await use(session)
        finally:
            await session.aclose()

    return run_virtually(main)


async def streamed(created: llm.GenerationCreatedEvent) -> tuple[list[str], np.ndarray]:
    async for message in created.message_stream:
        texts = [text async for text in message.text_stream]
        frames = [np.frombuffer(f.data, np.int16) async for f in message.audio_stream]
        return texts, np.concatenate(frames)
    return [], np.zeros(0, np.int16)


def test_an_answer_is_the_whole_recording_with_the_time_of_each_word() -> None:
    async def use(session: RecordedRealtimeSession) -> Any:
        await session.update_chat_ctx(asked("Bye.")[0])
        session._texts["u0"] = "Bye."
        return await streamed(await session.generate_reply())

    texts, samples = connected(use)
    assert "".join(texts) == BYE.text
    assert all(isinstance(text, TimedString) for text in texts)
    assert [round(t.start_time * BYE.sample_rate) for t in texts] == [w.start for w in BYE.words]
    assert np.array_equal(samples, BYE.samples)


def test_an_interrupted_answer_stops_and_is_unfinished() -> None:
    async def use(session: RecordedRealtimeSession) -> Any:
        created = await session.generate_reply()
        async for message in created.message_stream:
            async for _ in message.audio_stream:
                session.interrupt()
        return session._owner.calls

    (call,) = connected(use)
    assert not call.finished
    assert len(call.reply_text.split()) == 1


def test_a_tool_is_called_and_no_message_comes() -> None:
    async def use(session: RecordedRealtimeSession) -> Any:
        await session.update_chat_ctx(asked("Weather?")[0])
        session._texts["u0"] = "Weather?"
        created = await session.generate_reply()
        names = [call.name async for call in created.function_stream]
        return names, await streamed(created), session._owner.calls

    names, (texts, _), (call,) = connected(use)
    assert (names, texts, call.tool_calls, call.finished) == (["get_weather"], [], ["get_weather"], True)


def test_a_request_that_the_script_does_not_know_fails_as_a_providers_would() -> None:
    async def use(session: RecordedRealtimeSession) -> None:
        await session.update_chat_ctx(asked("Could you")[0])
        session._texts["u0"] = "Could you"
        with pytest.raises(llm.RealtimeError, match="no answer"):
            await session.generate_reply()

    connected(use)
