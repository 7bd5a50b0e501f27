# SPDX-License-Identifier: Apache-2.0
"""Listeners without a network: one that replays what was recorded, and one that says what a test wants."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from voicetrace.judge.listener.base import AudioJudge, JudgeUnavailable, Reply, Request


@dataclass(frozen=True, slots=True)
class RecordedAudioJudge:
    """Answers from a folder, by the digest of the request; what is not there yet is asked of ``source`` once.

    Recording makes a model that answers differently each time repeatable, and free.
    """

    folder: Path
    source: AudioJudge | None = None
    name: str = "recorded"

    @property
    def identity(self) -> str:
        """The identity of what was recorded."""
        return self.source.identity if self.source is not None else self.name

    def evaluate(self, request: Request) -> Reply | JudgeUnavailable:
        """Replay, or ask and record."""
        path = self.folder / f"{request.sha256}.json"
        if path.is_file():
            return Reply(**json.loads(path.read_text("utf-8")))
        if self.source is None:
            return JudgeUnavailable(
                f"no answer to request {request.sha256[:12]}… is recorded in {self.folder}"
            )
        reply = self.source.evaluate(request)
        if isinstance(reply, Reply):
            self.folder.mkdir(parents=True, exist_ok=True)
            stored = {
                "text": reply.text,
                "input_tokens": reply.input_tokens,
                "output_tokens": reply.output_tokens,
            }
            path.write_text(json.dumps(stored), "utf-8")
        return reply


@dataclass(slots=True)
class FakeAudioJudge:
    """Says what a function makes of a request, and keeps the requests it got."""

    answer: Callable[[Request], str | JudgeUnavailable]
    tokens: tuple[int, int] = (1000, 100)
    requests: list[Request] = field(default_factory=list)

    @property
    def identity(self) -> str:
        """``fake``."""
        return "fake"

    def evaluate(self, request: Request) -> Reply | JudgeUnavailable:
        """Answer at once."""
        self.requests.append(request)
        said = self.answer(request)
        return said if isinstance(said, JudgeUnavailable) else Reply(said, *self.tokens)
