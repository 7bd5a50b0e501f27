# SPDX-License-Identifier: Apache-2.0
"""The files of a bundle: what each is called, what kind of artifact it is, and how JSON is written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
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


def write_json(document: Any, path: Path, what: str) -> tuple[str, int]:
    """Write a document the stable way: two spaces, one newline at the end; its digest and size.

    Raises:
        BundleError: it holds what JSON does not have.
        OSError: the disk refuses.
    """
    data = json_text(document, what).encode()
    path.write_bytes(data)
    return hashlib.sha256(data).hexdigest(), len(data)


def write_listed(
    head: Mapping[str, Any], name: str, items: Iterable[Any], tail: Mapping[str, Any], path: Path, what: str
) -> tuple[str, int]:
    """Write an object with one long array in it, an item a line: the whole is never in memory.

    Raises:
        BundleError: it holds what JSON does not have.
        OSError: the disk refuses.
    """
    sha, size = hashlib.sha256(), 0
    with path.open("wb") as out:
        for part in _listed(head, name, items, tail, what):
            data = part.encode()
            out.write(data)
            sha.update(data)
            size += len(data)
    return sha.hexdigest(), size


def _listed(
    head: Mapping[str, Any], name: str, items: Iterable[Any], tail: Mapping[str, Any], what: str
) -> Iterator[str]:
    def field(key: str, value: Any) -> str:
        return f"  {_dump(key, what, None)}: {_dump(value, what, 2)}".replace("\n", "\n  ")

    yield "{\n" + "".join(f"{field(key, value)},\n" for key, value in head.items())
    yield f"  {_dump(name, what, None)}: ["
    for index, item in enumerate(items):
        yield f"{',' if index else ''}\n    {_dump(item, what, None)}"
    yield "\n  ]" + "".join(f",\n{field(key, value)}" for key, value in tail.items()) + "\n}\n"


def json_text(document: Any, what: str) -> str:
    """A document as the stable text of a file.

    Raises:
        BundleError: it holds what JSON does not have.
    """
    return _dump(document, what, 2) + "\n"


def _dump(value: Any, what: str, indent: int | None) -> str:
    try:
        text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise BundleError(f"{what} holds a value that JSON does not have: {error}") from error
    if is_unicode(text):
        return text
    # a lone surrogate (half a character, cut by someone upstream) cannot be UTF-8; it becomes U+FFFD
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):  # span attributes are read-only views
        return dict(value)
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{type(value).__name__} is not JSON")
