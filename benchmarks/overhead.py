# SPDX-License-Identifier: Apache-2.0
"""Our work on the event loop, against the bars: per audio frame, per event, at close; and memory over 2 h.

    python benchmarks/overhead.py [--json]

The real `LiveCall`, journal, recording and span; a call of 300 messages as the LiveKit adapter tells it.
Medians of the loop thread's own CPU time, so that other work on the machine does not count; what passed on
the wall is printed beside it. The writer thread runs as in a real call. Memory is the resident set over a
simulated 2-hour call.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from livekit import rtc
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from voicetrace import events as ev
from voicetrace.integrations.livekit.playout import PlayoutAdapter
from voicetrace.integrations.livekit.session import SessionTrace
from voicetrace.live import LiveCall
from voicetrace.messages import TextSource, TimingSource
from voicetrace.otel import wrap_exporter
from voicetrace.settings import Settings
from voicetrace.writer import WRITER

RATE = 24_000


class Discard(SpanExporter):
    def export(self, spans):
        return SpanExportResult.SUCCESS


class Clock:
    """Virtual wall-clock, so that two hours pass in a minute."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


def new_call(directory: Path, clock) -> tuple[LiveCall, object]:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(wrap_exporter(Discard())))
    call = LiveCall(
        settings=Settings(directory=directory, audio="both"),
        framework="bench",
        tracer_provider=provider,
        clock=clock,
    )
    tracer = provider.get_tracer("bench")
    call.bind_span(tracer.start_span("agent_session"))
    return call, tracer


def exchange(call: LiveCall, tracer, n: int, context: list[str]) -> list[ev.Event]:
    """One user turn and its answer, as the adapter tells them."""
    at = call.now_ms()
    speech, user, item = f"speech_{n}", f"item_u{n}", f"item_a{n}"
    said = f"and what about option number {n}, is that one still free on Friday evening?"
    answer = f"Option {n} is free on Friday from seven; shall I hold it for you under your name until noon?"
    span = tracer.start_span("llm_node")
    context.append(user)
    told = [
        ev.UserSpeechStarted(at_ms=at, start_ms=at, source=TimingSource.LOCAL_VAD),
        ev.UserTranscript(at_ms=at, text=said[:20], final=False, source=TextSource.STT),
        ev.UserSpeechStopped(at_ms=at + 1900, end_ms=at + 1400, source=TimingSource.LOCAL_VAD),
        ev.UserTranscript(at_ms=at + 2000, text=said, final=True, source=TextSource.STT),
        ev.EndOfTurnPending(at_ms=at + 2000, token=f"eou{n}"),
        ev.EndOfTurnDecided(at_ms=at + 2100, token=f"eou{n}", outcome="committed"),
        ev.SpeechCreated(at_ms=at + 2100, speech_id=speech, origin="reply"),
        lambda: call.start_step(
            span, name="llm_node", context_ids=tuple(context), speech_id=speech, answers=user
        ),
        ev.UserMessageAdded(at_ms=at + 2150, item_id=user, text=said, source=TextSource.STT),
        ev.SpeechText(at_ms=at + 2300, speech_id=speech, text=answer, source=TextSource.TTS_INPUT),
        ev.PlayoutStarted(at_ms=at + 2500, speech_id=speech, start_ms=at + 2500),
        ev.PlayoutRun(at_ms=at + 6500, speech_id=speech, start_ms=at + 2500, end_ms=at + 6500),
        ev.PlayoutFinished(
            at_ms=at + 6500,
            speech_id=speech,
            interrupted=False,
            position_ms=4000,
            aligned=True,
            heard_text=answer,
        ),
        ev.AssistantMessageAdded(at_ms=at + 6500, item_id=item, speech_id=speech, text=answer),
        ev.SpeechEnded(at_ms=at + 6501, speech_id=speech),
        lambda: (
            span.end(),
            call.emit(ev.LLMStepEnded(at_ms=at + 6501, span_id=f"{span.context.span_id:016x}")),
        ),
    ]
    context.append(item)
    return told


def bench_events(directory: Path) -> dict[str, float]:
    clock = Clock()
    call, tracer = new_call(directory, clock)
    context: list[str] = []
    costs: list[float] = []
    wall: list[float] = []
    for n in range(150):
        for event in exchange(call, tracer, n, context):
            begin, cpu = time.perf_counter(), time.thread_time()
            if callable(event):
                event()
            else:
                call.emit(event)
            costs.append(time.thread_time() - cpu)
            wall.append(time.perf_counter() - begin)
        clock.now += 7
        WRITER.drain(10)  # a real call leaves the writer seconds between exchanges
    assert len(call.recorder.messages) == 300
    begin, cpu = time.perf_counter(), time.thread_time()
    call.close("bench")
    close, close_wall = time.thread_time() - cpu, time.perf_counter() - begin
    assert WRITER.drain(30)
    costs.sort()
    return {
        "event_us_median": statistics.median(costs) * 1e6,
        "event_us_p99": costs[int(len(costs) * 0.99)] * 1e6,
        "event_us_wall": statistics.median(wall) * 1e6,
        "close_300_ms": close * 1e3,
        "close_300_ms_wall": close_wall * 1e3,
    }


async def bench_frames(directory: Path) -> dict[str, float]:
    call, _ = new_call(directory, time.time)
    call.files.start_recording(RATE)
    frame = rtc.AudioFrame(np.zeros(RATE // 50, np.int16).tobytes(), RATE, 1, RATE // 50)
    trace = SessionTrace.__new__(SessionTrace)  # only the frame handler is exercised
    trace.call, trace._rate_chosen = call, True
    on_caller = call.guard.wrap("caller_frame", trace._on_caller_frame)
    playout = PlayoutAdapter(call, lambda: "speech")
    caller, agent = [], []
    for _ in range(3000):
        begin = time.thread_time()
        on_caller(frame)
        middle = time.thread_time()
        playout._pushed(frame)
        agent.append(time.thread_time() - middle)
        caller.append(middle - begin)
        if len(caller) % 50 == 0:
            WRITER.drain(10)
    call.close()
    assert WRITER.drain(30)
    return {
        "caller_frame_us_median": statistics.median(caller) * 1e6,
        "agent_frame_us_median": statistics.median(agent) * 1e6,
    }


def rss_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def bench_memory(directory: Path, hours: float) -> dict[str, float]:
    """A call with an exchange every 24 s (600 messages in 2 h) and both channels of audio."""
    clock = Clock()
    call, tracer = new_call(directory, clock)
    call.files.start_recording(RATE)
    caller = (np.random.default_rng(1).standard_normal(RATE // 50) * 800).astype(np.int16).tobytes()
    agent = (np.random.default_rng(2).standard_normal(RATE * 4) * 800).astype(np.int16).tobytes()
    context: list[str] = []
    first = peak = 0.0
    exchanges = int(hours * 3600 / 24)
    began = clock.now
    for n in range(exchanges):
        for event in exchange(call, tracer, n, context):
            if callable(event):
                event()
            else:
                call.emit(event)
        call.files.agent_audio(call.now_ms() + 2500, agent, RATE, 1)
        for _ in range(24 * 50):
            clock.now += 0.02
            call.files.caller_audio(call.precise_ms(), caller, RATE, 1)
        WRITER.drain(30)
        del context[:-40]  # the model's context is the framework's, and trimmed
        if n == 2:
            gc.collect()
            first = rss_mb()
        peak = max(peak, rss_mb())
        if sys.stderr.isatty() and n % 10 == 0:
            print(f"\r{n / exchanges:4.0%} of the 2-hour call", end="", file=sys.stderr)
    wall_ms = (clock.now - began) * 1000
    call.close()
    assert WRITER.drain(120)
    peak = max(peak, rss_mb())
    recording = call.recorder.recording
    assert recording is not None
    assert recording.duration_ms is not None
    return {
        "memory_growth_mb": peak - first,
        "recording_vs_wall_ms": recording.duration_ms - wall_ms,
        "messages": len(call.recorder.messages),
    }


BARS = {
    "event_us_median": 100,
    "close_300_ms": 5,
    "caller_frame_us_median": 20,
    "agent_frame_us_median": 20,
    "memory_growth_mb": 20,
    "recording_vs_wall_ms": 50,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--hours", type=float, default=2.0, help="length of the simulated call")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        runs = [bench_events(root) for _ in range(3)]
        figures = {k: statistics.median(r[k] for r in runs) for k in runs[0]}
        figures |= asyncio.run(bench_frames(root))
        figures |= bench_memory(root, arguments.hours)
    missed = [k for k, bar in BARS.items() if abs(figures[k]) > bar]
    if arguments.json:
        print(json.dumps({"figures": figures, "bars": BARS, "missed": missed}, indent=2))
    else:
        for name, value in figures.items():
            bar = BARS.get(name)
            verdict = "MISSED" if name in missed else "ok"
            print(f"{name:26} {value:10.2f}" + (f"   bar {bar:6}  {verdict}" if bar else ""))
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
