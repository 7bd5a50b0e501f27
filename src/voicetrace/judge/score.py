# SPDX-License-Identifier: Apache-2.0
"""From findings to a dimension's score: mostly the worst one, a little of all, and never above a cap.

``min(caps, 0.7 * worst + 0.3 * mean)``: continuous, so a little jitter of a measurement moves a score a
little; and more of a defect never raises it, because a repeated event can only lower the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from voicetrace.judge.result import DimensionScore, Evidence
from voicetrace.judge.rubric import Rubric

MOST_EVIDENCE: Final = 12
_FINE: Final = 0.75


@dataclass(frozen=True, slots=True)
class Finding:
    """One event and what it is worth. ``cap`` bounds the whole dimension; ``why`` says what happened."""

    score: float
    evidence: Evidence
    why: str = ""
    cap: float | None = None


def combine(
    findings: Sequence[Finding],
    rubric: Rubric,
    *,
    method: str = "signal",
    confidence: float = 1.0,
    fine: str = "nothing below the bar",
) -> DimensionScore:
    """The score of at least one finding, with the worst of them as evidence.

    ``fine`` is the reason that is given when every finding meets the bar.
    """
    values = [min(1.0, max(0.0, f.score)) for f in findings]
    worst, mean = min(values), sum(values) / len(values)
    score = rubric.number("score", "worst") * worst + rubric.number("score", "mean") * mean
    score = min([score, *(f.cap for f in findings if f.cap is not None)])
    order = sorted(
        findings, key=lambda f: (f.cap if f.cap is not None else 1.0, f.score, f.evidence.start_ms or 0)
    )
    bad = [f for f in order if f.score < _FINE or (f.cap is not None and f.cap < _FINE)]
    shown = bad[:MOST_EVIDENCE] or order[:1]
    reason = next((f.why for f in shown if f.why), "") if bad else fine
    if len(bad) > 1:
        reason = f"{reason} (and {len(bad) - 1} more)" if reason else f"{len(bad)} findings"
    return DimensionScore.of(
        score,
        method=method,
        confidence=round(confidence, 3),
        reason=reason,
        evidence=tuple(f.evidence for f in shown),
    )


def spot(
    message_id: str | None,
    start_ms: int,
    end_ms: int,
    metric: str,
    value: float | str | None,
    threshold: float | str | None = None,
    quote: str | None = None,
) -> Evidence:
    """An evidence item with its numbers rounded for people."""
    return Evidence(
        message_id=message_id,
        start_ms=start_ms,
        end_ms=end_ms,
        metric=metric,
        value=round(value, 3) if isinstance(value, float) else value,
        threshold=round(threshold, 3) if isinstance(threshold, float) else threshold,
        quote=quote,
    )
