# SPDX-License-Identifier: Apache-2.0
"""Which pipecat-ai versions this adapter was tested with."""

from __future__ import annotations

from importlib import metadata
from typing import Final

_instruments: Final = ("pipecat-ai >= 1.13, < 1.15",)
TESTED: Final = ("1.13.0", "1.14.0")
OLDEST: Final = (1, 13)  # before, no frame tells that a user's message was appended
NEWEST: Final = (1, 15)  # the first that is not supported


def installed() -> str:
    """The version that is installed; ``unknown`` where its metadata is missing."""
    try:
        return metadata.version("pipecat-ai")
    except metadata.PackageNotFoundError:
        return "unknown"


def is_supported(version: str) -> bool:
    """Tell whether this version is among those the adapter was made for."""
    try:
        major, minor = (int(part) for part in version.split(".")[:2])
    except ValueError:
        return False
    return OLDEST <= (major, minor) < NEWEST
