# SPDX-License-Identifier: Apache-2.0
"""A quick judge that says what a test wants, rows, and calls to judge. Importable by worker processes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

from voicetrace import events as ev
from voicetrace.judge.result import (
    CallJudgement,
    Dimension,
    DimensionScore,
    Evidence,
    JudgeRow,
    NullReason,
)
from voicetrace.judge.warehouse import StoredRow
from voicetrace.reader import read_calls
from voicetrace.voice_call import VoiceCall

WORKSPACE, SERVICE = str(UUID(int=0xA1)), str(UUID(int=0xB2))
OTHER = str(UUID(int=0xC3))
NOON = datetime(2026, 5, 15, 12, tzinfo=UTC)


@dataclass(frozen=True)
class FakeJudge:
    """``log``: a file that gets a line for each call that is judged, so that a test can count."""

    version: str = "fake-1"
    rubric_sha256: str = "0" * 64
    log: str = ""


def fake_judge_call(source: Path | VoiceCall, *, judge: FakeJudge) -> CallJudgement:
    """Scores drawn from a digest of the call's id; the id may ask for trouble."""
    call = source if isinstance(source, VoiceCall) else _one(source)
    sid = call.call_id
    if judge.log:
        with Path(judge.log).open("a") as log:
            log.write(f"{sid}\n")
    if "raises" in sid:
        raise ValueError("the audio of this call is no audio")
    if "dies" in sid:
        os.kill(os.getpid(), signal.SIGKILL)
    if "flaky" in sid:
        mark = Path(judge.log + ".died")
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    if "hangs" in sid:
        threading.Event().wait()
    digest = hashlib.sha256(f"{sid} {len(call.messages)}".encode()).digest()
    dimensions = {}
    for nth, name in enumerate(Dimension):
        if nth == 9:
            dimensions[name] = DimensionScore.none(NullReason.NO_EVENTS, "nothing to hear")
        else:
            evidence = (
                Evidence(message_id="m", start_ms=0, end_ms=500, metric="x", value=1.5, threshold=2.0),
            )
            dimensions[name] = DimensionScore.of(digest[nth] / 255, reason=f"r{nth}", evidence=evidence)
    return CallJudgement(
        call_sid=sid,
        call_entity_id=call.conversation_id or None,
        judge_version=judge.version,
        rubric_sha256=judge.rubric_sha256,
        inputs={"trace_sha256": digest.hex()},
        dimensions=dimensions,
    )


def _one(source: Path) -> VoiceCall:
    [call] = read_calls(source)
    return call


def write_call(
    root: Path,
    sid: str,
    *,
    origin: datetime = NOON,
    ended: bool = True,
    workspace: str = "",
    service: str = "",
) -> Path:
    """A call folder with the smallest journal there is."""
    folder = root / sid
    folder.mkdir(parents=True)
    events: list[ev.Event] = [
        ev.CallStarted(
            at_ms=0,
            call_id=sid,
            origin_unix_ms=int(origin.timestamp() * 1000),
            framework="livekit",
            conversation_id=f"room-{sid}",
            workspace_id=workspace,
            service_id=service,
        ),
        ev.CallSpanBound(
            at_ms=0,
            trace_id=hashlib.md5(sid.encode()).hexdigest(),
            span_id="00f067aa0ba902b7",
            name="x",
            start_unix_ms=0,
        ),
    ]
    if ended:
        events.append(ev.CallEnded(at_ms=1000, reason="test"))
    lines = [{"voicetrace_journal": 1, "pid": 1}, *map(ev.to_dict, events)]
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def row(
    sid: str,
    at: datetime = NOON,
    *,
    workspace: str = WORKSPACE,
    service: str = SERVICE,
    version: str = "1",
    digest: str = "d",
    error: str = "",
    score: float | None = 0.25,
    started: datetime | None = None,
    **more: object,
) -> StoredRow:
    """One row to store."""
    return StoredRow(
        workspace_id=workspace,
        service_id=service,
        judge_version=version,
        trace_digest=digest,
        judge_error=error,
        source="/calls/x",
        started_at=started,
        row=JudgeRow(
            **{
                "call_sid": sid,
                "service_id": service,
                "clarity_score": score,
                "overall_score": score,
                "critical_count": 0,
                "flag_count": 1,
                "warning_count": 0,
                "judge_json": json.dumps({"sid": sid}),
                "computed_at": at,
            }
            | more
        ),
    )


def minutes(n: float) -> datetime:
    return NOON + timedelta(minutes=n)
