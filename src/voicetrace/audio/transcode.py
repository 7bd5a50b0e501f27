# SPDX-License-Identifier: Apache-2.0
"""A finished WAV made smaller: FLAC (lossless) or Ogg/Opus (small), or left as it is."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Final, Literal, TypeAlias

import soundfile as sf  # type: ignore[import-untyped,unused-ignore]

from voicetrace.audio.errors import RecordingError
from voicetrace.audio.pcm import Samples
from voicetrace.audio.source import Source

RecordingFormat: TypeAlias = Literal["wav", "flac", "opus"]
"""``wav`` and ``flac`` are lossless; ``opus`` is an Ogg file, about 1/20 of the size."""
SUFFIXES: Final[dict[str, str]] = {"wav": ".wav", "flac": ".flac", "opus": ".ogg"}
OPUS_RATES: Final = frozenset({8000, 12000, 16000, 24000, 48000})
_ENCODINGS: Final = {"flac": ("FLAC", "PCM_16"), "opus": ("OGG", "OPUS")}
# small pieces: one big array makes libsndfile 1.2.2 overrun its stack when it writes Ogg
BLOCK: Final = 1 << 14
_SPEECH_LEVEL: Final = 0.9  # libsndfile's scale of 256 to 6 kbit/s a channel, from 0 to 1


def usable_format(wanted: RecordingFormat, sample_rate_hz: int) -> RecordingFormat:
    """The format a recording of this rate can have: Opus knows five rates, others become FLAC."""
    return "flac" if wanted == "opus" and sample_rate_hz not in OPUS_RATES else wanted


def partial_path(final: Path) -> Path:
    """What a file is called while it is being encoded."""
    return final.with_name(final.name + ".part")


def transcode(wav: Path, wanted: RecordingFormat) -> Path:
    """Encode a finished WAV beside itself, whole or not at all, and remove the WAV.

    Returns:
        The new file, or `wav` itself for ``wav``.

    Raises:
        RecordingError: it could not be encoded; the WAV is untouched.
    """
    with Source(wav) as source:
        target = usable_format(wanted, source.sample_rate_hz)
        if target == "wav":
            return wav
        final = wav.with_suffix(SUFFIXES[target])
        part = partial_path(final)
        try:
            # what people said is private: as the WAV is, not as the process's umask says
            part.touch(mode=0o600)
            part.chmod(0o600)
            _encode(source, part, target)
            part.replace(final)
            _sync(final.parent)
        except (OSError, sf.SoundFileError) as error:
            part.unlink(missing_ok=True)
            raise RecordingError(f"{wav} stays a WAV, encoding it as {target} failed: {error}") from error
    wav.unlink()
    return final


def encoded(frames: Samples, sample_rate_hz: int, target: Literal["flac", "opus"]) -> bytes:
    """Frames (shape ``(samples, channels)``) as a file of their own: a piece of a recording, to hand out.

    Opus takes about 4 kB a second and channel. Any thread will do.

    Raises:
        RecordingError: it could not be encoded.
    """
    container, encoding = _ENCODINGS[target]
    level = _SPEECH_LEVEL if target == "opus" else None
    out = io.BytesIO()
    try:
        with sf.SoundFile(
            out,
            "w",
            sample_rate_hz,
            frames.shape[1],
            format=container,
            subtype=encoding,
            compression_level=level,
        ) as file:
            for at in range(0, len(frames), BLOCK):
                file.write(frames[at : at + BLOCK])
    except (OSError, ValueError, sf.SoundFileError) as error:
        raise RecordingError(f"audio cannot be encoded as {target}: {error}") from error
    return out.getvalue()


def _encode(source: Source, part: Path, target: RecordingFormat) -> None:
    container, encoding = _ENCODINGS[target]
    with sf.SoundFile(
        part, "w", source.sample_rate_hz, source.channels, format=container, subtype=encoding
    ) as out:
        for frames in source.blocks(BLOCK):
            out.write(frames)
    written = sf.info(part).frames
    if written != source.frames:
        raise OSError(f"{part.name} came out {written} samples long, not {source.frames}")
    _sync(part)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
