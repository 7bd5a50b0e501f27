# SPDX-License-Identifier: Apache-2.0
"""`CallRecorder`: the pure fold from events to messages. No I/O, no clock, no OpenTelemetry, no framework.

The same events give the same messages, live or read back from a journal. The fold never raises for what
a framework did (late, doubled, lost or absurd facts become warnings and absent fields); it raises only
when `strict` and its own rules are broken, which is a bug here and fails in tests.

Not thread-safe: one owner applies the events of one call, in the order in which they were journalled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from voicetrace import events as ev
from voicetrace.messages import (
    USER_TEXT_SOURCES,
    Channel,
    LLMStep,
    Recording,
    Role,
    Segment,
    Selection,
    State,
    TextSource,
    TextStatus,
    TimingSource,
    VoiceMessage,
    is_span_id,
    regressions,
    writer_problems,
)

# How far the framework's own end-of-turn time may lie from the one we saw and still name the same turn.
_SAME_TURN_MS: Final = 250
# A stretch of user speech or playout longer than a day is a broken clock, not speech.
_ABSURD_MS: Final = 24 * 3600 * 1000
# A transcript this long after the speech is a broken clock, not a slow recogniser (VT-32).
_ABSURD_DELAY_MS: Final = 200_000
# How far the framework's clock may run ahead of ours.
_CLOCK_SLACK_MS: Final = 1000
# Where an assistant's text may come from when nothing aligned it to what was played.
_GENERATED_SOURCES: Final = frozenset({TextSource.TTS_INPUT, TextSource.REALTIME_OUTPUT_TRANSCRIPT})


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

    def __bool__(self) -> bool:
        return bool(self.messages or self.moved or self.steps)


@dataclass(slots=True)
class _UserDraft:
    """A user message in the making. A range whose end is ``None`` is speech still going on."""

    key: str
    seq: int
    captured: bool  # whether the call keeps texts
    named: bool = False  # the key is an item's id, no longer ours
    ranges: list[tuple[int, int | None]] = field(default_factory=list)
    timing: TimingSource | None = None
    source: TextSource | None = None
    finals: list[str] = field(default_factory=list)
    interim: str = ""
    last_final: ev.UserTranscript | None = None
    text: str | None = None  # the committed text
    transcript_final_ms: int | None = None
    end_of_turn_ms: int | None = None
    committed: bool = False
    settled: bool = False  # no longer waiting for anything
    dropped: bool = False  # the framework said that no item will come
    quiet_since_ms: int = 0
    answered: bool = False  # realtime: a response after the committing one was created
    visible: bool = False
    last: VoiceMessage | None = None

    @property
    def speaking(self) -> bool:
        return bool(self.ranges) and self.ranges[-1][1] is None

    @property
    def awaits_item(self) -> bool:
        """Whether an item that nobody has may still turn out to be this one."""
        typed = self.source is TextSource.TEXT_INPUT
        return not (self.named or self.committed or self.dropped or typed)

    @property
    def said(self) -> str:
        """The final transcripts of the turn, joined (VT-28)."""
        return " ".join(t.strip() for t in self.finals if t.strip())


@dataclass(slots=True)
class _Segment:
    """One `PlayoutStarted` .. `PlayoutFinished` of a speech; `finish` is absent while it plays."""

    start_ms: int | None = None
    runs: list[tuple[int, int]] = field(default_factory=list)
    stopped_ms: int | None = None
    finish: ev.PlayoutFinished | None = None

    @property
    def played(self) -> bool:
        return bool(self.runs) or (self.finish is not None and self.finish.position_ms > 0)

    def ranges(self) -> list[tuple[int, int]]:
        if self.runs:
            return self.runs
        # a sink that reports no runs is described by its end points
        if (
            self.start_ms is not None
            and self.finish is not None
            and 0 < self.finish.position_ms <= _ABSURD_MS
        ):
            return [(self.start_ms, self.start_ms + self.finish.position_ms)]
        return []


@dataclass(slots=True)
class _SpeechDraft:
    """An assistant message in the making, keyed by speech id until its item is added."""

    key: str
    speech_id: str
    seq: int
    origin: str
    captured: bool  # whether the call keeps texts, and this one's could be kept
    generated: list[str | None] = field(default_factory=list)  # None: a piece that was not captured
    source: TextSource = TextSource.TTS_INPUT
    segments: list[_Segment] = field(default_factory=list)
    item_text: str | None = ""
    cut: bool = False
    committed: bool = False
    ended: bool = False
    discarded: bool = False
    settled: bool = False
    state: State = State.OPEN
    status: TextStatus = TextStatus.MISSING
    text: str | None = None
    generated_out: str | None = None
    source_out: TextSource | None = None
    aligned: bool = False  # the text is what was heard
    interrupted_at_ms: int | None = None
    provider_audio_end_ms: int | None = None
    step: str | None = None
    visible: bool = False
    last: VoiceMessage | None = None

    @property
    def playing(self) -> _Segment | None:
        last = self.segments[-1] if self.segments else None
        return last if last is not None and last.finish is None else None

    @property
    def words(self) -> str:
        """What the model said, as far as it was captured."""
        item = (self.item_text or "").strip()
        if item and None in self.generated:
            return item
        return "".join(t for t in self.generated if t).strip() or item

    @property
    def has_text(self) -> bool:
        """Whether there was text at all, captured or not."""
        return None in self.generated or self.item_text is None or bool(self.words)

    def ranges(self) -> list[tuple[int, int]]:
        return [r for segment in self.segments for r in segment.ranges()]


@dataclass(slots=True)
class _StepDraft:
    event: ev.LLMStepStarted
    context_ids: tuple[str | None, ...]
    outputs: list[str] = field(default_factory=list)
    speeches: set[str] = field(default_factory=set)
    awaited: bool = False  # speeches of it may still be named
    speculative: bool = False
    ended_ms: int | None = None
    error: str = ""
    settled: bool = False

    def freeze(self) -> LLMStep:
        e = self.event
        return LLMStep(
            span_id=e.span_id,
            trace_id=e.trace_id,
            name=e.name,
            context_ids=self.context_ids,
            output_ids=tuple(self.outputs),
            speculative=self.speculative,
            parent_span_id=e.parent_span_id,
            start_ms=e.at_ms,
            end_ms=self.ended_ms,
            error=self.error,
        )


_Draft = _UserDraft | _SpeechDraft


class CallRecorder:
    """Folds the events of one call into its messages (contract, sections 2-4).

    `messages` holds the last snapshot of every record that is written so far, keyed by message id; `steps`
    the LLM steps; `warnings` what was doubtful. `apply` takes the next event and says what it changed.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self._strict = strict
        self.started: ev.CallStarted | None = None
        self.span: ev.CallSpanBound | None = None
        self.ended: ev.CallEnded | None = None
        self.now_ms = 0
        self.warnings: list[str] = []
        self.exported_steps: set[str] = set()
        self._seq = 0
        self._drafts: dict[str, _Draft] = {}  # by key
        self._old_keys: set[str] = set()  # keys that were moved away from; they never appear again
        self._messages: dict[str, VoiceMessage] = {}
        self._turn: _UserDraft | None = None  # collects speech and transcripts
        self._ended_turns: list[_UserDraft] = []  # the turn is over, the item is awaited; oldest first
        self._unclaimed: _UserDraft | None = (
            None  # the last one that settled uncommitted, if still the newest
        )
        self._typed: dict[str, _UserDraft] = {}
        self._pending: set[str] = set()
        self._decided: set[str] = set()  # tokens whose decision came before their start, or twice
        self._speeches: dict[str, _SpeechDraft] = {}
        self._steps: dict[str, _StepDraft] = {}
        self._step_of_speech: dict[str, str] = {}
        self._committed_ids: set[str] = set()
        self._attempted_ids: set[str] = set()  # user items that LLM steps answered before they committed
        self._names_items = False  # the realtime provider gives its user items ids
        self._recording: ev.RecordingStarted | None = None
        self._recording_end: ev.RecordingFinished | None = None
        self._segments: dict[str, tuple[int, int | None]] = {}
        self._touched: dict[int, _Draft] = {}
        self._moved: list[tuple[str, str]] = []
        self._settled_steps: list[LLMStep] = []
        self._handlers: dict[type[ev.Event], Callable[[Any], None]] = {
            ev.CallStarted: self._on_call_started,
            ev.CallSpanBound: self._on_call_span_bound,
            ev.TimePassed: lambda _: None,
            ev.CaptureFault: lambda e: self._warn(e.message),
            ev.CallEnded: self._on_call_ended,
            ev.UserSpeechStarted: self._on_user_speech_started,
            ev.UserSpeechStopped: self._on_user_speech_stopped,
            ev.UserTranscript: self._on_user_transcript,
            ev.UserItemNamed: self._on_user_item_named,
            ev.EndOfTurnPending: self._on_end_of_turn_pending,
            ev.EndOfTurnDecided: self._on_end_of_turn_decided,
            ev.UserTurnDropped: self._on_user_turn_dropped,
            ev.UserTextSubmitted: self._on_user_text_submitted,
            ev.UserMessageAdded: self._on_user_message_added,
            ev.SpeechCreated: self._on_speech_created,
            ev.SpeechText: self._on_speech_text,
            ev.PlayoutStarted: self._on_playout_started,
            ev.PlayoutRun: self._on_playout_run,
            ev.PlayoutStopped: self._on_playout_stopped,
            ev.PlayoutFinished: self._on_playout_finished,
            ev.ProviderTruncated: self._on_provider_truncated,
            ev.AssistantMessageAdded: self._on_assistant_message_added,
            ev.SpeechEnded: self._on_speech_ended,
            ev.MessageNoted: self._on_message_noted,
            ev.LLMStepStarted: self._on_step_started,
            ev.LLMStepSpoken: self._on_step_spoken,
            ev.LLMStepEnded: self._on_step_ended,
            ev.LLMStepExported: lambda e: self.exported_steps.add(e.span_id),
            ev.ResponseStarted: self._on_response_started,
            ev.RecordingStarted: self._on_recording_started,
            ev.SegmentStarted: self._on_segment_started,
            ev.SegmentEnded: self._on_segment_ended,
            ev.RecordingFinished: self._on_recording_finished,
        }

    # -- what the fold knows -------------------------------------------------------------------------
    @property
    def messages(self) -> Mapping[str, VoiceMessage]:
        """Every record written so far, by id. A live view; do not keep it across `apply`."""
        return MappingProxyType(self._messages)

    def ordered(self) -> list[VoiceMessage]:
        """The records in order of ``seq``."""
        return sorted(self._messages.values(), key=lambda m: m.seq)

    @property
    def steps(self) -> list[LLMStep]:
        """The LLM steps in order of their start, with what is known of their outputs now."""
        return [s.freeze() for s in self._steps.values()]

    @property
    def recording(self) -> Recording | None:
        """The recording as far as it is known; an unfinished one has no digest and no duration."""
        start, end = self._recording, self._recording_end
        if start is None:
            return None
        return Recording(
            recording_id=start.recording_id,
            uri=end.uri if end else start.uri,
            format=end.format if end else start.format,
            sample_rate_hz=start.sample_rate_hz,
            channels=list(start.channels),
            origin_unix_ms=start.origin_unix_ms,
            duration_ms=end.duration_ms if end else None,
            sha256=end.sha256 if end else None,
            segments={
                name: Segment(
                    start_ms=begin, length_ms=max(0, (self.now_ms if stop is None else stop) - begin)
                )
                for name, (begin, stop) in self._segments.items()
            },
        )

    @property
    def next_deadline_ms(self) -> int | None:
        """When uncommitted speech falls due, in call-ms; ``None`` when nothing waits for time to pass."""
        due = [d.quiet_since_ms + self._timeout for d in self._waiting()]
        return min(due) if due and not self._pending else None

    # -- applying ------------------------------------------------------------------------------------
    def apply(self, event: ev.Event) -> Change:
        """Take the next event. Returns what changed; events after `CallEnded` change less and less.

        After the end only late facts that the contract lets move forward are taken: a transcript, an
        item, the finished recording.

        Raises:
            ContractError: a record would break the contract, and the recorder is `strict`.
        """
        self._touched.clear()
        self._moved.clear()
        self._settled_steps.clear()
        self.now_ms = max(self.now_ms, event.at_ms)
        if self.ended is None:
            self._settle_overdue()
        handler = self._handlers.get(type(event))
        if handler is None:
            self._warn(f"event {type(event).__name__} has no handler")
        else:
            handler(event)
        return self._publish()

    def _publish(self) -> Change:
        written: list[VoiceMessage] = []
        settled: list[VoiceMessage] = []
        for draft in sorted(self._touched.values(), key=lambda d: d.seq):
            message = self._snapshot(draft)
            if message is None or message == draft.last:
                continue
            problems = writer_problems(message)
            if draft.last is not None:
                problems += regressions(draft.last, message)
            if problems:
                sentence = f"message {message.id}: {'; '.join(problems)}"
                if self._strict:
                    raise ContractError(sentence)
                self._warn(f"not written, {sentence}")
                continue
            draft.last = message
            self._messages[draft.key] = message
            written.append(message)
            if message.state is not State.OPEN:
                settled.append(message)
        return Change(tuple(written), tuple(self._moved), tuple(settled), tuple(self._settled_steps))

    def _touch(self, draft: _Draft) -> None:
        self._touched[id(draft)] = draft

    def _touch_all(self) -> None:
        for draft in self._drafts.values():
            self._touch(draft)

    def _warn(self, sentence: str) -> None:
        if sentence not in self.warnings:
            self.warnings.append(sentence)

    def _next_seq(self) -> int:
        seq, self._seq = self._seq, self._seq + 1
        return seq

    def _is_free(self, key: str, draft: _Draft | None = None) -> bool:
        """Whether a record may take this id; say so when it may not."""
        holder = self._drafts.get(key)
        if holder is draft and holder is not None:
            return True
        if holder is None and key not in self._old_keys:
            return True
        owner = "another message's" if holder is not None else "the former key of another message"
        self._warn(f"id {key} is already {owner}; it is not given again")
        return False

    def _free_key(self, wanted: str) -> str:
        """The key, or one like it when a framework's id already looks like that."""
        key, n = wanted, 1
        while key in self._drafts or key in self._old_keys:
            n += 1
            key = f"{wanted}#{n}"
        return key

    def _move(self, draft: _Draft, key: str) -> bool:
        """Give a record its item's id. The old key never appears again (contract, section 2)."""
        if not self._is_free(key, draft):
            return False
        if isinstance(draft, _UserDraft):
            draft.named = True
        if draft.key == key:
            return True
        old = draft.key
        del self._drafts[old]
        self._old_keys.add(old)
        self._drafts[key] = draft
        draft.key = key
        if self._messages.pop(old, None) is not None:
            self._moved.append((old, key))
        return True

    def _users(self) -> list[_UserDraft]:
        """The user records, oldest first."""
        return sorted((d for d in self._drafts.values() if isinstance(d, _UserDraft)), key=lambda d: d.seq)

    # -- the call ------------------------------------------------------------------------------------
    @property
    def _timeout(self) -> int:
        return self.started.uncommitted_timeout_ms if self.started else 3000

    @property
    def _content(self) -> bool:
        return self.started.content_captured if self.started else True

    def _on_call_started(self, e: ev.CallStarted) -> None:
        if self.started is None:
            self.started = e
        elif not self._drafts and e == replace(self.started, content_captured=False):
            self.started = e  # before anything was said, the framework forbade to keep texts
        elif self.started != e:
            self._warn("the call was started twice")

    def _on_call_span_bound(self, e: ev.CallSpanBound) -> None:
        if self.span is None:
            self.span = e

    def _on_call_ended(self, e: ev.CallEnded) -> None:
        if self.ended is not None:
            return
        for draft in list(self._drafts.values()):
            if isinstance(draft, _UserDraft):
                self._close_user(draft)
            elif not draft.settled:
                self._settle_speech(draft)
        for segment_id, (start, end) in self._segments.items():
            if end is None:
                self._segments[segment_id] = (start, max(start, self.now_ms))
        for step in self._steps.values():
            self._settle_step(step)
        self.ended = e
        for draft in self._drafts.values():
            if not self._is_final(draft.last):
                self._touch(draft)

    def _is_final(self, message: VoiceMessage | None) -> bool:
        """Whether the end of the call changes nothing about a record.

        It is not open, its transcript is not awaited, and it lies within what was recorded.
        """
        return (
            message is not None
            and message.state is not State.OPEN
            and message.text_status is not TextStatus.PARTIAL
            and (message.end_ms is None or message.end_ms <= self.now_ms)
        )

    def _close_user(self, draft: _UserDraft) -> None:
        if draft.speaking:
            start, _ = draft.ranges[-1]
            draft.ranges[-1] = (start, max(start, self.now_ms))
            self._warn(f"message {draft.key}: the user was still speaking when the call ended")
        draft.settled = True

    # -- the user ------------------------------------------------------------------------------------
    def _waiting(self) -> Iterable[_UserDraft]:
        """Drafts that settle uncommitted when time passes."""
        if self._turn is not None and not self._turn.speaking and self._turn.quiet_since_ms:
            yield self._turn
        yield from (d for d in self._ended_turns if not d.speaking)

    def _settle_overdue(self) -> None:
        if self._pending:
            return
        for draft in list(self._waiting()):
            if self.now_ms >= draft.quiet_since_ms + self._timeout:
                self._settle_uncommitted(draft)

    def _settle_uncommitted(self, draft: _UserDraft) -> None:
        """No item came (contract, section 4): complete, uncommitted, without text."""
        self._forget_turn(draft)
        draft.settled = True
        if self._turn is None and not self._ended_turns and not draft.dropped:
            self._unclaimed = draft
        self._touch(draft)

    def _forget_turn(self, draft: _UserDraft) -> None:
        if self._turn is draft:
            self._turn = None
        if draft in self._ended_turns:
            self._ended_turns.remove(draft)
        if self._unclaimed is draft:
            self._unclaimed = None

    def _new_user(self, key: str | None = None) -> _UserDraft:
        seq = self._next_seq()
        draft = _UserDraft(
            key=self._free_key(f"vad_{seq}" if key is None else key), seq=seq, captured=self._content
        )
        self._drafts[draft.key] = draft
        return draft

    def _new_turn(self, item_id: str | None) -> _UserDraft:
        """Another utterance begins; the one before still waits for its item."""
        before, self._unclaimed = self._turn, None
        if before is not None and not before.settled:
            self._ended_turns.append(before)
        draft = self._turn = self._new_user()
        if item_id is not None:
            self._move(draft, item_id)
        return draft

    def _user_by_item(self, item_id: str | None) -> _UserDraft | None:
        draft = self._drafts.get(item_id) if item_id is not None else None
        return draft if isinstance(draft, _UserDraft) else None

    def _on_user_speech_started(self, e: ev.UserSpeechStarted) -> None:
        if self.ended is not None:
            return
        self._names_items = self._names_items or e.item_id is not None
        start = max(0, e.start_ms)
        named = self._user_by_item(e.item_id)
        draft = named if e.item_id is not None else self._turn
        if draft is not None and draft.speaking:
            return  # said twice
        if draft is None or draft.settled:
            draft = self._new_turn(e.item_id)
        self._unclaimed = None
        previous_end = draft.ranges[-1][1] if draft.ranges else None
        if previous_end is not None and start < previous_end:
            # some modes repeat the turn's first start (livekit-capture.md, T18); the receipt is known
            start = max(previous_end, min(e.at_ms, self.now_ms))
        draft.ranges.append((start, None))
        draft.timing = draft.timing or e.source
        self._touch(draft)

    def _on_user_speech_stopped(self, e: ev.UserSpeechStopped) -> None:
        draft = self._user_by_item(e.item_id)
        if draft is None:
            speaking = [d for d in self._users() if d.speaking and (e.item_id is None or not d.named)]
            draft = speaking[-1] if speaking else None
        if draft is None:
            if self.ended is None:
                self._warn(f"speech stopped at {e.end_ms} ms without having started")
            return
        if not draft.speaking:
            return  # said twice
        start, _ = draft.ranges[-1]
        if e.end_ms < start or e.end_ms - start > _ABSURD_MS:
            self._warn(f"message {draft.key}: speech from {start} ms cannot end at {e.end_ms} ms; dropped")
            draft.ranges.pop()
        else:
            draft.ranges[-1] = (start, e.end_ms)
        draft.quiet_since_ms = max(draft.quiet_since_ms, e.at_ms, 1)
        draft.visible = True
        if draft.dropped and not draft.settled:
            self._settle_uncommitted(draft)
        self._touch(draft)

    def _on_user_transcript(self, e: ev.UserTranscript) -> None:
        if e.text is not None and not e.text.strip():
            return
        self._names_items = self._names_items or e.item_id is not None
        draft = self._user_by_item(e.item_id) or self._turn_for_transcript(e)
        if draft is None or draft.last_final == e:
            return  # nobody's, or said twice
        draft.source = draft.source or _user_source(e.source)
        if not draft.settled and draft is self._turn:
            draft.quiet_since_ms = max(draft.quiet_since_ms, e.at_ms, 1)
        if e.final:
            draft.last_final = e
            if e.item_id is not None:
                draft.finals = [e.text or ""]  # one item, one transcript: a second replaces the first
            else:
                draft.finals.append(e.text or "")
            draft.interim = ""
            if draft.text is None:
                draft.transcript_final_ms = self._sane_transcript_time(draft, e.at_ms)
            if draft.committed and draft.text is None:
                draft.text = draft.said or None
        else:
            draft.interim = e.text or ""
        draft.visible = draft.visible or not draft.settled
        self._touch(draft)

    def _turn_for_transcript(self, e: ev.UserTranscript) -> _UserDraft | None:
        if e.item_id is not None:
            if not self._is_free(e.item_id):
                return None
            # the transcript names its item first: utterances are recognised in the order they were spoken
            open_turns = [d for d in self._users() if d.awaits_item and not d.settled and not d.finals]
            unclaimed = self._unclaimed if self._unclaimed and self._unclaimed.awaits_item else None
            draft = open_turns[0] if open_turns else unclaimed
            if draft is not None:
                self._move(draft, e.item_id)
                return draft
        else:
            late = self._awaiting_transcript(e)
            if late is not None:
                return late
            if self._turn is not None:
                return self._turn
            if self._ended_turns and not self._ended_turns[-1].finals:
                return self._ended_turns[-1]
            if self._unclaimed is not None:
                return self._unclaimed
        if self.ended is not None:
            return None
        # recognised speech that no VAD saw: turn taking by STT alone (VT-30)
        draft = self._new_turn(e.item_id)
        draft.quiet_since_ms = max(e.at_ms, 1)
        return draft

    def _awaiting_transcript(self, e: ev.UserTranscript) -> _UserDraft | None:
        """The answered utterance that a late realtime transcript without an item id belongs to (VT-23)."""
        if e.source is not TextSource.REALTIME_INPUT_TRANSCRIPT or (not e.final and self._turn is not None):
            return None
        waiting = [d for d in self._users() if d.committed and d.text is None and d.source is e.source]
        expected = [d for d in waiting if not d.answered]
        if expected:
            return expected[0]
        return waiting[-1] if waiting and self._turn is None else None

    def _on_user_item_named(self, e: ev.UserItemNamed) -> None:
        """Utterances get their items in the order in which they ended; the next speech is another one's."""
        self._names_items = True
        if self.ended is not None or self._user_by_item(e.item_id) is not None:
            return
        if not self._is_free(e.item_id):
            return
        ended = [d for d in self._users() if d.awaits_item and not d.settled and d.ranges and not d.speaking]
        if not ended:
            return  # paired when a response includes it
        draft = ended[0]
        self._move(draft, e.item_id)
        if draft is self._turn:
            self._turn = None
            self._ended_turns.append(draft)
        self._touch(draft)

    def _on_end_of_turn_pending(self, e: ev.EndOfTurnPending) -> None:
        if e.token not in self._decided:
            self._pending.add(e.token)

    def _on_end_of_turn_decided(self, e: ev.EndOfTurnDecided) -> None:
        self._pending.discard(e.token)
        if e.token in self._decided:
            return
        self._decided.add(e.token)
        draft = self._turn
        if e.outcome != "committed" or draft is None or draft.settled:
            return
        if draft.speaking and len(draft.ranges) > 1:
            self._split_open_range(draft)
        else:
            self._turn = None
        if draft.end_of_turn_ms is None:
            draft.end_of_turn_ms = self._sane_end_of_turn(draft, e.at_ms)
        draft.quiet_since_ms = max(draft.quiet_since_ms, e.at_ms, 1)
        self._ended_turns.append(draft)
        self._touch(draft)

    def _split_open_range(self, draft: _UserDraft) -> None:
        """Speech that is still going on when a turn ends belongs to the next message."""
        going_on = draft.ranges.pop()
        following = self._new_user()
        following.ranges.append(going_on)
        following.timing = draft.timing
        self._turn = following
        self._touch(following)

    def _on_user_turn_dropped(self, e: ev.UserTurnDropped) -> None:
        draft = self._ended_turns[0] if self._ended_turns else self._turn
        if draft is None or (draft.speaking and draft is self._turn):
            return  # the current speech may still become a turn
        draft.dropped = True
        if draft.speaking:
            self._ended_turns.remove(draft)  # it settles when the speech stops
        else:
            self._settle_uncommitted(draft)

    def _on_user_text_submitted(self, e: ev.UserTextSubmitted) -> None:
        if e.token in self._typed or self.ended is not None:
            return
        draft = self._new_user(f"typed_{self._seq}")
        draft.source = TextSource.TEXT_INPUT
        draft.finals = [e.text or ""]
        self._typed[e.token] = draft
        draft.visible = True
        self._touch(draft)

    def _on_user_message_added(self, e: ev.UserMessageAdded) -> None:
        known = self._user_by_item(e.item_id)
        if known is not None:
            self._commit_user(known, e)  # told twice, or a late transcript
            return
        if not self._is_free(e.item_id):
            return
        draft = self._typed.get(e.token) if e.token is not None else None
        if draft is None and e.source is not TextSource.TEXT_INPUT:
            draft = self._claim_turn(e)
        if draft is None or draft.committed:
            draft = self._new_user()
        self._commit_user(draft, e)

    def _claim_turn(self, e: ev.UserMessageAdded) -> _UserDraft | None:
        """The turn that this item is: the framework's own end-of-turn time names it, else the oldest."""
        draft: _UserDraft | None = None
        waiting = [d for d in self._ended_turns if not d.named]
        if waiting:
            draft = waiting[0]
            if e.end_of_turn_ms is not None:
                wanted = e.end_of_turn_ms
                same = [
                    d
                    for d in waiting
                    if d.end_of_turn_ms is not None and abs(d.end_of_turn_ms - wanted) <= _SAME_TURN_MS
                ]
                draft = same[0] if same else draft
            # turns are answered in order: what is older than this one will get no item
            for older in waiting[: waiting.index(draft)]:
                self._settle_uncommitted(older)
        elif self._turn is not None:
            draft = None if self._turn.named else self._turn
            if draft is not None and draft.speaking and len(draft.ranges) > 1:
                self._split_open_range(draft)
        elif self._unclaimed is not None and not self._unclaimed.named:
            draft = self._unclaimed
        return draft

    def _commit_user(self, draft: _UserDraft, e: ev.UserMessageAdded) -> None:
        late = draft.committed and draft.text is None
        draft.source = draft.source or _user_source(e.source)
        self._enter_conversation(draft, e.item_id)
        if draft.text is None:
            draft.text = (e.text if e.text and e.text.strip() else draft.said) or None
        if draft.transcript_final_ms is None and draft.source is not TextSource.TEXT_INPUT:
            if e.transcript_final_ms is not None:
                draft.transcript_final_ms = self._sane_transcript_time(draft, e.transcript_final_ms)
            elif late and draft.text is not None:
                draft.transcript_final_ms = e.at_ms  # the item told again is how the transcript arrived
        if draft.end_of_turn_ms is None and e.end_of_turn_ms is not None:
            draft.end_of_turn_ms = self._sane_end_of_turn(draft, e.end_of_turn_ms)

    def _enter_conversation(self, draft: _UserDraft, item_id: str) -> None:
        """The record is committed under its item's id, which the caller has found free."""
        self._forget_turn(draft)
        if draft.key != item_id or not draft.committed:
            self._move(draft, item_id)
        draft.committed = draft.settled = draft.visible = True
        draft.dropped = False
        self._note_committed(item_id)
        self._touch(draft)
        for step in self._steps.values():
            if step.settled and step.event.answers == item_id:
                self._settle_step(step)  # it was taken for an attempt

    def _sane_end_of_turn(self, draft: _UserDraft, value: int) -> int | None:
        start = draft.ranges[0][0] if draft.ranges else 0
        if value < start or value > self.now_ms + _CLOCK_SLACK_MS:
            self._warn(f"message {draft.key}: end of turn at {value} ms cannot be; left out")
            return None
        return value

    def _sane_transcript_time(self, draft: _UserDraft, value: int) -> int | None:
        start = draft.ranges[0][0] if draft.ranges else 0
        ends = [end for _, end in draft.ranges if end is not None]
        latest = min(self.now_ms + _CLOCK_SLACK_MS, ends[-1] + _ABSURD_DELAY_MS if ends else self.now_ms)
        if start <= value <= latest:
            return value
        self._warn(f"message {draft.key}: a final transcript at {value} ms cannot be; its time is left out")
        return None

    def _on_response_started(self, e: ev.ResponseStarted) -> None:
        """Realtime: the response's new user items are paired, oldest first (contract, section 4)."""
        self._names_items = self._names_items or bool(e.item_ids)
        for draft in self._users():
            if draft.committed and not draft.answered:
                draft.answered = True  # from here on a transcript that did not come is missing
                self._touch(draft)
        free = [d for d in self._users() if d.awaits_item and not d.settled]
        if not e.item_ids:
            # a provider without items answers what was said so far; another one's has nothing new
            for draft in free if e.unnamed and not self._names_items else ():
                if not draft.speaking:
                    self._answer(draft, draft.key, e.at_ms)
            return
        if self._unclaimed is not None and self._unclaimed.awaits_item:
            free.append(self._unclaimed)
        for item_id in dict.fromkeys(e.item_ids):
            known = self._user_by_item(item_id)
            if known is None:
                if not self._is_free(item_id):
                    continue
                known = free.pop(0) if free else self._new_user()
            self._answer(known, item_id, e.at_ms)

    def _answer(self, draft: _UserDraft, item_id: str, at_ms: int) -> None:
        """A generation that includes the user's item starts: the turn ends, and the item is committed."""
        draft.source = draft.source or TextSource.REALTIME_INPUT_TRANSCRIPT
        if draft.end_of_turn_ms is None and draft.source is not TextSource.TEXT_INPUT:
            draft.end_of_turn_ms = self._sane_end_of_turn(draft, at_ms)
        if not draft.committed:
            self._enter_conversation(draft, item_id)
            draft.text = draft.text or draft.said or None
        self._touch(draft)

    def _on_message_noted(self, e: ev.MessageNoted) -> None:
        if self.ended is not None or e.message_id in self._speeches or not self._is_free(e.message_id):
            self._warn(f"the noted message {e.message_id} came too late or its id is taken; not recorded")
            return
        bounds: tuple[int, int] | None = None
        if e.start_ms is not None and e.end_ms is not None:
            if e.end_ms >= e.start_ms >= 0:
                bounds = (e.start_ms, e.end_ms)
            else:
                self._warn(f"message {e.message_id}: it cannot last from {e.start_ms} to {e.end_ms} ms")
        if e.role is Role.USER:
            user = self._new_user(e.message_id)
            user.source, user.text = TextSource.TEXT_INPUT, (e.text or "").strip() or None
            if bounds is not None:
                user.ranges = [bounds]
                user.timing = TimingSource.LOCAL_RECEIPT
            self._enter_conversation(user, e.message_id)
            return
        speech = self._speech(e.message_id, "say")
        speech.generated, speech.committed = [e.text], True
        if bounds is not None and bounds[1] > bounds[0]:
            finish = ev.PlayoutFinished(
                at_ms=e.at_ms,
                speech_id=e.message_id,
                interrupted=False,
                position_ms=bounds[1] - bounds[0],
            )
            speech.segments = [_Segment(start_ms=bounds[0], finish=finish)]
        self._reveal(speech)
        self._settle_speech(speech)
        speech.ended = True

    # -- the assistant -------------------------------------------------------------------------------
    def _speech(self, speech_id: str, origin: str = "reply") -> _SpeechDraft:
        """The speech's record; made now when its creation was lost, or when it was told out of order."""
        draft = self._speeches.get(speech_id)
        if draft is None:
            key = self._free_key(speech_id)
            draft = _SpeechDraft(
                key=key, speech_id=speech_id, seq=self._next_seq(), origin=origin, captured=self._content
            )
            draft.step = self._step_of_speech.get(speech_id)
            self._speeches[speech_id] = draft
            self._drafts[key] = draft
        return draft

    def _on_speech_created(self, e: ev.SpeechCreated) -> None:
        if self.ended is None:
            self._touch(self._speech(e.speech_id, e.origin))

    def _open_speech(self, speech_id: str, what: str) -> _SpeechDraft | None:
        """The speech, if it may still change; a settled one stays as it was written."""
        if self.ended is not None and speech_id not in self._speeches:
            return None
        draft = self._speech(speech_id)
        if draft.settled:
            if draft.visible:
                self._warn(f"message {draft.key}: {what} after it had ended; ignored")
            return None
        return draft

    def _playing_speech(self, speech_id: str) -> _SpeechDraft | None:
        """As `_open_speech`; what plays is a message, also when it had been given up as unwritten (VT-18)."""
        draft = self._speeches.get(speech_id)
        if draft is not None and draft.settled and not draft.visible and self.ended is None:
            draft.settled = False
        return self._open_speech(speech_id, "playout")

    def _reveal(self, draft: _SpeechDraft) -> None:
        """Write the record from now on: something played, or there is text that began or was committed."""
        played = any(s.played for s in draft.segments)
        if draft.visible or not (played or (draft.has_text and (draft.segments or draft.committed))):
            return
        draft.visible = True
        if draft.has_text and not draft.words:
            draft.captured = False  # there is text, and none of it could be kept

    def _on_speech_text(self, e: ev.SpeechText) -> None:
        draft = self._open_speech(e.speech_id, "text")
        if draft is None or e.text == "":
            return
        if e.source in _GENERATED_SOURCES:
            draft.source = e.source
        draft.generated.append(e.text)
        self._reveal(draft)
        self._touch(draft)

    def _on_playout_started(self, e: ev.PlayoutStarted) -> None:
        start = max(0, e.start_ms)
        draft = self._playing_speech(e.speech_id)
        if draft is None or draft.playing is not None or any(s.start_ms == start for s in draft.segments):
            return
        draft.segments.append(_Segment(start_ms=start))
        self._reveal(draft)
        self._touch(draft)

    def _on_playout_run(self, e: ev.PlayoutRun) -> None:
        draft = self._playing_speech(e.speech_id)
        if draft is None:
            return
        start = max(0, e.start_ms)
        if e.end_ms < start or e.end_ms - start > _ABSURD_MS:
            self._warn(f"message {draft.key}: playout from {start} ms cannot end at {e.end_ms} ms; dropped")
            return
        if any(start < end and e.end_ms > begin for begin, end in draft.ranges()):
            start = max(start, *(end for _, end in draft.ranges()))  # what is new of it; said twice: nothing
        if start >= e.end_ms:
            return
        if not draft.segments:
            draft.segments.append(_Segment())
        # a run told after its segment's finish is still that segment's
        segment = draft.segments[-1]
        segment.runs.append((start, e.end_ms))
        segment.runs.sort()
        self._reveal(draft)
        self._touch(draft)

    def _on_playout_stopped(self, e: ev.PlayoutStopped) -> None:
        draft = self._speeches.get(e.speech_id)
        if draft is not None and not draft.settled and draft.playing is not None:
            draft.playing.stopped_ms = e.stopped_ms

    def _on_playout_finished(self, e: ev.PlayoutFinished) -> None:
        draft = self._playing_speech(e.speech_id)
        if draft is None or any(s.finish == e for s in draft.segments):
            return  # over, or said twice
        if e.position_ms > _ABSURD_MS:
            self._warn(f"message {draft.key}: a playout of {e.position_ms} ms cannot be; its end is left out")
        if draft.playing is None:
            draft.segments.append(_Segment())
        draft.segments[-1].finish = e
        self._reveal(draft)
        if draft.ended:
            self._settle_speech(draft)
        self._touch(draft)

    def _on_provider_truncated(self, e: ev.ProviderTruncated) -> None:
        found = self._speeches.get(e.speech_id) or self._drafts.get(e.speech_id)
        if isinstance(found, _SpeechDraft):
            found.provider_audio_end_ms = max(0, e.audio_end_ms)
            self._touch(found)

    def _on_assistant_message_added(self, e: ev.AssistantMessageAdded) -> None:
        if self.ended is not None and e.speech_id not in self._speeches:
            return
        draft = self._speech(e.speech_id)
        if draft.committed and draft.key != e.item_id:
            self._warn(f"message {draft.key}: a second item {e.item_id} was added for it; ignored")
            return
        if not self._move(draft, e.item_id):
            return
        if not draft.committed:
            draft.committed = True
            self._note_committed(e.item_id)
            draft.item_text, draft.cut = e.text, e.cut
            if draft.settled and not draft.visible and draft.has_text:
                draft.settled = False  # given up as unwritten; it was said after all
            self._reveal(draft)
        if not draft.settled and draft.playing is None and (draft.segments or draft.ended):
            self._settle_speech(draft)  # played and then added: nothing more will come
        elif draft.settled and draft.status is TextStatus.MISSING and not draft.aligned:
            self._set_text(draft, draft.words, generated=None)  # its text came late, with the item
        self._touch(draft)
        self._settle_steps_of(draft)

    def _on_speech_ended(self, e: ev.SpeechEnded) -> None:
        draft = self._speeches.get(e.speech_id)
        if draft is None or draft.ended:
            return
        draft.ended = True
        # what was heard or entered the conversation was no mere attempt, whatever it was called
        draft.discarded = e.outcome == "discarded" and not draft.visible and not draft.committed
        if draft.playing is None:
            self._settle_speech(draft)
        self._settle_steps_of(draft)

    def _settle_speech(self, draft: _SpeechDraft) -> None:
        """Give the message its terminal state by what is known now (contract, section 4)."""
        if draft.settled:
            return
        draft.settled = True
        self._touch(draft)
        played = [s for s in draft.segments if s.played or s.finish is None]
        if not played and not draft.visible:
            attempt = draft.origin != "say" and not draft.committed and self._speculative(draft)
            if draft.discarded or attempt or not draft.has_text:
                return  # a discarded attempt or a tool-only step: never written
        if draft.has_text and not draft.words and draft.last is None:
            draft.captured = False
        if None in draft.generated and draft.captured:
            self._warn(f"message {draft.key}: a part of its text was not captured")
        draft.visible = True
        draft.source_out = draft.source
        if not played:
            draft.state = State.UNPLAYED
            self._set_text(draft, draft.words, generated=None)
            return
        cut = [s for s in played if s.finish is None or s.finish.interrupted]
        failed = draft.cut and not cut  # the framework calls it cut, the sink does not: the TTS failed
        draft.state = State.INTERRUPTED if cut or failed else State.COMPLETE
        if draft.state is State.INTERRUPTED:
            draft.interrupted_at_ms = self._cut_at(draft, cut[-1] if cut else played[-1])
        draft.aligned = all(s.finish is not None and s.finish.aligned for s in played) and not failed
        if draft.aligned:
            pieces = [s.finish.heard_text for s in played if s.finish is not None]
            heard = "" if None in pieces else "".join(p for p in pieces if p).strip()
            draft.source_out = TextSource.PLAYOUT_ALIGNED
            self._set_text(draft, heard, generated=draft.words)
        else:
            self._set_text(draft, draft.words, generated=None)

    def _cut_at(self, draft: _SpeechDraft, segment: _Segment) -> int:
        """The cut is where the audio stopped, not when the framework confirmed it (decision 10)."""
        if segment.finish is None:
            self._warn(f"message {draft.key}: its playout was never reported as finished")
        if segment.runs:
            return segment.runs[-1][1]
        start = segment.start_ms or 0
        if segment.stopped_ms is not None and segment.stopped_ms >= start:
            return segment.stopped_ms
        if segment.finish is not None:
            ranges = segment.ranges()
            return ranges[-1][1] if ranges else max(start, segment.finish.at_ms)
        return max(start, self.now_ms)

    def _set_text(self, draft: _SpeechDraft, text: str, *, generated: str | None) -> None:
        if not draft.captured:
            return  # the snapshot says not_captured
        if generated and _letters(generated) == _letters(text):
            text, generated = generated, None  # all of it was heard; alignment may drop spaces
        if text:
            draft.text, draft.status = text, TextStatus.FINAL
        draft.generated_out = generated or None

    def _speculative(self, draft: _SpeechDraft) -> bool:
        step = self._steps.get(draft.step or "")
        answers = step.event.answers if step is not None else None
        return answers is not None and answers not in self._committed_ids

    # -- LLM steps -----------------------------------------------------------------------------------
    def _note_committed(self, item_id: str) -> None:
        self._committed_ids.add(item_id)
        self._attempted_ids.discard(item_id)

    def _on_step_started(self, e: ev.LLMStepStarted) -> None:
        if not is_span_id(e.span_id) or self.ended is not None:
            return
        if e.answers is not None and e.answers not in self._committed_ids:
            self._attempted_ids.add(e.answers)
        step = self._steps.setdefault(e.span_id, _StepDraft(event=e, context_ids=e.context_ids))
        step.awaited = step.awaited or e.awaits_speech
        if e.speech_id is not None:
            self._link_step(step, e.speech_id)

    def _link_step(self, step: _StepDraft, speech_id: str) -> None:
        step.speeches.add(speech_id)
        self._step_of_speech.setdefault(speech_id, step.event.span_id)
        draft = self._speeches.get(speech_id)
        if draft is not None and draft.step is None:
            draft.step = step.event.span_id
            self._touch(draft)

    def _on_step_spoken(self, e: ev.LLMStepSpoken) -> None:
        step = self._steps.get(e.span_id)
        if step is None or self.ended is not None:
            return
        if e.speech_id is not None:
            self._link_step(step, e.speech_id)
        else:
            step.awaited = False
        self._settle_step_if_done(step)

    def _on_step_ended(self, e: ev.LLMStepEnded) -> None:
        step = self._steps.get(e.span_id)
        if step is None or step.ended_ms is not None:
            return
        step.ended_ms = e.at_ms
        step.error = e.error
        if not step.speeches:
            self._settle_step_if_done(step)

    def _settle_steps_of(self, draft: _SpeechDraft) -> None:
        step = self._steps.get(draft.step or "")
        if step is not None:
            step.speeches.add(draft.speech_id)
            self._settle_step_if_done(step)

    def _settle_step_if_done(self, step: _StepDraft) -> None:
        linked = [self._speeches[s] for s in step.speeches if s in self._speeches]
        # a realtime response may still bring another message; a cascaded step brings one
        done = all(d.ended or (d.committed and d.origin != "realtime") for d in linked)
        over = step.ended_ms is not None or bool(linked)
        if step.settled or (done and over and not step.awaited):
            self._settle_step(step)

    def _settle_step(self, step: _StepDraft) -> None:
        """Say what the step produced; again when a late fact changed it."""
        before = (step.settled, step.outputs, step.context_ids, step.speculative)
        span_id = step.event.span_id
        known = (self._speeches.get(speech_id) for speech_id in step.speeches)
        linked = sorted((d for d in known if d is not None and d.step == span_id), key=lambda d: d.seq)
        step.outputs = [d.key for d in linked if d.committed and d.visible]
        # attempts at a turn that went on: their user item never entered the conversation
        attempts = self._attempted_ids
        step.context_ids = step.event.context_ids
        if not attempts.isdisjoint(step.context_ids):
            step.context_ids = tuple(None if i in attempts else i for i in step.context_ids)
        step.speculative = not step.outputs and (
            (step.event.answers is not None and step.event.answers in attempts)
            or any(d.discarded and not d.visible for d in linked)
        )
        step.settled = True
        if before != (True, step.outputs, step.context_ids, step.speculative):
            self._settled_steps.append(step.freeze())

    # -- the recording -------------------------------------------------------------------------------
    def _on_recording_started(self, e: ev.RecordingStarted) -> None:
        if e.sample_rate_hz <= 0:
            self._warn(f"the recording {e.recording_id} has a sample rate of {e.sample_rate_hz}; ignored")
        elif self._recording is None:
            self._recording = e
            self._touch_all()
        elif self._recording.recording_id != e.recording_id:
            self._warn(f"a second recording {e.recording_id} was started; the first one is kept")

    def _on_segment_started(self, e: ev.SegmentStarted) -> None:
        if e.segment_id not in self._segments:
            start = max(0, e.start_ms)
            # a slow disk may learn of it after the end
            self._segments[e.segment_id] = (
                start,
                None if self.ended is None else max(start, self.ended.at_ms),
            )
            self._touch_all()

    def _on_segment_ended(self, e: ev.SegmentEnded) -> None:
        start, end = self._segments.get(e.segment_id, (None, None))
        if start is not None and end is None:
            self._segments[e.segment_id] = (start, max(start, e.end_ms))
            self._touch_all()

    def _on_recording_finished(self, e: ev.RecordingFinished) -> None:
        if self._recording is not None and self._recording_end is None:
            self._recording_end = e

    def _selections(self, ranges: Iterable[tuple[int, int]], channel: Channel) -> list[Selection]:
        """The stretches of the recording that hold these call-ms ranges, in segment ms."""
        if self._recording is None or channel not in self._recording.channels:
            return []
        out: list[Selection] = []
        for start, end in ranges:
            for segment_id, (begin, stop) in self._segments.items():
                low, high = max(start, begin), end if stop is None else min(end, stop)
                if high > low:
                    out.append(
                        Selection(
                            segment_id=segment_id, channel=channel, start_ms=low - begin, end_ms=high - begin
                        )
                    )
        return out

    # -- snapshots -----------------------------------------------------------------------------------
    def _snapshot(self, draft: _Draft) -> VoiceMessage | None:
        if not (draft.visible or (isinstance(draft, _UserDraft) and draft.settled)):
            return None
        return self._user_snapshot(draft) if isinstance(draft, _UserDraft) else self._speech_snapshot(draft)

    def _user_snapshot(self, draft: _UserDraft) -> VoiceMessage:
        closed = [(s, e) for s, e in draft.ranges if e is not None]
        text, status = self._user_text(draft)
        was = draft.last.text_status if draft.last is not None else None
        if status is TextStatus.PARTIAL and was is TextStatus.MISSING:
            text, status = None, TextStatus.MISSING  # never back to partial (contract, section 3)
        # an absurd range is taken out; the start that was already written stays
        start = draft.last.start_ms if draft.last is not None else None
        start = draft.ranges[0][0] if draft.ranges else start
        return VoiceMessage(
            id=draft.key,
            role=Role.USER,
            seq=draft.seq,
            committed=draft.committed,
            state=State.COMPLETE if draft.settled and not draft.speaking else State.OPEN,
            text_status=status,
            text=text,
            text_source=draft.source,
            start_ms=start,
            end_ms=max(e for _, e in closed) if closed else None,
            timing_source=draft.timing if start is not None else None,
            end_of_turn_ms=draft.end_of_turn_ms,
            transcript_final_ms=draft.transcript_final_ms,
            selections=self._selections(closed, Channel.CALLER),
        )

    def _user_text(self, draft: _UserDraft) -> tuple[str | None, TextStatus]:
        if not draft.captured:
            return None, TextStatus.NOT_CAPTURED
        if draft.last is not None and draft.last.text_status is TextStatus.FINAL:
            return draft.last.text, TextStatus.FINAL
        if draft.committed and draft.text:
            return draft.text, TextStatus.FINAL
        if draft.settled and (not draft.committed or draft.answered or self.ended is not None):
            return None, TextStatus.MISSING
        partial = " ".join(t for t in (*draft.finals, draft.interim) if t)
        return (partial, TextStatus.PARTIAL) if partial else (None, TextStatus.MISSING)

    def _speech_snapshot(self, draft: _SpeechDraft) -> VoiceMessage:
        ranges = [] if draft.state is State.UNPLAYED else draft.ranges()
        # a start counts once something is known to have played: it may turn out that nothing did
        over = draft.state is not State.OPEN
        begun = [s.start_ms for s in draft.segments if s.played or (over and s.finish is None)]
        starts = [s for s, _ in ranges] + [s for s in begun if s is not None]
        played = draft.state is not State.UNPLAYED and bool(starts)
        return VoiceMessage(
            id=draft.key,
            role=Role.ASSISTANT,
            seq=draft.seq,
            committed=draft.committed,
            state=draft.state,
            text_status=draft.status if draft.captured else TextStatus.NOT_CAPTURED,
            text=draft.text,
            generated_text=draft.generated_out,
            text_source=draft.source_out,
            start_ms=min(starts) if played else None,
            end_ms=max((e for _, e in ranges), default=None) if played else None,
            timing_source=TimingSource.LOCAL_PLAYOUT if played else None,
            interrupted_at_ms=draft.interrupted_at_ms,
            provider_audio_end_ms=draft.provider_audio_end_ms,
            selections=self._selections(ranges, Channel.AGENT),
            produced_by_span_id=draft.step,
        )


def _user_source(source: TextSource) -> TextSource | None:
    """The source, if it is one that a user's text can have."""
    return source if source in USER_TEXT_SOURCES else None


def _letters(text: str) -> str:
    return "".join(text.split())


def fold(events: Iterable[ev.Event], *, strict: bool = False) -> CallRecorder:
    """Fold a whole list of events; what recovery and tests do."""
    recorder = CallRecorder(strict=strict)
    for event in events:
        recorder.apply(event)
    return recorder
