# SPDX-License-Identifier: Apache-2.0
"""`Follower`: begins the trace of a pipeline when it is set up, whoever asked for it.

`VoiceTraceProcessor`, `follow`, a setup file and `PipecatInstrumentor` all come here; a pipeline that several
of them follow is one call.
"""

from __future__ import annotations

import functools
import logging
import weakref
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.frame_processor import FrameProcessorSetup
from pipecat.transports.base_input import BaseInputTransport
from pipecat.transports.base_output import BaseOutputTransport

from voicetrace import settings
from voicetrace.integrations.pipecat import package
from voicetrace.integrations.pipecat.spans import PipecatSpanProcessor, span_processor
from voicetrace.integrations.pipecat.trace import HelperTrace, PipelineTrace, walk
from voicetrace.otel.setup import get_provider
from voicetrace.owners import register_call

logger = logging.getLogger("voicetrace")

_TRACES: weakref.WeakKeyDictionary[PipelineWorker, PipelineTrace] = weakref.WeakKeyDictionary()
# where nobody set a provider: one of ours for every pipeline, not one each
_OWN: dict[Path | None, TracerProvider] = {}


class Follower:
    """Begins traces, with one provider; made before the pipeline runs, for its first span starts early."""

    def __init__(self, tracer_provider: TracerProvider | None) -> None:
        self._version = _installed_version()
        chosen = settings.current()
        provider, ours = get_provider(
            tracer_provider or chosen.tracer_provider,
            chosen.directory,
            framework_provider=_OWN.get(chosen.directory),
        )
        if ours and isinstance(provider, TracerProvider):
            _OWN[chosen.directory] = provider
        self._provider = provider if isinstance(provider, TracerProvider) else None
        self._spans: PipecatSpanProcessor | None = None
        if self._provider is not None:
            self._spans = span_processor(self._provider)
        self._begun: weakref.WeakSet[PipelineTrace] = weakref.WeakSet()
        self._stopped = False

    @property
    def running(self) -> list[PipelineTrace]:
        """The traces that this follower began and that are going on."""
        return [t for t in self._begun if not t.call.closed]

    def attach(self, worker: PipelineWorker) -> None:
        """Follow this worker from its next set-up on. Harmless when repeated."""
        pipeline = worker.pipeline
        original = pipeline.setup

        async def setup(with_setup: FrameProcessorSetup) -> None:
            if vars(pipeline).get("setup") is setup:
                del pipeline.setup
            self.begin(with_setup)
            await original(with_setup)

        pipeline.setup = setup  # type: ignore[method-assign,assignment]

    def begin(self, setup: FrameProcessorSetup) -> PipelineTrace | None:
        """Follow the pipeline that is being set up; once, however often it is asked for. Never raises."""
        worker = setup.pipeline_worker
        if self._stopped:
            return None
        try:
            found = _TRACES.get(worker)
            if found is not None and not found.call.closed:
                return found
            roles = (BaseInputTransport, BaseOutputTransport)
            if worker.bridged and not any(isinstance(p, roles) for p in walk(worker.pipeline)):
                HelperTrace(setup)
                return None
            _TRACES[worker] = found = PipelineTrace(setup, self._provider, self._spans, self._version)
            self._begun.add(found)
            register_call(worker, found.call)
        except Exception as error:
            logger.warning(
                "voicetrace could not follow this pipeline (%s: %s); it runs on, untraced",
                type(error).__name__,
                error,
                exc_info=error,
            )
            return None
        return found

    def stop(self, reason: str) -> None:
        """Begin no more traces, and end those that are going on."""
        self._stopped = True
        for running in self.running:
            running.finish(reason)


@functools.cache
def _installed_version() -> str:
    """Pipecat's version, read once (it is a look at the disk), with a warning where it was not tested."""
    installed = package.installed()
    if not package.is_supported(installed):
        logger.warning(
            "pipecat-ai %s is not among the versions voicetrace was tested with (%s): what changed in it may "
            "be missing from the record; `voicetrace doctor` says which hooks still fit",
            installed,
            package._instruments[0],  # noqa: SLF001
        )
    return installed


def follow(worker: PipelineWorker, tracer_provider: TracerProvider | None = None) -> None:
    """Follow a worker without adding a processor to its pipeline. Call it before the worker runs.

    For workers whose pipeline is not made by hand, such as an `LLMWorker`. Harmless when repeated, and
    together with a `VoiceTraceProcessor`.
    """
    Follower(tracer_provider).attach(worker)


async def setup_pipeline_worker(worker: PipelineWorker) -> None:
    """What a file named in ``PIPECAT_SETUP_FILES`` defines: ``from ... import setup_pipeline_worker``."""
    follow(worker)
