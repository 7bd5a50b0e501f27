# SPDX-License-Identifier: Apache-2.0
"""How true is the record? The demo call, run several times and compared with what truly happened.

python benchmarks/accuracy.py [RUNS] [--json]      (default 3 runs of about 50 s; needs the livekit extra)

Bounds are the signed errors in ms over all runs; a bar that one run misses is missed.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tempfile
from pathlib import Path

from voicetrace.cli.common import cell, say, show, table
from voicetrace.demo.check import Bar
from voicetrace.demo.run import run_demo


def main() -> int:
    numbers = [arg for arg in sys.argv[1:] if arg != "--json"]
    if len(numbers) > 1 or not all(n.isdecimal() and int(n) > 0 for n in numbers):
        sys.exit(__doc__)
    runs: list[list[Bar]] = []
    for number in range(int(numbers[0]) if numbers else 3):
        with tempfile.TemporaryDirectory() as directory:
            runs.append(run_demo(Path(directory)).check())
        print(
            f"run {number + 1}: {sum(bar.ok for bar in runs[-1])} of {len(runs[-1])} bars met",
            file=sys.stderr,
        )
    rows = [summary([run[i] for run in runs]) for i in range(len(runs[0]))]
    if "--json" in sys.argv:
        print(json.dumps({"machine": machine(), "runs": len(runs), "bars": rows}, indent=2))
    else:
        show_rows(rows, len(runs))
    return 0 if all(row["met"] == len(runs) for row in rows) else 1


def summary(bars: list[Bar]) -> dict[str, object]:
    """One bar over all runs: the spread of its single measurements, and what missed."""
    sizes = [abs(value) for bar in bars for value in bar.values]
    return {
        "name": bars[0].name,
        "wanted": bars[0].wanted,
        "median": round(statistics.median(sizes), 1) if sizes else None,
        "worst": round(max(sizes), 1) if sizes else None,
        "measurements": len(sizes),
        "met": sum(bar.ok for bar in bars),
        "each": [bar.measured for bar in bars],
        "misses": [miss for bar in bars for miss in bar.misses],
    }


def show_rows(rows: list[dict[str, object]], runs: int) -> None:
    say(f"{runs} runs on {machine()}")
    say()
    out = table("bar", "wanted", "median", "worst", "of", "met", "each run")
    for row in rows:
        shown = [row[name] for name in ("name", "wanted", "median", "worst", "measurements")]
        each = " | ".join(map(str, row["each"]))  # type: ignore[call-overload]
        out.add_row(*(cell(str(value)) for value in shown), cell(f"{row['met']}/{runs}"), cell(each))
    show(out)
    for row in rows:
        for miss in row["misses"]:  # type: ignore[attr-defined]
            say(f"  {row['name']}: {miss}")


def machine() -> str:
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores{load}"
    return f"{system}, Python {platform.python_version()}"


if __name__ == "__main__":
    sys.exit(main())
