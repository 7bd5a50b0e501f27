# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip
import json
import logging
import os
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from voicetrace.otel import LINKS, wrap_exporter
from voicetrace.otel.otlp_json import otlp_to_spans
from voicetrace.otel.setup import SPANS_FILE, flush_with_deadline, get_provider


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    # what another test may have set globally is not this test's
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)


def test_the_given_provider_is_used_and_left_alone():
    given = TracerProvider(shutdown_on_exit=False)
    assert get_provider(given) == (given, False)


def test_then_the_global_one_then_the_frameworks(monkeypatch):
    framework = TracerProvider(shutdown_on_exit=False)
    assert get_provider(framework_provider=framework) == (framework, False)
    current = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", current)
    assert get_provider(framework_provider=framework) == (current, False)
    assert get_provider(set_global=True) == (current, False)
    assert trace.get_tracer_provider() is current


def test_else_our_own_one_writes_linked_spans_to_the_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "front-desk")
    provider, owned = get_provider(directory=tmp_path)
    assert owned
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    span = provider.get_tracer("t").start_span("llm")
    LINKS.expect(span.get_span_context().span_id)
    span.end()
    LINKS.resolve(span.get_span_context().span_id, {"voice.output_message_id": "a"})
    provider.shutdown()
    (found,) = otlp_to_spans([json.loads(line) for line in (tmp_path / SPANS_FILE).read_text().splitlines()])
    assert found.attributes == {"voice.output_message_id": "a"}
    assert found.resource["service.name"] == "front-desk"


@pytest.mark.parametrize(
    ("env", "name"), [({}, "voicetrace"), ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=x"}, "x")]
)
def test_the_service_name(env, name, monkeypatch):
    for key, value in env.items():
        monkeypatch.setenv(key, value)
    provider, _ = get_provider()
    assert provider.resource.attributes["service.name"] == name
    provider.shutdown()


def test_it_becomes_global_only_on_request(monkeypatch):
    chosen = []
    monkeypatch.setattr(trace, "set_tracer_provider", chosen.append)
    provider, _ = get_provider()
    assert chosen == []
    other, _ = get_provider(set_global=True)
    assert chosen == [other]
    provider.shutdown()
    other.shutdown()


@pytest.mark.parametrize(
    ("protocol", "module", "named"),
    [
        ("", "opentelemetry.exporter.otlp.proto.http.trace_exporter", "voicetrace[otlp]"),
        ("grpc", "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", "otlp-proto-grpc"),
    ],
)
def test_an_endpoint_without_the_extra_is_one_clear_warning(
    protocol, module, named, monkeypatch, caplog, tmp_path
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    monkeypatch.setitem(sys.modules, module, None)
    with caplog.at_level(logging.WARNING):
        provider, owned = get_provider(directory=tmp_path)
    assert owned
    assert [named in record.getMessage() for record in caplog.records] == [True]
    provider.get_tracer("t").start_span("kept").end()
    provider.shutdown()
    assert (tmp_path / SPANS_FILE).exists()


def test_an_exporter_of_none_is_respected(monkeypatch, tmp_path):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    provider, _ = get_provider(directory=tmp_path)
    provider.get_tracer("t").start_span("kept").end()
    provider.shutdown()
    assert (tmp_path / SPANS_FILE).exists()


class Collector:
    """A loopback OTLP/HTTP receiver on the real wire format."""

    def __init__(self):
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        self.requests = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.requests.append((self.path, ExportTraceServiceRequest.FromString(body)))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_port}"

    def spans(self):
        return [
            span
            for _, request in self.requests
            for block in request.resource_spans
            for scope in block.scope_spans
            for span in scope.spans
        ]

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def test_end_to_end_over_http_the_spans_arrive_linked_and_once(monkeypatch):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    collector = Collector()
    try:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        provider, owned = get_provider()
        assert owned
        tracer = provider.get_tracer("t")
        with tracer.start_as_current_span("call") as call:
            LINKS.expect_call(call.get_span_context().span_id, call.get_span_context().trace_id)
            with tracer.start_as_current_span("llm") as llm:
                LINKS.expect(llm.get_span_context().span_id, llm.get_span_context().trace_id)
        assert flush_with_deadline(provider, 60) is True
        assert collector.spans() == []
        big = json.dumps({"item_a1": {"text": "x" * 1_200_000}})
        LINKS.resolve(llm.get_span_context().span_id, {"voice.output_message_id": "item_a1"})
        LINKS.resolve(call.get_span_context().span_id, {"voice.messages": big})
        provider.shutdown()
        found = {
            span.name: {a.key: a.value.string_value for a in span.attributes} for span in collector.spans()
        }
        assert len(collector.spans()) == 2
        assert found == {"llm": {"voice.output_message_id": "item_a1"}, "call": {"voice.messages": big}}
        assert {path for path, _ in collector.requests} == {"/v1/traces"}
    finally:
        collector.close()


def test_vt_69_over_grpc_one_huge_span_costs_only_itself():
    """A batch is cut by count, and a peer refuses 4 MiB: without the wrapper, none of these arrive."""
    grpc = pytest.importorskip("grpc")
    exporters = pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc.trace_exporter")
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

    arrived = []

    class Peer(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request, context):
            arrived.extend(s.name for r in request.resource_spans for x in r.scope_spans for s in x.spans)
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Peer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        exporter = exporters.OTLPSpanExporter(endpoint=f"http://127.0.0.1:{port}", insecure=True, timeout=4)
        wrapped = wrap_exporter(exporter)
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(wrapped, schedule_delay_millis=600_000))
        tracer = provider.get_tracer("t")
        for i in range(10):
            tracer.start_span(f"big-{i}", attributes={"x": "y" * 500_000}).end()
        tracer.start_span("poison", attributes={"x": "y" * 5_000_000}).end()
        for i in range(50):
            tracer.start_span(f"small-{i}").end()
        assert flush_with_deadline(provider, 60) is False
        assert wrapped.failed_exports == 1
        assert sorted(arrived) == sorted([f"big-{i}" for i in range(10)] + [f"small-{i}" for i in range(50)])
        provider.shutdown()
    finally:
        server.stop(None).wait()


def test_a_refused_port_is_learnt_without_an_exception(monkeypatch):
    http = pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    with socket.socket() as taken:  # bound and not listening: whoever connects is refused
        taken.bind(("127.0.0.1", 0))
        exporter = http.OTLPSpanExporter(endpoint=f"http://127.0.0.1:{taken.getsockname()[1]}", timeout=1)
        wrapped = wrap_exporter(exporter)
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(wrapped))
        provider.get_tracer("t").start_span("lost").end()
        assert flush_with_deadline(provider, 60) is False
        assert wrapped.failed_exports == 1
        provider.shutdown()


def test_a_flush_that_blocks_ends_at_the_deadline():
    gate = threading.Event()

    class Blocking(SpanExporter):
        def export(self, spans):
            gate.wait()
            return SpanExportResult.SUCCESS

        def shutdown(self):
            pass

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(wrap_exporter(Blocking())))
    provider.get_tracer("t").start_span("slow").end()
    began = time.monotonic()
    assert flush_with_deadline(provider, 0.05) is False
    assert time.monotonic() - began < 30  # it would be for ever
    gate.set()
    provider.shutdown()


def test_flushing_what_cannot_flush_or_fails(caplog):
    assert flush_with_deadline(trace.NoOpTracerProvider(), 1) is True

    class Failing(TracerProvider):
        def force_flush(self, timeout_millis=30000):
            raise RuntimeError("broken")

    assert flush_with_deadline(Failing(shutdown_on_exit=False), 60) is False
    assert "flushing the tracer provider failed" in caplog.text


def test_a_closed_exporter_never_raises():
    class Closed(SpanExporter):
        def export(self, spans):
            raise ValueError("I/O operation on closed file")

        def force_flush(self, timeout_millis=30000):
            raise ValueError("I/O operation on closed file")

        def shutdown(self):
            raise ValueError("already closed")

    wrapped = wrap_exporter(Closed())
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(wrapped))
    provider.get_tracer("t").start_span("s").end()
    assert flush_with_deadline(provider, 60) is False
    assert wrapped.force_flush() is False
    provider.shutdown()
    assert wrapped.failed_exports == 3
