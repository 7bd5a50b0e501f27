# SPDX-License-Identifier: Apache-2.0
"""Pages on the disk: whole or not at all, readable by their owner only, never over something by accident."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from voicetrace.audio import RecordingError
from voicetrace.viewer.judgement import Judgement
from voicetrace.viewer.page import Entry, call_page, index_page
from voicetrace.viewer.sound import AudioChoice, Sound, sound_of
from voicetrace.voice_call import VoiceCall

INDEX_NAME: Final = "index.html"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST: Final = 100


class PageError(Exception):
    """A page cannot be written; the sentence says which and why."""


@dataclass(frozen=True)
class Written:
    """A page that was written, and what it holds."""

    path: Path
    call: VoiceCall
    size: int
    audio: str
    """``embedded``, ``linked`` or ``none``."""
    note: str
    judged: bool


def write_page(
    call: VoiceCall,
    path: Path,
    *,
    audio: AudioChoice | None = None,
    judgement: Judgement | None = None,
    force: bool = False,
) -> Written:
    """Write the page of a call.

    Args:
        call: which.
        path: the file; its directory is made.
        audio: ``"embed"`` puts it into the page however large it gets, ``"link"`` refers to the recording,
            ``"none"`` has only its picture. Default: in the page while that is not too large, else linked.
        judgement: the call's scores.
        force: replace a file that is there.

    Raises:
        PageError: it is there already, or cannot be written.
    """
    _refuse([path], force=force)
    return _write(call, path, audio, judgement)


def write_pages(
    calls: Sequence[VoiceCall],
    directory: Path,
    *,
    audio: AudioChoice | None = None,
    judgement_of: Callable[[VoiceCall], Judgement | None] = lambda _: None,
    force: bool = False,
) -> list[Written]:
    """Write a page for each call, named after it, and ``index.html``, which lists them.

    Raises:
        PageError: one of the files is there already, or cannot be written.
        JudgementError: from `judgement_of`.
    """
    names = _names(call.call_id for call in calls)
    index = directory / INDEX_NAME
    _refuse([index, *(directory / name for name in names)], force=force)
    written = [
        _write(call, directory / name, audio, judgement_of(call))
        for call, name in zip(calls, names, strict=True)
    ]
    _save(index, index_page(Entry(call, name) for call, name in zip(calls, names, strict=True)))
    return written


def _write(call: VoiceCall, path: Path, audio: AudioChoice | None, judgement: Judgement | None) -> Written:
    try:
        sound = sound_of(call, audio, path)
    except (OSError, RecordingError) as error:
        raise PageError(f"the audio of call {call.call_id} cannot be read: {error}") from error
    size = _save(path, call_page(call, sound, judgement))
    return Written(path, call, size, _kind(sound), sound.note, judgement is not None)


def _kind(sound: Sound) -> str:
    return "embedded" if sound.pieces else "linked" if sound.href is not None else "none"


def _names(call_ids: Iterable[str]) -> list[str]:
    """A file name for each call, different also where letters' case makes no difference."""
    names: list[str] = []
    taken = {INDEX_NAME}
    for call_id in call_ids:
        base = _UNSAFE.sub("_", call_id)[:_LONGEST].strip(".") or "call"
        name, number = f"{base}.html", 1
        while name.lower() in taken:
            number += 1
            name = f"{base}-{number}.html"
        taken.add(name.lower())
        names.append(name)
    return names


def _refuse(paths: Iterable[Path], *, force: bool) -> None:
    for path in paths:
        if path.is_dir():
            raise PageError(f"{path} is a directory")
        if path.exists() and not force:
            raise PageError(f"{path} exists; replace it with --force, or name another")


def _save(path: Path, text: str) -> int:
    """Write a file whole or not at all; its size in bytes."""
    data = text.encode("utf-8")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # what people said is private: mkstemp's file is its owner's only
        fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
            Path(temporary).replace(path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        raise PageError(f"{path} cannot be written: {error.strerror or error}") from error
    return len(data)
