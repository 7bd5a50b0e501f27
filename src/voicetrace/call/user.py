# SPDX-License-Identifier: Apache-2.0
"""The user's side of the fold: speech, transcripts, turns and their items (contract, section 4)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from voicetrace import events as ev
from voicetrace.call.book import Book, Handlers
from voicetrace.call.drafts import ABSURD_MS, UserDraft
from voicetrace.call.steps import Steps
from voicetrace.messages import USER_TEXT_SOURCES, TextSource, TimingSource

# How far the framework's own end-of-turn time may lie from the one we saw and still name the same turn.
_SAME_TURN_MS: Final = 250
# A transcript this long after the speech is a broken clock, not a slow recogniser (VT-32).
_ABSURD_DELAY_MS: Final = 200_000
# How far the framework's clock may run ahead of ours.
_CLOCK_SLACK_MS: Final = 1000


class UserTurns:
    """Turns speech and transcripts into user records, and gives each the item that the framework commits."""

    def __init__(self, book: Book, steps: Steps) -> None:
        self._book = book
        self._steps = steps
        self._all: list[UserDraft] = []  # oldest first
        self._turn: UserDraft | None = None  # collects speech and transcripts
        self._ended_turns: list[UserDraft] = []  # the turn is over, the item is awaited; oldest first
        # the last one that settled uncommitted, if still the newest
        self._unclaimed: UserDraft | None = None
        self._typed: dict[str, UserDraft] = {}
        self._pending: set[str] = set()
        self._decided: set[str] = set()  # tokens whose decision came before their start, or twice
        self._names_items = False  # the realtime provider gives its user items ids
        self.handlers: Handlers = {
            ev.UserSpeechStarted: self._on_speech_started,
            ev.UserSpeechStopped: self._on_speech_stopped,
            ev.UserTranscript: self._on_transcript,
            ev.UserItemNamed: self._on_item_named,
            ev.EndOfTurnPending: self._on_end_of_turn_pending,
            ev.EndOfTurnDecided: self._on_end_of_turn_decided,
            ev.UserTurnDropped: self._on_turn_dropped,
            ev.UserTurnCleared: self._on_turn_cleared,
            ev.UserTextSubmitted: self._on_text_submitted,
            ev.UserMessageAdded: self._on_message_added,
            ev.ResponseStarted: self._on_response_started,
        }

    @property
    def next_deadline_ms(self) -> int | None:
        """When uncommitted speech falls due, in call-ms; ``None`` when nothing waits for time to pass."""
        due = [d.quiet_since_ms + self._book.uncommitted_timeout_ms for d in self._waiting()]
        return min(due) if due and not self._pending else None

    def settle_overdue(self) -> None:
        """Time has passed: what no item came for is uncommitted."""
        if self._pending:
            return
        for draft in list(self._waiting()):
            if self._book.now_ms >= draft.quiet_since_ms + self._book.uncommitted_timeout_ms:
                self._settle_uncommitted(draft)

    def close(self) -> None:
        """The call is over: nobody speaks any more, and no item is awaited."""
        for draft in self._all:
            if draft.speaking:
                start, _ = draft.ranges[-1]
                draft.ranges[-1] = (start, max(start, self._book.now_ms))
                self._book.warn(f"message {draft.key}: the user was still speaking when the call ended")
            draft.settled = True

    def note(self, e: ev.MessageNoted, bounds: tuple[int, int] | None) -> None:
        """A user message that the application tells of; its id is free."""
        user = self._new_user(e.message_id)
        user.source = TextSource.TEXT_INPUT
        if bounds is not None:
            user.captured = user.captured and not self._book.unkept([bounds])
            user.ranges = [bounds]
            user.timing = TimingSource.LOCAL_RECEIPT
        if e.redacted:
            self._book.mute(user)
        user.text = (self._book.admit(user, e).text or "").strip() or None
        self._enter_conversation(user, e.message_id)

    def _waiting(self) -> Iterable[UserDraft]:
        """Drafts that settle uncommitted when time passes."""
        if self._turn is not None and not self._turn.speaking and self._turn.quiet_since_ms:
            yield self._turn
        yield from (d for d in self._ended_turns if not d.speaking)

    def _settle_uncommitted(self, draft: UserDraft) -> None:
        """No item came (contract, section 4): complete, uncommitted, without text."""
        self._forget_turn(draft)
        draft.settled = True
        if self._turn is None and not self._ended_turns and not draft.dropped:
            self._unclaimed = draft
        self._book.touch(draft)

    def _forget_turn(self, draft: UserDraft) -> None:
        if self._turn is draft:
            self._turn = None
        if draft in self._ended_turns:
            self._ended_turns.remove(draft)
        if self._unclaimed is draft:
            self._unclaimed = None

    def _new_user(self, key: str | None = None, *, typed: bool = False) -> UserDraft:
        seq = self._book.next_seq()
        wanted = f"{'typed' if typed else 'vad'}_{seq}" if key is None else key
        key = self._book.free_key(wanted)
        draft = UserDraft(key=key, seq=seq, captured=self._book.content)
        self._book.drafts[key] = draft
        self._all.append(draft)
        return draft

    def _new_turn(self, item_id: str | None) -> UserDraft:
        """Another utterance begins; the one before still waits for its item."""
        before, self._unclaimed = self._turn, None
        if before is not None and not before.settled:
            self._ended_turns.append(before)
        draft = self._turn = self._new_user()
        if item_id is not None:
            self._book.move(draft, item_id)
        return draft

    def _user_by_item(self, item_id: str | None) -> UserDraft | None:
        draft = self._book.drafts.get(item_id) if item_id is not None else None
        return draft if isinstance(draft, UserDraft) else None

    def _on_speech_started(self, e: ev.UserSpeechStarted) -> None:
        if self._book.ended is not None:
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
            start = max(previous_end, min(e.at_ms, self._book.now_ms))
        draft.ranges.append((start, None))
        draft.timing = draft.timing or e.source
        self._book.touch(draft)

    def _on_speech_stopped(self, e: ev.UserSpeechStopped) -> None:
        draft = self._user_by_item(e.item_id)
        if draft is None:
            speaking = [d for d in self._all if d.speaking and (e.item_id is None or not d.named)]
            draft = speaking[-1] if speaking else None
        if draft is None:
            if self._book.ended is None:
                self._book.warn(f"speech stopped at {e.end_ms} ms without having started")
            return
        if not draft.speaking:
            return  # said twice
        start, _ = draft.ranges[-1]
        if e.end_ms < start or e.end_ms - start > ABSURD_MS:
            self._book.warn(
                f"message {draft.key}: speech from {start} ms cannot end at {e.end_ms} ms; dropped"
            )
            draft.ranges.pop()
        else:
            draft.ranges[-1] = (start, e.end_ms)
        draft.quiet_since_ms = max(draft.quiet_since_ms, e.at_ms, 1)
        draft.visible = True
        if draft.dropped and not draft.settled:
            self._settle_uncommitted(draft)
        self._book.touch(draft)

    def _on_transcript(self, e: ev.UserTranscript) -> None:
        if e.text is not None and not e.text.strip():
            return
        self._names_items = self._names_items or e.item_id is not None
        draft = self._user_by_item(e.item_id) or self._turn_for_transcript(e)
        if draft is None:
            return  # nobody's
        e = self._book.admit(draft, e)
        if draft.last_final == e:
            return  # said twice
        if e.redacted:
            self._book.mute(draft)
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
        self._book.touch(draft)

    def _turn_for_transcript(self, e: ev.UserTranscript) -> UserDraft | None:
        if e.item_id is not None:
            if not self._book.is_free(e.item_id):
                return None
            # the transcript names its item first: utterances are recognised in the order they were spoken
            open_turns = [d for d in self._all if d.awaits_item and not d.settled and not d.finals]
            unclaimed = self._unclaimed if self._unclaimed and self._unclaimed.awaits_item else None
            draft = open_turns[0] if open_turns else unclaimed
            if draft is not None:
                self._book.move(draft, e.item_id)
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
        if self._book.ended is not None:
            return None
        # recognised speech that no VAD saw: turn taking by STT alone (VT-30)
        draft = self._new_turn(e.item_id)
        draft.quiet_since_ms = max(e.at_ms, 1)
        return draft

    def _awaiting_transcript(self, e: ev.UserTranscript) -> UserDraft | None:
        """The answered utterance that a late realtime transcript without an item id belongs to (VT-23)."""
        if e.source is not TextSource.REALTIME_INPUT_TRANSCRIPT or (not e.final and self._turn is not None):
            return None
        waiting = [d for d in self._all if d.committed and d.text is None and d.source is e.source]
        expected = [d for d in waiting if not d.answered]
        if expected:
            return expected[0]
        return waiting[-1] if waiting and self._turn is None else None

    def _on_item_named(self, e: ev.UserItemNamed) -> None:
        """Utterances get their items in the order in which they ended; the next speech is another one's."""
        self._names_items = True
        if self._book.ended is not None or self._user_by_item(e.item_id) is not None:
            return
        if not self._book.is_free(e.item_id):
            return
        ended = [d for d in self._all if d.awaits_item and not d.settled and d.ranges and not d.speaking]
        if not ended:
            return  # paired when a response includes it
        draft = ended[0]
        self._book.move(draft, e.item_id)
        if draft is self._turn:
            self._turn = None
            self._ended_turns.append(draft)
        self._book.touch(draft)

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
        self._book.touch(draft)

    def _split_open_range(self, draft: UserDraft) -> None:
        """Speech that is still going on when a turn ends belongs to the next message."""
        going_on = draft.ranges.pop()
        following = self._new_user()
        following.ranges.append(going_on)
        following.timing = draft.timing
        self._turn = following
        self._book.touch(following)

    def _on_turn_dropped(self, e: ev.UserTurnDropped) -> None:
        draft = self._ended_turns[0] if self._ended_turns else self._turn
        if draft is None or (draft.speaking and draft is self._turn):
            return  # the current speech may still become a turn
        draft.dropped = True
        if draft.speaking:
            self._ended_turns.remove(draft)  # it settles when the speech stops
        else:
            self._settle_uncommitted(draft)

    def _on_turn_cleared(self, e: ev.UserTurnCleared) -> None:
        draft = self._turn
        if draft is None or draft.settled or draft.named:
            return  # a named utterance is the provider's, which says itself what becomes of it
        draft.dropped = True
        if draft.speaking:
            start, _ = draft.ranges[-1]
            at = max(start, e.at_ms)
            draft.ranges[-1] = (at, None)
            self._split_open_range(draft)
            if at > start:
                draft.ranges.append((start, at))
        draft.visible = draft.visible or bool(draft.ranges)
        self._settle_uncommitted(draft)

    def _on_text_submitted(self, e: ev.UserTextSubmitted) -> None:
        if e.token in self._typed or self._book.ended is not None:
            return
        draft = self._new_user(typed=True)
        draft.source = TextSource.TEXT_INPUT
        draft.finals = [self._book.admit(draft, e).text or ""]
        self._typed[e.token] = draft
        draft.visible = True
        self._book.touch(draft)

    def _on_message_added(self, e: ev.UserMessageAdded) -> None:
        known = self._user_by_item(e.item_id)
        if known is not None:
            self._commit_user(known, e)  # told twice, or a late transcript
            return
        if not self._book.is_free(e.item_id):
            return
        draft = self._typed.get(e.token) if e.token is not None else None
        if draft is None and e.source is not TextSource.TEXT_INPUT:
            draft = self._claim_turn(e)
        if draft is None or draft.committed:
            draft = self._new_user()
        self._commit_user(draft, e)

    def _claim_turn(self, e: ev.UserMessageAdded) -> UserDraft | None:
        """The turn that this item is: the framework's own end-of-turn time names it, else the oldest."""
        draft: UserDraft | None = None
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

    def _commit_user(self, draft: UserDraft, e: ev.UserMessageAdded) -> None:
        told_ms = [(t, t) for t in (e.end_of_turn_ms, e.transcript_final_ms) if t is not None]
        if not draft.ranges and self._book.unkept(told_ms):
            self._book.withhold(draft)  # no more is known of when it was said
        e = self._book.admit(draft, e)
        if e.redacted:
            self._book.mute(draft)
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

    def _enter_conversation(self, draft: UserDraft, item_id: str) -> None:
        """The record is committed under its item's id, which the caller has found free."""
        self._forget_turn(draft)
        if draft.key != item_id or not draft.committed:
            self._book.move(draft, item_id)
        draft.committed = draft.settled = draft.visible = True
        draft.dropped = False
        self._book.touch(draft)
        self._steps.committed(item_id)

    def _sane_end_of_turn(self, draft: UserDraft, value: int) -> int | None:
        start = draft.ranges[0][0] if draft.ranges else 0
        if value < start or value > self._book.now_ms + _CLOCK_SLACK_MS:
            self._book.warn(f"message {draft.key}: end of turn at {value} ms cannot be; left out")
            return None
        return value

    def _sane_transcript_time(self, draft: UserDraft, value: int) -> int | None:
        start = draft.ranges[0][0] if draft.ranges else 0
        ends = [end for _, end in draft.ranges if end is not None]
        latest = min(
            self._book.now_ms + _CLOCK_SLACK_MS, ends[-1] + _ABSURD_DELAY_MS if ends else self._book.now_ms
        )
        if start <= value <= latest:
            return value
        self._book.warn(
            f"message {draft.key}: a final transcript at {value} ms cannot be; its time is left out"
        )
        return None

    def _on_response_started(self, e: ev.ResponseStarted) -> None:
        """Realtime: the response's new user items are paired, oldest first (contract, section 4)."""
        self._names_items = self._names_items or bool(e.item_ids)
        for draft in self._all:
            if draft.committed and not draft.answered:
                draft.answered = True  # from here on a transcript that did not come is missing
                self._book.touch(draft)
        free = [d for d in self._all if d.awaits_item and not d.settled]
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
                if not self._book.is_free(item_id):
                    continue
                known = free.pop(0) if free else self._new_user()
            self._answer(known, item_id, e.at_ms)

    def _answer(self, draft: UserDraft, item_id: str, at_ms: int) -> None:
        """A generation that includes the user's item starts: the turn ends, and the item is committed."""
        draft.source = draft.source or TextSource.REALTIME_INPUT_TRANSCRIPT
        if draft.end_of_turn_ms is None and draft.source is not TextSource.TEXT_INPUT:
            draft.end_of_turn_ms = self._sane_end_of_turn(draft, at_ms)
        if not draft.committed:
            self._enter_conversation(draft, item_id)
            draft.text = draft.text or draft.said or None
        self._book.touch(draft)


def _user_source(source: TextSource) -> TextSource | None:
    """The source, if it is one that a user's text can have."""
    return source if source in USER_TEXT_SOURCES else None
