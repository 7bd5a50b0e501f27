# SPDX-License-Identifier: Apache-2.0
"""Every clock that Pipecat reads, on the virtual time of `virtual_time`."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from types import FunctionType, ModuleType
from typing import Any
from unittest import mock

from opentelemetry.sdk import trace as sdk_trace

from virtual_time import EPOCH, VirtualLoop

_REAL_TIME = time.time
#: what `time.monotonic()` says at loop time 0; Pipecat takes a clock of 0 for one that was not started
MONOTONIC = 1000


def _late() -> float:
    return time.time()


def _read_late() -> None:
    """Whatever captured `time.time` itself reads it through its module, so that it can be patched.

    That is default factories of frames (the VAD's timestamps) and default arguments of observers.
    """
    modules = [m for name, m in sys.modules.items() if name.startswith("pipecat.")]
    for function in {f for module in modules for f in _functions(module)}:
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # a cell that was never filled
                if cell.cell_contents is _REAL_TIME:
                    cell.cell_contents = _late
        for name, default in (function.__kwdefaults__ or {}).items():
            if default is _REAL_TIME:
                function.__kwdefaults__[name] = _late


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    for value in vars(module).values():
        if isinstance(value, FunctionType):
            yield value
        elif isinstance(value, type) and value.__module__ == module.__name__:
            yield from (f for f in vars(value).values() if isinstance(f, FunctionType))


@contextlib.contextmanager
def virtual_clocks(loop: VirtualLoop) -> Iterator[None]:
    """Every clock of the framework and of OpenTelemetry reads the loop's time, on every thread."""
    _read_late()

    def unix() -> float:
        return EPOCH + loop.time()

    def unix_ns() -> int:
        return EPOCH * 10**9 + round(loop.time() * 1e6) * 1000

    def monotonic() -> float:
        return MONOTONIC + loop.time()

    def monotonic_ns() -> int:
        return MONOTONIC * 10**9 + round(loop.time() * 1e6) * 1000

    with contextlib.ExitStack() as stack:
        patch = stack.enter_context
        patch(mock.patch.object(time, "time", unix))
        patch(mock.patch.object(time, "time_ns", unix_ns))
        patch(mock.patch.object(time, "monotonic", monotonic))
        patch(mock.patch.object(time, "monotonic_ns", monotonic_ns))
        patch(mock.patch.object(time, "perf_counter", monotonic))
        patch(mock.patch.object(sdk_trace, "time_ns", unix_ns))
        yield


def run_virtually(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine function to its end on a loop of its own, in virtual time."""
    loop = VirtualLoop()
    with virtual_clocks(loop), asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main())
