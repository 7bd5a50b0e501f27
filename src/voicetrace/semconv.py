# SPDX-License-Identifier: Apache-2.0
"""Every span, attribute and event name voicetrace reads or writes; nowhere else is one spelled.

Standard names follow the OpenTelemetry GenAI conventions named by `GENAI_CONVENTIONS`, all of them in
development, so a rename upstream is a change to this file only. ``voice.*`` is ours, for what has no
standard name.
"""

from __future__ import annotations

from typing import Final

GENAI_CONVENTIONS: Final = "gen-ai-dev/1.42.0-dev"
SCHEMA_URL: Final = "https://voicetrace.dev/schemas/voice-messages/1"
INSTRUMENTATION_NAME: Final = "voicetrace"

# -- the call span (contract, section 1) ------------------------------------------------------------
SPAN_CALL: Final = "voicetrace.call"
VOICE_CALL_ID: Final = "voice.call_id"
VOICE_ORIGIN_UNIX_MS: Final = "voice.origin_unix_ms"
VOICE_MESSAGES: Final = "voice.messages"
VOICE_MESSAGES_OMITTED: Final = "voice.messages.omitted"
VOICE_MESSAGES_URI: Final = "voice.messages.uri"
VOICE_RECORDING: Final = "voice.recording"
VOICE_FRAMEWORK: Final = "voice.framework"
VOICE_FRAMEWORK_VERSION: Final = "voice.framework_version"
VOICE_WARNINGS: Final = "voice.warnings"
VOICE_END_REASON: Final = "voice.end_reason"
VOICE_WORKSPACE_ID: Final = "voice.workspace_id"
VOICE_SERVICE_ID: Final = "voice.service_id"
VOICE_RECOVERED: Final = "voice.recovered"

# -- LLM spans (contract, section 1; architecture, decisions 4, 5 and 9) -----------------------------
SPAN_LLM_STEP: Final = "voicetrace.llm_step"
VOICE_CONTEXT_MESSAGE_IDS: Final = "voice.context_message_ids"
VOICE_CONTEXT_MESSAGE_COUNT: Final = "voice.context_message_count"
VOICE_OUTPUT_MESSAGE_ID: Final = "voice.output_message_id"
VOICE_OUTPUT_MESSAGE_IDS: Final = "voice.output_message_ids"
VOICE_SPECULATIVE: Final = "voice.speculative"

# -- one small record per message (architecture, "On the wire") --------------------------------------
MESSAGE_RECORD: Final = "voice.message"
MESSAGE_ID: Final = "voice.message.id"
MESSAGE_FIELD_PREFIX: Final = "voice.message."
MESSAGE_TEXT_TRUNCATED: Final = "voice.message.text_truncated"
MESSAGE_REVISION: Final = "voice.message.revision"

# -- standard names ----------------------------------------------------------------------------------
GEN_AI_CONVERSATION_ID: Final = "gen_ai.conversation.id"
GEN_AI_AGENT_NAME: Final = "gen_ai.agent.name"
GEN_AI_INPUT_MESSAGES: Final = "gen_ai.input.messages"
GEN_AI_OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
GEN_AI_OPERATION_NAME: Final = "gen_ai.operation.name"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_PROVIDER_NAME: Final = "gen_ai.provider.name"
GEN_AI_EVALUATION_RESULT: Final = "gen_ai.evaluation.result"
GEN_AI_EVALUATION_NAME: Final = "gen_ai.evaluation.name"
GEN_AI_EVALUATION_SCORE_VALUE: Final = "gen_ai.evaluation.score.value"
GEN_AI_EVALUATION_SCORE_LABEL: Final = "gen_ai.evaluation.score.label"
GEN_AI_EVALUATION_EXPLANATION: Final = "gen_ai.evaluation.explanation"
ENV_CAPTURE_CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
SERVICE_NAME: Final = "service.name"

# -- LiveKit Agents' own names that we read (livekit-capture.md, section 2) ---------------------------
LK_SPAN_SESSION: Final = "agent_session"
LK_SPAN_AGENT_TURN: Final = "agent_turn"
LK_SPAN_USER_TURN: Final = "user_turn"
LK_SPAN_EOU_WAIT: Final = "eou_wait"
LK_SPAN_TURN_HOOK: Final = "on_user_turn_completed"
LK_SPAN_LLM_NODE: Final = "llm_node"
LK_SPAN_REALTIME: Final = "realtime_inference"
LK_GENERATION_ID: Final = "lk.generation_id"
LK_SPEECH_ID: Final = "lk.speech_id"
LK_EOU_OUTCOME: Final = "lk.eou.outcome"
LK_PREFIX: Final = "lk."
LK_INPUT_DELTA: Final = "lk.input.delta"
LK_CHAT_CTX: Final = "lk.pii.chat_ctx"
LK_EVENT_STOP_RESPONSE: Final = "stop_response"

# -- Pipecat's own names that we read (pipecat-capture.md, section 5) ---------------------------------
PIPECAT_SPAN_CONVERSATION: Final = "conversation"
PIPECAT_SPAN_LLM: Final = "llm"
PIPECAT_SPAN_LLM_RESPONSE: Final = "llm_response"
PIPECAT_INPUT: Final = "input"
