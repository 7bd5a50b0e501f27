# SPDX-License-Identifier: Apache-2.0
"""Was a value read back wrongly? By contradiction, not by absence.

A recogniser misspells drugs and formats times as it likes, so a value that is missing from what it heard
says little. What counts is that it heard a *different valid value* in the same place: other digits, another
month, another drug of the lexicon. Both texts are put into one form first (`canonical`), in which "two
fifteen p.m.", "2:15 pm" and "2.15" are the same digits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final

import numpy as np

from voicetrace.judge.lexicon import (
    DRUGS,
    MONTHS,
    ORDINALS,
    REPEATS,
    SAME,
    SCALES,
    TENS,
    UNITS,
    WEEKDAYS,
)

LEXICON: Final = DRUGS

_TOKEN: Final = re.compile(r"\d+(?:,\d{3})+|\d+|[^\W\d_]+(?:['\u2019][^\W\d_]+)*")


@dataclass(frozen=True, slots=True)
class Token:
    """A word in its one form and its place; ``kind``: digits, month, weekday, lexicon or word."""

    form: str
    kind: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two different values in the same place of what should have been said, and of what was heard."""

    said: str
    heard: str
    said_at: tuple[int, int]
    heard_at: tuple[int, int]


def canonical(text: str, lexicon: frozenset[str] = LEXICON) -> list[Token]:
    """The words of a text in their one form, numbers as digits."""
    raw = [
        (m[0].lower().replace("\u2019", "'").replace(",", ""), m.start(), m.end())
        for m in _TOKEN.finditer(re.sub(r"(?<=\b[a-zA-Z])\.(?=[a-zA-Z]\b)", " ", text))
    ]
    out: list[Token] = []
    index = 0
    while index < len(raw):
        used, tokens = _number(raw, index)
        if used:
            out += tokens
            index += used
            continue
        word, start, end = raw[index]
        if word in ("a", "p") and index + 1 < len(raw) and raw[index + 1][0] == "m":
            out.append(Token(word + "m", "word", start, raw[index + 1][2]))
            index += 2
            continue
        word = SAME.get(word, word)
        kind = (
            "month" if word in MONTHS
            else "weekday" if word in WEEKDAYS
            else "lexicon" if word in lexicon
            else "word"
        )  # fmt: skip
        out.append(Token(word, kind, start, end))
        index += 1
    return out


def count_values(text: str, lexicon: frozenset[str] = LEXICON) -> int:
    """How many values a text reads out: runs of digits, months, weekdays, words of the lexicon."""
    count, digits = 0, False
    for token in canonical(text, lexicon):
        if token.kind == "digits":
            count += not digits
        elif token.kind != "word":
            count += 1
        digits = token.kind == "digits"
    return count


def contradictions(said: str, heard: str, lexicon: frozenset[str] = LEXICON) -> list[Contradiction]:
    """Where a different valid value was heard in the place of one that should have been said."""
    left, right = canonical(said, lexicon), canonical(heard, lexicon)
    out: list[Contradiction] = []
    matcher = SequenceMatcher(None, [t.form for t in left], [t.form for t in right], autojunk=False)
    for operation, a, b, c, d in matcher.get_opcodes():
        if operation != "replace":
            continue
        for kind in ("digits", "month", "weekday", "lexicon"):
            mine = [t for t in left[a:b] if t.kind == kind]
            theirs = [t for t in right[c:d] if t.kind == kind]
            if not mine or not theirs:
                continue
            value, other = ("".join(t.form for t in side) for side in (mine, theirs))
            if value == other or (kind == "digits" and _is_part(mine, theirs, value, other)):
                continue
            out.append(
                Contradiction(value, other, (mine[0].start, mine[-1].end), (theirs[0].start, theirs[-1].end))
            )
    return out


def shared(
    found: Sequence[Contradiction], said: str, heard: str, lexicon: frozenset[str] = LEXICON
) -> list[Contradiction]:
    """Those contradictions in whose place another hearing has another value than the text too."""
    others = [other.said_at for other in contradictions(said, heard, lexicon)]
    return [f for f in found if any(low < f.said_at[1] and high > f.said_at[0] for low, high in others)]


def character_errors(said: str, heard: str) -> float:
    """Edits from what should have been said to what was heard, per character; both in their one form."""
    left = " ".join(t.form for t in canonical(said))
    right = " ".join(t.form for t in canonical(heard))
    if not left:
        return 0.0
    return min(1.0, _edits(left, right) / len(left))


def misses_end(said: str, heard: str, words: int = 2) -> bool:
    """Tell whether the last words of a text were not heard, nor anything in their place."""
    left, right = [t.form for t in canonical(said)], [t.form for t in canonical(heard)]
    if len(left) < words + 2 or not right:
        return False
    blocks = [m for m in SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks() if m.size]
    if not blocks or sum(b.size for b in blocks) < 0.5 * len(left[: blocks[-1].a + blocks[-1].size]):
        return False
    last = blocks[-1]
    return len(left) - last.a - last.size >= words and len(right) - last.b - last.size <= 1


# -- parts -----------------------------------------------------------------------------------------
_Raw = tuple[str, int, int]


def _number(raw: Sequence[_Raw], at: int) -> tuple[int, list[Token]]:
    """The digits of the number that begins here, and how many words it takes; 0 where there is none."""
    word, start, end = raw[at]
    if word.isdigit():
        return 1, [
            Token(
                word.lstrip("0") or "0" if len(word) > 1 and not _in_digits(raw, at) else word,
                "digits",
                start,
                end,
            )
        ]
    if word in REPEATS and at + 1 < len(raw) and UNITS.get(raw[at + 1][0], 99) < 10:
        return 2, [Token(str(UNITS[raw[at + 1][0]]) * REPEATS[word], "digits", start, raw[at + 1][2])]
    if word in ("oh", "o") and _in_digits(raw, at):
        return 1, [Token("0", "digits", start, end)]
    if word in ORDINALS:
        return 1, [Token(str(ORDINALS[word]), "digits", start, end)]
    if word not in UNITS and word not in TENS:
        return 0, []
    total, current, index = 0, UNITS.get(word, TENS.get(word, 0)), at + 1
    open_tens = word in TENS
    while index < len(raw):
        following = raw[index][0]
        units = UNITS.get(following, ORDINALS.get(following, 0))
        if open_tens and 0 < units < 10:
            current += units
            open_tens = False
        elif following in SCALES and current:
            scale = SCALES[following]
            if scale == 100:
                current *= scale
            else:
                total, current = total + current * scale, 0
            open_tens = False
        elif (current >= 100 and current % 100 == 0) or (total and not current):
            skip = 1 if following == "and" and index + 1 < len(raw) else 0
            word = raw[index + skip][0]
            value = UNITS.get(word, TENS.get(word, ORDINALS.get(word, 0)))
            if not value:
                break
            current += value
            open_tens = word in TENS
            index += skip
        else:
            break
        end = raw[index][2]
        index += 1
    return index - at, [Token(str(total + current), "digits", start, end)]


def _in_digits(raw: Sequence[_Raw], at: int) -> bool:
    """Tell whether a word stands between digits."""
    near = [raw[i][0] for i in (at - 1, at + 1) if 0 <= i < len(raw)]
    return any(w.isdigit() or w in UNITS or w in TENS for w in near)


def _is_part(mine: Sequence[Token], theirs: Sequence[Token], value: str, other: str) -> bool:
    """Digits that hold the others are a value cut short or run together, not another value."""
    if value.lstrip("0") == other.lstrip("0"):
        return True
    return len(mine) != len(theirs) and (value in other or other in value)


def _edits(left: str, right: str) -> int:
    row = np.arange(len(right) + 1)
    codes = np.frombuffer(right.encode("utf-32-le"), np.uint32)
    steps = np.arange(len(right) + 1)
    for index, letter in enumerate(left, 1):
        new = np.empty_like(row)
        new[0] = index
        new[1:] = np.minimum(row[1:] + 1, row[:-1] + (codes != ord(letter)))
        row = np.minimum.accumulate(new - steps) + steps
    return int(row[-1])
