# SPDX-License-Identifier: Apache-2.0
"""`VoiceCall`: one call as everything downstream consumes it, wherever it was read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from voicetrace.messages import LLMStep, Recording, Role, VoiceMessage

if TYPE_CHECKING:
    from voicetrace.audio import Clip
    from voicetrace.events import Event


@dataclass(frozen=True)
class VoiceCall:
    """One call: its messages in order of ``seq``, the LLM steps, the recording, and what is doubtful.

    ``*_ms`` are call-ms. ``origin_unix_ms`` is the Unix time of call-ms 0, ``None`` when the source did
    not say. ``ended`` is false for a call that was read while it ran, or whose process died and that was not
    recovered. ``events`` is filled when the source was a journal. ``attributes`` are the call span's own.
    """

    call_id: str
    messages: tuple[VoiceMessage, ...] = ()
    llm_steps: tuple[LLMStep, ...] = ()
    recording: Recording | None = None
    warnings: tuple[str, ...] = ()
    origin_unix_ms: int | None = None
    duration_ms: int | None = None
    framework: str = ""
    framework_version: str = ""
    agent_name: str = ""
    conversation_id: str = ""
    ended: bool = True
    end_reason: str = ""
    trace_id: str | None = None
    span_id: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    events: tuple[Event, ...] = field(default=(), repr=False)
    source: str = ""

    def message(self, message_id: str) -> VoiceMessage:
        """The message with this id.

        Raises:
            KeyError: no message of the call has it.
        """
        for message in self.messages:
            if message.id == message_id:
                return message
        raise KeyError(f"call {self.call_id} has no message {message_id!r}")

    def produced_by(self, message: VoiceMessage) -> LLMStep | None:
        """The LLM step that generated the message; ``None`` for users, greetings, and unknown steps."""
        if message.role is Role.USER:
            return None
        for step in self.llm_steps:
            if step.span_id == message.produced_by_span_id or message.id in step.output_ids:
                return step
        return None

    def read_by(self, message: VoiceMessage) -> tuple[LLMStep, ...]:
        """The LLM steps that had the message in their context, in order."""
        return tuple(step for step in self.llm_steps if message.id in step.context_ids)

    def recording_path(self) -> Path | None:
        """Where the recording is on this machine; ``None`` when there is none or it is elsewhere."""
        if self.recording is None:
            return None
        parsed = urlparse(self.recording.uri)
        if parsed.scheme == "file":
            return Path(unquote(parsed.path))
        if parsed.scheme:
            return None
        path = Path(self.recording.uri)
        if path.is_absolute() or not self.source:
            return path
        base = Path(self.source)
        return (base if base.is_dir() else base.parent) / path

    def clip(self, message: VoiceMessage) -> Clip:
        """Exactly this message's audio (contract, section 5).

        Raises:
            ClipError: the call has no recording here, or the message has no audio.
        """
        from voicetrace.audio import clip_message  # numpy and soundfile only when used

        return clip_message(self, message)
