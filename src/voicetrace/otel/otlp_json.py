# SPDX-License-Identifier: Apache-2.0
"""OTLP in JSON: spans as files, and files as spans, without the exporter packages.

Writes the OTLP/JSON encoding (hex ids, 64-bit integers as strings, enums as integers), as one document or
as JSON Lines, one request per line, the form of the OpenTelemetry file exporter. Reads both, leniently.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, format_span_id, format_trace_id

from voicetrace.otel.encode import valid_unicode

_MAX_DEPTH: Final = 64
_HAS_IS_REMOTE: Final = 0x100
_IS_REMOTE: Final = 0x200
ERROR: Final = 2


@dataclass(frozen=True)
class SpanData:
    """A finished span as read: ids in hex, times in Unix ns (0: not known), ``kind`` as OTLP numbers it."""

    name: str
    trace_id: str
    span_id: str
    parent_span_id: str | None = None
    kind: int = 1
    start_unix_ns: int = 0
    end_unix_ns: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Mapping[str, Any], ...] = ()
    status_code: int = 0
    status_message: str = ""
    resource: Mapping[str, Any] = field(default_factory=dict)
    scope_name: str = ""
    schema_url: str = ""


# -- writing -------------------------------------------------------------------------------------
def spans_to_otlp(spans: Iterable[ReadableSpan]) -> dict[str, Any]:
    """The spans as one ExportTraceServiceRequest, grouped by resource and scope, in order."""
    resources: dict[Any, dict[str, Any]] = {}
    scopes: dict[Any, dict[str, Any]] = {}
    for span in spans:
        resource, scope = span.resource, span.instrumentation_scope
        resource_key = (resource.schema_url, resource)
        if resource_key not in resources:
            resources[resource_key] = {
                "resource": {"attributes": _attributes(resource.attributes)},
                "scopeSpans": [],
                **({"schemaUrl": resource.schema_url} if resource.schema_url else {}),
            }
        key = (resource_key, scope)
        if key not in scopes:
            scopes[key] = _scope(scope)
            resources[resource_key]["scopeSpans"].append(scopes[key])
        scopes[key]["spans"].append(_span(span))
    return {"resourceSpans": list(resources.values())}


def write_trace(path: str | os.PathLike[str], spans: Iterable[ReadableSpan]) -> Path:
    """Write the spans as one JSON document, readable by people, and return its path.

    Raises:
        OSError: the file cannot be written.
    """
    target = Path(path)
    target.touch(mode=0o600)  # spans can carry what people said; a file that is there keeps its mode
    target.write_text(
        json.dumps(spans_to_otlp(spans), ensure_ascii=False, indent=1, allow_nan=False) + "\n",
        encoding="utf-8",
    )
    return target


class JsonFileExporter(SpanExporter):
    """Appends each batch to a file as one line of OTLP JSON (JSON Lines, the OTel file exporter's form).

    Thread-safe, and safe for several processes on one file: a line is one append. The file is made
    readable by its owner only, because spans can carry what people said. An error of the disk is raised,
    which a wrapped exporter counts and logs.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()  # spans are written late: the program may have moved on
        self._lock = threading.Lock()
        self._closed = False
        _file_exporters.add(self)

    def reset_after_fork(self) -> None:
        """In a forked child: a lock that no thread of the parent holds."""
        self._lock = threading.Lock()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append the batch; FAILURE after `shutdown`.

        Raises:
            OSError: the file cannot be written.
        """
        if self._closed:
            return SpanExportResult.FAILURE
        if not spans:
            return SpanExportResult.SUCCESS
        request = json.dumps(spans_to_otlp(spans), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        line = request.encode() + b"\n"
        with self._lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                size = os.fstat(descriptor).st_size
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    line = b"\n" + line  # a torn line of a process that died costs only itself
                while line:
                    line = line[os.write(descriptor, line) :]
            finally:
                os.close(descriptor)
        return SpanExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Nothing is buffered."""
        return True

    def shutdown(self) -> None:
        """Write no more."""
        self._closed = True


_file_exporters: weakref.WeakSet[JsonFileExporter] = weakref.WeakSet()


def _reset_after_fork() -> None:
    for exporter in list(_file_exporters):
        exporter.reset_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def _scope(scope: Any) -> dict[str, Any]:
    if scope is None:
        return {"scope": {}, "spans": []}
    out: dict[str, Any] = {"scope": {"name": scope.name}, "spans": []}
    if scope.version:
        out["scope"]["version"] = scope.version
    if scope.attributes:
        out["scope"]["attributes"] = _attributes(scope.attributes)
    if scope.schema_url:
        out["schemaUrl"] = scope.schema_url
    return out


def _span(span: ReadableSpan) -> dict[str, Any]:
    context = span.context
    out: dict[str, Any] = {
        "traceId": format_trace_id(context.trace_id if context else 0),
        "spanId": format_span_id(context.span_id if context else 0),
        "name": valid_unicode(span.name),
        "kind": span.kind.value + 1,
        "startTimeUnixNano": str(span.start_time or 0),
        "endTimeUnixNano": str(span.end_time or 0),
        "attributes": _attributes(span.attributes or {}),
        "flags": _flags(context, span.parent),
    }
    if context is not None and context.trace_state:
        out["traceState"] = context.trace_state.to_header()
    if span.parent is not None:
        out["parentSpanId"] = format_span_id(span.parent.span_id)
    if span.events:
        out["events"] = [
            {
                "timeUnixNano": str(event.timestamp),
                "name": valid_unicode(event.name),
                "attributes": _attributes(event.attributes or {}),
            }
            for event in span.events
        ]
    if span.links:
        out["links"] = [
            {
                "traceId": format_trace_id(link.context.trace_id),
                "spanId": format_span_id(link.context.span_id),
                "attributes": _attributes(link.attributes or {}),
                "flags": _flags(link.context, link.context),
            }
            for link in span.links
        ]
    dropped = {
        "droppedAttributesCount": span.dropped_attributes,
        "droppedEventsCount": span.dropped_events,
        "droppedLinksCount": span.dropped_links,
    }
    out |= {name: count for name, count in dropped.items() if count}
    out["status"] = {"code": span.status.status_code.value}
    if span.status.description:
        out["status"]["message"] = valid_unicode(span.status.description)
    return out


def _flags(own: SpanContext | None, remote_of: SpanContext | None) -> int:
    flags = int(own.trace_flags) if own is not None else 0
    return flags | _HAS_IS_REMOTE | (_IS_REMOTE if remote_of is not None and remote_of.is_remote else 0)


def _attributes(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": valid_unicode(key), "value": _any_value(value)} for key, value in attributes.items()]


def _any_value(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        # what protobuf cannot hold is better readable than dropped
        return {"intValue": str(value)} if -(2**63) <= value < 2**63 else {"stringValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value if math.isfinite(value) else _non_finite(value)}
    if isinstance(value, bytes):
        return {"bytesValue": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {"kvlistValue": {"values": _attributes({str(k): v for k, v in value.items()})}}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return {"arrayValue": {"values": [_any_value(item) for item in value]}}
    return {"stringValue": valid_unicode(str(value))}


def _non_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


# -- reading -------------------------------------------------------------------------------------
def otlp_to_spans(data: Any) -> list[SpanData]:
    """Read the spans of a request, or of a list of requests; what is no span is passed over.

    Accepts both the OTLP/JSON field names and protobuf's own (``resource_spans``), and base64 ids, as
    generic protobuf-to-JSON tools write them. Never raises.
    """
    spans: list[SpanData] = []
    for request in data if isinstance(data, list) else [data]:
        for block in _list(request, "resourceSpans", "resource_spans"):
            resource = read_attributes(_get(_get(block, "resource"), "attributes"))
            groups = _list(block, "scopeSpans", "scope_spans") or _list(block, "instrumentationLibrarySpans")
            for group in groups:
                scope_name = _get(_get(group, "scope"), "name")
                schema_url = _get(group, "schemaUrl", "schema_url")
                for item in _list(group, "spans"):
                    span = _read_span(item, resource, _text(scope_name), _text(schema_url))
                    if span is not None:
                        spans.append(span)
    return spans


def loads_or_none(text: str) -> Any:
    """The parsed JSON; None for what is none, or is nested too deeply to be read."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def is_otlp(data: Any) -> bool:
    """Tell whether parsed JSON has the shape of an OTLP trace request, or of a list of them."""
    if isinstance(data, list):
        return bool(data) and all(is_otlp(item) for item in data)
    return isinstance(data, dict) and isinstance(_get(data, "resourceSpans", "resource_spans"), list)


def span_data(span: ReadableSpan) -> SpanData:
    """An SDK span as `SpanData`, so that a reader knows one form only."""
    context, scope = span.context, span.instrumentation_scope
    return SpanData(
        name=span.name,
        trace_id=format_trace_id(context.trace_id if context else 0),
        span_id=format_span_id(context.span_id if context else 0),
        parent_span_id=format_span_id(span.parent.span_id) if span.parent else None,
        kind=span.kind.value + 1,
        start_unix_ns=span.start_time or 0,
        end_unix_ns=span.end_time or 0,
        attributes=dict(span.attributes or {}),
        events=tuple(
            {"name": e.name, "time_unix_ns": e.timestamp, "attributes": dict(e.attributes or {})}
            for e in span.events
        ),
        status_code=span.status.status_code.value,
        status_message=span.status.description or "",
        resource=dict(span.resource.attributes),
        scope_name=scope.name if scope else "",
        schema_url=(scope.schema_url or "") if scope else "",
    )


def read_attributes(data: Any) -> dict[str, Any]:
    """A list of OTLP key-values as a dict; what is malformed is passed over."""
    return _key_values(data, 0)


def _read_span(item: Any, resource: Mapping[str, Any], scope_name: str, schema_url: str) -> SpanData | None:
    span_id = _id(_get(item, "spanId", "span_id"), 16)
    trace_id = _id(_get(item, "traceId", "trace_id"), 32)
    if span_id is None or trace_id is None:
        return None
    status = _get(item, "status")
    events = tuple(
        {
            "name": _text(_get(event, "name")),
            "time_unix_ns": _int(_get(event, "timeUnixNano", "time_unix_nano")) or 0,
            "attributes": read_attributes(_get(event, "attributes")),
        }
        for event in _list(item, "events")
    )
    return SpanData(
        name=_text(_get(item, "name")),
        trace_id=trace_id,
        span_id=span_id,
        parent_span_id=_id(_get(item, "parentSpanId", "parent_span_id"), 16),
        kind=_int(_get(item, "kind")) or 0,
        start_unix_ns=_int(_get(item, "startTimeUnixNano", "start_time_unix_nano")) or 0,
        end_unix_ns=_int(_get(item, "endTimeUnixNano", "end_time_unix_nano")) or 0,
        attributes=read_attributes(_get(item, "attributes")),
        events=events,
        status_code=ERROR if _get(status, "code") == "STATUS_CODE_ERROR" else _int(_get(status, "code")) or 0,
        status_message=_text(_get(status, "message")),
        resource=resource,
        scope_name=scope_name,
        schema_url=schema_url,
    )


def _key_values(data: Any, depth: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for pair in data if isinstance(data, list) else []:
        key = _get(pair, "key")
        if isinstance(key, str):
            out[key] = _read_value(_get(pair, "value"), depth)
    return out


def _read_value(value: Any, depth: int) -> Any:
    if not isinstance(value, dict) or depth > _MAX_DEPTH:
        return None
    for name, raw in value.items():
        match name:
            case "stringValue" | "string_value":
                return raw if isinstance(raw, str) else None
            case "boolValue" | "bool_value":
                return raw if isinstance(raw, bool) else None
            case "intValue" | "int_value":
                return _int(raw)
            case "doubleValue" | "double_value":
                return _float(raw)
            case "bytesValue" | "bytes_value":
                return _bytes(raw)
            case "arrayValue" | "array_value":
                return [_read_value(item, depth + 1) for item in _list(raw, "values")]
            case "kvlistValue" | "kvlist_value":
                return _key_values(_get(raw, "values"), depth + 1)
    return None


def _get(data: Any, *names: str) -> Any:
    if isinstance(data, dict):
        for name in names:
            if name in data:
                return data[name]
    return None


def _list(data: Any, *names: str) -> list[Any]:
    found = _get(data, *names)
    return found if isinstance(found, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _int(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str) and len(value) <= 20 and value.lstrip("-").isdecimal():
        try:
            return int(value)
        except ValueError:
            return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None


def _float(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _bytes(value: Any) -> bytes | None:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError):
        return None


def _id(value: Any, digits: int) -> str | None:
    """A span or trace id in lower-case hex; None for what is none, and for the zero id."""
    if not isinstance(value, str):
        return None
    found = value.lower()
    if len(value) != digits:
        try:
            found = base64.b64decode(value, validate=True).hex()
        except (binascii.Error, ValueError):
            return None
    is_hex = len(found) == digits and all(c in "0123456789abcdef" for c in found)
    return found if is_hex and found.strip("0") else None
