# SPDX-License-Identifier: Apache-2.0
"""Virtual time: an event loop whose clock jumps to the next timer, and every clock LiveKit reads on it.

A 60 s call runs in a fraction of a second, and the same way each time: timers that are due together fire
in the order in which they were set, and times lie on a grid of microseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import selectors
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from unittest import mock

from opentelemetry.sdk import trace as sdk_trace
from pydantic import BaseModel

EPOCH = 1_700_000_000  # what time.time() says at loop time 0
_REAL_TIME = time.time


class _Timer(asyncio.TimerHandle):
    """Equal times fire in the order of their setting."""

    def __init__(self, order: int, *args: Any) -> None:
        super().__init__(*args)
        self.order = order

    def __lt__(self, other: Any) -> bool:
        return (self._when, self.order) < (other._when, other.order)


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits while a timer is set: the clock jumps instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:  # only another thread can go on
            return super().select(None)
        self.now = round(self.now + timeout, 6)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time."""

    def __init__(self) -> None:
        self.jumping = _JumpingSelector()
        super().__init__(self.jumping)
        self._clock_resolution = 1e-9
        self._order = 0

    def time(self) -> float:
        return self.jumping.now

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        self._order += 1
        timer = _Timer(self._order, round(when, 6), callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True
        return timer


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

    with contextlib.ExitStack() as stack:
        patch = stack.enter_context
        patch(mock.patch.object(time, "time", unix))
        patch(mock.patch.object(time, "perf_counter", loop.time))
        patch(mock.patch.object(sdk_trace, "time_ns", lambda: round(unix() * 1e6) * 1000))
        patch(mock.patch.dict(LiveCall.__init__.__kwdefaults__, {"clock": unix}))
        yield


def run_virtually(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine function to its end on a loop of its own, in virtual time."""
    loop = VirtualLoop()
    with virtual_clocks(loop), asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main())
