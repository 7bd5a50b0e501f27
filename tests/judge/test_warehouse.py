# SPDX-License-Identifier: Apache-2.0
"""The three warehouses and their registries: what each must do, whatever it stands on."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from jdoubles import NOON, OTHER, SERVICE, WORKSPACE, minutes, row

from voicetrace.judge.registry import Registry, open_registry
from voicetrace.judge.result import Dimension
from voicetrace.judge.warehouse import (
    Key,
    NotConfigured,
    Warehouse,
    WarehouseUnavailable,
    open_warehouse,
    shown_url,
)
from voicetrace.judge.warehouse import parquet as parquet_module

KINDS = ("parquet", "sqlite", "clickhouse")


@pytest.fixture(scope="session")
def clickhouse() -> Iterator[Any]:
    pytest.importorskip("chdb", reason="ClickHouse's SQL is tested with chdb, of the test group judge-heavy")
    from jclickhouse import ClickHouseServer

    server = ClickHouseServer()
    yield server
    server.stop()


@pytest.fixture
def clickhouse_url(clickhouse: Any) -> str:
    return clickhouse.new_database()


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "parquet":
        pytest.importorskip("duckdb", reason="a warehouse of Parquet files needs voicetrace[judge]")
        return str(tmp_path / "house")
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/house.db"
    return request.getfixturevalue("clickhouse_url")


@pytest.fixture
def house(url: str) -> Iterator[Warehouse]:
    found = open_warehouse(url, create=True)
    yield found
    found.close()


@pytest.fixture
def registry(url: str) -> Iterator[Registry]:
    found = open_registry(url, create=True)
    yield found
    found.close()


def sids(house: Warehouse, limit: int = 100, service: str = SERVICE) -> list[str]:
    return [found.row.call_sid for found in house.recent(WORKSPACE, service, limit)]


# -- what all of them do -------------------------------------------------------------------------------
def test_a_row_comes_back_as_it_was_put(house: Warehouse) -> None:
    scores = {f"{name.value}_score": nth / 10 for nth, name in enumerate(Dimension)}
    whole = row(
        "c'1\\ \t\n“é” \U0001f600",
        datetime(2026, 5, 15, 12, 0, 0, 123456, tzinfo=UTC),
        started=NOON,
        error="it's \\x00 broken",
        call_entity_id="room 1",
        judge_json='{"quote":"a\\nb \\" ü","n":1}',
        critical_count=None,
        **scores,
    )
    empty = row("c2", minutes(-1), score=None, judge_json=None, critical_count=None, flag_count=None)
    house.put([whole, empty])
    assert house.recent(WORKSPACE, SERVICE, 20) == [whole, empty]
    assert house.evidence(whole.row.call_sid) == whole
    assert house.known([whole.key, empty.key]) == {whole.key, empty.key}


def test_newest_first_up_to_the_limit(house: Warehouse) -> None:
    order = list(range(50))
    random.Random(1).shuffle(order)
    for n in range(0, 50, 10):
        house.put([row(f"c{i:02}", minutes(i)) for i in order[n : n + 10]])
    assert sids(house, 20) == [f"c{i:02}" for i in range(49, 29, -1)]
    assert sids(house, 1) == ["c49"]
    assert len(sids(house, 100)) == 50


def test_a_call_judged_again_is_there_once_as_judged_last(house: Warehouse) -> None:
    house.put([row("a", minutes(0)), row("b", minutes(1))])
    house.put([row("a", minutes(2), score=0.5)])
    house.put([row("a", minutes(3), version="2", score=0.75), row("a", minutes(-9), digest="older")])
    found = house.recent(WORKSPACE, SERVICE, 20)
    assert [(f.row.call_sid, f.row.overall_score) for f in found] == [("a", 0.75), ("b", 0.25)]
    latest = house.evidence("a")
    assert latest is not None
    assert latest.judge_version == "2"


def test_the_limit_counts_calls_not_rows(house: Warehouse) -> None:
    house.put([row("often", minutes(10 + n), digest=str(n)) for n in range(450)])
    house.put([row(f"c{n}", minutes(n / 10)) for n in range(90)])
    found = sids(house, 100)
    assert len(found) == 91
    assert found[0] == "often"


def test_rows_of_one_instant_are_always_in_the_same_order(house: Warehouse) -> None:
    for name in ("c", "a", "b"):
        house.put([row(name)])
    assert sids(house) == ["a", "b", "c"]


def test_services_and_workspaces_stay_apart(house: Warehouse) -> None:
    house.put([row("mine"), row("s", service=OTHER), row("w", workspace=OTHER)])
    assert sids(house) == ["mine"]
    assert sids(house, service=OTHER) == ["s"]
    assert [f.row.call_sid for f in house.recent(OTHER, SERVICE, 20)] == ["w"]
    assert house.recent(OTHER, OTHER, 20) == []
    assert house.evidence("w", WORKSPACE) is None
    assert house.evidence("s", WORKSPACE, SERVICE) is None
    assert house.known([row("w").key]) == set()


def test_known_is_by_every_part_of_the_key(house: Warehouse) -> None:
    stored = row("c", error="broken")
    house.put([stored])
    key = stored.key
    others = [key._replace(**{name: OTHER}) for name in Key._fields]
    assert house.known([key, *others]) == {key}
    assert house.known([key], errors=False) == set()
    house.put([row("c", minutes(1))])
    assert house.known([key], errors=False) == {key}
    assert house.known([]) == set()


def test_known_of_many(house: Warehouse) -> None:
    rows = [row(f"call-{n}") for n in range(1200)]
    house.put(rows[::2])
    assert house.known(r.key for r in rows) == {r.key for r in rows[::2]}


def test_months_and_zones(house: Warehouse) -> None:
    plus2 = timezone(timedelta(hours=2))
    house.put(
        [row("june", datetime(2026, 6, 1, 1, tzinfo=plus2)), row("may", datetime(2026, 5, 1, tzinfo=UTC))]
    )
    found = house.recent(WORKSPACE, SERVICE, 20)
    assert [f.computed_at for f in found] == [
        datetime(2026, 5, 31, 23, tzinfo=UTC),
        datetime(2026, 5, 1, tzinfo=UTC),
    ]
    assert found[0].row.model_dump(mode="json")["computed_at"] == "2026-05-31T23:00:00Z"


def test_the_trend_takes_each_call_once_and_withholds_means_of_few(house: Warehouse) -> None:
    day = timedelta(days=1)
    rows = [row(f"c{n}", minutes(n), started=NOON - day, score=n / 20) for n in range(11)]
    rows += [row("c0", minutes(30), version="2", started=NOON - day, score=1.0)]
    rows += [row(f"e{n}", minutes(40 + n), score=None, error="x", flag_count=None) for n in range(3)]
    house.put(rows)
    before, today = house.trend(WORKSPACE, SERVICE)
    assert (before.start, before.calls, before.failed) == (datetime(2026, 5, 14, tzinfo=UTC), 11, 0)
    assert before.overall.scored == 11
    assert before.overall.mean == pytest.approx((sum(n / 20 for n in range(1, 11)) + 1) / 11, abs=1e-4)
    assert before.flag_count == 11
    assert before.dimensions[Dimension.PACING].mean is None
    assert (today.start, today.calls, today.failed, today.flag_count) == (
        datetime(2026, 5, 15, tzinfo=UTC),
        3,
        3,
        0,
    )
    assert today.overall.mean is None
    withheld = house.trend(WORKSPACE, SERVICE, min_scored=12)[0]
    assert (withheld.overall.scored, withheld.overall.mean) == (11, None)
    [only] = house.trend(WORKSPACE, SERVICE, since=NOON - timedelta(hours=1))
    assert only == today
    assert house.trend(WORKSPACE, SERVICE, until=datetime(2026, 5, 15, tzinfo=UTC)) == [before]
    assert [p.start for p in house.trend(WORKSPACE, SERVICE, bucket="week")] == [
        datetime(2026, 5, 11, tzinfo=UTC)
    ]
    assert [p.start for p in house.trend(WORKSPACE, SERVICE, bucket="month")] == [
        datetime(2026, 5, 1, tzinfo=UTC)
    ]
    assert house.trend(WORKSPACE, OTHER) == []


def test_text_that_no_store_can_hold_is_stored_without_it(house: Warehouse) -> None:
    house.put([row("a\0b", judge_json='{"q":"\ud800"}')])
    [found] = house.recent(WORKSPACE, SERVICE, 1)
    assert found.row.call_sid == "a\ufffdb"
    assert json.loads(found.row.judge_json or "")


def test_ids_are_never_sql(house: Warehouse) -> None:
    house.put([row("c")])
    bad = "x' OR '1'='1"
    assert house.recent(bad, bad, 20) == []
    assert house.evidence(bad) is None
    assert house.trend(bad, bad) == []
    assert house.known([Key(bad, bad, bad, bad, bad)]) == set()


def test_nothing_put_nothing_there(house: Warehouse) -> None:
    house.put([])
    assert sids(house) == []
    assert house.evidence("c") is None
    assert house.compact() == 0


def test_compacting_changes_no_answer(house: Warehouse) -> None:
    for n in range(30):
        house.put([row(f"c{n}", minutes(n)), row("again", minutes(100 + n))])
    before = house.recent(WORKSPACE, SERVICE, 100), house.trend(WORKSPACE, SERVICE)
    house.compact()
    assert (house.recent(WORKSPACE, SERVICE, 100), house.trend(WORKSPACE, SERVICE)) == before
    assert house.known([row("c3").key, row("again").key]) == {row("c3").key, row("again").key}
    assert house.compact() == 0


def test_threads_share_it(house: Warehouse) -> None:
    house.put([row(f"c{n}", minutes(n)) for n in range(20)])
    wanted, failures = sids(house, 20), []

    def look() -> None:
        for _ in range(5):
            if sids(house, 20) != wanted:
                failures.append(1)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_closed_is_closed(url: str) -> None:
    found = open_warehouse(url, create=True)
    found.put([row("c")])
    found.close()
    found.close()
    if not url.startswith("clickhouse"):  # a connection opens anew
        with pytest.raises(WarehouseUnavailable, match="is closed"):
            found.recent(WORKSPACE, SERVICE, 1)


def test_the_registry(registry: Registry, url: str) -> None:
    assert not registry.has(WORKSPACE, SERVICE)
    assert registry.services(WORKSPACE) == []
    registry.register([(WORKSPACE, SERVICE), (WORKSPACE, OTHER), (WORKSPACE, SERVICE)])
    registry.register([(WORKSPACE, SERVICE)])
    again = open_registry(url)
    assert again.has(WORKSPACE, SERVICE)
    assert not again.has(OTHER, SERVICE)
    assert again.services(WORKSPACE) == sorted([SERVICE, OTHER])
    house = open_warehouse(url, create=True)
    assert house.recent(WORKSPACE, SERVICE, 20) == []  # a service without scores
    house.close()
    again.close()


# -- when it is not there -----------------------------------------------------------------------------
@pytest.mark.parametrize("make", ["{}/none", "sqlite:///{}/none.db", "file://{}/none"])
def test_a_reader_of_what_is_not_there(make: str, tmp_path: Path) -> None:
    url = make.format(tmp_path)
    found, registry = open_warehouse(url), open_registry(url)
    asked: list[Callable[[], Any]] = [
        lambda: found.recent(WORKSPACE, SERVICE, 1),
        lambda: found.evidence("c"),
        lambda: found.trend(WORKSPACE, SERVICE),
        lambda: found.known([row("c").key]),
        lambda: registry.has(WORKSPACE, SERVICE),
    ]
    for ask in asked:
        with pytest.raises(NotConfigured, match="there is no warehouse at"):
            ask()
    assert list(tmp_path.iterdir()) == []
    writer = open_warehouse(url, create=True)
    writer.put([row("c")])
    assert sids(found) == ["c"]
    found.close()
    writer.close()


@pytest.mark.parametrize(
    "url",
    ["", " ", "ftp://x/y", "mysql://h/d", "sqlite://", "sqlite://host/x.db", "file://host/dir", "s3://",
     "clickhouse://", "clickhouse://h:x/d", "clickhouse://h/d?nonsense=1"],
)  # fmt: skip
def test_a_url_that_names_none(url: str) -> None:
    with pytest.raises(NotConfigured):
        open_warehouse(url)


def test_passwords_are_not_shown() -> None:
    assert shown_url("clickhouse://u:secret@h:1/d") == "clickhouse://u:…@h:1/d"
    assert shown_url("some/dir") == "some/dir"
    with pytest.raises(NotConfigured) as caught:
        open_warehouse("mysql://u:secret@h/d")
    assert "secret" not in str(caught.value)


def test_a_server_that_is_not_there() -> None:
    found = open_warehouse("clickhouse://u:secret@127.0.0.1:9/d")
    with pytest.raises(WarehouseUnavailable, match="cannot be reached") as caught:
        found.recent(WORKSPACE, SERVICE, 1)
    assert "secret" not in str(caught.value)


def test_a_server_that_refuses_or_hangs_up(clickhouse: Any, clickhouse_url: str) -> None:
    found = open_warehouse(clickhouse_url, create=True)
    clickhouse.refuse = "Code: 241. Memory limit exceeded"
    with pytest.raises(WarehouseUnavailable, match="answers 500: Code: 241"):
        found.recent(WORKSPACE, SERVICE, 1)
    clickhouse.refuse = ""
    clickhouse.hang_up = 1  # a kept connection that the server has closed
    assert found.recent(WORKSPACE, SERVICE, 1) == []
    clickhouse.hang_up = 2
    with pytest.raises(WarehouseUnavailable, match="cannot be reached"):
        found.recent(WORKSPACE, SERVICE, 1)
    found.close()
    wrong = open_warehouse(clickhouse_url.replace("secret", "wrong"))
    with pytest.raises(WarehouseUnavailable, match="answers 403"):
        wrong.recent(WORKSPACE, SERVICE, 1)
    wrong.close()


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(b"not a database" * 100)
    found = open_warehouse(f"sqlite:///{path}")
    with pytest.raises(WarehouseUnavailable, match="file is not a database"):
        found.recent(WORKSPACE, SERVICE, 1)
    found.close()


def test_a_database_that_is_no_warehouse(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "x.db").close()
    found, registry = (
        open_warehouse(f"sqlite:///{tmp_path}/x.db"),
        open_registry(f"sqlite:///{tmp_path}/x.db"),
    )
    with pytest.raises(NotConfigured, match="no table voice_judge"):
        found.recent(WORKSPACE, SERVICE, 1)
    with pytest.raises(NotConfigured, match="no table services"):
        registry.has(WORKSPACE, SERVICE)
    found.close()


def test_sqlite_that_another_process_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voicetrace.judge.warehouse.sqlite._BUSY_S", 0.01)
    found = open_warehouse(f"sqlite:///{tmp_path}/x.db", create=True)
    holder = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(WarehouseUnavailable, match="locked"):
        found.put([row("c")])
    assert sids(found) == []  # readers go on
    holder.execute("ROLLBACK")
    holder.close()
    found.put([row("c")])
    assert sids(found) == ["c"]
    found.close()


# -- Parquet parts --------------------------------------------------------------------------------------
@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Warehouse]:
    pytest.importorskip("duckdb", reason="a warehouse of Parquet files needs voicetrace[judge]")
    found = open_warehouse(tmp_path / "house", create=True)
    yield found
    found.close()


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "house").rglob("*.parquet"))


def test_the_layout(parts: Warehouse, tmp_path: Path) -> None:
    parts.put([row("a"), row("b", minutes(60 * 24 * 30)), row("c", workspace=OTHER)])
    found = [str(p.parent.relative_to(tmp_path / "house")) for p in files(tmp_path)]
    assert sorted(found) == [
        f"workspace_id={WORKSPACE}/month=2026-05",
        f"workspace_id={WORKSPACE}/month=2026-06",
        f"workspace_id={OTHER}/month=2026-05",
    ]
    assert list((tmp_path / "house/.staging").iterdir()) == []


def test_what_is_no_part_is_passed_over(parts: Warehouse, tmp_path: Path) -> None:
    parts.put([row("a")])
    folder = files(tmp_path)[0].parent
    (folder / "part-x.parquet.tmp").write_text("half")
    (folder / "notes.parquet").write_text("not ours")
    (folder / ".part-y.parquet").write_text("hidden")
    assert sids(parts) == ["a"]


def test_a_broken_part_is_said(parts: Warehouse, tmp_path: Path) -> None:
    parts.put([row("a")])
    files(tmp_path)[0].write_bytes(b"PAR1 broken")
    with pytest.raises(WarehouseUnavailable, match="part-"):
        parts.recent(WORKSPACE, SERVICE, 1)


def test_merged_parts_replace_small_ones(parts: Warehouse, tmp_path: Path) -> None:
    for n in range(20):
        parts.put([row(f"c{n}", minutes(n))])
    assert parts.compact() == 20
    assert len(files(tmp_path)) == 1
    assert len(sids(parts)) == 20


def test_large_parts_are_left_alone(
    parts: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_module, "PART_ROWS", 10)
    for n in range(9):
        parts.put([row(f"c{n}-{m}", minutes(n)) for m in range(4)])
    assert parts.compact() == 9
    assert len(files(tmp_path)) == 3  # 12 rows each
    assert parts.compact() == 0


def test_a_compaction_that_was_killed_half_way_loses_and_doubles_nothing(
    parts: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(6):
        parts.put([row(f"c{n}", minutes(n))])
    deleted = []

    def die(self: Any, name: str) -> None:
        if deleted:
            raise KeyboardInterrupt
        deleted.append(name)
        (self.root / name).unlink()

    monkeypatch.setattr("voicetrace.judge.warehouse.blobs.LocalBlobs.delete", die)
    with pytest.raises(KeyboardInterrupt):
        parts.compact()
    monkeypatch.undo()
    assert len(files(tmp_path)) == 6  # five sources and their sum
    assert sids(parts) == [f"c{n}" for n in range(5, -1, -1)]
    assert parts.trend(WORKSPACE, SERVICE)[0].calls == 6
    parts.compact()
    assert len(files(tmp_path)) == 1
    assert sids(parts) == [f"c{n}" for n in range(5, -1, -1)]


def test_a_reader_whose_part_is_compacted_away_reads_again(parts: Warehouse, tmp_path: Path) -> None:
    for n in range(4):
        parts.put([row(f"c{n}", minutes(n))])
    other = open_warehouse(tmp_path / "house")
    real, calls = parts._blobs.names, []

    def stale(prefix: str) -> list[str]:
        found = real(prefix)
        if not calls:
            other.compact()
        calls.append(prefix)
        return found

    parts._blobs.names = stale
    assert sids(parts) == ["c3", "c2", "c1", "c0"]
    assert len(calls) == 2
    other.close()


def test_parts_that_never_stop_vanishing_are_said(parts: Warehouse) -> None:
    parts.put([row("c")])
    parts._blobs.names = lambda prefix: [f"workspace_id={WORKSPACE}/month=2026-05/part-gone.parquet"]
    with pytest.raises(WarehouseUnavailable, match="change faster"):
        parts.recent(WORKSPACE, SERVICE, 1)


def test_a_new_part_is_seen_at_once_by_who_has_read_before(parts: Warehouse, tmp_path: Path) -> None:
    reader = open_warehouse(tmp_path / "house")
    for n in range(5):
        parts.put([row(f"c{n}", minutes(n))])
        assert sids(reader)[0] == f"c{n}"
    parts.put([row("late", minutes(-60))])
    assert sids(reader)[-1] == "late"
    reader.close()


def test_what_is_remembered_is_bounded(parts: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_module, "_REMEMBERED_BYTES", 3000)
    services = [str(UUID(int=n)) for n in range(1, 9)]
    parts.put([row("c", service=s) for s in services])
    for service in services * 2:
        assert sids(parts, service=service) == ["c"]
    assert len(parts._heads) <= 3


def test_staged_files_of_killed_writers_are_removed_once_they_are_old(
    parts: Warehouse, tmp_path: Path
) -> None:
    staging = tmp_path / "house/.staging"
    staging.mkdir()
    old, new = staging / "old", staging / "new"
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    parts.put([row("c")])
    assert list(staging.iterdir()) == [new]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_refuses(parts: Warehouse, tmp_path: Path) -> None:
    (tmp_path / "house").chmod(0o500)
    with pytest.raises(WarehouseUnavailable, match="cannot be written"):
        parts.put([row("c")])


def test_a_file_where_the_directory_should_be(tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="a warehouse of Parquet files needs voicetrace[judge]")
    (tmp_path / "house").touch()
    with pytest.raises(WarehouseUnavailable, match="cannot be made"):
        open_warehouse(tmp_path / "house", create=True)


def _write(root: str, writer: int) -> None:
    found = open_warehouse(root)
    for n in range(10):
        found.put([row(f"w{writer}-{n}", minutes(n + writer / 10))])
        if n % 4 == 3:
            found.compact()
    found.close()


def test_processes_write_compact_and_read_at_once(parts: Warehouse, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(str(tmp_path / "house"), w)) for w in range(2)]
    for writer in writers:
        writer.start()
    seen = 0
    while any(w.is_alive() for w in writers):
        found = sids(parts)
        assert len(found) == len(set(found)) >= seen  # never fewer than before, never one twice
        seen = len(found)
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert len(sids(parts)) == 20


# -- any history ----------------------------------------------------------------------------------------
ROWS = st.lists(
    st.tuples(
        st.sampled_from("abcde"),
        st.integers(0, 20),
        st.sampled_from("12"),
        st.sampled_from("xy"),
        st.sampled_from([SERVICE, OTHER]),
    ),
    max_size=25,
)


@given(batches=st.lists(ROWS, max_size=4), limit=st.integers(1, 6), compact=st.booleans())
@hypothesis_settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@pytest.mark.parametrize("kind", ["parquet", "sqlite"])
def test_recent_is_what_the_whole_history_says(
    kind: str, tmp_path_factory: pytest.TempPathFactory, batches: list[Any], limit: int, compact: bool
) -> None:
    root = tmp_path_factory.mktemp("any")
    if kind == "parquet":
        pytest.importorskip("duckdb", reason="a warehouse of Parquet files needs voicetrace[judge]")
    house = open_warehouse(str(root / "h") if kind == "parquet" else f"sqlite:///{root}/h.db", create=True)
    everything = []
    for batch in batches:
        rows = [row(s, minutes(t), version=v, digest=d, service=w, score=t / 20) for s, t, v, d, w in batch]
        everything += rows
        house.put(rows)
        house.recent(WORKSPACE, SERVICE, 1)
    if compact:
        house.compact()
    newest: dict[str, Any] = {}
    for one in everything:
        if one.service_id == SERVICE:
            old = newest.get(one.row.call_sid)
            if old is None or one.computed_at > old.computed_at:
                newest[one.row.call_sid] = one
    wanted = sorted(newest.values(), key=lambda r: (-r.computed_at.timestamp(), r.row.call_sid))[:limit]
    found = house.recent(WORKSPACE, SERVICE, limit)
    assert [(r.row.call_sid, r.computed_at) for r in found] == [
        (r.row.call_sid, r.computed_at) for r in wanted
    ]
    assert house.known(r.key for r in everything) == {r.key for r in everything}
    house.close()
