# SPDX-License-Identifier: Apache-2.0
"""Never hurt the call: every hook of ours runs behind a `Guard` (architecture, last section).

No exception of ours reaches the framework, `TypeError` included (LiveKit re-raises those into the reply,
livekit-capture.md, T1). Failures are counted and logged once per hook; a hook that keeps failing switches
itself off. `CancelledError` and other `BaseException` pass.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from voicetrace import settings

logger = logging.getLogger("voicetrace")

P = ParamSpec("P")
R = TypeVar("R")

MAX_FAILURES: Final = 5


def content_is_private() -> bool:
    """Whether the process's settings keep texts, or parts of them, out of what is kept."""
    chosen = settings.current()
    return chosen.content != "full" or chosen.redact is not None


class Guard:
    """Counts the failures of one call's hooks; `report` is told the first of each hook.

    Loop-affine like the hooks it guards. `report` may raise: that is counted under ``report``. An error's
    own words may quote what somebody said: while `private` says so, neither the log nor `report` gets
    them, but the error's type and where it was raised.
    """

    def __init__(
        self,
        report: Callable[[str], None] | None = None,
        *,
        max_failures: int = MAX_FAILURES,
        private: Callable[[], bool] = content_is_private,
    ) -> None:
        self._private = private
        self.failures: Counter[str] = Counter()
        self._report = report
        self._max_failures = max_failures

    def failed(self, hook: str, error: Exception, *, switches_off: bool = False) -> None:
        """Count one failure; log and report the first, and the one that switches the hook off.

        Only what `wrap` guards is ever off. What must go on, as a redactor without which nothing may be
        kept, is counted here and runs again.
        """
        self.failures[hook] += 1
        count = self.failures[hook]
        off = switches_off and count == self._max_failures
        if count > 1 and not off:
            return
        # an error may refuse to be printed, a handler to log, and a report to be told: none may get out
        what = f"voicetrace's {hook} failed: {type(error).__name__}"
        private = True
        with self._last_resort():
            private = self._private()
        with self._last_resort():
            what += _place(error) if private else f": {error}"
        if off:
            what += f" ({count} times; it is now off for this call)"
        with self._last_resort():
            logger.warning("%s; the call goes on", what, exc_info=None if private else error)
        if self._report is not None:
            with self._last_resort():
                self._report(what)

    @contextlib.contextmanager
    def _last_resort(self) -> Iterator[None]:
        try:
            yield
        except Exception:  # noqa: BLE001  there is nobody left to tell; the count is kept
            self.failures["report"] += 1

    def is_off(self, hook: str) -> bool:
        """Tell whether the hook failed so often that it no longer runs."""
        return self.failures[hook] >= self._max_failures

    def wrap(self, hook: str, function: Callable[P, R]) -> Callable[P, R | None]:
        """The function behind this guard: ``None`` when it failed or is off."""

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R | None:
            if self.failures[hook] >= self._max_failures:
                return None
            try:
                return function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  the whole point: counted and logged in `failed`
                self.failed(hook, error, switches_off=True)
                return None

        return guarded


def _place(error: Exception) -> str:
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return "" if at is None else f" at {Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}"
