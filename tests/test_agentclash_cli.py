# SPDX-License-Identifier: Apache-2.0
"""``voicetrace bundle`` and ``voicetrace validate`` with everything a bundle can have."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile as sf
from typer.testing import CliRunner

from agentclash_support import IDS, tree
from test_agentclash_imported import AGENT, CALLER, TURNS, sound
from test_agentclash_promotion import REVIEW
from voicetrace.cli import app
from voicetrace.testing import scripted_call

RUN = ["--run-id", IDS["run_id"], "--run-agent-id", IDS["run_agent_id"]]


def run(*args: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(a) for a in args], prog_name="voicetrace")
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.stdout


def refused(*args: str | Path, code: int = 1) -> str:
    result = CliRunner().invoke(app, [str(a) for a in args], prog_name="voicetrace")
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("voicetrace: ").rstrip("\n")


@pytest.fixture
def sides(tmp_path: Path) -> list[str | Path]:
    caller, agent = sound(tmp_path / "caller.wav", CALLER), sound(tmp_path / "agent.wav", AGENT)
    return ["--caller", caller, "--agent", agent]


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    directory = tmp_path / "calls"
    script = scripted_call(directory)
    script.user("Which hotels are near?", 400, 2000)
    script.agent("There are three hotels.", 3000, 4000)
    script.finish(6000)
    return directory


def put(path: Path, data: Any) -> Path:
    path.write_text(json.dumps(data))
    return path


def document(out: Path, name: str) -> Any:
    return json.loads((out / "artifacts" / f"{name}.json").read_text())


def manifest(out: Path) -> Any:
    return json.loads((out / "voice_artifact_manifest.json").read_text())


# -- a call that was never traced --------------------------------------------------------------------
def test_a_call_from_two_files_and_a_transcript(sides: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    extra = ["--transcript", put(tmp_path / "t.json", {"turns": TURNS}), "--call-id", "case-7"]
    said = run("bundle", *sides, *extra, "--out", out, *RUN, "--captured-at", "2026-05-13T09:30:00Z")
    assert said.splitlines()[0] == f"wrote {out / 'voice_artifact_manifest.json'}"
    assert run("validate", out) == f"{out} is a valid bundle\n"
    assert manifest(out)["voice_session_id"] == "case-7"
    turns = document(out, "transcript")["turns"]
    assert [(t["text"], t["language"]) for t in turns] == [
        (t["text"], t.get("language", "und")) for t in TURNS
    ]
    assert document(out, "live_continuity_report")["status"] == "passed"


def test_wrong_ways_to_name_a_call(sides: Any, calls: Path, tmp_path: Path) -> None:
    out = ["--out", tmp_path / "out", *RUN]
    assert refused("bundle", *out, code=2) == "name a SOURCE, or both --caller and --agent"
    assert refused("bundle", *sides[:2], *out, code=2) == "name a SOURCE, or both --caller and --agent"
    transcript = put(tmp_path / "t.json", TURNS)
    assert "--transcript is for a call without SOURCE" in refused(
        "bundle", calls, "--transcript", transcript, *out, code=2
    )
    bad = put(tmp_path / "bad.json", [{"speaker": "x"}])
    assert "turn 0 of the transcript must have a speaker" in refused(
        "bundle", *sides, "--transcript", bad, *out
    )
    stereo = tmp_path / "stereo.wav"
    sf.write(stereo, np.zeros((800, 2)), 8000)
    assert "must be a mono file" in refused("bundle", "--caller", stereo, *sides[2:], *out)
    assert not (tmp_path / "out").exists()


# -- evidence ----------------------------------------------------------------------------------------
def test_everything_a_bundle_can_have(calls: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rng = np.random.default_rng(1)
    t = np.arange(80_000) / 8000
    speech, room = 0.2 * np.sin(900 * t) * (t % 1 < 0.5), 0.02 * rng.standard_normal(t.size)
    for name, signal in {"speech": speech, "room": room}.items():
        sf.write(tmp_path / f"{name}.wav", signal, 8000)
    stems = ["--speech-stem", tmp_path / "speech.wav", "--background-stem", tmp_path / "room.wav"]
    references = [
        "--speech-reference",
        tmp_path / "speech.wav",
        "--background-reference",
        tmp_path / "room.wav",
    ]
    video = ["--source-speech", tmp_path / "speech.wav", "--translated-speech", tmp_path / "speech.wav"]
    producer = ["--provider", "acme", "--model", "acme-1", "--transport", "webrtc"]
    producer += ["--streaming-mode", "streaming", "--background-audio", "discarded", "--language", "en-US"]
    numbers = ["--threshold", "median_first_audio_ms=900,2000", "--gap-ms", "300"]
    review = ["--redaction", put(tmp_path / "review.json", REVIEW)]
    case = ["--promote", "pack/set/challenge/case", "--expected-outcome", "Booked.", "--label", "a"]
    store = ["--multimodal-trace", "--store", (tmp_path / "store").as_uri()]
    arguments = [*stems, *references, *video, *producer, *numbers, *review, *case, *store]
    said = json.loads(run("bundle", calls, "--out", out, *RUN, *arguments, "--json"))
    assert said["problems"] == []
    assert said["uploaded_to"] == (tmp_path / "store").as_uri()
    assert {Path(p).name for p in said["artifacts"]} >= {"call_import.json", "multimodal_trace.json"}
    assert len({a["kind"] for a in manifest(out)["artifacts"]}) == 11
    assert manifest(out)["metadata"]["background_audio"] == "discarded"
    assert document(out, "media_policy_report")["status"] == "passed"
    assert document(out, "video_sync_report")["summary"]["status"] == "pass"
    report = document(out, "live_continuity_report")
    assert report["thresholds"]["median_first_audio_ms"] == {"warn_above": 900, "fail_above": 2000}
    assert report["status"] == "warn"
    for name in ("call_import.json", "multimodal_trace.json", "voice_artifact_manifest.object_storage.json"):
        assert run("validate", out / name) == f"{out / name} is a valid manifest or report\n"
    imported = json.loads((out / "call_import.json").read_text())
    assert imported["promotion_target"]["challenge_key"] == "challenge"
    assert run("validate", tmp_path / "review.json")


def test_given_numbers_and_segments(calls: Path, tmp_path: Path) -> None:
    ratios = {"dialogue_retention_ratio": 0.9, "background_preservation_ratio": 0.9, "speech_drop_risk": 0.5}
    segments = {
        "source_segments": [{"start_ms": 0, "end_ms": 900}],
        "translated_segments": [{"start_ms": 700, "end_ms": 1500, "source_index": 0}],
    }
    given = [
        "--media-policy",
        put(tmp_path / "m.json", ratios),
        "--video-sync",
        put(tmp_path / "v.json", segments),
    ]
    run("bundle", calls, "--out", tmp_path / "a", *RUN, *given)
    policy, video = (document(tmp_path / "a", n) for n in ("media_policy_report", "video_sync_report"))
    assert (policy["status"], video["summary"]["status"]) == ("failed", "warn")
    # and the reports themselves
    given = [
        "--media-policy",
        put(tmp_path / "m.json", policy),
        "--video-sync",
        put(tmp_path / "v.json", video),
    ]
    run("bundle", calls, "--out", tmp_path / "b", *RUN, *given)
    assert document(tmp_path / "b", "media_policy_report") == policy
    assert document(tmp_path / "b", "video_sync_report") == video


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--threshold", "x"], 2, "--threshold must be NAME=WARN,FAIL, not x"),
        (["--threshold", "x=1,2"], 1, "there is no threshold 'x'"),
        (["--gap-ms", "0"], 2, "--gap-ms"),
        (["--speech-stem", "a.wav"], 2, "separation needs both --speech-stem and --background-stem"),
        (
            ["--speech-stem", "a", "--background-stem", "b", "--speech-reference", "c"],
            2,
            "a reference needs both",
        ),
        (["--source-speech", "a.wav"], 2, "video sync needs both --source-speech and --translated-speech"),
        (["--speech-stem", "gone", "--background-stem", "gone"], 1, "a stem cannot be read"),
        (["--media-policy", "gone.json"], 1, "--media-policy gone.json cannot be read as JSON: "),
        (["--redaction", "gone.json"], 1, "--redaction gone.json cannot be read as JSON: "),
        (["--promote", "a/b/c"], 2, "--promote must be PACK/INPUT_SET/CHALLENGE/CASE, not a/b/c"),
        (["--promote", "a/b/c/d"], 1, "needs redaction metadata with status approved_for_regression"),
        (["--multimodal-trace"], 1, "needs redaction metadata with status approved_for_regression"),
        (["--label", "x"], 2, "--label needs --promote"),
        (["--expected-outcome", "x"], 2, "--expected-outcome needs --promote"),
        (["--store", "b/p"], 1, "b/p names no place in object storage"),
        (["--store-option", "a=b"], 2, "--store-option needs --store"),
        (["--store", "s3://b", "--store-option", "a"], 2, "--store-option must be KEY=VALUE, not a"),
    ],
)
def test_options_that_are_wrong(
    arguments: list[str], code: int, sentence: str, calls: Path, tmp_path: Path
) -> None:
    assert sentence in refused("bundle", calls, "--out", tmp_path / "out", *RUN, *arguments, code=code)


@pytest.mark.parametrize(
    ("option", "data", "sentence"),
    [
        ("--media-policy", [1], "is no JSON object"),
        ("--media-policy", {"metrics": 3}, "has no object of ratios"),
        ("--media-policy", {"speech_drop_risk": 0}, "dialogue_retention_ratio: is missing"),
        ("--media-policy", {"type": "x"}, "the media_policy_report is not valid: "),
        ("--video-sync", {"source_segments": []}, "has no translated_segments, a list of objects"),
        ("--video-sync", {"source_segments": [{}], "translated_segments": []}, "is no stretch of time"),
        ("--video-sync", {"summary": {}}, "the video_sync_report is not valid: "),
        ("--redaction", {"status": "approved_for_regression"}, "the redaction metadata is not valid: "),
    ],
)
def test_documents_that_are_wrong(option: str, data: Any, sentence: str, calls: Path, tmp_path: Path) -> None:
    path = put(tmp_path / "d.json", data)
    assert sentence in refused("bundle", calls, "--out", tmp_path / "out", *RUN, option, path)
    assert not (tmp_path / "out").exists()


def test_incomplete_is_written_and_fails(calls: Path, tmp_path: Path) -> None:
    [recording] = calls.glob("*/recording.*[!l]")
    recording.unlink()
    assert "is not at" in refused("bundle", calls, "--out", tmp_path / "out", *RUN)
    said = run("bundle", calls, "--out", tmp_path / "out", *RUN, "--incomplete", code=1)
    assert said.splitlines()[-2:] == [
        "$.artifacts: has no caller_audio, which every bundle needs",
        "$.artifacts: has no agent_audio, which every bundle needs",
    ]
    assert run("validate", tmp_path / "out", code=1).splitlines() == said.splitlines()[-2:]


# -- validate ----------------------------------------------------------------------------------------
def test_bundles_of_others_are_validated_too(sides: Any, tmp_path: Path) -> None:
    """A bundle as somebody else would write it: other names, other order, a legacy report type."""
    run("bundle", *sides, "--out", tmp_path / "ours", *RUN)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    data = manifest(tmp_path / "ours")
    for n, artifact in enumerate(data["artifacts"]):
        (tmp_path / "ours" / artifact["path"]).rename(theirs / f"file {n}")
        artifact |= {"key": f"k{n}", "path": f"file {n}"}
        del artifact["size_bytes"]
    data["artifacts"].reverse()
    data["metadata"] = {"own": [1]}
    put(theirs / "voice_artifact_manifest.json", data)
    assert run("validate", theirs) == f"{theirs} is a valid bundle\n"
    legacy = {
        "schema_version": "1",
        "type": " voicey.live_continuity_eval\n",
        "status": "failed",
        "passed": False,
    }
    path = put(tmp_path / "legacy.json", legacy | {"metrics": {"evidence_status": "available"}})
    run("validate", path)
    put(path, legacy | {"metrics": {"evidence_status": "available"}, "passed": True})
    assert run("validate", path, code=1).startswith("$.passed: must be true exactly when status is passed")


# -- the example and the page for evaluators ---------------------------------------------------------
ROOT = Path(__file__).resolve().parents[1]


def test_the_example_bundle_is_complete_valid_small_and_what_its_script_makes(tmp_path: Path) -> None:
    example = ROOT / "examples" / "bundle"
    assert run("validate", example) == f"{example} is a valid bundle\n"
    for name in ("call_import.json", "multimodal_trace.json"):
        run("validate", example / name)
    assert len({a["kind"] for a in manifest(example)["artifacts"]}) == 11
    committed = tree(example)
    assert sum(map(len, committed.values())) < 300_000
    runpy.run_path(str(ROOT / "examples" / "build_bundle.py"))["build"](tmp_path / "again")
    assert tree(tmp_path / "again") == committed, "run examples/build_bundle.py"


def test_the_page_for_evaluators_names_options_and_files_that_are_there() -> None:
    page = (ROOT / "docs" / "evaluators.md").read_text("utf-8")
    help_text = run("bundle", "--help")
    for option in set(re.findall(r"--[a-z][a-z-]+", page)):
        assert option in help_text, option
    for name in set(re.findall(r"`(?:artifacts/)?([a-z_]+\.(?:json|wav))`", page)) - {"review.json"}:
        example = ROOT / "examples" / "bundle"
        assert (example / name).exists() or (example / "artifacts" / name).exists(), name
    for link in re.findall(r"\]\(([^)]+)\)", page):
        assert (ROOT / "docs" / link).exists(), link
