# SPDX-License-Identifier: Apache-2.0
"""A batch: what is found, what is judged once and what again, and what a bad call, a crash and a kill do."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from jdoubles import NOON, OTHER, SERVICE, WORKSPACE, FakeJudge, fake_judge_call, write_call

from voicetrace.agentclash import export_bundle
from voicetrace.journal import JournalWriter
from voicetrace.judge.batch import NO_ID, BatchOptions, BatchReport, SourceError, find_calls, run_batch
from voicetrace.judge.batch import run as run_module
from voicetrace.judge.batch.pool import PoolError, map_local
from voicetrace.judge.batch.source import CallRef, Kind, Reader
from voicetrace.judge.batch.work import judge_ref
from voicetrace.judge.registry import open_registry
from voicetrace.judge.result import Dimension, NullReason
from voicetrace.judge.warehouse import StoredRow, WarehouseUnavailable, open_warehouse
from voicetrace.reader import read_calls

EXAMPLES = Path(__file__).parents[2] / "examples" / "calls"


class Bench:
    """A folder of calls, a warehouse, and a log of what the fake judge was asked."""

    def __init__(self, root: Path) -> None:
        self.calls = root / "calls"
        self.calls.mkdir()
        self.url = f"sqlite:///{root}/house.db"
        self.log = root / "log"
        self.judge = FakeJudge(log=str(self.log))
        self.warehouse = open_warehouse(self.url, create=True)
        self.registry = open_registry(self.url, create=True)
        self.now = NOON

    def run(self, source: Path | None = None, **options: Any) -> BatchReport:
        judge = options.pop("judge", self.judge)
        more = {name: options.pop(name) for name in ("progress", "events", "warehouse") if name in options}
        options.setdefault("workers", 1)
        return run_batch(
            source or self.calls,
            more.pop("warehouse", self.warehouse),
            self.registry,
            judge=judge,
            judge_call=fake_judge_call,
            options=BatchOptions(**options),
            clock=lambda: self.now,
            **more,
        )

    def judged(self) -> Counter[str]:
        return Counter(self.log.read_text().split()) if self.log.exists() else Counter()

    def rows(self, workspace: str = NO_ID, service: str = NO_ID) -> dict[str, StoredRow]:
        return {r.row.call_sid: r for r in self.warehouse.recent(workspace, service, 1000)}


def map_here(refs: Iterable[CallRef], *, judge: Any, judge_call: Any, **_: Any) -> Iterator[Any]:
    """What the engines do, without their processes."""
    for ref in refs:
        yield ref, judge_ref(ref, judge, judge_call)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Judges in this process."""
    monkeypatch.setattr(run_module, "map_local", map_here)
    found = Bench(tmp_path)
    yield found
    found.warehouse.close()


@pytest.fixture
def pool(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Judges in worker processes."""
    monkeypatch.setattr(run_module, "map_local", map_local)
    return bench


# -- what is found ---------------------------------------------------------------------------------------
def test_call_folders_bundles_and_traces_are_found_and_other_files_are_not(tmp_path: Path) -> None:
    write_call(tmp_path, "one")
    (tmp_path / "one/trace.json").write_text('{"resourceSpans": []}')
    (tmp_path / "one/messages.json").write_text("{}")
    shutil.copy(EXAMPLES / "cascaded.json", tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / ".hidden").mkdir()
    write_call(tmp_path / ".hidden", "no")
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "voice_artifact_manifest.json").write_text("{}")
    (bundle / "artifacts").mkdir()
    (bundle / "artifacts/transcript.json").write_text("{}")
    found = [(p.kind, Path(p.path).relative_to(tmp_path).as_posix()) for p in find_calls(tmp_path)]
    assert found == [(Kind.JOURNAL, "one"), (Kind.BUNDLE, "bundle"), (Kind.TRACE, "cascaded.json")]
    assert find_calls(tmp_path / "one/journal.jsonl")[0].kind is Kind.JOURNAL
    assert find_calls(bundle)[0].path == str(bundle)
    with pytest.raises(SourceError, match="there is nothing at"):
        find_calls(tmp_path / "none")


def test_a_link_back_up_is_not_followed(tmp_path: Path) -> None:
    write_call(tmp_path, "one")
    (tmp_path / "one/up").symlink_to(tmp_path)
    assert len(find_calls(tmp_path)) == 1


def test_a_call_that_is_there_in_several_forms_is_judged_once(bench: Bench) -> None:
    for name in ("cascaded.json", "cascaded.jsonl", "cascaded.flac"):
        shutil.copy(EXAMPLES / name, bench.calls)
    [call] = read_calls(EXAMPLES / "cascaded.jsonl")
    assert bench.run().scored == 1
    [row] = bench.rows().values()
    assert row.row.call_sid == call.call_id
    assert row.source.endswith("cascaded.jsonl")  # the journal


def test_the_calls_of_a_trace_of_several_are_judged_each(bench: Bench) -> None:
    documents = [json.loads((EXAMPLES / name).read_text()) for name in ("cascaded.json", "realtime.json")]
    trace = bench.calls / "collector.jsonl"
    trace.write_text("".join(json.dumps(d) + "\n" for d in documents[:1]))
    first = bench.run()
    trace.write_text("".join(json.dumps(d) + "\n" for d in documents))
    second = bench.run()
    # the first call, alone in its file then, is now one of two: its trace has another digest once
    assert (first.scored, first.failed, second.failed) == (1, 0, 0)
    assert len(bench.rows()) == 2
    trace.write_text("".join(json.dumps(d) + "\n" for d in reversed(documents)))
    assert bench.run().scored == 0  # whatever else is in the file, and where


def test_what_is_judged_of_a_bundle_is_the_call(bench: Bench, tmp_path: Path) -> None:
    [call] = read_calls(EXAMPLES / "cascaded.jsonl")
    export_bundle(call, bench.calls / "b", run_id=OTHER, run_agent_id=SERVICE)
    from voicetrace.judge.batch.bundle import call_of_bundle

    back = call_of_bundle(bench.calls / "b", tmp_path)
    assert back.call_id == call.call_id
    assert [(m.id, m.role, m.state, m.text) for m in back.messages] == [
        (m.id, m.role, m.state, m.text) for m in call.messages
    ]
    said = [m for m in call.messages if m.selections]
    for message in said:
        ours, theirs = back.clip(back.message(message.id)), call.clip(message)
        assert (ours.start_ms, ours.duration_ms) == (theirs.start_ms, theirs.duration_ms)
        assert (ours.samples == theirs.samples).mean() > 0.99
    assert bench.run().scored == 1
    [row] = bench.rows().values()
    judged = json.loads(row.row.judge_json or "")
    assert judged["inputs"] == {"bundle_sha256": row.trace_digest}
    assert bench.run().known == 1


def test_a_bundle_of_somebody_else_has_its_turns_from_its_audio(bench: Bench, tmp_path: Path) -> None:
    from voicetrace.judge.batch.bundle import call_of_bundle

    [call] = read_calls(EXAMPLES / "cascaded.jsonl")
    root = bench.calls / "b"
    export_bundle(call, root, run_id=OTHER, run_agent_id=SERVICE)
    manifest = json.loads((root / "voice_artifact_manifest.json").read_text())
    manifest["artifacts"] = [a for a in manifest["artifacts"] if a["kind"] != "raw_provider_trace_json"]
    (root / "voice_artifact_manifest.json").write_text(json.dumps(manifest))
    back = call_of_bundle(root, tmp_path)
    assert any(back.clip(m).samples.any() for m in back.messages if m.selections)
    assert bench.run().failed == 0


# -- what is judged, and what again -------------------------------------------------------------------------
def test_every_call_once_and_then_none(pool: Bench) -> None:
    for n in range(5):
        write_call(pool.calls, f"c{n}")
    first = pool.run(workers=2)
    assert (first.scored, first.failed, first.known) == (5, 0, 0)
    again = pool.run()
    assert (again.scored, again.known) == (0, 5)
    assert pool.judged() == Counter({f"c{n}": 1 for n in range(5)})


def test_what_makes_it_judged_again(bench: Bench) -> None:
    folder = write_call(bench.calls, "c")
    bench.run()
    shutil.copytree(bench.calls, bench.calls.parent / "moved")
    assert bench.run(bench.calls.parent / "moved").known == 1  # elsewhere, the same
    journal = folder / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    fault = '{"event":"CaptureFault","at_ms":900,"message":"late"}\n'
    journal.write_text("".join([*lines[:-1], fault, lines[-1]]))
    assert bench.run().scored == 1  # its trace was completed
    (folder / "recording.wav").write_bytes(b"RIFF")
    assert bench.run().known == 1  # the call says nothing of such a recording
    assert bench.run(judge=replace(bench.judge, version="fake-2")).scored == 1
    assert bench.run(service_id=SERVICE, workspace_id=WORKSPACE).scored == 1  # for another owner
    assert bench.judged() == Counter(c=4)


def test_other_audio_of_the_same_size_is_another_call(bench: Bench) -> None:
    for name in ("cascaded.jsonl", "cascaded.flac"):
        shutil.copy(EXAMPLES / name, bench.calls)
    memory = bench.calls.parent / "memory"
    assert bench.run(memory=memory).scored == 1
    audio = bench.calls / "cascaded.flac"
    data = bytearray(audio.read_bytes())
    data[-1] ^= 1
    audio.write_bytes(data)
    assert bench.run(memory=memory).scored == 1


def test_digests_are_remembered_by_size_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(3):
        os.utime(write_call(tmp_path / "calls", f"c{n}") / "journal.jsonl", (1e9, 1e9))
    memory = tmp_path / "memory.sqlite"
    places = find_calls(tmp_path / "calls")
    reader = Reader(memory)
    first = [reader.read(place) for place in places]
    reader.close()
    monkeypatch.setattr("voicetrace.judge.batch.source._sha256", lambda path: pytest.fail("read again"))
    monkeypatch.setattr("voicetrace.judge.batch.source.read_journal", lambda path: pytest.fail("read again"))
    reader = Reader(memory)
    assert [reader.read(place) for place in places] == first
    reader.close()
    memory.write_bytes(b"no database")
    monkeypatch.undo()
    reader = Reader(memory)
    assert [reader.read(place) for place in places] == first
    reader.close()


def test_owners_are_those_of_the_call_then_those_given(bench: Bench) -> None:
    write_call(bench.calls, "own", workspace=WORKSPACE.upper(), service=SERVICE)
    write_call(bench.calls, "half", workspace=WORKSPACE)
    write_call(bench.calls, "none")
    write_call(bench.calls, "bad", workspace="acme")
    report = bench.run(workspace_id=OTHER, service_id=OTHER)
    assert list(bench.rows(WORKSPACE, SERVICE)) == ["own"]
    assert list(bench.rows(WORKSPACE, OTHER)) == ["half"]
    assert list(bench.rows(OTHER, OTHER)) == ["none"]
    assert report.unowned == ["call bad has workspace_id 'acme', which is no UUID"]
    assert bench.registry.services(WORKSPACE) == sorted([SERVICE, OTHER])
    assert bench.rows(WORKSPACE, SERVICE)["own"].row.service_id == SERVICE


def test_a_run_over_nothing_registers_the_service_it_names(bench: Bench) -> None:
    assert bench.run(workspace_id=WORKSPACE, service_id=SERVICE).scored == 0
    assert bench.registry.has(WORKSPACE, SERVICE)


def test_a_call_that_goes_on_is_left_to_the_next_run(bench: Bench) -> None:
    folder = write_call(bench.calls, "live", ended=False)
    dead = write_call(bench.calls, "dead", ended=False)
    lines = (folder / "journal.jsonl").read_text().splitlines()[1:]
    (folder / "journal.jsonl").unlink()
    writer = JournalWriter(folder / "journal.jsonl")
    for line in lines:
        writer._write_line(json.loads(line))
    report = bench.run()
    assert (report.scored, report.running) == (1, 1)
    assert list(bench.rows()) == [dead.name]
    writer.close()
    assert bench.run().scored == 1


def test_since_and_limit(bench: Bench) -> None:
    for n in range(6):
        write_call(bench.calls, f"c{n}", origin=NOON + timedelta(hours=n))
    report = bench.run(since=NOON + timedelta(hours=2), limit=3)
    assert (report.scored, report.older) == (3, 2)
    assert sorted(bench.rows()) == ["c2", "c3", "c4"]
    assert bench.run(limit=1).scored == 1
    assert sorted(bench.rows()) == ["c0", "c2", "c3", "c4"]
    old = bench.calls / "c1/journal.jsonl"
    os.utime(old, (0, 0))  # written before: it cannot have begun later
    assert bench.run(since=datetime(2020, 1, 1, tzinfo=UTC)).older == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0}, "workers must be at least 1"),
        ({"limit": 0}, "limit must be at least 1"),
        ({"timeout_s": 0.0}, "timeout_s must be more than 0"),
        ({"timeout_s": float("nan")}, "timeout_s must be more than 0"),
        ({"workspace_id": "acme"}, "workspace_id must be a UUID"),
    ],
)
def test_options_that_are_none(bench: Bench, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        bench.run(**options)


# -- what a bad call does -----------------------------------------------------------------------------------
def test_one_bad_call_is_a_row_of_nulls_and_stops_nothing(bench: Bench) -> None:
    for name in ("a", "raises", "z"):
        write_call(bench.calls, name)
    torn = write_call(bench.calls, "other-version") / "journal.jsonl"
    torn.write_text(torn.read_text().replace('"voicetrace_journal": 1', '"voicetrace_journal": 99'))
    broken = bench.calls / "bundle"
    broken.mkdir()
    (broken / "voice_artifact_manifest.json").write_text("{ no json")
    report = bench.run()
    assert (report.scored, report.failed) == (5, 3)
    rows = bench.rows()
    assert sorted(rows) == ["a", "bundle", "other-version", "raises", "z"]
    bad = rows["raises"]
    assert bad.judge_error == "ValueError: the audio of this call is no audio"
    numbers = bad.row.model_dump(
        exclude={"call_sid", "call_entity_id", "service_id", "judge_json", "computed_at"}
    )
    assert set(numbers.values()) == {None}
    said = json.loads(bad.row.judge_json or "")
    assert said["judge_error"] == bad.judge_error
    assert {d["null_reason"] for d in said["dimensions"].values()} == {NullReason.JUDGE_ERROR}
    assert "manifest" in rows["bundle"].judge_error
    assert "version 99" in rows["other-version"].judge_error
    assert bench.run().known == 5
    assert bench.run(retry_errors=True).scored == 3


def test_a_call_that_kills_its_process_gets_a_second_try_and_then_a_row(pool: Bench) -> None:
    for name in ("a", "dies", "z"):
        write_call(pool.calls, name)
    report = pool.run(workers=2)
    assert (report.scored, report.failed) == (3, 1)
    assert pool.rows()["dies"].judge_error == "the worker process died while judging it (SIGKILL)"
    assert pool.judged() == Counter(a=1, dies=2, z=1)


def test_a_process_that_is_killed_once_costs_nothing(pool: Bench) -> None:
    write_call(pool.calls, "flaky")
    assert pool.run().failed == 0
    assert pool.judged() == Counter(flaky=2)


def test_a_call_that_hangs_is_given_up(pool: Bench) -> None:
    for name in ("hangs", "z"):
        write_call(pool.calls, name)
    report = pool.run(timeout_s=0.5)
    assert report.scored == 2
    assert pool.rows()["hangs"].judge_error == "judging took longer than the time it is given"


class _Unpicklable(FakeJudge):
    def __reduce__(self) -> Any:
        return (sys.exit, (3,))


def test_workers_that_cannot_start_are_said(pool: Bench) -> None:
    write_call(pool.calls, "c")
    with pytest.raises(PoolError, match=r"cannot start \(exit code 3\)"):
        pool.run(judge=_Unpicklable())


def test_a_worker_with_another_judge_is_not_believed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    write_call(bench.calls, "c")
    real = map_local

    def other(refs: Any, **kwargs: Any) -> Any:
        return real(refs, **kwargs | {"judge": FakeJudge(version="elsewhere")})

    monkeypatch.setattr(run_module, "map_local", other)
    assert bench.run().failed == 1
    assert "it was judged by elsewhere" in bench.rows()["c"].judge_error


# -- rows -----------------------------------------------------------------------------------------------
def test_rows_are_the_same_each_time_but_for_when(pool: Bench, tmp_path: Path) -> None:
    for n in range(8):
        write_call(pool.calls, f"c{n}" if n else "raises")
    pool.run(workers=2)
    other = open_warehouse(f"sqlite:///{tmp_path}/other.db", create=True)
    pool.now += timedelta(days=1)
    pool.run(workers=1, warehouse=other)
    first, second = pool.rows(), {r.row.call_sid: r for r in other.recent(NO_ID, NO_ID, 100)}
    same = {"row": {"computed_at": NOON}}
    for rows in (first, second):
        for sid, found in rows.items():
            rows[sid] = found.model_copy(update={"row": found.row.model_copy(update=same["row"])})
    assert first == second
    other.close()


def test_times_of_a_run_are_all_different_in_the_order_of_judging(bench: Bench) -> None:
    for n in range(4):
        write_call(bench.calls, f"c{n}")
    bench.run()
    times = [r.computed_at for r in bench.rows().values()]
    assert len(set(times)) == 4
    assert list(bench.rows()) == ["c3", "c2", "c1", "c0"]


def test_progress_ends_where_it_should(bench: Bench) -> None:
    for n in range(3):
        write_call(bench.calls, f"c{n}")
    told: list[tuple[int, int]] = []
    bench.run(progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (3, 3)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


class _Refusing:
    """A warehouse that cannot just now."""

    def __init__(self, real: Any, times: int) -> None:
        self.real, self.times = real, times

    def put(self, rows: Any) -> None:
        self.times -= 1
        if self.times >= 0:
            raise WarehouseUnavailable("not just now")
        self.real.put(rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def test_patience_with_a_warehouse_that_comes_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(run_module.time, "sleep", waited.append)
    write_call(bench.calls, "c")
    assert bench.run(warehouse=_Refusing(bench.warehouse, 2)).scored == 1
    assert waited == [1, 2]
    assert list(bench.rows()) == ["c"]


def test_a_warehouse_that_does_not_come_back_ends_the_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module.time, "sleep", lambda s: None)
    write_call(bench.calls, "c")
    with pytest.raises(WarehouseUnavailable):
        bench.run(warehouse=_Refusing(bench.warehouse, 99))
    assert bench.run().scored == 1


# -- interrupts and kills --------------------------------------------------------------------------------
def test_an_interrupt_keeps_what_was_judged(pool: Bench) -> None:
    for n in range(6):
        write_call(pool.calls, f"c{n}")

    def stop(done: int, total: int) -> None:
        if sum(pool.judged().values()) >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pool.run(progress=stop)
    kept = len(pool.rows())
    assert 1 <= kept < 6
    assert pool.run().scored == 6 - kept


RUN = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from jdoubles import FakeJudge, fake_judge_call
from voicetrace.judge.batch import BatchOptions, run_batch, run
from voicetrace.judge.registry import open_registry
from voicetrace.judge.warehouse import open_warehouse
if __name__ == "__main__":
    run._ROWS = 3
    house, registry = open_warehouse({url!r}, create=True), open_registry({url!r}, create=True)
    report = run_batch({calls!r}, house, registry, judge=FakeJudge(log={log!r}), judge_call=fake_judge_call,
                       options=BatchOptions(workers=2))
    print(report.scored)
"""


def test_killed_at_any_point_every_call_is_scored_once(bench: Bench, tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="a warehouse of Parquet files needs voicetrace[judge]")
    count = 24
    for n in range(count):
        write_call(bench.calls, f"c{n:02}")
    url = str(tmp_path / "house")
    script = tmp_path / "run.py"
    tests = str(Path(__file__).parent)
    script.write_text(RUN.format(tests=tests, url=url, calls=str(bench.calls), log=str(bench.log)))
    rng = random.Random(7)
    for _ in range(3):
        run = subprocess.Popen([sys.executable, script], start_new_session=True)
        wanted = sum(bench.judged().values()) + rng.randrange(1, 9)
        while run.poll() is None and sum(bench.judged().values()) < wanted:
            pass
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    assert subprocess.run([sys.executable, script], check=True, capture_output=True).returncode == 0
    duckdb = pytest.importorskip("duckdb")
    stored = duckdb.sql(f"SELECT call_sid FROM read_parquet('{url}/**/*.parquet')").fetchall()
    assert sorted(sid for (sid,) in stored) == [f"c{n:02}" for n in range(count)]


def test_workers_do_not_outlive_a_killed_run(bench: Bench, tmp_path: Path) -> None:
    write_call(bench.calls, "hangs")
    script = tmp_path / "run.py"
    tests = str(Path(__file__).parent)
    script.write_text(RUN.format(tests=tests, url=bench.url, calls=str(bench.calls), log=str(bench.log)))
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE) as run:
        while not bench.judged():
            assert run.poll() is None
        run.kill()
        assert run.stdout is not None
        assert run.stdout.read() == b""  # ends when the last process that could write has ended


# -- events on the trace ---------------------------------------------------------------------------------
def test_scores_go_to_the_calls_trace_as_standard_events(bench: Bench) -> None:
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor

    from voicetrace.judge.batch import EvaluationEvents

    write_call(bench.calls, "c", workspace=WORKSPACE, service=SERVICE)
    exporter = InMemoryLogRecordExporter()
    provider = LoggerProvider()
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    bench.run(events=EvaluationEvents(logger_provider=provider))
    records = [found.log_record for found in exporter.get_finished_logs()]
    assert {record.event_name for record in records} == {"gen_ai.evaluation.result"}
    names = [dict(record.attributes or {})["gen_ai.evaluation.name"] for record in records]
    assert names == [*(d.value for d in Dimension), "overall"]
    [call] = read_calls(bench.calls)
    assert {(f"{r.trace_id:032x}", f"{r.span_id:016x}") for r in records} == {(call.trace_id, call.span_id)}
    row = bench.rows(WORKSPACE, SERVICE)["c"].row
    first, last, overall = (
        dict(records[0].attributes or {}),
        dict(records[9].attributes or {}),
        records[10].attributes,
    )
    assert first == {
        "voice.call_id": "c",
        "gen_ai.conversation.id": "room-c",
        "voice.workspace_id": WORKSPACE,
        "voice.service_id": SERVICE,
        "gen_ai.evaluation.name": "latency_dead_air",
        "gen_ai.evaluation.score.value": row.latency_dead_air_score,
        "gen_ai.evaluation.score.label": first["gen_ai.evaluation.score.label"],
        "gen_ai.evaluation.explanation": "r0",
    }
    assert "gen_ai.evaluation.score.value" not in last
    assert last["gen_ai.evaluation.explanation"] == "no_events: nothing to hear"
    assert dict(overall or {})["gen_ai.evaluation.score.value"] == row.overall_score
    bench.run(events=EvaluationEvents(logger_provider=provider))
    assert len(exporter.get_finished_logs()) == 11  # once


def test_scores_as_spans_for_backends_of_traces_only(bench: Bench) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from voicetrace.judge.batch import EvaluationEvents

    write_call(bench.calls, "c")
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    bench.run(events=EvaluationEvents(tracer_provider=provider))
    spans = exporter.get_finished_spans()
    [call] = read_calls(bench.calls)
    assert len(spans) == 11
    assert {(s.name, f"{s.context.trace_id:032x}") for s in spans} == {
        ("gen_ai.evaluation.result", call.trace_id)
    }
    assert all(s.start_time == s.end_time for s in spans)


# -- the real judge --------------------------------------------------------------------------------------
def test_a_reference_travels(tmp_path: Path) -> None:
    import pickle

    [place] = find_calls(write_call(tmp_path, "c"))
    reader = Reader()
    [ref] = reader.read(place)
    reader.close()
    assert pickle.loads(pickle.dumps(ref)) == ref
    assert isinstance(ref, CallRef)
    assert len(ref.digest) == 64
