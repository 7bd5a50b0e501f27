# SPDX-License-Identifier: Apache-2.0
"""`VoiceTraceProcessor`: the one processor a user adds; anywhere in the pipeline.

It does not rely on the frames that pass through it, for no place sees them all: when it is set up, it finds
the pipeline's role processors and listens to them (`trace.py`).
"""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from pipecat.frames.frames import Frame
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor, FrameProcessorSetup

from voicetrace.integrations.pipecat.follower import Follower
from voicetrace.integrations.pipecat.trace import PipelineTrace
from voicetrace.live import LiveCall


class VoiceTraceProcessor(FrameProcessor):
    """Makes a pipeline a readable call. ``Pipeline([..., VoiceTraceProcessor()])`` is all there is to do.

    Frames pass through unchanged. The settings are `voicetrace.configure`'s at the time the pipeline is
    set up. Build it before the pipeline runs: it registers for spans when it is made.
    """

    def __init__(self, *, tracer_provider: TracerProvider | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._follower = Follower(tracer_provider)
        self._trace: PipelineTrace | None = None

    @property
    def call(self) -> LiveCall | None:
        """The call of the pipeline that is running, or ran last."""
        return self._trace.call if self._trace is not None else None

    async def setup(self, setup: FrameProcessorSetup) -> None:  # type: ignore[override]  # as Pipecat's own
        """Find the roles and listen to them."""
        await super().setup(setup)
        self._trace = self._follower.begin(setup)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Pass everything on as it is."""
        await super().process_frame(frame, direction)
        await self.push_frame(frame, direction)

    async def cleanup(self) -> None:
        """The last resort, where nothing else told the end."""
        if self._trace is not None:
            self._trace.finish("the pipeline was cleaned up")
        await super().cleanup()  # type: ignore[no-untyped-call]
