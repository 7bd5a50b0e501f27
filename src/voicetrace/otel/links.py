# SPDX-License-Identifier: Apache-2.0
"""Which ended spans wait at the exporter, and what they get when their message settles.

The registry `LINKS` is shared by whoever knows about messages (`expect`, `resolve`) and by the wrapped
exporters (`voicetrace.otel.hold`), which ask it about every span they are given.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Protocol

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import format_span_id

from voicetrace.otel.sizes import attributes_size

logger = logging.getLogger("voicetrace.otel")

OnExported = Callable[[str], None]


class Waiter(Protocol):
    """An exporter that holds spans: numbered, and woken when something is settled."""

    serial: int

    def wake(self) -> None:
        """Look soon, on a thread of your own, at what became due; returns at once."""


@dataclass(slots=True)
class _Entry:
    """What is known about one awaited span. ``attributes`` is None until it is settled."""

    trace_id: int
    on_exported: OnExported | None
    attributes: dict[str, Any] | None = None
    size: int = 0
    settled_at: float = 0.0
    delivered_by: set[int] = field(default_factory=set)


class StepLinks:
    """Which spans must wait at the exporter, and the attributes they get when they are settled.

    Thread-safe; no method blocks on I/O, so an event loop may call any of them. Bounded: above
    ``max_pending`` the oldest awaited span is given up (it leaves as it is), and settled attributes are
    kept until every live exporter has sent them, at most ``max_settled_s`` seconds, ``max_settled``
    entries and ``max_settled_bytes`` estimated bytes.
    """

    def __init__(
        self,
        *,
        max_pending: int = 8192,
        max_settled: int = 8192,
        max_settled_bytes: int = 64 * 1024 * 1024,
        max_settled_s: float = 900.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_pending = max_pending
        self._max_settled = max_settled
        self._max_settled_bytes = max_settled_bytes
        self._max_settled_s = max_settled_s
        self._clock = clock
        self._lock = threading.Lock()
        self._pending: OrderedDict[int, _Entry] = OrderedDict()
        self._settled: OrderedDict[int, _Entry] = OrderedDict()
        self._settled_bytes = 0
        self._exporters: weakref.WeakSet[Waiter] = weakref.WeakSet()
        self.given_up = 0
        self.callback_failures = 0
        self.finish: Callable[[float], object] | None = None
        """Waits at most so many seconds for what is about to settle; asked when an exporter is flushed."""

    def expect(
        self, span_id: int | str, trace_id: int | str = 0, on_exported: OnExported | None = None
    ) -> None:
        """Hold this span from its end until `resolve`. Ids are ints or hex strings; trace id 0 is any.

        ``on_exported`` is called once with the span id (16 hex) after the first delivery that succeeded,
        on the thread that delivered it.
        """
        key, given_up = _as_int(span_id), False
        with self._lock:
            known = self._settled.get(key) or self._pending.get(key)
            if known is not None:
                # resolved first, or expected twice: what is known stays
                known.trace_id = known.trace_id or _as_int(trace_id)
                known.on_exported = known.on_exported or on_exported
                return
            self._pending[key] = _Entry(_as_int(trace_id), on_exported)
            if len(self._pending) > self._max_pending:
                self._pending.popitem(last=False)
                self.given_up += 1
                given_up = True
        if given_up:
            if self.given_up == 1:
                logger.warning(
                    "more than %d spans wait for their messages; the oldest leave unlinked", self._max_pending
                )
            self._wake()

    def expect_call(
        self, span_id: int | str, trace_id: int | str = 0, on_exported: OnExported | None = None
    ) -> None:
        """Hold a call span until its recording is finished; the same mechanism as `expect`."""
        self.expect(span_id, trace_id, on_exported)

    def resolve(self, span_id: int | str, attributes: Mapping[str, Any]) -> None:
        """Let the span go with these attributes set on its copy; a value of None removes the key.

        Never exports on the calling thread. A span that has not ended yet gets the attributes when it
        ends; a second call before the span has left replaces the first.
        """
        key = _as_int(span_id)
        with self._lock:
            entry = self._pending.pop(key, None)
            if entry is None:
                entry = self._forget_settled(key) or _Entry(0, None)
            entry.attributes = dict(attributes)
            entry.size = attributes_size(entry.attributes)
            entry.settled_at = self._clock()
            self._settled[key] = entry
            self._settled_bytes += entry.size
            if self._delivered_everywhere(entry):
                self._forget_settled(key)
            self._trim_settled()
        self._wake()

    def is_pending(self, span: ReadableSpan) -> bool:
        """Tell whether the span must wait."""
        context = span.context
        if context is None:
            return False
        with self._lock:
            entry = self._pending.get(context.span_id)
        return entry is not None and entry.trace_id in (0, context.trace_id)

    def linked(self, span: ReadableSpan) -> ReadableSpan:
        """The span with its settled attributes: a copy, or the span itself when there are none."""
        context = span.context
        if context is None:
            return span
        with self._lock:
            entry = self._settled.get(context.span_id)
        if entry is None or not entry.attributes or entry.trace_id not in (0, context.trace_id):
            return span
        return LinkedSpan(span, entry.attributes)

    def attach(self, exporter: Waiter) -> None:
        """Wake this exporter when a span is settled."""
        with self._lock:
            self._exporters.add(exporter)

    def detach(self, exporter: Waiter) -> None:
        """Forget an exporter that was shut down."""
        with self._lock:
            self._exporters.discard(exporter)

    def exporters(self) -> list[Waiter]:
        """The live wrapped exporters; none means that no LLM span can be linked."""
        with self._lock:
            return list(self._exporters)

    def delivered(self, spans: Iterable[ReadableSpan], serial: int) -> None:
        """Note that the exporter numbered ``serial`` delivered these spans; runs their callbacks."""
        calls: list[tuple[OnExported, str]] = []
        with self._lock:
            for span in spans:
                key = span.context.span_id if span.context else 0
                entry = self._settled.get(key) or self._pending.get(key)
                if entry is None:
                    continue
                entry.delivered_by.add(serial)
                if entry.on_exported is not None:
                    calls.append((entry.on_exported, format_span_id(key)))
                    entry.on_exported = None
                if entry.attributes is not None and self._delivered_everywhere(entry):
                    self._forget_settled(key)
        for callback, span_id in calls:
            try:
                callback(span_id)
            except Exception:
                self.callback_failures += 1
                if self.callback_failures == 1:
                    logger.warning("a callback failed after span %s was exported", span_id, exc_info=True)

    def _delivered_everywhere(self, entry: _Entry) -> bool:
        live = {exporter.serial for exporter in self._exporters}
        return bool(live) and live <= entry.delivered_by

    def _forget_settled(self, key: int) -> _Entry | None:
        entry = self._settled.pop(key, None)
        if entry is not None:
            self._settled_bytes -= entry.size
        return entry

    def _trim_settled(self) -> None:
        oldest_allowed = self._clock() - self._max_settled_s
        while self._settled:
            key, entry = next(iter(self._settled.items()))
            if (
                len(self._settled) <= self._max_settled
                and self._settled_bytes <= self._max_settled_bytes
                and entry.settled_at >= oldest_allowed
            ):
                return
            self._forget_settled(key)

    def _wake(self) -> None:
        for exporter in self.exporters():
            exporter.wake()

    def reset_after_fork(self) -> None:
        """In a forked child: the parent settles and exports its own spans, here nothing is awaited."""
        self._lock = threading.Lock()
        self._pending.clear()
        self._settled.clear()
        self._settled_bytes = 0


LINKS: Final = StepLinks()


class LinkedSpan(ReadableSpan):
    """A copy of an ended span with other attributes; everything else is the original's."""

    def __init__(self, span: ReadableSpan, changes: Mapping[str, Any]) -> None:
        attributes = dict(span.attributes or {})
        for name, value in changes.items():
            attributes.pop(name, None)  # what is set last stands last, as on a live span
            if value is not None:
                attributes[name] = value
        super().__init__(
            name=span.name,
            context=span.context,
            parent=span.parent,
            resource=span.resource,
            attributes=MappingProxyType(attributes),
            events=span.events,
            links=span.links,
            kind=span.kind,
            status=span.status,
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=span.instrumentation_scope,
        )
        self._original_dropped = (span.dropped_attributes, span.dropped_events, span.dropped_links)

    @property
    def dropped_attributes(self) -> int:
        """How many attributes the SDK dropped from the original."""
        return self._original_dropped[0]

    @property
    def dropped_events(self) -> int:
        """How many events the SDK dropped from the original."""
        return self._original_dropped[1]

    @property
    def dropped_links(self) -> int:
        """How many links the SDK dropped from the original."""
        return self._original_dropped[2]


def _as_int(value: int | str) -> int:
    return int(value, 16) if isinstance(value, str) else value


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LINKS.reset_after_fork)
