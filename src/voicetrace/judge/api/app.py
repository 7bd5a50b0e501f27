# SPDX-License-Identifier: Apache-2.0
"""The application. The contract's endpoint is exactly the contract's; what is ours lies below ``/ext``.

Needs the ``server`` extra.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, Final
from urllib.parse import quote
from uuid import UUID

from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, BeforeValidator, Field
from starlette.middleware.trustedhost import TrustedHostMiddleware

from voicetrace import __version__
from voicetrace.judge.api.auth import Tokens
from voicetrace.judge.api.clips import NoClip, clip_wav
from voicetrace.judge.registry import Registry
from voicetrace.judge.result import JudgeRow
from voicetrace.judge.warehouse import NotConfigured, StoredRow, TrendPoint, Warehouse, WarehouseError
from voicetrace.judge.warehouse.base import Bucket
from voicetrace.messages import Channel

logger = logging.getLogger("voicetrace.judge.api")

RETRY_AFTER_S: Final = 5
BEARER: Final = HTTPBearer(auto_error=False, description="A token of the workspace")
_DIGITS: Final = re.compile(r"-?(0|[1-9][0-9]{0,17})")


def _whole(value: Any) -> Any:
    """Digits, and nothing else that some readers take for a number (``1.0``, ``+1``, ``1_0``)."""
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        return int(value)
    if type(value) is int:
        return value
    raise ValueError("must be a whole number in plain digits")


Limit = Annotated[int, Field(ge=1, le=100), BeforeValidator(_whole)]
CallMs = Annotated[int, Field(ge=0, le=10**9), BeforeValidator(_whole)]
Calls = Annotated[int, Field(ge=1, le=10**6), BeforeValidator(_whole)]
WorkspaceId = Annotated[UUID, Path(description="Workspace identifier")]
ServiceId = Annotated[UUID, Path(description="Service identifier")]
CallSid = Annotated[str, Path(min_length=1, max_length=512, description="Call identifier")]


class RecentResults(BaseModel):
    """The most recent results of a service."""

    service_id: str = Field(description="The service these results belong to")
    count: int = Field(description="Number of items returned")
    items: list[JudgeRow] = Field(description="Results, newest first")


class Problem(BaseModel):
    """What went wrong, in one sentence."""

    detail: str


class CallEvidence(BaseModel):
    """One call's newest result, with its evidence opened up."""

    call: JudgeRow
    judge_version: str
    trace_digest: str
    started_at: datetime | None
    judge_error: str
    evidence: dict[str, Any] = Field(description="judge_json, parsed")
    clips: list[str] = Field(description="A path for each piece of evidence that has a time")


class Trend(BaseModel):
    """How a service's scores develop."""

    service_id: str
    bucket: Bucket
    items: list[TrendPoint] = Field(description="Oldest first")


_PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    401: {"model": Problem, "description": "No valid token for this workspace"},
    404: {"model": Problem, "description": "Service not found in this workspace"},
    503: {
        "model": Problem,
        "description": "Analytics warehouse not configured or transiently unavailable",
        "headers": {
            "Retry-After": {"description": "Seconds to wait", "schema": {"type": "integer", "minimum": 1}}
        },
    },
}


def create_app(
    warehouse: Warehouse | None, registry: Registry | None, tokens: Tokens | None = None
) -> FastAPI:
    """The application over a warehouse and its registry; without them every request is answered with 503.

    Without tokens anybody who reaches it may read, so it answers only requests that name a loopback host;
    `serve` binds to no other then.
    """
    tokens = tokens or Tokens()

    def authorized(
        workspace_id: WorkspaceId,
        credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)],
    ) -> None:
        given = credentials.credentials if credentials is not None else ""
        if not tokens.open(str(workspace_id), given):
            raise HTTPException(
                401, "a valid bearer token of this workspace is needed", {"WWW-Authenticate": "Bearer"}
            )

    app = FastAPI(
        title="voicetrace Voice Judge",
        version=__version__,
        description="Voice quality scores of calls; what goes beyond the contract is below /ext.",
    )
    guard = [Depends(authorized)] if tokens else []
    if not tokens:
        app.add_middleware(
            TrustedHostMiddleware, allowed_hosts=["localhost", "127.0.0.1", "[::1]", "::1", "testserver"]
        )

    @contextmanager
    def answering(workspace_id: UUID, service_id: UUID) -> Iterator[Warehouse]:
        """The warehouse, for a service that there is."""
        if warehouse is None or registry is None:
            raise NotConfigured("no warehouse is configured")
        if not registry.has(str(workspace_id), str(service_id)):
            raise HTTPException(404, "Service not found in this workspace")
        yield warehouse

    @app.exception_handler(WarehouseError)
    def unavailable(request: Request, error: WarehouseError) -> JSONResponse:
        # where the warehouse is, is for the log
        logger.warning("%s", error)
        what = "not configured" if isinstance(error, NotConfigured) else "transiently unavailable"
        return JSONResponse(
            {"detail": f"the analytics warehouse is {what}; retry after a short delay"},
            503,
            {"Retry-After": str(RETRY_AFTER_S)},
        )

    @app.middleware("http")
    async def once(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        # which of two values counts, readers disagree on
        names = [name for name, _ in request.query_params.multi_items()]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            said = [{"loc": ["query", name], "msg": "given twice", "type": "value_error"} for name in twice]
            return JSONResponse({"detail": said}, 422)
        response = await call_next(request)
        response.headers.setdefault("Cache-Control", "no-store")
        response.headers.setdefault("X-Content-Type-Options", "nosniff")
        return response

    @app.get(
        "/v1/{workspace_id}/services/{service_id}/voice-judge/recent",
        responses=_PROBLEMS,
        dependencies=guard,
        tags=["voice-judge"],
    )
    def list_recent_voice_judge_results(
        workspace_id: WorkspaceId,
        service_id: ServiceId,
        limit: Annotated[Limit, Query(description="Max rows to return")] = 20,
    ) -> RecentResults:
        """The most recent per-call voice quality scores of a service, newest first."""
        with answering(workspace_id, service_id) as found:
            rows = found.recent(str(workspace_id), str(service_id), limit)
        return RecentResults(service_id=str(service_id), count=len(rows), items=[row.row for row in rows])

    def one(workspace_id: UUID, service_id: UUID, call_sid: str) -> StoredRow:
        with answering(workspace_id, service_id) as found:
            row = found.evidence(call_sid, str(workspace_id), str(service_id))
        if row is None:
            raise HTTPException(404, "this call was not judged for this service")
        return row

    @app.get(
        "/ext/v1/{workspace_id}/services/{service_id}/calls/{call_sid:path}",
        responses=_PROBLEMS,
        dependencies=guard,
        tags=["extensions"],
    )
    def get_call_evidence(
        workspace_id: WorkspaceId, service_id: ServiceId, call_sid: CallSid
    ) -> CallEvidence:
        """One call's newest scores, and what they rest on."""
        row = one(workspace_id, service_id, call_sid)
        evidence = _opened(row.row.judge_json)
        clip = f"/ext/v1/{workspace_id}/services/{service_id}/clips/{quote(call_sid, safe='')}"
        return CallEvidence(
            call=row.row,
            judge_version=row.judge_version,
            trace_digest=row.trace_digest,
            started_at=row.started_at,
            judge_error=row.judge_error,
            evidence=evidence,
            clips=_clip_paths(clip, evidence),
        )

    @app.get(
        "/ext/v1/{workspace_id}/services/{service_id}/clips/{call_sid:path}",
        responses={
            **_PROBLEMS,
            200: {"content": {"audio/wav": {"schema": {"type": "string", "format": "binary"}}}},
        },
        response_class=Response,
        dependencies=guard,
        tags=["extensions"],
    )
    def get_call_clip(
        workspace_id: WorkspaceId,
        service_id: ServiceId,
        call_sid: CallSid,
        message_id: Annotated[str | None, Query(max_length=512, description="This message's audio")] = None,
        start_ms: Annotated[CallMs | None, Query(description="Or from here (call-ms)")] = None,
        end_ms: Annotated[CallMs | None, Query(description="To here; 5 minutes at most")] = None,
        channel: Annotated[Channel | None, Query(description="One side; else both")] = None,
    ) -> Response:
        """A piece of the call as WAV: a message, or a range of time; if it is on this machine."""
        row = one(workspace_id, service_id, call_sid)
        try:
            audio = clip_wav(
                row.source,
                row.row.call_sid,
                message_id=message_id,
                start_ms=start_ms,
                end_ms=end_ms,
                channel=channel,
            )
        except NoClip as error:
            raise HTTPException(404, f"{error}") from error
        return Response(audio, media_type="audio/wav")

    @app.get(
        "/ext/v1/{workspace_id}/services/{service_id}/trend",
        responses=_PROBLEMS,
        dependencies=guard,
        tags=["extensions"],
    )
    def get_service_trend(
        workspace_id: WorkspaceId,
        service_id: ServiceId,
        bucket: Annotated[Bucket, Query(description="What one item covers, in UTC")] = "day",
        since: Annotated[datetime | None, Query(description="Calls from this time on")] = None,
        until: Annotated[datetime | None, Query(description="Calls before this time")] = None,
        min_scored: Annotated[Calls, Query(description="A mean over fewer calls is withheld")] = 10,
    ) -> Trend:
        """Means of the scores per day, week or month of the calls' start."""
        with answering(workspace_id, service_id) as found:
            points = found.trend(
                str(workspace_id),
                str(service_id),
                bucket=bucket,
                since=_utc(since),
                until=_utc(until),
                min_scored=min_scored,
            )
        return Trend(service_id=str(service_id), bucket=bucket, items=points)

    @app.get("/ext/v1/health", tags=["extensions"])
    def get_health() -> dict[str, str]:
        """That the server runs; says nothing of the warehouse."""
        return {"status": "ok"}

    return app


def _utc(moment: datetime | None) -> datetime | None:
    if moment is None:
        return None
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (OverflowError, ValueError) as error:
        raise HTTPException(422, "the time is out of range") from error


def _opened(judge_json: str | None) -> dict[str, Any]:
    try:
        found = json.loads(judge_json or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _clip_paths(path: str, evidence: dict[str, Any]) -> list[str]:
    """Where to hear each piece of evidence that says when it was, each once."""
    found: dict[str, None] = {}
    dimensions = evidence.get("dimensions")
    for dimension in dimensions.values() if isinstance(dimensions, dict) else ():
        items = dimension.get("evidence") if isinstance(dimension, dict) else None
        for item in items if isinstance(items, list) else ():
            start, end = item.get("start_ms"), item.get("end_ms")
            if type(start) is int and type(end) is int and 0 <= start < end:
                found[f"{path}?start_ms={start}&end_ms={end}"] = None
    return list(found)
