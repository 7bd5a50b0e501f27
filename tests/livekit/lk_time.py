# SPDX-License-Identifier: Apache-2.0
"""Every clock that LiveKit reads, on the virtual time of `virtual_time`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from unittest import mock

from opentelemetry.sdk import trace as sdk_trace
from pydantic import BaseModel

from virtual_time import EPOCH, VirtualLoop

__all__ = ["EPOCH", "VirtualLoop", "run_virtually", "virtual_clocks"]

_REAL_TIME = time.time


def _read_late(models: list[type[BaseModel]]) -> None:
    """Fields that captured `time.time` itself read it through its module, so that it can be patched."""
    for model in models:
        names = [n for n, f in model.model_fields.items() if f.default_factory is _REAL_TIME]
        for name in names:
            model.model_fields[name].default_factory = lambda: time.time()
        if names:
            model.model_rebuild(force=True)


def _models() -> list[type[BaseModel]]:
    from livekit.agents.inference import interruption
    from livekit.agents.llm import chat_context
    from livekit.agents.voice import events

    found = [v for module in (chat_context, events, interruption) for v in vars(module).values()]
    return [v for v in found if isinstance(v, type) and issubclass(v, BaseModel)]


_read_late(_models())


@contextlib.contextmanager
def virtual_clocks(loop: VirtualLoop) -> Iterator[None]:
    """Every clock of the framework and of voicetrace reads the loop's time, on every thread."""
    from voicetrace.live import LiveCall

    def unix() -> float:
        return EPOCH + loop.time()

    def unix_ns() -> int:
        return round(unix() * 1e6) * 1000

    with (
        mock.patch.object(time, "time", unix),
        mock.patch.object(time, "perf_counter", loop.time),
        mock.patch.object(sdk_trace, "time_ns", unix_ns),
        mock.patch.dict(LiveCall.__init__.__kwdefaults__, {"clock": unix}),
    ):
        yield


def run_virtually(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine function to its end on a loop of its own, in virtual time."""
    loop = VirtualLoop()
    with virtual_clocks(loop), asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main())
