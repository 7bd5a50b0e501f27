# SPDX-License-Identifier: Apache-2.0
"""Ways to take turns, to play and to build an agent that are not the plain ones; each in a whole call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, ClassVar

import lk_script
import pytest
from livekit.agents import Agent, APIError, inference, stt, tts, utils
from livekit.agents import llm as lk_llm
from livekit.agents.inference import interruption
from livekit.agents.language import LanguageCode
from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS
from livekit.agents.voice import io
from lk_doubles import RATE, FakeLLM, FakeTTS, Reply, Said, StubbornSpeaker
from lk_script import Outcome, Script, Stage, check, run_script, said, spoke

LONGER = "Once upon a time there was a very small robot that lived on a hill with many friends"
LONG = "Once upon a time there was a very small robot that lived on a hill"
Speech = stt.SpeechEventType


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., Outcome]:
    def play(script: Script, **kwargs: Any) -> Outcome:
        kwargs.setdefault("configure", {"audio": "agent"})
        return check(run_script(script, tmp_path / "calls", **kwargs))

    return play


# -- turns by the recogniser -----------------------------------------------------------------------------
def recogniser(kind: Speech, text: str | None = None, **more: Any) -> Callable[[Stage], None]:
    """The recogniser tells something."""

    def tell(stage: Stage) -> None:
        data = (
            [] if text is None else [stt.SpeechData(language=LanguageCode("en"), text=text, confidence=0.9)]
        )
        stage.stt.ready.put_nowait(stt.SpeechEvent(type=kind, request_id="r", alternatives=data, **more))

    return tell


TWO_FRAGMENTS = [
    (1.0, recogniser(Speech.START_OF_SPEECH)),
    (2.0, recogniser(Speech.FINAL_TRANSCRIPT, "hello there")),
    (2.1, recogniser(Speech.END_OF_SPEECH)),
    (2.3, recogniser(Speech.START_OF_SPEECH)),
    (2.9, recogniser(Speech.FINAL_TRANSCRIPT, "my friend")),
    (3.0, recogniser(Speech.END_OF_SPEECH)),
]


def test_t18_a_second_fragment_does_not_begin_where_the_first_did(play: Any) -> None:
    script = Script(at=TWO_FRAGMENTS, turn={"turn_detection": "stt"}, options={"vad": None}, until=6)
    call = play(script)
    # the framework itself says that the second fragment began at 1.0 s
    stale = [line for line in call.log if "user_state_changed" in line and '"new_state": "speaking"' in line]
    assert [line.partition('"created_at": ')[2][:3] for line in stale] == ["1.0", "1.0"]
    assert call.named() == [
        said(
            "u1",
            0,
            "hello there my friend",
            [(1000, 2100), (2300, 3000)],
            timing_source="local_receipt",  # no voice detector of ours was there
            transcript_final_ms=2900,
        ),
        spoke("a1", 1, "Fine.", [(3720, 3920)], produced_by_span_id="llm1"),
    ]
    started = [e for e in call.call.events if type(e).__name__ == "UserSpeechStarted"]
    assert [(e.start_ms, e.at_ms) for e in started] == [(1000, 1000), (1000, 2300)]


def test_t18_the_receipt_bounds_each_fragment_in_the_recording(tmp_path: Path) -> None:
    script = Script(
        at=TWO_FRAGMENTS, turn={"turn_detection": "stt"}, options={"vad": None}, mic=True, until=6
    )
    call = run_script(script, tmp_path, configure={"audio": "both"})
    user = call.call.messages[0]
    assert [(s.start_ms, s.end_ms) for s in user.selections] == [(1000, 2100), (2300, 3000)]


def test_turns_by_the_recogniser_with_a_voice_detector_beside_it(play: Any) -> None:
    script = Script(said=[Said(1, 2)], at=TWO_FRAGMENTS[:3], turn={"turn_detection": "stt"}, until=6)
    assert play(script).named()[0] == said(
        "u1", 0, "hello there", [(1000, 2100)], end_of_turn_ms=2500, transcript_final_ms=2000
    )


# -- turns by hand ---------------------------------------------------------------------------------------
def commit(stage: Stage) -> None:
    stage.notes.setdefault("commits", []).append(stage.session.commit_user_turn())


def clear(stage: Stage) -> None:
    stage.session.clear_user_turn()


MANUAL = {"turn_detection": "manual"}


def test_a_turn_that_is_committed_by_hand(play: Any) -> None:
    call = play(Script(said=[Said(1, 2, "one"), Said(3, 4, "two")], turn=MANUAL, at=[(4.5, commit)], until=8))
    assert call.named() == [
        said("u1", 0, "one two", [(1000, 2000), (3000, 4000)], end_of_turn_ms=4500, transcript_final_ms=4200),
        spoke("a1", 1, "Fine.", [(4720, 4920)], produced_by_span_id="llm1"),
    ]


def test_a_turn_that_is_committed_without_a_reply(play: Any) -> None:
    def quietly(stage: Stage) -> None:
        stage.notes["commit"] = stage.session.commit_user_turn(skip_reply=True)

    call = play(Script(said=[Said(1, 2, "one")], turn=MANUAL, at=[(2.5, quietly)], until=6))
    assert call.named() == [said("u1", 0, "one", [(1000, 2000)], end_of_turn_ms=2500)]


def test_what_is_cleared_is_no_part_of_the_next_message(play: Any) -> None:
    at = [(2.5, clear), (4.5, commit)]
    call = play(Script(said=[Said(1, 2, "one"), Said(3, 4, "two")], turn=MANUAL, at=at, until=9))
    cleared, kept = call.named()[:2]
    assert (cleared["committed"], cleared["start_ms"], cleared["end_ms"]) == (False, 1000, 2000)
    assert "text" not in cleared
    assert (kept["text"], kept["start_ms"], kept["end_ms"]) == ("two", 3000, 4000)


def test_speech_that_goes_on_after_a_clear_is_the_next_message(tmp_path: Path) -> None:
    """Push to talk, pressed in the middle of a word."""
    script = Script(
        said=[Said(1, 3, "half of it")], turn=MANUAL, at=[(2, clear), (3.5, commit)], mic=True, until=8
    )
    call = run_script(script, tmp_path, configure={"audio": "both"})
    before, kept = call.call.messages[:2]
    assert (before.committed, before.start_ms, before.end_ms) == (False, 1000, 2000)
    assert (kept.committed, kept.text, kept.start_ms, kept.end_ms) == (True, "half of it", 2000, 3000)
    assert [(s.start_ms, s.end_ms) for s in kept.selections] == [(2000, 3000)]


def test_an_open_manual_turn_without_words_is_no_message_at_the_close(play: Any) -> None:
    call = play(Script(said=[Said(1, 2, "one")], turn=MANUAL, at=[(2.5, clear)], until=8))
    # the framework commits an empty item when it closes
    assert [i.raw_text_content for i in call.stage.session.history.messages()] == [""]
    assert [(m["committed"], m.get("text")) for m in call.named()] == [(False, None)]


def test_push_to_talk(play: Any) -> None:
    def press(stage: Stage) -> None:
        stage.session.interrupt()
        stage.session.clear_user_turn()
        stage.session.input.set_audio_enabled(True)

    def release(stage: Stage) -> None:
        stage.session.input.set_audio_enabled(False)
        commit(stage)

    call = play(
        Script(
            said=[Said(1.2, 2, "one"), Said(4.2, 5, "two")],
            turn=MANUAL,
            mic=True,
            at=[
                (0.1, lambda stage: stage.session.input.set_audio_enabled(False)),
                (1, press),
                (2.1, release),
                (4, press),
                (5.1, release),
            ],
            until=9,
        )
    )
    # the key is up before the detector says that the voice is gone: its last moment counts
    assert call.named() == [
        said("u1", 0, "one", [(1200, 2100)], end_of_turn_ms=2500, transcript_final_ms=2200),
        spoke("a1", 1, "Fine.", [(2720, 2920)], produced_by_span_id="llm1"),
        said("u2", 2, "two", [(4200, 5100)], end_of_turn_ms=5500, transcript_final_ms=5200),
        spoke("a2", 3, "Fine.", [(5720, 5920)], produced_by_span_id="llm2"),
    ]


# -- text that claims the turn ---------------------------------------------------------------------------
async def _type_as_a_room_does(stage: Stage) -> None:
    async with stage.session._claim_user_turn():
        await asyncio.sleep(0.5)
        stage.handles.append(stage.session.generate_reply(user_input="typed"))


def test_t17_text_that_claims_the_turn_is_not_taken_for_speech(play: Any) -> None:
    call = play(Script(at=[(1, _type_as_a_room_does)], until=5))
    assert any('"new_state": "speaking"' in line for line in call.log)
    assert call.named() == [
        said("u1", 0, "typed", [], text_source="text_input"),
        spoke("a1", 1, "Fine.", [(1720, 1920)], produced_by_span_id="llm1"),
    ]


def test_t17_voice_that_begins_while_text_has_the_turn_has_no_bounds(play: Any) -> None:
    """The framework does not tell where it began, and nothing is guessed."""
    call = play(Script(said=[Said(1.2, 3, "spoken")], at=[(1, _type_as_a_room_does)], until=8))
    users = {m["text"]: m for m in call.named() if m["role"] == "user"}
    assert "start_ms" not in users["spoken"]
    assert users["spoken"]["text_source"] == "stt"
    assert users["typed"]["text_source"] == "text_input"


# -- being there -----------------------------------------------------------------------------------------
def test_a_user_who_is_away_says_nothing(play: Any) -> None:
    call = play(Script(said=[Said(5, 6, "one")], options={"user_away_timeout": 2.0}, until=12))
    states = [line for line in call.log if "user_state_changed" in line]
    assert sum('"new_state": "away"' in line for line in states) == 2
    assert call.named() == [
        said("u1", 0, "one", [(5000, 6000)]),
        spoke("a1", 1, "Fine.", [(6720, 6920)], produced_by_span_id="llm1"),
    ]


# -- interruptions ---------------------------------------------------------------------------------------
class ScriptedDetector(inference.AdaptiveInterruptionDetector):
    """Its verdicts on overlaps, in order; in place of a service."""

    verdicts: ClassVar[list[bool]] = []

    def __init__(self) -> None:
        super().__init__(api_key="key", api_secret="secret", base_url="http://localhost")

    def _ensure_session(self) -> Any:
        return None

    def stream(self, *, conn_options: Any = DEFAULT_API_CONNECT_OPTIONS) -> Any:
        return _DetectorStream(model=self, conn_options=conn_options)


class _DetectorStream(interruption.InterruptionStreamBase):
    async def _run(self) -> None:
        windows: utils.aio.Chan[Any] = utils.aio.Chan()
        forwarding = asyncio.create_task(self._forward_data(windows))
        judged = 0
        try:
            async for _ in windows:
                if self._overlap_started and self._overlap_count > judged:
                    judged = self._overlap_count
                    if ScriptedDetector.verdicts.pop(0):
                        self._overlap_started = False
                        self.send(
                            inference.OverlappingSpeechEvent(
                                type="overlapping_speech",
                                detected_at=time.time(),
                                is_interruption=True,
                                overlap_started_at=self._overlap_started_at,
                            )
                        )
        finally:
            await utils.aio.cancel_and_wait(forwarding)


@pytest.fixture
def adaptive(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Script]:
    monkeypatch.setattr(inference, "AdaptiveInterruptionDetector", ScriptedDetector)

    def script(*verdicts: bool) -> Script:
        monkeypatch.setattr(ScriptedDetector, "verdicts", list(verdicts))
        return Script(
            said=[Said(1, 2, "story"), Said(4, 4.6, "yeah"), Said(9, 10, "thanks")],
            replies={"story": Reply(LONGER), "yeah": Reply("What"), "thanks": Reply("Sure")},
            mic=True,
            turn={"interruption": {"mode": "adaptive"}},
            until=13,
        )

    return script


def test_a_backchannel_cuts_nothing_and_is_no_message(play: Any, adaptive: Any) -> None:
    call = play(adaptive(False))
    assert any("overlapping_speech" in line for line in call.log)
    assert call.named() == [
        said("u1", 0, "story", [(1000, 2000)]),
        spoke("a1", 1, LONGER, [(2740, 6340)], produced_by_span_id="llm1"),
        said(
            "u2",
            2,
            None,
            [(4000, 4600)],
            committed=False,
            text_source=None,
            end_of_turn_ms=None,
            transcript_final_ms=None,
        ),
        said("u3", 3, "thanks", [(9000, 10_000)]),
        spoke("a2", 4, "Sure", [(10_720, 10_920)], produced_by_span_id="llm2"),
    ]


def test_an_interruption_that_a_model_recognised_cuts_at_once(play: Any, adaptive: Any) -> None:
    call = play(adaptive(True))
    cut = call.named()[1]
    assert (cut["state"], cut["interrupted_at_ms"], cut["text"]) == (
        "interrupted",
        4200,
        "Once upon a time there was a very",
    )
    assert [m["text"] for m in call.named() if m["role"] == "user"] == ["story", "yeah", "thanks"]


def test_a_word_too_short_to_interrupt_is_uncommitted_and_its_text_joins_the_next(play: Any) -> None:
    call = play(
        Script(
            said=[Said(1, 2, "story"), Said(4, 4.6, "yeah"), Said(9, 10, "thanks a lot")],
            replies={"story": Reply(LONG), "yeah thanks a lot": Reply("Sure")},
            turn={"interruption": {"min_words": 2}},
            until=13,
        )
    )
    _, word, thanks = (m for m in call.named() if m["role"] == "user")
    assert call.named()[1] == spoke("a1", 1, LONG, [(2740, 5740)], produced_by_span_id="llm1")
    assert (word["committed"], word["start_ms"], word["end_ms"]) == (False, 4000, 4600)
    assert (thanks["text"], thanks["start_ms"], thanks["end_ms"]) == ("yeah thanks a lot", 9000, 10_000)


# -- hand-offs in mid-speech -----------------------------------------------------------------------------
def hand_over(stage: Stage) -> None:
    stage.session.update_agent(Agent(instructions="second", id="second"))


def test_a_handoff_while_the_user_speaks_is_one_message_with_touching_ranges(play: Any) -> None:
    call = play(Script(said=[Said(1, 3, "please help me")], at=[(2, hand_over)], until=7))
    assert call.named() == [
        said("u1", 0, "please help me", [(1000, 3000)]),
        spoke("a1", 1, "Fine.", [(3720, 3920)], produced_by_span_id="llm1"),
    ]
    ranges = [
        (type(e).__name__, e.at_ms) for e in call.call.events if type(e).__name__.startswith("UserSpeech")
    ]
    assert [name for name, _ in ranges] == ["UserSpeechStarted", "UserSpeechStopped"] * 2


def test_a_handoff_while_the_agent_speaks_lets_it_finish(play: Any) -> None:
    call = play(
        Script(
            said=[Said(1, 2, "story"), Said(8, 9, "two")],
            replies={"story": Reply(LONG), "two": Reply("Yes")},
            at=[(3.5, hand_over)],
            until=12,
        )
    )
    assert call.named()[1] == spoke("a1", 1, LONG, [(2740, 5740)], produced_by_span_id="llm1")
    assert [(m["id"], m["text"]) for m in call.named()[2:]] == [("u2", "two"), ("a2", "Yes")]


# -- sinks that know less, or say it at another time -----------------------------------------------------
class LateSpeaker(StubbornSpeaker):
    """An avatar: it neither pauses nor reports runs, and says late that it is done."""

    def _finish(self, now: Any) -> None:
        asyncio.get_running_loop().call_later(0.8, super()._finish, now)


class EarlySpeaker(StubbornSpeaker):
    """Says that everything has played as soon as it has everything."""

    def flush(self) -> None:
        super().flush()
        now = self._now
        if now is not None and not now.over:
            self._stop(everything=True)
            now.over = True
            asyncio.get_running_loop().call_soon(self._finish, now)


class LostSpeaker(StubbornSpeaker):
    """When it is cut nobody answers, and it says that all it was given has played (T13)."""

    def on_playback_finished(self, *, playback_position: float, interrupted: bool, **more: Any) -> None:
        if interrupted:
            playback_position = self.segments[-1].sent.size / RATE
        super().on_playback_finished(playback_position=playback_position, interrupted=interrupted, **more)


def barge_in(speaker: Any) -> Script:
    return Script(
        speaker=speaker,
        said=[Said(1, 2, "go"), Said(6, 7, "story"), Said(9, 10, "stop")],
        replies={"go": Reply("Of course I will"), "story": Reply(LONG), "stop": Reply("Okay")},
        until=14,
    )


@pytest.mark.parametrize("speaker", [LateSpeaker, LostSpeaker])
def test_t13_a_sink_that_is_late_or_lost_does_not_move_a_cut(play: Any, speaker: Any) -> None:
    call = play(barge_in(speaker))
    whole, cut, after = (m for m in call.named() if m["role"] == "assistant")
    assert whole == spoke("a1", 1, "Of course I will", [(2740, 3540)], produced_by_span_id="llm1")
    assert (cut["state"], cut["start_ms"], cut["interrupted_at_ms"]) == ("interrupted", 7740, 9500)
    assert cut["end_ms"] == 9500
    assert after == spoke("a3", 5, "Okay", [(10_720, 10_920)], produced_by_span_id="llm3")


def test_a_sink_that_is_done_early_is_described_by_the_length_of_what_it_got(play: Any) -> None:
    script = Script(speaker=EarlySpeaker, said=[Said(1, 2, "go")], replies={"go": Reply(LONG)}, until=9)
    assert play(script).named()[1] == spoke("a1", 1, LONG, [(2740, 5740)], produced_by_span_id="llm1")


class UnreadySpeaker(StubbornSpeaker):
    """Takes nothing until its peer is there; a capture that is cut before leaves nothing (T12)."""

    ready = False

    async def capture_frame(self, frame: Any) -> None:
        if not self.ready:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                event = io._CaptureCancelledEvent(playback_position=0, interrupted=True)
                asyncio.get_running_loop().call_soon(self._dispatch_playback_finished, event)
                raise
        await super().capture_frame(frame)


@pytest.mark.skipif(
    not hasattr(io, "_CaptureCancelledEvent"), reason="this release has no cancelled captures"
)
def test_t12_a_capture_that_never_reached_the_sink_leaves_the_next_its_own_audio(play: Any) -> None:
    def begin(stage: Stage) -> None:
        stage.notes["lost"] = stage.session.say("Nobody hears this")

    def stop(stage: Stage) -> None:
        stage.notes["lost"].interrupt()
        stage.speaker.ready = True

    def again(stage: Stage) -> None:
        stage.notes["next"] = stage.session.say("But all of this")

    call = play(Script(speaker=UnreadySpeaker, at=[(0.5, begin), (1.5, stop), (2, again)], until=5))
    assert call.named() == [
        spoke("a1", 0, "Nobody hears this", [], state="unplayed", committed=False, text_source="tts_input"),
        spoke("a2", 1, "But all of this", [(2100, 2900)]),
    ]


def test_t15_audio_without_a_word_is_cut_without_text(play: Any) -> None:
    def begin(stage: Stage) -> None:
        stage.notes["cut"] = stage.session.say("Wonderful things to come")

    def stop(stage: Stage) -> None:
        stage.notes["cut"].interrupt()

    call = play(Script(at=[(0.5, begin), (0.65, stop)], until=4))
    assert call.stage.session.history.messages() == []
    (cut,) = call.named()
    assert (cut["committed"], cut["state"], cut["text_status"]) == (False, "interrupted", "missing")
    assert (cut["start_ms"], cut["interrupted_at_ms"]) == (600, 650)
    assert cut["generated_text"] == "Wonderful things to come"


# -- services and nodes of the application's own ---------------------------------------------------------
class BrokenLLM(FakeLLM):
    def _choose(self, chat_ctx: Any) -> Reply:
        return Reply(fails=True)


class BrokenTTS(FakeTTS):
    def stream(self, *, conn_options: Any = DEFAULT_API_CONNECT_OPTIONS) -> Any:
        return _BrokenStream(tts=self, conn_options=conn_options)


class _BrokenStream(tts.SynthesizeStream):
    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        output_emitter.initialize(
            request_id="tts", sample_rate=RATE, num_channels=1, mime_type="audio/pcm", stream=True
        )
        raise APIError("out of order", retryable=False)


class BrokenSTT(stt.STT[Any]):
    def __init__(self) -> None:
        super().__init__(
            capabilities=stt.STTCapabilities(streaming=True, interim_results=True, offline_recognize=False)
        )

    async def _recognize_impl(self, *args: Any, **kwargs: Any) -> stt.SpeechEvent:
        raise NotImplementedError

    def stream(self, *, language: Any = None, conn_options: Any = DEFAULT_API_CONNECT_OPTIONS) -> Any:
        return _BrokenRecogniser(stt=self, conn_options=conn_options)


class _BrokenRecogniser(stt.RecognizeStream):
    async def _run(self) -> None:
        raise APIError("out of order", retryable=False)


def _services(which: str, fakes: dict[str, Any]) -> Any:
    if which == "llm":
        return lk_llm.FallbackAdapter([BrokenLLM({}), fakes["llm"]])
    if which == "tts":
        return tts.FallbackAdapter([BrokenTTS(), FakeTTS()])
    return stt.FallbackAdapter([BrokenSTT(), fakes["stt"]])


@pytest.mark.parametrize("which", ["llm", "tts", "stt"])
def test_a_service_that_falls_back_to_another_is_one_step_of_one_reply(
    play: Any, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = lk_script.AgentSession

    def fallback(**options: Any) -> Any:
        return session(**{**options, which: _services(which, options)})

    monkeypatch.setattr(lk_script, "AgentSession", fallback)
    script = Script(said=[Said(1, 2, "go")], replies={"go": Reply("From the second")}, mic=True, until=7)
    call = play(script)
    user, agent = call.named()
    assert (user["text"], user["start_ms"], user["end_ms"]) == ("go", 1000, 2000)
    assert (agent["text"], agent["state"], agent["produced_by_span_id"]) == (
        "From the second",
        "complete",
        "llm1",
    )
    assert [s.name for s in call.call.llm_steps] == ["llm_node"]
    assert call.steps()[0]["output"] == ["a1"]


class Shouting(Agent):
    """What is spoken is not what the model wrote."""

    def __init__(self) -> None:
        super().__init__(instructions="Be brief.", id="agent")

    async def tts_node(self, text: Any, model_settings: Any) -> AsyncIterator[Any]:
        async def louder() -> AsyncIterator[str]:
            async for piece in text:
                yield piece.upper()

        async for frame in Agent.default.tts_node(self, louder(), model_settings):  # type: ignore[union-attr]
            yield frame


class Correcting(Agent):
    """What is shown is not what is spoken."""

    def __init__(self) -> None:
        super().__init__(instructions="Be brief.", id="agent")

    async def transcription_node(self, text: Any, model_settings: Any) -> AsyncIterator[Any]:
        async for piece in text:
            yield piece.replace("robot", "ROBOT")


@pytest.mark.parametrize(
    ("agent", "heard"),
    [
        (Shouting, "ONCE UPON A TIME THERE WAS A VERY SMALL ROBOT THAT LIVED ON A"),
        (Correcting, "Once upon a time there was a very small ROBOT that lived on"),
    ],
)
def test_nodes_of_the_application_change_what_is_heard_and_not_what_was_generated(
    play: Any, agent: Any, heard: str
) -> None:
    call = play(
        Script(
            agent=agent,
            said=[Said(1, 2, "story"), Said(5, 6, "stop")],
            replies={"story": Reply(LONG), "stop": Reply("Ok")},
            until=9,
        )
    )
    cut = call.named()[1]
    assert (cut["state"], cut["text"], cut["generated_text"]) == ("interrupted", heard, LONG)


def test_marks_that_are_not_spoken_are_generated_and_not_heard(play: Any) -> None:
    call = play(Script(said=[Said(1, 2, "go")], replies={"go": Reply("This is **bold** text")}, until=5))
    agent = call.named()[1]
    assert (agent["text"], agent["generated_text"]) == ("This is bold text", "This is **bold** text")
