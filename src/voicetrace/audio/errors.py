# SPDX-License-Identifier: Apache-2.0
"""The two errors of the recording: one for who writes it, one for who reads it."""

from __future__ import annotations


class RecordingError(Exception):
    """The recording cannot be written, finished or repaired; the sentence says which file and why."""


class ClipError(Exception):
    """There is no audio to give; the sentence says for what, and why."""
