# SPDX-License-Identifier: Apache-2.0
"""What survives the loss of the machine: which syncs the disk gets, and in which order with the writes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from voicetrace import events as ev
from voicetrace.call import CallRecorder
from voicetrace.files import write_json
from voicetrace.journal import FILE_NAME, MARK, JournalWriter, append_events, read_journal
from voicetrace.testing import scripted_call

SYNC, CLOSE = "sync", "close"


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What the disk is told of one journal, in order: each event's type, `SYNC`, and `CLOSE`."""
    told: list[Any] = []
    journal: list[int] = []
    write, close = os.write, os.close
    name = "fdatasync" if hasattr(os, "fdatasync") else "fsync"
    sync = getattr(os, name)

    def on_write(fd: int, data: bytes) -> int:
        if data.startswith(b'{"%s"' % MARK.encode()):
            journal.append(fd)
        elif fd in journal:
            told.append(json.loads(data)["event"])
        return write(fd, data)

    def on_sync(fd: int) -> None:
        if fd in journal:
            told.append(SYNC)
        sync(fd)

    def on_close(fd: int) -> None:
        if fd in journal:
            told.append(CLOSE)
            journal.remove(fd)
        close(fd)

    monkeypatch.setattr(os, "write", on_write)
    monkeypatch.setattr(os, name, on_sync)
    monkeypatch.setattr(os, "close", on_close)
    return told


def test_the_journal_is_synced_when_a_message_ends_and_before_it_is_closed(
    tmp_path: Path, disk: list[Any]
) -> None:
    script = scripted_call(tmp_path)
    script.agent("Hello, how can I help?", 200, 1800, say=True)
    script.user("Book the cheapest one.", 2400, 4000)
    script.agent("Done. It is booked for tonight.", 5000, 6000, heard="Done. It is")
    script.finish(7000)
    events = read_journal(tmp_path / script.live.call_id / FILE_NAME).events
    recorder, expected, ends = CallRecorder(), [], 0
    for event in events:
        if not isinstance(event, ev.LLMStepExported):
            expected.append(ev.to_dict(event)["event"])
        if recorder.apply(event).settled:
            expected.append(SYNC)
            ends += 1
    assert ends >= 3  # or this would say little
    # an exporter tells what left from a thread of its own, also in between
    assert [told for told in disk if told != "LLMStepExported"] == [*expected, SYNC, CLOSE]


def test_an_event_is_only_synced_when_that_was_asked(tmp_path: Path, disk: list[Any]) -> None:
    writer = JournalWriter(tmp_path / FILE_NAME)
    writer.append(ev.TimePassed(at_ms=1))
    writer.sync()
    writer.append(ev.TimePassed(at_ms=2))
    writer.close()
    assert disk == ["TimePassed", SYNC, "TimePassed", CLOSE]


def test_what_recover_adds_is_synced_before_the_call_counts_as_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / FILE_NAME
    JournalWriter(path).close()
    whole: list[bool] = []
    fsync = os.fsync

    def on_fsync(fd: int) -> None:
        whole.append(path.read_bytes().endswith(b'"reason":"over"}\n'))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", on_fsync)
    append_events(path, [ev.TimePassed(at_ms=1), ev.CallEnded(at_ms=2, reason="over")])
    assert whole == [True]


def test_a_document_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its presence says that the call is finished: an empty one after a loss of power would hide a call."""
    path = tmp_path / "messages.json"
    synced: list[tuple[bool, Any]] = []
    fsync = os.fsync

    def on_fsync(fd: int) -> None:
        (part,) = tmp_path.iterdir()
        synced.append((path.exists(), json.loads(part.read_text())))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", on_fsync)
    write_json(path, {"a": 1})
    assert synced == [(False, {"a": 1})]
    assert json.loads(path.read_text()) == {"a": 1}
