# SPDX-License-Identifier: Apache-2.0
"""What a bundle costs, and whether our verdict is the rules' verdict.

Run: ``python benchmarks/bundle.py [--minutes 10 120] [--verdicts]``. For each length a call is made (24 kHz,
FLAC and WAV recordings of voice-like sound; an answer every ten seconds; every LLM step with its whole
context; a journal), and a process of its own, on one core, reads nothing else and writes the bundle: its
time on the clock and on the core, the most memory it ever held, and how much of that came with the export.
Then the same for ``validate_bundle``. ``--verdicts`` judges 1,000 generated manifests and 3,000 reports and
counts where we differ from the published schemas and the ingestion rules (needs both beside the repository).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import soundfile as sf

from voicetrace import events as ev
from voicetrace.messages import (
    Channel,
    LLMStep,
    Recording,
    Role,
    Segment,
    Selection,
    State,
    TextSource,
    TextStatus,
    TimingSource,
    VoiceMessage,
)
from voicetrace.voice_call import VoiceCall

RATE = 24_000
TURN_MS = 10_000
IDS = {
    "run_id": "11111111-1111-1111-1111-111111111111",
    "run_agent_id": "22222222-2222-2222-2222-222222222222",
}


def voice(seconds: float, seed: int) -> np.ndarray:
    """Sound with the rise and fall of syllables, and a floor of noise."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(seconds * RATE)) / RATE
    syllables = np.clip(np.sin(2 * np.pi * 3.1 * t) + 0.3, 0, 1)
    tone = sum(np.sin(2 * np.pi * f * t) / n for n, f in enumerate((140, 280, 420, 560), 1))
    return (syllables * tone * 5000 + rng.normal(0, 12, t.size)).astype(np.int16)


def make_recording(path: Path, minutes: int) -> None:
    """The caller speaks in the first 3 s of every 10 s, the agent from 4 s to 9 s."""
    quiet = np.random.default_rng(3).normal(0, 12, (TURN_MS * RATE // 1000, 2)).astype(np.int16)
    turn = quiet.copy()
    turn[: 3 * RATE, 0] = voice(3, 1)
    turn[4 * RATE : 9 * RATE, 1] = voice(5, 2)
    with sf.SoundFile(path, "w", RATE, 2, subtype="PCM_16") as out:
        for _ in range(minutes * 6):
            out.write(turn)


def make_call(path: Path, minutes: int) -> VoiceCall:
    messages, steps, events, context = [], [], [], ["system"]
    common = {"committed": True, "state": State.COMPLETE, "text_status": TextStatus.FINAL}
    for turn in range(minutes * 6):
        at = turn * TURN_MS
        user, agent, span = f"item_{turn:06}_user", f"item_{turn:06}_agent", f"{turn + 1:016x}"
        messages.append(
            VoiceMessage(
                id=user, role=Role.USER, seq=2 * turn, text="What I would like to know is " * 4,
                text_source=TextSource.STT, timing_source=TimingSource.LOCAL_VAD,
                start_ms=at, end_ms=at + 3000, end_of_turn_ms=at + 3400, selections=[
                    Selection(segment_id="seg_0", channel=Channel.CALLER, start_ms=at, end_ms=at + 3000)
                ], **common,
            )
        )  # fmt: skip
        context.append(user)
        steps.append(
            LLMStep(
                span_id=span, trace_id="a" * 32, name="llm", context_ids=tuple(context), output_ids=(agent,)
            )
        )
        messages.append(
            VoiceMessage(
                id=agent, role=Role.ASSISTANT, seq=2 * turn + 1, text="There are three of them nearby. " * 6,
                text_source=TextSource.PLAYOUT_ALIGNED, timing_source=TimingSource.LOCAL_PLAYOUT,
                start_ms=at + 4000, end_ms=at + 9000, produced_by_span_id=span, selections=[
                    Selection(segment_id="seg_0", channel=Channel.AGENT, start_ms=at + 4000, end_ms=at + 9000)
                ], **common,
            )
        )  # fmt: skip
        context.append(agent)
        events += [
            ev.UserSpeechStarted(at_ms=at, start_ms=at, source=TimingSource.LOCAL_VAD),
            ev.LLMStepStarted(
                at_ms=at + 3400, span_id=span, trace_id="a" * 32, name="llm", context_ids=tuple(context[:-1])
            ),
            ev.SpeechText(at_ms=at + 3800, speech_id=span, text="There are", source=TextSource.TTS_INPUT),
            ev.PlayoutRun(at_ms=at + 9000, speech_id=span, start_ms=at + 4000, end_ms=at + 9000),
        ]
    length_ms = minutes * 60_000
    recording = Recording(
        recording_id="r", uri=path.as_uri(), format=path.suffix[1:], sample_rate_hz=RATE,
        channels=[Channel.CALLER, Channel.AGENT], origin_unix_ms=1_700_000_000_000, duration_ms=length_ms,
        segments={"seg_0": Segment(start_ms=0, length_ms=length_ms)},
    )  # fmt: skip
    return VoiceCall(
        call_id=f"bench-{minutes}", messages=tuple(messages), llm_steps=tuple(steps), recording=recording,
        origin_unix_ms=1_700_000_000_000, duration_ms=length_ms, framework="bench", events=tuple(events),
    )  # fmt: skip


def peak_mb() -> float:
    """The most this process ever held, since it is this program (not what its parent held)."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)


def child(recording: Path, minutes: int, out: Path) -> None:
    with contextlib.suppress(AttributeError):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    from voicetrace.agentclash import export_bundle, validate_bundle

    call = make_call(recording, minutes)
    before = peak_mb()
    wall, cpu = time.perf_counter(), time.process_time()
    export_bundle(call, out, **IDS)
    wall, cpu, peak = time.perf_counter() - wall, time.process_time() - cpu, peak_mb()
    start = time.perf_counter()
    problems = validate_bundle(out)
    checked = time.perf_counter() - start
    size = sum(p.stat().st_size for p in out.rglob("*") if p.is_file()) / 2**20
    print(
        f"export {wall:6.2f} s ({cpu:.2f} s on the core), peak {peak:5.1f} MB of which the call and the "
        f"interpreter {before:5.1f} MB; {size:.0f} MB written; validated in {checked:.2f} s: "
        f"{'valid' if not problems else problems[0]}"
    )


def verdicts() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    import test_agentclash_contract as contract

    for name in contract.BASES:
        seen, differ, wrong = contract.compare(name, 1000)
        print(
            f"{name:32} 1000 documents: {seen[True]} valid, {seen[False]} not; only the schema takes "
            f"{differ['schema only']}, only ingestion {differ['ingestion only']}; "
            f"our verdict differs on {len(wrong)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=int, nargs="*", default=[10, 120])
    parser.add_argument("--formats", nargs="*", default=["flac", "wav"], choices=["flac", "wav"])
    parser.add_argument("--verdicts", action="store_true")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(Path(args.child[0]), int(args.child[1]), Path(args.child[2]))
        return
    for minutes in args.minutes:
        for kind in args.formats:
            with tempfile.TemporaryDirectory() as folder:
                root = Path(folder)
                recording = root / f"call.{kind}"
                make_recording(recording, minutes)
                print(f"{minutes:4} min {kind:5}", end="", flush=True)
                command = [sys.executable, __file__, "--child", recording, str(minutes), root / "out"]
                print(subprocess.run(command, check=True, capture_output=True, text=True).stdout, end="")
    if args.verdicts:
        verdicts()


if __name__ == "__main__":
    main()
