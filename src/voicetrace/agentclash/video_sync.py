# SPDX-License-Identifier: Apache-2.0
"""The video sync report: how translated or dubbed speech sits against its source.

**Pairing.** A translated segment that says which source it renders (``source_index``) is paired with it.
The others are paired in order: of all pairings that keep both orders, the one with the greatest sum of
``max_lag_ms - |onset lag|`` over its pairs, each with an onset lag of at most ``max_lag_ms`` either way. A
source segment without a partner is ``missing_translation``, a translated one ``extra``.

**Numbers** over the pairs, in order of the source: an *onset lag* is the translation's start minus the
source's, the *tail lag* the last pair's translated end minus its source's end, a *duration ratio* translated
over source length. ``duration_fit_score`` is the mean of ``min(ratio, 1/ratio)``. A *span* reaches from the
first start to the last end. ``status_basis_ms`` is the 90th percentile of the lags without their signs.

**Status** is the worst of: the basis above ``warn_ms`` or ``fail_ms``; coverage (paired over source segments)
below ``warn_coverage`` or ``fail_coverage``; the median duration ratio outside a range; extra segments
(warn). Without any pair it is ``fail``.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from voicetrace.agentclash import problems as p
from voicetrace.agentclash.artifacts import BundleError
from voicetrace.agentclash.continuity import percentile
from voicetrace.agentclash.manifest import SCHEMA_VERSION
from voicetrace.agentclash.reports import VIDEO_SYNC, validate_report

if TYPE_CHECKING:
    from voicetrace.agentclash.vad import VadSettings

_MAX_CELLS: Final = 64_000_000  # of the pairing's table: one byte each


@dataclass(frozen=True, slots=True)
class VideoSyncLimits:
    """What still passes. Lags in ms, coverage and duration ratios as ratios."""

    max_lag_ms: float = 5000
    warn_ms: float = 500
    fail_ms: float = 1200
    warn_coverage: float = 0.95
    fail_coverage: float = 0.75
    warn_duration_ratio: tuple[float, float] = (0.7, 1.4)
    fail_duration_ratio: tuple[float, float] = (0.5, 2.0)


@dataclass(frozen=True, slots=True)
class SpeechSegment:
    """A stretch of speech in ms; a translated one may name the source segment it renders."""

    start_ms: float
    end_ms: float
    source_index: int | None = None


def video_sync_report(
    source: Iterable[SpeechSegment | tuple[float, float]],
    translated: Iterable[SpeechSegment | tuple[float, float]],
    *,
    limits: VideoSyncLimits | None = None,
    provider_log_metrics: Mapping[str, Any] | None = None,
    mouth_motion_metrics: Mapping[str, Any] | None = None,
    note: str = "",
) -> dict[str, Any]:
    """The report from segments that are given. Segments are put in order of their start.

    Raises:
        BundleError: a segment is no stretch of time, names a source that is not there or is already taken,
            or there are too many to pair.
    """
    limits = limits or VideoSyncLimits()
    src, dst, named = _in_order(source, translated)
    pairs = _pair(src, dst, named, limits.max_lag_ms)
    rows = [_row(i, pairs.get(i), src, dst) for i in range(len(src))]
    report: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "type": VIDEO_SYNC,
        "summary": _summary(src, dst, pairs, rows, limits),
        "source_segments": [{"start_ms": s.start_ms, "end_ms": s.end_ms} for s in src],
        "translated_segments": [{"start_ms": s.start_ms, "end_ms": s.end_ms} for s in dst],
        "pairs": rows,
    }
    optional = {
        "video_sync_note": note,
        "provider_log_metrics": dict(provider_log_metrics or {}),
        "mouth_motion_metrics": dict(mouth_motion_metrics or {}),
    }
    report |= {name: value for name, value in optional.items() if value}
    problems = validate_report(report)
    if problems:
        raise BundleError(f"the video sync report would not be valid: {'; '.join(problems)}")
    return report


def measure_video_sync(
    source: str | os.PathLike[str],
    translated: str | os.PathLike[str],
    *,
    limits: VideoSyncLimits | None = None,
    vad: VadSettings | None = None,
) -> dict[str, Any]:
    """The report from two mono audio files with one origin; their segments are found by `vad`. Blocking.

    Raises:
        BundleError: a file cannot be read or is not mono.
    """
    return video_sync_report(
        segments_in(source, vad),
        segments_in(translated, vad),
        limits=limits,
        note="Segments were found in the audio by its energy; pauses shorter than "
        "the detector's limit do not end one.",
    )


def segments_in(path: str | os.PathLike[str], vad: VadSettings | None = None) -> list[SpeechSegment]:
    """The segments of speech in a mono file; a pause of 400 ms ends one unless ``vad`` says otherwise.

    Raises:
        BundleError: the file cannot be read or is not mono.
    """
    # numpy and libsndfile only when audio is really read
    from voicetrace.agentclash.vad import VadSettings, activity_of
    from voicetrace.audio import ClipError
    from voicetrace.audio.source import Source

    try:
        with Source(Path(path)) as source:
            if source.channels != 1:
                raise BundleError(f"{path} has {source.channels} channels; it must be mono")
            blocks = (block[:, 0] for block in source.blocks(1 << 16))
            found = activity_of(blocks, source.sample_rate_hz, vad or VadSettings(min_silence_ms=400))
    except ClipError as error:
        raise BundleError(f"the audio cannot be read: {error}") from error
    return [SpeechSegment(start, end) for start, end in found.intervals]


# -- pairing -----------------------------------------------------------------------------------------
def _in_order(
    source: Iterable[SpeechSegment | tuple[float, float]],
    translated: Iterable[SpeechSegment | tuple[float, float]],
) -> tuple[list[SpeechSegment], list[SpeechSegment], dict[int, int]]:
    """Both lists by start, and the pairs that the translated segments name, in the new indices."""
    given = [
        [s if isinstance(s, SpeechSegment) else SpeechSegment(*s) for s in part]
        for part in (source, translated)
    ]
    for name, part in zip(("source", "translated"), given, strict=True):
        for index, segment in enumerate(part):
            start, end = segment.start_ms, segment.end_ms
            if not (p.is_number(start) and p.is_number(end) and 0 <= start <= end):
                raise BundleError(f"{name} segment {index} is no stretch of time: {start!r} to {end!r} ms")
    order = sorted(range(len(given[0])), key=lambda i: (given[0][i].start_ms, given[0][i].end_ms, i))
    place = {old: new for new, old in enumerate(order)}
    src = [given[0][i] for i in order]
    dst = sorted(given[1], key=lambda s: (s.start_ms, s.end_ms))
    named: dict[int, int] = {}
    for j, segment in enumerate(dst):
        if segment.source_index is None:
            continue
        i = place.get(segment.source_index)
        if i is None or i in named:
            why = "is not there" if i is None else "has another translation already"
            raise BundleError(
                f"translated segment {j} renders source segment {segment.source_index}, which {why}"
            )
        named[i] = j
    return src, dst, named


def _pair(
    src: list[SpeechSegment], dst: list[SpeechSegment], named: dict[int, int], max_lag_ms: float
) -> dict[int, int]:
    """Source index to translated index."""
    rows = [i for i in range(len(src)) if i not in named]
    columns = [j for j in range(len(dst)) if dst[j].source_index is None]
    if not rows or not columns:
        return named
    if len(rows) * len(columns) > _MAX_CELLS:
        raise BundleError(f"{len(rows)} source and {len(columns)} translated segments are too many to pair")
    import numpy as np

    onsets = np.array([dst[j].start_ms for j in columns])
    best = np.zeros(len(columns) + 1)
    paired = np.zeros((len(rows), len(columns)), np.bool_)  # best with this pair, rather than without
    kept = np.zeros((len(rows), len(columns)), np.bool_)  # best without this column is the row's own
    for n, i in enumerate(rows):
        lag = np.abs(onsets - src[i].start_ms)
        with_pair = np.where(lag <= max_lag_ms, best[:-1] + (max_lag_ms - lag) + 1e-6, -np.inf)
        here = np.maximum(best[1:], with_pair)
        best_here = np.maximum.accumulate(np.concatenate(([0.0], here)))
        paired[n] = with_pair > best[1:]
        kept[n] = here >= best_here[1:]
        best = best_here
    out = dict(named)
    n, m = len(rows) - 1, len(columns) - 1
    while n >= 0 and m >= 0:
        if not kept[n, m]:
            m -= 1
        elif paired[n, m]:
            out[rows[n]] = columns[m]
            n, m = n - 1, m - 1
        else:
            n -= 1
    return out


# -- rows and summary --------------------------------------------------------------------------------
def _row(i: int, j: int | None, src: list[SpeechSegment], dst: list[SpeechSegment]) -> dict[str, Any]:
    source = src[i]
    row: dict[str, Any] = {
        "status": "missing_translation" if j is None else "paired",
        "source_index": i,
        "source_start_ms": source.start_ms,
        "source_end_ms": source.end_ms,
    }
    if j is not None:
        translated = dst[j]
        row |= {
            "translated_index": j,
            "translated_start_ms": translated.start_ms,
            "translated_end_ms": translated.end_ms,
            "onset_lag_ms": translated.start_ms - source.start_ms,
            "duration_ratio": _ratio(_length(translated), _length(source)),
        }
    return row


def _summary(
    src: list[SpeechSegment],
    dst: list[SpeechSegment],
    pairs: dict[int, int],
    rows: list[dict[str, Any]],
    limits: VideoSyncLimits,
) -> dict[str, Any]:
    hits = [row for row in rows if row["status"] == "paired"]
    lags = [row["onset_lag_ms"] for row in hits]
    ratios = [row["duration_ratio"] for row in hits]
    spans = [_span(src), _span(dst)]
    numbers: dict[str, Any] = {
        "paired_segments": len(hits),
        "missing_translation_segments": len(src) - len(hits),
        "extra_translation_segments": len(dst) - len(hits),
        "source_span_ms": spans[0],
        "translated_span_ms": spans[1],
        "warn_threshold_ms": limits.warn_ms,
        "fail_threshold_ms": limits.fail_ms,
        "warn_duration_ratio_range": list(limits.warn_duration_ratio),
        "fail_duration_ratio_range": list(limits.fail_duration_ratio),
    }
    if src:
        numbers["segment_coverage_ratio"] = round(len(hits) / len(src), 6)
    if spans[0] > 0:
        numbers["span_duration_ratio"] = _ratio(spans[1], spans[0])
    if hits:
        last = hits[-1]
        numbers |= {
            "first_onset_lag_ms": lags[0],
            "median_onset_lag_ms": statistics.median(lags),
            "p90_onset_lag_ms": percentile(lags, 0.9),
            "tail_lag_ms": last["translated_end_ms"] - last["source_end_ms"],
            "status_basis_ms": percentile([abs(lag) for lag in lags], 0.9),
            "median_duration_ratio": statistics.median(ratios),
            "min_duration_ratio": min(ratios),
            "max_duration_ratio": max(ratios),
            "duration_fit_score": round(statistics.fmean(min(r, 1 / r) if r else 0.0 for r in ratios), 6),
        }
    status, reasons = _status(numbers, limits)
    return {
        "status": status,
        "status_reasons": reasons,
        **numbers,
        "interpretation": _interpretation(status, numbers),
    }


def _status(numbers: dict[str, Any], limits: VideoSyncLimits) -> tuple[str, list[str]]:
    if not numbers["paired_segments"]:
        return "fail", ["No source segment has a translation near it."]
    reasons: list[str] = []
    worst = "pass"

    def say(verdict: str, sentence: str) -> None:
        nonlocal worst
        reasons.append(f"{sentence}: {verdict}.")
        worst = "fail" if "fail" in (verdict, worst) else "warn"

    basis = numbers["status_basis_ms"]
    if basis > limits.warn_ms:
        verdict, limit = ("fail", limits.fail_ms) if basis > limits.fail_ms else ("warn", limits.warn_ms)
        say(verdict, f"The 90th percentile of the onset lags is {basis:g} ms, above {limit:g} ms")
    coverage = numbers["segment_coverage_ratio"]
    if coverage < limits.warn_coverage:
        low = coverage < limits.fail_coverage
        limit = limits.fail_coverage if low else limits.warn_coverage
        say("fail" if low else "warn", f"{coverage:.4g} of the source is covered, less than {limit:g}")
    ratio = numbers["median_duration_ratio"]
    for verdict, (low_end, high_end) in (
        ("fail", limits.fail_duration_ratio),
        ("warn", limits.warn_duration_ratio),
    ):
        if not low_end <= ratio <= high_end:
            say(verdict, f"The median duration ratio is {ratio:.4g}, outside {low_end:g} to {high_end:g}")
            break
    if numbers["extra_translation_segments"]:
        say("warn", f"{numbers['extra_translation_segments']} translated segments have no source")
    return worst, reasons


def _interpretation(status: str, numbers: dict[str, Any]) -> str:
    total = numbers["paired_segments"] + numbers["missing_translation_segments"]
    verdict = {"pass": "fits its source", "warn": "is noticeably off", "fail": "does not fit its source"}[
        status
    ]
    if not numbers["paired_segments"]:
        return f"None of {total} source segments has a translation near it, so nothing could be timed."
    lag = numbers["median_onset_lag_ms"]
    side = "after" if lag >= 0 else "before"
    return (
        f"The translation {verdict}: {numbers['paired_segments']} of {total} source segments are rendered, "
        f"typically {abs(lag):g} ms {side} their source."
    )


def _length(segment: SpeechSegment) -> float:
    return segment.end_ms - segment.start_ms


def _span(segments: Sequence[SpeechSegment]) -> float:
    if not segments:
        return 0
    return max(s.end_ms for s in segments) - min(s.start_ms for s in segments)


def _ratio(part: float, whole: float) -> float:
    """A length over another; over nothing it is 1 for nothing, and otherwise what over 1 ms it would be."""
    if whole <= 0:
        return 1.0 if part <= 0 else float(part)
    return round(part / whole, 6)
