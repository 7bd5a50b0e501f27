# SPDX-License-Identifier: Apache-2.0
"""Which language a text is in, by lingua (Apache-2.0). Texts of 40 letters or more are told apart well."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

MIN_LETTERS: Final = 40
_LANGUAGES: Final = """arabic chinese danish dutch english finnish french german greek hebrew hindi indonesian
italian japanese korean polish portuguese romanian russian spanish swedish turkish ukrainian vietnamese"""


class Guess(NamedTuple):
    """A language, as ISO 639-1, and how probable it is among those considered."""

    language: str
    probability: float


class TextLanguage:
    """Text to language, among the two dozen that voice agents mostly speak."""

    def __init__(self) -> None:
        import lingua  # type: ignore[import-not-found,unused-ignore]

        languages = [getattr(lingua.Language, name) for name in _LANGUAGES.upper().split()]
        self._detector: Any = lingua.LanguageDetectorBuilder.from_languages(*languages).build()

    def __call__(self, text: str) -> Guess | None:
        """The language; ``None`` for a text of fewer than 40 letters, which would be a guess."""
        if sum(c.isalpha() for c in text) < MIN_LETTERS:
            return None
        best = self._detector.compute_language_confidence_values(text)[0]
        return Guess(best.language.iso_code_639_1.name.lower(), float(best.value))
