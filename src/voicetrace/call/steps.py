# SPDX-License-Identifier: Apache-2.0
"""The LLM steps of the fold: which messages each one read, and which it wrote (contract, section 5)."""

from __future__ import annotations

from voicetrace import events as ev
from voicetrace.call.book import Book, Handlers
from voicetrace.call.drafts import SpeechDraft, StepDraft
from voicetrace.messages import LLMStep, is_span_id


class Steps:
    """Links LLM steps to the speeches they wrote, and settles them when those are known."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._steps: dict[str, StepDraft] = {}
        self._step_of_speech: dict[str, str] = {}
        self._committed_ids: set[str] = set()
        self._attempted_ids: set[str] = set()  # user items that LLM steps answered before they committed
        self.exported: set[str] = set()
        """The span ids of the steps that left for the backend."""
        self.settled: list[LLMStep] = []
        """What the current event settled; a step comes again if a late item changed it."""
        self.handlers: Handlers = {
            ev.LLMStepStarted: self._on_started,
            ev.LLMStepSpoken: self._on_spoken,
            ev.LLMStepEnded: self._on_ended,
            ev.LLMStepExported: lambda e: self.exported.add(e.span_id),
        }

    def all(self) -> list[LLMStep]:
        """The LLM steps in order of their start, with what is known of their outputs now."""
        return [s.freeze() for s in self._steps.values()]

    def of_speech(self, speech_id: str) -> str | None:
        """The span id of the step that wrote a speech, if it was told already."""
        return self._step_of_speech.get(speech_id)

    def speculative(self, draft: SpeechDraft) -> bool:
        """Whether a speech answers a user item that has not entered the conversation."""
        step = self._steps.get(draft.step or "")
        answers = step.event.answers if step is not None else None
        return answers is not None and answers not in self._committed_ids

    def committed(self, item_id: str) -> None:
        """An item entered the conversation: what answered it was no mere attempt."""
        self._committed_ids.add(item_id)
        self._attempted_ids.discard(item_id)
        for step in self._steps.values():
            if step.settled and step.event.answers == item_id:
                self._settle(step)

    def close(self) -> None:
        """The call is over: no step waits any longer."""
        touched = {d.speech_id for d in self._book.touched.values() if isinstance(d, SpeechDraft)}
        for step in self._steps.values():
            # of those that were settled, only what this end may have changed: a call has many steps
            doubted = step.context_ids is not step.event.context_ids
            if (
                not step.settled
                or doubted
                or not self._attempted_ids.isdisjoint(step.doubtful)
                or not touched.isdisjoint(step.speeches)
            ):
                self._settle(step)

    def _on_started(self, e: ev.LLMStepStarted) -> None:
        if not is_span_id(e.span_id) or self._book.ended is not None:
            return
        if e.answers is not None and e.answers not in self._committed_ids:
            self._attempted_ids.add(e.answers)
        doubtful = {i for i in e.context_ids if i is not None} - self._committed_ids
        step = self._steps.setdefault(
            e.span_id, StepDraft(event=e, context_ids=e.context_ids, doubtful=doubtful)
        )
        step.awaited = step.awaited or e.awaits_speech
        if e.speech_id is not None:
            self._link(step, e.speech_id)

    def _link(self, step: StepDraft, speech_id: str) -> None:
        step.speeches.add(speech_id)
        self._step_of_speech.setdefault(speech_id, step.event.span_id)
        draft = self._book.speeches.get(speech_id)
        if draft is not None and draft.step is None:
            draft.step = step.event.span_id
            self._book.touch(draft)

    def _on_spoken(self, e: ev.LLMStepSpoken) -> None:
        step = self._steps.get(e.span_id)
        if step is None or self._book.ended is not None:
            return
        if e.speech_id is not None:
            self._link(step, e.speech_id)
        else:
            step.awaited = False
        self._settle_if_done(step)

    def _on_ended(self, e: ev.LLMStepEnded) -> None:
        step = self._steps.get(e.span_id)
        if step is None or step.ended_ms is not None:
            return
        step.ended_ms = e.at_ms
        step.error = e.error
        if not step.speeches:
            self._settle_if_done(step)

    def settle_those_of(self, draft: SpeechDraft) -> None:
        """Something of a speech became known; its step may be done with that."""
        step = self._steps.get(draft.step or "")
        if step is not None:
            step.speeches.add(draft.speech_id)
            self._settle_if_done(step)

    def _settle_if_done(self, step: StepDraft) -> None:
        linked = [self._book.speeches[s] for s in step.speeches if s in self._book.speeches]
        # a realtime response may still bring another message; a cascaded step brings one
        done = all(d.ended or (d.committed and d.origin != "realtime") for d in linked)
        over = step.ended_ms is not None or bool(linked)
        if step.settled or (done and over and not step.awaited):
            self._settle(step)

    def _settle(self, step: StepDraft) -> None:
        """Say what the step produced; again when a late fact changed it."""
        before = (step.settled, step.outputs, step.context_ids, step.speculative)
        span_id = step.event.span_id
        known = (self._book.speeches.get(speech_id) for speech_id in step.speeches)
        linked = sorted((d for d in known if d is not None and d.step == span_id), key=lambda d: d.seq)
        step.outputs = [d.key for d in linked if d.committed and d.visible]
        # attempts at a turn that went on: their user item never entered the conversation
        attempts = self._attempted_ids
        step.context_ids = step.event.context_ids
        if not attempts.isdisjoint(step.doubtful):
            step.context_ids = tuple(None if i in attempts else i for i in step.context_ids)
        step.speculative = not step.outputs and (
            (step.event.answers is not None and step.event.answers in attempts)
            or any(d.discarded and not d.visible for d in linked)
        )
        step.settled = True
        if before != (True, step.outputs, step.context_ids, step.speculative):
            self.settled.append(step.freeze())
