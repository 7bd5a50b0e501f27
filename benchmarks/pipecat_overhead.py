# SPDX-License-Identifier: Apache-2.0
"""What following a Pipecat pipeline costs, and how well its two channels fit, against the bars.

    python benchmarks/pipecat_overhead.py [--json]

Cost: CPU time of one audio frame through an 8-stage pipeline of real role processors, with every hook of ours
and without, in turn; the median of the differences. Alignment: a simulated 30-minute call, whose transport is
0.05 % slow and whose loop is late now and then, through the real playout clock and the real recording.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from loguru import logger

logger.remove()

from opentelemetry.sdk.trace import TracerProvider  # noqa: E402
from pipecat.frames.frames import EndFrame, Frame, InputAudioRawFrame  # noqa: E402
from pipecat.pipeline.pipeline import Pipeline  # noqa: E402
from pipecat.pipeline.worker import PipelineWorker  # noqa: E402
from pipecat.processors.aggregators.llm_context import LLMContext  # noqa: E402
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair  # noqa: E402
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor  # noqa: E402
from pipecat.workers.runner import WorkerRunner  # noqa: E402

from voicetrace import settings  # noqa: E402
from voicetrace.audio import RecordingWriter  # noqa: E402
from voicetrace.demo.doubles_pipecat import ScriptedLLM, ScriptedSTT, SentenceTTS, SimInput, SimOutput, Voice  # noqa: E402
from voicetrace.demo.line import CallerLine  # noqa: E402
from voicetrace.demo.script import load_clip  # noqa: E402
from voicetrace.integrations.pipecat.follower import Follower  # noqa: E402
from voicetrace.integrations.pipecat.playout import Bracket, PlayoutClock  # noqa: E402

BARS = {"frame_us": 25, "alignment_ms": 5}
FRAMES = 300
ROUNDS = 60
MINUTES = 30
RATE = 24_000


class Sink(FrameProcessor):
    """The last stage: counts what arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0
        self.all = asyncio.Event()
        self.wanted = 0

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, InputAudioRawFrame):
            self.seen += 1
            if self.seen == self.wanted:
                self.all.set()
        await self.push_frame(frame, direction)


class Silent(Voice):
    sample_rate = RATE

    def speak(self, before: str, text: str) -> list:
        return []


class Mic(SimInput):
    """A microphone that is not read: the benchmark pushes its frames."""

    async def _read(self) -> None:
        await asyncio.Event().wait()


async def measure_frames() -> dict[str, float]:
    """CPU microseconds per frame: batches in one pipeline, in turn with our handlers and without them."""
    user, assistant = LLMContextAggregatorPair(LLMContext())
    mic, sink = Mic(CallerLine(load_clip("room"), frame_s=0.02)), Sink()
    stages: list[FrameProcessor] = [mic, ScriptedSTT(), user, ScriptedLLM(()), SentenceTTS(Silent())]
    stages += [SimOutput(), assistant, sink]
    worker = PipelineWorker(Pipeline(stages), enable_rtvi=False, idle_timeout_secs=None)
    follower = Follower(TracerProvider())
    follower.attach(worker)
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    started = asyncio.Event()
    worker.add_event_handler("on_pipeline_started", lambda *_: started.set())
    running = asyncio.create_task(runner.run())
    await started.wait()
    (trace,) = follower.running
    handlers = [h for h in trace.taps._attached if h[0] in stages]
    pcm = bytes(640)

    async def batch() -> float:
        sink.seen, sink.wanted = 0, FRAMES
        sink.all.clear()
        gc.collect()
        begin = time.process_time()
        for _ in range(FRAMES):
            await mic.push_frame(InputAudioRawFrame(pcm, 16_000, 1))
        await sink.all.wait()
        return (time.process_time() - begin) / FRAMES * 1e6

    await batch()  # the first ones warm up
    without, differences = [], []
    for _ in range(ROUNDS):
        followed = await batch()
        for processor, event, handler in handlers:
            processor.remove_event_handler(event, handler)
        without.append(await batch())
        for processor, event, handler in handlers:
            processor.add_event_handler(event, handler)
        differences.append((followed + await batch()) / 2 - without[-1])
    await worker.queue_frame(EndFrame())
    await running
    return {"pipeline_us": statistics.median(without), "frame_us": statistics.median(differences)}


def measure_cost() -> dict[str, float]:
    settings.configure(directory=None)
    try:
        return asyncio.run(measure_frames())
    finally:
        settings.reset()


def measure_alignment(directory: Path) -> dict[str, float]:
    """Clicks that sound on both sides at the same moment, and where the recording has them."""
    writer = RecordingWriter(
        directory / "recording.wav", sample_rate_hz=RATE, origin_unix_ms=0, channels=("caller", "agent")
    )
    rng = random.Random(7)
    clock = PlayoutClock(lambda start, end: None, writer.write_agent_run)
    chunk, pace = RATE * 40 // 1000, 40 * 1.0005
    click = np.full(24, 20_000, np.int16)
    truth: list[float] = []
    events: list[tuple[float, str, np.ndarray]] = []
    at, number = 500.0, 0
    while at < MINUTES * 60_000 - 12_000:  # replies of 8 s, one every 10 s
        start = at
        # pushed just before the first chunk is written, in the same task
        events.append((at, "speaks", np.zeros(0, np.int16)))
        for n in range(200):
            pcm = np.full(chunk, 100, np.int16)
            if n % 25 == 12:
                pcm[:24] = click
                truth.append(at)
            late = rng.expovariate(1 / 2.0) if rng.random() < 0.2 else 0.0
            events.append((at + pace + late, f"agent {number} {'first' if n == 0 else ''}", pcm))
            if n % 60 == 59:
                at += 17.0  # the loop was busy: a silence
            at += pace
        at, number = start + 10_000, number + 1
    line = np.full(MINUTES * 60 * RATE, 50, np.int16)
    for moment in truth:
        first = round(moment * RATE / 1000)
        line[first : first + 24] = click
    step = RATE // 50
    events += [
        ((n + 1) * 20.0 + rng.expovariate(1 / 1.5), "caller", line[n * step : (n + 1) * step])
        for n in range(len(line) // step)
    ]
    bracket: Bracket | None = None
    for moment, what, pcm in sorted(events, key=lambda e: e[0]):
        if what == "caller":
            writer.write_caller(moment, pcm, RATE, 1)
            continue
        if what == "speaks":
            clock.speaks(moment)
            continue
        if what.endswith("first"):
            if bracket is not None:
                clock.end_run(bracket)
            bracket = Bracket(what, what)
        assert bracket is not None
        clock.chunk(bracket, moment, pcm.tobytes(), RATE, 1)
    assert bracket is not None
    clock.end_run(bracket)
    writer.finish(MINUTES * 60_000)
    import soundfile

    samples, _ = soundfile.read(directory / "recording.wav", dtype="int16")
    heard = [np.flatnonzero(np.diff((samples[:, side] > 10_000).astype(np.int8)) == 1) for side in (0, 1)]
    assert len(heard[0]) == len(heard[1]) == len(truth), (len(heard[0]), len(heard[1]), len(truth))
    off = (heard[1] - heard[0]) * 1000 / RATE
    return {"alignment_ms": float(np.abs(off).max()), "alignment_ms_median": float(np.median(np.abs(off)))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=["cost", "alignment"])
    arguments = parser.parse_args()
    figures: dict[str, float] = {}
    if arguments.only != "alignment":
        figures |= measure_cost()
    if arguments.only != "cost":
        with tempfile.TemporaryDirectory() as directory:
            figures |= measure_alignment(Path(directory))
    missed = [name for name, bar in BARS.items() if figures.get(name, 0) > bar]
    if arguments.json:
        print(json.dumps({"figures": figures, "bars": BARS, "missed": missed}, indent=2))
    else:
        for name, value in figures.items():
            bar = BARS.get(name)
            verdict = "" if bar is None else f"   bar {bar:6}  {'MISSED' if name in missed else 'ok'}"
            print(f"{name:24} {value:10.2f}{verdict}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
