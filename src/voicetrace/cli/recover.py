# SPDX-License-Identifier: Apache-2.0
"""``voicetrace recover``: calls whose process died, finished."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from voicetrace.cli.common import PROBLEMS, USAGE, Failure, clean, print_json, reason, say

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from voicetrace.recovery import Recovery

EXAMPLE = "Example: voicetrace recover voicetrace-calls"


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("recover", short_help="Finish the calls of dead processes.", epilog=EXAMPLE)(recover_command)


def recover_command(
    directory: Annotated[
        Path, typer.Argument(help="A directory of calls, one call's folder, or one journal.", metavar="DIR")
    ],
    otlp: Annotated[
        bool,
        typer.Option(
            "--otlp", help="Also send the spans to the OTLP endpoint of OTEL_EXPORTER_OTLP_ENDPOINT."
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="What was done, for a machine.")] = False,
) -> None:
    """Finish the calls of dead processes: their end, recording, messages.json and trace.json.

    Running calls are left alone and nothing is deleted. Doing it again changes nothing. Exits with 1 when a
    journal had to be skipped.
    """
    from voicetrace.recovery import recover

    exporter = _exporter() if otlp else None
    try:
        report = recover(directory, exporter=exporter)
    except OSError as error:
        raise Failure(reason(error)) from error
    finally:
        if exporter is not None:
            exporter.shutdown()
    if json:
        print_json(_document(report))
    else:
        _show(directory, report)
    if report.skipped:
        raise typer.Exit(PROBLEMS)


def _exporter() -> SpanExporter:
    from voicetrace.otel.setup import otlp_endpoint, otlp_exporter

    if not otlp_endpoint():
        raise Failure("--otlp needs OTEL_EXPORTER_OTLP_ENDPOINT (or ..._TRACES_ENDPOINT) set", code=USAGE)
    exporter = otlp_exporter()
    if exporter is None:
        raise Failure("--otlp needs an OTLP exporter: pip install 'voicetrace[otlp]'", code=USAGE)
    return exporter


def _document(report: Recovery) -> dict[str, Any]:
    return {
        "recovered": [
            {
                "call_id": c.call_id,
                "journal": c.source,
                "messages": len(c.messages),
                "warnings": list(c.warnings),
            }
            for c in report.recovered
        ],
        "finished": [str(path) for path in report.finished],
        "running": [str(path) for path in report.running],
        "skipped": [{"path": str(s.path), "reason": s.reason} for s in report.skipped],
    }


def _show(directory: Path, report: Recovery) -> None:
    for call in report.recovered:
        folder = Path(call.source).parent
        say(clean(f"recovered {call.call_id}: {len(call.messages)} messages"))
        for name in ("journal.jsonl", "recording.*", "messages.json", "trace.json"):
            for path in sorted(folder.glob(name)):
                say(clean(f"  wrote {path}"))
        for warning in call.warnings:
            say(clean(f"  warning: {warning}"))
    for path in report.running:
        say(clean(f"running, left alone: {path}"))
    for skipped in report.skipped:
        say(clean(f"skipped, and kept: {skipped.path}: {skipped.reason}"))
    counts = (len(report.recovered), len(report.finished), len(report.running), len(report.skipped))
    if not any(counts):
        say(clean(f"there is no journal under {directory}"))
    else:
        say("{} recovered, {} finished already, {} running, {} skipped".format(*counts))
