# SPDX-License-Identifier: Apache-2.0
"""ClickHouse, for a fleet: plain SQL over HTTP, every value a bound parameter.

``ReplacingMergeTree`` keeps the newest row of each `Key`; until the server has merged, reads tell rows
apart themselves.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import threading
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

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
    newest_of_each_call,
    trend_point,
    trend_sql,
    utc,
)

_KEY: Final = ", ".join(Key._fields)
_CHUNK: Final = 500
_STARTS: Final = {"day": "toDate(at)", "week": "toMonday(at)", "month": "toStartOfMonth(at)"}
TIMEOUT_S: Final = 30.0
CREATE: Final = (
    "CREATE TABLE IF NOT EXISTS voice_judge ({columns}) ENGINE = ReplacingMergeTree(computed_at) "
    f"PARTITION BY toYYYYMM(computed_at) ORDER BY ({_KEY})"
)


class ClickHouse(Protocol):
    """Something that runs ClickHouse SQL."""

    where: str

    def run(self, sql: str, values: Mapping[str, str] | None = None, data: bytes = b"") -> bytes:
        """Run one statement with bound parameters (``{name:Type}`` in the SQL), and data for an INSERT.

        Raises:
            WarehouseUnavailable: it cannot be reached, or refuses.
        """

    def close(self) -> None:
        """Let go of connections."""


class HttpClickHouse:
    """A server, by ``clickhouse://user:password@host:8123/database?secure=1``. One connection a thread."""

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
            options = parse_qs(parts.query, strict_parsing=bool(parts.query))
        except ValueError as error:
            raise NotConfigured(f"the ClickHouse URL cannot be read: {error}") from error
        secure = options.pop("secure", ["0"])[-1].lower() in ("1", "true", "yes")
        if not parts.hostname or options:
            raise NotConfigured(
                "write clickhouse://user:password@host:8123/database, and ?secure=1 for HTTPS"
            )
        self._secure = secure
        self._host = parts.hostname
        self._port = port or (8443 if secure else 8123)
        self._database = unquote(parts.path.strip("/")) or "default"
        self._timeout_s = timeout_s
        self._local = threading.local()
        self._open: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        user, password = unquote(parts.username or "default"), unquote(parts.password or "")
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {token}", "Content-Type": "application/octet-stream"}
        self.where = f"clickhouse://{self._host}:{self._port}/{self._database}"

    def run(self, sql: str, values: Mapping[str, str] | None = None, data: bytes = b"") -> bytes:
        """POST the statement, or, with data, the data; see `ClickHouse.run`."""
        query = {"database": self._database, "wait_end_of_query": "1"}
        query |= {f"param_{name}": value for name, value in (values or {}).items()}
        body = data
        if data:
            query["query"] = sql
        else:
            body = sql.encode()
        path = f"/?{urlencode(query)}"
        try:
            status, answer = self._post(path, body)
        except (OSError, http.client.HTTPException) as error:
            said = " ".join(str(error).split()) or type(error).__name__
            raise WarehouseUnavailable(f"{self.where} cannot be reached: {said}") from error
        if status != 200:
            said = " ".join(answer.decode(errors="replace").split())[:300]
            raise WarehouseUnavailable(f"{self.where} answers {status}: {said}")
        return answer

    def _post(self, path: str, body: bytes) -> tuple[int, bytes]:
        # a kept connection may have been closed by the server: once more on a new one (every statement of
        # ours may be run twice)
        for fresh in (False, True):
            connection = self._connection(fresh)
            try:
                connection.request("POST", path, body, self._headers)
                response = connection.getresponse()
                return response.status, response.read()
            except TimeoutError:
                connection.close()
                raise
            except (OSError, http.client.HTTPException):
                connection.close()
                if fresh:
                    raise
        raise AssertionError

    def _connection(self, fresh: bool) -> http.client.HTTPConnection:
        found: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if found is None:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            found = kind(self._host, self._port, timeout=self._timeout_s)
            self._local.connection = found
            with self._lock:
                self._open.append(found)
        elif fresh:
            found.close()
        return found

    def close(self) -> None:
        """Close the connections of all threads; one that is used again opens anew."""
        with self._lock:
            for connection in self._open:
                connection.close()


class ClickHouseWarehouse:
    """Rows in a table ``voice_judge``."""

    def __init__(self, client: ClickHouse, *, create: bool = False) -> None:
        self._client = client
        if create:
            columns = ", ".join(f"{name} {_type(name)}" for name in COLUMNS)
            client.run(CREATE.format(columns=columns))

    def put(self, rows: Iterable[StoredRow]) -> None:
        """One INSERT; the server takes a block of rows whole."""
        lines = [
            json.dumps(
                {n: _time(v) if n in TIMES else v for n, v in row.to_columns().items()}, allow_nan=False
            )
            for row in rows
        ]
        if lines:
            self._client.run(
                f"INSERT INTO voice_judge ({', '.join(COLUMNS)}) FORMAT JSONEachRow",
                data="\n".join(lines).encode(),
            )

    def recent(self, workspace_id: str, service_id: str, limit: int) -> list[StoredRow]:
        """Newest first, one row a call."""
        rows = self._rows(
            "WHERE workspace_id = {workspace:String} AND service_id = {service:String} "
            "ORDER BY computed_at DESC, call_sid, judge_version, trace_digest "
            "LIMIT 1 BY call_sid LIMIT {limit:UInt32}",
            {"workspace": _text(workspace_id), "service": _text(service_id), "limit": str(limit)},
        )
        return newest_of_each_call(rows)

    def known(self, keys: Iterable[Key], *, errors: bool = True) -> set[Key]:
        """By the calls' ids, some hundred at once, of one service at a time."""
        asked = sorted(set(keys))
        out: set[Key] = set()
        services = sorted({(key.workspace_id, key.service_id) for key in asked})
        for workspace, service in services:
            mine = [key for key in asked if key[:2] == (workspace, service)]
            for at in range(0, len(mine), _CHUNK):
                some = set(mine[at : at + _CHUNK])
                sids = "[" + ",".join(_literal(sid) for sid in sorted({key.call_sid for key in some})) + "]"
                found = self._records(
                    f"SELECT {_KEY} FROM voice_judge WHERE workspace_id = {{workspace:String}} "  # noqa: S608
                    "AND service_id = {service:String} AND has({sids:Array(String)}, call_sid)"
                    + ("" if errors else " AND judge_error = ''"),
                    {"workspace": _text(workspace), "service": _text(service), "sids": sids},
                )
                out |= some & {Key(**row) for row in found}
        return out

    def evidence(
        self, call_sid: str, workspace_id: str | None = None, service_id: str | None = None
    ) -> StoredRow | None:
        """The newest row of the call."""
        where = "WHERE call_sid = {sid:String}"
        values = {"sid": _text(call_sid)}
        if workspace_id is not None:
            where, values = (
                where + " AND workspace_id = {workspace:String}",
                values | {"workspace": _text(workspace_id)},
            )
        if service_id is not None:
            where, values = (
                where + " AND service_id = {service:String}",
                values | {"service": _text(service_id)},
            )
        rows = self._rows(f"{where} ORDER BY computed_at DESC LIMIT 100", values)
        return next(iter(newest_of_each_call(rows)), None)

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
        values = {"workspace": _text(workspace_id), "service": _text(service_id)}
        within = ""
        for name, moment, sign in (("since", since, ">="), ("until", until, "<")):
            if moment is not None:
                within += f" AND at {sign} {{{name}:DateTime64(6, 'UTC')}}"
                values[name] = _time(moment) or ""
        table = (
            "SELECT * FROM (SELECT *, coalesce(started_at, computed_at) AS at FROM voice_judge "  # noqa: S608
            "WHERE workspace_id = {workspace:String} AND service_id = {service:String} "
            "ORDER BY computed_at DESC, judge_version, trace_digest LIMIT 1 BY call_sid) "
            f"WHERE 1{within}"
        )
        found = self._records(trend_sql(table, _STARTS[bucket]), values)
        return [
            trend_point(row, datetime.fromisoformat(row["bucket"]).replace(tzinfo=UTC), min_scored)
            for row in found
        ]

    def compact(self) -> int:
        """Nothing to do: the server merges by itself."""
        return 0

    def close(self) -> None:
        """Close the client's connections."""
        self._client.close()

    def _rows(self, rest: str, values: Mapping[str, str]) -> list[StoredRow]:
        found = self._records(f"SELECT {', '.join(COLUMNS)} FROM voice_judge {rest}", values)  # noqa: S608
        for row in found:
            for name in TIMES:
                row[name] = None if row[name] is None else utc(datetime.fromisoformat(row[name]))
        return [StoredRow.from_columns(row) for row in found]

    def _records(self, sql: str, values: Mapping[str, str]) -> list[dict[str, Any]]:
        # 64-bit counts as numbers, and text that is no UTF-8 as it is
        answer = self._client.run(
            f"{sql} SETTINGS output_format_json_quote_64bit_integers = 0 FORMAT JSONEachRow", values
        )
        try:
            return [json.loads(line) for line in answer.decode("utf-8", "replace").split("\n") if line]
        except ValueError as error:
            raise WarehouseUnavailable(f"{self._client.where} answers what is no JSON: {error}") from error


def _type(name: str) -> str:
    if name == "computed_at":
        return "DateTime64(6, 'UTC')"
    if name in TIMES:
        return "Nullable(DateTime64(6, 'UTC'))"
    if name in NUMBERS:
        return "Nullable(Float64)"
    if name in COUNTS:
        return "Nullable(UInt8)"
    return "Nullable(String)" if name in ("call_entity_id", "judge_json") else "String"


def _time(moment: datetime | None) -> str | None:
    naive = naive_utc(moment)
    return None if naive is None else naive.isoformat(" ", "microseconds")


_ESCAPED: Final = re.compile(r"[\\'\t\n\r\b\f\0]")


def _literal(text: str) -> str:
    """A string of an array parameter."""
    return "'" + _text(text) + "'"


def _text(text: str) -> str:
    """A string parameter: the server undoes escapes in it."""
    return _ESCAPED.sub(lambda m: f"\\x{ord(m.group()):02x}", text)
