# SPDX-License-Identifier: Apache-2.0
"""64 LiveKit sessions at once in one process: no cross-talk, our longest stall of the loop, memory after.

    python benchmarks/sessions.py [--sessions N] [--seconds S] [--realtime] [--plain] [--json]

The real `AgentSession` around the tests' doubles, in real time. Each call is said and answered in words of
its own. Every callback of ours, and every export, is timed on the loop's thread, by its CPU time: on a busy
machine the wall time is somebody else's too. A pass of the garbage collector over the whole process's heap
comes to whoever allocates next, so it is counted apart, as LiveKit's own loop monitor does; that monitor runs
too, and its reports are searched for frames of ours.

The same is done without voicetrace in a process of its own (`--plain`), for what is not ours: the collector's
passes, and memory. A first batch of the same size warms up what a process keeps for good (allocator arenas,
lazy imports); memory is compared after it and at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import functools
import gc
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "livekit")]

MAX_STALL_MS, MAX_GROWTH = 10.0, 0.10

import lk_script  # noqa: E402
from lk_doubles import Reply, Said  # noqa: E402
from lk_realtime import Answer, FakeRealtimeModel, Heard, Message, hears  # noqa: E402
from lk_script import FrameworkLog, Script, play, run_scripts  # noqa: E402

from livekit.agents.telemetry.loop_monitor import BlockedReport, EventLoopMonitor  # noqa: E402  isort: skip
from livekit.agents.types import NOT_GIVEN  # noqa: E402  isort: skip

from voicetrace.guard import Guard  # noqa: E402
from voicetrace.integrations.livekit import VoiceSpanProcessor  # noqa: E402
from voicetrace.live import LiveCall  # noqa: E402
from voicetrace.otel.hold import LinkingExporter  # noqa: E402
from voicetrace.writer import Writer  # noqa: E402


class Stalls:
    """How long each call of ours kept the event loop, by its name, and the collector's passes, in ms."""

    def __init__(self) -> None:
        self.longest: dict[str, float] = {}
        self.passes: list[float] = []
        self._thread = threading.get_ident()
        self._collecting_since = self._collected = 0.0
        gc.callbacks.append(self._on_gc)

    def _on_gc(self, phase: str, _: dict[str, Any]) -> None:
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._collecting_since = time.thread_time()
        else:
            took = time.thread_time() - self._collecting_since
            self._collected += took
            self.passes.append(took * 1000)

    def timed(self, name: str, function: Any) -> Any:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            began, collected = time.thread_time(), self._collected
            try:
                return function(*args, **kwargs)
            finally:
                took = time.thread_time() - began - (self._collected - collected)
                self.longest[name] = max(self.longest.get(name, 0.0), took * 1000)

        return run

    def watch_ours(self) -> None:
        """Every hook of ours, and what else of ours runs on the loop."""
        wrap = Guard.wrap
        Guard.wrap = lambda guard, name, function: self.timed(name, wrap(guard, name, function))  # type: ignore[method-assign, assignment]
        for kind, name in (
            (VoiceSpanProcessor, "on_start"),
            (VoiceSpanProcessor, "on_end"),
            (LinkingExporter, "export"),
            (LiveCall, "_on_deadline"),
        ):
            setattr(kind, name, self.timed(f"{kind.__name__}.{name}", getattr(kind, name)))


class NoLog(FrameworkLog):
    """The tests compare everything the framework did; here that would cost more than what is measured."""

    def listen(self, stage: Any) -> None:
        """Nothing."""

    def settle(self, stage: Any) -> None:
        """Nothing."""


def cascaded(number: int, turns: int) -> Script:
    said = [Said(1 + n * 10, 2 + n * 10, f"question {number} {n}") for n in range(turns)]
    replies = {s.text or "": Reply(f"answer to {s.text} and some more words") for s in said}
    return Script(said=said, replies=replies, mic=True, until=turns * 10)


def realtime(number: int, turns: int) -> Script:
    def session(stage: Any) -> Any:
        return stage.session.current_agent.realtime_llm_session

    at: list[Any] = []
    for n in range(turns):
        text = f"question {number} {n}"
        answer = Answer([Message(f"msg_{number}_{n}", f"answer to {text} and some more words")])
        at += hears(Heard(1 + n * 10, 2 + n * 10, f"item_{number}_{n}", text, answer), session)
    none = {"stt": NOT_GIVEN, "tts": NOT_GIVEN, "vad": NOT_GIVEN}
    return Script(
        at=at,
        mic=True,
        until=turns * 10,
        options={"llm": FakeRealtimeModel(), **none},
        turn={"turn_detection": "realtime_llm"},
    )


def batch(
    make: Any, sessions: int, turns: int, *, instrument: bool = True
) -> tuple[list[list[str]], list[str], list[BlockedReport]]:
    """Run the sessions together; gives each call's texts, what was logged, and what the monitor reported."""
    blocked: list[BlockedReport] = []

    async def together(log: FrameworkLog) -> list[Any]:
        del log
        monitor = EventLoopMonitor(asyncio.get_running_loop(), emit_spans=False)
        monitor._on_report = blocked.append  # its place for observers
        monitor.start()
        try:
            return list(
                await asyncio.gather(*(play(make(n, turns), FrameworkLog()) for n in range(sessions)))
            )
        finally:
            monitor.stop()

    with tempfile.TemporaryDirectory() as directory:
        outcome = run_scripts(
            together, Path(directory), configure={"audio": "both"}, writer=Writer(), instrument=instrument
        )
        return [[m.text or "" for m in call.messages] for call in outcome.calls], outcome.warnings, blocked


def names_us(report: BlockedReport) -> bool:
    """Whether the loop was blocked, the collector aside, while code of ours ran."""
    ours = any("/voicetrace/" in stack.rsplit("File ", 1)[-1] for stack in report.stacks)
    return (
        ours and report.duration - report.gc_time >= report.warn_threshold and not report.process_descheduled
    )


def strangers(told: list[list[str]]) -> int:
    """How many messages stand in a call that is not theirs: every text says whose it is."""
    owners = [{w.split()[0] for t in texts for w in t.split("question ")[1:]} for texts in told]
    seen = [o for group in owners for o in group]
    return sum(len(group) - 1 for group in owners if group) + len(seen) - len(set(seen))


def resident_mb() -> float:
    """What the process holds once it has given back what it can."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS in /proc/self/status")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Two batches in this process; what the second one cost."""
    turns, make = max(1, options.seconds // 10), realtime if options.realtime else cascaded
    stalls = Stalls()
    if not options.plain:
        stalls.watch_ours()
    lk_script.run_virtually = lambda main: asyncio.run(main())
    cold = resident_mb()
    batch(make, options.sessions, turns, instrument=not options.plain)
    first = max(stalls.longest.values(), default=0.0)
    before = resident_mb()
    stalls.longest.clear()
    stalls.passes.clear()
    began, cpu = time.perf_counter(), time.process_time()
    told, warnings, blocked = batch(make, options.sessions, turns, instrument=not options.plain)
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    after = resident_mb()
    name, longest = max(stalls.longest.items(), key=lambda pair: pair[1], default=("", 0.0))
    return {
        "sessions": options.sessions,
        "seconds_each": turns * 10,
        "kind": "realtime" if options.realtime else "cascaded",
        "took_s": round(took, 1),
        "cpu_s": round(cpu, 1),
        "calls": len(told),
        "messages": sum(map(len, told)),
        "messages_wanted": options.sessions * turns * 2,
        "cross_talk": strangers(told),
        "warnings": warnings[:3],
        "longest_stall_ms": round(longest, 2),
        "longest_stall_in": name,
        "longest_stall_cold_ms": round(first, 2),
        "monitor_reports": len(blocked),
        "monitor_names_us": sum(map(names_us, blocked)),
        "longest_gc_ms": round(max(stalls.passes, default=0.0), 1),
        "memory_cold_mb": round(cold, 1),
        "memory_before_mb": round(before, 1),
        "memory_after_mb": round(after, 1),
        "memory_growth": round(after / before - 1, 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--realtime", action="store_true")
    parser.add_argument("--plain", action="store_true", help="without voicetrace")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report = measure(options)
    ok = True
    if not options.plain:
        again = [sys.executable, __file__, *sys.argv[1:], "--plain", "--json"]
        plain = json.loads(subprocess.run(again, check=True, capture_output=True, text=True).stdout)
        for key in ("cpu_s", "monitor_reports", "longest_gc_ms", "memory_before_mb", "memory_after_mb"):
            report[f"plain_{key}"] = plain[key]
        ok = not report["cross_talk"] and not report["warnings"] and not report["monitor_names_us"]
        ok = ok and max(report["longest_stall_ms"], report["longest_stall_cold_ms"]) < MAX_STALL_MS
        ok = ok and report["memory_growth"] < MAX_GROWTH
    if options.json:
        print(json.dumps({"ok": ok, **report}))
    else:
        for key, value in report.items():
            print(f"{key:22} {value}")
        print("passed" if ok else "FAILED")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
