# SPDX-License-Identifier: Apache-2.0
"""Where judge results are kept: Parquet files by default, SQLite, or ClickHouse; chosen by URL."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from voicetrace.judge.warehouse.base import (
    Key,
    NotConfigured,
    StoredRow,
    TrendPoint,
    Warehouse,
    WarehouseError,
    WarehouseUnavailable,
)

__all__ = [
    "DEFAULT_WAREHOUSE",
    "ENV_WAREHOUSE",
    "Key",
    "NotConfigured",
    "StoredRow",
    "TrendPoint",
    "Warehouse",
    "WarehouseError",
    "WarehouseUnavailable",
    "default_url",
    "open_warehouse",
    "shown_url",
]

DEFAULT_WAREHOUSE: Final = "voicetrace-judge"
ENV_WAREHOUSE: Final = "VOICETRACE_JUDGE_WAREHOUSE"
OBJECT_STORES: Final = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss")


def default_url() -> str:
    """The warehouse when none is named: the environment's, else a folder in the working directory."""
    return os.environ.get(ENV_WAREHOUSE, "").strip() or DEFAULT_WAREHOUSE


def open_warehouse(url: str | os.PathLike[str], *, create: bool = False) -> Warehouse:
    """Open the warehouse that a URL names.

    ``file:///dir`` or a plain directory: Parquet files, read through DuckDB (the ``judge`` extra).
    ``s3://bucket/prefix``, ``gs://`` or ``az://``: the same in an object store (and the ``store`` extra).
    ``sqlite:///file.db`` (``sqlite:////absolute.db``): one SQLite file.
    ``clickhouse://user:password@host:8123/database?secure=1``: a ClickHouse server, over HTTP.

    Args:
        url: which.
        create: make it when it is not there. A reader that does not gets `NotConfigured` from its methods
            until somebody has written.

    Raises:
        NotConfigured: the URL names no warehouse, or what it needs is not installed.
        WarehouseUnavailable: it cannot be reached or made.
    """
    text = os.fspath(url)
    scheme = scheme_of(text)
    if scheme == "":
        from voicetrace.judge.warehouse.blobs import LocalBlobs
        from voicetrace.judge.warehouse.parquet import ParquetWarehouse

        return ParquetWarehouse(LocalBlobs(local_path(text)), create=create)
    if scheme in OBJECT_STORES:
        from voicetrace.judge.warehouse.blobs import open_remote
        from voicetrace.judge.warehouse.parquet import ParquetWarehouse

        return ParquetWarehouse(open_remote(text), create=create)
    if scheme == "sqlite":
        from voicetrace.judge.warehouse.sqlite import SqliteWarehouse

        return SqliteWarehouse(sqlite_path(text), create=create)
    if scheme == "clickhouse":
        from voicetrace.judge.warehouse.clickhouse import ClickHouseWarehouse, HttpClickHouse

        return ClickHouseWarehouse(HttpClickHouse(text), create=create)
    raise NotConfigured(
        f"{shown_url(text)} names no warehouse: use a directory, file:///dir, s3://bucket/prefix, "
        "sqlite:///file.db or clickhouse://host:8123/database"
    )


def scheme_of(url: str) -> str:
    """The scheme, empty for a directory."""
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    return "" if scheme == "file" else scheme


def local_path(url: str) -> Path:
    """The directory that ``file:///dir`` or a plain path names.

    Raises:
        NotConfigured: it names none.
    """
    if "://" in url:
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
            raise NotConfigured(f"{url} names no directory: write file:///absolute/dir, or a plain path")
        return Path(unquote(parts.path))
    if not url.strip():
        raise NotConfigured("the warehouse's URL is empty")
    return Path(url)


def sqlite_path(url: str) -> Path:
    """The file that ``sqlite:///file.db`` (relative) or ``sqlite:////dir/file.db`` (absolute) names.

    Raises:
        NotConfigured: it names none.
    """
    parts = urlsplit(url)
    path = unquote(parts.path.removeprefix("/"))
    if parts.netloc or not path.strip("/"):
        raise NotConfigured(f"{url} names no file: write sqlite:///file.db or sqlite:////absolute/file.db")
    return Path(path)


def shown_url(url: str) -> str:
    """The URL without its password, for messages."""
    try:
        parts = urlsplit(url)
        password = parts.password
    except ValueError:
        return url.partition("://")[0] + "://…"
    if password is None:
        return url
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{parts.username or ''}:…@{host}").geturl()
