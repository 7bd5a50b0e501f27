# SPDX-License-Identifier: Apache-2.0
"""Any service with OpenAI's chat completions and ``input_audio``: OpenAI, OpenRouter, vLLM and the like."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

from voicetrace.judge.listener.base import JudgeUnavailable, Reply, Request
from voicetrace.judge.listener.http import key_of, post_json


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIAudioJudge:
    """Chat completions with audio. These models know no structured output: the schema is part of the text.

    ``api_key_env`` names the environment variable of the key; empty for a service that wants none.
    """

    model: str
    base_url: str = "https://api.openai.com/v1"
    api_key_env: str = "OPENAI_API_KEY"
    timeout_s: float = 120.0
    tries: int = 3

    @property
    def identity(self) -> str:
        """``openai:<model>``."""
        return f"openai:{self.model}"

    def evaluate(self, request: Request) -> Reply | JudgeUnavailable:
        """Ask once."""
        headers = {}
        if self.api_key_env:
            key = key_of(self.api_key_env)
            if isinstance(key, JudgeUnavailable):
                return key
            headers["Authorization"] = f"Bearer {key}"
        schema = f"{request.text}\nSchema of the answer: {json.dumps(request.schema)}"
        content: list[dict[str, Any]] = [{"type": "text", "text": schema}]
        for clip in request.clips:
            data = base64.b64encode(clip.wav).decode()
            content += [
                {"type": "text", "text": clip.label},
                {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
            ]
        body = {
            "model": self.model,
            "modalities": ["text"],
            "temperature": 0,
            "messages": [{"role": "system", "content": request.system}, {"role": "user", "content": content}],
        }
        url = f"{self.base_url.rstrip('/')}/chat/completions"
        answer = post_json(url, body, headers, timeout_s=self.timeout_s, tries=self.tries)
        if isinstance(answer, JudgeUnavailable):
            return answer
        try:
            text = answer["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            return JudgeUnavailable("the answer has no choices[0].message.content")
        usage = answer.get("usage") or {}
        return Reply(
            str(text or ""), int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
        )
