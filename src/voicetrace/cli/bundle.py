# SPDX-License-Identifier: Apache-2.0
"""``voicetrace bundle``: a call as a voice artifact bundle."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from voicetrace.cli.common import USAGE, Failure, print_json, read, reason, say

if TYPE_CHECKING:
    from voicetrace.voice_call import VoiceCall

EXAMPLE = (
    "Example: voicetrace bundle demo --out bundle --run-id 0190d0f4-8f5b-7cc3-a1b6-2f7d5c9e4b10 "
    "--run-agent-id 0190d0f4-8f5b-7cc3-a1b6-2f7d5c9e4b11"
)


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("bundle", short_help="Write a call as a voice artifact bundle.", epilog=EXAMPLE)(bundle)


def bundle(
    source: Annotated[
        Path, typer.Argument(help="A trace, a journal, or a directory of them.", metavar="SOURCE")
    ],
    out: Annotated[Path, typer.Option("--out", help="The bundle's directory: new, empty, or one of ours.")],
    run_id: Annotated[uuid.UUID, typer.Option("--run-id", help="The run's UUID.")],
    run_agent_id: Annotated[uuid.UUID, typer.Option("--run-agent-id", help="The UUID of the run's agent.")],
    call: Annotated[str | None, typer.Option("--call", help="Which call, when there are several.")] = None,
    structured_output: Annotated[
        Path | None,
        typer.Option("--structured-output", help="A JSON file with the task's result. Default: computed."),
    ] = None,
    schema_ref: Annotated[
        str | None, typer.Option("--schema-ref", help="What names the shape of the structured output.")
    ] = None,
    language: Annotated[str | None, typer.Option("--language", help="BCP 47, for example en-US.")] = None,
    json: Annotated[bool, typer.Option("--json", help="What was written, for a machine.")] = False,
) -> None:
    """Write one call as a bundle: manifest, audio, transcript, timeline and reports.

    The call needs a two-channel recording on this machine. The bundle is checked after it was written.
    """
    from voicetrace.agentclash import BundleError, export_bundle, validate_bundle

    for name, value in (("--run-id", run_id), ("--run-agent-id", run_agent_id)):
        if not value.int:
            raise Failure(f"{name} must not be the nil UUID", code=USAGE)
    output = _structured_output(structured_output)
    chosen = _choose(read(source), call, source)
    try:
        manifest = export_bundle(
            chosen,
            out,
            run_id=run_id,
            run_agent_id=run_agent_id,
            structured_output=output,
            schema_ref=schema_ref,
            language=language,
        )
    except BundleError as error:
        raise Failure(reason(error)) from error
    problems = validate_bundle(out)
    if problems:
        raise Failure(f"{out} was written and is not valid: {problems[0]}")
    files = sorted(p for p in (out / "artifacts").iterdir() if p.is_file())
    if json:
        print_json(
            {"call_id": chosen.call_id, "manifest": str(manifest), "artifacts": [str(p) for p in files]}
        )
        return
    say(f"wrote {manifest}")
    for path in files:
        say(f"wrote {path}")


def _structured_output(path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        output = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Failure(f"--structured-output {path} cannot be read as JSON: {reason(error)}") from error
    if not isinstance(output, dict):
        raise Failure(f"--structured-output {path} is no JSON object")
    return output


def _choose(calls: list[VoiceCall], wanted: str | None, source: Path) -> VoiceCall:
    ids = ", ".join(call.call_id for call in calls)
    if wanted is None:
        if len(calls) > 1:
            raise Failure(f"{source} has {len(calls)} calls; choose one with --call: {ids}", code=USAGE)
        return calls[0]
    for call in calls:
        if call.call_id == wanted:
            return call
    raise Failure(f"{source} has no call {wanted}; it has {ids}", code=USAGE)
