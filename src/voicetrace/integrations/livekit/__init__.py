# SPDX-License-Identifier: Apache-2.0
"""LiveKit Agents: ``LiveKitInstrumentor().instrument()``, and every session is a readable call."""

from __future__ import annotations

try:
    import livekit.agents  # noqa: F401
except ImportError as error:  # pragma: no cover - exercised by the bare-wheel check
    raise ImportError(
        "voicetrace.integrations.livekit needs livekit-agents: install the extra with "
        "`pip install voicetrace[livekit]`"
    ) from error

from voicetrace.integrations.livekit.instrumentor import LiveKitInstrumentor, VoiceSpanProcessor
from voicetrace.integrations.livekit.single import TracedSession, trace_session

__all__ = ["LiveKitInstrumentor", "TracedSession", "VoiceSpanProcessor", "trace_session"]
