# SPDX-License-Identifier: Apache-2.0
"""Where spans go: the user's own provider when there is one, else one of ours.

Never replaces a provider that is set, and never touches one that is not ours.
"""

from __future__ import annotations

import logging
import os
import threading
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Final

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import TracerProvider

from voicetrace import semconv
from voicetrace.otel.hold import failed_exports, wrap_exporter
from voicetrace.otel.otlp_json import JsonFileExporter

logger = logging.getLogger("voicetrace.otel")

SPANS_FILE: Final = "spans.jsonl"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def get_provider(
    tracer_provider: TracerProvider | None = None,
    directory: str | os.PathLike[str] | None = None,
    *,
    framework_provider: TracerProvider | None = None,
    set_global: bool = False,
) -> tuple[TracerProvider, bool]:
    """The provider to use, and whether it is ours (then we shut it down).

    In order: the one given; the one set globally; the framework's own (LiveKit's); else a new one, which
    exports by OTLP where ``OTEL_EXPORTER_OTLP_ENDPOINT`` (or ``..._TRACES_ENDPOINT``) says so and the
    ``otlp`` extra is installed, else to ``spans.jsonl`` under ``directory``, else nowhere. With
    ``set_global`` a new one also becomes the global one; none that is set is ever replaced.
    """
    if tracer_provider is not None:
        return tracer_provider, False
    current = trace.get_tracer_provider()
    if not isinstance(current, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return current, False
    if framework_provider is not None and not isinstance(framework_provider, trace.ProxyTracerProvider):
        return framework_provider, False
    # not by atexit, which children of multiprocessing do not run: LiveKit's jobs are such on Linux
    provider = SdkTracerProvider(resource=_resource(), shutdown_on_exit=False)
    Finalize(None, provider.shutdown, exitpriority=80)
    exporter = otlp_exporter()
    if exporter is None and directory is not None:
        exporter = JsonFileExporter(Path(directory) / SPANS_FILE)
    if exporter is not None:
        provider.add_span_processor(BatchSpanProcessor(wrap_exporter(exporter)))
    if set_global and isinstance(current, trace.ProxyTracerProvider):
        trace.set_tracer_provider(provider)
    return provider, True


def flush_with_deadline(provider: TracerProvider, seconds: float) -> bool:
    """Flush the provider, waiting at most ``seconds``; True when it finished and no export failed.

    The SDK ignores its own timeout and answers True for an export that failed, so the wait is ours (the
    flush goes on in a daemon thread) and failures are learnt from the wrapped exporters.
    """
    flush = getattr(provider, "force_flush", None)
    if flush is None:
        return True
    failed_before = failed_exports()
    answer: list[bool] = []

    def run() -> None:
        try:
            answer.append(flush(max(1, int(seconds * 1000))) is not False)
        except Exception:
            logger.exception("flushing the tracer provider failed")

    thread = threading.Thread(target=run, name="voicetrace-flush", daemon=True)
    thread.start()
    thread.join(seconds)
    return answer == [True] and failed_exports() == failed_before


def _resource() -> Resource:
    resource = Resource.create()  # reads OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
    if str(resource.attributes.get(semconv.SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
        resource = resource.merge(Resource({semconv.SERVICE_NAME: "voicetrace"}))
    return resource


def _first_set(names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := os.environ.get(name, "").strip())), "")


def otlp_endpoint() -> str:
    """The endpoint to which the environment wants traces sent; empty when it wants none."""
    return "" if os.environ.get("OTEL_TRACES_EXPORTER", "").strip() == "none" else _first_set(_ENDPOINTS)


def otlp_exporter() -> SpanExporter | None:
    """An exporter to `otlp_endpoint`; None without one, and, with a warning, without its package."""
    if not otlp_endpoint():
        return None
    grpc = _first_set(_PROTOCOLS) == "grpc"
    try:
        if grpc:
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
                OTLPSpanExporter as GrpcExporter,
            )

            return GrpcExporter()
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
            OTLPSpanExporter as HttpExporter,
        )

        return HttpExporter()
    except ImportError:
        missing = "opentelemetry-exporter-otlp-proto-grpc" if grpc else "voicetrace[otlp]"
        logger.warning(
            "an OTLP endpoint is set in the environment but its exporter is not installed: "
            "no spans are sent; run pip install '%s'",
            missing,
        )
        return None
