# SPDX-License-Identifier: Apache-2.0
"""Listening to a processor's synchronous events, frame type by frame type.

Every frame passes every hook, most of them audio that nobody asked for: a hook decides by one look into a
dictionary. What it calls is guarded; it never raises and never returns anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pipecat.frames.frames import Frame
from pipecat.utils.base_object import BaseObject

from voicetrace.guard import Guard

Action = Callable[[Any, Any], None]
Handler = Callable[..., Any]

_UNKNOWN: Final = object()


class Taps:
    """The handlers of one pipeline. Loop-affine. `detach` leaves nothing behind.

    `ready` runs ahead of every action, and says whether it is still wanted.
    """

    def __init__(self, guard: Guard, ready: Callable[[], bool]) -> None:
        self._guard = guard
        self._ready = ready
        self._attached: list[tuple[BaseObject, str, Handler]] = []
        self._methods: list[tuple[Any, str, Any, Any]] = []

    def frames(
        self, hook: str, processor: BaseObject, event: str, actions: Mapping[type[Frame], Action]
    ) -> None:
        """Call the action of a frame's type, or of its nearest listed ancestor, with processor and frame."""
        ready = self._ready
        guarded = {kind: self._guard.wrap(hook, action) for kind, action in actions.items()}
        known: dict[type, Any] = {}

        def handle(source: Any, frame: Frame) -> None:
            kind = type(frame)
            action = known.get(kind, _UNKNOWN)
            if action is None:
                return
            if action is _UNKNOWN:
                found = next((base for base in kind.__mro__ if base in guarded), None)
                action = known[kind] = guarded[found] if found is not None else None
            if action is not None and ready():
                action(source, frame)

        self.event(processor, event, handle)

    def event(self, processor: BaseObject, event: str, handler: Handler) -> None:
        """Add a handler, which must be guarded already."""
        processor.add_event_handler(event, handler)
        self._attached.append((processor, event, handler))

    def method(self, owner: Any, name: str, replacement: Any) -> None:
        """Replace a public method of one instance, to listen to what goes through it."""
        self._methods.append((owner, name, vars(owner).get(name, _UNKNOWN), replacement))
        setattr(owner, name, replacement)

    def detach(self) -> None:
        """Take every handler away and put every method back. What someone else replaced since stays."""
        for processor, event, handler in self._attached:
            processor.remove_event_handler(event, handler)
        for owner, name, before, replacement in reversed(self._methods):
            if vars(owner).get(name) is not replacement:
                continue
            if before is _UNKNOWN:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        self._attached.clear()
        self._methods.clear()
