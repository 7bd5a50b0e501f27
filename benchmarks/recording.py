# SPDX-License-Identifier: Apache-2.0
"""What the recording costs the writer thread, and how true a long one stays.

Run: ``python benchmarks/recording.py [--hours 2]``. Prints medians and 99th percentiles per write, the time
`finish` takes, and for a simulated call with stalls, bursts, losses, jitter and a clock 200 ppm fast: the
memory it took, its length against the wall clock, and the worst misplacement of a marked sound.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np

from voicetrace.audio import RecordingWriter, encode, read_channel
from voicetrace.messages import Channel


def noise(samples: int) -> np.ndarray:
    return np.random.default_rng(1).integers(-8_000, 8_000, samples).astype(np.int16)


def microseconds(write: Callable[[int], None], times: int) -> str:
    costs = []
    for k in range(times):
        before = time.perf_counter_ns()
        write(k)
        costs.append((time.perf_counter_ns() - before) / 1000)
    return f"median {np.median(costs):7.1f} us   p99 {np.percentile(costs, 99):7.1f} us"


def per_write(directory: Path) -> None:
    for rate, source in ((24_000, 24_000), (24_000, 48_000)):
        recording = RecordingWriter(directory / f"{source}.wav", sample_rate_hz=rate, origin_unix_ms=0)
        frame, run = noise(source // 50), noise(source)

        def caller(
            k: int, to: RecordingWriter = recording, pcm: np.ndarray = frame, hz: int = source
        ) -> None:
            to.write_caller((k + 1) * 20.0, pcm, hz)

        def agent(k: int, to: RecordingWriter = recording, pcm: np.ndarray = run, hz: int = source) -> None:
            to.write_agent_run(k * 2_000, pcm, hz)

        print(f"caller frame 20 ms, {source} -> {rate} Hz   {microseconds(caller, 15_000)}")
        print(f"agent run 1 s,      {source} -> {rate} Hz   {microseconds(agent, 150)}")
        before = time.perf_counter()
        facts = recording.finish(300_000)
        print(f"finish, 5 min                        {time.perf_counter() - before:.2f} s")
        if source == rate:
            before = time.perf_counter()
            encode(facts, "flac")
            print(f"encode as FLAC, 5 min                {time.perf_counter() - before:.2f} s")
        else:
            before = time.perf_counter()
            encode(facts, "opus")
            print(f"encode as Ogg/Opus, 5 min            {time.perf_counter() - before:.2f} s")


def long_call(directory: Path, hours: float) -> None:
    rate, frame_ms, ppm, mark_ms = 8_000, 20, 200, 10_000
    length_ms = round(hours * 3_600_000)
    size, per_ms = rate * frame_ms // 1000, rate * (1 + ppm / 1e6) / 1000
    recording = RecordingWriter(directory / "long.wav", sample_rate_hz=rate, origin_unix_ms=0)
    rng, burst, silence = random.Random(1), noise(size) | 1, np.zeros(size, np.int16)
    last = 0.0
    tracemalloc.start()
    before = time.perf_counter()
    frame, marked = 0, []
    while (end_ms := (frame + 1) * size / per_ms) <= length_ms:
        frame += 1
        if end_ms % 131_000 < 700:  # 0.7 s never arrives, every 131 s
            continue
        arrival = end_ms + rng.expovariate(1 / 3)
        if arrival % 97_000 < 1_500:  # and 1.5 s comes late, in a burst, every 97 s
            arrival += 1_500 - arrival % 97_000
        last = max(last, arrival)
        is_mark = end_ms % mark_ms < frame_ms and (not marked or end_ms - marked[-1] > mark_ms / 2)
        if is_mark:
            marked.append(end_ms - frame_ms)
        recording.write_caller(last, burst if is_mark else silence, rate)
    facts = recording.finish(length_ms)
    took = time.perf_counter() - before
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    heard = np.concatenate(list(read_channel(facts.path, Channel.CALLER)))
    errors = []
    for at in marked:
        low = max(0, int((at - 400) * rate / 1000))
        found = np.flatnonzero(heard[low : int((at + 400) * rate / 1000)])
        errors.append(abs((low + found[0]) * 1000 / rate - at) if found.size else np.inf)
    print(
        f"{hours:g} h, {frame} frames: {took:.1f} s ({took / frame * 1e6:.0f} us per frame, memory traced), "
        f"peak memory {peak / 1e6:.2f} MB, length off by {abs(facts.duration_ms - length_ms)} ms, "
        f"lost {facts.lost_ms} ms, disk {facts.path.stat().st_blocks * 512 / 1e6:.1f} MB\n"
        f"misplaced by: median {np.median(errors):.1f} ms, p99 {np.percentile(errors, 99):.1f} ms, "
        f"worst {max(errors):.1f} ms at {len(errors)} marks"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        per_write(Path(name))
        long_call(Path(name), arguments.hours)


if __name__ == "__main__":
    main()
