# SPDX-License-Identifier: Apache-2.0
"""voicetrace: one record per message of a voice call, the audio as played, and honest evidence.

``configure`` chooses what is kept, an integration (``voicetrace.integrations``) follows the calls, and
``read_calls`` reads them back from spans or journals.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from voicetrace import agentclash as agentclash
    from voicetrace.consent import give_consent, withdraw_consent
    from voicetrace.messages import LLMStep, Recording, VoiceMessage
    from voicetrace.noting import note_message
    from voicetrace.otel import wrap_exporter
    from voicetrace.reader import read_calls
    from voicetrace.recovery import recover
    from voicetrace.settings import configure
    from voicetrace.voice_call import VoiceCall

__version__ = "0.1.0"

__all__ = [
    "LLMStep",
    "Recording",
    "VoiceCall",
    "VoiceMessage",
    "agentclash",
    "configure",
    "give_consent",
    "note_message",
    "read_calls",
    "recover",
    "withdraw_consent",
    "wrap_exporter",
]

# imported on first use, so that `import voicetrace` costs nothing in a process that only configures
_HOMES = {
    "LLMStep": "voicetrace.messages",
    "Recording": "voicetrace.messages",
    "VoiceCall": "voicetrace.voice_call",
    "VoiceMessage": "voicetrace.messages",
    "configure": "voicetrace.settings",
    "give_consent": "voicetrace.consent",
    "note_message": "voicetrace.noting",
    "read_calls": "voicetrace.reader",
    "recover": "voicetrace.recovery",
    "withdraw_consent": "voicetrace.consent",
    "wrap_exporter": "voicetrace.otel",
}


def __getattr__(name: str) -> Any:
    if name == "agentclash":
        return import_module("voicetrace.agentclash")
    if name not in _HOMES:
        raise AttributeError(f"module 'voicetrace' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
