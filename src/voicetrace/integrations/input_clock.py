# SPDX-License-Identifier: Apache-2.0
"""`InputClock`: a realtime provider's ms of its input buffer, on the call's clock. Needs no framework."""

from __future__ import annotations

from collections import deque
from typing import Any


class InputClock:
    """The provider's ms of the input buffer, as call-ms.

    The buffer counts only the audio that was sent, so each gap in the sending is a new anchor: from
    `provider_ms` on the audio was sent from `call_ms` on.
    """

    def __init__(self) -> None:
        self._anchors: deque[tuple[float, float]] = deque(maxlen=1000)
        self._sent_ms = 0.0

    def sent(self, now_ms: float, duration_ms: float) -> None:
        """Audio of this length was put into the buffer, complete at `now_ms`."""
        began = now_ms - duration_ms
        late = began - self._call_ms(self._sent_ms) if self._anchors else 0.0
        if not self._anchors or late > duration_ms:
            self._anchors.append((self._sent_ms, began))
        elif late < 0:  # what was late has caught up: it was no gap
            self._shift(late)
        self._sent_ms += duration_ms

    def _shift(self, by_ms: float) -> None:
        """Move the newest anchor back, at most to where there would have been no gap."""
        provider, call = self._anchors.pop()
        earliest = self._call_ms(provider) if self._anchors else call + by_ms
        self._anchors.append((provider, max(call + by_ms, earliest)))

    def call_ms(self, provider_ms: Any) -> int | None:
        """The call-ms of a position in the buffer; ``None`` if that cannot be told."""
        if type(provider_ms) not in (int, float) or not self._anchors or provider_ms < 0:
            return None
        return max(0, round(self._call_ms(provider_ms)))

    def _call_ms(self, provider_ms: float) -> float:
        for provider, call in reversed(self._anchors):
            if provider <= provider_ms:
                return call + provider_ms - provider
        provider, call = self._anchors[0]
        return call + provider_ms - provider
