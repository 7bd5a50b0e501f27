# SPDX-License-Identifier: Apache-2.0
"""What a listener is: the request, the protocol of a model that answers it, and the user's policy."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from voicetrace.judge.result import Dimension
from voicetrace.voice_call import VoiceCall

LISTENED: Final = (
    Dimension.PRONUNCIATION,
    Dimension.CLARITY,
    Dimension.FILLER_SILENCE,
    Dimension.WARMTH_TONE,
    Dimension.ACCENT_QUALITY,
)
"""What a listener may say something about. Never timing: models call late answers punctual."""


@dataclass(frozen=True, slots=True)
class Clip:
    """One message's audio as a mono 16 kHz WAV, and the words that stand before it in the request."""

    message_id: str
    label: str
    wav: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Request:
    """Everything a model is sent. The same request has the same ``sha256``."""

    system: str
    text: str
    clips: tuple[Clip, ...]
    schema: dict[str, Any] = field(repr=False)

    @property
    def sha256(self) -> str:
        """The digest of all that is sent, in hex."""
        digest = hashlib.sha256()
        for part in (self.system, self.text, *(c.label for c in self.clips)):
            digest.update(part.encode() + b"\0")
        for clip in self.clips:
            digest.update(hashlib.sha256(clip.wav).digest())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model said, unparsed, and what it says that cost."""

    text: str
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class JudgeUnavailable:
    """A model that did not answer, and why. The call keeps the scores it has."""

    reason: str


class AudioJudge(Protocol):
    """A model that hears clips and answers in JSON. Picklable; used from one thread per process."""

    @property
    def identity(self) -> str:
        """Which model this is, as it is recorded with each judgement: ``provider:model``."""

    def evaluate(self, request: Request) -> Reply | JudgeUnavailable:
        """Ask once. Failures of the network or the service are `JudgeUnavailable`, never raised."""


def consent_to_all(_: VoiceCall) -> bool:
    """Every call may be sent to the listener."""
    return True


@dataclass(frozen=True, slots=True)
class ConsentAttribute:
    """Calls may be sent whose span has this attribute, and it is true."""

    name: str

    def __call__(self, call: VoiceCall) -> bool:
        """Tell whether the call says so."""
        return call.attributes.get(self.name) is True


@dataclass(frozen=True, kw_only=True)
class Listener:
    """The user's policy for a model that listens.

    Args:
        judge: the model.
        consent: which calls' audio may be sent to it; there is no default.
        share: of the calls that need no second opinion, the share that is listened to all the same, 0 to 1.
            Calls with a Flag or a Critical, or an uncertain score, always are.
        redact: changes every text before it is sent; audio is sent as it is.
        passes: how often each call is asked, with the clips in another order each time.
        max_audio_s: of one call, no more audio than this is sent, its agent's turns first.
        budget_usd: after this much in one process, calls keep the scores they have; ``None``: no limit.
        usd_per_million_in: the price of a million tokens that are sent, and of those that come back.

    Raises:
        ValueError: a share is not within 0 to 1, or there are no passes.
    """

    judge: AudioJudge
    consent: Callable[[VoiceCall], bool]
    share: float = 0.1
    redact: Callable[[str], str] | None = None
    passes: int = 2
    max_audio_s: float = 240.0
    budget_usd: float | None = None
    usd_per_million_in: float = 0.0
    usd_per_million_out: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"the share of calls that are listened to is {self.share}, not within 0 to 1")
        if self.passes < 1:
            raise ValueError("a listener needs at least one pass")
        if self.budget_usd is not None and not (self.usd_per_million_in or self.usd_per_million_out):
            raise ValueError("a budget needs prices: set usd_per_million_in and usd_per_million_out")

    def identity(self) -> dict[str, Any]:
        """What of this decides a score, for the judge's version."""
        return {
            "model": self.judge.identity,
            "share": self.share,
            "passes": self.passes,
            "s": self.max_audio_s,
        }


@dataclass(slots=True)
class Spending:
    """What one model cost this process."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0


_spending: dict[str, Spending] = {}


def spending(identity: str) -> Spending:
    """What a model (`AudioJudge.identity`) cost this process so far."""
    return _spending.setdefault(identity, Spending())
