# SPDX-License-Identifier: Apache-2.0
"""`note_message`: messages that no framework tells, added by hand (VT-25)."""

from __future__ import annotations

import uuid
from typing import Any, Literal

from voicetrace import events as ev
from voicetrace.messages import Role
from voicetrace.owners import running_call


def note_message(
    session_or_call: Any,
    *,
    role: Literal["user", "assistant"],
    text: str | None,
    start_ms: int | None = None,
    end_ms: int | None = None,
    message_id: str | None = None,
) -> str:
    """Add a message that the framework did not tell: keys that were pressed, speech recovered elsewhere.

    It takes its place in the order now, is committed, and complete as it stands.

    Args:
        session_or_call: The framework's session (LiveKit: the `AgentSession`, Pipecat: the
            `PipelineWorker`), or a running call.
        role: Whose message it is.
        text: What was said; redaction and the content switch apply to it as to any other.
        start_ms: When it began, in call-ms. With `end_ms` it gets its audio from the recording.
        end_ms: When it ended, in call-ms.
        message_id: Its id; made up when not given.

    Returns:
        The message's id.

    Raises:
        LookupError: no call of this session is going on.
        ValueError: `role` is neither ``"user"`` nor ``"assistant"``.
    """
    wanted = Role(role)
    call = running_call(session_or_call, "note_message")
    chosen = message_id or f"note_{uuid.uuid4().hex[:12]}"
    call.emit(
        ev.MessageNoted(
            at_ms=call.now_ms(), message_id=chosen, role=wanted, text=text, start_ms=start_ms, end_ms=end_ms
        )
    )
    return chosen
