# SPDX-License-Identifier: Apache-2.0
"""Voice artifact bundles for AgentClash: write one from a `VoiceCall`, and check any."""

from voicetrace.agentclash.bundle import BundleError, export_bundle
from voicetrace.agentclash.manifest import validate_manifest
from voicetrace.agentclash.reports import validate_report
from voicetrace.agentclash.validate import validate_bundle, validate_path

__all__ = [
    "BundleError",
    "export_bundle",
    "validate_bundle",
    "validate_manifest",
    "validate_path",
    "validate_report",
]
