# SPDX-License-Identifier: Apache-2.0
"""``voicetrace inspect``: what a source says about its calls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from voicetrace.cli.common import cell, clean, print_json, read, say, seconds, show, table

if TYPE_CHECKING:
    from voicetrace.messages import LLMStep
    from voicetrace.voice_call import VoiceCall

EXAMPLE = "Example: voicetrace inspect demo --json | jq '.calls[].warnings'"


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("inspect", short_help="Show messages, links and warnings.", epilog=EXAMPLE)(inspect)


def inspect(
    source: Annotated[
        Path, typer.Argument(help="An OTLP JSON trace, a journal, or a directory of them.", metavar="SOURCE")
    ],
    json: Annotated[bool, typer.Option("--json", help="Everything, for a machine.")] = False,
) -> None:
    """Show the messages, the links and the warnings of each call.

    Exits with 0 when the source could be read, also when a call has warnings, and with 1 when not.
    """
    calls = read(source)
    if json:
        print_json({"calls": [call_document(call) for call in calls]})
        return
    for number, call in enumerate(calls):
        if number:
            say()
        show_call(call)


def call_document(call: VoiceCall) -> dict[str, Any]:
    """The call as JSON: its facts, every message with its links, steps, recording and warnings."""
    messages = []
    for message in call.messages:
        made = call.produced_by(message)
        messages.append(
            {
                "id": message.id,
                **message.to_wire(),
                "made_by": made.span_id if made is not None else None,
                "read_by": [step.span_id for step in call.read_by(message)],
            }
        )
    return {
        "call_id": call.call_id,
        "source": call.source,
        "framework": call.framework,
        "framework_version": call.framework_version,
        "agent_name": call.agent_name,
        "conversation_id": call.conversation_id,
        "origin_unix_ms": call.origin_unix_ms,
        "duration_ms": call.duration_ms,
        "ended": call.ended,
        "end_reason": call.end_reason,
        "trace_id": call.trace_id,
        "span_id": call.span_id,
        "messages": messages,
        "llm_steps": [step.model_dump(mode="json") for step in call.llm_steps],
        "recording": call.recording.to_wire() if call.recording is not None else None,
        "warnings": list(call.warnings),
    }


def show_call(call: VoiceCall) -> None:
    """Print one call for people."""
    from voicetrace.cli.messages import messages_table

    say(clean(f"call {call.call_id}: {_facts(call)}"))
    say(clean(f"from {call.source}"))
    say()
    show(messages_table(call.messages, _links(call)))
    if any(not m.committed for m in call.messages):
        say("* never entered the conversation")
    if call.llm_steps:
        say()
        show(_steps_table(call))
    say()
    say(clean(_recording(call)))
    say("no warnings" if not call.warnings else f"warnings ({len(call.warnings)}):")
    for warning in call.warnings:
        say(clean(f"  - {warning}"))


def _facts(call: VoiceCall) -> str:
    framework = f"{call.framework} {call.framework_version}".strip() or "unknown framework"
    length = "unknown length" if call.duration_ms is None else f"{call.duration_ms / 1000:.2f} s"
    ended = f"ended ({call.end_reason})" if call.end_reason else "ended"
    return f"{framework}, {length}, {ended if call.ended else 'not ended: running, or its process died'}"


def _recording(call: VoiceCall) -> str:
    recording = call.recording
    if recording is None:
        return "no recording"
    path = call.recording_path()
    if path is None:
        where = f"{recording.uri} (not on this machine)"
    else:
        where = str(path) if path.is_file() else f"{path} (not there)"
    channels = "+".join(recording.channels)
    length = "unfinished" if recording.duration_ms is None else f"{recording.duration_ms / 1000:.2f} s"
    return f"recording {where}: {recording.format}, {recording.sample_rate_hz} Hz, {channels}, {length}"


def _links(call: VoiceCall) -> dict[str, tuple[str, str]]:
    numbers = {step.span_id: number for number, step in enumerate(call.llm_steps, 1)}
    links = {}
    for message in call.messages:
        made = call.produced_by(message)
        by = f"step {numbers[made.span_id]}" if made is not None else message.produced_by_span_id or ""
        links[message.id] = (by, _spans_of([numbers[step.span_id] for step in call.read_by(message)]))
    return links


def _spans_of(numbers: list[int]) -> str:
    """``1-3, 5`` for 1, 2, 3, 5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _steps_table(call: VoiceCall) -> Any:
    out = table("step", "span", "from-to (s)", "reads", "makes")
    seq = {message.id: message.seq for message in call.messages}
    for number, step in enumerate(call.llm_steps, 1):
        out.add_row(
            cell(str(number)),
            cell(step.span_id),
            cell(seconds(step.start_ms, step.end_ms)),
            cell(_reads(step, seq)),
            cell(_makes(step, seq)),
        )
    return out


def _reads(step: LLMStep, seq: dict[str, int]) -> str:
    messages = sum(1 for i in step.context_ids if i in seq)
    unknown = sum(1 for i in step.context_ids if i is None)
    other = len(step.context_ids) - messages - unknown
    parts = [f"{messages} message{'s' * (messages != 1)}"]
    if other:
        parts.append(f"{other} other item{'s' * (other != 1)}")
    if unknown:
        parts.append(f"{unknown} never committed")
    return ", ".join(parts)


def _makes(step: LLMStep, seq: dict[str, int]) -> str:
    made = [f"message {seq[i]}" if i in seq else f"{i} (in no record)" for i in step.output_ids]
    notes = ["speculative"] * step.speculative + [f"error: {step.error}"] * bool(step.error)
    return ", ".join([*(made or ["no message"]), *notes])
