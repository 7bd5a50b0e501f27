# SPDX-License-Identifier: Apache-2.0
"""Replacing an attribute of the framework, and putting back exactly what was there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final

_ABSENT: Final = object()


class Patches:
    """The attributes we replaced. `restore` undoes them, but leaves what someone else replaced since."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Set ``owner.name`` to ``make(original)``."""
        before = vars(owner).get(name, _ABSENT)
        ours = make(getattr(owner, name))
        setattr(owner, name, ours)
        self._done.append((owner, name, before, vars(owner)[name]))

    def restore(self) -> list[str]:
        """Put everything back, last first; returns the names that are no longer ours to restore."""
        kept = []
        for owner, name, before, ours in reversed(self._done):
            if vars(owner).get(name, _ABSENT) is not ours:
                kept.append(f"{getattr(owner, '__name__', type(owner).__name__)}.{name}")
            elif before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        self._done.clear()
        return kept


def takes_keywords(function: Any, names: Iterable[str]) -> bool:
    """Tell whether a private function still has the keyword parameters that we rely on."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return all(
        name in parameters and parameters[name].kind is not inspect.Parameter.POSITIONAL_ONLY
        for name in names
    )
