# SPDX-License-Identifier: Apache-2.0
"""Calls by hand with a recording, and what is in a bundle."""

from __future__ import annotations

import hashlib
import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import soundfile as sf

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

RATE = 8000
IDS = {
    "run_id": "11111111-1111-1111-1111-111111111111",
    "run_agent_id": "22222222-2222-2222-2222-222222222222",
}
KINDS = {
    "caller_audio",
    "agent_audio",
    "mixed_audio",
    "transcript_json",
    "waveform_timeline_json",
    "structured_output_json",
    "live_continuity_report_json",
    "raw_provider_trace_json",
    "redaction_metadata_json",
}


# -- a call by hand ----------------------------------------------------------------------------------
def user(message_id: str, seq: int, *ranges: tuple[int, int], **more: Any) -> VoiceMessage:
    fields: dict[str, Any] = {
        "committed": True,
        "state": State.COMPLETE,
        "text_status": TextStatus.FINAL,
        "text": f"words of {message_id}",
        "text_source": TextSource.STT,
        "timing_source": TimingSource.LOCAL_VAD,
    }
    return spoken(message_id, Role.USER, Channel.CALLER, seq, ranges, fields | more)


def agent(message_id: str, seq: int, *ranges: tuple[int, int], **more: Any) -> VoiceMessage:
    fields: dict[str, Any] = {
        "committed": True,
        "state": State.COMPLETE,
        "text_status": TextStatus.FINAL,
        "text": f"words of {message_id}",
        "text_source": TextSource.PLAYOUT_ALIGNED,
        "timing_source": TimingSource.LOCAL_PLAYOUT,
    }
    return spoken(message_id, Role.ASSISTANT, Channel.AGENT, seq, ranges, fields | more)


def spoken(
    message_id: str,
    role: Role,
    channel: Channel,
    seq: int,
    ranges: tuple[tuple[int, int], ...],
    fields: dict[str, Any],
) -> VoiceMessage:
    if ranges:
        # the recording's only segment begins at call-ms 100: offsets are segment ms
        selections = [
            Selection(segment_id="s0", channel=channel, start_ms=a - 100, end_ms=b - 100) for a, b in ranges
        ]
        fields = {"start_ms": ranges[0][0], "end_ms": ranges[-1][1], "selections": selections} | fields
    return VoiceMessage(id=message_id, role=role, seq=seq, **fields)


def step(n: int, context: tuple[str | None, ...], *outputs: str) -> LLMStep:
    return LLMStep(
        span_id=f"{n:016x}", trace_id="a" * 32, name="llm", context_ids=context, output_ids=outputs
    )


MESSAGES = (
    agent("hello", 0, (200, 1200)),
    user("u1", 1, (1500, 2000), (2300, 3000), end_of_turn_ms=3200, transcript_final_ms=3150),
    agent("a1", 2, (3800, 5000), (5600, 6000), generated_text="words of a1 and more"),
    user("u2", 4, (5900, 7000)),
    agent("a2", 5, (8500, 9000), state=State.INTERRUPTED, interrupted_at_ms=9000),
)
STEPS = (
    step(1, ("sys", "hello", "u1"), "a1"),
    step(2, ("sys", "hello", "u1", None, "a1", "u2"), "a2"),
)


def samples(duration_ms: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.int16]]:
    rng = np.random.default_rng(seed)
    return rng.integers(-32768, 32768, (duration_ms * RATE // 1000, 2), dtype=np.int16)


def make_call(folder: Path, **more: Any) -> VoiceCall:
    path = folder / "call.wav"
    sf.write(path, samples(10_000), RATE, subtype="PCM_16")
    recording = Recording(
        recording_id="rec",
        uri=path.as_uri(),
        format="wav",
        sample_rate_hz=RATE,
        channels=[Channel.CALLER, Channel.AGENT],
        origin_unix_ms=1_700_000_000_000,
        duration_ms=10_000,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        segments={"s0": Segment(start_ms=100, length_ms=9900)},
    )
    fields: dict[str, Any] = {
        "call_id": "call-1",
        "messages": MESSAGES,
        "llm_steps": STEPS,
        "recording": recording,
        "origin_unix_ms": 1_700_000_000_000,
        "duration_ms": 10_000,
        "framework": "livekit",
    }
    return VoiceCall(**(fields | more))


def document(bundle: Path, name: str) -> Any:
    return json.loads((bundle / "artifacts" / f"{name}.json").read_text("utf-8"))


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def wav(path: Path) -> tuple[int, int, np.ndarray[Any, Any]]:
    with wave.open(str(path)) as file:
        assert file.getsampwidth() == 2
        return file.getnchannels(), file.getframerate(), np.frombuffer(file.readframes(2**31), "<i2")
