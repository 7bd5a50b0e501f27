# SPDX-License-Identifier: Apache-2.0
"""Cascaded calls, one situation each: the whole record, the spans, and the audio of each message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from livekit import rtc
from livekit.agents import Agent, RunContext, StopResponse, function_tool, llm
from livekit.agents.types import FlushSentinel
from livekit.agents.voice import TranscriptSynchronizer
from lk_doubles import (
    RATE,
    WORD_SAMPLES,
    EndlessSpeaker,
    QuietSpeaker,
    Reply,
    Said,
    Speaker,
    StubbornSpeaker,
    TextSink,
    word_samples,
)
from lk_script import Outcome, Script, Stage, check, run_script, said, spoke

LONG = "Once upon a time there was a very small robot that lived on a hill"


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., Outcome]:
    """Play a script with the agent's audio recorded, and check what holds for every call."""

    def play(script: Script, *, warnings: tuple[str, ...] = (), **kwargs: Any) -> Outcome:
        kwargs.setdefault("configure", {"audio": "agent"})
        return check(run_script(script, tmp_path / "calls", **kwargs), warnings=warnings)

    return play


def say(text: Any, **options: Any) -> Callable[[Stage], None]:
    return lambda stage: stage.handles.append(stage.session.say(text, **options))


class Greeter(Agent):
    def __init__(self) -> None:
        super().__init__(instructions="Be brief.", id="agent")

    async def on_enter(self) -> None:
        self.session.say("Hello there how are you")


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
        await asyncio.sleep(0.5)
        return "sunny"


# -- what was said -------------------------------------------------------------------------------------
def test_vt17_a_greeting_by_say_is_a_message_without_an_llm_step(play: Any) -> None:
    call = play(Script(agent=Greeter, until=3))
    assert call.named() == [spoke("a1", 0, "Hello there how are you", [(100, 1100)])]
    assert call.steps() == []


def test_a_turn_and_its_answer(play: Any) -> None:
    call = play(Script(said=[Said(1, 2, "one")], replies={"one": Reply("First answer")}, until=5))
    assert call.named() == [
        said("u1", 0, "one", [(1000, 2000)]),
        spoke("a1", 1, "First answer", [(2740, 3140)], produced_by_span_id="llm1"),
    ]
    assert call.steps() == [
        {"context": ["instructions", "other", "u1"], "output": ["a1"], "speculative": False}
    ]


def test_vt24_a_split_turn_with_many_transcripts_is_one_message(play: Any) -> None:
    interims = ((1.3, "what"), (1.5, "what is"))
    call = play(
        Script(
            said=[
                Said(1, 1.6, "what is", interims=interims),
                Said(2.0, 2.8, "the weather", interims=((2.4, "the"),)),
            ],
            until=6,
        )
    )
    assert call.named()[0] == said("u1", 0, "what is the weather", [(1000, 1600), (2000, 2800)])


def test_several_stretches_of_speech_each_have_their_audio(play: Any) -> None:
    call = play(
        Script(mic=True, said=[Said(1, 1.6, "what is"), Said(2.0, 2.8, "the weather")], until=6),
        configure={"audio": "both"},
    )
    assert [(s["channel"], s["start_ms"], s["end_ms"]) for s in call.named()[0]["selections"]] == [
        ("caller", 1000, 1600),
        ("caller", 2000, 2800),
    ]
    clip = call.call.clip(call.call.messages[0])
    assert clip.duration_ms == 1400


def test_a_caller_who_cannot_be_recorded_is_said_so(play: Any) -> None:
    play(
        Script(said=[Said(1, 2, "one")], until=4),
        configure={"audio": "both"},
        warnings=("the session had no audio input: the caller's channel is silent",),
    )


def test_a_tool_step_uses_up_a_number_and_writes_nothing(play: Any) -> None:
    call = play(
        Script(
            agent=Tooled,
            said=[Said(1, 2, "weather?")],
            replies={
                "weather?": Reply(tool=("weather", '{"city": "Paris"}')),
                "tool:weather": Reply("It is sunny"),
            },
            until=7,
        )
    )
    assert call.named() == [
        said("u1", 0, "weather?", [(1000, 2000)]),
        spoke("a1", 2, "It is sunny", [(3340, 3940)], produced_by_span_id="llm2"),
    ]
    assert call.steps() == [
        {"context": ["instructions", "other", "u1"], "output": [], "speculative": False},
        {
            "context": ["instructions", "other", "u1", "other", "other"],
            "output": ["a1"],
            "speculative": False,
        },
    ]


def test_words_before_a_tool_are_a_message_of_their_own_step(play: Any) -> None:
    call = play(
        Script(
            agent=Tooled,
            said=[Said(1, 2, "weather?")],
            replies={
                "weather?": Reply("Let me look", tool=("weather", '{"city": "Paris"}')),
                "tool:weather": Reply("It is sunny"),
            },
            until=7,
        )
    )
    assert call.named() == [
        said("u1", 0, "weather?", [(1000, 2000)]),
        spoke("a1", 1, "Let me look", [(2740, 3340)], produced_by_span_id="llm1"),
        spoke("a2", 2, "It is sunny", [(3580, 4180)], produced_by_span_id="llm2"),
    ]
    assert [s["output"] for s in call.steps()] == [["a1"], ["a2"]]


# -- interruptions -------------------------------------------------------------------------------------
BARGE_IN = Script(
    said=[Said(1, 2, "story"), Said(4, 5, "stop")],
    replies={"story": Reply(LONG), "stop": Reply("Okay")},
    until=9,
)


def test_vt02_vt66_the_cut_is_where_the_audio_stopped_and_the_text_what_was_heard(play: Any) -> None:
    call = play(BARGE_IN)
    assert call.named() == [
        said("u1", 0, "story", [(1000, 2000)]),
        spoke(
            "a1",
            1,
            "Once upon a time there was a very small",
            [(2740, 4500)],  # paused there; the framework confirmed the cut a second later
            state="interrupted",
            interrupted_at_ms=4500,
            generated_text=LONG,
            produced_by_span_id="llm1",
        ),
        said("u2", 2, "stop", [(4000, 5000)]),
        spoke("a2", 3, "Okay", [(5720, 5920)], produced_by_span_id="llm2"),
    ]


def test_a_false_interruption_is_one_message_with_two_ranges(play: Any) -> None:
    call = play(Script(said=[Said(1, 2, "story"), Said(4, 4.8)], replies={"story": Reply(LONG)}, until=12))
    resumed = 5100 + 1000  # silence noticed, and the framework's patience
    assert call.named() == [
        said("u1", 0, "story", [(1000, 2000)]),
        spoke("a1", 1, LONG, [(2740, 4500), (resumed, resumed + 3000 - 1760)], produced_by_span_id="llm1"),
        said(
            "u2",
            2,
            None,
            [(4000, 4800)],
            committed=False,
            text_source=None,
            end_of_turn_ms=None,
            transcript_final_ms=None,
        ),
    ]


def test_vt08_a_reply_interrupted_before_its_first_sound_is_unplayed(play: Any) -> None:
    call = play(
        Script(
            said=[Said(1, 2, "story"), Said(2.7, 3.6, "stop")],
            replies={"story": Reply(LONG, first=0.6), "stop": Reply("Okay")},
            until=8,
        )
    )
    assert call.named()[1] == spoke(
        "a1",
        1,
        LONG,
        [],
        state="unplayed",
        committed=False,
        text_source="tts_input",
        produced_by_span_id="llm1",
    )
    assert call.steps()[0]["output"] == []


def test_vt03_a_queued_say_that_is_cancelled_is_unplayed_with_its_text(play: Any) -> None:
    call = play(
        Script(
            at=[
                (0.5, say("First thing to say now")),
                (0.6, say("Second thing")),
                (0.9, lambda stage: stage.handles[1].interrupt()),
            ],
            until=4,
        )
    )
    assert call.named() == [
        spoke("a1", 0, "First thing to say now", [(600, 1600)]),
        spoke("a2", 1, "Second thing", [], state="unplayed", committed=False, text_source="tts_input"),
    ]


def test_speech_that_cannot_be_interrupted_drops_the_turn(play: Any) -> None:
    call = play(
        Script(
            at=[(0.2, say("this cannot be interrupted by anybody", allow_interruptions=False))],
            said=[Said(0.8, 1.0, "hey"), Said(6, 7, "two")],
            until=10,
        )
    )
    assert call.named() == [
        spoke("a1", 0, "this cannot be interrupted by anybody", [(300, 1500)]),
        said("u1", 1, None, [(800, 1000)], committed=False),
        said("u2", 2, "two", [(6000, 7000)]),
        spoke("a2", 3, "Fine.", [(7720, 7920)], produced_by_span_id="llm1"),
    ]


# -- speech without a message --------------------------------------------------------------------------
def test_noise_is_written_uncommitted_three_seconds_after_it_stopped(play: Any) -> None:
    instrumentors: list[Any] = []
    written: list[tuple[int, str]] = []

    def watch(stage: Stage) -> None:
        (live,) = instrumentors[0].calls
        live.listeners.append(
            lambda change, _: written.extend((live.now_ms(), m.state.value) for m in change.settled)
        )

    call = play(Script(at=[(0.1, watch)], said=[Said(1, 1.8)], until=12), before=instrumentors.append)
    noise = said(
        "u1",
        0,
        None,
        [(1000, 1800)],
        committed=False,
        text_source=None,
        end_of_turn_ms=None,
        transcript_final_ms=None,
    )
    assert call.named() == [noise]
    # counted from when the framework knew, 300 ms after the sound; on a timer, for nothing else happened
    assert written == [(5101, "complete")]


async def _stop() -> None:
    raise StopResponse


async def _fail() -> None:
    raise RuntimeError("the user's hook failed")


async def _slow() -> None:
    await asyncio.sleep(5)


class Hooked(Agent):
    """Does something special with the first turn."""

    def __init__(self, first: Callable[[], Any]) -> None:
        super().__init__(instructions="Be brief.", id="agent")
        self._todo: Any = first

    async def on_user_turn_completed(self, turn_ctx: llm.ChatContext, new_message: llm.ChatMessage) -> None:
        todo, self._todo = self._todo, None
        if todo is not None:
            await todo()


@pytest.mark.parametrize("hook", [_stop, _fail])
def test_a_turn_that_the_hook_drops_is_uncommitted_and_the_next_keeps_its_own(play: Any, hook: Any) -> None:
    call = play(Script(agent=lambda: Hooked(hook), said=[Said(1, 2, "one"), Said(3, 4, "two")], until=7))
    assert call.named() == [
        said("u1", 0, None, [(1000, 2000)], committed=False),
        said("u2", 1, "two", [(3000, 4000)]),
        spoke("a1", 2, "Fine.", [(4720, 4920)], produced_by_span_id="llm1"),
    ]


def test_a_slow_hook_does_not_make_the_turn_uncommitted(play: Any) -> None:
    call = play(Script(agent=lambda: Hooked(_slow), said=[Said(1, 2, "one"), Said(9, 10, "two")], until=13))
    assert call.named() == [
        said("u1", 0, "one", [(1000, 2000)]),
        spoke("a1", 1, "Fine.", [(7720, 7920)], produced_by_span_id="llm1"),
        said("u2", 2, "two", [(9000, 10_000)]),
        spoke("a2", 3, "Fine.", [(10_720, 10_920)], produced_by_span_id="llm2"),
    ]
    for line in call.journal_bytes().splitlines():
        assert b'"TimePassed"' not in line or b"vad_" not in line


# -- speculation ---------------------------------------------------------------------------------------
def test_discarded_attempts_write_no_message_and_their_spans_say_so(play: Any) -> None:
    call = play(
        Script(
            said=[Said(1, 1.6, "what is"), Said(2, 2.8, "the weather")],
            replies={"what is": Reply("What is what?"), "what is the weather": Reply("Sunny today")},
            turn={"preemptive_generation": {"enabled": True}},
            until=7,
        )
    )
    assert call.named() == [
        said("u1", 0, "what is the weather", [(1000, 2800)]),
        spoke("a1", 2, "Sunny today", [(3400, 3800)], produced_by_span_id="llm2"),
    ]
    assert call.steps() == [
        {"context": ["instructions", "other", None], "output": [], "speculative": True},
        {"context": ["instructions", "other", "u1"], "output": ["a1"], "speculative": False},
    ]


def test_a_discarded_attempt_that_was_already_voiced_writes_no_message(play: Any) -> None:
    call = play(
        Script(
            said=[Said(1, 1.6, "what is"), Said(2, 2.8, "the weather")],
            replies={
                "what is": Reply("What is what?", first=0.05),
                "what is the weather": Reply("Sunny today"),
            },
            turn={"preemptive_generation": {"enabled": True, "preemptive_tts": True}},
            until=7,
        )
    )
    assert [m["id"] for m in call.named()] == ["u1", "a1"]
    assert call.named()[1]["text"] == "Sunny today"
    assert [s["speculative"] for s in call.steps()] == [True, False]


# -- the ways of say() and typed input -------------------------------------------------------------------
def test_say_that_stays_out_of_the_context_is_uncommitted(play: Any) -> None:
    call = play(Script(at=[(0.2, say("not for the record", add_to_chat_ctx=False))], until=3))
    assert call.named() == [spoke("a1", 0, "not for the record", [(300, 1100)], committed=False)]
    assert call.call.messages[0].id.startswith("speech_")


def test_say_with_its_own_audio(play: Any) -> None:
    async def audio() -> Any:
        for number in range(5):
            yield rtc.AudioFrame(word_samples(900 + number).tobytes(), RATE, 1, WORD_SAMPLES)

    call = play(
        Script(
            at=[(0.2, lambda stage: stage.session.say("a recorded greeting for you", audio=audio()))], until=3
        )
    )
    assert call.named() == [spoke("a1", 0, "a recorded greeting for you", [(200, 1200)])]


def test_say_with_streamed_text(play: Any) -> None:
    async def stream() -> Any:
        for word in ("streamed ", "text ", "here"):
            await asyncio.sleep(0.1)
            yield word

    call = play(Script(at=[(0.2, lambda stage: stage.session.say(stream()))], until=3))
    assert call.named() == [spoke("a1", 0, "streamed text here", [(500, 1100)])]


@pytest.mark.parametrize("form", ["text", "message"])
def test_typed_input_comes_before_its_answer(play: Any, form: str) -> None:
    def type_it(stage: Stage) -> None:
        if form == "message":
            stage.session.generate_reply(user_input=llm.ChatMessage(role="user", content=["typed one"]))
        else:
            stage.session.generate_reply(user_input="typed one")

    call = play(Script(at=[(0.5, type_it)], until=3))
    assert call.named() == [
        said("u1", 0, "typed one", [], text_source="text_input"),
        spoke("a1", 1, "Fine.", [(720, 920)], produced_by_span_id="llm1"),
    ]
    assert call.steps() == [
        {"context": ["instructions", "other", "u1"], "output": ["a1"], "speculative": False}
    ]


def test_typed_input_between_speech_keeps_each_in_its_place(play: Any) -> None:
    call = play(
        Script(
            said=[Said(1, 2, "spoken")],
            replies={"spoken": Reply("Heard you"), "typed": Reply("Read you")},
            at=[(5, lambda stage: stage.session.generate_reply(user_input="typed"))],
            until=8,
        )
    )
    assert [(m["id"], m["seq"], m["text"], m["text_source"]) for m in call.named()] == [
        ("u1", 0, "spoken", "stt"),
        ("a1", 1, "Heard you", "playout_aligned"),
        ("u2", 2, "typed", "text_input"),
        ("a2", 3, "Read you", "playout_aligned"),
    ]


# -- agents and nodes ------------------------------------------------------------------------------------
class Second(Agent):
    def __init__(self) -> None:
        super().__init__(instructions="You are the second.", id="second")

    async def on_enter(self) -> None:
        self.session.say("I am second")


class First(Agent):
    def __init__(self) -> None:
        super().__init__(instructions="You are the first.", id="first")

    @function_tool
    async def transfer(self, context: RunContext[None]) -> Any:
        """Hand the caller over."""
        return Second()


def test_a_handoff_keeps_one_call(play: Any) -> None:
    call = play(
        Script(
            agent=First,
            said=[Said(1, 2, "transfer me"), Said(5, 6, "hi")],
            replies={"transfer me": Reply(tool=("transfer", "{}")), "hi": Reply("Hi")},
            until=9,
        )
    )
    assert call.named() == [
        said("u1", 0, "transfer me", [(1000, 2000)]),
        spoke("a1", 2, "I am second", [(2700, 3300)]),
        said("u2", 3, "hi", [(5000, 6000)]),
        spoke("a2", 4, "Hi", [(6720, 6920)], produced_by_span_id="llm2"),
    ]
    assert [s["context"] for s in call.steps()] == [
        ["instructions", "other", "u1"],
        ["instructions", "other", "a1", "u2"],
    ]


class Flushing(Agent):
    def __init__(self) -> None:
        super().__init__(instructions="Be brief.", id="agent")

    async def llm_node(self, chat_ctx: Any, tools: Any, model_settings: Any) -> Any:
        yield "First part. "
        yield FlushSentinel()
        yield "Second part."


def test_two_segments_of_one_reply_are_one_message(play: Any) -> None:
    call = play(Script(agent=Flushing, said=[Said(1, 2, "go")], until=6))
    assert call.named()[1] == spoke(
        "a1", 1, "First part. Second part.", [(2600, 3000), (3000, 3400)], produced_by_span_id="llm1"
    )


async def _a_string(self: Any, chat_ctx: Any, tools: Any, model_settings: Any) -> str:
    return "A plain string"


async def _a_generator(self: Any, chat_ctx: Any, tools: Any, model_settings: Any) -> Any:
    yield "A generated "
    yield "string"


async def _nothing(self: Any, chat_ctx: Any, tools: Any, model_settings: Any) -> None:
    return None


def _a_coroutine_of_a_generator(self: Any, chat_ctx: Any, tools: Any, model_settings: Any) -> Any:
    async def made() -> Any:
        return _a_generator(self, chat_ctx, tools, model_settings)

    return made()


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (_a_string, "A plain string"),
        (_a_generator, "A generated string"),
        (_a_coroutine_of_a_generator, "A generated string"),
        (_nothing, None),
    ],
)
def test_the_users_own_llm_node_may_return_what_it_likes(play: Any, node: Any, text: str | None) -> None:
    own = type("Own", (Agent,), {"llm_node": node})
    call = play(Script(agent=lambda: own(instructions="x", id="agent"), said=[Said(1, 2, "go")], until=5))
    answer = [] if text is None else [spoke("a1", 1, text, [(2600, 3200)], produced_by_span_id="llm1")]
    assert call.named() == [said("u1", 0, "go", [(1000, 2000)]), *answer]
    assert call.steps() == [
        {"context": ["instructions", "other", "u1"], "output": ["a1"] if text else [], "speculative": False}
    ]


# -- failures of the services ----------------------------------------------------------------------------
def test_a_model_that_fails_midway_leaves_what_was_said(play: Any) -> None:
    call = play(
        Script(
            said=[Said(1, 2, "go"), Said(5, 6, "again")],
            replies={"go": Reply("Half a", fails=True), "again": Reply("Fine")},
            until=9,
        )
    )
    assert call.named()[1] == spoke("a1", 1, "Half a", [(2740, 3140)], produced_by_span_id="llm1")
    assert [m["text"] for m in call.named()] == ["go", "Half a", "again", "Fine"]
    assert call.call.llm_steps[0].error


def test_a_voice_that_fails_midway_is_a_cut_and_its_text_may_overstate(play: Any) -> None:
    text = "These words are all right but now [fail] and more"
    call = play(
        Script(
            said=[Said(1, 2, "go"), Said(7, 8, "again")],
            replies={"go": Reply(text), "again": Reply("Fine")},
            until=11,
        )
    )
    failed = call.named()[1]
    assert failed["state"] == "interrupted"
    assert failed["interrupted_at_ms"] == failed["end_ms"]
    assert (failed["text"], failed["text_source"]) == (text, "tts_input")
    assert call.named()[3]["text"] == "Fine"


def test_vt06_a_voice_that_fails_at_once_is_unplayed(play: Any) -> None:
    call = play(
        Script(
            said=[Said(1, 2, "go"), Said(7, 8, "again")],
            replies={"go": Reply("[fail] and more"), "again": Reply("Fine")},
            until=11,
        )
    )
    assert call.named()[1] == spoke(
        "a1",
        1,
        "[fail] and more",
        [],
        state="unplayed",
        committed=False,
        text_source="tts_input",
        produced_by_span_id="llm1",
    )


# -- sinks -----------------------------------------------------------------------------------------------
def test_without_a_synchronizer_the_text_is_what_the_voice_was_given(play: Any) -> None:
    call = play(Script(**{**vars(BARGE_IN), "synced": False}))
    cut = call.named()[1]
    assert (cut["text"], cut["text_source"], cut["interrupted_at_ms"]) == (LONG, "tts_input", 4500)
    assert "generated_text" not in cut
    assert call.named()[3]["text_source"] == "tts_input"


@pytest.mark.parametrize(
    ("speaker", "heard"),
    [
        (QuietSpeaker, "Once upon a time there was a very small"),
        (StubbornSpeaker, "Once upon a time there was a very"),
    ],
)
def test_a_sink_without_progress_is_described_by_its_end_points(play: Any, speaker: Any, heard: str) -> None:
    call = play(Script(**{**vars(BARGE_IN), "speaker": speaker}))
    assert call.named()[1] == spoke(
        "a1",
        1,
        heard,
        [(2740, 4500)],
        state="interrupted",
        interrupted_at_ms=4500,
        generated_text=LONG,
        produced_by_span_id="llm1",
    )


def test_vt49_a_sink_that_never_finishes_is_ended_at_close_with_a_warning(tmp_path: Path) -> None:
    script = Script(
        speaker=EndlessSpeaker, said=[Said(1, 2, "story")], replies={"story": Reply(LONG)}, until=9
    )
    call = run_script(script, tmp_path)
    user, agent = call.named()
    assert user == said("u1", 0, "story", [(1000, 2000)])
    assert (agent["state"], agent["committed"], agent["text_source"]) == ("interrupted", False, "tts_input")
    assert call.call.ended
    assert any("never reported as finished" in w for w in call.call.warnings)
    assert call.warnings == []


def test_the_output_may_be_swapped_while_the_call_runs(play: Any) -> None:
    def swap(stage: Stage) -> None:
        speaker = Speaker()
        sync = TranscriptSynchronizer(next_in_chain_audio=speaker, next_in_chain_text=TextSink())
        stage.notes["speakers"] = [speaker]
        stage.session.output.audio, stage.session.output.transcription = sync.audio_output, sync.text_output
        stage.notes["first"] = stage.synchronizer
        stage.synchronizer = sync

    call = play(Script(at=[(0.2, say("before the swap")), (3, swap), (3.5, say("after the swap"))], until=6))
    assert call.named() == [
        spoke("a1", 0, "before the swap", [(300, 900)]),
        spoke("a2", 1, "after the swap", [(3600, 4200)]),
    ]


@pytest.mark.parametrize("way", ["switched off", "no sink"])
def test_a_session_without_audio_output_has_text_and_no_bounds(play: Any, way: str) -> None:
    script = Script(said=[Said(1, 2, "go")], replies={"go": Reply("Only text")}, until=5)
    if way == "no sink":
        script.speaker = lambda: None
    else:
        script.at = [(0.1, lambda stage: stage.session.output.set_audio_enabled(False))]
    call = play(script, configure={})
    assert call.named() == [
        said("u1", 0, "go", [(1000, 2000)]),
        spoke(
            "a1", 1, "Only text", [], state="unplayed", text_source="tts_input", produced_by_span_id="llm1"
        ),
    ]


# -- the end -----------------------------------------------------------------------------------------------
def test_vt07_a_hang_up_in_mid_reply_keeps_what_was_heard(play: Any) -> None:
    call = play(Script(said=[Said(1, 2, "story"), Said(4, 6)], replies={"story": Reply(LONG)}, until=4.3))
    assert call.named() == [
        said("u1", 0, "story", [(1000, 2000)]),
        spoke(
            "a1",
            1,
            "Once upon a time there was a",
            [(2740, 4300)],
            state="interrupted",
            interrupted_at_ms=4300,
            generated_text=LONG,
            produced_by_span_id="llm1",
        ),
        said(
            "u2",
            2,
            None,
            [(4000, 4600)],  # the framework waits 300 ms for a transcript and stops listening then
            committed=False,
            text_source=None,
            end_of_turn_ms=None,
            transcript_final_ms=None,
        ),
    ]
    assert call.call.end_reason == "user_initiated"


def test_a_hang_up_with_speech_queued_leaves_nothing_open(play: Any) -> None:
    call = play(Script(at=[(0.2, say("the first of two")), (0.3, say("the second"))], until=0.6))
    assert [(m["state"], m["committed"]) for m in call.named()] == [
        ("interrupted", True),
        ("unplayed", False),
    ]
