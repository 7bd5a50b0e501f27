# SPDX-License-Identifier: Apache-2.0
"""``voicetrace view``: a call as a page to read and to listen to."""

from __future__ import annotations

import webbrowser
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from voicetrace.cli.common import PROBLEMS, USAGE, Failure, clean, print_json, read, reason, say

if TYPE_CHECKING:
    from voicetrace.viewer import Written
    from voicetrace.viewer.sound import AudioChoice
    from voicetrace.voice_call import VoiceCall

EXAMPLE: Final = "Example: voicetrace view demo --out call.html --open"
_PAGE_SUFFIXES: Final = (".html", ".htm")


class Audio(StrEnum):
    """Where the page has its audio from."""

    EMBED = "embed"
    LINK = "link"
    NONE = "none"


OptionalText = str | None


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("view", short_help="Write a call as a page to read and listen to.", epilog=EXAMPLE)(view)


def view(
    source: Annotated[
        Path, typer.Argument(help="A trace, a journal, or a directory of them.", metavar="SOURCE")
    ],
    out: Annotated[
        Path, typer.Option("--out", help="The page (.html), or a directory for a page per call and a list.")
    ],
    call: Annotated[OptionalText, typer.Option("--call", help="Which call, when there are several.")] = None,
    audio: Annotated[
        Audio | None,
        typer.Option(
            "--audio",
            help="embed: in the page. link: beside it. none. Default: in the page unless it gets too large.",
        ),
    ] = None,
    judge: Annotated[
        OptionalText,
        typer.Option(
            "--judge",
            help="The call's scores: JSON as judge show prints it, or a warehouse. "
            "Default: judge.json beside the call.",
            metavar="FILE|URL",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    json: Annotated[bool, typer.Option("--json", help="What was written, for a machine.")] = False,
) -> None:
    """Write each call as one HTML file: its messages, exactly their audio, and what their text is worth.

    The file needs no network and no other file, so it can be sent to somebody. It holds what was said.
    """
    from voicetrace.viewer import JudgementError, PageError, find_judgement, write_page, write_pages
    from voicetrace.viewer.pages import INDEX_NAME

    calls = _chosen(read(source), call, source)
    choice: AudioChoice | None = audio.value if audio is not None else None
    one_page = out.suffix.lower() in _PAGE_SUFFIXES and not out.is_dir()
    if one_page and len(calls) > 1:
        raise Failure(
            f"{source} has {len(calls)} calls: choose one with --call, or name a directory with --out",
            code=USAGE,
        )
    try:
        if one_page:
            judgement = find_judgement(calls[0], judge)
            written = [write_page(calls[0], out, audio=choice, judgement=judgement, force=force)]
        else:
            written = write_pages(
                calls, out, audio=choice, judgement_of=lambda c: find_judgement(c, judge), force=force
            )
    except (PageError, JudgementError) as error:
        raise Failure(reason(error)) from error
    first = out if one_page else out / INDEX_NAME
    if json:
        print_json(
            {"pages": [_document(page) for page in written], "index": None if one_page else str(first)}
        )
    else:
        for page in written:
            say(clean(f"wrote {page.path} ({_size(page.size)}): {page.note}"))
        if not one_page:
            say(clean(f"wrote {first}"))
    if open_it and not webbrowser.open(first.resolve().as_uri()):
        raise Failure(f"no browser could be started; open {first} yourself", code=PROBLEMS)


def _chosen(calls: list[VoiceCall], wanted: str | None, source: Path) -> list[VoiceCall]:
    if wanted is None:
        return calls
    chosen = [call for call in calls if call.call_id == wanted]
    if not chosen:
        ids = ", ".join(call.call_id for call in calls)
        raise Failure(f"{source} has no call {wanted}; it has {ids}", code=USAGE)
    return chosen


def _document(page: Written) -> dict[str, Any]:
    return {
        "call_id": page.call.call_id,
        "page": str(page.path),
        "bytes": page.size,
        "messages": len(page.call.messages),
        "audio": page.audio,
        "note": page.note,
        "judged": page.judged,
        "warnings": list(page.call.warnings),
    }


def _size(size: int) -> str:
    return f"{size / 1_000_000:.1f} MB" if size >= 1_000_000 else f"{-(-size // 1000)} kB"
