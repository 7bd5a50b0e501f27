# SPDX-License-Identifier: Apache-2.0
"""Never hurt the call: whatever fails in voicetrace, the framework does exactly what it does without it.

The yardstick is everything the framework announced, committed, sent to the model and played in a rich
call, in order and with its (virtual) times, recorded without voicetrace.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from livekit.agents import Agent, RunContext, function_tool
from lk_doubles import Reply, Said
from lk_script import Outcome, Script, Stage, check, run_script
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from voicetrace import live as live_module
from voicetrace.audio import RecordingWriter
from voicetrace.call import CallRecorder
from voicetrace.files import CallFiles
from voicetrace.guard import MAX_FAILURES, Guard
from voicetrace.integrations.livekit import instrumentor as instrumentor_module
from voicetrace.integrations.livekit.playout import PlayoutAdapter
from voicetrace.integrations.livekit.session import SessionTrace
from voicetrace.journal import JournalWriter
from voicetrace.live import LiveCall
from voicetrace.otel.encode import Entries
from voicetrace.otel.links import StepLinks
from voicetrace.otel.records import MessageRecords
from voicetrace.writer import Writer


class Rich(Agent):
    def __init__(self, name: str = "first") -> None:
        super().__init__(instructions=f"You are the {name}.", id=name)

    async def on_enter(self) -> None:
        self.session.say(f"Welcome to the {self.id} agent")

    @function_tool
    async def weather(self, context: RunContext[None], city: str) -> str:
        """Look up the weather.

        Args:
            context: The run.
            city: Where.
        """
        await asyncio.sleep(0.4)
        return "sunny"

    @function_tool
    async def transfer(self, context: RunContext[None]) -> Any:
        """Hand the caller over."""
        return Rich("second")


def _stream_say(stage: Stage) -> None:
    async def words() -> Any:
        for word in ("a ", "streamed ", "text"):
            await asyncio.sleep(0.05)
            yield word

    stage.session.say(words())


def rich_call() -> Script:
    """A greeting, a split turn, a tool, barge-ins, noise, typing, a hand-off, and a hang-up."""
    return Script(
        agent=Rich,
        mic=True,
        said=[
            Said(2, 2.6, "what is", interims=((2.4, "what"),)),
            Said(3, 3.8, "the weather"),
            Said(7, 8, "a story"),
            Said(9.6, 10.4),  # noise: the story goes on
            Said(12.2, 13.3, "stop it"),
            Said(22, 23, "transfer me"),
            Said(25, 25.4),  # noise: nothing follows
            Said(30, 31, "one more story"),
        ],
        replies={
            "what is": Reply("What is what?"),
            "what is the weather": Reply("One moment", tool=("weather", '{"city": "Paris"}')),
            "tool:weather": Reply("It is sunny in Paris"),
            "a story": Reply(" ".join(["once upon a time there was a robot"] * 3)),
            "stop it": Reply("Okay"),
            "typed": Reply("I can read too"),
            "transfer me": Reply(tool=("transfer", "{}")),
            "one more story": Reply(" ".join(["there was another robot"] * 5)),
        },
        at=[
            (16, lambda stage: stage.session.generate_reply(user_input="typed") and None),
            (19, _stream_say),
            (19.1, lambda stage: stage.handles.append(stage.session.say("never heard"))),
            (19.4, lambda stage: stage.handles[0].interrupt()),
            (28, lambda stage: stage.session.clear_user_turn()),
        ],
        turn={"preemptive_generation": {"enabled": True}},
        until=33,
    )


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The yardstick: the call without voicetrace, the same twice."""
    once, twice = (
        run_script(rich_call(), tmp_path_factory.mktemp("untouched"), instrument=False) for _ in range(2)
    )
    assert once.log == twice.log
    names = {line.split(" ", 2)[1] for line in once.log}
    assert names >= {
        "speech_created",
        "agent_false_interruption",
        "function_tools_executed",
        "playback_progressed",
        "conversation_item_added",
        "close",
    }
    assert once.calls == []
    return once.log


def play(directory: Path, *patches: Any, audio: str = "both", **kwargs: Any) -> Outcome:
    @contextlib.contextmanager
    def patched() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for patch in patches:
                stack.enter_context(patch)
            yield

    # the patches stand before anything of ours is made
    with patched():
        return run_script(rich_call(), directory, configure={"audio": audio}, **kwargs)


# -- nothing fails: nothing changes ----------------------------------------------------------------------
@pytest.mark.parametrize("audio", ["off", "both"])
@pytest.mark.parametrize("writer", [None, Writer])
def test_an_instrumented_call_is_the_same_call(
    untouched: list[str], tmp_path: Path, audio: str, writer: type[Writer] | None
) -> None:
    call = play(tmp_path, audio=audio, writer=writer() if writer else None)
    assert call.log == untouched
    if writer is None:
        check(call)
    else:
        assert call.warnings == []
        assert not call.live[0].guard.failures
    states = [(m["role"], m["state"], m["committed"]) for m in call.named()]
    assert ("assistant", "interrupted", True) in states
    assert ("assistant", "unplayed", False) in states
    assert ("user", "complete", False) in states


# -- each hook of ours in turn -----------------------------------------------------------------------------
def _hooks() -> list[str]:
    """Every name under which a guard wraps a function, from a run in which nothing fails."""
    names: set[str] = set()
    wrap = Guard.wrap

    def spy(self: Guard, hook: str, function: Any) -> Any:
        names.add(hook)
        return wrap(self, hook, function)

    import tempfile

    with tempfile.TemporaryDirectory() as directory, mock.patch.object(Guard, "wrap", spy):
        run_script(rich_call(), Path(directory) / "calls", configure={"audio": "both"})
    return sorted(names)


HOOKS = [
    "agent_state_changed",
    "caller_frame",
    "capture_frame",
    "clear_user_turn",
    "close",
    "conversation_item_added",
    "detach",
    "finish",
    "flush",
    "generate_reply",
    "input_swapped",
    "llm_data",
    "llm_inference",
    "llm_node",
    "playback_finished",
    "playback_progressed",
    "playback_started",
    "provider_gone",
    "realtime_generation",
    "say",
    "say_text",
    "span_ended",
    "span_started",
    "speech_created",
    "speech_done",
    "start",
    "user_input_transcribed",
    "user_state_changed",
]


def test_the_list_of_hooks_is_whole() -> None:
    assert _hooks() == HOOKS


def _failing(*errors: type[Exception]) -> Callable[..., Any]:
    """A function that raises these in turn."""
    turn = itertools.cycle(errors)

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise next(turn)("broken on purpose")

    return fail


def _clear(call: Outcome) -> None:
    """Each warning says what failed, how, and that the call goes on; twice at most for one hook."""
    assert call.warnings
    for warning in call.warnings:
        if warning == "voicetrace: a write job failed; other calls go on":
            continue  # the writer's own words
        assert "broken on purpose" in warning
        assert warning.endswith("; the call goes on")
    hooks = [w.split("'s ")[1].split(" failed")[0] for w in call.warnings if "'s " in w]
    for hook in set(hooks):
        told = [w for w in call.warnings if f"'s {hook} failed" in w]
        assert len(told) <= 2
        if len(told) == 2:
            assert f"({MAX_FAILURES} times; it is now off for this call)" in told[1]


NOT_IN_THIS_CALL = ("provider_gone", "realtime_generation")


@pytest.mark.parametrize("hook", [h for h in HOOKS if h not in NOT_IN_THIS_CALL])
def test_a_hook_that_fails_every_time(untouched: list[str], tmp_path: Path, hook: str) -> None:
    wrap = Guard.wrap

    def sabotage(self: Guard, name: str, function: Any) -> Any:
        # TypeError is the one that the framework does not catch (T1)
        return wrap(self, name, _failing(TypeError, ValueError) if name == hook else function)

    call = play(tmp_path, mock.patch.object(Guard, "wrap", sabotage))
    assert call.log == untouched
    _clear(call)
    assert {w.split("'s ")[1].split(" failed")[0] for w in call.warnings} == {hook}
    if hook in ("start", "say", "generate_reply", "clear_user_turn", "llm_inference"):
        return  # these belong to the process, and the call may not even exist
    if hook in ("finish", "detach"):
        return  # these run when the record is already closed; the log says it
    assert call.call.ended
    assert any(f"voicetrace's {hook} failed: TypeError" in w for w in call.call.warnings)


INNER = [
    (LiveCall, "__init__"),
    (LiveCall, "emit"),
    (LiveCall, "close"),
    (LiveCall, "bind_span"),
    (LiveCall, "start_step"),
    (LiveCall, "ms"),
    (LiveCall, "now_ms"),
    (LiveCall, "precise_ms"),
    (LiveCall, "attach_loop"),
    (LiveCall, "_publish"),
    (LiveCall, "_arm_deadline"),
    (CallRecorder, "apply"),
    (CallFiles, "__init__"),
    (CallFiles, "journal"),
    (CallFiles, "sync"),
    (CallFiles, "start_recording"),
    (CallFiles, "caller_audio"),
    (CallFiles, "agent_audio"),
    (CallFiles, "finish"),
    (Entries, "put"),
    (Entries, "fragments"),
    (live_module, "set_call_attributes"),
    (live_module, "call_attributes"),
    (MessageRecords, "emit"),
    (StepLinks, "expect"),
    (StepLinks, "expect_call"),
    (StepLinks, "resolve"),
    (SessionTrace, "__init__"),
    (SessionTrace, "started"),
    (SessionTrace, "finish"),
    (SessionTrace, "detach"),
    (SessionTrace, "current_key"),
    (SessionTrace, "_watch_output"),
    (SessionTrace, "_tap_input"),
    (SessionTrace, "_tell_text"),
    (PlayoutAdapter, "follow"),
    (PlayoutAdapter, "leave"),
    (PlayoutAdapter, "_tap"),
    (PlayoutAdapter, "_record"),
    (instrumentor_module, "content_allowed"),
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
    elif (owner, name) == (LiveCall, "__init__"):  # run_script wraps it to remember the calls
        patch = mock.patch.object(instrumentor_module, "LiveCall", _failing(TypeError, ValueError))
    else:
        patch = mock.patch.object(owner, name, _failing(TypeError, ValueError))
    call = play(tmp_path, patch)
    assert call.log == untouched
    _clear(call)


# -- the disk ------------------------------------------------------------------------------------------------
def _refusing(real: Any, after: int) -> Any:
    """The system call, until the disk is full."""
    count = 0

    def write(fd: int, data: Any, *rest: Any) -> int:
        nonlocal count
        count += 1
        if count > after:
            raise OSError(errno.ENOSPC, "No space left on device")
        return int(real(fd, data, *rest))

    return write


@pytest.mark.parametrize("after", [0, 1, 40])
@pytest.mark.parametrize("writer", [None, Writer])
def test_a_full_disk(untouched: list[str], tmp_path: Path, after: int, writer: type[Writer] | None) -> None:
    patches = [mock.patch.object(os, n, _refusing(getattr(os, n), after)) for n in ("write", "pwrite")]
    call = play(tmp_path, *patches, writer=writer() if writer else None)
    assert call.log == untouched
    (live,) = call.live
    said = [w for w in live.recorder.warnings if "No space left on device" in w]
    assert len([w for w in said if w.startswith("the journal in")]) == 1
    assert live.recorder.ended
    assert len(live.recorder.messages) > 8
    # the call span has it all, and says what is missing
    attributes = call.span("agent_session").attributes or {}
    assert "voice.messages" in attributes
    assert any("journal" in w for w in attributes["voice.warnings"])  # type: ignore[union-attr]


def test_a_directory_that_cannot_be_made(untouched: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    call = play(tmp_path / "file" / "calls")
    assert call.log == untouched
    (live,) = call.live
    assert [w for w in live.recorder.warnings if "journal" in w and "could not be written" in w]
    assert [w for w in live.recorder.warnings if "the call is not recorded" in w]
    assert not live.guard.failures


@pytest.mark.parametrize("owner", [JournalWriter, RecordingWriter])
@pytest.mark.parametrize("error", [OSError, TypeError])
def test_a_file_that_cannot_be_opened(
    untouched: list[str], tmp_path: Path, owner: Any, error: type[Exception]
) -> None:
    call = play(tmp_path, mock.patch.object(owner, "__init__", _failing(error)))
    assert call.log == untouched
    assert call.live[0].recorder.ended
    missing = "journal" if owner is JournalWriter else "recorded"
    assert [w for w in call.live[0].recorder.warnings if missing in w]


# -- exporters -----------------------------------------------------------------------------------------------
class BrokenExporter(SpanExporter):
    def __init__(self, how: str) -> None:
        self.how = how

    def export(self, spans: Any) -> SpanExportResult:
        if self.how == "raises":
            raise ConnectionError("broken on purpose")
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        if self.how == "raises":
            raise ConnectionError("broken on purpose")


@pytest.mark.parametrize("how", ["raises", "refuses"])
def test_an_exporter_that_fails_does_not_reach_the_call(
    untouched: list[str], tmp_path: Path, how: str
) -> None:
    call = play(tmp_path, exporter=BrokenExporter(how))
    assert call.log == untouched
    assert len([w for w in call.warnings if "further failures are counted only" in w]) == 1
    assert call.call.ended
    assert call.call.warnings == ()
    assert not call.live[0].guard.failures


# -- versions ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", ["1.7.0", "1.8.5", "1.9.0", "2.0.0rc1", "unknown"])
def test_an_untested_version_uses_the_public_hooks_only(
    untouched: list[str], tmp_path: Path, version: str
) -> None:
    call = play(tmp_path, mock.patch.object(instrumentor_module.package, "installed", return_value=version))
    assert call.log == untouched
    (warning,) = call.warnings
    assert f"livekit-agents {version} is not among the versions" in warning
    told = [(m["role"], m["state"], m.get("text")) for m in call.named()]
    reference = run_script(rich_call(), tmp_path / "known", configure={"audio": "both"})
    known = [(m["role"], m["state"], m.get("text")) for m in reference.named()]
    # a reply cut before its first sound never told its text by a public hook; all else is the same
    assert [t for t in told if t[1] != "unplayed"] == [k for k in known if k[1] != "unplayed"]
    assert [s["speculative"] for s in call.steps()] == [s["speculative"] for s in reference.steps()]
    spoken = [m.text for s in call.call.llm_steps for m in map(call.call.message, s.output_ids)]
    assert spoken == [
        m.text for s in reference.call.llm_steps for m in map(reference.call.message, s.output_ids)
    ]
    assert call.call.framework_version == version
    assert not call.live[0].guard.failures


def test_a_changed_private_function_is_left_alone(untouched: list[str], tmp_path: Path) -> None:
    call = play(tmp_path, mock.patch.object(instrumentor_module, "takes_keywords", return_value=False))
    assert call.log == untouched
    first, second = call.warnings
    assert "changed perform_llm_inference" in first
    assert "changed _realtime_generation_task" in second


# -- what must pass ------------------------------------------------------------------------------------------
def test_cancellation_is_not_ours_to_keep() -> None:
    guard = Guard()

    def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        guard.wrap("hook", cancelled)()
    assert not guard.failures


def test_the_application_sees_its_own_errors(tmp_path: Path) -> None:
    """What the framework raises to its caller is raised with voicetrace too."""

    def too_early(stage: Stage) -> None:
        with pytest.raises(RuntimeError, match="isn't running"):
            stage.session.say("too late")

    async def close_and_say(stage: Stage) -> None:
        await stage.session.aclose()
        too_early(stage)

    check(run_script(Script(at=[(1, close_and_say)], until=3), tmp_path))
