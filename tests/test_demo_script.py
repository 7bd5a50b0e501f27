# SPDX-License-Identifier: Apache-2.0
"""The demo's recordings are what their catalogue says, and the scenario is consistent."""

from __future__ import annotations

import hashlib
import json
from importlib.resources import files
from itertools import pairwise

import numpy as np
import pytest

from voicetrace.demo.make_data import (
    AGENT_RATE,
    AGENT_TEXTS,
    CALLER_RATE,
    CALLER_TEXTS,
    room,
    speech_bounds,
    to_int16,
)
from voicetrace.demo.script import (
    Scenario,
    catalogue,
    load_clip,
    travel_call,
    travel_call_realtime,
    travel_call_without_resume,
)

NAMES = sorted(catalogue())
AGENT = [name for name in NAMES if name.startswith("agent_")]


@pytest.mark.parametrize("name", NAMES)
def test_clip_is_the_catalogued_one(name: str) -> None:
    facts, clip = catalogue()[name], load_clip(name)
    assert hashlib.sha256(clip.samples.astype("<i2").tobytes()).hexdigest() == facts["sha256"]
    assert (len(clip.samples), clip.sample_rate) == (facts["samples"], facts["sample_rate"])
    assert clip.samples.dtype == np.int16
    assert clip.samples.ndim == 1
    assert not clip.samples.flags.writeable
    assert clip.text == {**AGENT_TEXTS, **CALLER_TEXTS}.get(name, "")
    assert clip.sample_rate == (AGENT_RATE if name in AGENT else CALLER_RATE)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "room"])
def test_speech_bounds_are_measured_on_the_samples(name: str) -> None:
    clip = load_clip(name)
    assert (clip.speech_start, clip.speech_end) == speech_bounds(clip.samples)
    # below the threshold there may be sound, but not much of it
    outside = np.concatenate([clip.samples[: clip.speech_start], clip.samples[clip.speech_end :]])
    assert np.abs(outside).max() <= 0.02 * np.abs(clip.samples).max()
    assert 0 < clip.speech_start < clip.speech_end < len(clip.samples)


@pytest.mark.parametrize("name", AGENT)
def test_word_timings_are_true_of_the_samples(name: str) -> None:
    clip = load_clip(name)
    assert " ".join(word.text for word in clip.words) == clip.text
    silent = np.ones(len(clip.samples), dtype=bool)
    for word in clip.words:
        silent[word.start : word.end] = False
        # a word fills its range: its own first and last samples are audible
        start, end = speech_bounds(clip.samples[word.start : word.end])
        assert start < clip.sample_rate * 0.005
        assert word.end - word.start - end < clip.sample_rate * 0.005
    assert all(a.end < b.start for a, b in pairwise(clip.words))
    assert not clip.samples[silent].any()  # everything outside the words is digital silence


def test_room_noise_is_low_never_silent_and_reproducible() -> None:
    noise = load_clip("room").samples
    again, _ = room()
    assert np.array_equal(noise, again)
    assert np.abs(noise).max() < 100
    frames = noise.reshape(-1, 320)
    assert (frames.std(axis=1) > 2).all()


def test_samples_are_kept_to_twelve_bits() -> None:
    assert to_int16(np.array([1.0, -0.5, 0.25])).tolist() == [16384, -8192, 4096]


def test_all_data_is_catalogued_and_small() -> None:
    folder = files("voicetrace.demo") / "data"
    sizes = {entry.name: len(entry.read_bytes()) for entry in folder.iterdir()}
    assert set(sizes) == {facts["file"] for facts in catalogue().values()} | {"clips.json", "README.md"}
    assert sum(sizes.values()) < 700_000


def test_unknown_clip_is_named() -> None:
    with pytest.raises(LookupError, match="no demo clip 'nobody'; there are agent_booked"):
        load_clip("nobody")


@pytest.mark.parametrize(
    "scenario", [travel_call(), travel_call_without_resume(), travel_call_realtime()], ids=lambda s: s.name
)
def test_scenario_refers_to_what_exists(scenario: Scenario) -> None:
    spoken = [utterance.clip for utterance in scenario.agent]
    assert len(set(spoken)) == len(spoken)
    said: list[str] = []
    for utterance in scenario.caller:
        clip = load_clip(utterance.clip)
        assert (utterance.cue.agent is None) != (utterance.cue.caller is None)
        assert utterance.cue.agent is None or utterance.cue.agent in spoken
        assert utterance.cue.caller is None or utterance.cue.caller in said
        assert (utterance.final or "") == clip.text
        assert (utterance.final is None) == (utterance.message is None)
        for text, after_ms in utterance.interims:
            assert clip.text.startswith(text)
            speech_ms = (clip.speech_end - clip.speech_start) * 1000 / clip.sample_rate
            assert 0 < after_ms < speech_ms + utterance.final_delay_ms
        said.append(utterance.clip)


def test_every_committed_message_has_a_reply_that_was_recorded() -> None:
    scenario = travel_call()
    by_text = {reply.heard: reply for reply in scenario.replies if reply.heard}
    by_tool = {reply.tool: reply for reply in scenario.replies if reply.tool}
    replies: list[str] = []
    for _, text in scenario.messages():
        reply = by_text[text]
        if reply.call is not None:
            assert json.loads(reply.call.arguments) == {"city": "Paris"}
            assert reply.call.name in scenario.tool_results
            reply = by_tool[reply.call.name]
        replies.append(reply.text)
    spoken = [load_clip(u.clip).text for u in scenario.agent if u.source == "reply"]
    assert replies == spoken


def test_split_turn_is_one_message_and_its_pause_is_shorter_than_the_endpointing() -> None:
    scenario = travel_call()
    assert scenario.messages()[0] == ("weather", "Could you tell me what the weather is in Paris?")
    pause = scenario.caller[1].cue.delay_ms
    # the VAD must see the pause (250 ms of silence), and the turn must outlive it
    assert pause - 150 > 250
    assert pause + 250 < scenario.endpointing_ms


def test_with_a_realtime_model_each_stretch_of_speech_is_a_message() -> None:
    scenario = travel_call_realtime()
    assert scenario.messages()[:2] == (
        ("weather_1", "Could you tell me"),
        ("weather_2", "what the weather is in Paris?"),
    )
    assert ("murmur", "") in scenario.messages()  # an item that never gets a transcript
    pause = scenario.caller[1].cue.delay_ms
    assert scenario.endpointing_ms + 100 < pause  # the server tells the end of the first before the second
    # the first half is no whole turn, and gets no answer
    answered = {reply.heard for reply in scenario.replies}
    assert {text for _, text in scenario.messages() if text} - answered == {"Could you tell me"}
    assert scenario.agent[0].source == "reply"
