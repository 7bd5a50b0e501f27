# SPDX-License-Identifier: Apache-2.0
"""The traps of livekit-agents (specs/livekit.md) that no other test is about, and the table of them all."""

from __future__ import annotations

import ast
import asyncio
import inspect
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from livekit.agents import Agent
from lk_doubles import Reply, Said, StubbornSpeaker
from lk_realtime import Answer, FakeRealtimeModel, Heard, Message, hears
from lk_script import EPOCH, Outcome, Script, Stage, check, run_script, said

ROOT = Path(__file__).parents[2]
LONG = "Once upon a time there was a very small robot that lived on a hill"


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., Outcome]:
    def play(script: Script, **kwargs: Any) -> Outcome:
        return check(run_script(script, tmp_path / "calls", configure={"audio": "agent"}, **kwargs))

    return play


# -- the table -------------------------------------------------------------------------------------------
def rows() -> dict[str, list[tuple[str, str]]]:
    """Trap -> the tests that the table of ``specs/livekit.md`` names, as (file, function)."""
    text = (ROOT / "specs" / "livekit.md").read_text(encoding="utf-8")
    table = text.partition("## Every trap and its test")[2]
    found: dict[str, list[tuple[str, str]]] = {}
    for trap, tests in re.findall(r"^\| (T\d+) \|.*\|([^|]*)\|$", table, re.MULTILINE):
        found[trap] = re.findall(r"`(\S+\.py)::(\w+)`", tests)
    return found


def test_every_trap_names_a_test_that_exists() -> None:
    table = rows()
    assert list(table) == [f"T{n}" for n in range(1, 32)]
    for trap, tests in table.items():
        assert tests, trap
        for file, name in tests:
            tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
            functions = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
            assert name in functions, f"{trap}: {file} has no {name}"


# -- handlers --------------------------------------------------------------------------------------------
def test_t2_t3_handlers_are_plain_functions_and_none_is_for_a_deprecated_event(
    play: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ours: dict[str, list[Any]] = {}

    class Counting(Agent):
        async def on_enter(self) -> None:
            for name, handlers in self.session._events.items():
                ours[name] = [h for h in handlers if "voicetrace" in getattr(h, "__module__", "")]

    with caplog.at_level(logging.WARNING, "livekit"):
        play(Script(agent=lambda: Counting(instructions="x", id="agent"), until=1))
    followed = {name for name, handlers in ours.items() if handlers}
    assert followed >= {"speech_created", "conversation_item_added", "close"}
    assert "metrics_collected" not in followed
    assert not any(inspect.iscoroutinefunction(h) for handlers in ours.values() for h in handlers)
    assert not [r for r in caplog.records if "deprecated" in r.getMessage()]


# -- user messages ---------------------------------------------------------------------------------------
class Hooked(Agent):
    seen: str = ""

    async def on_user_turn_completed(self, turn_ctx: Any, new_message: Any) -> None:
        Hooked.seen = new_message.id


def test_t6_the_id_is_the_committed_items_and_not_the_one_that_the_hook_saw(play: Any) -> None:
    call = play(
        Script(
            agent=lambda: Hooked(instructions="x", id="agent"),
            said=[Said(1, 2, "hello")],
            turn={"preemptive_generation": {"enabled": True}},
            until=6,
        )
    )
    user, agent = call.stage.session.history.messages()
    assert Hooked.seen not in ("", user.id)
    assert [m.id for m in call.call.messages] == [user.id, agent.id]
    assert call.steps()[0]["context"][-1] == "u1"


def test_t8_noise_long_before_a_turn_is_none_of_its_speech(play: Any) -> None:
    call = play(Script(said=[Said(1, 1.5), Said(6, 7, "hello")], until=10))
    item = next(i for i in call.stage.session.history.messages() if i.role == "user")
    assert item.metrics["started_speaking_at"] - EPOCH == pytest.approx(1.0)  # what the framework says
    noise, user = call.named()[:2]
    assert (noise["committed"], noise["start_ms"], noise["end_ms"]) == (False, 1000, 1500)
    assert user == said("u2", 1, "hello", [(6000, 7000)])


def rt(stage: Stage) -> Any:
    return stage.session.current_agent.realtime_llm_session


def test_t21_a_users_id_may_look_like_a_speechs(play: Any) -> None:
    heard = Heard(1, 2, "speech_of_the_user", "help me", Answer([Message("msg_1", "Sure I can")]))
    call = play(
        Script(
            at=hears(heard, rt),
            options={"llm": FakeRealtimeModel(), "stt": None, "tts": None, "vad": None},
            turn={"turn_detection": "realtime_llm"},
            until=6,
        )
    )
    assert [(m.id, m.role.value, m.text) for m in call.call.messages] == [
        ("speech_of_the_user", "user", "help me"),
        ("msg_1", "assistant", "Sure I can"),
    ]


def test_t26_the_last_words_are_waited_for_at_the_close(play: Any) -> None:
    call = play(
        Script(
            said=[Said(1, 2, "last words", final_after=0.6)],
            options={"session_close_transcript_timeout": 2.0},
            until=2.4,
        )
    )
    (user,) = call.named()
    assert (user["text"], user["committed"], user["transcript_final_ms"]) == ("last words", True, 2600)


# -- spans -----------------------------------------------------------------------------------------------
def test_t23_a_call_of_many_messages_is_one_attribute(play: Any) -> None:
    count = 70
    sounds = [Said(1 + 3 * n, 1.6 + 3 * n, f"number {n}") for n in range(count)]
    call = play(Script(said=sounds, replies={"*": Reply("Yes")}, until=3 * count + 3))
    assert len(call.call.messages) == 2 * count > 128  # the SDK's limit for attributes
    span = call.span("agent_session")
    ours = [name for name in span.attributes or {} if name.startswith("voice.")]
    assert len(ours) < 20
    assert span.dropped_attributes == 0


def test_t29_the_context_is_whole_where_livekit_records_only_what_is_new(play: Any) -> None:
    record = {"input_delta": True, "audio": False, "logs": False, "transcript": False, "traces": True}
    call = play(Script(said=[Said(1, 2, "one"), Said(5, 6, "two")], start={"record": record}, until=9))
    _, second = call.spans_named("llm_node")
    attributes = second.attributes or {}
    assert attributes["lk.input.delta"] is True
    assert call.steps()[1]["context"] == ["instructions", "other", "u1", "a1", "u2"]
    assert attributes["voice.context_message_count"] == 5


# -- playout ---------------------------------------------------------------------------------------------
class StuckSpeaker(StubbornSpeaker):
    """Says that a cut playback is over only after seven seconds."""

    def _finish(self, now: Any) -> None:
        if now.cut:
            asyncio.get_running_loop().call_later(7, super()._finish, now)
        else:
            super()._finish(now)


def test_t30_a_playback_that_ends_after_its_speech_was_given_up_is_still_its_own(play: Any) -> None:
    call = play(
        Script(
            speaker=StuckSpeaker,
            said=[Said(1, 2, "story"), Said(4, 5, "stop"), Said(12, 13, "again")],
            replies={"story": Reply(LONG), "stop": Reply("Okay then"), "again": Reply("Yes of course")},
            until=16,
        )
    )
    stuck, waited, last = (m for m in call.named() if m["role"] == "assistant")
    assert (stuck["state"], stuck["committed"], stuck["start_ms"], stuck["end_ms"]) == (
        "interrupted",
        False,
        2740,
        4500,
    )
    assert stuck["generated_text"] == LONG
    # the alignment lost count meanwhile: the text is what the voice was given, and says so
    assert (waited["text"], waited["text_source"], waited["state"]) == ("Okay then", "tts_input", "complete")
    assert (waited["start_ms"], waited["end_ms"]) == (11_500, 11_900)
    assert last["text"] == "Yes of course"
    assert (last["start_ms"], last["end_ms"]) == (13_740, 14_340)
