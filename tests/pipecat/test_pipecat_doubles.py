# SPDX-License-Identifier: Apache-2.0
"""The doubles under Pipecat's own framework: what a scripted call is, before anything records it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import numpy as np
import pytest
from pc_doubles import RATE, FakeLLM, Reply, Said, word_samples
from pc_script import (
    Outcome,
    Parts,
    Script,
    Stage,
    every_processor,
    plain,
    push,
    run_script,
    say,
    sentences,
    words,
)
from pipecat.frames import frames
from pipecat.pipeline.llm_switcher import LLMSwitcher
from pipecat.pipeline.parallel_pipeline import ParallelPipeline
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.llm_service import FunctionCallParams
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.turns.empty_user_turn import EmptyUserTurnConfig
from pipecat.turns.user_mute import AlwaysUserMuteStrategy

from virtual_time import EPOCH
from voicetrace.demo.doubles_pipecat import RecordedVoice, SimOutput, choose_reply
from voicetrace.demo.pipecat_call import run_call
from voicetrace.demo.script import AgentUtterance, Scenario, load_clip, travel_call_without_resume
from voicetrace.demo.script import Reply as DemoReply

LONG = "One two three four five six seven eight. Nine ten eleven twelve thirteen fourteen."
STORY = {"story": Reply(LONG), "*": Reply("Okay.")}


def ms(pushed: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Without the twin of a broadcast."""
    return sorted(set(pushed))


def context(call: Outcome) -> list[tuple[str, str]]:
    return call.stage.texts()[1:]


# -- turns ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("tts", [words, sentences])
def test_a_greeting_a_turn_and_its_answer(tts: Any) -> None:
    call = run_script(lambda: Script(greeting="Hi there", said=[Said(1, 2, "one")], tts=tts, until=6))
    assert context(call) == [("assistant", "Hi there"), ("user", "one"), ("assistant", "Fine.")]
    assert call.stage.played() == [([(0.12, 0.56)], False), ([(3.24, 3.48)], False)]
    assert [(c.heard, c.reply_text, c.finished) for c in call.stage.llm.calls] == [("one", "Fine.", True)]
    assert call.stage.llm.calls[0].context_item_ids == ["ctx_0", "ctx_1", "ctx_2"]
    # the VAD's bounds, once its own delays are taken off, are those of the sound
    vad = ms(call.pushed("LLMUserAggregator", "VADUserStartedSpeakingFrame", "VADUserStoppedSpeakingFrame"))
    assert vad == [(1.2, "VADUserStartedSpeakingFrame"), (2.2, "VADUserStoppedSpeakingFrame")]
    (line,) = [x for x in call.log if "1200.0 LLMUserAggregator VADUserStarted" in x][:1]
    assert f"'timestamp': {EPOCH + 1.2}" in line
    assert [s.name for s in call.spans_named("llm")] == ["llm"]
    assert [s.name for s in call.spans_named("stt")] == ["stt"]
    assert call.spans_named("conversation")[0].end_time == (EPOCH + 6) * 10**9


def test_the_commit_comes_before_the_end_with_word_times_and_after_it_without() -> None:
    for tts, at in ((words, 3.3), (sentences, 3.48)):  # 3.3: when the synthesis was done
        call = run_script(partial(Script, said=[Said(1, 2, "one")], tts=tts, until=5))
        commit = call.pushed("LLMAssistantAggregator", "LLMContextAssistantTimestampFrame")
        assert commit == [(at, "LLMContextAssistantTimestampFrame")]
        assert call.pushed("SimOutput", "TTSStoppedFrame") == [(3.48, "TTSStoppedFrame")]


def test_a_split_turn_is_one_message_with_two_stretches_of_speech() -> None:
    call = run_script(lambda: Script(said=[Said(1, 1.6, "what is"), Said(2.1, 2.9, "the weather")], until=6))
    assert context(call)[0] == ("user", "what is the weather")
    assert ms(call.pushed("LLMUserAggregator", "VADUserStartedSpeakingFrame")) == [
        (1.2, "VADUserStartedSpeakingFrame"),
        (2.3, "VADUserStartedSpeakingFrame"),
    ]
    assert ms(call.pushed("LLMUserAggregator", "UserStartedSpeakingFrame")) == [
        (1.2, "UserStartedSpeakingFrame")
    ]


def test_noise_is_a_turn_that_closes_without_a_message() -> None:
    call = run_script(lambda: Script(said=[Said(1, 1.8)], until=6))
    assert context(call) == []
    assert ms(call.pushed("LLMUserAggregator", "UserStoppedSpeakingFrame")) == [
        (4.0, "UserStoppedSpeakingFrame")
    ]


def test_noise_over_the_agent_cuts_it_and_the_framework_asks_the_llm_to_ask_again() -> None:
    call = run_script(
        lambda: Script(
            said=[Said(1, 2, "story"), Said(5, 5.8)],
            replies={"story": Reply(LONG), "unheard": Reply("Pardon me?")},
            user={"empty_user_turn": EmptyUserTurnConfig()},
            until=12,
        )
    )
    assert call.stage.played() == [([(3.38, 5.22)], True), ([(8.26, 8.7)], False)]
    assert [role for role, _ in context(call)] == ["user", "assistant", "developer", "assistant"]
    assert [c.heard for c in call.stage.llm.calls] == ["story", "unheard"]


def test_speech_too_soft_for_the_vad_is_a_turn_of_its_transcripts() -> None:
    call = run_script(lambda: Script(said=[Said(1, 2, "psst", interims=((1.5, "ps"),), vad=False)], until=6))
    assert context(call) == [("user", "psst"), ("assistant", "Fine.")]
    assert call.pushed("LLMUserAggregator", "VADUserStartedSpeakingFrame") == []
    assert ms(call.pushed("LLMUserAggregator", "UserStartedSpeakingFrame")) == [
        (1.5, "UserStartedSpeakingFrame")
    ]


def test_a_muted_user_is_not_heard() -> None:
    call = run_script(
        lambda: Script(
            greeting="One two three four five six",
            said=[Said(0.4, 1.0, "hey")],
            user={"user_mute_strategies": [AlwaysUserMuteStrategy()]},
            until=4,
        )
    )
    assert context(call) == [("assistant", "One two three four five six")]
    assert call.pushed("LLMUserAggregator", "VADUserStartedSpeakingFrame") == []
    assert call.pushed("stt", "TranscriptionFrame") == [(1.2, "TranscriptionFrame")]


# -- interruptions -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("tts", "heard"),
    [
        (words, "One two three four five six seven eight. Nine"),
        (sentences, "One two three four five six seven eight."),
    ],
)
def test_a_barge_in_cuts_at_the_chunk_that_was_playing(tts: Any, heard: str) -> None:
    call = run_script(
        lambda: Script(said=[Said(1, 2, "story"), Said(5, 6, "stop")], replies=STORY, tts=tts, until=10)
    )
    assert call.stage.played() == [([(3.38, 5.22)], True), ([(7.24, 7.48)], False)]
    assert context(call)[1] == ("assistant", heard)
    cut = call.stage.parts.speaker.utterances[0]
    spoken = np.concatenate([np.zeros(960, np.int16), *(word_samples(n) for n in range(14))])
    assert np.array_equal(cut.played(), spoken[: round(1.84 * RATE)])
    (interruption,) = [t for t, _ in ms(call.pushed("SimOutput", "InterruptionFrame")) if t > 4]
    assert interruption == 5.2  # the chunk that was being written plays on


def test_a_sentence_cut_in_its_middle_is_no_message_at_all() -> None:
    call = run_script(
        lambda: Script(said=[Said(1, 2, "story"), Said(4, 5, "stop")], replies=STORY, tts=sentences, until=9)
    )
    assert call.stage.played()[0] == ([(3.38, 4.22)], True)
    assert context(call) == [("user", "story"), ("user", "stop"), ("assistant", "Okay.")]


def test_what_is_queued_behind_a_cut_utterance_is_never_played() -> None:
    call = run_script(
        lambda: Script(
            at=[(0.2, say("First thing to say now")), (0.3, say("Second thing"))],
            said=[Said(0.6, 1.4, "hey")],
            until=5,
        )
    )
    assert call.stage.played() == [([(0.32, 0.84)], True), ([(2.64, 2.88)], False)]
    assert context(call) == [("assistant", "First thing to"), ("user", "hey"), ("assistant", "Fine.")]


def test_what_may_not_be_interrupted_plays_on() -> None:
    call = run_script(
        lambda: Script(
            at=[(0.2, say("this cannot be stopped by anybody", interruptible=False))],
            said=[Said(0.6, 1.4, "hey")],
            until=5,
        )
    )
    assert call.stage.played()[0] == ([(0.32, 1.56)], False)
    # the message is cut all the same, and its rest joins the next one
    assert context(call) == [
        ("assistant", "this cannot be"),
        ("user", "hey"),
        ("assistant", "stopped by anybody Fine."),
    ]


def test_a_model_cut_while_it_writes_flushes_half_a_sentence_to_the_voice() -> None:
    asked: list[str] = []

    def watch(stage: Stage) -> None:
        async def on_request(tts: Any, context_id: str, text: str) -> None:
            asked.append(text)

        stage.parts.tts.add_event_handler("on_tts_request", on_request)

    call = run_script(
        lambda: Script(
            said=[Said(1, 2, "story"), Said(5, 6, "stop")],
            replies={"story": Reply("One two three", hangs=True), "*": Reply("Okay.")},
            until=9,
        ),
        on_stage=watch,
    )
    assert asked == ["One two three", "Okay."]
    assert call.stage.played() == [([(7.24, 7.48)], False)]
    assert [c.finished for c in call.stage.llm.calls] == [False, True]


# -- speech --------------------------------------------------------------------------------------------
def test_a_stall_is_a_gap_in_the_playout_and_the_frameworks_words_run_ahead() -> None:
    call = run_script(
        lambda: Script(
            said=[Said(1, 2, "story")], replies=STORY, tts=lambda: words(stalls={4: 1.5}), until=10
        )
    )
    assert call.stage.played() == [([(3.38, 4.22), (5.09, 7.09)], False)]
    at = {
        word: float(line.split(" ")[0]) / 1000
        for word in ("five", "six", "fourteen.")
        for line in call.log
        if f" SimOutput TTSTextFrame {{'text': '{word}'" in line
    }
    # they sound at 5.09, 5.29 and 6.89
    assert at == {"five": 5.09, "six": 5.14, "fourteen.": 6.02}


def test_a_service_quiet_for_three_seconds_has_all_its_text_committed_unspoken() -> None:
    call = run_script(
        lambda: Script(
            said=[Said(1, 2, "story")], replies=STORY, tts=lambda: words(stalls={6: 3.1}), until=10
        )
    )
    assert call.stage.played() == [([(3.38, 4.62)], False)]
    assert context(call)[1] == ("assistant", LONG)


def test_a_first_word_at_zero_leaks_into_the_message_before() -> None:
    call = run_script(
        lambda: Script(
            at=[(0.2, say("One two three four.")), (0.25, say("Five six seven.")), (0.3, say("Eight nine."))],
            tts=lambda: words(lead=0),
            until=4,
        )
    )
    assert [text for _, text in context(call)] == ["One two three four. Five", "six seven. Eight", "nine."]
    assert [len(u.played()) for u in call.stage.parts.speaker.utterances] == [
        n * word_samples(0).size for n in (4, 3, 2)
    ]


def test_speech_that_stays_out_of_the_context_is_played() -> None:
    call = run_script(lambda: Script(at=[(0.2, say("not for the record", append_to_context=False))], until=3))
    assert call.stage.played() == [([(0.32, 1.16)], False)]
    assert context(call) == []


# -- tools and failures --------------------------------------------------------------------------------
async def weather(params: FunctionCallParams, city: str) -> None:
    """Look up the weather.

    Args:
        params: The call.
        city: Where.
    """
    await asyncio.sleep(0.5 if city == "Paris" else 1.0)
    await params.result_callback(f"sunny in {city}")


def test_two_tools_at_once_are_two_messages_edited_in_place_and_one_more_run() -> None:
    call = run_script(
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
    assert context(call) == [
        ("user", "weather"),
        ("assistant", "Let me look."),
        ("assistant", "None"),
        ("tool", '"sunny in Paris"'),
        ("assistant", "None"),
        ("tool", '"sunny in Rome"'),
        ("assistant", "It is sunny."),
    ]
    assert [c.context_item_ids[-1] for c in call.stage.llm.calls] == ["ctx_1", "ctx_6"]
    assert call.stage.llm.calls[0].tool_calls == ["weather", "weather"]


def test_a_failing_model_speaks_what_it_wrote() -> None:
    call = run_script(
        lambda: (
            Script(said=[Said(1, 2, "story")], replies={"story": Reply("One two", fails=True)}, until=6)
            if False
            else Script(
                said=[Said(1, 2, "story")],
                replies={"story": Reply("One two", fails=True), "*": Reply("Fine.")},
                until=6,
            )
        ),
        complaints=["llm exception", "PipelineWorker.*Something went wrong"],
    )
    assert context(call) == [("user", "story"), ("assistant", "One two")]
    assert len(call.complaints) == 2


# -- topologies ----------------------------------------------------------------------------------------
def in_parallel(parts: Parts) -> list[FrameProcessor]:
    return [
        parts.mic,
        parts.stt,
        parts.user,
        ParallelPipeline([parts.llm, parts.tts], []),
        parts.speaker,
        parts.assistant,
    ]


def test_services_in_a_parallel_branch() -> None:
    call = run_script(lambda: Script(said=[Said(1, 2, "one")], shape=in_parallel, until=6))
    assert context(call) == [("user", "one"), ("assistant", "Fine.")]
    assert call.stage.played() == [([(3.24, 3.48)], False)]
    assert call.stage.parts.tts in every_processor(call.stage.worker.pipeline)


def test_a_switch_between_two_models() -> None:
    other: list[FakeLLM] = []

    def switched(parts: Parts) -> list[FrameProcessor]:
        other.append(FakeLLM({"*": Reply("Other.")}, name="other"))
        switcher = LLMSwitcher([parts.llm, other[0]])
        return [switcher if p is parts.llm else p for p in plain(parts)]

    call = run_script(
        lambda: Script(
            said=[Said(1, 2, "one"), Said(5, 6, "two")],
            at=[(4, push(lambda stage: frames.ManuallySwitchServiceFrame(service=other[0])))],
            shape=switched,
            until=9,
        )
    )
    assert context(call) == [
        ("user", "one"),
        ("assistant", "Fine."),
        ("user", "two"),
        ("assistant", "Other."),
    ]
    assert [len(call.stage.llm.calls), len(other[0].calls)] == [1, 1]


# -- the ends of a call --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("ends", "last", "at"),
    [
        ("end", "EndFrame", 6.22),
        ("end_worker", "EndFrame", 6.22),
        ("stop", "StopFrame", 6.22),
        ("cancel", "CancelFrame", 4.0),
        ("cancel_worker", "CancelFrame", 4.0),
        ("cancel_runner", "CancelFrame", 4.0),
        ("cancel_task", "CancelFrame", 4.0),
    ],
)
def test_every_way_to_end_a_call_while_the_agent_speaks(ends: Any, last: str, at: float) -> None:
    call = run_script(
        lambda: Script(said=[Said(1, 2, "story")], replies=STORY, until=4, ends=ends),
        complaints=["runner-.* dangling tasks detected"] if ends == "stop" else [],
    )
    stage = call.stage
    assert [(stage.s(when), name) for when, name in stage.finished] == [(at, last)]
    (conversation,) = call.spans_named("conversation")
    assert conversation.end_time == round((EPOCH + at) * 1000) * 10**6
    if last == "CancelFrame":  # the framework says nothing about the end of the speech
        assert stage.played() == [([(3.38, 4.02)], True)]
        assert call.pushed("SimOutput", "TTSStoppedFrame", "BotStoppedSpeakingFrame") == []
        assert context(call)[-1] == ("assistant", "One two three")
    else:
        assert stage.played() == [([(3.38, 6.22)], False)]


def test_an_idle_call_is_cancelled() -> None:
    call = run_script(
        lambda: Script(until=5, ends="wait", worker={"idle_timeout_secs": 5}),
        complaints=["Idle", r"\.\.\.and cancelling the runner"],
    )
    assert [(call.stage.s(when), name) for when, name in call.stage.finished] == [(5.0, "CancelFrame")]


# -- time ----------------------------------------------------------------------------------------------
def test_a_script_is_the_same_every_time() -> None:
    def script() -> Script:
        return Script(
            greeting="Hi there",
            said=[Said(1, 2, "story"), Said(5, 6, "stop")],
            replies=STORY,
            until=9,
            frame=0.02,
        )

    first, second = run_script(script), run_script(script)
    assert first.log == second.log
    assert len(first.log) > 300


def test_no_tracing_no_spans() -> None:
    assert run_script(lambda: Script(said=[Said(1, 2, "one")], until=5, tracing=False)).spans == []


# -- the demo's own ------------------------------------------------------------------------------------
def test_a_speaker_that_is_given_its_audio_late_has_a_gap() -> None:
    def late(lead_ms: int) -> list[tuple[float, float]]:
        class Slow(SimOutput):
            async def write_audio_frame(self, frame: frames.OutputAudioRawFrame) -> bool:
                done = await super().write_audio_frame(frame)
                await asyncio.sleep(0.005)  # a loop that is busy
                return done

        call = run_script(lambda: Script(greeting="Hi", speaker=lambda: Slow(lead_ms=lead_ms), until=2))
        return call.stage.played()[0][0]

    assert late(10) == [(0.12, 0.36)]
    assert late(0) == [(round(0.12 + n * 0.045, 4), round(0.16 + n * 0.045, 4)) for n in range(6)]


def test_a_recorded_voice_speaks_a_clip_sentence_by_sentence() -> None:
    clip = load_clip("agent_bye")
    voice = RecordedVoice([clip, load_clip("agent_booked")])
    first = voice.speak("", "Have a good trip.")
    second = voice.speak(" Have a good trip.", "Goodbye.")
    assert [w.text for w in first + second] == [w.text for w in clip.words]
    assert np.array_equal(np.concatenate([w.samples for w in first + second]), clip.samples)
    assert first[0].onset == clip.words[0].start
    with pytest.raises(LookupError, match="0 recorded clips say 'Hello'"):
        voice.speak("", "Hello")


def test_the_scripted_llm_answers_the_newest_message() -> None:
    replies = travel_call_without_resume().replies
    asked = [{"role": "user", "content": "Is breakfast included?"}]
    assert choose_reply(replies, asked)[0].text == load_clip("agent_breakfast").text
    remark = [*asked, {"role": "developer", "content": "nobody understood"}]
    assert choose_reply(replies, remark)[0].text == load_clip("agent_pardon").text
    with pytest.raises(LookupError, match="no reply to"):
        choose_reply([DemoReply(heard="x")], asked)


def short(**changes: Any) -> Scenario:
    facts: dict[str, Any] = {
        "name": "short",
        "caller": (),
        "agent": (AgentUtterance("agent_bye", source="say"),),
        "replies": (),
        "tool_results": {},
        "hang_up_ms": 0,
    }
    return Scenario(**{**facts, **changes})


async def test_run_call_returns_what_was_played() -> None:
    workers: list[Any] = []
    ticks: list[float] = []
    truth = await run_call(short(), on_worker=workers.append, on_tick=ticks.append)
    (agent,) = truth.agent
    clip = load_clip("agent_bye")
    assert np.array_equal(agent.samples[: len(clip.samples)], clip.samples)
    assert (agent.cut, agent.llm_call, agent.source) == (False, None, "say")
    assert agent.generated_samples == len(clip.samples)
    assert agent.heard_words() == tuple(clip.text.split())
    assert [(item["id"], item["role"]) for item in truth.items] == [
        ("ctx_0", "assistant"),
    ]
    assert [e["event"] for e in truth.framework_events][-1] == "EndFrame"
    assert 0 < len(truth.caller_samples) / truth.caller_rate <= truth.ended_unix - truth.line_started_unix
    assert len(workers) == 1
    assert ticks == sorted(ticks)
    assert isinstance(workers[0].pipeline.processors[-1], FrameProcessor)
    assert any(isinstance(p, BaseOutputTransport) for p in every_processor(workers[0].pipeline))
    assert [t for t in asyncio.all_tasks() if t is not asyncio.current_task()] == []


async def test_run_call_says_what_a_stuck_call_waited_for() -> None:
    with pytest.raises(
        TimeoutError, match=r"after 0.3 s: it waited for the agent to have finished 'agent_bye'"
    ):
        await run_call(short(limit_s=0.3))
