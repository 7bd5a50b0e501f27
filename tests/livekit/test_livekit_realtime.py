# SPDX-License-Identifier: Apache-2.0
"""Realtime calls, one situation each: the whole record, the links, and the audio of each message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from livekit.agents import Agent, RunContext, function_tool
from livekit.agents.llm import ChatMessage, RemoteItemAddedEvent
from livekit.agents.types import NOT_GIVEN
from lk_doubles import FakeTTS, FakeVAD, Reply, Said
from lk_realtime import Answer, FakeRealtimeModel, FakeRealtimeSession, Heard, Message, hears
from lk_script import FrameworkLog, Outcome, Script, Stage, check, run_script, run_scripts, said, spoke
from lk_script import play as play_script

from voicetrace.guard import Guard
from voicetrace.integrations.livekit import instrumentor
from voicetrace.messages import Role, writer_problems

LONG = "Once upon a time there was a very small robot that lived on a hill"


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., Outcome]:
    def play(script: Script, *, warnings: tuple[str, ...] = (), **kwargs: Any) -> Outcome:
        kwargs["configure"] = {"audio": "agent", **kwargs.get("configure", {})}
        return check(run_script(script, tmp_path / "calls", **kwargs), warnings=warnings)

    return play


def rt(stage: Stage) -> FakeRealtimeSession:
    return stage.session.current_agent.realtime_llm_session  # type: ignore[return-value]


def script(
    heard: Sequence[Heard] = (),
    *,
    model: FakeRealtimeModel | None = None,
    at: Sequence[tuple[float, Any]] = (),
    options: dict[str, Any] | None = None,
    **changes: Any,
) -> Script:
    """A call with a realtime model: no recogniser, no voice, the provider takes turns."""
    actions = [action for one in heard for action in hears(one, rt)]
    own = {"stt": NOT_GIVEN, "tts": NOT_GIVEN, "vad": NOT_GIVEN, **(options or {})}
    return Script(
        at=[*actions, *at],
        options={"llm": model or FakeRealtimeModel(), **own},
        turn={"turn_detection": "realtime_llm"},
        **changes,
    )


def heard(
    name: str, seq: int, text: str | None, ranges: list[tuple[int, int]], **changes: Any
) -> dict[str, Any]:
    """A user message of a realtime call: bounds by receipt, answered 100 ms after the end was noticed."""
    end = ranges[-1][1]
    usual = {
        "text_source": "realtime_input_transcript",
        "timing_source": "local_receipt",
        "end_of_turn_ms": end + 100,
        "transcript_final_ms": end + 400,
    }
    return said(name, seq, text, ranges, **{**usual, **changes})


def test_a_turn_and_its_answer(play: Any) -> None:
    answer = Answer([Message("msg_1", "Sure I can help")])
    call = play(script([Heard(1, 2, "item_u1", "help me", answer)], until=6))
    assert call.named() == [
        heard("u1", 0, "help me", [(1000, 2500)]),
        spoke("a1", 1, "Sure I can help", [(2700, 3500)], produced_by_span_id="llm1"),
    ]
    assert [m.id for m in call.call.messages] == ["item_u1", "msg_1"]
    assert call.steps() == [{"context": ["u1"], "output": ["a1"], "speculative": False}]
    assert [s.name for s in call.call.llm_steps] == ["realtime_inference"]


def test_t20_a_response_does_not_have_its_own_output_in_context(play: Any) -> None:
    one = script(
        [
            Heard(1, 2, "item_u1", "help me", Answer([Message("msg_1", "Sure")], items_first=True)),
            Heard(4, 5, "item_u2", "more", Answer([Message("msg_2", "Yes")], items_first=True)),
        ],
        until=8,
    )
    call = play(one)
    assert [m["text"] for m in call.named()] == ["help me", "Sure", "more", "Yes"]
    assert [(s["context"], s["output"]) for s in call.steps()] == [
        (["u1"], ["a1"]),
        (["u1", "a1", "u2"], ["a2"]),
    ]


# -- the user ------------------------------------------------------------------------------------------
def test_the_silence_that_the_server_waits_is_taken_off_when_it_is_known(play: Any) -> None:
    answer = Answer([Message("msg_1", "Sure")])
    one = script([Heard(1, 2, "item_u1", "help me", answer)], until=5)
    call = play(one, configure={"server_vad_silence_ms": 500})
    assert call.named()[0] == heard(
        "u1", 0, "help me", [(1000, 2000)], end_of_turn_ms=2600, transcript_final_ms=2900
    )


def test_the_providers_own_ms_and_ids_are_used_where_its_events_are_seen(play: Any) -> None:
    # the microphone starts with the session; the provider counts the audio it was sent
    answer = Answer([Message("msg_1", "Sure")])
    one = script(
        [Heard(1.2, 2, "item_u1", "help me", answer, raw_ms=(900, 2100))],
        model=FakeRealtimeModel(raw=True),
        mic=True,
        until=5,
    )
    call = play(one, configure={"server_vad_silence_ms": 500})
    assert call.named()[0] == heard(
        "u1",
        0,
        "help me",
        [(900, 2100)],
        timing_source="provider_events",
        end_of_turn_ms=2600,
        transcript_final_ms=2900,
    )
    assert call.call.messages[0].id == "item_u1"


def test_provider_ms_follow_a_gap_in_the_audio_that_was_sent(play: Any) -> None:
    def mute(stage: Stage) -> None:
        rt(stage).deaf = True

    def unmute(stage: Stage) -> None:
        rt(stage).deaf = False

    def starts(stage: Stage) -> None:
        stage.notes["at"] = rt(stage).buffered_ms
        rt(stage).speech_started("item_u1", int(stage.notes["at"]) - 200)

    one = script(
        model=FakeRealtimeModel(raw=True),
        mic=True,
        at=[(1.05, mute), (4.05, unmute), (6.01, starts), (7.01, lambda s: rt(s).speech_stopped("item_u1"))],
        until=8,
    )
    call = play(one)
    (user,) = call.named()
    assert call.stage.notes["at"] < 4000  # three seconds were not sent
    assert abs(user["start_ms"] - 5800) <= 110
    # the end came without the provider's ms: its receipt counts
    assert user["end_ms"] == 7010


def test_provider_ms_that_cannot_be_placed_give_way_to_the_receipt(play: Any) -> None:
    one = script(
        [Heard(1, 2, "item_u1", "help me", raw_ms=(90_000, 95_000))],
        model=FakeRealtimeModel(raw=True),
        mic=True,
        until=8,
    )
    (user,) = play(one).named()
    assert (user["start_ms"], user["end_ms"], user["timing_source"]) == (1000, 2500, "local_receipt")


def test_an_explicit_vad_tells_the_bounds_and_the_provider_the_ids(play: Any) -> None:
    answer = Answer([Message("msg_1", "Sure")])
    sounds = [Said(1.1, 1.9)]
    one = script(
        [Heard(1.2, 1.9, "item_u1", "help me", answer)],
        options={"vad": FakeVAD(sounds, 1_700_000_000.0)},
        until=5,
        mic=True,
    )
    call = play(one)
    assert call.named()[0] == heard(
        "u1",
        0,
        "help me",
        [(1100, 1900)],
        timing_source="local_vad",
        end_of_turn_ms=2500,
        transcript_final_ms=2800,
    )


def test_vt22_a_turn_without_transcript_is_a_message_without_text(play: Any) -> None:
    one = script(
        [
            Heard(1, 2, "item_u1", None, Answer([Message("msg_1", "Sure")])),
            Heard(4, 5, "item_u2", "second", Answer([Message("msg_2", "Yes")])),
        ],
        until=8,
    )
    call = play(one)
    assert call.named() == [
        heard("u1", 0, None, [(1000, 2500)], transcript_final_ms=None),
        spoke("a1", 1, "Sure", [(2700, 2900)], produced_by_span_id="llm1"),
        heard("u2", 2, "second", [(4000, 5500)]),
        spoke("a2", 3, "Yes", [(5700, 5900)], produced_by_span_id="llm2"),
    ]
    assert call.steps() == [
        {"context": ["u1"], "output": ["a1"], "speculative": False},
        {"context": ["u1", "a1", "u2"], "output": ["a2"], "speculative": False},
    ]


def test_vt23_a_late_transcript_keeps_its_place_and_its_time(play: Any) -> None:
    one = script(
        [
            Heard(1, 2, "item_u1", "first", Answer([Message("msg_1", "Sure")]), transcribed=5),
            Heard(4, 5, "item_u2", "second", Answer([Message("msg_2", "Yes")])),
        ],
        until=9,
    )
    call = play(one)
    assert call.named()[0] == heard("u1", 0, "first", [(1000, 2500)], transcript_final_ms=7500)
    assert [m["text"] for m in call.named()] == ["first", "Sure", "second", "Yes"]


def test_a_transcript_that_is_told_twice_is_one_message(play: Any) -> None:
    answer = Answer([Message("msg_1", "Sure")])
    one = script(
        [Heard(1, 2, "item_u1", "help me", answer)],
        at=[(3.5, lambda stage: rt(stage).transcript("item_u1", "help me"))],
        until=6,
    )
    assert play(one).named()[0] == heard("u1", 0, "help me", [(1000, 2500)])


def test_two_utterances_before_one_response_keep_their_own_audio(play: Any) -> None:
    answer = Answer([Message("msg_1", "Both then")])
    one = script(
        [
            Heard(1, 1.5, "item_u1", "first", noticed=0.2),
            Heard(2, 2.5, "item_u2", "second", answer, noticed=0.2),
        ],
        until=6,
    )
    call = play(one)
    assert [(m["id"], m.get("start_ms"), m.get("end_ms"), m["text"]) for m in call.named()] == [
        ("u1", 1000, 1700, "first"),
        ("u2", 2000, 2700, "second"),
        ("a1", 2900, 3300, "Both then"),
    ]
    assert call.steps()[0]["context"] == ["u1", "u2"]


def test_a_provider_without_items_is_answered_under_our_own_id(play: Any) -> None:
    def start(stage: Stage) -> None:
        rt(stage).speech_started()

    def stop(stage: Stage) -> None:
        rt(stage).speech_stopped()

    one = script(
        model=FakeRealtimeModel(items=False),
        at=[
            (1, start),
            (2, stop),
            (
                2.2,
                lambda stage: (
                    rt(stage).respond(Answer([Message("msg_1", "Sure")], early_items=False)) and None
                ),
            ),
        ],
        until=5,
    )
    call = play(one)
    assert [m.id for m in call.call.messages] == ["vad_0", "msg_1"]
    assert call.named()[0] == heard(
        "u1", 0, None, [(1000, 2000)], end_of_turn_ms=2200, transcript_final_ms=None
    )
    assert call.steps() == [{"context": [], "output": ["a1"], "speculative": False}]


def test_a_greeting_that_was_asked_for_answers_nobody(play: Any) -> None:
    class Greeter(Agent):
        async def on_enter(self) -> None:
            self.session.generate_reply(instructions="Greet.")

    one = script(
        model=FakeRealtimeModel(
            [Answer([Message("msg_1", "Hello there")], after=1.5, early_items=False)], items=False
        ),
        agent=lambda: Greeter(instructions="x", id="agent"),
        at=[(0.2, lambda stage: rt(stage).speech_started()), (0.6, lambda stage: rt(stage).speech_stopped())],
        until=6,
    )
    call = play(one)
    user = next(m for m in call.named() if m["role"] == "user")
    assert (user["committed"], user.get("end_of_turn_ms")) == (False, None)


# -- responses -----------------------------------------------------------------------------------------
def test_vt01_a_cut_answer_keeps_what_was_heard_and_where_the_provider_was_told_to_cut(play: Any) -> None:
    one = script(
        [
            Heard(1, 2, "item_u1", "story", Answer([Message("msg_1", LONG)])),
            Heard(4, 5, "item_u2", "stop", Answer([Message("msg_2", "Okay")])),
        ],
        until=9,
    )
    call = play(one)
    assert call.named()[1] == spoke(
        "a1",
        1,
        "Once upon a time there",
        [(2700, 4000)],
        state="interrupted",
        interrupted_at_ms=4000,
        generated_text=LONG,
        provider_audio_end_ms=1300,
        produced_by_span_id="llm1",
    )
    assert call.named()[3]["text"] == "Okay"


def test_each_message_of_a_response_has_its_own_playout(play: Any) -> None:
    answer = Answer([Message("msg_1", "First of all"), Message("msg_2", "and then some")])
    one = script([Heard(1, 2, "item_u1", "go", answer)], until=7)
    call = play(one)
    assert call.named()[1:] == [
        spoke("a1", 1, "First of all", [(2700, 3300)], produced_by_span_id="llm1"),
        spoke("a2", 2, "and then some", [(3300, 3900)], produced_by_span_id="llm1"),
    ]
    assert call.steps() == [{"context": ["u1"], "output": ["a1", "a2"], "speculative": False}]
    span = call.span("realtime_inference")
    assert (span.attributes or {})["voice.output_message_ids"] == ["msg_1", "msg_2"]


def test_the_second_message_of_a_response_may_be_the_one_that_is_cut(play: Any) -> None:
    answer = Answer([Message("msg_1", "First of all"), Message("msg_2", LONG)])
    one = script([Heard(1, 2, "item_u1", "go", answer), Heard(4, 5, "item_u2", "stop")], until=9)
    call = play(one)
    first, second = call.named()[1:3]
    assert (first["state"], first["text"]) == ("complete", "First of all")
    assert (second["state"], second["interrupted_at_ms"], second["provider_audio_end_ms"]) == (
        "interrupted",
        4000,
        700,
    )


def test_a_response_that_is_cancelled_before_its_first_sound_is_unplayed(play: Any) -> None:
    answer = Answer([Message("msg_1", "Never to be heard", first=0.05)])

    def interrupt(stage: Stage) -> None:
        rt(stage).respond(answer)
        rt(stage).speech_started("item_u2")

    one = script(
        [Heard(1, 2, "item_u1", "go")],
        at=[(2.6, interrupt), (4, lambda stage: rt(stage).speech_stopped("item_u2"))],
        until=8,
    )
    call = play(one)
    agents = [m for m in call.named() if m["role"] == "assistant"]
    assert all(m["state"] == "unplayed" and not m["selections"] for m in agents)
    assert call.steps()[0]["output"] == []


class Tooled(Agent):
    def __init__(self) -> None:
        super().__init__(instructions="Be brief.", id="agent")

    @function_tool
    async def weather(self, context: RunContext[None], city: str) -> str:
        """Look up the weather.

        Args:
            context: The run.
            city: Where.
        """
        await asyncio.sleep(0.3)
        return "sunny"


def test_t31_a_tools_answer_is_another_step_of_the_same_handle(play: Any) -> None:
    model = FakeRealtimeModel([Answer([Message("msg_2", "It is sunny")])])
    asks = Answer([Message("msg_1", "Let me look")], tool=("weather", '{"city": "Paris"}'))
    one = script([Heard(1, 2, "item_u1", "weather?", asks)], model=model, agent=Tooled, until=8)
    call = play(one)
    assert [(m["id"], m["text"], m.get("produced_by_span_id")) for m in call.named()] == [
        ("u1", "weather?", None),
        ("a1", "Let me look", "llm1"),
        ("a2", "It is sunny", "llm2"),
    ]
    assert [s["output"] for s in call.steps()] == [["a1"], ["a2"]]
    assert call.steps()[1]["context"][:2] == ["u1", "a1"]


def test_a_response_of_a_tool_alone_writes_nothing(play: Any) -> None:
    model = FakeRealtimeModel([Answer([Message("msg_2", "It is sunny")])])
    asks = Answer(tool=("weather", '{"city": "Paris"}'))
    one = script([Heard(1, 2, "item_u1", "weather?", asks)], model=model, agent=Tooled, until=8)
    call = play(one)
    assert [(m["id"], m["seq"]) for m in call.named()] == [("u1", 0), ("a1", 2)]
    assert [s["output"] for s in call.steps()] == [[], ["a1"]]


def test_a_provider_that_answers_its_tools_by_itself(play: Any) -> None:
    asks = Answer(tool=("weather", '{"city": "Paris"}'))
    one = script(
        [Heard(1, 2, "item_u1", "weather?", asks)],
        model=FakeRealtimeModel(auto_tool_reply_generation=True),
        agent=Tooled,
        at=[(3.5, lambda stage: rt(stage).respond(Answer([Message("msg_2", "Sunny")])) and None)],
        until=8,
    )
    call = play(one)
    assert [(m["id"], m["text"]) for m in call.named()] == [("u1", "weather?"), ("a1", "Sunny")]
    assert [s["output"] for s in call.steps()] == [[], ["a1"]]


def test_typed_input_comes_before_its_answer(play: Any) -> None:
    one = script(
        model=FakeRealtimeModel([Answer([Message("msg_1", "Read you")])]),
        at=[(0.5, lambda stage: stage.session.generate_reply(user_input="typed one") and None)],
        until=4,
    )
    call = play(one)
    assert call.named() == [
        said("u1", 0, "typed one", [], text_source="text_input"),
        spoke("a1", 1, "Read you", [(700, 1100)], produced_by_span_id="llm1"),
    ]
    assert call.steps() == [{"context": ["u1"], "output": ["a1"], "speculative": False}]


def test_typed_input_is_never_taken_for_speech_that_waits_for_its_item(play: Any) -> None:
    one = script(
        [Heard(1, 2, "item_u1", "spoken", Answer([Message("msg_2", "Heard you")]))],
        model=FakeRealtimeModel([Answer([Message("msg_1", "Read you")])]),
        at=[(0.9, lambda stage: stage.session.generate_reply(user_input="typed") and None)],
        until=6,
    )
    call = play(one)
    users = {m["text"]: m for m in call.named() if m["role"] == "user"}
    assert users["typed"]["text_source"] == "text_input"
    assert "start_ms" not in users["typed"]
    assert users["spoken"]["start_ms"] == 1000


def test_text_that_the_application_pushes_is_no_message_of_the_caller(play: Any) -> None:
    async def push(stage: Stage) -> None:
        agent = stage.session.current_agent
        context = agent.chat_ctx.copy()
        context.add_message(role="user", content="(the caller is premium)", id="pushed")
        await agent.update_chat_ctx(context)

    answer = Answer([Message("msg_1", "Sure")])
    one = script([Heard(1, 2, "item_u1", "help me", answer)], at=[(1.5, push)], until=5)
    call = play(one)
    assert [m.id for m in call.call.messages] == ["item_u1", "msg_1"]
    assert call.call.messages[0].start_ms == 1000
    assert set(call.call.llm_steps[0].context_ids) == {"pushed", "item_u1"}


def test_say_on_a_realtime_model_is_spoken_by_the_provider(play: Any) -> None:
    one = script(
        model=FakeRealtimeModel(supports_say=True),
        at=[(0.5, lambda stage: stage.session.say("a greeting for you") and None)],
        until=4,
    )
    call = play(one)
    assert call.named() == [spoke("a1", 0, "a greeting for you", [(700, 1500)], produced_by_span_id="llm1")]


def test_say_with_a_voice_beside_a_realtime_model(play: Any) -> None:
    one = script(
        options={"tts": FakeTTS()},
        at=[(0.5, lambda stage: stage.session.say("a greeting") and None)],
        until=4,
    )
    assert play(one).named() == [spoke("a1", 0, "a greeting", [(600, 1000)])]


def test_a_model_that_only_writes_is_spoken_by_the_applications_voice(play: Any) -> None:
    answer = Answer([Message("msg_1", "Only text here", modalities=("text",))])
    one = script(
        [Heard(1, 2, "item_u1", "go", answer)],
        model=FakeRealtimeModel(audio_output=False),
        options={"tts": FakeTTS()},
        synced=False,
        until=6,
    )
    agent = play(one).named()[1]
    assert (agent["text"], agent["text_source"], agent["state"]) == (
        "Only text here",
        "tts_input",
        "complete",
    )


def test_without_alignment_the_text_is_the_providers_transcript(play: Any) -> None:
    answer = Answer([Message("msg_1", "Sure I can")])
    one = script([Heard(1, 2, "item_u1", "go", answer)], synced=False, until=6)
    agent = play(one).named()[1]
    assert (agent["text"], agent["text_source"]) == ("Sure I can", "realtime_output_transcript")


def test_a_hang_up_in_mid_answer(play: Any) -> None:
    answer = Answer([Message("msg_1", LONG)])
    one = script([Heard(1, 2, "item_u1", "story", answer)], until=4)
    agent = play(one).named()[1]
    assert (agent["state"], agent["interrupted_at_ms"], agent["text"]) == (
        "interrupted",
        4000,
        "Once upon a time there",
    )


# -- hand-offs -----------------------------------------------------------------------------------------
def change_agent(agent: Agent) -> Callable[[Stage], None]:
    return lambda stage: stage.session.update_agent(agent)


def test_a_call_passes_from_a_cascaded_agent_to_a_realtime_one_and_back(play: Any) -> None:
    model = FakeRealtimeModel()
    answer = Answer([Message("msg_1", "Now by voice")])
    call = play(
        Script(
            said=[Said(1, 2, "one"), Said(11, 12, "three")],
            replies={"one": Reply("First"), "three": Reply("Third")},
            at=[
                (
                    5,
                    change_agent(Agent(instructions="x", id="live", llm=model, vad=None, stt=None, tts=None)),
                ),
                *hears(Heard(6, 7, "item_u2", "two", answer), rt),
                (10, change_agent(Agent(instructions="y", id="after"))),
            ],
            until=15,
        )
    )
    assert [(m["id"], m["text"], m.get("timing_source")) for m in call.named()] == [
        ("u1", "one", "local_vad"),
        ("a1", "First", "local_playout"),
        ("u2", "two", "local_receipt"),
        ("a2", "Now by voice", "local_playout"),
        ("u3", "three", "local_vad"),
        ("a3", "Third", "local_playout"),
    ]
    assert [s.name for s in call.call.llm_steps] == ["llm_node", "realtime_inference", "llm_node"]
    assert [s["output"] for s in call.steps()] == [["a1"], ["a2"], ["a3"]]
    assert _left_behind(model) == []


def test_speech_during_a_handoff_from_realtime_ends_with_it(play: Any) -> None:
    one = script(
        [],
        at=[
            (1, lambda stage: rt(stage).speech_started()),
            (2, change_agent(Agent(instructions="y", id="next", llm=FakeRealtimeModel()))),
            (3, lambda stage: rt(stage).speech_started()),
            (4, lambda stage: rt(stage).speech_stopped()),
            (4.01, lambda stage: rt(stage).user_item("item_u2")),
            (4.2, lambda stage: rt(stage).respond(Answer([Message("msg_1", "Yes")])) and None),
        ],
        until=8,
    )
    users = [m for m in play(one).named() if m["role"] == "user"]
    assert users[-1]["end_ms"] == 4000
    assert users[0]["start_ms"] == 1000


def live(model: FakeRealtimeModel) -> Agent:
    return Agent(instructions="x", id="live", llm=model, vad=None, stt=None, tts=None)


def test_speech_during_a_handoff_to_realtime_is_the_providers_item(play: Any) -> None:
    answer = Answer([Message("msg_1", "Sure I can")])
    call = play(
        Script(
            said=[Said(1, 3, "please help me")],
            at=[
                (2, change_agent(live(FakeRealtimeModel()))),
                *hears(Heard(2.3, 3, "item_u1", "help me", answer), rt),
            ],
            until=8,
        )
    )
    user, agent = call.named()
    assert (user["text"], user["start_ms"], user["end_ms"]) == ("help me", 1000, 3500)
    assert call.call.messages[0].id == "item_u1"
    assert (agent["text"], agent["produced_by_span_id"]) == ("Sure I can", "llm1")


def test_speech_during_a_handoff_from_realtime_to_a_pipeline_ends_when_the_vad_says_so(play: Any) -> None:
    call = play(
        Script(
            said=[Said(1, 3, "please help me")],
            agent=lambda: live(FakeRealtimeModel()),
            at=[
                (1, lambda stage: rt(stage).speech_started()),
                (2, change_agent(Agent(instructions="y", id="after"))),
            ],
            until=8,
        )
    )
    user, agent = call.named()
    assert (user["text"], user["start_ms"], user["end_ms"]) == ("please help me", 1000, 3000)
    assert (agent["text"], agent["start_ms"]) == ("Fine.", 3720)


# -- what is left behind, and what fails ---------------------------------------------------------------
def _left_behind(model: FakeRealtimeModel) -> list[str]:
    left = [f"{name} of the model" for name in vars(model) if name == "session"]
    for session in model.sessions:
        left += [f"{name} of a session" for name in vars(session) if name == "truncate"]
        left += [
            f"a handler of {event}"
            for event, handlers in session._events.items()
            for handler in handlers
            if "voicetrace" in getattr(handler, "__module__", "")
        ]
    return left


def rich(model: FakeRealtimeModel) -> Script:
    two = Answer([Message("msg_1", "First of all"), Message("msg_2", LONG)])
    asks = Answer([Message("msg_3", "Let me look")], tool=("weather", '{"city": "Paris"}'))
    return script(
        [
            Heard(1, 2, "item_u1", "go", two, raw_ms=(900, 2400)),
            Heard(4, 5, "item_u2", "stop", raw_ms=(3900, 5400)),
            Heard(7, 8, "item_u3", "weather?", asks, raw_ms=(6900, 8400)),
        ],
        model=model,
        agent=Tooled,
        mic=True,
        at=[(12, lambda stage: stage.session.generate_reply(user_input="typed") and None)],
        until=15,
    )


def rich_model() -> FakeRealtimeModel:
    answers = [Answer([Message("msg_4", "It is sunny")]), Answer([Message("msg_5", "Read you")])]
    return FakeRealtimeModel(answers, raw=True)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return run_script(rich(rich_model()), tmp_path_factory.mktemp("untouched"), instrument=False).log


def test_an_instrumented_realtime_call_is_the_same_call(play: Any, untouched: list[str]) -> None:
    model = rich_model()
    call = play(rich(model), configure={"audio": "both"})
    assert call.log == untouched
    assert [m["text"] for m in call.named() if m["committed"]][-1] == "Read you"
    assert _left_behind(model) == []


HOOKS = [
    "generation_created",
    "input_speech_started",
    "input_speech_stopped",
    "openai_client_event_queued",
    "openai_server_event_received",
    "realtime_generation",
    "realtime_message",
    "realtime_playout",
    "realtime_session",
    "realtime_text",
    "remote_item_added",
    "truncate",
]


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_fails_every_time_changes_nothing(
    untouched: list[str], tmp_path: Path, hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrap = Guard.wrap
    failed = []

    def fail(*args: Any, **kwargs: Any) -> Any:
        failed.append(hook)
        raise TypeError("broken on purpose")  # the one that the framework does not catch (T1)

    monkeypatch.setattr(
        Guard, "wrap", lambda self, name, function: wrap(self, name, fail if name == hook else function)
    )
    call = run_script(rich(rich_model()), tmp_path)
    assert failed
    assert call.log == untouched
    assert call.call.ended
    assert all("broken on purpose" in w or "belongs to no speech" in w for w in call.warnings)


def test_without_the_private_hook_the_first_message_of_a_response_is_the_response(
    tmp_path: Path, untouched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The public-only variant: links hold, only several messages of one response are not told apart."""
    monkeypatch.setattr(instrumentor.package, "installed", lambda: "1.8.5")
    answer = Answer([Message("msg_1", "Sure I can")])
    call = run_script(script([Heard(1, 2, "item_u1", "help me", answer)], until=6), tmp_path)
    assert call.named() == [
        heard("u1", 0, "help me", [(1000, 2500)]),
        spoke("a1", 1, "Sure I can", [(2700, 3300)], produced_by_span_id="llm1", selections=[]),
    ]
    assert call.steps() == [{"context": ["u1"], "output": ["a1"], "speculative": False}]


def test_calls_that_share_one_model_stay_apart(tmp_path: Path) -> None:
    model = FakeRealtimeModel()

    async def one(number: int, log: FrameworkLog) -> Stage:
        answer = Answer([Message(f"msg_{number}", f"Answer number {number}")])
        heard = Heard(1 + number / 10, 2, f"item_u{number}", f"question {number}", answer)
        return await play_script(script([heard], model=model, until=6), log)

    async def both(log: FrameworkLog) -> list[Stage]:
        return list(await asyncio.gather(one(1, log), one(2, FrameworkLog())))

    outcome = check(run_scripts(both, tmp_path))
    told = sorted([(m.id, m.text) for m in call.messages] for call in outcome.calls)
    assert told == [[(f"item_u{n}", f"question {n}"), (f"msg_{n}", f"Answer number {n}")] for n in (1, 2)]
    assert _left_behind(model) == []


# -- hostile orders --------------------------------------------------------------------------------------
ITEMS = ["i1", "i2", "i3"]
_item = st.sampled_from(ITEMS)
STEPS = st.one_of(
    st.tuples(st.just("speech_started"), _item, st.integers(-100, 9000)),
    st.tuples(st.just("speech_stopped"), _item, st.integers(-100, 9000)),
    st.tuples(st.just("user_item"), _item),
    st.tuples(st.just("item_again"), _item),
    st.tuples(st.just("unknown_item"), _item),
    st.tuples(st.just("transcript"), _item),
    st.tuples(st.just("respond"), st.integers(0, 2)),
    st.tuples(st.just("long_response")),
    st.tuples(st.just("cancel")),
    st.tuples(st.just("truncate"), st.sampled_from(["msg_1_0", "nobody"])),
    st.tuples(st.just("reconnect")),
    st.tuples(
        st.just("raw"), st.sampled_from(["", "input_audio_buffer.speech_started", "response.text.done"])
    ),
)


STARTED, STOPPED = ("speech_started", "i1", 500), ("speech_stopped", "i1", 900)
NAMED = {
    "a transcript before the stop": [
        STARTED,
        ("transcript", "i1"),
        STOPPED,
        ("user_item", "i1"),
        ("respond", 1),
    ],
    "a stop without a start": [STOPPED, ("user_item", "i1"), ("respond", 1), ("transcript", "i1")],
    "an item twice": [STARTED, STOPPED, ("user_item", "i1"), ("item_again", "i1"), ("respond", 1)],
    "an item after its response": [STARTED, STOPPED, ("respond", 1), ("user_item", "i1"), ("respond", 1)],
    "a response for an unknown item": [("unknown_item", "i2"), ("respond", 1), ("transcript", "i2")],
    "deltas after a cancel": [STARTED, STOPPED, ("long_response",), ("cancel",), ("respond", 1)],
    "deltas after a barge-in": [STARTED, STOPPED, ("long_response",), ("speech_started", "i2", 1400)],
}


def _named(test: Any) -> Any:
    """Every order that has a name is always among the examples, of each kind of provider."""
    for steps in NAMED.values():
        for raw, items in ((False, True), (True, True), (False, False)):
            test = example(steps=steps, raw=raw, items=items)(test)
    return test


@_named
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=14), raw=st.booleans(), items=st.booleans())
def test_events_in_any_order_break_nothing_and_link_nothing_wrongly(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], raw: bool, items: bool
) -> None:
    spoken: dict[str, str] = {}  # message id -> what its response said

    def act(stage: Stage, step: Any, number: int) -> None:
        session = rt(stage)
        kind, *args = step
        if kind == "respond":
            messages = [Message(f"msg_{number}_{n}", f"words {number} {n}") for n in range(args[0])]
            spoken.update({m.id: m.text for m in messages})
            session.respond(Answer(messages))
        elif kind == "long_response":
            spoken[f"msg_{number}_0"] = LONG
            session.respond(Answer([Message(f"msg_{number}_0", LONG)]))
        elif kind == "cancel":
            stage.session.interrupt()
        elif kind == "item_again":
            item = session.chat_ctx.get_by_id(args[0]) or ChatMessage(role="user", content=[], id=args[0])
            session.emit("remote_item_added", RemoteItemAddedEvent(previous_item_id=None, item=item))
        elif kind == "unknown_item":  # the provider has it, and never told of it
            if session.chat_ctx.get_by_id(args[0]) is None:
                session.chat_ctx.items.append(ChatMessage(role="user", content=[], id=args[0]))
        elif kind == "transcript":
            session.transcript(args[0], f"text of {args[0]}")
        elif kind == "truncate":
            session.truncate(message_id=args[0], modalities=["audio"], audio_end_ms=10)
        elif kind == "reconnect":
            session.emit("session_reconnected", object())
        elif kind == "raw":
            session.emit("openai_server_event_received", {"type": args[0], "item_id": None})
        elif kind == "user_item":
            if session.chat_ctx.get_by_id(args[0]) is None:
                session.user_item(args[0])
        else:
            getattr(session, kind)(*args)

    at = [
        (0.5 + n * 0.35, lambda stage, step=step, n=n: act(stage, step, n)) for n, step in enumerate(steps, 1)
    ]
    one = script(model=FakeRealtimeModel(raw=raw, items=items), at=at, until=8, mic=True)
    call = run_script(one, tmp_path_factory.mktemp("hostile"))
    assert not call.live[0].guard.failures
    assert call.warnings == []
    assert call.call.ended
    starts = {span.span_id: span.output_ids for span in call.call.llm_steps}
    for message in call.call.messages:
        assert writer_problems(message) == []
        if message.role is Role.USER and message.text is not None:
            assert message.text == f"text of {message.id}"
        if message.role is Role.ASSISTANT and message.id in spoken:
            assert spoken[message.id].startswith(message.generated_text or message.text or "")
            if message.committed:
                assert message.id in starts[message.produced_by_span_id or ""]
    for one_step in call.call.llm_steps:
        # no response has its own output, or what came after it, in its context
        assert not set(one_step.output_ids) & set(one_step.context_ids)
        numbers = {i.split("_")[1] for i in one_step.output_ids}
        assert len(numbers) <= 1
