# SPDX-License-Identifier: Apache-2.0
"""The Ray engine gives the rows of the local one, also for calls that kill their process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jdoubles import write_call

pytest.importorskip("ray", reason="the Ray engine needs voicetrace[ray]")

# in a process of its own: Ray leaves threads, sockets and warnings behind
PROGRAM = """
import json
from jdoubles import FakeJudge, NOON, fake_judge_call
from voicetrace.judge.batch import NO_ID, BatchOptions, run_batch
from voicetrace.judge.registry import open_registry
from voicetrace.judge.warehouse import open_warehouse

def rows(engine):
    url = "sqlite:///{root}/" + engine + ".db"
    house, registry = open_warehouse(url, create=True), open_registry(url, create=True)
    report = run_batch({calls!r}, house, registry, judge=FakeJudge(), judge_call=fake_judge_call,
                       options=BatchOptions(engine=engine, workers=1), clock=lambda: NOON)
    found = {{r.row.call_sid: r for r in house.recent(NO_ID, NO_ID, 100)}}
    house.close()
    same = {{sid: r.model_copy(update={{"row": r.row.model_copy(update={{"computed_at": NOON}})}})
            for sid, r in found.items()}}
    return report, {{sid: same[sid].model_dump(mode="json") for sid in sorted(same)}}

if __name__ == "__main__":
    local, first = rows("local")
    ray, second = rows("ray")
    print(json.dumps({{"same": first == second, "calls": sorted(first),
                       "counts": [[r.scored, r.failed] for r in (local, ray)],
                       "dies": second["dies"]["judge_error"]}}))
"""


@pytest.mark.timeout(300)
def test_ray_and_local_give_the_same_rows(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    for name in ("a", "b", "c", "dies", "raises"):
        write_call(calls, name)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(root=tmp_path, calls=str(calls)))
    # Ray's own processes must find the judge as well
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [sys.executable, program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "same": True,
        "calls": ["a", "b", "c", "dies", "raises"],
        "counts": [[5, 2], [5, 2]],
        "dies": "the worker process died while judging it (SIGKILL)",
    }
