# SPDX-License-Identifier: Apache-2.0
"""The three report types: live continuity, source separation and video sync.

As with the manifest, valid is what the published JSON Schema and the platform's ingestion both take.
The legacy ``voicey.*`` type names are read and never written.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final

from pydantic import Field

from voicetrace.agentclash import problems as p
from voicetrace.agentclash.manifest import ArtifactKind

LIVE_CONTINUITY: Final = "agentclash.voice.live_continuity_eval.v1"
VIDEO_SYNC: Final = "agentclash.voice.video_sync_eval.v1"
SOURCE_SEPARATION: Final = "agentclash.voice.source_separation_eval.v1"

NotBlank = Annotated[str, p.NOT_BLANK]
Count = Annotated[float | None, p.number(whole=True)]
NonNegative = Annotated[float | None, p.number()]
Ratio = Annotated[float | None, p.number(0, 1)]
RequiredRatio = Annotated[float, p.number(0, 1)]
Signed = Annotated[float | None, p.number(None)]


class LiveContinuityMetrics(p.Document):
    """Times in ms. What was not measured is absent."""

    evidence_status: Annotated[str, p.one_of("available", "degraded")]
    speech_start_count: Count = None
    speech_stop_count: Count = None
    output_event_count: Count = None
    median_first_audio_ms: NonNegative = None
    p90_first_audio_ms: NonNegative = None
    max_output_gap_ms: NonNegative = None
    median_output_gap_ms: NonNegative = None
    speech_no_output_count: Count = None
    speech_no_output_ratio: Ratio = None
    speech_start_during_output_count: Count = None


class LiveContinuityReport(p.Document):
    """Whether the agent felt live: latency to first audio, gaps, missing answers, overlap."""

    schema_version: NotBlank
    type: Annotated[str, p.trimmed_one_of(LIVE_CONTINUITY, "voicey.live_continuity_eval")]
    status: Annotated[str, p.one_of("passed", "warn", "failed", "degraded")]
    passed: bool
    metrics: LiveContinuityMetrics
    input: str = ""
    caveats: list[str] = Field(default_factory=list)
    agentclash_notes: list[str] = Field(default_factory=list)


class SourceSeparationMetrics(p.Document):
    """Ratios within 0..1; the first three are required."""

    dialogue_retention_ratio: RequiredRatio
    background_preservation_ratio: RequiredRatio
    speech_drop_risk: RequiredRatio
    background_leakage_in_dialogue_ratio: Ratio = None
    dialogue_leakage_in_background_ratio: Ratio = None


class SourceSeparationReport(p.Document):
    """Whether speech and background survived; there is no ``warn`` here."""

    schema_version: NotBlank
    type: Annotated[str, p.trimmed_one_of(SOURCE_SEPARATION, "voicey.source_separation_eval")]
    status: Annotated[str, p.one_of("passed", "failed", "degraded")]
    passed: bool
    metrics: SourceSeparationMetrics
    caveats: list[str] = Field(default_factory=list)
    agentclash_notes: list[str] = Field(default_factory=list)
    artifacts: dict[str, str] = Field(default_factory=dict)


class VideoSyncSummary(p.Document):
    """Lags in ms, which may be negative; spans in ms; ratios. What was not measured is absent."""

    status: Annotated[str, p.one_of("pass", "warn", "fail")]
    interpretation: NotBlank
    status_reasons: list[str] = Field(default_factory=list)
    status_basis_ms: NonNegative = None
    first_onset_lag_ms: Signed = None
    median_onset_lag_ms: Signed = None
    p90_onset_lag_ms: Signed = None
    tail_lag_ms: Signed = None
    paired_segments: Count = None
    missing_translation_segments: Count = None
    extra_translation_segments: Count = None
    segment_coverage_ratio: Ratio = None
    duration_fit_score: Ratio = None
    median_duration_ratio: NonNegative = None
    min_duration_ratio: NonNegative = None
    max_duration_ratio: NonNegative = None
    source_span_ms: NonNegative = None
    translated_span_ms: NonNegative = None
    span_duration_ratio: NonNegative = None
    warn_threshold_ms: NonNegative = None
    fail_threshold_ms: NonNegative = None
    warn_duration_ratio_range: list[Annotated[float, p.number()]] = Field(default_factory=list)
    fail_duration_ratio_range: list[Annotated[float, p.number()]] = Field(default_factory=list)


class VideoSyncSegment(p.Document):
    """One segment of speech, in ms."""

    start_ms: Annotated[float, p.number()]
    end_ms: Annotated[float, p.number()]


_NullableIndex = Annotated[float | None, p.number(whole=True, nullable=True)]
_NullableTime = Annotated[float | None, p.number(nullable=True)]


class VideoSyncPair(p.Document):
    """A source segment and, when ``status`` is ``paired``, its translation."""

    status: Annotated[str, p.one_of("paired", "missing_translation")]
    source_index: _NullableIndex = None
    translated_index: _NullableIndex = None
    source_start_ms: _NullableTime = None
    source_end_ms: _NullableTime = None
    translated_start_ms: _NullableTime = None
    translated_end_ms: _NullableTime = None
    onset_lag_ms: Annotated[float | None, p.number(None, nullable=True)] = None
    duration_ratio: _NullableTime = None


class VideoSyncReport(p.Document):
    """How translated or dubbed speech sits against its source. ``type`` may be absent, not empty."""

    summary: VideoSyncSummary
    schema_version: str = ""
    type: Annotated[str, p.trimmed_one_of(VIDEO_SYNC, "voicey.video_sync_eval")] = VIDEO_SYNC
    inputs: dict[str, Any] = Field(default_factory=dict)
    source_segments: list[VideoSyncSegment] = Field(default_factory=list)
    translated_segments: list[VideoSyncSegment] = Field(default_factory=list)
    pairs: list[VideoSyncPair] = Field(default_factory=list)
    video_sync_note: str = ""
    provider_log_metrics: dict[str, Any] = Field(default_factory=dict)
    voicey_log_metrics: dict[str, Any] = Field(default_factory=dict)
    mouth_motion_metrics: dict[str, Any] = Field(default_factory=dict)

    def log_metrics(self) -> dict[str, Any]:
        """`provider_log_metrics`, or what an older producer wrote under the legacy name."""
        if "provider_log_metrics" in self.model_fields_set:
            return self.provider_log_metrics
        return self.voicey_log_metrics


Report = LiveContinuityReport | SourceSeparationReport | VideoSyncReport

REPORT_KINDS: Final[dict[str, type[Report]]] = {
    ArtifactKind.LIVE_CONTINUITY_REPORT: LiveContinuityReport,
    ArtifactKind.MEDIA_POLICY_REPORT: SourceSeparationReport,
    ArtifactKind.VIDEO_SYNC_REPORT: VideoSyncReport,
}
"""The artifact kinds whose contents are a report, and which."""

_TYPES: Final[dict[str, type[Report]]] = {
    LIVE_CONTINUITY: LiveContinuityReport,
    "voicey.live_continuity_eval": LiveContinuityReport,
    SOURCE_SEPARATION: SourceSeparationReport,
    "voicey.source_separation_eval": SourceSeparationReport,
    VIDEO_SYNC: VideoSyncReport,
    "voicey.video_sync_eval": VideoSyncReport,
}


def report_model(data: object) -> type[Report] | None:
    """Which report ``data`` is, by ``type``, else by its shape; ``None`` when it looks like none."""
    if not isinstance(data, dict):
        return None
    named = data.get("type")
    if isinstance(named, str) and named.strip(p.WHITE) in _TYPES:
        return _TYPES[named.strip(p.WHITE)]
    if "summary" in data:
        return VideoSyncReport
    metrics = data.get("metrics")
    if not isinstance(metrics, dict):
        return None
    if any(name in SourceSeparationMetrics.model_fields for name in metrics):
        return SourceSeparationReport
    return LiveContinuityReport


def validate_report(data: object, kind: str | None = None) -> list[str]:
    """Say every way in which a parsed report breaks the contract; empty when it is valid.

    ``kind`` is the artifact kind it must be (one of `REPORT_KINDS`); without it the report's own ``type``
    or shape says which rules hold. One line per problem, each with its JSON path. Never raises for content.
    """
    model = report_model(data) if kind is None else REPORT_KINDS[kind]
    if not isinstance(data, dict):
        return [f"$: must be an object, not {p.shown(data)}"]
    if model is None:
        return [f"$.type: must be {LIVE_CONTINUITY}, {SOURCE_SEPARATION} or {VIDEO_SYNC}"]
    out = p.shape_problems(model, data)
    if model is VideoSyncReport:
        out += _video_sync_problems(data)
    else:
        out += _passed_problems(data)
    return p.unique(out)


def _passed_problems(data: dict[str, Any]) -> list[str]:
    status, passed = data.get("status"), data.get("passed")
    out: list[str] = []
    if isinstance(status, str) and isinstance(passed, bool) and passed != (status == "passed"):
        out.append(f"$.passed: must be true exactly when status is passed, and status is {p.shown(status)}")
    metrics = data.get("metrics")
    if status == "passed" and isinstance(metrics, dict) and metrics.get("evidence_status") == "degraded":
        out.append("$.status: must not be passed when metrics.evidence_status is degraded")
    return out


# -- video sync: the rules between fields and rows ----------------------------------------------------
_PAIR_FIELDS = tuple(name for name in VideoSyncPair.model_fields if name != "status")
_COVERAGE_TOLERANCE = 0.001


def _list(data: dict[str, Any], name: str) -> list[Any]:
    value = data.get(name)
    return value if isinstance(value, list) else []


def _video_sync_problems(data: dict[str, Any]) -> list[str]:
    source, translated, pairs = (_list(data, n) for n in ("source_segments", "translated_segments", "pairs"))
    summary = data.get("summary")
    summary = summary if isinstance(summary, dict) else {}
    out: list[str] = []
    for name in ("warn_duration_ratio_range", "fail_duration_ratio_range"):
        if name not in summary or not isinstance(bounds := summary[name], list):
            continue
        if len(bounds) != 2:
            out.append(f"$.summary.{name}: must have two values, not {len(bounds)}")
        elif all(map(p.is_number, bounds)) and bounds[0] > bounds[1]:
            out.append(f"$.summary.{name}: must have its lower value first")
    for name, segments in (("source_segments", source), ("translated_segments", translated)):
        for index, segment in enumerate(segments):
            out += _order_problems(segment, f"$.{name}[{index}]", "start_ms", "end_ms")
    for index, pair in enumerate(pairs):
        out += _pair_problems(pair, f"$.pairs[{index}]", len(source), len(translated))
    return out + (_summary_problems(summary, source, translated, pairs) if pairs else [])


def _order_problems(row: Any, at: str, start: str, end: str) -> list[str]:
    if not isinstance(row, dict) or not p.is_number(row.get(start)) or not p.is_number(row.get(end)):
        return []
    return [f"{at}.{end}: must not be before {start}"] if row[end] < row[start] else []


def _pair_problems(pair: Any, at: str, source_count: int, translated_count: int) -> list[str]:
    if not isinstance(pair, dict):
        return []
    status = pair.get("status")
    needed = {"paired": _PAIR_FIELDS, "missing_translation": ("source_index",)}
    out = [
        f"{at}.{name}: is needed in a {status} row"
        for name in (needed.get(status, ()) if isinstance(status, str) else ())
        if pair.get(name) is None
    ]
    for name, count in (("source_index", source_count), ("translated_index", translated_count)):
        value: object = pair.get(name)
        if p.is_number(value) and value >= count:
            out.append(f"{at}.{name}: is outside its list of {count} segments")
    out += _order_problems(pair, at, "source_start_ms", "source_end_ms")
    return out + _order_problems(pair, at, "translated_start_ms", "translated_end_ms")


def _summary_problems(
    summary: dict[str, Any], source: list[Any], translated: list[Any], pairs: list[Any]
) -> list[str]:
    rows = [pair for pair in pairs if isinstance(pair, dict)]
    paired = [row for row in rows if row.get("status") == "paired"]
    used = {row["translated_index"] for row in paired if p.is_number(row.get("translated_index"))}
    expected = {
        "paired_segments": len(paired),
        "missing_translation_segments": sum(row.get("status") == "missing_translation" for row in rows),
        "extra_translation_segments": len(translated) - len(used),
    }
    out = [
        f"$.summary.{name}: must agree with the pair rows, which say {count}"
        for name, count in expected.items()
        if p.is_number(summary.get(name)) and summary[name] != count
    ]
    coverage: object = summary.get("segment_coverage_ratio")
    if source and p.is_number(coverage):
        covered = len(paired) / len(source)
        if math.fabs(coverage - covered) > _COVERAGE_TOLERANCE:
            out.append(
                f"$.summary.segment_coverage_ratio: must be within 0.001 of {covered:.4g}, as the rows say"
            )
    return out
