# SPDX-License-Identifier: Apache-2.0
"""A batch: every call of a folder that has not been scored, scored once, whatever happens on the way.

What was judged is written a few rows at a time. A run that is killed loses what was not yet written, and the
next one judges exactly that. Two runs at once over the same calls do double work and leave one result.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal
from uuid import UUID

from voicetrace.judge.batch.evaluations import EvaluationEvents
from voicetrace.judge.batch.pool import map_local
from voicetrace.judge.batch.source import CallRef, Place, Reader, changed_since, find_calls
from voicetrace.judge.batch.work import JudgeCall, JudgeConfig, failed, real_judge_call
from voicetrace.judge.registry import Registry
from voicetrace.judge.result import CallJudgement
from voicetrace.judge.warehouse import Key, StoredRow, Warehouse, WarehouseUnavailable

Engine = Literal["local", "ray"]
NO_ID: Final = str(UUID(int=0))
"""The workspace and the service of calls that name none, when the run does not either."""
_PLAN: Final = 256  # calls that are looked up in the warehouse at once
_ROWS: Final = 64
_FLUSH_S: Final = 5.0
_TRIES: Final = 5
_AHEAD: Final = timedelta(microseconds=1)


@dataclass
class BatchReport:
    """What a run did, in calls."""

    scored: int = 0
    failed: int = 0
    """Of these, calls that could not be judged: their rows have no scores, and say why."""
    known: int = 0
    """Scored before."""
    running: int = 0
    """Still going on; the next run takes them."""
    older: int = 0
    """Before ``since``."""
    unowned: list[str] = field(default_factory=list)
    """Calls that name a workspace or a service that is no UUID; a sentence each. They are not scored."""
    failures: list[str] = field(default_factory=list)
    """A sentence for each that failed."""
    services: set[tuple[str, str]] = field(default_factory=set)
    """Whose services were scored: (workspace, service)."""


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """How to run. ``workers`` counts processes; None is one a core, and on Ray all CPUs but one."""

    engine: Engine = "local"
    workers: int | None = None
    workspace_id: str | None = None
    service_id: str | None = None
    since: datetime | None = None
    limit: int | None = None
    retry_errors: bool = False
    timeout_s: float | None = None
    memory: Path | None = None
    """A file in which digests of files are remembered from run to run."""


Progress = Callable[[int, int], None]
"""Called with how many of the places that were found are dealt with, and how many there are."""


def run_batch(
    source: str | os.PathLike[str],
    warehouse: Warehouse,
    registry: Registry,
    *,
    judge: JudgeConfig,
    judge_call: JudgeCall = real_judge_call,
    options: BatchOptions | None = None,
    progress: Progress | None = None,
    events: EvaluationEvents | None = None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> BatchReport:
    """Score the calls of a folder, or of a prefix of an object store, that were not scored.

    A call is the same when its id, the digest of its trace and audio, and the judge's version are; a call
    whose trace was completed later is judged again. Its workspace and service are those it names, else the
    options', else `NO_ID`. Blocking; interrupt it with `KeyboardInterrupt`: what was judged is kept.

    Raises:
        SourceError: there is nothing to look through.
        WarehouseError: the warehouse cannot be read or written, also after some patience.
        PoolError, RayError: the engine cannot start.
        ValueError: an option is none.
    """
    options = _checked(options or BatchOptions())
    from voicetrace.judge.batch.remote import is_remote, open_calls

    if is_remote(os.fspath(source)):
        with open_calls(os.fspath(source)) as calls:
            run = _Run(
                calls.places(), calls.reader(), warehouse, registry, judge, options, progress, events, clock
            )
            return run.run(judge_call)
    reader = Reader(options.memory)
    try:
        run = _Run(
            find_calls(Path(source)), reader, warehouse, registry, judge, options, progress, events, clock
        )
        return run.run(judge_call)
    finally:
        reader.close()


def _checked(options: BatchOptions) -> BatchOptions:
    for name in ("workers", "limit"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    if options.timeout_s is not None and not options.timeout_s > 0:
        raise ValueError(f"timeout_s must be more than 0, not {options.timeout_s}")
    changes: dict[str, Any] = {}
    for name in ("workspace_id", "service_id"):
        value = getattr(options, name)
        if value is not None:
            canonical = _uuid(value)
            if canonical is None:
                raise ValueError(f"{name} must be a UUID, not {value!r}")
            changes[name] = canonical
    return replace(options, **changes)


class _Run:
    """One run: plan, judge, write."""

    def __init__(
        self,
        places: list[Place],
        reader: Reader,
        warehouse: Warehouse,
        registry: Registry,
        judge: JudgeConfig,
        options: BatchOptions,
        progress: Progress | None,
        events: EvaluationEvents | None,
        clock: Callable[[], datetime],
    ) -> None:
        self._places = places
        self._reader = reader
        self._warehouse = warehouse
        self._registry = registry
        self._judge = judge
        self._options = options
        self._progress = progress or (lambda done, total: None)
        self._events = events
        self._clock = clock
        self._last = datetime(1970, 1, 1, tzinfo=UTC)
        self._report = BatchReport()
        self._rows: list[tuple[StoredRow, CallRef, CallJudgement]] = []
        self._flushed_at = time.monotonic()
        self._looked_at = 0
        self._planned = 0

    def run(self, judge_call: JudgeCall) -> BatchReport:
        options = self._options
        if options.workspace_id is not None and options.service_id is not None:
            self._register([(options.workspace_id, options.service_id)])
        if options.engine == "ray":
            from voicetrace.judge.batch.ray_engine import map_ray

            results = map_ray(
                self._plan(),
                judge=self._judge,
                judge_call=judge_call,
                workers=options.workers,
                timeout_s=options.timeout_s,
            )
        else:
            results = map_local(
                self._plan(),
                judge=self._judge,
                judge_call=judge_call,
                workers=options.workers or os.cpu_count() or 1,
                timeout_s=options.timeout_s,
            )
        try:
            for ref, judgement in results:
                self._take(ref, judgement)
        finally:
            results.close()
            self._flush()
        self._tell()
        return self._report

    # -- what is to be judged ------------------------------------------------------------------------
    def _plan(self) -> Iterator[CallRef]:
        left = self._options.limit
        for some in self._chunks():
            known = self._warehouse.known(
                [self._key(ref) for ref in some], errors=not self._options.retry_errors
            )
            for ref in some:
                if self._key(ref) in known:
                    self._report.known += 1
                elif left == 0:
                    return
                else:
                    left = None if left is None else left - 1
                    self._planned += 1
                    yield ref

    def _chunks(self) -> Iterator[list[CallRef]]:
        seen: set[str] = set()
        chunk: list[CallRef] = []
        for place in self._places:
            self._looked_at += 1
            since = self._options.since
            if since is not None and not changed_since(place, since):
                self._report.older += 1
                continue
            for found in self._reader.read(place):
                if found.call_sid in seen:
                    continue
                seen.add(found.call_sid)
                ref = self._owned(found)
                if ref is not None and self._wanted(ref):
                    chunk.append(ref)
            # the first calls soon, so that the workers start; later ones many at once
            if len(chunk) >= (_PLAN if self._planned else 16):
                yield chunk
                chunk = []
            self._tell()
        if chunk:
            yield chunk

    def _owned(self, ref: CallRef) -> CallRef | None:
        ids: dict[str, Any] = {}
        for name, own, given in (
            ("workspace_id", ref.workspace_id, self._options.workspace_id),
            ("service_id", ref.service_id, self._options.service_id),
        ):
            canonical = _uuid(own) if own else given or NO_ID
            if canonical is None:
                self._report.unowned.append(f"call {ref.call_sid} has {name} {own!r}, which is no UUID")
                return None
            ids[name] = canonical
        return replace(ref, **ids)

    def _wanted(self, ref: CallRef) -> bool:
        if ref.running:
            self._report.running += 1
            return False
        since = self._options.since
        if since is not None and ref.started_at is not None and ref.started_at < since:
            self._report.older += 1
            return False
        return True

    def _key(self, ref: CallRef) -> Key:
        return Key(ref.workspace_id, ref.service_id, ref.call_sid, ref.digest, self._judge.version)

    # -- what was judged -----------------------------------------------------------------------------
    def _take(self, ref: CallRef, judgement: CallJudgement) -> None:
        if judgement.judge_version != self._judge.version:
            why = (
                f"it was judged by {judgement.judge_version} where this run's judge is {self._judge.version}"
            )
            judgement = failed(ref, self._judge, f"{why}: every machine needs the same packages and weights")
        # two rows of a run never have the same time: newest first is one order
        self._last = max(self._clock().astimezone(UTC), self._last + _AHEAD)
        row = stored(ref, judgement, self._judge.version, self._last)
        self._rows.append((row, ref, judgement))
        self._report.scored += 1
        if judgement.error:
            self._report.failed += 1
            self._report.failures.append(f"call {ref.call_sid}: {judgement.error}")
        if len(self._rows) >= _ROWS or time.monotonic() - self._flushed_at >= _FLUSH_S:
            self._flush()
        self._tell()

    def _flush(self) -> None:
        self._flushed_at = time.monotonic()
        if not self._rows:
            return
        batch, self._rows = self._rows, []
        # the service first: a call that is there has a service that is there
        self._register(sorted({(row.workspace_id, row.service_id) for row, _, _ in batch}))
        _patiently(lambda: self._warehouse.put([row for row, _, _ in batch]))
        if self._events is not None:
            for row, ref, judgement in batch:
                self._events.emit(ref, judgement, row.computed_at)

    def _register(self, services: list[tuple[str, str]]) -> None:
        new = [pair for pair in services if pair not in self._report.services]
        if new:
            _patiently(lambda: self._registry.register(new))
            self._report.services.update(new)

    def _tell(self) -> None:
        waiting = self._planned - self._report.scored
        self._progress(max(0, self._looked_at - waiting), len(self._places))


def stored(ref: CallRef, judgement: CallJudgement, judge_version: str, computed_at: datetime) -> StoredRow:
    """The row of a judgement. One that failed has no counts either: nothing was counted."""
    row = judgement.row(computed_at)
    if judgement.error and judgement.overall is None:
        row = row.model_copy(update={"critical_count": None, "flag_count": None, "warning_count": None})
    return StoredRow(
        workspace_id=ref.workspace_id,
        service_id=ref.service_id,
        judge_version=judge_version,
        trace_digest=ref.digest,
        row=row,
        source=_where(ref.path),
        started_at=judgement.started_at,
        judge_error=judgement.error,
    )


def _where(path: str) -> str:
    return path if "://" in path else str(Path(path).absolute())


def _uuid(text: str) -> str | None:
    try:
        return str(UUID(text))
    except ValueError:
        return None


def _patiently(do: Callable[[], None]) -> None:
    """Do it; when the warehouse cannot just now, again, for about half a minute."""
    for nth in range(_TRIES):
        try:
            return do()
        except WarehouseUnavailable:
            if nth == _TRIES - 1:
                raise
            time.sleep(2.0**nth)
    raise AssertionError
