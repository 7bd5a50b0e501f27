# SPDX-License-Identifier: Apache-2.0
"""From spans to calls (contract, section 6).

A call is one span; its messages are on it and, where that is not whole, in their own records. LLM steps
find their call by their parents, else by message ids. Nothing here raises for what a trace holds.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import unquote, urlparse

from voicetrace import semconv
from voicetrace.messages import LLMStep, Recording, VoiceMessage, is_span_id, writer_problems
from voicetrace.otel.encode import valid_unicode
from voicetrace.otel.otlp_json import ERROR, SpanData, loads_or_none
from voicetrace.otel.salvage import Problems, salvage_message, salvage_recording
from voicetrace.voice_call import VoiceCall

# LiveKit can log only what was added since another span: its length then says nothing
_MAX_URI_BYTES: Final = 256 * 1024 * 1024


def calls_from_spans(spans: Iterable[SpanData], source: str = "") -> list[VoiceCall]:
    """Build the calls that these spans tell; ``source`` is where they were read from. Never raises."""
    trace = _Trace(spans)
    calls = [_Building(span) for span in trace.call_spans]
    calls += _calls_without_span(trace)
    for call in calls:
        _read_messages(call, trace.records_of(call), source)
    _attribute_steps(trace, calls)
    return [_finish(call, source) for call in calls]


# -- the spans of a source -----------------------------------------------------------------------
_Key = tuple[str, str]


class _Trace:
    """The spans of a source, sorted by what they are: call spans, message records, LLM steps."""

    def __init__(self, spans: Iterable[SpanData]) -> None:
        self.by_key: dict[_Key, SpanData] = {}
        for span in spans:
            key = (span.trace_id, span.span_id)
            # a span that was exported twice counts once: as it was linked, if it was
            known = self.by_key.get(key)
            if known is None or len(span.attributes) >= len(known.attributes):
                self.by_key[key] = span
        ordered = sorted(self.by_key.values(), key=lambda span: span.start_unix_ns)
        self.call_spans = [span for span in ordered if _is_call(span)]
        self.steps = [span for span in ordered if _is_step(span)]
        self.records = [span for span in ordered if span.name == semconv.MESSAGE_RECORD]

    def ancestors(self, span: SpanData) -> Iterator[SpanData]:
        """The span's parents that are in the source, nearest first."""
        seen = {span.span_id}
        while span.parent_span_id and span.parent_span_id not in seen:
            seen.add(span.parent_span_id)
            parent = self.by_key.get((span.trace_id, span.parent_span_id))
            if parent is None:
                return
            yield parent
            span = parent

    def records_of(self, call: _Building) -> list[SpanData]:
        """The message records of a call: its span's children, and those that carry its id."""
        return [
            record
            for record in self.records
            if (record.trace_id, record.parent_span_id) == call.key
            or (call.named and _string(record, semconv.VOICE_CALL_ID) == call.call_id)
        ]


def _is_call(span: SpanData) -> bool:
    if span.name == semconv.MESSAGE_RECORD:
        return False
    marks = (semconv.VOICE_MESSAGES, semconv.VOICE_ORIGIN_UNIX_MS)
    return span.name == semconv.SPAN_CALL or any(mark in span.attributes for mark in marks)


def _is_step(span: SpanData) -> bool:
    marks = (
        semconv.VOICE_CONTEXT_MESSAGE_IDS,
        semconv.VOICE_OUTPUT_MESSAGE_ID,
        semconv.VOICE_OUTPUT_MESSAGE_IDS,
        semconv.VOICE_SPECULATIVE,
    )
    return any(mark in span.attributes for mark in marks)


@dataclass
class _Building:
    """A call while it is put together."""

    span: SpanData
    missing_span: bool = False
    messages: dict[str, VoiceMessage] = field(default_factory=dict)
    steps: list[LLMStep] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def key(self) -> _Key:
        return (self.span.trace_id, self.span.span_id)

    @property
    def named(self) -> bool:
        return _string(self.span, semconv.VOICE_CALL_ID) != ""

    @property
    def call_id(self) -> str:
        return _string(self.span, semconv.VOICE_CALL_ID) or f"{self.span.trace_id}-{self.span.span_id}"

    @property
    def origin_unix_ms(self) -> int | None:
        value = self.span.attributes.get(semconv.VOICE_ORIGIN_UNIX_MS)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def call_ms(self, unix_ns: int) -> int | None:
        """A span's time in call-ms; None when the time or the origin is not known."""
        origin = self.origin_unix_ms
        return None if origin is None or not unix_ns else round(unix_ns / 1_000_000) - origin


def _calls_without_span(trace: _Trace) -> list[_Building]:
    """Calls whose span never came (it was too big, or the process died) but whose records did."""
    known = {(span.trace_id, span.span_id) for span in trace.call_spans}
    ids = {_string(span, semconv.VOICE_CALL_ID) for span in trace.call_spans} - {""}
    orphans: dict[_Key, _Building] = {}
    for record in trace.records:
        key = (record.trace_id, record.parent_span_id or "")
        call_id = _string(record, semconv.VOICE_CALL_ID)
        if key in known or key in orphans or call_id in ids:
            continue
        attributes = {semconv.VOICE_CALL_ID: call_id} if call_id else {}
        span = SpanData(name=semconv.SPAN_CALL, trace_id=key[0], span_id=key[1], attributes=attributes)
        orphans[key] = _Building(
            span, missing_span=True, warnings=["the call span is missing; messages are from their records"]
        )
    return list(orphans.values())


# -- messages ------------------------------------------------------------------------------------
def _read_messages(call: _Building, records: list[SpanData], source: str) -> None:
    attributes = call.span.attributes
    problems = Problems(call.warnings)
    entries: dict[str, Any] = {}
    whole = False
    if semconv.VOICE_MESSAGES in attributes:
        entries, whole = _entries(attributes[semconv.VOICE_MESSAGES])
        if not whole:
            problems.add(f"{semconv.VOICE_MESSAGES} is broken; {len(entries)} messages of it can be read")
    elif not call.missing_span:
        problems.add(f"the call span has no {semconv.VOICE_MESSAGES}")
    omitted = attributes.get(semconv.VOICE_MESSAGES_OMITTED)
    omitted = omitted if isinstance(omitted, int) and omitted > 0 else 0
    missing = _from_uri(attributes.get(semconv.VOICE_MESSAGES_URI), source) if omitted or not whole else {}
    added = [message_id for message_id in missing if message_id not in entries]
    entries = missing | entries if missing else entries
    call.messages = _salvage_all(entries, problems)
    if omitted or not whole:
        before = len(call.messages)
        _add_records(call, records, problems)
        found = len(added) + len(call.messages) - before
        if omitted > found:
            problems.add(
                f"{semconv.VOICE_MESSAGES} leaves out {omitted} messages, {found} of them were found"
            )
    for message in call.messages.values():
        for problem in writer_problems(message):
            problems.add(f"message {message.id}: {problem}")


def _entries(value: Any) -> tuple[dict[str, Any], bool]:
    """The map as logged, and whether it is whole: from a JSON string or a structured attribute."""
    if isinstance(value, Mapping):
        return {str(key): entry for key, entry in value.items()}, True
    if not isinstance(value, str):
        return {}, False
    found = loads_or_none(value)
    if isinstance(found, dict):
        return found, True
    return (_entries_before_the_cut(value), False) if found is None else ({}, False)


def _entries_before_the_cut(text: str) -> dict[str, Any]:
    """The whole entries at the start of a JSON object that was cut off somewhere."""
    decoder = json.JSONDecoder()
    entries: dict[str, Any] = {}
    at = 0
    while True:
        # before each key stands "{" or ","
        at = _skip(text, at, "{" if not entries else ",")
        try:
            key, at = decoder.raw_decode(text, at)
            at = _skip(text, at, ":")
            value, at = decoder.raw_decode(text, at)
        except (ValueError, IndexError, RecursionError):
            return entries
        if not isinstance(key, str) or key in entries:
            return entries
        entries[key] = value


def _skip(text: str, at: int, mark: str) -> int:
    """Past white space, the mark, and white space; past the end when the mark is not there."""
    rest = text[at : at + 64]
    stripped = rest.lstrip()
    if not stripped.startswith(mark):
        return len(text)
    after = stripped[1:]
    return at + len(rest) - len(after.lstrip())


def _from_uri(uri: Any, source: str) -> dict[str, Any]:
    """The full map from ``voice.messages.uri``, if that is a file on this machine; else nothing.

    The file is the map itself, or the whole record of the call with the map in it.
    """
    if not isinstance(uri, str):
        return {}
    try:
        parsed = urlparse(uri)
        if parsed.scheme not in ("", "file") or parsed.netloc not in ("", "localhost"):
            return {}
        path = Path(unquote(parsed.path))
        if not path.is_absolute():
            if not source:
                return {}
            path = Path(source).parent / path
        # a regular file only: a trace from elsewhere must not make us read a device
        if not path.is_file() or path.stat().st_size > _MAX_URI_BYTES:
            return {}
        found = loads_or_none(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError):
        return {}
    if isinstance(found, dict) and isinstance(found.get(semconv.VOICE_MESSAGES), dict):
        found = found[semconv.VOICE_MESSAGES]
    return found if isinstance(found, dict) else {}


def _salvage_all(entries: Mapping[str, Any], problems: Problems) -> dict[str, VoiceMessage]:
    messages = []
    last = _last_seq(entries.values())
    for message_id, entry in entries.items():
        message = salvage_message(message_id, entry, problems, last_seq=last)
        if message is not None:
            messages.append(message)
    return {message.id: message for message in sorted(messages, key=lambda m: m.seq)}


def _last_seq(entries: Iterable[Any]) -> int:
    """A number after those of all entries, for one that has none."""
    numbers = (entry.get("seq") for entry in entries if isinstance(entry, Mapping))
    valid = [n for n in numbers if isinstance(n, int) and 0 <= n < 2**62]
    return max(valid, default=-1) + 1


def _add_records(call: _Building, records: list[SpanData], problems: Problems) -> None:
    """Complete the map from the messages' own records; of one message the newest counts."""
    newest: dict[Any, tuple[tuple[int, int], str, dict[str, Any]]] = {}
    for record in records:
        message_id = record.attributes.get(semconv.MESSAGE_ID)
        if not isinstance(message_id, str):
            continue
        entry = _record_entry(record.attributes)
        revision = record.attributes.get(semconv.MESSAGE_REVISION)
        rank = (revision if isinstance(revision, int) else 0, record.end_unix_ns)
        # a record's key may move (contract, section 2), its seq never does
        key = entry.get("seq", message_id)
        if key not in newest or rank >= newest[key][0]:
            newest[key] = (rank, message_id, entry)
    taken = {message.seq for message in call.messages.values()}
    last = _last_seq([*(entry for _, _, entry in newest.values()), *({"seq": seq} for seq in taken)])
    for _, message_id, entry in newest.values():
        if message_id in call.messages or entry.get("seq") in taken:
            continue
        if entry.pop("text_truncated", False) is True:
            problems.add(f"message {message_id}: its text is cut off in its record")
        if "selections" not in entry and entry.get("start_ms") is not None:
            problems.add(f"message {message_id}: its selections are not in its record")
        message = salvage_message(message_id, entry, problems, last_seq=last)
        if message is not None:
            call.messages[message.id] = message
    call.messages = {m.id: m for m in sorted(call.messages.values(), key=lambda m: m.seq)}


def _record_entry(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """A record's flat attributes as an entry of the map."""
    prefix = semconv.MESSAGE_FIELD_PREFIX
    entry = {key.removeprefix(prefix): value for key, value in attributes.items() if key.startswith(prefix)}
    entry.pop("id", None)
    entry.pop("revision", None)
    if not isinstance(entry.get("seq", 0), int):
        del entry["seq"]
    rows = entry.get("selections")
    if isinstance(rows, str):
        names = ("segment_id", "channel", "start_ms", "end_ms")
        parsed = loads_or_none(rows)
        entry["selections"] = [
            dict(zip(names, row, strict=True))
            for row in (parsed if isinstance(parsed, list) else [])
            if isinstance(row, list) and len(row) == len(names)
        ]
    return entry


# -- LLM steps -----------------------------------------------------------------------------------
def _attribute_steps(trace: _Trace, calls: list[_Building]) -> None:
    by_key = {call.key: call for call in calls}
    by_trace: defaultdict[str, list[_Building]] = defaultdict(list)
    for call in calls:
        by_trace[call.span.trace_id].append(call)
    for span in trace.steps:
        problems = Problems()
        step = _read_step(span, problems)
        owner = _owner_by_parents(trace, span, by_key) or _owner_by_ids(step, calls)
        if owner is None and len(by_trace[span.trace_id]) == 1:
            owner = by_trace[span.trace_id][0]
        if owner is None:
            continue
        start, end = owner.call_ms(span.start_unix_ns), owner.call_ms(span.end_unix_ns)
        owner.steps.append(step.model_copy(update={"start_ms": start, "end_ms": end}))
        owner.warnings += problems.sentences
        _check_length(owner, span, step)


def _owner_by_parents(trace: _Trace, span: SpanData, calls: Mapping[_Key, _Building]) -> _Building | None:
    """The nearest call span above; a realtime step may sit right on it."""
    for parent in (span, *trace.ancestors(span)):
        owner = calls.get((parent.trace_id, parent.span_id))
        if owner is None and parent.parent_span_id:
            owner = calls.get((parent.trace_id, parent.parent_span_id))
        if owner is not None:
            return owner
    return None


def _owner_by_ids(step: LLMStep, calls: Sequence[_Building]) -> _Building | None:
    """The one call whose messages the step made or read; for a step in a trace of its own."""

    def shared(call: _Building) -> int:
        ids = {message_id for message_id in (*step.output_ids, *step.context_ids) if message_id is not None}
        made = sum(m.produced_by_span_id == step.span_id for m in call.messages.values())
        return len(ids & call.messages.keys()) + made

    ranked = sorted(((shared(call), -i) for i, call in enumerate(calls)), reverse=True)
    if not ranked or ranked[0][0] == 0 or (len(ranked) > 1 and ranked[1][0] == ranked[0][0]):
        return None
    return calls[-ranked[0][1]]


def _read_step(span: SpanData, problems: Problems) -> LLMStep:
    where = f"LLM span {span.span_id}"
    context = _id_list(span, semconv.VOICE_CONTEXT_MESSAGE_IDS, problems)
    outputs = [i for i in _id_list(span, semconv.VOICE_OUTPUT_MESSAGE_IDS, problems) if i is not None]
    single = span.attributes.get(semconv.VOICE_OUTPUT_MESSAGE_ID)
    if isinstance(single, str) and single:
        outputs = [valid_unicode(single), *outputs]
    elif single is not None:
        problems.add(f"{where}: {semconv.VOICE_OUTPUT_MESSAGE_ID} is no message id")
    return LLMStep(
        span_id=span.span_id,
        trace_id=span.trace_id,
        name=valid_unicode(span.name),
        context_ids=tuple(context),
        output_ids=tuple(dict.fromkeys(outputs)),
        speculative=span.attributes.get(semconv.VOICE_SPECULATIVE) is True,
        parent_span_id=span.parent_span_id,
        error=valid_unicode(span.status_message or "error") if span.status_code == ERROR else "",
    )


def _id_list(span: SpanData, name: str, problems: Problems) -> list[str | None]:
    """A list of ids, from a list attribute or a JSON string; what is no id becomes None."""
    value = span.attributes.get(name)
    if isinstance(value, str):
        value = loads_or_none(value)
    if value is None and name not in span.attributes:
        return []
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        problems.add(f"LLM span {span.span_id}: {name} is no list of message ids")
        return []
    if any(item is not None and not isinstance(item, str) for item in value):
        problems.add(f"LLM span {span.span_id}: {name} holds entries that are no message ids")
    return [valid_unicode(item) if isinstance(item, str) else None for item in value]


def _check_length(call: _Building, span: SpanData, step: LLMStep) -> None:
    """The context list is aligned with the logged input (contract, section 1; architecture, decision 9)."""
    if semconv.VOICE_CONTEXT_MESSAGE_IDS not in span.attributes:
        return
    logged = _logged_input(span.attributes, span.scope_name)
    if logged is not None and logged != len(step.context_ids):
        call.warnings.append(
            f"LLM span {span.span_id}: {semconv.VOICE_CONTEXT_MESSAGE_IDS} has {len(step.context_ids)} "
            f"entries, the logged input has {logged}"
        )


def _logged_input(attributes: Mapping[str, Any], scope_name: str) -> int | None:
    """How many messages the span's logged input has; None when it logged none, or not all of it."""
    count = attributes.get(semconv.VOICE_CONTEXT_MESSAGE_COUNT)
    if isinstance(count, int) and not isinstance(count, bool):
        return count
    if attributes.get(semconv.LK_INPUT_DELTA):
        return None
    if semconv.LK_CHAT_CTX in attributes:
        context = _structured(attributes[semconv.LK_CHAT_CTX])
        items = context.get("items") if isinstance(context, Mapping) else None
        return len(items) if isinstance(items, list | tuple) else None
    if scope_name.startswith("livekit") or any(key.startswith(semconv.LK_PREFIX) for key in attributes):
        return None  # LiveKit's other inputs merge and skip items
    for name in (semconv.PIPECAT_INPUT, semconv.GEN_AI_INPUT_MESSAGES):
        messages = _structured(attributes.get(name))
        if isinstance(messages, list | tuple):
            return len(messages)
    return None


def _structured(value: Any) -> Any:
    return loads_or_none(value) if isinstance(value, str) else value


# -- the call ------------------------------------------------------------------------------------
def _finish(call: _Building, source: str) -> VoiceCall:
    span, origin = call.span, call.origin_unix_ms
    problems = Problems(call.warnings)
    steps = sorted(call.steps, key=lambda step: step.start_ms or 0)
    if origin is None and not call.missing_span:
        problems.add(f"the call span has no {semconv.VOICE_ORIGIN_UNIX_MS}")
    recording = _read_recording(span, problems)
    if recording is not None and origin is not None and recording.origin_unix_ms != origin:
        offset = recording.origin_unix_ms - origin
        problems.add(f"the recording's origin is {offset:+d} ms from {semconv.VOICE_ORIGIN_UNIX_MS}")
    if call.messages and not steps:
        problems.add("the call has messages but no LLM span carries message ids")
    for step in steps:
        for message_id in step.output_ids:
            if message_id not in call.messages:
                problems.add(f"LLM span {step.span_id}: its output message {message_id!r} is in no record")
    logged = _structured(span.attributes.get(semconv.VOICE_WARNINGS))
    if isinstance(logged, list | tuple):
        for sentence in logged:
            if isinstance(sentence, str):
                problems.add(sentence)
    duration = call.call_ms(span.end_unix_ns)
    return VoiceCall(
        call_id=call.call_id,
        messages=tuple(call.messages.values()),
        llm_steps=tuple(steps),
        recording=recording,
        warnings=tuple(problems.sentences),
        origin_unix_ms=origin,
        duration_ms=duration if duration is None or duration >= 0 else None,
        framework=_string(span, semconv.VOICE_FRAMEWORK),
        framework_version=_string(span, semconv.VOICE_FRAMEWORK_VERSION),
        agent_name=_string(span, semconv.GEN_AI_AGENT_NAME),
        conversation_id=_string(span, semconv.GEN_AI_CONVERSATION_ID),
        ended=bool(span.end_unix_ns),
        end_reason=_string(span, semconv.VOICE_END_REASON),
        trace_id=span.trace_id,
        span_id=span.span_id if is_span_id(span.span_id) else None,
        attributes=MappingProxyType(dict(span.attributes)),
        source=source,
    )


def _read_recording(span: SpanData, problems: Problems) -> Recording | None:
    value = span.attributes.get(semconv.VOICE_RECORDING)
    return None if value is None else salvage_recording(_structured(value), problems)


def _string(span: SpanData, name: str) -> str:
    value = span.attributes.get(name)
    return valid_unicode(value) if isinstance(value, str) else ""
