# SPDX-License-Identifier: Apache-2.0
"""The journal: nothing acknowledged is lost, whatever is left on the disk is read as far as it goes."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys

import pytest

from strategies import start
from voicetrace import events as ev
from voicetrace import journal as journal_module
from voicetrace.journal import (
    FILE_NAME,
    JournalError,
    JournalWriter,
    claimed,
    is_journal,
    is_live,
    journals_in,
    read_journal,
    read_journal_call,
)

EVENTS = (
    start(agent_name="Ada"),
    ev.SpeechCreated(at_ms=1, speech_id="sp", origin="say"),
    ev.SpeechText(at_ms=2, speech_id="sp", text="Grüß Gott \u2028 \U0001f600", source="tts_input"),
    ev.SpeechEnded(at_ms=3, speech_id="sp"),
    ev.CallEnded(at_ms=4, reason="done"),
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "call" / FILE_NAME


@pytest.fixture
def written(path):
    writer = JournalWriter(path)
    for event in EVENTS:
        writer.append(event)
    writer.close()
    return path


def test_every_event_is_one_write_of_one_line(path, monkeypatch):
    writes = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: writes.append(data) or real(fd, data))
    writer = JournalWriter(path)
    for event in EVENTS:
        writer.append(event)
    writer.close()
    assert len(writes) == 1 + len(EVENTS)
    assert all(w.endswith(b"\n") and w.count(b"\n") == 1 and w.isascii() for w in writes)
    assert path.read_bytes() == b"".join(writes)


def test_what_was_written_is_read_back_equal(written):
    journal = read_journal(written)
    assert (journal.events, journal.problems, journal.torn, journal.ended) == (EVENTS, (), False, True)
    call = read_journal_call(written)
    assert (call.call_id, call.agent_name, call.ended, call.end_reason, call.duration_ms) == (
        "c",
        "Ada",
        True,
        "done",
        4,
    )
    assert call.messages[0].text == "Grüß Gott \u2028 \U0001f600"
    assert call.source == str(written)


def test_a_conversation_is_private_and_never_overwritten(written):
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        JournalWriter(written)
    assert read_journal(written).events == EVENTS


def test_a_tail_torn_at_any_byte_costs_that_line_only(written):
    whole = written.read_bytes()
    ends = [i for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(ends[0], len(whole) + 1):
        written.write_bytes(whole[:cut])
        journal = read_journal(written)
        complete = sum(1 for end in ends[1:] if end <= cut)  # a line without its newline is whole too
        assert journal.events == EVENTS[:complete], cut
        assert journal.torn == (not whole[:cut].endswith(b"\n"))
        assert len(journal.problems) == (0 if complete else 1)


@pytest.mark.parametrize(
    "garbage",
    [
        b"not json",
        b"[1, 2]",
        b"null",
        b"\x00" * 4096,
        b"\xff\xfe\x00",
        b'{"event": "Unheard"}',
        b'{"event": "TimePassed"}',
        b'{"event": "TimePassed", "at_ms": "3"}',
        b'{"event": "TimePassed", "at_ms": 3, "more": 1}',
        b'{"event": ["TimePassed"], "at_ms": 3}',
        b"[" * 100_000,
        b'{"event": "TimePassed", "at_ms": ' + b"9" * 5000 + b"}",
        b"x" * 1_000_000,
    ],
    ids=[
        "text",
        "list",
        "null",
        "nul",
        "bytes",
        "unknown",
        "lacking",
        "typed",
        "more",
        "name",
        "deep",
        "digits",
        "huge",
    ],
)
def test_garbage_in_the_middle_is_named_and_skipped(written, garbage):
    lines = written.read_bytes().split(b"\n")
    written.write_bytes(b"\n".join([*lines[:3], garbage, *lines[3:]]))
    journal = read_journal(written)
    assert journal.events == EVENTS
    (problem,) = journal.problems
    assert f"{written}:4 is not an event" in problem
    assert len(problem) < 1000
    assert read_journal_call(written).warnings == (problem,)


def test_blank_lines_are_nothing(written):
    written.write_bytes(written.read_bytes().replace(b"\n", b"\n\n"))
    assert (read_journal(written).events, read_journal(written).problems) == (EVENTS, ())


@pytest.mark.parametrize("content", [b"", b"\n", b"{}\n", b"[]", b"hello\n", b"\x00" * 10, b"\xff"])
def test_another_file_is_no_journal(tmp_path, content):
    path = tmp_path / "other.jsonl"
    path.write_bytes(content)
    assert not is_journal(path)
    with pytest.raises(JournalError, match="not a voicetrace journal; it was left as it is"):
        read_journal(path)
    assert path.read_bytes() == content


def test_another_version_is_left_as_it_is(written):
    whole = written.read_bytes().replace(b'"voicetrace_journal":1', b'"voicetrace_journal":2')
    written.write_bytes(whole)
    assert is_journal(written)
    with pytest.raises(JournalError, match="version 2, this release reads 1"):
        read_journal(written)
    assert written.read_bytes() == whole


def test_a_journal_without_its_start_is_read_and_said(written):
    lines = written.read_bytes().split(b"\n")
    written.write_bytes(b"\n".join([lines[0], *lines[2:]]))
    call = read_journal_call(written)
    assert call.call_id == "call"  # the folder's name
    assert [m.state for m in call.messages] == ["unplayed"]
    assert any("does not begin with the start of a call" in w for w in call.warnings)


def test_a_directory_or_nothing_is_an_os_error(tmp_path):
    assert not is_journal(tmp_path)
    assert not is_journal(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        read_journal(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_journal(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        is_live(tmp_path / "none")


def test_journals_are_found_by_name_in_folders_and_by_mark_beside_them(tmp_path, written):
    other = tmp_path / "saved.jsonl"
    other.write_bytes(written.read_bytes())
    (tmp_path / "unrelated.jsonl").write_text("{}\n")
    assert journals_in(tmp_path) == [written, other]


# -- a disk that refuses -----------------------------------------------------------------------------
@pytest.mark.parametrize("fit", [0, 1, 10, 40])
def test_a_full_disk_costs_the_lines_it_refused_and_no_later_ones(path, monkeypatch, fit):
    writer = JournalWriter(path)
    writer.append(EVENTS[0])
    real = os.write

    def full(fd, data):
        if fit == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data[:fit])

    monkeypatch.setattr(os, "write", full)
    for event in EVENTS[1:3]:
        with pytest.raises(OSError, match=r"No space|bytes fit"):
            writer.append(event)
    monkeypatch.setattr(os, "write", real)
    for event in EVENTS[3:]:
        writer.append(event)
    writer.close()
    assert read_journal(path).events == (EVENTS[0], *EVENTS[3:])


def test_a_journal_that_cannot_be_begun_holds_nothing_open(path, monkeypatch):
    opened = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda *a: opened.append(real(*a)) or opened[-1])
    monkeypatch.setattr(os, "write", lambda fd, data: 3)
    with pytest.raises(OSError, match="only 3 of"):
        JournalWriter(path)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


def test_closing_twice_is_harmless_and_a_closed_one_refuses(written, tmp_path):
    writer = JournalWriter(tmp_path / "j.jsonl")
    writer.append(EVENTS[0])
    writer.sync()
    writer.close()
    writer.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        writer.append(EVENTS[1])


# -- the dead and the living -------------------------------------------------------------------------
_OWNER = """
import sys
from pathlib import Path
from voicetrace import events as ev
from voicetrace.journal import JournalWriter
writer = JournalWriter(Path(sys.argv[1]))
writer.append(ev.CallStarted(at_ms=0, call_id="c", origin_unix_ms=1, framework="test"))
{more}
print("ready", flush=True)
sys.stdin.read()
"""

_FORK = """
import os
if os.fork() == 0:
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)
os._exit(0)
"""


def owner(path, more=""):
    process = subprocess.Popen(
        [sys.executable, "-c", _OWNER.format(more=more), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_journal_is_live_while_its_process_lives_and_dead_after_a_kill(path):
    with owner(path) as process:
        assert is_live(path)
        assert read_journal(path).events  # reading a live one is fine
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not is_live(path)
    assert not read_journal(path).ended


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_keep_its_dead_parents_journal_alive(path):
    with owner(path, _FORK) as process:
        process.wait()  # the parent is gone; the child still waits for its input
        assert not is_live(path)


def test_asking_does_not_lock_others_out(path):
    writer = JournalWriter(path)
    assert is_live(path)
    assert is_live(path)
    writer.close()
    assert not is_live(path)
    assert not is_live(path)


def test_somebody_who_looks_when_a_journal_is_made_does_not_cost_the_call_its_journal(path, monkeypatch):
    real, looked = journal_module.fcntl.flock, []

    class Fcntl:
        LOCK_EX, LOCK_NB = journal_module.fcntl.LOCK_EX, journal_module.fcntl.LOCK_NB

        @staticmethod
        def flock(fd, how):
            if len(looked) < 3:
                looked.append(fd)
                raise BlockingIOError
            real(fd, how)

    monkeypatch.setattr(journal_module, "fcntl", Fcntl)
    writer = JournalWriter(path)
    monkeypatch.undo()
    assert len(looked) == 3
    assert is_live(path)
    writer.close()


def test_a_claimed_journal_is_nobody_elses(path):
    JournalWriter(path).close()
    with claimed(path) as ours, claimed(path) as theirs:
        assert (ours, theirs, is_live(path)) == (True, False, True)
    with claimed(path) as again:
        assert again


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_is_no_journal_and_nobody_waits_for_its_writer(tmp_path):
    os.mkfifo(tmp_path / "journal.jsonl")
    assert not is_journal(tmp_path / "journal.jsonl")


def test_without_locks_a_journal_counts_as_dead(path, monkeypatch):
    monkeypatch.setattr(journal_module, "fcntl", None)
    writer = JournalWriter(path)
    assert not is_live(path)
    writer.close()


def test_the_header_names_the_version_and_the_process(written):
    header = json.loads(written.read_bytes().split(b"\n")[0])
    assert header == {"voicetrace_journal": 1, "pid": os.getpid()}
