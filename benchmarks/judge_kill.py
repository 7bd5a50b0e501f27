# SPDX-License-Identifier: Apache-2.0
"""A batch killed (SIGKILL) at random points and started again: is every call scored exactly once afterwards?

    python benchmarks/judge_kill.py [--kills 20] [--calls 120] [--seed 1]

The judge is a quick one that logs what it is asked; runs, workers, warehouse and its parts are the real ones.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "judge"))
CHILD = "--child"


def child(root: str) -> None:
    from jdoubles import FakeJudge, fake_judge_call

    from voicetrace.judge.batch import BatchOptions, run, run_batch
    from voicetrace.judge.registry import open_registry
    from voicetrace.judge.warehouse import open_warehouse

    run._ROWS = 4  # so that kills also meet writes
    house, registry = (
        open_warehouse(f"{root}/house", create=True),
        open_registry(f"{root}/house", create=True),
    )
    options = BatchOptions(workers=2, memory=Path(root) / "memory.sqlite")
    judge = FakeJudge(log=f"{root}/log")
    report = run_batch(
        f"{root}/calls", house, registry, judge=judge, judge_call=fake_judge_call, options=options
    )
    house.compact()
    print(json.dumps({"scored": report.scored, "known": report.known}))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--calls", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(CHILD, dest="child")
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return 0
    import duckdb
    from jdoubles import write_call

    rng = random.Random(options.seed)
    command = [sys.executable, __file__, CHILD]
    with tempfile.TemporaryDirectory() as root:
        for n in range(options.calls):
            write_call(Path(root) / "calls", f"c{n:04}")
        log = Path(root) / "log"
        kept = []
        for _ in range(options.kills):
            run = subprocess.Popen([*command, root], start_new_session=True, stdout=subprocess.PIPE)
            before = len(log.read_text().split()) if log.exists() else 0
            wanted = before + rng.randrange(0, 10)
            while run.poll() is None and (len(log.read_text().split()) if log.exists() else 0) < wanted:
                time.sleep(0.001)
            time.sleep(rng.random() * 0.05)
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
            run.communicate()
            parts = list(Path(root).glob("house/**/*.parquet"))
            kept.append(len(duckdb.read_parquet([str(p) for p in parts]).fetchall()) if parts else 0)
        last = json.loads(subprocess.run([*command, root], check=True, capture_output=True).stdout)
        again = json.loads(subprocess.run([*command, root], check=True, capture_output=True).stdout)
        sids = [
            s
            for (s,) in duckdb.sql(
                f"SELECT call_sid FROM read_parquet('{root}/house/**/*.parquet')"
            ).fetchall()
        ]
        asked = len(log.read_text().split())
    exactly_once = sorted(sids) == [f"c{n:04}" for n in range(options.calls)]
    print(
        json.dumps(
            {
                "kills": options.kills,
                "rows_after_each_kill": kept,
                "last_run": last,
                "run_after": again,
                "rows": len(sids),
                "calls": options.calls,
                "judged_in_all": asked,
                "every_call_exactly_once": exactly_once,
            }
        )
    )
    return 0 if exactly_once and again["scored"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
