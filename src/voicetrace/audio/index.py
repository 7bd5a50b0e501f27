# SPDX-License-Identifier: Apache-2.0
"""The sidecar of a recording: which samples were written, and what was lost.

``call.wav`` has ``call.index.jsonl``, also after it became ``call.flac``. Selections are whole ms and runs
of audio are not: the index makes a clip exact to the sample, and lets a viewer skip silence. One JSON
object a line, appended by one ``write`` each, after the samples it speaks of::

    {"voicetrace_recording_index": 1, "sample_rate_hz": 24000}
    {"channel": "agent", "start": 48000, "samples": 61337, "at_ms": 2000}
    {"channel": "caller", "start": 96000, "samples": 240000}
    {"channel": "caller", "lost": {"start_ms": 900, "end_ms": 1100, "reason": "queue full"}}

``at_ms`` is the call-ms at which an agent run was said to start, which differs from ``start`` where the run
was joined to the one before it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voicetrace.messages import Channel

_VERSION = "voicetrace_recording_index"


def index_path(recording: Path) -> Path:
    """Where the sidecar of a recording is."""
    return recording.with_suffix(".index.jsonl")


class IndexWriter:
    """Appends to a new sidecar. Every method may raise `OSError`."""

    def __init__(self, path: Path, sample_rate_hz: int) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        try:
            self._line({_VERSION: 1, "sample_rate_hz": sample_rate_hz})
        except OSError:
            self.close()
            raise

    def run(self, channel: Channel, start: int, samples: int, at_ms: int | None = None) -> None:
        """Samples of a channel were written."""
        line: dict[str, Any] = {"channel": channel, "start": start, "samples": samples}
        self._line(line if at_ms is None else {**line, "at_ms": at_ms})

    def lost(self, channel: Channel, start_ms: int, end_ms: int, reason: str) -> None:
        """Audio of a channel was not written."""
        self._line({"channel": channel, "lost": {"start_ms": start_ms, "end_ms": end_ms, "reason": reason}})

    def sync(self) -> None:
        """Put the sidecar on the disk."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Let go of the file; harmless when done twice."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _line(self, line: dict[str, Any]) -> None:
        data = (json.dumps(line, separators=(",", ":")) + "\n").encode()
        if os.write(self._fd, data) < len(data):
            raise OSError(28, "No space left for the recording's index")


@dataclass(frozen=True, slots=True)
class Run:
    """Contiguous samples of a channel; `at_ms` where an agent run was said to start."""

    channel: Channel
    start: int
    samples: int
    at_ms: int | None = None

    @property
    def end(self) -> int:
        """The sample behind the last."""
        return self.start + self.samples


@dataclass(frozen=True, slots=True)
class Lost:
    """Audio that is not in the recording, in call-ms, and why."""

    channel: Channel
    start_ms: int
    end_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Index:
    """What a sidecar says, in the order it was written."""

    sample_rate_hz: int
    runs: tuple[Run, ...] = ()
    lost: tuple[Lost, ...] = ()

    def samples_of(self, channel: Channel, start_ms: int, end_ms: int) -> tuple[int, int]:
        """The samples that a stretch in call-ms stands for: exactly the runs it names, where it names any.

        A run that starts in the stretch gives it its true first and last sample. A run that the stretch
        cuts gives as much as it says. Elsewhere a ms is ``rate / 1000`` samples.
        """
        rate = self.sample_rate_hz
        low, high = start_ms * rate // 1000, end_ms * rate // 1000
        a_ms = rate // 1000 + 1  # bounds are rounded to whole ms: this near, they mean the run's own end
        named = [run for run in self.runs if run.channel is channel and run.at_ms is not None]
        begins = next((i for i, run in enumerate(named) if run.at_ms == start_ms), 0)
        found: list[tuple[int, int]] = []
        for run in named[begins:]:
            assert run.at_ms is not None
            said = run.at_ms * rate // 1000
            if run.at_ms < start_ms and said + run.samples <= low + a_ms:
                continue  # the message before
            if run.at_ms > start_ms and run.at_ms >= end_ms - 1:
                break  # the message after
            moved = run.start - said
            first = run.start if run.at_ms >= start_ms else low + moved
            if abs(run.end - (high + moved)) <= a_ms:
                found.append((first, run.end))
                break
            last = min(run.end, high + moved)
            if first < last:
                found.append((first, last))
        return (found[0][0], found[-1][1]) if found else (low, high)


def read_index(recording: Path) -> Index | None:
    """Read a recording's sidecar; ``None`` when there is none that can be read. Torn lines are skipped."""
    try:
        text = index_path(recording).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    rate, runs, lost = 0, [], []
    for line in text.splitlines():
        try:
            data = json.loads(line)
            if data.get(_VERSION) == 1:
                rate = int(data["sample_rate_hz"])
            elif "lost" in data:
                said = data["lost"]
                lost.append(Lost(Channel(data["channel"]), said["start_ms"], said["end_ms"], said["reason"]))
            else:
                at_ms = data.get("at_ms")
                start, samples = int(data["start"]), int(data["samples"])
                runs.append(Run(Channel(data["channel"]), start, samples, at_ms))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return Index(rate, tuple(runs), tuple(lost)) if rate > 0 else None
