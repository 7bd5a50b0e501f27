# SPDX-License-Identifier: Apache-2.0
"""The world around a scripted Pipecat call: the demo's doubles, with speech that is made up.

All times in scripts are seconds since the caller's line began. Speech of the user is a list of `Said`; what
the model answers is looked up by what it was told last; the speech service speaks every word in the same
time, in samples that occur only once.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pipecat.audio.vad.vad_analyzer import VADAnalyzer, VADParams, VADState
from pipecat.frames.frames import FunctionCallFromLLM
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.utils.tracing.service_decorators import traced_llm

from voicetrace.demo.doubles_pipecat import ScriptedLLM, SpokenWord, Voice
from voicetrace.demo.line import CallerLine
from voicetrace.demo.script import RecordedClip, tokenize
from voicetrace.demo.truth import LLMCall

MIC_RATE = 16_000
RATE = 24_000
WORD_S = 0.2
WORD_SAMPLES = int(WORD_S * RATE)
LEAD_S = 0.04  # silence before the first word of an utterance


@dataclass(frozen=True)
class Said:
    """The user makes a sound in [start, end]; speech-to-text makes `text` of it, `final_after` its end.

    On the grid of the line's frames the VAD's bounds are exact. ``vad=False``: too soft for the VAD.
    """

    start: float
    end: float
    text: str | None = None
    final_after: float = 0.2
    interims: tuple[tuple[float, str], ...] = ()
    vad: bool = True


@dataclass(frozen=True)
class Reply:
    """What the model answers: a text, then perhaps calls of tools ``(name, arguments as JSON)``; or fails."""

    text: str = ""
    tools: tuple[tuple[str, str], ...] = ()
    first: float = 0.1
    pace: float = 0.02
    fails: bool = False
    hangs: bool = False  # after its text it never ends


class EnergyVAD(VADAnalyzer):
    """Speech is what is loud, in windows of 20 ms, on the event loop itself."""

    def __init__(self, *, start_secs: float = 0.2, stop_secs: float = 0.2) -> None:
        super().__init__(params=VADParams(start_secs=start_secs, stop_secs=stop_secs, min_volume=0.0))

    def num_frames_required(self) -> int:
        return self.sample_rate // 50

    def voice_confidence(self, buffer: bytes) -> float:
        return float(np.abs(np.frombuffer(buffer, np.int16)).max() > 1000)

    def _get_smoothed_volume(self, audio: bytes) -> float:
        return 1.0  # costs much, and nothing here asks for it

    async def analyze_audio(self, buffer: bytes) -> VADState:
        return self._run_analyzer(buffer)


def quiet_line(frame_s: float) -> CallerLine:
    """A line with a hum that no VAD takes for speech, of another value every 20 ms."""
    hum = np.repeat(np.arange(1, 500, dtype=np.int16), MIC_RATE // 50)
    return CallerLine(RecordedClip("hum", "", MIC_RATE, hum, 0, len(hum)), frame_s=frame_s)


def tone(said: Said) -> RecordedClip:
    """The sound of one `Said`."""
    size = round((said.end - said.start) * MIC_RATE)
    loud = 8000 if said.vad else 500
    samples = np.where(np.arange(size) % 40 < 20, loud, -loud).astype(np.int16)
    return RecordedClip("said", said.text or "", MIC_RATE, samples, 0, size)


class MadeUpVoice(Voice):
    """Speaks each word in `WORD_S`; the first word of an utterance begins at ``lead``."""

    def __init__(self, *, lead: float = LEAD_S) -> None:
        self.sample_rate = RATE
        self._lead = int(lead * RATE)
        self.words = 0  # over all utterances: each word sounds different

    def speak(self, before: str, text: str) -> list[SpokenWord]:
        spoken = []
        for index, word in enumerate(text.split()):
            lead = 0 if before.strip() or index else self._lead
            samples = np.concatenate([np.zeros(lead, np.int16), word_samples(self.words)])
            spoken.append(SpokenWord(word, samples, lead))
            self.words += 1
        return spoken


def word_samples(number: int) -> np.ndarray:
    """The samples of the word spoken as number so-and-so: never silence, and never twice the same."""
    return (np.arange(WORD_SAMPLES) % 997 + 1 + number * 7).astype(np.int16)


class FakeLLM(ScriptedLLM):
    """Answers the newest message by its text, ``tool:<name>`` for a tool's result, or else by ``*``."""

    def __init__(self, replies: dict[str, Reply], **kwargs: Any) -> None:
        super().__init__((), **kwargs)
        self.replies = replies

    @traced_llm
    async def _process_context(self, context: LLMContext) -> None:
        ids = [self.labels.label(message) for message in context.messages]
        call = LLMCall(len(self.calls), time.time(), ids, "")
        self.calls.append(call)
        call.heard, reply = self._choose(context.messages)
        await self.start_ttfb_metrics()
        await asyncio.sleep(reply.first)
        await self.stop_ttfb_metrics()
        for token in tokenize(reply.text):
            call.reply_text += token
            await self._push_llm_text(token)
            await asyncio.sleep(reply.pace)
        if reply.fails:
            raise LookupError("the model failed")
        if reply.hangs:
            await asyncio.Event().wait()
        await self.run_function_calls(
            [
                FunctionCallFromLLM(name, f"call_{call.ordinal}_{number}", json.loads(arguments), context)
                for number, (name, arguments) in enumerate(reply.tools)
            ]
        )
        call.tool_calls += [name for name, _ in reply.tools]
        call.finished = True

    def _choose(self, messages: Sequence[Any]) -> tuple[str, Reply]:
        newest = messages[-1] if messages else {}
        key = str(newest.get("content"))
        if newest.get("role") == "tool":
            names = {c["id"]: c["function"]["name"] for m in messages for c in m.get("tool_calls") or ()}
            key = f"tool:{names[newest['tool_call_id']]}"
        elif newest.get("role") == "developer":
            key = "unheard"
        return key, self.replies[key if key in self.replies else "*"]
