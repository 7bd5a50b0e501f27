# SPDX-License-Identifier: Apache-2.0
"""Spans or a journal in, `VoiceCall`s out (contract, section 6).

Lenient about content: whatever a trace holds, what can be kept is kept as it was logged, and what is wrong
is a warning. Strict about the source: one that is not there, or is no trace at all, is an error.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from opentelemetry.sdk.trace import ReadableSpan

from voicetrace.otel.calls import calls_from_spans
from voicetrace.otel.otlp_json import SpanData, is_otlp, loads_or_none, otlp_to_spans, span_data
from voicetrace.voice_call import VoiceCall

_TRACE_SUFFIXES: Final = (".json", ".jsonl")

logger = logging.getLogger("voicetrace")

Source = str | os.PathLike[str] | Mapping[str, Any] | Iterable[ReadableSpan | SpanData]


def read_calls(source: Source) -> list[VoiceCall]:
    """Read the calls of a source, in order of their start.

    ``source`` is a sequence of finished SDK spans, an OTLP JSON file (one document, or JSON Lines), such a
    document already parsed, a journal file, or a directory of these. A call found twice (its journal and
    its spans) is given once: the one that ended, else the journal's.

    Raises:
        FileNotFoundError: there is no such file or directory.
        OSError: it cannot be read.
        ValueError: it is neither a trace nor a journal. A trace without a call is none: the list is empty.
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if not path.exists():
            raise FileNotFoundError(f"there is no trace or journal at {path}")
        if path.is_dir():
            return _read_directory(path)
        if not path.is_file():  # a pipe or a device: it is read more than once, and may never end
            raise ValueError(f"{path} is no regular file")
        return _in_order(_read_file(path))
    if isinstance(source, Mapping):
        if not is_otlp(source):
            raise ValueError("the mapping is no OTLP trace: it has no list 'resourceSpans'")
        return _in_order(calls_from_spans(otlp_to_spans(source)))
    return _in_order(calls_from_spans(_finished(source)))


# -- sources -------------------------------------------------------------------------------------
def _finished(source: Iterable[ReadableSpan | SpanData]) -> list[SpanData]:
    spans: list[SpanData] = []
    for item in source:
        if isinstance(item, SpanData):
            spans.append(item)
        elif isinstance(item, ReadableSpan):
            spans.append(span_data(item))
        else:
            raise ValueError(f"a source of spans holds a {type(item).__name__}, which is no span")  # noqa: TRY004
    return spans


def _read_directory(directory: Path) -> list[VoiceCall]:
    calls: list[VoiceCall] = []
    traces: dict[Path, list[Path]] = {}
    for path in sorted(p for p in directory.rglob("*") if p.is_file() and not p.name.startswith(".")):
        if _is_journal(path):
            calls += _read_journal_of_many(path)
        elif path.suffix in _TRACE_SUFFIXES:
            traces.setdefault(path.parent, []).append(path)
    found = bool(calls)
    for parent, paths in traces.items():
        # one call's spans may be spread over the files of a directory; other JSON there is passed over
        parsed = [(path, *_parse_requests(_read_text(path))) for path in paths]
        parsed = [item for item in parsed if item[1] is not None]
        found = found or bool(parsed)
        requests = [request for _, some, _ in parsed for request in some or ()]
        source = parsed[0][0] if len(parsed) == 1 else parent
        notes = [_broken_lines(path, broken) for path, _, broken in parsed if broken]
        calls += _with_warnings(calls_from_spans(otlp_to_spans(requests), str(source)), notes)
    if not found:
        raise ValueError(f"{directory} holds no OTLP JSON trace (.json, .jsonl) and no journal")
    return _in_order(_each_once(calls))


def _read_file(path: Path) -> list[VoiceCall]:
    if _is_journal(path):
        from voicetrace.journal import read_journal_call

        return [read_journal_call(path)]
    requests, broken = _parse_requests(_read_text(path))
    if requests is None:
        raise ValueError(f"{path} is neither an OTLP JSON trace nor a journal")
    notes = [_broken_lines(path, broken)] if broken else []
    return _with_warnings(calls_from_spans(otlp_to_spans(requests), str(path)), notes)


def _read_journal_of_many(path: Path) -> list[VoiceCall]:
    """The call of a journal; nothing, with a log line, for a version that this release does not read."""
    from voicetrace.journal import read_journal_call

    try:
        return [read_journal_call(path)]
    except ValueError as error:
        logger.warning("%s", error)
        return []


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error.strerror}") from error


def _broken_lines(path: Path, count: int) -> str:
    return f"{count} lines of {path.name} are no OTLP JSON and were passed over"


def _with_warnings(calls: list[VoiceCall], notes: list[str]) -> list[VoiceCall]:
    return [replace(call, warnings=(*call.warnings, *notes)) for call in calls] if notes else calls


def _is_journal(path: Path) -> bool:
    from voicetrace.journal import is_journal

    return is_journal(path)


def _parse_requests(text: str) -> tuple[list[Any] | None, int]:
    """The OTLP requests of one document or of JSON Lines, and how many lines were none."""
    whole = loads_or_none(text)
    if is_otlp(whole):
        return (whole if isinstance(whole, list) else [whole]), 0
    # not splitlines(): a text may hold U+2028 and the like, which JSON does not escape
    lines = [loads_or_none(line) for line in text.split("\n") if line.strip()]
    requests = [line for line in lines if is_otlp(line)]
    return (requests or None), len(lines) - len(requests)


def _in_order(calls: list[VoiceCall]) -> list[VoiceCall]:
    return sorted(calls, key=lambda call: (call.origin_unix_ms is None, call.origin_unix_ms or 0))


def _each_once(calls: list[VoiceCall]) -> list[VoiceCall]:
    best: dict[str, VoiceCall] = {}
    for call in calls:
        other = best.get(call.call_id)
        if other is None or (call.ended, bool(call.events)) > (other.ended, bool(other.events)):
            best[call.call_id] = call
    return list(best.values())
