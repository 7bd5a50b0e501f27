# SPDX-License-Identifier: Apache-2.0
"""Bundles whose numbers come from the audio: gaps, silent sides, sides from files of their own, all kinds."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile as sf

from agentclash_support import IDS, agent, document, make_call, step, tree, user, wav
from voicetrace.agentclash import (
    BundleError,
    Evidence,
    continuity_report,
    export_bundle,
    source_separation_report,
    validate_bundle,
    video_sync_report,
)
from voicetrace.agentclash.vad import VadSettings, activity_of
from voicetrace.audio.index import IndexWriter, index_path
from voicetrace.messages import Channel, LLMStep, TextStatus, VoiceMessage
from voicetrace.voice_call import VoiceCall

RATE = 8000
LENGTH_MS = 12_000


def side(*sounds: tuple[int, int], rate: int = RATE, length_ms: int = LENGTH_MS) -> np.ndarray:
    """A channel that sounds exactly here, in ms."""
    out = np.zeros(length_ms * rate // 1000, np.int16)
    for start, end in sounds:
        n = (end - start) * rate // 1000
        at = start * rate // 1000
        out[at : at + n] = (8000 * np.sin(2 * np.pi * 300 * np.arange(n) / rate)).astype(np.int16)
    return out


def call_with(
    folder: Path,
    caller: np.ndarray,
    agent_side: np.ndarray,
    messages: tuple[VoiceMessage, ...],
    steps: tuple[LLMStep, ...] = (),
) -> VoiceCall:
    call = make_call(folder, messages=messages, llm_steps=steps, duration_ms=LENGTH_MS)
    assert call.recording is not None
    path = folder / "scripted.wav"
    sf.write(path, np.stack([caller, agent_side], axis=1), RATE, subtype="PCM_16")
    recording = call.recording.model_copy(
        update={"uri": path.as_uri(), "sha256": None, "duration_ms": LENGTH_MS}
    )
    return dataclasses.replace(call, recording=recording)


def report(call: VoiceCall, out: Path, **more: Any) -> Any:
    export_bundle(call, out, **IDS, evidence=Evidence(**more))
    assert validate_bundle(out) == []
    return document(out, "live_continuity_report")


# The script: the user 500-2000; the answer is played 2600-6000 and sounds 2700-3500, 3900-4500, 5800-6000;
# its second message, of the same step's answer, is played 6400-8000 and sounds 6500-8000. Then the user at
# 7500-8600 while it plays, and an answer from 9600.
SPEECH = ((500, 2000), (7500, 8600))
OUTPUT = ((2700, 3500), (3900, 4500), (5800, 6000), (6500, 8000), (9700, 11_000))
SCRIPT = (
    user("u1", 0, (500, 2000)),
    agent("a1", 1, (2600, 6000)),
    agent("a1b", 2, (6400, 8000)),
    user("u2", 3, (7500, 8600)),
    agent("a2", 4, (9600, 11_000)),
)
STEPS = (step(1, ("u1",), "a1"), step(2, ("u1", "a1"), "a1b"), step(3, ("u1", "a1", "a1b", "u2"), "a2"))


@pytest.fixture
def scripted(tmp_path: Path) -> VoiceCall:
    return call_with(tmp_path, side(*SPEECH), side(*OUTPUT), SCRIPT, STEPS)


def test_gaps_and_latencies_are_those_of_the_audio_by_hand(scripted: VoiceCall, tmp_path: Path) -> None:
    found = report(scripted, tmp_path / "out")
    assert found["metrics"] == {
        "speech_start_count": 2,
        "speech_stop_count": 2,
        "output_event_count": 3,
        "speech_no_output_count": 0,
        "speech_no_output_ratio": 0.0,
        "speech_start_during_output_count": 1,
        "median_first_audio_ms": 800,  # 600 and 1000 to what was played
        "p90_first_audio_ms": 960,
        "median_first_sound_ms": 900,  # 700 and 1100 to the first sound
        "max_output_gap_ms": 1300,  # 400, 1300 and, between the two messages, 500
        "median_output_gap_ms": 500,
        "max_talk_over_ms": 500,
        "evidence_status": "available",
    }
    assert (found["status"], found["passed"], found["caveats"]) == ("passed", True, [])
    markers = document(tmp_path / "out", "waveform_timeline")["markers"]
    gaps = [(m["offset_ms"], m["duration_ms"], m["message_id"]) for m in markers if m["key"] == "output_gap"]
    assert gaps == [(3500, 400, "a1"), (4500, 1300, "a1"), (6000, 500, "a1b")]


def test_a_gap_is_as_short_as_one_says(scripted: VoiceCall, tmp_path: Path) -> None:
    found = report(scripted, tmp_path / "out", vad=VadSettings(min_silence_ms=450))
    assert found["metrics"]["median_output_gap_ms"] == 900  # 1300 and 500
    found = report(scripted, tmp_path / "out", vad=VadSettings(min_silence_ms=2000))
    assert "max_output_gap_ms" not in found["metrics"]


def test_a_gap_in_which_the_user_speaks_is_none(tmp_path: Path) -> None:
    messages = (
        user("u1", 0, (500, 1000)),
        agent("a1", 1, (1500, 6000)),
        user("u2", 2, (3000, 3500), committed=False),
    )
    call = call_with(tmp_path, side((500, 1000), (3000, 3500)), side((1500, 2500), (4000, 6000)), messages)
    assert "max_output_gap_ms" not in report(call, tmp_path / "out")["metrics"]


def test_the_numbers_are_those_another_detector_gives(scripted: VoiceCall, tmp_path: Path) -> None:
    """The gap of a real voice, cut in two, by the Silero model."""
    from test_agentclash_vad import silero

    clip, rate = sf.read(
        Path(__file__).parents[1] / "src" / "voicetrace" / "demo" / "data" / "agent_weather.flac",
        dtype="int16",
    )
    voice = clip[: 2 * rate]
    played = np.concatenate([np.zeros(2 * rate, np.int16), voice, np.zeros(rate * 3 // 2, np.int16), voice])
    played = np.concatenate([played, np.zeros(rate, np.int16)])
    length_ms = played.size * 1000 // rate
    user_side = np.zeros_like(played)
    user_side[rate // 2 : rate] = 5000 * np.sin(np.arange(rate // 2) / 10)
    path = tmp_path / "voice.wav"
    sf.write(path, np.stack([user_side, played], axis=1), rate, subtype="PCM_16")
    messages = (user("u", 0, (500, 1000)), agent("a", 1, (2000, length_ms - 1000)))
    assert scripted.recording is not None
    recording = scripted.recording.model_copy(update={"uri": path.as_uri(), "duration_ms": length_ms})
    call = dataclasses.replace(scripted, messages=messages, llm_steps=(), recording=recording)
    metrics = report(call, tmp_path / "out")["metrics"]
    heard = silero(played, rate)
    longest = max(b[0] - a[1] for a, b in itertools.pairwise(heard))
    assert abs(metrics["max_output_gap_ms"] - longest) <= 150
    assert abs(metrics["median_first_sound_ms"] - (heard[0][0] - 1000)) <= 100
    assert metrics["median_first_audio_ms"] == 1000


# -- thresholds --------------------------------------------------------------------------------------
def test_thresholds_are_configurable_and_written_down(scripted: VoiceCall, tmp_path: Path) -> None:
    limits = {"max_output_gap_ms": (1000, 2000), "median_first_audio_ms": (100.0, 750.0)}
    found = report(scripted, tmp_path / "out", thresholds=limits)
    assert found["status"] == "failed"
    assert found["agentclash_notes"] == [
        "median_first_audio_ms is 800, above 750: failed.",
        "max_output_gap_ms is 1300, above 1000: warn.",
    ]
    assert found["thresholds"]["max_output_gap_ms"] == {"warn_above": 1000, "fail_above": 2000}
    assert found["thresholds"]["p90_first_audio_ms"] == {"warn_above": 2000, "fail_above": 5000}


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"latency": (1, 2)}, "there is no threshold 'latency'; there are median_first_audio_ms, "),
        ({"max_output_gap_ms": (2, 1)}, "threshold max_output_gap_ms must be two numbers"),
        ({"max_output_gap_ms": (float("nan"), 1)}, "threshold max_output_gap_ms must be two numbers"),
    ],
)
def test_thresholds_that_are_none(limits: Any, sentence: str, scripted: VoiceCall, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=sentence):
        export_bundle(scripted, tmp_path / "out", **IDS, evidence=Evidence(thresholds=limits))
    assert not (tmp_path / "out").exists()


# -- what is missing is said -------------------------------------------------------------------------
def manifest_of(out: Path) -> Any:
    return json.loads((out / "voice_artifact_manifest.json").read_text("utf-8"))


def test_a_silent_side_is_written_and_said(tmp_path: Path) -> None:
    call = call_with(tmp_path, side(), side(*OUTPUT), SCRIPT, STEPS)
    found = report(call, tmp_path / "out")
    assert found["status"] == "degraded"
    assert found["caveats"] == ["2 user messages are silent in the caller audio."]
    assert manifest_of(tmp_path / "out")["metadata"]["caveats"] == [
        "The caller audio is silent from beginning to end."
    ]


def test_messages_the_audio_does_not_hold_degrade_the_report(tmp_path: Path) -> None:
    call = call_with(tmp_path, side(*SPEECH), side(*OUTPUT[:4]), SCRIPT, STEPS)
    found = report(call, tmp_path / "out")
    assert (found["status"], found["caveats"]) == (
        "degraded",
        ["1 agent message is silent in the agent audio."],
    )


def test_without_audio_the_report_says_so(scripted: VoiceCall) -> None:
    found = continuity_report(scripted)
    assert found["status"] == "degraded"
    assert found["caveats"] == [
        "There is no caller audio to hold the messages' bounds against.",
        "There is no agent audio to hold the messages' bounds against.",
    ]
    assert "median_first_sound_ms" not in found["metrics"]
    assert found["metrics"]["max_output_gap_ms"] == 400  # between the two messages, as far as they say


def test_without_content_everything_but_the_words_is_there(scripted: VoiceCall, tmp_path: Path) -> None:
    off = {"text": None, "generated_text": None, "text_status": TextStatus.NOT_CAPTURED}
    private = tuple(m.model_copy(update=off) for m in SCRIPT)
    found = report(dataclasses.replace(scripted, messages=private), tmp_path / "out")
    assert found["status"] == "passed"
    metadata = manifest_of(tmp_path / "out")["metadata"]
    assert metadata["caveats"] == ["The text of 5 of 5 messages was not captured."]
    turns = document(tmp_path / "out", "transcript")["turns"]
    assert {turn["text"] for turn in turns} == {""}
    assert [turn["start_ms"] for turn in turns] == [500, 2600, 6400, 7500, 9600]
    assert document(tmp_path / "out", "redaction_metadata")["findings"] == [
        {"class": "message_text", "count": 5, "action": "not_captured"}
    ]
    everything = b"".join(tree(tmp_path / "out").values())
    assert b"words of" not in everything


def test_incomplete_writes_what_can_be_made_and_stays_honest(scripted: VoiceCall, tmp_path: Path) -> None:
    mute = dataclasses.replace(scripted, recording=None)
    with pytest.raises(BundleError, match="has no recording"):
        export_bundle(mute, tmp_path / "out", **IDS)
    assert not (tmp_path / "out").exists()
    export_bundle(mute, tmp_path / "out", **IDS, incomplete=True)
    assert validate_bundle(tmp_path / "out") == [
        "$.artifacts: has no caller_audio, which every bundle needs",
        "$.artifacts: has no agent_audio, which every bundle needs",
    ]
    manifest = manifest_of(tmp_path / "out")
    assert {a["kind"] for a in manifest["artifacts"]} == {
        "transcript_json",
        "waveform_timeline_json",
        "structured_output_json",
        "live_continuity_report_json",
        "raw_provider_trace_json",
        "redaction_metadata_json",
    }
    assert manifest["metadata"]["caveats"][0].startswith("Missing: call call-1 has no recording")
    assert document(tmp_path / "out", "live_continuity_report")["status"] == "degraded"
    # a whole one takes its place
    export_bundle(scripted, tmp_path / "out", **IDS)
    assert validate_bundle(tmp_path / "out") == []


def test_incomplete_with_one_side_and_without_messages(scripted: VoiceCall, tmp_path: Path) -> None:
    assert scripted.recording is not None
    one = scripted.recording.model_copy(update={"channels": [Channel.AGENT]})
    export_bundle(
        dataclasses.replace(scripted, recording=one, messages=()), tmp_path / "out", **IDS, incomplete=True
    )
    assert {p.name for p in (tmp_path / "out" / "artifacts").iterdir()} == {
        "agent.wav",
        "waveform_timeline.json",
        "structured_output.json",
        "live_continuity_report.json",
        "raw_provider_trace.json",
        "redaction_metadata.json",
    }
    assert [line.split()[3] for line in validate_bundle(tmp_path / "out")] == [
        "caller_audio,",
        "transcript_json,",
    ]
    timeline = document(tmp_path / "out", "waveform_timeline")
    assert [c["channel"] for c in timeline["channels"]] == ["agent"]
    assert [m["key"] for m in timeline["markers"]] == ["output_start", "output_stop"] * 5
    assert {m["basis"] for m in timeline["markers"]} == {"audio"}


def test_lost_audio_is_said(scripted: VoiceCall, tmp_path: Path) -> None:
    index = IndexWriter(index_path(tmp_path / "scripted.wav"), RATE)
    index.lost(Channel.CALLER, 100, 350, "queue full")
    index.lost(Channel.CALLER, 900, 1000, "disk full")
    index.close()
    export_bundle(scripted, tmp_path / "out", **IDS)
    assert manifest_of(tmp_path / "out")["metadata"]["caveats"] == [
        "350 ms of the caller audio were lost while recording (disk full, queue full)."
    ]


# -- sides in files of their own ---------------------------------------------------------------------
def write(path: Path, samples: np.ndarray, rate: int = RATE) -> Path:
    sf.write(path, samples, rate, subtype="PCM_16")
    return path


def test_sides_from_files_are_padded_to_one_length(scripted: VoiceCall, tmp_path: Path) -> None:
    caller = write(tmp_path / "c.wav", side(*SPEECH, length_ms=9000))
    agent_file = write(tmp_path / "a.flac", side(*OUTPUT))
    given = Evidence(caller_audio=caller, agent_audio=agent_file)
    export_bundle(dataclasses.replace(scripted, recording=None), tmp_path / "out", **IDS, evidence=given)
    assert validate_bundle(tmp_path / "out") == []
    _, rate, got = wav(tmp_path / "out" / "artifacts" / "caller.wav")
    np.testing.assert_array_equal(got, side(*SPEECH))
    assert rate == RATE
    assert (tmp_path / "out" / "artifacts" / "mixed.wav").exists()
    assert manifest_of(tmp_path / "out")["metadata"]["caveats"] == [
        "The caller audio is 3000 ms shorter than the other side; silence was added at its end."
    ]


def test_sides_of_two_rates_stay_as_they_are_and_are_not_mixed(scripted: VoiceCall, tmp_path: Path) -> None:
    caller = write(tmp_path / "c.wav", side(*SPEECH))
    agent_file = write(tmp_path / "a.wav", side(*OUTPUT, rate=24_000), 24_000)
    given = Evidence(caller_audio=caller, agent_audio=agent_file)
    export_bundle(scripted, tmp_path / "out", **IDS, evidence=given)
    assert validate_bundle(tmp_path / "out") == []
    sizes = {}
    for name in ("caller", "agent"):
        _, rate, got = wav(tmp_path / "out" / "artifacts" / f"{name}.wav")
        sizes[name] = (rate, got.size * 1000 / rate)
    assert sizes == {"caller": (8000, 12_000.0), "agent": (24_000, 12_000.0)}
    assert not (tmp_path / "out" / "artifacts" / "mixed.wav").exists()
    assert "so there is no mixed audio" in manifest_of(tmp_path / "out")["metadata"]["caveats"][0]


def test_one_given_side_completes_a_recording_of_the_other(scripted: VoiceCall, tmp_path: Path) -> None:
    assert scripted.recording is not None
    half = dataclasses.replace(
        scripted, recording=scripted.recording.model_copy(update={"channels": [Channel.AGENT]})
    )
    caller = write(tmp_path / "c.wav", side(*SPEECH))
    export_bundle(half, tmp_path / "a", **IDS, evidence=Evidence(caller_audio=caller))
    export_bundle(scripted, tmp_path / "b", **IDS)
    a, b = tree(tmp_path / "a" / "artifacts"), tree(tmp_path / "b" / "artifacts")
    assert a == b


def test_sides_that_cannot_be_used(scripted: VoiceCall, tmp_path: Path) -> None:
    stereo = write(tmp_path / "s.wav", np.zeros((100, 2), np.int16))
    empty = write(tmp_path / "e.wav", np.zeros(0, np.int16))
    for path, sentence in (
        (stereo, "the caller audio .*s.wav has 2 channels; it must be mono"),
        (tmp_path / "gone.wav", "the caller audio cannot be read: .*gone.wav does not exist"),
        (empty, "the caller audio .*e.wav is empty"),
    ):
        with pytest.raises(BundleError, match=sentence):
            export_bundle(scripted, tmp_path / "out", **IDS, evidence=Evidence(caller_audio=path))
        assert not (tmp_path / "out").exists()
        assert not list(tmp_path.glob(".*partial"))


# -- all eleven kinds --------------------------------------------------------------------------------
RATIOS = {"dialogue_retention_ratio": 0.9, "background_preservation_ratio": 0.9, "speech_drop_risk": 0.0}


def test_all_eleven_kinds_and_the_producers_metadata(scripted: VoiceCall, tmp_path: Path) -> None:
    attributes = {"gen_ai.provider.name": "acme", "gen_ai.request.model": "acme-1"}
    given = Evidence(
        media_policy_report=source_separation_report(RATIOS),
        video_sync_report=video_sync_report(
            [(0, 1000)], [(300, 1200)], mouth_motion_metrics={"mouth_open_overlap_ratio": 0.7}
        ),
        metadata={"transport": "webrtc", "streaming_mode": "streaming", "background_audio": "discarded"},
    )
    call = dataclasses.replace(scripted, attributes=attributes)
    export_bundle(
        call, tmp_path / "out", **IDS, evidence=given, language="de-CH", metadata={"model": "acme-2"}
    )
    assert validate_bundle(tmp_path / "out") == []
    manifest = manifest_of(tmp_path / "out")
    assert len({a["kind"] for a in manifest["artifacts"]}) == 11
    metadata = manifest["metadata"]
    assert {name: metadata[name] for name in (
        "provider", "model", "transport", "streaming_mode", "background_audio", "input_language",
        "output_language", "available",
    )} == {
        "provider": "acme",
        "model": "acme-2",
        "transport": "webrtc",
        "streaming_mode": "streaming",
        "background_audio": "discarded",
        "input_language": "de-CH",
        "output_language": "de-CH",
        "available": {
            "speaker_channels": True,
            "provider_timing_events": False,
            "llm_steps": True,
            "journal": False,
            "mouth_motion": True,
        },
    }  # fmt: skip
    # a later bundle without the reports leaves no trace of them
    export_bundle(call, tmp_path / "out", **IDS)
    assert not (tmp_path / "out" / "artifacts" / "video_sync_report.json").exists()
    assert validate_bundle(tmp_path / "out") == []


def test_reports_that_are_not_valid_are_refused(scripted: VoiceCall, tmp_path: Path) -> None:
    good = source_separation_report(RATIOS)
    for given, sentence in (
        (
            Evidence(media_policy_report=good | {"status": "warn"}),
            r"media_policy_report is not valid: \$.status",
        ),
        (Evidence(video_sync_report=good), r"video_sync_report is not valid: .*\$.summary: is missing"),
        (Evidence(redaction={"status": "approved_for_regression"}), "redaction metadata is not valid"),
    ):
        with pytest.raises(BundleError, match=sentence):
            export_bundle(scripted, tmp_path / "out", **IDS, evidence=given)
    assert not (tmp_path / "out").exists()


def test_detectors_and_writers_agree_on_what_a_block_is(tmp_path: Path, scripted: VoiceCall) -> None:
    """The export listens in pieces of two seconds; the whole at once says the same."""
    export_bundle(scripted, tmp_path / "out", **IDS)
    sound = document(tmp_path / "out", "waveform_timeline")["channels"][1]["sound"]
    whole = activity_of([side(*OUTPUT)], RATE)
    assert sound == [{"start_ms": a, "end_ms": b} for a, b in whole.intervals]
    assert [(s["start_ms"], s["end_ms"]) for s in sound] == list(OUTPUT)


def test_output_within_output_ends_no_reply_early(scripted: VoiceCall) -> None:
    """Two messages of one answer that overlap: silence begins when the later of the two is over."""
    messages = (
        user("u1", 0, (200, 800)),
        agent("a1", 1, (1000, 5000)),
        agent("a1b", 2, (2000, 3000)),
        agent("a1c", 3, (5600, 6000)),
    )
    steps = (step(1, ("u1",), "a1"), step(2, ("u1", "a1"), "a1b"), step(3, ("u1", "a1", "a1b"), "a1c"))
    found = continuity_report(dataclasses.replace(scripted, messages=messages, llm_steps=steps))
    assert found["metrics"]["max_output_gap_ms"] == 600
    assert found["metrics"]["median_output_gap_ms"] == 600
