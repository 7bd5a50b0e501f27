# SPDX-License-Identifier: Apache-2.0
"""`voicetrace judge`: what it prints and writes, how it exits, and that bad input is one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from jdoubles import NOON, OTHER, SERVICE, WORKSPACE, FakeJudge, fake_judge_call, row, write_call
from typer.testing import CliRunner, Result

from voicetrace.cli import app
from voicetrace.cli import judge as judge_command
from voicetrace.cli.common import Failure
from voicetrace.cli.judge import parse_since
from voicetrace.judge.warehouse import open_warehouse

NIL = "00000000-0000-0000-0000-000000000000"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("OTEL_", "VOICETRACE_", "COLUMNS")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("VOICETRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    judge = FakeJudge(log=str(tmp_path / "log"))
    monkeypatch.setattr(judge_command, "_judge", lambda: (judge, fake_judge_call))


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("VOICETRACE_JUDGE_WAREHOUSE", "sqlite:///house.db")
    return "sqlite:///house.db"


def run(*args: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["judge", *map(str, args)], prog_name="voicetrace")
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def refused(*args: str | Path, code: int) -> str:
    result = run(*args, code=code)
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output
    return result.stderr.removeprefix("voicetrace: ").rstrip("\n")


def test_run_then_run_again_then_show(url: str) -> None:
    for name in ("a", "b"):
        write_call(Path("calls"), name)
    out = run("run", "calls", "--workers", "1").stdout
    assert out == (f"scored 2; in {url}\nworkspace {NIL}, service {NIL} (calls that named none)\n")
    assert run("run", "calls").stdout == f"scored 0, 2 scored before; in {url}\n"
    shown = run("show", "a").stdout
    assert shown.startswith("call a: 0.")
    assert "P0  latency_dead_air" in shown
    assert "no evidence: no_events nothing to hear" in shown
    assert "latency_dead_air: m at 0.00-0.50 s: x 1.5 (threshold 2.0)" in shown
    document = json.loads(run("show", "a", "--json").stdout)
    assert document["call_sid"] == "a"
    assert document["judge_json"]["schema"] == "voicetrace.judge/1"
    assert document["computed_at"].endswith("Z")


def test_the_default_is_a_directory_beside_oneself() -> None:
    pytest.importorskip("duckdb", reason="a warehouse of Parquet files needs voicetrace[judge]")
    write_call(Path("calls"), "a")
    run("run", "calls", "--workers", "1")
    assert list(Path("voicetrace-judge").rglob("*.parquet"))
    assert run("compact").stdout == "replaced 0 files of voicetrace-judge\n"


def test_show_judges_a_call_on_disk_and_keeps_nothing(url: str) -> None:
    folder = write_call(Path("calls"), "a")
    assert run("show", folder).stdout.startswith("call a: 0.")
    assert not Path("house.db").exists()
    write_call(Path("calls"), "b")
    assert refused("show", "calls", code=1) == "calls holds 2 calls: name one"
    bad = write_call(Path("bad"), "raises")
    assert "not judged: ValueError: the audio of this call is no audio" in run("show", bad, code=1).stdout


def test_owners_and_json(url: str) -> None:
    write_call(Path("calls"), "a", workspace=WORKSPACE, service=SERVICE)
    write_call(Path("calls"), "b")
    write_call(Path("calls"), "raises")
    options = ("--workspace", OTHER.upper(), "--service", OTHER, "--workers", "1", "--json")
    report = json.loads(run("run", "calls", *options, code=1).stdout)
    assert (report["scored"], report["failed"], report["known"]) == (3, 1, 0)
    assert report["failures"] == ["call raises: ValueError: the audio of this call is no audio"]
    assert report["services"] == [
        {"workspace_id": WORKSPACE, "service_id": SERVICE},
        {"workspace_id": OTHER, "service_id": OTHER},
    ]


def test_a_bad_call_is_told_and_the_exit_code_says_so(url: str) -> None:
    write_call(Path("calls"), "raises\x1b[31m")
    write_call(Path("calls"), "z", workspace="acme")
    out = run("run", "calls", "--workers", "1", code=1).stdout
    assert out.splitlines()[:3] == [
        "call raises\\x1b[31m: ValueError: the audio of this call is no audio",
        "call z has workspace_id 'acme', which is no UUID",
        f"scored 1, 1 of them could not be judged, 1 left out; in {url}",
    ]
    assert run("run", "calls", "--retry-errors", "--workers", "1", code=1).stdout.count("scored 1") == 1


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["run", "none"], 1, "there is nothing at none"),
        (["run", ".", "--workspace", "acme"], 2, "--workspace must be a UUID, not 'acme'"),
        (["run", ".", "--since", "yesterday"], 2, "--since takes 24h, 7d, 2026-05-15"),
        (["run", ".", "--since", "0h"], 2, "--since takes"),
        (["run", ".", "--since", "9999999w"], 2, "--since takes"),
        (["run", ".", "--workers", "0"], 2, "--workers"),
        (["run", ".", "--limit", "-1"], 2, "--limit"),
        (["run", ".", "--engine", "spark"], 2, "--engine"),
        (["run", ".", "--otlp"], 2, "--otlp needs OTEL_EXPORTER_OTLP_ENDPOINT set"),
        (["run", ".", "--warehouse", "mysql://u:secret@h/d"], 1, "mysql://u:…@h/d names no warehouse"),
        (["run"], 2, "Missing argument 'DIR'"),
        (["serve", "--host", "0.0.0.0"], 1, "without tokens only this machine is served"),
        (["serve", "--tokens", "none.json"], 2, "the tokens none.json cannot be read"),
        (["serve", "--port", "99999"], 2, "--port"),
        (["show", "none"], 1, "none is no call on disk, and there is no warehouse"),
        (["compact"], 1, "there is no warehouse at"),
    ],
)
def test_bad_input_is_one_line(url: str, args: list[str], code: int, words: str) -> None:
    assert words in refused(*args, code=code)
    assert "secret" not in run(*args, code=code).output


def test_a_call_that_was_not_judged(url: str) -> None:
    open_warehouse(url, create=True).close()
    assert refused("show", "none", code=1) == "none is no call on disk, and none that was judged"


def test_without_a_subcommand_the_help() -> None:
    assert "run" in run(code=2).stdout
    for name in ("run", "serve", "show", "compact"):
        assert "Example: voicetrace judge" in run(name, "--help").stdout


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("24h", NOON - timedelta(hours=24)),
        ("7d", NOON - timedelta(days=7)),
        ("90s", NOON - timedelta(seconds=90)),
        ("2026-05-01", datetime(2026, 5, 1, tzinfo=UTC)),
        ("2026-05-01T02:00:00+02:00", datetime(2026, 5, 1, tzinfo=UTC)),
        ("2026-05-01T00:00:00Z", datetime(2026, 5, 1, tzinfo=UTC)),
    ],
)
def test_since(text: str, moment: datetime) -> None:
    assert parse_since(text, NOON) == moment


@pytest.mark.parametrize("text", ["", "h", "1.5h", "-1h", "2026-13-01", "٣h", "24 h", "24H"])
def test_since_that_is_none(text: str) -> None:
    with pytest.raises(Failure, match="--since takes"):
        parse_since(text, NOON)


def test_a_listing_of_scores_is_never_obeyed(url: str) -> None:
    house = open_warehouse(url, create=True)
    evidence = [{"metric": "m\x07", "value": "v", "quote": "\u202eevil"}]
    clarity = {
        "score": 0.1,
        "severity": "Critical",
        "priority": "P0",
        "reason": "\x1b[2J",
        "evidence": evidence,
    }
    said = {"dimensions": {"clarity": clarity}}
    house.put([row("c", judge_json=json.dumps(said))])
    house.close()
    out = run("show", "c").stdout
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "\x07" not in out


def test_a_service_managers_stop_keeps_what_was_judged(url: str, tmp_path: Path) -> None:
    for n in range(3):
        write_call(Path("calls"), f"c{n}")
    write_call(Path("calls"), "hangs")
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from jdoubles import FakeJudge, fake_judge_call
from voicetrace.cli import judge, main
judge._judge = lambda: (FakeJudge(log="log"), fake_judge_call)
sys.argv = ["voicetrace", "judge", "run", "calls", "--workers", "1"]
if __name__ == "__main__":
    main()
"""
    )
    with subprocess.Popen([sys.executable, program], stderr=subprocess.PIPE, text=True) as process:
        log = Path("log")
        while not log.exists() or "hangs" not in log.read_text():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert process.stderr.read() == "voicetrace: interrupted\n"
        assert process.wait() == 130
    house = open_warehouse(url)
    assert [r.row.call_sid for r in house.recent(NIL, NIL, 10)] == ["c2", "c1", "c0"]
    house.close()


def test_scores_are_sent_over_otlp(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(
        "opentelemetry.exporter.otlp.proto.http", reason="sending by OTLP needs voicetrace[otlp]"
    )
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    bodies: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            import gzip

            data = self.rfile.read(int(self.headers["Content-Length"]))
            bodies.append(
                (self.path, gzip.decompress(data) if self.headers["Content-Encoding"] == "gzip" else data)
            )
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    try:
        write_call(Path("calls"), "a")
        run("run", "calls", "--otlp", "--workers", "1")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    [(path, body)] = bodies
    assert path == "/v1/logs"
    assert body.count(b"gen_ai.evaluation.result") == 11
