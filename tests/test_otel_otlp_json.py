# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import base64
import json
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from voicetrace.otel import otlp_json
from voicetrace.otel.otlp_json import (
    JsonFileExporter,
    SpanData,
    is_otlp,
    otlp_to_spans,
    span_data,
    spans_to_otlp,
    write_trace,
)

REMOTE = SpanContext(5, 6, is_remote=True, trace_flags=TraceFlags(1), trace_state=TraceState([("k", "v")]))


def rich_spans():
    memory = InMemorySpanExporter()
    for service in ("one", "two"):
        provider = TracerProvider(resource=Resource({"service.name": service}), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(memory))
        tracer = provider.get_tracer("scope", "1.0", "https://example.test/schema")
        with tracer.start_as_current_span("parent", kind=SpanKind.SERVER) as span:
            span.set_status(Status(StatusCode.ERROR, "why"))
            child = tracer.start_span("child", links=[Link(REMOTE, {"l": 1})], start_time=10)
            child.set_attributes({"s": "é", "b": True, "i": 2**62, "f": 0.5, "l": ["a", "b"], "n": [1, 2]})
            child.add_event("e", {"x": 1}, timestamp=12)
            child.end(20)
    return list(memory.get_finished_spans())


def as_protobuf_json(node):
    """OTLP/JSON writes ids in hex where protobuf's own JSON writes base64; otherwise they are the same."""
    if isinstance(node, dict):
        ids = ("traceId", "spanId", "parentSpanId")
        return {
            key: base64.b64encode(bytes.fromhex(value)).decode() if key in ids else as_protobuf_json(value)
            for key, value in node.items()
        }
    return [as_protobuf_json(item) for item in node] if isinstance(node, list) else node


def test_the_document_is_what_the_official_encoder_writes():
    common = pytest.importorskip("opentelemetry.exporter.otlp.proto.common.trace_encoder")
    from google.protobuf.json_format import MessageToDict, ParseDict

    spans = rich_spans()
    official = common.encode_spans(spans)
    ours = ParseDict(as_protobuf_json(spans_to_otlp(spans)), type(official)())
    for span in (s for r in ours.resource_spans for scope in r.scope_spans for s in scope.spans):
        # we also write the W3C trace flags (the low byte), which the protocol has room for
        assert span.flags & 1
        span.flags &= ~0xFF
        for link in span.links:
            link.flags &= ~0xFF
    assert MessageToDict(ours) == MessageToDict(official)


def test_what_is_written_is_read_back_whole(tmp_path):
    spans = rich_spans()
    expected = [span_data(span) for span in spans]
    document = json.loads(write_trace(tmp_path / "trace.json", spans).read_text())
    found = otlp_to_spans(document)
    assert sorted(map(_comparable, found)) == sorted(map(_comparable, expected))
    assert is_otlp(document)


def _comparable(span: SpanData) -> str:
    return json.dumps(vars(span), sort_keys=True, default=list)


def test_values_that_protobuf_cannot_hold_are_kept_readable():
    values = {
        "big": 2**70,
        "nan": float("nan"),
        "inf": float("-inf"),
        "bytes": b"\x00\xff",
        "none": None,
        "map": {"a": [1, None, "x"]},
        "surrogate": "a\ud800",
    }
    encoded = json.loads(json.dumps(otlp_json._attributes(values), allow_nan=False))
    found = otlp_json.read_attributes(encoded)
    assert repr(found.pop("nan")) == "nan"
    assert found == {
        "big": str(2**70),
        "inf": float("-inf"),
        "bytes": b"\x00\xff",
        "none": None,
        "map": {"a": [1, None, "x"]},
        "surrogate": "a\ufffd",
    }


def test_the_file_has_one_request_per_line_and_is_private(tmp_path):
    path = tmp_path / "sub" / "spans.jsonl"
    exporter = JsonFileExporter(path)
    spans = rich_spans()
    assert exporter.export(spans[:1]) is SpanExportResult.SUCCESS
    assert exporter.export(spans[1:]) is SpanExportResult.SUCCESS
    assert exporter.export([]) is SpanExportResult.SUCCESS
    assert exporter.force_flush()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [len(otlp_to_spans(line)) for line in lines] == [1, 3]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    exporter.shutdown()
    assert exporter.export(spans) is SpanExportResult.FAILURE


def test_a_torn_line_of_a_process_that_died_costs_only_itself(tmp_path):
    path = tmp_path / "spans.jsonl"
    exporter = JsonFileExporter(path)
    exporter.export(rich_spans())
    with path.open("a") as file:
        file.write('{"resourceSpans":[{"sco')
    exporter.export(rich_spans())
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    assert len(otlp_to_spans(json.loads(lines[2]))) == 4


def test_protobufs_own_json_is_read_too():
    (span, *_) = otlp_to_spans(spans_to_otlp(rich_spans()))
    snake = {
        "resource_spans": [
            {
                "scope_spans": [
                    {
                        "spans": [
                            {
                                "trace_id": base64.b64encode(bytes.fromhex(span.trace_id)).decode(),
                                "span_id": base64.b64encode(bytes.fromhex(span.span_id)).decode(),
                                "name": "child",
                                "start_time_unix_nano": 10,
                                "status": {"code": "STATUS_CODE_ERROR"},
                            }
                        ]
                    }
                ]
            }
        ]
    }
    (found,) = otlp_to_spans([snake])
    assert (found.trace_id, found.span_id, found.start_unix_ns) == (span.trace_id, span.span_id, 10)
    assert found.status_code == otlp_json.ERROR


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, st.data())
def test_nothing_in_a_document_makes_the_parser_raise(value, data):
    whole = spans_to_otlp(_SPANS)
    node, path = whole, []
    while isinstance(node, dict | list) and node and data.draw(st.booleans()):
        key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        path.append((node, key))
        node = node[key]
    if path:
        path[-1][0][path[-1][1]] = value
    assert all(isinstance(span, SpanData) for span in otlp_to_spans(whole))
    assert otlp_to_spans(value) == []
    assert is_otlp(value) in (True, False)


_SPANS = rich_spans()


def test_deep_nesting_is_cut_not_crashed():
    value: dict = {"stringValue": "x"}
    for _ in range(500):
        value = {"arrayValue": {"values": [value]}}
    assert otlp_json.read_attributes([{"key": "k", "value": value}])["k"]
    assert otlp_json.loads_or_none("[" * 200_000) is None
    assert otlp_json.loads_or_none("9" * 10_000) is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_writes_to_the_same_file_whoever_held_the_lock(tmp_path):
    exporter = JsonFileExporter(tmp_path / "spans.jsonl")
    with exporter._lock:
        pid = os.fork()
    if pid == 0:
        try:
            exporter.export(_SPANS)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    exporter.export(_SPANS)
    assert len((tmp_path / "spans.jsonl").read_text().split("\n")) == 3


def test_the_file_stays_where_it_was_when_the_program_moves_on(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    exporter = JsonFileExporter("spans.jsonl")
    monkeypatch.chdir(tmp_path / "elsewhere")
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    provider.get_tracer("t").start_span("s").end()
    assert [path.name for path in tmp_path.glob("**/*.jsonl")] == ["spans.jsonl"]
    assert (tmp_path / "spans.jsonl").is_file()


def test_a_trace_is_readable_by_its_owner_only(tmp_path):
    assert write_trace(tmp_path / "t.json", []).stat().st_mode & 0o077 == 0
