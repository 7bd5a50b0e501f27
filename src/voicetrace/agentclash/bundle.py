# SPDX-License-Identifier: Apache-2.0
"""Writing a call as a bundle: a directory with a manifest at its root and its files under ``artifacts/``."""

from __future__ import annotations

import json
import os
import shutil
import uuid
import wave
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from voicetrace.agentclash import documents
from voicetrace.agentclash.continuity import continuity_report
from voicetrace.agentclash.manifest import (
    MANIFEST_NAME,
    SCHEMA_VERSION,
    ArtifactKind,
    Manifest,
    validate_manifest,
)
from voicetrace.agentclash.problems import is_unicode, load_json
from voicetrace.agentclash.validate import digest
from voicetrace.messages import Channel, Recording
from voicetrace.voice_call import VoiceCall

PRODUCER: Final = "voicetrace"
_BLOCK_FRAMES: Final = 1 << 16
_WAV_LIMIT_BYTES: Final = 2**32 - 64  # its header counts bytes in 32 bits
_LENGTH_TOLERANCE_MS: Final = 20  # one audio frame


class BundleError(Exception):
    """The bundle cannot be written; the sentence says why and what to do. Nothing of it was left behind."""


class _File(NamedTuple):
    key: str
    kind: ArtifactKind
    name: str
    content_type: str


_AUDIO, _JSON = "audio/wav", "application/json"
_CALLER = _File(documents.CALLER_KEY, ArtifactKind.CALLER_AUDIO, "caller.wav", _AUDIO)
_AGENT = _File(documents.AGENT_KEY, ArtifactKind.AGENT_AUDIO, "agent.wav", _AUDIO)
_MIXED = _File("mixed_audio", ArtifactKind.MIXED_AUDIO, "mixed.wav", _AUDIO)
_TRANSCRIPT = _File("transcript", ArtifactKind.TRANSCRIPT, "transcript.json", _JSON)
_TIMELINE = _File("waveform_timeline", ArtifactKind.WAVEFORM_TIMELINE, "waveform_timeline.json", _JSON)
_OUTPUT = _File("structured_output", ArtifactKind.STRUCTURED_OUTPUT, "structured_output.json", _JSON)
_CONTINUITY = _File(
    "live_continuity_report", ArtifactKind.LIVE_CONTINUITY_REPORT, "live_continuity_report.json", _JSON
)
_TRACE = _File("raw_provider_trace", ArtifactKind.RAW_PROVIDER_TRACE, "raw_provider_trace.json", _JSON)
_REDACTION = _File("redaction_metadata", ArtifactKind.REDACTION_METADATA, "redaction_metadata.json", _JSON)
_FILES: Final = (
    _CALLER, _AGENT, _MIXED, _TRANSCRIPT, _TIMELINE, _OUTPUT, _CONTINUITY, _TRACE, _REDACTION,
)  # fmt: skip


def export_bundle(
    call: VoiceCall,
    directory: str | os.PathLike[str],
    *,
    run_id: str | uuid.UUID,
    run_agent_id: str | uuid.UUID,
    structured_output: Mapping[str, Any] | None = None,
    schema_ref: str | None = None,
    language: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write the call as a bundle and return the path of its manifest.

    Both audio files begin at call-ms 0, have the recording's length, and hold its samples unchanged.
    The same call gives the same bytes. Everything is streamed, so memory does not grow with the call.
    The bundle is built beside ``directory`` and moved when it is whole; an earlier bundle of voicetrace's
    own is replaced file by file, the manifest last, and files that are not ours stay. Blocking; different
    directories may be written from different threads.

    Args:
        call: a call with messages and a two-channel recording on this machine.
        directory: where to; created with its parents. Empty, absent, or an earlier bundle of ours.
        run_id: the run, a UUID and not the nil UUID; written in lower case.
        run_agent_id: the run's agent, likewise.
        structured_output: the task-level result; without it the facts of the call are computed.
        schema_ref: what names the shape of the structured output.
        language: BCP 47 tag of the call's speech, e.g. ``en-US``; ``und`` in the transcript when not given.
        metadata: added to the manifest's own, and stronger than it.

    Raises:
        BundleError: a required artifact cannot be made, an argument is wrong, or the disk refuses.
    """
    target = Path(directory)
    ids = {"run_id": _uuid("run_id", run_id), "run_agent_id": _uuid("run_agent_id", run_agent_id)}
    if not call.messages:
        raise BundleError(f"call {call.call_id} has no messages, so there is no transcript to write")
    if not call.call_id.strip():
        raise BundleError("the call has no id, and a bundle needs one as its voice_session_id")
    try:
        recording, source = _recording_of(call)
        _check_target(target)
        with _build_beside(target) as build:
            artifacts = build / "artifacts"
            artifacts.mkdir()
            duration_ms = _write_audio(call, recording, source, artifacts)
            for file, document in (
                (_TRANSCRIPT, documents.transcript(call, language)),
                (_TIMELINE, documents.timeline(call, duration_ms)),
                (_OUTPUT, documents.structured_output(structured_output, schema_ref, call)),
                (_CONTINUITY, continuity_report(call)),
                (_REDACTION, documents.redaction(call)),
            ):
                (artifacts / file.name).write_text(_json(document, file.key), encoding="utf-8", newline="\n")
            _write_trace(call, artifacts / _TRACE.name)
            manifest = {
                "schema_version": SCHEMA_VERSION,
                **ids,
                "voice_session_id": call.call_id,
                "artifacts": [_artifact(file, artifacts) for file in _FILES],
                "metadata": _metadata(call, source, language, duration_ms)
                | {**(metadata or {}), "producer": PRODUCER},  # by which an earlier bundle of ours is known
            }
            manifest = json.loads(_json(manifest, "the manifest"))
            problems = validate_manifest(manifest)
            if problems:
                raise BundleError(f"the manifest would not be valid: {'; '.join(problems)}")
            text = Manifest.model_validate(manifest).to_json()
            (build / MANIFEST_NAME).write_text(text, encoding="utf-8", newline="\n")
            _move(build, target)
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


def _recording_of(call: VoiceCall) -> tuple[Recording, Path]:
    recording, path = call.recording, call.recording_path()
    if recording is None:
        raise BundleError(
            f"call {call.call_id} has no recording, and a bundle needs caller and agent audio: "
            'record calls with voicetrace.configure(audio="both")'
        )
    for channel in Channel:
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
    return recording, path


def _check_target(target: Path) -> None:
    if not target.exists():
        if target.is_symlink():
            raise BundleError(f"{target} is a symbolic link that leads nowhere")
        return
    if not target.is_dir():
        raise BundleError(f"{target} is no directory")
    if any(target.iterdir()) and not _is_ours(target):
        raise BundleError(
            f"{target} is not empty and holds no earlier bundle of voicetrace: name another directory"
        )
    if (target / "artifacts").is_symlink():
        raise BundleError(f"{target / 'artifacts'} is a symbolic link: writing there would leave the bundle")


def _is_ours(target: Path) -> bool:
    data, problems = load_json(target / MANIFEST_NAME)
    metadata = data.get("metadata") if not problems and isinstance(data, dict) else None
    return isinstance(metadata, dict) and metadata.get("producer") == PRODUCER


# -- writing -----------------------------------------------------------------------------------------
def _write_audio(call: VoiceCall, recording: Recording, source_path: Path, artifacts: Path) -> int:
    """Write the three WAV files in one pass over the recording; their length in ms."""
    # numpy and libsndfile only when audio is really read
    import numpy as np

    from voicetrace.audio import ClipError
    from voicetrace.audio.source import Source

    held = tuple(recording.channels)
    try:
        with ExitStack() as stack:
            source = stack.enter_context(Source(source_path))
            if not source.frames:
                raise BundleError(f"the recording {source_path} of call {call.call_id} is empty")
            if source.frames * 2 > _WAV_LIMIT_BYTES:
                raise BundleError(f"the recording {source_path} is longer than a WAV file can be")
            columns = [source.column(channel, held) for channel in (Channel.CALLER, Channel.AGENT)]
            caller, agent, mixed = (
                stack.enter_context(_wav(artifacts / file.name, source.sample_rate_hz))
                for file in (_CALLER, _AGENT, _MIXED)
            )
            written = 0
            for block in source.blocks(_BLOCK_FRAMES):
                pair = [np.ascontiguousarray(block[:, column], dtype="<i2") for column in columns]
                both = np.clip(pair[0].astype(np.int32) + pair[1], -32768, 32767).astype("<i2")
                for out, samples in zip((caller, agent, mixed), (*pair, both), strict=True):
                    out.writeframesraw(samples.data)
                written += len(both)
            return round(written * 1000 / source.sample_rate_hz)
    except ClipError as error:
        raise BundleError(f"the audio of call {call.call_id} cannot be read: {error}") from error


def _wav(path: Path, sample_rate_hz: int) -> wave.Wave_write:
    out = wave.open(str(path), "wb")  # noqa: SIM115  closed by the caller's stack
    out.setnchannels(1)
    out.setsampwidth(2)
    out.setframerate(sample_rate_hz)
    return out


def _write_trace(call: VoiceCall, path: Path) -> None:
    """One event a line: a long call's journal is never one string in memory."""
    provider = _json_line(call.framework or PRODUCER, _TRACE.key)
    with path.open("w", encoding="utf-8", newline="\n") as out:
        out.write(f'{{\n  "provider": {provider},\n  "events": [')
        for line in _separated(_json_line(event, _TRACE.key) for event in documents.raw_trace_events(call)):
            out.write(line)
        out.write("\n  ]\n}\n")


def _separated(lines: Iterable[str]) -> Iterator[str]:
    for index, line in enumerate(lines):
        yield f"{',' if index else ''}\n    {line}"


def _json(value: Any, what: str) -> str:
    return _dump(value, what, indent=2) + "\n"


def _json_line(value: Any, what: str) -> str:
    return _dump(value, what, indent=None)


def _dump(value: Any, what: str, indent: int | None) -> str:
    try:
        text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise BundleError(f"{what} holds a value that JSON does not have: {error}") from error
    if is_unicode(text):
        return text
    # a lone surrogate (half a character, cut by someone upstream) cannot be UTF-8; it becomes U+FFFD
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):  # span attributes are read-only views
        return dict(value)
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{type(value).__name__} is not JSON")


def _artifact(file: _File, artifacts: Path) -> dict[str, Any]:
    sha, size = digest(artifacts / file.name)
    return {
        "key": file.key,
        "kind": file.kind.value,
        "location": "local_path",
        "path": f"artifacts/{file.name}",
        "content_type": file.content_type,
        "size_bytes": size,
        "checksum_sha256": sha,
    }


def _metadata(call: VoiceCall, source: Path, language: str | None, duration_ms: int) -> dict[str, Any]:
    assert call.recording is not None
    given: dict[str, Any] = {
        "framework": call.framework,
        "framework_version": call.framework_version,
        "agent_name": call.agent_name,
        "conversation_id": call.conversation_id,
        "trace_id": call.trace_id,
        "origin_unix_ms": call.origin_unix_ms,
        "recording_id": call.recording.recording_id,
        "input_language": language,
        "output_language": language,
        "warnings": list(call.warnings),
        "caveats": _caveats(call, source, duration_ms),
    }
    return {name: value for name, value in given.items() if value not in (None, "", [])}


def _caveats(call: VoiceCall, source: Path, duration_ms: int) -> list[str]:
    recording = call.recording
    assert recording is not None
    out: list[str] = []
    if recording.sha256 is not None and recording.sha256 != digest(source)[0]:
        out.append("The recording's digest differs from the one that was logged: the file was changed.")
    logged_ms = recording.duration_ms
    if logged_ms is not None and abs(logged_ms - duration_ms) > _LENGTH_TOLERANCE_MS:
        out.append(f"The recording is {duration_ms} ms long and was logged as {logged_ms} ms.")
    if call.origin_unix_ms is not None and recording.origin_unix_ms != call.origin_unix_ms:
        shift = recording.origin_unix_ms - call.origin_unix_ms
        out.append(f"The recording's clock differs from the call's by {shift} ms; offsets are in call-ms.")
    return out


# -- moving ------------------------------------------------------------------------------------------
@contextmanager
def _build_beside(target: Path) -> Iterator[Path]:
    """A new directory on the target's file system, gone afterwards unless it became the target."""
    parent = target.resolve().parent
    parent.mkdir(parents=True, exist_ok=True)
    build = parent / f".{target.name}.{uuid.uuid4().hex[:12]}.partial"
    build.mkdir()
    try:
        yield build
    finally:
        shutil.rmtree(build, ignore_errors=True)


def _move(build: Path, target: Path) -> None:
    if target.exists() and not target.is_symlink() and not any(target.iterdir()):
        target.rmdir()
    if not target.exists():
        build.rename(target)  # the whole bundle appears at once
        return
    (target / "artifacts").mkdir(exist_ok=True)
    for name in [*(f"artifacts/{file.name}" for file in _FILES), MANIFEST_NAME]:
        # the manifest last: until then the old one's checksums show that the bundle is not whole
        (build / name).replace(target / name)
