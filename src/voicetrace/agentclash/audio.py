# SPDX-License-Identifier: Apache-2.0
"""The audio of a bundle: two mono WAV files with one origin and one length, and their mix.

One pass over the source writes all three, takes their digests and listens for sound, a few seconds in memory
at a time. Samples are copied as they are; nothing is resampled, levelled or cleaned. What is padded with
silence, so that both sides are of one length, is said as a caveat.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from voicetrace.agentclash.artifacts import AGENT, CALLER, MIXED, ArtifactFile, BundleError
from voicetrace.messages import Channel

if TYPE_CHECKING:
    from voicetrace.agentclash.vad import Activity, VadSettings
    from voicetrace.audio.pcm import Samples
    from voicetrace.audio.source import Source

_BLOCK_MS: Final = 2000
_WAV_LIMIT_BYTES: Final = 2**32 - 64  # its header counts bytes in 32 bits
LENGTH_TOLERANCE_MS: Final = 20  # one audio frame


@dataclass(frozen=True, slots=True)
class Track:
    """Where one side's audio is: a file, and which of its columns."""

    path: Path
    column: int = 0


@dataclass(frozen=True)
class WrittenAudio:
    """What was written: digests and sizes by artifact, the length in ms, and what each side holds."""

    duration_ms: int
    digests: dict[ArtifactFile, tuple[str, int]]
    activity: dict[Channel, Activity]
    caveats: list[str] = field(default_factory=list)


def write_audio(
    tracks: dict[Channel, Track], artifacts: Path, vad: VadSettings | None = None
) -> WrittenAudio:
    """Write ``caller.wav``, ``agent.wav`` and, where both have one rate, ``mixed.wav``.

    Only the sides that are in ``tracks`` are written; the mix needs both.

    Raises:
        BundleError: a source is empty, cannot be read, or is longer than a WAV file can be.
        OSError: the disk refuses.
    """
    # numpy and libsndfile only when audio is really read
    from voicetrace.agentclash.vad import SoundMeter
    from voicetrace.audio import ClipError

    try:
        with ExitStack() as stack:
            sources = _open(tracks, stack)
            rates = {channel: sources[track.path].sample_rate_hz for channel, track in tracks.items()}
            lengths_ms = {c: sources[t.path].frames * 1000 / rates[c] for c, t in tracks.items()}
            longest_ms = max(lengths_ms.values())
            frames = {channel: round(longest_ms * rate / 1000) for channel, rate in rates.items()}
            caveats = [
                f"The {channel} audio is {round(longest_ms - length)} ms shorter than the other side; "
                "silence was added at its end."
                for channel, length in lengths_ms.items()
                if longest_ms - length >= LENGTH_TOLERANCE_MS
            ]
            outputs = {
                channel: stack.enter_context(_Wav(artifacts / file.name, rates[channel], frames[channel]))
                for channel, file in ((Channel.CALLER, CALLER), (Channel.AGENT, AGENT))
                if channel in tracks
            }
            mix: _Wav | None = None
            if len(outputs) == 2 and len(set(rates.values())) == 1:
                rate = rates[Channel.CALLER]
                mix = stack.enter_context(_Wav(artifacts / MIXED.name, rate, frames[Channel.CALLER]))
            elif len(outputs) == 2:
                caveats.append(
                    f"The caller audio has {rates[Channel.CALLER]} Hz and the agent audio "
                    f"{rates[Channel.AGENT]} Hz, so there is no mixed audio."
                )
            meters = {channel: SoundMeter(rate) for channel, rate in rates.items()}
            for blocks in _blocks(tracks, sources, frames):
                for channel, block in blocks.items():
                    outputs[channel].write(block)
                    meters[channel].feed(block)
                if mix is not None:
                    mix.write(_sum(*blocks.values()))
            digests = {
                file: outputs[channel].digest()
                for channel, file in ((Channel.CALLER, CALLER), (Channel.AGENT, AGENT))
                if channel in outputs
            }
            if mix is not None:
                digests[MIXED] = mix.digest()
    except ClipError as error:
        raise BundleError(f"the audio cannot be read: {error}") from error
    activity = {channel: meter.finish(vad) for channel, meter in meters.items()}
    caveats += [
        f"The {channel} audio is silent from beginning to end."
        for channel, heard in activity.items()
        if heard.is_silent(0, heard.duration_ms)
    ]
    return WrittenAudio(round(longest_ms), digests, activity, caveats)


def _open(tracks: dict[Channel, Track], stack: ExitStack) -> dict[Path, Source]:
    from voicetrace.audio.source import Source

    sources: dict[Path, Source] = {}
    for channel, track in tracks.items():
        if track.path not in sources:
            sources[track.path] = stack.enter_context(Source(track.path))
        source = sources[track.path]
        if not source.frames:
            raise BundleError(f"the {channel} audio {track.path} is empty")
        if source.frames * 2 > _WAV_LIMIT_BYTES:
            raise BundleError(f"the {channel} audio {track.path} is longer than a WAV file can be")
    return sources


def _blocks(
    tracks: dict[Channel, Track], sources: dict[Path, Source], frames: dict[Channel, int]
) -> Iterator[dict[Channel, Samples]]:
    """The sides in step, `_BLOCK_MS` at a time; a side that has ended goes on as silence."""
    import numpy as np

    rates = {channel: sources[track.path].sample_rate_hz for channel, track in tracks.items()}
    at = 0
    while any(at * rates[channel] // 1000 < frames[channel] for channel in tracks):
        read: dict[tuple[Path, int], Samples] = {}
        out: dict[Channel, Samples] = {}
        for channel, track in tracks.items():
            start = at * rates[channel] // 1000
            end = min((at + _BLOCK_MS) * rates[channel] // 1000, frames[channel])
            key = (track.path, start)
            if key not in read:
                read[key] = sources[track.path].read(start, end)
            block = np.zeros(max(0, end - start), np.int16)
            there = read[key][:, track.column]
            block[: there.size] = there
            out[channel] = block
        yield out
        at += _BLOCK_MS


def _sum(caller: Samples, agent: Samples) -> Samples:
    import numpy as np

    mixed: Samples = np.clip(caller.astype(np.int32) + agent, -32768, 32767).astype(np.int16)
    return mixed


class _Wav:
    """A mono 16-bit WAV of known length, with its digest taken while it is written."""

    def __init__(self, path: Path, sample_rate_hz: int, frames: int) -> None:
        self._path = path
        self._sha = hashlib.sha256()
        self._size = 0
        self._file = path.open("wb")
        data = frames * 2
        self._put(
            struct.pack(
                "<4sI4s4sIHHIIHH4sI",
                *(b"RIFF", data + 36, b"WAVE", b"fmt ", 16, 1, 1, sample_rate_hz),
                *(sample_rate_hz * 2, 2, 16, b"data", data),
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, samples: Samples) -> None:
        self._put(samples.astype("<i2", copy=False).data.cast("B"))

    def digest(self) -> tuple[str, int]:
        return self._sha.hexdigest(), self._size

    def _put(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._sha.update(data)
        self._size += len(data)
