# SPDX-License-Identifier: Apache-2.0
"""Calls to your own collector: wrap your exporter, so that LLM spans leave with the messages they wrote.

``OTEL_EXPORTER_OTLP_ENDPOINT`` says where the collector is, as for any OpenTelemetry program.
"""

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import voicetrace


def make_provider() -> TracerProvider:
    """Your provider, with your processors, and voicetrace around your exporter."""
    provider = TracerProvider(resource=Resource.create({"service.name": "front-desk"}))
    provider.add_span_processor(BatchSpanProcessor(voicetrace.wrap_exporter(OTLPSpanExporter())))
    return provider


def set_up() -> TracerProvider:
    """Call this once, in the process that holds the calls, before the first session starts.

    Call ``provider.shutdown()`` at its end: it sends what still waits for its message.
    """
    from voicetrace.integrations.livekit import LiveKitInstrumentor

    provider = make_provider()
    voicetrace.configure(tracer_provider=provider)
    LiveKitInstrumentor().instrument(provider)
    return provider
