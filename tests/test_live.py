# SPDX-License-Identifier: Apache-2.0
"""A running call at the edges of its process: forks, exits and flushes while its files are being finished."""

from __future__ import annotations

import asyncio
import functools
import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import voicetrace
from voicetrace import events as ev
from voicetrace import live
from voicetrace.guard import MAX_FAILURES
from voicetrace.journal import journals_in, read_journal_call
from voicetrace.live import LiveCall
from voicetrace.messages import TextSource, TimingSource
from voicetrace.otel.encode import sdk_version
from voicetrace.otel.hold import LinkingExporter
from voicetrace.otel.links import StepLinks
from voicetrace.settings import Settings
from voicetrace.writer import WRITER

# `call()` starts a recorded call; `speak()` gives it a second of the caller
PRELUDE = """
import multiprocessing, os, sys
from pathlib import Path
import numpy as np
import voicetrace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from voicetrace import settings
from voicetrace.live import LiveCall
from voicetrace.otel.otlp_json import JsonFileExporter
from voicetrace.otel.setup import get_provider
from voicetrace.writer import WRITER

where = Path(sys.argv[1])
now = [1_700_000_000.0]
noise = np.random.default_rng(1)

def exporting():
    provider = TracerProvider()
    exporter = voicetrace.wrap_exporter(JsonFileExporter(where / "spans.jsonl"))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider

def call(provider):
    settings.configure(directory=where / "calls", audio="both", recording_format="flac")
    made = LiveCall(
        settings=settings.current(), framework="test", tracer_provider=provider, clock=lambda: now[0]
    )
    made.bind_span(provider.get_tracer("test").start_span("voicetrace.call"), own=True)
    made.files.start_recording(8000)
    return made

def speak(made):
    for _ in range(50):
        now[0] += 0.02
        pcm = noise.integers(-9000, 9000, 160, dtype=np.int16).tobytes()
        made.files.caller_audio(made.precise_ms(), pcm, 8000, 1)
"""


def run(code: str, where: Path, *arguments: str) -> None:
    script = where / "main.py"
    script.write_text(PRELUDE + code)
    subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(where), *arguments], check=True, timeout=60
    )


def recordings_on_spans(where: Path) -> list[dict[str, object]]:
    """``voice.recording`` of each exported call span, as it was exported."""
    found = []
    for line in (where / "spans.jsonl").read_text().splitlines():
        for resource in json.loads(line)["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    attributes = {a["key"]: a["value"] for a in span["attributes"]}
                    if "voice.recording" in attributes:
                        found.append(json.loads(attributes["voice.recording"]["stringValue"]))
    return found


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_that_ends_leaves_its_parents_call_as_it_is(tmp_path):
    run(
        """
provider = exporting()
made = call(provider)
speak(made)
assert WRITER.drain(10)
before = {p: p.read_bytes() for p in sorted(where.rglob("*")) if p.is_file()}
child = os.fork()
if child == 0:
    speak(made)
    made.fault("said in the child")
    made.close("ended in the child")
    assert WRITER.drain(10)
    sys.exit(0)  # with all that runs at an exit
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert {p: p.read_bytes() for p in sorted(where.rglob("*")) if p.is_file()} == before
speak(made)
made.close("ended in the parent")
""",
        tmp_path,
    )
    (journal,) = journals_in(tmp_path)
    found = read_journal_call(journal)
    assert (found.end_reason, found.duration_ms, found.warnings) == ("ended in the parent", 2000, ())
    assert found.recording is not None
    assert found.recording.duration_ms == 2000
    assert sorted(p.name for p in journal.parent.iterdir()) == [
        "journal.jsonl",
        "messages.json",
        "recording.flac",
        "recording.index.jsonl",
    ]


@pytest.mark.parametrize("how", ["", "provider.shutdown()", "provider.force_flush(); provider.shutdown()"])
def test_a_call_span_leaves_with_its_finished_recording_though_the_process_ends_at_once(tmp_path, how):
    run(f"provider = exporting()\nmade = call(provider)\nspeak(made)\nmade.close('done')\n{how}\n", tmp_path)
    (recording,) = recordings_on_spans(tmp_path)
    assert recording["uri"].endswith("/recording.flac")
    assert (recording["duration_ms"], len(recording["sha256"])) == (1000, 64)
    assert list((tmp_path / "calls").glob("*/messages.json"))


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
@pytest.mark.parametrize("whose", ["ours", "flushed by the user"])
def test_a_child_process_that_ends_with_its_call_loses_nothing(tmp_path, method, whose):
    run(
        """
def child(whose):
    if whose == "ours":
        provider, _ = get_provider(None, where)
    else:
        provider = exporting()
    made = call(provider)
    speak(made)
    made.close("done")
    if whose != "ours":
        provider.force_flush()

if __name__ == "__main__":
    process = multiprocessing.get_context(sys.argv[2]).Process(target=child, args=(sys.argv[3],))
    process.start()
    process.join()
    sys.exit(process.exitcode)
""",
        tmp_path,
        method,
        whose,
    )
    (recording,) = recordings_on_spans(tmp_path)
    assert (recording["format"], recording["duration_ms"]) == ("flac", 1000)
    (found,) = voicetrace.read_calls(tmp_path / "calls")
    assert (found.ended, found.end_reason) == (True, "done")


@pytest.mark.parametrize(("cost_s", "writes"), [(0.0, 10), (0.0025, 4)])
def test_the_call_span_is_rewritten_less_often_when_that_takes_longer(monkeypatch, cost_s, writes):
    now, took, written = [1_700_000_000.0], [0.0], []

    def counting(*args, **kwargs):
        took[0] += cost_s
        written.append(now[0])

    monkeypatch.setattr(live, "set_call_attributes", counting)
    monkeypatch.setattr(live.time, "perf_counter", lambda: took[0])
    made = LiveCall(settings=Settings(directory=None), framework="test", clock=lambda: now[0])
    made.bind_span(TracerProvider().get_tracer("test").start_span("call"), own=True)
    for n in range(10):
        made.emit(
            ev.UserMessageAdded(
                at_ms=made.now_ms(), item_id=f"item_{n}", text="yes", source=TextSource.TEXT_INPUT
            )
        )
        now[0] += 1
    assert len(written) == writes
    made.close("done")
    assert len(written) == writes + 1


@pytest.mark.skipif(sdk_version() < (1, 45), reason="older SDKs drop maps")
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_structured_map_costs_a_running_call_nothing(monkeypatch, wrapped):
    """The SDK copies it value by value; a wrapped exporter gets it on the writer thread."""
    monkeypatch.setattr(live, "LINKS", links := StepLinks())
    memory, provider = InMemorySpanExporter(), TracerProvider()
    exporter = LinkingExporter(memory, links=links) if wrapped else memory
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    span = provider.get_tracer("test").start_span("call")
    made = LiveCall(
        settings=Settings(directory=None, structured_messages=True),
        framework="test",
        tracer_provider=provider,
    )
    made.bind_span(span)

    def on_the_span():
        return span.attributes["voice.messages"]

    made.emit(ev.UserMessageAdded(at_ms=1, item_id="item", text="yes", source=TextSource.TEXT_INPUT))
    assert json.loads(on_the_span())["item"]["text"] == "yes"
    made.close("done")
    assert isinstance(on_the_span(), str) is wrapped
    span.end()
    assert WRITER.drain(10)
    provider.shutdown()
    (call,) = [s for s in memory.get_finished_spans() if s.name == "call"]
    assert call.attributes["voice.messages"]["item"]["text"] == "yes"


class ForeignLoop(asyncio.SelectorEventLoop):
    """A loop of another make: it has none of asyncio's private names (uvloop)."""

    @property
    def _thread_id(self) -> None:
        return None

    @_thread_id.setter
    def _thread_id(self, value: object) -> None:
        pass


@pytest.mark.parametrize("loop", [asyncio.SelectorEventLoop, ForeignLoop])
def test_speech_that_is_not_answered_settles_by_itself_on_any_loop(loop):
    async def main() -> list[bool]:
        made = LiveCall(settings=Settings(directory=None, uncommitted_timeout_ms=20), framework="test")
        settled = asyncio.Event()
        made.listeners.append(lambda change, recorder: settled.set() if change.settled else None)
        made.attach_loop(asyncio.get_running_loop())
        made.emit(ev.UserSpeechStarted(at_ms=0, start_ms=0, source=TimingSource.LOCAL_VAD))
        made.emit(ev.UserSpeechStopped(at_ms=1, end_ms=1, source=TimingSource.LOCAL_VAD))
        await asyncio.wait_for(settled.wait(), 20)
        return [m.committed for m in made.recorder.ordered()]

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(main()) == [False]


# -- what was said stays out ---------------------------------------------------------------------------
def leaky(text: str) -> str:
    raise ValueError(f"cannot redact {text!r}")


def no_text(text: str) -> list[str]:
    return [text]


@pytest.mark.parametrize(
    "chosen",
    [{"content": "none"}, {"redact": leaky}, {"redact": no_text}, {"redact": lambda text: text[:0]}],
    ids=["none", "redact raises", "redact gives no text", "redact"],
)
def test_no_error_that_quotes_what_was_said_brings_it_in(tmp_path, chosen, caplog):
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(voicetrace.wrap_exporter(memory)))
    made = LiveCall(
        settings=Settings(directory=tmp_path, **chosen), framework="test", tracer_provider=provider
    )
    made.bind_span(provider.get_tracer("test").start_span("voicetrace.call"), own=True)

    @functools.partial(made.guard.wrap, "hook")
    def hook() -> None:
        raise ValueError("no item for 'sesame'")

    def listener(change, recorder):
        raise ValueError(f"cannot show {change} of 'sesame'")

    made.listeners.append(listener)
    hook()
    made.emit(
        ev.UserMessageAdded(at_ms=1, item_id="item_1", text="open sesame", source=TextSource.TEXT_INPUT)
    )
    made.emit(ev.SpeechCreated(at_ms=2, speech_id="speech_1", origin="say"))
    made.emit(ev.SpeechText(at_ms=2, speech_id="speech_1", text="sesame it is", source=TextSource.TTS_INPUT))
    made.emit(
        ev.LLMStepStarted(
            at_ms=3,
            span_id="0" * 15 + "1",
            trace_id="0" * 31 + "1",
            name="llm_node",
            context_ids=(),
            speech_id="speech_1",
            answers=None,
        )
    )
    made.emit(ev.LLMStepEnded(at_ms=4, span_id="0" * 15 + "1", error="BadRequest: 'open sesame' is refused"))
    made.close("done")
    assert WRITER.drain(10)
    provider.shutdown()
    assert {"hook", "listener"} <= set(made.guard.failures)
    assert "voicetrace's hook failed: ValueError at test_live.py:" in caplog.text
    kept = [caplog.text, *(s.to_json() for s in memory.get_finished_spans())]
    kept += [p.read_text() for p in tmp_path.rglob("*") if p.is_file()]
    assert len(kept) > 4
    assert not [k for k in kept if "sesame" in k]


def test_a_redactor_that_keeps_failing_is_asked_every_time_and_lets_nothing_through(tmp_path, caplog):
    asked = []

    def fails_at_first(text: str) -> str:
        asked.append(text)
        if len(asked) <= 2 * MAX_FAILURES:
            raise ValueError(text)
        return "[redacted]"

    made = LiveCall(settings=Settings(directory=tmp_path, redact=fails_at_first), framework="test")
    for n in range(2 * MAX_FAILURES + 1):
        made.emit(ev.UserMessageAdded(at_ms=n, item_id=f"i{n}", text="secret", source=TextSource.TEXT_INPUT))
    made.close("done")
    assert WRITER.drain(10)
    (call,) = voicetrace.read_calls(tmp_path)
    assert [m.text for m in call.messages] == [None] * (2 * MAX_FAILURES) + ["[redacted]"]
    assert b"secret" not in b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    assert "secret" not in caplog.text
    assert " off " not in caplog.text
