# SPDX-License-Identifier: Apache-2.0
"""How fast one core judges a ten-minute call, and how much memory it takes: processor seconds, one thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from . import generate, run

MINUTES = 10


def long_call(which, cache, folder, minutes=MINUTES):
    """The set's scripts one after the other, until the call is long enough."""
    kit = run.SETS[which]
    whole, at = None, 0
    length = 0.0
    while length < minutes * 60:
        part = generate.scene(
            kit["scripts"][at % len(kit["scripts"])], kit["agents"][0], kit["callers"][0], at, cache, "long"
        )
        if whole is None:
            whole = part
        else:
            part.lines[0].gap = 1.0
            whole.lines += part.lines
        length = sum(line.audio.size / generate.RATE + max(0, line.gap) for line in whole.lines)
        at += 1
    return generate.render(whole, folder)


def worker(which, cache, folder, providers):
    """Runs in a process of its own, so that the memory is this call's."""
    import resource
    import time

    from voicetrace.judge.features import extract
    from voicetrace.judge.providers import NAMES, Providers

    names = NAMES if providers == "all" else tuple(n for n in NAMES if not n.startswith("asr"))
    call = long_call(which, cache, folder)
    have = Providers(enabled=frozenset(names))
    for name in names:
        getattr(have, name)
    if have.text_language is not None:
        have.text_language("The models of languages are read when they are first asked, once in a process.")
    before = time.process_time()
    extract(call, have)
    spent = time.process_time() - before
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"rtf": spent / (call.duration_ms / 1000), "mb": rss, "s": call.duration_ms / 1000}))


def measure(which, cache, folder):
    """Rows for the report."""
    rows = []
    for providers, bar, label in (
        ("signal", "0.05", "without recognition"),
        ("all", "0.07", "with recognition"),
    ):
        given = (which, str(cache), str(folder), providers)
        code = f"from benchmarks.judge_bench import speed; speed.worker(*{given!r})"
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, **one},
            cwd=Path(__file__).parents[2],
        )
        said = json.loads(done.stdout.splitlines()[-1])
        rows.append(
            (
                f"processor seconds per second of a {said['s']:.0f} s call, {label}",
                f"<= {bar}",
                f"{said['rtf']:.3f}",
            )
        )
        rows.append((f"memory, {label}", "<= 1 GB", f"{said['mb']:.0f} MB"))
    return rows
