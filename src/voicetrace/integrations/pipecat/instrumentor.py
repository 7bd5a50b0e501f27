# SPDX-License-Identifier: Apache-2.0
"""`PipecatInstrumentor`: every `PipelineWorker` of this process is followed, until `uninstrument`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from pipecat.pipeline.worker import PipelineWorker

from voicetrace.guard import Guard
from voicetrace.integrations.patches import Patches
from voicetrace.integrations.pipecat import package
from voicetrace.integrations.pipecat.follower import Follower
from voicetrace.live import LiveCall

logger = logging.getLogger("voicetrace")


class PipecatInstrumentor:
    """Follows every pipeline, as if each had a `VoiceTraceProcessor`. One per process is in force.

    ``PipecatInstrumentor().instrument()`` goes where the program starts. `instrument` is idempotent.
    """

    _active: PipecatInstrumentor | None = None

    def __init__(self) -> None:
        self._patches = Patches()
        self._guard = Guard()
        self._follower: Follower | None = None

    @property
    def is_instrumented(self) -> bool:
        """Whether this instrumentor is in force."""
        return PipecatInstrumentor._active is self

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """As `is_instrumented`; the name that OpenTelemetry's auto-instrumentation uses."""
        return self.is_instrumented

    def instrumentation_dependencies(self) -> Collection[str]:
        """What must be installed, for OpenTelemetry's auto-instrumentation."""
        return package._instruments  # noqa: SLF001

    @property
    def calls(self) -> list[LiveCall]:
        """The calls that are going on."""
        return [t.call for t in self._follower.running] if self._follower is not None else []

    def instrument(self, tracer_provider: TracerProvider | None = None, **_: Any) -> PipecatInstrumentor:
        """Follow every `PipelineWorker` that runs from now on, also one that was made before.

        Other keywords are what OpenTelemetry's auto-instrumentation passes, and mean nothing here.

        Args:
            tracer_provider: Where our spans go: the one that Pipecat writes to, which is the global one.
                Default: `configure`'s, else the global one, else one of ours.
        """
        active = PipecatInstrumentor._active
        if active is not None:
            if active is not self:
                logger.warning("voicetrace already instruments pipecat-ai; this second call changes nothing")
            return self
        PipecatInstrumentor._active = self
        self._follower = Follower(tracer_provider)
        self._patches.replace(PipelineWorker, "run", self._wrap_run)
        return self

    def uninstrument(self, **_: Any) -> None:
        """Put back what was replaced, and leave running pipelines without a handler of ours.

        Calls that are going on end here, with the reason ``uninstrumented``.
        """
        if not self.is_instrumented:
            return
        PipecatInstrumentor._active = None
        for name in self._patches.restore():
            logger.warning("%s was replaced by someone else after voicetrace; it is left as it is", name)
        if self._follower is not None:
            self._follower.stop("uninstrumented")
            self._follower = None

    def _wrap_run(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        async def run(worker: PipelineWorker, *args: Any, **kwargs: Any) -> Any:
            attach(worker)
            return await original(worker, *args, **kwargs)

        attach = self._guard.wrap("run", self._attach)
        return run

    def _attach(self, worker: PipelineWorker) -> None:
        if self._follower is not None:
            self._follower.attach(worker)
