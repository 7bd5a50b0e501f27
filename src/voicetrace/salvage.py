# SPDX-License-Identifier: Apache-2.0
"""From arbitrary JSON to a record: keep what is valid, name what is not (contract, section 6)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from voicetrace.messages import (
    Recording,
    VoiceMessage,
)

_MAX_DEPTH: Final = 16
_MAX_NAME: Final = 60
# what tells whose message it is, where the entry does not say so itself
_ASSISTANT_SIGNS: Final = ("generated_text", "interrupted_at_ms", "provider_audio_end_ms", "produced_by_span_id")
_USER_SIGNS: Final = ("end_of_turn_ms", "transcript_final_ms")


class Problems:
    """The warnings about one call, each sentence once, in the order they were found."""

    def __init__(self, sentences: list[str] | None = None) -> None:
        self.sentences: list[str] = [] if sentences is None else sentences

    def add(self, sentence: str) -> None:
        """Note a problem unless it is noted already."""
        if sentence not in self.sentences:
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
    kept = {str(key): _plain(value) for key, value in entry.items() if value is not None}
    selections = kept.get("selections")
    kept["id"] = _text(message_id)
    while True:
        try:
            return VoiceMessage.model_validate_json(json.dumps(kept), strict=True)
        except ValidationError as error:
            if not _repair(kept, error, where, problems):
                return None
        if selections is not None and "selections" not in kept:
            selections = None


def salvage_recording(value: Any, problems: Problems) -> Recording | None:
    """``voice.recording`` as a `Recording`; None with a warning when its required facts are not there."""
    if not isinstance(value, Mapping):
        problems.add("voice.recording is no object and is left out")
        return None
    kept = {str(key): _plain(item) for key, item in value.items() if item is not None}
    while True:
        try:
            return Recording.model_validate_json(json.dumps(kept), strict=True)
        except ValidationError as error:
            missing = _drop_invalid(kept, error, "voice.recording", problems)
            if missing:
                problems.add(f"voice.recording has no valid {', '.join(missing)} and is left out")
                return None


def _repair(kept: dict[str, Any], error: ValidationError, where: str, problems: Problems) -> bool:
    """Drop what is invalid and fill in what is missing; False when the entry cannot be kept."""
    missing = _drop_invalid(kept, error, where, problems)
    for name in missing:
        if name == "role":
            role = _role_by_signs(kept)
            if role is None:
                problems.add(f"{where}: it does not say whose it is (role) and is left out")
                return False
            kept[name] = role
        elif name == "seq":
            kept[name] = kept.pop("_last_seq")
        else:
            kept[name] = _least(name, kept)
        problems.add(f"{where}: {name} is missing, read as {kept[name]!r}")
    return True


def _drop_invalid(
    kept: dict[str, Any], error: ValidationError, where: str, problems: Problems
) -> list[str]:
    """Take the invalid fields out, from the last list item to the first; return the missing ones."""
    missing: list[str] = []
    for item in sorted(error.errors(include_url=False), key=lambda e: str(e["loc"]), reverse=True):
        name = str(item["loc"][0])
        if item["type"] == "missing" and len(item["loc"]) == 1:
            missing.append(name)
        elif name in kept:
            del kept[name]
            what = "unknown" if item["type"] == "extra_forbidden" else "not valid"
            problems.add(f"{where}: {_short(name)} is {what} and is left out")
    return missing
