# SPDX-License-Identifier: Apache-2.0
"""One SQLite file: a warehouse for a laptop. Readers go on while one process writes (WAL)."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

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
    newest_of_each_call,
    trend_point,
    trend_sql,
    utc,
)

_KEY: Final = ", ".join(Key._fields)
_BUSY_S: Final = 5.0
_CHUNK: Final = 100  # keys of one query; SQLite takes 32,766 values
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Unix microseconds to the start of a bucket, as text that sorts and parses
_STARTS: Final = {
    "day": "strftime('%Y-%m-%d', at / 1000000, 'unixepoch')",
    "week": "strftime('%Y-%m-%d', at / 1000000, 'unixepoch', '-6 days', 'weekday 1')",
    "month": "strftime('%Y-%m-01', at / 1000000, 'unixepoch')",
}


class SqliteWarehouse:
    """Rows in a table ``voice_judge``; times are Unix microseconds."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self._path = path
        self._local = threading.local()
        self._lock = threading.Lock()
        self._open: list[sqlite3.Connection] = []
        self._closed = False
        if create:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise WarehouseUnavailable(f"{path.parent} cannot be made: {error.strerror}") from error
            with self._using(create=True) as db:
                db.execute("PRAGMA journal_mode = WAL")
                columns = ", ".join(f"{name} {_type(name)}" for name in COLUMNS)
                db.execute(f"CREATE TABLE IF NOT EXISTS voice_judge ({columns}, PRIMARY KEY ({_KEY}))")
                db.execute(
                    "CREATE INDEX IF NOT EXISTS voice_judge_recent "
                    "ON voice_judge (workspace_id, service_id, computed_at DESC)"
                )
                db.execute("CREATE INDEX IF NOT EXISTS voice_judge_call ON voice_judge (call_sid)")

    def put(self, rows: Iterable[StoredRow]) -> None:
        """All rows or none; of the same `Key` the newer one stays."""
        values = [[_stored(name, value) for name, value in row.to_columns().items()] for row in rows]
        changed = ", ".join(f"{n} = excluded.{n}" for n in COLUMNS if n not in Key._fields)
        with self._using() as db:
            db.execute("BEGIN IMMEDIATE")
            db.executemany(
                f"INSERT INTO voice_judge VALUES ({', '.join('?' * len(COLUMNS))}) "  # noqa: S608
                f"ON CONFLICT ({_KEY}) DO UPDATE SET {changed} WHERE excluded.computed_at >= computed_at",
                values,
            )
            db.execute("COMMIT")

    def recent(self, workspace_id: str, service_id: str, limit: int) -> list[StoredRow]:
        """Read in the order of the index until enough calls were seen."""
        rows: list[StoredRow] = []
        seen: set[str] = set()
        with self._using() as db:
            cursor = db.execute(
                f"SELECT {', '.join(COLUMNS)} FROM voice_judge WHERE workspace_id = ? AND service_id = ? "  # noqa: S608
                "ORDER BY computed_at DESC, call_sid, judge_version, trace_digest",
                [workspace_id, service_id],
            )
            for found in cursor:
                row = _row(found)
                if row.row.call_sid not in seen:
                    seen.add(row.row.call_sid)
                    rows.append(row)
                if len(rows) >= limit:
                    break
            cursor.close()
        return rows

    def known(self, keys: Iterable[Key], *, errors: bool = True) -> set[Key]:
        """Look each up by the primary key."""
        asked = sorted(set(keys))
        out: set[Key] = set()
        with self._using() as db:
            for at in range(0, len(asked), _CHUNK):
                some = asked[at : at + _CHUNK]
                places = ", ".join(["(?, ?, ?, ?, ?)"] * len(some))
                out |= {
                    Key(*found)
                    for found in db.execute(
                        f"SELECT {_KEY} FROM voice_judge WHERE ({_KEY}) IN (VALUES {places})"  # noqa: S608
                        + ("" if errors else " AND judge_error = ''"),
                        [value for key in some for value in key],
                    )
                }
        return out

    def evidence(
        self, call_sid: str, workspace_id: str | None = None, service_id: str | None = None
    ) -> StoredRow | None:
        """The newest row of the call."""
        where = ["call_sid = ?"]
        values = [call_sid]
        for name, value in (("workspace_id", workspace_id), ("service_id", service_id)):
            if value is not None:
                where.append(f"{name} = ?")
                values.append(value)
        with self._using() as db:
            found = db.execute(
                f"SELECT {', '.join(COLUMNS)} FROM voice_judge WHERE {' AND '.join(where)}",  # noqa: S608
                values,
            ).fetchall()
        return next(iter(newest_of_each_call(map(_row, found))), None)

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
        table = (
            "SELECT * FROM (SELECT *, coalesce(started_at, computed_at) AS at, row_number() OVER "
            "(PARTITION BY call_sid ORDER BY computed_at DESC, judge_version, trace_digest) AS nth "
            "FROM voice_judge WHERE workspace_id = ? AND service_id = ?) "
            "WHERE nth = 1 AND (? IS NULL OR at >= ?) AND (? IS NULL OR at < ?)"
        )
        first, last = _micros(since), _micros(until)
        with self._using() as db:
            cursor = db.execute(
                trend_sql(table, _STARTS[bucket]), [workspace_id, service_id, first, first, last, last]
            )
            names = [column[0] for column in cursor.description]
            found = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        return [
            trend_point(row, datetime.fromisoformat(row["bucket"]).replace(tzinfo=UTC), min_scored)
            for row in found
        ]

    def compact(self) -> int:
        """Fold the write-ahead log into the file; nothing is replaced."""
        with self._using() as db:
            db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        return 0

    def close(self) -> None:
        """Close the connections of all threads."""
        with self._lock:
            self._closed = True
            for db in self._open:
                db.close()
            self._open.clear()

    @contextlib.contextmanager
    def _using(self, *, create: bool = False) -> Iterator[sqlite3.Connection]:
        """This thread's connection; a transaction left open by an error is rolled back."""
        db = self._connection(create)
        try:
            yield db
        except sqlite3.Error as error:
            if "no such table" in str(error):
                raise NotConfigured(f"{self._path} is no warehouse: it has no table voice_judge") from error
            raise WarehouseUnavailable(f"{self._path} cannot be used: {error}") from error
        finally:
            with contextlib.suppress(sqlite3.Error):
                if db.in_transaction:
                    db.rollback()

    def _connection(self, create: bool) -> sqlite3.Connection:
        found: sqlite3.Connection | None = getattr(self._local, "db", None)
        if self._closed:
            raise WarehouseUnavailable(f"the warehouse {self._path} is closed")
        if found is not None:
            return found
        if not create and not self._path.exists():
            raise NotConfigured(f"there is no warehouse at {self._path}; voicetrace judge run makes one")
        try:
            db = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise WarehouseUnavailable(f"{self._path} cannot be opened: {error}") from error
        with self._lock:
            self._open.append(db)
        self._local.db = db
        return db


def _type(name: str) -> str:
    if name in NUMBERS:
        return "REAL"
    if name in COUNTS or name in TIMES:
        return "INTEGER"
    return "TEXT"


def _micros(moment: datetime | None) -> int | None:
    moment = utc(moment)
    return None if moment is None else (moment - _EPOCH) // timedelta(microseconds=1)


def _stored(name: str, value: Any) -> Any:
    return _micros(value) if name in TIMES else value


def _row(found: Sequence[Any]) -> StoredRow:
    flat = dict(zip(COLUMNS, found, strict=True))
    for name in TIMES:
        if flat[name] is not None:
            flat[name] = _EPOCH + timedelta(microseconds=flat[name])
    return StoredRow.from_columns(flat)
