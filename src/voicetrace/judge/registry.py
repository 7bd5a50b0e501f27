# SPDX-License-Identifier: Apache-2.0
"""Which services a workspace has: tells "no such service" (404) from "nothing scored yet" (an empty list).

Kept beside the warehouse, apart from the scores. Judging a call registers its service.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from voicetrace.judge.warehouse import (
    NotConfigured,
    WarehouseUnavailable,
    scheme_of,
    shown_url,
)

if TYPE_CHECKING:
    from voicetrace.judge.warehouse.blobs import Blobs
    from voicetrace.judge.warehouse.clickhouse import ClickHouse


class Registry(Protocol):
    """The services of all workspaces. Ids are canonical UUID strings.

    Methods raise `NotConfigured` or `WarehouseUnavailable` as those of the warehouse do.
    """

    def register(self, services: Iterable[tuple[str, str]]) -> None:
        """Add services (workspace, service); those that are there stay."""

    def has(self, workspace_id: str, service_id: str) -> bool:
        """Whether the workspace has the service."""

    def services(self, workspace_id: str) -> list[str]:
        """The workspace's services, sorted."""

    def close(self) -> None:
        """Let go of files and connections."""


def open_registry(url: str | os.PathLike[str], *, create: bool = False) -> Registry:
    """Open the registry beside the warehouse that a URL names; arguments and errors as `open_warehouse`."""
    from voicetrace.judge import warehouse as w

    text = os.fspath(url)
    scheme = scheme_of(text)
    if scheme == "":
        from voicetrace.judge.warehouse.blobs import LocalBlobs

        return BlobRegistry(LocalBlobs(w.local_path(text)), create=create)
    if scheme in w.OBJECT_STORES:
        from voicetrace.judge.warehouse.blobs import open_remote

        return BlobRegistry(open_remote(text), create=create)
    if scheme == "sqlite":
        return SqliteRegistry(w.sqlite_path(text), create=create)
    if scheme == "clickhouse":
        from voicetrace.judge.warehouse.clickhouse import HttpClickHouse

        return ClickHouseRegistry(HttpClickHouse(text), create=create)
    raise NotConfigured(f"{shown_url(text)} names no warehouse, so there is no registry beside it")


class BlobRegistry:
    """One small file a service, ``services/<workspace>/<service>.json``: no locks, any kind of store."""

    def __init__(self, blobs: Blobs, *, create: bool = False) -> None:
        self._blobs = blobs
        if create:
            blobs.prepare()

    def register(self, services: Iterable[tuple[str, str]]) -> None:
        """Write the files that are not there."""
        for workspace_id, service_id in services:
            name = _name(workspace_id, service_id)
            if not self._blobs.exists(name):
                with self._blobs.staged() as staged:
                    staged.write_text(
                        json.dumps({"workspace_id": workspace_id, "service_id": service_id}) + "\n"
                    )
                    self._blobs.put(name, staged)

    def has(self, workspace_id: str, service_id: str) -> bool:
        """One look at one file."""
        self._check()
        return self._blobs.exists(_name(workspace_id, service_id))

    def services(self, workspace_id: str) -> list[str]:
        """The files of the workspace."""
        self._check()
        names = self._blobs.names(f"services/{UUID(workspace_id)}")
        return sorted(name.rpartition("/")[2].removesuffix(".json") for name in names)

    def _check(self) -> None:
        if not self._blobs.there():
            raise NotConfigured(
                f"there is no warehouse at {self._blobs.where}; voicetrace judge run makes one"
            )

    def close(self) -> None:
        """Nothing is held."""


class SqliteRegistry:
    """A table ``services`` in the warehouse's own file."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self._path = path
        self._lock = threading.Lock()
        if create:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise WarehouseUnavailable(f"{path.parent} cannot be made: {error.strerror}") from error
            self._run(_CREATE, create=True)

    def register(self, services: Iterable[tuple[str, str]]) -> None:
        """Insert those that are not there."""
        for pair in services:
            self._run("INSERT OR IGNORE INTO services VALUES (?, ?)", pair)

    def has(self, workspace_id: str, service_id: str) -> bool:
        """By the primary key."""
        return bool(
            self._run(
                "SELECT 1 FROM services WHERE workspace_id = ? AND service_id = ?", (workspace_id, service_id)
            )
        )

    def services(self, workspace_id: str) -> list[str]:
        """All of the workspace."""
        found = self._run(
            "SELECT service_id FROM services WHERE workspace_id = ? ORDER BY service_id", (workspace_id,)
        )
        return [row[0] for row in found]

    def _run(self, sql: str, values: tuple[str, ...] = (), *, create: bool = False) -> list[tuple[str, ...]]:
        if not create and not self._path.exists():
            raise NotConfigured(f"there is no warehouse at {self._path}; voicetrace judge run makes one")
        try:
            with self._lock, contextlib.closing(sqlite3.connect(self._path, timeout=5.0)) as db, db:
                return db.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            if "no such table" in str(error):
                raise NotConfigured(f"{self._path} is no warehouse: it has no table services") from error
            raise WarehouseUnavailable(f"{self._path} cannot be used: {error}") from error

    def close(self) -> None:
        """Nothing is held."""


class ClickHouseRegistry:
    """A table ``voice_services``."""

    def __init__(self, client: ClickHouse, *, create: bool = False) -> None:
        self._client = client
        if create:
            client.run(
                "CREATE TABLE IF NOT EXISTS voice_services (workspace_id String, service_id String) "
                "ENGINE = ReplacingMergeTree ORDER BY (workspace_id, service_id)"
            )

    def register(self, services: Iterable[tuple[str, str]]) -> None:
        """Insert them; the server merges what is there twice."""
        lines = [json.dumps({"workspace_id": w, "service_id": s}) for w, s in services if not self.has(w, s)]
        if lines:
            self._client.run(
                "INSERT INTO voice_services (workspace_id, service_id) FORMAT JSONEachRow",
                data="\n".join(lines).encode(),
            )

    def has(self, workspace_id: str, service_id: str) -> bool:
        """By the primary key."""
        sql = (
            "SELECT 1 FROM voice_services WHERE workspace_id = {workspace:String} "
            "AND service_id = {service:String} LIMIT 1 FORMAT TSV"
        )
        return bool(self._client.run(sql, {"workspace": workspace_id, "service": service_id}).strip())

    def services(self, workspace_id: str) -> list[str]:
        """All of the workspace."""
        sql = (
            "SELECT DISTINCT service_id FROM voice_services WHERE workspace_id = {workspace:String} "
            "ORDER BY service_id FORMAT TSV"
        )
        return self._client.run(sql, {"workspace": workspace_id}).decode().split()

    def close(self) -> None:
        """Close the client's connections."""
        self._client.close()


_CREATE = (
    "CREATE TABLE IF NOT EXISTS services (workspace_id TEXT, service_id TEXT, "
    "PRIMARY KEY (workspace_id, service_id)) WITHOUT ROWID"
)


def _name(workspace_id: str, service_id: str) -> str:
    # UUID() again: these become a path
    return f"services/{UUID(workspace_id)}/{UUID(service_id)}.json"
