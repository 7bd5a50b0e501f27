# SPDX-License-Identifier: Apache-2.0
"""Redaction, the call import and the multimodal trace: refused until approved, and then by the rules."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentclash_support import IDS, MESSAGES, STEPS, agent, make_call, tree, user
from voicetrace import events as ev
from voicetrace.agentclash import (
    BundleError,
    Evidence,
    Promotion,
    PromotionTarget,
    export_bundle,
    validate_bundle,
    validate_path,
)
from voicetrace.agentclash.promotion import call_import_problems, multimodal_trace_problems
from voicetrace.agentclash.redaction import redaction_problems
from voicetrace.messages import State, TextSource, TextStatus, TimingSource
from voicetrace.voice_call import VoiceCall

REVIEW = {
    "status": "approved_for_regression",
    "rules": ["names removed"],
    "findings": [{"class": "person_name", "count": 2, "action": "replaced"}],
    "reviewed_by": "reviewer-7",
    "reviewed_at": "2026-05-13T09:30:00Z",
}
PROMOTION = Promotion(
    PromotionTarget("support", "calls", "refund", "case-1"), "The refund is offered.", "policy", ("late",)
)
TYPED = user("typed", 6, text_source=TextSource.TEXT_INPUT, timing_source=None)
UNHEARD = agent("unheard", 7, state=State.UNPLAYED, committed=False, timing_source=None)
WORDLESS = user("vad_8", 8, (9500, 9700), text=None, text_status=TextStatus.MISSING, committed=False)
EVENTS = (ev.SpeechText(at_ms=3400, speech_id="sp1", text="w", source=TextSource.TTS_INPUT),)


@pytest.fixture
def call(tmp_path: Path) -> VoiceCall:
    return make_call(
        tmp_path, messages=(*MESSAGES, TYPED, UNHEARD, WORDLESS), events=EVENTS, trace_id="a" * 32
    )


def case(call: VoiceCall, out: Path, review: Any = None, **more: Any) -> tuple[Any, Any]:
    given = Evidence(redaction=review or REVIEW, promotion=PROMOTION, with_multimodal_trace=True)
    export_bundle(call, out, **IDS, evidence=dataclasses.replace(given, **more), language="en-US")
    assert validate_bundle(out) == []
    names = ("call_import.json", "multimodal_trace.json")
    for name in names:
        assert validate_path(out / name) == []
    return tuple(json.loads((out / name).read_text("utf-8")) for name in names)  # type: ignore[return-value]


# -- redaction ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"status": "fine"}, "$.status: must be "),
        ({"reviewed_by": None}, "$.reviewed_by: "),
        ({"reviewed_at": "yesterday"}, "$.reviewed_at: must be an RFC 3339 time with its zone"),
        ({"reviewed_at": "2026-05-13T09:30:00"}, "$.reviewed_at: must be an RFC 3339 time with its zone"),
        ({"reviewed_at": "2026-13-13T09:30:00Z"}, "$.reviewed_at: must be an RFC 3339 time with its zone"),
        ({"findings": [{"class": "x", "count": 1}]}, "$.findings[0].action: is missing"),
        ({"findings": [{"class": " ", "count": 1, "action": "a"}]}, "$.findings[0].class: "),
        ({"findings": [{"class": "x", "count": -1, "action": "a"}]}, "$.findings[0].count: "),
        ({"own": 1}, "$.own: "),
    ],
)
def test_redaction_that_breaks_a_rule(change: dict[str, Any], problem: str) -> None:
    [line] = redaction_problems(REVIEW | change)
    assert line.startswith(problem)


def test_who_reviewed_is_needed_for_every_status_but_unreviewed() -> None:
    for status in ("redacted", "rejected", "approved_for_regression"):
        assert redaction_problems({"status": status, "rules": [], "findings": []}) == [
            f"$.reviewed_by: is needed with status {status}",
            f"$.reviewed_at: is needed with status {status}",
        ]
    assert redaction_problems({"status": "unreviewed", "rules": [], "findings": []}) == []
    assert redaction_problems({"status": "unreviewed"}) == ["$.rules: is missing", "$.findings: is missing"]
    assert redaction_problems(REVIEW) == []


def test_a_review_is_written_as_it_is_with_what_capture_left_out(call: VoiceCall, tmp_path: Path) -> None:
    private = user("p", 9, (9800, 9900), text=None, text_status=TextStatus.NOT_CAPTURED)
    call = dataclasses.replace(call, messages=(*call.messages, private))
    export_bundle(call, tmp_path / "out", **IDS, evidence=Evidence(redaction=REVIEW))
    path = tmp_path / "out" / "artifacts" / "redaction_metadata.json"
    written = json.loads(path.read_text())
    assert written["reviewed_by"] == "reviewer-7"
    assert written["findings"] == [
        *REVIEW["findings"],
        {"class": "message_text", "count": 1, "action": "not_captured"},
    ]
    assert validate_path(path) == []
    # handing that in again adds nothing
    export_bundle(call, tmp_path / "again", **IDS, evidence=Evidence(redaction=written))
    assert tree(tmp_path / "again") == tree(tmp_path / "out")


# -- refused until approved --------------------------------------------------------------------------
@pytest.mark.parametrize("status", [None, "unreviewed", "redacted", "rejected"])
@pytest.mark.parametrize("what", [{"promotion": PROMOTION}, {"with_multimodal_trace": True}])
def test_only_an_approved_call_is_promoted(
    status: str | None, what: Any, call: VoiceCall, tmp_path: Path
) -> None:
    review = REVIEW | {"status": status} if status else None
    with pytest.raises(
        BundleError, match="needs redaction metadata with status approved_for_regression, and it"
    ):
        export_bundle(call, tmp_path / "out", **IDS, evidence=Evidence(redaction=review, **what))
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".*partial"))


def test_a_case_does_not_outlive_its_approval(call: VoiceCall, tmp_path: Path) -> None:
    out = tmp_path / "out"
    case(call, out)
    export_bundle(call, out, **IDS, evidence=Evidence(redaction=REVIEW | {"status": "rejected"}))
    assert sorted(p.name for p in out.iterdir()) == ["artifacts", "voice_artifact_manifest.json"]


# -- the call import ---------------------------------------------------------------------------------
def test_the_call_import(call: VoiceCall, tmp_path: Path) -> None:
    imported, _ = case(call, tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "voice_artifact_manifest.json").read_text())
    assert imported["artifact_manifest"] == manifest
    assert {k: imported[k] for k in ("run_id", "run_agent_id", "voice_session_id")} == IDS | {
        "voice_session_id": "call-1"
    }
    assert imported["source"] == {
        "provider": "livekit",
        "call_id": "call-1",
        "captured_at": "2023-11-14T22:13:20.000Z",
    }
    assert imported["trace_id"] == "a" * 32
    assert imported["redaction"]["status"] == "approved_for_regression"
    assert (imported["expected_outcome"], imported["failure_category"], imported["reviewer_labels"]) == (
        "The refund is offered.",
        "policy",
        ["late"],
    )
    assert imported["promotion_target"] == {
        "challenge_pack_slug": "support",
        "input_set_key": "calls",
        "challenge_key": "refund",
        "case_key": "case-1",
    }
    # what nobody heard and what has no words is no entry
    assert [e["segment_id"] for e in imported["transcript"]] == ["hello", "u1", "a1", "u2", "a2", "typed"]
    assert imported["transcript"][1] == {
        "segment_id": "u1",
        "turn_id": "turn-2",
        "speaker": "user",
        "text": "words of u1",
        "language": "en-US",
        "final": True,
        "occurred_at": "2023-11-14T22:13:21.500Z",
        "audio": {
            "segment_id": "u1/audio",
            "artifact_key": "caller_audio",
            "artifact_ref": "artifacts/caller.wav",
            "format": "wav",
            "channel": "caller",
            "duration_ms": 1200,
        },
    }
    typed = imported["transcript"][-1]
    assert "audio" not in typed
    assert typed["occurred_at"] == "2023-11-14T22:13:28.500Z"  # not before what was said before it
    trace = json.loads((tmp_path / "out" / "artifacts" / "raw_provider_trace.json").read_text())
    events = imported["provider_events"]
    assert [e["type"] for e in events] == [e["event_type"] for e in trace["events"]]
    assert len({e["event_id"] for e in events}) == len(events)
    assert events[-1]["occurred_at"] == "2023-11-14T22:13:23.400Z"
    assert events[-1]["payload"]["speech_id"] == "sp1"


def test_a_call_import_is_the_same_every_time(call: VoiceCall, tmp_path: Path) -> None:
    case(call, tmp_path / "a")
    case(call, tmp_path / "b")
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_calls_that_cannot_be_a_case(call: VoiceCall, tmp_path: Path) -> None:
    given = Evidence(redaction=REVIEW, promotion=PROMOTION)
    lost = dataclasses.replace(call, origin_unix_ms=None)
    with pytest.raises(
        BundleError, match="does not say when it began, and a case needs it: give captured_at"
    ):
        export_bundle(lost, tmp_path / "out", **IDS, evidence=given)
    when = dataclasses.replace(PROMOTION, captured_at="2026-05-13T10:00:00+02:00")
    imported, trace = case(lost, tmp_path / "known", promotion=when)
    assert imported["source"]["captured_at"] == "2026-05-13T08:00:00.000Z"
    assert trace["segments"][0]["occurred_at"] == "2026-05-13T08:00:00.200Z"
    wrong = dataclasses.replace(PROMOTION, captured_at="yesterday")
    with pytest.raises(BundleError, match="captured_at must be an RFC 3339 time, not 'yesterday'"):
        export_bundle(lost, tmp_path / "out", **IDS, evidence=dataclasses.replace(given, promotion=wrong))
    mute = dataclasses.replace(call, messages=(WORDLESS,))
    with pytest.raises(BundleError, match="no message of call call-1 has text"):
        export_bundle(mute, tmp_path / "out", **IDS, evidence=given)
    blank = dataclasses.replace(PROMOTION, target=PromotionTarget("a", " ", "c", "d"))
    with pytest.raises(
        BundleError, match=r"\$\.promotion_target\.input_set_key: must be a string that is not blank"
    ):
        export_bundle(call, tmp_path / "out", **IDS, evidence=dataclasses.replace(given, promotion=blank))
    assert not (tmp_path / "out").exists()


def edited(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def apply(data: Any) -> Any:
        change(data)
        return data

    return apply


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda d: d.update(own=1), "$.own: "),
        (lambda d: d["transcript"][0].update(own=1), "$.transcript[0].own: "),
        (
            lambda d: d["artifact_manifest"].update(run_id=IDS["run_agent_id"]),
            "$.artifact_manifest.run_id: must be",
        ),
        (lambda d: d.update(voice_session_id="x"), "$.artifact_manifest.voice_session_id: must be"),
        (
            lambda d: drop(d, "raw_provider_trace_json"),
            "has no raw_provider_trace_json, which an import needs",
        ),
        (
            lambda d: drop(d, "redaction_metadata_json"),
            "has no redaction_metadata_json, which an import needs",
        ),
        (lambda d: drop(d, "transcript_json"), "$.artifact_manifest.artifacts: has no transcript_json"),
        (
            lambda d: d["transcript"][1].update(segment_id="hello"),
            '$.transcript[1].segment_id: "hello" appears twice',
        ),
        (
            lambda d: d["transcript"][1]["audio"].update(segment_id="hello"),
            '.audio.segment_id: "hello" appears twice',
        ),
        (lambda d: d["transcript"][1]["audio"].update(artifact_key="no"), '"no" is not in the manifest'),
        (lambda d: d["transcript"][1].update(speaker="caller"), "$.transcript[1].speaker: must be"),
        (lambda d: d["transcript"][1].update(text=" "), "$.transcript[1].text: must be"),
        (lambda d: d["transcript"][1].update(confidence=1.1), "$.transcript[1].confidence: must be"),
        (lambda d: d["transcript"][1].update(occurred_at="3 pm"), "$.transcript[1].occurred_at: must be"),
        (lambda d: d["redaction"].pop("findings"), "$.redaction.findings: is missing"),
        (
            lambda d: d["redaction"].update(status="redacted"),
            "$.redaction.status: must be approved_for_regression",
        ),
        (lambda d: d["provider_events"][0].update(event_id=""), "$.provider_events[0].event_id: must be"),
        (lambda d: d["promotion_target"].pop("case_key"), "$.promotion_target.case_key: is missing"),
        (lambda d: d.pop("source"), "$.source: is missing"),
    ],
)
def test_a_call_import_that_breaks_a_rule(
    change: Callable[[Any], Any], problem: str, call: VoiceCall, tmp_path: Path
) -> None:
    imported, _ = case(call, tmp_path / "out")
    broken = copy.deepcopy(imported)
    change(broken)
    problems = call_import_problems(broken)
    assert any(problem in line for line in problems), problems


def drop(data: Any, kind: str) -> None:
    listed = data["artifact_manifest"]["artifacts"]
    listed[:] = [a for a in listed if a["kind"] != kind]


def test_nothing_is_an_exception() -> None:
    for data in (
        None,
        [],
        {},
        {"transcript": [1]},
        {"transcript": [{"audio": 3}]},
        {"artifact_manifest": {"artifacts": 3}},
    ):
        assert call_import_problems(data) != []
        assert multimodal_trace_problems(data) != []
    assert multimodal_trace_problems(
        {"segments": [1, {"kind": []}, {"kind": "tool_call", "tool_call": {"call_id": 3}}]}
    )


# -- the multimodal trace ----------------------------------------------------------------------------
def test_the_multimodal_trace(call: VoiceCall, tmp_path: Path) -> None:
    _, trace = case(call, tmp_path / "out")
    segments = trace["segments"]
    assert [s["sequence_number"] for s in segments] == list(range(1, len(segments) + 1))
    times = [s["occurred_at"] for s in segments]
    assert times == sorted(times)
    assert [(s["segment_id"], s["kind"], s["actor"]) for s in segments] == [
        ("hello/audio", "audio_output", "agent"),
        ("hello/text", "transcript_final", "agent"),
        ("u1/audio", "audio_input", "user"),
        ("u1/text", "transcript_final", "user"),
        ("a1/audio", "audio_output", "agent"),
        ("a1/text", "transcript_final", "agent"),
        ("a1/latency", "timing_marker", "system"),
        ("u2/audio", "audio_input", "user"),
        ("u2/text", "transcript_final", "user"),
        ("a2/audio", "audio_output", "agent"),
        ("a2/text", "transcript_final", "agent"),
        ("a2/latency", "timing_marker", "system"),
        ("typed/text", "text_input", "user"),
        ("a2/cut", "media_control", "system"),
        ("vad_8/audio", "audio_input", "user"),
        ("structured-output", "structured_output", "system"),
    ]
    by_id = {s["segment_id"]: s for s in segments}
    assert by_id["a1/latency"]["timing_marker"] == {
        "key": "end_of_user_turn_to_first_agent_output_ms",
        "value_ms": 800,
    }
    assert by_id["a2/cut"]["media_control"] == {
        "action": "barge_in_detected",
        "target_segment_id": "a2/audio",
    }
    assert by_id["u1/text"]["transcript_final"]["source_segment_id"] == "u1/audio"
    assert by_id["structured-output"]["structured_output"]["schema_ref"] == "voicetrace.call_facts.v1"


def segment(n: int, kind: str, payload: Any, **more: Any) -> dict[str, Any]:
    return {
        "segment_id": f"s{n}", "sequence_number": n, "kind": kind, "actor": "agent",
        "occurred_at": "2026-05-13T09:30:00Z", kind: payload,
    } | more  # fmt: skip


def traced(*segments: dict[str, Any]) -> dict[str, Any]:
    return {
        "trace_id": "t",
        "schema_version": "1",
        "run_id": "r",
        "run_agent_id": "a",
        "segments": list(segments),
    }


AUDIO = segment(1, "audio_input", {"artifact_ref": "a"})
CALL = segment(2, "tool_call", {"call_id": "c", "tool_name": "t", "arguments": {}})


@pytest.mark.parametrize(
    ("segments", "problem"),
    [
        ([AUDIO, CALL], None),
        ([AUDIO, CALL, segment(3, "tool_result", {"call_id": "c", "tool_name": "t", "result": 1})], None),
        ([AUDIO, segment(2, "transcript_final", {"text": "x", "source_segment_id": "s1"})], None),
        ([], "$.segments: "),
        ([AUDIO, AUDIO], '$.segments[1].segment_id: "s1" appears twice'),
        ([CALL, AUDIO], "$.segments[1].sequence_number: must be greater than 2"),
        ([CALL, AUDIO | {"sequence_number": 2}], "$.segments[1].sequence_number: must be greater than 2"),
        ([AUDIO | {"sequence_number": 0}], "$.segments[0].sequence_number: "),
        ([AUDIO | {"kind": "audio"}], "$.segments[0].kind: "),
        ([AUDIO | {"kind": "audio_output"}], "$.segments[0]: must have exactly one payload"),
        ([AUDIO | {"text_input": {"text": "x"}}], "$.segments[0]: must have exactly one payload"),
        ([AUDIO | {"actor": "caller"}], "$.segments[0].actor: "),
        (
            [segment(1, "transcript_final", {"text": "x", "source_segment_id": "s1"})],
            "must name an earlier audio",
        ),
        (
            [CALL, segment(3, "transcript_final", {"text": "x", "source_segment_id": "s2"})],
            "must name an earlier audio",
        ),
        (
            [segment(1, "media_control", {"action": "x", "target_segment_id": "s9"})],
            "must name an earlier segment",
        ),
        ([CALL, segment(3, "tool_call", {"call_id": "c", "tool_name": "u"})], '"c" appears twice'),
        (
            [segment(1, "tool_result", {"call_id": "c", "tool_name": "t"})],
            "must be that of an earlier tool call",
        ),
        ([CALL, segment(3, "tool_result", {"call_id": "c", "tool_name": "u"})], "must be that of its call"),
        (
            [segment(1, "timing_marker", {"key": "k", "value_ms": -1})],
            "$.segments[0].timing_marker.value_ms: ",
        ),
        ([segment(1, "transcript_final", {"text": "x", "confidence": 2})], ".confidence: "),
    ],
)
def test_the_rules_of_a_multimodal_trace(segments: Any, problem: str | None) -> None:
    problems = multimodal_trace_problems(traced(*segments))
    if problem is None:
        assert problems == []
    else:
        assert any(problem in line for line in problems), problems


def test_a_call_without_steps_or_times_is_traced_too(tmp_path: Path) -> None:
    call = make_call(
        tmp_path,
        messages=(TYPED, agent("a", 9, (300, 900), timing_source=TimingSource.LOCAL_RECEIPT)),
        llm_steps=STEPS[:0],
    )
    _, trace = case(call, tmp_path / "out")
    assert [s["kind"] for s in trace["segments"]] == [
        "text_input", "audio_output", "transcript_final", "structured_output",
    ]  # fmt: skip
    assert len(trace["trace_id"]) == 32
