# SPDX-License-Identifier: Apache-2.0
"""scipy's signal processing, which comes with the extra ``judge``."""

from __future__ import annotations

from typing import Any


def scipy_signal() -> Any:
    """The module ``scipy.signal``.

    Raises:
        ImportError: scipy is not installed; the message names the extra.
    """
    try:
        from scipy import signal  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError as error:
        raise ImportError("judging audio needs scipy: pip install 'voicetrace[judge]'") from error
    return signal
