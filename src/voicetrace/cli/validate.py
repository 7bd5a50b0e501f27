# SPDX-License-Identifier: Apache-2.0
"""``voicetrace validate``: is this file or directory what it should be?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from voicetrace import semconv
from voicetrace.cli.common import PROBLEMS, Failure, clean, print_json, reason, say

if TYPE_CHECKING:
    from voicetrace.voice_call import VoiceCall

EXAMPLE = "Example: voicetrace validate demo/bundle"


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("validate", short_help="Check a trace, journal, bundle or report.", epilog=EXAMPLE)(validate)


def validate(
    path: Annotated[
        Path,
        typer.Argument(
            help="A trace, a journal, a directory of them, a bundle directory, a manifest, a report, "
            "a call import or a multimodal trace.",
            metavar="PATH",
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="The kind and the problems, for a machine.")] = False,
) -> None:
    """Check one thing against its rules: one line a problem, and exit code 1 when there is any.

    Of a trace and a journal the record is checked: that it can be read, and keeps the contract. What the
    record itself says was not captured is no problem of the file; `inspect` shows it.
    """
    if not path.exists():
        raise Failure(f"there is nothing at {path}")
    kind, problems = _check(path)
    if json:
        print_json({"path": str(path), "kind": kind, "valid": not problems, "problems": problems})
    else:
        for problem in problems:
            say(clean(problem))
        if not problems:
            say(f"{path} is a valid {kind}")
    if problems:
        raise typer.Exit(PROBLEMS)


def _check(path: Path) -> tuple[str, list[str]]:
    from voicetrace.agentclash import validate_path
    from voicetrace.agentclash.manifest import MANIFEST_NAME
    from voicetrace.journal import is_journal

    if path.is_dir():
        if (path / MANIFEST_NAME).exists():
            return "bundle", validate_path(path)
        return "directory of calls", _calls_problems(path)
    if not path.is_file():
        return "file", [f"{path} is no regular file"]
    if is_journal(path):
        return "journal", _journal_problems(path)
    if _is_trace(path):
        return "trace", _calls_problems(path)
    return "manifest or report", validate_path(path)


def _is_trace(path: Path) -> bool:
    from voicetrace.reader import read_calls

    try:
        read_calls(path)
    except ValueError:
        return False
    except OSError as error:
        raise Failure(reason(error)) from error
    return True


def _calls_problems(path: Path) -> list[str]:
    from voicetrace.reader import read_calls

    try:
        calls = read_calls(path)
    except (OSError, ValueError) as error:
        return [reason(error)]
    if not calls:
        return [f"{path} has no call in it"]
    return [f"call {call.call_id}: {problem}" for call in calls for problem in _call_problems(call)]


def _call_problems(call: VoiceCall) -> list[str]:
    """What is wrong with the record, apart from what the call itself noted while it ran."""
    from voicetrace.messages import writer_problems

    if call.events:  # read from a journal
        return _journal_problems(Path(call.source))
    noted = call.attributes.get(semconv.VOICE_WARNINGS)
    own = set(noted) if isinstance(noted, list | tuple) else set()
    problems = [w for w in call.warnings if w not in own]
    broken = [f"message {m.id}: {p}" for m in call.messages for p in writer_problems(m)]
    return problems + [b for b in broken if b not in problems]


def _journal_problems(path: Path) -> list[str]:
    from voicetrace.journal import is_live, read_journal, voice_call
    from voicetrace.messages import writer_problems

    try:
        journal = read_journal(path)
        running = not journal.ended and is_live(path)
    except (OSError, ValueError) as error:
        return [reason(error)]
    problems = list(journal.problems)
    if not running:
        if journal.torn:
            problems.append(f"{path} ends in the middle of a line")
        if not journal.ended:
            problems.append(f"{path} has no end of its call; run voicetrace recover {path.parent}")
    problems += [f"message {m.id}: {p}" for m in voice_call(journal).messages for p in writer_problems(m)]
    return problems
