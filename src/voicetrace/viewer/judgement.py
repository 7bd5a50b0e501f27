# SPDX-License-Identifier: Apache-2.0
"""A call's scores, if somebody judged it: given, or kept beside the call.

Only the types of the judge are used, none of what listens, so no extra is needed for a file.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from voicetrace.judge.result import DECIMALS, Dimension, DimensionScore
from voicetrace.voice_call import VoiceCall

FILE_NAME: Final = "judge.json"
"""Beside a call: what ``voicetrace judge show CALL --json`` prints."""
_SCORE_FIELDS: Final = frozenset(DimensionScore.model_fields)


class JudgementError(ValueError):
    """There is no judgement to read; the sentence says where and why."""


@dataclass(frozen=True)
class Judgement:
    """The dimensions of one call in the judge's order, who judged, and what went wrong on the way."""

    dimensions: dict[Dimension, DimensionScore]
    judge: str = ""
    error: str = ""
    call_id: str = ""

    @property
    def overall(self) -> float | None:
        """The mean of the dimensions that have a score."""
        scores = [found.score for found in self.dimensions.values() if found.score is not None]
        return round(sum(scores) / len(scores), DECIMALS) if scores else None


def find_judgement(call: VoiceCall, given: str | None) -> Judgement | None:
    """The judgement of a call: from a JSON file or a warehouse, else from the file beside the call.

    ``given`` is a JSON file or a warehouse's URL (`voicetrace.judge.warehouse.open_warehouse`), ``None`` to
    look beside the call only. ``None`` when nobody judged it.

    Raises:
        JudgementError: what is given cannot be read, or is of another call.
    """
    if given is None:
        beside = Path(call.source)
        beside = (beside if beside.is_dir() else beside.parent) / FILE_NAME
        if not call.source or not beside.is_file():
            return None
        judgement = _from_file(beside)
        # a folder of many calls has a file of one of them
        return judgement if judgement.call_id in ("", call.call_id) else None
    if Path(given).is_file():
        judgement = _from_file(Path(given))
        if judgement.call_id not in ("", call.call_id):
            raise JudgementError(f"{given} judges call {judgement.call_id}, not {call.call_id}")
        return judgement
    return _from_warehouse(call, given)


def _from_file(path: Path) -> Judgement:
    try:
        document = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise JudgementError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise JudgementError(f"{path} is no JSON: {error}") from error
    if not isinstance(document, Mapping):
        raise JudgementError(f"{path} is no judge's result")
    call_id = str(document.get("call_sid", ""))
    return _parsed(document.get("judge_json", document), call_id, str(path))


def _from_warehouse(call: VoiceCall, url: str) -> Judgement | None:
    from voicetrace.judge.warehouse import WarehouseError, open_warehouse, shown_url

    try:
        with contextlib.closing(open_warehouse(url)) as store:
            row = store.evidence(call.call_id)
    except WarehouseError as error:
        raise JudgementError(str(error)) from error
    if row is None:
        return None
    try:
        document = json.loads(row.row.judge_json or "")
    except ValueError as error:
        raise JudgementError(f"what {shown_url(url)} holds of call {call.call_id} is no JSON") from error
    return _parsed(document, call.call_id, shown_url(url))


def _parsed(document: Any, call_id: str, where: str) -> Judgement:
    """``judge_json``; fields and dimensions of a newer judge are passed over."""
    if isinstance(document, str):
        with contextlib.suppress(ValueError):
            document = json.loads(document)
    found = document.get("dimensions") if isinstance(document, Mapping) else None
    if not isinstance(found, Mapping):
        raise JudgementError(f"{where} is no judge's result: it has no dimensions")
    dimensions = {}
    for name in Dimension:
        score = found.get(name.value)
        if score is None:
            continue
        try:
            known = {key: value for key, value in score.items() if key in _SCORE_FIELDS}
            dimensions[name] = DimensionScore.model_validate(known)
        except (ValidationError, AttributeError) as error:
            raise JudgementError(f"{where} has no valid {name.value}") from error
    judge = document.get("judge")
    version = judge.get("version") if isinstance(judge, Mapping) else None
    return Judgement(dimensions, str(version or ""), str(document.get("judge_error", "")), call_id)
