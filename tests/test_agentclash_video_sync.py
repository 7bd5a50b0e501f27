# SPDX-License-Identifier: Apache-2.0
"""Video sync: numbers by hand, and reports that keep every rule whatever the segments are."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile as sf
from hypothesis import given, settings
from hypothesis import strategies as st

from voicetrace.agentclash import (
    BundleError,
    SpeechSegment,
    VideoSyncLimits,
    measure_video_sync,
    validate_report,
    video_sync_report,
)

VIDEO = "video_sync_report_json"
SOURCE = [(0, 1000), (2000, 3000), (4000, 6000)]


def test_the_numbers_by_hand() -> None:
    report = video_sync_report(SOURCE, [(300, 1500), (2500, 3300), (4900, 6900)])
    assert validate_report(report, VIDEO) == []
    assert report["summary"] == {
        "status": "warn",
        "status_reasons": ["The 90th percentile of the onset lags is 820 ms, above 500 ms: warn."],
        "paired_segments": 3,
        "missing_translation_segments": 0,
        "extra_translation_segments": 0,
        "source_span_ms": 6000,
        "translated_span_ms": 6600,
        "warn_threshold_ms": 500,
        "fail_threshold_ms": 1200,
        "warn_duration_ratio_range": [0.7, 1.4],
        "fail_duration_ratio_range": [0.5, 2.0],
        "segment_coverage_ratio": 1.0,
        "span_duration_ratio": 1.1,
        "first_onset_lag_ms": 300,
        "median_onset_lag_ms": 500,  # 300, 500, 900
        "p90_onset_lag_ms": 820.0,
        "tail_lag_ms": 900,
        "status_basis_ms": 820.0,
        "median_duration_ratio": 1.0,  # 1.2, 0.8, 1.0
        "min_duration_ratio": 0.8,
        "max_duration_ratio": 1.2,
        "duration_fit_score": round((1 / 1.2 + 0.8 + 1) / 3, 6),
        "interpretation": "The translation is noticeably off: 3 of 3 source segments are rendered, "
        "typically 500 ms after their source.",
    }
    assert report["pairs"][1] == {
        "status": "paired",
        "source_index": 1,
        "source_start_ms": 2000,
        "source_end_ms": 3000,
        "translated_index": 1,
        "translated_start_ms": 2500,
        "translated_end_ms": 3300,
        "onset_lag_ms": 500,
        "duration_ratio": 0.8,
    }


def pairs(report: Any) -> list[tuple[int, int | None]]:
    return [(row["source_index"], row.get("translated_index")) for row in report["pairs"]]


@pytest.mark.parametrize(
    ("translated", "expected"),
    [
        ([(500, 1000), (4500, 5000)], [(0, 0), (1, None), (2, 1)]),  # the second is missing
        ([(500, 1000), (1400, 1600), (2500, 3000), (4500, 5000)], [(0, 0), (1, 2), (2, 3)]),  # one is extra
        ([(-0.0, 1000), (1800, 3000), (3900, 5000)], [(0, 0), (1, 1), (2, 2)]),  # early ones
        ([(20_000, 21_000)], [(0, None), (1, None), (2, None)]),
        ([], [(0, None), (1, None), (2, None)]),
    ],
)
def test_pairing_in_order(translated: Any, expected: Any) -> None:
    report = video_sync_report(SOURCE, translated)
    assert validate_report(report, VIDEO) == []
    assert pairs(report) == expected


def test_a_named_source_is_no_guess() -> None:
    translated = [SpeechSegment(9000, 9500, source_index=0), SpeechSegment(2200, 2900)]
    report = video_sync_report([(4000, 6000), (2000, 3000)], translated)
    # by start: the source named 0 is now 1, and so is its translation
    assert pairs(report) == [(0, 0), (1, 1)]
    assert report["pairs"][1]["onset_lag_ms"] == 5000
    for source_index, why in ((7, "which is not there"), (-1, "which is not there")):
        with pytest.raises(BundleError, match=why):
            video_sync_report(SOURCE, [SpeechSegment(0, 1, source_index)])
    with pytest.raises(BundleError, match="has another translation already"):
        video_sync_report(SOURCE, [SpeechSegment(0, 1, 0), SpeechSegment(2, 3, 0)])


def best_by_trying(source: Any, translated: Any, max_lag: float) -> float:
    """The greatest sum over all order-keeping pairings, by trying them all."""
    best = 0.0
    for count in range(min(len(source), len(translated)) + 1):
        for left in itertools.combinations(range(len(source)), count):
            for right in itertools.combinations(range(len(translated)), count):
                lags = [abs(translated[j][0] - source[i][0]) for i, j in zip(left, right, strict=True)]
                if all(lag <= max_lag for lag in lags):
                    best = max(best, sum(max_lag - lag for lag in lags))
    return best


SEGMENT = st.tuples(st.integers(0, 9000), st.integers(0, 1500)).map(lambda s: (s[0], s[0] + s[1]))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(SEGMENT, max_size=5), st.lists(SEGMENT, max_size=5), st.sampled_from([300, 2000, 5000]))
def test_the_pairing_is_the_best_there_is(source: Any, translated: Any, max_lag: int) -> None:
    report = video_sync_report(source, translated, limits=VideoSyncLimits(max_lag_ms=max_lag))
    got = [row["onset_lag_ms"] for row in report["pairs"] if row["status"] == "paired"]
    assert all(abs(lag) <= max_lag for lag in got)
    total = sum(max_lag - abs(lag) for lag in got)
    assert total == pytest.approx(best_by_trying(sorted(source), sorted(translated), max_lag), abs=0.01)
    order = [row["translated_index"] for row in report["pairs"] if row["status"] == "paired"]
    assert order == sorted(set(order))


ANY = st.tuples(st.floats(0, 1e7), st.floats(0, 1e5)).map(lambda s: (s[0], s[0] + s[1]))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(ANY, max_size=12), st.lists(ANY, max_size=12))
def test_every_rule_holds_whatever_the_segments_are(source: Any, translated: Any) -> None:
    report = video_sync_report(source, translated)
    assert validate_report(report, VIDEO) == []
    assert len(report["pairs"]) == len(source)


def test_every_rule_holds_with_named_sources() -> None:
    rng = np.random.default_rng(2)
    for _ in range(100):
        n = int(rng.integers(1, 8))
        source = [(float(s), float(s + 500)) for s in rng.integers(0, 20_000, n)]
        names = [int(i) for i in rng.permutation(n)[: int(rng.integers(0, n + 1))]]
        starts = [float(s) for s in rng.integers(0, 20_000, n + 3)]
        named = [*names, None, None, None]
        translated = [SpeechSegment(s, s + 400, i) for s, i in zip(starts, named, strict=False)]
        report = video_sync_report(source, translated)
        assert validate_report(report, VIDEO) == []
        assert sum(row["status"] == "paired" for row in report["pairs"]) >= len(names)


# -- status ------------------------------------------------------------------------------------------
def shifted(lag: float, stretch: float = 1.0, count: int = 10) -> tuple[Any, Any]:
    source = [(i * 10_000.0, i * 10_000 + 1000.0) for i in range(count)]
    return source, [(a + lag, a + lag + 1000 * stretch) for a, _ in source]


@pytest.mark.parametrize(
    ("lag", "stretch", "status"),
    [
        (500, 1, "pass"), (501, 1, "warn"), (1200, 1, "warn"), (1201, 1, "fail"),
        (0, 1.4, "pass"), (0, 1.41, "warn"), (0, 2.01, "fail"), (0, 0.7, "pass"), (0, 0.69, "warn"),
        (0, 0.49, "fail"), (501, 2.01, "fail"),
    ],
)  # fmt: skip
def test_lags_and_durations_decide(lag: float, stretch: float, status: str) -> None:
    assert video_sync_report(*shifted(lag, stretch))["summary"]["status"] == status


def test_early_is_as_bad_as_late() -> None:
    source, translated = shifted(0)
    early = video_sync_report([(a + 2000, b + 2000) for a, b in source], translated)
    assert (early["summary"]["status"], early["summary"]["first_onset_lag_ms"]) == ("fail", -2000)
    assert early["summary"]["interpretation"].endswith("typically 2000 ms before their source.")


@pytest.mark.parametrize(("missing", "status"), [(0, "pass"), (1, "warn"), (2, "warn"), (3, "fail")])
def test_coverage_decides(missing: int, status: str) -> None:
    source, translated = shifted(0)
    report = video_sync_report(source, translated[missing:])
    assert report["summary"]["status"] == status
    assert report["summary"]["segment_coverage_ratio"] == (10 - missing) / 10


def test_extra_segments_warn_and_nothing_paired_fails() -> None:
    source, translated = shifted(0)
    report = video_sync_report(source, [*translated, (99_999, 100_500)])
    assert report["summary"]["status_reasons"] == ["1 translated segments have no source: warn."]
    for source, translated in (([], []), ([], [(0, 1)]), ([(0, 1)], []), ([(0, 1)], [(9000, 9001)])):
        report = video_sync_report(source, translated)
        assert report["summary"]["status"] == "fail"
        assert "status_basis_ms" not in report["summary"]
        assert validate_report(report, VIDEO) == []


def test_own_limits_and_own_metrics() -> None:
    limits = VideoSyncLimits(warn_ms=100, fail_ms=200)
    report = video_sync_report(
        *shifted(150), limits=limits, provider_log_metrics={"first_audio_byte_ms": 760}, note="by hand"
    )
    assert report["summary"]["status"] == "warn"
    assert (report["summary"]["warn_threshold_ms"], report["summary"]["fail_threshold_ms"]) == (100, 200)
    assert report["provider_log_metrics"] == {"first_audio_byte_ms": 760}
    assert report["video_sync_note"] == "by hand"
    assert "mouth_motion_metrics" not in report


@pytest.mark.parametrize(
    "segment", [(5, 4), (-1, 4), (float("nan"), 4), (0, float("inf")), (None, 1), ("0", 1)]
)
def test_segments_that_are_none(segment: Any) -> None:
    with pytest.raises(BundleError, match="translated segment 0 is no stretch of time"):
        video_sync_report(SOURCE, [segment])


# -- from audio --------------------------------------------------------------------------------------
def bursts(path: Path, segments: list[tuple[int, int]], rate: int) -> Path:
    samples = np.random.default_rng(1).normal(0, 5, rate * 12).astype(np.int16)
    for start, end in segments:
        t = np.arange((end - start) * rate // 1000)
        samples[start * rate // 1000 :][: t.size] += (9000 * np.sin(t / 9)).astype(np.int16)
    sf.write(path, samples, rate, subtype="PCM_16")
    return path


def test_segments_are_found_in_two_files(tmp_path: Path) -> None:
    source = bursts(tmp_path / "s.wav", [(500, 1500), (3000, 4000), (6000, 8000)], 16_000)
    translated = bursts(tmp_path / "t.flac", [(900, 1400), (1700, 2300), (3400, 4500), (6400, 8600)], 24_000)
    report = measure_video_sync(source, translated)
    assert validate_report(report, VIDEO) == []
    # the pause of 300 ms ends no segment
    assert [(round(s["start_ms"], -1), round(s["end_ms"], -1)) for s in report["translated_segments"]] == [
        (900, 2300),
        (3400, 4500),
        (6400, 8600),
    ]
    for row in report["pairs"]:
        assert abs(row["onset_lag_ms"] - 400) <= 20
    sf.write(tmp_path / "stereo.wav", np.zeros((10, 2)), 8000)
    for path, sentence in (
        (tmp_path / "stereo.wav", "must be mono"),
        (tmp_path / "gone.wav", "does not exist"),
    ):
        with pytest.raises(BundleError, match=sentence):
            measure_video_sync(source, path)


def test_a_long_film_is_paired_in_one_go() -> None:
    source, translated = shifted(300, count=2000)
    report = video_sync_report(source, translated)
    assert report["summary"]["paired_segments"] == 2000
    with pytest.raises(BundleError, match="are too many to pair"):
        video_sync_report([(0, 1)] * 9000, [(0, 1)] * 9000)
