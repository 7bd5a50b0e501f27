# SPDX-License-Identifier: Apache-2.0
"""The command line: ``voicetrace`` and its commands, one module each.

Every command exits with 0 (done), 1 (the input has problems, or cannot be read) or 2 (called wrongly), says
bad input in one line on stderr, and prints what it wrote. An interrupt is 130 and a closed pipe 141, as
shells have it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from voicetrace import __version__
from voicetrace.cli import bundle, demo, doctor, inspect, judge, recover, validate, view
from voicetrace.cli.common import PROGRAM, USAGE, Failure, clean

INTERRUPTED: Final = 130
CLOSED_PIPE: Final = 141

# newer typers carry their own click; what the errors of both derive from is found through a public name
_CLICK_ERROR: Final[type[Exception]] = typer.BadParameter.__mro__[2]


class _Commands(TyperGroup):
    """Turns whatever ends a command into an exit code and at most one line."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["standalone_mode"] = False
        try:
            code = super().main(*args, **kwargs)
            sys.stdout.flush()
        except Failure as error:
            self._end(error.code, str(error))
        except _CLICK_ERROR as error:
            self._end(USAGE, _usage_sentence(error))
        except (KeyboardInterrupt, typer.Abort):
            self._end(INTERRUPTED, "interrupted")
        except BrokenPipeError:
            _discard_stdout()
            sys.exit(CLOSED_PIPE)
        sys.exit(code if isinstance(code, int) else 0)

    # an interrupt and a closed pipe are caught before typer sees them: it has answers of its own
    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _ends():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _ends():
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result

    @staticmethod
    def _end(code: int, sentence: str) -> None:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            if sentence:
                sys.stderr.write(f"{PROGRAM}: {clean(sentence)}\n")
                sys.stderr.flush()
        sys.exit(code)


@contextlib.contextmanager
def _ends() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise Failure("interrupted", code=INTERRUPTED) from None
    except BrokenPipeError:
        _discard_stdout()
        raise Failure("", code=CLOSED_PIPE) from None


def _usage_sentence(error: Exception) -> str:
    """What is wrong with the command line, in one line, and where its help is."""
    message = " ".join(str(getattr(error, "format_message", lambda: str(error))()).split())
    message = message.replace("Value error, ", "").replace("Input should be", "it should be")
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", PROGRAM)
    return f"{message.rstrip('.')}; see {command} --help"


def _discard_stdout() -> None:
    """Nobody reads it any more; what Python still flushes at exit must not complain."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    name=PROGRAM,
    cls=_Commands,
    help="Readable voice-agent calls: one record per message, the audio as played, honest evidence.",
    epilog="A first call, offline: voicetrace demo --out demo && voicetrace inspect demo",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"{PROGRAM} {__version__}\n")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n")
        raise typer.Exit(USAGE)


demo.register(app)
inspect.register(app)
view.register(app)
bundle.register(app)
validate.register(app)
recover.register(app)
doctor.register(app)
judge.register(app)


def main() -> None:
    """The entry point of the ``voicetrace`` program."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # a terminal without Unicode shows "?", it does not end the command
            reconfigure(errors="replace")
    app(prog_name=PROGRAM)
