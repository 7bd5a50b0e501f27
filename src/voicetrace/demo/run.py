# SPDX-License-Identifier: Apache-2.0
"""The demo call with voicetrace: instrumented, exported, read back, and bundled, all in one directory.

``DIR/trace.json`` (every span, as OTLP JSON), ``DIR/calls/<call id>/`` (journal, recording, full map),
``DIR/bundle/``, and ``DIR/call.html``, the call to read and to listen to. Needs the framework's extra, and
about 50 s, because the call is real time.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from voicetrace import semconv, settings
from voicetrace.agentclash import export_bundle, validate_bundle
from voicetrace.demo.check import Bar, check_call
from voicetrace.demo.script import Scenario
from voicetrace.otel import wrap_exporter
from voicetrace.otel.otlp_json import write_trace
from voicetrace.reader import read_calls
from voicetrace.viewer import write_page
from voicetrace.voice_call import VoiceCall

if TYPE_CHECKING:
    from voicetrace.demo.truth import GroundTruth
    from voicetrace.live import Listener, LiveCall
    from voicetrace.settings import RecordingFormat

TRACE_NAME: Final = "trace.json"
CALLS_NAME: Final = "calls"
BUNDLE_NAME: Final = "bundle"
PAGE_NAME: Final = "call.html"
FrameworkName = Literal["livekit", "pipecat"]
OUTPUTS: Final = (TRACE_NAME, CALLS_NAME, BUNDLE_NAME, PAGE_NAME)
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
    page_path: Path

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
    framework: FrameworkName = "livekit",
    realtime: bool = False,
    scenario: Scenario | None = None,
    recording_format: RecordingFormat = "wav",
    listener: Listener | None = None,
    on_tick: Callable[[float], None] | None = None,
) -> Demo:
    """Run one demo call into the directory ``out``, in real time, and read it back.

    ``realtime`` has a model that hears and speaks by itself, instead of a pipeline of services.
    ``listener`` is told every change of the call's record, on the thread that made it; ``on_tick`` is called
    about four times a second with the seconds since the start. Takes over the process's `configure` and
    its instrumentation of the framework while it runs. Blocks; not for an event loop.

    Raises:
        ImportError: the framework's extra is not installed; the message names it.
        DemoError: the call got stuck, or voicetrace lost it.
        OSError: ``out`` cannot be written.
    """
    if (framework, realtime) not in _STAGES:
        raise DemoError(f"there is no realtime demo call of {framework}; leave out --realtime")
    stage = _STAGES[framework, realtime]()  # first: its error names the extra
    calls = out / CALLS_NAME
    calls.mkdir(parents=True, exist_ok=True)
    settings.configure(
        directory=calls,
        audio="both",
        recording_format=recording_format,
        server_vad_silence_ms=stage.server_vad_silence_ms,
    )
    spans = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource.create({semconv.SERVICE_NAME: "voicetrace-demo"}))
    provider.add_span_processor(SimpleSpanProcessor(wrap_exporter(spans)))
    follower = _Follower(listener)

    def tick(seconds: float) -> None:
        follower.follow(stage.calls())
        if on_tick is not None:
            on_tick(seconds)

    stage.begin(provider)
    try:
        truth = asyncio.run(stage.call(scenario, tick))
    except (TimeoutError, RuntimeError) as error:
        raise DemoError(f"{error}; what was captured until then is in {calls}") from error
    finally:
        stage.end()
        on_disk = follower.wait(_DISK_DEADLINE_S)
        provider.shutdown()  # also when interrupted: held spans leave, and the writer's files are whole
        settings.reset()
    if not on_disk:
        raise DemoError(f"the disk was too slow; run voicetrace recover {calls}")
    return _read_back(out, truth, write_trace(out / TRACE_NAME, spans.get_finished_spans()))


class _LiveKit:
    """The demo call of livekit-agents."""

    server_vad_silence_ms = 0

    def __init__(self) -> None:
        from voicetrace.demo import livekit_call
        from voicetrace.demo.script import travel_call
        from voicetrace.integrations.livekit import LiveKitInstrumentor

        self._run: Callable[..., Coroutine[Any, Any, GroundTruth]] = livekit_call.run_call
        self._scenario = travel_call
        self._instrumentor = LiveKitInstrumentor()

    def begin(self, provider: TracerProvider) -> None:
        self._instrumentor.instrument(provider)

    def call(
        self, scenario: Scenario | None, on_tick: Callable[[float], None]
    ) -> Coroutine[Any, Any, GroundTruth]:
        return self._run(scenario or self._scenario(), on_tick=on_tick)

    def calls(self) -> list[LiveCall]:
        return self._instrumentor.calls

    def end(self) -> None:
        self._instrumentor.uninstrument()


class _LiveKitRealtime(_LiveKit):
    """The demo call of livekit-agents with a realtime model."""

    def __init__(self) -> None:
        super().__init__()
        from voicetrace.demo import livekit_realtime_call
        from voicetrace.demo.script import travel_call_realtime

        self._run, self._scenario = livekit_realtime_call.run_call, travel_call_realtime
        self.server_vad_silence_ms = (
            travel_call_realtime().endpointing_ms
        )  # what a user reads in the settings


class _Pipecat:
    """The demo call of pipecat-ai."""

    server_vad_silence_ms = 0

    def __init__(self) -> None:
        with contextlib.suppress(ImportError):  # the next import says which extra is missing
            from loguru import logger

            logger.remove()  # Pipecat logs every turn of the call to the screen
        from voicetrace.demo import pipecat_call
        from voicetrace.integrations.pipecat import VoiceTraceProcessor

        self._run: Callable[..., Coroutine[Any, Any, GroundTruth]] = pipecat_call.run_call
        self._processor = VoiceTraceProcessor
        self._voice: VoiceTraceProcessor | None = None
        self._provider: TracerProvider | None = None

    def begin(self, provider: TracerProvider) -> None:
        # Pipecat writes its spans to the global provider, which can be set once: the demo has the process
        trace.set_tracer_provider(provider)
        self._provider = provider

    async def call(self, scenario: Scenario | None, on_tick: Callable[[float], None]) -> GroundTruth:
        self._voice = self._processor(tracer_provider=self._provider)
        return await self._run(scenario, pipeline_extra=[self._voice], on_tick=on_tick)

    def calls(self) -> list[LiveCall]:
        call = self._voice.call if self._voice is not None else None
        return [call] if call is not None else []

    def end(self) -> None:
        pass


class _PipecatRealtime(_Pipecat):
    """The demo call of pipecat-ai with a realtime service."""

    def __init__(self) -> None:
        super().__init__()
        from voicetrace.demo import pipecat_realtime_call
        from voicetrace.demo.script import travel_call_realtime

        self._run = pipecat_realtime_call.run_call
        self.server_vad_silence_ms = travel_call_realtime().endpointing_ms


# by framework, and whether a realtime model speaks
_STAGES: Final[dict[tuple[FrameworkName, bool], type[_LiveKit] | type[_Pipecat]]] = {
    ("livekit", False): _LiveKit,
    ("livekit", True): _LiveKitRealtime,
    ("pipecat", False): _Pipecat,
    ("pipecat", True): _PipecatRealtime,
}


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
    page = write_page(journal, out / PAGE_NAME).path
    return Demo(truth, call, journal, trace_path, recording, Path(journal.source), bundle, page)
