# SPDX-License-Identifier: Apache-2.0
"""Ids for contexts whose messages have none (contract, section 2).

A list of ids runs parallel to each context's messages. It is re-mapped whenever the context was rewritten:
by the identity of the message objects first (a summary keeps the recent ones), then by a hash of their
content, in order (a deep copy); what is left is new. The hash stays in memory and is never logged.
"""

from __future__ import annotations

import hashlib
import json
import uuid
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from pipecat.processors.aggregators.llm_context import LLMContext

# (message, id), in order. The objects are kept alive on purpose: an id() must not be reused for another
# message. One list per context, whoever asks: two workers that share a context share its ids.
_Known = list[tuple[Any, str]]
_CONTEXTS: weakref.WeakKeyDictionary[LLMContext, _Known] = weakref.WeakKeyDictionary()


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


def role_of(message: Any) -> str:
    """The message's role; empty where it has none."""
    return str(message.get("role") or "") if isinstance(message, dict) else ""


def text_of(message: Any) -> str:
    """The message's text; empty where it is made of parts."""
    content = message.get("content") if isinstance(message, dict) else None
    return content if isinstance(content, str) else ""


class ContextIds:
    """The ids of the contexts of one call. Loop-affine, like the contexts.

    Applications may change a live list at any time, so ids are brought in step before every use.
    """

    def __init__(self, make_id: Callable[[], str] = new_id) -> None:
        self._make_id = make_id
        self._seen: weakref.WeakSet[LLMContext] = weakref.WeakSet()
        self._attempt: tuple[str, str] | None = None  # the text of a speculated turn, and its id

    def make(self) -> str:
        """An id for a message that will be appended later; see `name_newest`."""
        return self._make_id()

    def name_newest(self, context: LLMContext, item_id: str) -> None:
        """Give the context's newest message the id that a realtime provider, or `make`, gave it before."""
        if self.of(context) and all(item_id != known for _, known in _CONTEXTS[context]):
            _CONTEXTS[context][-1] = (_CONTEXTS[context][-1][0], item_id)

    def of(self, context: LLMContext) -> tuple[str, ...]:
        """The ids of the context's messages, in order."""
        messages = context.messages
        known = _CONTEXTS.get(context)
        self._seen.add(context)
        same = known is not None and len(known) == len(messages)
        if known and same and all(old is new for (old, _), new in zip(known, messages, strict=True)):
            return tuple(i for _, i in known)
        ids = self._match(messages, known if known is not None else self._pool(context))
        _CONTEXTS[context] = list(zip(messages, ids, strict=True))
        return tuple(ids)

    def of_attempt(self, context: LLMContext) -> tuple[str, ...]:
        """The ids of a speculative copy, whose last message is not in the conversation, and may never be."""
        messages = context.messages
        ids = self._match(messages[:-1], self._pool(context))
        if self._attempt is None or self._attempt[0] != text_of(messages[-1]):
            self._attempt = (text_of(messages[-1]), self._make_id())
        return (*ids, self._attempt[1])

    def drop_attempt(self) -> None:
        """The user went on speaking: the attempt's message will not come."""
        self._attempt = None

    def _pool(self, context: LLMContext) -> _Known:
        """What a context not seen before may share with the call's others."""
        pool: dict[str, Any] = {}
        for other in list(self._seen):
            if other is not context:
                pool.update((i, message) for message, i in _CONTEXTS.get(other, ()))
        return [(message, i) for i, message in pool.items()]

    def _match(self, messages: Sequence[Any], known: _Known) -> list[str]:
        by_identity = {id(message): index for index, (message, _) in enumerate(known)}
        ids: list[str | None] = []
        taken: set[int] = set()
        for message in messages:
            index = by_identity.get(id(message))
            if index is None or index in taken:  # the same object twice is two messages
                ids.append(None)
            else:
                taken.add(index)
                ids.append(known[index][1])
        if None in ids and len(taken) < len(known):
            left: dict[str, list[int]] = {}
            for index, (message, _) in enumerate(known):
                if index not in taken:
                    left.setdefault(content_hash(message), []).append(index)
            for position, message in enumerate(messages):
                if ids[position] is None and (same := left.get(content_hash(message))):
                    ids[position] = known[same.pop(0)][1]
        return [found or self._new(message) for message, found in zip(messages, ids, strict=True)]

    def _new(self, message: Any) -> str:
        if self._attempt is not None and role_of(message) == "user":
            # it held: the committed text may differ in its punctuation
            item_id = self._attempt[1]
            self._attempt = None
            return item_id
        return self._make_id()
