# SPDX-License-Identifier: Apache-2.0
"""What is known of a recording that will not change any more."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from voicetrace.audio.errors import RecordingError
from voicetrace.audio.source import Source
from voicetrace.audio.transcode import SUFFIXES, RecordingFormat, transcode
from voicetrace.audio.wav import CHANNELS
from voicetrace.messages import Channel


@dataclass(frozen=True, slots=True)
class RecordingFacts:
    """A finished recording (contract, section 5). `uri` is the file's name, relative to where it lies.

    `note` says what turned out other than asked, empty when nothing did.
    """

    path: Path
    uri: str
    format: RecordingFormat
    sample_rate_hz: int
    channels: tuple[Channel, ...]
    duration_ms: int
    sha256: str
    lost_ms: int = 0
    note: str = ""


def facts_of(path: Path, *, lost_ms: int = 0, note: str = "") -> RecordingFacts:
    """Measure a finished recording. Reads the whole file, in pieces.

    Raises:
        OSError: it cannot be read.
        ClipError: it is no audio.
    """
    with Source(path) as source:
        duration_ms = round(source.frames * 1000 / source.sample_rate_hz)
        rate = source.sample_rate_hz
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    formats: dict[str, RecordingFormat] = {".flac": "flac", ".ogg": "opus"}
    kind = formats.get(path.suffix, "wav")
    assert kind in SUFFIXES
    return RecordingFacts(path, path.name, kind, rate, CHANNELS, duration_ms, digest, lost_ms, note)


def encode(facts: RecordingFacts, wanted: RecordingFormat) -> RecordingFacts:
    """Make a finished WAV smaller, whole or not at all; when it cannot be done the WAV stays, with a note.

    Takes seconds to minutes for a long call (Opus about 1/40 of its length), so a writer thread that other
    calls wait for is not the place: record a WAV there, and call this elsewhere. Any thread will do.

    Raises:
        OSError: the encoded file cannot be read back.
        ClipError: the same.
    """
    try:
        path = transcode(facts.path, wanted)
    except RecordingError as error:
        return replace(facts, note=str(error))
    return facts if path == facts.path else facts_of(path, lost_ms=facts.lost_ms, note=facts.note)
