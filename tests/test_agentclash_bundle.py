# SPDX-License-Identifier: Apache-2.0
"""A call becomes a bundle: exact audio, honest documents, the same bytes every time, nothing half done."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tracemalloc
import uuid
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile as sf

from agentclash_support import (
    IDS,
    KINDS,
    MESSAGES,
    RATE,
    agent,
    document,
    make_call,
    samples,
    step,
    tree,
    user,
    wav,
)  # fmt: skip
from voicetrace import events as ev
from voicetrace.agentclash import (
    BundleError,
    export_bundle,
    validate_bundle,
    validate_manifest,
    validate_path,
)
from voicetrace.agentclash.reports import LIVE_CONTINUITY
from voicetrace.audio import read_channel
from voicetrace.messages import (
    Channel,
    State,
    TextSource,
    TextStatus,
    TimingSource,
)
from voicetrace.voice_call import VoiceCall


@pytest.fixture
def call(tmp_path: Path) -> VoiceCall:
    return make_call(tmp_path)


@pytest.fixture
def bundle(call: VoiceCall, tmp_path: Path) -> Path:
    return export_bundle(call, tmp_path / "out", **IDS).parent


def report_of(call: VoiceCall, tmp_path: Path) -> Any:
    out = tmp_path / uuid.uuid4().hex
    export_bundle(call, out, **IDS)
    assert validate_bundle(out) == []
    return document(out, "live_continuity_report")


# -- what is written ---------------------------------------------------------------------------------
def test_a_bundle_is_valid_and_whole(bundle: Path, tmp_path: Path) -> None:
    assert validate_bundle(bundle) == []
    manifest = json.loads((bundle / "voice_artifact_manifest.json").read_text())
    assert {a["kind"] for a in manifest["artifacts"]} == KINDS
    assert {a["path"] for a in manifest["artifacts"]} == set(tree(bundle)) - {"voice_artifact_manifest.json"}
    assert manifest["voice_session_id"] == "call-1"
    assert [a["key"] for a in manifest["artifacts"]] == sorted(a["key"] for a in manifest["artifacts"])
    assert manifest["metadata"]["producer"] == "voicetrace"
    assert "caveats" not in manifest["metadata"]
    assert not list(tmp_path.glob(".*partial"))


def test_the_audio_is_the_recordings_sample_by_sample(bundle: Path, tmp_path: Path) -> None:
    expected = samples(10_000)
    for column, name in enumerate(("caller", "agent")):
        channels, rate, got = wav(bundle / "artifacts" / f"{name}.wav")
        assert (channels, rate) == (1, RATE)
        np.testing.assert_array_equal(got, expected[:, column])
        # and so says the reader of recordings
        again = np.concatenate(list(read_channel(tmp_path / "call.wav", Channel(name))))
        np.testing.assert_array_equal(got, again)
    _, _, mixed = wav(bundle / "artifacts" / "mixed.wav")
    np.testing.assert_array_equal(mixed, np.clip(expected.astype(np.int32).sum(axis=1), -32768, 32767))


@pytest.mark.parametrize("swapped", [False, True])
def test_a_flac_recording_and_its_channel_order(swapped: bool, call: VoiceCall, tmp_path: Path) -> None:
    assert call.recording is not None
    path = tmp_path / "call.flac"
    sf.write(path, samples(10_000), RATE, subtype="PCM_16")
    order = [Channel.AGENT, Channel.CALLER] if swapped else [Channel.CALLER, Channel.AGENT]
    recording = call.recording.model_copy(update={"uri": path.as_uri(), "format": "flac", "channels": order})
    export_bundle(dataclasses.replace(call, recording=recording), tmp_path / "out", **IDS)
    _, _, got = wav(tmp_path / "out" / "artifacts" / "caller.wav")
    np.testing.assert_array_equal(got, samples(10_000)[:, int(swapped)])


def test_the_transcript_has_a_turn_for_every_message_in_order(call: VoiceCall, tmp_path: Path) -> None:
    more = (
        user(
            "vad_6",
            6,
            (9100, 9200),
            committed=False,
            text=None,
            text_status=TextStatus.MISSING,
            text_source=None,
        ),
        agent("speech_7", 7, state=State.UNPLAYED, committed=False, text="never said", timing_source=None),
    )
    shuffled = dataclasses.replace(call, messages=(more[1], *reversed(MESSAGES), more[0]))
    export_bundle(shuffled, tmp_path / "out", **IDS, language="en-US")
    transcript = document(tmp_path / "out", "transcript")
    turns = transcript["turns"]
    assert [t["message_id"] for t in turns] == ["hello", "u1", "a1", "u2", "a2", "vad_6", "speech_7"]
    assert [t["turn_index"] for t in turns] == [1, 2, 3, 4, 5, 6, 7]
    assert {t["language"] for t in turns} == {"en-US"}
    assert turns[1] == {
        "turn_index": 2,
        "speaker": "caller",
        "text": "words of u1",
        "language": "en-US",
        "message_id": "u1",
        "start_ms": 1500,
        "end_ms": 3000,
        "text_status": "final",
        "text_source": "stt",
        "state": "complete",
        "committed": True,
        "interrupted": False,
        "generated_text": None,
        "audio": {
            "artifact_key": "caller_audio",
            "selections": [{"start_ms": 1500, "end_ms": 2000}, {"start_ms": 2300, "end_ms": 3000}],
        },
    }
    assert turns[2]["generated_text"] == "words of a1 and more"
    assert turns[4]["interrupted"] is True
    assert (turns[5]["text"], turns[5]["text_status"]) == ("", "missing")
    # nobody heard it, so it was not said
    assert (turns[6]["text"], turns[6]["generated_text"]) == ("", "never said")
    assert "audio" not in turns[6]
    assert transcript["caveats"] == [
        "1 of 7 turns have no text; text_status says why.",
        "1 of 7 turns were never played: the caller did not hear them.",
    ]


def test_the_timeline_marks_what_happened_by_offset(bundle: Path) -> None:
    timeline = document(bundle, "waveform_timeline")
    whole = [{"start_ms": 0, "end_ms": 10_000}]
    assert timeline["channels"] == [
        # noise at full scale from beginning to end
        {"channel": name, "artifact_key": f"{name}_audio", "duration_ms": 10_000, "sound": whole}
        for name in ("caller", "agent")
    ]
    assert [(m["offset_ms"], m["key"]) for m in timeline["markers"]] == [
        (200, "output_start"),
        (1200, "output_stop"),
        (1500, "speech_start"),
        (2000, "speech_stop"),
        (2300, "speech_start"),
        (3000, "speech_stop"),
        (3200, "end_of_turn"),
        (3800, "end_of_speech_to_first_agent_text"),
        (3800, "output_start"),
        (5000, "output_gap"),
        (5000, "output_stop"),
        (5600, "output_start"),
        (5900, "speech_start"),
        (6000, "output_stop"),
        (7000, "speech_stop"),
        (8500, "end_of_speech_to_first_agent_text"),
        (8500, "output_start"),
        (9000, "interruption"),
        (9000, "output_stop"),
    ]
    first = next(m for m in timeline["markers"] if m["key"].startswith("end_of_speech"))
    assert (first["duration_ms"], first["basis"], first["message_id"]) == (800, "first_agent_audio", "a1")


def test_a_journal_says_when_the_first_text_came(call: VoiceCall, tmp_path: Path) -> None:
    events: tuple[ev.Event, ...] = (
        ev.SpeechText(at_ms=3400, speech_id="sp1", text="w", source=TextSource.TTS_INPUT),
        ev.SpeechText(at_ms=3450, speech_id="sp1", text="w", source=TextSource.TTS_INPUT),
        ev.AssistantMessageAdded(at_ms=6000, item_id="a1", speech_id="sp1", text="w"),
    )
    export_bundle(dataclasses.replace(call, events=events), tmp_path / "out", **IDS)
    markers = document(tmp_path / "out", "waveform_timeline")["markers"]
    first = next(m for m in markers if m["key"].startswith("end_of_speech"))
    assert (first["offset_ms"], first["duration_ms"], first["basis"]) == (3400, 400, "generated_text")
    trace = document(tmp_path / "out", "raw_provider_trace")
    assert trace["provider"] == "livekit"
    assert [e["sequence"] for e in trace["events"]] == list(range(1, len(trace["events"]) + 1))
    assert [e["event_type"] for e in trace["events"]] == [
        "span.call",
        "span.llm",
        "span.llm",
        *["voice.message"] * 5,
        "journal.SpeechText",
        "journal.SpeechText",
        "journal.AssistantMessageAdded",
    ]
    assert trace["events"][-1]["item_id"] == "a1"


def test_the_structured_output_is_the_users_or_the_calls_facts(call: VoiceCall, tmp_path: Path) -> None:
    given = {"refund": "rf_123", "nested": {"ok": True}}
    export_bundle(call, tmp_path / "a", **IDS, structured_output=given, schema_ref="refund.v1")
    assert document(tmp_path / "a", "structured_output") == {"schema_ref": "refund.v1", "output": given}
    export_bundle(call, tmp_path / "b", **IDS)
    computed = document(tmp_path / "b", "structured_output")
    assert computed["schema_ref"] == "voicetrace.call_facts.v1"
    facts = computed["output"]
    assert facts["counts"] == {
        "messages": 5,
        "user": 2,
        "assistant": 3,
        "uncommitted": 0,
        "interrupted": 1,
        "unplayed": 0,
        "without_text": 0,
        "llm_steps": 2,
    }
    a1 = facts["messages"][2]
    assert (a1["message_id"], a1["audio_ms"], a1["first_audio_latency_ms"]) == ("a1", 1600, 800)
    assert "text" not in a1
    assert "first_audio_latency_ms" not in facts["messages"][0]


def test_what_capture_left_out_is_a_redaction_finding(call: VoiceCall, tmp_path: Path) -> None:
    private = user("u9", 9, (9300, 9400), text=None, text_status=TextStatus.NOT_CAPTURED)
    export_bundle(dataclasses.replace(call, messages=(*MESSAGES, private)), tmp_path / "out", **IDS)
    found = document(tmp_path / "out", "redaction_metadata")
    assert found["status"] == "unreviewed"
    assert found["findings"] == [{"class": "message_text", "count": 1, "action": "not_captured"}]


def test_metadata_is_added_and_doubts_about_the_recording_are_said(call: VoiceCall, tmp_path: Path) -> None:
    assert call.recording is not None
    doubtful = call.recording.model_copy(update={"sha256": "0" * 64, "duration_ms": 9000})
    changed = dataclasses.replace(call, recording=doubtful, origin_unix_ms=1_700_000_000_250)
    given = {"transport": "webrtc", "framework": "other", "own": {"x": (1, 2)}, "producer": "me"}
    path = export_bundle(changed, tmp_path / "out", **IDS, metadata=given)
    metadata = json.loads(path.read_text())["metadata"]
    assert (metadata["transport"], metadata["framework"], metadata["own"]) == (
        "webrtc",
        "other",
        {"x": [1, 2]},
    )
    assert metadata["producer"] == "voicetrace"
    assert metadata["caveats"] == [
        "The recording's digest differs from the one that was logged: the file was changed.",
        "The recording is 10000 ms long and was logged as 9000 ms.",
        "The recording's clock differs from the call's by -250 ms; offsets are in call-ms.",
    ]
    assert validate_bundle(tmp_path / "out") == []


def test_odd_content_is_written_as_valid_json(call: VoiceCall, tmp_path: Path) -> None:
    odd = dataclasses.replace(
        call,
        messages=(*MESSAGES, user("u9", 9, (9300, 9400), text="half \ud83d and é 👋 \u2028")),
        attributes={
            "nan": float("nan"),
            "bytes": b"\xff",
            "list": (1.0, float("inf")),
            "voice.messages": "{}",
        },
    )
    export_bundle(odd, tmp_path / "out", **IDS)
    assert validate_bundle(tmp_path / "out") == []
    assert document(tmp_path / "out", "transcript")["turns"][-1]["text"] == "half \ufffd and é 👋 \u2028"
    first = document(tmp_path / "out", "raw_provider_trace")["events"][0]
    assert first["attributes"] == {"nan": "nan", "bytes": "ff", "list": [1.0, "inf"]}


ANSWER = agent("a", 2, (1000, 2000))


# -- live continuity ---------------------------------------------------------------------------------
def test_continuity_is_measured_from_the_messages(call: VoiceCall, tmp_path: Path) -> None:
    report = report_of(call, tmp_path)
    assert report["type"] == LIVE_CONTINUITY
    assert report["metrics"] == {
        "speech_start_count": 3,
        "speech_stop_count": 3,
        "output_event_count": 4,
        "speech_no_output_count": 0,
        "speech_no_output_ratio": 0.0,
        "speech_start_during_output_count": 1,
        "median_first_audio_ms": 1150,  # 800 and 1500
        "p90_first_audio_ms": 1430,
        "median_first_sound_ms": 1150,  # noise throughout: it sounds when it is played
        "max_output_gap_ms": 600,
        "median_output_gap_ms": 600,
        "max_talk_over_ms": 100,
        "evidence_status": "available",
    }
    assert (report["status"], report["passed"], report["caveats"]) == ("passed", True, [])
    assert [e["message_ids"] for e in report["exchanges"]] == [["u1"], ["u2"]]


@pytest.mark.parametrize(("late_ms", "status"), [(1100, "passed"), (1300, "warn"), (3100, "failed")])
def test_the_status_follows_the_thresholds(
    late_ms: int, status: str, call: VoiceCall, tmp_path: Path
) -> None:
    messages = (user("u", 0, (500, 1000)), agent("a", 1, (1000 + late_ms, 5000)))
    report = report_of(dataclasses.replace(call, messages=messages, llm_steps=()), tmp_path)
    assert (report["status"], report["passed"]) == (status, status == "passed")
    assert report["metrics"]["median_first_audio_ms"] == late_ms
    assert any("paired with user speech by order" in note for note in report["agentclash_notes"])


def test_unanswered_speech_counts_and_speech_in_two_goes_is_one_turn(call: VoiceCall, tmp_path: Path) -> None:
    messages = (
        user("u1", 0, (200, 1000)),
        user("u2", 1, (4000, 4500)),  # 3 s later: the first was never answered
        user("u3", 2, (5000, 5500)),  # half a second later: the same turn going on
        agent("cut", 3, state=State.UNPLAYED, timing_source=None, text_source=TextSource.TTS_INPUT),
        agent("a", 4, (6000, 7000)),
        user("u4", 5, (8000, 8500)),
    )
    steps = (step(1, ("u1", "u2", "u3"), "a"),)
    report = report_of(dataclasses.replace(call, messages=messages, llm_steps=steps), tmp_path)
    assert [(e["message_ids"], e["answer_id"], e["first_audio_latency_ms"]) for e in report["exchanges"]] == [
        (["u1"], None, None),
        (["u2", "u3"], "a", 500),
        (["u4"], None, None),
    ]
    assert report["metrics"]["speech_no_output_count"] == 2
    assert report["metrics"]["speech_no_output_ratio"] == 0.6667
    assert report["status"] == "failed"


def test_an_answer_is_found_by_its_step_and_not_by_time(call: VoiceCall, tmp_path: Path) -> None:
    # u2 barges in while u1's second step is still to be heard: that audio answers u1, not u2
    messages = (
        user("u1", 0, (200, 1000)),
        agent("filler", 1, (1500, 2000)),
        user("u2", 2, (2500, 3000)),
        agent("result", 3, (3200, 4000)),
        agent("a2", 4, (4300, 5000)),
    )
    steps = (step(1, ("u1",), "filler"), step(2, ("u1", "filler"), "result"), step(3, ("u1", "u2"), "a2"))
    report = report_of(dataclasses.replace(call, messages=messages, llm_steps=steps), tmp_path)
    assert [(e["answer_id"], e["first_audio_latency_ms"]) for e in report["exchanges"]] == [
        ("filler", 500),
        ("a2", 1300),
    ]
    assert "max_output_gap_ms" not in report["metrics"]  # the user spoke in between


def test_dead_air_between_a_filler_and_the_result_is_a_gap(call: VoiceCall, tmp_path: Path) -> None:
    messages = (
        user("u1", 0, (200, 1000)),
        agent("filler", 1, (1500, 2000)),
        agent("result", 3, (5200, 6000)),
    )
    steps = (step(1, ("u1",), "filler"), step(2, ("u1", "filler"), "result"))
    report = report_of(dataclasses.replace(call, messages=messages, llm_steps=steps), tmp_path)
    assert report["metrics"]["max_output_gap_ms"] == 3200
    assert report["status"] == "failed"


@pytest.mark.parametrize(
    ("change", "caveat"),
    [
        (
            {"messages": (user("u", 0, (200, 900), timing_source=TimingSource.LOCAL_RECEIPT), ANSWER)},
            "1 message is bounded by the arrival of events, not by the audio itself.",
        ),
        (
            {"messages": (user("u", 0, (200, 900)), agent("a", 1))},
            "1 agent message is without bounds of the played audio.",
        ),
        (
            {"messages": (user("u", 0, (200, 900)), user("v", 1), agent("a", 2, (1000, 2000)))},
            "1 user message is without audio bounds.",
        ),
        ({"ended": False}, "The call has not ended, or its end is not known."),
        (
            {"messages": (agent("a", 0, (200, 900)),)},
            "There is no committed user speech whose end is known, so no answer could be timed.",
        ),
    ],
)  # fmt: skip
def test_weak_evidence_is_degraded(
    change: dict[str, Any], caveat: str, call: VoiceCall, tmp_path: Path
) -> None:
    report = report_of(dataclasses.replace(call, **change), tmp_path)
    assert (report["status"], report["passed"], report["metrics"]["evidence_status"]) == (
        "degraded",
        False,
        "degraded",
    )
    assert report["caveats"] == [caveat]


def test_typed_input_is_no_speech(call: VoiceCall, tmp_path: Path) -> None:
    typed = user("t", 2, text_source=TextSource.TEXT_INPUT, timing_source=None)
    messages = (user("u", 0, (200, 900)), agent("a", 1, (1000, 2000)), typed, agent("b", 3, (6000, 7000)))
    report = report_of(dataclasses.replace(call, messages=messages, llm_steps=()), tmp_path)
    assert report["status"] == "passed"
    assert "max_output_gap_ms" not in report["metrics"]


# -- the same bytes, and what may be overwritten -----------------------------------------------------
def test_the_same_call_gives_the_same_bytes(call: VoiceCall, tmp_path: Path) -> None:
    export_bundle(call, tmp_path / "a", **IDS)
    export_bundle(
        call, tmp_path / "deep" / "b", run_id=uuid.UUID(IDS["run_id"]), run_agent_id=IDS["run_agent_id"]
    )
    assert tree(tmp_path / "a") == tree(tmp_path / "deep" / "b")


def test_an_earlier_bundle_is_replaced_and_other_files_stay(call: VoiceCall, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_bundle(call, out, **IDS, structured_output={"a": 1})
    (out / "notes.txt").write_text("mine")
    (out / "artifacts" / "extra.txt").write_text("mine too")
    export_bundle(call, out, **IDS)
    assert validate_bundle(out) == []
    export_bundle(call, tmp_path / "fresh", **IDS)
    mine = {"notes.txt": b"mine", "artifacts/extra.txt": b"mine too"}
    assert tree(out) == tree(tmp_path / "fresh") | mine


def test_an_empty_directory_is_fine(call: VoiceCall, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    export_bundle(call, tmp_path / "out", **IDS)
    assert validate_bundle(tmp_path / "out") == []


def test_a_failed_export_leaves_an_earlier_bundle_as_it_was(call: VoiceCall, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_bundle(call, out, **IDS)
    before = tree(out)
    with pytest.raises(BundleError, match="structured_output holds a value that JSON does not have"):
        export_bundle(call, out, **IDS, structured_output={"x": object()})
    assert tree(out) == before
    assert not list(tmp_path.glob(".*partial"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"run_id": "nope"}, "run_id must be a UUID, not 'nope'"),
        ({"run_agent_id": None}, "run_agent_id must be a UUID, not None"),
        ({"run_id": "0" * 32}, "run_id must not be the nil UUID"),
        ({"metadata": {"provider": 3}}, "would not be valid: $.metadata.provider: must be a string, not 3"),
        ({"metadata": {"x": float("nan")}}, "the manifest holds a value that JSON does not have"),
    ],
)  # fmt: skip
def test_wrong_arguments(arguments: dict[str, Any], sentence: str, call: VoiceCall, tmp_path: Path) -> None:
    with pytest.raises(BundleError) as caught:
        export_bundle(call, tmp_path / "out", **(IDS | arguments))
    assert sentence in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_calls_that_cannot_be_a_bundle(call: VoiceCall, tmp_path: Path) -> None:
    recording = call.recording
    assert recording is not None
    torn = tmp_path / "torn.wav"
    torn.write_bytes(b"RIFF")
    empty = tmp_path / "empty.wav"
    sf.write(empty, np.zeros((0, 2), np.int16), RATE)
    mono = tmp_path / "mono.wav"
    sf.write(mono, np.zeros(100, np.int16), RATE)

    def at(uri: str) -> dict[str, Any]:
        return {"recording": recording.model_copy(update={"uri": uri})}

    agent_only = recording.model_copy(update={"channels": [Channel.AGENT]})
    cases: list[tuple[dict[str, Any], str]] = [
        ({"recording": None}, 'has no recording.*configure\\(audio="both"\\)'),
        (
            {"recording": agent_only},
            'has no caller audio, it holds agent only: .*configure\\(audio="both"\\)',
        ),
        (at("s3://bucket/call.wav"), "is not on this machine but at s3://bucket/call.wav"),
        (at((tmp_path / "gone.wav").as_uri()), "is not at .*gone.wav"),
        (at(torn.as_uri()), "cannot be read"),
        (at(empty.as_uri()), "is empty"),
        (at(mono.as_uri()), "has only 1 channel"),
        ({"messages": ()}, "has no messages"),
        ({"call_id": " "}, "has no id"),
    ]
    for change, sentence in cases:
        with pytest.raises(BundleError, match=sentence):
            export_bundle(dataclasses.replace(call, **change), tmp_path / "out", **IDS)
        assert not (tmp_path / "out").exists()
        assert not list(tmp_path.glob(".*partial"))


def test_directories_that_are_not_ours_are_left_alone(call: VoiceCall, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "voice_artifact_manifest.json").write_text('{"metadata": {"producer": "someone"}}')
    file = tmp_path / "file"
    file.write_text("x")
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nowhere")
    linked = export_bundle(call, tmp_path / "linked", **IDS).parent
    shutil.move(linked / "artifacts", tmp_path / "elsewhere")
    (linked / "artifacts").symlink_to(tmp_path / "elsewhere")
    for target, sentence in (
        (full, "is not empty and holds no earlier bundle"),
        (file, "is no directory"),
        (file / "below", "cannot be written"),
        (dangling, "leads nowhere"),
        (linked, "would leave the bundle"),
    ):
        with pytest.raises(BundleError, match=sentence):
            export_bundle(call, target, **IDS)
    assert list(tree(full)) == ["voice_artifact_manifest.json"]


# -- tampering ---------------------------------------------------------------------------------------
def edit(bundle: Path, key: str, **changes: Any) -> None:
    path = bundle / "voice_artifact_manifest.json"
    manifest = json.loads(path.read_text())
    next(a for a in manifest["artifacts"] if a["key"] == key).update(changes)
    path.write_text(json.dumps(manifest))


def index_of(bundle: Path, key: str) -> int:
    manifest = json.loads((bundle / "voice_artifact_manifest.json").read_text())
    return [a["key"] for a in manifest["artifacts"]].index(key)


def test_every_tampered_file_is_named(bundle: Path, tmp_path: Path) -> None:
    artifacts = bundle / "artifacts"
    with (artifacts / "agent.wav").open("r+b") as file:
        file.seek(1000)
        file.write(b"tampered")
    (artifacts / "caller.wav").write_bytes((artifacts / "caller.wav").read_bytes() + b"x")
    (artifacts / "transcript.json").unlink()
    outside = tmp_path / "outside.json"
    shutil.move(artifacts / "structured_output.json", outside)
    (artifacts / "structured_output.json").symlink_to(outside)
    (artifacts / "waveform_timeline.json").unlink()
    os.mkfifo(artifacts / "waveform_timeline.json")  # a reader would wait for ever
    edit(bundle, "redaction_metadata", path="../outside.json")
    report = artifacts / "live_continuity_report.json"
    report.write_text(report.read_text().replace('"passed": true', '"passed": false'))

    problems = "\n".join(validate_bundle(bundle))
    at = {key: f"$.artifacts[{index_of(bundle, key)}]" for key in (
        "agent_audio", "caller_audio", "transcript", "structured_output", "waveform_timeline",
        "redaction_metadata", "live_continuity_report",
    )}  # fmt: skip
    for line in (
        f"{at['agent_audio']}.checksum_sha256: differs from the digest of",
        f"{at['caller_audio']}.size_bytes: says 160044, and ",
        '"artifacts/caller.wav" (key "caller_audio") has 160045 bytes',
        f"{at['caller_audio']}.checksum_sha256: differs",
        f'{at["transcript"]}.path: "artifacts/transcript.json" (key "transcript") is not in the bundle',
        f'{at["structured_output"]}.path: "artifacts/structured_output.json"',
        '(key "structured_output") leaves the bundle through a symbolic link',
        f'{at["waveform_timeline"]}.path: "artifacts/waveform_timeline.json"',
        '(key "waveform_timeline") is no regular file',
        f"{at['redaction_metadata']}.path: must not contain '..'",
        f"{at['live_continuity_report']}.checksum_sha256: differs",
        "artifacts/live_continuity_report.json $.passed: must be true exactly when status is passed",
    ):
        assert line in problems
    assert len(problems.splitlines()) == 10  # the report's size changed as well


def test_a_line_break_in_a_file_name_stays_one_line(bundle: Path) -> None:
    report = bundle / "artifacts" / "live_continuity_report.json"
    report.write_text("{}")
    report.rename(bundle / "artifacts" / "a\nb.json")
    edit(bundle, "live_continuity_report", path="artifacts/a\nb.json")
    problems = validate_bundle(bundle)
    assert '"artifacts/a\\nb.json" $.status: is missing' in problems
    assert not any("\n" in line for line in problems)


def test_a_size_of_zero_says_nothing_and_object_storage_is_not_looked_for(bundle: Path) -> None:
    edit(bundle, "agent_audio", size_bytes=0)
    path = bundle / "voice_artifact_manifest.json"
    manifest = json.loads(path.read_text())
    remote = manifest["artifacts"][index_of(bundle, "mixed_audio")]
    del remote["path"]
    remote |= {"location": "object_storage", "bucket": "b", "object_key": "k"}
    path.write_text(json.dumps(manifest))
    assert validate_bundle(bundle) == []


def test_file_names_no_system_has_and_links_in_a_circle(bundle: Path) -> None:
    edit(bundle, "agent_audio", path="artifacts/\0")
    edit(bundle, "transcript", path="artifacts/" + "x" * 5000)
    (bundle / "artifacts" / "mixed.wav").unlink()
    (bundle / "artifacts" / "mixed.wav").symlink_to("mixed.wav")
    edit(bundle, "redaction_metadata", path="artifacts")
    problems = "\n".join(validate_bundle(bundle))
    assert f"$.artifacts[{index_of(bundle, 'transcript')}].path: " in problems
    assert (
        f'$.artifacts[{index_of(bundle, "mixed_audio")}].path: "artifacts/mixed.wav" cannot be read'
        in problems
    )
    assert f"$.artifacts[{index_of(bundle, 'redaction_metadata')}].path: " in problems
    assert f"$.artifacts[{index_of(bundle, 'agent_audio')}].path: " in problems


def test_a_link_that_stays_inside_is_fine(bundle: Path, tmp_path: Path) -> None:
    shutil.move(bundle / "artifacts" / "mixed.wav", bundle / "mix.wav")
    (bundle / "artifacts" / "mixed.wav").symlink_to("../mix.wav")
    (tmp_path / "by-link").symlink_to(bundle)
    assert validate_bundle(bundle) == []
    assert validate_bundle(tmp_path / "by-link") == []


def test_a_path_is_checked_for_what_it_is(bundle: Path, tmp_path: Path) -> None:
    manifest = bundle / "voice_artifact_manifest.json"
    assert validate_path(bundle) == []
    assert validate_path(manifest) == []
    assert validate_path(bundle / "artifacts" / "live_continuity_report.json") == []
    alone = tmp_path / "alone" / "manifest.json"
    alone.parent.mkdir()
    shutil.copy(manifest, alone)
    assert validate_path(alone) == []  # its files are elsewhere
    (bundle / "artifacts" / "caller.wav").unlink()
    [line] = validate_path(manifest)
    assert line.endswith("is not in the bundle")
    assert validate_path(bundle / "artifacts" / "transcript.json") != []
    assert validate_path(tmp_path / "absent.json") == ["$: cannot be read: No such file or directory"]
    assert validate_bundle(tmp_path / "absent") == [f"$: {tmp_path / 'absent'} is no directory"]
    assert validate_bundle(alone.parent)[0].endswith("has no voice_artifact_manifest.json at its root")


# -- size --------------------------------------------------------------------------------------------
def sparse_recording(path: Path, minutes: int) -> None:
    """Minutes of two-channel silence that take no disk, and are read sample by sample all the same."""
    frames = minutes * 60 * RATE
    with wave.open(str(path), "wb") as out:
        out.setnchannels(2)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.setnframes(frames)
        out.writeframesraw(b"")
        header = 44
        data = frames * 4
    with path.open("r+b") as file:
        file.seek(4)
        file.write((data + 36).to_bytes(4, "little"))
        file.seek(40)
        file.write(data.to_bytes(4, "little"))
        file.truncate(header + data)


@pytest.mark.parametrize("minutes", [2, 30])
def test_memory_does_not_grow_with_the_recording(minutes: int, call: VoiceCall, tmp_path: Path) -> None:
    path = tmp_path / "long.wav"
    sparse_recording(path, minutes)
    assert call.recording is not None
    recording = call.recording.model_copy(update={"uri": path.as_uri(), "duration_ms": minutes * 60_000})
    long = dataclasses.replace(call, recording=recording)
    tracemalloc.start()
    try:
        export_bundle(long, tmp_path / "out", **IDS)
        assert validate_bundle(tmp_path / "out") == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tmp_path / "out" / "artifacts" / "agent.wav").stat().st_size == 44 + minutes * 60 * RATE * 2
    # the 30 minutes are 57 MB of samples; what is held is a few blocks
    assert peak < 12_000_000


def test_a_manifest_of_ours_is_taken_by_the_manifest_rules(bundle: Path) -> None:
    assert validate_manifest(json.loads((bundle / "voice_artifact_manifest.json").read_text())) == []
