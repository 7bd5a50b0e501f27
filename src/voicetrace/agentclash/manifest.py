# SPDX-License-Identifier: Apache-2.0
"""The voice artifact manifest, schema version 2026-05-13: its model and all of its rules.

Valid here is what the published JSON Schema *and* the platform's ingestion both take. Where the two
differ (``a/../b`` as a path, the nil UUID, letter case of UUIDs) the stricter one counts.
"""

from __future__ import annotations

import enum
import json
import re
from typing import Annotated, Any, Final

from pydantic import Field

from voicetrace.agentclash import problems as p

SCHEMA_VERSION: Final = "2026-05-13"
MANIFEST_NAME: Final = "voice_artifact_manifest.json"


class ArtifactKind(enum.StrEnum):
    """What an artifact is. The order here is no order of importance."""

    CALLER_AUDIO = "caller_audio"
    AGENT_AUDIO = "agent_audio"
    MIXED_AUDIO = "mixed_audio"
    TRANSCRIPT = "transcript_json"
    WAVEFORM_TIMELINE = "waveform_timeline_json"
    STRUCTURED_OUTPUT = "structured_output_json"
    LIVE_CONTINUITY_REPORT = "live_continuity_report_json"
    VIDEO_SYNC_REPORT = "video_sync_report_json"
    MEDIA_POLICY_REPORT = "media_policy_report_json"
    RAW_PROVIDER_TRACE = "raw_provider_trace_json"
    REDACTION_METADATA = "redaction_metadata_json"


REQUIRED_KINDS: Final = (
    ArtifactKind.CALLER_AUDIO,
    ArtifactKind.AGENT_AUDIO,
    ArtifactKind.TRANSCRIPT,
    ArtifactKind.WAVEFORM_TIMELINE,
    ArtifactKind.STRUCTURED_OUTPUT,
)

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_INT64_MAX = 2**63 - 1


def is_run_uuid(value: str) -> bool:
    """Tell whether a string is a hyphenated UUID, in any letter case, and not the nil UUID."""
    return bool(_UUID.fullmatch(value)) and value.strip("0-") != ""


def is_sha256(value: str) -> bool:
    """Tell whether a string is a digest as the manifest has it: 64 lower-case hex digits."""
    return bool(_SHA256.fullmatch(value))


def path_problem(path: str) -> str | None:
    """Say why ``path`` may not name a file of a bundle; ``None`` when it may."""
    if p.blank(path):
        return "must not be blank"
    if "\\" in path:
        return f"must use forward slashes only, not {p.shown(path)}"
    if path.startswith("/") or re.match(r"[A-Za-z]:", path):
        return f"must be relative to the bundle, not {p.shown(path)}"
    if re.search(r"(^|/)\.\.(/|$)", path):
        return f"must not contain '..', not {p.shown(path)}"
    return None


def _size(value: object) -> object:
    # ingestion reads a 64-bit integer, which takes neither 2.0 nor more digits
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _INT64_MAX:
        raise p.refusal("must be an integer from 0 to 2^63-1, without a fraction", value)
    return value


RunUuid = Annotated[
    str,
    p.text(
        "must be a UUID other than the nil UUID",
        is_run_uuid,
        {
            "format": "uuid",
            "pattern": "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
            "not": {"pattern": "^0{8}(-0{4}){3}-0{12}$"},
        },
    ),
]
NotBlank = Annotated[str, p.NOT_BLANK]


class Metadata(p.Document):
    """What a producer adds of its own; the named fields must be strings, all others are kept as they are."""

    provider: str = ""
    model: str = ""
    input_language: str = ""
    output_language: str = ""
    transport: str = ""
    streaming_mode: str = ""


class ArtifactRef(p.Document):
    """One artifact: a file of the bundle (``path``), or an object elsewhere (``bucket``, ``object_key``)."""

    key: NotBlank
    kind: Annotated[str, p.one_of(*ArtifactKind)]
    location: Annotated[str, p.one_of("local_path", "object_storage")]
    path: NotBlank = ""
    bucket: NotBlank = ""
    object_key: NotBlank = ""
    content_type: str = ""
    size_bytes: Annotated[int | None, p.Rule(_size, schema={"type": "integer", "minimum": 0})] = None
    checksum_sha256: Annotated[
        str,
        p.text(
            "must be 64 lower-case hex digits",
            is_sha256,
            {"pattern": "^[0-9a-f]{64}$"},
        ),
    ]


class Manifest(p.Document):
    """The manifest's shape. `validate_manifest` checks it together with the rules between its fields."""

    schema_version: Annotated[str, p.one_of(SCHEMA_VERSION)]
    run_id: RunUuid
    run_agent_id: RunUuid
    voice_session_id: NotBlank
    artifacts: list[ArtifactRef]
    metadata: Metadata = Field(default_factory=Metadata)

    def to_json(self) -> str:
        """The file's stable text: artifacts by key, two spaces, one newline at the end."""
        data = self.to_dict()
        data["artifacts"].sort(key=lambda artifact: artifact["key"])
        return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def validate_manifest(data: object) -> list[str]:
    """Say every way in which a parsed manifest breaks the contract; empty when it is valid.

    ``data`` is what `json.loads` gives. Each problem is one line that begins with its JSON path, e.g.
    ``$.artifacts[2].checksum_sha256: must be 64 lower-case hex digits, not "AB"``. Never raises for content.
    Files are not looked at; `validate_bundle` does that.
    """
    out = p.shape_problems(Manifest, data)
    artifacts = data.get("artifacts") if isinstance(data, dict) else None
    if isinstance(artifacts, list):
        out += _artifact_problems(artifacts)
    return p.unique(out)


def _artifact_problems(artifacts: list[Any]) -> list[str]:
    out: list[str] = []
    if not artifacts:
        out.append("$.artifacts: must contain at least one artifact")
    first: dict[str, int] = {}
    kinds: set[str] = set()
    for index, artifact in enumerate(artifacts):
        if not isinstance(artifact, dict):
            continue
        at = f"$.artifacts[{index}]"
        out += _location_problems(artifact, at)
        key, kind = artifact.get("key"), artifact.get("kind")
        if isinstance(kind, str):
            kinds.add(kind)
        if isinstance(key, str) and first.setdefault(key, index) != index:
            out.append(f"{at}.key: repeats the key {p.shown(key)} of $.artifacts[{first[key]}]")
    missing = [kind for kind in REQUIRED_KINDS if kind not in kinds]
    out += [f"$.artifacts: has no {kind}, which every bundle needs" for kind in missing]
    return out


def _location_problems(artifact: dict[str, Any], at: str) -> list[str]:
    location = artifact.get("location")
    needed: tuple[str, ...]
    foreign: tuple[str, ...]
    if location == "local_path":
        needed, foreign = ("path",), ("bucket", "object_key")
    elif location == "object_storage":
        needed, foreign = ("bucket", "object_key"), ("path",)
    else:
        return []
    out = [
        f"{at}.{name}: is missing, and location {location} needs it"
        for name in needed
        if name not in artifact
    ]
    out += [f"{at}.{name}: must be absent with location {location}" for name in foreign if name in artifact]
    path = artifact.get("path")
    if location == "local_path" and isinstance(path, str) and not p.blank(path):
        problem = path_problem(path)
        if problem:
            out.append(f"{at}.path: {problem}")
    return out
