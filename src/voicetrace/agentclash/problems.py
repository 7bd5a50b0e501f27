# SPDX-License-Identifier: Apache-2.0
"""How a document's problems are found and worded: one line each, with the JSON path it is about.

A document is first read as strict JSON, then checked against a pydantic model (the shape), then against
the rules between fields. All three run on whatever is there, so that one run names every problem.
"""

from __future__ import annotations

import json
import math
import re
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeGuard

from pydantic import BaseModel, ConfigDict, PlainValidator, ValidationError
from pydantic_core import PydanticCustomError

DOCUMENT_LIMIT_BYTES: Final = 64 * 1024 * 1024
"""A manifest or report larger than this is refused unread; real ones are a few kilobytes."""

# What both layers trim: Go's `strings.TrimSpace` and a JSON Schema pattern's `\s` agree on these.
WHITE: Final = "\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_GO_WHITE: Final = WHITE + "\u0085"


class Document(BaseModel):
    """Base of the models: strict types, unknown fields kept, absent fields stay absent when written."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object this was read from or built with."""
        return self.model_dump(mode="json", exclude_unset=True)


def blank(value: str) -> bool:
    """Tell whether ingestion sees no text here."""
    return not value.strip(_GO_WHITE)


# -- values ------------------------------------------------------------------------------------------
def refusal(rule: str, value: object) -> PydanticCustomError:
    """The error of a value that breaks ``rule``."""
    # the value goes through the context: a `{` inside it is no template
    return PydanticCustomError("voicetrace", "{rule}, not {value}", {"rule": rule, "value": shown(value)})


@dataclass(frozen=True, slots=True)
class Rule(PlainValidator):
    """What a value must be: the check in Python, and what JSON Schema says of it."""

    schema: dict[str, Any] = field(default_factory=dict)


def number(
    low: float | None = 0, high: float | None = None, *, whole: bool = False, nullable: bool = False
) -> Rule:
    """A JSON number: never a boolean or a string, always finite, within the bounds.

    ``whole`` takes ``2.0``, as both layers do for counts in reports.
    """
    kind = "a whole number" if whole else "a finite number"
    if low is not None and high is not None:
        kind += f" from {low:g} to {high:g}"
    elif low is not None:
        kind += f" of at least {low:g}"
    rule = f"must be {kind}{' or null' if nullable else ''}"

    def check(value: object) -> object:
        if value is None and nullable:
            return value
        if not is_number(value):
            raise refusal(rule, value)
        if (low is not None and value < low) or (high is not None and value > high):
            raise refusal(rule, value)
        if whole and value != math.trunc(value):
            raise refusal(rule, value)
        return value

    named = "integer" if whole else "number"
    schema: dict[str, Any] = {"type": [named, "null"] if nullable else named}
    schema |= {} if low is None else {"minimum": low}
    schema |= {} if high is None else {"maximum": high}
    return Rule(check, schema=schema)


def text(rule: str, accepts: Callable[[str], bool], schema: dict[str, Any] | None = None) -> Rule:
    """A string that ``accepts`` takes; ``rule`` says in words which those are, ``schema`` for machines."""

    def check(value: object) -> object:
        if not isinstance(value, str) or not is_unicode(value) or not accepts(value):
            raise refusal(rule, value)
        return value

    return Rule(check, schema={"type": "string"} | (schema or {}))


def one_of(*values: str) -> Rule:
    """One of these strings, exactly."""
    return text(f"must be {_either(values)}", values.__contains__, {"enum": list(values)})


def trimmed_one_of(*values: str) -> Rule:
    """One of these strings, with white space around it ignored."""
    pattern = rf"^\s*({'|'.join(map(re.escape, values))})\s*$"
    return text(
        f"must be {_either(values)}", lambda value: value.strip(WHITE) in values, {"pattern": pattern}
    )


NOT_BLANK: Final = text(
    "must be a string that is not blank", lambda value: not blank(value), {"minLength": 1}
)


def is_number(value: object) -> TypeGuard[float]:
    """Tell whether a value is a JSON number that fits a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer of hundreds of digits
        return False


def is_unicode(value: str) -> bool:
    """Tell whether a string can be written as UTF-8 (a lone surrogate cannot)."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(value: object) -> str:
    """A value as a problem shows it: short, on one line, safe to print."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "an array"
    if value is None:
        return "null"
    if isinstance(value, int) and value.bit_length() > 128:
        return "an integer of more than 38 digits"
    if isinstance(value, str | bool | int | float):
        out = json.dumps(value[:80] if isinstance(value, str) else value)
        return out if len(out) <= 60 else f'{out[:56]}…"'
    return f"a {type(value).__name__}"


def _either(values: tuple[str, ...]) -> str:
    quoted = [json.dumps(value) for value in values]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


# -- documents ---------------------------------------------------------------------------------------
def shape_problems(model: type[BaseModel], data: object) -> list[str]:
    """Every way in which ``data`` does not fit ``model``, and every value in it that JSON does not have."""
    if not isinstance(data, dict):
        return [f"$: must be an object, not {shown(data)}"]
    out = [f"{path}: is not a finite number; JSON has no such value" for path in _not_finite(data)]
    try:
        model.model_validate(data)
    except ValidationError as error:
        out += [
            f"{json_path(entry['loc'])}: {_words(entry['type'], entry['msg'], entry['input'])}"
            for entry in error.errors(include_url=False)
        ]
    return unique(out)


def unique(lines: Iterable[str]) -> list[str]:
    """The lines without repetition; of two about the same path with the same words, one is enough."""
    return list(dict.fromkeys(lines))


def json_path(steps: Iterable[str | int]) -> str:
    """A JSON path: ``$.artifacts[2].key``; a name that is no plain word is quoted."""
    out = "$"
    for step in steps:
        if isinstance(step, int):
            out += f"[{step}]"
        elif re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", step):
            out += f".{step}"
        else:
            out += f"[{shown(step)}]"
    return out


_WORDS: Final = {
    "missing": "is missing",
    "string_type": "must be a string",
    "string_unicode": "must be valid Unicode",
    "bool_type": "must be true or false",
    "list_type": "must be an array",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "invalid_key": "has a name that is no string",
}


def _words(kind: str, message: str, value: object) -> str:
    words = _WORDS.get(kind)
    if words is None:
        return message
    return f"{words}, not {shown(value)}" if kind.endswith("_type") else words


def _not_finite(data: object) -> list[str]:
    """Paths of NaN and infinities anywhere; a loop, not a recursion, so depth does not matter."""
    found: list[str] = []
    seen: set[int] = set()
    todo: list[tuple[tuple[str | int, ...], object]] = [((), data)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, float) and not math.isfinite(value):
            found.append(json_path(path))
        elif isinstance(value, dict | list) and id(value) not in seen:
            seen.add(id(value))
            items = value.items() if isinstance(value, dict) else enumerate(value)
            # paths are cut at a depth nobody reads, or a deep document would cost its depth squared
            todo += [((*path, key if isinstance(key, int) else str(key))[:40], item) for key, item in items]
    return found[::-1]


def load_json(path: Path) -> tuple[Any, list[str]]:
    """Read a JSON file strictly: ``(value, [])``, or ``(None, problems)``. Never raises for its content."""
    try:
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode):  # reading a pipe would wait for a writer
            return None, ["$: cannot be read: it is no regular file"]
        if facts.st_size > DOCUMENT_LIMIT_BYTES:
            return None, [f"$: is larger than {DOCUMENT_LIMIT_BYTES // 2**20} MiB"]
        raw = path.read_bytes()
    except (OSError, ValueError) as error:
        return None, [f"$: cannot be read: {reason(error)}"]
    if raw.startswith(b"\xef\xbb\xbf"):
        return None, ["$: begins with a byte order mark; write UTF-8 without one"]
    try:
        decoded = raw.decode()
    except UnicodeDecodeError as error:
        return None, [f"$: is not UTF-8 (byte {error.start})"]
    try:
        return json.loads(decoded, object_pairs_hook=_no_duplicates, parse_constant=_no_constant), []
    except _NotStrictError as error:
        return None, [f"$: {error}"]
    except json.JSONDecodeError as error:
        return None, [f"$: is not JSON: {error.msg} (line {error.lineno}, column {error.colno})"]
    except RecursionError:
        return None, ["$: is nested too deeply"]
    except ValueError:  # an integer past the interpreter's digit limit
        return None, ["$: has an integer of thousands of digits"]


class _NotStrictError(Exception):
    """JSON that parsers read in different ways."""


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _NotStrictError(f"the key {shown(twice)} appears twice in one object")
    return out


def _no_constant(name: str) -> Any:
    raise _NotStrictError(f"is not JSON: {name} is no JSON value")


def reason(error: Exception) -> str:
    """Why a file could not be read, in the system's own words, without its path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
