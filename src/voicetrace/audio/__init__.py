# SPDX-License-Identifier: Apache-2.0
"""The two-channel recording of a call: written as it happens, cut into messages, mended after a crash.

``wav`` and ``index`` are the two files, ``placement`` says where the caller's frames belong in time,
``writer`` puts it together; ``source`` and ``clip`` read it back. Contract, section 5.
"""

from voicetrace.audio.clip import Clip, clip_message
from voicetrace.audio.errors import ClipError, RecordingError
from voicetrace.audio.facts import RecordingFacts, encode
from voicetrace.audio.index import Index, index_path, read_index
from voicetrace.audio.pcm import to_mono
from voicetrace.audio.repair import repair
from voicetrace.audio.segments import OpenSegment, Segments, selections_for
from voicetrace.audio.source import read_channel
from voicetrace.audio.transcode import RecordingFormat
from voicetrace.audio.writer import RecordingWriter

__all__ = [
    "Clip",
    "ClipError",
    "Index",
    "OpenSegment",
    "RecordingError",
    "RecordingFacts",
    "RecordingFormat",
    "RecordingWriter",
    "Segments",
    "clip_message",
    "encode",
    "index_path",
    "read_channel",
    "read_index",
    "repair",
    "selections_for",
    "to_mono",
]
