# SPDX-License-Identifier: Apache-2.0
"""How long `recent` takes over a million rows, with several readers while a batch writes.

    python benchmarks/judge_recent.py [--rows 1000000] [--readers 4] [--seconds 30] [--warehouse DIR] [--http]

The rows are of 200 services of one workspace (a few large, most small) over three months, each with a
judge_json of its own of about 2 kB. Readers are processes that ask for the last 20 or 100 of a service drawn
by size, after asking each once; the writer puts 64 rows four times a second, and compacts now and then.
"cold" readers forget all rows they have read before each request. With --http the readers are clients of one
server. The bar is p95 <= 100 ms, except for the cold; CPU time is printed too, for machines that are shared.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

from voicetrace.judge.registry import open_registry
from voicetrace.judge.result import JudgeRow
from voicetrace.judge.warehouse import StoredRow, open_warehouse
from voicetrace.judge.warehouse.base import COLUMNS, COUNTS, NUMBERS
from voicetrace.judge.warehouse.parquet import PART_ROWS

WORKSPACE = str(UUID(int=1))
SERVICES = [str(UUID(int=1000 + n)) for n in range(200)]
# ten dimensions, each with a reason and a piece of evidence: about 2 kB, different in every row
JUDGE_JSON = (
    """'{"schema":"voicetrace.judge/1","dimensions":{' || """
    + " || ',' || ".join(
        f"""'"dimension_{k}":{{"score":0.' || (n * {k + 7}) % 1000 || ',"severity":"None","priority":"P1",'
        || '"reason":"' || (n * {k + 3}) % 997 || ' ms at the longest","evidence":[{{"message_id":"item_'
        || md5(n || '{k}')[:12] || '","start_ms":' || (n * 31) % 60000 || ',"end_ms":' || (n * 37) % 60000
        || ',"metric":"response_gap_s","value":' || (n % 77) / 10 || ',"threshold":1.2}}]}}'"""
        for k in range(10)
    )
    + " || '}}'"
)
WEIGHTS = [1 / (n + 1) for n in range(200)]
BAR_MS = 100.0


def fill(root: str, rows: int) -> None:
    """Parts as a year of batches and compactions leaves them, made in SQL."""
    from voicetrace.judge.warehouse.blobs import LocalBlobs
    from voicetrace.judge.warehouse.parquet import ParquetWarehouse, _copy

    blobs = LocalBlobs(Path(root))
    house = ParquetWarehouse(blobs, create=True)
    registry = open_registry(root, create=True)
    registry.register([(WORKSPACE, s) for s in SERVICES])
    rng = random.Random(1)
    end = datetime.now(UTC) - timedelta(minutes=10)
    start = end - timedelta(days=90)
    done = 0
    while done < rows:
        count = min(PART_ROWS, rows - done)
        first = start + (end - start) * done / rows
        last = start + (end - start) * (done + count) / rows
        service = rng.choices(SERVICES, WEIGHTS, k=count)
        columns = {
            "workspace_id": f"'{WORKSPACE}'",
            "service_id": "service",
            "call_sid": f"'CA' || md5('{done}-' || n)",
            "call_entity_id": "'room-' || n",
            "judge_version": "'1.0.0'",
            "trace_digest": "sha256(n::VARCHAR)",
            "source": "'/calls/' || n",
            "judge_error": "''",
            "judge_json": JUDGE_JSON,
            "computed_at": f"TIMESTAMP '{first:%Y-%m-%d %H:%M:%S}' + "
            f"to_microseconds((n * {int((last - first).total_seconds() * 1e6 / count)})::BIGINT)",
            "started_at": "NULL::TIMESTAMP",
        }
        columns |= dict.fromkeys(NUMBERS, "round(random(), 3)") | dict.fromkeys(COUNTS, "1::INTEGER")
        made = ", ".join(f"{columns[name]} AS {name}" for name in COLUMNS)
        with blobs.staged() as staged, house._cursor() as db:
            db.execute(
                "CREATE TEMP TABLE s AS SELECT unnest(?) AS service, unnest(range(?)) AS n", [service, count]
            )
            # a month a part, as the batch writes them
            months = {first.strftime("%Y-%m"), last.strftime("%Y-%m")}
            for month in sorted(months):
                where = f"SELECT {made} FROM s WHERE strftime(computed_at, '%Y-%m') = '{month}'"
                db.execute(_copy(where, staged))
                if db.execute(f"SELECT count(*) FROM read_parquet('{staged}')").fetchone() != (0,):
                    blobs.put(f"workspace_id={WORKSPACE}/month={month}/part-{done:08}.parquet", staged)
                    Path(staged).touch()
        done += count
    house.close()


def new_row(n: int) -> StoredRow:
    scores = dict.fromkeys(NUMBERS, 0.5)
    service = random.choices(SERVICES, WEIGHTS)[0]
    return StoredRow(
        workspace_id=WORKSPACE,
        service_id=service,
        judge_version="1.0.0",
        trace_digest="d",
        row=JudgeRow(
            call_sid=f"new-{n}",
            service_id=service,
            judge_json="x" * 1500,
            computed_at=datetime.now(UTC),
            critical_count=0,
            flag_count=0,
            warning_count=1,
            **scores,
        ),
    )


def write(root: str, stop, written) -> None:
    house = open_warehouse(root)
    n = 0
    while not stop.is_set():
        house.put([new_row(n + k) for k in range(64)])
        n += 64
        if n % (64 * 40) == 0:
            house.compact()
        written.value = n
        stop.wait(0.25)
    house.close()


def read(root: str, seed: int, cold: bool, stop, out, ready) -> None:
    house = open_warehouse(root)
    rng = random.Random(seed)
    times = []
    for service in SERVICES if not cold else ():
        house.recent(WORKSPACE, service, 100)
    ready.put(seed)
    cpu = time.process_time()
    while not stop.is_set():
        service = rng.choices(SERVICES, WEIGHTS)[0]
        limit = rng.choice((20, 20, 20, 100))
        if cold:
            house._heads.clear()
            house._heads_bytes = 0
        began = time.perf_counter()
        found = house.recent(WORKSPACE, service, limit)
        times.append((time.perf_counter() - began) * 1000)
        assert 0 < len(found) <= limit
        assert [r.computed_at for r in found] == sorted((r.computed_at for r in found), reverse=True)
    out.put((times, time.process_time() - cpu))
    house.close()


def ask(where: str, seed: int, cold: bool, stop, out, ready) -> None:
    import http.client

    rng = random.Random(seed)
    connection = http.client.HTTPConnection(where)
    times = []
    for service in SERVICES if seed == 0 else ():
        connection.request("GET", f"/v1/{WORKSPACE}/services/{service}/voice-judge/recent?limit=100")
        connection.getresponse().read()
    ready.put(seed)
    while not stop.is_set():
        service = rng.choices(SERVICES, WEIGHTS)[0]
        began = time.perf_counter()
        connection.request("GET", f"/v1/{WORKSPACE}/services/{service}/voice-judge/recent?limit=20")
        answer = connection.getresponse()
        body = answer.read()
        times.append((time.perf_counter() - began) * 1000)
        assert answer.status == 200
        assert json.loads(body)["count"] > 0
    out.put((times, 0.0))


def measure(root: str, readers: int, seconds: float, *, cold: bool, where: str = "") -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    stop, out, ready, written = context.Event(), context.Queue(), context.Queue(), context.Value("q", 0)
    target, first = (ask, where) if where else (read, root)
    arguments = [(first, seed, cold, stop, out, ready) for seed in range(readers)]
    processes = [context.Process(target=target, args=some) for some in arguments]
    processes.append(context.Process(target=write, args=(root, stop, written)))
    for process in processes:
        process.start()
    for _ in range(readers):
        ready.get()
    time.sleep(seconds)
    stop.set()
    answers = [out.get(timeout=60) for _ in range(readers)]
    times = [t for some, _ in answers for t in some]
    for process in processes:
        process.join()
    times.sort()
    return {
        "requests": len(times),
        "written_meanwhile": written.value,
        "cpu_ms_each": round(sum(cpu for _, cpu in answers) / len(times) * 1000, 2),
        "p50_ms": round(statistics.median(times), 2),
        "p95_ms": round(times[int(len(times) * 0.95)], 2),
        "p99_ms": round(times[int(len(times) * 0.99)], 2),
        "max_ms": round(times[-1], 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--readers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--warehouse", help="a directory to fill, or one that was filled before")
    parser.add_argument("--http", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = options.warehouse or f"{temporary}/house"
        if not Path(root).exists():
            began = time.perf_counter()
            fill(root, options.rows)
            print(f"filled {root} in {time.perf_counter() - began:.0f} s", file=sys.stderr)
        files = list(Path(root).rglob("*.parquet"))
        size = sum(f.stat().st_size for f in files)
        results = {
            "rows": options.rows,
            "megabytes": round(size / 1e6),
            "parts": len(files),
            "readers": options.readers,
        }
        for name, cold in (("warm", False), ("cold", True)):
            results[name] = measure(root, options.readers, options.seconds, cold=cold)
        if options.http:
            program = "from voicetrace.cli import main; main()"
            command = [sys.executable, "-c", program, "judge", "serve", "--warehouse", root, "--port", "0"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
                where = server.stdout.readline().split(" at http://")[1].split(",")[0]
                results["http"] = measure(root, options.readers, options.seconds, cold=False, where=where)
                server.terminate()
    print(json.dumps(results, indent=2))
    worst = max(results[name]["p95_ms"] for name in ("warm", "http") if name in results)
    print(f"p95 {worst} ms, bar {BAR_MS:.0f} ms: {'met' if worst <= BAR_MS else 'missed'}", file=sys.stderr)
    return 0 if worst <= BAR_MS else 1


if __name__ == "__main__":
    sys.exit(main())
