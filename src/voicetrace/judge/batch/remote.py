# SPDX-License-Identifier: Apache-2.0
"""Calls in an object store: listed, their traces fetched to plan, a call's files fetched to judge it.

What identifies a call is its trace's content and, of the other files of its folder, the store's own ETags:
nothing large is fetched twice. Only what a folder below the prefix holds is judged, so recordings must lie
beside their traces.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from voicetrace.journal import FILE_NAME
from voicetrace.judge.batch.source import MANIFEST, CallRef, Kind, Place, Reader, SourceError
from voicetrace.judge.warehouse import OBJECT_STORES, WarehouseError, scheme_of
from voicetrace.judge.warehouse.blobs import open_store

_TRACES: Final = (".json", ".jsonl")


def is_remote(source: str) -> bool:
    """Whether the calls are in an object store."""
    return "://" in source and scheme_of(source) in OBJECT_STORES


@dataclass(frozen=True, slots=True)
class _Object:
    path: str
    size: int
    tag: str


class RemoteCalls:
    """The calls below a prefix."""

    def __init__(self, url: str, store: Any, prefix: str, folder: Path) -> None:
        self.url = url.rstrip("/")
        self._store = store
        self._prefix = prefix.strip("/")
        self._folder = folder
        self._objects = self._list()

    def _list(self) -> dict[str, list[_Object]]:
        """Folder (relative to the prefix) -> its objects."""
        import obstore  # type: ignore[import-not-found,unused-ignore]

        found: dict[str, list[_Object]] = {}
        before = f"{self._prefix}/" if self._prefix else ""
        try:
            for page in obstore.list(self._store, before or None):
                for meta in page:
                    path = meta["path"].removeprefix(before)
                    tag = meta.get("e_tag") or meta["last_modified"].isoformat()
                    found.setdefault(_parent(path), []).append(_Object(path, meta["size"], tag))
        except obstore.exceptions.BaseError as error:
            said = " ".join(str(error).split())[:300]
            raise SourceError(f"{self.url} cannot be listed: {said}") from error
        return found

    def places(self) -> list[Place]:
        """As `find_calls`; paths are URLs."""
        found = []
        bundles = {
            folder for folder, some in self._objects.items() if any(_name(o.path) == MANIFEST for o in some)
        }
        for folder, some in sorted(self._objects.items()):
            if (
                any(folder == b or folder.startswith(f"{b}/") or not b for b in bundles)
                and folder not in bundles
            ):
                continue
            names = {_name(o.path) for o in some}
            if FILE_NAME in names:
                found.append(Place(Kind.JOURNAL, self._url(folder), _join(folder, FILE_NAME)))
            if folder in bundles:
                found.append(Place(Kind.BUNDLE, self._url(folder), _join(folder, MANIFEST)))
            elif FILE_NAME not in names:
                found += [
                    Place(Kind.TRACE, f"{self.url}/{o.path}", o.path)
                    for o in sorted(some, key=lambda o: o.path)
                    if PurePosixPath(o.path).suffix in _TRACES
                ]
        return sorted(found, key=lambda place: (place.kind, place.path))

    def reader(self) -> Reader:
        """Reads what identifies a call from its trace alone."""
        return _RemoteReader(self)

    def _url(self, folder: str) -> str:
        return f"{self.url}/{folder}" if folder else self.url

    def beside(self, main: str) -> list[_Object]:
        """The other objects of a call: those of its folder, and of a bundle's folders."""
        folder = _parent(main)
        below = folder if _name(main) == MANIFEST else None
        return sorted(
            (
                o
                for where, some in self._objects.items()
                if where == folder or (below is not None and (not below or where.startswith(f"{below}/")))
                for o in some
                if o.path != main
            ),
            key=lambda o: o.path,
        )

    def fetch(self, path: str) -> Path:
        """One object, in this run's temporary folder, under its own name."""
        target = self._folder / path
        _fetch(self._store, _join(self._prefix, path), target)
        return target


class _RemoteReader(Reader):
    def __init__(self, calls: RemoteCalls) -> None:
        super().__init__()
        self._calls = calls

    def read(self, place: Place) -> list[CallRef]:
        path = self._calls.fetch(place.main)
        try:
            here = replace(place, path=str(path.parent), main=str(path))
            found = super().read(here)
        finally:
            path.unlink(missing_ok=True)
        others = "".join(f"{_name(o.path)} {o.size} {o.tag}\n" for o in self._calls.beside(place.main))
        return [
            replace(
                ref,
                path=place.path,
                # nobody here holds the lock of a journal there: one without an end may go on
                running=False,
                digest=hashlib.sha256(f"{ref.digest}\n{others}".encode()).hexdigest(),
            )
            for ref in found
        ]


@contextlib.contextmanager
def fetched(url: str) -> Iterator[Path]:
    """A call of an object store as a temporary folder, or file, of this machine.

    Raises:
        OSError: it cannot be fetched.
    """
    try:
        store, prefix = open_store(url)
        names = _below(store, prefix)
    except WarehouseError as error:
        raise OSError(str(error)) from error
    with tempfile.TemporaryDirectory(prefix="voicetrace-call-") as folder:
        target = Path(folder) / (_name(prefix) or "call")
        if prefix in names:  # one trace: with what lies beside it
            names = [name for name in _below(store, _parent(prefix)) if _parent(name) == _parent(prefix)]
            for name in names:
                _fetch(store, name, Path(folder) / _name(name))
        else:
            for name in names:
                _fetch(store, name, target / name.removeprefix(f"{prefix}/"))
        yield target


@contextlib.contextmanager
def open_calls(url: str) -> Iterator[RemoteCalls]:
    """The calls below a URL; what was fetched is removed at the end.

    Raises:
        SourceError: it cannot be opened or listed.
    """
    try:
        store, prefix = open_store(url)
    except WarehouseError as error:
        raise SourceError(str(error)) from error
    with tempfile.TemporaryDirectory(prefix="voicetrace-calls-") as folder:
        yield RemoteCalls(url, store, prefix, Path(folder))


def _below(store: Any, prefix: str) -> list[str]:
    """The names of the objects in a folder and below, and of the object that is named so itself."""
    import obstore

    try:
        pages = obstore.list(store, prefix or None)
        found = [meta["path"] for page in pages for meta in page]
        if prefix and not found:
            found = [obstore.head(store, prefix)["path"]]
    except obstore.exceptions.BaseError as error:
        raise OSError(f"{prefix} cannot be listed: {' '.join(str(error).split())[:300]}") from error
    return found


def _fetch(store: Any, name: str, target: Path) -> None:
    import obstore

    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with target.open("wb") as out:
            for chunk in obstore.get(store, name).stream():
                out.write(chunk)
    except (obstore.exceptions.BaseError, FileNotFoundError) as error:
        raise OSError(f"{name} cannot be fetched: {' '.join(str(error).split())[:300]}") from error


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
