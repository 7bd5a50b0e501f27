# SPDX-License-Identifier: Apache-2.0
"""Consent: nothing that is said is kept before it was given, or after it was withdrawn (VT-73).

A message that lies even partly outside keeps no text. The recording has a segment for each stretch with
consent, and silence elsewhere.
"""

from __future__ import annotations

from typing import Any

from voicetrace.owners import running_call


def give_consent(session_or_call: Any) -> None:
    """From now on texts and audio of this call are kept, as `voicetrace.configure` says.

    For calls that began under ``configure(consent="awaited")``. What was said before stays unkept.
    Thread-safe; returns at once.

    Args:
        session_or_call: The framework's session (LiveKit: the `AgentSession`; Pipecat: the
            `PipelineWorker`), or a running call.

    Raises:
        LookupError: no call of this session is going on.
    """
    running_call(session_or_call, "give_consent").set_consent(given=True)


def withdraw_consent(session_or_call: Any) -> None:
    """From now on no text and no audio of this call is kept. What was kept before stays.

    May be followed by `give_consent` again. Arguments and errors are as there.
    """
    running_call(session_or_call, "withdraw_consent").set_consent(given=False)
