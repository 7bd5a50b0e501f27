# SPDX-License-Identifier: Apache-2.0
"""What a fold says on spans and in files: one place for live calls, recovered calls and documents."""

from __future__ import annotations

from typing import Any

from voicetrace import semconv
from voicetrace.call import CallRecorder
from voicetrace.messages import LLMStep
from voicetrace.otel.encode import id_list


def step_attributes(step: LLMStep) -> dict[str, Any]:
    """What an LLM span says once its outputs are known (contract, section 1; decisions 4 and 5)."""
    out: dict[str, Any] = {semconv.VOICE_CONTEXT_MESSAGE_IDS: id_list(step.context_ids)}
    if step.output_ids:
        out[semconv.VOICE_OUTPUT_MESSAGE_ID] = step.output_ids[0]
    if len(step.output_ids) > 1:
        out[semconv.VOICE_OUTPUT_MESSAGE_IDS] = list(step.output_ids)
    if step.speculative:
        out[semconv.VOICE_SPECULATIVE] = True
    return out


def call_attributes(recorder: CallRecorder, *, final: bool) -> dict[str, Any]:
    """The call span's own attributes, all but the messages and the recording."""
    start = recorder.started
    out: dict[str, Any] = {}
    if start is not None:
        out = {
            semconv.VOICE_CALL_ID: start.call_id,
            semconv.VOICE_ORIGIN_UNIX_MS: start.origin_unix_ms,
            semconv.VOICE_FRAMEWORK: start.framework,
            semconv.VOICE_FRAMEWORK_VERSION: start.framework_version,
            semconv.VOICE_WORKSPACE_ID: start.workspace_id,
            semconv.VOICE_SERVICE_ID: start.service_id,
            semconv.GEN_AI_CONVERSATION_ID: start.conversation_id,
        }
    if recorder.warnings:
        out[semconv.VOICE_WARNINGS] = list(recorder.warnings[:50])
    if final and recorder.ended is not None:
        out[semconv.VOICE_END_REASON] = recorder.ended.reason
    return {k: v for k, v in out.items() if v != ""}


def call_document(recorder: CallRecorder) -> dict[str, Any]:
    """The whole record as one JSON object: the call span's attributes, with the uncut map as an object."""
    document = call_attributes(recorder, final=True)
    recording = recorder.recording
    if recording is not None:
        document[semconv.VOICE_RECORDING] = recording.to_wire()
    document[semconv.VOICE_MESSAGES] = {m.id: m.to_wire() for m in recorder.ordered()}
    return document
