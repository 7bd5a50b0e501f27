# SPDX-License-Identifier: Apache-2.0
"""From arbitrary JSON to a record: keep what is valid, name what is not (contract, section 6)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from voicetrace.messages import (
    ASSISTANT_TEXT_SOURCES,
    USER_TEXT_SOURCES,
    Recording,
    Role,
    Segment,
    Selection,
    State,
    TextStatus,
    VoiceMessage,
)
from voicetrace.otel.encode import valid_unicode

_MAX_DEPTH: Final = 16
_MAX_INT: Final = 2**63 - 1
# what tells whose message it is, where the entry does not say so itself
_ASSISTANT_SIGNS: Final = (
    "generated_text",
    "interrupted_at_ms",
    "provider_audio_end_ms",
    "produced_by_span_id",
)
_USER_SIGNS: Final = ("end_of_turn_ms", "transcript_final_ms")
# stands for a value no field accepts, so that it is reported like any other wrong value
_INVALID: Final[list[Any]] = [[]]


class Problems:
    """The warnings about one call, each sentence once, in the order they were found."""

    def __init__(self, sentences: list[str] | None = None) -> None:
        self.sentences: list[str] = [] if sentences is None else sentences
        self._known = set(self.sentences)

    def add(self, sentence: str) -> None:
        """Note a problem unless it is noted already."""
        sentence = valid_unicode(sentence)
        if sentence not in self._known:
            self._known.add(sentence)
            self.sentences.append(sentence)


def salvage_message(message_id: str, entry: Any, problems: Problems, *, last_seq: int) -> VoiceMessage | None:
    """One entry of ``voice.messages`` as a `VoiceMessage`; None when it does not even say whose it is.

    Invalid and unknown fields are left out with a warning. A missing required field gets the value that
    claims least (``open``, not committed, text ``missing``) with a warning; without a valid ``seq`` the
    message goes to ``last_seq``.
    """
    where = f"message {_short(message_id)}"
    if not isinstance(entry, Mapping):
        problems.add(f"{where}: the entry is no object and is left out")
        return None
    kept = _fields(entry)
    if isinstance(kept.get("selections"), list):
        kept["selections"] = _valid_selections(kept["selections"], where, problems)
    kept["id"] = valid_unicode(message_id)
    while True:  # every round takes a field out or fills one in
        try:
            return VoiceMessage.model_validate_json(json.dumps(kept), strict=True)
        except ValidationError as error:
            missing = _drop_invalid(kept, error, where, problems)
        for name in missing:
            value = _least(name, kept, last_seq)
            if value is None:
                problems.add(f"{where}: it does not say whose it is (role) and is left out")
                return None
            kept[name] = value
            problems.add(f"{where}: {name} is missing and read as {json.dumps(value)}")


def salvage_recording(value: Any, problems: Problems) -> Recording | None:
    """``voice.recording`` as a `Recording`; None with a warning when its required facts are not there."""
    where = "voice.recording"
    if not isinstance(value, Mapping):
        problems.add(f"{where} is no object and is left out")
        return None
    kept = _fields(value)
    if isinstance(kept.get("segments"), Mapping):
        kept["segments"] = _valid_segments(kept["segments"], where, problems)
    while True:
        try:
            return Recording.model_validate_json(json.dumps(kept), strict=True)
        except ValidationError as error:
            missing = _drop_invalid(kept, error, where, problems)
        if missing:
            problems.add(f"{where} has no valid {', '.join(sorted(missing))} and is left out")
            return None


def _fields(entry: Mapping[Any, Any]) -> dict[str, Any]:
    """The fields as plain JSON; null means absent."""
    return {valid_unicode(str(key)): _plain(value) for key, value in entry.items() if value is not None}


def _drop_invalid(kept: dict[str, Any], error: ValidationError, where: str, problems: Problems) -> list[str]:
    """Take the invalid fields out, and return the names of the missing ones."""
    missing: list[str] = []
    for item in error.errors(include_url=False, include_context=False):
        name = str(item["loc"][0])
        if item["type"] == "missing" and len(item["loc"]) == 1:
            missing.append(name)
        elif name in kept:
            del kept[name]
            what = "an unknown field" if item["type"] == "extra_forbidden" else "not valid"
            problems.add(f"{where}: {_short(name)} is {what} and is left out")
    return missing


def _least(name: str, kept: Mapping[str, Any], last_seq: int) -> str | int | bool | None:
    """The value of a missing required field that claims least; None for a role without any sign of it."""
    match name:
        case "role":
            source = kept.get("text_source")
            if source in USER_TEXT_SOURCES or any(sign in kept for sign in _USER_SIGNS):
                return Role.USER.value
            if source in ASSISTANT_TEXT_SOURCES or any(sign in kept for sign in _ASSISTANT_SIGNS):
                return Role.ASSISTANT.value
            return None
        case "seq":
            return last_seq
        case "committed":
            return False
        case "state":
            return State.OPEN.value
        case _:
            return (TextStatus.FINAL if isinstance(kept.get("text"), str) else TextStatus.MISSING).value


def _valid_selections(items: list[Any], where: str, problems: Problems) -> list[Any]:
    valid = []
    for item in items:
        try:
            Selection.model_validate_json(json.dumps(item), strict=True)
        except ValidationError:
            problems.add(f"{where}: a selection is not valid and is left out")
        else:
            valid.append(item)
    return valid


def _valid_segments(items: Mapping[str, Any], where: str, problems: Problems) -> dict[str, Any]:
    valid = {}
    for segment_id, item in items.items():
        try:
            Segment.model_validate_json(json.dumps(item), strict=True)
        except ValidationError:
            problems.add(f"{where}: segment {_short(segment_id)} is not valid and is left out")
        else:
            valid[segment_id] = item
    return valid


def _plain(value: Any, depth: int = 0) -> Any:
    """The value as JSON that every parser accepts; what has no such form becomes a value no field accepts."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return valid_unicode(value)
    if isinstance(value, int):
        return value if abs(value) <= _MAX_INT else _INVALID
    if isinstance(value, float):
        if not math.isfinite(value):
            return _INVALID
        return int(value) if value.is_integer() and abs(value) <= _MAX_INT else value
    if depth >= _MAX_DEPTH:
        return _INVALID
    if isinstance(value, Mapping):
        return {valid_unicode(str(key)): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    return _INVALID


def _short(name: str) -> str:
    """A name as a sentence can bear it."""
    clean = valid_unicode(name)
    return clean if len(clean) <= 80 else clean[:79] + "…"
