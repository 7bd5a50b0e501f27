# SPDX-License-Identifier: Apache-2.0
"""Our verdict on manifests and reports is the published schema's AND ingestion's, on thousands of documents.

The ingestion rules are written here a second time, plainly and without our models, from the contract's
prose; the schemas are the published files. Where the contract's folder is not beside the repository, the
comparison with the schemas is skipped and everything else runs.
"""

from __future__ import annotations

import copy
import functools
import json
import math
import posixpath
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from voicetrace.agentclash import json_schemas, validate_manifest, validate_path, validate_report
from voicetrace.agentclash.manifest import Manifest
from voicetrace.agentclash.reports import REPORT_KINDS, VideoSyncReport

CASES = 1000
SCHEMAS = Path(__file__).resolve().parents[2] / "shared" / "contract" / "agentclash-schemas"
needs_schemas = pytest.mark.skipif(
    not SCHEMAS.is_dir(), reason="the published schemas are not beside the repository"
)

CONTINUITY, SEPARATION, VIDEO = (
    "live_continuity_report_json",
    "media_policy_report_json",
    "video_sync_report_json",
)
SCHEMA_FILES = {
    "manifest": "voice-artifact-manifest.schema.json",
    CONTINUITY: "voice-live-continuity-report.schema.json",
    SEPARATION: "voice-source-separation-report.schema.json",
    VIDEO: "voice-video-sync-report.schema.json",
}


@functools.cache
def schema(name: str) -> Any:
    return jsonschema.Draft202012Validator(json.loads((SCHEMAS / SCHEMA_FILES[name]).read_text()))


# -- valid documents to start from -------------------------------------------------------------------
def artifact(kind: str, n: int = 0, **more: Any) -> dict[str, Any]:
    out = {
        "key": f"{kind}-{n}",
        "kind": kind,
        "location": "local_path",
        "path": f"artifacts/{kind}.bin",
        "content_type": "audio/wav",
        "size_bytes": 12,
        "checksum_sha256": f"{n}" + "0a" * 31 + "f",
    }
    return out | more


REQUIRED = [
    "caller_audio",
    "agent_audio",
    "transcript_json",
    "waveform_timeline_json",
    "structured_output_json",
]
OPTIONAL = [
    "mixed_audio",
    CONTINUITY,
    VIDEO,
    SEPARATION,
    "raw_provider_trace_json",
    "redaction_metadata_json",
]


def manifest() -> dict[str, Any]:
    remote = artifact("mixed_audio", 7)
    remote |= {"location": "object_storage", "bucket": "b", "object_key": "runs/1/x.wav"}
    del remote["path"]
    return {
        "schema_version": "2026-05-13",
        "run_id": "11111111-1111-1111-1111-111111111111",
        "run_agent_id": "ABCDEFab-2222-2222-2222-222222222222",
        "voice_session_id": "session-001",
        "artifacts": [artifact(kind) for kind in REQUIRED] + [remote],
        "metadata": {"provider": "p", "own": {"x": [1, None]}},
    }


def continuity() -> dict[str, Any]:
    return {
        "schema_version": "2026-05-13",
        "type": "agentclash.voice.live_continuity_eval.v1",
        "status": "warn",
        "passed": False,
        "metrics": {
            "speech_start_count": 8,
            "speech_stop_count": 8,
            "output_event_count": 7,
            "evidence_status": "available",
            "median_first_audio_ms": 820,
            "p90_first_audio_ms": 1450.5,
            "max_output_gap_ms": 1150,
            "median_output_gap_ms": 240,
            "speech_no_output_count": 1,
            "speech_no_output_ratio": 0.125,
            "speech_start_during_output_count": 2,
        },
        "caveats": ["No speaker diarization was available."],
    }


def separation() -> dict[str, Any]:
    return {
        "schema_version": "2026-05-13",
        "type": "agentclash.voice.source_separation_eval.v1",
        "status": "degraded",
        "passed": False,
        "metrics": {
            "dialogue_retention_ratio": 0.91,
            "background_preservation_ratio": 0.54,
            "speech_drop_risk": 0.18,
            "background_leakage_in_dialogue_ratio": 0.22,
        },
        "agentclash_notes": ["Background music was partially removed."],
        "artifacts": {"stem": "a.wav"},
    }


def video() -> dict[str, Any]:
    return {
        "schema_version": "2026-05-13",
        "type": "agentclash.voice.video_sync_eval.v1",
        "summary": {
            "status": "warn",
            "status_basis_ms": 640,
            "first_onset_lag_ms": -420,
            "paired_segments": 2,
            "missing_translation_segments": 1,
            "extra_translation_segments": 1,
            "segment_coverage_ratio": 0.6667,
            "duration_fit_score": 0.82,
            "warn_duration_ratio_range": [0.5, 1.5],
            "interpretation": "Late on longer turns.",
        },
        "source_segments": [{"start_ms": i * 1000, "end_ms": i * 1000 + 800} for i in range(3)],
        "translated_segments": [{"start_ms": i * 1000 + 300, "end_ms": i * 1000 + 900} for i in range(3)],
        "pairs": [paired(0, 0), paired(1, 1), {"status": "missing_translation", "source_index": 2}],
        "provider_log_metrics": {"first_audio_byte_ms": 760},
    }


def paired(source: int, translated: int) -> dict[str, Any]:
    return {
        "status": "paired",
        "source_index": source,
        "translated_index": translated,
        "source_start_ms": 0,
        "source_end_ms": 800,
        "translated_start_ms": 300,
        "translated_end_ms": 900,
        "onset_lag_ms": 300,
        "duration_ratio": 0.75,
    }


BASES: dict[str, Callable[[], dict[str, Any]]] = {
    "manifest": manifest,
    CONTINUITY: continuity,
    SEPARATION: separation,
    VIDEO: video,
}


# -- ingestion, a second time ------------------------------------------------------------------------
def filled(value: Any) -> bool:
    return isinstance(value, str) and value.strip() != ""


def num(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def ingests_manifest(m: Any) -> bool:
    def run_id(value: Any) -> bool:
        form = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
        return isinstance(value, str) and bool(re.fullmatch(form, value.lower())) and set(value) != {"0", "-"}

    if not isinstance(m, dict) or m.get("schema_version") != "2026-05-13":
        return False
    if (
        not run_id(m.get("run_id"))
        or not run_id(m.get("run_agent_id"))
        or not filled(m.get("voice_session_id"))
    ):
        return False
    artifacts = m.get("artifacts")
    if not isinstance(artifacts, list) or not artifacts or not all(map(ingests_artifact, artifacts)):
        return False
    keys = [a["key"] for a in artifacts]
    return len(set(keys)) == len(keys) and set(REQUIRED) <= {a["kind"] for a in artifacts}


def ingests_artifact(a: Any) -> bool:
    if not isinstance(a, dict) or not filled(a.get("key")) or a.get("kind") not in [*REQUIRED, *OPTIONAL]:
        return False
    checksum = a.get("checksum_sha256")
    if not isinstance(checksum, str) or not re.fullmatch(r"[0-9a-f]{64}", checksum):
        return False
    size = a.get("size_bytes", 0)  # a 64-bit integer there: 12.0 is none
    if type(size) is not int or not 0 <= size < 2**63:
        return False
    if a.get("location") == "local_path":
        path = a.get("path")
        if not filled(path) or "\\" in path or re.match("[A-Za-z]:", path) or path.startswith("/"):
            return False
        clean = posixpath.normpath(path)
        return clean != ".." and not clean.startswith("../") and "bucket" not in a and "object_key" not in a
    if a.get("location") == "object_storage":
        return filled(a.get("bucket")) and filled(a.get("object_key")) and "path" not in a
    return False


def ingests_scored(r: Any, kind: str) -> bool:
    name = "live_continuity_eval" if kind == CONTINUITY else "source_separation_eval"
    if not isinstance(r, dict) or not filled(r.get("schema_version")) or not isinstance(r.get("type"), str):
        return False
    if r["type"].strip() not in (f"agentclash.voice.{name}.v1", f"voicey.{name}"):
        return False
    states = ["passed", "failed", "degraded"] + (["warn"] if kind == CONTINUITY else [])
    if r.get("status") not in states or r.get("passed") is not (r["status"] == "passed"):
        return False
    metrics = r.get("metrics")
    if not isinstance(metrics, dict):
        return False
    if kind == SEPARATION:
        required = ["dialogue_retention_ratio", "background_preservation_ratio", "speech_drop_risk"]
        optional = ["background_leakage_in_dialogue_ratio", "dialogue_leakage_in_background_ratio"]
        names = required + [n for n in optional if n in metrics]
        return all(num(metrics.get(n)) and 0 <= metrics[n] <= 1 for n in names)
    if metrics.get("evidence_status") not in ("available", "degraded"):
        return False
    if metrics["evidence_status"] == "degraded" and r["status"] == "passed":
        return False
    for key, value in metrics.items():
        if key in continuity()["metrics"] and key != "evidence_status":
            if not num(value) or value < 0 or (key.endswith("_ratio") and value > 1):
                return False
            if key.endswith("_count") and value != int(value):
                return False
    return True


def ingests_video(r: Any) -> bool:
    if not isinstance(r, dict) or not isinstance(r.get("schema_version", ""), str):
        return False
    kind = r.get("type", "")
    if not isinstance(kind, str) or kind.strip() not in (
        "",
        "agentclash.voice.video_sync_eval.v1",
        "voicey.video_sync_eval",
    ):
        return False
    s = r.get("summary")
    if (
        not isinstance(s, dict)
        or s.get("status") not in ("pass", "warn", "fail")
        or not filled(s.get("interpretation"))
    ):
        return False
    counts = ("paired_segments", "missing_translation_segments", "extra_translation_segments")
    for key in VIDEO_NUMBERS:
        if key in s:
            if not num(s[key]) or (s[key] < 0 and "lag" not in key):
                return False
            if key in ("segment_coverage_ratio", "duration_fit_score") and s[key] > 1:
                return False
            if key in counts and s[key] != int(s[key]):
                return False
    for key in ("warn_duration_ratio_range", "fail_duration_ratio_range"):
        bounds = s.get(key, [0, 1])
        if not isinstance(bounds, list) or len(bounds) != 2 or not all(num(b) and b >= 0 for b in bounds):
            return False
        if bounds[0] > bounds[1]:
            return False
    lists = [r.get(name, []) for name in ("source_segments", "translated_segments", "pairs")]
    if not all(isinstance(part, list) and all(isinstance(row, dict) for row in part) for part in lists):
        return False
    source, translated, pairs = lists
    for row in source + translated:
        start, end = row.get("start_ms"), row.get("end_ms")
        if not num(start) or not num(end) or start < 0 or end < start:
            return False
    if not all(ingests_pair(pair, len(source), len(translated)) for pair in pairs):
        return False
    if not pairs:
        return True
    hits = [pair for pair in pairs if pair["status"] == "paired"]
    extra = len(translated) - len({pair["translated_index"] for pair in hits})
    for key, count in zip(counts, (len(hits), len(pairs) - len(hits), extra), strict=True):
        if key in s and s[key] != count:
            return False
    ratio = s.get("segment_coverage_ratio")
    return ratio is None or not source or abs(ratio - len(hits) / len(source)) <= 0.001


VIDEO_NUMBERS = [
    "status_basis_ms",
    "first_onset_lag_ms",
    "median_onset_lag_ms",
    "p90_onset_lag_ms",
    "tail_lag_ms",
    "paired_segments",
    "missing_translation_segments",
    "extra_translation_segments",
    "segment_coverage_ratio",
    "duration_fit_score",
    "median_duration_ratio",
    "min_duration_ratio",
    "max_duration_ratio",
    "source_span_ms",
    "translated_span_ms",
    "span_duration_ratio",
    "warn_threshold_ms",
    "fail_threshold_ms",
]


def ingests_pair(pair: Any, source: int, translated: int) -> bool:
    if pair.get("status") == "paired":
        if any(pair.get(key) is None for key in paired(0, 0)):
            return False
    elif pair.get("status") != "missing_translation" or pair.get("source_index") is None:
        return False
    for key, count in (("source_index", source), ("translated_index", translated)):
        value = pair.get(key)
        if value is not None and (not num(value) or value != int(value) or not 0 <= value < count):
            return False
    for key in (
        "source_start_ms",
        "source_end_ms",
        "translated_start_ms",
        "translated_end_ms",
        "duration_ratio",
    ):
        if pair.get(key) is not None and (not num(pair[key]) or pair[key] < 0):
            return False
    if pair.get("onset_lag_ms") is not None and not num(pair["onset_lag_ms"]):
        return False
    for side in ("source", "translated"):
        start, end = pair.get(f"{side}_start_ms"), pair.get(f"{side}_end_ms")
        if start is not None and end is not None and end < start:
            return False
    return True


def ingests(name: str, data: Any) -> bool:
    if name == "manifest":
        return ingests_manifest(data)
    return ingests_video(data) if name == VIDEO else ingests_scored(data, name)


def ours(name: str, data: Any) -> list[str]:
    return validate_manifest(data) if name == "manifest" else validate_report(data, name)


# -- mutations ---------------------------------------------------------------------------------------
JUNK: list[Any] = [
    None, True, False, 0, 1, 2, 2.0, 2.5, -1, -0.5, 0.5, 0.125, 1.0001, 1e308, 10**400, 2**63, 12.0, "",
    " ", "\t\n", "x", "2", "nan",
    [], {}, [[]], [1.5, 0.5], [0.5, 0.5], [0, 1, 2], ["a"], [1], {"a": 1}, "passed", "failed", "degraded",
    "warn", "available", "pass",
    "fail", "paired", "missing_translation", "local_path", "object_storage", "PASSED", " passed",
    "a/../b", "a/../../b", "..", "../x", "/abs", "C:/x", "c:x", "a\\b", "..\\x", "a/..", "a/...", "./a",
    "a/./b", "a//b", ".", "...", "a..b",
    "~/x", "file:///x", "..\n", "a b", "é/ü.wav", "2026-05-13", "2026-05-14", "0" * 64, "A" * 64, "a" * 63,
    "a" * 64 + "\n", "g" * 64,
    "00000000-0000-0000-0000-000000000000", "11111111-1111-1111-1111-111111111111\n",
    "AAAAAAAA-BBBB-4CCC-8DDD-EEEEEEEEEEEE",
    "{11111111-1111-1111-1111-111111111111}", "11111111111111111111111111111111",
    "urn:uuid:11111111-1111-1111-1111-111111111111",
    *REQUIRED, *OPTIONAL, "other_kind",
    *(f"{pad}{base}{pad}" for base in (
        "agentclash.voice.live_continuity_eval.v1", "voicey.live_continuity_eval",
        "agentclash.voice.video_sync_eval.v1",
        "voicey.video_sync_eval", "agentclash.voice.source_separation_eval.v1",
        "voicey.source_separation_eval",
    ) for pad in ("", " ", "\n", "\u00a0")),
]  # fmt: skip
NAMES: dict[str, list[str]] = {
    "manifest": ["path", "bucket", "object_key", "size_bytes", "content_type", "model", "transport",
    "extra", "metadata"],
    CONTINUITY: ["input", "caveats", "agentclash_notes", "extra", "metrics"],
    SEPARATION: ["caveats", "agentclash_notes", "dialogue_leakage_in_background_ratio", "artifacts", "extra"],
    VIDEO: [
        *VIDEO_NUMBERS, "fail_duration_ratio_range", "status_reasons", "source_end_ms", "translated_index",
        "onset_lag_ms",
        "inputs", "video_sync_note", "voicey_log_metrics", "mouth_motion_metrics", "provider_log_metrics",
        "extra",
    ],
}  # fmt: skip


def containers(data: Any) -> list[Any]:
    found, todo = [], [data]
    while todo:
        value = todo.pop()
        if isinstance(value, dict | list):
            found.append(value)
            todo += value.values() if isinstance(value, dict) else value
    return found


def mutate(name: str, data: Any, rng: random.Random) -> Any:
    """One change somewhere: replace, remove, add, copy or nudge."""
    places = [c for c in containers(data) if c]
    if not places or rng.random() < 0.004:
        return copy.deepcopy(rng.choice(JUNK))
    place = rng.choice(places)
    where = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
    action = rng.random()
    if action < 0.42:
        place[where] = copy.deepcopy(rng.choice(JUNK))
    elif action < 0.55:
        del place[where]
    elif action < 0.72 and isinstance(place, dict):
        place[rng.choice(NAMES[name])] = copy.deepcopy(rng.choice(JUNK))
    elif action < 0.8 and isinstance(place, list):
        place.append(copy.deepcopy(place[where]))
    elif isinstance(place[where], int | float) and not isinstance(place[where], bool):
        place[where] = place[where] + rng.choice([1, -1, 0.0, 0.001, -0.0004, 0.5])
    elif isinstance(place[where], str):
        place[where] = rng.choice([" {}", "{} ", "{}\n", "{}x"]).format(place[where])
    return data


def benign(name: str, data: Any, rng: random.Random) -> Any:
    """A change that keeps a document valid, so that both verdicts are common."""
    if name == "manifest":
        kind = rng.choice(REQUIRED + OPTIONAL)
        data["artifacts"].append(
            artifact(kind, rng.choice([3, 4]), path=rng.choice(["a/...", "./a", "a//b", "é"]))
        )
    elif name == VIDEO:
        summary = data["summary"]
        summary[rng.choice(["tail_lag_ms", "min_duration_ratio", "source_span_ms"])] = rng.choice(
            [0, 2.0, 3.5]
        )
        if rng.random() < 0.3:
            data["type"] = rng.choice(["voicey.video_sync_eval", "  agentclash.voice.video_sync_eval.v1\n"])
        if rng.random() < 0.3:
            data["pairs"] = []
    else:
        status = rng.choice(["passed", "failed", "degraded"])
        data |= {"status": status, "passed": status == "passed", "extra": {"anything": [None]}}
        if rng.random() < 0.5:
            data["metrics"][rng.choice(list(data["metrics"]))] = rng.choice([0, 1, 1.0, 2.0, "degraded"])
    return data


def documents(name: str, count: int) -> Iterator[Any]:
    """Generated documents: valid ones, and ones with a few things wrong."""
    rng = random.Random(name)
    for _ in range(count):
        data: Any = BASES[name]()
        if rng.random() < 0.5:
            data = benign(name, data, rng)
        for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
            data = mutate(name, data, rng)
        yield data


def compare(name: str, count: int) -> tuple[dict[bool, int], dict[str, int], list[Any]]:
    """How many are valid, where the two layers differ, and those on which our verdict is not theirs."""
    seen = {True: 0, False: 0}
    differ = {"schema only": 0, "ingestion only": 0}
    wrong = []
    for data in documents(name, count):
        by_schema, by_ingestion = schema(name).is_valid(data), ingests(name, data)
        expected = by_schema and by_ingestion
        problems = ours(name, data)
        if (problems == []) != expected:
            wrong.append((by_schema, by_ingestion, problems, data))
        seen[expected] += 1
        differ["schema only"] += by_schema and not by_ingestion
        differ["ingestion only"] += by_ingestion and not by_schema
    return seen, differ, wrong


@needs_schemas
@pytest.mark.parametrize("name", BASES)
def test_mutated_documents_get_the_verdict_of_both_layers(name: str) -> None:
    seen, differ, wrong = compare(name, CASES)
    assert wrong == []
    # the comparison says something only if both verdicts, and both kinds of disagreement, really came up
    assert min(seen.values()) > CASES // 6, seen
    assert differ["ingestion only"] > 2, differ
    if name in ("manifest", VIDEO):  # the scored reports' schemas leave ingestion only a blank schema_version
        assert differ["schema only"] > 5, differ


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def near_miss(draw: st.DrawFn, name: str) -> Any:
    """A valid document with some of its values, anywhere, replaced by generated JSON."""
    data = BASES[name]()
    for _ in range(draw(st.integers(0, 2))):
        places = [c for c in containers(data) if c]
        place = draw(st.sampled_from(places))
        where = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        place[where] = draw(JSON)
    return data


@needs_schemas
@pytest.mark.parametrize("name", BASES)
def test_generated_documents_get_the_verdict_of_both_layers(name: str) -> None:
    @settings(
        max_examples=120,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(near_miss(name) | JSON)
    def check(data: Any) -> None:
        assert (ours(name, data) == []) == (schema(name).is_valid(data) and ingests(name, data)), data

    check()


OURS = {
    "manifest": "agentclash-manifest",
    CONTINUITY: "agentclash-live-continuity-report",
    SEPARATION: "agentclash-source-separation-report",
    VIDEO: "agentclash-video-sync-report",
}


@functools.cache
def own_schema(name: str) -> Any:
    generated = json_schemas()[OURS[name]]
    jsonschema.Draft202012Validator.check_schema(generated)
    return jsonschema.Draft202012Validator(generated)


@needs_schemas
@pytest.mark.parametrize("name", BASES)
def test_our_generated_schemas_say_what_the_published_ones_say(name: str) -> None:
    seen = {True: 0, False: 0}
    for data in documents(name, CASES):
        published = schema(name).is_valid(data)
        assert own_schema(name).is_valid(data) == published, data
        seen[published] += 1
    assert min(seen.values()) > CASES // 6, seen

    @settings(
        max_examples=200,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(near_miss(name) | JSON)
    def check(data: Any) -> None:
        assert own_schema(name).is_valid(data) == schema(name).is_valid(data), data

    check()  # fmt: skip


def fields(name: str, where: Any) -> set[str]:
    """Every property a schema names, as a path."""
    out: set[str] = set()
    for key, value in (where.get("properties") or {}).items():
        out |= {f"{name}.{key}"} | fields(f"{name}.{key}", value)
    if "items" in where:
        out |= fields(f"{name}[]", where["items"])
    return out


@needs_schemas
@pytest.mark.parametrize("name", BASES)
def test_our_generated_schemas_name_every_published_field(name: str) -> None:
    published = schema(name).schema

    def resolved(where: Any) -> Any:
        if isinstance(where, dict) and "$ref" in where:
            return resolved(published["$defs"][where["$ref"].removeprefix("#/$defs/")])
        if isinstance(where, dict):
            return {key: resolved(value) for key, value in where.items() if key != "$defs"}
        return [resolved(value) for value in where] if isinstance(where, list) else where

    assert fields("$", own_schema(name).schema) == fields("$", resolved(published))


def test_the_committed_schemas_are_the_generated_ones() -> None:
    folder = Path(__file__).resolve().parents[1] / "specs" / "schemas"
    for name, generated in json_schemas().items():
        committed = json.loads((folder / f"{name}.schema.json").read_text("utf-8"))
        assert committed == json.loads(json.dumps(generated)), "run `make specs`"


@pytest.mark.parametrize("name", BASES)
def test_the_documents_we_start_from_are_valid(name: str) -> None:
    assert ours(name, BASES[name]()) == []


# -- the words ---------------------------------------------------------------------------------------
def test_every_problem_is_named_with_its_path_and_not_just_the_first() -> None:
    data = manifest()
    data["run_id"] = "00000000-0000-0000-0000-000000000000"
    data["voice_session_id"] = " "
    data["artifacts"][0]["checksum_sha256"] = "AB"
    data["artifacts"][1]["size_bytes"] = True
    data["artifacts"][2]["path"] = "a/../b"
    data["artifacts"][3]["key"] = data["artifacts"][0]["key"]
    data["artifacts"][4]["kind"] = "other"
    data["artifacts"][5]["path"] = "x"
    del data["schema_version"]
    assert set(validate_manifest(data)) == {
        "$.schema_version: is missing",
        '$.run_id: must be a UUID other than the nil UUID, not "00000000-0000-0000-0000-000000000000"',
        '$.voice_session_id: must be a string that is not blank, not " "',
        '$.artifacts[0].checksum_sha256: must be 64 lower-case hex digits, not "AB"',
        "$.artifacts[1].size_bytes: must be an integer from 0 to 2^63-1, without a fraction, not true",
        "$.artifacts[2].path: must not contain '..', not \"a/../b\"",
        '$.artifacts[3].key: repeats the key "caller_audio-0" of $.artifacts[0]',
        next(line for line in validate_manifest(data) if line.startswith("$.artifacts[4].kind: must be ")),
        "$.artifacts: has no structured_output_json, which every bundle needs",
        "$.artifacts[5].path: must be absent with location object_storage",
    }


def test_a_report_of_another_type_than_its_kind_is_refused() -> None:
    assert validate_report(continuity(), SEPARATION) != []
    assert validate_report(video(), CONTINUITY) != []


def test_a_report_is_known_by_its_type_or_shape() -> None:
    untyped = video()
    del untyped["type"]
    assert validate_report(untyped) == []
    for base in (continuity(), separation()):
        assert validate_report(base) == []
        del base["type"]
        assert validate_report(base) == ["$.type: is missing"]
    [line] = validate_report({"hello": 1})
    assert line.startswith("$.type: must be agentclash.voice.live_continuity_eval.v1, ")


def test_the_legacy_name_of_log_metrics_counts_only_when_the_new_one_is_absent() -> None:
    old = video()
    old["voicey_log_metrics"] = {"a": 1}
    assert VideoSyncReport.model_validate(old).log_metrics() == {"first_audio_byte_ms": 760}
    del old["provider_log_metrics"]
    assert VideoSyncReport.model_validate(old).log_metrics() == {"a": 1}


def test_a_manifest_is_written_the_stable_way_and_keeps_what_it_does_not_know() -> None:
    data = manifest()
    data["artifacts"].reverse()
    data["later_field"] = {"z": 1}
    written = Manifest.model_validate(data).to_json()
    assert written.endswith("}\n")
    assert '\n  "run_id"' in written
    back = json.loads(written)
    assert [a["key"] for a in back["artifacts"]] == sorted(a["key"] for a in data["artifacts"])
    back["artifacts"].sort(key=lambda a: a["key"])
    data["artifacts"].sort(key=lambda a: a["key"])
    assert back == data


DEEP = b"[" * 100_000
FILES = {
    "empty": b"",
    "not json": b"{",
    "not utf-8": b'{"a": "\xff"}',
    "utf-16": '{"schema_version": "2026-05-13"}'.encode("utf-16"),
    "bom": b"\xef\xbb\xbf{}",
    "nan": b'{"type": "voicey.live_continuity_eval", "metrics": {"median_first_audio_ms": NaN}}',
    "infinity": b'{"summary": {"status_basis_ms": -Infinity}}',
    "overflow": b'{"summary": {"status_basis_ms": 1e999}}',
    "huge integer": b'{"summary": {"status_basis_ms": ' + b"9" * 5000 + b"}}",
    "big integer": b'{"summary": {"status_basis_ms": ' + b"9" * 400 + b"}}",
    "duplicate keys": b'{"type": "x", "type": "y"}',
    "deep array": DEEP,
    "deep object": b'{"a":' * 100_000,
    "deep extra": b'{"summary": ' + b"[" * 900 + b"]" * 900 + b"}",
    "list root": b"[]",
    "string root": b'"\\ud800"',
    "number root": b"1",
    "null root": b"null",
    "lone surrogate": b'{"summary": {"status": "\\ud800", "interpretation": "\\ud800"}}',
    "surrogate key": b'{"artifacts": [{"\\ud800": NaN}]}',
    "odd shapes": b'{"artifacts": {"a": 1}, "metadata": 3, "run_id": []}',
}


@pytest.mark.parametrize("case", FILES)
def test_no_content_of_a_file_is_an_exception(case: str, tmp_path: Path) -> None:
    path = tmp_path / "document.json"
    path.write_bytes(FILES[case])
    problems = validate_path(path)
    assert problems
    for line in problems:
        assert re.match(r"\$[^\n]*: [^\n]+$", line), line
        line.encode()


@pytest.mark.parametrize("name", BASES)
def test_values_that_json_does_not_have_are_refused_wherever_they_are(name: str) -> None:
    for value in (math.nan, math.inf, -math.inf):
        data = BASES[name]()
        data["deep"] = [{"x": value}]
        assert ours(name, data) == ["$.deep[0].x: is not a finite number; JSON has no such value"]


def test_python_values_that_are_no_json_do_not_raise() -> None:
    loop: list[Any] = []
    loop.append(loop)
    nested: Any = 0
    for _ in range(50_000):
        nested = [nested]
    for value in (loop, nested, (1,), {1, 2}, b"x", object(), 10**10_000, {1: 2}):
        for name, base in BASES.items():
            assert ours(name, value) != []
            data = base()
            data["artifacts" if name == "manifest" else "metrics" if name != VIDEO else "summary"] = value
            assert ours(name, data) != []


def test_every_report_kind_has_a_schema() -> None:
    assert set(REPORT_KINDS) == set(SCHEMA_FILES) - {"manifest"}
