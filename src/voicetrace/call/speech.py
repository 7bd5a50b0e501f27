# SPDX-License-Identifier: Apache-2.0
"""The assistant's side of the fold: text, playout, and what was heard of it (contract, section 4)."""

from __future__ import annotations

from typing import Final

from voicetrace import events as ev
from voicetrace.call.book import Book, Handlers
from voicetrace.call.drafts import ABSURD_MS, Playout, SpeechDraft
from voicetrace.call.steps import Steps
from voicetrace.messages import State, TextSource, TextStatus

# Where an assistant's text may come from when nothing aligned it to what was played.
_GENERATED_SOURCES: Final = frozenset({TextSource.TTS_INPUT, TextSource.REALTIME_OUTPUT_TRANSCRIPT})


class Speeches:
    """Turns speeches into assistant records, which settle by what was played of them."""

    def __init__(self, book: Book, steps: Steps) -> None:
        self._book = book
        self._steps = steps
        self.handlers: Handlers = {
            ev.SpeechCreated: self._on_created,
            ev.SpeechText: self._on_text,
            ev.PlayoutStarted: self._on_playout_started,
            ev.PlayoutRun: self._on_playout_run,
            ev.PlayoutStopped: self._on_playout_stopped,
            ev.PlayoutFinished: self._on_playout_finished,
            ev.ProviderTruncated: self._on_provider_truncated,
            ev.AssistantMessageAdded: self._on_message_added,
            ev.SpeechEnded: self._on_ended,
        }

    def close(self) -> None:
        """The call is over: each speech settles by what is known."""
        for draft in list(self._book.speeches.values()):
            self._settle(draft)

    def note(self, e: ev.MessageNoted, bounds: tuple[int, int] | None) -> None:
        """An assistant's message that the application tells of; its id is free."""
        draft = self._speech(e.message_id, "say")
        if bounds is not None and self._book.unkept([bounds]):
            draft.captured = False
        draft.generated, draft.committed = [self._book.admit(draft, e).text], True
        if bounds is not None and bounds[1] > bounds[0]:
            finish = ev.PlayoutFinished(
                at_ms=e.at_ms,
                speech_id=e.message_id,
                interrupted=False,
                position_ms=bounds[1] - bounds[0],
            )
            draft.segments = [Playout(start_ms=bounds[0], finish=finish)]
        if e.redacted:
            self._book.mute(draft)
        self._reveal(draft)
        self._settle(draft)
        draft.ended = True

    def _speech(self, speech_id: str, origin: str = "reply") -> SpeechDraft:
        """The speech's record; made now when its creation was lost, or when it was told out of order."""
        draft = self._book.speeches.get(speech_id)
        if draft is None:
            key = self._book.free_key(speech_id)
            draft = SpeechDraft(
                key=key,
                speech_id=speech_id,
                seq=self._book.next_seq(),
                origin=origin,
                captured=self._book.content,
            )
            draft.step = self._steps.of_speech(speech_id)
            self._book.speeches[speech_id] = draft
            self._book.drafts[key] = draft
        return draft

    def _on_created(self, e: ev.SpeechCreated) -> None:
        if self._book.ended is None:
            self._book.touch(self._speech(e.speech_id, e.origin))

    def _open_speech(self, speech_id: str, what: str) -> SpeechDraft | None:
        """The speech, if it may still change; a settled one stays as it was written."""
        if self._book.ended is not None and speech_id not in self._book.speeches:
            return None
        draft = self._speech(speech_id)
        if draft.settled:
            if draft.visible:
                self._book.warn(f"message {draft.key}: {what} after it had ended; ignored")
            return None
        return draft

    def _playing_speech(self, speech_id: str) -> SpeechDraft | None:
        """As `_open_speech`; what plays is a message, also when it had been given up as unwritten (VT-18)."""
        draft = self._book.speeches.get(speech_id)
        if draft is not None and draft.settled and not draft.visible and self._book.ended is None:
            draft.settled = False
        return self._open_speech(speech_id, "playout")

    def _reveal(self, draft: SpeechDraft) -> None:
        """Write the record from now on: something played, or there is text that began or was committed."""
        played = any(s.played for s in draft.segments)
        if draft.visible or not (played or (draft.has_text and (draft.segments or draft.committed))):
            return
        draft.visible = True
        if draft.has_text and not draft.words:
            draft.captured = False  # there is text, and none of it could be kept

    def _on_text(self, e: ev.SpeechText) -> None:
        draft = self._open_speech(e.speech_id, "text")
        if draft is None or e.text == "":
            return
        e = self._book.admit(draft, e)
        if e.source in _GENERATED_SOURCES:
            draft.source = e.source
        draft.generated.append(e.text)
        if e.redacted:
            self._book.mute(draft)
        self._reveal(draft)
        self._book.touch(draft)

    def _on_playout_started(self, e: ev.PlayoutStarted) -> None:
        start = max(0, e.start_ms)
        draft = self._playing_speech(e.speech_id)
        if draft is None or draft.playing is not None or any(s.start_ms == start for s in draft.segments):
            return
        draft.segments.append(Playout(start_ms=start, recorded=e.recorded))
        self._reveal(draft)
        self._book.touch(draft)

    def _on_playout_run(self, e: ev.PlayoutRun) -> None:
        draft = self._playing_speech(e.speech_id)
        if draft is None:
            return
        start = max(0, e.start_ms)
        if e.end_ms < start or e.end_ms - start > ABSURD_MS:
            self._book.warn(
                f"message {draft.key}: playout from {start} ms cannot end at {e.end_ms} ms; dropped"
            )
            return
        if any(start < end and e.end_ms > begin for begin, end in draft.ranges()):
            start = max(start, *(end for _, end in draft.ranges()))  # what is new of it; said twice: nothing
        if start >= e.end_ms:
            return
        if not draft.segments:
            draft.segments.append(Playout())
        # a run told after its segment's finish is still that segment's
        segment = draft.segments[-1]
        segment.runs.append((start, e.end_ms))
        segment.runs.sort()
        self._reveal(draft)
        self._book.touch(draft)

    def _on_playout_stopped(self, e: ev.PlayoutStopped) -> None:
        draft = self._book.speeches.get(e.speech_id)
        if draft is not None and not draft.settled and draft.playing is not None:
            draft.playing.stopped_ms = e.stopped_ms

    def _on_playout_finished(self, e: ev.PlayoutFinished) -> None:
        draft = self._playing_speech(e.speech_id)
        if draft is None:
            return
        e = self._book.admit(draft, e)
        if any(s.finish == e for s in draft.segments):
            return  # said twice
        if e.position_ms > ABSURD_MS:
            self._book.warn(
                f"message {draft.key}: a playout of {e.position_ms} ms cannot be; its end is left out"
            )
        if draft.playing is None:
            draft.segments.append(Playout())
        draft.segments[-1].finish = e
        if e.redacted:
            self._book.mute(draft)
        self._reveal(draft)
        if draft.ended:
            self._settle(draft)
        self._book.touch(draft)

    def _on_provider_truncated(self, e: ev.ProviderTruncated) -> None:
        found = self._book.speeches.get(e.speech_id) or self._book.drafts.get(e.speech_id)
        if isinstance(found, SpeechDraft):
            found.provider_audio_end_ms = max(0, e.audio_end_ms)
            self._book.touch(found)

    def _on_message_added(self, e: ev.AssistantMessageAdded) -> None:
        if self._book.ended is not None and e.speech_id not in self._book.speeches:
            return
        draft = self._speech(e.speech_id)
        if draft.committed and draft.key != e.item_id:
            self._book.warn(f"message {draft.key}: a second item {e.item_id} was added for it; ignored")
            return
        if not self._book.move(draft, e.item_id):
            return
        if not draft.committed:
            draft.committed = True
            self._steps.committed(e.item_id)
            draft.item_text, draft.cut = self._book.admit(draft, e).text, e.cut
            if e.redacted:
                self._book.mute(draft)
            if draft.settled and not draft.visible and draft.has_text:
                draft.settled = False  # given up as unwritten; it was said after all
            self._reveal(draft)
        if not draft.settled and draft.playing is None and (draft.segments or draft.ended):
            self._settle(draft)  # played and then added: nothing more will come
        elif draft.settled and draft.status is TextStatus.MISSING and not draft.aligned:
            self._set_text(draft, draft.words, generated=None)  # its text came late, with the item
        self._book.touch(draft)
        self._steps.settle_those_of(draft)

    def _on_ended(self, e: ev.SpeechEnded) -> None:
        draft = self._book.speeches.get(e.speech_id)
        if draft is None or draft.ended:
            return
        draft.ended = True
        # what was heard or entered the conversation was no mere attempt, whatever it was called
        draft.discarded = e.outcome == "discarded" and not draft.visible and not draft.committed
        if draft.playing is None:
            self._settle(draft)
        self._steps.settle_those_of(draft)

    def _settle(self, draft: SpeechDraft) -> None:
        """Give the message its terminal state by what is known now (contract, section 4)."""
        if draft.settled:
            return
        draft.settled = True
        self._book.touch(draft)
        played = [s for s in draft.segments if s.played or s.finish is None]
        if not played and not draft.visible:
            attempt = draft.origin != "say" and not draft.committed and self._steps.speculative(draft)
            if draft.discarded or attempt or not draft.has_text:
                return  # a discarded attempt or a tool-only step: never written
        if draft.has_text and not draft.words and draft.last is None:
            draft.captured = False
        if None in draft.generated and draft.keeps_text:
            self._book.warn(f"message {draft.key}: a part of its text was not captured")
        draft.visible = True
        draft.source_out = draft.source
        if not played:
            draft.state = State.UNPLAYED
            draft.withheld = False  # nothing was said: what was known before consent ended is kept
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
            # played to its end, and not a word of it aligned: the alignment failed (T30)
            draft.aligned = bool(heard) or None in pieces or draft.state is State.INTERRUPTED
        if draft.aligned:
            draft.source_out = TextSource.PLAYOUT_ALIGNED
            self._set_text(draft, heard, generated=draft.words)
        else:
            self._set_text(draft, self._passed(draft, played) or draft.words, generated=draft.words)

    def _passed(self, draft: SpeechDraft, played: list[Playout]) -> str:
        """Of a cut realtime transcript, what had come to the sink by then: at most that was heard."""
        if draft.state is not State.INTERRUPTED or draft.source is not TextSource.REALTIME_OUTPUT_TRANSCRIPT:
            return ""
        told = [s.finish for s in played if s.finish is not None]
        if any(finish.aligned for finish in told):
            return ""  # a sink that aligns, and did not everywhere: nobody knows the rest
        return "".join(finish.heard_text or "" for finish in told).strip()

    def _cut_at(self, draft: SpeechDraft, segment: Playout) -> int:
        """The cut is where the audio stopped, not when the framework confirmed it (decision 10)."""
        if segment.finish is None:
            self._book.warn(f"message {draft.key}: its playout was never reported as finished")
        if segment.runs:
            return segment.runs[-1][1]
        start = segment.start_ms or 0
        if segment.stopped_ms is not None and segment.stopped_ms >= start:
            return segment.stopped_ms
        if segment.finish is not None:
            ranges = segment.ranges()
            return ranges[-1][1] if ranges else max(start, segment.finish.at_ms)
        return max(start, self._book.now_ms)

    def _set_text(self, draft: SpeechDraft, text: str, *, generated: str | None) -> None:
        if not draft.keeps_text:
            return  # the snapshot says not_captured, or missing
        if generated and _letters(generated) == _letters(text):
            text, generated = generated, None  # all of it was heard; alignment may drop spaces
        if text:
            draft.text, draft.status = text, TextStatus.FINAL
        draft.generated_out = generated or None


def _letters(text: str) -> str:
    return "".join(text.split())
