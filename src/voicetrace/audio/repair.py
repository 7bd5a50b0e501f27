# SPDX-License-Identifier: Apache-2.0
"""A recording whose process was killed, made whole (what ``voicetrace recover`` does with it)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from voicetrace.audio.errors import ClipError, RecordingError
from voicetrace.audio.facts import RecordingFacts, facts_of
from voicetrace.audio.transcode import SUFFIXES, partial_path
from voicetrace.audio.wav import FRAME_BYTES, HEADER_BYTES, header, read_info, samples_within, silence
from voicetrace.messages import Channel


def repair(
    path: Path, *, end_ms: int | None = None, muted: Iterable[tuple[Channel, int, int]] = ()
) -> RecordingFacts:
    """Give a recording its true sizes, drop a torn last frame, and measure it. Repeating it is harmless.

    Args:
        path: the WAV. If the process got as far as to encode it, the encoded file beside it is taken.
        end_ms: call-ms at which the call is known to have ended; silence is added up to it. Audio behind
            it is kept.
        muted: stretches to be silenced, (channel, start, end) in call-ms. (What was encoded had that done.)

    Raises:
        RecordingError: there is no such recording, it is not one of ours (and is left as it is), or the
            disk refuses.
    """
    try:
        if not path.exists():
            encoded = [path.with_suffix(SUFFIXES[kind]) for kind in ("flac", "opus")]
            done = next((other for other in encoded if other.exists()), None)
            if done is None:
                raise RecordingError(f"the recording {path} does not exist")
            return facts_of(done)
        info = read_info(path)
        ours = info is not None and info.data_offset == HEADER_BYTES
        if info is None or not ours or info.channels * 2 != FRAME_BYTES:
            raise RecordingError(f"{path} is not a two-channel WAV of voicetrace; it is left as it is")
        frames = max(info.frames, (end_ms or 0) * info.sample_rate_hz // 1000)
        with path.open("r+b") as file:
            size = HEADER_BYTES + frames * FRAME_BYTES
            if os.fstat(file.fileno()).st_size != size:
                file.truncate(size)
            file.write(header(info.sample_rate_hz, frames * FRAME_BYTES))
            file.flush()
            for channel, start_ms, stop_ms in muted:
                silence(file.fileno(), channel, *samples_within(start_ms, stop_ms, info.sample_rate_hz))
            os.fsync(file.fileno())
        for kind in ("flac", "opus"):
            partial_path(path.with_suffix(SUFFIXES[kind])).unlink(missing_ok=True)
        return facts_of(path)
    except (OSError, ClipError) as error:
        raise RecordingError(f"the recording {path} cannot be repaired: {error}") from error
