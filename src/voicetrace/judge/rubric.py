# SPDX-License-Identifier: Apache-2.0
"""The rubric: every threshold in one versioned file, and the digest that goes into each judgement.

Presets are ``default``, and ``eva`` and ``tau_voice`` with the timing curves of those benchmarks. A file of
your own may say ``extends = "default"`` and name only what it changes; what it names must exist there.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

PRESETS: Final = ("default", "eva", "tau_voice")
SCORES: Final = (1.0, 0.75, 0.5, 0.25, 0.0)


class RubricError(ValueError):
    """A rubric is not what it should be; the message says where."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A score as a piecewise-linear function of a measured value, level beyond its ends."""

    x: tuple[float, ...]
    y: tuple[float, ...]

    def __call__(self, value: float) -> float:
        """The score of a value."""
        pairs = list(zip(self.x, self.y, strict=True))
        if value <= pairs[0][0]:
            return pairs[0][1]
        for (a, p), (b, q) in pairwise(pairs):
            if value <= b:
                return p + (q - p) * (value - a) / (b - a)
        return pairs[-1][1]

    @property
    def threshold(self) -> float:
        """The worst value that is still fine: where the score passes 0.75 on its way down, or up."""
        points = list(zip(self.x, self.y, strict=True))
        for (a, p), (b, q) in reversed(list(pairwise(points))):
            if min(p, q) <= 0.75 <= max(p, q) and p != q:
                return a + (b - a) * (0.75 - p) / (q - p)
        return points[0][0]


@dataclass(frozen=True)
class Rubric:
    """Thresholds by dimension. Immutable; the same values have the same ``sha256``."""

    name: str
    version: str
    sections: Mapping[str, Mapping[str, Any]]
    sha256: str

    def curve(self, section: str, key: str) -> Curve:
        """The curve of this name.

        Raises:
            RubricError: the rubric has no such curve.
        """
        value = self._get(section, key)
        if not isinstance(value, Curve):
            raise RubricError(f"rubric {self.name}: [{section}] {key} is no curve")
        return value

    def number(self, section: str, key: str) -> float:
        """The number of this name.

        Raises:
            RubricError: the rubric has no such number.
        """
        value = self._get(section, key)
        if not isinstance(value, int | float):
            raise RubricError(f"rubric {self.name}: [{section}] {key} is no number")
        return float(value)

    def table(self, section: str, key: str) -> Mapping[str, float]:
        """The table of this name; empty when the rubric has none."""
        value = self.sections.get(section, {}).get(key, {})
        return value if isinstance(value, Mapping) else {}

    def _get(self, section: str, key: str) -> Any:
        try:
            return self.sections[section][key]
        except KeyError:
            raise RubricError(f"rubric {self.name} has no [{section}] {key}") from None


@cache
def load(source: str | Path = "default") -> Rubric:
    """A preset by name, or a TOML file.

    Raises:
        RubricError: there is no such preset or file, or what it holds is no rubric.
    """
    raw = _read(source)
    name, version = str(raw.pop("name", source)), str(raw.pop("version", ""))
    text = json.dumps({"name": name, "version": version, **raw}, sort_keys=True, separators=(",", ":"))
    sections = {
        section: MappingProxyType({key: _value(name, section, key, value) for key, value in values.items()})
        for section, values in raw.items()
    }
    return Rubric(name, version, MappingProxyType(sections), hashlib.sha256(text.encode()).hexdigest())


def _read(source: str | Path) -> dict[str, Any]:
    if str(source) in PRESETS:
        text = files("voicetrace.judge").joinpath("rubrics", f"{source}.toml").read_text("utf-8")
    else:
        try:
            text = Path(source).read_text("utf-8")
        except OSError as error:
            known = ", ".join(PRESETS)
            raise RubricError(f"there is no rubric {source}: name a TOML file or one of {known}") from error
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RubricError(f"rubric {source} is no TOML: {error}") from error
    base = raw.pop("extends", None)
    if base is None:
        return raw
    if base not in PRESETS:
        raise RubricError(f"rubric {source} extends {base!r}, which is none of {', '.join(PRESETS)}")
    merged = _read(base)
    for section, values in raw.items():
        if section in ("name", "version"):
            merged[section] = values
            continue
        if section not in merged or not isinstance(values, dict):
            raise RubricError(f"rubric {source}: there is no section [{section}] in {base}")
        for key, value in values.items():
            if key not in merged[section]:
                raise RubricError(f"rubric {source}: there is no {key} in [{section}] of {base}")
            merged[section][key] = value
    return merged


def _value(name: str, section: str, key: str, value: Any) -> Any:
    where = f"rubric {name}: [{section}] {key}"
    if isinstance(value, bool) or not isinstance(value, int | float | list | dict):
        raise RubricError(f"{where} is {value!r}, which is neither a number nor a curve")
    if isinstance(value, list):
        return _curve(where, [float(x) for x in value], list(SCORES))
    if isinstance(value, dict) and set(value) == {"x", "y"}:
        return _curve(where, [float(x) for x in value["x"]], [float(y) for y in value["y"]])
    if isinstance(value, dict):
        return MappingProxyType({k: float(v) for k, v in value.items()})
    return value


def _curve(where: str, x: list[float], y: list[float]) -> Curve:
    if len(x) != len(y) or len(x) < 2:
        raise RubricError(f"{where} has {len(x)} values for {len(y)} scores")
    if x[0] > x[-1]:
        x, y = x[::-1], y[::-1]
    if any(a >= b for a, b in pairwise(x)):
        raise RubricError(f"{where} does not rise or fall throughout: {x}")
    if any(not 0 <= v <= 1 for v in y):
        raise RubricError(f"{where} has a score outside of 0 to 1")
    return Curve(tuple(x), tuple(y))
