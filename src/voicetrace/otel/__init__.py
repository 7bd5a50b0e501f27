# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry: holding spans until they can be linked, size-aware encoding, records, and set-up."""

from __future__ import annotations

from voicetrace.otel.hold import LinkingExporter, wrap_exporter
from voicetrace.otel.links import LINKS, StepLinks

__all__ = ["LINKS", "LinkingExporter", "StepLinks", "wrap_exporter"]
