# SPDX-License-Identifier: Apache-2.0
"""The command line: what it prints, how it exits, and that bad input is one line, never a traceback."""

from __future__ import annotations

import importlib
import io
import json
import os
import subprocess
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import voicetrace
from voicetrace import events as ev
from voicetrace import settings
from voicetrace.cli import app, doctor
from voicetrace.cli.common import clean
from voicetrace.journal import FILE_NAME
from voicetrace.messages import TextSource
from voicetrace.otel.otlp_json import write_trace
from voicetrace.testing import ScriptedCall, scripted_call

RUN, AGENT = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))
COMMANDS = ("demo", "inspect", "view", "bundle", "validate", "recover", "doctor")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in list(os.environ):
        if name.startswith(("OTEL_", "VOICETRACE_", "LIVEKIT_", "PIPECAT_", "COLUMNS")):
            monkeypatch.delenv(name)
    settings.reset()
    yield
    settings.reset()


def run(*args: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(a) for a in args], prog_name="voicetrace")
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def refused(*args: str | Path, code: int) -> str:
    """The command fails with one line on stderr and nothing on stdout; that line."""
    result = run(*args, code=code)
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("voicetrace: ")
    assert "Traceback" not in result.output
    return result.stderr.removeprefix("voicetrace: ").rstrip("\n")


def conversation(directory: Path | None) -> ScriptedCall:
    script = scripted_call(directory)
    script.agent("Hello, this is Northwind.", 200, 1800, say=True)
    script.user("Which hotels are near?", 2400, 4000)
    script.agent("There are three hotels.", 5000, 6000, heard="There are")
    script.noise(7000, 7300)
    script.finish(11_000)
    return script


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    directory = tmp_path / "calls"
    conversation(directory)
    return directory


@pytest.fixture
def journal(calls: Path) -> Path:
    [path] = calls.glob(f"*/{FILE_NAME}")
    return path


# -- the program -------------------------------------------------------------------------------------
def test_version() -> None:
    assert run("--version").stdout == f"voicetrace {voicetrace.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str) -> None:
    for flag in ("--help", "-h"):
        assert f"Example: voicetrace {command}" in " ".join(run(command, flag).stdout.split())


def test_without_a_command_the_help_is_shown_and_it_is_a_usage_error() -> None:
    result = run(code=2)
    assert result.stderr == ""
    for command in COMMANDS:
        assert f"\n  {command} " in result.stdout


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["bogus"], "No such command 'bogus'; see voicetrace --help"),
        (["--bogus"], "No such option: --bogus; see voicetrace --help"),
        (["inspect"], "Missing argument 'SOURCE'; see voicetrace inspect --help"),
        (["demo"], "Missing option '--out'; see voicetrace demo --help"),
        (["inspect", "a", "b"], None),
        (["demo", "--out", "x", "--framework", "vocode"], None),
        (["demo", "--out", "x", "--recording-format", "mp3"], None),
    ],
)
def test_wrong_usage_is_one_line(args: list[str], sentence: str | None) -> None:
    said = refused(*args, code=2)
    assert sentence is None or said == sentence
    assert said.endswith(" --help")


def test_a_framework_without_a_demo_says_which_have_one() -> None:
    said = refused("demo", "--out", "x", "--framework", "vocode", code=2)
    assert "'livekit'" in said
    assert "'pipecat'" in said


# -- sources that are none ---------------------------------------------------------------------------
@pytest.mark.parametrize("command", ["inspect", "validate", "recover"])
def test_a_missing_path(command: str, tmp_path: Path) -> None:
    assert str(tmp_path / "nothing") in refused(command, tmp_path / "nothing", code=1)


@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe\x80" * 500, b"{}", b"hello", b"[[[[" * 5000])
def test_a_file_that_is_no_source(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    assert str(path) in refused("inspect", path, code=1)
    assert str(path) in refused(*bundle_args(path, tmp_path / "b"), code=1)
    assert run("validate", path, code=1).stdout
    assert not (tmp_path / "b").exists()


def test_an_empty_directory(tmp_path: Path) -> None:
    refused("inspect", tmp_path, code=1)
    assert run("recover", tmp_path).stdout == f"there is no journal under {tmp_path}\n"


def test_a_trace_without_a_call(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"resourceSpans": []}')
    assert "without a call" in refused("inspect", path, code=1)
    assert run("validate", path, code=1).stdout == f"{path} has no call in it\n"


# -- inspect -----------------------------------------------------------------------------------------
def test_inspect_shows_messages_links_and_warnings(calls: Path) -> None:
    out = run("inspect", calls).stdout
    rows = {line.split()[0]: line for line in out.splitlines() if line[:3].strip().isdigit()}
    assert "0.20-1.80" in rows["0"]
    assert "step 1" in next(line for line in out.splitlines() if "There are [cut, not heard: three" in line)
    assert "user *" in rows["3"]
    assert "* never entered the conversation" in out
    assert "message 2" in out.split("step  span")[1]
    assert "no warnings" in out
    assert "\x1b" not in out
    assert all(line == line.rstrip() for line in out.splitlines())


def test_inspect_json_has_everything(calls: Path, journal: Path) -> None:
    [call] = json.loads(run("inspect", calls, "--json").stdout)["calls"]
    [step] = call["llm_steps"]
    assert [m["seq"] for m in call["messages"]] == [0, 1, 2, 3]
    assert [m["made_by"] for m in call["messages"]] == [None, None, step["span_id"], None]
    assert [m["read_by"] for m in call["messages"]] == [[step["span_id"]], [step["span_id"]], [], []]
    assert call["recording"]["sample_rate_hz"] == 24_000
    assert (call["warnings"], call["ended"], call["source"]) == ([], True, str(journal))


def test_inspect_shows_warnings_and_is_done(tmp_path: Path) -> None:
    script = scripted_call(tmp_path)
    script.user("Hello?", 100, 900)
    script.fault("caller audio from 300 ms was lost", 1000)
    script.finish()
    out = run("inspect", tmp_path).stdout
    assert "warnings (1):\n  - caller audio from 300 ms was lost\n" in out
    [call] = json.loads(run("inspect", tmp_path, "--json").stdout)["calls"]
    assert call["warnings"] == ["caller audio from 300 ms was lost"]


def test_inspect_reads_a_trace(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.json", conversation(None).spans())
    out = run("inspect", path).stdout
    assert "There are [cut, not heard: three hotels.]" in out
    assert "no recording" in out


def test_inspect_several_calls(calls: Path) -> None:
    conversation(calls)
    assert len(json.loads(run("inspect", calls, "--json").stdout)["calls"]) == 2
    assert run("inspect", calls).stdout.count("\ncall ") == 1


def test_what_a_call_says_is_never_obeyed(tmp_path: Path) -> None:
    """Rich markup, terminal escapes, control characters, line breaks and text direction stay text."""
    script = scripted_call(tmp_path)
    script.user("[red]hi[/red] [/] :smile: \x1b[31mred\x1b[0m \x07\r\n\u202eback \x9b2J", 100, 900)
    script.finish()
    result = run("inspect", tmp_path)
    out = " ".join(result.stdout.split())
    assert "[red]hi[/red] [/] :smile: \\x1b[31mred\\x1b[0m \\x07\\r\\n\\u202eback \\x9b2J" in out
    assert not {"\x1b", "\x07", "\r", "\u202e", "\x9b"} & set(result.stdout)
    assert run("inspect", tmp_path, "--json").stdout.isascii()


def test_clean_keeps_what_people_write() -> None:
    text = "Ça va? 東京 “ok” 👩‍🚀 שלום"
    assert clean(text) == text
    assert clean("a\ud800b") == "a\\ud800b"


@pytest.mark.parametrize("columns", ["", "wide", "0", "-3"])
def test_a_width_that_is_none(columns: str, calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert "Hello, this is Northwind." in run("inspect", calls).stdout


def test_a_narrow_terminal(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = run("inspect", calls).stdout
    table = out.split("\n\n")[1]
    assert max(map(len, table.splitlines())) <= 40


# -- bundle ------------------------------------------------------------------------------------------
def bundle_args(source: Path, out: Path) -> list[str | Path]:
    return ["bundle", source, "--out", out, "--run-id", RUN, "--run-agent-id", AGENT]


def test_bundle_writes_what_validates(calls: Path, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    written = run(*bundle_args(calls, out)).stdout
    listed = {line.removeprefix("wrote ") for line in written.splitlines()}
    assert listed == {str(p) for p in out.rglob("*") if p.is_file()}
    assert run("validate", out).stdout == f"{out} is a valid bundle\n"
    again = json.loads(run(*bundle_args(calls, out), "--json").stdout)
    assert {again["manifest"], *again["artifacts"]} == listed


def test_bundle_takes_a_structured_output(calls: Path, tmp_path: Path) -> None:
    output = tmp_path / "output.json"
    output.write_text('{"booked": true}')
    out = tmp_path / "bundle"
    extra = ["--structured-output", output, "--schema-ref", "booking.v1", "--language", "en-US"]
    run(*bundle_args(calls, out), *extra)
    written = json.loads((out / "artifacts" / "structured_output.json").read_text())
    assert (written["schema_ref"], written["output"]["booked"]) == ("booking.v1", True)
    assert json.loads((out / "artifacts" / "transcript.json").read_text())["turns"][0]["language"] == "en-US"


@pytest.mark.parametrize("content", [None, "[1]", "{", "\udcff"])
def test_a_structured_output_that_is_none(content: str | None, calls: Path, tmp_path: Path) -> None:
    path = tmp_path / "output.json"
    if content is not None:
        path.write_bytes(content.encode("utf-8", "surrogateescape"))
    said = refused(*bundle_args(calls, tmp_path / "b"), "--structured-output", path, code=1)
    assert said.startswith(f"--structured-output {path} ")


@pytest.mark.parametrize("option", ["--run-id", "--run-agent-id"])
@pytest.mark.parametrize("value", ["x", "", str(uuid.UUID(int=0))])
def test_a_bad_uuid(option: str, value: str, calls: Path, tmp_path: Path) -> None:
    args = bundle_args(calls, tmp_path / "b")
    args[args.index(option) + 1] = value
    assert option in refused(*args, code=2)
    assert not (tmp_path / "b").exists()


def test_several_calls_need_a_choice(calls: Path, tmp_path: Path) -> None:
    second = conversation(calls).live.call_id
    assert second in refused(*bundle_args(calls, tmp_path / "b"), code=2)
    assert second in refused(*bundle_args(calls, tmp_path / "b"), "--call", "other", code=2)
    run(*bundle_args(calls, tmp_path / "b"), "--call", second)
    manifest = json.loads((tmp_path / "b" / "voice_artifact_manifest.json").read_text())
    assert manifest["voice_session_id"] == second


def test_a_call_without_audio_makes_no_bundle(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.json", conversation(None).spans())
    assert 'audio="both"' in refused(*bundle_args(path, tmp_path / "b"), code=1)


def test_a_bundle_goes_into_no_full_directory_and_no_file(calls: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    assert "not empty" in refused(*bundle_args(calls, tmp_path / "full"), code=1)
    assert "no directory" in refused(*bundle_args(calls, tmp_path / "full" / "mine.txt"), code=1)
    refused(*bundle_args(calls, tmp_path / "full" / "mine.txt" / "b"), code=1)
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["mine.txt"]


# -- validate ----------------------------------------------------------------------------------------
def test_validate_what_is_whole(calls: Path, journal: Path, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace.json", conversation(None).spans())
    run(*bundle_args(calls, tmp_path / "b"))
    report = tmp_path / "b" / "artifacts" / "live_continuity_report.json"
    for path, kind in (
        (calls, "directory of calls"),
        (journal, "journal"),
        (trace, "trace"),
        (tmp_path / "b", "bundle"),
        (tmp_path / "b" / "voice_artifact_manifest.json", "manifest or report"),
        (report, "manifest or report"),
    ):
        assert run("validate", path).stdout == f"{path} is a valid {kind}\n"
        document = json.loads(run("validate", path, "--json").stdout)
        assert (document["kind"], document["valid"], document["problems"]) == (kind, True, [])


def test_validate_a_changed_bundle(calls: Path, tmp_path: Path) -> None:
    run(*bundle_args(calls, tmp_path / "b"))
    with (tmp_path / "b" / "artifacts" / "caller.wav").open("ab") as file:
        file.write(b"x")
    lines = run("validate", tmp_path / "b", code=1).stdout.splitlines()
    assert len(lines) == 2
    assert all("caller.wav" in line for line in lines)
    assert json.loads(run("validate", tmp_path / "b", "--json", code=1).stdout)["problems"] == lines


def test_validate_a_journal_with_problems(journal: Path) -> None:
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join([*lines[:2], "garbage\n", *lines[2:]]))
    [line] = run("validate", journal, code=1).stdout.splitlines()
    assert f"{journal}:3" in line

    journal.write_text("".join(lines[:-3]) + lines[-3][:20])
    said = run("validate", journal, code=1).stdout
    assert "in the middle of a line" in said
    assert "voicetrace recover" in said
    assert run("validate", journal.parent, code=1).stdout  # the same by way of its directory


def test_validate_a_trace_that_breaks_the_contract(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.json", conversation(None).spans())
    text = path.read_text().replace('\\"interrupted_at_ms\\":6000,', "")
    path.write_text(text)
    lines = run("validate", path, code=1).stdout.splitlines()
    assert lines
    assert all("interrupted without interrupted_at_ms" in line for line in lines)


def test_what_a_call_noted_itself_is_no_problem_of_the_file(tmp_path: Path) -> None:
    script = scripted_call(tmp_path)
    script.agent("Hello.", 100, 900)
    script.fault("caller audio from 300 ms was lost", 1000)
    script.finish()
    run("validate", tmp_path)
    run("validate", write_trace(tmp_path / "trace.json", script.spans()))


# -- recover -----------------------------------------------------------------------------------------
def died(journal: Path) -> None:
    """As a killed process leaves a call: no end, a torn line, no map."""
    lines = journal.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if b'"CallEnded"' not in line and b'"RecordingFinished"' not in line]
    journal.write_bytes(b"".join(kept) + b'{"event":"UserTr')
    (journal.parent / "messages.json").unlink()


def test_recover_finishes_a_dead_call(calls: Path, journal: Path) -> None:
    died(journal)
    out = run("recover", calls).stdout
    for name in (FILE_NAME, "recording.wav", "messages.json", "trace.json"):
        assert f"  wrote {journal.parent / name}\n" in out
    assert out.endswith("1 recovered, 0 finished already, 0 running, 0 skipped\n")
    assert run("recover", calls).stdout == "0 recovered, 1 finished already, 0 running, 0 skipped\n"
    run("validate", journal.parent / "trace.json")


def test_recover_says_what_it_skipped_and_keeps_it(calls: Path, journal: Path) -> None:
    other = calls / "other" / FILE_NAME
    other.parent.mkdir()
    other.write_text('{"voicetrace_journal": 99}\n')
    result = run("recover", calls, code=1)
    assert f"skipped, and kept: {other}: " in result.stdout
    assert other.read_text() == '{"voicetrace_journal": 99}\n'
    document = json.loads(run("recover", calls, "--json", code=1).stdout)
    assert [s["path"] for s in document["skipped"]] == [str(other)]
    assert document["finished"] == [str(journal)]


def test_recover_leaves_a_running_call_alone(tmp_path: Path) -> None:
    script = scripted_call(tmp_path)
    script.agent("Hello.", 100, 900)
    out = run("recover", tmp_path).stdout
    assert out.startswith(f"running, left alone: {tmp_path / script.live.call_id / FILE_NAME}\n")
    script.finish()


def test_recover_to_otlp_needs_an_endpoint(calls: Path) -> None:
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in refused("recover", calls, "--otlp", code=2)


def test_recover_sends_the_spans_of_a_dead_call(
    calls: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    bodies: list[bytes] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    died(journal)
    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        try:
            run("recover", calls, "--otlp")
        finally:
            server.shutdown()
            thread.join()
    assert len(bodies) == 1
    assert b"voice.messages" in bodies[0]


# -- doctor ------------------------------------------------------------------------------------------
def test_doctor_says_what_is_kept_and_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOICETRACE_DIR", str(tmp_path / "new" / "calls"))
    report = json.loads(run("doctor", "--json").stdout)
    assert (report["ok"], report["lost"]) == (True, [])
    assert report["facts"]["versions"]["voicetrace"] == voicetrace.__version__
    assert report["facts"]["extras"]["livekit"] == "installed"
    assert set(report["facts"]["extras"]) >= {"livekit", "otlp", "judge"}
    for framework in ("livekit", "pipecat"):
        facts = report["facts"][framework]
        assert ", tested (" in facts["version"]
        assert {v for k, v in facts.items() if k.startswith("hook ")} == {"active"}
    assert report["facts"]["kept"]["directory"] == str(tmp_path / "new" / "calls")
    assert "writable" in report["facts"]["kept"]["disk"]
    assert not (tmp_path / "new").exists()
    out = run("doctor").stdout
    assert "nothing is lost against your will" in out
    assert "audio is not recorded" in out


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("OTEL_SDK_DISABLED", "true", "no span leaves"),
        ("OTEL_TRACES_SAMPLER", "always_off", "not sampled"),
        ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "4096", "voice.messages"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "16", "oldest attributes"),
        ("VOICETRACE_DIR", __file__, "no directory"),
    ],
)
def test_doctor_finds_what_takes_something_away(
    name: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    report = json.loads(run("doctor", "--json", code=1).stdout)
    [line] = report["lost"]
    assert says in line


def test_doctor_hides_the_password_of_an_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:secret@127.0.0.1:4318")
    out = run("doctor").stdout
    assert "OTLP to http://...@127.0.0.1:4318" in out
    assert "secret" not in out


def test_doctor_finds_a_hook_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    from livekit.agents.voice import agent_activity

    monkeypatch.setattr(agent_activity, "perform_llm_inference", lambda node: None)
    report = json.loads(run("doctor", "--json", code=1).stdout)
    [line] = report["lost"]
    assert line.endswith("a reply cut before its first sound has no text")


@pytest.mark.parametrize(
    ("owner", "name", "loss"),
    [
        ("pipeline.worker:PipelineWorker", "run", "PipecatInstrumentor follows no pipeline"),
        ("pipeline.worker:PipelineWorker", "pipeline", "no call is captured"),
        ("services.tts_service:TTSService", "add_word_timestamps", "no text is aligned"),
        ("utils.tracing.tracing_context:TracingContext", "get_conversation_context", "a span of ours beside"),
    ],
)
def test_doctor_finds_a_hook_of_pipecat_that_is_gone(
    owner: str, name: str, loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _, cls = owner.partition(":")
    monkeypatch.setattr(getattr(importlib.import_module(f"pipecat.{module}"), cls), name, None)
    report = json.loads(run("doctor", "--json", code=1).stdout)
    [line] = report["lost"]
    assert line.startswith("Pipecat hook ")
    assert loss in line


def test_doctor_finds_events_of_pipecat_that_came_to_be_late(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipecat.utils.base_object import BaseObject

    register = BaseObject._register_event_handler

    def late(self: BaseObject, event_name: str, sync: bool = False) -> None:
        if event_name != "on_tts_request":
            register(self, event_name)

    monkeypatch.setattr(BaseObject, "_register_event_handler", late)
    lost = json.loads(run("doctor", "--json", code=1).stdout)["lost"]
    assert [line.split()[2] for line in lost] == [
        "on_before_push_frame",
        "on_before_process_frame",
        "on_after_process_frame",
        "on_tts_request",
    ]


@pytest.mark.parametrize("framework", ["livekit", "pipecat"])
def test_doctor_needs_one_framework_only(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = doctor._installed

    def without(*names: str) -> None:
        monkeypatch.setattr(doctor, "_installed", lambda name: None if name in names else installed(name))

    both = {"livekit": "livekit-agents", "pipecat": "pipecat-ai"}
    without(both[framework])
    report = json.loads(run("doctor", "--json").stdout)
    assert report["facts"][framework] == {"version": "not installed"}
    without(*both.values())
    [line] = json.loads(run("doctor", "--json", code=1).stdout)["lost"]
    assert line.startswith("no supported framework is installed here")


def test_doctor_says_that_content_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "false")
    assert any("texts are not kept" in n for n in json.loads(run("doctor", "--json").stdout)["notes"])


# -- demo, what needs no call ------------------------------------------------------------------------
def test_demo_refuses_a_directory_with_other_things(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for force in ([], ["--force"]):
        assert "not empty" in refused("demo", "--out", tmp_path, *force, code=2)
    assert "no directory" in refused("demo", "--out", tmp_path / "mine.txt", code=2)
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_demo_refuses_an_earlier_demo_unless_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from voicetrace.demo import run as demo_run

    (tmp_path / "calls" / "one").mkdir(parents=True)
    (tmp_path / "trace.json").write_text("{}")
    assert "--force" in refused("demo", "--out", tmp_path, code=2)
    assert (tmp_path / "trace.json").exists()

    def stuck(out: Path, **_: Any) -> None:
        assert list(out.iterdir()) == []
        raise demo_run.DemoError("the call got stuck")

    monkeypatch.setattr(demo_run, "run_demo", stuck)
    assert run("demo", "--out", tmp_path, "--force", code=1).stderr == "voicetrace: the call got stuck\n"


def test_an_interrupt_of_the_demo_is_130_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from voicetrace.demo import run as demo_run

    def interrupted(out: Path, **_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_run, "run_demo", interrupted)
    result = run("demo", "--out", tmp_path / "d", code=130)
    assert result.stderr == f"voicetrace: interrupted; what was captured until then is in {tmp_path / 'd'}\n"


def test_an_interrupt_elsewhere_is_130_and_one_line(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from voicetrace import reader

    def interrupted(source: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(reader, "read_calls", interrupted)
    assert refused("inspect", calls, code=130) == "interrupted"


def test_a_demo_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file" / "d") in refused("demo", "--out", tmp_path / "file" / "d", code=1)


# -- as a process ------------------------------------------------------------------------------------
def process(*args: str | Path, **kwargs: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "from voicetrace.cli import main; main()", *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kwargs)


def test_a_closed_pipe_is_no_traceback(calls: Path) -> None:
    for _ in range(20):
        conversation(calls)
    for args in (["inspect", calls], ["inspect", calls, "--json"], ["--help"]):
        reading, writing = os.pipe()
        os.close(reading)  # nobody reads
        command = [sys.executable, "-c", "from voicetrace.cli import main; main()", *map(str, args)]
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
        os.close(writing)
        assert done.stderr == b""
        assert done.returncode == 141


def test_no_color_and_a_terminal_without_unicode(tmp_path: Path) -> None:
    script = scripted_call(tmp_path)
    script.user("Zürich 東京", 100, 900)
    script.finish()
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONIOENCODING": "ascii"}
    out, err = process("inspect", tmp_path, env=environment).communicate()
    assert b"Z?rich ??" in out
    assert err == b""


def test_without_any_extra_the_commands_work_and_the_demo_names_its_extra(
    calls: Path, tmp_path: Path
) -> None:
    """As on a bare install: whatever an extra brings cannot be imported."""
    block = (
        "import sys\n"
        "for n in ('livekit', 'livekit.agents', 'pipecat', 'soxr', 'fastapi', 'onnxruntime', 'scipy',"
        " 'opentelemetry.exporter'): sys.modules[n] = None\n"
        "from voicetrace.cli import main; main()"
    )

    def bare(*args: str | Path) -> tuple[int, str, str]:
        command = [sys.executable, "-c", block, *map(str, args)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    assert bare("inspect", calls)[0] == 0
    assert bare("validate", calls)[0] == 0
    assert bare(*bundle_args(calls, tmp_path / "b"))[0] == 0
    assert bare("recover", calls)[0] == 0
    code, _, err = bare("demo", "--out", tmp_path / "d")
    assert (code, err.count("\n")) == (1, 1)
    assert "voicetrace[livekit]" in err
    code, out, err = bare("doctor")
    assert (code, err) == (1, "")
    assert "cannot be instrumented" in out or "no supported framework is installed" in out


def test_the_program_starts_without_loading_what_it_does_not_need() -> None:
    check = (
        "import sys; import voicetrace.cli; "
        "print([m for m in ('numpy', 'soundfile', 'livekit', 'opentelemetry.sdk.trace') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# -- while the demo runs -----------------------------------------------------------------------------
def test_lines_of_a_running_call_show_each_message_once(capsys: pytest.CaptureFixture[str]) -> None:
    from voicetrace.cli.demo import _Lines

    script = scripted_call()
    with _Lines() as screen:
        script.live.listeners.append(screen.on_change)
        script.agent("Hello, this is Northwind.", 200, 1800, say=True)
        assert "Hello, this is Northwind." in capsys.readouterr().out
        script.noise(3000, 3300)
        script.user("Which hotels are near?", 8000, 9000)
        script.agent("There are three hotels.", 10_000, 11_000, heard="There are")
        said = capsys.readouterr().out.splitlines()
        script.finish()
    assert [line.split()[0] for line in said] == ["2", "3"]
    assert said[1].endswith("There are [cut, not heard: three hotels.]")
    # what never entered the conversation is shown when the call is over
    assert [line.split()[:3] for line in capsys.readouterr().out.splitlines()] == [["1", "user", "*"]]
    assert script.live.guard.failures == {}


def test_the_moving_table_shows_open_messages_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from voicetrace.cli import demo

    screen_out = io.StringIO()
    size = {"width": 100, "height": 40}
    terminal = Console(file=screen_out, force_terminal=True, markup=False, color_system=None, **size)
    monkeypatch.setattr(demo, "console", lambda: terminal)
    script = scripted_call()
    with demo._Table() as screen:
        script.live.listeners.append(screen.on_change)
        screen.on_tick(0.0)
        script._emit(ev.SpeechCreated, 100, speech_id="speech_1", origin="say")
        script._emit(ev.SpeechText, 150, speech_id="speech_1", text="Hi.", source=TextSource.TTS_INPUT)
        script._emit(ev.PlayoutStarted, 200, speech_id="speech_1", start_ms=200)
        screen.on_tick(0.25)
        assert "open" in screen_out.getvalue()
        script.user("[bold]Hi[/bold]", 8000, 9000)
        screen.on_tick(9.0)
    script.finish()
    shown = screen_out.getvalue()
    assert "the call is going on: 9 s" in shown
    assert "[bold]Hi[/bold]" in shown
    assert script.live.guard.failures == {}


@pytest.mark.parametrize(("extra", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_gets_colour_unless_it_says_no(calls: Path, extra: dict[str, str], coloured: bool) -> None:
    pty = pytest.importorskip("pty")
    main, other = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
    command = [sys.executable, "-c", "from voicetrace.cli import main; main()", "inspect", str(calls)]
    done = subprocess.Popen(
        command, stdout=other, stderr=other, env={**environment, "TERM": "xterm", **extra}
    )
    os.close(other)
    shown = b""
    try:
        while block := os.read(main, 65536):
            shown += block
    except OSError:  # Linux says so when the other end is closed
        pass
    os.close(main)
    assert done.wait() == 0
    assert b"Northwind" in shown
    assert (b"\x1b[32m" in shown) == coloured
