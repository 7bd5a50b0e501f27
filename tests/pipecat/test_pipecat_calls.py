# SPDX-License-Identifier: Apache-2.0
"""Cascaded calls, one situation each: the whole record, the spans, and the audio of each message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pc_doubles import LEAD_S, RATE, FakeLLM, Reply, Said, word_samples
from pc_record import Outcome, check, noise, record, said, spoke
from pc_script import Parts, Script, plain, push, say, sentences, words
from pipecat.frames import frames
from pipecat.pipeline.llm_switcher import LLMSwitcher
from pipecat.pipeline.parallel_pipeline import ParallelPipeline
from pipecat.pipeline.service_switcher import ServiceSwitcher
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.llm_service import FunctionCallParams
from pipecat.transports.base_transport import TransportParams
from pipecat.turns.empty_user_turn import EmptyUserTurnConfig
from pipecat.turns.user_mute import AlwaysUserMuteStrategy
from pipecat.turns.user_start import ExternalUserTurnStartStrategy
from pipecat.turns.user_stop import (
    EagerUserTurnStopStrategy,
    ExternalUserTurnCompletionStopStrategy,
    SpeechTimeoutUserTurnStopStrategy,
)
from pipecat.turns.user_stop.deferred_user_turn_stop_strategy import deferred
from pipecat.turns.user_turn_strategies import UserTurnStrategies

from voicetrace.demo.doubles_pipecat import SimOutput

LONG = "One two three four five six seven eight. Nine ten eleven twelve thirteen fourteen."
STORY = {"story": Reply(LONG), "*": Reply("Okay.")}
LEAD = int(LEAD_S * RATE)


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., Outcome]:
    """Play a script with the agent's audio recorded, and check what holds for every call."""

    def play(script: Callable[[], Script], *, warnings: tuple[str, ...] = (), **kwargs: Any) -> Outcome:
        kwargs.setdefault("configure", {"audio": "agent"})
        checks = {name: kwargs.pop(name) for name in ("clean", "clips") if name in kwargs}
        return check(record(script, tmp_path / "calls", **kwargs), warnings=warnings, **checks)

    return play


async def weather(params: FunctionCallParams, city: str) -> None:
    """Look up the weather.

    Args:
        params: The call.
        city: Where.
    """
    await asyncio.sleep(0.5 if city == "Paris" else 1.0)
    await params.result_callback(f"sunny in {city}")


async def slow(params: FunctionCallParams) -> None:
    """Take long, and say so first.

    Args:
        params: The call.
    """
    await params.llm.push_frame(frames.TTSSpeakFrame("One moment please."))
    await asyncio.sleep(1.5)
    await params.result_callback("done")


# -- what was said -------------------------------------------------------------------------------------
@pytest.mark.parametrize(("tts", "source"), [(words, "playout_aligned"), (sentences, "tts_input")])
def test_vt17_a_greeting_is_a_message_without_a_step_and_a_turn_has_its_answer(
    play: Any, tts: Any, source: str
) -> None:
    call = play(lambda: Script(greeting="Hi there", said=[Said(1, 2, "one")], tts=tts, until=6))
    assert call.named() == [
        spoke("a1", 0, "Hi there", [(120, 560)], text_source=source),
        said("u1", 1, "one", [(1000, 2000)]),
        spoke("a2", 2, "Fine.", [(3240, 3480)], text_source=source, produced_by_span_id="llm1"),
    ]
    assert call.steps() == [{"context": ["other", "a1", "u1"], "output": ["a2"], "speculative": False}]
    assert call.call.llm_steps[0].name == "llm"


def test_vt28_a_split_turn_with_two_transcripts_is_one_message_with_two_stretches(play: Any) -> None:
    interims = ((1.3, "what"), (1.5, "what is"))
    call = play(
        lambda: Script(
            said=[Said(1, 1.6, "what is", interims=interims), Said(2.1, 2.9, "the weather")], until=6
        ),
        configure={"audio": "both"},
    )
    assert call.named()[0] == said(
        "u1",
        0,
        "what is the weather",
        [(1000, 1600), (2100, 2900)],
        selections=[
            {"segment_id": "seg_0", "channel": "caller", "start_ms": 1000, "end_ms": 1600},
            {"segment_id": "seg_0", "channel": "caller", "start_ms": 2100, "end_ms": 2900},
        ],
    )
    assert call.call.clip(call.call.messages[0]).duration_ms == 1400


def test_vt30_turn_taking_by_the_transcripts_alone(play: Any) -> None:
    call = play(
        lambda: Script(
            said=[
                Said(1, 2, "one", interims=((1.5, "o"),)),
                Said(4, 5, "two", interims=((4.4, "tw"),)),
            ],
            user={"vad_analyzer": None},
            until=8,
        )
    )
    received = {"timing_source": "local_receipt"}
    assert call.named() == [
        said("u1", 0, "one", [(1500, 3000)], end_of_turn_ms=3000, transcript_final_ms=2200, **received),
        spoke("a1", 1, "Fine.", [(3240, 3480)], produced_by_span_id="llm1"),
        said("u2", 2, "two", [(4400, 6000)], end_of_turn_ms=6000, transcript_final_ms=5200, **received),
        spoke("a2", 3, "Fine.", [(6240, 6480)], produced_by_span_id="llm2"),
    ]


def test_vt30_speech_that_the_vad_did_not_hear_has_the_bounds_of_its_turn(play: Any) -> None:
    call = play(
        lambda: Script(
            said=[Said(1, 2, "one"), Said(5, 6, "psst", interims=((5.5, "ps"),), vad=False)], until=9
        )
    )
    assert call.named()[0] == said("u1", 0, "one", [(1000, 2000)])
    assert call.named()[2] == said(
        "u2",
        2,
        "psst",
        [(5500, 7000)],
        timing_source="local_receipt",
        end_of_turn_ms=7000,
        transcript_final_ms=6200,
    )


def test_a_muted_user_leaves_no_trace(play: Any) -> None:
    call = play(
        lambda: Script(
            greeting="One two three four five six",
            said=[Said(0.4, 1.0, "hey"), Said(3, 4, "you")],
            user={"user_mute_strategies": [AlwaysUserMuteStrategy()]},
            until=7,
        )
    )
    assert call.named() == [
        spoke("a1", 0, "One two three four five six", [(120, 1360)]),
        said("u1", 1, "you", [(3000, 4000)]),
        spoke("a2", 2, "Fine.", [(5240, 5480)], produced_by_span_id="llm1"),
    ]


def test_noise_is_uncommitted_as_soon_as_its_turn_ends_without_words(play: Any) -> None:
    written: list[tuple[int, str]] = []

    def watch(stage: Any) -> None:
        (voice,) = stage.script.extra
        voice.call.listeners.append(
            lambda change, _: written.extend((voice.call.now_ms(), m.state.value) for m in change.settled)
        )

    call = play(lambda: Script(said=[Said(1, 1.8)], at=[(0.5, watch)], until=6))
    assert call.named() == [noise("u1", 0, [(1000, 1800)])]
    # the turn's own patience, 2 s after the VAD's stop; no timer of ours
    assert written == [(4000, "complete")]


def test_noise_over_the_agent_cuts_it_and_is_uncommitted(play: Any) -> None:
    call = play(
        lambda: Script(
            said=[Said(1, 2, "story"), Said(5, 5.8)],
            replies={"story": Reply(LONG), "unheard": Reply("Pardon me?")},
            user={"empty_user_turn": EmptyUserTurnConfig()},
            until=12,
        )
    )
    assert call.named()[2:] == [
        noise("u2", 2, [(5000, 5800)]),
        spoke("a2", 3, "Pardon me?", [(8260, 8700)], produced_by_span_id="llm2"),
    ]
    # what Pipecat tells the model about it is a message of the context, and of nobody
    assert call.steps()[1]["context"] == ["other", "u1", "a1", "other"]


def test_speech_that_is_still_going_on_at_the_end(play: Any) -> None:
    call = play(
        lambda: Script(said=[Said(1, 3, "never said")], until=2),
        warnings=("message vad_0: the user was still speaking when the call ended",),
    )
    assert call.named() == [noise("u1", 0, [(1000, 2000)])]


# -- tools ---------------------------------------------------------------------------------------------
def test_two_tools_at_once_and_the_words_before_them(play: Any) -> None:
    call = play(
        lambda: Script(
            said=[Said(1, 2, "weather")],
            tools=[weather],
            replies={
                "weather": Reply(
                    "Let me look.", tools=(("weather", '{"city": "Paris"}'), ("weather", '{"city": "Rome"}'))
                ),
                "tool:weather": Reply("It is sunny."),
            },
            until=8,
        )
    )
    assert call.named() == [
        said("u1", 0, "weather", [(1000, 2000)]),
        spoke("a1", 1, "Let me look.", [(3280, 3920)], produced_by_span_id="llm1"),
        spoke("a2", 2, "It is sunny.", [(4440, 5080)], produced_by_span_id="llm2"),
    ]
    assert call.steps() == [
        {"context": ["other", "u1"], "output": ["a1"], "speculative": False},
        {
            "context": ["other", "u1", "a1", "other", "other", "other", "other"],
            "output": ["a2"],
            "speculative": False,
        },
    ]


def test_a_tool_only_step_writes_nothing_and_leaves_no_gap(play: Any) -> None:
    call = play(
        lambda: Script(
            said=[Said(1, 2, "weather")],
            tools=[weather],
            replies={
                "weather": Reply("", tools=(("weather", '{"city": "Paris"}'),)),
                "tool:weather": Reply("It is sunny."),
            },
            until=8,
        )
    )
    assert call.named()[1:] == [spoke("a1", 1, "It is sunny.", [(3880, 4520)], produced_by_span_id="llm2")]
    assert [s["output"] for s in call.steps()] == [[], ["a1"]]


@pytest.mark.parametrize(("tts", "source"), [(words, "playout_aligned"), (sentences, "tts_input")])
def test_a_filler_from_a_tool_is_a_message_of_its_own(play: Any, tts: Any, source: str) -> None:
    call = play(
        lambda: Script(
            said=[Said(1, 2, "go")],
            tools=[slow],
            replies={"go": Reply("", tools=(("slow", "{}"),)), "*": Reply("It is done.")},
            tts=tts,
            until=9,
        )
    )
    assert call.named()[1:] == [
        spoke("a1", 1, "One moment please.", [(3220, 3860)], text_source=source),
        spoke("a2", 2, "It is done.", [(4880, 5520)], text_source=source, produced_by_span_id="llm2"),
    ]
    assert call.steps()[1] == {
        "context": ["other", "u1", "other", "other", "a1"],
        "output": ["a2"],
        "speculative": False,
    }


def test_a_failing_model_is_heard_as_far_as_it_wrote(play: Any) -> None:
    call = play(
        lambda: Script(
            said=[Said(1, 2, "story")],
            replies={"story": Reply("One two", fails=True), "*": Reply("Fine.")},
            until=6,
        ),
        complaints=["llm exception", "PipelineWorker.*Something went wrong"],
    )
    assert call.named()[1:] == [spoke("a1", 1, "One two", [(3260, 3700)], produced_by_span_id="llm1")]
    (step,) = call.call.llm_steps
    assert step.error


# -- interruptions -------------------------------------------------------------------------------------
BARGE_IN = [Said(1, 2, "story"), Said(5, 6, "stop")]


def test_vt01_vt02_vt66_the_cut_is_where_the_audio_stopped_and_the_text_what_was_heard(play: Any) -> None:
    call = play(lambda: Script(said=BARGE_IN, replies=STORY, until=10))
    assert call.named() == [
        said("u1", 0, "story", [(1000, 2000)]),
        spoke(
            "a1",
            1,
            "One two three four five six seven eight. Nine",
            [(3380, 5220)],
            state="interrupted",
            interrupted_at_ms=5220,
            generated_text=LONG,
            produced_by_span_id="llm1",
        ),
        said("u2", 2, "stop", [(5000, 6000)]),
        spoke("a2", 3, "Okay.", [(7240, 7480)], produced_by_span_id="llm2"),
    ]


def test_vt14_vt15_sentences_overstate_what_was_heard_and_say_so(play: Any) -> None:
    call = play(lambda: Script(said=BARGE_IN, replies=STORY, tts=sentences, until=10))
    assert call.named()[1] == spoke(
        "a1",
        1,
        LONG,
        [(3380, 5220)],
        state="interrupted",
        interrupted_at_ms=5220,
        text_source="tts_input",
        produced_by_span_id="llm1",
    )
    # the framework wrote the first sentence only, and that is the message
    assert ("assistant", "One two three four five six seven eight.") in call.stage.texts()


def test_vt12_a_sentence_cut_in_its_middle_never_enters_the_context(play: Any) -> None:
    call = play(
        lambda: Script(said=[Said(1, 2, "story"), Said(4, 5, "stop")], replies=STORY, tts=sentences, until=9)
    )
    assert call.named()[1] == spoke(
        "a1",
        1,
        LONG,
        [(3380, 4220)],
        state="interrupted",
        interrupted_at_ms=4220,
        committed=False,
        text_source="tts_input",
        produced_by_span_id="llm1",
    )
    assert call.steps()[0]["output"] == []
    assert call.stage.texts()[1:] == [("user", "story"), ("user", "stop"), ("assistant", "Okay.")]


def test_vt11_text_that_was_never_timed_is_not_called_heard(play: Any) -> None:
    def forget(stage: Any) -> None:
        timed = stage.parts.tts.add_word_timestamps

        async def some(word_times: list[tuple[str, float]], context_id: str | None = None) -> None:
            if word_times[0][0] != "fourteen.":
                await timed(word_times, context_id)

        stage.parts.tts.add_word_timestamps = some

    call = play(
        lambda: Script(said=[Said(1, 2, "story")], replies=STORY, at=[(0.5, forget)], until=8), clean=False
    )
    assert call.named()[1] == spoke(
        "a1", 1, LONG, [(3380, 6220)], text_source="tts_input", produced_by_span_id="llm1"
    )


def test_punctuation_that_is_timed_apart_belongs_to_its_word(play: Any) -> None:
    def split(stage: Any) -> None:
        timed = stage.parts.tts.add_word_timestamps

        async def apart(word_times: list[tuple[str, float]], context_id: str | None = None) -> None:
            ((word, at),) = word_times
            tokens = [(word.rstrip("."), at), *[(".", at)] * word.endswith("."), (" ", at)]
            await timed(tokens, context_id, pre_merge_tokens=True)

        stage.parts.tts.add_word_timestamps = apart

    call = play(lambda: Script(said=BARGE_IN, replies=STORY, at=[(0.5, split)], until=10), clean=False)
    assert call.named()[1]["text"] == "One two three four five six seven eight. Nine"


def test_an_interruption_in_the_last_word(play: Any) -> None:
    # committed when its last word began, as if it had been heard to the end (E15)
    call = play(
        lambda: Script(
            said=[Said(1, 2, "one"), Said(3.3, 4, "stop")],
            replies={"one": Reply("Fine indeed."), "*": Reply("Okay.")},
            until=7,
        )
    )
    assert ("assistant", "Fine indeed.") in call.stage.texts()
    assert call.named()[1] == spoke(
        "a1",
        1,
        "Fine",
        [(3260, 3540)],
        state="interrupted",
        interrupted_at_ms=3540,
        generated_text="Fine indeed.",
        produced_by_span_id="llm1",
    )


def test_vt10_after_a_stall_the_words_are_exact_although_the_frameworks_ran_ahead(play: Any) -> None:
    # the service hangs for 1.5 s after four words, which the speaker notices 0.8 s later
    call = play(
        lambda: Script(
            said=[Said(1, 2, "story"), Said(6, 7, "stop")],
            replies=STORY,
            tts=lambda: words(stalls={4: 1.5}),
            until=11,
        )
    )
    a1 = call.named()[1]
    assert a1 == spoke(
        "a1",
        1,
        "One two three four five six seven eight. Nine ten",
        [(3380, 4220), (5090, 6210)],
        state="interrupted",
        interrupted_at_ms=6210,
        generated_text=LONG,
        produced_by_span_id="llm1",
    )
    # 1960 ms of audio: 40 of silence, nine words of 200, and more than half of the tenth
    played_ms = sum(end - start for start, end in [(3380, 4220), (5090, 6210)])
    assert a1["text"].split() == LONG.split()[: round((played_ms - 40) / 200)]
    framework = call.stage.texts()[2][1]
    assert len(framework.split()) == 14  # all of it, by the framework's timer


def test_a_service_that_goes_quiet_has_said_only_what_was_heard(play: Any) -> None:
    call = play(
        lambda: Script(
            said=[Said(1, 2, "story")], replies=STORY, tts=lambda: words(stalls={6: 3.1}), until=12
        )
    )
    assert call.named()[1] == spoke(
        "a1",
        1,
        "One two three four five six",
        [(3380, 4620)],
        generated_text=LONG,
        produced_by_span_id="llm1",
    )
    assert call.stage.texts()[2] == ("assistant", LONG)


def test_what_is_queued_behind_a_cut_utterance_is_unplayed_with_its_text(play: Any) -> None:
    call = play(
        lambda: Script(
            at=[(0.2, say("First thing to say now")), (0.3, say("Second thing"))],
            said=[Said(0.6, 1.4, "hey")],
            until=5,
        )
    )
    assert call.named()[:2] == [
        spoke(
            "a1",
            0,
            "First thing",
            [(320, 840)],
            state="interrupted",
            interrupted_at_ms=840,
            generated_text="First thing to say now",
        ),
        spoke("a2", 1, "Second thing", [], state="unplayed", committed=False, text_source="tts_input"),
    ]


def test_what_may_not_be_interrupted_plays_to_its_end(play: Any) -> None:
    call = play(
        lambda: Script(
            at=[(0.2, say("this cannot be stopped by anybody", interruptible=False))],
            said=[Said(0.6, 1.4, "hey")],
            until=5,
        )
    )
    assert call.named() == [
        spoke("a1", 0, "this cannot be stopped by anybody", [(320, 1560)]),
        said("u1", 1, "hey", [(600, 1400)]),
        spoke("a2", 2, "Fine.", [(2640, 2880)], produced_by_span_id="llm1"),
    ]
    assert call.stage.texts()[-1] == ("assistant", "stopped by anybody Fine.")  # the framework's own


def test_vt08_a_model_cut_while_it_writes_leaves_an_unplayed_message(play: Any) -> None:
    # the half sentence that the cancelled model flushes to the service is no speech (E16)
    call = play(
        lambda: Script(
            said=BARGE_IN,
            replies={"story": Reply("One two three", hangs=True), "*": Reply("Okay.")},
            until=9,
        )
    )
    assert call.named()[2] == spoke(
        "a1",
        2,
        "One two three",
        [],
        state="unplayed",
        committed=False,
        text_source="tts_input",
        produced_by_span_id="llm1",
    )
    assert [s["output"] for s in call.steps()] == [[], ["a2"]]


# -- contexts and messages -----------------------------------------------------------------------------
def test_several_contexts_of_one_reply_are_one_message(play: Any) -> None:
    call = play(
        lambda: Script(
            said=[Said(1, 2, "story")],
            replies=STORY,
            tts=lambda: sentences(reuse_context_id_within_turn=False),
            until=8,
        )
    )
    assert len({u.context_id for u in call.stage.parts.speaker.utterances}) == 2
    a1 = call.named()[1]
    assert (a1["text"], a1["committed"], a1["produced_by_span_id"]) == (LONG, True, "llm1")
    assert len(call.named()) == 2


def test_words_that_leak_into_the_message_before_stay_in_their_own(play: Any) -> None:
    call = play(
        lambda: Script(
            at=[
                (0.2, say("One two three four.")),
                (0.25, say("Five six seven.")),
                (0.3, say("Eight nine.")),
            ],
            tts=lambda: words(lead=0),
            until=4,
        )
    )
    assert [text for _, text in call.stage.texts()[1:]] == [
        "One two three four. Five",
        "six seven. Eight",
        "nine.",
    ]
    assert call.named() == [
        spoke("a1", 0, "One two three four.", [(320, 1120)]),
        spoke("a2", 1, "Five six seven.", [(1120, 1720)]),
        spoke("a3", 2, "Eight nine.", [(1720, 2120)]),
    ]


def test_a_filler_while_the_model_writes_follows_the_reply(play: Any) -> None:
    call = play(
        lambda: Script(
            said=[Said(1, 2, "story")],
            at=[(3.2, say("Hold on."))],
            replies={"story": Reply(LONG, pace=0.1)},
            until=12,
        )
    )
    assert call.named()[1:] == [
        spoke("a1", 1, LONG, [(4020, 6860)], produced_by_span_id="llm1"),
        spoke("a2", 2, "Hold on.", [(6860, 7300)]),
    ]


def test_speech_that_stays_out_of_the_context_is_uncommitted(play: Any) -> None:
    call = play(lambda: Script(at=[(0.2, say("not for the record", append_to_context=False))], until=3))
    assert call.named() == [spoke("a1", 0, "not for the record", [(320, 1160)], committed=False)]


# -- turns of other kinds ------------------------------------------------------------------------------
def test_one_turn_may_bring_several_messages(play: Any) -> None:
    stop = (deferred, ExternalUserTurnCompletionStopStrategy)
    call = play(
        lambda: Script(
            said=[Said(1, 2, "one"), Said(5, 6, "two")],
            at=[(7.5, push(lambda _: frames.UserTurnInferenceCompletedFrame()))],
            user={
                "user_turn_stop_timeout": 6.0,
                "user_turn_strategies": UserTurnStrategies(
                    stop=[stop[0](SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=0.8)), stop[1]()]
                ),
            },
            until=10,
        )
    )
    assert call.named() == [
        said("u1", 0, "one", [(1000, 2000)], end_of_turn_ms=None),
        spoke("a1", 1, "Fine.", [(3240, 3480)], produced_by_span_id="llm1"),
        said("u2", 2, "two", [(5000, 6000)], end_of_turn_ms=7500),
        spoke("a2", 3, "Fine.", [(7240, 7480)], produced_by_span_id="llm2"),
    ]


def eager(committed: str, *, withdrawn: bool = False) -> Script:
    """A service predicts the end of a turn at 2.5 s; the turn ends at 3.25 s with this text."""
    at: list[Any] = [
        (2.0, push(lambda _: frames.ProposedUserStartedSpeakingFrame())),
        (2.5, push(lambda _: frames.EagerTranscriptionFrame("book me", "caller", ""))),
        (3.2, push(lambda _: frames.TranscriptionFrame(committed, "caller", ""))),
        (3.25, push(lambda _: frames.ProposedUserStoppedSpeakingFrame())),
    ]
    if withdrawn:
        at.append((2.9, push(lambda _: frames.EagerEndOfTurnCancelFrame())))
    strategies = UserTurnStrategies(
        start=[ExternalUserTurnStartStrategy()], stop=[EagerUserTurnStopStrategy()]
    )
    return Script(
        at=at,
        replies={"*": Reply("Booked now.")},
        user={"vad_analyzer": None, "user_turn_strategies": strategies},
        until=7,
    )


def booked(text: str) -> dict[str, Any]:
    received = {"timing_source": "local_receipt", "end_of_turn_ms": 3250, "transcript_final_ms": 3200}
    return said("u1", 0, text, [(2000, 3250)], **received)


def test_an_attempt_that_held_is_the_answer_and_named_its_user_message_before_it_was_there(play: Any) -> None:
    call = play(lambda: eager("Book me."))
    assert call.named() == [
        booked("Book me."),
        spoke("a1", 1, "Booked now.", [(3370, 3810)], produced_by_span_id="llm1"),
    ]
    assert call.steps() == [{"context": ["other", "u1"], "output": ["a1"], "speculative": False}]


@pytest.mark.parametrize("withdrawn", [False, True])
def test_an_attempt_that_was_thrown_away_writes_no_message(play: Any, withdrawn: bool) -> None:
    call = play(lambda: eager("Book me at nine", withdrawn=withdrawn))
    assert call.named() == [
        booked("Book me at nine"),
        spoke("a1", 1, "Booked now.", [(3510, 3950)], produced_by_span_id="llm2"),
    ]
    assert call.steps() == [
        {"context": ["other", None], "output": [], "speculative": True},
        {"context": ["other", "u1"], "output": ["a1"], "speculative": False},
    ]


# -- topologies ----------------------------------------------------------------------------------------
def in_parallel(parts: Parts) -> list[FrameProcessor]:
    branches = ParallelPipeline([parts.llm, parts.tts], [])
    return [parts.mic, parts.stt, parts.user, branches, parts.speaker, parts.assistant]


def test_services_in_a_parallel_branch(play: Any) -> None:
    call = play(lambda: Script(said=[Said(1, 2, "one")], shape=in_parallel, until=6))
    assert call.named() == [
        said("u1", 0, "one", [(1000, 2000)]),
        spoke("a1", 1, "Fine.", [(3240, 3480)], produced_by_span_id="llm1"),
    ]


@pytest.mark.parametrize("kind", ["llm", "tts"])
def test_a_switch_between_two_services(play: Any, kind: str) -> None:
    other: list[Any] = []

    def switched(parts: Parts) -> list[FrameProcessor]:
        if kind == "llm":
            other.append(FakeLLM({"*": Reply("Fine.")}, name="other"))
            switcher: FrameProcessor = LLMSwitcher([parts.llm, other[0]])
        else:
            other.append(words(name="other"))
            switcher = ServiceSwitcher([parts.tts, other[0]])
        return [switcher if p is getattr(parts, kind) else p for p in plain(parts)]

    call = play(
        lambda: Script(
            said=[Said(1, 2, "one"), Said(5, 6, "two")],
            at=[(4, push(lambda _: frames.ManuallySwitchServiceFrame(service=other[0])))],
            shape=switched,
            until=9,
        )
    )
    assert call.named() == [
        said("u1", 0, "one", [(1000, 2000)]),
        spoke("a1", 1, "Fine.", [(3240, 3480)], produced_by_span_id="llm1"),
        said("u2", 2, "two", [(5000, 6000)]),
        spoke("a2", 3, "Fine.", [(7240, 7480)], produced_by_span_id="llm2"),
    ]
    assert call.steps()[1]["context"] == ["other", "u1", "a1", "u2"]


def without_voice(parts: Parts) -> list[FrameProcessor]:
    return [parts.mic, parts.stt, parts.user, parts.llm, parts.assistant]


def test_a_pipeline_without_a_voice_has_unplayed_messages(play: Any) -> None:
    call = play(
        lambda: Script(
            said=[Said(1, 2, "story"), Said(3.2, 4, "stop")],
            replies={"story": Reply(LONG, pace=0.3), "*": Reply("Okay.")},
            shape=without_voice,
            until=9,
        ),
        warnings=("the pipeline has no output transport: the agent's channel is silent",),
    )
    unplayed = {"state": "unplayed", "text_source": "tts_input"}
    assert call.named() == [
        said("u1", 0, "story", [(1000, 2000)]),
        said("u2", 1, "stop", [(3200, 4000)]),
        spoke("a1", 2, "One two", [], produced_by_span_id="llm1", **unplayed),
        spoke("a2", 3, "Okay.", [], produced_by_span_id="llm2", **unplayed),
    ]
    assert [s["output"] for s in call.steps()] == [["a1"], ["a2"]]


# -- transports ----------------------------------------------------------------------------------------
class Deaf(SimOutput):
    """A transport whose peer takes nothing."""

    async def write_audio_frame(self, frame: frames.OutputAudioRawFrame) -> bool:
        await asyncio.sleep(len(frame.audio) / 2 / frame.sample_rate)
        return False


def test_vt06_audio_that_could_not_be_written_was_not_played(play: Any) -> None:
    call = play(lambda: Script(said=[Said(1, 2, "one")], speaker=lambda: Deaf(lead_ms=0), until=6))
    assert call.named()[1] == spoke(
        "a1", 1, "Fine.", [], state="unplayed", text_source="tts_input", produced_by_span_id="llm1"
    )
    assert call.stage.texts()[-1] == ("assistant", "Fine.")  # the framework counts the words as said


def test_the_livekit_transports_cleared_buffer_is_said_in_the_record(play: Any) -> None:
    params = TransportParams(
        audio_out_enabled=True, audio_out_sample_rate=24_000, audio_out_end_silence_secs=0
    )

    def speaker() -> SimOutput:
        made = type(
            "LiveKitOutputTransport", (SimOutput,), {"__module__": "pipecat.transports.livekit.transport"}
        )(lead_ms=0)
        object.__setattr__(params, "audio_out_queue_size_ms", 1000)
        made._params = params
        return made

    call = play(
        lambda: Script(said=BARGE_IN, replies=STORY, speaker=speaker, until=10),
        warnings=(
            (
                "the LiveKit transport throws its buffer away when it is interrupted: up to 1000 ms of what "
                "interrupted messages are said to have played was never heard"
            ),
        ),
    )
    assert call.named()[1]["state"] == "interrupted"


# -- several outputs -----------------------------------------------------------------------------------
class Party(SimOutput):
    """A transport with a second destination, ``b``; what is sent to both sounds at the same time."""

    def __init__(self) -> None:
        super().__init__(lead_ms=0)
        self._params.audio_out_destinations = ["b"]

    async def register_audio_destination(self, destination: str) -> None:
        pass

    async def write_audio_frame(self, frame: frames.OutputAudioRawFrame) -> bool:
        await asyncio.sleep(len(frame.audio) / 2 / frame.sample_rate)
        return True


class Route(FrameProcessor):
    """Sends every second utterance to destination ``b``."""

    def __init__(self) -> None:
        super().__init__(name="route")
        self._seen: list[str] = []

    async def process_frame(self, frame: frames.Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        context_id = getattr(frame, "context_id", None)
        if isinstance(frame, frames.TTSStartedFrame):
            self._seen.append(str(context_id))
        if context_id in self._seen[1::2]:
            frame.transport_destination = "b"
        await self.push_frame(frame, direction)


def test_what_plays_at_another_destination_than_the_recorded_one_has_bounds_and_no_selections(
    play: Any,
) -> None:
    def routed(parts: Parts) -> list[FrameProcessor]:
        return [*plain(parts)[:5], Route(), *plain(parts)[5:]]

    call = play(
        lambda: Script(
            at=[
                (0.2, say("One two three four five six seven eight nine ten")),
                (0.3, say("Eleven twelve")),
            ],
            speaker=Party,
            shape=routed,
            until=5,
        ),
        warnings=(
            (
                "the audio sent to destination 'b' is not recorded: "
                "the agent's channel holds what the default destination played"
            ),
        ),
        clips=False,
    )
    a1, a2 = call.named()
    assert a1 == spoke("a1", 0, "One two three four five six seven eight nine ten", [(320, 2360)])
    ((start, end),) = [(a2["start_ms"], a2["end_ms"])]
    assert 320 < start < end < 2360  # at the same time as the first
    # its words come after the frame that should have them appended: Pipecat's context never has them
    assert a2 == spoke("a2", 1, "Eleven twelve", [(start, end)], selections=[], committed=False)
    assert call.stage.texts()[1:] == [("assistant", a1["text"])]
    assert end - start == 440
    clip = call.call.clip(call.call.messages[0])  # nothing else is in it
    spoken = [word_samples(n) for n in range(10)]
    assert np.array_equal(clip.samples, np.concatenate([np.zeros(LEAD, np.int16), *spoken]))


def test_a_destination_that_is_not_recorded_may_be_cut_while_the_other_plays(play: Any) -> None:
    def routed(parts: Parts) -> list[FrameProcessor]:
        return [*plain(parts)[:5], Route(), *plain(parts)[5:]]

    call = play(
        lambda: Script(
            at=[
                (0.2, say("One two three four five six seven eight nine ten", interruptible=False)),
                (0.3, say("Eleven twelve thirteen fourteen fifteen sixteen seventeen")),
            ],
            said=[Said(1.4, 2, "stop")],
            speaker=Party,
            shape=routed,
            until=5,
        ),
        warnings=(
            (
                "the audio sent to destination 'b' is not recorded: "
                "the agent's channel holds what the default destination played"
            ),
        ),
        clips=False,
    )
    a1, a2 = call.named()[:2]
    assert (a1["state"], a1["end_ms"]) == ("complete", 2360)
    assert (a2["state"], a2["selections"]) == ("interrupted", [])
    assert 1600 <= a2["end_ms"] == a2["interrupted_at_ms"] <= 1680


def test_what_two_transports_play_at_once_is_one_message(tmp_path: Path) -> None:
    def twice(parts: Parts) -> list[FrameProcessor]:
        return [*plain(parts)[:6], SimOutput(lead_ms=0, name="second"), parts.assistant]

    def barge_in(**changes: Any) -> Script:
        return Script(said=BARGE_IN, replies=STORY, speaker=first, until=10, **changes)

    def first() -> SimOutput:
        return SimOutput(lead_ms=0, name="first")

    audio = {"configure": {"audio": "agent"}}
    alone = check(record(barge_in, tmp_path / "one", **audio))
    both = check(
        record(lambda: barge_in(shape=twice), tmp_path / "two", **audio),
        warnings=["the audio sent to second is not recorded: the agent's channel holds what first played"],
    )
    assert both.named() == alone.named()
