# SPDX-License-Identifier: Apache-2.0
"""Parquet parts read through DuckDB: many readers while others write, on a disk or in an object store.

``workspace_id=<uuid>/month=<yyyy-mm>/part-*.parquet``, the month of ``computed_at``. A part appears whole
(a rename), is sorted by service and newest first, in small row groups, and never changes; so what was
learnt of it stays true: which services it holds, and the first rows of a service that was asked for.
`compact` writes the merged part first and removes its sources after, so a reader sees a row twice for a
moment, never not at all; rows are told apart when they are read.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import uuid
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from voicetrace.judge.warehouse.base import (
    COLUMNS,
    COUNTS,
    NUMBERS,
    TIMES,
    Bucket,
    Key,
    NotConfigured,
    StoredRow,
    TrendPoint,
    WarehouseUnavailable,
    naive_utc,
    trend_point,
    trend_sql,
    utc,
)

if TYPE_CHECKING:
    import duckdb

    from voicetrace.judge.warehouse.blobs import Blobs

T = TypeVar("T")

SUFFIX: Final = ".parquet"
PART_ROWS: Final = 65_536
"""A part of this many rows or more is left alone by `compact`."""
_GROUP_ROWS: Final = 2048
_ATTEMPTS: Final = 10
_REMEMBERED_BYTES: Final = 192 * 1024 * 1024
_SMALL_BYTES: Final = 2 * 1024 * 1024  # a part of this size is read whole: most of a query is its start
_STEPS: Final = (20, 100)  # how many rows of a service are read of a large part: the usual limit, the largest

_Row = tuple[Any, ...]  # in the order of COLUMNS
_SID, _VERSION, _DIGEST, _AT, _JSON, _SERVICE = (
    COLUMNS.index(n)
    for n in ("call_sid", "judge_version", "trace_digest", "computed_at", "judge_json", "service_id")
)


@dataclass(frozen=True, slots=True)
class _Head:
    """The newest rows of one service in one part."""

    rows: tuple[_Row, ...]  # each call once
    whole: bool  # there are no others
    size: int

    @classmethod
    def of(cls, rows: Sequence[_Row], *, whole: bool) -> _Head:
        return cls(tuple(rows), whole, sum(1000 + len(row[_JSON] or "") for row in rows))


class _Vanished(Exception):  # noqa: N818  not an error: read the listing again
    """A part was compacted away between listing and reading."""


class ParquetWarehouse:
    """The default warehouse. See the module for the layout; any number of processes may share it."""

    def __init__(self, blobs: Blobs, *, create: bool = False) -> None:
        self._blobs = blobs
        self._lock = threading.Lock()
        self._closed = False
        self._newest: dict[str, dict[str, datetime]] = {}  # part -> service -> its newest row's time
        self._heads: OrderedDict[tuple[str, str], _Head] = OrderedDict()
        self._heads_bytes = 0
        self._db = _connect()
        if create:
            blobs.prepare()

    # -- writing -------------------------------------------------------------------------------------
    def put(self, rows: Iterable[StoredRow]) -> None:
        """One new part for each workspace and month among the rows."""
        parts: dict[str, list[StoredRow]] = defaultdict(list)
        for row in rows:
            parts[_folder(row.workspace_id, row.computed_at)].append(row)
        if parts:
            self._blobs.prepare()
        for folder, some in sorted(parts.items()):
            name = f"{folder}/part-{uuid.uuid4().hex}{SUFFIX}"
            with self._blobs.staged() as staged:
                self._write(some, staged)
                self._blobs.put(name, staged)

    def _write(self, rows: Sequence[StoredRow], path: Path) -> None:
        flat = [row.to_columns() for row in rows]
        # a list a column: forty times as fast as a statement a row
        columns = [[naive_utc(f[n]) if n in TIMES else f[n] for f in flat] for n in COLUMNS]
        made = ", ".join(f"unnest(CAST(? AS {_type(n)}[])) AS {n}" for n in COLUMNS)
        with self._cursor() as db:
            # temporary tables are the cursor's own
            db.execute(f"CREATE TEMP TABLE new_rows AS SELECT {made}", columns)
            db.execute(_copy("SELECT * FROM new_rows", path))

    # -- reading -------------------------------------------------------------------------------------
    def recent(self, workspace_id: str, service_id: str, limit: int) -> list[StoredRow]:
        """The parts that hold the service, newest first, until no older one can matter."""
        return self._again(lambda: self._recent(workspace_id, service_id, limit))

    def _recent(self, workspace_id: str, service_id: str, limit: int) -> list[StoredRow]:
        holding = []
        for part in self._parts(_workspace(workspace_id)):
            newest = self._services(part).get(service_id)
            if newest is not None:
                holding.append((newest, part))
        holding.sort(reverse=True)
        rows: list[_Row] = []
        for newest, part in holding:
            if len(rows) >= limit and rows[limit - 1][_AT] > newest:
                break
            # its newest of each call suffice: a call among the newest of all is among them in its own part
            rows = _each_call_once([*rows, *self._head(part, service_id, limit)])
        return [_stored(row) for row in rows[:limit]]

    def known(self, keys: Iterable[Key], *, errors: bool = True) -> set[Key]:
        """One pass over four narrow columns of the workspaces' parts."""
        asked: dict[str, set[Key]] = defaultdict(set)
        for key in keys:
            asked[key.workspace_id].add(key)

        def look() -> set[Key]:
            out: set[Key] = set()
            for workspace, some in asked.items():
                parts = self._files(self._parts(_workspace(workspace)))
                if not parts:
                    continue
                names = ", ".join(Key._fields)
                found = self._query(
                    f"SELECT {names} FROM read_parquet(?, hive_partitioning = false) "  # noqa: S608
                    "WHERE call_sid IN (SELECT unnest(?)) " + ("" if errors else "AND judge_error = '' "),
                    [parts, sorted({key.call_sid for key in some})],
                )
                out |= some & {Key(*row) for row in found}
            return out

        return self._again(look)

    def evidence(
        self, call_sid: str, workspace_id: str | None = None, service_id: str | None = None
    ) -> StoredRow | None:
        """The newest row of a call among the parts of the workspace, or of all."""

        def look() -> StoredRow | None:
            parts = self._parts(_workspace(workspace_id) if workspace_id is not None else "")
            if service_id is not None:
                parts = [part for part in parts if service_id in self._services(part)]
            files = self._files(parts)
            if not files:
                return None
            where, values = "call_sid = ?", [call_sid]
            if service_id is not None:
                where, values = f"{where} AND service_id = ?", [*values, service_id]
            rows = self._rows(files, f"WHERE {where} ORDER BY computed_at DESC LIMIT 100", values)
            return next((_stored(row) for row in _each_call_once(rows)), None)

        return self._again(look)

    def trend(
        self,
        workspace_id: str,
        service_id: str,
        *,
        bucket: Bucket = "day",
        since: datetime | None = None,
        until: datetime | None = None,
        min_scored: int = 10,
    ) -> list[TrendPoint]:
        """See `Warehouse.trend`."""
        at = "coalesce(started_at, computed_at)"
        names = ", ".join((*NUMBERS, *COUNTS, "judge_error", "started_at", "computed_at"))
        table = (
            f"SELECT * FROM (SELECT {names} FROM read_parquet(?, hive_partitioning = false) "  # noqa: S608
            "WHERE service_id = ? QUALIFY row_number() OVER "
            "(PARTITION BY call_sid ORDER BY computed_at DESC, judge_version, trace_digest) = 1) "
            f"WHERE (CAST(? AS TIMESTAMP) IS NULL OR {at} >= CAST(? AS TIMESTAMP)) "
            f"AND (CAST(? AS TIMESTAMP) IS NULL OR {at} < CAST(? AS TIMESTAMP))"
        )
        sql = trend_sql(table, f"date_trunc('{bucket}', {at})")
        first, last = naive_utc(since), naive_utc(until)

        def look() -> list[TrendPoint]:
            parts = [p for p in self._parts(_workspace(workspace_id)) if service_id in self._services(p)]
            files = self._files(parts)
            if not files:
                return []
            found = self._records(sql, [files, service_id, first, first, last, last])
            return [trend_point(row, utc(_moment(row["bucket"])) or _EPOCH, min_scored) for row in found]

        return self._again(look)

    # -- tidying -------------------------------------------------------------------------------------
    def compact(self) -> int:
        """Merge the small parts of each month; of each `Key` the newest row stays. Many may run at once."""

        def run() -> int:
            replaced = 0
            folders: dict[str, list[str]] = defaultdict(list)
            for part in self._parts(""):
                folders[part.rpartition("/")[0]].append(part)
            for folder, parts in sorted(folders.items()):
                for group in self._small(parts):
                    self._merge(folder, group)
                    replaced += len(group)
            return replaced

        return self._again(run)

    def _small(self, parts: Sequence[str]) -> Iterator[list[str]]:
        """Parts that together make about one of full size; a lone one is left."""
        group: list[str] = []
        rows = 0
        for part in parts:
            [(count,)] = self._query(
                "SELECT num_rows FROM parquet_file_metadata(?)", [self._files([part])[0]]
            )
            if count >= PART_ROWS:
                continue
            group.append(part)
            rows += count
            if rows >= PART_ROWS:
                yield group
                group, rows = [], 0
        if len(group) > 1:
            yield group

    def _merge(self, folder: str, group: Sequence[str]) -> None:
        files = self._files(group)
        # the same sources have the same name: two that do the same work make one part
        name = f"{folder}/part-{hashlib.sha256(' '.join(sorted(group)).encode()).hexdigest()[:32]}{SUFFIX}"
        source = (
            f"SELECT {', '.join(COLUMNS)} FROM read_parquet([{', '.join(map(_quoted, files))}], "  # noqa: S608
            f"union_by_name = true, hive_partitioning = false) QUALIFY row_number() OVER "
            f"(PARTITION BY {', '.join(Key._fields)} ORDER BY computed_at DESC) = 1"
        )
        with self._blobs.staged() as staged:
            with self._cursor() as db:
                db.execute(_copy(source, staged))
            self._blobs.put(name, staged)
        for part in group:
            self._blobs.delete(part)

    def close(self) -> None:
        """Close the database; whoever still asks is told that it is closed."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._db.close()

    # -- parts ---------------------------------------------------------------------------------------
    def _parts(self, prefix: str) -> list[str]:
        if not self._blobs.there():
            raise NotConfigured(
                f"there is no warehouse at {self._blobs.where}; voicetrace judge run makes one"
            )
        parts = [
            name
            for name in self._blobs.names(prefix)
            if name.startswith("workspace_id=") and "/part-" in name and name.endswith(SUFFIX)
        ]
        self._forget(prefix, parts)
        return parts

    def _forget(self, prefix: str, parts: Sequence[str]) -> None:
        """Drop what was learnt of parts that are gone."""
        there = set(parts)
        with self._lock:
            gone = [part for part in self._newest if part not in there and part.startswith(prefix)]
            for part in gone:
                for service in self._newest.pop(part):
                    head = self._heads.pop((part, service), None)
                    self._heads_bytes -= head.size if head else 0

    def _files(self, parts: Sequence[str]) -> list[str]:
        files = []
        for part in parts:
            path = self._blobs.local(part)
            if path is None:
                raise _Vanished(part)
            files.append(str(path))
        return files

    def _services(self, part: str) -> dict[str, datetime]:
        """The services of a part, each with the time of its newest row."""
        known = self._newest.get(part)
        if known is None:
            files = self._files([part])
            if _size(files[0]) <= _SMALL_BYTES:
                known = self._read_whole(part, files)
            else:
                found = self._query(
                    "SELECT service_id, max(computed_at) FROM read_parquet(?, hive_partitioning = false) "
                    "GROUP BY service_id",
                    [files],
                )
                known = dict(found)
            with self._lock:
                self._newest[part] = known
        return known

    def _read_whole(self, part: str, files: Sequence[str]) -> dict[str, datetime]:
        services: dict[str, list[_Row]] = defaultdict(list)
        for row in self._rows(files, "", []):
            services[row[_SERVICE]].append(row)
        known = {}
        for service, rows in services.items():
            rows = _each_call_once(rows)
            known[service] = rows[0][_AT]
            self._remember((part, service), _Head.of(rows, whole=True))
        return known

    def _head(self, part: str, service_id: str, limit: int) -> Sequence[_Row]:
        key = (part, service_id)
        with self._lock:
            head = self._heads.get(key)
            if head is not None:
                self._heads.move_to_end(key)
        if head is not None and (head.whole or len(head.rows) >= limit):
            return head.rows
        files = self._files([part])
        wanted = next((step for step in _STEPS if step >= limit), limit)
        take = wanted
        while True:
            # a part is in this order: its first rows of the service are the newest, and reading stops there
            rows = self._rows(files, "WHERE service_id = ? LIMIT ?", [service_id, take])
            calls = _each_call_once(rows)
            whole = len(rows) < take
            if whole or len(calls) >= wanted:
                break
            take *= 4  # calls that were judged more than once
        head = _Head.of(calls, whole=whole)
        self._remember(key, head)
        return head.rows

    def _remember(self, key: tuple[str, str], head: _Head) -> None:
        with self._lock:
            old = self._heads.pop(key, None)
            self._heads_bytes += head.size - (old.size if old else 0)
            self._heads[key] = head
            while self._heads_bytes > _REMEMBERED_BYTES and len(self._heads) > 1:
                _, dropped = self._heads.popitem(last=False)
                self._heads_bytes -= dropped.size

    # -- the database --------------------------------------------------------------------------------
    def _again(self, look: Callable[[], T]) -> T:
        """Do it on one listing; anew when a part of the listing was compacted away meanwhile."""
        for _ in range(_ATTEMPTS):
            try:
                return look()
            except _Vanished:
                continue
        raise WarehouseUnavailable(f"the parts of {self._blobs.where} change faster than they can be read")

    @contextlib.contextmanager
    def _cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        import duckdb

        with self._lock:
            if self._closed:
                raise WarehouseUnavailable(f"the warehouse {self._blobs.where} is closed")
            cursor = self._db.cursor()
        try:
            yield cursor
        except duckdb.IOException as error:
            if any(word in str(error) for word in _GONE):
                raise _Vanished(str(error)) from error
            raise WarehouseUnavailable(f"{self._blobs.where} cannot be used: {_said(error)}") from error
        except duckdb.Error as error:
            raise WarehouseUnavailable(f"{self._blobs.where} cannot be used: {_said(error)}") from error
        finally:
            cursor.close()

    def _query(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self._cursor() as db:
            return db.execute(sql, values).fetchall()

    def _records(self, sql: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        with self._cursor() as db:
            result = db.execute(sql, values)
            names = [column[0] for column in result.description or ()]
            return [dict(zip(names, row, strict=True)) for row in result.fetchall()]

    def _rows(self, files: Sequence[str], rest: str, values: Sequence[Any]) -> list[_Row]:
        sql = (
            f"SELECT {', '.join(COLUMNS)} FROM read_parquet(?, union_by_name = true, "  # noqa: S608
            f"hive_partitioning = false) {rest}"
        )
        return self._query(sql, [files, *values])


_GONE: Final = ("No files found", "No such file", "Cannot open file")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _each_call_once(rows: Iterable[_Row]) -> list[_Row]:
    """As `newest_of_each_call`, of rows as they were read: most of them are not served."""
    # a stable sort: by ids first, then by time
    ordered = sorted(rows, key=lambda row: (row[_SID], row[_VERSION], row[_DIGEST]))
    ordered.sort(key=lambda row: row[_AT], reverse=True)
    seen: dict[str, _Row] = {}
    for row in ordered:
        seen.setdefault(row[_SID], row)
    return list(seen.values())


def _stored(row: _Row) -> StoredRow:
    return StoredRow.from_columns(dict(zip(COLUMNS, row, strict=True)))


def _size(file: str) -> int:
    try:
        return Path(file).stat().st_size
    except FileNotFoundError as error:
        raise _Vanished(file) from error


def _connect() -> duckdb.DuckDBPyConnection:
    try:
        import duckdb
    except ImportError as error:
        raise NotConfigured(
            "a warehouse of Parquet files needs DuckDB: pip install 'voicetrace[judge]'"
        ) from error
    # nothing is ever downloaded; requests come on threads of their own, so each query needs one only
    db = duckdb.connect(
        ":memory:",
        config={
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "memory_limit": "1GB",
            "threads": "1",
            "preserve_insertion_order": "true",
        },
    )
    db.execute("LOAD parquet")
    db.execute("SET parquet_metadata_cache = true")
    return db


def _copy(source: str, path: Path) -> str:
    return (
        f"COPY ({source} ORDER BY service_id, computed_at DESC, call_sid, judge_version, trace_digest) "
        f"TO {_quoted(str(path))} (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {_GROUP_ROWS})"
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _type(name: str) -> str:
    if name in TIMES:
        return "TIMESTAMP"
    if name in NUMBERS:
        return "DOUBLE"
    return "INTEGER" if name in COUNTS else "VARCHAR"


def _workspace(workspace_id: str) -> str:
    return f"workspace_id={workspace_id}"


def _folder(workspace_id: str, computed_at: datetime) -> str:
    return f"{_workspace(workspace_id)}/month={utc(computed_at):%Y-%m}"


def _moment(value: Any) -> datetime:
    """What DuckDB gives for a bucket: a date or a timestamp."""
    return value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)


def _said(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
