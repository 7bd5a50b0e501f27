# SPDX-License-Identifier: Apache-2.0
"""What judging a call gives: ten scores with their evidence, and the row that is served.

Severity is a function of the score alone, and there is one rounding rule: a score is rounded to three
decimals when it is made, and severity, mean and counts are computed from the rounded score.
"""

from __future__ import annotations

import enum
import json
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

SCHEMA: Final = "voicetrace.judge/1"
DECIMALS: Final = 3


class Dimension(enum.StrEnum):
    """The ten dimensions, in the order of the contract; the value is the start of the column's name."""

    LATENCY_DEAD_AIR = "latency_dead_air"
    PRONUNCIATION = "pronunciation"
    CLARITY = "clarity"
    FILLER_SILENCE = "filler_silence"
    INTERRUPTION_HANDLING = "interruption_handling"
    AUDIO_CONSISTENCY = "audio_consistency"
    PACING = "pacing"
    WARMTH_TONE = "warmth_tone"
    ACCENT_QUALITY = "accent_quality"
    VOICE_IDENTITY = "voice_identity"


PRIORITY: Final = {
    Dimension.LATENCY_DEAD_AIR: "P0",
    Dimension.PRONUNCIATION: "P0",
    Dimension.CLARITY: "P0",
    Dimension.FILLER_SILENCE: "P1",
    Dimension.INTERRUPTION_HANDLING: "P1",
    Dimension.AUDIO_CONSISTENCY: "P1",
    Dimension.PACING: "P2",
    Dimension.WARMTH_TONE: "P2",
    Dimension.ACCENT_QUALITY: "P2",
    Dimension.VOICE_IDENTITY: "P2",
}


class Severity(enum.StrEnum):
    """How bad a score is."""

    NONE = "None"
    WARNING = "Warning"
    FLAG = "Flag"
    CRITICAL = "Critical"


class NullReason(enum.StrEnum):
    """Why a dimension has no score. Never a default of 1.0 instead."""

    NO_AUDIO = "no_audio"
    NO_AGENT_SPEECH = "no_agent_speech"
    NO_TEXT = "no_text"
    PROVIDER_UNAVAILABLE = "provider_unavailable"
    TOO_SHORT = "too_short"
    NO_EVENTS = "no_events"
    UNTRUSTED_TIMING = "untrusted_timing"
    JUDGE_ERROR = "judge_error"


def severity(score: float) -> Severity:
    """The severity of a (rounded) score, half-open from below."""
    if score >= 0.75:
        return Severity.NONE
    if score >= 0.5:
        return Severity.WARNING
    if score >= 0.25:
        return Severity.FLAG
    return Severity.CRITICAL


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Evidence(_Model):
    """Something one can press play on: which message, which call-ms, what was measured against what."""

    message_id: str | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    metric: str
    value: float | str | None = None
    threshold: float | str | None = None
    quote: str | None = None


class DimensionScore(_Model):
    """One dimension of one call: a score, or the reason why there is none."""

    score: float | None = Field(default=None, ge=0, le=1)
    null_reason: NullReason | None = None
    method: str = "signal"
    confidence: float | None = Field(default=None, ge=0, le=1)
    reason: str = ""
    evidence: tuple[Evidence, ...] = ()

    @classmethod
    def of(cls, score: float, **rest: Any) -> DimensionScore:
        """A score, clamped to 0..1 and rounded by the one rule."""
        return cls(score=round(min(1.0, max(0.0, score)), DECIMALS), **rest)

    @classmethod
    def none(cls, reason: NullReason, why: str = "") -> DimensionScore:
        """No score, and why."""
        return cls(null_reason=reason, reason=why)

    @property
    def severity(self) -> Severity | None:
        """The severity of the score, if there is one."""
        return None if self.score is None else severity(self.score)


class CallJudgement(_Model):
    """All ten dimensions of one call, with what was judged and by what. Same bytes in, same bytes out."""

    call_sid: str
    call_entity_id: str | None = None
    workspace_id: str = ""
    service_id: str | None = None
    started_at: datetime | None = None
    judge_version: str
    rubric_sha256: str
    providers: dict[str, str] = Field(default_factory=dict)
    """Provider name to ``model@sha256`` of every weight file that was used."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """Digests of what was judged: ``trace_sha256``, ``audio_sha256``."""
    dimensions: dict[Dimension, DimensionScore]
    error: str = ""

    @property
    def overall(self) -> float | None:
        """The arithmetic mean of the dimensions that have a score."""
        scores = [d.score for d in self.dimensions.values() if d.score is not None]
        return round(sum(scores) / len(scores), DECIMALS) if scores else None

    def count(self, wanted: Severity) -> int:
        """How many dimensions have this severity."""
        return sum(d.severity is wanted for d in self.dimensions.values())

    def judge_json(self) -> str:
        """The evidence as one compact, versioned JSON string; opaque to the API."""
        body: dict[str, Any] = {
            "schema": SCHEMA,
            "judge": {
                "name": "voicetrace",
                "version": self.judge_version,
                "rubric_sha256": self.rubric_sha256,
                "providers": dict(sorted(self.providers.items())),
            },
            "inputs": dict(sorted(self.inputs.items())),
            "dimensions": {
                name.value: {
                    **self.dimensions[name].model_dump(mode="json", exclude_none=True),
                    "score": self.dimensions[name].score,
                    "severity": self.dimensions[name].severity,
                    "priority": PRIORITY[name],
                }
                for name in Dimension
                if name in self.dimensions
            },
        }
        if self.error:
            body["judge_error"] = self.error
        return json.dumps(body, separators=(",", ":"), ensure_ascii=False)

    def row(self, computed_at: datetime) -> JudgeRow:
        """The row that is stored and served."""
        scores = {f"{name.value}_score": self.dimensions[name].score for name in Dimension}
        return JudgeRow(
            call_sid=self.call_sid,
            call_entity_id=self.call_entity_id,
            service_id=self.service_id,
            **scores,
            overall_score=self.overall,
            critical_count=self.count(Severity.CRITICAL),
            flag_count=self.count(Severity.FLAG),
            warning_count=self.count(Severity.WARNING),
            judge_json=self.judge_json(),
            computed_at=computed_at.astimezone(UTC),
        )


class JudgeRow(_Model):
    """One row of ``voice-judge/recent``, field by field as the contract names them."""

    call_sid: str
    call_entity_id: str | None = None
    service_id: str | None = None
    latency_dead_air_score: float | None = None
    pronunciation_score: float | None = None
    clarity_score: float | None = None
    filler_silence_score: float | None = None
    interruption_handling_score: float | None = None
    audio_consistency_score: float | None = None
    pacing_score: float | None = None
    warmth_tone_score: float | None = None
    accent_quality_score: float | None = None
    voice_identity_score: float | None = None
    overall_score: float | None = None
    critical_count: int | None = None
    flag_count: int | None = None
    warning_count: int | None = None
    judge_json: str | None = None
    computed_at: datetime | None = None
