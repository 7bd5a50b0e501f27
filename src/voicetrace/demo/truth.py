# SPDX-License-Identifier: Apache-2.0
"""What truly happened in a demo call: written by the doubles, the same for every framework.

A `Segment` is one stretch of agent audio as a speaker double got and played it; `GroundTruth` is the whole
call. Nothing here needs a framework.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from voicetrace.demo.line import Spoken
from voicetrace.demo.script import AgentUtterance, CallerUtterance, RecordedClip, Samples


@dataclass
class LLMCall:
    """One request the scripted LLM got, in order of ``ordinal`` (0 is the first)."""

    ordinal: int
    started_unix: float
    context_item_ids: list[str]
    heard: str
    reply_text: str = ""
    tool_calls: list[str] = field(default_factory=list)
    #: the whole reply was streamed; false for a call that was cancelled
    finished: bool = False


@dataclass(frozen=True)
class Run:
    """Audio that played without a stop: samples ``[offset, offset + samples)`` of the segment."""

    started_unix: float
    offset: int
    samples: int


@dataclass(eq=False)
class Segment:
    """One stretch of agent audio between two flushes, as the speaker got and played it.

    ``played()`` are the samples that were audible, ``pushed()`` those the agent sent. Because nothing is
    skipped, what played is always a prefix of what was sent; ``runs`` tile it, with pauses between.
    """

    runs: list[Run] = field(default_factory=list)
    interrupted: bool = False
    started_unix: float | None = None
    finished_unix: float | None = None
    flushed: bool = field(default=False, repr=False)
    size: int = 0
    position: int = 0
    _pushed: list[Samples] = field(default_factory=list, repr=False)

    def push(self, samples: Samples) -> None:
        """Append what the agent sent."""
        self._pushed.append(samples)
        self.size += len(samples)

    def pushed(self) -> Samples:
        """All samples the agent sent for this segment."""
        return np.concatenate(self._pushed) if self._pushed else np.zeros(0, np.int16)

    def played(self) -> Samples:
        """The samples that were played."""
        return self.pushed()[: self.position]


@dataclass(frozen=True)
class CallerTruth:
    """One sound of the caller: it sounded in ``[start_unix, end_unix]``.

    ``message`` names the user message it belongs to; ``None`` for a sound that is no message. ``text`` is
    what speech-to-text made of it, ``""`` for nothing.
    """

    clip: str
    start_unix: float
    end_unix: float
    text: str
    message: str | None


@dataclass(frozen=True)
class WordTruth:
    """A word of an agent utterance and how much of its audio was played: ``all``, ``part`` or ``none``."""

    text: str
    start_s: float
    end_s: float
    heard: str


@dataclass(frozen=True, eq=False)
class AgentTruth:
    """One agent utterance as the speaker played it.

    ``runs`` are ``(started_unix, offset_s, duration_s)`` of what played without a stop. ``samples`` is
    exactly what played, int16 at ``sample_rate``; ``generated_samples`` is how many were sent. ``cut`` is
    true when some of them were dropped. ``llm_call`` is the ordinal of the LLM call that wrote the text,
    ``None`` for ``say``. ``truncated_ms`` is where a realtime provider was told to cut the message.
    """

    clip: str
    source: str
    text: str
    sample_rate: int
    samples: Samples = field(repr=False)
    generated_samples: int
    runs: tuple[tuple[float, float, float], ...]
    cut: bool
    words: tuple[WordTruth, ...] = field(repr=False)
    llm_call: int | None
    truncated_ms: int | None = None

    def heard_words(self) -> tuple[str, ...]:
        """The words whose audio was played to the end."""
        return tuple(word.text for word in self.words if word.heard == "all")


@dataclass(frozen=True, eq=False)
class GroundTruth:
    """What truly happened in one call; every ``*_unix`` is Unix seconds.

    ``caller_samples`` is the whole caller line from ``line_started_unix`` on, int16 at ``caller_rate``.
    ``messages`` are the user messages that must have been committed, as ``(message, text)``. ``items`` are
    the conversation items the framework committed and ``framework_events`` what it announced, for
    comparison; both are its word, not the truth. ``items_have_ids`` false: the items' ids are names that the
    doubles gave them, because the framework has none, and the record has ids of its own.
    """

    scenario: str
    started_unix: float
    ended_unix: float
    line_started_unix: float
    caller_rate: int
    caller_samples: Samples = field(repr=False)
    caller: tuple[CallerTruth, ...]
    agent: tuple[AgentTruth, ...]
    llm_calls: tuple[LLMCall, ...]
    messages: tuple[tuple[str, str], ...]
    items: tuple[dict[str, Any], ...]
    framework_events: tuple[dict[str, Any], ...] = field(repr=False)
    items_have_ids: bool = True

    def to_json(self) -> dict[str, Any]:
        """Everything but the samples, as JSON-ready values."""
        return {name: _plain(value) for name, value in vars(self).items() if name != "caller_samples"}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(item) for name, item in vars(value).items() if name != "samples"}
    return value


def caller_truth(utterance: CallerUtterance, spoken: Spoken) -> CallerTruth:
    """What one utterance of the script sounded like and when."""
    return CallerTruth(
        utterance.clip, spoken.start_unix, spoken.end_unix, utterance.final or "", utterance.message
    )


def agent_truth(
    utterance: AgentUtterance,
    clip: RecordedClip,
    segment: Segment,
    calls: Sequence[LLMCall],
    *,
    generated_samples: int | None = None,
) -> AgentTruth:
    """What one utterance of the script became at the speaker.

    ``generated_samples`` is how many the speech service sent, where the segment does not know.

    Raises:
        RuntimeError: the segment is no speech of the clip.
    """
    pushed, size = segment.pushed(), len(clip.samples)
    # frameworks fill the end with silence (a mark of 10 ms, the rest of a chunk); that is no other speech
    if not np.array_equal(pushed[:size], clip.samples[: len(pushed)]) or pushed[size:].any():
        raise RuntimeError(f"the agent was to speak {clip.name!r} and spoke something else")
    # discarded speculation may have had the same text; the call that was played is the newest before it
    began = segment.started_unix or float("inf")
    wrote = [
        c.ordinal for c in calls if clip.text.startswith(c.reply_text or "\0") and c.started_unix < began
    ]
    rate = clip.sample_rate
    return AgentTruth(
        clip=clip.name,
        source=utterance.source,
        text=clip.text,
        sample_rate=rate,
        samples=segment.played(),
        generated_samples=len(pushed) if generated_samples is None else generated_samples,
        runs=tuple((run.started_unix, run.offset / rate, run.samples / rate) for run in segment.runs),
        cut=segment.interrupted,
        words=tuple(
            WordTruth(w.text, w.start / rate, w.end / rate, _heard(w.start, w.end, segment.position))
            for w in clip.words
        ),
        llm_call=wrote[-1] if wrote and utterance.source == "reply" else None,
    )


def _heard(start: int, end: int, played: int) -> str:
    if end <= played:
        return "all"
    return "part" if start < played else "none"
