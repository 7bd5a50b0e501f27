# SPDX-License-Identifier: Apache-2.0
"""What all commands share: failing in one line, reading calls, and printing text nobody vouches for."""

from __future__ import annotations

import json
import os
import sys
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from voicetrace.voice_call import VoiceCall

PROGRAM: Final = "voicetrace"
PROBLEMS: Final = 1
USAGE: Final = 2

# characters that reorder or hide what stands around them
_BIDI: Final = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_UNSAFE: Final = ("Cc", "Cs", "Zl", "Zp")
_PLAIN_WIDTH: Final = 120


class Failure(Exception):  # noqa: N818  it ends a command; whether it is an error the code says
    """Ends the command: one sentence for stderr and the exit code."""

    def __init__(self, sentence: str, code: int = PROBLEMS) -> None:
        super().__init__(sentence)
        self.code = code


def clean(text: str) -> str:
    r"""The text with whatever a terminal would obey written out (``\x1b``), on one line."""
    return "".join(
        c.encode("unicode_escape").decode() if c in _BIDI or unicodedata.category(c) in _UNSAFE else c
        for c in text
    )


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """Standard output. Styled on a terminal only, without markup: what calls say is never obeyed."""
    terminal = sys.stdout.isatty()
    wanted = os.environ.get("COLUMNS", "")
    width = None if terminal else int(wanted) if wanted.isdecimal() and int(wanted) else _PLAIN_WIDTH
    return _Console(file=sys.stdout, markup=False, emoji=False, highlight=False, width=width)


def show(renderable: RenderableType) -> None:
    """Print something of rich's; into a file or a pipe without styles and without trailing spaces."""
    out = console()
    if out.is_terminal:
        out.print(renderable)
        return
    with out.capture() as capture:
        out.print(renderable)
    for line in capture.get().splitlines():
        say(line.rstrip())


def say(line: str = "") -> None:
    """Print one line as it is, however long."""
    sys.stdout.write(f"{line}\n")


def print_json(document: Any) -> None:
    """Print a document for a machine; ASCII, so that no terminal obeys it and no encoding refuses it."""
    say(json.dumps(document, indent=2, ensure_ascii=True))


def table(*columns: str) -> Table:
    """A table without lines, so that it reads the same on a terminal, in a file and in a narrow window."""
    out = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in columns:
        out.add_column(name, overflow="fold", justify="right" if name in ("seq", "step") else "left")
    return out


def cell(text: str, style: str = "") -> Text:
    """A cell that shows the text and nothing else."""
    return Text(clean(text), style=style)


def seconds(start_ms: int | None, end_ms: int | None = None) -> str:
    """Call-ms for people: ``0.19-3.59``, or what of it is known."""
    if start_ms is None:
        return "-"
    return f"{start_ms / 1000:.2f}-" + ("" if end_ms is None else f"{end_ms / 1000:.2f}")


def read(source: Path) -> list[VoiceCall]:
    """The calls of a source.

    Raises:
        Failure: it is not there, cannot be read, or holds no call.
    """
    from voicetrace.reader import read_calls

    try:
        calls = read_calls(source)
    except (OSError, ValueError) as error:
        raise Failure(reason(error)) from error
    if not calls:
        raise Failure(f"{source} is a trace without a call in it")
    return calls


def reason(error: BaseException) -> str:
    """An error as one sentence; the disk's own errors name their file."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__
