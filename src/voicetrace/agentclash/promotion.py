# SPDX-License-Identifier: Apache-2.0
"""The call import and the multimodal trace: a real call as a regression case.

Both are refused unless the redaction metadata is ``approved_for_regression``: they leave the place where the
call was recorded. They are documents of their own, beside the manifest and not among its artifacts.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from voicetrace.agentclash import artifacts, documents, timing
from voicetrace.agentclash import problems as p
from voicetrace.agentclash.artifacts import BundleError
from voicetrace.agentclash.manifest import SCHEMA_VERSION, ArtifactKind, validate_manifest
from voicetrace.agentclash.redaction import APPROVED, Strict, Timestamp, redaction_problems
from voicetrace.messages import Role, State, TextSource, TextStatus, VoiceMessage
from voicetrace.voice_call import VoiceCall

_SPEAKER: Final = {Role.USER: "user", Role.ASSISTANT: "agent"}
_AUDIO: Final = {Role.USER: artifacts.CALLER, Role.ASSISTANT: artifacts.AGENT}
_CHANNEL: Final = {Role.USER: "caller", Role.ASSISTANT: "agent"}
_NAMESPACE: Final = uuid.UUID("6f9c1c0e-54e3-5c1e-9b0f-6a1f0c6d3d1b")


@dataclass(frozen=True, slots=True)
class PromotionTarget:
    """Where the case goes: slugs and keys of the platform, none of them blank."""

    challenge_pack_slug: str
    input_set_key: str
    challenge_key: str
    case_key: str


@dataclass(frozen=True, slots=True)
class Promotion:
    """What a person decided about the case.

    ``captured_at`` (RFC 3339) is needed only where the call does not say when it began.
    """

    target: PromotionTarget
    expected_outcome: str
    failure_category: str = ""
    reviewer_labels: tuple[str, ...] = ()
    captured_at: str = ""


def refuse_unless_approved(redaction: Mapping[str, Any], what: str) -> None:
    """Raise `BundleError` unless the redaction metadata lets the call be promoted."""
    if redaction.get("status") != APPROVED:
        raise BundleError(
            f"{what} needs redaction metadata with status {APPROVED}, and it is {redaction.get('status')}: "
            "have the call reviewed and hand in the review"
        )


class _Clock:
    """Call-ms as moments."""

    def __init__(self, call: VoiceCall, captured_at: str = "") -> None:
        origin = call.origin_unix_ms
        if origin is not None:
            self._origin = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=origin)
        elif captured_at:
            try:
                self._origin = datetime.fromisoformat(captured_at.upper()).astimezone(UTC)
            except ValueError as error:
                raise BundleError(f"captured_at must be an RFC 3339 time, not {captured_at!r}") from error
        else:
            raise BundleError(
                f"call {call.call_id} does not say when it began, and a case needs it: give captured_at"
            )

    def at(self, call_ms: int) -> str:
        moment = self._origin + timedelta(milliseconds=call_ms)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _moments(call: VoiceCall) -> dict[str, int]:
    """When each message began; one without bounds (typed, never played) is put after the one before it."""
    out: dict[str, int] = {}
    last = 0
    for message in timing.in_order(call):
        out[message.id] = message.start_ms if message.start_ms is not None else last
        last = max(last, out[message.id])
    return out


# -- the call import ---------------------------------------------------------------------------------
def write_call_import(
    call: VoiceCall,
    manifest: Mapping[str, Any],
    redaction: Mapping[str, Any],
    promotion: Promotion,
    path: Path,
    language: documents.Language = None,
) -> None:
    """Write the call import, an event a line.

    Raises:
        BundleError: the redaction status does not allow it, no message has text, or the call has no origin.
        OSError: the disk refuses.
    """
    refuse_unless_approved(redaction, "a call import")
    clock = _Clock(call, promotion.captured_at)
    transcript = list(_transcript(call, manifest, clock, language))
    if not transcript:
        raise BundleError(f"no message of call {call.call_id} has text, so there is nothing to import")
    run_id, run_agent_id = manifest["run_id"], manifest["run_agent_id"]
    name = f"{run_id}/{run_agent_id}/{call.call_id}"
    metadata = manifest.get("metadata", {})
    head = {
        "schema_version": SCHEMA_VERSION,
        "import_id": str(uuid.uuid5(_NAMESPACE, f"import/{name}")),
        "trace_id": _trace_id(call),
        "run_id": run_id,
        "run_agent_id": run_agent_id,
        "voice_session_id": manifest["voice_session_id"],
        "source": {
            "provider": metadata.get("provider") or call.framework or "unknown",
            "call_id": call.call_id,
            "captured_at": clock.at(0),
        },
        "transcript": transcript,
    }
    tail = {
        "artifact_manifest": dict(manifest),
        "redaction": dict(redaction),
        "reviewer_labels": list(promotion.reviewer_labels),
        "expected_outcome": promotion.expected_outcome,
        "failure_category": promotion.failure_category,
        "promotion_target": asdict(promotion.target),
    }
    problems = call_import_problems({**head, "provider_events": [], **tail})
    if problems:
        raise BundleError(f"the call import would not be valid: {'; '.join(problems)}")
    events = _provider_events(call, clock)
    artifacts.write_listed(head, "provider_events", events, tail, path, "the call import")


def _trace_id(call: VoiceCall) -> str:
    return call.trace_id or uuid.uuid5(_NAMESPACE, f"trace/{call.call_id}").hex


def _transcript(
    call: VoiceCall, manifest: Mapping[str, Any], clock: _Clock, language: documents.Language
) -> Iterator[dict[str, Any]]:
    refs = {a["key"]: _reference(a) for a in manifest["artifacts"]}
    moments = _moments(call)
    for turn, message in enumerate(timing.in_order(call), 1):
        text = message.text or ""
        if message.state is State.UNPLAYED or p.blank(text):
            continue
        entry: dict[str, Any] = {
            "segment_id": message.id,
            "turn_id": f"turn-{turn}",
            "speaker": _SPEAKER[message.role],
            "text": text,
            "language": documents.language_of(language, message),
            "final": message.text_status is TextStatus.FINAL,
            "occurred_at": clock.at(moments[message.id]),
        }
        length_ms = _audio_ms(call, message)
        if length_ms:
            file = _AUDIO[message.role]
            entry["audio"] = {
                "segment_id": f"{message.id}/audio",
                "artifact_key": file.key,
                "artifact_ref": refs[file.key],
                "format": "wav",
                "channel": _CHANNEL[message.role],
                "duration_ms": length_ms,
            }
        yield entry


def _reference(artifact: Mapping[str, Any]) -> str:
    if artifact["location"] == "local_path":
        return str(artifact["path"])
    return f"{artifact['bucket']}/{artifact['object_key']}"


def _audio_ms(call: VoiceCall, message: VoiceMessage) -> int:
    found = timing.ranges(call, message)
    if not found and message.start_ms is not None and message.end_ms is not None:
        return max(0, message.end_ms - message.start_ms)
    return sum(end - start for start, end in found)


def _provider_events(call: VoiceCall, clock: _Clock) -> Iterator[dict[str, Any]]:
    for event in documents.raw_trace_events(call):
        sequence, kind = event.pop("sequence"), event.pop("event_type")
        at = next((event[n] for n in ("at_ms", "start_ms") if isinstance(event.get(n), int)), 0)
        yield {"event_id": f"event-{sequence}", "type": kind, "occurred_at": clock.at(at), "payload": event}


# -- the multimodal trace ----------------------------------------------------------------------------
def multimodal_trace(
    call: VoiceCall,
    manifest: Mapping[str, Any],
    redaction: Mapping[str, Any],
    structured_output: Mapping[str, Any],
    *,
    language: documents.Language = None,
    captured_at: str = "",
) -> dict[str, Any]:
    """The call as a sequence of segments, in order of time.

    Raises:
        BundleError: the redaction status does not allow it, or the call has no origin.
    """
    refuse_unless_approved(redaction, "a multimodal trace")
    clock = _Clock(call, captured_at)
    refs = {a["key"]: _reference(a) for a in manifest["artifacts"]}
    timed: list[tuple[int, dict[str, Any]]] = []
    first = {e.answer_id: e for e in timing.exchanges(call) if e.answer_id is not None}
    moments = _moments(call)
    for message in timing.in_order(call):
        timed += _segments(call, message, moments[message.id], refs, language, first)
    timed.sort(key=lambda item: item[0])  # stable: what refers to a message's audio stays behind it
    output = {"segment_id": "structured-output", "kind": "structured_output", "actor": "system"}
    timed.append((timed[-1][0] if timed else 0, {**output, "structured_output": dict(structured_output)}))
    segments = [
        {
            "segment_id": s.pop("segment_id"),
            "sequence_number": n,
            "kind": s.pop("kind"),
            "actor": s.pop("actor"),
            "occurred_at": clock.at(at),
            **s,
        }
        for n, (at, s) in enumerate(timed, 1)
    ]
    trace = {
        "trace_id": _trace_id(call),
        "schema_version": SCHEMA_VERSION,
        "run_id": manifest["run_id"],
        "run_agent_id": manifest["run_agent_id"],
        "segments": segments,
    }
    problems = multimodal_trace_problems(trace)
    if problems:
        raise BundleError(f"the multimodal trace would not be valid: {'; '.join(problems)}")
    return trace


def _segments(
    call: VoiceCall,
    message: VoiceMessage,
    at: int,
    refs: Mapping[str, str],
    language: documents.Language,
    first: Mapping[str, timing.Exchange],
) -> Iterator[tuple[int, dict[str, Any]]]:
    actor = _SPEAKER[message.role]
    spoken = message.role is Role.USER
    length_ms = _audio_ms(call, message)
    audio_id = f"{message.id}/audio"
    if length_ms:
        file = _AUDIO[message.role]
        kind = "audio_input" if spoken else "audio_output"
        yield (
            at,
            {
                "segment_id": audio_id,
                "kind": kind,
                "actor": actor,
                kind: {
                    "artifact_ref": refs[file.key],
                    "format": "wav",
                    "channel": _CHANNEL[message.role],
                    "duration_ms": length_ms,
                },
            },
        )
    text = "" if message.state is State.UNPLAYED else message.text or ""
    if not p.blank(text):
        yield at, _text_segment(message, text, audio_id if length_ms else "", language)
    exchange = first.get(message.id)
    if exchange is not None and exchange.latency_ms is not None:
        yield (
            exchange.first_audio_ms or at,
            {
                "segment_id": f"{message.id}/latency",
                "kind": "timing_marker",
                "actor": "system",
                "timing_marker": {
                    "key": "end_of_user_turn_to_first_agent_output_ms",
                    "value_ms": exchange.latency_ms,
                },
            },
        )
    if message.state is State.INTERRUPTED and length_ms and message.interrupted_at_ms is not None:
        yield (
            max(at, message.interrupted_at_ms),
            {
                "segment_id": f"{message.id}/cut",
                "kind": "media_control",
                "actor": "system",
                "media_control": {"action": "barge_in_detected", "target_segment_id": audio_id},
            },
        )


def _text_segment(
    message: VoiceMessage, text: str, audio_id: str, language: documents.Language
) -> dict[str, Any]:
    typed = message.text_source is TextSource.TEXT_INPUT
    if audio_id and not typed:
        kind = "transcript_partial" if message.text_status is TextStatus.PARTIAL else "transcript_final"
        payload = {
            "text": text,
            "language": documents.language_of(language, message),
            "source_segment_id": audio_id,
        }
    else:
        kind = "text_input" if message.role is Role.USER else "text_output"
        payload = {"text": text}
    actor = _SPEAKER[message.role]
    return {"segment_id": f"{message.id}/text", "kind": kind, "actor": actor, kind: payload}


# -- the rules ---------------------------------------------------------------------------------------
NotBlank = Annotated[str, p.NOT_BLANK]
Duration = Annotated[float | None, p.number()]
Confidence = Annotated[float | None, p.number(0, 1)]


class _Audio(Strict):
    segment_id: NotBlank
    artifact_key: NotBlank
    artifact_ref: str = ""
    format: str = ""
    channel: str = ""
    duration_ms: Duration = None


class _Entry(Strict):
    segment_id: NotBlank
    turn_id: str = ""
    speaker: Annotated[str, p.one_of("user", "agent")]
    text: NotBlank
    language: str = ""
    confidence: Confidence = None
    final: bool = False
    occurred_at: Timestamp
    audio: _Audio | None = None


class _ProviderEvent(Strict):
    event_id: NotBlank
    type: NotBlank
    occurred_at: Timestamp
    payload: Any = None


class _Source(Strict):
    provider: NotBlank
    call_id: NotBlank
    captured_at: Timestamp


class _Target(Strict):
    challenge_pack_slug: NotBlank
    input_set_key: NotBlank
    challenge_key: NotBlank
    case_key: NotBlank


class _CallImport(Strict):
    schema_version: NotBlank
    import_id: NotBlank
    trace_id: NotBlank
    run_id: NotBlank
    run_agent_id: NotBlank
    voice_session_id: NotBlank
    source: _Source
    transcript: list[_Entry]
    provider_events: list[_ProviderEvent]
    artifact_manifest: dict[str, Any]
    redaction: dict[str, Any]
    reviewer_labels: list[str]
    expected_outcome: str
    failure_category: str = ""
    promotion_target: _Target


def call_import_problems(data: object) -> list[str]:
    """Say every way in which a parsed call import breaks its rules; empty when it may be promoted."""
    out = p.shape_problems(_CallImport, data)
    if not isinstance(data, dict):
        return out
    manifest, redaction = data.get("artifact_manifest"), data.get("redaction")
    manifest = manifest if isinstance(manifest, dict) else {}
    out += [line.replace("$", "$.artifact_manifest", 1) for line in validate_manifest(manifest)]
    out += [
        f"$.artifact_manifest.{name}: must be that of the import"
        for name in ("run_id", "run_agent_id", "voice_session_id")
        if manifest.get(name) != data.get(name)
    ]
    artifacts_given = manifest.get("artifacts")
    listed = [a for a in artifacts_given if isinstance(a, dict)] if isinstance(artifacts_given, list) else []
    for kind in (ArtifactKind.RAW_PROVIDER_TRACE, ArtifactKind.REDACTION_METADATA):
        if kind not in [a.get("kind") for a in listed]:
            out.append(f"$.artifact_manifest.artifacts: has no {kind}, which an import needs")
    if isinstance(redaction, dict):
        out += [line.replace("$", "$.redaction", 1) for line in redaction_problems(redaction)]
        if redaction.get("status") != APPROVED:
            out.append(f"$.redaction.status: must be {APPROVED} to be promoted")
    return p.unique(out + _segment_problems(data.get("transcript"), {str(a.get("key")) for a in listed}))


def _segment_problems(transcript: object, keys: set[str]) -> list[str]:
    out: list[str] = []
    seen: set[str] = set()
    for index, entry in enumerate(transcript if isinstance(transcript, list) else []):
        if not isinstance(entry, dict):
            continue
        audio = entry.get("audio")
        for at, part in ((f"$.transcript[{index}]", entry), (f"$.transcript[{index}].audio", audio)):
            segment_id = part.get("segment_id") if isinstance(part, dict) else None
            if isinstance(segment_id, str):
                if segment_id in seen:
                    out.append(f"{at}.segment_id: {p.shown(segment_id)} appears twice")
                seen.add(segment_id)
        key = audio.get("artifact_key") if isinstance(audio, dict) else None
        if isinstance(key, str) and key not in keys:
            out.append(f"$.transcript[{index}].audio.artifact_key: {p.shown(key)} is not in the manifest")
    return out


class _TraceAudio(Strict):
    artifact_ref: NotBlank
    format: str = ""
    channel: str = ""
    duration_ms: Duration = None


class _TraceText(Strict):
    text: NotBlank


class _TraceTranscript(Strict):
    text: NotBlank
    language: str = ""
    confidence: Confidence = None
    source_segment_id: str = ""


class _ToolCall(Strict):
    call_id: NotBlank
    tool_name: NotBlank
    arguments: Any = None


class _ToolResult(p.Document):
    call_id: NotBlank
    tool_name: NotBlank


class _TimingMarker(Strict):
    key: NotBlank
    value_ms: Annotated[float, p.number()]


class _MediaControl(Strict):
    action: NotBlank
    target_segment_id: str = ""


class _Segment(Strict):
    segment_id: NotBlank
    sequence_number: Annotated[int, p.number(1, whole=True)]
    kind: Annotated[str, p.one_of(
        "audio_input", "audio_output", "text_input", "text_output", "transcript_partial", "transcript_final",
        "tool_call", "tool_result", "structured_output", "timing_marker", "media_control",
    )]  # fmt: skip
    actor: Annotated[str, p.one_of("user", "agent", "system", "tool", "evaluator")]
    occurred_at: Timestamp
    audio_input: _TraceAudio | None = None
    audio_output: _TraceAudio | None = None
    text_input: _TraceText | None = None
    text_output: _TraceText | None = None
    transcript_partial: _TraceTranscript | None = None
    transcript_final: _TraceTranscript | None = None
    tool_call: _ToolCall | None = None
    tool_result: _ToolResult | None = None
    structured_output: dict[str, Any] | None = None
    timing_marker: _TimingMarker | None = None
    media_control: _MediaControl | None = None


_PAYLOADS: Final = tuple(n for n in _Segment.model_fields if n not in (
    "segment_id", "sequence_number", "kind", "actor", "occurred_at",
))  # fmt: skip


class _Trace(Strict):
    trace_id: NotBlank
    schema_version: NotBlank
    run_id: NotBlank
    run_agent_id: NotBlank
    segments: list[_Segment] = Field(min_length=1)


def multimodal_trace_problems(data: object) -> list[str]:
    """Say every way in which a parsed multimodal trace breaks its rules; empty when it is valid."""
    out = p.shape_problems(_Trace, data)
    rows = data.get("segments") if isinstance(data, dict) else None
    seen: dict[str, str] = {}
    calls: dict[str, Any] = {}
    last: float = 0
    for index, row in enumerate(rows if isinstance(rows, list) else []):
        if not isinstance(row, dict):
            continue
        at = f"$.segments[{index}]"
        kind, segment_id, number = row.get("kind"), row.get("segment_id"), row.get("sequence_number")
        held = [name for name in _PAYLOADS if row.get(name) is not None]
        if held != [kind]:
            out.append(f"{at}: must have exactly one payload, that of its kind {p.shown(kind)}")
        if p.is_number(number):
            if number <= last:
                out.append(f"{at}.sequence_number: must be greater than {last:g}, that of the one before")
            last = max(last, number)
        payload = row.get(kind) if isinstance(kind, str) else None
        if isinstance(payload, dict) and isinstance(kind, str):
            out += _reference_problems(at, kind, payload, seen, calls)
        if isinstance(segment_id, str):
            if segment_id in seen:
                out.append(f"{at}.segment_id: {p.shown(segment_id)} appears twice")
            seen[segment_id] = str(kind)
    return p.unique(out)


def _reference_problems(
    at: str, kind: str, payload: dict[str, Any], seen: dict[str, str], calls: dict[str, Any]
) -> list[str]:
    source, target = payload.get("source_segment_id"), payload.get("target_segment_id")
    if source and (not isinstance(source, str) or seen.get(source) not in ("audio_input", "audio_output")):
        return [f"{at}.{kind}.source_segment_id: must name an earlier audio segment, not {p.shown(source)}"]
    if target and (not isinstance(target, str) or target not in seen):
        return [f"{at}.{kind}.target_segment_id: must name an earlier segment, not {p.shown(target)}"]
    call_id, tool = payload.get("call_id"), payload.get("tool_name")
    if kind == "tool_call" and isinstance(call_id, str):
        if call_id in calls:
            return [f"{at}.tool_call.call_id: {p.shown(call_id)} appears twice"]
        calls[call_id] = tool
    if kind == "tool_result" and isinstance(call_id, str):
        if call_id not in calls:
            return [f"{at}.tool_result.call_id: must be that of an earlier tool call, not {p.shown(call_id)}"]
        if calls[call_id] != tool:
            return [f"{at}.tool_result.tool_name: must be that of its call, {p.shown(calls[call_id])}"]
    return []
