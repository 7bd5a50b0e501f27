# SPDX-License-Identifier: Apache-2.0
"""The record itself: `VoiceMessage`, the writer's rules about it, and how it may move.

Nothing here knows where a value came from; `call` builds these from events, `reader.py` from spans.
"""

from __future__ import annotations

import enum
import re
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Role(enum.StrEnum):
    """Who spoke."""

    USER = "user"
    ASSISTANT = "assistant"


class State(enum.StrEnum):
    """``open`` until the message ends, then exactly one of the others, for good (contract, section 3)."""

    OPEN = "open"
    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    UNPLAYED = "unplayed"


class TextStatus(enum.StrEnum):
    """How much of the text is known (contract, section 3)."""

    FINAL = "final"
    PARTIAL = "partial"
    MISSING = "missing"
    NOT_CAPTURED = "not_captured"


class TextSource(enum.StrEnum):
    """Where ``text`` comes from, or would come from (contract, section 1)."""

    PLAYOUT_ALIGNED = "playout_aligned"
    TTS_INPUT = "tts_input"
    REALTIME_OUTPUT_TRANSCRIPT = "realtime_output_transcript"
    STT = "stt"
    REALTIME_INPUT_TRANSCRIPT = "realtime_input_transcript"
    TEXT_INPUT = "text_input"


ASSISTANT_TEXT_SOURCES = frozenset(
    {TextSource.PLAYOUT_ALIGNED, TextSource.TTS_INPUT, TextSource.REALTIME_OUTPUT_TRANSCRIPT}
)
USER_TEXT_SOURCES = frozenset({TextSource.STT, TextSource.REALTIME_INPUT_TRANSCRIPT, TextSource.TEXT_INPUT})


class TimingSource(enum.StrEnum):
    """Whose clock the bounds come from (contract, section 1)."""

    LOCAL_VAD = "local_vad"
    LOCAL_PLAYOUT = "local_playout"
    LOCAL_RECEIPT = "local_receipt"
    PROVIDER_EVENTS = "provider_events"


class Channel(enum.StrEnum):
    """A channel of the recording. The order here is the channel order in the file."""

    CALLER = "caller"
    AGENT = "agent"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_enum_values=False)


class Selection(_Model):
    """A stretch of one channel of the recording, in *segment* ms, not call-ms (contract, section 5)."""

    segment_id: str
    channel: Channel
    start_ms: int = Field(ge=0)
    end_ms: int = Field(ge=0)


class Segment(_Model):
    """A contiguous stretch of the recording: where it starts in call-ms, and how long it is in ms."""

    start_ms: int = Field(ge=0)
    length_ms: int = Field(ge=0)


class Recording(_Model):
    """The whole-call recording (contract, section 5): a reference and its facts, never the bytes.

    ``channels`` names the sides that were captured, in file order; where it names one and the file has two
    columns, the caller is the first and the agent the second. ``sha256`` and ``duration_ms``
    are absent until the file is finished; absent means unknown, not zero.
    """

    recording_id: str
    uri: str
    format: str
    sample_rate_hz: int = Field(gt=0)
    channels: list[Channel]
    origin_unix_ms: int
    duration_ms: int | None = None
    sha256: str | None = None
    segments: dict[str, Segment] = Field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        """The JSON object that is logged: unknown fields are absent, never null."""
        return self.model_dump(mode="json", exclude_none=True)


class VoiceMessage(_Model):
    """One message of a call (contract, section 1). ``*_ms`` are call-ms, integers, 0 at the call's origin.

    ``id`` is the key in ``voice.messages`` and is not repeated inside the entry. Instances are immutable
    snapshots: every write carries the whole entry.
    """

    id: str = Field(exclude=True)
    role: Role
    seq: int = Field(ge=0)
    committed: bool
    state: State
    text_status: TextStatus
    text: str | None = None
    generated_text: str | None = None
    text_source: TextSource | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    timing_source: TimingSource | None = None
    end_of_turn_ms: int | None = None
    transcript_final_ms: int | None = None
    interrupted_at_ms: int | None = None
    provider_audio_end_ms: int | None = None
    selections: list[Selection] = Field(default_factory=list)
    produced_by_span_id: str | None = Field(default=None, pattern=r"^[0-9a-f]{16}$")

    def to_wire(self) -> dict[str, Any]:
        """The entry under ``voice.messages[id]``: unknown fields are absent, ``selections`` never is."""
        return self.model_dump(mode="json", exclude_none=True)


class LLMStep(_Model):
    """One LLM call of the call: its span, what it had in context, and the messages it produced.

    ``context_ids`` is aligned with the context's items; ``None`` stands for an input that is no item, or
    for a user item that never entered the conversation. ``output_ids`` holds committed messages only.
    """

    span_id: str
    trace_id: str
    name: str
    context_ids: tuple[str | None, ...] = ()
    output_ids: tuple[str, ...] = ()
    speculative: bool = False
    parent_span_id: str | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    error: str = ""


_USER_ONLY = ("end_of_turn_ms", "transcript_final_ms")
_ASSISTANT_ONLY = ("generated_text", "interrupted_at_ms", "provider_audio_end_ms", "produced_by_span_id")
_SPAN_ID = re.compile(r"[0-9a-f]{16}")


def writer_problems(message: VoiceMessage) -> list[str]:
    """Say which rules of the writer (contract, sections 1-3) a record breaks; empty when it breaks none.

    The fold never writes a record with problems. The reader turns the same sentences into warnings.
    """
    m = message
    problems: list[str] = []
    foreign = _ASSISTANT_ONLY if m.role is Role.USER else _USER_ONLY
    problems += [f"{m.role} message has {name}" for name in foreign if getattr(m, name) is not None]
    if m.text_source is not None:
        own = USER_TEXT_SOURCES if m.role is Role.USER else ASSISTANT_TEXT_SOURCES
        if m.text_source not in own:
            problems.append(f"{m.role} message has text_source {m.text_source}")
    if m.role is Role.USER and m.state in (State.INTERRUPTED, State.UNPLAYED):
        problems.append(f"user message is {m.state}")
    if m.state is State.INTERRUPTED and m.interrupted_at_ms is None:
        problems.append("interrupted without interrupted_at_ms")
    if m.start_ms is not None and m.end_ms is not None and m.end_ms < m.start_ms:
        problems.append(f"end_ms {m.end_ms} is before start_ms {m.start_ms}")
    problems += [
        f"selection ends ({s.end_ms}) before it starts ({s.start_ms})"
        for s in m.selections
        if s.end_ms < s.start_ms
    ]
    if m.role is Role.ASSISTANT:
        if m.state is State.OPEN and m.text is not None:
            problems.append("open assistant message has text")
        if m.text_status is TextStatus.PARTIAL:
            problems.append("assistant message has text_status partial")
    if m.state is State.UNPLAYED and m.role is Role.ASSISTANT:
        if m.selections or m.start_ms is not None or m.end_ms is not None:
            problems.append("unplayed message has played audio")
        if m.text_status is not TextStatus.NOT_CAPTURED and m.text is None:
            problems.append("unplayed message has no generated text")
        if m.text_source is TextSource.PLAYOUT_ALIGNED:
            problems.append("unplayed message has text_source playout_aligned")
    has_text = m.text is not None
    if has_text != (m.text_status in (TextStatus.FINAL, TextStatus.PARTIAL)):
        problems.append(f"text is {'present' if has_text else 'absent'} with text_status {m.text_status}")
    if m.text_status is TextStatus.NOT_CAPTURED and m.generated_text is not None:
        problems.append("generated_text is present with text_status not_captured")
    return problems


_STATUS_MOVES = {
    (TextStatus.PARTIAL, TextStatus.FINAL),
    (TextStatus.PARTIAL, TextStatus.MISSING),
    (TextStatus.MISSING, TextStatus.FINAL),
}


def regressions(before: VoiceMessage, after: VoiceMessage) -> list[str]:
    """Say which field moved backwards between two writes of one record (contract, section 3).

    The key may change (a move to the item's id); role and ``seq`` may not.
    """
    problems: list[str] = []
    if before.role is not after.role:
        problems.append(f"role moved from {before.role} to {after.role}")
    if before.seq != after.seq:
        problems.append(f"seq moved from {before.seq} to {after.seq}")
    if before.committed and not after.committed:
        problems.append("committed moved from true to false")
    if before.state is not after.state and before.state is not State.OPEN:
        problems.append(f"state moved from {before.state} to {after.state}")
    move = (before.text_status, after.text_status)
    if before.text_status is not after.text_status and move not in _STATUS_MOVES:
        problems.append(f"text_status moved from {before.text_status} to {after.text_status}")
    if before.text_status is TextStatus.FINAL and before.text != after.text:
        problems.append("final text changed")
    for name in ("start_ms", "interrupted_at_ms", "end_of_turn_ms", "produced_by_span_id"):
        was, now = getattr(before, name), getattr(after, name)
        if was is not None and now is None:
            problems.append(f"{name} was taken back")
    return problems


def is_span_id(value: object) -> bool:
    """Tell whether a value is a span id as the contract writes it: 16 lower-case hex digits."""
    return isinstance(value, str) and bool(_SPAN_ID.fullmatch(value)) and value != "0" * 16
