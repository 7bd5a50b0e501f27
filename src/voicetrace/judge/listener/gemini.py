# SPDX-License-Identifier: Apache-2.0
"""Gemini's ``generateContent``. Its models mix channels into one, so each clip is one side of the call."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from voicetrace.judge.listener.base import JudgeUnavailable, Reply, Request
from voicetrace.judge.listener.http import key_of, post_json


@dataclass(frozen=True, slots=True, kw_only=True)
class GeminiAudioJudge:
    """Audio inline, an answer by the schema. A request has 20 MB at most: 400 s of audio."""

    model: str
    base_url: str = "https://generativelanguage.googleapis.com/v1beta"
    api_key_env: str = "GEMINI_API_KEY"
    timeout_s: float = 120.0
    tries: int = 3

    @property
    def identity(self) -> str:
        """``gemini:<model>``."""
        return f"gemini:{self.model}"

    def evaluate(self, request: Request) -> Reply | JudgeUnavailable:
        """Ask once."""
        headers = {}
        if self.api_key_env:
            key = key_of(self.api_key_env)
            if isinstance(key, JudgeUnavailable):
                return key
            headers["x-goog-api-key"] = key
        parts: list[dict[str, Any]] = [{"text": request.text}]
        for clip in request.clips:
            data = base64.b64encode(clip.wav).decode()
            parts += [{"text": clip.label}, {"inline_data": {"mime_type": "audio/wav", "data": data}}]
        body = {
            "systemInstruction": {"parts": [{"text": request.system}]},
            "contents": [{"role": "user", "parts": parts}],
            "generationConfig": {
                "temperature": 0,
                "responseMimeType": "application/json",
                "responseSchema": request.schema,
            },
        }
        url = f"{self.base_url.rstrip('/')}/models/{self.model}:generateContent"
        answer = post_json(url, body, headers, timeout_s=self.timeout_s, tries=self.tries)
        if isinstance(answer, JudgeUnavailable):
            return answer
        try:
            text = "".join(part.get("text", "") for part in answer["candidates"][0]["content"]["parts"])
        except (KeyError, IndexError, TypeError, AttributeError):
            return JudgeUnavailable("the answer has no candidates[0].content.parts")
        usage = answer.get("usageMetadata") or {}
        return Reply(
            text, int(usage.get("promptTokenCount") or 0), int(usage.get("candidatesTokenCount") or 0)
        )
