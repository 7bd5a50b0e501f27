# SPDX-License-Identifier: Apache-2.0
"""Voice artifact bundles for AgentClash: write one from a `VoiceCall` or from audio, and check any."""

from voicetrace.agentclash.artifacts import BundleError
from voicetrace.agentclash.bundle import Evidence, export_bundle
from voicetrace.agentclash.continuity import THRESHOLDS, continuity_report
from voicetrace.agentclash.imported import ImportedCall, call_from_audio
from voicetrace.agentclash.manifest import validate_manifest
from voicetrace.agentclash.promotion import Promotion, PromotionTarget
from voicetrace.agentclash.reports import validate_report
from voicetrace.agentclash.schemas import json_schemas
from voicetrace.agentclash.separation import References, measure_separation, source_separation_report
from voicetrace.agentclash.store import upload_bundle
from voicetrace.agentclash.validate import validate_bundle, validate_path
from voicetrace.agentclash.video_sync import (
    SpeechSegment,
    VideoSyncLimits,
    measure_video_sync,
    video_sync_report,
)

__all__ = [
    "THRESHOLDS",
    "BundleError",
    "Evidence",
    "ImportedCall",
    "Promotion",
    "PromotionTarget",
    "References",
    "SpeechSegment",
    "VideoSyncLimits",
    "call_from_audio",
    "continuity_report",
    "export_bundle",
    "json_schemas",
    "measure_separation",
    "measure_video_sync",
    "source_separation_report",
    "upload_bundle",
    "validate_bundle",
    "validate_manifest",
    "validate_path",
    "validate_report",
    "video_sync_report",
]
