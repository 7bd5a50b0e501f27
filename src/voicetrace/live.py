# SPDX-License-Identifier: Apache-2.0
"""`LiveCall`: a call that is going on. Adapters give it events and audio; it feeds everything else.

event -> journal (writer thread) -> fold -> call span, LLM spans, per-message records, listeners. What an
adapter does on the event loop ends here; files are touched on the writer thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, format_span_id, format_trace_id

from voicetrace import events as ev
from voicetrace import semconv
from voicetrace.call import CallRecorder, Change
from voicetrace.clock import CallClock
from voicetrace.files import MESSAGES_NAME, TRACE_NAME, CallFiles
from voicetrace.guard import Guard
from voicetrace.messages import LLMStep, VoiceMessage
from voicetrace.otel.attributes import call_attributes, call_document, step_attributes
from voicetrace.otel.encode import Entries, id_list, set_call_attributes, value_length_limit
from voicetrace.otel.encode import call_attributes as encode_call
from voicetrace.otel.links import LINKS
from voicetrace.otel.records import MessageRecords
from voicetrace.writer import WRITER, Writer

if TYPE_CHECKING:
    from voicetrace.settings import Settings

logger = logging.getLogger("voicetrace")

# The call span is rewritten at most this often while the call runs, and always at its end.
SPAN_INTERVAL_S: Final = 1.0
# It costs more the longer the call is: it may take a thousandth of the event loop's time, and no more.
_SPAN_SHARE: Final = 1000
_WALL_CLOCK: Final = time.time
_STEADY_CLOCK: Final = time.monotonic

Listener = Callable[[Change, CallRecorder], None]


def new_call_id(now: float) -> str:
    """A call's id and its folder's name: sorts by time, and is unique."""
    return f"{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}"


class LiveCall:
    """One running call.

    Thread-safe: `emit` takes a lock, because spans may start and end, and the writer may report, on other
    threads. Hooks should run it behind `guard`. After `close` only late facts are taken.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        framework: str,
        framework_version: str = "",
        tracer_provider: TracerProvider | None = None,
        content_captured: bool | None = None,
        agent_name: str = "",
        conversation_id: str = "",
        clock: Callable[[], float] = time.time,
        writer: Writer = WRITER,
        strict: bool = False,
    ) -> None:
        # a clock of the caller's own (a test's) is believed
        steady = _STEADY_CLOCK if clock is _WALL_CLOCK else None
        self._clock = CallClock(clock, steady, self._clock_was_set)
        now = self._clock.origin
        self.call_id = new_call_id(now)
        self.origin_unix_ms = int(now * 1000)
        self.settings = settings
        self.recorder = CallRecorder(strict=strict)
        content = settings.content == "full" if content_captured is None else content_captured
        self._content = content
        self._consented = self._all_consented = settings.consent == "given"
        # an error may quote all that was said so far
        self.guard = Guard(self.fault, private=lambda: not self._keeps_errors or settings.redact is not None)
        self.listeners: list[Listener] = []
        self.on_closed: list[Callable[[LiveCall], None]] = []
        self._lock = threading.RLock()
        self._writer = writer
        self._span: Span | None = None
        self._own_span = False
        self._span_written_at = 0.0
        self._span_pause_s = SPAN_INTERVAL_S
        self._entries = Entries()
        self._revisions: dict[str, int] = {}
        self._expected: set[str] = set()
        self._records = MessageRecords(settings.message_records, tracer_provider)
        self._deadline: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._late = False  # the map on the call span is not what its exported copy should have
        self._provider_gone = False
        self._conversation_id = conversation_id
        _CALLS.add(self)
        self.files = CallFiles(
            settings.directory.absolute() / self.call_id if settings.directory is not None else None,
            settings=settings,
            origin_unix_ms=self.origin_unix_ms,
            writer=writer,
            emit=self.emit,
        )
        self.files.open()  # only now: if it fails at once, on the writer thread, that is an event already
        self.emit(
            ev.CallStarted(
                at_ms=0,
                call_id=self.call_id,
                origin_unix_ms=self.origin_unix_ms,
                framework=framework,
                framework_version=framework_version,
                content_captured=content,
                uncommitted_timeout_ms=settings.uncommitted_timeout_ms,
                agent_name=agent_name,
                conversation_id=conversation_id,
                workspace_id=settings.workspace_id,
                service_id=settings.service_id,
                consent_given=self._consented,
                mute_redacted=settings.mutes_redacted,
            )
        )

    # -- time ----------------------------------------------------------------------------------------
    def ms(self, unix_seconds: float) -> int:
        """Wall-clock seconds as call-ms; before the call is 0."""
        return self._ms(self._clock.true(unix_seconds))

    def now_ms(self) -> int:
        """The present, in call-ms."""
        return self._ms(self._clock.now())

    def precise_ms(self) -> float:
        """The present, in call-ms, not rounded; for placing audio."""
        return self._clock.now() * 1000 - self.origin_unix_ms

    def _ms(self, unix_seconds: float) -> int:
        return max(0, round(unix_seconds * 1000) - self.origin_unix_ms)

    def set_origin(self, unix_seconds: float) -> bool:
        """Let call-ms 0 be another moment: the start of a recording that the framework makes.

        Only until somebody begins to say something, and before a recording of ours is open; after that
        nothing changes, and it returns ``False``.
        """
        with self._lock:
            started = self.recorder.started
            if self._closed or started is None or not self.recorder.silent or self.files.records:
                return False
            self.origin_unix_ms = self.files.origin_unix_ms = int(self._clock.true(unix_seconds) * 1000)
            self.emit(replace(started, content_captured=self._content, origin_unix_ms=self.origin_unix_ms))
            return True

    def _clock_was_set(self, by_s: float) -> None:
        self.fault(f"the system's clock was set by {by_s:+.1f} s; the call's times go on as if it was not")

    # -- events --------------------------------------------------------------------------------------
    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def emit(self, event: ev.Event) -> Change:
        """Journal an event, fold it, and pass on what it changed. Content is redacted first."""
        with self._lock:
            event = self._private(event)
            kept = False
            try:
                change = self.recorder.apply(event)
                kept = change.text_kept
            finally:
                # only the fold knows of whom a text is: one that comes now may be of what was said before
                self.files.journal(event if kept or self._all_consented else ev.without_content(event))
            if change:
                self._publish(change)
            self._arm_deadline()
            return change

    def fault(self, message: str) -> None:
        """Say in the record that something was not captured. Thread-safe."""
        self.emit(ev.CaptureFault(at_ms=self.now_ms(), message=message))

    def withhold_content(self) -> None:
        """Keep no text of this call; for a framework whose own switch is known only after the start."""
        started = self.recorder.started
        if self._content and started is not None:
            self._content = False
            self.emit(replace(started, content_captured=False))

    def set_consent(self, *, given: bool) -> None:
        """From now on texts and audio may be kept, or may not. Saying it twice is harmless."""
        with self._lock:
            if self._closed or given is self._consented:
                return
            self._consented, self._all_consented = given, False
            at_ms = self.now_ms()
            self.emit(ev.ConsentChanged(at_ms=at_ms, given=given))
            self.files.set_consent(at_ms, given=given)

    @property
    def _keeps_text(self) -> bool:
        return self._content and self._consented

    @property
    def _keeps_errors(self) -> bool:
        """Whether nothing was said so far that may not be kept: errors quote what they were given."""
        return self._content and self._all_consented

    def _private(self, event: ev.Event) -> ev.Event:
        """Drop or redact content before it is kept anywhere (architecture, "On the wire")."""
        redact = self.settings.redact
        changes: dict[str, Any] = {}
        for field in fields(event):
            is_error = field.name == "error"  # a provider's error may quote what it was asked
            value = getattr(event, field.name) if is_error or field.name in ev.CONTENT_FIELDS else None
            keeps = self._keeps_errors if is_error else self._keeps_text
            if not value or (keeps and redact is None):
                continue
            changes[field.name] = "error" if is_error else None
            # also where no text is kept: its audio may be
            if redact is not None and (keeps or (self.settings.mutes_redacted and not is_error)):
                changes["redacted"] = True
                try:
                    redacted: Any = redact(value)
                    if not isinstance(redacted, str):
                        raise TypeError(f"redact gave {type(redacted).__name__}, not a text")  # noqa: TRY301
                    changes["redacted"] = redacted != value
                    if keeps:
                        changes[field.name] = redacted
                except Exception as error:  # noqa: BLE001  the user's function; without it nothing is kept
                    self.guard.failed("redact", error)
        return replace(event, **changes) if changes else event

    def _publish(self, change: Change) -> None:
        for old, _ in change.moved:
            self._entries.drop(old)
        for message in change.messages:
            self._entries.put(message)
            self._late = True
        for step in change.steps:
            self._resolve_step(step)
        for stretch in change.muted:
            self.files.mute(*stretch)
        if change.settled:
            for message in change.settled:
                self._emit_record(message)
            self.files.sync()
            if self._clock.now() - self._span_written_at >= self._span_pause_s:
                self._write_span()
        for listener in self.listeners:
            try:
                listener(change, self.recorder)
            except Exception as error:  # noqa: BLE001  counted and logged in the guard
                self.guard.failed("listener", error)

    # -- spans ---------------------------------------------------------------------------------------
    def bind_span(self, span: Span, *, own: bool = False) -> None:
        """Enrich this span as the call span. The first one bound stays."""
        context = span.get_span_context()
        with self._lock:
            if self._span is not None or not context.is_valid:
                return
            self._span, self._own_span = span, own
            parent = getattr(span, "parent", None)
            if span.is_recording():
                LINKS.expect_call(context.span_id, context.trace_id)
                self._expected.add(format_span_id(context.span_id))
            self.emit(
                ev.CallSpanBound(
                    at_ms=self.now_ms(),
                    trace_id=format_trace_id(context.trace_id),
                    span_id=format_span_id(context.span_id),
                    name=getattr(span, "name", semconv.SPAN_CALL),
                    start_unix_ms=(getattr(span, "start_time", None) or int(self._clock.now() * 1e9))
                    // 1_000_000,
                    parent_span_id=format_span_id(parent.span_id) if parent is not None else None,
                )
            )

    @property
    def span(self) -> Span | None:
        """The call span, once bound."""
        return self._span

    def provider_gone(self) -> None:
        """The tracer provider was shut down before the call span ended, so nothing sends that span.

        The call goes on in its journal, and at its end its spans are written beside it, as `recover`
        writes those of a process that died. Any thread.
        """
        with self._lock:
            if self._provider_gone or (self._span is not None and not self._span.is_recording()):
                return
            self._provider_gone = True
        told = "" if self.files.directory is None else f"; its spans are in {TRACE_NAME}"
        self.fault(f"the tracer provider was shut down before the call ended{told}")

    @property
    def runs(self) -> bool:
        """Whether the call's event loop runs, so that more of it may come."""
        return self._loop is not None and self._loop.is_running()

    def start_step(
        self,
        span: Span,
        *,
        name: str,
        context_ids: tuple[str | None, ...],
        speech_id: str | None,
        answers: str | None,
        awaits_speech: bool = False,
    ) -> None:
        """An LLM call began in this span: name what it reads, and hold the span until its output is known."""
        context = span.get_span_context()
        if not context.is_valid:
            return
        now = self.now_ms()  # before the span is promised anything: what fails here leaves no trace
        span_id = format_span_id(context.span_id)
        parent = getattr(span, "parent", None)
        if span.is_recording():
            span.set_attribute(semconv.VOICE_CONTEXT_MESSAGE_IDS, id_list(context_ids))
            span.set_attribute(semconv.VOICE_CONTEXT_MESSAGE_COUNT, len(context_ids))
            LINKS.expect(context.span_id, context.trace_id, self._step_exported)
            self._expected.add(span_id)
        self.emit(
            ev.LLMStepStarted(
                at_ms=now,
                span_id=span_id,
                trace_id=format_trace_id(context.trace_id),
                name=name,
                context_ids=context_ids,
                speech_id=speech_id,
                answers=answers,
                awaits_speech=awaits_speech,
                parent_span_id=format_span_id(parent.span_id) if parent is not None else None,
            )
        )

    def _step_exported(self, span_id: str) -> None:
        self.files.journal(ev.LLMStepExported(at_ms=self.now_ms(), span_id=span_id))

    def _resolve_step(self, step: LLMStep) -> None:
        if step.span_id not in self._expected:
            return
        self._expected.discard(step.span_id)
        LINKS.resolve(step.span_id, step_attributes(step))

    def _write_span(self, *, final: bool = False) -> None:
        if self._span is None or not self._span.is_recording():
            return
        self._span_written_at = self._clock.now()
        # the SDK copies a structured map value by value: the loop has no time for it while a call runs, nor
        # at its end where an exported copy gets it on the writer thread
        structured = self.settings.structured_messages
        copied = bool(LINKS.exporters()) and value_length_limit(self._span) is None  # it cuts texts in here
        here = structured and final and not copied
        self._late = structured and not here
        began = time.perf_counter()
        set_call_attributes(
            self._span,
            self._entries.fragments(),
            attributes=self._span_attributes(final=final),
            messages_uri=self.files.messages_uri,
            max_bytes=self.settings.max_messages_bytes,
            structured=here,
        )
        self._span_pause_s = max(SPAN_INTERVAL_S, _SPAN_SHARE * (time.perf_counter() - began))

    def _span_attributes(self, *, final: bool) -> dict[str, Any]:
        attributes = call_attributes(self.recorder, final=final)
        recording = self.recorder.recording
        if recording is not None:
            wire = recording.to_wire() | {"uri": self.files.uri(recording.uri)}
            attributes[semconv.VOICE_RECORDING] = json.dumps(wire, separators=(",", ":"))
        return attributes

    def _documents(self) -> dict[str, Any]:
        """The files that tell of the whole call, by name, in the order of their writing."""
        with self._lock:
            out: dict[str, Any] = {}
            if self._provider_gone:
                from voicetrace.otel.otlp_json import spans_to_otlp
                from voicetrace.otel.rebuild import call_spans

                recording = self.recorder.recording
                out[TRACE_NAME] = spans_to_otlp(
                    call_spans(
                        self.recorder,
                        recording_uri=self.files.uri(recording.uri) if recording is not None else None,
                        messages_uri=self.files.messages_uri,
                    )
                )
            # last, because its presence says that the call is finished
            out[MESSAGES_NAME] = call_document(self.recorder)
            return out

    def _emit_record(self, message: VoiceMessage) -> None:
        revision = self._revisions.get(message.id, 0) + 1
        self._revisions[message.id] = revision
        if self._span is not None and not self._provider_gone:
            self._records.emit(
                message,
                self._span.get_span_context(),
                self.origin_unix_ms,
                revision,
                self.call_id,
                conversation_id=self._conversation_id,
            )

    # -- deadlines -----------------------------------------------------------------------------------
    def attach_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let time pass on this loop, so that uncommitted speech settles without another event."""
        self._loop = loop

    def _arm_deadline(self) -> None:
        if self._loop is None or self._deadline is not None or self._closed:
            return
        due = self.recorder.next_deadline_ms
        if due is None:
            return
        delay = max(0.0, (due - self.now_ms()) / 1000) + 0.001
        with contextlib.suppress(RuntimeError):  # no loop runs on this thread
            if asyncio.get_running_loop() is not self._loop:
                return
            self._deadline = self._loop.call_later(delay, self._on_deadline)

    def _on_deadline(self) -> None:
        self._deadline = None
        try:
            self.emit(ev.TimePassed(at_ms=self.now_ms()))
        except Exception as error:  # noqa: BLE001  counted and logged in the guard
            self.guard.failed("deadline", error)

    # -- the end -------------------------------------------------------------------------------------
    def close(self, reason: str = "") -> None:
        """End the call: settle everything, write the final map on the call span, finish the files.

        Returns at once; hashing, transcoding and the full map's file are the writer thread's work. Closing
        twice is harmless.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
            end_ms = self.now_ms()
            self.emit(ev.CallEnded(at_ms=end_ms, reason=reason))
            self._write_span(final=True)
            if self._own_span and self._span is not None:
                self._span.end()
        _FINISHING.add(self)
        self.files.finish(end_ms, self._documents, self._finished)

    def _abandon(self) -> None:
        """In a forked child: the call goes on in the parent, and only there."""
        self._lock = threading.RLock()  # another thread may have held it
        self._closed = True
        self._span = None
        self._expected.clear()
        self.files.abandon()

    def _finished(self) -> None:
        """On the writer thread: everything is on disk; let the call span go with the finished recording."""
        with self._lock:
            expected, self._expected = self._expected, set()
            late = self._span_attributes(final=True)
            late = {k: late[k] for k in (semconv.VOICE_RECORDING, semconv.VOICE_WARNINGS) if k in late}
            # told by a slow disk, or a transcript that came after the end
            fragments = self._entries.fragments() if self._late else None
        # not under the lock: the loop may want it for another late fact
        if self._span is not None:
            span_id = format_span_id(self._span.get_span_context().span_id)
            if span_id in expected:
                if fragments is not None:
                    late = encode_call(
                        fragments,
                        attributes=late,
                        messages_uri=self.files.messages_uri,
                        max_bytes=self.settings.max_messages_bytes,
                        max_chars=value_length_limit(self._span),
                        structured=self.settings.structured_messages,
                    )
                LINKS.resolve(span_id, late)
                expected.discard(span_id)
        for span_id in expected:
            LINKS.resolve(span_id, {})
        _FINISHING.discard(self)
        for callback in self.on_closed:
            try:
                callback(self)
            except Exception as error:  # noqa: BLE001  counted and logged in the guard
                self.guard.failed("on_closed", error)


_CALLS: Final[weakref.WeakSet[LiveCall]] = weakref.WeakSet()
_FINISHING: Final[set[LiveCall]] = set()  # closed, and their files not finished yet


def finish_calls(timeout_s: float) -> bool:
    """Wait until the files of every closed call are finished; False when `timeout_s` passed first."""
    deadline = time.monotonic() + timeout_s
    return all(call._writer.drain(deadline - time.monotonic()) for call in list(_FINISHING))  # noqa: SLF001


# a flush means the whole trace: the call span of a call that is over waits only for its finished recording
LINKS.finish = finish_calls


def _abandon_inherited() -> None:
    """A forked child that ends must not end, cut or encode the calls of its parent."""
    _FINISHING.clear()
    for call in list(_CALLS):
        call._abandon()  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_inherited)
