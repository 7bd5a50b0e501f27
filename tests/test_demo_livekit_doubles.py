# SPDX-License-Identifier: Apache-2.0
"""The demo's doubles, each under the framework's own API, on clips of a fraction of a second."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("livekit.agents")

from livekit import rtc
from livekit.agents import APIError, llm, stt
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT
from livekit.agents.voice import TranscriptSynchronizer
from livekit.agents.voice.io import PlaybackFinishedEvent, PlaybackProgressedEvent, PlaybackStartedEvent

from voicetrace.demo.doubles_livekit import (
    RealtimeSpeaker,
    RecordedMic,
    RecordedTTS,
    ScriptedLLM,
    ScriptedSTT,
    TextSink,
)
from voicetrace.demo.line import Spoken
from voicetrace.demo.livekit_call import run_call
from voicetrace.demo.script import (
    AgentUtterance,
    RecordedClip,
    Reply,
    Samples,
    Scenario,
    ToolCall,
    Word,
    load_clip,
    tokenize,
)
from voicetrace.demo.truth import (
    AgentTruth,
    CallerTruth,
    GroundTruth,
    LLMCall,
    Segment,
    WordTruth,
    agent_truth,
)

RATE = 24_000


def ramp(samples: int, first: int = 1) -> Samples:
    """Samples that say where they come from."""
    return np.arange(first, first + samples, dtype=np.int16)


def frame(samples: Samples, rate: int = RATE) -> rtc.AudioFrame:
    return rtc.AudioFrame(samples.tobytes(), rate, 1, len(samples))


def caller_clip(samples: int = 900) -> RecordedClip:
    return RecordedClip("x", "hello", 16_000, ramp(samples), 100, samples - 100)


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Heard:
    """What a sink announced."""

    def __init__(self, sink: RealtimeSpeaker) -> None:
        self.started: list[float] = []
        self.runs: list[tuple[float, int, int]] = []
        self.finished: list[PlaybackFinishedEvent] = []
        sink.on("playback_started", self._on_started)
        sink.on("playback_progressed", self._on_progressed)
        sink.on("playback_finished", self.finished.append)

    def _on_started(self, event: PlaybackStartedEvent) -> None:
        self.started.append(event.created_at)

    def _on_progressed(self, event: PlaybackProgressedEvent) -> None:
        self.runs.append((event.started_at, round(event.offset * RATE), round(event.duration * RATE)))


# --- the microphone


async def test_mic_delivers_room_noise_in_real_time() -> None:
    room = load_clip("room")
    mic = RecordedMic(room)
    frames = []
    for count in range(1, 6):
        frames.append(np.frombuffer((await anext(mic)).data, np.int16))
        assert mic.started_unix is not None
        # a frame is never handed over before its last sample has sounded
        assert time.time() >= mic.started_unix + count * 0.01 - 0.001
    assert np.array_equal(np.concatenate(frames), room.samples[: 5 * 160])
    assert np.array_equal(mic.delivered(), room.samples[: 5 * 160])


async def test_mic_mixes_a_clip_where_it_says_it_sounds() -> None:
    room, clip = load_clip("room"), caller_clip()
    mic = RecordedMic(room)
    await anext(mic)
    assert mic.started_unix is not None
    spoken = mic.speak(clip, mic.started_unix + 0.05)
    assert spoken.start_unix == pytest.approx(mic.started_unix + 0.05, abs=1e-6)
    assert spoken.end_unix - spoken.start_unix == pytest.approx(700 / 16_000, abs=1e-6)
    for _ in range(11):
        await anext(mic)
    alone = mic.delivered() - room.samples[: 12 * 160]
    first = 800 - clip.speech_start  # 50 ms, less the silence before the speech
    assert np.array_equal(alone[first : first + 900], clip.samples)
    assert not alone[:first].any()
    assert not alone[first + 900 :].any()


async def test_mic_speaks_at_once_when_the_time_has_passed() -> None:
    mic, clip = RecordedMic(load_clip("room")), caller_clip()
    await anext(mic)
    await anext(mic)
    assert mic.started_unix is not None
    spoken = mic.speak(clip, mic.started_unix)
    assert spoken.start_unix == pytest.approx(mic.started_unix + (2 * 160 + 100) / 16_000, abs=1e-6)


async def test_mic_refuses_what_it_cannot_do() -> None:
    mic = RecordedMic(load_clip("room"))
    with pytest.raises(RuntimeError, match="not being read yet"):
        mic.speak(caller_clip(), time.time())
    await anext(mic)
    with pytest.raises(ValueError, match="24000 Hz, the line 16000 Hz"):
        mic.speak(load_clip("agent_bye"), time.time())


# --- speech to text


async def test_stt_gives_interims_then_the_final_when_due() -> None:
    service = ScriptedSTT()
    now = time.time()
    service.hear(Spoken(caller_clip(), now, now + 0.05), [("hel", 10), ("hello", 40)], "hello.", 30)
    async with service.stream() as stream:
        stream.push_frame(frame(ramp(320), 16_000))
        stream.end_input()
        events = [event async for event in stream]
    assert [(event.type, event.alternatives[0].text) for event in events] == [
        (stt.SpeechEventType.INTERIM_TRANSCRIPT, "hel"),
        (stt.SpeechEventType.INTERIM_TRANSCRIPT, "hello"),
        (stt.SpeechEventType.FINAL_TRANSCRIPT, "hello."),
    ]
    for event, after_s in zip(events, (0.01, 0.04, 0.08), strict=True):
        assert event.created_at >= now + after_s - 0.002


async def test_stt_says_nothing_of_what_has_no_words() -> None:
    service = ScriptedSTT()
    service.hear(Spoken(load_clip("cough"), time.time(), time.time()), [], None, 300)
    async with service.stream() as stream:
        stream.end_input()
        assert [event async for event in stream] == []
    with pytest.raises(NotImplementedError, match="only streams"):
        await service.recognize(frame(ramp(320), 16_000))


# --- the LLM


def model() -> ScriptedLLM:
    return ScriptedLLM(
        [
            Reply(heard="hi", text="Hello to you.", first_token_ms=1, token_ms=1),
            Reply(heard="weather?", call=ToolCall("get_weather", "{}"), first_token_ms=1),
            Reply(tool="get_weather", text="Sunny.", first_token_ms=1, token_ms=1),
        ]
    )


async def test_llm_streams_the_reply_to_the_newest_user_text() -> None:
    service, context = model(), llm.ChatContext()
    context.add_message(role="user", content="weather?", id="u1")
    context.add_message(role="assistant", content="Sunny.", id="a1")
    context.add_message(role="user", content="hi", id="u2")
    async with service.chat(chat_ctx=context) as stream:
        chunks = [chunk async for chunk in stream]
    tokens = [chunk.delta.content for chunk in chunks if chunk.delta is not None]
    assert tokens == ["Hello", " to", " you."]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3
    (call,) = service.calls
    assert (call.ordinal, call.context_item_ids, call.heard) == (0, ["u1", "a1", "u2"], "hi")
    assert (call.reply_text, call.finished) == ("Hello to you.", True)


async def test_llm_calls_the_tool_and_answers_its_result() -> None:
    service, context = model(), llm.ChatContext()
    context.add_message(role="user", content="weather?")
    response = await service.chat(chat_ctx=context).collect()
    (made,) = response.tool_calls
    assert (response.text, made.name, made.arguments) == ("", "get_weather", "{}")
    context.items.append(llm.FunctionCall(call_id=made.call_id, name=made.name, arguments=made.arguments))
    context.items.append(
        llm.FunctionCallOutput(call_id=made.call_id, name=made.name, output="22", is_error=False)
    )
    assert (await service.chat(chat_ctx=context).collect()).text == "Sunny."
    assert [(call.heard, call.tool_calls) for call in service.calls] == [
        ("weather?", ["get_weather"]),
        ("22", []),
    ]


async def test_llm_keeps_a_cancelled_call_as_unfinished() -> None:
    service = ScriptedLLM([Reply(heard="hi", text="a b", first_token_ms=1, token_ms=3_600_000)])
    context = llm.ChatContext()
    context.add_message(role="user", content="hi")
    async with service.chat(chat_ctx=context) as stream:
        await anext(stream)
    assert (service.calls[0].reply_text, service.calls[0].finished) == ("a", False)


async def test_llm_names_what_the_script_lacks() -> None:
    context = llm.ChatContext()
    with pytest.raises(LookupError, match="before anybody said anything"):
        model().chat(chat_ctx=context)
    context.add_message(role="user", content="what?")
    with pytest.raises(LookupError, match=r"no reply to 'what\?'; add a Reply"):
        model().chat(chat_ctx=context)


@pytest.mark.parametrize("text", ["", "one", "Hello to you.", "two  spaces"])
def test_tokens_join_to_the_text(text: str) -> None:
    assert "".join(tokenize(text)) == text


# --- text to speech


def voice() -> RecordedTTS:
    names = ("agent_bye", "agent_booked", "agent_greeting")
    return RecordedTTS([load_clip(name) for name in names], first_audio_ms=0, speedup=1e6)


async def collect(stream: AsyncIterable[object]) -> tuple[Samples, list[tuple[str, float, float]]]:
    audio, words = [np.zeros(0, np.int16)], []
    async for event in stream:
        audio.append(np.frombuffer(event.frame.data, np.int16))  # type: ignore[attr-defined]
        for word in event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, []):  # type: ignore[attr-defined]
            words.append((str(word), word.start_time, word.end_time))
    return np.concatenate(audio), words


async def test_tts_streams_the_recording_and_its_true_word_timings() -> None:
    clip = load_clip("agent_bye")
    async with voice().stream() as stream:
        for token in tokenize(clip.text):
            stream.push_text(token)
        stream.end_input()
        audio, words = await collect(stream)
    assert np.array_equal(audio, clip.samples)
    assert "".join(word for word, _, _ in words) == clip.text
    assert [(start, end) for _, start, end in words] == [(w.start / RATE, w.end / RATE) for w in clip.words]


async def test_tts_speaks_before_the_text_is_complete() -> None:
    clip = load_clip("agent_booked")
    async with voice().stream() as stream:
        stream.push_text("Done. The Station")
        first = await anext(stream)  # arrives though the rest of the text never does
    heard = np.frombuffer(first.frame.data, np.int16)
    assert np.array_equal(heard, clip.samples[: len(heard)])
    assert len(heard) > 0


async def test_tts_speaks_a_whole_text() -> None:
    clip = load_clip("agent_greeting")
    spoken = await voice().synthesize(clip.text).collect()
    samples = np.frombuffer(spoken.data, np.int16)
    assert np.array_equal(samples[: len(clip.samples)], clip.samples)
    # the framework marks the end of what it flushed early with 10 ms of silence
    assert len(samples) - len(clip.samples) in (0, 240)
    assert not samples[len(clip.samples) :].any()


async def test_tts_waits_while_two_recordings_fit_and_refuses_what_it_cannot_speak() -> None:
    service = RecordedTTS(
        [
            RecordedClip("a", "Yes it is", RATE, ramp(3), 0, 3, (Word("Yes", 0, 3),)),
            RecordedClip("b", "Yes it was", RATE, ramp(3), 0, 3, (Word("Yes", 0, 3),)),
        ]
    )
    assert service.find("Yes it", complete=False) is None
    found = service.find("Yes it i", complete=False)
    assert found is not None
    assert found.name == "a"
    with pytest.raises(APIError, match="no recorded speech for the text 'No'"):
        service.find("No", complete=False)
    with pytest.raises(APIError, match="no recorded speech for the text 'Yes it'"):
        service.find("Yes it", complete=True)


# --- the speaker


async def test_speaker_plays_everything_it_was_given() -> None:
    speaker = RealtimeSpeaker()
    heard = Heard(speaker)
    sent = ramp(4800)
    began = time.time()
    for start in range(0, 4800, 1100):
        await speaker.capture_frame(frame(sent[start : start + 1100]))
    speaker.flush()
    event = await speaker.wait_for_playout()
    assert time.time() - began >= 0.2 - 0.001
    (segment,) = speaker.segments
    assert np.array_equal(segment.played(), sent)
    assert np.array_equal(segment.pushed(), sent)
    assert (event.playback_position, event.interrupted) == (0.2, False)
    assert heard.started == [segment.started_unix]
    assert heard.runs == [(run.started_unix, run.offset, run.samples) for run in segment.runs]
    # the runs tile the segment in order
    assert [offset for _, offset, _ in heard.runs] == [0, *np.cumsum([n for _, _, n in heard.runs])[:-1]]
    assert sum(samples for _, _, samples in heard.runs) == 4800


async def test_speaker_pauses_and_resumes_to_the_sample() -> None:
    clock = Clock()
    speaker = RealtimeSpeaker(clock=clock)
    heard = Heard(speaker)
    began = clock.now
    await speaker.capture_frame(frame(ramp(2400)))
    speaker.flush()
    clock.now += 0.03
    speaker.pause()
    assert heard.runs == [(began, 0, 720)]
    clock.now += 5.0
    speaker.pause()
    speaker.resume()
    clock.now += 0.07  # exactly the rest
    assert (await speaker.wait_for_playout()).interrupted is False
    assert heard.runs == [(began, 0, 720), (began + 5.03, 720, 1680)]
    assert heard.started == [began]
    assert np.array_equal(speaker.segments[0].played(), ramp(2400))


async def test_speaker_clear_drops_the_rest() -> None:
    clock = Clock()
    speaker = RealtimeSpeaker(clock=clock)
    heard = Heard(speaker)
    await speaker.capture_frame(frame(ramp(2400)))
    clock.now += 0.05
    speaker.clear_buffer()
    await speaker.capture_frame(frame(ramp(2400)))  # still the cleared segment: nobody hears it
    speaker.flush()
    assert heard.finished == []  # wrappers see flush return before they see the end
    event = await speaker.wait_for_playout()
    assert (event.playback_position, event.interrupted) == (0.05, True)
    (segment,) = speaker.segments
    assert segment.interrupted
    assert np.array_equal(segment.played(), ramp(1200))
    # the next segment starts from its own zero
    await speaker.capture_frame(frame(ramp(24, 500)))
    speaker.flush()
    clock.now += 0.01
    assert (await speaker.wait_for_playout()).interrupted is False
    assert np.array_equal(speaker.segments[1].played(), ramp(24, 500))
    assert heard.runs[1][1:] == (0, 24)


async def test_speaker_cleared_while_paused_keeps_what_was_heard() -> None:
    clock = Clock()
    speaker = RealtimeSpeaker(clock=clock)
    await speaker.capture_frame(frame(ramp(4800)))
    speaker.flush()
    clock.now += 0.1
    speaker.pause()
    clock.now += 1.0
    speaker.clear_buffer()
    event = await speaker.wait_for_playout()
    assert (event.playback_position, event.interrupted) == (0.1, True)
    assert len(speaker.segments[0].runs) == 1


async def test_speaker_that_ran_dry_starts_a_new_run() -> None:
    clock = Clock()
    speaker = RealtimeSpeaker(clock=clock, prebuffer_ms=0)
    heard = Heard(speaker)
    began = clock.now
    await speaker.capture_frame(frame(ramp(240)))
    clock.now += 0.5  # 10 ms of audio, and then nothing for long
    await speaker.capture_frame(frame(ramp(240, 241)))
    speaker.flush()
    clock.now += 0.01
    await speaker.wait_for_playout()
    assert heard.runs == [(began, 0, 240), (began + 0.5, 240, 240)]


async def test_speaker_waits_for_its_prebuffer_or_the_end() -> None:
    clock = Clock()
    speaker = RealtimeSpeaker(clock=clock, prebuffer_ms=80)
    heard = Heard(speaker)
    await speaker.capture_frame(frame(ramp(240)))
    assert heard.started == []
    clock.now += 0.02
    await speaker.capture_frame(frame(ramp(1680, 241)))
    assert heard.started == [clock.now]
    speaker.flush()
    clock.now += 0.08
    await speaker.wait_for_playout()
    await speaker.capture_frame(frame(ramp(24)))
    speaker.flush()  # shorter than the prebuffer, and complete
    clock.now += 0.001
    await speaker.wait_for_playout()
    assert len(heard.started) == 2


async def test_speaker_paused_before_the_first_frame_stays_silent_until_resumed() -> None:
    clock = Clock()
    speaker = RealtimeSpeaker(clock=clock)
    heard = Heard(speaker)
    speaker.pause()
    await speaker.capture_frame(frame(ramp(2400)))
    speaker.flush()
    assert heard.started == []
    clock.now += 1.0
    speaker.resume()
    assert heard.started == [clock.now]
    clock.now += 0.1
    await speaker.wait_for_playout()


async def test_speaker_takes_the_next_segment_after_this_one_ended() -> None:
    speaker = RealtimeSpeaker()
    heard = Heard(speaker)
    for first in (1, 1000):
        await speaker.capture_frame(frame(ramp(480, first)))
        speaker.flush()
    await speaker.wait_for_playout()
    assert [segment.played()[0] for segment in speaker.segments] == [1, 1000]
    assert [event.interrupted for event in heard.finished] == [False, False]
    one, two = speaker.segments
    assert one.finished_unix is not None
    assert two.started_unix is not None
    assert two.started_unix >= one.finished_unix


async def test_speaker_ignores_clear_when_nothing_plays() -> None:
    speaker = RealtimeSpeaker()
    heard = Heard(speaker)
    speaker.clear_buffer()
    speaker.flush()
    await asyncio.sleep(0)
    assert (heard.finished, speaker.segments) == ([], [])


async def test_speaker_under_the_synchronizer_reports_the_text() -> None:
    speaker, sink = RealtimeSpeaker(), TextSink()
    synchronizer = TranscriptSynchronizer(next_in_chain_audio=speaker, next_in_chain_text=sink)
    top = synchronizer.audio_output
    assert (top.can_pause, top.sample_rate) == (True, RATE)
    await synchronizer.text_output.capture_text("Good bye.")
    synchronizer.text_output.flush()
    await top.capture_frame(frame(ramp(2400)))
    top.flush()
    event = await top.wait_for_playout()
    assert (event.synchronized_transcript, event.interrupted) == ("Good bye.", False)
    await synchronizer.aclose()
    assert sink.texts == ["Good bye."]


# --- the truth


def played(clip: RecordedClip, position: int) -> Segment:
    segment = Segment(started_unix=100.0, position=position, interrupted=position < len(clip.samples))
    segment.push(clip.samples)
    return segment


def test_truth_counts_the_words_whose_audio_was_played() -> None:
    clip = load_clip("agent_bye")
    calls = [
        LLMCall(0, 90.0, ["u1"], "bye", clip.text[:6]),  # discarded speculation
        LLMCall(1, 95.0, ["u1"], "bye", clip.text, finished=True),
        LLMCall(2, 99.0, ["u1"], "other", "Something else."),
        LLMCall(3, 101.0, ["u1"], "later", clip.text),
    ]
    third = clip.words[2]
    truth = agent_truth(AgentUtterance("agent_bye"), clip, played(clip, third.start + 10), calls)
    assert truth.heard_words() == ("Have", "a")
    assert [word.heard for word in truth.words] == ["all", "all", "part", "none", "none"]
    assert (truth.cut, truth.llm_call) == (True, 1)
    assert np.array_equal(truth.samples, clip.samples[: third.start + 10])
    whole = agent_truth(
        AgentUtterance("agent_bye", source="say"), clip, played(clip, len(clip.samples)), calls
    )
    assert (whole.cut, whole.llm_call, whole.heard_words()) == (False, None, tuple(clip.text.split()))


def test_truth_refuses_other_speech_than_the_scenarios() -> None:
    clip = load_clip("agent_bye")
    with pytest.raises(RuntimeError, match="was to speak 'agent_bye' and spoke something else"):
        agent_truth(AgentUtterance("agent_bye"), clip, played(load_clip("agent_booked"), 10), [])


def test_truth_is_json_but_for_the_samples() -> None:
    word = WordTruth("Hi", 0.1, 0.2, "all")
    agent = AgentTruth("a", "say", "Hi", RATE, ramp(3), 3, ((1.0, 0.0, 0.2),), False, (word,), None)
    truth = GroundTruth(
        "s",
        1.0,
        2.0,
        1.0,
        16_000,
        ramp(3),
        (CallerTruth("c", 1.0, 2.0, "hi", "m"),),
        (agent,),
        (LLMCall(0, 1.0, ["u"], "hi", "Hi", [], True),),
        (("m", "hi"),),
        (),
        (),
    )
    read = json.loads(json.dumps(truth.to_json()))
    assert "caller_samples" not in read
    assert "samples" not in read["agent"][0]
    assert read["agent"][0]["runs"] == [[1.0, 0.0, 0.2]]
    assert read["agent"][0]["words"] == [{"text": "Hi", "start_s": 0.1, "end_s": 0.2, "heard": "all"}]
    assert read["llm_calls"][0]["context_item_ids"] == ["u"]
    assert read["messages"] == [["m", "hi"]]


# --- the runner, on a call of one utterance


def greeting_only(**changes: Any) -> Scenario:
    agent = (AgentUtterance("agent_bye", source="say"),)
    facts = {
        "name": "short",
        "caller": (),
        "agent": agent,
        "replies": (),
        "tool_results": {},
        "hang_up_ms": 0,
    }
    return Scenario(**{**facts, **changes})


async def test_run_call_returns_what_was_played() -> None:
    sessions: list[Any] = []
    ticks: list[float] = []
    truth = await run_call(greeting_only(), on_session=sessions.append, on_tick=ticks.append)
    (agent,) = truth.agent
    clip = load_clip("agent_bye")
    assert np.array_equal(agent.samples[: len(clip.samples)], clip.samples)
    assert (agent.cut, agent.llm_call, agent.source) == (False, None, "say")
    assert agent.heard_words() == tuple(clip.text.split())
    assert [item["text"] for item in truth.items] == [clip.text]
    assert truth.framework_events[-1]["event"] == "close"
    assert truth.ended_unix - truth.started_unix >= clip.duration_s
    # the caller's line is never ahead of time
    line_s = len(truth.caller_samples) / truth.caller_rate
    assert 0 < line_s <= truth.ended_unix - truth.line_started_unix
    assert len(sessions) == 1
    assert ticks == sorted(ticks)
    assert len(ticks) >= 2
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert [task for task in left if "voicetrace/demo" in repr(task)] == []


async def test_run_call_says_what_a_stuck_call_waited_for() -> None:
    with pytest.raises(
        TimeoutError, match=r"after 0.3 s: it waited for the agent to have finished 'agent_bye'"
    ):
        await run_call(greeting_only(limit_s=0.3))
