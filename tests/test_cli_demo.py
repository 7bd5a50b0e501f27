# SPDX-License-Identifier: Apache-2.0
"""``voicetrace demo`` as people run it: a process, a real call in real time, and its record checked."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import voicetrace
from voicetrace.agentclash import validate_bundle
from voicetrace.journal import FILE_NAME, read_journal

PROGRAM = [sys.executable, "-c", "from voicetrace.cli import main; main()"]
# how late the voice activity detector is depends on how busy the machine is; all else must not
TIMED_BY_THE_MACHINE = {"user bounds, each", "user bounds, median"}


def environment() -> dict[str, str]:
    names = ("OTEL_", "VOICETRACE_", "LIVEKIT_", "COLUMNS")
    return {k: v for k, v in os.environ.items() if not k.startswith(names)}


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("framework", "package", "options", "bounds"),
    [
        ("livekit", "livekit.agents", [], 12),
        ("livekit", "livekit.agents", ["--realtime"], 14),
        ("pipecat", "pipecat", [], 12),
    ],
)
def test_the_demo_call_is_recorded_as_it_was(
    tmp_path: Path, framework: str, package: str, options: list[str], bounds: int
) -> None:
    if importlib.util.find_spec(package.partition(".")[0]) is None:
        pytest.skip(f"{package} is not installed")
    out = tmp_path / "demo"
    done = subprocess.run(
        [*PROGRAM, "demo", "--framework", framework, *options, "--out", str(out), "--check", "--json"],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert done.stdout, done.stderr
    document = json.loads(done.stdout)
    assert document["framework"] == framework
    bars = {bar["name"]: bar for bar in document["bars"]}
    assert len(bars) == 10
    missed = {name: bar["misses"] for name, bar in bars.items() if not bar["ok"]}
    assert missed.keys() <= TIMED_BY_THE_MACHINE, missed
    assert bars["user bounds, each"]["measured"].endswith(f"of {bounds}")
    assert document["passed"] == all(bar["ok"] for bar in bars.values())
    assert done.returncode == (0 if document["passed"] else 1)
    assert "Traceback" not in done.stderr

    assert {p.name for p in out.iterdir()} == {"trace.json", "calls", "bundle", "call.html"}
    assert all(Path(path).exists() for path in document["written"].values())
    [call] = voicetrace.read_calls(out / "trace.json")
    [same] = voicetrace.read_calls(out)
    assert call.call_id == same.call_id == document["call_id"]
    assert [m.seq for m in call.messages] == [m.seq for m in same.messages]
    assert validate_bundle(out / "bundle") == []

    again = subprocess.run(
        [*PROGRAM, "demo", "--out", str(out)], capture_output=True, text=True, env=environment(), check=False
    )
    assert (again.returncode, again.stdout) == (2, "")
    assert "--force" in again.stderr


@pytest.mark.timeout(120)
def test_an_interrupted_demo_keeps_what_was_said(tmp_path: Path) -> None:
    pytest.importorskip("livekit.agents")
    out = tmp_path / "demo"
    process = subprocess.Popen(
        [*PROGRAM, "demo", "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "the call is going on; about 50 s\n"
        assert "Northwind Travel" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        err = process.stderr.read()
    assert process.returncode == 130
    assert err.endswith(f"voicetrace: interrupted; what was captured until then is in {out}\n")
    assert "Traceback" not in err
    [path] = out.glob(f"calls/*/{FILE_NAME}")
    assert read_journal(path).ended
    [call] = voicetrace.read_calls(out)
    assert call.messages[0].text == "Hello, this is Northwind Travel. How can I help?"
