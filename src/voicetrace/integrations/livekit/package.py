# SPDX-License-Identifier: Apache-2.0
"""Which livekit-agents versions this adapter was tested with."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Final

_instruments: Final = ("livekit-agents >= 1.8.6, < 1.9",)
TESTED: Final = ("1.8.6", "1.8.9")
OLDEST: Final = (1, 8, 6)  # before, turns that are dropped have no native span that says so
NEWEST: Final = (1, 9, 0)  # the first that is not supported


@cache
def installed() -> str:
    """The installed version; read once: it is a look at the disk, and calls begin on the event loop."""
    return version("livekit-agents")


def is_supported(version: str) -> bool:
    """Tell whether the private hooks may be used with this version; the public ones always are."""
    try:
        parts = tuple(int(part) for part in version.split(".")[:3])
    except ValueError:
        return False
    return OLDEST <= (*parts, 0, 0)[:3] < NEWEST
