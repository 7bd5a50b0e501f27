# SPDX-License-Identifier: Apache-2.0
"""The writer thread: everything that touches a disk happens here, never on a call's event loop.

One daemon thread per process serves all calls, in the order of submission. Facts are never dropped;
audio is, when more of it waits than `MAX_PENDING_AUDIO` bytes, and the caller is told so that it can be
counted. When the process ends what is queued is still written, within a deadline: also in a child of
`multiprocessing`, which runs no ``atexit`` handlers (LiveKit's jobs are such children on Linux).
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.util import Finalize
from queue import SimpleQueue
from typing import Any, Final

logger = logging.getLogger("voicetrace")

# About two minutes of two-channel 24 kHz audio of one call, or two seconds of 64 calls.
MAX_PENDING_AUDIO: Final = 16 * 1024 * 1024
EXIT_DEADLINE_S: Final = 15.0

_Job = tuple[Callable[..., None], tuple[Any, ...], int]


class Writer:
    """A queue and the thread that empties it. Every method may be called from any thread."""

    def __init__(self, *, max_pending_audio: int = MAX_PENDING_AUDIO) -> None:
        self._max_pending_audio = max_pending_audio
        self.at_exit: Callable[[], None] | None = None
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ran = 0  # jobs that are over; written by the thread only
        self._pending_audio = 0
        self._long: ThreadPoolExecutor | None = None

    def submit(self, job: Callable[..., None], *args: Any) -> None:
        """Queue a job; never blocks, never drops."""
        self._jobs.put((job, args, 0))
        if self._thread is None:
            self._launch()

    def submit_audio(self, size: int, job: Callable[..., None], *args: Any) -> bool:
        """Queue a job that holds `size` bytes of audio; False, and nothing queued, when too much waits."""
        with self._lock:
            if self._pending_audio + size > self._max_pending_audio:
                return False
            self._pending_audio += size
        self._jobs.put((job, args, size))
        if self._thread is None:
            self._launch()
        return True

    def submit_long(self, job: Callable[..., None], *args: Any) -> None:
        """Run a job that takes seconds beside the queue, one at a time; the interpreter waits for it.

        Call it on the writer thread. The job submits what follows from it.
        """
        try:
            if self._long is None:
                self._long = ThreadPoolExecutor(1, thread_name_prefix="voicetrace-long")
            self._long.submit(self._guarded, job, args)
        except RuntimeError:  # the interpreter is on its way out, and takes no new threads: do it here
            self._guarded(job, args)

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is queued and no long job runs; False when `timeout_s` passed first.

        It blocks, so an event loop that carries a call is no place for it. On the writer thread it waits
        for nothing, and says False.
        """
        if threading.current_thread() is self._thread:
            return False
        deadline = time.monotonic() + timeout_s
        before = -1
        while True:
            done = threading.Event()
            place: list[int] = []
            self.submit(self._pass_through, done, place)
            if not done.wait(max(0.0, deadline - time.monotonic())):
                return False
            # an empty queue says nothing: its last job may still run. Nothing between two marks does.
            if place[0] == before + 1:
                return True
            before = place[0]

    def _pass_through(self, done: threading.Event, place: list[int]) -> None:
        """Set `done` once the long jobs submitted so far are over, and what they submitted is queued."""
        place.append(self._ran)
        if self._long is None:
            done.set()
            return
        try:
            self._long.submit(done.set)
        except RuntimeError:
            done.set()

    def _launch(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="voicetrace-writer", daemon=True)
                self._thread.start()
                if self.at_exit is not None:
                    # Only now: exit runs the newest first, and the tracer provider, made before the first
                    # call, must still be there when the last call span gets its finished recording.
                    atexit.unregister(self.at_exit)
                    atexit.register(self.at_exit)
                    Finalize(None, self.at_exit, exitpriority=100)

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, args, size = item
            self._guarded(job, args)
            self._ran += 1
            if size:
                with self._lock:
                    self._pending_audio -= size

    def _guarded(self, job: Callable[..., None], args: tuple[Any, ...]) -> None:
        try:
            job(*args)
        except BaseException:  # a job that fails, by SystemExit too, must not take the other calls' writer
            logger.exception("voicetrace: a write job failed; other calls go on")


WRITER: Final = Writer()
# a forked child has no writer thread and must not repeat its parent's queue
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WRITER._start_afresh)  # noqa: SLF001


def _drain_at_exit() -> None:
    if WRITER._thread is not None and not WRITER.drain(EXIT_DEADLINE_S):  # noqa: SLF001
        logger.warning("voicetrace: the disk was too slow at exit; `voicetrace recover` finishes the calls")


WRITER.at_exit = _drain_at_exit
