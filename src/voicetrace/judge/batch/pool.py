# SPDX-License-Identifier: Apache-2.0
"""Worker processes, each with its own judge, fed one call at a time.

A pool of our own because one must know *which* call a process died of or hangs in: that call gets a second
try in a fresh process and then a row that says so, and all others go on. `concurrent.futures` gives up the
whole pool.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Final

from voicetrace.judge.batch.source import CallRef
from voicetrace.judge.batch.work import JudgeCall, JudgeConfig, failed, judge_ref
from voicetrace.judge.result import CallJudgement

READY: Final = "ready"
_TRIES: Final = 2
_START_S: Final = 120.0
_STOP_S: Final = 2.0
# one call, one core: more threads would only get in the way of the other workers
_ONE_THREAD: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)


class PoolError(RuntimeError):
    """Worker processes cannot even start."""


@dataclass
class _Task:
    ref: CallRef
    tries: int = 0


class _Worker:
    """One process; at most one call at a time."""

    def __init__(self, judge: JudgeConfig, judge_call: JudgeCall) -> None:
        context = multiprocessing.get_context("spawn")
        self.conn, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(theirs, judge, judge_call), name="voicetrace-judge", daemon=True
        )
        with _single_threaded():
            self.process.start()
        theirs.close()
        self.ready = False
        self.task: _Task | None = None
        self.deadline: float | None = time.monotonic() + _START_S

    def give(self, task: _Task, timeout_s: float | None) -> None:
        self.task = task
        task.tries += 1
        self.deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with contextlib.suppress(OSError):  # it has just died: its sentinel says so
            self.conn.send(task.ref)

    def stop(self) -> None:
        self.conn.close()
        if self.process.is_alive():
            self.process.terminate()
        self.process.join(_STOP_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()


def map_local(
    refs: Iterable[CallRef],
    *,
    judge: JudgeConfig,
    judge_call: JudgeCall,
    workers: int,
    timeout_s: float | None = None,
) -> Generator[tuple[CallRef, CallJudgement], None, None]:
    """Judge calls in processes of this machine; in the order in which they are done.

    ``refs`` is read only as far as there is work for. Closing the iterator ends the processes.

    Raises:
        PoolError: the processes cannot start.
    """
    pending = iter(refs)
    again: list[_Task] = []
    pool: list[_Worker] = []
    exhausted = False

    def next_task() -> _Task | None:
        nonlocal exhausted
        if again:
            return again.pop()
        if not exhausted:
            for ref in pending:
                return _Task(ref)
            exhausted = True
        return None

    try:
        while True:
            for worker in pool:
                if worker.ready and worker.task is None:
                    task = next_task()
                    if task is not None:
                        worker.give(task, timeout_s)
            waiting = any(not worker.ready for worker in pool)
            if len(pool) < workers and not waiting and (again or not exhausted):
                task = next_task()
                if task is not None:
                    again.append(task)
                    pool.append(_Worker(judge, judge_call))
            busy = [worker for worker in pool if worker.task is not None or not worker.ready]
            if not busy and not again:
                return
            for worker in _answering(busy):
                result = _take(worker, judge, again)
                if worker.process.exitcode is not None or worker.conn.closed:
                    pool.remove(worker)
                    worker.stop()
                if result is not None:
                    yield result
    finally:
        for worker in pool:
            worker.stop()


def _answering(busy: list[_Worker]) -> list[_Worker]:
    """The workers that have answered, died, or are out of time."""
    deadlines = [worker.deadline for worker in busy if worker.deadline is not None]
    patience = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
    watched: list[Any] = [x for worker in busy for x in (worker.conn, worker.process.sentinel)]
    found = wait(watched, patience)
    now = time.monotonic()
    return [
        worker
        for worker in busy
        if worker.conn in found
        or worker.process.sentinel in found
        or (worker.deadline is not None and worker.deadline <= now)
    ]


def _take(worker: _Worker, judge: JudgeConfig, again: list[_Task]) -> tuple[CallRef, CallJudgement] | None:
    """What a worker has to say; a worker that is lost is left dead, its pipe closed."""
    answer: Any = None
    try:
        if worker.conn.poll():
            answer = worker.conn.recv()
    except (EOFError, OSError):
        answer = None
    task = worker.task
    if answer is not None:
        worker.task, worker.deadline = None, None
        if answer == READY:
            worker.ready = True
            return None
        assert task is not None
        return task.ref, answer
    hung = worker.process.is_alive() and worker.deadline is not None and worker.deadline <= time.monotonic()
    if hung:
        worker.process.kill()
    worker.process.join(_STOP_S)
    code = worker.process.exitcode
    worker.conn.close()
    if not worker.ready:
        raise PoolError(
            f"a worker process cannot start ({'no answer' if hung else _ending(code)}): "
            "what it printed is above; a script that runs a batch needs if __name__ == '__main__'"
        )
    if task is None:
        return None
    if hung:
        return task.ref, failed(task.ref, judge, "judging took longer than the time it is given")
    if task.tries < _TRIES:
        again.append(task)
        return None
    return task.ref, failed(task.ref, judge, f"the worker process died while judging it ({_ending(code)})")


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"


def _serve(conn: Connection, judge: JudgeConfig, judge_call: JudgeCall) -> None:
    """The worker: ends when its parent closes the pipe, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to answer
    threading.Thread(target=_end_with_parent, name="voicetrace-parent", daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        conn.send(READY)
        while True:
            ref = conn.recv()
            conn.send(judge_ref(ref, judge, judge_call))


def _end_with_parent() -> None:
    """A call may take long, and nobody waits for it any more."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@contextlib.contextmanager
def _single_threaded() -> Iterator[None]:
    """Children inherit the environment; ours stays as it is."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
