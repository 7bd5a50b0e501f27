# SPDX-License-Identifier: Apache-2.0
"""The JSON artifacts of a bundle, each as a pure function of the call. All times are call-ms.

The shapes are the platform's own; what we add are extra keys, which it allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from voicetrace import events as ev
from voicetrace import semconv as sc
from voicetrace.agentclash import artifacts, timing
from voicetrace.agentclash.continuity import continuity_metrics
from voicetrace.messages import Channel, Role, State, TextStatus, TimingSource, VoiceMessage
from voicetrace.voice_call import VoiceCall

if TYPE_CHECKING:
    from voicetrace.agentclash.vad import Activity

UNDETERMINED: Final = "und"  # BCP 47: the language is not known
FACTS_SCHEMA_REF: Final = "voicetrace.call_facts.v1"

_SPEAKER: Final = {Role.USER: Channel.CALLER, Role.ASSISTANT: Channel.AGENT}
_AUDIO_KEY: Final = {Role.USER: artifacts.CALLER.key, Role.ASSISTANT: artifacts.AGENT.key}


# -- transcript --------------------------------------------------------------------------------------
Language = str | Mapping[str, str] | None
"""One BCP 47 tag for the whole call, or one for each message by its id."""


def language_of(language: Language, message: VoiceMessage) -> str:
    """The tag of a message's language, ``und`` where it is not known."""
    if isinstance(language, Mapping):
        return language.get(message.id) or UNDETERMINED
    return language or UNDETERMINED


def transcript(call: VoiceCall, language: Language = None) -> dict[str, Any]:
    """What was said and heard: one turn per message, in order of ``seq``.

    Every message is a turn, also one without text: an evaluator can still play it, and a turn left out
    would read as if it had not happened. ``text`` is what was really said or heard, so it is empty where
    that is unknown (``text_status`` says why: ``missing``, ``not_captured``) and where nothing was heard
    (``state`` is ``unplayed``; what the agent meant to say is then in ``generated_text``). ``caveats``
    counts both.
    """
    turns = [_turn(call, m, n, language_of(language, m)) for n, m in enumerate(timing.in_order(call), 1)]
    unplayed = sum(turn["state"] == State.UNPLAYED for turn in turns)
    empty = sum(not turn["text"] for turn in turns) - unplayed
    caveats = []
    if empty:
        caveats.append(f"{empty} of {len(turns)} turns have no text; text_status says why.")
    if unplayed:
        caveats.append(f"{unplayed} of {len(turns)} turns were never played: the caller did not hear them.")
    partial = sum(turn["text_status"] == TextStatus.PARTIAL for turn in turns)
    if partial:
        caveats.append(f"{partial} of {len(turns)} turns have an interim transcript only.")
    return {"turns": turns, "caveats": caveats}


def _turn(call: VoiceCall, message: VoiceMessage, index: int, language: str) -> dict[str, Any]:
    heard = message.state is not State.UNPLAYED
    turn: dict[str, Any] = {
        "turn_index": index,
        "speaker": _SPEAKER[message.role].value,
        "text": (message.text or "") if heard else "",
        "language": language,
        "message_id": message.id,
        "start_ms": message.start_ms,
        "end_ms": message.end_ms,
        "text_status": message.text_status.value,
        "text_source": message.text_source.value if message.text_source else None,
        "state": message.state.value,
        "committed": message.committed,
        "interrupted": message.state is State.INTERRUPTED,
        "generated_text": message.generated_text if heard else message.generated_text or message.text,
    }
    selections = timing.ranges(call, message)
    if selections:
        turn["audio"] = {
            "artifact_key": _AUDIO_KEY[message.role],
            "selections": [{"start_ms": start, "end_ms": end} for start, end in selections],
        }
    return turn


# -- timeline ----------------------------------------------------------------------------------------
def timeline(
    call: VoiceCall, duration_ms: int | None, audio: Mapping[Channel, Activity] | None = None
) -> dict[str, Any]:
    """When sound began and stopped, and what the agent decided in between; markers by offset.

    Marker keys: ``speech_start``, ``speech_stop`` (user), ``output_start``, ``output_stop`` (agent, as
    played), ``output_gap`` (at its start, with ``duration_ms``), ``end_of_turn``, ``interruption``, and
    ``end_of_speech_to_first_agent_text``: at the first text of the answer, with ``duration_ms`` since the end
    of the user's speech. ``basis`` is ``generated_text`` where the journal has the text's arrival, else
    ``first_agent_audio``: the text cannot have come later than that.

    Each channel also has ``sound``: the stretches in which its audio holds sound, whoever made it. Where no
    message has bounds (a transcript without times), the starts and stops are those of the sound, with
    ``basis`` ``audio`` and no message.
    """
    audio = audio or {}
    channels = []
    for channel, file in ((Channel.CALLER, artifacts.CALLER), (Channel.AGENT, artifacts.AGENT)):
        if audio and channel not in audio:
            continue
        entry: dict[str, Any] = {"channel": channel.value, "artifact_key": file.key}
        if duration_ms is not None:
            entry["duration_ms"] = duration_ms
        if channel in audio:
            entry["sound"] = [{"start_ms": a, "end_ms": b} for a, b in audio[channel].intervals]
        channels.append(entry)
    markers = [*_sound_markers(call, audio), *_decision_markers(call), *_first_text_markers(call)]
    markers.sort(key=lambda m: (m["offset_ms"], m["key"], m.get("message_id", "")))
    return {"channels": channels, "markers": markers}


def _marker(key: str, offset_ms: int, message_id: str, **more: Any) -> dict[str, Any]:
    return {"key": key, "offset_ms": offset_ms, "message_id": message_id, **more}


def _sound_markers(call: VoiceCall, audio: Mapping[Channel, Activity]) -> Iterator[dict[str, Any]]:
    for role, name in ((Role.USER, "speech"), (Role.ASSISTANT, "output")):
        stretches = timing.stretches(call, role)
        for stretch in stretches:
            yield _marker(f"{name}_start", stretch.start_ms, stretch.message.id)
            if stretch.end_ms is not None:
                yield _marker(f"{name}_stop", stretch.end_ms, stretch.message.id)
        if not stretches and _SPEAKER[role] in audio:
            for start, end in audio[_SPEAKER[role]].intervals:
                yield {"key": f"{name}_start", "offset_ms": start, "basis": "audio"}
                yield {"key": f"{name}_stop", "offset_ms": end, "basis": "audio"}
    for gap in timing.output_gaps(call, audio.get(Channel.AGENT)):
        yield _marker("output_gap", gap.start_ms, gap.message_id, duration_ms=gap.end_ms - gap.start_ms)


def _decision_markers(call: VoiceCall) -> Iterator[dict[str, Any]]:
    for message in call.messages:
        if message.end_of_turn_ms is not None:
            yield _marker("end_of_turn", message.end_of_turn_ms, message.id)
        if message.interrupted_at_ms is not None:
            yield _marker("interruption", message.interrupted_at_ms, message.id)


def _first_text_markers(call: VoiceCall) -> Iterator[dict[str, Any]]:
    arrived = _text_arrivals(call)
    for exchange in timing.exchanges(call):
        if exchange.answer_id is None or exchange.first_audio_ms is None:
            continue
        at, basis = arrived.get(exchange.answer_id), "generated_text"
        if at is None:
            at, basis = exchange.first_audio_ms, "first_agent_audio"
        since = max(0, at - exchange.end_of_speech_ms)  # a speculative answer's text may come before the end
        yield _marker(
            "end_of_speech_to_first_agent_text", at, exchange.answer_id, duration_ms=since, basis=basis
        )


def _text_arrivals(call: VoiceCall) -> dict[str, int]:
    """When each agent message's first text arrived, from the journal; empty for a call read from spans."""
    by_speech: dict[str, int] = {}
    out: dict[str, int] = {}
    for event in call.events:
        if isinstance(event, ev.SpeechText):
            by_speech.setdefault(event.speech_id, event.at_ms)
        elif isinstance(event, ev.AssistantMessageAdded) and event.speech_id in by_speech:
            out[event.item_id] = by_speech[event.speech_id]
    return by_speech | out


# -- structured output -------------------------------------------------------------------------------
def structured_output(
    given: Mapping[str, Any] | None, schema_ref: str | None, call: VoiceCall, agent: Activity | None = None
) -> dict[str, Any]:
    """The user's task-level result as it is, else the facts of the call that a scorer starts from."""
    if given is not None:
        return {"schema_ref": schema_ref or "", "output": dict(given)}
    return {"schema_ref": schema_ref or FACTS_SCHEMA_REF, "output": call_facts(call, agent)}


def call_facts(call: VoiceCall, agent: Activity | None = None) -> dict[str, Any]:
    """Counts, latencies and per-message facts: everything but the words."""
    exchanges = timing.exchanges(call)
    latency = {e.answer_id: e.latency_ms for e in exchanges if e.answer_id is not None}
    messages = timing.in_order(call)
    return {
        "call_id": call.call_id,
        "framework": call.framework,
        "agent_name": call.agent_name,
        "ended": call.ended,
        "end_reason": call.end_reason,
        "duration_ms": call.duration_ms,
        "counts": {
            "messages": len(messages),
            "user": sum(m.role is Role.USER for m in messages),
            "assistant": sum(m.role is Role.ASSISTANT for m in messages),
            "uncommitted": sum(not m.committed for m in messages),
            "interrupted": sum(m.state is State.INTERRUPTED for m in messages),
            "unplayed": sum(m.state is State.UNPLAYED for m in messages),
            "without_text": sum(m.text is None for m in messages),
            "llm_steps": len(call.llm_steps),
        },
        "timing": continuity_metrics(call, exchanges, agent),
        "messages": [_message_facts(call, m, latency.get(m.id)) for m in messages],
        "warnings": list(call.warnings),
    }


def _message_facts(call: VoiceCall, message: VoiceMessage, latency_ms: int | None) -> dict[str, Any]:
    facts = message.to_wire()
    for name in ("text", "generated_text", "selections"):
        facts.pop(name, None)
    audio = timing.ranges(call, message)
    facts = {"message_id": message.id, **facts, "audio_ms": sum(end - start for start, end in audio)}
    if latency_ms is not None:
        facts["first_audio_latency_ms"] = latency_ms
    return facts


# -- raw trace ---------------------------------------------------------------------------------------
def raw_trace_events(call: VoiceCall) -> Iterator[dict[str, Any]]:
    """The call span, its LLM spans, its message records and its journal, numbered from 1."""
    for sequence, (event_type, fields) in enumerate(_raw_events(call), 1):
        # the numbering is ours and comes last, so that no field of an event can replace it
        yield {**fields, "event_type": event_type, "sequence": sequence}


def _raw_events(call: VoiceCall) -> Iterator[tuple[str, dict[str, Any]]]:
    # the map of messages is a string within the attributes; its entries follow as records of their own
    attributes = {
        name: _finite(value) for name, value in call.attributes.items() if name != sc.VOICE_MESSAGES
    }
    yield (
        "span.call",
        {
            "trace_id": call.trace_id,
            "span_id": call.span_id,
            "call_id": call.call_id,
            "origin_unix_ms": call.origin_unix_ms,
            "duration_ms": call.duration_ms,
            "attributes": attributes,
        },
    )
    for step in call.llm_steps:
        yield "span.llm", step.model_dump(mode="json")
    for message in timing.in_order(call):
        yield sc.MESSAGE_RECORD, {"message_id": message.id, **message.to_wire()}
    for event in call.events:
        fields = ev.to_dict(event)
        yield f"journal.{fields.pop('event')}", fields


def _finite(value: Any) -> Any:
    """A span attribute as JSON has it: NaN and infinities by name."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


# -- what is known about the call's making -----------------------------------------------------------
PROVIDER: Final = sc.GEN_AI_PROVIDER_NAME
MODEL: Final = sc.GEN_AI_REQUEST_MODEL


def attribute(call: VoiceCall, name: str) -> str | None:
    """A text attribute of the call span; ``None`` when it is not there or no text."""
    value = call.attributes.get(name)
    return value if isinstance(value, str) and value.strip() else None


def has_provider_timing(call: VoiceCall) -> bool:
    """Tell whether any bound is the provider's own time."""
    return any(m.timing_source is TimingSource.PROVIDER_EVENTS for m in call.messages)


def lost_audio(recording: Path) -> list[str]:
    """What the recording's index says is not in it, one sentence a side."""
    from voicetrace.audio import read_index  # numpy only when used

    index = read_index(recording)
    out: list[str] = []
    for channel in Channel:
        lost = [entry for entry in (index.lost if index else ()) if entry.channel is channel]
        if lost:
            ms = sum(entry.end_ms - entry.start_ms for entry in lost)
            reasons = ", ".join(sorted({entry.reason for entry in lost}))
            out.append(f"{ms} ms of the {channel} audio were lost while recording ({reasons}).")
    return out
