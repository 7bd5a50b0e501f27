# SPDX-License-Identifier: Apache-2.0
"""Exactly one message's audio, out of the recording of its call (contract, section 5)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import soundfile as sf  # type: ignore[import-untyped,unused-ignore]

from voicetrace.audio.errors import ClipError
from voicetrace.audio.index import Index, read_index
from voicetrace.audio.pcm import Samples
from voicetrace.audio.source import Source
from voicetrace.audio.transcode import BLOCK, OPUS_RATES
from voicetrace.messages import Channel

if TYPE_CHECKING:
    from voicetrace.messages import Recording, VoiceMessage
    from voicetrace.voice_call import VoiceCall

_FORMATS = {".wav": ("WAV", "PCM_16"), ".flac": ("FLAC", "PCM_16")} | dict.fromkeys(
    (".ogg", ".opus"), ("OGG", "OPUS")
)


@dataclass(frozen=True, slots=True)
class Clip:
    """A message's audio: int16 mono. `start_ms` is the call-ms of its first sample."""

    samples: Samples = field(repr=False)
    sample_rate_hz: int
    start_ms: int
    channel: Channel

    @property
    def duration_ms(self) -> int:
        """Its length, rounded to whole ms."""
        return round(self.samples.size * 1000 / self.sample_rate_hz)

    def save(self, path: Path | str) -> Path:
        """Write it as ``.wav``, ``.flac``, or ``.ogg``/``.opus``, by the path's suffix.

        Raises:
            ClipError: the suffix is none of these, Opus has no such rate, or the disk refuses.
        """
        path = Path(path)
        if path.suffix not in _FORMATS:
            raise ClipError(f"a clip is saved as .wav, .flac, .ogg or .opus, not as {path.name}")
        container, encoding = _FORMATS[path.suffix]
        if encoding == "OPUS" and self.sample_rate_hz not in OPUS_RATES:
            raise ClipError(
                f"Opus has no rate of {self.sample_rate_hz} Hz: save {path.name} as .flac or .wav"
            )
        try:
            with sf.SoundFile(path, "w", self.sample_rate_hz, 1, format=container, subtype=encoding) as out:
                for at in range(0, self.samples.size, BLOCK):
                    out.write(self.samples[at : at + BLOCK])
        except (OSError, sf.SoundFileError) as error:
            raise ClipError(f"the clip cannot be saved as {path}: {error}") from error
        return path


def clip_message(call: VoiceCall, message: VoiceMessage) -> Clip:
    """Exactly this message's audio: its selections, one after the other.

    Exact to the sample where the recording's index lies beside it, else to the ms. Only what is needed is
    read. Of a recording that was cut short it gives what is there.

    Raises:
        ClipError: the message has no audio, or the recording is not here or does not hold it.
    """
    who = f"message {message.id} of call {call.call_id}"
    recording, path = call.recording, call.recording_path()
    if recording is None:
        raise ClipError(f"there is no audio of {who}: the call was not recorded")
    if not message.selections:
        raise ClipError(
            f"there is no audio of {who}: none of the recording is selected for it ({message.state})"
        )
    if path is None:
        raise ClipError(f"the recording of call {call.call_id} is not on this machine but at {recording.uri}")
    pieces = []
    with Source(path) as source:
        index = read_index(path)
        for channel, low, high in samples_of(recording, message, source, index):
            column = source.column(channel, tuple(recording.channels))
            pieces.append(source.read(low, high)[:, column])
        samples = np.ascontiguousarray(np.concatenate(pieces))
        if not samples.size:
            raise ClipError(f"the recording {path} ends before {who}")
        first = message.selections[0]
        start_ms = recording.segments[first.segment_id].start_ms + first.start_ms
        return Clip(samples, source.sample_rate_hz, start_ms, first.channel)


def samples_of(
    recording: Recording, message: VoiceMessage, source: Source, index: Index | None
) -> list[tuple[Channel, int, int]]:
    """The samples of `source` that are this message: channel, first, and behind the last; in order.

    They may lie behind the end of a recording that was cut short. ``index`` is its sidecar, if it has one.

    Raises:
        ClipError: it selects a segment that the recording does not have.
    """
    index = index or Index(source.sample_rate_hz)
    found = []
    for selection in message.selections:
        segment = recording.segments.get(selection.segment_id)
        if segment is None:
            raise ClipError(
                f"message {message.id} selects segment {selection.segment_id}, "
                "which its recording does not have"
            )
        start_ms, end_ms = segment.start_ms + selection.start_ms, segment.start_ms + selection.end_ms
        low, high = index.samples_of(selection.channel, start_ms, end_ms)
        if index.sample_rate_hz != source.sample_rate_hz:
            low, high = (x * source.sample_rate_hz // index.sample_rate_hz for x in (low, high))
        found.append((selection.channel, low, high))
    return found
