# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas of the manifest and the three reports, generated from the models that validate them.

They say what the published schemas say, and no more: a test holds both against each other on generated
documents. What only ingestion checks (`validate_manifest`, `validate_report`) compares values with each
other, which JSON Schema cannot, or is stricter than the published schema, and stays out.
"""

from __future__ import annotations

import types
from typing import Any, Final, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from voicetrace.agentclash import problems as p
from voicetrace.agentclash.manifest import REQUIRED_KINDS, ArtifactRef, Manifest
from voicetrace.agentclash.reports import (
    LiveContinuityReport,
    SourceSeparationReport,
    VideoSyncPair,
    VideoSyncReport,
    VideoSyncSummary,
)

Schema = dict[str, Any]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def json_schemas() -> dict[str, Schema]:
    """The schemas by the name of their file, without its ``.schema.json``."""
    return {
        name: {"$schema": DIALECT, "title": title, **_object(model)}
        for name, title, model in (
            ("agentclash-manifest", "Voice artifact manifest", Manifest),
            ("agentclash-live-continuity-report", "Live continuity report", LiveContinuityReport),
            ("agentclash-source-separation-report", "Source separation report", SourceSeparationReport),
            ("agentclash-video-sync-report", "Video sync report", VideoSyncReport),
        )
    }


def _object(model: type[p.Document]) -> Schema:
    fields = model.model_fields
    schema: Schema = {
        "type": "object",
        "required": [name for name, field in fields.items() if field.is_required()],
        "properties": {name: _of_field(field) for name, field in fields.items()},
    }
    if not schema["required"]:
        del schema["required"]
    for name, more in _FIELD_RULES.get(model, {}).items():
        schema["properties"][name] |= more
    return schema | _RULES.get(model, {})


def _of_field(field: FieldInfo) -> Schema:
    for rule in field.metadata:
        if isinstance(rule, p.Rule):
            return dict(rule.schema)
    return _of_type(field.annotation)


def _of_type(annotation: Any) -> Schema:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is list:
        return {"type": "array", "items": _of_type(arguments[0])}
    if origin is dict:
        values = _of_type(arguments[1])
        return {"type": "object"} | ({"additionalProperties": values} if values else {})
    if origin in (Union, types.UnionType):
        raise TypeError(f"{annotation} needs a rule that says its schema")
    if arguments:  # Annotated
        for rule in arguments[1:]:
            if isinstance(rule, p.Rule):
                return dict(rule.schema)
        return _of_type(arguments[0])
    if isinstance(annotation, type) and issubclass(annotation, p.Document):
        return _object(annotation)
    return {} if annotation is Any else {"type": {str: "string", bool: "boolean"}[annotation]}


# -- rules between fields ----------------------------------------------------------------------------
def _when(field: str, value: str, then: Schema) -> Schema:
    return {"if": {"properties": {field: {"const": value}}, "required": [field]}, "then": then}


def _passed(statuses: list[str], more: Schema) -> Schema:
    """``passed`` is true exactly when the status is ``passed``."""
    return {
        "oneOf": [
            {"properties": {"status": {"const": "passed"}, "passed": {"const": True}, **more}},
            {"properties": {"status": {"enum": statuses}, "passed": {"const": False}}},
        ]
    }


_PATH: Final[Schema] = {
    "not": {"anyOf": [{"pattern": "^/"}, {"pattern": "^[A-Za-z]:"}, {"pattern": r"(^|/)\.\.(/|$)"}]}
}
_PAIR_FIELDS: Final = [name for name in VideoSyncPair.model_fields if name != "status"]


def _not_null(name: str) -> Schema:
    schema = _of_field(VideoSyncPair.model_fields[name])
    return schema | {"type": schema["type"][0]}


_RANGE: Final[Schema] = {"minItems": 2, "maxItems": 2}
_FIELD_RULES: Final[dict[type[p.Document], dict[str, Schema]]] = {
    Manifest: {
        "artifacts": {
            "minItems": 1,
            "uniqueItems": True,
            "allOf": [
                {"contains": {"properties": {"kind": {"const": kind.value}}, "required": ["kind"]}}
                for kind in REQUIRED_KINDS
            ],
        }
    },
    VideoSyncSummary: {"warn_duration_ratio_range": _RANGE, "fail_duration_ratio_range": _RANGE},
}
_RULES: Final[dict[type[p.Document], Schema]] = {
    ArtifactRef: {
        "allOf": [
            _when(
                "location",
                "local_path",
                {
                    "required": ["path"],
                    "properties": {"path": _PATH},
                    "not": {"anyOf": [{"required": ["bucket"]}, {"required": ["object_key"]}]},
                },
            ),
            _when(
                "location",
                "object_storage",
                {"required": ["bucket", "object_key"], "not": {"required": ["path"]}},
            ),
        ]
    },
    LiveContinuityReport: _passed(
        ["warn", "failed", "degraded"],
        {"metrics": {"properties": {"evidence_status": {"const": "available"}}}},
    ),
    SourceSeparationReport: _passed(["failed", "degraded"], {}),
    VideoSyncPair: {
        "allOf": [
            _when(
                "status",
                "paired",
                {"required": _PAIR_FIELDS, "properties": {name: _not_null(name) for name in _PAIR_FIELDS}},
            ),
            _when(
                "status",
                "missing_translation",
                {"required": ["source_index"], "properties": {"source_index": _not_null("source_index")}},
            ),
        ]
    },
}
