# SPDX-License-Identifier: Apache-2.0
"""Calls that LiveKit records too: the real `RecorderIO`, in a job, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lk_doubles
import numpy as np
import pytest
from livekit.agents import Agent
from livekit.agents.testing import fake_job_context
from livekit.agents.voice.recorder_io import RecorderIO
from lk_doubles import Reply, Said
from lk_script import EPOCH, FrameworkLog, Outcome, Script, Stage, run_scripts
from lk_script import play as play_script

import voicetrace
from voicetrace.audio import read_channel
from voicetrace.files import CallFiles
from voicetrace.integrations.livekit import LiveKitInstrumentor
from voicetrace.messages import Channel

LATE_S = 0.3


@pytest.fixture(autouse=True)
def _late_and_loud(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder begins after the session, as it does behind a room; and Opus keeps what is said."""
    start, soft = RecorderIO.start, lk_doubles.word_samples

    async def late(self: RecorderIO, **kwargs: Any) -> None:
        await asyncio.sleep(LATE_S)
        await start(self, **kwargs)

    monkeypatch.setattr(RecorderIO, "start", late)
    monkeypatch.setattr(lk_doubles, "word_samples", lambda number: soft(number) * 100)


def script(**changes: Any) -> Script:
    usual: dict[str, Any] = {
        "said": [Said(1, 2, "hello")],
        "replies": {"hello": Reply("Nice to hear from you")},
        "mic": True,
        "start": {"record": {"audio": True, "traces": False, "logs": False, "transcript": False}},
        "until": 6,
    }
    return Script(**{**usual, **changes})


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Callable[..., Outcome]]:
    def play(one: Script, *, adopt: bool = False, audio: str = "both", **kwargs: Any) -> Outcome:
        async def main(log: FrameworkLog) -> list[Stage]:
            with fake_job_context() as job:
                try:
                    stage = await play_script(one, log)
                    file = job.session_directory / "audio.ogg"
                    stage.notes["file"] = file.read_bytes() if file.is_file() else b""
                    return [stage]
                finally:
                    job._tempdir.cleanup()  # as the job's process does when the job is over

        def adopting(instrumentor: LiveKitInstrumentor) -> None:
            instrumentor.uninstrument()
            instrumentor.__init__()  # type: ignore[misc]
            instrumentor.instrument(adopt_recording=adopt)

        configure = {"audio": audio, **kwargs.pop("configure", {})}
        return run_scripts(main, tmp_path / "calls", configure=configure, before=adopting, **kwargs)

    return play


def recorded_from(outcome: Outcome) -> int:
    """Unix ms at which LiveKit's recording began."""
    recorder = outcome.stage.session._recorder_io
    assert recorder is not None
    assert recorder.recording_started_at is not None
    return round(recorder.recording_started_at * 1000)


def test_call_ms_0_is_where_livekits_recording_begins(play: Any) -> None:
    call = play(script())
    assert recorded_from(call) == round((EPOCH + LATE_S) * 1000)
    assert call.call.origin_unix_ms == recorded_from(call)
    user, agent = call.call.messages
    assert (user.start_ms, user.end_ms) == (700, 1700)  # said at 1 s and 2 s of the script
    assert call.call.recording.origin_unix_ms == call.call.origin_unix_ms
    assert call.call.recording.format == "wav"  # ours, beside LiveKit's
    assert call.stage.notes["file"]
    assert call.call.clip(agent).duration_ms == 5 * 200
    assert not call.call.warnings


def test_livekits_file_is_adopted_where_that_was_asked_for(play: Any) -> None:
    call = play(script(), adopt=True)
    recording = call.call.recording
    assert (recording.uri, recording.format, recording.sample_rate_hz) == ("recording.ogg", "opus", 48_000)
    assert recording.channels == [Channel.CALLER, Channel.AGENT]
    assert recording.origin_unix_ms == call.call.origin_unix_ms == recorded_from(call)
    assert not call.call.warnings
    folder = call.call.recording_path().parent
    assert {p.name for p in folder.iterdir()} == {"journal.jsonl", "messages.json", "recording.ogg"}
    assert (folder / "recording.ogg").read_bytes() == call.stage.notes["file"]
    # nothing of ours was put on the sink or on the input
    assert call.stage.mic.frames > 10
    _, agent = call.call.messages
    samples = call.call.clip(agent).samples.astype(float)
    assert samples.size == 48_000  # its second of speech, and the silence around it is silent
    assert np.sqrt(np.mean(samples**2)) > 1000
    before = np.concatenate(list(read_channel(call.call.recording_path(), Channel.AGENT)))[: 48 * 2000]
    assert np.sqrt(np.mean(before.astype(float) ** 2)) < 100


def test_a_session_that_livekit_does_not_record_is_recorded_by_us(play: Any) -> None:
    call = play(script(start={"record": False}), adopt=True)
    assert call.call.recording.format == "wav"
    assert call.call.origin_unix_ms == EPOCH * 1000
    assert not call.call.warnings


class Greeter(Agent):
    async def on_enter(self) -> None:
        self.session.say("Good morning to you")


@pytest.mark.parametrize("adopt", [False, True])
def test_a_recording_that_begins_in_mid_speech_keeps_its_offset(play: Any, adopt: bool) -> None:
    one = script(agent=lambda: Greeter(instructions="x", id="agent"))
    call = play(one, adopt=adopt)
    assert call.call.origin_unix_ms == EPOCH * 1000
    assert call.call.recording.format == "wav"
    expected = ["LiveKit's own recording begins +300 ms from call-ms 0"]
    if adopt:
        expected.append("LiveKit's recording is not adopted: it does not begin at call-ms 0")
    assert list(call.call.warnings) == expected
    assert call.call.clip(call.call.messages[0]).duration_ms == 4 * 200


def test_without_a_recording_of_ours_speech_alone_keeps_the_origin_where_it_is(play: Any) -> None:
    call = play(script(agent=lambda: Greeter(instructions="x", id="agent")), audio="off")
    assert call.call.origin_unix_ms == EPOCH * 1000
    assert list(call.call.warnings) == ["LiveKit's own recording begins +300 ms from call-ms 0"]
    assert call.call.messages[0].start_ms == 100


def shout(text: str) -> str:
    return text.upper()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"audio": "agent"}, 'it has both sides, which only configure(audio="both") asks for'),
        ({"consent": "awaited"}, "it also has what is said before consent"),
        ({"redact": shout}, "what is redacted cannot be silenced in it"),
    ],
)
def test_livekits_file_is_not_kept_where_it_holds_more_than_may_be_kept(
    play: Any, options: dict[str, Any], reason: str
) -> None:
    call = play(script(), adopt=True, configure=options)
    assert f"LiveKit's recording is not adopted: {reason}" in call.call.warnings
    assert call.call.recording is None or call.call.recording.format == "wav"
    assert not list(call.directory.rglob("*.ogg"))


def test_consent_that_ends_keeps_livekits_file_out(play: Any) -> None:
    one = script(at=[(3, lambda stage: voicetrace.withdraw_consent(stage.session))])
    call = play(one, adopt=True)
    assert any("is not copied: it also has what was said without consent" in w for w in call.call.warnings)
    assert not list(call.directory.rglob("*.ogg"))


def test_a_file_that_goes_with_its_job_is_copied_all_the_same(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = CallFiles._copy_adopted

    def late(self: CallFiles, path: Path) -> Any:
        path.unlink()  # the job is over before the writer gets to it
        return copy(self, path)

    monkeypatch.setattr(CallFiles, "_copy_adopted", late)
    call = play(script(), adopt=True)
    assert not call.stage.notes["file"]
    assert not call.call.warnings
    assert call.call.clip(call.call.messages[1]).duration_ms == 1000


def test_a_file_that_was_never_there_is_said_so(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = Path("/nowhere/audio.ogg")
    monkeypatch.setattr(RecorderIO, "output_path", property(lambda self: nowhere))
    call = play(script(), adopt=True)
    (warning,) = call.call.warnings
    assert warning.startswith("the framework's recording audio.ogg is not copied: [Errno 2] No such file")
    assert call.call.ended
