# SPDX-License-Identifier: Apache-2.0
"""Make the calls, measure them, write the report: one page and one picture for each set."""

from __future__ import annotations

import argparse
from pathlib import Path

from voicetrace.judge.rubric import load

from . import report, run, speed

parser = argparse.ArgumentParser(prog="python -m benchmarks.judge_bench", description=__doc__)
parser.add_argument("--out", type=Path, default=Path("build/judge-bench"))
parser.add_argument(
    "--set", choices=[*run.SETS, "both"], default="test", help="thresholds were chosen on calibration"
)
parser.add_argument("--seeds", type=int, default=5)
parser.add_argument("--clean", type=int, default=30, help="how many clean calls")
parser.add_argument("--weights", type=Path, help="a folder of weights, as `prepare` makes it")
parser.add_argument("--rubric", default="default")
parser.add_argument("--part", default="0/1", help="measure only every n-th call, i/n, and write no report")
parser.add_argument("--no-speed", action="store_true")
options = parser.parse_args()
cache = options.out / "cache"
cache.mkdir(parents=True, exist_ok=True)
first, step = map(int, options.part.split("/"))
for name in run.SETS if options.set == "both" else [options.set]:
    items = run.plan(name, options.seeds, options.clean)
    run.measure(items[first::step], options.out, cache, options.weights)
    if step > 1:
        continue
    numbers = report.numbers_of(name, items, options.out, load(options.rubric))
    fast = [] if options.no_speed else speed.measure(name, cache, options.out / "long")
    page = options.out / f"{name}.md"
    page.write_text(report.markdown(numbers, fast), "utf-8")
    report.plot(numbers, options.out / f"{name}.png")
    print(page.read_text("utf-8").split("## Detection")[0])
    print(f"the report is {page}, its picture {page.with_suffix('.png')}")
