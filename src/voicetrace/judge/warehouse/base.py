# SPDX-License-Identifier: Apache-2.0
"""What every warehouse of judge results does, and the row it keeps.

A row is written once and never changed. Judging a call again adds a row; the newest one counts. Times are
UTC. Ids are canonical UUID strings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, Protocol, get_args

from pydantic import BaseModel, ConfigDict

from voicetrace.judge.result import Dimension, JudgeRow

SCORES: Final = tuple(f"{name.value}_score" for name in Dimension)
COUNTS: Final = ("critical_count", "flag_count", "warning_count")
TEXTS: Final = (
    "workspace_id",
    "service_id",
    "call_sid",
    "call_entity_id",
    "judge_version",
    "trace_digest",
    "source",
    "judge_error",
    "judge_json",
)
NUMBERS: Final = (*SCORES, "overall_score")
TIMES: Final = ("computed_at", "started_at")
COLUMNS: Final = (*TEXTS, *NUMBERS, *COUNTS, *TIMES)

Bucket = Literal["day", "week", "month"]
BUCKETS: Final[tuple[str, ...]] = get_args(Bucket)


class WarehouseError(Exception):
    """The warehouse cannot answer."""


class NotConfigured(WarehouseError):  # noqa: N818  the contract's own word for it
    """There is no warehouse at the URL, or the URL names none."""


class WarehouseUnavailable(WarehouseError):  # noqa: N818  likewise
    """There is a warehouse, and it cannot be reached or used now; a later attempt may succeed."""


class Key(NamedTuple):
    """What makes a judgement the same one: who owns the call, the call, its bytes, and the judge."""

    workspace_id: str
    service_id: str
    call_sid: str
    trace_digest: str
    judge_version: str


class StoredRow(BaseModel):
    """One row as it is kept: what the API serves, and what makes a batch idempotent and evidence playable."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workspace_id: str
    service_id: str
    judge_version: str
    trace_digest: str
    """SHA-256 over the trace and the audio that were judged."""
    row: JudgeRow
    """With ``computed_at`` set."""
    source: str = ""
    """Where the call is, for its clips."""
    started_at: datetime | None = None
    judge_error: str = ""

    @property
    def key(self) -> Key:
        """What `Warehouse.known` compares."""
        return Key(
            self.workspace_id, self.service_id, self.row.call_sid, self.trace_digest, self.judge_version
        )

    @property
    def computed_at(self) -> datetime:
        """When it was judged."""
        assert self.row.computed_at is not None
        return self.row.computed_at

    def to_columns(self) -> dict[str, Any]:
        """The row as one flat record, in the order of `COLUMNS`."""
        flat = self.row.model_dump() | self.model_dump(exclude={"row"})
        if self.row.computed_at is None:
            raise ValueError(f"the row of call {self.row.call_sid} does not say when it was computed")
        for name in TEXTS:
            if flat[name] is not None:
                flat[name] = _storable(flat[name])
        return {name: flat[name] for name in COLUMNS}

    @classmethod
    def from_columns(cls, flat: Mapping[str, Any]) -> StoredRow:
        """The row back from a record; times may be aware, or naive and then UTC."""
        values = {name: flat[name] for name in COLUMNS}
        for name in NUMBERS:
            values[name] = _finite(values[name])
        for name in TIMES:
            values[name] = utc(values[name])
        own = {name: values.pop(name) for name in _OWN}
        return cls(**own, row=JudgeRow(**values, service_id=own["service_id"]))


_OWN: Final = (
    "workspace_id",
    "service_id",
    "judge_version",
    "trace_digest",
    "source",
    "started_at",
    "judge_error",
)


class DimensionTrend(BaseModel):
    """One dimension in one bucket: how many calls have a score, and their mean if there are enough."""

    scored: int
    mean: float | None


class TrendPoint(BaseModel):
    """The calls of one bucket of time, each call once, as it was judged last."""

    start: datetime
    calls: int
    failed: int
    """Calls that could not be judged."""
    critical_count: int
    flag_count: int
    warning_count: int
    overall: DimensionTrend
    dimensions: dict[Dimension, DimensionTrend]


class Warehouse(Protocol):
    """Where judge results are kept. Safe to use from several threads, and from several processes at once.

    Every method raises `NotConfigured` or `WarehouseUnavailable` when it cannot answer, and nothing else for
    what a disk, a server or another process does.
    """

    def put(self, rows: Iterable[StoredRow]) -> None:
        """Add rows. When it returns they are durable; when it raises or is killed, some may be."""

    def recent(self, workspace_id: str, service_id: str, limit: int) -> list[StoredRow]:
        """The last judgements of a service, newest first, each call once (its newest)."""

    def known(self, keys: Iterable[Key], *, errors: bool = True) -> set[Key]:
        """Which of these judgements exist; with ``errors=False`` only those that did not fail."""

    def evidence(
        self, call_sid: str, workspace_id: str | None = None, service_id: str | None = None
    ) -> StoredRow | None:
        """The newest judgement of a call."""

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
        """The means per bucket of the calls' start (when judged, where that is unknown), oldest first.

        A mean over fewer than ``min_scored`` calls is withheld: it would be noise.
        """

    def compact(self) -> int:
        """Tidy the storage while others read and write; how many files were replaced."""

    def close(self) -> None:
        """Let go of files and connections; harmless when done twice."""


def utc(moment: datetime | None) -> datetime | None:
    """A time with its zone; a naive one is UTC."""
    if moment is None:
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def naive_utc(moment: datetime | None) -> datetime | None:
    """A time as it is stored: UTC, without a zone."""
    moment = utc(moment)
    return None if moment is None else moment.replace(tzinfo=None)


def newest_of_each_call(rows: Iterable[StoredRow]) -> list[StoredRow]:
    """Newest first, each call once. Rows of one instant are in order of their ids: always the same."""
    seen: set[str] = set()
    out = []
    for row in sorted(rows, key=newest_first):
        if row.row.call_sid not in seen:
            seen.add(row.row.call_sid)
            out.append(row)
    return out


def newest_first(row: StoredRow) -> tuple[float, str, str, str]:
    """The order in which rows are served."""
    return (-row.computed_at.timestamp(), row.row.call_sid, row.judge_version, row.trace_digest)


def trend_sql(table: str, start: str, *, avg: str = "avg", count: str = "count") -> str:
    """The columns of a trend over ``table``, whose rows are each call's newest, grouped by ``start``."""
    means = ", ".join(f"{avg}({name}) AS mean_{name}, {count}({name}) AS n_{name}" for name in NUMBERS)
    sums = ", ".join(f"sum({name}) AS {name}" for name in COUNTS)
    return (
        f"SELECT {start} AS bucket, count(*) AS calls, "  # noqa: S608  names of ours only
        f"sum(CASE WHEN judge_error <> '' THEN 1 ELSE 0 END) AS failed, {sums}, {means} "
        f"FROM ({table}) AS newest GROUP BY bucket ORDER BY bucket"
    )


def trend_point(found: Mapping[str, Any], start: datetime, min_scored: int) -> TrendPoint:
    """One row of `trend_sql` as a point."""

    def of(name: str) -> DimensionTrend:
        scored = int(found[f"n_{name}"] or 0)
        mean = _finite(found[f"mean_{name}"])
        enough = scored >= max(1, min_scored) and mean is not None
        return DimensionTrend(scored=scored, mean=round(float(mean or 0), 4) if enough else None)

    return TrendPoint(
        start=start,
        calls=int(found["calls"]),
        failed=int(found["failed"] or 0),
        **{name: int(found[name] or 0) for name in COUNTS},
        overall=of("overall_score"),
        dimensions={name: of(f"{name.value}_score") for name in Dimension},
    )


def _finite(value: Any) -> float | None:
    """JSON has no NaN, and a row of another writer may."""
    return None if value is None or not math.isfinite(value) else float(value)


def _storable(text: str) -> str:
    """Text that UTF-8 and every store can hold: no lone surrogates, no NUL."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
