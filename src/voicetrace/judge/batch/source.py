# SPDX-License-Identifier: Apache-2.0
"""Calls to judge, found in a folder: voicetrace's own call folders, bundles, and traces of one call.

A call that is there in several forms is taken once: its journal before its bundle before its trace. What
a call is named and the digest of what will be judged are known before it is judged; both are remembered by
the size and time of the files, so looking through an archive again costs a look at each file.
"""

from __future__ import annotations

import enum
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from voicetrace import semconv
from voicetrace.journal import FILE_NAME, is_journal, is_live, read_journal, voice_call
from voicetrace.voice_call import VoiceCall

MANIFEST: Final = "voice_artifact_manifest.json"
_TRACES: Final = (".json", ".jsonl")
_BLOCK: Final = 1 << 20
_FRESH_S: Final = 2.0


class SourceError(ValueError):
    """There is nothing to look through."""


class Kind(enum.IntEnum):
    """What a call is found as; the lower one is preferred."""

    JOURNAL = 0
    BUNDLE = 1
    TRACE = 2


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call is: ``path`` is what is judged, ``main`` the file that names it."""

    kind: Kind
    path: str
    main: str


@dataclass(frozen=True, slots=True)
class CallRef:
    """A call that can be judged, and what identifies it. Plain data: it travels to other processes."""

    path: str
    call_sid: str
    kind: Kind = Kind.JOURNAL
    digest: str = ""
    started_at: datetime | None = None
    workspace_id: str = ""
    service_id: str = ""
    trace_id: str = ""
    span_id: str = ""
    conversation_id: str = ""
    problem: str = ""
    """Why it cannot be judged, if that is known before."""
    one_of_many: bool = False
    """``path`` is a trace of several calls."""
    running: bool = False


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the main file of a call says; ``files`` are those that are judged with it."""

    call_sid: str
    started_ms: int | None = None
    workspace_id: str = ""
    service_id: str = ""
    trace_id: str = ""
    span_id: str = ""
    conversation_id: str = ""
    ended: bool = True
    files: list[str] = field(default_factory=list)
    sha256: str = ""  # of its part of a trace that holds several calls
    problem: str = ""


def find_calls(root: Path) -> list[Place]:
    """Every place below a folder that may be a call, in a fixed order; ``root`` may also be one call.

    Raises:
        SourceError: there is no such folder or file.
    """
    if not root.exists():
        raise SourceError(f"there is nothing at {root}")
    if root.is_file():
        if is_journal(root):
            return [Place(Kind.JOURNAL, str(root), str(root))]
        if root.name == MANIFEST:
            return [Place(Kind.BUNDLE, str(root.parent), str(root))]
        return [Place(Kind.TRACE, str(root), str(root))]
    found: list[Place] = []
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if MANIFEST in files:
            found.append(Place(Kind.BUNDLE, folder, str(here / MANIFEST)))
            folders[:] = [name for name in folders if name != "artifacts"]
            files = [name for name in files if name == FILE_NAME]
        for name in sorted(files):
            path = here / name
            if name.startswith(".") or path.suffix not in _TRACES:
                continue
            if is_journal(path):
                found.append(Place(Kind.JOURNAL, folder if name == FILE_NAME else str(path), str(path)))
            elif FILE_NAME not in files:  # what lies beside a journal was made from it
                found.append(Place(Kind.TRACE, str(path), str(path)))
    return sorted(found, key=lambda place: (place.kind, place.path))


class Reader:
    """Reads what identifies a call. Keep one for a whole run; not thread-safe.

    Args:
        memory: a file in which digests are remembered; without one everything is read each time.
    """

    def __init__(self, memory: Path | None = None) -> None:
        self._memory = _Memory(memory) if memory is not None else None

    def close(self) -> None:
        """Close the file."""
        if self._memory is not None:
            self._memory.close()

    def read(self, place: Place) -> list[CallRef]:
        """The calls at a place: one, or several of a trace; none when the file there is something else.

        Never raises for what a file holds: the reference says what is wrong, and the call gets a row.
        """
        main = Path(place.main)
        try:
            said = self._remembered("facts", main, lambda: json.dumps([asdict(f) for f in _facts(place)]))
            facts = [_Facts(**raw) for raw in json.loads(said)]
            running = place.kind is Kind.JOURNAL and not all(f.ended for f in facts) and is_live(main)
        except OSError as error:
            facts, running = [_Facts(_named(place), problem=_reason(error))], False
        return [self._ref(place, some, running) for some in facts]

    def _ref(self, place: Place, facts: _Facts, running: bool) -> CallRef:
        ref = CallRef(
            path=place.path,
            call_sid=facts.call_sid,
            kind=place.kind,
            started_at=_moment(facts.started_ms),
            workspace_id=facts.workspace_id,
            service_id=facts.service_id,
            trace_id=facts.trace_id,
            span_id=facts.span_id,
            conversation_id=facts.conversation_id,
            problem=facts.problem,
            one_of_many=bool(facts.sha256),
            running=running,
        )
        return ref if running else replace(ref, digest=self._digest(place, facts))

    def _digest(self, place: Place, facts: _Facts) -> str:
        """SHA-256 over the trace and the audio, by content; names of folders do not count."""
        whole = hashlib.sha256()
        if facts.sha256:
            whole.update(f"{facts.sha256}\n".encode())
        for path in (*(() if facts.sha256 else (place.main,)), *facts.files):
            try:
                sha = self._remembered("sha256", Path(path), lambda path=path: _sha256(Path(path)))  # type: ignore[misc]
            except OSError:
                sha = "missing"
            whole.update(f"{Path(path).name} {sha}\n".encode("utf-8", "surrogateescape"))
        return whole.hexdigest()

    def _remembered(self, what: str, path: Path, make: Callable[[], str]) -> str:
        if self._memory is None:
            return make()
        stat = path.stat()
        stamp = f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ino}"
        key = f"{what} {path.absolute()}"
        known = self._memory.get(key, stamp)
        if known is not None:
            return known
        made = make()
        if stat.st_mtime < time.time() - _FRESH_S:  # one that changes now may change again within its time
            self._memory.set(key, stamp, made)
        return made


class _Memory:
    """Key and stamp to text, in a file that may be deleted at any time; a broken one remembers nothing."""

    def __init__(self, path: Path) -> None:
        self._db: sqlite3.Connection | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            db = sqlite3.connect(path, isolation_level=None, timeout=1.0)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = OFF")
            db.execute("CREATE TABLE IF NOT EXISTS memory (key TEXT PRIMARY KEY, stamp TEXT, value TEXT)")
            self._db = db
        except (OSError, sqlite3.Error):
            return

    def get(self, key: str, stamp: str) -> str | None:
        if self._db is None:
            return None
        try:
            found = self._db.execute("SELECT stamp, value FROM memory WHERE key = ?", [key]).fetchone()
        except (sqlite3.Error, UnicodeError):
            return None
        return found[1] if found is not None and found[0] == stamp else None

    def set(self, key: str, stamp: str, value: str) -> None:
        if self._db is None:
            return
        try:
            self._db.execute("INSERT OR REPLACE INTO memory VALUES (?, ?, ?)", [key, stamp, value])
        except (sqlite3.Error, UnicodeError):
            return

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


# -- what the files say --------------------------------------------------------------------------------
def _facts(place: Place) -> list[_Facts]:
    main = Path(place.main)
    if place.kind is Kind.JOURNAL:
        return [_journal_facts(main)]
    if place.kind is Kind.BUNDLE:
        return [_bundle_facts(main)]
    return _trace_facts(main)


def _journal_facts(path: Path) -> _Facts:
    try:
        journal = read_journal(path)
    except ValueError as error:
        return _Facts(_named(Place(Kind.JOURNAL, "", str(path))), problem=_reason(error))
    call = voice_call(journal)
    start = next((e for e in journal.events if hasattr(e, "workspace_id")), None)
    facts = _call_facts(call)
    return replace(
        facts,
        workspace_id=getattr(start, "workspace_id", ""),
        service_id=getattr(start, "service_id", ""),
        # one that is not ended is asked again each time: its process may have died
        ended=journal.ended,
    )


def _trace_facts(path: Path) -> list[_Facts]:
    from voicetrace.reader import read_calls

    try:
        calls = read_calls(path)
    except ValueError:
        return []  # some other JSON
    if len(calls) < 2:
        return [_call_facts(call) for call in calls]
    return [replace(_call_facts(call), sha256=_content_sha256(call)) for call in calls]


def _content_sha256(call: VoiceCall) -> str:
    """Of a call within a trace of several: what it says, whatever else the trace gets."""
    said = {
        "call_id": call.call_id,
        "messages": [{"id": m.id, **m.to_wire()} for m in call.messages],
        "recording": call.recording.to_wire() if call.recording is not None else None,
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _call_facts(call: VoiceCall) -> _Facts:
    recording = call.recording_path()
    return _Facts(
        call.call_id,
        started_ms=call.origin_unix_ms,
        workspace_id=str(call.attributes.get(semconv.VOICE_WORKSPACE_ID, "")),
        service_id=str(call.attributes.get(semconv.VOICE_SERVICE_ID, "")),
        trace_id=call.trace_id or "",
        span_id=call.span_id or "",
        conversation_id=call.conversation_id,
        ended=call.ended,
        files=[str(recording)] if recording is not None else [],
    )


def _bundle_facts(path: Path) -> _Facts:
    from voicetrace.judge.batch.bundle import artifacts_of

    named = _named(Place(Kind.BUNDLE, "", str(path)))
    try:
        manifest, files = artifacts_of(path.parent)
    except ValueError as error:
        return _Facts(named, problem=_reason(error))
    said = manifest.get("metadata")
    said = said if isinstance(said, dict) else {}
    sid = manifest.get("voice_session_id")
    return _Facts(
        sid if isinstance(sid, str) and sid.strip() else named,
        workspace_id=str(said.get("workspace_id", "")),
        service_id=str(said.get("service_id", "")),
        files=sorted(map(str, files.values())),
    )


def _named(place: Place) -> str:
    """What a call is called that does not say it itself: its folder, or its file."""
    main = Path(place.main)
    own = main.name in (FILE_NAME, MANIFEST)
    return (main.absolute().parent.name if own else main.stem) or main.stem


def _sha256(path: Path) -> str:
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            sha.update(block)
    return sha.hexdigest()


def _moment(unix_ms: int | None) -> datetime | None:
    try:
        return None if unix_ms is None else datetime.fromtimestamp(unix_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{Path(error.filename).name if error.filename else 'the call'}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def changed_since(place: Place, moment: datetime) -> bool:
    """Whether the call may have begun at or after a time: its trace was written after that."""
    try:
        return Path(place.main).stat().st_mtime >= moment.timestamp()
    except OSError:
        return True
