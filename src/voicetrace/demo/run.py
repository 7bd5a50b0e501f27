# SPDX-License-Identifier: Apache-2.0
"""The demo call with voicetrace: instrumented, exported, read back, and bundled, all in one directory.

``DIR/trace.json`` (every span, as OTLP JSON), ``DIR/calls/<call id>/`` (journal, recording, full map), and
``DIR/bundle/``. Needs the ``livekit`` extra, and about 48 s, because the call is real time.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from voicetrace import semconv, settings
from voicetrace.agentclash import export_bundle, validate_bundle
from voicetrace.demo.check import Bar, check_call
from voicetrace.demo.script import Scenario, travel_call
from voicetrace.otel import wrap_exporter
from voicetrace.otel.otlp_json import write_trace
from voicetrace.reader import read_calls
from voicetrace.voice_call import VoiceCall

if TYPE_CHECKING:
    from voicetrace.demo.truth import GroundTruth
    from voicetrace.live import Listener, LiveCall
    from voicetrace.settings import RecordingFormat

TRACE_NAME: Final = "trace.json"
CALLS_NAME: Final = "calls"
BUNDLE_NAME: Final = "bundle"
OUTPUTS: Final = (TRACE_NAME, CALLS_NAME, BUNDLE_NAME)
_DISK_DEADLINE_S: Final = 30.0


class DemoError(Exception):
    """The demo call did not come to its end, or left no record; the sentence says what happened."""


@dataclass(frozen=True)
class Demo:
    """What a demo run left: the truth, the call as the spans and as the journal tell it, and the files."""

    truth: GroundTruth
    call: VoiceCall
    journal: VoiceCall
    trace_path: Path
    recording_path: Path
    journal_path: Path
    bundle_path: Path

    def check(self) -> list[Bar]:
        """Compare the record with the truth (`voicetrace.demo.check`)."""
        problems = validate_bundle(self.bundle_path)
        return check_call(self.truth, self.call, journal=self.journal, bundle_problems=problems)


def run_ids(call_id: str) -> tuple[uuid.UUID, uuid.UUID]:
    """The bundle's run id and run-agent id: made from the call's id, so always the same."""
    base = f"{semconv.SCHEMA_URL}#{call_id}"
    return uuid.uuid5(uuid.NAMESPACE_URL, f"{base}/run"), uuid.uuid5(uuid.NAMESPACE_URL, f"{base}/run-agent")


def clear_outputs(out: Path) -> None:
    """Remove an earlier demo's output, and nothing else.

    Raises:
        OSError: the disk refuses.
    """
    for name in OUTPUTS:
        path = out / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def run_demo(
    out: Path,
    *,
    scenario: Scenario | None = None,
    recording_format: RecordingFormat = "wav",
    listener: Listener | None = None,
    on_tick: Callable[[float], None] | None = None,
) -> Demo:
    """Run one demo call into the directory ``out``, in real time, and read it back.

    ``listener`` is told every change of the call's record, on the thread that made it; ``on_tick`` is called
    about four times a second with the seconds since the start. Takes over the process's `configure` and
    its LiveKit instrumentation while it runs. Blocks; not for an event loop.

    Raises:
        ImportError: the ``livekit`` extra is not installed; the message names it.
        DemoError: the call got stuck, or voicetrace lost it.
        OSError: ``out`` cannot be written.
    """
    from voicetrace.demo.livekit_call import run_call  # first: its error names the extra
    from voicetrace.integrations.livekit import LiveKitInstrumentor

    calls = out / CALLS_NAME
    calls.mkdir(parents=True, exist_ok=True)
    settings.configure(directory=calls, audio="both", recording_format=recording_format)
    spans = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource.create({semconv.SERVICE_NAME: "voicetrace-demo"}))
    provider.add_span_processor(SimpleSpanProcessor(wrap_exporter(spans)))
    instrumentor = LiveKitInstrumentor().instrument(provider)
    follower = _Follower(listener)

    def tick(seconds: float) -> None:
        follower.follow(instrumentor.calls)
        if on_tick is not None:
            on_tick(seconds)

    try:
        truth = asyncio.run(run_call(scenario or travel_call(), on_tick=tick))
    except (TimeoutError, RuntimeError) as error:
        raise DemoError(f"{error}; what was captured until then is in {calls}") from error
    finally:
        instrumentor.uninstrument()
        on_disk = follower.wait(_DISK_DEADLINE_S)
        provider.shutdown()  # also when interrupted: held spans leave, and the writer's files are whole
        settings.reset()
    if not on_disk:
        raise DemoError(f"the disk was too slow; run voicetrace recover {calls}")
    return _read_back(out, truth, write_trace(out / TRACE_NAME, spans.get_finished_spans()))


class _Follower:
    """Attaches to the call as soon as it is there, and knows when all of it is on disk."""

    def __init__(self, listener: Listener | None) -> None:
        self._listener = listener
        self._closed: dict[int, threading.Event] = {}

    def follow(self, calls: list[LiveCall]) -> None:
        for call in calls:
            if id(call) in self._closed:
                continue
            self._closed[id(call)] = closed = threading.Event()
            call.on_closed.append(lambda _, event=closed: event.set())  # type: ignore[misc]
            if self._listener is not None:
                call.listeners.append(self._listener)

    def wait(self, timeout_s: float) -> bool:
        return all(event.wait(timeout_s) for event in self._closed.values())


def _read_back(out: Path, truth: GroundTruth, trace_path: Path) -> Demo:
    from_spans, from_journal = read_calls(trace_path), read_calls(out / CALLS_NAME)
    if len(from_spans) != 1 or len(from_journal) != 1:
        raise DemoError(
            f"one call was made; the spans tell {len(from_spans)} calls and the journals {len(from_journal)}"
        )
    call, journal = from_spans[0], from_journal[0]
    recording = journal.recording_path()
    if recording is None:
        raise DemoError(f"the call was not recorded: {'; '.join(call.warnings) or 'nothing says why'}")
    run_id, run_agent_id = run_ids(call.call_id)
    bundle = out / BUNDLE_NAME
    export_bundle(journal, bundle, run_id=run_id, run_agent_id=run_agent_id, language="en-US")
    return Demo(truth, call, journal, trace_path, recording, Path(journal.source), bundle)
