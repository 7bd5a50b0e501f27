# SPDX-License-Identifier: Apache-2.0
"""The director of a demo call: lets the caller speak when the scenario wants it. Needs no framework."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from voicetrace.demo.line import CallerLine, Spoken
from voicetrace.demo.script import Cue, Scenario, load_clip
from voicetrace.demo.truth import Segment


class Hear(Protocol):
    """Tells the scripted speech-to-text what to make of one utterance, and when."""

    def __call__(
        self, spoken: Spoken, interims: Iterable[tuple[str, int]], final: str | None, final_delay_ms: int
    ) -> None:
        """Queue the results of one utterance."""


class Director:
    """Plays the caller's part of one scenario against what the speaker says it played.

    ``segments`` is the speaker's own list, which grows; whoever changes it calls `changed`. ``spoken`` has
    every utterance that has begun, by clip. Lives on the loop that runs the call.
    """

    def __init__(self, scenario: Scenario, line: CallerLine, hear: Hear, segments: Sequence[Segment]) -> None:
        self.scenario = scenario
        self.spoken: dict[str, Spoken] = {}
        self.waiting_for = "the session to start"
        self._line = line
        self._hear = hear
        self._segments = segments
        self._change = asyncio.Event()
        self.changed: Callable[[], None] = self._change.set

    async def cue_unix(self, cue: Cue) -> float:
        """Wait until the cue's event happened; returns when it wants the speech to begin."""
        delay = cue.delay_ms / 1000
        if cue.caller is not None:
            return self.spoken[cue.caller].end_unix + delay
        names = [utterance.clip for utterance in self.scenario.agent]
        assert cue.agent is not None
        position = names.index(cue.agent)
        self.waiting_for = f"the agent to have {cue.at} {cue.agent!r}"
        while True:
            self._change.clear()
            if position < len(self._segments):
                segment = self._segments[position]
                happened = segment.started_unix if cue.at == "started" else segment.finished_unix
                if happened is not None:
                    return happened + delay
            await self._change.wait()

    async def direct(self) -> None:
        """Play the caller's part, then wait for the agent's last word."""
        for utterance in self.scenario.caller:
            spoken = self._line.speak(load_clip(utterance.clip), await self.cue_unix(utterance.cue))
            self.spoken[utterance.clip] = spoken
            self._hear(spoken, utterance.interims, utterance.final, utterance.final_delay_ms)
        goodbye = Cue(self.scenario.hang_up_ms, agent=self.scenario.agent[-1].clip)
        await asyncio.sleep(max(0.0, await self.cue_unix(goodbye) - time.time()))
