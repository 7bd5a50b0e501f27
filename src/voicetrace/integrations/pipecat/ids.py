# SPDX-License-Identifier: Apache-2.0
"""Ids for a context whose messages have none (contract, section 2).

A list of ids runs parallel to the context's messages. It is re-mapped whenever the context was rewritten:
by the identity of the message objects first (a summary keeps the recent ones), then by a hash of their
content, in order (a deep copy); what is left is new. The hash stays in memory and is never logged.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Sequence
from typing import Any


def new_id() -> str:
    """An id for a message that was not seen before."""
    return f"msg_{uuid.uuid4().hex}"


def content_hash(message: Any) -> str:
    """A digest of what a message says; messages need not be dicts, and may hold images."""
    try:
        text = json.dumps(message, sort_keys=True, default=repr)
    except (TypeError, ValueError, RecursionError):
        text = repr(message)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


class ContextIds:
    """The ids of one context's messages. Loop-affine, like the context.

    Applications may change the live list at any time, so `sync` is called before every use.
    """

    def __init__(self, make_id: Callable[[], str] = new_id) -> None:
        self._make_id = make_id
        # the objects are kept alive on purpose: an id() must not be reused for another message
        self._known: list[tuple[Any, str]] = []

    def sync(self, messages: Sequence[Any]) -> tuple[str, ...]:
        """The ids of these messages, in order, after bringing the parallel list in step with them."""
        if len(messages) == len(self._known) and all(
            old is new for (old, _), new in zip(self._known, messages, strict=True)
        ):
            return tuple(i for _, i in self._known)
        by_identity = {id(message): index for index, (message, _) in enumerate(self._known)}
        ids: list[str | None] = []
        taken: set[int] = set()
        for message in messages:
            index = by_identity.get(id(message))
            if index is None or index in taken:  # the same object twice is two messages
                ids.append(None)
            else:
                taken.add(index)
                ids.append(self._known[index][1])
        if None in ids:
            self._match_by_content(messages, ids, taken)
        self._known = [
            (message, found or self._make_id()) for message, found in zip(messages, ids, strict=True)
        ]
        return tuple(i for _, i in self._known)

    def _match_by_content(self, messages: Sequence[Any], ids: list[str | None], taken: set[int]) -> None:
        left: dict[str, list[int]] = {}
        for index, (message, _) in enumerate(self._known):
            if index not in taken:
                left.setdefault(content_hash(message), []).append(index)
        if not left:
            return
        for position, message in enumerate(messages):
            if ids[position] is None and (same := left.get(content_hash(message))):
                ids[position] = self._known[same.pop(0)][1]
