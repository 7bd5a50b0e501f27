# SPDX-License-Identifier: Apache-2.0
"""The journal: one append-only JSONL file per call, holding the call's events.

One ``os.write`` per event, so a killed process loses at most the line it was writing; ``fdatasync`` at
message ends, so a lost machine loses at most the message that was going on. The file is locked while its
process lives: that is how `voicetrace recover` knows the dead from the living. Reading tolerates a torn
last line, and names and skips whatever else is no event.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from voicetrace import events as ev
from voicetrace.call import fold
from voicetrace.voice_call import VoiceCall

fcntl: ModuleType | None
try:
    fcntl = import_module("fcntl")
except ImportError:  # pragma: no cover - Windows has no advisory locks of this kind
    fcntl = None

MARK: Final = "voicetrace_journal"
VERSION: Final = 1
FILE_NAME: Final = "journal.jsonl"
# `recover` may look at a journal in the moment between its creation and its lock
_LOCK_PATIENCE_S: Final = 2.0


class JournalError(ValueError):
    """The file is no journal, or one that this version does not read. It is left as it is."""


class JournalWriter:
    """Appends events to one file. Not thread-safe: the call's writer thread owns it.

    Raises:
        OSError: from any method, when the disk refuses; what was written before stays readable, and a
            later `append` may succeed again.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        self.path = path
        self._fd = os.open(path, flags, 0o600)  # a conversation is private
        self._torn = False
        _OPEN.add(self)
        try:
            _lock(self._fd, time.monotonic() + _LOCK_PATIENCE_S)
            self._write_line({MARK: VERSION, "pid": os.getpid()})
        except BaseException:
            self.close()
            raise

    def append(self, event: ev.Event) -> None:
        """Write one event as one line."""
        self._write_line(ev.to_dict(event))

    def _write_line(self, data: dict[str, Any]) -> None:
        # ensure_ascii keeps lone surrogates and line separators out of the file's bytes
        line = json.dumps(data, separators=(",", ":")).encode() + b"\n"
        if self._torn:
            line = b"\n" + line  # the disk was full in the middle of a line; start a fresh one
        self._torn = True
        written = os.write(self._fd, line)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes fit into {self.path}")
        self._torn = False

    def sync(self) -> None:
        """Make what was appended survive the loss of the machine.

        Raises:
            FileNotFoundError: somebody removed the file, so nothing that is appended survives.
        """
        if not os.fstat(self._fd).st_nlink:
            raise FileNotFoundError(errno.ENOENT, "it was removed", str(self.path))
        if hasattr(os, "fdatasync"):
            os.fdatasync(self._fd)
        else:  # pragma: no cover - macOS
            os.fsync(self._fd)

    def close(self) -> None:
        """Release the file and its lock; closing twice is harmless."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _lock(fd: int, deadline: float) -> None:
    """Take the lock that says "in use"; somebody who only looks holds it for a moment (`is_live`)."""
    if fcntl is None:  # pragma: no cover - no locks on this system
        return
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.005)
        else:
            return


_OPEN: Final[weakref.WeakSet[JournalWriter]] = weakref.WeakSet()


def _close_inherited() -> None:
    """A forked child shares the lock: holding it, a child that outlives us would keep our calls "live"."""
    for writer in list(_OPEN):
        writer.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)


@dataclass(frozen=True, slots=True)
class Journal:
    """What a journal file holds: its events in order, and a sentence for each line that is none."""

    path: Path
    events: tuple[ev.Event, ...]
    problems: tuple[str, ...]
    torn: bool
    """The last line was cut off, as a killed process leaves it."""

    @property
    def ended(self) -> bool:
        """Whether the call was closed; if not, its process died or still runs."""
        return any(isinstance(e, ev.CallEnded) for e in self.events)


def is_journal(path: Path) -> bool:
    """Tell by the first line whether a file is a journal of any version; False for what cannot be read."""
    try:
        if not path.is_file():
            return False  # to open a pipe would wait for its writer
        with path.open("rb") as file:
            first = file.readline(4096)
        header = json.loads(first)
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(header, dict) and MARK in header


def read_journal(path: Path) -> Journal:
    """Read a journal, live or left behind.

    Raises:
        JournalError: the file is no journal or of another version.
        OSError: the file cannot be read.
    """
    lines = path.read_bytes().split(b"\n")
    header = _decode(lines[0])
    if not isinstance(header, dict) or MARK not in header:
        raise JournalError(f"{path} is not a voicetrace journal; it was left as it is")
    if header[MARK] != VERSION:
        raise JournalError(
            f"{path} is a voicetrace journal of version {header[MARK]!r}, this release reads {VERSION}; "
            "it was left as it is"
        )
    torn = lines[-1] != b""
    events: list[ev.Event] = []
    problems: list[str] = []
    for number, line in enumerate(lines[1:], start=2):
        if not line:
            continue
        last = torn and number == len(lines)
        data = _decode(line)
        if not isinstance(data, dict):
            if not last:
                problems.append(f"{path}:{number} is not an event; skipped")
            continue
        try:
            events.append(ev.from_dict(data))
        except (ValueError, RecursionError) as error:
            problems.append(f"{path}:{number} is not an event ({error}); skipped")
    if not events or not isinstance(events[0], ev.CallStarted):
        problems.append(f"{path} does not begin with the start of a call")
    return Journal(path, tuple(events), tuple(problems), torn)


def _decode(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def is_live(path: Path) -> bool:
    """Tell whether the process that writes this journal is still alive, by its lock.

    Raises:
        OSError: the file cannot be opened.
    """
    if fcntl is None:  # pragma: no cover - no locks: treat a journal without an end as dead
        return False
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(fd)


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Hold the journal of a dead process as its writer held it; False when a process holds it already.

    Raises:
        OSError: the file cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDWR)
    except PermissionError:
        fd = os.open(path, os.O_RDONLY)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        fd = os.open(path, os.O_RDONLY)
    try:
        try:
            _lock(fd, time.monotonic() + 0.02)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


def append_events(path: Path, events: Iterable[ev.Event]) -> None:
    """Add events to the journal of a dead process, behind a torn last line if there is one.

    Take it with `claimed` first: two that append at once would end a call twice.

    Raises:
        OSError: the disk refuses.
    """
    fd = os.open(path, os.O_RDWR | os.O_APPEND)
    try:
        size = os.fstat(fd).st_size
        torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        lines = [json.dumps(ev.to_dict(e), separators=(",", ":")) for e in events]
        data = ("\n" * torn + "".join(f"{line}\n" for line in lines)).encode()
        while data:
            data = data[os.write(fd, data) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def voice_call(journal: Journal) -> VoiceCall:
    """The call that the journal tells so far; open records stay open if it was not closed."""
    recorder = fold(journal.events)
    start, end, span = recorder.started, recorder.ended, recorder.span
    return VoiceCall(
        call_id=start.call_id if start else journal.path.parent.name,
        messages=tuple(recorder.ordered()),
        llm_steps=tuple(recorder.steps),
        recording=recorder.recording,
        warnings=(*recorder.warnings, *journal.problems),
        origin_unix_ms=start.origin_unix_ms if start else None,
        duration_ms=end.at_ms if end else None,
        framework=start.framework if start else "",
        framework_version=start.framework_version if start else "",
        agent_name=start.agent_name if start else "",
        conversation_id=start.conversation_id if start else "",
        ended=end is not None,
        end_reason=end.reason if end else "",
        trace_id=span.trace_id if span else None,
        span_id=span.span_id if span else None,
        events=journal.events,
        source=str(journal.path),
    )


def read_journal_call(path: Path) -> VoiceCall:
    """`read_journal` and `voice_call` in one; same errors."""
    return voice_call(read_journal(path))


def journals_in(directory: Path) -> list[Path]:
    """Every file named as a journal in a directory of calls, oldest name first."""
    found = set(directory.glob(f"**/{FILE_NAME}"))
    with contextlib.suppress(OSError):
        found |= {p for p in directory.glob("*.jsonl") if is_journal(p)}
    return sorted(found)
