# SPDX-License-Identifier: Apache-2.0
"""Immutable files under one root, on this disk or in an object store: what a Parquet warehouse stands on.

A file appears whole or not at all, is never changed, and may be deleted while others read it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from voicetrace.judge.warehouse.base import NotConfigured, WarehouseUnavailable

STAGING: Final = ".staging"
_STALE_S: Final = 6 * 3600
_LIST_S: Final = 2.0  # how long a listing of an object store is taken as new
ENV_CACHE: Final = "VOICETRACE_CACHE"


class Blobs(Protocol):
    """Files by name (``a/b.parquet``). All methods raise `WarehouseUnavailable` when the store refuses."""

    where: str

    def prepare(self) -> None:
        """Make the root."""

    def there(self) -> bool:
        """Whether the root exists."""

    def names(self, prefix: str) -> list[str]:
        """The names of all files below ``prefix`` (a folder, without the slash), sorted."""

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""

    def local(self, name: str) -> Path | None:
        """The file on this machine; None when it is gone."""

    def staged(self) -> contextlib.AbstractContextManager[Path]:
        """A path to write a new file at; what is left there afterwards is removed."""

    def put(self, name: str, staged: Path) -> None:
        """Make the staged file the file of this name, durably; one that is there is replaced."""

    def delete(self, name: str) -> None:
        """Remove a file; harmless when it is gone."""


class LocalBlobs:
    """Files of a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.where = str(root)

    def prepare(self) -> None:
        """Make the directory."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WarehouseUnavailable(f"{self.root} cannot be made: {error.strerror}") from error

    def there(self) -> bool:
        """Whether the directory exists."""
        return self.root.is_dir()

    def names(self, prefix: str) -> list[str]:
        """All files below a folder."""
        found: list[str] = []
        try:
            self._scan(self.root / prefix if prefix else self.root, f"{prefix}/" if prefix else "", found)
        except OSError as error:
            raise WarehouseUnavailable(f"{self.root} cannot be listed: {error.strerror}") from error
        return sorted(found)

    def _scan(self, folder: Path, prefix: str, found: list[str]) -> None:
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            return
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                self._scan(Path(entry.path), f"{prefix}{entry.name}/", found)
            else:
                found.append(prefix + entry.name)

    def exists(self, name: str) -> bool:
        """Whether the file exists."""
        try:
            (self.root / name).stat()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise WarehouseUnavailable(f"{self.root / name} cannot be read: {error.strerror}") from error
        return True

    def local(self, name: str) -> Path | None:
        """The file itself."""
        return self.root / name if self.exists(name) else None

    @contextlib.contextmanager
    def staged(self) -> Iterator[Path]:
        """A name in the directory's own staging folder: a rename from there is atomic."""
        staging = self.root / STAGING
        try:
            staging.mkdir(parents=True, exist_ok=True)
            with os.scandir(staging) as entries:
                for entry in entries:  # what killed writers left
                    with contextlib.suppress(OSError):
                        if entry.stat().st_mtime < time.time() - _STALE_S:
                            Path(entry.path).unlink()
            fd, name = tempfile.mkstemp(dir=staging)
            os.close(fd)
        except OSError as error:
            raise WarehouseUnavailable(f"{self.root} cannot be written: {error.strerror}") from error
        try:
            yield Path(name)
        finally:
            Path(name).unlink(missing_ok=True)

    def put(self, name: str, staged: Path) -> None:
        """Sync the file, rename it, sync its folder."""
        target = self.root / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _sync(staged)
            staged.chmod(0o640)
            staged.replace(target)
            _sync(target.parent)
        except OSError as error:
            raise WarehouseUnavailable(f"{target} cannot be written: {error.strerror}") from error

    def delete(self, name: str) -> None:
        """Remove the file."""
        try:
            (self.root / name).unlink(missing_ok=True)
        except OSError as error:
            raise WarehouseUnavailable(f"{self.root / name} cannot be removed: {error.strerror}") from error


class RemoteBlobs:
    """Objects below a prefix of a store. Read through a folder on this machine that keeps what was fetched.

    Files are immutable, so one that is there is never fetched again; one that the store no longer lists
    is removed.
    """

    def __init__(self, store: Any, prefix: str, cache: Path, where: str) -> None:
        self._store = store
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._cache = cache
        self.where = where
        self._lock = threading.Lock()
        self._listed: dict[str, tuple[float, list[str]]] = {}

    def prepare(self) -> None:
        """Nothing to make: prefixes are not things."""

    def there(self) -> bool:
        """Always: an empty prefix cannot be told from one that is not there."""
        return True

    def names(self, prefix: str) -> list[str]:
        """All objects below a folder; what this process lists, it lists at most every two seconds."""
        with self._lock:
            known = self._listed.get(prefix)
        if known is not None and time.monotonic() - known[0] < _LIST_S:
            return known[1]
        obstore = _obstore()
        whole = f"{self._prefix}{prefix}/" if prefix else self._prefix
        with self._refusals():
            pages = obstore.list(self._store, whole or None)
            names = [meta["path"].removeprefix(self._prefix) for page in pages for meta in page]
        with self._lock:
            self._listed[prefix] = (time.monotonic(), sorted(names))
        self._forget(prefix, names)
        return sorted(names)

    def _forget(self, prefix: str, names: list[str]) -> None:
        there = set(names)
        folder = self._cache / prefix
        for path in folder.rglob("*") if folder.is_dir() else ():
            if path.is_file() and path.relative_to(self._cache).as_posix() not in there:
                path.unlink(missing_ok=True)

    def exists(self, name: str) -> bool:
        """Whether the object exists."""
        obstore = _obstore()
        try:
            with self._refusals():
                obstore.head(self._store, self._prefix + name)
        except _Gone:
            return False
        return True

    def local(self, name: str) -> Path | None:
        """The object, fetched unless it was."""
        path = self._cache / name
        if path.is_file():
            return path
        obstore = _obstore()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd, partial = tempfile.mkstemp(dir=path.parent, prefix=".")
            try:
                with self._refusals(), os.fdopen(fd, "wb") as out:
                    for chunk in obstore.get(self._store, self._prefix + name).stream():
                        out.write(chunk)
                Path(partial).replace(path)
            finally:
                Path(partial).unlink(missing_ok=True)
        except _Gone:
            with self._lock:
                self._listed.clear()
            return None
        except OSError as error:
            raise WarehouseUnavailable(f"{path} cannot be written: {error.strerror or error}") from error
        return path

    @contextlib.contextmanager
    def staged(self) -> Iterator[Path]:
        """A temporary file of this machine."""
        try:
            fd, name = tempfile.mkstemp(prefix="voicetrace-part-")
            os.close(fd)
        except OSError as error:
            raise WarehouseUnavailable(f"no temporary file can be made: {error.strerror}") from error
        try:
            yield Path(name)
        finally:
            Path(name).unlink(missing_ok=True)

    def put(self, name: str, staged: Path) -> None:
        """Upload the file; an object appears whole."""
        obstore = _obstore()
        with self._refusals():
            obstore.put(self._store, self._prefix + name, staged)
        with self._lock:
            self._listed.clear()

    def delete(self, name: str) -> None:
        """Delete the object."""
        obstore = _obstore()
        with contextlib.suppress(_Gone), self._refusals():
            obstore.delete(self._store, self._prefix + name)
        with self._lock:
            self._listed.clear()

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        exceptions = _obstore().exceptions
        try:
            yield
        except (FileNotFoundError, exceptions.NotFoundError) as error:
            raise _Gone from error
        except exceptions.BaseError as error:
            said = " ".join(str(error).split())[:300]
            raise WarehouseUnavailable(f"{self.where} does not answer: {said}") from error


class _Gone(Exception):  # noqa: N818  not an error: a file was compacted away
    """There is no such object."""


def open_remote(url: str) -> RemoteBlobs:
    """The objects below a URL; credentials come from the environment, as the cloud's own tools take them.

    Raises:
        NotConfigured: it names no place, or the ``store`` extra is not installed.
        WarehouseUnavailable: the store cannot be opened.
    """
    store, prefix = open_store(url)
    return RemoteBlobs(store, prefix, cache_folder("parts", url), url)


def open_store(url: str) -> tuple[Any, str]:
    """An object store, and the prefix within it, that a URL names; errors as `open_remote`."""
    parts = urlsplit(url)
    if not parts.netloc:
        raise NotConfigured(f"{url} names no bucket: write {parts.scheme}://bucket/prefix")
    obstore = _obstore()
    prefix = parts.path.strip("/")
    root = f"{parts.scheme}://{parts.netloc}"
    if parts.scheme not in ("s3", "s3a", "gs") and parts.username is None:
        container, _, prefix = prefix.partition("/")
        root = f"{root}/{container}"
    try:
        return obstore.store.from_url(root), prefix
    except (obstore.exceptions.BaseError, ValueError) as error:
        said = " ".join(str(error).split())[:300]
        raise WarehouseUnavailable(f"{url} cannot be opened: {said}") from error


def cache_folder(kind: str, name: str) -> Path:
    """A folder for what can be made again, of this user: ``VOICETRACE_CACHE``, else the system's place."""
    base = os.environ.get(ENV_CACHE) or os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base else Path.home() / ".cache"
    readable = re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-")[-40:]
    return root / "voicetrace" / kind / f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _obstore() -> Any:
    try:
        import obstore  # type: ignore[import-not-found,unused-ignore]
        import obstore.exceptions  # type: ignore[import-not-found,unused-ignore]
        import obstore.store  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise NotConfigured("object storage needs obstore: pip install 'voicetrace[store]'") from error
    return obstore
