# SPDX-License-Identifier: Apache-2.0
"""What happened in a call, in words no framework owns.

An adapter turns framework hooks into these; the fold (`call/`) turns these into messages; the journal
stores these. They are frozen, flat and JSON-safe. ``at_ms`` is the call-ms at which voicetrace *learned*
of the fact; the fact's own time, where it has one, is another field. Content is ``str | None``: ``None``
says that there was text and it was not captured, ``""`` that there was none.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

from pydantic import TypeAdapter, ValidationError

from voicetrace.messages import Channel, Role, TextSource, TimingSource

CONTENT_FIELDS: Final = ("text", "heard_text")


def without_content(event: Event) -> Event:
    """The event with none of what was said in it; that there was text is still told."""
    said: dict[str, Any] = {
        f.name: None for f in fields(event) if f.name in CONTENT_FIELDS and getattr(event, f.name)
    }
    return replace(event, **said) if said else event


def valid_unicode(text: str) -> str:
    """The text without lone surrogates, which neither JSON readers nor OTLP take; pairs are joined."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something happened; `at_ms` is when we learned of it. Its strings are made valid Unicode.

    `redacted` says that its content is not what it was: the user's redactor changed or refused it.
    """

    at_ms: int
    redacted: bool = False

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if type(value) is str and not value.isascii():
                object.__setattr__(self, name, valid_unicode(value))
            elif type(value) is tuple:
                clean = tuple(valid_unicode(v) if isinstance(v, str) else v for v in value)
                object.__setattr__(self, name, clean)


# -- the call ----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class CallStarted(Event):
    """The first event of every call: who, when, and what will be captured."""

    call_id: str
    origin_unix_ms: int
    framework: str
    framework_version: str = ""
    content_captured: bool = True
    uncommitted_timeout_ms: int = 3000
    agent_name: str = ""
    conversation_id: str = ""
    workspace_id: str = ""
    service_id: str = ""
    consent_given: bool = True
    mute_redacted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsentChanged(Event):
    """From now on what is said may be kept, or may not; what was said before is not touched."""

    given: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSpanBound(Event):
    """The span that stands for the call, so that a recovered call keeps its ids."""

    trace_id: str
    span_id: str
    name: str
    start_unix_ms: int
    parent_span_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePassed(Event):
    """Nothing happened up to `at_ms`; it lets a deadline fall due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureFault(Event):
    """Something of ours failed or was not available; what is missing is said in the record."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnded(Event):
    """The call is over; everything still open is settled by what is known (contract, section 4, Close)."""

    reason: str = ""


# -- the user ----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class UserSpeechStarted(Event):
    """The user began to speak at `start_ms`. `item_id` only where the provider names the utterance."""

    start_ms: int
    source: TimingSource
    item_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSpeechStopped(Event):
    """The user's current stretch of speech ended at `end_ms`."""

    end_ms: int
    source: TimingSource
    item_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserTranscript(Event):
    """A transcript of the current utterance arrived. Several finals may come in one turn."""

    text: str | None
    final: bool
    source: TextSource
    item_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserItemNamed(Event):
    """Realtime: the provider made the item `item_id` of the oldest utterance that ended and has none yet."""

    item_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfTurnPending(Event):
    """The framework is deciding on the end of the turn under `token`; uncommitted speech waits for it."""

    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfTurnDecided(Event):
    """The decision under `token` fell. ``committed``: the turn is over and its item will follow."""

    token: str
    outcome: Literal["committed", "resumed", "dropped", "done"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserTurnDropped(Event):
    """The framework said that the oldest ended (else the current) turn will get no item."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserTurnCleared(Event):
    """The application threw away what the user said since the last turn; speech that goes on is another's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserTextSubmitted(Event):
    """The user typed; the message takes its place in the order now (architecture, decision 6)."""

    token: str
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessageAdded(Event):
    """The user's item entered the conversation. `token` links a typed one to its `UserTextSubmitted`.

    `end_of_turn_ms` and `transcript_final_ms` only where the framework itself gave them for this item.
    """

    item_id: str
    text: str | None
    source: TextSource
    end_of_turn_ms: int | None = None
    transcript_final_ms: int | None = None
    token: str | None = None


# -- the assistant -----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechCreated(Event):
    """A speech (one LLM step's words, or one `say()`) exists. ``say`` is never speculative."""

    speech_id: str
    origin: Literal["say", "reply", "realtime"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechText(Event):
    """More generated text of a speech, appended to what came before."""

    speech_id: str
    text: str | None
    source: TextSource


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayoutStarted(Event):
    """The first sample of a segment of the speech began to play at `start_ms`.

    Not `recorded`: it plays somewhere else than what the recording's agent channel holds.
    """

    speech_id: str
    start_ms: int
    recorded: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayoutRun(Event):
    """Audio of the speech played without a break from `start_ms` to `end_ms`."""

    speech_id: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayoutStopped(Event):
    """The agent fell silent at `stopped_ms`: a pause, maybe the cut. Used only where no run says it."""

    speech_id: str
    stopped_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayoutFinished(Event):
    """A segment's playout is over. `position_ms` of it played; `heard_text` is aligned to that, if known.

    `aligned` false: the sink has no alignment; `heard_text` is what had come to it of a realtime transcript.
    """

    speech_id: str
    interrupted: bool
    position_ms: int
    aligned: bool = False
    heard_text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderTruncated(Event):
    """A realtime provider was told to truncate the speech at `audio_end_ms` of its own audio."""

    speech_id: str
    audio_end_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantMessageAdded(Event):
    """The speech's item entered the agent's context. `cut`: the framework calls it interrupted."""

    item_id: str
    speech_id: str
    text: str | None
    cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechEnded(Event):
    """Nothing more will come of the speech. ``discarded``: a speculative attempt that was never used."""

    speech_id: str
    outcome: Literal["done", "discarded"] = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageNoted(Event):
    """A message the application adds by hand (DTMF, recovered speech); complete as it stands."""

    message_id: str
    role: Role
    text: str | None
    start_ms: int | None = None
    end_ms: int | None = None


# -- LLM steps ---------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class LLMStepStarted(Event):
    """An LLM call began, in a span of its own, with these context items in order.

    `answers` is the user item that the call replies to; if it never commits, the call was speculative.
    Told again with another `speech_id`, that speech comes of the same call too: a realtime response with
    several messages.
    """

    span_id: str
    trace_id: str
    name: str
    context_ids: tuple[str | None, ...]
    speech_id: str | None = None
    answers: str | None = None
    parent_span_id: str | None = None
    awaits_speech: bool = False
    """Its speeches are named later, by `LLMStepSpoken`, also after the span's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMStepSpoken(Event):
    """The step's words are spoken as this speech; ``None``: no more speeches will come of it."""

    span_id: str
    speech_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMStepEnded(Event):
    """The LLM call's span ended. It says nothing about what was played."""

    span_id: str
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMStepExported(Event):
    """The LLM span left the process, so that `recover` does not send it twice."""

    span_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseStarted(Event):
    """Realtime: a generation began that first includes these user items, oldest first.

    `unnamed`: where the provider gives user speech no items, this generation answers what was said so far.
    """

    item_ids: tuple[str, ...]
    span_id: str | None = None
    unnamed: bool = True


# -- the recording -----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingStarted(Event):
    """The recording's file exists; `origin_unix_ms` is the Unix time of its first sample slot."""

    recording_id: str
    uri: str
    format: str
    sample_rate_hz: int
    channels: tuple[Channel, ...]
    origin_unix_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentStarted(Event):
    """A contiguous stretch of the recording begins at `start_ms`."""

    segment_id: str
    start_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEnded(Event):
    """The stretch ended at `end_ms` (consent withdrawn, recorder failed, call over)."""

    segment_id: str
    end_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingFinished(Event):
    """The file is whole: its final name, form, length and digest."""

    uri: str
    format: str
    duration_ms: int
    sha256: str


def _all_events() -> dict[str, type[Event]]:
    return {cls.__name__: cls for cls in Event.__subclasses__()}


EVENTS: Final = _all_events()
_ADAPTERS: dict[str, TypeAdapter[Any]] = {}


def to_dict(event: Event) -> dict[str, Any]:
    """The event as the flat JSON object the journal stores; ``event`` names its type."""
    out: dict[str, Any] = {"event": type(event).__name__}
    for field in fields(event):
        value = getattr(event, field.name)
        if value != field.default:
            out[field.name] = value
    return out


def from_dict(data: dict[str, Any]) -> Event:
    """Read one stored event.

    Raises:
        ValueError: the object is no event we know, or a field is missing, unknown or of the wrong type.
    """
    rest = dict(data)
    name = rest.pop("event", None)
    cls = EVENTS.get(name) if isinstance(name, str) else None
    if cls is None or not isinstance(name, str):
        raise ValueError(f"unknown event {name!r}")
    unknown = rest.keys() - {f.name for f in fields(cls)}
    if unknown:
        raise ValueError(f"{name} has unknown fields {sorted(unknown)}")
    adapter = _ADAPTERS.get(name)
    if adapter is None:  # to build one costs a thousand times what it costs to use it
        adapter = _ADAPTERS[name] = TypeAdapter(cls)
    try:
        # JSON mode, strict: lists become tuples and strings enums, but "3" never becomes 3
        event = adapter.validate_json(valid_unicode(json.dumps(rest, ensure_ascii=False)), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(p) for p in first["loc"])
        raise ValueError(f"{name}.{where}: {first['msg']}") from error
    assert isinstance(event, Event)
    return event
