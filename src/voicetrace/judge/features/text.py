# SPDX-License-Identifier: Apache-2.0
"""What can be told from words alone: syllables, fillers, assent. English first; other tables where needed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from voicetrace.judge.lexicon import BACKCHANNELS

_WORD: Final = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*|\d+")
_VOWELS: Final = re.compile(
    r"[aeiouyàáâãäåæèéêëìíîïòóôõöøùúûüýœ\u0430\u0435\u0451\u0438\u043e\u0443\u044b\u044d\u044e\u044f]+"
)
_DIGIT_SYLLABLES: Final = (2, 1, 1, 1, 1, 1, 1, 2, 1, 1)
_FILLERS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"\b(?:just )?(?:one|a) (?:moment|second|sec|minute)\b",
        r"\b(?:please )?(?:hold on|bear with me|hang on|stand by|hang tight)\b",
        r"\bwait a (?:moment|second|minute)\b",
        r"\blet me (?:just )?(?:check|look|see|pull|find)\b(?: (?:that|this|it)\b)?(?: up\b| for you\b)*",
        r"\bi ?a?m (?:just |still )?(?:checking|looking|pulling)\b(?: (?:that|this|it|into|up)\b)*",
        r"\bgive me (?:just )?(?:a|one) (?:moment|second|sec|minute)\b",
        r"\bthank you for (?:waiting|holding|your patience)\b",
        r"\b(?:still|almost) (?:working|there|checking|looking)\b",
        r"\b(?:um+|uh+|erm+|er)\b",
    )
)


def words(text: str) -> list[str]:
    """The words of a text, in lower case, numbers as one word each."""
    return [w.replace("\u2019", "'") for w in _WORD.findall(text.lower())]


def syllables(text: str) -> int:
    """How many syllables a text has: groups of vowels; digits one by one, two of them as a number."""
    return sum(_syllables_of(word) for word in words(text))


@lru_cache(maxsize=4096)
def _syllables_of(word: str) -> int:
    if word.isdigit():
        return _syllables_of_number(word)
    letters = word.replace("'", "")
    groups = len(_VOWELS.findall(letters))
    if (
        letters.endswith("e")
        and not letters.endswith(("le", "ee", "ye"))
        and groups > 1
        and letters.isascii()
    ):
        groups -= 1
    if letters.endswith("ed") and not letters.endswith(("ted", "ded")) and groups > 1:
        groups -= 1
    if groups == 0:
        return len(letters)  # an abbreviation is spelled
    return groups


def _syllables_of_number(digits: str) -> int:
    if len(digits) == 2 and digits[0] != "0":
        tens, ones = int(digits[0]), int(digits[1])
        if tens == 1:
            return (1, 3, 1, 2, 2, 2, 2, 3, 2, 2)[ones]
        return (0, 0, 2, 2, 2, 2, 2, 3, 2, 2)[tens] + (_DIGIT_SYLLABLES[ones] if ones else 0)
    return sum(_DIGIT_SYLLABLES[int(d)] for d in digits)


def is_backchannel(text: str | None) -> bool:
    """Tell whether a text only says "I am listening"; a text that is not known does not."""
    said = words(text or "")
    return 0 < len(said) <= 3 and all(w.replace("'", "") in BACKCHANNELS for w in said)


def fillers(text: str) -> list[str]:
    """The filler phrases in a text, in order of the patterns, each as it was said."""
    plain = " ".join(words(text)).replace("'", " ")
    return [match[0].strip() for pattern in _FILLERS for match in pattern.finditer(plain)]


def is_filler(text: str | None) -> bool:
    """Tell whether a text holds a filler phrase."""
    return bool(text and fillers(text))


def repeated_fillers(texts: Iterable[str]) -> Counter[str]:
    """How often each filler phrase was said."""
    return Counter(phrase for text in texts for phrase in fillers(text))
