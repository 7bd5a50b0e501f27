# SPDX-License-Identifier: Apache-2.0
"""Records in the making: what is known so far of a user's message, an assistant's, and an LLM step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from voicetrace import events as ev
from voicetrace.messages import LLMStep, State, TextSource, TextStatus, TimingSource, VoiceMessage

# A stretch of user speech or playout longer than a day is a broken clock, not speech.
ABSURD_MS: Final = 24 * 3600 * 1000


@dataclass(slots=True)
class UserDraft:
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
    muted: bool = False  # its text was redacted, so its audio is silenced
    withheld: bool = False  # a part of it was said without consent, after it had been written
    visible: bool = False
    last: VoiceMessage | None = None

    @property
    def keeps_text(self) -> bool:
        """Whether what it says may be kept."""
        return self.captured and not self.withheld

    @property
    def ongoing(self) -> bool:
        """Whether more of it may be said."""
        return not self.settled or self.speaking

    @property
    def speaking(self) -> bool:
        """Whether the last range is still going on."""
        return bool(self.ranges) and self.ranges[-1][1] is None

    @property
    def awaits_item(self) -> bool:
        """Whether an item that nobody has may still turn out to be this one."""
        typed = self.source is TextSource.TEXT_INPUT
        return not (self.named or self.committed or self.dropped or typed)

    def closed(self) -> list[tuple[int, int]]:
        """What was said up to now, but for what is still being said; in call-ms."""
        return [(start, end) for start, end in self.ranges if end is not None]

    def withhold(self) -> None:
        """A part of it was said without consent: half a text is none."""
        self.finals, self.interim = [""] * len(self.finals), ""
        self.withheld = self.captured and self.last is not None
        self.captured = self.withheld  # what was written cannot become `not_captured` (contract, section 3)

    @property
    def said(self) -> str:
        """The final transcripts of the turn, joined (VT-28)."""
        return " ".join(t.strip() for t in self.finals if t.strip())


@dataclass(slots=True)
class Playout:
    """One `PlayoutStarted` .. `PlayoutFinished` of a speech; `finish` is absent while it plays."""

    start_ms: int | None = None
    runs: list[tuple[int, int]] = field(default_factory=list)
    stopped_ms: int | None = None
    finish: ev.PlayoutFinished | None = None
    recorded: bool = True  # the recording's agent channel holds it

    @property
    def played(self) -> bool:
        """Whether anything of it is known to have been heard."""
        return bool(self.runs) or (self.finish is not None and self.finish.position_ms > 0)

    def ranges(self) -> list[tuple[int, int]]:
        """What played, in call-ms."""
        if self.runs:
            return self.runs
        # a sink that reports no runs is described by its end points
        if self.start_ms is not None and self.finish is not None and 0 < self.finish.position_ms <= ABSURD_MS:
            return [(self.start_ms, self.start_ms + self.finish.position_ms)]
        return []


@dataclass(slots=True)
class SpeechDraft:
    """An assistant message in the making, keyed by speech id until its item is added."""

    key: str
    speech_id: str
    seq: int
    origin: str
    captured: bool  # whether the call keeps texts, and this one's could be kept
    generated: list[str | None] = field(default_factory=list)  # None: a piece that was not captured
    source: TextSource = TextSource.TTS_INPUT
    segments: list[Playout] = field(default_factory=list)
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
    muted: bool = False  # its text was redacted, so its audio is silenced
    withheld: bool = False  # a part of it was said without consent, after it had been written
    visible: bool = False
    last: VoiceMessage | None = None

    @property
    def keeps_text(self) -> bool:
        """Whether what it says may be kept."""
        return self.captured and not self.withheld

    @property
    def ongoing(self) -> bool:
        """Whether more of it may be said; what was given up as unwritten may still be (VT-18)."""
        return not self.settled or not self.visible

    @property
    def playing(self) -> Playout | None:
        """The segment that goes on, if one does."""
        last = self.segments[-1] if self.segments else None
        return last if last is not None and last.finish is None else None

    def withhold(self) -> None:
        """A part of it was said without consent: half a text is none."""
        self.withheld = self.captured and self.last is not None
        self.captured = self.withheld  # what was written cannot become `not_captured` (contract, section 3)

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

    def unfinished(self) -> list[int]:
        """From when on it played where no end of that was told."""
        told = [(s.runs[-1][1] if s.runs else s.start_ms) for s in self.segments if s.finish is None]
        return [start for start in told if start is not None]

    def ranges_begun(self) -> list[tuple[int, int | None]]:
        """As `ranges`, and where a segment began of which no end is known."""
        begun = [(s.start_ms, None) for s in self.segments if s.start_ms is not None and s.finish is None]
        return [*self.ranges(), *begun]

    def ranges(self) -> list[tuple[int, int]]:
        """What played of all segments, in call-ms."""
        return [r for segment in self.segments for r in segment.ranges()]

    def recorded_ranges(self) -> list[tuple[int, int]]:
        """Those of them whose audio is in the recording."""
        return [r for segment in self.segments if segment.recorded for r in segment.ranges()]


@dataclass(slots=True)
class StepDraft:
    """An LLM step whose outputs may not all be known yet."""

    event: ev.LLMStepStarted
    context_ids: tuple[str | None, ...]
    doubtful: set[str] = field(default_factory=set)  # of the context: not in the conversation yet
    outputs: list[str] = field(default_factory=list)
    speeches: set[str] = field(default_factory=set)
    awaited: bool = False  # speeches of it may still be named
    speculative: bool = False
    ended_ms: int | None = None
    error: str = ""
    settled: bool = False

    def freeze(self) -> LLMStep:
        """The step as far as it is known."""
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


Draft = UserDraft | SpeechDraft
