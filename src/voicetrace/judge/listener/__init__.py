# SPDX-License-Identifier: Apache-2.0
"""The listener: an audio language model, for what needs ears and sense. Never asked unless configured.

It may lower a score, or give one where signals have none. It never lifts one that signals put below the
bar, so neither a friendly model nor words spoken in a call can talk a defect away. It is never asked about
time. Clips and the timeline leave this machine for the model's endpoint, so a `Listener` says for which calls
that is allowed.
"""

from voicetrace.judge.listener.base import (
    AudioJudge,
    Clip,
    ConsentAttribute,
    JudgeUnavailable,
    Listener,
    Reply,
    Request,
    Spending,
    consent_to_all,
    spending,
)
from voicetrace.judge.listener.gemini import GeminiAudioJudge
from voicetrace.judge.listener.merge import apply_listener
from voicetrace.judge.listener.openai import OpenAIAudioJudge
from voicetrace.judge.listener.recorded import FakeAudioJudge, RecordedAudioJudge

__all__ = [
    "AudioJudge",
    "Clip",
    "ConsentAttribute",
    "FakeAudioJudge",
    "GeminiAudioJudge",
    "JudgeUnavailable",
    "Listener",
    "OpenAIAudioJudge",
    "RecordedAudioJudge",
    "Reply",
    "Request",
    "Spending",
    "apply_listener",
    "consent_to_all",
    "spending",
]
