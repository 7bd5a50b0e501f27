# SPDX-License-Identifier: Apache-2.0
"""VT-70: a redactor hook on text, and the matching mute on audio."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import soundfile

import voicetrace
from voicetrace import events as ev
from voicetrace.agentclash import export_bundle, validate_bundle
from voicetrace.audio import RecordingError
from voicetrace.call.recording import MUTE_AROUND_MS
from voicetrace.journal import FILE_NAME, read_journal_call
from voicetrace.messages import Channel, TextSource, TimingSource
from voicetrace.recovery import recover
from voicetrace.settings import Settings
from voicetrace.testing import RATE_HZ, ScriptedCall, scripted_call
from voicetrace.voice_call import VoiceCall

RUN = "6f1c2b1e-8f43-4e52-9d3c-0d8a4f6f1a01"


def no_numbers(text: str) -> str:
    return "".join("#" if c.isdigit() else c for c in text)


def a_call(directory: Path, **options: object) -> ScriptedCall:
    script = scripted_call(directory, redact=no_numbers, **options)  # type: ignore[arg-type]
    script.user("My card is 4929.", 1000, 3000)
    script.agent("Thank you.", 4000, 5000)
    script.user("Nothing secret.", 6000, 7000)
    script.agent("Your card 4929 is blocked.", 8000, 10_000, heard="Your card 4929")
    return script


def loud(recording: Path, channel: int) -> list[tuple[int, int]]:
    """The stretches of a channel that are not silent, in ms to the nearest 100."""
    pcm, rate = soundfile.read(recording, dtype="int16")
    blocks = (
        np.abs(pcm[: len(pcm) // (rate // 10) * (rate // 10), channel]).reshape(-1, rate // 10).max(axis=1)
    )
    edges = np.flatnonzero(np.diff(np.concatenate(([0], (blocks > 0).astype(int), [0])))) * 100
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def test_vt70_the_audio_of_what_was_redacted_is_silenced(tmp_path: Path) -> None:
    call = a_call(tmp_path).finish(11_000)
    assert [m.text for m in call.messages] == [
        "My card is ####.",
        "Thank you.",
        "Nothing secret.",
        "Your card ####",
    ]
    (recording,) = tmp_path.rglob("recording.wav")
    assert loud(recording, 0) == [(6000, 7000)]
    assert loud(recording, 1) == [(4000, 5000)]
    assert [len(m.selections) for m in call.messages] == [0, 1, 1, 0]
    # the bounds are still known
    assert [(m.start_ms, m.end_ms) for m in call.messages] == [
        (1000, 3000),
        (4000, 5000),
        (6000, 7000),
        (8000, 10_000),
    ]
    assert "the audio of messages whose text was redacted is silenced" in call.warnings


SUFFIX = {"flac": "recording.flac", "opus": "recording.o*"}


@pytest.mark.parametrize("form", ["flac", "opus"])
def test_what_is_encoded_is_what_was_muted(tmp_path: Path, form: str) -> None:
    call = a_call(tmp_path, recording_format=form).finish(11_000)
    assert call.recording is not None
    assert call.recording.format == form
    pcm, rate = soundfile.read(next(tmp_path.rglob(SUFFIX[form])))
    assert np.abs(pcm[rate : 3 * rate, 0]).max() < 0.001
    assert np.abs(pcm[6 * rate : 7 * rate, 0]).max() > 0.1


def test_a_redactor_that_fails_mutes_too(tmp_path: Path) -> None:
    def broken(text: str) -> str:
        raise RuntimeError("no model")

    script = scripted_call(tmp_path, redact=broken)
    script.user("My card is 4929.", 1000, 3000)
    call = script.finish(4000)
    assert call.messages[0].text is None
    (recording,) = tmp_path.rglob("recording.wav")
    assert loud(recording, 0) == []


def test_audio_that_still_waits_to_be_written_is_muted_as_well(tmp_path: Path) -> None:
    """The writer holds a late caller's frames for a moment; a mute may come before them."""
    script = scripted_call(tmp_path, redact=no_numbers)
    live = script.live
    tone = np.full(RATE_HZ // 50, 9000, np.int16)
    live.files.mute(Channel.CALLER, 1000, 2000)
    for k in range(150):
        live.files.caller_audio((k + 1) * 20.0, tone.tobytes(), RATE_HZ, 1)
    script.finish(3000)
    (recording,) = tmp_path.rglob("recording.wav")
    assert loud(recording, 0) == [(0, 1000), (2000, 3000)]


def test_a_mute_that_a_crash_forestalled_is_done_by_recover(tmp_path: Path) -> None:
    call = a_call(tmp_path).finish(11_000)
    (journal,) = tmp_path.rglob(FILE_NAME)
    (recording,) = tmp_path.rglob("recording.wav")
    lines = journal.read_bytes().splitlines(keepends=True)
    end = next(i for i, line in enumerate(lines) if b'"CallEnded"' in line)
    journal.write_bytes(b"".join(lines[:end]))
    (journal.parent / "messages.json").unlink()
    pcm, rate = soundfile.read(recording, dtype="int16")
    pcm[rate : 3 * rate, 0] = 9000  # as if the process had died before it could mute
    header = recording.read_bytes()[:44]
    recording.write_bytes(header + pcm.tobytes())
    recover(tmp_path)
    assert loud(recording, 0) == [(6000, 7000)]
    assert call.recording is not None


def tell(script: ScriptedCall, at_ms: int, event: type[ev.Event], **facts: Any) -> None:
    script.clock.set_ms(at_ms)
    script.live.emit(event(at_ms=at_ms, **facts))


def tone(ms: int) -> bytes:
    return np.full(RATE_HZ * ms // 1000, 9000, np.int16).tobytes()


def test_a_neighbour_is_selected_where_it_can_be_heard(tmp_path: Path) -> None:
    """What is silenced around a message may be another's: its clip is then as long as its sound."""
    script = scripted_call(tmp_path, redact=no_numbers)
    script.agent("Number 4929.", 1000, 2000)
    script.agent("Right?", 2100, 3000)
    call = script.finish(4000)
    number, right = call.messages
    assert not number.selections
    [selection] = right.selections
    assert (right.start_ms, selection.start_ms, selection.end_ms) == (2100, 2000 + MUTE_AROUND_MS, 3000)
    clip = call.clip(right)
    assert np.abs(clip.samples[:24]).max() > 500
    assert clip.duration_ms == 3000 - 2000 - MUTE_AROUND_MS


def test_a_neighbour_that_was_written_before_is_written_again(tmp_path: Path) -> None:
    script = scripted_call(tmp_path, redact=no_numbers)
    script.user("Nothing.", 1000, 2000)
    script.user("4929", 2050, 3000)
    call = script.finish(4000)
    assert [(s.start_ms, s.end_ms) for s in call.messages[0].selections] == [(1000, 2050 - MUTE_AROUND_MS)]
    assert [m.selections for m in voicetrace.read_calls(script.spans())[0].messages] == [
        m.selections for m in call.messages
    ]


@pytest.mark.parametrize("content", ["none", "full"])
def test_text_that_is_not_kept_is_judged_for_its_audio(
    tmp_path: Path, content: Literal["none", "full"]
) -> None:
    """Neither without content, nor when the transcript comes after consent was withdrawn."""
    script = scripted_call(tmp_path, redact=no_numbers, content=content)
    tell(script, 1000, ev.UserSpeechStarted, start_ms=1000, source=TimingSource.LOCAL_VAD)
    for k in range(50):
        script.live.files.caller_audio(1000 + (k + 1) * 20.0, tone(20), RATE_HZ, 1)
    tell(script, 2000, ev.UserSpeechStopped, end_ms=2000, source=TimingSource.LOCAL_VAD)
    if content == "full":
        script.consent(2100, given=False)
    tell(script, 2200, ev.UserTranscript, text="4929", final=True, source=TextSource.STT)
    call = script.finish(4000)
    assert call.messages[0].text is None
    assert loud(next(tmp_path.rglob("recording.wav")), 0) == []
    assert "4929" not in next(tmp_path.rglob(FILE_NAME)).read_text()


def test_speech_of_unknown_place_is_said_to_be_still_there(tmp_path: Path) -> None:
    script = scripted_call(tmp_path, redact=no_numbers)
    tell(script, 1000, ev.UserMessageAdded, item_id="u", text="4929", source=TextSource.STT)
    tell(script, 1100, ev.UserMessageAdded, item_id="v", text="4929", source=TextSource.TEXT_INPUT)
    warnings = script.finish(2000).warnings
    assert "message u: where it was said is not known, so its audio is not silenced" in warnings
    assert not any("message v" in w for w in warnings)


def killed_at(directory: Path, event: str) -> tuple[Path, Path]:
    """Leave a finished call as a process leaves it that was killed just before this event."""
    (journal,) = directory.rglob(FILE_NAME)
    (recording,) = directory.rglob("recording.wav")
    lines = journal.read_bytes().splitlines(keepends=True)
    end = next(i for i, line in enumerate(lines) if f'"{event}"'.encode() in line)
    journal.write_bytes(b"".join(lines[:end]))
    (journal.parent / "messages.json").unlink()
    return journal, recording


@pytest.mark.parametrize("who", ["user", "agent", "agent with runs"])
def test_what_was_being_said_when_the_process_died_is_silenced_by_recover(tmp_path: Path, who: str) -> None:
    script = scripted_call(tmp_path, redact=no_numbers)
    files = script.live.files
    if who == "user":
        tell(script, 1000, ev.UserSpeechStarted, start_ms=1000, source=TimingSource.LOCAL_VAD)
        for k in range(100):
            files.caller_audio(1000 + (k + 1) * 20.0, tone(20), RATE_HZ, 1)
        tell(script, 2900, ev.UserTranscript, text="4929", final=False, source=TextSource.STT)
    else:
        tell(script, 1000, ev.SpeechCreated, speech_id="s", origin="reply")
        tell(script, 1000, ev.SpeechText, speech_id="s", text="4929", source=TextSource.TTS_INPUT)
        tell(script, 1000, ev.PlayoutStarted, speech_id="s", start_ms=1000)
        files.agent_audio(1000, tone(2000), RATE_HZ, 1)
        if who == "agent with runs":
            tell(script, 1500, ev.PlayoutRun, speech_id="s", start_ms=1000, end_ms=1500)
    script.finish(3000)
    journal, recording = killed_at(tmp_path, "CallEnded")
    header, loudly = recording.read_bytes()[:44], np.zeros((3 * RATE_HZ, 2), np.int16)
    loudly[RATE_HZ:, 0 if who == "user" else 1] = 9000  # as if nothing had been silenced yet
    recording.write_bytes(header + loudly.tobytes())
    report = recover(tmp_path)
    assert loud(recording, 0) == loud(recording, 1) == []
    [call] = report.recovered
    assert call.recording is not None
    assert call.recording.sha256 == hashlib.sha256(recording.read_bytes()).hexdigest()
    before = journal.read_bytes()
    recover(tmp_path)
    assert journal.read_bytes() == before


def test_a_recording_that_failed_is_silenced_as_well(tmp_path: Path) -> None:
    """The disk took no more; what it took is there, and redacted later."""
    script = scripted_call(tmp_path, redact=no_numbers)
    live = script.live
    tell(script, 1000, ev.UserSpeechStarted, start_ms=1000, source=TimingSource.LOCAL_VAD)
    for k in range(50):
        live.files.caller_audio(1000 + (k + 1) * 20.0, tone(20), RATE_HZ, 1)
    tell(script, 2000, ev.UserSpeechStopped, end_ms=2000, source=TimingSource.LOCAL_VAD)
    tell(script, 2600, ev.TimePassed)
    live._writer.drain(30)
    assert live.files._recording is not None

    def full(*_: object) -> None:
        raise RecordingError("No space left")

    live.files._recording.advance = full  # type: ignore[method-assign]
    tell(script, 2700, ev.TimePassed)
    live._writer.drain(30)
    recording = next(tmp_path.rglob("recording.wav"))
    assert loud(recording, 0) == [(1000, 2000)]
    tell(script, 2800, ev.UserTranscript, text="4929", final=True, source=TextSource.STT)
    script.finish(3000)
    assert loud(recording, 0) == []


@pytest.mark.parametrize("form", ["wav", "flac"])
def test_text_that_comes_after_the_end_mutes_what_it_can(
    tmp_path: Path, form: Literal["wav", "flac"]
) -> None:
    script = scripted_call(tmp_path, redact=no_numbers, recording_format=form)
    live = script.live
    tell(script, 1000, ev.UserSpeechStarted, start_ms=1000, source=TimingSource.LOCAL_VAD)
    for k in range(50):
        live.files.caller_audio(1000 + (k + 1) * 20.0, tone(20), RATE_HZ, 1)
    tell(script, 2000, ev.UserSpeechStopped, end_ms=2000, source=TimingSource.LOCAL_VAD)
    held = threading.Event()
    live._writer.submit(held.wait)  # the disk is slow: the end waits for it, and so does what comes then
    script.clock.set_ms(3000)
    live.close("hung up")
    late = ev.UserMessageAdded(at_ms=3000, item_id="u", text="4929", source=TextSource.STT)
    live.emit(late)
    held.set()
    call = script_call(script)
    recording = next(p for p in tmp_path.rglob("recording.*") if p.suffix in (".wav", ".flac"))
    if form == "wav":
        assert loud(recording, 0) == []
        assert call.recording is not None
        assert call.recording.sha256 == hashlib.sha256(recording.read_bytes()).hexdigest()
    else:
        assert "caller audio from 800 ms could not be silenced: it is encoded" in call.warnings


def script_call(script: ScriptedCall) -> VoiceCall:
    """The call of a script that was closed, once its files are finished."""
    script.live._writer.drain(30)
    return read_journal_call(script.live.files.directory / FILE_NAME)  # type: ignore[operator]


def test_silence_is_a_hole_and_stays_one(tmp_path: Path) -> None:
    script = scripted_call(tmp_path, redact=no_numbers)
    script.live.files.mute(Channel.CALLER, 0, 3_000_000)
    script.user("Nothing.", 3_001_000, 3_001_100)
    script.finish(3_002_000)
    recording = next(tmp_path.rglob("recording.wav"))
    assert recording.stat().st_size > 250_000_000
    assert recording.stat().st_blocks * 512 < 2_000_000


def test_it_may_be_left_as_it_is(tmp_path: Path) -> None:
    chosen = Settings(directory=tmp_path, audio="both", redact=no_numbers, mute_redacted=False)
    script = ScriptedCall(tmp_path, chosen)
    script.user("My card is 4929.", 1000, 3000)
    call = script.finish(4000)
    assert call.messages[0].text == "My card is ####."
    assert loud(next(tmp_path.rglob("recording.wav")), 0) == [(1000, 3000)]
    assert call.warnings == ()


def test_its_bundle_is_valid(tmp_path: Path) -> None:
    call = a_call(tmp_path / "calls").finish(11_000)
    export_bundle(call, tmp_path / "bundle", run_id=RUN, run_agent_id=RUN)
    assert validate_bundle(tmp_path / "bundle") == []
