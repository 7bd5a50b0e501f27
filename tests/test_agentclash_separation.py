# SPDX-License-Identifier: Apache-2.0
"""Source separation measured on signals mixed by hand, whose ratios are known before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile as sf

from voicetrace.agentclash import (
    BundleError,
    References,
    measure_separation,
    source_separation_report,
    validate_report,
)

RATE = 16_000
RATIOS = {"dialogue_retention_ratio": 0.9, "background_preservation_ratio": 0.7, "speech_drop_risk": 0.05}


def speech() -> np.ndarray:
    """A voice: it sounds 400 ms and pauses 600 ms, ten times."""
    t = np.arange(RATE * 10) / RATE
    tone = np.sin(2 * np.pi * 220 * t) + 0.5 * np.sin(2 * np.pi * 660 * t + 1)
    return 0.15 * tone * (t % 1.0 < 0.4)


def background() -> np.ndarray:
    """Steady noise of a room."""
    return 0.02 * np.random.default_rng(5).standard_normal(RATE * 10)


S, B = speech(), background()


@pytest.fixture
def files(tmp_path: Path) -> Any:
    def write(**signals: np.ndarray) -> dict[str, Path]:
        out = {}
        for name, signal in signals.items():
            out[name] = tmp_path / f"{name}.wav"
            sf.write(out[name], signal, RATE, subtype="FLOAT")
        return out

    return write


def measured(files: Any, dialogue: np.ndarray, rest: np.ndarray, **more: Any) -> Any:
    paths = files(dialogue=dialogue, rest=rest, s=S, b=B)
    report = measure_separation(
        paths["dialogue"], paths["rest"], references=References(paths["s"], paths["b"]), **more
    )
    assert validate_report(report, "media_policy_report_json") == []
    return report


def energy(x: np.ndarray) -> float:
    return float(x @ x)


@pytest.mark.parametrize(
    ("a", "c", "d", "e"),
    [
        (1.0, 0.0, 0.0, 1.0),
        (0.9, 0.3, 0.05, 0.8),
        (0.6, 1.0, 0.2, 0.5),
        (1.2, 0.1, 0.0, 1.1),
        (0.4, 0, 0.1, 1),
    ],
)
def test_the_ratios_are_those_of_the_mix(a: float, c: float, d: float, e: float, files: Any) -> None:
    """The speech stem is ``a*s + c*b``, the background stem ``d*s + e*b``."""
    metrics = measured(files, a * S + c * B, d * S + e * B)["metrics"]
    # what a window keeps is at most its own energy; leakage is over the whole length
    assert metrics["dialogue_retention_ratio"] == pytest.approx(min(1, a * a), abs=2e-3)
    assert metrics["background_preservation_ratio"] == pytest.approx(min(1, e * e), abs=2e-3)
    assert metrics["speech_drop_risk"] == (1.0 if a * a < 0.25 else 0.0)
    expected = c * c * energy(B) / (a * a * energy(S) + c * c * energy(B))
    assert metrics["background_leakage_in_dialogue_ratio"] == pytest.approx(expected, abs=2e-3)
    expected = d * d * energy(S) / (d * d * energy(S) + e * e * energy(B))
    assert metrics["dialogue_leakage_in_background_ratio"] == pytest.approx(expected, abs=2e-3)


def test_references_that_share_something_are_told_apart(files: Any) -> None:
    """The background holds an echo of the speech: what each stem is made of is found all the same."""
    echo = B + 0.3 * S
    paths = files(dialogue=0.9 * S + 0.2 * echo, rest=0.1 * S + 0.7 * echo, s=S, b=echo)
    found = measure_separation(
        paths["dialogue"], paths["rest"], references=References(paths["s"], paths["b"])
    )["metrics"]
    assert found["dialogue_retention_ratio"] == pytest.approx(0.81, abs=2e-3)
    assert found["background_preservation_ratio"] == pytest.approx(0.49, abs=2e-3)
    leaked = 0.04 * energy(echo)
    assert found["background_leakage_in_dialogue_ratio"] == pytest.approx(
        leaked / (leaked + 0.81 * energy(S)), abs=2e-3
    )
    leaked = 0.01 * energy(S)
    assert found["dialogue_leakage_in_background_ratio"] == pytest.approx(
        leaked / (leaked + 0.49 * energy(echo)), abs=2e-3
    )


def test_what_is_neither_speech_nor_background_does_not_count(files: Any) -> None:
    rest = 0.05 * np.random.default_rng(8).standard_normal(S.size)
    metrics = measured(files, S + rest, B)["metrics"]
    assert metrics["dialogue_retention_ratio"] == pytest.approx(1, abs=0.01)
    assert metrics["background_leakage_in_dialogue_ratio"] < 0.002


def test_words_that_were_dropped_raise_the_risk_and_loud_ones_do_not_make_up_for_them(files: Any) -> None:
    gain = np.where(np.arange(S.size) // RATE < 3, 0.0, 1.5)  # three of ten words are gone
    report = measured(files, S * gain, B)
    assert report["metrics"]["speech_drop_risk"] == pytest.approx(0.3, abs=0.001)
    assert report["metrics"]["dialogue_retention_ratio"] == pytest.approx(0.7, abs=0.001)
    assert report["status"] == "failed"
    assert report["agentclash_notes"][:2] == [
        "dialogue_retention_ratio is 0.7, below 0.8: failed.",
        "speech_drop_risk is 0.3, above 0.1: failed.",
    ]


def test_a_good_separation_passes_and_a_threshold_can_be_set(files: Any) -> None:
    report = measured(files, S, 0.9 * B)
    assert (report["status"], report["passed"], report["caveats"]) == ("passed", True, [])
    assert report["agentclash_notes"] == [
        "Measured in windows of 200 ms: 20 with speech, 50 with background."
    ]
    strict = measured(files, S, 0.9 * B, thresholds={"background_preservation_ratio": 0.95})
    assert strict["status"] == "failed"
    assert strict["thresholds"]["background_preservation_ratio"] == 0.95
    assert strict["thresholds"]["dialogue_retention_ratio"] == 0.8


def test_without_a_reference_the_stems_are_held_against_each_other(files: Any) -> None:
    def blind(dialogue: np.ndarray, rest: np.ndarray) -> Any:
        paths = files(dialogue=dialogue, rest=rest)
        return measure_separation(paths["dialogue"], paths["rest"])

    report = blind(S, B)
    assert (report["status"], report["passed"]) == ("degraded", False)
    [caveat] = report["caveats"]
    assert caveat.startswith("There was no reference, so the stems were held against each other; speech or")
    assert report["metrics"]["dialogue_retention_ratio"] > 0.99
    assert report["metrics"]["dialogue_leakage_in_background_ratio"] < 0.01
    # half the speech's amplitude leaked: 0.64 of it stayed of 0.64 + 0.25
    leaky = blind(0.8 * S, B + 0.5 * S)["metrics"]
    assert leaky["dialogue_retention_ratio"] == pytest.approx(0.64 / 0.89, abs=0.02)
    shared = 0.25 * energy(S)
    assert leaky["dialogue_leakage_in_background_ratio"] == pytest.approx(
        shared / (shared + energy(B)), abs=0.02
    )
    # and the room in the pauses of the speech stem
    roomy = blind(S + 0.5 * B, B)["metrics"]
    assert roomy["background_preservation_ratio"] == pytest.approx(1 / 1.25, abs=0.02)


def test_stems_of_two_lengths_are_measured_where_both_are(files: Any) -> None:
    report = measured(files, S[: RATE * 8], B)
    assert report["status"] == "degraded"
    assert report["caveats"] == [
        "Stems and references differ in length by 2000 ms; the common part was measured."
    ]
    assert report["metrics"]["dialogue_retention_ratio"] == pytest.approx(1, abs=1e-3)


def test_stems_that_cannot_be_measured(files: Any, tmp_path: Path) -> None:
    paths = files(s=S, b=B, silence=np.zeros(S.size), short=S[:RATE])
    sf.write(tmp_path / "stereo.wav", np.zeros((RATE, 2)), RATE)
    sf.write(tmp_path / "slow.wav", np.zeros(8000), 8000)
    for speech_path, background_path, sentence in (
        (paths["s"], tmp_path / "stereo.wav", "stereo.wav has 2 channels; a stem or reference must be mono"),
        (paths["s"], tmp_path / "slow.wav", "one sample rate, not 8000 and 16000 Hz"),
        (paths["s"], tmp_path / "gone.wav", "a stem cannot be read: .*gone.wav does not exist"),
        (paths["silence"], paths["b"], "0 windows of 200 ms with speech"),
        (paths["s"], paths["silence"], "and 0 with background; 5 of each are needed"),
        (paths["short"], paths["b"], "2 windows of 200 ms with speech"),
    ):
        with pytest.raises(BundleError, match=sentence):
            measure_separation(speech_path, background_path)


# -- given numbers -----------------------------------------------------------------------------------
def test_given_numbers_become_a_report() -> None:
    report = source_separation_report(RATIOS | {"own": 3}, notes=("by hand",))
    assert report["type"] == "agentclash.voice.source_separation_eval.v1"
    assert (report["status"], report["metrics"]["own"]) == ("passed", 3)
    assert report["agentclash_notes"] == ["by hand"]
    weak = source_separation_report(RATIOS, caveats=("classifier windows only",))
    assert (weak["status"], weak["passed"]) == ("degraded", False)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"dialogue_retention_ratio": 0.8}, "passed"),
        ({"dialogue_retention_ratio": 0.79}, "failed"),
        ({"background_preservation_ratio": 0.59}, "failed"),
        ({"speech_drop_risk": 0.11}, "failed"),
        ({"background_leakage_in_dialogue_ratio": 0.2}, "passed"),
        ({"background_leakage_in_dialogue_ratio": 0.21}, "failed"),
        ({"dialogue_leakage_in_background_ratio": 0.21}, "failed"),
    ],
)
def test_each_threshold_decides(change: dict[str, float], status: str) -> None:
    assert source_separation_report(RATIOS | change)["status"] == status


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"speech_drop_risk": 1.5}, r"\$.metrics.speech_drop_risk: must be a finite number from 0 to 1"),
        ({"dialogue_retention_ratio": float("nan")}, "dialogue_retention_ratio"),
        ({"dialogue_retention_ratio": None}, "dialogue_retention_ratio"),
    ],
)
def test_numbers_that_are_none(change: Any, sentence: str) -> None:
    with pytest.raises(BundleError, match=sentence):
        source_separation_report(RATIOS | change)
    with pytest.raises(BundleError, match="there is no threshold 'x'"):
        source_separation_report(RATIOS, thresholds={"x": 1})
