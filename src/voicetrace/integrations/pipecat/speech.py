# SPDX-License-Identifier: Apache-2.0
"""The assistant's side of a pipeline: LLM runs, TTS contexts, playout, and the messages they become.

A *run* is one LLM call, a *context* one TTS context. A run's contexts are one speech, which is one message;
a `TTSSpeakFrame`'s context is a speech of its own. Runs are followed through the pipeline by metadata on
their frames, contexts by their ids, so nothing is matched by time (pipecat-capture.md, section 2).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
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
    LLMAssistantPushAggregationFrame,
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
from voicetrace.integrations.pipecat.ids import ContextIds, role_of, text_of
from voicetrace.integrations.pipecat.playout import Bracket, PlayoutClock
from voicetrace.integrations.pipecat.spans import CURRENT_RUN
from voicetrace.integrations.pipecat.user import Siblings
from voicetrace.live import LiveCall
from voicetrace.messages import Channel, TextSource

RUN_KEY: Final = "voicetrace.run"
SPEECH_KEY: Final = "voicetrace.speech"  # of a realtime service, whose frames name no TTS context
# The chunk that is being written when an interruption comes still plays; it is at most this long.
CUT_GRACE_S: Final = 0.1
# A word counts as heard when half of it was; of the last one, whose end nobody says, at most this much.
LONG_WORD_S: Final = 0.4
# Speeches that are over and committed are remembered this long, for frames that are still on their way.
REMEMBERED: Final = 256

# An output transport, and one of its destinations.
Output = tuple[Any, str | None]

_SPOKEN_RUN: ContextVar[Run | None] = ContextVar("voicetrace_pipecat_spoken", default=None)
_RUN_NUMBERS = itertools.count(1)  # of the process: a run's frames may cross into another pipeline


@dataclass(slots=True)
class Word:
    """A word, and where it starts in its context's audio (s)."""

    text: str
    start_s: float
    spaced: bool  # it brings its own spaces


@dataclass(slots=True, eq=False)
class Context:
    """One TTS context: what was asked for, what the provider timed, and whether it is over."""

    context_id: str
    speech: Speech
    texts: list[str] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    passed: list[TextPartForConcatenation] = field(default_factory=list)  # the output, a realtime transcript
    output: Output | None = None  # where it plays
    interruptible: bool = True
    finished: bool = False  # nothing more of it will play
    cut: bool = False

    @property
    def text(self) -> str:
        """All that was asked for."""
        return "".join(self.texts)


@dataclass(slots=True, eq=False)
class Speech:
    """One message in the making."""

    key: str
    run: Run | None
    origin: str
    source: TextSource = TextSource.TTS_INPUT
    contexts: list[Context] = field(default_factory=list)
    told: bool = False  # its record exists
    contributed: bool = False  # some of its text reached the assistant aggregator
    awaits: bool = True  # it may still be committed
    committed: bool = False
    ended: bool = False
    item_id: str | None = None  # a realtime provider's

    @property
    def finished(self) -> bool:
        """Whether none of its contexts will play on."""
        return all(c.finished for c in self.contexts)


@dataclass(slots=True, eq=False)
class Run:
    """One LLM call."""

    run_id: str
    adapter: SpeechAdapter
    context_ids: tuple[str | None, ...]
    answers: str | None
    attempt: bool = False  # of a turn that may go on
    realtime: bool = False  # it ends when its provider says so, also when it was interrupted
    span: Span | None = None
    own_span: bool = False
    started_ns: int | None = None
    text: str = ""
    speeches: list[Speech] = field(default_factory=list)
    contributed: bool = False  # its text reached the assistant aggregator, without a TTS
    closed: bool = False  # all its text went through the TTS, or never will
    settled: bool = False  # and it was told that no more speeches come of it


class SpeechAdapter:
    """Turns what LLMs, TTS services, the output and the assistant aggregator do into events. Loop-affine."""

    def __init__(self, call: LiveCall, ids: ContextIds) -> None:
        self._call = call
        self._ids = ids
        self._runs: dict[str, Run] = {}  # open ones
        self._speeches: dict[str, Speech] = {}
        self._contexts: dict[str, Context] = {}
        self._open: dict[str, Context] = {}  # not finished
        self._waiting: list[Speech] = []  # contributed to the context, and not committed
        self._committing: Run | LLMAssistantPushAggregationFrame | None = None
        self._brackets: dict[Output, Bracket] = {}
        self._clocks: dict[Output, PlayoutClock] = {}
        self._recorded: Output | None = None  # whose audio the recording's agent channel holds
        self._told_missing: set[Output] = set()
        self._siblings = Siblings()
        self._tracer: otel.Tracer | None = None
        self._cut_timer: asyncio.TimerHandle | None = None
        self.has_tts = self.has_assistant = False
        self.on_cut: Callable[[Bracket], None] = lambda _: None
        # for the span processor, which may run on any thread
        self.span_started = call.guard.wrap("llm_span_started", self.llm_span_started)
        self.span_ended = call.guard.wrap("llm_span_ended", self.llm_span_ended)
        self._close = call.guard.wrap("llm_run_closed", self.close_run)

    def use_tracer(self, tracer: otel.Tracer | None) -> None:
        """Make LLM step spans of our own with this tracer where the service opens none."""
        self._tracer = tracer

    # -- LLM services --------------------------------------------------------------------------------
    def llm_receives(self, frame: LLMContextFrame) -> Run:
        """An LLM service is about to process a context: a run that starts in this task."""
        attempt = bool(getattr(frame, "speculation", False))
        ids = self._ids.of_attempt(frame.context) if attempt else self._ids.of(frame.context)
        run = self.new_run(ids, _last_user(frame.context.messages, ids))
        run.attempt = attempt
        CURRENT_RUN.set(run)
        return run

    def new_run(self, context_ids: Sequence[str | None], answers: str | None) -> Run:
        """Remember an LLM call."""
        run = Run(f"run_{next(_RUN_NUMBERS)}", self, tuple(context_ids), answers)
        self._runs[run.run_id] = run
        return run

    def llm_span_started(self, run: Run, span: Span) -> None:
        """The service opened its own span for the run."""
        if run.span is None:
            self.bind_step(run, span)

    def bind_step(self, run: Run, span: Span) -> None:
        """This span is the run's LLM step."""
        run.span = span
        self._call.start_step(
            span,
            name=span.name,
            context_ids=run.context_ids,
            speech_id=None,
            answers=run.answers,
            awaits_speech=True,
        )
        for speech in run.speeches:
            if speech.told:
                self._link(run, speech.key)

    def llm_pushes(self, run: Run, frame: Frame) -> None:
        """An LLM service is about to push a frame of this run: stamp it; the stamp travels with it."""
        if isinstance(frame, LLMFullResponseStartFrame):
            run.started_ns = int((self._call.origin_unix_ms + self._call.precise_ms()) * 1e6)
            frame.metadata[RUN_KEY] = run.run_id
        elif isinstance(frame, LLMTextFrame):
            frame.metadata[RUN_KEY] = run.run_id
            run.text += frame.text
            self.span_of_our_own(run)
        elif isinstance(frame, FunctionCallsStartedFrame):
            self.span_of_our_own(run)
        elif isinstance(frame, LLMFullResponseEndFrame):
            frame.metadata[RUN_KEY] = run.run_id
            self.span_of_our_own(run)
            self.end_own_span(run)

    def span_of_our_own(self, run: Run) -> None:
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
            self.bind_step(run, span)

    def end_own_span(self, run: Run) -> None:
        """The run is over: so is its span, if it is ours."""
        if run.own_span and run.span is not None and run.span.is_recording():
            run.span.end()
            self.llm_span_ended(run, run.span)

    def llm_span_ended(self, run: Run, span: Any) -> None:
        """The run's span ended."""
        status = span.status
        error = "" if status.is_ok or status.is_unset else (status.description or "error")
        self._call.emit(
            ev.LLMStepEnded(
                at_ms=self._call.now_ms(), span_id=format_span_id(span.context.span_id), error=error
            )
        )

    def attempt_dropped(self) -> None:
        """The user went on speaking: what was generated for the turn so far is thrown away."""
        self._ids.drop_attempt()
        for run in [r for r in self._runs.values() if r.attempt and not r.speeches]:
            self.close_run(run)

    # -- TTS services --------------------------------------------------------------------------------
    def tts_receives(self, frame: Frame) -> None:
        """A TTS service is about to process a frame: what it requests next is of this frame's run."""
        spoken = None if isinstance(frame, TTSSpeakFrame) else self._runs.get(frame.metadata.get(RUN_KEY, ""))
        _SPOKEN_RUN.set(spoken)

    def tts_ends(self, frame: Frame) -> None:
        """A TTS service is about to push a response's end: all its text was requested."""
        run = self._runs.get(frame.metadata.get(RUN_KEY, ""))
        if run is not None:
            # the last request is told in a task of its own, which is next
            asyncio.get_running_loop().call_soon(self._close, run)

    def tts_requested(self, context_id: str, text: str, *, tokens: bool) -> None:
        """Text was sent to be spoken. Runs in a task of its own that inherited the frame's run."""
        context = self._contexts.get(context_id)
        if context is None:
            run = _SPOKEN_RUN.get()
            context = self._new_context(context_id, run if run is not None and run.adapter is self else None)
        if context.finished:
            return
        if context.texts:
            before = context.texts[-1]
        else:
            before = "." if context is not context.speech.contexts[0] else " "
        piece = _joiner(before, text, tokens=tokens and bool(context.texts)) + text
        context.texts.append(piece)
        if context.speech.told:
            self.tell_text(context.speech, piece)

    def words_timed(
        self, context_id: str | None, words: Sequence[tuple[str, float]], *, spaced: bool
    ) -> None:
        """The provider said where words start in the context's audio."""
        context = self._contexts.get(context_id or "")
        if context is not None:
            context.words += [Word(text, start_s, spaced) for text, start_s in words]

    def tts_starts(self, frame: TTSStartedFrame) -> None:
        """A TTS service is about to push a context's start: the speech takes its place in the order."""
        if frame.context_id is not None:
            context = self._context(frame.context_id)
            context.interruptible = context.interruptible and frame.interruptible
            context.speech.awaits = frame.append_to_context
            self.tell(context.speech)

    def _context(self, context_id: str) -> Context:
        return self._contexts.get(context_id) or self._new_context(context_id, None)

    def _new_context(self, context_id: str, run: Run | None) -> Context:
        speech = run.speeches[-1] if run is not None and run.speeches else None
        if speech is None or speech.ended:
            speech = self.new_speech(context_id, run)
        return self.add_context(context_id, speech)

    def new_speech(self, key: str, run: Run | None, *, origin: str | None = None) -> Speech:
        """A message that may come of this."""
        speech = Speech(key, run, origin or ("say" if run is None else "reply"))
        self._speeches[key] = speech
        if run is not None:
            run.speeches.append(speech)
        self._forget()
        return speech

    def add_context(self, context_id: str, speech: Speech) -> Context:
        """Audio of the speech will come under this id."""
        context = Context(context_id, speech)
        speech.contexts.append(context)
        self._contexts[context_id] = self._open[context_id] = context
        return context

    def _forget(self) -> None:
        if len(self._speeches) <= REMEMBERED:
            return
        for key, speech in list(self._speeches.items())[: -REMEMBERED // 2]:
            if speech.ended:
                del self._speeches[key]
                for context in speech.contexts:
                    del self._contexts[context.context_id]

    def tell(self, speech: Speech) -> None:
        """Make the speech's record known, with the text it has by now."""
        if speech.told:
            return
        speech.told = True
        self._call.emit(
            ev.SpeechCreated(at_ms=self._call.now_ms(), speech_id=speech.key, origin=speech.origin)  # type: ignore[arg-type]
        )
        if speech.run is not None:
            self._link(speech.run, speech.key)
        for context in speech.contexts:
            for piece in context.texts:
                self.tell_text(speech, piece)
        self._settle_run(speech.run)

    def tell_text(self, speech: Speech, text: str) -> None:
        """More of the speech's text."""
        self._call.emit(
            ev.SpeechText(at_ms=self._call.now_ms(), speech_id=speech.key, text=text, source=speech.source)
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

    def close_run(self, run: Run) -> None:
        """The model has no more to say in this run."""
        if run.closed:
            return
        run.closed = True
        self._runs.pop(run.run_id, None)
        self.end_own_span(run)
        for speech in run.speeches:
            self._end_if_over(speech)
        self._settle_run(run)

    def _settle_run(self, run: Run | None) -> None:
        """Say that no more speeches come of the run, once each that may come has a record or is over."""
        if (
            run is not None
            and run.closed
            and not run.settled
            and all(s.told or s.ended for s in run.speeches)
        ):
            run.settled = True
            self._link(run, None)

    # -- the output transport ------------------------------------------------------------------------
    def _clock(self, output: Output) -> PlayoutClock:
        clock = self._clocks.get(output)
        if clock is None:
            wanted = Channel.AGENT in self._call.files.wants_audio
            clock = self._clocks[output] = PlayoutClock(
                lambda start, end: self._on_run(output, start, end),
                self._call.files.agent_audio if wanted and output == self._recorded else None,
            )
        return clock

    def _is_recorded(self, output: Output) -> bool:
        """Whether the agent's channel is this output's: it holds one, the first that plays."""
        if self._recorded is None:
            self._recorded = output
        if output == self._recorded:
            return True
        if Channel.AGENT in self._call.files.wants_audio and output not in self._told_missing:
            self._told_missing.add(output)
            played, missing = _places(self._recorded, output)
            self._call.fault(
                f"the audio sent to {missing} is not recorded: the agent's channel holds what {played} played"
            )
        return False

    def _on_run(self, output: Output, start_ms: int, end_ms: int) -> None:
        bracket = self._brackets.get(output)
        if bracket is not None:
            self._call.emit(
                ev.PlayoutRun(
                    at_ms=self._call.now_ms(),
                    speech_id=bracket.speech_id,
                    start_ms=start_ms,
                    end_ms=end_ms,
                )
            )

    def output_starts(self, frame: TTSStartedFrame, speaker: Any = None) -> None:
        """The output has come to a context: the audio that follows is its."""
        context_id = frame.context_id or frame.metadata.get(SPEECH_KEY)
        if context_id is None:
            return
        output = (speaker, frame.transport_destination)
        self._finish_bracket(output, interrupted=False)
        context = self._context(context_id)
        recorded = self._is_recorded(output)
        if context.output not in (None, output) or (context.finished and context.cut):
            return  # it plays at several outputs at once: the first of them tells when
        context.output = output
        context.finished = False  # a service that was quiet for long starts the same context again
        self._open[context_id] = context
        self.tell(context.speech)
        self._brackets[output] = Bracket(context_id, context.speech.key, recorded)

    def output_speaks(self, frame: Frame, speaker: Any = None) -> None:
        """The output is about to write the first chunk after a silence."""
        output = (speaker, frame.transport_destination)
        if output in self._brackets:
            self._clock(output).speaks(self._call.precise_ms())

    def output_plays(self, frame: TTSAudioRawFrame, speaker: Any = None) -> None:
        """The output has written a chunk."""
        output = (speaker, frame.transport_destination)
        bracket = self._brackets.get(output)
        if bracket is None:
            return
        first = self._clock(output).chunk(
            bracket, self._call.precise_ms(), bytes(frame.audio), frame.sample_rate, frame.num_channels
        )
        if first and bracket.started_ms is not None:
            self._call.emit(
                ev.PlayoutStarted(
                    at_ms=self._call.now_ms(),
                    speech_id=bracket.speech_id,
                    start_ms=bracket.started_ms,
                    recorded=bracket.recorded,
                )
            )
        if self._contexts[bracket.context_id].cut:
            self._finish_bracket(output, interrupted=True)

    def output_stops(self, frame: TTSStoppedFrame, speaker: Any = None) -> None:
        """The output has come to a context's end."""
        output = (speaker, frame.transport_destination)
        bracket = self._brackets.get(output)
        if bracket is not None and bracket.context_id == (frame.context_id or frame.metadata.get(SPEECH_KEY)):
            self._finish_bracket(output, interrupted=False)

    def output_tells(self, frame: TTSTextFrame) -> None:
        """The output has come to a piece of text; a realtime service's says only what was sent by then."""
        context = self._contexts.get(frame.metadata.get(SPEECH_KEY, ""))
        if context is not None:
            spaced = bool(frame.includes_inter_frame_spaces)
            context.passed.append(TextPartForConcatenation(frame.text, includes_inter_part_spaces=spaced))

    def _finish_bracket(self, output: Output, *, interrupted: bool) -> None:
        bracket = self._brackets.get(output)
        if bracket is None:
            return
        self._clock(output).end_run(bracket)
        del self._brackets[output]
        context = self._contexts[bracket.context_id]
        cut = interrupted or context.cut
        if bracket.started_ms is not None:
            if cut:
                self.on_cut(bracket)
            heard = self._heard(context, bracket.position_ms, cut=cut)
            self._call.emit(
                ev.PlayoutFinished(
                    at_ms=self._call.now_ms(),
                    speech_id=context.speech.key,
                    interrupted=cut,
                    position_ms=round(bracket.position_ms),
                    aligned=heard is not None,
                    heard_text=concatenate_aggregated_text(context.passed) if context.passed else heard,
                )
            )
        self._finish(context)

    def _heard(self, context: Context, position_ms: float, *, cut: bool) -> str | None:
        """The words whose audio was played: by their offset in it, not by a timer (decision 8).

        ``None``: not known, for want of times.
        """
        if not context.words:
            return None
        position_s = position_ms / 1000
        ends = [w.start_s for w in context.words[1:]] + [float("inf")]
        words = [
            word
            for word, end_s in zip(context.words, ends, strict=True)
            if (
                word.start_s + min(end_s - word.start_s, LONG_WORD_S) / 2 <= position_s
                if cut
                else word.start_s < position_s
            )
        ]
        parts = [TextPartForConcatenation(w.text, includes_inter_part_spaces=w.spaced) for w in words]
        text = concatenate_aggregated_text(parts)
        if not cut and len(words) == len(context.words) and _rest(context.text, text):
            return None  # there are no times for the last words: whether they were spoken is not known
        return text if context is context.speech.contexts[0] else f" {text}"

    def interrupted(self, frame: InterruptionFrame) -> None:
        """Everything interruptible that has not finished is over; what is being written still plays."""
        if not self._siblings.is_first(frame):
            return
        for run in list(self._runs.values()):
            if not run.realtime and all(c.interruptible for s in run.speeches for c in s.contexts):
                self._cut_run(run)
        playing = {b.context_id for b in self._brackets.values()}
        for context in list(self._open.values()):
            if context.interruptible:
                context.cut = True
                if context.context_id not in playing:
                    self.never_played(context)
        if any(self._contexts[c].cut for c in playing):
            self._cut_timer = asyncio.get_running_loop().call_later(
                CUT_GRACE_S, self._call.guard.wrap("interruption", self._cut_over)
            )

    def _cut_run(self, run: Run) -> None:
        """The model was stopped; what it wrote and nobody asked the TTS for is part of what it generated."""
        if not run.attempt or run.speeches:
            asked = "".join(c.text for s in run.speeches for c in s.contexts)
            rest = _rest(run.text, asked)
            if run.speeches and rest.strip() and not run.speeches[-1].ended:
                speech = run.speeches[-1]
                speech.contexts[-1].texts.append(rest)
                if speech.told:
                    self.tell_text(speech, rest)
            elif not run.speeches and rest.strip() and (self.has_tts or run.contributed):
                speech = self.new_speech(run.run_id, run)
                self.tell(speech)
                self.tell_text(speech, run.text)
                if run.contributed:
                    self._waiting.append(speech)
        self.close_run(run)

    def _cut_over(self) -> None:
        for output, bracket in list(self._brackets.items()):
            if self._contexts[bracket.context_id].cut:
                self._finish_bracket(output, interrupted=True)

    def never_played(self, context: Context) -> None:
        """The context is over before its first sound: asked for, so it is a message, if an unplayed one."""
        if context.texts:
            self.tell(context.speech)
        self._finish(context)

    def _finish(self, context: Context) -> None:
        context.finished = True
        self._open.pop(context.context_id, None)
        self._end_if_over(context.speech)

    def _end_if_over(self, speech: Speech) -> None:
        if speech.ended or not speech.finished or (speech.run is not None and not speech.run.closed):
            return
        may_come = self.has_assistant and speech.awaits and not speech.committed
        if may_come and (speech.contributed or not any(c.cut for c in speech.contexts)):
            return  # its message is appended when the last of its text has reached the aggregator
        speech.ended = True
        if speech.told:
            self._call.emit(ev.SpeechEnded(at_ms=self._call.now_ms(), speech_id=speech.key))
        self._settle_run(speech.run)

    # -- the assistant aggregator --------------------------------------------------------------------
    def assistant_receives(self, frame: Frame) -> None:
        """The assistant aggregator is about to process a frame: text, or what makes it commit its text."""
        if isinstance(frame, TTSTextFrame):
            context = self._contexts.get(frame.context_id or frame.metadata.get(SPEECH_KEY, ""))
            if context is not None and frame.append_to_context:
                self._contributes(context.speech)
        elif isinstance(frame, LLMTextFrame):
            run = self._runs.get(frame.metadata.get(RUN_KEY, ""))
            enters = getattr(frame, "append_to_context", True)  # not beside a realtime transcript
            if run is not None and not run.speeches and enters:
                run.contributed = True
        elif isinstance(frame, LLMFullResponseEndFrame):
            run = self._runs.get(frame.metadata.get(RUN_KEY, "")) or self._ended_run(frame)
            self._committing = run
            if run is not None and not run.closed and not run.contributed:
                self.close_run(run)  # no TTS took its end, and nothing of it enters the context
            self._await_no_more(run.speeches if run is not None else ())
        elif isinstance(frame, LLMAssistantPushAggregationFrame):
            self._committing = frame
            self._await_no_more([s for s in self._speeches.values() if s.run is None])
        else:  # an interruption or the end
            self._committing = None
            self._await_no_more(list(self._speeches.values()))

    def _await_no_more(self, speeches: Iterable[Speech]) -> None:
        """Everything these had to say has reached the aggregator: what did not contribute never will."""
        for speech in speeches:
            if speech.finished and not speech.contributed:
                speech.awaits = False
                self._end_if_over(speech)

    def _contributes(self, speech: Speech) -> None:
        speech.contributed = True
        if not speech.committed and speech not in self._waiting:
            self._waiting.append(speech)

    def _ended_run(self, frame: Frame) -> Run | None:
        run_id = frame.metadata.get(RUN_KEY)
        runs = (s.run for s in reversed(self._speeches.values()) if s.run is not None)
        return next((run for run in runs if run.run_id == run_id), None)

    def assistant_commits(self, aggregator: LLMAssistantAggregator) -> None:
        """The aggregator is about to push the timestamp that follows each message it appended."""
        ids = self._ids.of(aggregator.context)
        if ids:
            item_id = self._commit(ids[-1], text_of(aggregator.context.messages[-1]))
            self._ids.name_newest(aggregator.context, item_id)

    def _commit(self, item_id: str, text: str) -> str:
        """Tell which speech the message is, and the message's id: the provider's, if it gave one."""
        trigger, self._committing = self._committing, None
        if not self._waiting:
            if isinstance(trigger, Run) and trigger.contributed:
                self._commit_unspoken(trigger, item_id)
            return item_id
        primary = self._primary(trigger)
        item_id = primary.item_id or item_id
        before = self._waiting[: self._waiting.index(primary)]
        self._added(item_id, primary, text)
        for other in list(self._waiting):
            # written into the same message: speech before it, or whole speech after it (and not a first
            # word that leaked out of the next one)
            if other.finished or other in before:
                self._added(other.key, other, "".join(c.text for c in other.contexts))
        return item_id

    def _primary(self, trigger: Run | LLMAssistantPushAggregationFrame | None) -> Speech:
        """The speech that names the message: the reply, rather than a filler that was written into it."""
        waiting = self._waiting
        if isinstance(trigger, LLMAssistantPushAggregationFrame):
            return next((s for s in waiting if s.run is None), waiting[0])
        if isinstance(trigger, Run):
            return next((s for s in waiting if s.run is trigger), waiting[0])
        return next((s for s in waiting if s.run is not None), waiting[0])

    def _commit_unspoken(self, run: Run, item_id: str) -> None:
        """A message that nothing spoke: a pipeline without a TTS."""
        speech = self.new_speech(run.run_id, run)
        self.tell(speech)
        self.tell_text(speech, run.text)
        self._added(item_id, speech, run.text)
        self.close_run(run)

    def _added(self, item_id: str, speech: Speech, text: str) -> None:
        speech.committed = True
        if speech in self._waiting:
            self._waiting.remove(speech)
        self._call.emit(
            ev.AssistantMessageAdded(
                at_ms=self._call.now_ms(), item_id=item_id, speech_id=speech.key, text=text
            )
        )
        self._end_if_over(speech)

    # -- the end -------------------------------------------------------------------------------------
    def finish(self, *, drained: bool) -> None:
        """The pipeline is over. A cancelled one says nothing more about what was playing.

        `drained`: what was queued has played.
        """
        if self._cut_timer is not None:
            self._cut_timer.cancel()
        for output in list(self._brackets):
            self._finish_bracket(output, interrupted=not drained)
        for run in list(self._runs.values()):
            self._cut_run(run)
        for context in list(self._open.values()):
            self.never_played(context)
        for speech in list(self._speeches.values()):
            speech.awaits = False
            self._end_if_over(speech)


def _last_user(messages: Sequence[Any], ids: Sequence[str | None]) -> str | None:
    pairs = zip(reversed(messages), reversed(ids), strict=True)
    return next((item_id for message, item_id in pairs if role_of(message) == "user"), None)


def _joiner(before: str, after: str, *, tokens: bool) -> str:
    """What stands between two requests: tokens bring their own spaces, sentences do not."""
    if tokens or not before or before[-1].isspace() or after[:1].isspace():
        return ""
    return " "


def _letters(text: str) -> str:
    return "".join(text.split())


def _rest(whole: str, asked: str) -> str:
    """What follows in `whole` after `asked`, spaces aside; nothing if it does not begin with it."""
    wanted = iter(_letters(asked))
    for position, letter in enumerate(whole):
        if letter.isspace():
            continue
        expected = next(wanted, None)
        if expected is None:
            gap = 1 if position and whole[position - 1].isspace() else 0
            return whole[position - gap :]
        if letter != expected:
            return ""
    return ""


def _places(one: Output, other: Output) -> tuple[str, str]:
    """Names of two outputs that tell them apart."""
    if one[0] is not other[0]:
        return str(one[0]), str(other[0])
    return _destination(one[1]), _destination(other[1])


def _destination(name: str | None) -> str:
    return "the default destination" if name is None else f"destination {name!r}"


def any_of(frames: Iterable[type[Frame]], action: Callable[[Any, Any], None]) -> dict[type[Frame], Any]:
    """The same action for several frame types."""
    return dict.fromkeys(frames, action)
