# SPDX-License-Identifier: Apache-2.0
"""Holding ended spans until what they link to is known (architecture, decision 2).

An LLM span ends when the model stops streaming, long before its message is played and settled, and an
ended span cannot change. So it waits at the *exporter*: `links` knows which spans wait and for what, the
wrapper here holds them and sends a copy with the final attributes. The call span waits the same way for
its finished recording. Spans nobody waits for pass in the same call.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.util import Finalize

from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from voicetrace.otel.links import LINKS, StepLinks
from voicetrace.otel.sizes import requests

logger = logging.getLogger("voicetrace.otel")

_serials = itertools.count(1)

# A flush waits this long for the recordings of calls that are over; their spans go without them after that.
FINISH_S = 5.0


class LinkingExporter(SpanExporter):
    """Holds awaited spans in front of ``inner``; made by `wrap_exporter`, which says how it behaves."""

    def __init__(
        self,
        inner: SpanExporter,
        *,
        max_held: int = 2048,
        max_hold_s: float = 600.0,
        links: StepLinks = LINKS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inner = inner
        self.serial = next(_serials)
        self.failed_exports = 0
        self.let_go = 0
        self._max_held = max_held
        self._max_hold_s = max_hold_s
        self._links = links
        self._clock = clock
        self._held: list[tuple[ReadableSpan, float]] = []
        self._closed = False
        self._thread: threading.Thread | None = None
        self._new_locks()
        links.attach(self)
        _exporters.add(self)

    def _new_locks(self) -> None:
        # `_lock` guards the fields and is held for moments; `_export_lock` serialises the inner exporter
        # and may be held as long as that blocks. It is re-entrant because an exporter may end a span.
        self._lock = threading.Lock()
        self._export_lock = threading.RLock()
        self._wake_up = threading.Event()

    # -- SpanExporter ----------------------------------------------------------------------------
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send what nobody waits for, and whatever became due; hold the rest.

        Returns the inner exporter's result for the spans of this call; SUCCESS when all are held.
        """
        passing: list[ReadableSpan] = []
        with self._lock:
            for span in spans:
                if not self._closed and self._links.is_pending(span):
                    self._held.append((span, self._clock()))
                else:
                    passing.append(self._links.linked(span))
        sent: list[ReadableSpan] = []
        try:
            with self._export_lock:
                result = self._send(passing, sent)
                self._send(self._take_due(), sent)
        finally:
            self._links.delivered(sent, self.serial)
            self._watch()
        return result

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Send what is due and flush the inner exporter; what still waits for its message stays held.

        Returns False when it failed or another export did not let go in time.
        """
        deadline = time.monotonic() + timeout_millis / 1000
        self._finish(timeout_millis)
        if not self._export_lock.acquire(timeout=max(0.0, timeout_millis / 1000)):
            return False
        sent: list[ReadableSpan] = []
        try:
            result = self._send(self._take_due(), sent)
        finally:
            self._export_lock.release()
            self._links.delivered(sent, self.serial)
        remaining = max(0, int((deadline - time.monotonic()) * 1000))
        try:
            flushed = self.inner.force_flush(remaining)
        except Exception:  # noqa: BLE001  counted and logged once; a flush answers, it does not raise
            self._failed("force_flush failed")
            return False
        # an exporter without a flush of its own answers None
        return result is SpanExportResult.SUCCESS and flushed is not False

    def shutdown(self, timeout_millis: float = 30000) -> None:
        """Send everything still held, each once, then shut the inner exporter down. Never raises."""
        if not self._closed:
            self._finish(timeout_millis)
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._wake_up.set()
        sent: list[ReadableSpan] = []
        # if the inner exporter blocks, only its own shutdown can interrupt it
        if self._export_lock.acquire(timeout=max(0.0, timeout_millis / 1000)):
            try:
                self._send(self._take_due(everything=True), sent)
            finally:
                self._export_lock.release()
                self._links.delivered(sent, self.serial)
        else:
            lost = len(self._take_due(everything=True))
            self._failed(f"the exporter blocked at shutdown and {lost} held spans are lost")
        self._links.detach(self)
        try:
            self.inner.shutdown()
        except Exception:  # noqa: BLE001  counted and logged once
            self._failed("shutdown failed")

    def _finish(self, timeout_millis: float) -> None:
        """Let calls that are over finish their recordings, which their held spans tell of."""
        if self._links.finish is not None and self.held():
            self._links.finish(min(FINISH_S, timeout_millis / 1000))

    def send_due(self) -> None:
        """Send what is due now and is still here, because the process ends."""
        sent: list[ReadableSpan] = []
        try:
            with self._export_lock:
                self._send(self._take_due(), sent)
        finally:
            self._links.delivered(sent, self.serial)

    # -- holding ---------------------------------------------------------------------------------
    def wake(self) -> None:
        """Look soon, on the exporter's own thread, at what became due."""
        self._wake_up.set()

    def held(self) -> int:
        """How many spans wait here."""
        with self._lock:
            return len(self._held)

    def _take_due(self, *, everything: bool = False) -> list[ReadableSpan]:
        due: list[ReadableSpan] = []
        kept: list[tuple[ReadableSpan, float]] = []
        with self._lock:
            oldest_allowed = self._clock() - self._max_hold_s
            over = waiting = 0
            for span, since in self._held:
                if everything or not self._links.is_pending(span):
                    due.append(span)
                elif since <= oldest_allowed:
                    due.append(span)
                    over += 1
                else:
                    kept.append((span, since))
                    waiting += 1
            for span, _ in kept[: max(0, waiting - self._max_held)]:
                due.append(span)
                over += 1
            self._held = kept[max(0, waiting - self._max_held) :]
            first = over > 0 and self.let_go == 0
            self.let_go += over
        if first:
            logger.warning(
                "%d spans left before their message settled, unlinked (limits: %d spans, %g s)",
                over,
                self._max_held,
                self._max_hold_s,
            )
        return [self._links.linked(span) for span in due]

    def _send(self, spans: list[ReadableSpan], sent: list[ReadableSpan]) -> SpanExportResult:
        """Export in requests of bearable size; the caller holds `_export_lock`."""
        result: SpanExportResult = SpanExportResult.SUCCESS
        if not spans:
            return result
        todo = list(requests(spans))
        # an instrumented HTTP client must not make spans of our sending spans
        token = otel_context.attach(
            otel_context.set_value(otel_context._SUPPRESS_INSTRUMENTATION_KEY, True)  # noqa: SLF001
        )
        try:
            while todo:
                request = todo.pop(0)
                try:
                    answer = self.inner.export(request)
                except Exception:  # noqa: BLE001  counted and logged once; the SDK is told FAILURE
                    self._failed(f"exporting {len(request)} spans failed")
                    result = SpanExportResult.FAILURE
                    continue
                if answer is SpanExportResult.FAILURE:
                    self._failed(f"the exporter refused {len(request)} spans")
                    result = SpanExportResult.FAILURE
                else:
                    sent.extend(request)
        finally:
            if todo:  # interrupted (Ctrl-C): what was not tried yet is still ours
                with self._lock:
                    now = self._clock()
                    self._held += [(span, now) for request in todo for span in request]
            otel_context.detach(token)
        return result

    def _failed(self, what: str) -> None:
        with self._lock:
            self.failed_exports += 1
            first = self.failed_exports == 1
        _count_failure()
        if first:
            logger.warning(
                "%s: %s; further failures are counted only",
                type(self.inner).__name__,
                what,
                exc_info=sys.exc_info()[0] is not None,
            )

    # -- the thread: lives only while something is held -------------------------------------------
    def _watch(self) -> None:
        with self._lock:
            if self._closed or not self._held or self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name="voicetrace-hold", daemon=True)
            self._thread = thread
            try:
                thread.start()
                _send_before_the_end()
            except RuntimeError:  # the interpreter is ending: shutdown() sends what is held
                self._thread = None

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._closed or not self._held:
                    self._thread = None
                    return
                wait_s = self._held[0][1] + self._max_hold_s - self._clock()
            self._wake_up.wait(min(max(wait_s, 0.01), 60.0))
            self._wake_up.clear()
            sent: list[ReadableSpan] = []
            try:
                with self._export_lock:
                    self._send(self._take_due(), sent)
            finally:
                self._links.delivered(sent, self.serial)

    def reset_after_fork(self) -> None:
        """In a forked child: fresh locks, no thread, and nothing held, for that is the parent's."""
        self._new_locks()
        self._held = []
        self._thread = None


def wrap_exporter(
    exporter: SpanExporter, *, max_held: int = 2048, max_hold_s: float = 600.0
) -> LinkingExporter:
    """Wrap a span exporter so that LLM spans leave with the messages they produced.

    Spans that nobody waits for pass in the same call. Awaited ones are held until their message settles,
    at most ``max_hold_s`` seconds and ``max_held`` at a time (then the oldest leave as they are, with one
    warning), and are sent with the next export or shortly afterwards by the wrapper's own daemon thread.
    ``shutdown()`` sends everything still held. No span is lost or sent twice. Requests are split so that a
    big span travels alone. Calls of the inner exporter never overlap. Failures are counted in
    ``failed_exports`` and logged once. An already wrapped exporter is returned as it is.

    Raises:
        ValueError: a limit is not positive.
    """
    if isinstance(exporter, LinkingExporter):
        return exporter
    if max_held <= 0 or max_hold_s <= 0:
        raise ValueError(f"max_held ({max_held}) and max_hold_s ({max_hold_s}) must be positive")
    return LinkingExporter(exporter, max_held=max_held, max_hold_s=max_hold_s)


# -- process-wide --------------------------------------------------------------------------------
_exporters: weakref.WeakSet[LinkingExporter] = weakref.WeakSet()
_failures_seen = 0
_failures_lock = threading.Lock()


def _count_failure() -> None:
    global _failures_seen
    with _failures_lock:
        _failures_seen += 1


def failed_exports() -> int:
    """How many exports failed in this process, over all wrapped exporters; it only grows."""
    return _failures_seen


_at_end = 0


def _send_before_the_end() -> None:
    """Once per process; a child of `multiprocessing` runs no `atexit` handler, so no provider's shutdown."""
    global _at_end
    if _at_end != os.getpid():
        _at_end = os.getpid()
        Finalize(None, _send_all_due, exitpriority=90)  # behind the writer, whose jobs settle spans


def _send_all_due() -> None:
    for exporter in list(_exporters):
        exporter.send_due()


def _reset_after_fork() -> None:
    global _failures_lock
    _failures_lock = threading.Lock()
    for exporter in list(_exporters):
        exporter.reset_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
