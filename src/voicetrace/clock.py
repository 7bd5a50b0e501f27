# SPDX-License-Identifier: Apache-2.0
"""A call's time: the wall clock at its start, and from then on as if nobody set it.

Frameworks stamp what happens with the wall clock, which a time server may set by any amount while a call
runs. A call that believed it would end before it began, and its recording would be cut to nothing. So the
amount is told by a steady clock and taken off again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

STEP_S: Final = 0.25
"""A smaller difference is the clocks' own business: it is slewed away, or what a sink and a TTS differ by."""
# between two readings the thread may have had to wait; what was read then says nothing
_MOMENT_S: Final = 0.01
_SOON_S: Final = 0.05


class CallClock:
    """Unix time of one call, in seconds. May be used on any thread.

    Args:
        wall: The clock that the framework's times come from.
        steady: A clock that nobody sets. Without one (a test's own clock) `wall` is believed.
        on_step: Told by how many seconds `wall` was set, forward or (negative) back.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] | None = time.monotonic,
        on_step: Callable[[float], None] | None = None,
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._on_step = on_step
        self._lock = threading.Lock()
        self.origin = wall()
        self._steady_origin = steady() if steady is not None else 0.0
        self._steps = [0.0]  # by how much the wall clock is off, then and now

    def now(self) -> float:
        """The present, as if the clock had not been set."""
        wall = self._watch()
        return wall - self._steps[-1]

    def true(self, unix: float) -> float:
        """What a time that was read from the wall clock would have been.

        It may have been read before the clock was set: nothing is told before it happens, and all is told
        soon after, so the latest reading that is no future is meant.
        """
        now = self._watch() - self._steps[-1]
        if len(self._steps) == 1:
            return unix
        meant = [unix - step for step in self._steps if unix - step <= now + _SOON_S]
        return max(meant, default=unix - self._steps[-1])

    def _watch(self) -> float:
        if self._steady is None:
            return self._wall()
        before = self._steady()
        wall = self._wall()
        after = self._steady()
        step = wall - self.origin - (after - self._steady_origin)
        if abs(step - self._steps[-1]) > STEP_S and after - before < _MOMENT_S:
            with self._lock:  # several threads may see it first
                moved = step - self._steps[-1]
                if abs(moved) <= STEP_S:
                    return wall
                self._steps.append(step)
            if self._on_step is not None:
                self._on_step(moved)
        return wall
