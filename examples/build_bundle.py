# SPDX-License-Identifier: Apache-2.0
"""One complete, small bundle to look at: all eleven kinds, a regression case and a multimodal trace.

A caller says that is all, and the agent says goodbye: 4.2 s of speech from the demo's recordings (synthetic:
no person was recorded). The separation report is measured on stems mixed for it, here, from the caller and
the demo's room; the video sync report holds the agent's words against the caller's, which no translation
would be proud of, so that both show a real report. The reviewer is made up.

``python examples/build_bundle.py [DIRECTORY]`` writes it; the same bytes every time.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import soundfile as sf

from voicetrace.agentclash import (
    Evidence,
    Promotion,
    PromotionTarget,
    References,
    export_bundle,
    measure_separation,
    measure_video_sync,
)
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

HERE = Path(__file__).parent / "bundle"
CLIPS = Path(__file__).parents[1] / "src" / "voicetrace" / "demo" / "data"
RATE, LENGTH_MS = 8000, 4200
CALLER_AT, AGENT_AT = 100, 2500
RUN_ID = "0b5ad1d6-33d6-4a7c-8a4f-5b6d0f6c7a01"
RUN_AGENT_ID = "0b5ad1d6-33d6-4a7c-8a4f-5b6d0f6c7a02"
REVIEW = {
    "status": "approved_for_regression",
    "rules": ["Names, numbers and addresses are removed from text and audio."],
    "findings": [{"class": "personal_data", "count": 0, "action": "none_needed"}],
    "reviewed_by": "example-reviewer",
    "reviewed_at": "2026-06-08T12:00:00Z",
}


def clip(name: str) -> np.ndarray:
    """A recording of the demo at the example's rate, as floats."""
    samples, rate = sf.read(CLIPS / f"{name}.flac")
    step = rate // RATE
    return samples[: len(samples) // step * step].reshape(-1, step).mean(axis=1)


def placed(name: str, at_ms: int) -> np.ndarray:
    out = np.zeros(LENGTH_MS * RATE // 1000)
    samples = clip(name)
    start = at_ms * RATE // 1000
    out[start : start + samples.size] = samples[: out.size - start]
    return out


def message(role: Role, seq: int, text: str, start_ms: int, name: str) -> VoiceMessage:
    user = role is Role.USER
    end_ms = start_ms + clip(name).size * 1000 // RATE
    channel = Channel.CALLER if user else Channel.AGENT
    return VoiceMessage(
        id=f"item_{role}",
        role=role,
        seq=seq,
        committed=True,
        state=State.COMPLETE,
        text=text,
        text_status=TextStatus.FINAL,
        text_source=TextSource.STT if user else TextSource.PLAYOUT_ALIGNED,
        start_ms=start_ms,
        end_ms=end_ms,
        timing_source=TimingSource.LOCAL_VAD if user else TimingSource.LOCAL_PLAYOUT,
        end_of_turn_ms=end_ms + 150 if user else None,
        produced_by_span_id=None if user else "00f067aa0ba902b7",
        selections=[Selection(segment_id="seg_0", channel=channel, start_ms=start_ms, end_ms=end_ms)],
    )


def build(directory: Path = HERE) -> Path:
    """Write the bundle; its manifest's path."""
    caller, agent = placed("caller_bye", CALLER_AT), placed("agent_bye", AGENT_AT)
    room = np.resize(clip("room"), caller.size) * 40  # loud enough to be heard: about -35 dBFS
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        files = {
            "caller": caller,
            "agent": agent,
            "room": room,
            "speech_stem": 0.97 * caller + 0.1 * room,
            "background_stem": 0.9 * room + 0.01 * caller,
        }
        for name, samples in files.items():
            sf.write(root / f"{name}.wav", samples, RATE, subtype="PCM_16")
        sf.write(root / "call.wav", np.stack([caller, agent], axis=1), RATE, subtype="PCM_16")
        call = VoiceCall(
            call_id="example-goodbye",
            messages=(
                message(Role.USER, 0, "No, that is all. Thank you.", CALLER_AT, "caller_bye"),
                message(Role.ASSISTANT, 1, "Have a good trip. Goodbye.", AGENT_AT, "agent_bye"),
            ),
            llm_steps=(
                LLMStep(
                    span_id="00f067aa0ba902b7",
                    trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
                    name="chat",
                    context_ids=(None, "item_user"),
                    output_ids=("item_assistant",),
                    start_ms=2120,
                    end_ms=2380,
                ),
            ),
            recording=Recording(
                recording_id="example-goodbye",
                uri=(root / "call.wav").as_uri(),
                format="wav",
                sample_rate_hz=RATE,
                channels=list(Channel),
                origin_unix_ms=1_780_909_200_000,
                duration_ms=LENGTH_MS,
                segments={"seg_0": Segment(start_ms=0, length_ms=LENGTH_MS)},
            ),
            origin_unix_ms=1_780_909_200_000,
            duration_ms=LENGTH_MS,
            agent_name="front-desk",
            trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
            span_id="00f067aa0ba902b6",
        )
        evidence = Evidence(
            structured_output={"call_ended_by": "caller", "trip_booked": True},
            schema_ref="example.booking.v1",
            media_policy_report=measure_separation(
                root / "speech_stem.wav",
                root / "background_stem.wav",
                references=References(root / "caller.wav", root / "room.wav"),
            ),
            video_sync_report=measure_video_sync(root / "caller.wav", root / "agent.wav"),
            redaction=REVIEW,
            metadata={
                "provider": "example",
                "model": "example-1",
                "transport": "webrtc",
                "streaming_mode": "streaming",
                "background_audio": "discarded",
            },
            promotion=Promotion(
                PromotionTarget("front-desk", "goodbyes", "ends-politely", "example-goodbye"),
                "The agent says goodbye and asks nothing more.",
            ),
            with_multimodal_trace=True,
        )
        return export_bundle(
            call, directory, run_id=RUN_ID, run_agent_id=RUN_AGENT_ID, language="en-US", evidence=evidence
        )


if __name__ == "__main__":
    print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE))
