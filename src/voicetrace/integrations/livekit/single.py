# SPDX-License-Identifier: Apache-2.0
"""`trace_session`: follow one session, and replace nothing that other sessions use."""

from __future__ import annotations

from typing import Any

from livekit.agents import AgentSession
from opentelemetry.sdk.trace import TracerProvider

from voicetrace.integrations.livekit.instrumentor import LiveKitInstrumentor
from voicetrace.live import LiveCall


class TracedSession:
    """One followed session. `stop` leaves it; a call that is going on ends there."""

    def __init__(self, instrumentor: LiveKitInstrumentor | None) -> None:
        self._instrumentor = instrumentor

    @property
    def call(self) -> LiveCall | None:
        """The call that is going on, if the session was started."""
        calls = self._instrumentor.calls if self._instrumentor is not None else []
        return calls[0] if calls else None

    def stop(self) -> None:
        """Put back what was replaced on this session. Harmless when repeated."""
        if self._instrumentor is not None:
            self._instrumentor.stop()


def trace_session(
    session: AgentSession[Any],
    *,
    tracer_provider: TracerProvider | None = None,
    adopt_recording: bool = False,
) -> TracedSession:
    """Follow this session, before its `start`; for applications that want no global patches.

    Only public hooks are used, on this session and its agents alone: several messages of one realtime
    response are not told apart, and a reply cut before its first sound has no text. With
    `LiveKitInstrumentor` in force every session is followed already, and this changes nothing. The options
    are those of `LiveKitInstrumentor.instrument`.

    Raises:
        TypeError: `session` is no `AgentSession`.
    """
    if not isinstance(session, AgentSession):
        raise TypeError(f"trace_session() takes an AgentSession, not {type(session).__name__}")
    if LiveKitInstrumentor.is_in_force():
        return TracedSession(None)
    instrumentor = LiveKitInstrumentor()
    instrumentor.follow_one(session, tracer_provider, adopt_recording=adopt_recording)
    return TracedSession(instrumentor)
