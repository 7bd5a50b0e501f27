# SPDX-License-Identifier: Apache-2.0
"""Never hurt the call: whatever fails in voicetrace, the pipeline does exactly what it does without it.

The yardstick is everything every processor pushed in a rich call, in order and with its (virtual) times,
with a processor in voicetrace's place that does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pc_doubles import Reply, Said
from pc_record import InlineWriter, Outcome, check, leftovers, record
from pc_script import Script, say
from pc_time import run_virtually
from pipecat.frames import frames
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.llm_service import FunctionCallParams

from voicetrace import live as live_module
from voicetrace import settings
from voicetrace.audio import RecordingWriter
from voicetrace.call import CallRecorder
from voicetrace.files import CallFiles
from voicetrace.guard import MAX_FAILURES, Guard
from voicetrace.integrations.pipecat import follower as follower_module
from voicetrace.integrations.pipecat import trace as trace_module
from voicetrace.integrations.pipecat.ids import ContextIds
from voicetrace.integrations.pipecat.playout import PlayoutClock
from voicetrace.integrations.pipecat.spans import CURRENT_RUN
from voicetrace.integrations.pipecat.speech import SpeechAdapter
from voicetrace.integrations.pipecat.taps import Taps
from voicetrace.integrations.pipecat.user import UserAdapter
from voicetrace.journal import JournalWriter
from voicetrace.live import LiveCall
from voicetrace.messages import writer_problems
from voicetrace.writer import Writer


class Nothing(FrameProcessor):
    """Passes everything on, as ours does."""

    async def process_frame(self, frame: frames.Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        await self.push_frame(frame, direction)


async def weather(params: FunctionCallParams, city: str) -> None:
    """Look up the weather.

    Args:
        params: The call.
        city: Where.
    """
    await asyncio.sleep(0.3)
    await params.result_callback(f"sunny in {city}")


LONG = "One two three four five six seven eight. Nine ten eleven twelve thirteen fourteen."


def rich_call() -> Script:
    """A greeting, a split turn, tools, a barge-in, noise, queued speech that is never heard, a hang-up."""
    return Script(
        greeting="Welcome",
        said=[
            Said(1.0, 1.4, "what is", interims=((1.3, "what"),)),
            Said(1.7, 2.0, "the weather"),
            Said(4.6, 5.2, "story"),
            Said(7.0, 7.5, "stop"),
            Said(9.0, 9.4),
        ],
        tools=[weather],
        replies={
            "what is the weather": Reply("Let me look.", tools=(("weather", '{"city": "Paris"}'),)),
            "tool:weather": Reply("It is sunny."),
            "story": Reply(LONG),
            "stop": Reply(LONG),
        },
        at=[(6.9, say("and more")), (12, say(LONG))],
        until=12.6,
        ends="cancel",
    )


def nothing(_: Any) -> FrameProcessor:
    return Nothing(name="voicetrace")


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The yardstick: the call without voicetrace, the same twice."""
    once, twice = (record(rich_call, tmp_path_factory.mktemp("untouched"), voice=nothing) for _ in range(2))
    assert once.log == twice.log
    kinds = {line.split(" ")[2] for line in once.log[:-3]}
    assert kinds >= {
        "InterruptionFrame",
        "FunctionCallResultFrame",
        "TTSTextFrame",
        "LLMContextUserTurnFrame",
    }
    assert (once.calls, once.live) == ([], [])
    return once.log


def play(directory: Path, *patches: Any, audio: str = "both", **kwargs: Any) -> Outcome:
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        return record(rich_call, directory, configure={"audio": audio}, **kwargs)


# -- nothing fails: nothing changes --------------------------------------------------------------------
@pytest.mark.parametrize(("audio", "writer"), [("off", None), ("both", None), ("both", Writer)])
def test_a_followed_call_is_the_same_call(
    untouched: list[str], tmp_path: Path, audio: str, writer: type[Writer] | None
) -> None:
    call = play(tmp_path, audio=audio, writer=writer() if writer else None)
    assert call.log == untouched
    check(call, clips=False)
    states = [(m["role"], m["state"], m["committed"]) for m in call.named()]
    assert ("assistant", "interrupted", True) in states
    assert ("assistant", "unplayed", False) in states
    assert ("user", "complete", False) in states


# -- each hook of ours in turn -------------------------------------------------------------------------
HOOKS = [
    "assistant.process",
    "assistant.push",
    "call_span",
    "close",
    "detach",
    "finish",
    "interruption",
    "llm.process",
    "llm.push",
    "llm_run_closed",
    "llm_span_ended",
    "llm_span_started",
    "mic.push",
    "provider_gone",
    "speaker.push",
    "stt.push",
    "tts.process",
    "tts.push",
    "tts.request",
    "tts.words",
    "user.push",
    "user.turn",
]


def test_the_list_of_hooks_is_whole(tmp_path: Path) -> None:
    names: set[str] = set()
    wrap = Guard.wrap

    def spy(self: Guard, hook: str, function: Any) -> Any:
        names.add(hook)
        return wrap(self, hook, function)

    play(tmp_path, mock.patch.object(Guard, "wrap", spy))
    assert sorted(names) == HOOKS


def _failing(*errors: type[Exception]) -> Callable[..., Any]:
    """A function that raises these in turn."""
    turn = itertools.cycle(errors)

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise next(turn)("broken on purpose")

    return fail


def _clear(call: Outcome) -> None:
    """Each warning says what failed; twice at most for one hook."""
    assert call.warnings
    for warning in call.warnings:
        if warning == "voicetrace: a write job failed; other calls go on":
            continue  # the writer's own words
        assert "broken on purpose" in warning
        assert warning.endswith(("; the call goes on", "; it runs on, untraced"))
    hooks = [w.split("'s ")[1].split(" failed")[0] for w in call.warnings if "'s " in w]
    for hook in set(hooks):
        told = [w for w in call.warnings if f"'s {hook} failed" in w]
        assert len(told) <= 2
        if len(told) == 2:
            assert f"({MAX_FAILURES} times; it is now off for this call)" in told[1]


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_fails_every_time(untouched: list[str], tmp_path: Path, hook: str) -> None:
    wrap = Guard.wrap

    def sabotage(self: Guard, name: str, function: Any) -> Any:
        return wrap(self, name, _failing(TypeError, ValueError) if name == hook else function)

    call = play(tmp_path, mock.patch.object(Guard, "wrap", sabotage))
    assert call.log == untouched
    _clear(call)
    assert {w.split("'s ")[1].split(" failed")[0] for w in call.warnings} == {hook}
    if hook in ("close", "detach", "provider_gone"):
        return  # the record is closed, or never is
    assert call.call.ended
    assert any(f"voicetrace's {hook} failed: TypeError" in w for w in call.call.warnings)
    assert leftovers(call) == []


INNER = [
    (LiveCall, "emit"),
    (LiveCall, "close"),
    (LiveCall, "bind_span"),
    (LiveCall, "start_step"),
    (LiveCall, "now_ms"),
    (LiveCall, "precise_ms"),
    (LiveCall, "attach_loop"),
    (CallRecorder, "apply"),
    (CallFiles, "journal"),
    (CallFiles, "start_recording"),
    (CallFiles, "caller_audio"),
    (CallFiles, "agent_audio"),
    (CallFiles, "finish"),
    (trace_module, "walk"),
    (follower_module, "PipelineTrace"),
    (ContextIds, "of"),
    (PlayoutClock, "chunk"),
    (PlayoutClock, "end_run"),
    (SpeechAdapter, "tell"),
    (SpeechAdapter, "finish"),
    (Taps, "frames"),
    (Taps, "detach"),
    (UserAdapter, "message_added"),
    (JournalWriter, "__init__"),
    (RecordingWriter, "__init__"),
]


@pytest.mark.parametrize(
    ("owner", "name"), INNER, ids=[f"{o.__name__.rpartition('.')[2]}.{n}" for o, n in INNER]
)
def test_a_part_of_ours_that_fails_every_time(
    untouched: list[str], tmp_path: Path, owner: Any, name: str
) -> None:
    if owner is CallRecorder:  # the live one only, not the reader's
        broken = type("Broken", (CallRecorder,), {name: _failing(TypeError, ValueError)})
        patch = mock.patch.object(live_module, "CallRecorder", broken)
    else:
        patch = mock.patch.object(owner, name, _failing(TypeError, ValueError))
    call = play(tmp_path, patch)
    assert call.log == untouched
    if owner not in (JournalWriter, RecordingWriter):  # these say it in the record
        _clear(call)


# -- frames in any order -------------------------------------------------------------------------------
CONTEXTS = st.sampled_from(["a", "b", "c"])
STEPS = st.one_of(
    st.tuples(st.just("context"), st.booleans()),
    st.tuples(st.sampled_from(["text", "response_end", "processed", "calls"]), st.none()),
    st.tuples(st.sampled_from(["request", "words", "tts_start", "start", "stop", "spoken"]), CONTEXTS),
    st.tuples(st.sampled_from(["chunk", "interrupt", "commit", "aggregate", "drop"]), st.none()),
    st.tuples(
        st.sampled_from(
            ["vad_start", "vad_stop", "turn_start", "turn_stop", "user", "closed", "hear", "mute"]
        ),
        st.booleans(),
    ),
    st.tuples(st.just("wait"), st.integers(1, 200)),
)


@hypothesis_settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(st.lists(STEPS, max_size=40))
def test_frames_in_any_order_break_nothing(steps: list[tuple[str, Any]]) -> None:
    failures: list[Any] = []

    async def main() -> None:
        call = LiveCall(
            settings=settings.Settings(directory=None, message_records="off"),
            framework="pipecat",
            clock=lambda: asyncio.get_running_loop().time() + 1_700_000_000,
            writer=InlineWriter(),
            strict=True,
        )
        ids = ContextIds()
        world = World(call, SpeechAdapter(call, ids), UserAdapter(call, ids))
        for name, argument in steps:
            await world.do(name, argument)
        world.speech.finish(drained=bool(len(steps) % 2))
        call.close("done")
        failures.append(dict(call.guard.failures))
        for message in call.recorder.ordered():
            assert writer_problems(message) == []
            assert message.state != "open"

    run_virtually(main)
    assert failures == [{}]


class World:
    """Every hook of the adapters by name, with made-up frames."""

    def __init__(self, call: LiveCall, speech: SpeechAdapter, user: UserAdapter) -> None:
        self.call, self.speech, self.user = call, speech, user
        self.context = LLMContext([{"role": "system", "content": "x"}])
        self.aggregator: Any = mock.Mock(context=self.context)
        speech.has_tts = speech.has_assistant = True

    async def do(self, name: str, argument: Any) -> None:
        getattr(self, f"do_{name}")(argument)
        await asyncio.sleep(0.001 * argument if name == "wait" else 0)

    def run(self, frame: Any) -> Any:
        run = CURRENT_RUN.get()
        if run is not None:
            run.adapter.llm_pushes(run, frame)
        return frame

    def do_wait(self, _: Any) -> None:
        pass

    def do_context(self, attempt: bool) -> None:
        self.speech.llm_receives(frames.LLMContextFrame(self.context, speculation=attempt))
        self.run(frames.LLMFullResponseStartFrame())

    def do_text(self, _: Any) -> None:
        frame = self.run(frames.LLMTextFrame("word. "))
        self.speech.tts_receives(frame)
        self.speech.assistant_receives(frame)

    def do_calls(self, _: Any) -> None:
        self.run(frames.FunctionCallsStartedFrame([]))

    def do_response_end(self, _: Any) -> None:
        self.speech.assistant_receives(self.run(frames.LLMFullResponseEndFrame()))

    def do_processed(self, _: Any) -> None:
        self.speech.tts_ends(self.run(frames.LLMFullResponseEndFrame()))

    def do_request(self, key: str) -> None:
        self.speech.tts_requested(key, f"{key} word.", tokens=False)

    def do_words(self, key: str) -> None:
        self.speech.words_timed(key, [(key, 0.0), ("word.", 0.02)], spaced=False)

    def do_tts_start(self, key: str) -> None:
        self.speech.tts_starts(frames.TTSStartedFrame(context_id=key))

    def do_start(self, key: str) -> None:
        self.speech.output_starts(frames.TTSStartedFrame(context_id=key))

    def do_stop(self, key: str) -> None:
        self.speech.output_stops(frames.TTSStoppedFrame(context_id=key))

    def do_spoken(self, key: str) -> None:
        frame = frames.TTSTextFrame(f"{key} word.", "sentence")
        frame.context_id = key
        self.speech.assistant_receives(frame)

    def do_chunk(self, _: Any) -> None:
        self.speech.output_plays(frames.TTSAudioRawFrame(bytes(1920), 24_000, 1))

    def do_interrupt(self, _: Any) -> None:
        self.speech.interrupted(frames.InterruptionFrame())
        self.speech.assistant_receives(frames.InterruptionFrame())

    def do_commit(self, _: Any) -> None:
        self.context.add_message({"role": "assistant", "content": "word."})
        self.speech.assistant_commits(self.aggregator)

    def do_aggregate(self, _: Any) -> None:
        self.speech.assistant_receives(frames.LLMAssistantPushAggregationFrame())

    def do_drop(self, _: Any) -> None:
        self.speech.attempt_dropped()

    def do_vad_start(self, _: Any) -> None:
        self.user.vad_started(frames.VADUserStartedSpeakingFrame(start_secs=0.2, timestamp=self.now()))

    def do_vad_stop(self, _: Any) -> None:
        self.user.vad_stopped(frames.VADUserStoppedSpeakingFrame(stop_secs=0.2, timestamp=self.now()))

    def now(self) -> float:
        return asyncio.get_running_loop().time() + 1_700_000_000

    def do_turn_start(self, _: Any) -> None:
        self.user.turn_started(frames.UserStartedSpeakingFrame())

    def do_turn_stop(self, _: Any) -> None:
        self.user.turn_stopped(frames.UserStoppedSpeakingFrame())

    def do_user(self, _: Any) -> None:
        self.context.add_message({"role": "user", "content": "hey"})
        self.user.message_added(self.aggregator, frames.LLMContextUserTurnFrame(text="hey", timestamp=""))

    def do_closed(self, empty: bool) -> None:
        self.user.turn_closed("" if empty else "hey")

    def do_hear(self, final: bool) -> None:
        kind = frames.TranscriptionFrame if final else frames.InterimTranscriptionFrame
        self.user.transcribed(kind("hey", "caller", ""))

    def do_mute(self, on: bool) -> None:
        self.user.muted(frames.UserMuteStartedFrame() if on else frames.UserMuteStoppedFrame())
