# SPDX-License-Identifier: Apache-2.0
"""Spans or a journal in, `VoiceCall`s out (contract, section 6).

Lenient about content: whatever a trace holds, what can be kept is kept as it was logged, and what is wrong
is a warning. Strict about the source: one that is not there, or is no trace at all, is an error.
"""

from __future__ import annotations

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
        return _read_directory(path) if path.is_dir() else _in_order(_read_file(path))
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
    found: list[VoiceCall] = []
    traces = 0
    for path in sorted(p for p in directory.rglob("*") if p.is_file() and not p.name.startswith(".")):
        if path.suffix not in _TRACE_SUFFIXES and not _is_journal(path):
            continue
        try:
            found += _read_file(path)
        except ValueError:
            continue  # a directory also holds manifests and other JSON that is no trace
        traces += 1
    if not traces:
        raise ValueError(f"{directory} holds no trace (.json, .jsonl) and no journal")
    return _in_order(_each_once(found))


def _read_file(path: Path) -> list[VoiceCall]:
    if _is_journal(path):
        from voicetrace.journal import read_journal_call

        return [read_journal_call(path)]
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error.strerror}") from error
    requests, broken = _parse_requests(text)
    if requests is None:
        raise ValueError(f"{path} is neither an OTLP JSON trace nor a journal")
    calls = calls_from_spans(otlp_to_spans(requests), source=str(path))
    if broken:
        note = f"{broken} lines of {path.name} are no OTLP JSON and were passed over"
        calls = [replace(call, warnings=(*call.warnings, note)) for call in calls]
    return calls


def _is_journal(path: Path) -> bool:
    from voicetrace.journal import is_journal

    return is_journal(path)


def _parse_requests(text: str) -> tuple[list[Any] | None, int]:
    """The OTLP requests of one document or of JSON Lines, and how many lines were none."""
    whole = loads_or_none(text)
    if is_otlp(whole):
        return (whole if isinstance(whole, list) else [whole]), 0
    lines = [loads_or_none(line) for line in text.splitlines() if line.strip()]
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
