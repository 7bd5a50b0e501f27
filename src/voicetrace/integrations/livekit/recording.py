# SPDX-License-Identifier: Apache-2.0
"""LiveKit's own recording of a call, when it makes one (`RecorderIO`; livekit-capture.md, section 1.6)."""

from __future__ import annotations

from typing import Any, Final

from livekit.agents import AgentSession

from voicetrace.live import LiveCall
from voicetrace.messages import Channel

_RATE_HZ: Final = 48_000  # what `RecorderIO` makes, unless told otherwise; an Opus file has no other


class OwnRecording:
    """Watches whether LiveKit records the session, and since when. Loop-affine.

    Its start is call-ms 0, so that one offset fits both recordings. With ``adopt`` its file becomes the
    call's recording, and none of ours is made, where it may hold all that it holds.
    """

    def __init__(self, call: LiveCall, *, adopt: bool) -> None:
        self._call = call
        self._adopt = adopt
        self._known = False
        self.adopted = False
        """Whether LiveKit's file is the call's recording."""

    def look(self, session: AgentSession[Any]) -> None:
        """See whether LiveKit has begun to record; before anything that is told of the session."""
        recorder = getattr(session, "_recorder_io", None)
        began = getattr(recorder, "recording_started_at", None)
        if self._known or began is None:
            return
        self._known = True
        hindered = "" if self._call.set_origin(began) else "it does not begin at call-ms 0"
        if hindered:
            offset = round(began * 1000) - self._call.origin_unix_ms
            self._call.fault(f"LiveKit's own recording begins {offset:+d} ms from call-ms 0")
        if not self._adopt:
            return
        hindered = hindered or self._hindered()
        path = getattr(recorder, "output_path", None)
        if hindered or path is None:
            self._call.fault(f"LiveKit's recording is not adopted: {hindered or 'its file has no name'}")
            return
        self.adopted = True
        self._call.files.adopt_recording(path, _RATE_HZ)

    def _hindered(self) -> str:
        """Why the whole of LiveKit's file may not be kept."""
        chosen = self._call.settings
        if self._call.files.wants_audio != tuple(Channel):
            return 'it has both sides, which only configure(audio="both") asks for'
        if chosen.consent != "given":
            return "it also has what is said before consent"
        if chosen.redact is not None and chosen.mute_redacted:
            return "what is redacted cannot be silenced in it"
        return ""
