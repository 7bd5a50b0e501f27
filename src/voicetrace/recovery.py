# SPDX-License-Identifier: Apache-2.0
"""`recover`: journals of dead processes become finished calls: messages, spans, recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from voicetrace import events as ev
from voicetrace.audio import RecordingError, RecordingFacts, repair
from voicetrace.call import CallRecorder, fold
from voicetrace.call.recording import Stretch
from voicetrace.files import MESSAGES_NAME, TRACE_NAME, write_json
from voicetrace.journal import (
    FILE_NAME,
    Journal,
    JournalError,
    append_events,
    claimed,
    journals_in,
    read_journal,
    voice_call,
)
from voicetrace.otel.attributes import call_document
from voicetrace.otel.otlp_json import write_trace
from voicetrace.otel.rebuild import call_spans
from voicetrace.voice_call import VoiceCall

REASON: Final = "process died"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that was left as it is, and why."""

    path: Path
    reason: str


@dataclass(slots=True)
class Recovery:
    """What `recover` found and did; nothing is ever deleted.

    `finished` were whole already. Those `running` are held by their process, or by another `recover`.
    """

    recovered: list[VoiceCall] = field(default_factory=list)
    finished: list[Path] = field(default_factory=list)
    running: list[Path] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)


def recover(directory: str | Path, *, exporter: SpanExporter | None = None) -> Recovery:
    """Finish every call under a directory whose process died.

    Each gets what a clean close would have left: the end in its journal, the recording with its true
    length, ``messages.json``, and ``trace.json`` with the call span and its LLM steps under their own
    ids. Doing it again changes nothing.

    Args:
        directory: A directory of calls, one call's folder, or one journal.
        exporter: Also sends the call span, and those LLM spans that had not left the process, here.

    Raises:
        FileNotFoundError: there is no such directory.
    """
    root = Path(directory)
    if not root.exists():
        raise FileNotFoundError(f"there is no directory of calls at {root}")
    report = Recovery()
    for path in [root] if root.is_file() else journals_in(root):
        try:
            _recover_one(path, report, exporter)
        except (JournalError, OSError) as error:
            report.skipped.append(Skipped(path, str(error)))
        except Exception as error:  # noqa: BLE001  named and counted; a broken journal costs no other its end
            report.skipped.append(
                Skipped(path, f"{path} cannot be recovered: {type(error).__name__}: {error}")
            )
    return report


def _recover_one(path: Path, report: Recovery, exporter: SpanExporter | None) -> None:
    if path.is_symlink() or not path.is_file():  # what a link points at has a folder of its own
        raise JournalError(f"{path} is no regular file; it was left as it is")
    with claimed(path) as ours:  # to the end: two that recover one call would end it twice
        if ours:
            _finish(path, report, exporter)
        else:
            report.running.append(path)


def _finish(path: Path, report: Recovery, exporter: SpanExporter | None) -> None:
    journal = read_journal(path)
    if journal.ended and _beside(path, MESSAGES_NAME).exists():
        report.finished.append(path)
        return
    recorder = fold(journal.events)
    if recorder.started is None:
        raise JournalError(f"{path} has lost the start of its call; it was left as it is")
    facts, faults = _mend_recording(path.parent, recorder)
    closing: list[ev.Event] = [ev.CaptureFault(at_ms=recorder.now_ms, message=m) for m in faults]
    if not journal.ended:
        end_ms = max(recorder.now_ms, facts.duration_ms if facts else 0)
        closing.append(ev.CallEnded(at_ms=end_ms, reason=REASON))
    for event in closing:
        recorder.apply(event)
    if facts is not None and recorder.silenced:  # now that also what went on has its end
        facts, more = _mend_recording(path.parent, recorder, silenced=recorder.silenced)
        closing += [ev.CaptureFault(at_ms=recorder.now_ms, message=m) for m in more]
    if facts is not None and (recorder.recording is None or recorder.recording.sha256 != facts.sha256):
        closing.append(
            ev.RecordingFinished(
                at_ms=recorder.now_ms,
                uri=facts.uri,
                format=facts.format,
                duration_ms=facts.duration_ms,
                sha256=facts.sha256,
            )
        )
    append_events(path, closing)
    recorder = fold([*journal.events, *closing])
    _write_outputs(path, recorder, exporter)
    whole = Journal(path, (*journal.events, *closing), journal.problems, journal.torn)
    report.recovered.append(voice_call(whole))


def _beside(journal: Path, name: str) -> Path:
    """A call's file: in the call's own folder by its plain name, among other journals by the journal's."""
    return journal.with_name(name if journal.name == FILE_NAME else f"{journal.stem}.{name}")


def _mend_recording(
    folder: Path, recorder: CallRecorder, *, silenced: Sequence[Stretch] = ()
) -> tuple[RecordingFacts | None, list[str]]:
    if recorder.recording is None:
        return None, []
    name = Path(recorder.recording.uri)
    # not ours to touch: only what lies beside the journal is mended
    if name.name != str(name) or (folder / name).is_symlink():
        return None, [f"the recording {name} does not lie beside the journal; it is left as it is"]
    try:
        return repair(folder / name, end_ms=recorder.now_ms, muted=silenced), []
    except RecordingError as error:
        return None, [str(error)]


def _write_outputs(journal: Path, recorder: CallRecorder, exporter: SpanExporter | None) -> None:
    recording = recorder.recording
    messages = _beside(journal, MESSAGES_NAME)
    spans = call_spans(
        recorder,
        recording_uri=(journal.parent / recording.uri).absolute().as_uri() if recording is not None else None,
        messages_uri=messages.absolute().as_uri(),
    )
    write_trace(_beside(journal, TRACE_NAME), spans)
    if exporter is not None:
        _export(exporter, spans, recorder)
    # last, because its presence says that the call is finished
    write_json(messages, call_document(recorder))


def _export(exporter: SpanExporter, spans: Sequence[object], recorder: CallRecorder) -> None:
    fresh = [
        span
        for span, step in zip(spans, [None, *recorder.steps], strict=True)
        if step is None or step.span_id not in recorder.exported_steps
    ]
    if exporter.export(fresh) is not SpanExportResult.SUCCESS:  # type: ignore[arg-type]
        raise OSError("the exporter refused the recovered spans; run recover again when it takes them")
