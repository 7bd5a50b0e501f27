# SPDX-License-Identifier: Apache-2.0
"""Virtual time: an event loop whose clock jumps to the next timer.

A 60 s call runs in a fraction of a second, and the same way each time: timers that are due together fire
in the order in which they were set, and times lie on a grid of microseconds.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
from typing import Any

EPOCH = 1_700_000_000  # what time.time() says at loop time 0


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
