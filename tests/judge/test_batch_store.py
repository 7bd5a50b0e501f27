# SPDX-License-Identifier: Apache-2.0
"""Calls and warehouse in an object store: a real S3 server, workers that fetch for themselves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from jdoubles import OTHER, SERVICE, WORKSPACE, FakeJudge, fake_judge_call, row, write_call

obstore = pytest.importorskip("obstore", reason="object storage needs voicetrace[store]")
pytest.importorskip("duckdb", reason="a warehouse of Parquet files needs voicetrace[judge]")

from test_agentclash_store import KEY, SECRET, server  # noqa: E402, F401  the server is a fixture
from voicetrace.agentclash import export_bundle  # noqa: E402
from voicetrace.judge.batch import NO_ID, BatchOptions, SourceError, run_batch  # noqa: E402
from voicetrace.judge.registry import open_registry  # noqa: E402
from voicetrace.judge.warehouse import WarehouseUnavailable, open_warehouse  # noqa: E402
from voicetrace.judge.warehouse.blobs import open_store  # noqa: E402
from voicetrace.reader import read_calls  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples" / "calls"


@pytest.fixture
def bucket(server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:  # noqa: F811
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "VOICETRACE_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    # a listing is taken as new for two seconds; here every listing is
    monkeypatch.setattr("voicetrace.judge.warehouse.blobs._LIST_S", 0.0)
    return f"s3://evals/{tmp_path.name}"


def upload(folder: Path, url: str) -> None:
    store, prefix = open_store(url)
    for path in folder.rglob("*"):
        if path.is_file():
            obstore.put(store, f"{prefix}/{path.relative_to(folder).as_posix()}", path)


def run(source: str, url: str, tmp_path: Path, **options: Any) -> Any:
    house, registry = open_warehouse(url, create=True), open_registry(url, create=True)
    try:
        return run_batch(
            source,
            house,
            registry,
            judge=FakeJudge(log=str(tmp_path / "log")),
            judge_call=fake_judge_call,
            options=BatchOptions(workers=1, **options),
        )
    finally:
        house.close()


def test_calls_in_a_store_are_judged_once_into_a_warehouse_in_a_store(bucket: str, tmp_path: Path) -> None:
    here = tmp_path / "calls"
    write_call(here, "a")
    write_call(here, "raises")
    (here / "traced").mkdir()
    for name in ("cascaded.json", "cascaded.flac"):
        shutil.copy(EXAMPLES / name, here / "traced")
    [call] = read_calls(EXAMPLES / "realtime.jsonl")
    export_bundle(call, here / "bundle", run_id=OTHER, run_agent_id=SERVICE)
    upload(here, f"{bucket}/calls")
    first = run(f"{bucket}/calls", f"{bucket}/house", tmp_path)
    assert (first.scored, first.failed) == (4, 1)
    again = run(f"{bucket}/calls", f"{bucket}/house", tmp_path)
    assert (again.scored, again.known) == (0, 4)
    reader, registry = open_warehouse(f"{bucket}/house"), open_registry(f"{bucket}/house")
    found = {r.row.call_sid: r for r in reader.recent(NO_ID, NO_ID, 20)}
    [traced] = read_calls(EXAMPLES / "cascaded.json")
    assert sorted(found) == sorted(["a", "raises", call.call_id, traced.call_id])
    assert found["a"].source == f"{bucket}/calls/a"
    assert registry.services(NO_ID) == [NO_ID]
    reader.close()
    # other audio under the same name is another call
    data = bytearray((here / "traced/cascaded.flac").read_bytes())
    data[-1] ^= 1
    (here / "traced/cascaded.flac").write_bytes(data)
    upload(here / "traced", f"{bucket}/calls/traced")
    assert run(f"{bucket}/calls", f"{bucket}/house", tmp_path).scored == 1


def test_a_warehouse_in_a_store(bucket: str, tmp_path: Path) -> None:
    house = open_warehouse(f"{bucket}/house", create=True)
    for n in range(5):
        house.put([row(f"c{n}")])
    other = open_warehouse(f"{bucket}/house")
    assert len(other.recent(WORKSPACE, SERVICE, 20)) == 5
    cached = list((tmp_path / "cache").rglob("*.parquet"))
    assert len(cached) == 5
    assert house.compact() == 5
    assert len(other.recent(WORKSPACE, SERVICE, 20)) == 5
    assert len(list((tmp_path / "cache").rglob("*.parquet"))) == 1  # what is gone there is removed here
    assert json.loads(other.recent(WORKSPACE, SERVICE, 1)[0].row.judge_json or "") == {"sid": "c0"}
    house.close()
    other.close()


def test_a_store_that_refuses(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    house = open_warehouse(f"{bucket}/house")
    with pytest.raises(WarehouseUnavailable, match="does not answer") as caught:
        house.recent(WORKSPACE, SERVICE, 1)
    assert "wrong" not in str(caught.value)
    house.close()
    with pytest.raises((SourceError, WarehouseUnavailable), match=r"cannot be listed|does not answer"):
        run(f"{bucket}/calls", f"sqlite:///{tmp_path}/x.db", tmp_path)
