# SPDX-License-Identifier: Apache-2.0
"""Pipecat: ``Pipeline([..., VoiceTraceProcessor()])``, and the pipeline is a readable call."""

from __future__ import annotations

try:
    import pipecat  # noqa: F401
except ImportError as error:  # pragma: no cover - exercised by the bare-wheel check
    raise ImportError(
        "voicetrace.integrations.pipecat needs pipecat-ai: install the extra with "
        "`pip install voicetrace[pipecat]`"
    ) from error

from voicetrace.integrations.pipecat.follower import follow, setup_pipeline_worker
from voicetrace.integrations.pipecat.instrumentor import PipecatInstrumentor
from voicetrace.integrations.pipecat.processor import VoiceTraceProcessor

__all__ = ["PipecatInstrumentor", "VoiceTraceProcessor", "follow", "setup_pipeline_worker"]
