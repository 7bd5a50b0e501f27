# SPDX-License-Identifier: Apache-2.0
"""The LiveKit adapter under scripted calls: the real AgentSession, on virtual time."""

from __future__ import annotations

import pytest

pytest.importorskip("livekit.agents")


@pytest.fixture(autouse=True)
def _no_leftovers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No switch of the developer's own environment reaches a test."""
    for name in (
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT",
        "VOICETRACE_DIR",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    ):
        monkeypatch.delenv(name, raising=False)
    # the framework keeps the provider it was given for the rest of the process
    telemetry = pytest.importorskip("livekit.agents.telemetry")
    for name in ("_tracer_provider", "_tracer"):
        monkeypatch.setattr(telemetry.tracer, name, getattr(telemetry.tracer, name))
