# SPDX-License-Identifier: Apache-2.0
"""`CallRecorder`: the pure fold from events to messages. No I/O, no clock, no OpenTelemetry, no framework.

The same events give the same messages, live or read back from a journal. The fold never raises for what
a framework did (late, doubled, lost or absurd facts become warnings and absent fields); it raises only
when `strict` and its own rules are broken, which is a bug here and fails in tests.

Not thread-safe: one owner applies the events of one call, in the order in which they were journalled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from voicetrace import events as ev
from voicetrace.messages import (
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
    """LLM steps whose outputs are now known for good."""

    def __bool__(self) -> bool:
        return bool(self.messages or self.moved or self.steps)


@dataclass(slots=True)
class _UserDraft:
    """A user message in the making. A range whose end is ``None`` is speech still going on."""

    key: str
    seq: int
    ranges: list[tuple[int, int | None]] = field(default_factory=list)
    timing: TimingSource | None = None
    source: TextSource | None = None
    finals: list[str] = field(default_factory=list)
    interim: str = ""
    heard: bool = False  # a transcript arrived, with or without its text
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
        if self.start_ms is not None and self.finish is not None and self.finish.position_ms > 0:
            return [(self.start_ms, self.start_ms + self.finish.position_ms)]
        return []


@dataclass(slots=True)
class _SpeechDraft:
    """An assistant message in the making, keyed by speech id until its item is added."""

    key: str
    speech_id: str
    seq: int
    origin: str
    generated: list[str] = field(default_factory=list)
    has_text: bool = False
    source: TextSource = TextSource.TTS_INPUT
    segments: list[_Segment] = field(default_factory=list)
    item_text: str | None = None
    has_item_text: bool = False
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
    interrupted_at_ms: int | None = None
    provider_audio_end_ms: int | None = None
    step: str | None = None
    visible: bool = False
    last: VoiceMessage | None = None

    @property
    def playing(self) -> _Segment | None:
        last = self.segments[-1] if self.segments else None
        return last if last is not None and last.finish is None else None

    def ranges(self) -> list[tuple[int, int]]:
        return [r for segment in self.segments for r in segment.ranges()]


@dataclass(slots=True)
class _StepDraft:
    event: ev.LLMStepStarted
    context_ids: list[str | None]
    outputs: list[str] = field(default_factory=list)
    speeches: set[str] = field(default_factory=set)
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
            context_ids=tuple(self.context_ids),
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
        self._drafts: dict[str, _Draft] = {}  # by key; the order is that of creation
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
                name: Segment(start_ms=begin, length_ms=max(0, (stop or self.now_ms) - begin))
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

    def _warn(self, sentence: str) -> None:
        if sentence not in self.warnings:
            self.warnings.append(sentence)

    def _next_seq(self) -> int:
        seq, self._seq = self._seq, self._seq + 1
        return seq

    def _move(self, draft: _Draft, key: str) -> bool:
        """Give a record its item's id. The old key never appears again (contract, section 2)."""
        if draft.key == key:
            return True
        if key in self._drafts:
            self._warn(f"id {key} is already another message's; {draft.key} keeps its own")
            return False
        old = draft.key
        del self._drafts[old]
        self._drafts[key] = draft
        draft.key = key
        if self._messages.pop(old, None) is not None:
            self._moved.append((old, key))
        return True

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

    def _close_user(self, draft: _UserDraft) -> None:
        if draft.speaking:
            start, _ = draft.ranges[-1]
            draft.ranges[-1] = (start, max(start, self.now_ms))
            self._warn(f"message {draft.key}: the user was still speaking when the call ended")
        if not draft.settled:
            draft.settled = True
            self._touch(draft)

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
        if self._turn is None and not self._ended_turns:
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
        draft = _UserDraft(key=key or f"vad_{seq}", seq=seq)
        if draft.key in self._drafts:  # a framework's id that looks like ours
            draft.key = f"vad_{seq}_{len(self._drafts)}"
        self._drafts[draft.key] = draft
        return draft

    def _user_by_item(self, item_id: str | None) -> _UserDraft | None:
        draft = self._drafts.get(item_id) if item_id is not None else None
        return draft if isinstance(draft, _UserDraft) else None

    def _on_user_speech_started(self, e: ev.UserSpeechStarted) -> None:
        if self.ended is not None:
            return
        start = max(0, e.start_ms)
        named = self._user_by_item(e.item_id)
        draft = named or self._turn
        if draft is not None and draft.speaking:
            if named is not None or e.item_id is None:
                return  # said twice
            draft = None  # another utterance of a provider that names them
        if named is None and e.item_id is not None and draft is not None and not draft.key.startswith("vad_"):
            draft = None
        if draft is None or draft.settled:
            draft = self._new_user()
            if e.item_id is not None:
                self._move(draft, e.item_id)
        if named is None:
            self._turn = draft
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
        if draft is None or not draft.speaking:
            candidates = [d for d in self._drafts.values() if isinstance(d, _UserDraft) and d.speaking]
            draft = candidates[-1] if candidates else None
        if draft is None:
            if self.ended is None:
                self._warn(f"speech stopped at {e.end_ms} ms without having started")
            return
        start, _ = draft.ranges[-1]
        if e.end_ms < start or e.end_ms - start > _ABSURD_MS:
            self._warn(f"message {draft.key}: speech from {start} ms cannot end at {e.end_ms} ms; dropped")
            draft.ranges.pop()
        else:
            draft.ranges[-1] = (start, e.end_ms)
        draft.quiet_since_ms = max(draft.quiet_since_ms, e.at_ms, 1)
        draft.visible = True
        self._touch(draft)

    def _on_user_transcript(self, e: ev.UserTranscript) -> None:
        if e.text == "":
            return
        draft = self._user_by_item(e.item_id) or self._turn_for_transcript(e)
        if draft is None:
            return
        draft.source = draft.source or e.source
        draft.heard = True
        if not draft.settled and draft is self._turn:
            draft.quiet_since_ms = max(draft.quiet_since_ms, e.at_ms, 1)
        if e.final:
            if e.item_id is not None:
                draft.finals = [e.text or ""]  # one item, one transcript: a second replaces the first
            else:
                draft.finals.append(e.text or "")
            draft.interim = ""
            if draft.text is None and (not draft.committed or e.item_id is not None):
                draft.transcript_final_ms = e.at_ms
            if draft.committed and draft.text is None:
                draft.text = " ".join(t for t in draft.finals if t) if e.text is not None else None
        else:
            draft.interim = e.text or ""
        draft.visible = draft.visible or not draft.settled
        self._touch(draft)

    def _turn_for_transcript(self, e: ev.UserTranscript) -> _UserDraft | None:
        if self._turn is not None and (e.item_id is None or self._turn.key.startswith("vad_")):
            return self._turn
        if self._ended_turns and not self._ended_turns[-1].finals:
            return self._ended_turns[-1]
        if self._unclaimed is not None:
            return self._unclaimed
        if self.ended is not None:
            return None
        # recognised speech that no VAD saw: turn taking by STT alone
        self._turn = self._new_user()
        self._turn.quiet_since_ms = max(e.at_ms, 1)
        if e.item_id is not None:
            self._move(self._turn, e.item_id)
        return self._turn

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
        draft.end_of_turn_ms = draft.end_of_turn_ms or self._sane_end_of_turn(draft, e.at_ms)
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
        if draft is None or draft.speaking:
            return
        draft.dropped = True
        self._settle_uncommitted(draft)
        self._unclaimed = None

    def _on_user_text_submitted(self, e: ev.UserTextSubmitted) -> None:
        if e.token in self._typed or self.ended is not None:
            return
        draft = self._new_user(f"typed_{self._seq}")
        draft.source = TextSource.TEXT_INPUT
        draft.heard = True
        draft.finals = [e.text or ""]
        self._typed[e.token] = draft
        draft.visible = True
        self._touch(draft)

    def _on_user_message_added(self, e: ev.UserMessageAdded) -> None:
        known = self._drafts.get(e.item_id)
        if known is not None:
            if isinstance(known, _UserDraft):
                self._commit_user(known, e)  # told twice, or a late transcript
            else:
                self._warn(f"id {e.item_id} is an assistant's message; the user's item is not recorded")
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
        if self._ended_turns:
            draft = self._ended_turns[0]
            if e.end_of_turn_ms is not None:
                wanted = e.end_of_turn_ms
                named = [
                    d
                    for d in self._ended_turns
                    if d.end_of_turn_ms is not None and abs(d.end_of_turn_ms - wanted) <= _SAME_TURN_MS
                ]
                draft = named[0] if named else draft
            # turns are answered in order: what is older than this one will get no item
            for older in self._ended_turns[: self._ended_turns.index(draft)]:
                self._settle_uncommitted(older)
        elif self._turn is not None:
            draft = self._turn
            if draft.speaking and len(draft.ranges) > 1:
                self._split_open_range(draft)
        elif self._unclaimed is not None:
            draft = self._unclaimed
        return draft

    def _commit_user(self, draft: _UserDraft, e: ev.UserMessageAdded) -> None:
        self._forget_turn(draft)
        if not self._move(draft, e.item_id):
            return
        draft.committed = True
        draft.settled = True
        draft.dropped = False
        draft.visible = True
        self._committed_ids.add(e.item_id)
        draft.source = draft.source or e.source
        if draft.text is None and e.text:
            draft.text = e.text
        if e.text is None or e.text:
            draft.heard = True
        if draft.transcript_final_ms is None and e.source is not TextSource.TEXT_INPUT:
            draft.transcript_final_ms = e.transcript_final_ms
        if draft.end_of_turn_ms is None and e.end_of_turn_ms is not None:
            draft.end_of_turn_ms = self._sane_end_of_turn(draft, e.end_of_turn_ms)
        self._touch(draft)

    def _sane_end_of_turn(self, draft: _UserDraft, value: int) -> int | None:
        start = draft.ranges[0][0] if draft.ranges else 0
        if value < start or value > self.now_ms + 1000:
            self._warn(f"message {draft.key}: end of turn at {value} ms cannot be; left out")
            return None
        return value

    def _on_response_started(self, e: ev.ResponseStarted) -> None:
        """Realtime: the response's new user items are paired, oldest first (contract, section 4)."""
        for draft in self._drafts.values():
            if isinstance(draft, _UserDraft) and draft.committed and not draft.answered:
                draft.answered = True  # from here on a transcript that did not come is missing
                self._touch(draft)
        open_turns = [
            d
            for d in self._drafts.values()
            if isinstance(d, _UserDraft)
            and not d.committed
            and not d.dropped
            and d.source is not TextSource.TEXT_INPUT
        ]
        named = [self._user_by_item(i) for i in e.item_ids]
        free = iter([d for d in open_turns if d not in named and not d.settled])
        targets = [(i, d or next(free, None)) for i, d in zip(e.item_ids, named, strict=True)]
        if not e.item_ids:  # a provider without items: the response answers what was said so far
            targets = [(d.key, d) for d in open_turns if not d.speaking and not d.settled]
        for item_id, target in targets:
            draft = target or self._new_user()
            if draft.committed or not self._move(draft, item_id):
                continue
            self._forget_turn(draft)
            draft.committed = draft.settled = draft.visible = True
            draft.source = draft.source or TextSource.REALTIME_INPUT_TRANSCRIPT
            draft.end_of_turn_ms = draft.end_of_turn_ms or self._sane_end_of_turn(draft, e.at_ms)
            if draft.finals and draft.text is None:
                draft.text = " ".join(t for t in draft.finals if t) or None
            self._committed_ids.add(item_id)
            self._touch(draft)

    def _on_message_noted(self, e: ev.MessageNoted) -> None:
        if e.message_id in self._drafts or self.ended is not None:
            self._warn(f"id {e.message_id} is already a message; the noted one is not recorded")
            return
        if e.role is Role.USER:
            user = self._new_user(e.message_id)
            user.source, user.text, user.heard = TextSource.TEXT_INPUT, e.text, True
            user.committed = user.settled = user.visible = True
            if e.start_ms is not None and e.end_ms is not None and e.end_ms >= e.start_ms >= 0:
                user.ranges = [(e.start_ms, e.end_ms)]
                user.timing = TimingSource.LOCAL_RECEIPT
            self._committed_ids.add(e.message_id)
            self._touch(user)
            return
        speech = self._speech(e.message_id, "say")
        speech.generated, speech.has_text = [e.text or ""], True
        speech.committed = True
        if e.start_ms is not None and e.end_ms is not None and e.end_ms > e.start_ms >= 0:
            finish = ev.PlayoutFinished(
                at_ms=e.at_ms, speech_id=e.message_id, interrupted=False, position_ms=e.end_ms - e.start_ms
            )
            speech.segments = [_Segment(start_ms=e.start_ms, finish=finish)]
        self._settle_speech(speech)

    # -- the assistant -------------------------------------------------------------------------------
    def _speech(self, speech_id: str, origin: str = "reply") -> _SpeechDraft:
        """The speech's record; made now when its creation was lost, or when it was told out of order."""
        draft = self._speeches.get(speech_id)
        if draft is None:
            key = speech_id if speech_id not in self._drafts else f"{speech_id}#{self._seq}"
            draft = _SpeechDraft(key=key, speech_id=speech_id, seq=self._next_seq(), origin=origin)
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

    def _on_speech_text(self, e: ev.SpeechText) -> None:
        draft = self._open_speech(e.speech_id, "text")
        if draft is None or e.text == "":
            return
        draft.has_text = True
        draft.source = e.source
        if e.text is not None:
            draft.generated.append(e.text)
        self._touch(draft)

    def _on_playout_started(self, e: ev.PlayoutStarted) -> None:
        draft = self._open_speech(e.speech_id, "playout")
        if draft is None or draft.playing is not None:
            return
        draft.segments.append(_Segment(start_ms=max(0, e.start_ms)))
        draft.visible = True
        self._touch(draft)

    def _segment(self, draft: _SpeechDraft) -> _Segment:
        segment = draft.playing
        if segment is None:
            segment = _Segment()
            draft.segments.append(segment)
        return segment

    def _on_playout_run(self, e: ev.PlayoutRun) -> None:
        draft = self._open_speech(e.speech_id, "playout")
        if draft is None:
            return
        start = max(0, e.start_ms)
        if e.end_ms < start or e.end_ms - start > _ABSURD_MS:
            self._warn(f"message {draft.key}: playout from {start} ms cannot end at {e.end_ms} ms; dropped")
            return
        if any(start < end and e.end_ms > begin for begin, end in draft.ranges()):
            if (start, e.end_ms) in draft.ranges():
                return  # said twice
            start = min(e.end_ms, max(end for _, end in draft.ranges()))
            if start == e.end_ms:
                return
        segment = self._segment(draft)
        segment.runs.append((start, e.end_ms))
        segment.runs.sort()
        draft.visible = True
        self._touch(draft)

    def _on_playout_stopped(self, e: ev.PlayoutStopped) -> None:
        draft = self._speeches.get(e.speech_id)
        if draft is not None and not draft.settled and draft.playing is not None:
            draft.playing.stopped_ms = e.stopped_ms

    def _on_playout_finished(self, e: ev.PlayoutFinished) -> None:
        draft = self._open_speech(e.speech_id, "playout")
        if draft is None:
            return
        if draft.playing is None and any(s.finish == e for s in draft.segments):
            return  # said twice
        segment = self._segment(draft)
        segment.finish = e
        draft.visible = draft.visible or segment.played
        if draft.ended:
            self._settle_speech(draft)
        self._touch(draft)

    def _on_provider_truncated(self, e: ev.ProviderTruncated) -> None:
        draft = self._speeches.get(e.speech_id)
        found = draft or self._drafts.get(e.speech_id)
        if isinstance(found, _SpeechDraft):
            found.provider_audio_end_ms = max(0, e.audio_end_ms)
            self._touch(found)

    def _on_assistant_message_added(self, e: ev.AssistantMessageAdded) -> None:
        if self.ended is not None and e.speech_id not in self._speeches:
            return
        other = self._drafts.get(e.item_id)
        draft = self._speech(e.speech_id)
        if other is not None and other is not draft:
            self._warn(f"id {e.item_id} is already another message's; {draft.key} keeps its own")
            return
        if draft.committed and draft.key != e.item_id:
            self._warn(f"message {draft.key}: a second item {e.item_id} was added for it; ignored")
            return
        if not draft.committed:
            self._move(draft, e.item_id)
            draft.committed = True
            draft.discarded = False
            self._committed_ids.add(e.item_id)
            draft.item_text, draft.has_item_text = e.text, e.text != ""
            draft.cut = e.cut
            draft.visible = draft.visible or draft.has_item_text
        if not draft.settled and draft.playing is None and draft.segments:
            self._settle_speech(draft)  # played and then added: nothing more will come
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
        text = "".join(draft.generated).strip() or (draft.item_text or "").strip()
        has_text = draft.has_text or draft.has_item_text
        if draft.discarded or (not played and not has_text):
            return  # a discarded attempt or a tool-only step: never written
        if not played and draft.origin != "say" and not draft.committed and self._speculative(draft):
            draft.discarded = True
            return
        draft.visible = True
        if not played:
            draft.state = State.UNPLAYED
            draft.source_out = draft.source
            self._set_text(draft, text, generated=None)
            return
        cut = [s for s in played if s.finish is None or s.finish.interrupted]
        failed = draft.cut and not cut  # the framework calls it cut, the sink does not: the TTS failed
        draft.state = State.INTERRUPTED if cut or failed else State.COMPLETE
        if draft.state is State.INTERRUPTED:
            draft.interrupted_at_ms = self._cut_at(draft, cut[-1] if cut else played[-1])
        aligned = all(s.finish is not None and s.finish.aligned for s in played) and not failed
        if aligned:
            heard = "".join((s.finish.heard_text or "") for s in played if s.finish is not None).strip()
            draft.source_out = TextSource.PLAYOUT_ALIGNED
            self._set_text(draft, heard, generated=text)
        else:
            draft.source_out = draft.source
            self._set_text(draft, text, generated=None)

    def _cut_at(self, draft: _SpeechDraft, segment: _Segment) -> int:
        """The cut is where the audio stopped, not when the framework confirmed it (decision 10)."""
        if segment.runs:
            return segment.runs[-1][1]
        start = segment.start_ms or 0
        if segment.stopped_ms is not None and segment.stopped_ms >= start:
            return segment.stopped_ms
        if segment.finish is not None:
            end = start + segment.finish.position_ms if segment.start_ms is not None else segment.finish.at_ms
            return max(start, end)
        self._warn(f"message {draft.key}: its playout was never reported as finished; the call ended first")
        return max(start, self.now_ms)

    def _set_text(self, draft: _SpeechDraft, text: str, *, generated: str | None) -> None:
        if not self._content:
            return  # the snapshot says not_captured
        if text:
            draft.text, draft.status = text, TextStatus.FINAL
        if generated and generated.split() != text.split():
            draft.generated_out = generated

    def _speculative(self, draft: _SpeechDraft) -> bool:
        step = self._steps.get(draft.step or "")
        answers = step.event.answers if step is not None else None
        return answers is not None and answers not in self._committed_ids

    # -- LLM steps -----------------------------------------------------------------------------------
    def _on_step_started(self, e: ev.LLMStepStarted) -> None:
        if e.span_id in self._steps or not is_span_id(e.span_id) or self.ended is not None:
            return
        step = _StepDraft(event=e, context_ids=list(e.context_ids))
        self._steps[e.span_id] = step
        if e.speech_id is None:
            return
        step.speeches.add(e.speech_id)
        self._step_of_speech.setdefault(e.speech_id, e.span_id)
        draft = self._speeches.get(e.speech_id)
        if draft is not None and draft.step is None:
            draft.step = e.span_id
            self._touch(draft)

    def _on_step_ended(self, e: ev.LLMStepEnded) -> None:
        step = self._steps.get(e.span_id)
        if step is None or step.ended_ms is not None:
            return
        step.ended_ms = e.at_ms
        step.error = e.error
        if not step.speeches:
            self._settle_step(step)

    def _settle_steps_of(self, draft: _SpeechDraft) -> None:
        step = self._steps.get(draft.step or "")
        if step is None:
            return
        step.speeches.add(draft.speech_id)
        linked = [self._speeches[s] for s in step.speeches if s in self._speeches]
        # a realtime response may still bring another message; a cascaded step brings one
        done = all(d.ended or (d.committed and d.origin != "realtime") for d in linked)
        if done:
            self._settle_step(step)

    def _settle_step(self, step: _StepDraft) -> None:
        if step.settled:
            return
        step.settled = True
        linked = sorted(
            (d for d in self._speeches.values() if d.step == step.event.span_id), key=lambda d: d.seq
        )
        step.outputs = [d.key for d in linked if d.committed]
        answers = step.event.answers
        if answers is not None and answers not in self._committed_ids:
            # an attempt at a turn that went on: its user item never entered the conversation
            step.context_ids = [None if i == answers else i for i in step.context_ids]
            step.speculative = not step.outputs
        if any(d.discarded for d in linked) and not step.outputs:
            step.speculative = True
        self._settled_steps.append(step.freeze())

    # -- the recording -------------------------------------------------------------------------------
    def _on_recording_started(self, e: ev.RecordingStarted) -> None:
        if self._recording is None:
            self._recording = e
        elif self._recording.recording_id != e.recording_id:
            self._warn(f"a second recording {e.recording_id} was started; the first one is kept")

    def _on_segment_started(self, e: ev.SegmentStarted) -> None:
        if self.ended is None:
            self._segments.setdefault(e.segment_id, (max(0, e.start_ms), None))

    def _on_segment_ended(self, e: ev.SegmentEnded) -> None:
        start, end = self._segments.get(e.segment_id, (None, None))
        if start is not None and end is None:
            self._segments[e.segment_id] = (start, max(start, e.end_ms))

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

    def _user_snapshot(self, draft: _UserDraft) -> VoiceMessage | None:
        closed = [(s, e) for s, e in draft.ranges if e is not None]
        if not (draft.ranges or draft.heard or draft.committed):
            return None
        text, status = self._user_text(draft)
        was = draft.last.text_status if draft.last is not None else None
        if status is TextStatus.PARTIAL and was is TextStatus.MISSING:
            text, status = None, TextStatus.MISSING  # never back to partial (contract, section 3)
        return VoiceMessage(
            id=draft.key,
            role=Role.USER,
            seq=draft.seq,
            committed=draft.committed,
            state=State.COMPLETE if draft.settled and not draft.speaking else State.OPEN,
            text_status=status,
            text=text,
            text_source=draft.source,
            start_ms=draft.ranges[0][0] if draft.ranges else None,
            end_ms=max(e for _, e in closed) if closed else None,
            timing_source=draft.timing if draft.ranges else None,
            end_of_turn_ms=draft.end_of_turn_ms,
            transcript_final_ms=draft.transcript_final_ms,
            selections=self._selections(closed, Channel.CALLER),
        )

    def _user_text(self, draft: _UserDraft) -> tuple[str | None, TextStatus]:
        if not self._content:
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
        starts = [s for s, _ in ranges] + [s.start_ms for s in draft.segments if s.start_ms is not None]
        played = draft.state is not State.UNPLAYED and bool(starts)
        return VoiceMessage(
            id=draft.key,
            role=Role.ASSISTANT,
            seq=draft.seq,
            committed=draft.committed,
            state=draft.state,
            text_status=draft.status if self._content else TextStatus.NOT_CAPTURED,
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


def fold(events: Iterable[ev.Event], *, strict: bool = False) -> CallRecorder:
    """Fold a whole list of events; what recovery and tests do."""
    recorder = CallRecorder(strict=strict)
    for event in events:
        recorder.apply(event)
    return recorder
