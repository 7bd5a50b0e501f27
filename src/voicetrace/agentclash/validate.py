# SPDX-License-Identifier: Apache-2.0
"""Checking what is on disk: a bundle directory, or one manifest or report by itself."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from voicetrace.agentclash import problems as p
from voicetrace.agentclash.manifest import MANIFEST_NAME, is_sha256, path_problem, validate_manifest
from voicetrace.agentclash.promotion import call_import_problems, multimodal_trace_problems
from voicetrace.agentclash.redaction import redaction_problems
from voicetrace.agentclash.reports import REPORT_KINDS, validate_report

_BLOCK: Final = 1024 * 1024


def validate_bundle(directory: str | os.PathLike[str]) -> list[str]:
    """Say everything that is wrong with a bundle directory; empty when it is valid.

    The manifest is checked as `validate_manifest` does, then every local file: it is there, inside the
    bundle also when symbolic links are followed, of the declared size and SHA-256; a report kind's contents
    are checked too. Files are streamed. Each problem is one line; those inside a report begin with its
    path in the bundle: ``artifacts/live_continuity_report.json $.passed: …``. Never raises for content.
    """
    root = Path(directory)
    if not stat.S_ISDIR(_mode(root)):
        return [f"$: {root} is no directory"]
    path = root / MANIFEST_NAME
    if not _mode(path):
        return [f"$: {root} has no {MANIFEST_NAME} at its root"]
    data, problems = p.load_json(path)
    if problems:
        return problems
    return validate_manifest(data) + _file_problems(data, root)


def validate_path(path: str | os.PathLike[str]) -> list[str]:
    """Check a bundle directory, a manifest or a report, whichever ``path`` is.

    So are a call import, a multimodal trace and redaction metadata. A report is known by its ``type``, or by
    its shape where ``type`` may be absent. A manifest by itself is also checked against its files when at
    least one of them stands beside it. One line per problem.
    """
    where = Path(path)
    if stat.S_ISDIR(_mode(where)):
        return validate_bundle(where)
    data, problems = p.load_json(where)
    if problems:
        return problems
    if not _looks_like_manifest(data):
        return _document_problems(data)
    beside = any(_mode(where.parent / file) for _, _, file in _local_files(data))
    return validate_manifest(data) + (_file_problems(data, where.parent) if beside else [])


def _document_problems(data: Any) -> list[str]:
    """The problems of a report, or of one of the documents that go with a bundle, known by its own keys."""
    if isinstance(data, dict) and "type" not in data and "summary" not in data:
        for key, problems in (
            ("import_id", call_import_problems),
            ("segments", multimodal_trace_problems),
            ("findings", redaction_problems),
        ):
            if key in data:
                return problems(data)
    return validate_report(data)


def digest(path: Path) -> tuple[str, int]:
    """The SHA-256, in lower-case hex, and the size in bytes of a file, streamed.

    Raises:
        OSError: the file cannot be read.
    """
    total, sha = 0, hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            sha.update(block)
            total += len(block)
    return sha.hexdigest(), total


def _mode(path: Path) -> int:
    """The file's mode; 0 when nothing is there, or when no file can have such a name."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return 0


def _looks_like_manifest(data: Any) -> bool:
    if not isinstance(data, dict) or "type" in data or "import_id" in data or "segments" in data:
        return False
    return isinstance(data.get("artifacts"), list) or "voice_session_id" in data or "run_agent_id" in data


def _local_files(data: Any) -> Iterator[tuple[int, dict[str, Any], str]]:
    """Index, entry and path of each local artifact whose path may be followed."""
    artifacts = data.get("artifacts") if isinstance(data, dict) else None
    for index, artifact in enumerate(artifacts if isinstance(artifacts, list) else []):
        if not isinstance(artifact, dict) or artifact.get("location") != "local_path":
            continue
        path = artifact.get("path")
        if isinstance(path, str) and path_problem(path) is None and p.is_unicode(path):
            yield index, artifact, path


def _file_problems(data: Any, root: Path) -> list[str]:
    out: list[str] = []
    for index, artifact, path in _local_files(data):
        try:
            out += _one_file(f"$.artifacts[{index}]", artifact, path, root)
        except (OSError, ValueError, RuntimeError) as error:  # a NUL in the name; symbolic links in a circle
            out.append(f"$.artifacts[{index}].path: {p.shown(path)} cannot be read: {p.reason(error)}")
    return out


def _one_file(at: str, artifact: dict[str, Any], path: str, root: Path) -> list[str]:
    name = f"{p.shown(path)} (key {p.shown(artifact.get('key'))})"
    file = root / path
    try:
        mode = file.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return [f"{at}.path: {name} is not in the bundle"]
    if not file.resolve().is_relative_to(root.resolve()):
        return [f"{at}.path: {name} leaves the bundle through a symbolic link"]
    if not stat.S_ISREG(mode):  # reading a pipe would wait for a writer
        return [f"{at}.path: {name} is no regular file"]
    out: list[str] = []
    sha, size = digest(file)
    declared = artifact.get("size_bytes")
    if isinstance(declared, int) and declared > 0 and declared != size:  # 0 says nothing, as for ingestion
        out.append(f"{at}.size_bytes: says {p.shown(declared)}, and {name} has {size} bytes")
    checksum = artifact.get("checksum_sha256")
    if isinstance(checksum, str) and is_sha256(checksum) and checksum != sha:  # else it is a problem already
        out.append(f"{at}.checksum_sha256: differs from the digest of {name}, which is {sha}")
    kind = artifact.get("kind")
    if isinstance(kind, str) and kind in REPORT_KINDS:
        report, problems = p.load_json(file)
        where = path if path.isprintable() else p.shown(path)  # a line break in a name stays one line
        out += [f"{where} {line}" for line in problems or validate_report(report, kind)]
    return out
