# SPDX-License-Identifier: Apache-2.0
"""Redaction metadata: what was removed, and whether a person let the evidence go on.

voicetrace removes nothing from audio or text afterwards. It says what was never captured; a review is
somebody's statement, handed in and checked here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field

from voicetrace.agentclash import problems as p
from voicetrace.messages import TextStatus
from voicetrace.voice_call import VoiceCall

UNREVIEWED: Final = "unreviewed"
APPROVED: Final = "approved_for_regression"
STATUSES: Final = (UNREVIEWED, "redacted", APPROVED, "rejected")

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")


def is_timestamp(value: str) -> bool:
    """Tell whether a string is a moment as RFC 3339 writes it, with its zone."""
    if not _RFC3339.fullmatch(value):
        return False
    try:
        datetime.fromisoformat(value.upper())
    except ValueError:
        return False
    return True


Timestamp = Annotated[
    str, p.text("must be an RFC 3339 time with its zone, as 2026-05-13T09:30:00Z", is_timestamp)
]
NotBlank = Annotated[str, p.NOT_BLANK]


class Strict(p.Document):
    """A document in which unknown keys are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Finding(Strict):
    """What was found, how often, and what was done about it."""

    class_: Annotated[str, p.NOT_BLANK] = Field(alias="class")
    count: Annotated[int, p.number(whole=True)]
    action: NotBlank


class Redaction(Strict):
    """The review. ``rules`` and ``findings`` are explicit: an empty list says that there were none."""

    status: Annotated[str, p.one_of(*STATUSES)]
    rules: list[str]
    findings: list[Finding]
    reviewed_by: NotBlank = ""
    reviewed_at: Timestamp = ""


def redaction_problems(data: object) -> list[str]:
    """Say every way in which redaction metadata breaks its rules; empty when it is valid."""
    out = p.shape_problems(Redaction, data)
    if isinstance(data, dict) and data.get("status") in STATUSES and data["status"] != UNREVIEWED:
        out += [
            f"$.{name}: is needed with status {data['status']}"
            for name in ("reviewed_by", "reviewed_at")
            if name not in data
        ]
    return out


def redaction_of(call: VoiceCall, review: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The metadata to write: the review, or that there was none, and what capture itself left out."""
    out: dict[str, Any] = dict(review) if review else {"status": UNREVIEWED, "rules": [], "findings": []}
    left_out = sum(m.text_status is TextStatus.NOT_CAPTURED for m in call.messages)
    finding = {"class": "message_text", "count": left_out, "action": "not_captured"}
    if left_out and finding not in out["findings"]:
        out["rules"] = [*out["rules"], "Message text was not captured where text_status is not_captured."]
        out["findings"] = [*out["findings"], finding]
    return out
