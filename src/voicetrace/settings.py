# SPDX-License-Identifier: Apache-2.0
"""What the user chose, once per process: `configure()` and the environment's defaults."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

from opentelemetry.sdk.trace import TracerProvider

from voicetrace import semconv
from voicetrace.messages import Channel

Content = Literal["full", "none"]
Audio = Literal["off", "agent", "caller", "both"]
RecordingFormat = Literal["wav", "flac", "opus"]
MessageRecordKind = Literal["span", "log", "off"]
Consent = Literal["given", "awaited"]

ENV_DIRECTORY: Final = "VOICETRACE_DIR"
DEFAULT_DIRECTORY: Final = "voicetrace-calls"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The process's settings; see `configure` for the meaning of each."""

    tracer_provider: TracerProvider | None = None
    directory: Path | None = Path(DEFAULT_DIRECTORY)
    content: Content = "full"
    audio: Audio = "off"
    consent: Consent = "given"
    recording_format: RecordingFormat = "wav"
    message_records: MessageRecordKind = "span"
    max_messages_bytes: int = 1_000_000
    structured_messages: bool = False
    uncommitted_timeout_ms: int = 3000
    server_vad_silence_ms: int = 0
    redact: Callable[[str], str] | None = None
    mute_redacted: bool = True
    workspace_id: str = ""
    service_id: str = ""

    @property
    def audio_channels(self) -> tuple[Channel, ...]:
        """The channels that are kept, in file order."""
        return tuple(c for c in Channel if self.audio in ("both", c.value))

    @property
    def mutes_redacted(self) -> bool:
        """Whether there may be audio to be silenced."""
        return self.redact is not None and self.mute_redacted and self.audio != "off"


def _default_content() -> Content:
    """Content follows the standard switch when it is set; without it voicetrace keeps the text."""
    value = os.environ.get(semconv.ENV_CAPTURE_CONTENT, "").strip().lower()
    return "none" if value in ("false", "0", "no_content", "event_only") else "full"


_settings: Settings | None = None


def configure(
    *,
    tracer_provider: TracerProvider | None = None,
    directory: str | os.PathLike[str] | Literal["default"] | None = "default",
    content: Content | None = None,
    audio: Audio = "off",
    consent: Consent = "given",
    recording_format: RecordingFormat = "wav",
    message_records: MessageRecordKind = "span",
    max_messages_bytes: int = 1_000_000,
    structured_messages: bool = False,
    uncommitted_timeout_ms: int = 3000,
    server_vad_silence_ms: int = 0,
    redact: Callable[[str], str] | None = None,
    mute_redacted: bool = True,
    workspace_id: str = "",
    service_id: str = "",
) -> None:
    """Choose what voicetrace captures and where it goes. Applies to calls that start afterwards.

    Args:
        tracer_provider: Where spans go. Without one: the global provider, the framework's, else our own.
        directory: Where each call gets a folder with its journal and recording. Default: the environment's
            ``VOICETRACE_DIR``, else ``voicetrace-calls`` in the working directory. ``None`` writes nothing
            to disk: then a crash loses the call, and no audio can be kept.
        content: ``"full"`` keeps texts, ``"none"`` keeps ids, times and states only. Default: the
            standard ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT``, else ``"full"``.
        audio: Which sides are recorded; nothing unless said.
        consent: ``"awaited"`` keeps no text and no audio of a call until `voicetrace.give_consent` is called
            for it; ids, times and states are kept. What was said before is never kept.
        recording_format: ``"wav"`` and ``"flac"`` are lossless; ``"opus"`` is small.
        message_records: How the per-message records leave: a zero-length child span, an OTel log, or not.
        max_messages_bytes: The largest ``voice.messages`` put on a span; the whole map is kept beside the
            recording when it is cut.
        structured_messages: Write maps as structured attributes where the SDK can (1.45 and later).
        uncommitted_timeout_ms: Speech without an item is uncommitted this long after it stopped.
        server_vad_silence_ms: How long a realtime provider's voice detection waits before it says that speech
            stopped. Taken off the end of user speech where that is known by receipt only.
        redact: Applied to every text before it is kept anywhere. If it raises, the text is dropped.
        mute_redacted: Silence the audio of a message whose text `redact` changed, the whole of it: which
            sounds were the words is not known. Until its transcript comes, what was said is on the disk.
        workspace_id: Stamped on the call for the Voice Judge.
        service_id: Stamped on the call for the Voice Judge.

    Raises:
        ValueError: a value is none of those listed.
    """
    for name, value, allowed in (
        ("content", content, (None, *get_args(Content))),
        ("audio", audio, get_args(Audio)),
        ("consent", consent, get_args(Consent)),
        ("recording_format", recording_format, get_args(RecordingFormat)),
        ("message_records", message_records, get_args(MessageRecordKind)),
    ):
        if value not in allowed:
            raise ValueError(f"configure({name}={value!r}): choose one of {', '.join(map(repr, allowed))}")
    for name, number in (
        ("max_messages_bytes", max_messages_bytes),
        ("uncommitted_timeout_ms", uncommitted_timeout_ms),
    ):
        if type(number) is not int or number <= 0:
            raise ValueError(f"configure({name}={number!r}): must be a whole number greater than 0")
    if type(server_vad_silence_ms) is not int or server_vad_silence_ms < 0:
        raise ValueError(
            f"configure(server_vad_silence_ms={server_vad_silence_ms!r}): must be a whole number, 0 or more"
        )
    if audio != "off" and directory is None:
        raise ValueError("configure(audio=..., directory=None): audio needs a directory to be kept in")
    global _settings
    _settings = Settings(
        tracer_provider=tracer_provider,
        directory=_default_directory() if directory == "default" else _as_path(directory),
        content=content or _default_content(),
        audio=audio,
        consent=consent,
        recording_format=recording_format,
        message_records=message_records,
        max_messages_bytes=max_messages_bytes,
        structured_messages=structured_messages,
        uncommitted_timeout_ms=uncommitted_timeout_ms,
        server_vad_silence_ms=server_vad_silence_ms,
        redact=redact,
        mute_redacted=mute_redacted,
        workspace_id=workspace_id,
        service_id=service_id,
    )


def _default_directory() -> Path:
    return Path(os.environ.get(ENV_DIRECTORY) or DEFAULT_DIRECTORY)


def _as_path(directory: str | os.PathLike[str] | None) -> Path | None:
    return None if directory is None else Path(directory)


def current() -> Settings:
    """The settings in force: the last `configure`, else the environment's defaults."""
    if _settings is not None:
        return _settings
    return Settings(content=_default_content(), directory=_default_directory())


def override(settings: Settings | None, **changes: Any) -> Settings:
    """A copy with some settings changed; for one session only."""
    return replace(settings or current(), **changes)


def reset() -> None:
    """Forget `configure`; for tests."""
    global _settings
    _settings = None
