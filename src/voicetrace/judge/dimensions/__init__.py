# SPDX-License-Identifier: Apache-2.0
"""The ten dimensions, one module each, all of one shape: features and rubric in, a score or a null out."""

from __future__ import annotations

from typing import Final, Protocol

from voicetrace.judge.dimensions import (
    accent_quality,
    audio_consistency,
    clarity,
    filler_silence,
    interruption_handling,
    latency_dead_air,
    pacing,
    pronunciation,
    voice_identity,
    warmth_tone,
)
from voicetrace.judge.features.table import CallFeatures
from voicetrace.judge.result import Dimension, DimensionScore
from voicetrace.judge.rubric import Rubric


class DimensionJudge(Protocol):
    """What every module here offers: a pure function, and the providers without which it has no evidence."""

    @property
    def NEEDS(self) -> tuple[str, ...]:  # noqa: N802  a constant of a module
        """The providers without which there is no score."""

    def judge(self, features: CallFeatures, rubric: Rubric) -> DimensionScore:
        """The score of one call, or null with the reason."""


DIMENSIONS: Final[dict[Dimension, DimensionJudge]] = {
    Dimension.LATENCY_DEAD_AIR: latency_dead_air,
    Dimension.PRONUNCIATION: pronunciation,
    Dimension.CLARITY: clarity,
    Dimension.FILLER_SILENCE: filler_silence,
    Dimension.INTERRUPTION_HANDLING: interruption_handling,
    Dimension.AUDIO_CONSISTENCY: audio_consistency,
    Dimension.PACING: pacing,
    Dimension.WARMTH_TONE: warmth_tone,
    Dimension.ACCENT_QUALITY: accent_quality,
    Dimension.VOICE_IDENTITY: voice_identity,
}


def score_features(features: CallFeatures, rubric: Rubric) -> dict[Dimension, DimensionScore]:
    """All ten dimensions of a call, from its features alone: no audio, no models."""
    return {name: module.judge(features, rubric) for name, module in DIMENSIONS.items()}
