# SPDX-License-Identifier: Apache-2.0
"""`CallFiles`: a call's folder. Everything here that touches the disk runs on the writer thread.

``<directory>/<call id>/``: ``journal.jsonl``, ``recording.*`` with its index, and at the end
``messages.json``, the full map that ``voice.messages.uri`` points at when the span's copy had to be cut;
also ``trace.json``, the call's spans, where nothing could send them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from voicetrace import events as ev
from voicetrace.journal import FILE_NAME, JournalWriter
from voicetrace.messages import Channel
from voicetrace.writer import Writer

if TYPE_CHECKING:
    from voicetrace.audio import RecordingFacts, RecordingWriter
    from voicetrace.settings import Settings

RECORDING_STEM: Final = "recording"
MESSAGES_NAME: Final = "messages.json"
TRACE_NAME: Final = "trace.json"
# events that a full disk refused wait in memory, about 5 MB of them; above that the oldest are lost
MAX_UNWRITTEN: Final = 10_000


class CallFiles:
    """The journal, the recording and the full map of one call.

    Methods without a leading underscore may be called on the event loop: they queue and return. A disk
    that refuses is said once in the record, and the call goes on without that file.
    """

    def __init__(
        self,
        directory: Path | None,
        *,
        settings: Settings,
        origin_unix_ms: int,
        writer: Writer,
        emit: Callable[[ev.Event], Any],
    ) -> None:
        self.directory = directory
        self._settings = settings
        self.origin_unix_ms = origin_unix_ms
        self._writer = writer
        self._emit = emit
        self._journal: JournalWriter | None = None
        self._journal_failed = False
        self._unwritten: deque[ev.Event] = deque(maxlen=MAX_UNWRITTEN)
        self._recording: RecordingWriter | None = None
        self._stopped: RecordingWriter | None = None  # it failed
        self._recording_finished = False
        self._asked_to_record = False
        self._adopted: Path | None = None  # the framework's own file
        self._held: BinaryIO | None = None  # it, open: it may be deleted as soon as the call is over
        self._consent_from_ms: int | None = 0 if settings.consent == "given" else None
        self._lost: dict[Channel, tuple[int, int]] = {}  # audio refused by the full queue, call-ms
        self._now_ms = 0

    # -- on any thread -------------------------------------------------------------------------------
    def open(self) -> None:
        """Queue the opening of the journal; before any event, and once `emit` may be called."""
        if self.directory is not None:
            self._writer.submit(self._open_journal, self.directory / FILE_NAME)

    @property
    def messages_uri(self) -> str | None:
        """Where the full map will be."""
        return None if self.directory is None else (self.directory / MESSAGES_NAME).absolute().as_uri()

    def uri(self, name: str) -> str:
        """A file of this folder as an absolute URI; files elsewhere stay as they are."""
        if self.directory is None or "://" in name:
            return name
        return (self.directory / name).absolute().as_uri()

    def journal(self, event: ev.Event) -> None:
        """Queue an event for the journal."""
        if self.directory is not None:
            self._writer.submit(self._append, event)

    def sync(self) -> None:
        """Queue a sync: a message ended, and should survive the machine."""
        if self.directory is not None:
            self._writer.submit(self._sync)

    @property
    def wants_audio(self) -> tuple[Channel, ...]:
        """The channels that are to be recorded."""
        return self._settings.audio_channels if self.directory is not None else ()

    def start_recording(self, sample_rate_hz: int) -> None:
        """Open the recording at this rate; agent audio of the same rate is kept sample for sample."""
        if not self._asked_to_record and self.wants_audio:
            self._asked_to_record = True
            self._writer.submit(self._open_recording, sample_rate_hz)

    @property
    def records(self) -> bool:
        """Whether the call has a recording, or was asked to."""
        return self._asked_to_record

    def adopt_recording(self, path: Path, sample_rate_hz: int) -> None:
        """Take the file that the framework makes, both channels from call-ms 0 on, instead of making one.

        It is copied when the call is over, and must be whole by then; see `hold_adopted`.
        """
        if not self._asked_to_record and self.directory is not None:
            self._asked_to_record = True
            self._adopted = path
            self._writer.submit(self._announce_adopted, path.with_stem(RECORDING_STEM).name, sample_rate_hz)

    def hold_adopted(self) -> None:
        """Open the adopted file, which is whole now; its owner may delete it before the writer gets to it.

        The one thing that is done with a file on the event loop: one `open`, when the call is over.
        """
        if self._adopted is not None and self._held is None:
            with contextlib.suppress(OSError):  # said in the record when it is to be copied
                self._held = self._adopted.open("rb")

    def set_consent(self, at_ms: int, *, given: bool) -> None:
        """Queue that audio from `at_ms` on may be written, or may not."""
        if self.wants_audio:
            self._writer.submit(self._set_consent, at_ms, given)

    def mute(self, channel: Channel, start_ms: int, end_ms: int) -> None:
        """Queue that what was heard there is silenced, in call-ms."""
        if channel in self.wants_audio:
            self._writer.submit(self._mute, channel, start_ms, end_ms)

    def caller_audio(self, arrived_ms: float, pcm: bytes, rate_hz: int, channels: int) -> None:
        """Queue one frame of the caller, complete at `arrived_ms`. `pcm` is a copy, s16, interleaved."""
        duration_ms = len(pcm) / (2 * channels * rate_hz) * 1000
        self._queue_audio(
            Channel.CALLER,
            len(pcm),
            (int(arrived_ms - duration_ms), int(arrived_ms)),
            self._write_caller,
            (arrived_ms, pcm, rate_hz, channels),
        )

    def agent_audio(self, start_ms: int, pcm: bytes, rate_hz: int, channels: int) -> None:
        """Queue audio of the agent that *played* from `start_ms` on without a break."""
        duration_ms = len(pcm) / (2 * channels * rate_hz) * 1000
        self._queue_audio(
            Channel.AGENT,
            len(pcm),
            (start_ms, int(start_ms + duration_ms)),
            self._write_agent,
            (start_ms, pcm, rate_hz, channels),
        )

    def _queue_audio(
        self,
        channel: Channel,
        size: int,
        span: tuple[int, int],
        job: Callable[..., None],
        args: tuple[Any, ...],
    ) -> None:
        if channel not in self.wants_audio:
            return
        if self._writer.submit_audio(size, job, *args):
            if channel in self._lost:
                self._writer.submit(self._note_lost, channel, *self._lost.pop(channel))
            return
        first = channel not in self._lost
        start, _ = self._lost.get(channel, span)
        self._lost[channel] = (start, span[1])
        if first:
            self._fault(span[0], f"{channel} audio from {span[0]} ms was lost: the disk is too slow")

    def finish(self, end_ms: int, documents: Callable[[], dict[str, Any]], done: Callable[[], None]) -> None:
        """Queue the end: finish the recording, write the documents, close the journal, then call `done`.

        `documents` gives JSON objects by file name. The first that cannot be written is the last tried.
        """
        for channel, lost in self._lost.items():
            self._writer.submit(self._note_lost, channel, *lost)
        self._lost.clear()
        self._writer.submit(self._finish_recording, end_ms, lambda: self._finish_files(documents, done))

    def abandon(self) -> None:
        """In a forked child: the files are the parent's. Let go of them as they are, and touch none."""
        self.directory = None
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.close()
        if self._held is not None:
            self._held.close()
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    # -- on the writer thread ------------------------------------------------------------------------
    def _fault(self, at_ms: int, message: str) -> None:
        self._emit(ev.CaptureFault(at_ms=at_ms, message=message))

    def _open_journal(self, path: Path) -> None:
        try:
            self._journal = JournalWriter(path)
        except Exception as error:  # noqa: BLE001  said in the record
            self._journal_error(error)

    def _journal_error(self, error: Exception) -> None:
        if not self._journal_failed:
            self._journal_failed = True
            reason = getattr(error, "strerror", None) or error
            self._fault(
                self._now_ms,
                f"the journal in {self.directory} could not be written ({reason}): a crash loses the call",
            )

    def _append(self, event: ev.Event) -> None:
        self._now_ms = max(self._now_ms, event.at_ms)
        if self._journal is not None:
            self._unwritten.append(event)
            self._write_events(self._journal)
        if self._recording is not None and not self._recording.failed:
            self._guard_recording(self._recording.advance, event.at_ms)

    def _write_events(self, journal: JournalWriter) -> None:
        """Also those that the disk refused before: it may be full for a while only."""
        while self._unwritten:
            event = self._unwritten.popleft()
            try:
                journal.append(event)
            except Exception as error:  # noqa: BLE001  said in the record
                self._unwritten.appendleft(event)
                self._journal_error(error)
                return

    def _sync(self) -> None:
        if self._journal is not None:
            try:
                self._journal.sync()
            except Exception as error:  # noqa: BLE001  said in the record
                self._journal_error(error)

    def _open_recording(self, sample_rate_hz: int) -> None:
        from voicetrace.audio import RecordingWriter

        assert self.directory is not None
        path = self.directory / f"{RECORDING_STEM}.wav"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._recording = RecordingWriter(
                path,
                sample_rate_hz=sample_rate_hz,
                origin_unix_ms=self.origin_unix_ms,
                channels=self._settings.audio_channels,
                recording=False,
            )
            if self._consent_from_ms is not None:
                self._recording.resume(self._consent_from_ms)
        except Exception as error:  # noqa: BLE001  said in the record
            self._fault(self._now_ms, f"the call is not recorded: {error}")
            return
        self._emit(
            ev.RecordingStarted(
                at_ms=self._now_ms,
                recording_id=self.directory.name,
                uri=path.name,
                format="wav",
                sample_rate_hz=sample_rate_hz,
                channels=self._settings.audio_channels,
                origin_unix_ms=self.origin_unix_ms,
            )
        )
        for segment_id, segment in self._recording.segments.as_mapping().items():
            self._emit(
                ev.SegmentStarted(at_ms=self._now_ms, segment_id=segment_id, start_ms=segment.start_ms)
            )

    def _announce_adopted(self, name: str, sample_rate_hz: int) -> None:
        assert self.directory is not None
        self._emit(
            ev.RecordingStarted(
                at_ms=self._now_ms,
                recording_id=self.directory.name,
                uri=name,
                format="opus",
                sample_rate_hz=sample_rate_hz,
                channels=tuple(Channel),
                origin_unix_ms=self.origin_unix_ms,
            )
        )
        self._emit(ev.SegmentStarted(at_ms=self._now_ms, segment_id="seg_0", start_ms=0))

    def _copy_adopted(self, path: Path) -> RecordingFacts | None:
        """The framework's file, whole, in this folder; what hinders is said in the record."""
        from voicetrace.audio import ClipError
        from voicetrace.audio.facts import facts_of

        assert self.directory is not None
        copy = self.directory / path.with_stem(RECORDING_STEM).name
        try:
            with self._held or path.open("rb") as source:
                if self._consent_from_ms != 0:
                    raise PermissionError("it also has what was said without consent")
                self.directory.mkdir(parents=True, exist_ok=True)
                with open(copy, "xb", opener=_private) as target:
                    shutil.copyfileobj(source, target)
            return facts_of(copy)
        except (OSError, ClipError) as error:
            self._fault(self._now_ms, f"the framework's recording {path.name} is not copied: {error}")
            return None

    def _set_consent(self, at_ms: int, given: bool) -> None:
        self._consent_from_ms = at_ms if given else None
        if self._recording is None:
            return  # not opened yet, or failed
        if given:
            self._emit(
                ev.SegmentStarted(at_ms=at_ms, segment_id=self._recording.resume(at_ms), start_ms=at_ms)
            )
        else:
            pause, ended = self._recording.pause, list[str | None]()
            self._guard_recording(lambda: ended.append(pause(at_ms)))
            for segment_id in ended:
                if segment_id is not None:
                    self._emit(ev.SegmentEnded(at_ms=at_ms, segment_id=segment_id, end_ms=at_ms))

    def _mute(self, channel: Channel, start_ms: int, end_ms: int) -> None:
        if self._recording is not None and not self._recording_finished:
            self._guard_recording(self._recording.mute, channel, start_ms, end_ms)
        elif (recording := self._recording or self._stopped) is not None:
            self._mute_late(recording, channel, start_ms, end_ms)

    def _mute_late(self, recording: RecordingWriter, channel: Channel, start_ms: int, end_ms: int) -> None:
        """The redacted text came when the recording was over; the file is still there, unless encoded."""
        from voicetrace.audio import ClipError, RecordingError
        from voicetrace.audio.facts import facts_of

        try:
            if self._recording_finished and self._settings.recording_format != "wav":
                raise RecordingError("it is encoded")  # noqa: TRY301
            recording.mute(channel, start_ms, end_ms)
            if self._recording_finished:
                self._tell_finished(facts_of(recording.path))
        except (OSError, ClipError, RecordingError) as error:
            self._fault(self._now_ms, f"{channel} audio from {start_ms} ms could not be silenced: {error}")

    def _guard_recording(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        try:
            method(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  said in the record
            recording, self._recording = self._recording, None
            if recording is not None:
                self._stopped = recording
                recording.close()
                for segment_id in recording.segments.as_mapping():
                    self._emit(
                        ev.SegmentEnded(at_ms=self._now_ms, segment_id=segment_id, end_ms=self._now_ms)
                    )
            self._fault(self._now_ms, f"the recording stopped at {self._now_ms} ms: {error}")

    def _write_caller(self, arrived_ms: float, pcm: bytes, rate_hz: int, channels: int) -> None:
        if self._recording is not None:
            self._guard_recording(self._recording.write_caller, arrived_ms, pcm, rate_hz, channels)

    def _write_agent(self, start_ms: int, pcm: bytes, rate_hz: int, channels: int) -> None:
        if self._recording is not None:
            self._guard_recording(self._recording.write_agent_run, start_ms, pcm, rate_hz, channels)

    def _note_lost(self, channel: Channel, start_ms: int, end_ms: int) -> None:
        if self._recording is not None:
            self._guard_recording(self._recording.note_lost, channel, start_ms, end_ms, "queue full")

    def _finish_recording(self, end_ms: int, then: Callable[[], None]) -> None:
        self._now_ms = max(self._now_ms, end_ms)
        facts: list[RecordingFacts] = []
        if self._recording is not None:
            finish = self._recording.finish
            self._guard_recording(lambda: facts.append(finish(end_ms)))
            self._recording_finished = bool(facts)
        if self._adopted is not None and (copied := self._copy_adopted(self._adopted)) is not None:
            self._announce(copied, then)
        elif not facts:
            self._writer.submit(then)  # queued behind the journal's line of what went wrong
        elif self._settings.recording_format == "wav":
            self._announce(facts[0], then)
        else:
            self._writer.submit_long(self._encode, facts[0], then)

    def _encode(self, facts: RecordingFacts, then: Callable[[], None]) -> None:
        """On the encoder's thread: it takes long, and other calls wait for the writer."""
        from voicetrace.audio import ClipError, encode

        try:
            facts = encode(facts, self._settings.recording_format)
        except (OSError, ClipError) as error:
            facts = replace(facts, note=f"the recording stays a WAV: {error}")
        self._writer.submit(self._announce, facts, then)

    def _announce(self, facts: RecordingFacts, then: Callable[[], None]) -> None:
        if facts.note:
            self._fault(self._now_ms, facts.note)
        self._tell_finished(facts)
        # queued behind the journal's line of that event, and of what is silenced late
        self._writer.submit(self._writer.submit, then)

    def _tell_finished(self, facts: RecordingFacts) -> None:
        self._emit(
            ev.RecordingFinished(
                at_ms=self._now_ms,
                uri=facts.uri,
                format=facts.format,
                duration_ms=facts.duration_ms,
                sha256=facts.sha256,
            )
        )

    def _finish_files(self, documents: Callable[[], dict[str, Any]], done: Callable[[], None]) -> None:
        name = MESSAGES_NAME
        try:
            if self.directory is not None and self.directory.is_dir():
                for name, document in documents().items():
                    write_json(self.directory / name, document)
        except Exception as error:  # noqa: BLE001  said in the record; `done` must be called
            self._fault(self._now_ms, f"{name} could not be written: {error}")
        if self._journal is not None:
            self._sync()
            self._journal.close()
            self._journal = None
        done()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)  # readable by its owner only: it holds what people said


def write_json(path: Path, document: Any) -> None:
    """Write a JSON file whole or not at all, readable by its owner only: it can hold what people said.

    Raises:
        OSError: the disk refused; what stood there before still does.
    """
    temporary = path.with_name(f".{path.name}.part")
    try:
        text = json.dumps(document, indent=2, ensure_ascii=True) + "\n"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # or a loss of power could leave it under its name, and empty
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
