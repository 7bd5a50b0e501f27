# SPDX-License-Identifier: Apache-2.0
"""Whose call is which: what an application holds (a framework's session, say) and the call behind it."""

from __future__ import annotations

import weakref
from typing import Any, Final

from voicetrace.live import LiveCall

_CALLS: Final[weakref.WeakKeyDictionary[Any, LiveCall]] = weakref.WeakKeyDictionary()


def register_call(owner: Any, call: LiveCall) -> None:
    """Adapters only: from now on `owner` stands for this call. It is not kept alive by that."""
    _CALLS[owner] = call


def running_call(session_or_call: Any, asked_by: str) -> LiveCall:
    """The call that a public function was asked about.

    Raises:
        LookupError: no call of this session is going on.
    """
    call = session_or_call if isinstance(session_or_call, LiveCall) else _find(session_or_call)
    if call is None or call.closed:
        raise LookupError(
            f"{asked_by}(): no call of this {type(session_or_call).__name__} is going on; "
            "call it between the session's start and its close"
        )
    return call


def _find(owner: Any) -> LiveCall | None:
    try:
        return _CALLS.get(owner)
    except TypeError:  # cannot be a key: nobody's session
        return None
