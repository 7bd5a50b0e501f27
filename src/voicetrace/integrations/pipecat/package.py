# SPDX-License-Identifier: Apache-2.0
"""Which pipecat-ai versions this adapter was tested with."""

from __future__ import annotations

from typing import Final

_instruments: Final = ("pipecat-ai >= 1.14, < 2",)
TESTED: Final = ("1.14.0",)
OLDEST: Final = (1, 14)
NEWEST: Final = (2, 0)  # the first that is not supported


def is_supported(version: str) -> bool:
    """Tell whether this version is among those the adapter was made for."""
    try:
        major, minor = (int(part) for part in version.split(".")[:2])
    except ValueError:
        return False
    return OLDEST <= (major, minor) < NEWEST
