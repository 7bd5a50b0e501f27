# SPDX-License-Identifier: Apache-2.0
"""A piece of a judged call as WAV: what evidence points at, to press play on."""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from voicetrace.messages import Channel

if TYPE_CHECKING:
    from voicetrace.voice_call import VoiceCall

LONGEST_MS: Final = 5 * 60 * 1000


class NoClip(Exception):  # noqa: N818  an answer, not a fault
    """There is no such audio here, and why. Says nothing of where things are."""


def clip_wav(
    source: str,
    call_sid: str,
    *,
    message_id: str | None = None,
    start_ms: int | None = None,
    end_ms: int | None = None,
    channel: Channel | None = None,
) -> bytes:
    """One message's audio, or a range in call-ms of one side, or of both as two channels.

    Without an end a range is five minutes long, and it is never longer.

    Raises:
        NoClip: the call, its recording, or the message is not on this machine.
    """
    from voicetrace.audio import ClipError
    from voicetrace.judge.batch.bundle import call_of_bundle
    from voicetrace.judge.batch.source import MANIFEST

    path = Path(source)
    if "://" in source or not path.exists():
        raise NoClip("the call is not on this machine")
    low = start_ms or 0
    high = min(low + LONGEST_MS, low + LONGEST_MS if end_ms is None else end_ms)
    if message_id is None and high <= low:
        raise NoClip("the range is empty")
    try:
        with contextlib.ExitStack() as stack:
            if (path / MANIFEST).exists():
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="voicetrace-clip-"))
                call = call_of_bundle(path, Path(folder))
            else:
                call = _call(path, call_sid)
            if message_id is None:
                return _of_recording(call, low, high, channel)
            clip = call.clip(call.message(message_id))
            return _wav(clip.samples.reshape(-1, 1), clip.sample_rate_hz)
    except KeyError as error:
        raise NoClip("the call has no such message") from error
    except (ClipError, OSError, ValueError) as error:
        raise NoClip("the call has no such audio, or it cannot be read") from error


def _call(path: Path, call_sid: str) -> VoiceCall:
    from voicetrace.reader import read_calls

    calls = read_calls(path)
    found = next((call for call in calls if call.call_id == call_sid), None)
    if found is None and len(calls) != 1:
        raise NoClip("the call is not where it was judged")
    return found or calls[0]


def _of_recording(call: VoiceCall, low: int, high: int, channel: Channel | None) -> bytes:
    from voicetrace.audio.source import Source

    recording, path = call.recording, call.recording_path()
    if recording is None or path is None:
        raise NoClip("the call was not recorded, or its recording is elsewhere")
    first = min((segment.start_ms for segment in recording.segments.values()), default=0)
    held = tuple(recording.channels)
    with Source(path) as source:
        rate = source.sample_rate_hz
        frames = source.read((low - first) * rate // 1000, (high - first) * rate // 1000)
        wanted = held if channel is None else (channel,)
        return _wav(frames[:, [source.column(c, held) for c in wanted]], rate)


def _wav(frames: Any, rate: int) -> bytes:
    import soundfile as sf  # type: ignore[import-untyped,unused-ignore]

    if not len(frames):
        raise NoClip("the recording holds nothing of that time")
    out = io.BytesIO()
    sf.write(out, frames, rate, format="WAV", subtype="PCM_16")
    return out.getvalue()
