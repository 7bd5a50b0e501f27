# SPDX-License-Identifier: Apache-2.0
"""``voicetrace judge``: score calls, serve the scores, look at one."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from voicetrace.cli.common import (
    PROBLEMS,
    USAGE,
    Failure,
    cell,
    clean,
    print_json,
    reason,
    say,
    seconds,
    show,
    table,
)

if TYPE_CHECKING:
    from voicetrace.judge.batch import BatchReport, EvaluationEvents, JudgeCall, JudgeConfig
    from voicetrace.judge.warehouse import StoredRow

RUN_EXAMPLE: Final = "Example: voicetrace judge run voicetrace-calls --since 24h"
SERVE_EXAMPLE: Final = "Example: voicetrace judge serve --warehouse voicetrace-judge --port 8765"
SHOW_EXAMPLE: Final = "Example: voicetrace judge show voicetrace-calls/RM_4fK2"
COMPACT_EXAMPLE: Final = "Example: voicetrace judge compact --warehouse s3://bucket/judge"
_AGO: Final = re.compile(r"([1-9][0-9]{0,6})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SMALL_PARTS: Final = 16  # rows are written some at a time, so a run leaves this many small files or more

OptionalText = str | None
Warehouse = Annotated[
    OptionalText,
    typer.Option(
        "--warehouse",
        help="Where scores are kept: a directory, s3://bucket/prefix, sqlite:///file.db or "
        "clickhouse://host/database. Default: VOICETRACE_JUDGE_WAREHOUSE, else voicetrace-judge.",
        metavar="URL",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="For a machine.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    judge = typer.Typer(
        name="judge",
        help="Score calls in ten dimensions of voice quality, and serve the scores.",
        epilog=RUN_EXAMPLE,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    judge.callback(invoke_without_command=True)(_start)
    judge.command("run", short_help="Score every call that was not scored yet.", epilog=RUN_EXAMPLE)(run)
    judge.command("serve", short_help="Serve the scores over HTTP.", epilog=SERVE_EXAMPLE)(serve_command)
    judge.command("show", short_help="One call's scores with their evidence.", epilog=SHOW_EXAMPLE)(show_call)
    judge.command("compact", short_help="Merge small files of a warehouse.", epilog=COMPACT_EXAMPLE)(compact)
    app.add_typer(judge, short_help="Score calls, serve and show the scores.")


def _start(context: typer.Context) -> None:
    """Score calls in ten dimensions of voice quality, and serve the scores."""
    if context.invoked_subcommand is None:
        say(context.get_help())
        raise typer.Exit(USAGE)


# -- run ---------------------------------------------------------------------------------------------
def run(
    directory: Annotated[
        str,
        typer.Argument(help="Calls: a directory, one call, or s3://bucket/prefix.", metavar="DIR"),
    ],
    warehouse: Warehouse = None,
    workspace: Annotated[
        OptionalText, typer.Option("--workspace", help="Of calls that name none.", metavar="UUID")
    ] = None,
    service: Annotated[
        OptionalText, typer.Option("--service", help="Of calls that name none.", metavar="UUID")
    ] = None,
    engine: Annotated[
        Literal["local", "ray"], typer.Option("--engine", help="Processes here, or a Ray cluster.")
    ] = "local",
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Processes. Default: one a core.", metavar="N")
    ] = None,
    since: Annotated[
        OptionalText,
        typer.Option("--since", help="Calls from then on: 2026-05-15, an ISO time, or 24h, 7d.", metavar="T"),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Score at most so many.", metavar="N")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=1, help="Seconds for one call.", metavar="S")
    ] = None,
    retry_errors: Annotated[
        bool, typer.Option("--retry-errors", help="Also those that could not be judged before.")
    ] = False,
    otlp: Annotated[
        bool,
        typer.Option(
            "--otlp", help="Also send the scores to OTEL_EXPORTER_OTLP_ENDPOINT, on the calls' traces."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Score every call of a directory that was not scored yet; again changes nothing.

    A call that cannot be judged gets a row that says why, and the others go on. An interrupted or killed run
    is continued by the next. Exits with 1 when a call could not be judged.
    """
    from voicetrace.judge.batch import BatchOptions, PoolError, RayError, SourceError, run_batch
    from voicetrace.judge.registry import open_registry
    from voicetrace.judge.warehouse import WarehouseError, default_url, open_warehouse, shown_url
    from voicetrace.judge.warehouse.blobs import cache_folder

    url = warehouse or default_url()
    options = BatchOptions(
        engine=engine,
        workers=workers,
        workspace_id=_uuid("--workspace", workspace),
        service_id=_uuid("--service", service),
        since=parse_since(since, datetime.now(UTC)) if since is not None else None,
        limit=limit,
        retry_errors=retry_errors,
        timeout_s=timeout,
        memory=cache_folder("judge", "digests") / "digests.sqlite",
    )
    if "://" not in directory and not Path(directory).exists():
        raise Failure(f"there is nothing at {directory}")
    judge, judge_call = _judge()
    with contextlib.ExitStack() as stack:
        try:
            events = stack.enter_context(_events()) if otlp else None
            store = stack.enter_context(contextlib.closing(open_warehouse(url, create=True)))
            registry = stack.enter_context(contextlib.closing(open_registry(url, create=True)))
            stack.enter_context(_terminable())
            tell = stack.enter_context(_progress(quiet=json))
            report = run_batch(
                directory,
                store,
                registry,
                judge=judge,
                judge_call=judge_call,
                options=options,
                progress=tell,
                events=events,
            )
            if report.scored >= _SMALL_PARTS:
                store.compact()
        except (WarehouseError, SourceError, PoolError, RayError, OSError) as error:
            raise Failure(reason(error)) from error
    if json:
        print_json(_report(report, url))
    else:
        _show_report(report, shown_url(url))
    if report.failed or report.unowned:
        raise typer.Exit(PROBLEMS)


def _judge() -> tuple[JudgeConfig, JudgeCall]:
    """The judge; its models are loaded by the processes that judge."""
    try:
        from voicetrace.judge.judging import Judge, judge_call

        return Judge(), judge_call
    except ImportError as error:
        raise Failure(f"judging needs more packages ({error}): pip install 'voicetrace[judge]'") from error


def parse_since(text: str, now: datetime) -> datetime:
    """``24h``, ``7d``, a date, or an ISO time (UTC without a zone).

    Raises:
        Failure: it is none of these.
    """
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise Failure(
            f"--since takes 24h, 7d, 2026-05-15 or 2026-05-15T12:00:00Z, not {clean(text)!r}", code=USAGE
        ) from None


def _uuid(name: str, text: str | None) -> str | None:
    from uuid import UUID

    try:
        return None if text is None else str(UUID(text))
    except ValueError:
        raise Failure(f"{name} must be a UUID, not {clean(text or '')!r}", code=USAGE) from None


@contextlib.contextmanager
def _events() -> Iterator[EvaluationEvents]:
    """Events over OTLP, flushed at the end."""
    from voicetrace.judge.batch import EvaluationEvents
    from voicetrace.otel.setup import otlp_endpoint

    if not otlp_endpoint():
        raise Failure("--otlp needs OTEL_EXPORTER_OTLP_ENDPOINT set", code=USAGE)
    try:
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    except ImportError as error:
        raise Failure("--otlp needs an OTLP exporter: pip install 'voicetrace[otlp]'", code=USAGE) from error
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

    provider = LoggerProvider()
    provider.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
    try:
        yield EvaluationEvents(logger_provider=provider)
    finally:
        provider.shutdown()


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """A service manager's stop is an interrupt: what was judged is written first."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on a terminal's stderr; nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("judging"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _report(report: BatchReport, url: str) -> dict[str, Any]:
    from voicetrace.judge.warehouse import shown_url

    return {
        "warehouse": shown_url(url),
        "scored": report.scored,
        "failed": report.failed,
        "known": report.known,
        "running": report.running,
        "older": report.older,
        "failures": report.failures,
        "unowned": report.unowned,
        "services": [{"workspace_id": w, "service_id": s} for w, s in sorted(report.services)],
    }


def _show_report(report: BatchReport, url: str) -> None:
    from voicetrace.judge.batch import NO_ID

    for sentence in [*report.failures, *report.unowned]:
        say(clean(sentence))
    parts = [f"scored {report.scored}"]
    parts += [f"{report.failed} of them could not be judged"] * bool(report.failed)
    parts += [f"{report.known} scored before"] * bool(report.known)
    parts += [f"{report.running} still running"] * bool(report.running)
    parts += [f"{report.older} older"] * bool(report.older)
    parts += [f"{len(report.unowned)} left out"] * bool(report.unowned)
    say(clean(f"{', '.join(parts)}; in {url}"))
    for workspace, service in sorted(report.services):
        named = "" if NO_ID not in (workspace, service) else " (calls that named none)"
        say(f"workspace {workspace}, service {service}{named}")


# -- serve -------------------------------------------------------------------------------------------
def serve_command(
    warehouse: Warehouse = None,
    host: Annotated[str, typer.Option("--host", help="What to bind.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8765,
    tokens: Annotated[
        Path | None,
        typer.Option(
            "--tokens",
            help='JSON: {"<workspace UUID>": "<token>"}. Without: this machine only.',
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """Serve GET /v1/{workspace_id}/services/{service_id}/voice-judge/recent, and /docs that describe it."""
    from voicetrace.judge.api import ServeError, TokenError, read_tokens, serve
    from voicetrace.judge.warehouse import default_url, shown_url

    url = warehouse or default_url()

    def started(where: str) -> None:
        say(clean(f"serving {shown_url(url)} at {where}, described at {where}/docs"))
        sys.stdout.flush()

    try:
        known = read_tokens(tokens) if tokens is not None else None
        serve(url, host=host, port=port, tokens=known, started=started)
    except (ServeError, TokenError) as error:
        raise Failure(reason(error), code=USAGE if isinstance(error, TokenError) else PROBLEMS) from error


# -- show --------------------------------------------------------------------------------------------
def show_call(
    call: Annotated[
        str,
        typer.Argument(help="A call's id in the warehouse, or a call on disk to judge now.", metavar="CALL"),
    ],
    warehouse: Warehouse = None,
    json: Json = False,
) -> None:
    """Show the ten dimensions of one call with their evidence.

    A call on disk is judged here and now, and its scores are not kept.
    """
    from voicetrace.judge.warehouse import WarehouseError, default_url, open_warehouse

    if Path(call).exists():
        row = _judged_now(Path(call))
    else:
        url = warehouse or default_url()
        try:
            with contextlib.closing(open_warehouse(url)) as store:
                found = store.evidence(call)
        except WarehouseError as error:
            raise Failure(f"{clean(call)} is no call on disk, and {reason(error)}") from error
        if found is None:
            raise Failure(f"{clean(call)} is no call on disk, and none that was judged")
        row = found
    if json:
        print_json(_row_document(row))
    else:
        _show_row(row)
    if row.judge_error:
        raise typer.Exit(PROBLEMS)


def _judged_now(path: Path) -> StoredRow:
    from dataclasses import replace

    from voicetrace.judge.batch import NO_ID, SourceError, find_calls
    from voicetrace.judge.batch.run import stored
    from voicetrace.judge.batch.source import Reader
    from voicetrace.judge.batch.work import judge_ref

    judge, judge_call = _judge()
    reader = Reader()
    try:
        refs = {ref.call_sid: ref for place in reversed(find_calls(path)) for ref in reader.read(place)}
    except SourceError as error:
        raise Failure(reason(error)) from error
    if len(refs) != 1:
        what = f"{len(refs)} calls: name one" if refs else "no call"
        raise Failure(f"{path} holds {what}")
    [ref] = refs.values()
    ref = replace(ref, workspace_id=ref.workspace_id or NO_ID, service_id=ref.service_id or NO_ID)
    return stored(ref, judge_ref(ref, judge, judge_call), judge.version, datetime.now(UTC))


def _row_document(row: StoredRow) -> dict[str, Any]:
    import json

    document: dict[str, Any] = row.row.model_dump(mode="json")
    document["judge_json"] = json.loads(row.row.judge_json or "{}")
    own = row.model_dump(mode="json", exclude={"row"})
    return document | {name: own[name] for name in own if name not in document}


def _show_row(row: StoredRow) -> None:
    document = _row_document(row)
    judged = document["judge_json"].get("dimensions", {})
    overall = "no score" if row.row.overall_score is None else f"{row.row.overall_score:.3f}"
    say(clean(f"call {row.row.call_sid}: {overall}, judged {row.computed_at:%Y-%m-%d %H:%M:%SZ}"))
    say(clean(f"judge {row.judge_version}, from {row.source}"))
    if row.judge_error:
        say(clean(f"not judged: {row.judge_error}"))
    say()
    out = table("", "dimension", "score", "severity", "why")
    for name, found in judged.items():
        score, severity = found.get("score"), found.get("severity") or "-"
        why = found.get("reason") or found.get("null_reason") or ""
        out.add_row(
            cell(str(found.get("priority", ""))),
            cell(name),
            cell("-" if score is None else f"{score:.3f}"),
            cell(severity, {"Critical": "bold red", "Flag": "red", "Warning": "yellow"}.get(severity, "")),
            cell(why if score is not None else f"no evidence: {found.get('null_reason')} {why}".rstrip()),
        )
    show(out)
    for name, found in judged.items():
        for item in found.get("evidence") or ():
            say(clean(f"  {name}: {_evidence(item)}"))


def _evidence(item: dict[str, Any]) -> str:
    where = seconds(item.get("start_ms"), item.get("end_ms"))
    text = f"{item.get('message_id') or '-'} at {where} s: {item.get('metric')} {item.get('value')}"
    if item.get("threshold") is not None:
        text += f" (threshold {item['threshold']})"
    return text + (f' "{item["quote"]}"' if item.get("quote") else "")


# -- compact -----------------------------------------------------------------------------------------
def compact(warehouse: Warehouse = None) -> None:
    """Merge the small files that runs leave; while others read and write, and at any time again."""
    from voicetrace.judge.warehouse import WarehouseError, default_url, open_warehouse, shown_url

    url = warehouse or default_url()
    try:
        with contextlib.closing(open_warehouse(url)) as store:
            replaced = store.compact()
    except WarehouseError as error:
        raise Failure(reason(error)) from error
    say(clean(f"replaced {replaced} files of {shown_url(url)}"))
