# SPDX-License-Identifier: Apache-2.0
"""What the dimensions share: the controls that come first, and how sure a timing is."""

from __future__ import annotations

from typing import Final

from voicetrace.judge.features.table import CallFeatures, Turn
from voicetrace.judge.result import DimensionScore, NullReason
from voicetrace.messages import Role, TimingSource

_SOME_SPEECH_MS: Final = 300


def no_speech(features: CallFeatures) -> DimensionScore | None:
    """The null of a call in which the agent is not heard to speak; ``None`` when it is, or was not recorded.

    Silence, noise and music are not good speech, whatever a model for speech would say of them.
    """
    if not any(t.role is Role.ASSISTANT for t in features.turns):
        return DimensionScore.none(NullReason.NO_AGENT_SPEECH, "the agent said nothing in this call")
    if not features.agent_audio:
        return None
    if features.agent_speech_ms is not None:
        spoken = sum(t.speech_ms or 0 for t in features.turns if t.role is Role.ASSISTANT)
        if spoken < _SOME_SPEECH_MS:
            return DimensionScore.none(
                NullReason.NO_AGENT_SPEECH, "the agent's channel holds no speech where it should have spoken"
            )
    elif not features.agent_sounds:
        return DimensionScore.none(NullReason.NO_AGENT_SPEECH, "the agent's channel is silent")
    return None


def no_audio(features: CallFeatures, *needs: str) -> DimensionScore | None:
    """The null of a dimension that listens: no recording, no speech in it, or a provider that is missing."""
    if not features.agent_audio:
        return DimensionScore.none(NullReason.NO_AUDIO, "the agent's audio was not recorded")
    silent = no_speech(features)
    if silent is not None:
        return silent
    for name in needs:
        if name in features.missing:
            return DimensionScore.none(NullReason.PROVIDER_UNAVAILABLE, features.missing[name])
    return None


def timing_confidence(features: CallFeatures) -> float:
    """How far the times are to be trusted: bounds and audio that agree, one of them, or arrivals only."""
    if any(t.message_id is None for t in features.turns):
        return 0.6
    return 0.95 if features.agent_audio and features.caller_audio else 0.75


def trusted(turn: Turn, audio: bool) -> bool:
    """Tell whether a turn's bounds are times of its audio, and not of an event's arrival."""
    return audio or turn.timing_source is not TimingSource.LOCAL_RECEIPT


def words(count: int, noun: str) -> str:
    """A count with its noun."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
