# SPDX-License-Identifier: Apache-2.0
"""Writing a call as a bundle: a directory with a manifest at its root and its files under ``artifacts/``."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voicetrace.agentclash import artifacts as a
from voicetrace.agentclash import documents
from voicetrace.agentclash.artifacts import ArtifactFile, BundleError
from voicetrace.agentclash.audio import LENGTH_TOLERANCE_MS, Track, WrittenAudio, write_audio
from voicetrace.agentclash.continuity import Thresholds, continuity_report, thresholds_with
from voicetrace.agentclash.manifest import (
    MANIFEST_NAME,
    REQUIRED_KINDS,
    SCHEMA_VERSION,
    Manifest,
    validate_manifest,
)
from voicetrace.agentclash.promotion import (
    Promotion,
    multimodal_trace,
    refuse_unless_approved,
    write_call_import,
)
from voicetrace.agentclash.redaction import redaction_of, redaction_problems
from voicetrace.agentclash.reports import validate_report
from voicetrace.agentclash.target import PRODUCER, build_beside, check_target, move
from voicetrace.agentclash.validate import digest
from voicetrace.messages import Channel, Role, TextStatus
from voicetrace.voice_call import VoiceCall

if TYPE_CHECKING:
    from voicetrace.agentclash.vad import VadSettings

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What goes into a bundle beside the call itself. Everything is optional.

    Attributes:
        caller_audio: the caller's side, a mono file from call-ms 0, in place of the recording's.
        agent_audio: the agent's side as it was played, likewise.
        structured_output: the task-level result; without it the facts of the call are computed.
        schema_ref: what names the shape of the structured output.
        media_policy_report: a source separation report (`measure_separation`, `source_separation_report`).
        video_sync_report: a video sync report (`measure_video_sync`, `video_sync_report`).
        redaction: the review of the evidence, as redaction metadata; ``unreviewed`` without one.
        metadata: added to the manifest's own, and stronger than it: provider, model, input_language,
            output_language, transport, streaming_mode, background_audio.
        thresholds: of the live continuity report, in place of `continuity.THRESHOLDS`.
        vad: what counts as sound and as a gap.
        promotion: makes the bundle a regression case; needs an approving ``redaction``.
        with_multimodal_trace: also write the multimodal trace; needs an approving ``redaction``.
    """

    caller_audio: PathLike | None = None
    agent_audio: PathLike | None = None
    structured_output: Mapping[str, Any] | None = None
    schema_ref: str | None = None
    media_policy_report: Mapping[str, Any] | None = None
    video_sync_report: Mapping[str, Any] | None = None
    redaction: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    thresholds: Thresholds | None = None
    vad: VadSettings | None = None
    promotion: Promotion | None = None
    with_multimodal_trace: bool = False


def export_bundle(
    call: VoiceCall,
    directory: PathLike,
    *,
    run_id: str | uuid.UUID,
    run_agent_id: str | uuid.UUID,
    structured_output: Mapping[str, Any] | None = None,
    schema_ref: str | None = None,
    language: documents.Language = None,
    metadata: Mapping[str, Any] | None = None,
    evidence: Evidence | None = None,
    incomplete: bool = False,
) -> Path:
    """Write the call as a bundle and return the path of its manifest.

    Both audio files begin at call-ms 0, have one length, and hold the recording's samples unchanged.
    The same call gives the same bytes. Everything is streamed, so memory does not grow with the audio.
    The bundle is built beside ``directory`` and moved when it is whole; an earlier bundle of voicetrace's
    own is replaced file by file, the manifest last, and files that are not ours stay. Blocking; different
    directories may be written from different threads.

    Args:
        call: a call with messages, and with both sides' audio on this machine.
        directory: where to; created with its parents. Empty, absent, or an earlier bundle of ours.
        run_id: the run, a UUID and not the nil UUID; written in lower case.
        run_agent_id: the run's agent, likewise.
        structured_output: short for `Evidence.structured_output`.
        schema_ref: short for `Evidence.schema_ref`.
        language: BCP 47 tag of the call's speech, e.g. ``en-US``, or one for each message by its id; ``und``
            in the transcript where not given.
        metadata: short for `Evidence.metadata`.
        evidence: what else there is.
        incomplete: write what can be made also when a required artifact cannot. The manifest then lists only
            what is there and names what is not in its caveats; it is honest, and not valid.

    Raises:
        BundleError: a required artifact cannot be made, an argument is wrong, or the disk refuses.
    """
    target = Path(directory)
    ids = {"run_id": _uuid("run_id", run_id), "run_agent_id": _uuid("run_agent_id", run_agent_id)}
    if not call.call_id.strip():
        raise BundleError("the call has no id, and a bundle needs one as its voice_session_id")
    given = evidence or Evidence()
    output = structured_output if structured_output is not None else given.structured_output
    _check_given(given)
    lacking = (
        [] if call.messages else [f"call {call.call_id} has no messages, so there is no transcript to write"]
    )
    tracks, without = _tracks(call, given)
    lacking += without
    if lacking and not incomplete:
        raise BundleError("; ".join(lacking))
    try:
        check_target(target)
        with build_beside(target) as build:
            folder = build / "artifacts"
            folder.mkdir()
            written, audio = _write_artifacts(
                call, folder, tracks, given, output, schema_ref or given.schema_ref, language
            )
            manifest: dict[str, Any] = {
                "schema_version": SCHEMA_VERSION,
                **ids,
                "voice_session_id": call.call_id,
                "artifacts": [_artifact(file, *written[file]) for file in a.FILES if file in written],
                "metadata": _metadata(call, language, audio, lacking, given)
                | {**given.metadata, **(metadata or {}), "producer": PRODUCER},  # by which ours are known
            }
            manifest = json.loads(a.json_text(manifest, "the manifest"))
            problems = [
                line for line in validate_manifest(manifest) if not (incomplete and _says_lacking(line))
            ]
            if problems:
                raise BundleError(f"the manifest would not be valid: {'; '.join(problems)}")
            text = Manifest.model_validate(manifest).to_json()
            (build / MANIFEST_NAME).write_text(text, encoding="utf-8", newline="\n")
            _write_case(call, build, json.loads(text), given, language)
            move(build, target)
    except OSError as error:
        raise BundleError(f"the bundle cannot be written to {target}: {error.strerror or error}") from error
    return target / MANIFEST_NAME


# -- what is needed ----------------------------------------------------------------------------------
def _uuid(name: str, value: str | uuid.UUID) -> str:
    try:
        parsed = value if isinstance(value, uuid.UUID) else uuid.UUID(value)
    except (ValueError, AttributeError, TypeError) as error:
        raise BundleError(f"{name} must be a UUID, not {value!r}") from error
    if not parsed.int:
        raise BundleError(f"{name} must not be the nil UUID")
    return str(parsed)


def _check_given(given: Evidence) -> None:
    """Refuse what is wrong with what was handed in before anything is written."""
    for file, report in (
        (a.MEDIA_POLICY, given.media_policy_report),
        (a.VIDEO_SYNC, given.video_sync_report),
    ):
        problems = validate_report(report, file.kind) if report is not None else []
        if problems:
            raise BundleError(f"the {file.key} is not valid: {'; '.join(problems)}")
    if given.redaction is not None:
        problems = redaction_problems(given.redaction)
        if problems:
            raise BundleError(f"the redaction metadata is not valid: {'; '.join(problems)}")
    if given.promotion is not None:
        refuse_unless_approved(given.redaction or {"status": "unreviewed"}, "a call import")
    if given.with_multimodal_trace:
        refuse_unless_approved(given.redaction or {"status": "unreviewed"}, "a multimodal trace")
    try:
        thresholds_with(given.thresholds)
    except ValueError as error:
        raise BundleError(str(error)) from error


def _says_lacking(line: str) -> bool:
    return any(line == f"$.artifacts: has no {kind}, which every bundle needs" for kind in REQUIRED_KINDS)


def _tracks(call: VoiceCall, given: Evidence) -> tuple[dict[Channel, Track], list[str]]:
    """Where each side's audio is, and why a side has none."""
    tracks: dict[Channel, Track] = {}
    lacking: list[str] = []
    for channel, path in ((Channel.CALLER, given.caller_audio), (Channel.AGENT, given.agent_audio)):
        try:
            tracks[channel] = (
                _given_track(channel, Path(path)) if path is not None else _recorded(call, channel)
            )
        except BundleError as error:
            lacking.append(str(error))
    return tracks, list(dict.fromkeys(lacking))


def _given_track(channel: Channel, path: Path) -> Track:
    from voicetrace.audio import ClipError
    from voicetrace.audio.source import Source

    try:
        with Source(path) as source:
            if source.channels != 1:
                raise BundleError(
                    f"the {channel} audio {path} has {source.channels} channels; it must be mono"
                )
    except ClipError as error:
        raise BundleError(f"the {channel} audio cannot be read: {error}") from error
    return Track(path)


def _recorded(call: VoiceCall, channel: Channel) -> Track:
    recording, path = call.recording, call.recording_path()
    if recording is None:
        raise BundleError(
            f"call {call.call_id} has no recording, and a bundle needs caller and agent audio: "
            'record calls with voicetrace.configure(audio="both")'
        )
    if channel not in recording.channels:
        held = " and ".join(recording.channels) or "no channel"
        raise BundleError(
            f"the recording of call {call.call_id} has no {channel} audio, it holds {held} only: "
            'record both channels with voicetrace.configure(audio="both")'
        )
    if path is None:
        raise BundleError(
            f"the recording of call {call.call_id} is not on this machine but at {recording.uri}: "
            "copy it here and point the recording's uri at the copy"
        )
    if not path.is_file():
        raise BundleError(f"the recording of call {call.call_id} is not at {path}")

    # numpy and libsndfile only when audio is really read
    from voicetrace.audio import ClipError
    from voicetrace.audio.source import Source

    try:
        with Source(path) as source:
            return Track(path, source.column(channel, tuple(recording.channels)))
    except ClipError as error:
        raise BundleError(f"the audio of call {call.call_id} cannot be read: {error}") from error


# -- writing -----------------------------------------------------------------------------------------
def _write_artifacts(
    call: VoiceCall,
    folder: Path,
    tracks: dict[Channel, Track],
    given: Evidence,
    output: Mapping[str, Any] | None,
    schema_ref: str | None,
    language: documents.Language,
) -> tuple[dict[ArtifactFile, tuple[str, int]], WrittenAudio | None]:
    """Write every artifact that can be made; digest and size of each."""
    audio = write_audio(tracks, folder, given.vad) if tracks else None
    activity = audio.activity if audio else {}
    agent = activity.get(Channel.AGENT)
    written = dict(audio.digests) if audio else {}
    made: dict[ArtifactFile, Callable[[], Mapping[str, Any]]] = {
        a.TIMELINE: lambda: documents.timeline(call, audio.duration_ms if audio else None, activity),
        a.OUTPUT: lambda: documents.structured_output(output, schema_ref, call, agent),
        a.CONTINUITY: lambda: continuity_report(call, activity, given.thresholds),
        a.REDACTION: lambda: redaction_of(call, given.redaction),
    }
    if call.messages:
        made[a.TRANSCRIPT] = lambda: documents.transcript(call, language)
    if (media_policy := given.media_policy_report) is not None:
        made[a.MEDIA_POLICY] = lambda: media_policy
    if (video_sync := given.video_sync_report) is not None:
        made[a.VIDEO_SYNC] = lambda: video_sync
    for file, document in made.items():  # one at a time in memory
        written[file] = a.write_json(document(), folder / file.name, file.key)
    # one event a line: a long call's journal is never one string in memory
    written[a.TRACE] = a.write_listed(
        {"provider": call.framework or PRODUCER},
        "events",
        documents.raw_trace_events(call),
        {},
        folder / a.TRACE.name,
        a.TRACE.key,
    )
    return written, audio


def _write_case(
    call: VoiceCall, build: Path, manifest: Mapping[str, Any], given: Evidence, language: documents.Language
) -> None:
    if given.promotion is None and not given.with_multimodal_trace:
        return
    redaction = redaction_of(call, given.redaction)
    if given.promotion is not None:
        write_call_import(call, manifest, redaction, given.promotion, build / a.CALL_IMPORT_NAME, language)
    if given.with_multimodal_trace:
        output = json.loads((build / "artifacts" / a.OUTPUT.name).read_text("utf-8"))
        captured_at = given.promotion.captured_at if given.promotion else ""
        trace = multimodal_trace(
            call, manifest, redaction, output, language=language, captured_at=captured_at
        )
        a.write_json(trace, build / a.MULTIMODAL_TRACE_NAME, "the multimodal trace")


def _artifact(file: ArtifactFile, sha: str, size: int) -> dict[str, Any]:
    return {
        "key": file.key,
        "kind": file.kind.value,
        "location": "local_path",
        "path": f"artifacts/{file.name}",
        "content_type": file.content_type,
        "size_bytes": size,
        "checksum_sha256": sha,
    }


# -- metadata ----------------------------------------------------------------------------------------
def _metadata(
    call: VoiceCall,
    language: documents.Language,
    audio: WrittenAudio | None,
    lacking: list[str],
    evidence: Evidence,
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "framework": call.framework,
        "framework_version": call.framework_version,
        "agent_name": call.agent_name,
        "conversation_id": call.conversation_id,
        "trace_id": call.trace_id,
        "origin_unix_ms": call.origin_unix_ms,
        "recording_id": call.recording.recording_id if call.recording else None,
        "provider": documents.attribute(call, documents.PROVIDER),
        "model": documents.attribute(call, documents.MODEL),
        "input_language": _language(call, language, Role.USER),
        "output_language": _language(call, language, Role.ASSISTANT),
        "available": {
            "speaker_channels": audio is not None and len(audio.activity) == 2,
            "provider_timing_events": documents.has_provider_timing(call),
            "llm_steps": bool(call.llm_steps),
            "journal": bool(call.events),
            "mouth_motion": _has_mouth_motion(evidence),
        },
        "warnings": list(call.warnings),
        "caveats": [
            *(f"Missing: {sentence}." for sentence in lacking),
            *_text_caveats(call),
            *_recording_caveats(call, audio, evidence),
            *(audio.caveats if audio else []),
        ],
    }
    return {name: value for name, value in found.items() if value not in (None, "", [])}


def _language(call: VoiceCall, language: documents.Language, role: Role) -> str | None:
    """The one language of a side; ``None`` where it is not known or there are several."""
    if not isinstance(language, Mapping):
        return language
    found = {documents.language_of(language, m) for m in call.messages if m.role is role}
    return found.pop() if len(found) == 1 and documents.UNDETERMINED not in found else None


def _has_mouth_motion(evidence: Evidence) -> bool:
    return bool((evidence.video_sync_report or {}).get("mouth_motion_metrics"))


def _text_caveats(call: VoiceCall) -> list[str]:
    left_out = sum(m.text_status is TextStatus.NOT_CAPTURED for m in call.messages)
    if not left_out:
        return []
    return [f"The text of {left_out} of {len(call.messages)} messages was not captured."]


def _recording_caveats(call: VoiceCall, audio: WrittenAudio | None, evidence: Evidence) -> list[str]:
    """What is doubtful about the recording, where any of the audio is from it."""
    recording, path = call.recording, call.recording_path()
    both_given = evidence.caller_audio is not None and evidence.agent_audio is not None
    if recording is None or path is None or audio is None or both_given or not path.is_file():
        return []
    out: list[str] = []
    if recording.sha256 is not None and recording.sha256 != digest(path)[0]:
        out.append("The recording's digest differs from the one that was logged: the file was changed.")
    logged_ms = recording.duration_ms
    if logged_ms is not None and abs(logged_ms - audio.duration_ms) > LENGTH_TOLERANCE_MS:
        out.append(f"The recording is {audio.duration_ms} ms long and was logged as {logged_ms} ms.")
    if call.origin_unix_ms is not None and recording.origin_unix_ms != call.origin_unix_ms:
        shift = recording.origin_unix_ms - call.origin_unix_ms
        out.append(f"The recording's clock differs from the call's by {shift} ms; offsets are in call-ms.")
    out += documents.lost_audio(path)
    return out
