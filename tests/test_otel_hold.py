# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import weakref
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import context as otel_context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, format_span_id

from voicetrace.otel import LINKS, StepLinks, wrap_exporter
from voicetrace.otel.hold import LinkingExporter, failed_exports
from voicetrace.otel.sizes import ALONE_BYTES, REQUEST_BYTES, estimated_size, requests


class Recorder(SpanExporter):
    """Keeps every request it was given, and answers as it is told."""

    def __init__(self, answer=SpanExportResult.SUCCESS):
        self.requests = []
        self.answer = answer
        self.flushes = 0
        self.shutdowns = 0
        self.arrived = threading.Event()

    def export(self, spans):
        self.requests.append(list(spans))
        self.arrived.set()
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def force_flush(self, timeout_millis=30000):
        self.flushes += 1
        return True

    def shutdown(self):
        self.shutdowns += 1

    @property
    def spans(self):
        return [span for request in self.requests for span in request]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def make_spans(count=1, **kwargs):
    memory = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False, **kwargs)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("test")
    for i in range(count):
        tracer.start_span(f"span-{i}").end()
    return list(memory.get_finished_spans())


def held_exporter(inner, links, **kwargs):
    return LinkingExporter(inner, links=links, **kwargs)


def test_other_spans_pass_in_the_same_call_with_the_inner_result():
    inner = Recorder()
    exporter = held_exporter(inner, StepLinks())
    (span,) = make_spans()
    assert exporter.export([span]) is SpanExportResult.SUCCESS
    assert inner.spans == [span]
    inner.answer = SpanExportResult.FAILURE
    assert exporter.export([span]) is SpanExportResult.FAILURE


def test_an_awaited_span_is_held_until_its_message_settles_and_leaves_on_another_thread():
    inner, links = Recorder(), StepLinks()
    exporter = held_exporter(inner, links)
    (span,) = make_spans()
    threads = []
    links.expect(
        span.context.span_id, span.context.trace_id, lambda _: threads.append(threading.current_thread())
    )
    assert exporter.export([span]) is SpanExportResult.SUCCESS
    assert inner.requests == []
    assert exporter.held() == 1
    links.resolve(span.context.span_id, {"voice.output_message_id": "item_a1"})
    assert inner.arrived.wait(30)
    exporter.force_flush()  # serialised behind the thread that sends, so its callback is over too
    assert [dict(s.attributes) for s in inner.spans] == [{"voice.output_message_id": "item_a1"}]
    assert dict(span.attributes) == {}
    assert exporter.held() == 0
    exporter.shutdown()
    assert threads != [threading.main_thread()]


def test_a_due_span_leaves_with_the_next_export():
    inner, links = Recorder(), StepLinks()
    exporter = held_exporter(inner, links)
    first, other = make_spans(2)
    links.expect(first.context.span_id)
    exporter._thread = threading.current_thread()  # no thread of its own: only export() can send
    exporter.export([first])
    links.resolve(format_span_id(first.context.span_id), {"voice.output_message_id": "a"})
    exporter.export([other])
    assert [s.name for s in inner.spans] == ["span-1", "span-0"]


def test_force_flush_keeps_what_still_waits_and_shutdown_sends_it_once():
    inner, links = Recorder(), StepLinks()
    exporter = held_exporter(inner, links)
    waiting, due = make_spans(2)
    links.expect(waiting.context.span_id)
    links.expect(due.context.span_id)
    exporter.export([waiting, due])
    links.resolve(due.context.span_id, {})
    assert exporter.force_flush() is True
    assert [s.name for s in inner.spans] == ["span-1"]
    exporter.shutdown()
    exporter.shutdown()
    assert [s.name for s in inner.spans] == ["span-1", "span-0"]
    assert inner.shutdowns == 1
    links.resolve(waiting.context.span_id, {"late": 1})
    assert len(inner.spans) == 2


def test_export_after_shutdown_is_the_inner_exporters_business_and_is_not_held():
    inner, links = Recorder(), StepLinks()
    exporter = held_exporter(inner, links)
    exporter.shutdown()
    (span,) = make_spans()
    links.expect(span.context.span_id)
    inner.answer = SpanExportResult.FAILURE
    assert exporter.export([span]) is SpanExportResult.FAILURE
    assert inner.spans == [span]
    assert exporter.held() == 0


def test_resolved_before_its_end_it_passes_at_once_as_a_linked_copy():
    inner, links = Recorder(), StepLinks()
    exporter = held_exporter(inner, links)
    (span,) = make_spans()
    links.resolve(span.context.span_id, {"voice.output_message_id": "early"})
    exporter.export([span])
    assert inner.spans[0].attributes["voice.output_message_id"] == "early"


def test_the_copy_is_the_original_but_for_the_attributes():
    memory = InMemorySpanExporter()
    provider = TracerProvider(
        resource=Resource({"service.name": "s"}),
        span_limits=SpanLimits(max_span_attributes=3, max_events=1, max_links=1),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("scope", "1.2", "https://example.test/schema")
    (other,) = make_spans()
    with tracer.start_as_current_span("parent"):
        span = tracer.start_span(
            "llm", kind=SpanKind.CLIENT, links=[Link(other.context), Link(other.context)]
        )
        for name in ("dropped", "keep", "replace", "remove"):
            span.set_attribute(name, name)
        span.add_event("dropped")
        span.add_event("e", {"x": 1})
        span.set_status(Status(StatusCode.ERROR, "why"))
        span.end()
    original = memory.get_finished_spans()[0]
    links, inner = StepLinks(), Recorder()
    links.resolve(original.context.span_id, {"replace": "new", "remove": None, "absent": None})
    held_exporter(inner, links).export([original])
    (copy,) = inner.spans
    assert list(copy.attributes.items()) == [("keep", "keep"), ("replace", "new")]
    same = "name context parent kind status start_time end_time resource instrumentation_scope events links"
    for name in [*same.split(), "dropped_attributes", "dropped_events", "dropped_links"]:
        assert getattr(copy, name) == getattr(original, name), name
    assert copy.dropped_attributes == 1
    assert '"replace": "new"' in copy.to_json()


def test_limits_let_the_oldest_go_unlinked_with_one_warning(caplog):
    inner, links, clock = Recorder(), StepLinks(), Clock()
    exporter = held_exporter(inner, links, max_held=2, max_hold_s=10, clock=clock)
    spans = make_spans(5)
    for span in spans:
        links.expect(span.context.span_id)
    exporter.export(spans[:3])
    assert [s.name for s in inner.spans] == ["span-0"]
    clock.now = 11.0
    exporter.force_flush()
    assert [s.name for s in inner.spans] == ["span-0", "span-1", "span-2"]
    assert exporter.let_go == 3
    assert caplog.text.count("unlinked") == 1
    exporter.shutdown()


def test_too_many_awaited_spans_give_up_the_oldest(caplog):
    inner, links = Recorder(), StepLinks(max_pending=1)
    exporter = held_exporter(inner, links)
    first, second = make_spans(2)
    links.expect(first.context.span_id)
    exporter.export([first])
    links.expect(second.context.span_id)
    exporter.force_flush()
    assert [s.name for s in inner.spans] == ["span-0"]
    assert links.given_up == 1
    assert "leave unlinked" in caplog.text
    exporter.shutdown()


def test_settled_attributes_are_bounded_in_count_bytes_and_time():
    clock = Clock()
    links = StepLinks(max_settled=2, max_settled_bytes=1000, max_settled_s=5, clock=clock)
    for i in range(1, 4):
        links.resolve(i, {"a": i})
    assert list(links._settled) == [2, 3]
    links.resolve(4, {"a": "x" * 990})
    assert list(links._settled) == [4]
    clock.now = 6
    links.resolve(5, {"a": 1})
    assert list(links._settled) == [5]
    links.resolve(5, {"a": "y" * 50})
    assert links._settled_bytes == links._settled[5].size


def test_several_exporters_hold_their_own_copy_and_the_callback_runs_once():
    links = StepLinks()
    one, two = Recorder(), Recorder(SpanExportResult.FAILURE)
    exporters = [held_exporter(one, links), held_exporter(two, links)]
    (span,) = make_spans()
    calls = []
    links.expect(span.context.span_id, span.context.trace_id, calls.append)
    for exporter in exporters:
        exporter.export([span])
    links.resolve(span.context.span_id, {"voice.output_message_id": "a"})
    exporters[1].force_flush()
    assert len(two.spans) == 1
    exporters[0].force_flush()
    exporters[0].force_flush()
    assert [s.attributes["voice.output_message_id"] for s in one.spans + two.spans] == ["a", "a"]
    assert calls == [format_span_id(span.context.span_id)]


def test_what_every_exporter_delivered_is_forgotten():
    links = StepLinks()
    exporter = held_exporter(Recorder(), links)
    (span,) = make_spans()
    links.resolve(span.context.span_id, {"a": 1})
    exporter.export([span])
    assert not links._settled
    assert links._settled_bytes == 0


def test_a_failing_callback_is_counted_and_logged_once(caplog):
    links = StepLinks()
    exporter = held_exporter(Recorder(), links)
    spans = make_spans(2)
    for span in spans:
        links.expect(span.context.span_id, 0, lambda _: 1 / 0)
        links.resolve(span.context.span_id, {})
    assert exporter.export(spans) is SpanExportResult.SUCCESS
    assert links.callback_failures == 2
    assert caplog.text.count("a callback failed") == 1


@pytest.mark.parametrize("answer", [SpanExportResult.FAILURE, ValueError("refused")])
def test_failures_are_counted_logged_once_and_told_to_the_sdk(answer, caplog):
    inner, before = Recorder(answer), failed_exports()
    exporter = held_exporter(inner, StepLinks())
    for _ in range(2):
        assert exporter.export(make_spans()) is SpanExportResult.FAILURE
    assert exporter.failed_exports == 2
    assert failed_exports() == before + 2
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1


def test_an_exporter_that_answers_none_is_taken_as_successful():
    exporter = held_exporter(Recorder(None), StepLinks())
    assert exporter.export(make_spans()) is SpanExportResult.SUCCESS


def test_an_interrupt_in_the_inner_exporter_loses_nothing_that_was_not_tried():
    inner, links = Recorder(KeyboardInterrupt()), StepLinks()
    exporter = held_exporter(inner, links)
    big, small = make_spans(2)
    big = _with(links, big, {"x": "y" * (ALONE_BYTES + 1)})
    with pytest.raises(KeyboardInterrupt):
        exporter.export([big, small])
    inner.answer = SpanExportResult.SUCCESS
    exporter.shutdown()
    assert Counter(s.name for s in inner.spans) == {"span-0": 1, "span-1": 1}


def _with(links, span, attributes):
    links.resolve(span.context.span_id, attributes)
    return links.linked(span)


def test_a_span_of_another_trace_with_the_same_id_is_not_held():
    links = StepLinks()
    (span,) = make_spans()
    links.expect(span.context.span_id, span.context.trace_id ^ 1)
    assert not links.is_pending(span)
    links.resolve(span.context.span_id, {"a": 1})
    assert links.linked(span) is span


def test_wrapping_twice_is_wrapping_once():
    exporter = wrap_exporter(Recorder())
    assert wrap_exporter(exporter) is exporter
    exporter.shutdown()
    with pytest.raises(ValueError, match="positive"):
        wrap_exporter(Recorder(), max_held=0)


def test_our_own_thread_suppresses_instrumentation_as_the_sdk_does():
    seen = []

    class Spy(Recorder):
        def export(self, spans):
            seen.append(otel_context.get_value(otel_context._SUPPRESS_INSTRUMENTATION_KEY))
            return super().export(spans)

    exporter = held_exporter(Spy(), StepLinks())
    exporter.export(make_spans())
    assert seen == [True]
    assert otel_context.get_value(otel_context._SUPPRESS_INSTRUMENTATION_KEY) is None


def test_calls_of_the_inner_exporter_never_overlap():
    inside, overlaps, links = [], [], StepLinks()

    class Slow(Recorder):
        def export(self, spans):
            overlaps.append(bool(inside))
            inside.append(1)
            gate.wait()
            inside.pop()
            return SpanExportResult.SUCCESS

    gate = threading.Event()
    exporter = held_exporter(Slow(), links)
    threads = [threading.Thread(target=exporter.export, args=(make_spans(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert exporter.force_flush(1) is False  # somebody else is inside, and the deadline is short
    gate.set()
    for thread in threads:
        thread.join()
    assert overlaps == [False] * 4


def test_shutdown_does_not_wait_for_ever_on_an_exporter_that_blocks(caplog):
    gate, entered = threading.Event(), threading.Event()

    class Blocking(Recorder):
        def export(self, spans):
            entered.set()
            gate.wait()
            return SpanExportResult.SUCCESS

        def shutdown(self):
            gate.set()  # as the OTLP exporters interrupt their retries

    links = StepLinks()
    exporter = held_exporter(Blocking(), links)
    (span, held) = make_spans(2)
    links.expect(held.context.span_id)
    thread = threading.Thread(target=exporter.export, args=([held, span],))
    thread.start()
    assert entered.wait(30)
    exporter.shutdown(timeout_millis=10)
    thread.join(30)
    assert not thread.is_alive()
    assert "1 held spans are lost" in caplog.text


def test_a_dropped_wrapper_with_nothing_held_is_freed():
    exporter = wrap_exporter(Recorder())
    exporter.export(make_spans())
    gone = weakref.ref(exporter)
    del exporter
    gc.collect()
    assert gone() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_neither_hangs_nor_exports_what_its_parent_holds():
    links_span, child_span = make_spans(2)
    inner = Recorder()
    exporter = wrap_exporter(inner)
    LINKS.expect(links_span.context.span_id)
    exporter.export([links_span])
    with exporter._lock, LINKS._lock, exporter._export_lock:  # as another thread may hold them at a fork
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            exporter.export([child_span])
            exporter.shutdown()
            code = 0 if [s.name for s in inner.spans] == ["span-1"] else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    exporter.shutdown()
    assert [s.name for s in inner.spans] == ["span-0"]


# -- sizes ---------------------------------------------------------------------------------------
def test_vt_69_a_huge_span_travels_alone_and_fails_alone():
    class Peer(Recorder):
        """Refuses a request above 4 MiB, as gRPC does."""

        def export(self, spans):
            super().export(spans)
            fits = sum(estimated_size(s) for s in spans) < 4 * 1024 * 1024
            return SpanExportResult.SUCCESS if fits else SpanExportResult.FAILURE

    links, inner = StepLinks(), Peer()
    spans = make_spans(40)
    poisoned = _with(links, spans[7], {"voice.messages": "x" * 5_000_000})
    heavy = [_with(links, span, {"x": "é" * 250_000}) for span in spans[10:20]]
    batch = [*spans[:7], poisoned, *spans[8:10], *heavy, *spans[20:]]
    assert held_exporter(inner, links).export(batch) is SpanExportResult.FAILURE
    assert Counter(s.name for s in inner.spans) == Counter(s.name for s in batch)
    refused = [r for r in inner.requests if sum(map(estimated_size, r)) > 4 * 1024 * 1024]
    assert [[s.name for s in r] for r in refused] == [["span-7"]]
    assert len(inner.requests) < 8  # small ones still travel together


def test_requests_keep_order_and_bounds():
    spans = make_spans(3)
    assert [list(r) for r in requests(spans)] == [spans]
    assert list(requests([])) == []
    assert ALONE_BYTES < REQUEST_BYTES < 4 * 1024 * 1024


# -- the whole pipeline --------------------------------------------------------------------------
def test_with_a_real_batch_processor_the_call_span_leaves_last_and_each_span_once():
    """VT-61: the call span is held until the recording is finished, after all its children."""
    inner = Recorder()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(wrap_exporter(inner)))
    tracer = provider.get_tracer("t")
    with tracer.start_as_current_span("call") as call:
        LINKS.expect_call(call.get_span_context().span_id, call.get_span_context().trace_id)
        with tracer.start_as_current_span("llm") as llm:
            LINKS.expect(llm.get_span_context().span_id, llm.get_span_context().trace_id)
        with tracer.start_as_current_span("tool"):
            pass
    provider.force_flush()
    assert [s.name for s in inner.spans] == ["tool"]
    LINKS.resolve(llm.get_span_context().span_id, {"voice.output_message_id": "a"})
    LINKS.resolve(call.get_span_context().span_id, {"voice.messages": "{}"})
    provider.shutdown()
    names = [s.name for s in inner.spans]
    assert sorted(names) == ["call", "llm", "tool"]
    assert names[-1] == "call"
    linked = {s.name: s for s in inner.spans}
    assert linked["llm"].attributes["voice.output_message_id"] == "a"
    assert linked["call"].attributes["voice.messages"] == "{}"
    assert linked["llm"].parent.span_id == linked["call"].context.span_id


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_schedule_exports_each_span_exactly_once(data):
    """Whatever the order of ends, settlings, flushes, limits, failures and the shutdown."""
    count = data.draw(st.integers(1, 8))
    links, clock = StepLinks(max_pending=data.draw(st.integers(1, 10)), clock=(tick := Clock())), tick
    inner = Recorder()
    exporter = held_exporter(inner, links, max_held=data.draw(st.integers(1, 5)), max_hold_s=5, clock=clock)
    exporter._clock = clock
    spans = make_spans(count)
    delivered: Counter[str] = Counter()
    expected = data.draw(st.lists(st.sampled_from(spans), unique_by=id))
    steps = (
        [("end", s) for s in spans] + [("expect", s) for s in expected] + [("resolve", s) for s in expected]
    )
    steps += [("flush", None)] * 2 + [("later", None)] * 2 + [("fail", None), ("raise", None), ("well", None)]
    resolved = {}
    for kind, span in data.draw(st.permutations(steps)):
        match kind:
            case "end":
                exporter.export([span])
            case "expect":
                links.expect(span.context.span_id, span.context.trace_id, lambda i: delivered.update([i]))
            case "resolve":
                resolved[span.name] = f"m-{span.name}"
                links.resolve(span.context.span_id, {"voice.output_message_id": resolved[span.name]})
            case "flush":
                exporter.force_flush()
            case "later":
                clock.now += 3
            case "fail":
                inner.answer = SpanExportResult.FAILURE
            case "raise":
                inner.answer = RuntimeError("down")
            case "well":
                inner.answer = SpanExportResult.SUCCESS
    exporter.shutdown()
    assert Counter(s.name for s in inner.spans) == {s.name: 1 for s in spans}
    assert all(n == 1 for n in delivered.values())
    for span in inner.spans:
        assert span.attributes.get("voice.output_message_id") in (None, f"m-{span.name}")


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_threads_that_race_export_each_span_exactly_once(seed):
    """End, settle, flush and shut down from different threads at once."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        links, inner = StepLinks(), Recorder()
        exporter = held_exporter(inner, links, max_held=1 + seed % 20)
        spans = make_spans(30)
        for span in spans[::2]:
            links.expect(span.context.span_id)
        go = threading.Barrier(3)

        def end():
            go.wait()
            for span in spans:
                exporter.export([span])

        def settle():
            go.wait()
            for span in spans[::2]:
                links.resolve(span.context.span_id, {"a": 1})

        def flush():
            go.wait()
            for _ in range(5):
                exporter.force_flush()
            if seed % 2:
                exporter.shutdown()

        threads = [threading.Thread(target=f) for f in (end, settle, flush)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        exporter.shutdown()
        assert Counter(s.name for s in inner.spans) == {s.name: 1 for s in spans}
    finally:
        sys.setswitchinterval(interval)
