# SPDX-License-Identifier: Apache-2.0
"""VT-70: a redactor hook on text, and the matching mute on audio."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from voicetrace.agentclash import export_bundle, validate_bundle
from voicetrace.audio.wav import MUTE_AROUND_MS
from voicetrace.journal import FILE_NAME
from voicetrace.messages import Channel
from voicetrace.recovery import recover
from voicetrace.settings import Settings
from voicetrace.testing import RATE_HZ, ScriptedCall, scripted_call

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
    assert loud(recording, 0) == [(0, 1000 - MUTE_AROUND_MS), (2000 + MUTE_AROUND_MS, 3000)]


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
