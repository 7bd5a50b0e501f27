# SPDX-License-Identifier: Apache-2.0
"""The files of a bundle: what each is called, what kind of artifact it is, and how JSON is written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from voicetrace.agentclash.manifest import ArtifactKind
from voicetrace.agentclash.problems import is_unicode


class BundleError(Exception):
    """The bundle cannot be written; the sentence says why and what to do. Nothing of it was left behind."""


class ArtifactFile(NamedTuple):
    """One artifact as we write it: its key in the manifest, its kind, its name under ``artifacts/``."""

    key: str
    kind: ArtifactKind
    name: str
    content_type: str


_AUDIO, _JSON = "audio/wav", "application/json"

CALLER: Final = ArtifactFile("caller_audio", ArtifactKind.CALLER_AUDIO, "caller.wav", _AUDIO)
AGENT: Final = ArtifactFile("agent_audio", ArtifactKind.AGENT_AUDIO, "agent.wav", _AUDIO)
MIXED: Final = ArtifactFile("mixed_audio", ArtifactKind.MIXED_AUDIO, "mixed.wav", _AUDIO)
TRANSCRIPT: Final = ArtifactFile("transcript", ArtifactKind.TRANSCRIPT, "transcript.json", _JSON)
TIMELINE: Final = ArtifactFile(
    "waveform_timeline", ArtifactKind.WAVEFORM_TIMELINE, "waveform_timeline.json", _JSON
)
OUTPUT: Final = ArtifactFile(
    "structured_output", ArtifactKind.STRUCTURED_OUTPUT, "structured_output.json", _JSON
)
CONTINUITY: Final = ArtifactFile(
    "live_continuity_report", ArtifactKind.LIVE_CONTINUITY_REPORT, "live_continuity_report.json", _JSON
)
VIDEO_SYNC: Final = ArtifactFile(
    "video_sync_report", ArtifactKind.VIDEO_SYNC_REPORT, "video_sync_report.json", _JSON
)
MEDIA_POLICY: Final = ArtifactFile(
    "media_policy_report", ArtifactKind.MEDIA_POLICY_REPORT, "media_policy_report.json", _JSON
)
TRACE: Final = ArtifactFile(
    "raw_provider_trace", ArtifactKind.RAW_PROVIDER_TRACE, "raw_provider_trace.json", _JSON
)
REDACTION: Final = ArtifactFile(
    "redaction_metadata", ArtifactKind.REDACTION_METADATA, "redaction_metadata.json", _JSON
)
FILES: Final = (
    CALLER, AGENT, MIXED, TRANSCRIPT, TIMELINE, OUTPUT, CONTINUITY, VIDEO_SYNC, MEDIA_POLICY, TRACE,
    REDACTION,
)  # fmt: skip
"""All eleven kinds."""

CALL_IMPORT_NAME: Final = "call_import.json"
MULTIMODAL_TRACE_NAME: Final = "multimodal_trace.json"
OBJECT_MANIFEST_NAME: Final = "voice_artifact_manifest.object_storage.json"
"""The same bundle's manifest, its artifacts in object storage; written by an upload."""

_WRITE_AT: Final = 1 << 16  # characters that are written at once


def write_json(document: Any, path: Path, what: str) -> tuple[str, int]:
    """Write a document the stable way: two spaces, one newline at the end; its digest and size.

    Raises:
        BundleError: it holds what JSON does not have.
        OSError: the disk refuses.
    """
    return _write(chain(_parts(document, what), ["\n"]), path)


def write_listed(
    head: Mapping[str, Any], name: str, items: Iterable[Any], tail: Mapping[str, Any], path: Path, what: str
) -> tuple[str, int]:
    """Write an object with one long array in it, an item a line: the whole is never in memory.

    Raises:
        BundleError: it holds what JSON does not have.
        OSError: the disk refuses.
    """
    return _write(_listed(head, name, items, tail, what), path)


def _write(parts: Iterable[str], path: Path) -> tuple[str, int]:
    """Write text in pieces of a reasonable size; digest and size of what was written."""
    sha, size, waiting, length = hashlib.sha256(), 0, [], 0
    with path.open("wb") as out:
        for part in chain(parts, [None]):
            if part is not None:
                waiting.append(part)
                length += len(part)
            if part is None or length >= _WRITE_AT:
                data = "".join(waiting).encode()
                out.write(data)
                sha.update(data)
                size += len(data)
                waiting, length = [], 0
    return sha.hexdigest(), size


def _listed(
    head: Mapping[str, Any], name: str, items: Iterable[Any], tail: Mapping[str, Any], what: str
) -> Iterator[str]:
    def field(key: str, value: Any) -> str:
        return f"  {_line(key, what)}: {_text(value, what)}".replace("\n", "\n  ")

    yield "{\n" + "".join(f"{field(key, value)},\n" for key, value in head.items())
    yield f"  {_line(name, what)}: ["
    for index, item in enumerate(items):
        yield f"{',' if index else ''}\n    {_line(item, what)}"
    yield "\n  ]" + "".join(f",\n{field(key, value)}" for key, value in tail.items()) + "\n}\n"


def json_text(document: Any, what: str) -> str:
    """A document as the stable text of a file.

    Raises:
        BundleError: it holds what JSON does not have.
    """
    return _text(document, what) + "\n"


def _text(value: Any, what: str) -> str:
    return "".join(_parts(value, what))


def _parts(value: Any, what: str) -> Iterator[str]:
    """The indented text of a value, piece by piece."""
    encoder = json.JSONEncoder(indent=2, ensure_ascii=False, allow_nan=False, default=_plain)
    try:
        for part in encoder.iterencode(value):
            yield _unicode(part)
    except (TypeError, ValueError, RecursionError) as error:
        raise BundleError(f"{what} holds a value that JSON does not have: {error}") from error


def _line(value: Any, what: str) -> str:
    try:
        return _unicode(json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain))
    except (TypeError, ValueError, RecursionError) as error:
        raise BundleError(f"{what} holds a value that JSON does not have: {error}") from error


def _unicode(text: str) -> str:
    """The text, with U+FFFD for a lone surrogate: half a character, cut by someone upstream, is no UTF-8."""
    if is_unicode(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):  # span attributes are read-only views
        return dict(value)
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{type(value).__name__} is not JSON")
