# SPDX-License-Identifier: Apache-2.0
"""The assistant's side of a pipeline: LLM runs, TTS contexts, playout, and the messages they become.

A *run* is one LLM call, a *context* one TTS context. A run's contexts are one speech; a `TTSSpeakFrame`'s
context is a speech of its own. Runs are followed through the pipeline by metadata on their frames, contexts
by their ids, so nothing is matched by time (pipecat-capture.md, section 2).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from opentelemetry import trace as otel
from opentelemetry.sdk.trace import Span
from opentelemetry.trace import format_span_id, set_span_in_context
from pipecat.frames.frames import (
    Frame,
    FunctionCallsStartedFrame,
    InterruptionFrame,
    LLMContextAssistantTimestampFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.processors.aggregators.llm_response_universal import LLMAssistantAggregator
from pipecat.utils.string import TextPartForConcatenation, concatenate_aggregated_text

from voicetrace import events as ev
from voicetrace import semconv
from voicetrace.integrations.pipecat.ids import ContextIds
from voicetrace.integrations.pipecat.playout import Bracket, PlayoutClock
from voicetrace.integrations.pipecat.user import Siblings
from voicetrace.live import LiveCall
from voicetrace.messages import Channel, TextSource

RUN_KEY: Final = "voicetrace.run"
# The chunk that is being written when an interruption comes still plays; it is at most this long.
CUT_GRACE_S: Final = 0.1

# the LLM run that the running task works for; a native `llm` span that starts in it is the run's
CURRENT_RUN: ContextVar[Run | None] = ContextVar("voicetrace_pipecat_run", default=None)
_SPOKEN_RUN: ContextVar[str | None] = ContextVar("voicetrace_pipecat_spoken", default=None)


@dataclass(slots=True)
class Word:
    """A word, and where it starts in its context's audio (s)."""

    text: str
    start_s: float
    spaced: bool  # it brings its own spaces


@dataclass(slots=True)
class Context:
    """One TTS context."""

    context_id: str
    key: str  # of the speech it belongs to
    run: str | None
    texts: list[str] = field(default_factory=list)
    told: bool = False  # its record exists
    words: list[Word] = field(default_factory=list)
    interruptible: bool = True
    finished: bool = False  # nothing more of it will play
    cut: bool = False
    contributed: bool = False  # some of its text reached the assistant aggregator
    committed: bool = False


@dataclass(slots=True)
class Run:
    """One LLM call."""

    run_id: str
    adapter: SpeechAdapter
    context_ids: tuple[str | None, ...]
    answers: str | None
    span: Span | None = None
    own_span: bool = False
    started_ns: int | None = None
    text: str = ""
    contexts: list[str] = field(default_factory=list)
    closed: bool = False  # all its text went through the TTS, or never will
    contributed: bool = False
    committed: bool = False


class SpeechAdapter:
    """Turns what LLMs, TTS services, the output and the assistant aggregator do into events. Loop-affine."""

    def __init__(self, call: LiveCall, ids: ContextIds) -> None:
        self._call = call
        self._ids = ids
        self._numbers = itertools.count(1)
        self._runs: dict[str, Run] = {}
        self._contexts: dict[str, Context] = {}
        self._brackets: dict[str | None, Bracket] = {}  # by transport destination
        self._clocks: dict[str | None, PlayoutClock] = {}
        self._siblings = Siblings()
        self._tracer: otel.Tracer | None = None
        self._cut_timer: asyncio.TimerHandle | None = None
        # for the span processor, which may run on any thread
        self.span_started = call.guard.wrap("llm_span_started", self.llm_span_started)
        self.span_ended = call.guard.wrap("llm_span_ended", self.llm_span_ended)

    def use_tracer(self, tracer: otel.Tracer | None) -> None:
        """Make LLM step spans of our own with this tracer where the service opens none."""
        self._tracer = tracer

    # -- LLM services --------------------------------------------------------------------------------
    def llm_receives(self, frame: Frame) -> None:
        """An LLM service is about to process a frame; a context frame is a run that starts in this task."""
        if not isinstance(frame, LLMContextFrame):
            return
        messages: Sequence[Any] = frame.context.messages
        context_ids: list[str | None] = list(self._context_ids(messages, speculative=frame.speculation))
        run = Run(
            run_id=f"run_{next(self._numbers)}",
            adapter=self,
            context_ids=tuple(context_ids),
            answers=_last_user(messages, context_ids),
        )
        self._runs[run.run_id] = run
        CURRENT_RUN.set(run)

    def _context_ids(self, messages: Sequence[Any], *, speculative: bool) -> Sequence[str | None]:
        if not speculative:
            return self._ids.sync(messages)
        # a provisional copy whose last message is not in the conversation
        return (*self._ids.sync(messages[:-1]), None)

    def llm_span_started(self, run: Run, span: Span) -> None:
        """The service opened its own span for the run."""
        if run.span is None:
            self._bind(run, span)

    def _bind(self, run: Run, span: Span) -> None:
        run.span = span
        self._call.start_step(
            span,
            name=span.name,
            context_ids=run.context_ids,
            speech_id=None,
            answers=run.answers,
            awaits_speech=True,
        )
        for key in dict.fromkeys(self._contexts[c].key for c in run.contexts):
            self._link(run, key)

    def llm_pushes(self, frame: Frame) -> None:
        """An LLM service is about to push a frame: stamp it with its run, which travels with it."""
        run = CURRENT_RUN.get()
        if run is None or run.adapter is not self:
            return
        if isinstance(frame, LLMFullResponseStartFrame):
            run.started_ns = int((self._call.origin_unix_ms + self._call.precise_ms()) * 1e6)
            frame.metadata[RUN_KEY] = run.run_id
        elif isinstance(frame, LLMTextFrame):
            frame.metadata[RUN_KEY] = run.run_id
            run.text += frame.text
            self._span_of_our_own(run)
        elif isinstance(frame, FunctionCallsStartedFrame):
            self._span_of_our_own(run)
        elif isinstance(frame, LLMFullResponseEndFrame):
            frame.metadata[RUN_KEY] = run.run_id
            self._span_of_our_own(run)
            self._end_own_span(run)

    def _span_of_our_own(self, run: Run) -> None:
        """The service's span opens before its first word; none by then means that it opens none."""
        if run.span is not None or self._tracer is None:
            return
        parent = self._call.span
        span = self._tracer.start_span(
            semconv.SPAN_LLM_STEP,
            context=set_span_in_context(parent) if parent is not None else None,
            start_time=run.started_ns,
        )
        if isinstance(span, Span):
            run.own_span = True
            self._bind(run, span)

    def _end_own_span(self, run: Run) -> None:
        if run.own_span and run.span is not None and run.span.is_recording():
            run.span.end()
            self.llm_span_ended(run.span)

    def llm_span_ended(self, span: Any) -> None:
        """The run's span ended."""
        status = span.status
        error = "" if status.is_ok or status.is_unset else (status.description or "error")
        self._call.emit(
            ev.LLMStepEnded(
                at_ms=self._call.now_ms(), span_id=format_span_id(span.context.span_id), error=error
            )
        )

    # -- TTS services --------------------------------------------------------------------------------
    def tts_receives(self, frame: Frame) -> None:
        """A TTS service is about to process a frame: what it requests next is of this frame's run."""
        if isinstance(frame, LLMTextFrame | LLMFullResponseStartFrame | LLMFullResponseEndFrame):
            _SPOKEN_RUN.set(frame.metadata.get(RUN_KEY))
        elif isinstance(frame, TTSSpeakFrame):
            _SPOKEN_RUN.set(None)

    def tts_received(self, frame: Frame) -> None:
        """A TTS service has processed a frame; at a response's end all its text was requested."""
        if isinstance(frame, LLMFullResponseEndFrame):
            run = self._runs.get(frame.metadata.get(RUN_KEY, ""))
            if run is not None:
                self._close_run(run)

    def tts_requested(self, context_id: str, text: str, *, tokens: bool) -> None:
        """Text was sent to be spoken. Runs in a task of its own that inherited the frame's run."""
        context = self._context(context_id)
        if context.finished:
            return
        piece = text if not context.texts else _joiner(context.texts[-1], text, tokens=tokens) + text
        context.texts.append(piece)
        if context.told:
            self._tell_text(context, piece)

    def words_timed(
        self, context_id: str | None, words: Sequence[tuple[str, float]], *, spaced: bool
    ) -> None:
        """The provider said where words start in the context's audio."""
        if context_id is None:
            return
        context = self._context(context_id)
        context.words += [Word(text, start_s, spaced) for text, start_s in words]

    def tts_pushes(self, frame: Frame) -> None:
        """A TTS service is about to push a frame: its start is where the speech takes its place."""
        if isinstance(frame, TTSStartedFrame) and frame.context_id is not None:
            context = self._context(frame.context_id)
            context.interruptible = frame.interruptible
            self._tell(context)

    def _context(self, context_id: str) -> Context:
        context = self._contexts.get(context_id)
        if context is None:
            run = self._runs.get(_SPOKEN_RUN.get() or "")
            key = context_id
            if run is not None:
                key = self._contexts[run.contexts[0]].key if run.contexts else context_id
                run.contexts.append(context_id)
            context = Context(context_id, key, run.run_id if run is not None else None)
            self._contexts[context_id] = context
        return context

    def _tell(self, context: Context) -> None:
        """Make the context's record known, with the text it has by now."""
        if context.told:
            return
        context.told = True
        run = self._runs.get(context.run or "")
        self._call.emit(
            ev.SpeechCreated(
                at_ms=self._call.now_ms(), speech_id=context.key, origin="say" if run is None else "reply"
            )
        )
        if run is not None:
            self._link(run, context.key)
        for number, piece in enumerate(context.texts):
            first_of_more = number == 0 and context.key != context.context_id
            self._tell_text(context, f" {piece}" if first_of_more else piece)

    def _tell_text(self, context: Context, text: str) -> None:
        self._call.emit(
            ev.SpeechText(
                at_ms=self._call.now_ms(), speech_id=context.key, text=text, source=TextSource.TTS_INPUT
            )
        )

    def _link(self, run: Run, key: str | None) -> None:
        if run.span is not None:
            self._call.emit(
                ev.LLMStepSpoken(
                    at_ms=self._call.now_ms(),
                    span_id=format_span_id(run.span.get_span_context().span_id),
                    speech_id=key,
                )
            )

    def _close_run(self, run: Run) -> None:
        if not run.closed:
            run.closed = True
            self._end_own_span(run)
            self._link(run, None)
            self._end_speech_if_over(run.contexts)

    # -- the output transport ------------------------------------------------------------------------
    def output_pushes(self, frame: Frame) -> None:
        """The output transport is about to push a frame; audio was written just before."""
        if isinstance(frame, TTSAudioRawFrame):
            self._chunk(frame)
        elif isinstance(frame, TTSStartedFrame):
            self._bracket_starts(frame)
        elif isinstance(frame, TTSStoppedFrame):
            self._bracket_stops(frame)
        elif isinstance(frame, InterruptionFrame) and self._siblings.is_first(frame):
            self._interrupted()

    def _clock(self, destination: str | None) -> PlayoutClock:
        clock = self._clocks.get(destination)
        if clock is None:
            keep = Channel.AGENT in self._call.files.wants_audio
            clock = PlayoutClock(
                lambda start, end, d=destination: self._on_run(d, start, end),  # type: ignore[misc]
                self._call.files.agent_audio if keep else None,
            )
            self._clocks[destination] = clock
        return clock

    def _on_run(self, destination: str | None, start_ms: int, end_ms: int) -> None:
        bracket = self._brackets.get(destination)
        if bracket is not None:
            self._call.emit(
                ev.PlayoutRun(
                    at_ms=self._call.now_ms(),
                    speech_id=self._contexts[bracket.context_id].key,
                    start_ms=start_ms,
                    end_ms=end_ms,
                )
            )

    def _bracket_starts(self, frame: TTSStartedFrame) -> None:
        if frame.context_id is None:
            return
        destination = frame.transport_destination
        self._finish_bracket(destination, interrupted=False)
        context = self._context(frame.context_id)
        self._tell(context)
        self._brackets[destination] = Bracket(frame.context_id)

    def _chunk(self, frame: TTSAudioRawFrame) -> None:
        destination = frame.transport_destination
        bracket = self._brackets.get(destination)
        if bracket is None:
            return
        clock = self._clock(destination)
        first = clock.chunk(
            bracket, self._call.precise_ms(), bytes(frame.audio), frame.sample_rate, frame.num_channels
        )
        if first and bracket.started_ms is not None:
            self._call.emit(
                ev.PlayoutStarted(
                    at_ms=self._call.now_ms(),
                    speech_id=self._contexts[bracket.context_id].key,
                    start_ms=bracket.started_ms,
                )
            )
        if self._contexts[bracket.context_id].cut:
            self._finish_bracket(destination, interrupted=True)

    def _bracket_stops(self, frame: TTSStoppedFrame) -> None:
        bracket = self._brackets.get(frame.transport_destination)
        if bracket is not None and bracket.context_id == frame.context_id:
            self._finish_bracket(frame.transport_destination, interrupted=False)

    def _finish_bracket(self, destination: str | None, *, interrupted: bool) -> None:
        bracket = self._brackets.get(destination)
        if bracket is None:
            return
        self._clock(destination).end_run(bracket)
        del self._brackets[destination]
        context = self._contexts[bracket.context_id]
        cut = interrupted or context.cut
        context.finished = True
        if bracket.started_ms is not None:
            self._call.emit(
                ev.PlayoutFinished(
                    at_ms=self._call.now_ms(),
                    speech_id=context.key,
                    interrupted=cut,
                    position_ms=round(bracket.position_ms),
                    aligned=bool(context.words),
                    heard_text=self._heard(context, bracket.position_ms if cut else None),
                )
            )
        self._end_speech_if_over([context.context_id])

    def _heard(self, context: Context, position_ms: float | None) -> str | None:
        """The words whose audio was played: by their offset in it, not by a timer (decision 8)."""
        if not context.words:
            return None
        words = context.words
        if position_ms is not None:
            ends = [w.start_s for w in words[1:]] + [float("inf")]
            words = [
                word
                for word, end_s in zip(words, ends, strict=True)
                # half of a word is enough to have heard it; the last one has no end of its own
                if (word.start_s + min(end_s - word.start_s, 0.4) / 2) * 1000 <= position_ms
            ]
        parts = [TextPartForConcatenation(w.text, includes_inter_part_spaces=w.spaced) for w in words]
        text = concatenate_aggregated_text(parts)
        return text if context.key == context.context_id else f" {text}"

    def _interrupted(self) -> None:
        """Everything interruptible that has not finished is over; what is being written still plays."""
        for run in self._runs.values():
            if not run.closed and all(self._contexts[c].interruptible for c in run.contexts):
                self._close_run(run)
        playing = {b.context_id for b in self._brackets.values()}
        for context in self._contexts.values():
            if context.finished or not context.interruptible:
                continue
            context.cut = True
            if context.context_id not in playing:
                self._never_played(context)
        if any(self._contexts[c].cut for c in playing):
            loop = asyncio.get_running_loop()
            self._cut_timer = loop.call_later(
                CUT_GRACE_S, self._call.guard.wrap("interruption", self._cut_over)
            )

    def _cut_over(self) -> None:
        for destination, bracket in list(self._brackets.items()):
            if self._contexts[bracket.context_id].cut:
                self._finish_bracket(destination, interrupted=True)

    def _never_played(self, context: Context) -> None:
        if context.texts:
            self._tell(context)  # it was asked for, so it is a message, if an unplayed one
        context.finished = True
        self._end_speech_if_over([context.context_id])

    def _end_speech_if_over(self, context_ids: Sequence[str]) -> None:
        for key in dict.fromkeys(self._contexts[c].key for c in context_ids):
            parts = [c for c in self._contexts.values() if c.key == key]
            run = self._runs.get(parts[0].run or "")
            if all(c.finished for c in parts) and (run is None or run.closed) and any(c.told for c in parts):
                self._call.emit(ev.SpeechEnded(at_ms=self._call.now_ms(), speech_id=key))

    # -- the assistant aggregator --------------------------------------------------------------------
    def aggregator_received(self, frame: Frame) -> None:
        """The assistant aggregator has processed a frame: text of a context, or of a run without a TTS."""
        if isinstance(frame, TTSTextFrame) and frame.context_id in self._contexts:
            self._contexts[frame.context_id].contributed = True
        elif isinstance(frame, LLMTextFrame):
            run = self._runs.get(frame.metadata.get(RUN_KEY, ""))
            if run is not None:
                run.contributed = True

    def aggregator_pushes(self, aggregator: LLMAssistantAggregator, frame: Frame) -> None:
        """The aggregator is about to push a frame; its timestamp frame follows each message it appended."""
        if not isinstance(frame, LLMContextAssistantTimestampFrame):
            return
        messages = aggregator.context.messages
        ids = self._ids.sync(messages)
        if ids:
            self._commit(ids[-1], _content(messages[-1]))

    def _commit(self, item_id: str, text: str | None) -> None:
        waiting = [c for c in self._contexts.values() if c.contributed and not c.committed and c.told]
        if not waiting:
            self._commit_run(item_id)
            return
        # a reply names the message, rather than the filler before it that was written into the same one
        primary = next((c for c in waiting if c.run is not None), waiting[0])
        self._added(item_id, primary.key, text)
        for context in self._contexts.values():
            if context.key == primary.key:
                context.committed = True
        for other in waiting:
            if not other.committed and other.finished:
                other.committed = True  # it is in the conversation, inside the other's message
                self._added(other.key, other.key, "".join(other.texts))

    def _commit_run(self, item_id: str) -> None:
        """A message that nothing spoke: a pipeline without a TTS."""
        run = next((r for r in self._runs.values() if r.contributed and not r.committed), None)
        if run is None:
            return
        run.committed = True
        now = self._call.now_ms()
        self._call.emit(ev.SpeechCreated(at_ms=now, speech_id=run.run_id, origin="reply"))
        self._link(run, run.run_id)
        self._call.emit(
            ev.SpeechText(at_ms=now, speech_id=run.run_id, text=run.text, source=TextSource.TTS_INPUT)
        )
        self._added(item_id, run.run_id, run.text)
        self._call.emit(ev.SpeechEnded(at_ms=now, speech_id=run.run_id))
        self._close_run(run)

    def _added(self, item_id: str, key: str, text: str | None) -> None:
        self._call.emit(
            ev.AssistantMessageAdded(at_ms=self._call.now_ms(), item_id=item_id, speech_id=key, text=text)
        )

    # -- the end -------------------------------------------------------------------------------------
    def finish(self) -> None:
        """The pipeline is over; a cancelled one says nothing more about what was playing."""
        if self._cut_timer is not None:
            self._cut_timer.cancel()
        for destination in list(self._brackets):
            self._finish_bracket(destination, interrupted=True)
        for run in list(self._runs.values()):
            self._close_run(run)
        for context in list(self._contexts.values()):
            if not context.finished:
                self._never_played(context)


def _last_user(messages: Sequence[Any], ids: Sequence[str | None]) -> str | None:
    for message, item_id in zip(reversed(messages), reversed(ids), strict=True):
        if isinstance(message, dict) and message.get("role") == "user":
            return item_id
    return None


def _content(message: Any) -> str | None:
    content = message.get("content") if isinstance(message, dict) else None
    return content if isinstance(content, str) else None


def _joiner(before: str, after: str, *, tokens: bool) -> str:
    """What stands between two requests: tokens bring their own spaces, sentences do not."""
    if tokens or not before or before[-1].isspace() or after[:1].isspace():
        return ""
    return " "
