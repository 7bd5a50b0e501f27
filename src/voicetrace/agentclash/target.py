# SPDX-License-Identifier: Apache-2.0
"""Where a bundle goes: built beside its place, moved there whole, and nothing that is not ours is touched."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from voicetrace.agentclash.artifacts import (
    CALL_IMPORT_NAME,
    FILES,
    MULTIMODAL_TRACE_NAME,
    OBJECT_MANIFEST_NAME,
    BundleError,
)
from voicetrace.agentclash.manifest import MANIFEST_NAME
from voicetrace.agentclash.problems import load_json

PRODUCER: Final = "voicetrace"
_SUFFIX: Final = ".partial"
_OURS: Final = (
    *(f"artifacts/{file.name}" for file in FILES),
    CALL_IMPORT_NAME,
    MULTIMODAL_TRACE_NAME,
    OBJECT_MANIFEST_NAME,
)


def check_target(target: Path) -> None:
    """Raise `BundleError` unless a bundle may be put there: absent, empty, or an earlier bundle of ours."""
    if not target.exists():
        if target.is_symlink():
            raise BundleError(f"{target} is a symbolic link that leads nowhere")
        return
    if not target.is_dir():
        raise BundleError(f"{target} is no directory")
    if any(target.iterdir()) and not _is_ours(target):
        raise BundleError(
            f"{target} is not empty and holds no earlier bundle of voicetrace: name another directory"
        )
    if (target / "artifacts").is_symlink():
        raise BundleError(f"{target / 'artifacts'} is a symbolic link: writing there would leave the bundle")


def _is_ours(target: Path) -> bool:
    data, problems = load_json(target / MANIFEST_NAME)
    metadata = data.get("metadata") if not problems and isinstance(data, dict) else None
    return isinstance(metadata, dict) and metadata.get("producer") == PRODUCER


@contextmanager
def build_beside(target: Path) -> Iterator[Path]:
    """A new directory on the target's file system, gone afterwards unless it became the target.

    It is locked while it is built, so the next export can tell what a killed one left behind and remove it.
    """
    parent = target.resolve().parent
    parent.mkdir(parents=True, exist_ok=True)
    _sweep(parent, target.name)
    build = parent / f".{target.name}.{uuid.uuid4().hex[:12]}{_SUFFIX}"
    build.mkdir()
    lock = _lock(build)
    try:
        yield build
    finally:
        if lock is not None:
            os.close(lock)
        shutil.rmtree(build, ignore_errors=True)


def move(build: Path, target: Path) -> None:
    """Put what was built in its place.

    An absent or empty target appears at once. An earlier bundle is replaced file by file, the manifest
    last: until then the old one's checksums show that the bundle is not whole.
    """
    if target.exists() and not target.is_symlink() and not any(target.iterdir()):
        target.rmdir()
    if not target.exists():
        build.rename(target)
        return
    (target / "artifacts").mkdir(exist_ok=True)
    for name in _OURS:
        if (build / name).exists():
            (build / name).replace(target / name)
        else:  # of the earlier bundle, and no longer said by anybody
            (target / name).unlink(missing_ok=True)
    (build / MANIFEST_NAME).replace(target / MANIFEST_NAME)


def _sweep(parent: Path, name: str) -> None:
    for left in parent.glob(f".{_escaped(name)}.{'[0-9a-f]' * 12}{_SUFFIX}"):
        lock = _lock(left)
        if lock is not None:
            os.close(lock)
            shutil.rmtree(left, ignore_errors=True)


def _escaped(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _lock(directory: Path) -> int | None:
    """Hold a directory; ``None`` when another process does, or where directories cannot be locked."""
    if sys.platform == "win32":
        return None
    import fcntl

    with contextlib.suppress(OSError):
        fd = os.open(directory, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
        else:
            return fd
    return None
