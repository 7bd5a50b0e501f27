# SPDX-License-Identifier: Apache-2.0
"""`CallRecorder`: takes the events of one call to the part that each concerns, and writes what changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from voicetrace import events as ev
from voicetrace.call.book import Book, Handlers
from voicetrace.call.drafts import Draft, SpeechDraft, UserDraft
from voicetrace.call.recording import Stretch, Tape
from voicetrace.call.snapshots import snapshot
from voicetrace.call.speech import Speeches
from voicetrace.call.steps import Steps
from voicetrace.call.user import UserTurns
from voicetrace.messages import (
    Channel,
    LLMStep,
    Recording,
    Role,
    State,
    TextSource,
    TextStatus,
    VoiceMessage,
    regressions,
    writer_problems,
)


class ContractError(AssertionError):
    """The fold was about to write a record that breaks the contract: a bug in voicetrace."""


@dataclass(frozen=True, slots=True)
class Change:
    """What one event did. Empty most of the time."""

    messages: tuple[VoiceMessage, ...] = ()
    """Snapshots that are new or differ from the last write, oldest first."""
    moved: tuple[tuple[str, str], ...] = ()
    """Keys that were renamed: (old, new). The old key is gone for good."""
    settled: tuple[VoiceMessage, ...] = ()
    """Those of `messages` that reached a terminal state, or changed after it."""
    steps: tuple[LLMStep, ...] = ()
    """LLM steps whose outputs are now known; one comes again if a late item changed them."""
    muted: tuple[Stretch, ...] = ()
    """Stretches whose audio must go, because the text that was said there was redacted."""
    text_kept: bool = False
    """Whether a record took the event's text; else the text is nobody's, or of what may not be kept."""

    def __bool__(self) -> bool:
        return bool(self.messages or self.moved or self.steps or self.muted)


class CallRecorder:
    """Folds the events of one call into its messages (contract, sections 2-4).

    `messages` holds the last snapshot of every record that is written so far, keyed by message id; `steps`
    the LLM steps; `warnings` what was doubtful. `apply` takes the next event and says what it changed.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self._strict = strict
        self.span: ev.CallSpanBound | None = None
        self._book = Book()
        self._steps = Steps(self._book)
        self._users = UserTurns(self._book, self._steps)
        self._speeches = Speeches(self._book, self._steps)
        self._tape = Tape(self._book)
        self._handlers: Handlers = {
            ev.CallStarted: self._on_call_started,
            ev.CallSpanBound: self._on_call_span_bound,
            ev.ConsentChanged: self._on_consent_changed,
            ev.TimePassed: lambda _: None,
            ev.CaptureFault: lambda e: self._book.warn(e.message),
            ev.CallEnded: self._on_call_ended,
            ev.MessageNoted: self._on_message_noted,
        }
        for part in (self._users, self._speeches, self._steps, self._tape):
            self._handlers.update(part.handlers)

    # -- what the fold knows -------------------------------------------------------------------------
    @property
    def started(self) -> ev.CallStarted | None:
        """How the call began; ``None`` before it did."""
        return self._book.started

    @property
    def ended(self) -> ev.CallEnded | None:
        """How the call ended; ``None`` while it goes on."""
        return self._book.ended

    @property
    def silent(self) -> bool:
        """Whether nobody has begun to say anything."""
        return not self._book.drafts

    @property
    def now_ms(self) -> int:
        """The latest time that any event told, in call-ms."""
        return self._book.now_ms

    @property
    def warnings(self) -> list[str]:
        """What was doubtful, a sentence each, every one once."""
        return self._book.warnings

    @property
    def messages(self) -> Mapping[str, VoiceMessage]:
        """Every record written so far, by id. A live view; do not keep it across `apply`."""
        return MappingProxyType(self._book.messages)

    def ordered(self) -> list[VoiceMessage]:
        """The records in order of ``seq``."""
        return sorted(self._book.messages.values(), key=lambda m: m.seq)

    @property
    def steps(self) -> list[LLMStep]:
        """The LLM steps in order of their start, with what is known of their outputs now."""
        return self._steps.all()

    @property
    def exported_steps(self) -> set[str]:
        """The span ids of the LLM steps that left for the backend."""
        return self._steps.exported

    @property
    def recording(self) -> Recording | None:
        """The recording as far as it is known; an unfinished one has no digest and no duration."""
        return self._tape.recording

    @property
    def silenced(self) -> list[Stretch]:
        """Where there may be no audio: what was redacted, and what was said without consent."""
        without = [
            (channel, start, self.now_ms if end is None else end)
            for start, end in self._book.unconsented
            for channel in Channel
        ]
        return [*self._tape.muted, *without]

    @property
    def next_deadline_ms(self) -> int | None:
        """When uncommitted speech falls due, in call-ms; ``None`` when nothing waits for time to pass."""
        return self._users.next_deadline_ms

    # -- applying ------------------------------------------------------------------------------------
    def apply(self, event: ev.Event) -> Change:
        """Take the next event. Returns what changed; events after `CallEnded` change less and less.

        After the end only late facts that the contract lets move forward are taken: a transcript, an
        item, the finished recording.

        Raises:
            ContractError: a record would break the contract, and the recorder is `strict`.
        """
        book = self._book
        book.touched.clear()
        book.moved.clear()
        book.text_kept = False
        self._steps.settled.clear()
        book.now_ms = max(book.now_ms, event.at_ms)
        if book.ended is None:
            self._users.settle_overdue()
        handler = self._handlers.get(type(event))
        if handler is None:
            book.warn(f"event {type(event).__name__} has no handler")
        else:
            handler(event)
        return self._publish()

    def _publish(self) -> Change:
        written: list[VoiceMessage] = []
        settled: list[VoiceMessage] = []
        muted: list[Stretch] = []
        for draft in list(self._book.touched.values()):
            if self._book.unconsented and self._spoken_unkept(draft):
                self._book.withhold(draft)
            if draft.muted:
                muted += self._mute(draft)
        for draft in sorted(self._book.touched.values(), key=lambda d: d.seq):
            message = snapshot(draft, self._tape, call_ended=self._book.ended is not None)
            if message is None or message == draft.last:
                continue
            problems = writer_problems(message)
            if draft.last is not None:
                problems += regressions(draft.last, message)
            if problems:
                sentence = f"message {message.id}: {'; '.join(problems)}"
                if self._strict:
                    raise ContractError(sentence)
                self._book.warn(f"not written, {sentence}")
                continue
            draft.last = message
            self._book.messages[draft.key] = message
            written.append(message)
            if message.state is not State.OPEN:
                settled.append(message)
        moved, steps = tuple(self._book.moved), tuple(self._steps.settled)
        kept = self._book.text_kept
        return Change(tuple(written), moved, tuple(settled), steps, tuple(muted), text_kept=kept)

    def _spoken_unkept(self, draft: Draft) -> bool:
        """Whether it turns out that a part was said without consent, and its text is not written yet."""
        written = draft.last is not None and draft.last.text_status is TextStatus.FINAL
        ranges: Iterable[tuple[int, int | None]]
        ranges = draft.ranges if isinstance(draft, UserDraft) else draft.ranges_begun()
        return not written and self._book.unkept(ranges)

    def _mute(self, draft: Draft) -> list[Stretch]:
        """What of a redacted message's audio has not been silenced yet."""
        channel, ranges = self._heard(draft)
        if isinstance(draft, SpeechDraft) and draft.settled:
            # it was never said how far that played: a process died
            ranges += [(start, self._book.now_ms) for start in draft.unfinished()]
        said = isinstance(draft, UserDraft) and draft.settled and draft.source is not TextSource.TEXT_INPUT
        if said and not ranges and self._tape.holds(channel):
            self._book.warn(
                f"message {draft.key}: where it was said is not known, so its audio is not silenced"
            )
        new = self._tape.mute(channel, ranges)
        for other in self._book.drafts.values() if new else ():
            side, heard = self._heard(other)
            if side is channel and any(a < end and b > start for a, b in heard for _, start, end in new):
                self._book.touch(other)  # what is silenced around a message may be another's
        return new

    def _heard(self, draft: Draft) -> tuple[Channel, list[tuple[int, int]]]:
        """On which side of the recording a message was heard, and when."""
        if isinstance(draft, UserDraft):
            return Channel.CALLER, draft.closed()
        return Channel.AGENT, draft.recorded_ranges()

    # -- the call ------------------------------------------------------------------------------------
    def _on_call_started(self, e: ev.CallStarted) -> None:
        book = self._book
        if book.started is None:
            book.started = e
            book.consent(0, given=e.consent_given)
        elif not book.drafts and e == replace(
            book.started,
            content_captured=e.content_captured and book.started.content_captured,
            origin_unix_ms=e.origin_unix_ms,
        ):
            # before anything was said: texts may not be kept after all, or call-ms 0 is another moment
            if e.origin_unix_ms != book.started.origin_unix_ms:
                book.now_ms = 0
            book.started = e
        elif book.started != e:
            book.warn("the call was started twice")

    def _on_call_span_bound(self, e: ev.CallSpanBound) -> None:
        if self.span is None:
            self.span = e

    def _on_consent_changed(self, e: ev.ConsentChanged) -> None:
        book = self._book
        if book.consented and not e.given and book.ended is None:
            for draft in book.drafts.values():
                if draft.ongoing:
                    book.withhold(draft)
            self._tape.withdrawn(e.at_ms)
        book.consent(e.at_ms, given=e.given)

    def _on_call_ended(self, e: ev.CallEnded) -> None:
        if self._book.ended is not None:
            return
        for part in (self._users, self._speeches, self._tape, self._steps):
            part.close()
        self._book.ended = e
        for draft in self._book.drafts.values():
            if not self._is_final(draft.last):
                self._book.touch(draft)

    def _is_final(self, message: VoiceMessage | None) -> bool:
        """Whether the end of the call changes nothing about a record.

        It is not open, its transcript is not awaited, and it lies within what was recorded.
        """
        return (
            message is not None
            and message.state is not State.OPEN
            and message.text_status is not TextStatus.PARTIAL
            and (message.end_ms is None or message.end_ms <= self._book.now_ms)
        )

    def _on_message_noted(self, e: ev.MessageNoted) -> None:
        book = self._book
        if book.ended is not None or e.message_id in book.speeches or not book.is_free(e.message_id):
            book.warn(f"the noted message {e.message_id} came too late or its id is taken; not recorded")
            return
        bounds: tuple[int, int] | None = None
        if e.start_ms is not None and e.end_ms is not None:
            if e.end_ms >= e.start_ms >= 0:
                bounds = (e.start_ms, e.end_ms)
            else:
                book.warn(f"message {e.message_id}: it cannot last from {e.start_ms} to {e.end_ms} ms")
        part = self._users if e.role is Role.USER else self._speeches
        part.note(e, bounds)


def fold(events: Iterable[ev.Event], *, strict: bool = False) -> CallRecorder:
    """Fold a whole list of events; what recovery and tests do."""
    recorder = CallRecorder(strict=strict)
    for event in events:
        recorder.apply(event)
    return recorder
