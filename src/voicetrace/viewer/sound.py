# SPDX-License-Identifier: Apache-2.0
"""The recording for a page: its picture, and its sound in pieces that a browser decodes one at a time.

A piece is a file of its own, a few seconds long. So the page plays any stretch from its first sample to its
last without decoding an hour first, and lossless pieces give exactly the samples of the recording.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote

import numpy as np

from voicetrace.audio import ClipError, Index, read_index
from voicetrace.audio.clip import samples_of
from voicetrace.audio.index import Lost
from voicetrace.audio.pcm import Samples
from voicetrace.audio.source import Source
from voicetrace.audio.transcode import encoded, usable_format
from voicetrace.messages import Channel, Recording, VoiceMessage
from voicetrace.viewer.peaks import bin_samples, peaks
from voicetrace.voice_call import VoiceCall

AudioChoice = Literal["embed", "link", "none"]
Form = Literal["flac", "opus"]

EMBED_LIMIT: Final = 16 * 1024 * 1024
"""The most bytes of audio a page gets unless it is asked for."""
MEDIA_TYPES: Final[dict[Form, str]] = {"flac": "audio/flac", "opus": "audio/ogg; codecs=opus"}
_BINS_PER_PIECE: Final = 400  # about 8 s
_MOST_SAVED: Final = 16  # FLAC makes speech with pauses about a fifth: what is longer is not tried
_OPUS_BYTES_PER_S: Final = 4000  # and channel
_LINKED: Final = (
    "It is linked: keep it beside this page to listen. Both voices are heard at once, "
    "and a message ends within some hundredths of a second."
)


@dataclass(frozen=True)
class Sound:
    """What a page has of the recording.

    ``pieces`` hold ``piece_samples`` each, the last one fewer, and the ``channels`` in this order; they are
    empty unless the audio is in the page. ``href`` leads to the recording where it is linked. ``note`` is a
    sentence for whoever reads the page; ``peaks`` are bytes for each channel (`voicetrace.viewer.peaks`).
    """

    note: str = ""
    channels: tuple[Channel, ...] = ()
    sample_rate_hz: int = 0
    frames: int = 0
    bin_samples: int = 0
    peaks: tuple[bytes, ...] = ()
    form: Form | None = None
    pieces: tuple[bytes, ...] = field(default=(), repr=False)
    piece_samples: int = 0
    href: str | None = None
    lost: tuple[tuple[Channel, int, int, str], ...] = ()
    ranges: dict[str, tuple[tuple[Channel, int, int], ...]] = field(default_factory=dict, repr=False)
    """Message id -> the samples that are this message: channel, first, behind the last."""
    problems: tuple[str, ...] = ()


def sound_of(call: VoiceCall, choice: AudioChoice | None, page: Path) -> Sound:
    """What the page at `page` gets of the call's recording; without a choice, what fits in it.

    Never fails for a recording that is missing or torn: the note says what is wrong with it.

    Raises:
        RecordingError: it cannot be encoded.
    """
    recording, path = call.recording, call.recording_path()
    if recording is None:
        return Sound(note="The call was not recorded.")
    if path is None:
        where = recording.uri.partition("?")[0]  # what follows may be a key to it
        return Sound(note=f"The recording is not on the machine that made this page, but at {where}.")
    if not path.is_file():
        return Sound(note=f"The recording {path.name} was not there when this page was made.")
    try:
        with Source(path) as source:
            return _Reader(source, recording, read_index(path)).sound(call.messages, choice, path, page)
    except ClipError as error:
        return Sound(note=f"The recording cannot be used: {str(error).replace(str(path), path.name)}.")


class _Reader:
    """One recording, read piece by piece: only the columns that were captured, in the order of `Channel`."""

    def __init__(self, source: Source, recording: Recording, index: Index | None) -> None:
        self._source = source
        self._recording = recording
        self._index = index
        said = tuple(recording.channels)
        self.channels = tuple(channel for channel in Channel if channel in said)
        self._columns = [source.column(channel, said) for channel in self.channels]
        self._bin = bin_samples(source.sample_rate_hz)
        self._piece = self._bin * _BINS_PER_PIECE

    def sound(
        self, messages: tuple[VoiceMessage, ...], choice: AudioChoice | None, path: Path, page: Path
    ) -> Sound:
        if not self.channels or not self._source.frames:
            return Sound(note=f"The recording {path.name} is empty.")
        form, pieces, note = self._audio(choice)
        linked = choice == "link" or (choice is None and form is None)
        ranges, problems = self._ranges(messages)
        pictures = [peaks(piece, self._bin) for piece in self._pieces()]
        return Sound(
            note=note,
            channels=self.channels,
            sample_rate_hz=self._source.sample_rate_hz,
            frames=self._source.frames,
            bin_samples=self._bin,
            peaks=tuple(column.tobytes() for column in np.concatenate(pictures).T),
            form=form,
            pieces=pieces,
            piece_samples=self._piece,
            href=_href(path, page) if linked else None,
            lost=tuple((lost.channel, lost.start_ms, lost.end_ms, lost.reason) for lost in self._lost()),
            ranges=ranges,
            problems=problems,
        )

    def _audio(self, choice: AudioChoice | None) -> tuple[Form | None, tuple[bytes, ...], str]:
        """The form and the pieces, if the audio goes into the page, and what to say about it."""
        if choice == "none":
            return None, (), "The audio was left out of this page."
        if choice == "link":
            return None, (), f"The recording is not in this page. {_LINKED}"
        raw = 2 * len(self.channels) * self._source.frames
        lossless = self._encoded("flac", EMBED_LIMIT) if raw < _MOST_SAVED * EMBED_LIMIT else None
        if lossless is not None:
            return "flac", lossless, "The audio is in this page, lossless."
        form: Form = "opus"
        if usable_format("opus", self._source.sample_rate_hz) != "opus":
            form = "flac"
        seconds = self._source.frames / self._source.sample_rate_hz
        too_large = form == "flac" or _OPUS_BYTES_PER_S * len(self.channels) * seconds > EMBED_LIMIT
        if choice is None and too_large:
            return None, (), f"The recording is too long to put into this page. {_LINKED}"
        pieces = self._encoded(form, None)
        assert pieces is not None
        how = "compressed (Opus); the recording itself is finer" if form == "opus" else "lossless"
        return form, pieces, f"The audio is in this page, {how}."

    def _pieces(self) -> Iterator[Samples]:
        for frames in self._source.blocks(self._piece):
            yield np.ascontiguousarray(frames[:, self._columns])

    def _encoded(self, form: Form, limit: int | None) -> tuple[bytes, ...] | None:
        """Every piece, encoded; ``None`` as soon as they are more than `limit` bytes."""
        workers = os.cpu_count() or 1
        rate = self._source.sample_rate_hz
        out: list[bytes] = []
        size = 0
        with ThreadPoolExecutor(workers) as pool:
            pieces = self._pieces()
            while some := list(islice(pieces, 2 * workers)):  # so many are in memory at a time
                done = list(pool.map(lambda piece: encoded(piece, rate, form), some))
                out += done
                size += sum(map(len, done))
                if limit is not None and size > limit:
                    return None
        return tuple(out)

    def _ranges(
        self, messages: tuple[VoiceMessage, ...]
    ) -> tuple[dict[str, tuple[tuple[Channel, int, int], ...]], tuple[str, ...]]:
        """The samples of each message that are in the file, and sentences about those that are not."""
        ranges: dict[str, tuple[tuple[Channel, int, int], ...]] = {}
        problems = []
        for message in messages:
            try:
                found = samples_of(self._recording, message, self._source, self._index)
            except ClipError as error:
                problems.append(str(error))
                continue
            held = [
                (channel, max(0, low), min(high, self._source.frames))
                for channel, low, high in found
                if channel in self.channels
            ]
            held = [one for one in held if one[1] < one[2]]
            if sum(high - low for _, low, high in held) < sum(high - low for _, low, high in found):
                problems.append(f"the recording does not hold all of message {message.id}")
            if held:
                ranges[message.id] = tuple(held)
        return ranges, tuple(problems)

    def _lost(self) -> Iterator[Lost]:
        for lost in self._index.lost if self._index is not None else ():
            if lost.channel in self.channels:
                yield lost


def _href(path: Path, page: Path) -> str:
    """From the page to the recording: relative, so that both can be moved together."""
    return quote(os.path.relpath(path.resolve(), page.resolve().parent).replace(os.sep, "/"))
