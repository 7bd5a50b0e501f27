# SPDX-License-Identifier: Apache-2.0
"""64 LiveKit sessions at once in one process: no cross-talk, our longest stall of the loop, memory after.

    python benchmarks/sessions.py [--sessions N] [--seconds S] [--realtime] [--json]

The real `AgentSession` around the tests' doubles, in real time. Each call is said and answered in words of
its own; every callback of ours is timed. A stall is ours as far as our callback *computes*: the bar is on the
loop thread's CPU time. The wall time is reported beside it, for on a busy machine it is somebody else's too.
A first, short batch warms up everything that is kept for good; memory is compared after it and at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "livekit")]

WARM_UP_TURNS = 1
MAX_STALL_MS, MAX_GROWTH = 10.0, 0.10

import lk_script  # noqa: E402
from lk_doubles import Reply, Said  # noqa: E402
from lk_realtime import Answer, FakeRealtimeModel, Heard, Message, hears  # noqa: E402
from lk_script import FrameworkLog, Script, play, run_scripts  # noqa: E402

from livekit.agents.types import NOT_GIVEN  # noqa: E402  isort: skip

from voicetrace.guard import Guard  # noqa: E402
from voicetrace.integrations.livekit import VoiceSpanProcessor  # noqa: E402
from voicetrace.writer import Writer  # noqa: E402


class Stalls:
    """How long each call of ours kept the event loop, by its name."""

    def __init__(self) -> None:
        self.computed: dict[str, float] = {}
        self.passed: dict[str, float] = {}

    def timed(self, name: str, function: Any) -> Any:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            cpu, wall = time.thread_time(), time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                for longest, took in (
                    (self.computed, time.thread_time() - cpu),
                    (self.passed, time.perf_counter() - wall),
                ):
                    longest[name] = max(longest.get(name, 0.0), took * 1000)

        return run


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


def batch(make: Any, sessions: int, turns: int) -> tuple[list[list[str]], list[str]]:
    """Run the sessions together; gives each call's texts, and what was logged."""

    async def together(log: FrameworkLog) -> list[Any]:
        del log
        return list(await asyncio.gather(*(play(make(n, turns), FrameworkLog()) for n in range(sessions))))

    with tempfile.TemporaryDirectory() as directory:
        outcome = run_scripts(together, Path(directory), configure={"audio": "both"}, writer=Writer())
        return [[m.text or "" for m in call.messages] for call in outcome.calls], outcome.warnings


def strangers(told: list[list[str]]) -> int:
    """How many messages stand in a call that is not theirs: every text says whose it is."""
    owners = [{w.split()[0] for t in texts for w in t.split("question ")[1:]} for texts in told]
    seen = [o for group in owners for o in group]
    return sum(len(group) - 1 for group in owners if group) + len(seen) - len(set(seen))


def resident_mb() -> float:
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS in /proc/self/status")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--realtime", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    turns, make = max(1, options.seconds // 10), realtime if options.realtime else cascaded

    stalls, wrap = Stalls(), Guard.wrap
    Guard.wrap = lambda self, name, function: stalls.timed(name, wrap(self, name, function))  # type: ignore[method-assign, assignment]
    for name in ("on_start", "on_end"):
        setattr(VoiceSpanProcessor, name, stalls.timed(f"span {name}", getattr(VoiceSpanProcessor, name)))

    lk_script.run_virtually = lambda main: asyncio.run(main())
    batch(make, options.sessions, WARM_UP_TURNS)
    before = resident_mb()
    stalls.computed.clear()
    stalls.passed.clear()
    began = time.perf_counter()
    told, warnings = batch(make, options.sessions, turns)
    took, after = time.perf_counter() - began, resident_mb()

    name, longest = max(stalls.computed.items(), key=lambda pair: pair[1])
    report = {
        "sessions": options.sessions,
        "seconds_each": turns * 10,
        "kind": "realtime" if options.realtime else "cascaded",
        "took_s": round(took, 1),
        "calls": len(told),
        "messages": sum(map(len, told)),
        "messages_wanted": options.sessions * turns * 2,
        "cross_talk": strangers(told),
        "warnings": warnings[:3],
        "longest_stall_ms": round(longest, 2),
        "longest_stall_in": name,
        "longest_wall_ms": round(max(stalls.passed.values()), 2),
        "memory_before_mb": round(before, 1),
        "memory_after_mb": round(after, 1),
        "memory_growth": round(after / before - 1, 3),
    }
    ok = not report["cross_talk"] and not warnings and longest < MAX_STALL_MS
    ok = ok and after / before - 1 < MAX_GROWTH
    if options.json:
        print(json.dumps({"ok": ok, **report}))
    else:
        for key, value in report.items():
            print(f"{key:18} {value}")
        print("passed" if ok else "FAILED")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
