# SPDX-License-Identifier: Apache-2.0
"""Disks and folders that misbehave while a call runs, or when it is recovered."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

import voicetrace
from voicetrace import events as ev
from voicetrace import files
from voicetrace.journal import FILE_NAME, JournalWriter, read_journal, read_journal_call
from voicetrace.live import LiveCall
from voicetrace.messages import TextSource
from voicetrace.recovery import recover
from voicetrace.settings import Settings
from voicetrace.writer import WRITER


def begin(directory: Path) -> LiveCall:
    call = LiveCall(settings=Settings(directory=directory), framework="test")
    assert WRITER.drain(10)
    return call


def say(call: LiveCall, text: str) -> None:
    call.emit(ev.UserMessageAdded(at_ms=1, item_id=text, text=text, source=TextSource.TEXT_INPUT))
    assert WRITER.drain(10)


def end(call: LiveCall) -> None:
    call.close("done")
    assert WRITER.drain(10)
    assert not call.guard.failures


def folder(call: LiveCall) -> Path:
    assert call.files.directory is not None
    return call.files.directory


@pytest.mark.parametrize(("fit", "why"), [(0, "No space left on device"), (7, "only 7 of")])
def test_what_a_full_disk_refused_is_written_when_it_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fit: int, why: str
) -> None:
    call, write = begin(tmp_path), os.write

    def full(fd: int, data: bytes) -> int:
        if not fit:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data[:fit])

    say(call, "one")
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        say(call, "two")
        say(call, "three")
    say(call, "four")
    end(call)
    journal = read_journal_call(folder(call) / FILE_NAME)
    assert [m.text for m in journal.messages] == ["one", "two", "three", "four"]
    assert f"could not be written ({why}" in journal.warnings[0]
    assert journal.messages == tuple(call.recorder.ordered())


def test_what_waits_for_a_full_disk_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_UNWRITTEN", 2)
    call = begin(tmp_path)
    with monkeypatch.context() as patched:

        def refuse(journal: JournalWriter, event: ev.Event) -> None:
            raise OSError(errno.ENOSPC, "full")

        patched.setattr(JournalWriter, "append", refuse)
        for text in ("one", "two", "three", "four"):
            say(call, text)
    end(call)
    kept = read_journal_call(folder(call) / FILE_NAME)
    assert [m.text for m in kept.messages] == ["four"]
    assert [m.text for m in call.recorder.ordered()] == ["one", "two", "three", "four"]


def test_a_folder_that_is_removed_in_the_middle_costs_the_call_its_files_and_is_said(tmp_path: Path) -> None:
    call = begin(tmp_path)
    say(call, "one")
    shutil.rmtree(tmp_path)
    say(call, "two")
    end(call)
    assert [m.text for m in call.recorder.ordered()] == ["one", "two"]
    assert call.recorder.warnings == [
        f"the journal in {folder(call)} could not be written (it was removed): a crash loses the call"
    ]
    assert not tmp_path.exists()


def test_a_journal_that_is_moved_in_the_middle_goes_on_where_it_is(tmp_path: Path) -> None:
    call = begin(tmp_path / "calls")
    say(call, "one")
    moved = (folder(call) / FILE_NAME).rename(tmp_path / "moved.jsonl")
    say(call, "two")
    assert [p.name for p in recover(tmp_path).running] == ["moved.jsonl"]
    end(call)
    (found,) = voicetrace.read_calls(moved)
    assert ([m.text for m in found.messages], found.ended, found.warnings) == (["one", "two"], True, ())


def leave(path: Path) -> Path:
    """The journal of a process that died."""
    journal = JournalWriter(path / FILE_NAME)
    journal.append(
        ev.CallStarted(at_ms=0, call_id="c", origin_unix_ms=1, framework="test", framework_version="1")
    )
    journal.append(ev.UserMessageAdded(at_ms=5, item_id="i", text="hello", source=TextSource.TEXT_INPUT))
    journal.append(
        ev.RecordingStarted(
            at_ms=6,
            recording_id="r",
            uri="recording.wav",
            format="wav",
            sample_rate_hz=8000,
            channels=(),
            origin_unix_ms=1,
        )
    )
    journal.close()
    return path / FILE_NAME


def test_links_among_the_calls_lead_nowhere(tmp_path: Path) -> None:
    elsewhere, calls = tmp_path / "elsewhere", tmp_path / "calls"
    outside = leave(elsewhere)
    before = outside.read_bytes()
    for name in ("file", "gone"):
        (calls / name).mkdir(parents=True)
    (calls / "file" / FILE_NAME).symlink_to(outside)
    (calls / "gone" / FILE_NAME).symlink_to(tmp_path / "nowhere")
    (calls / "folder").symlink_to(elsewhere)
    (calls / "loop").symlink_to(calls)
    report = recover(calls)
    assert (report.recovered, report.finished, report.running) == ([], [], [])
    assert [s.path for s in report.skipped] == [calls / "file" / FILE_NAME]
    assert outside.read_bytes() == before
    assert [p.name for p in elsewhere.iterdir()] == [FILE_NAME]


def test_a_recording_that_is_a_link_is_not_mended(tmp_path: Path) -> None:
    outside = tmp_path / "outside.wav"
    outside.write_bytes(b"RIFF, and somebody else's")
    journal = leave(tmp_path / "call")
    journal.with_name("recording.wav").symlink_to(outside)
    (call,) = recover(tmp_path / "call").recovered
    assert "does not lie beside the journal" in call.warnings[0]
    assert outside.read_bytes() == b"RIFF, and somebody else's"


def test_many_journals_are_each_finished_once(tmp_path: Path) -> None:
    for n in range(100):
        leave(tmp_path / f"{n:03}").rename(tmp_path / f"{n:03}.jsonl")
    assert len(recover(tmp_path).recovered) == 100
    again = recover(tmp_path)
    assert (len(again.finished), again.recovered, again.skipped) == (100, [], [])
    for path in tmp_path.glob("???.jsonl"):
        assert [type(e) for e in read_journal(path).events].count(ev.CallEnded) == 1


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_may_not_be_written_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    call = begin(tmp_path)
    say(call, "one")
    end(call)
    tmp_path.chmod(0o700)
    (warning,) = call.recorder.warnings
    assert "(Permission denied): a crash loses the call" in warning
