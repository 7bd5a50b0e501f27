# SPDX-License-Identifier: Apache-2.0
"""`VoiceTraceProcessor`: the one processor a user adds; anywhere in the pipeline.

It does not rely on the frames that pass through it, for no place sees them all: when it is set up, it finds
the pipeline's role processors and listens to them (`trace.py`). `follow` does the same without a processor.
"""

from __future__ import annotations

import logging
import weakref
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from pipecat.frames.frames import Frame
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor, FrameProcessorSetup
from pipecat.transports.base_input import BaseInputTransport
from pipecat.transports.base_output import BaseOutputTransport

from voicetrace import settings
from voicetrace.integrations.pipecat.spans import PipecatSpanProcessor, span_processor
from voicetrace.integrations.pipecat.trace import HelperTrace, PipelineTrace, walk
from voicetrace.live import LiveCall
from voicetrace.otel.setup import get_provider

logger = logging.getLogger("voicetrace")

_TRACES: weakref.WeakKeyDictionary[PipelineWorker, PipelineTrace] = weakref.WeakKeyDictionary()


class _Follower:
    """Begins traces, with one provider; made before the pipeline runs, for its first span starts early."""

    def __init__(self, tracer_provider: TracerProvider | None) -> None:
        chosen = settings.current()
        provider, _ = get_provider(tracer_provider or chosen.tracer_provider, chosen.directory)
        self._provider = provider if isinstance(provider, TracerProvider) else None
        self._spans: PipecatSpanProcessor | None = None
        if self._provider is not None:
            self._spans = span_processor(self._provider)

    def begin(self, setup: FrameProcessorSetup) -> PipelineTrace | None:
        """Follow the pipeline that is being set up; once, however often it is asked for. Never raises."""
        worker = setup.pipeline_worker
        try:
            found = _TRACES.get(worker)
            if found is not None and not found.call.closed:
                return found
            roles = (BaseInputTransport, BaseOutputTransport)
            if worker.bridged and not any(isinstance(p, roles) for p in walk(worker.pipeline)):
                HelperTrace(setup)
                return None
            _TRACES[worker] = found = PipelineTrace(setup, self._provider, self._spans)
        except Exception as error:
            logger.warning(
                "voicetrace could not follow this pipeline (%s: %s); it runs on, untraced",
                type(error).__name__,
                error,
                exc_info=error,
            )
            return None
        return found


class VoiceTraceProcessor(FrameProcessor):
    """Makes a pipeline a readable call. ``Pipeline([..., VoiceTraceProcessor()])`` is all there is to do.

    Frames pass through unchanged. The settings are `voicetrace.configure`'s at the time the pipeline is
    set up. Build it before the pipeline runs: it registers for spans when it is made.
    """

    def __init__(self, *, tracer_provider: TracerProvider | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._follower = _Follower(tracer_provider)
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


def follow(worker: PipelineWorker, tracer_provider: TracerProvider | None = None) -> None:
    """Follow a worker without adding a processor to its pipeline. Call it before the worker runs.

    For workers whose pipeline is not made by hand, such as an `LLMWorker`. Harmless when repeated, and
    together with a `VoiceTraceProcessor`.
    """
    follower, pipeline = _Follower(tracer_provider), worker.pipeline
    original = pipeline.setup

    async def setup(with_setup: FrameProcessorSetup) -> None:
        if vars(pipeline).get("setup") is setup:
            del pipeline.setup
        follower.begin(with_setup)
        await original(with_setup)

    pipeline.setup = setup  # type: ignore[method-assign,assignment]


async def setup_pipeline_worker(worker: PipelineWorker) -> None:
    """What a file named in ``PIPECAT_SETUP_FILES`` defines: ``from ... import setup_pipeline_worker``."""
    follow(worker)
