# SPDX-License-Identifier: Apache-2.0
"""The JSON Schemas of the contract, generated from the models so that the two cannot drift apart.

``python specs/generate.py [DIRECTORY]`` writes them; a test compares what is committed with what is
generated. They describe what voicetrace *writes*; the reader takes more (specs/voice-messages.md).
"""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter

from voicetrace import agentclash, events, messages, semconv
from voicetrace.messages import Recording, Role, State, TextSource, TextStatus, VoiceMessage

HERE: Final = Path(__file__).parent / "schemas"
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]


# -- small words for rules -----------------------------------------------------------------------
def _is(**fields_and_values: Any) -> Schema:
    """The fields are there and have these values (or one of them, for a list)."""
    return {
        "properties": {
            name: {"enum": value} if isinstance(value, list) else {"const": value}
            for name, value in fields_and_values.items()
        },
        "required": list(fields_and_values),
    }


def _absent(*names: str) -> Schema:
    return {"properties": dict.fromkeys(names, False)}


def _one_of_if_there(name: str, values: Any) -> Schema:
    return {"properties": {name: {"enum": sorted(values)}}}


def _rule(what: str, when: Schema, then: Schema, otherwise: Schema | None = None) -> Schema:
    rule = {"$comment": what, "if": when, "then": then}
    return rule if otherwise is None else rule | {"else": otherwise}


def message_rules() -> list[Schema]:
    """The writer's rules about one message, as far as JSON Schema can say them.

    `messages.writer_problems` is the same list in Python; a test holds the two against each other. Two rules
    compare two numbers and stay out: ``end_ms`` is not before ``start_ms``, of a message and of a selection.
    """
    assistant = _is(role=Role.ASSISTANT)
    unplayed = _is(role=Role.ASSISTANT, state=State.UNPLAYED)
    user_only, assistant_only = messages._USER_ONLY, messages._ASSISTANT_ONLY  # noqa: SLF001
    with_text = [TextStatus.FINAL, TextStatus.PARTIAL]
    return [
        _rule(
            "a user's message has no field, state or text source of an assistant's",
            _is(role=Role.USER),
            {
                "allOf": [
                    _absent(*assistant_only),
                    _one_of_if_there("state", [State.OPEN, State.COMPLETE]),
                    _one_of_if_there("text_source", messages.USER_TEXT_SOURCES),
                ]
            },
        ),
        _rule(
            "an assistant's message has no field or text source of a user's, and is never partial",
            assistant,
            {
                "allOf": [
                    _absent(*user_only),
                    _one_of_if_there("text_source", messages.ASSISTANT_TEXT_SOURCES),
                    {"properties": {"text_status": {"not": {"const": TextStatus.PARTIAL}}}},
                ]
            },
        ),
        _rule(
            "what was interrupted says when",
            _is(state=State.INTERRUPTED),
            {"required": ["interrupted_at_ms"]},
        ),
        _rule(
            "text is there exactly when its status is final or partial",
            _is(text_status=with_text),
            {"required": ["text"]},
            _absent("text"),
        ),
        _rule(
            "an open assistant's message has no text yet",
            _is(role=Role.ASSISTANT, state=State.OPEN),
            _absent("text"),
        ),
        _rule(
            "what was not played has no audio, and no text aligned to it",
            unplayed,
            {
                "allOf": [
                    {"properties": {"selections": {"maxItems": 0}}},
                    _absent("start_ms", "end_ms"),
                    {"properties": {"text_source": {"not": {"const": TextSource.PLAYOUT_ALIGNED}}}},
                ]
            },
        ),
        _rule(
            "what was not played has the text that was generated, unless content is not captured",
            {"allOf": [unplayed, {"not": _is(text_status=TextStatus.NOT_CAPTURED)}]},
            {"required": ["text"]},
        ),
        _rule(
            "without content there is no generated text either",
            _is(text_status=TextStatus.NOT_CAPTURED),
            _absent("generated_text"),
        ),
    ]


# -- from models to schemas ----------------------------------------------------------------------
def _tidy(schema: Any) -> Any:
    """Without pydantic's titles and without its release's order of keys."""
    if isinstance(schema, dict):
        return {
            key: _tidy(value)
            for key, value in sorted(schema.items())
            if not (key == "title" and isinstance(value, str))
        }
    return [_tidy(item) for item in schema] if isinstance(schema, list) else schema


def _first_line(text: str | None) -> str:
    return (text or "").strip().split("\n\n")[0].replace("\n    ", " ").replace("``", "")


def _as_written(schema: Schema) -> Schema:
    """A model's object as it is written: unknown fields are absent, never null; the others always there."""
    required = []
    for name, value in schema["properties"].items():
        branches = [b for b in value.get("anyOf", []) if b != {"type": "null"}]
        if len(branches) < len(value.get("anyOf", [])):
            [rest] = branches
            schema["properties"][name] = rest
        else:
            required.append(name)
            value.pop("default", None)
    return schema | {"required": sorted(required), "additionalProperties": False}


def _model(model: type[BaseModel]) -> Schema:
    schema = model.model_json_schema(mode="serialization")
    schema["properties"].pop("id", None)  # the key in the map, not repeated in the entry
    for name, definition in schema.get("$defs", {}).items():
        if "properties" in definition:
            schema["$defs"][name] = _as_written(definition)
    return _as_written(schema) | {"description": _first_line(model.__doc__)}


def _document(name: str, schema: Schema) -> Schema:
    head = {"$schema": DIALECT, "$id": f"{semconv.SCHEMA_URL}/{name}.schema.json", "title": name}
    rest: Schema = _tidy(schema)
    return head | rest


def voice_message() -> Schema:
    """One entry of ``voice.messages``."""
    return _model(VoiceMessage) | {"allOf": message_rules()}


def voice_messages() -> Schema:
    """The whole map."""
    entry = voice_message()
    definitions = entry.pop("$defs")
    return {
        "description": "Every message of a call, by message id.",
        "type": "object",
        "propertyNames": {"minLength": 1},
        "additionalProperties": {"$ref": "#/$defs/VoiceMessage"},
        "$defs": definitions | {"VoiceMessage": entry},
    }


def recording() -> Schema:
    """``voice.recording``."""
    return _model(Recording)


def journal_event() -> Schema:
    """One line of a journal, after the first."""
    definitions: Schema = {}
    for name, cls in sorted(events.EVENTS.items()):
        schema = TypeAdapter(cls).json_schema()
        definitions |= schema.pop("$defs", {})
        schema["properties"] = {"event": {"const": name}} | schema["properties"]
        for field in fields(cls):
            # a field that has its default is not written, so null is written only where there is none
            value = schema["properties"][field.name]
            if value.get("default", "") is None:
                [rest] = [b for b in value.pop("anyOf") if b != {"type": "null"}]
                value.pop("default")
                schema["properties"][field.name] = rest
        definitions[name] = schema | {
            "required": ["event", *schema["required"]],
            "additionalProperties": False,
            "description": _first_line(cls.__doc__),
        }
    return {
        "description": "One event of a call: a line of its journal after the first.",
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in sorted(events.EVENTS)],
        "$defs": definitions,
    }


def generate() -> dict[str, str]:
    """The files, by name, as they must be on disk."""
    made = {
        "voice-message": voice_message(),
        "voice-messages": voice_messages(),
        "recording": recording(),
        "journal-event": journal_event(),
    }
    documents = {name: _document(name, schema) for name, schema in made.items()} | agentclash.json_schemas()
    return {f"{name}.schema.json": json.dumps(schema, indent=2) + "\n" for name, schema in documents.items()}


def main(directory: Path = HERE) -> None:
    """Write every schema into the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in generate().items():
        (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
