# SPDX-License-Identifier: Apache-2.0
"""``voicetrace demo``: a real call, offline, from the framework's hooks to a checked bundle."""

from __future__ import annotations

import sys
import threading
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from voicetrace.cli.common import (
    PROBLEMS,
    USAGE,
    Failure,
    cell,
    clean,
    console,
    print_json,
    reason,
    say,
    show,
    table,
)

if TYPE_CHECKING:
    from rich.live import Live

    from voicetrace.call import CallRecorder, Change
    from voicetrace.demo.check import Bar
    from voicetrace.demo.run import Demo
    from voicetrace.messages import VoiceMessage

EXAMPLE = "Example: voicetrace demo --out demo --check"


class Framework(StrEnum):
    """The frameworks that have a demo call."""

    LIVEKIT = "livekit"
    PIPECAT = "pipecat"


class Format(StrEnum):
    """The forms of a recording."""

    WAV = "wav"
    FLAC = "flac"
    OPUS = "opus"


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("demo", short_help="Run a whole call, offline, and show its record.", epilog=EXAMPLE)(demo)


def demo(
    out: Annotated[Path, typer.Option("--out", help="The directory for everything: new or empty.")],
    framework: Annotated[
        Framework, typer.Option("--framework", help="Which framework runs the call.")
    ] = Framework.LIVEKIT,
    realtime: Annotated[
        bool, typer.Option("--realtime", help="A model that hears and speaks by itself runs the call.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Compare the record with what truly happened; exit 1 if it differs."),
    ] = False,
    recording_format: Annotated[
        Format, typer.Option("--recording-format", help="The form of the recording.")
    ] = Format.WAV,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier demo in the directory.")] = False,
    json: Annotated[bool, typer.Option("--json", help="What was written, for a machine.")] = False,
) -> None:
    """Run a whole call with voicetrace, offline and in real time (about 50 s), and show its record.

    A real session of the framework with recorded voices: a greeting, a turn with a pause, a tool call, a
    barge-in, a cough, and a false interruption. No network, no keys. With --realtime the same caller talks
    to a model that hears and speaks by itself, behind a scripted provider.
    """
    _prepare(out, force=force)
    result = _run(out, framework, recording_format, realtime=realtime, quiet=json)
    bars = result.check() if check else None
    if json:
        print_json(_document(result, bars, framework))
    else:
        if bars is not None:
            say()
            show_bars(bars)
        _show_written(out, result)
    if bars is not None and not all(bar.ok for bar in bars):
        raise typer.Exit(PROBLEMS)


def _prepare(out: Path, *, force: bool) -> None:
    from voicetrace.demo.run import CALLS_NAME, OUTPUTS, TRACE_NAME, clear_outputs

    if out.exists() and not out.is_dir():
        raise Failure(f"--out {out} is no directory", code=USAGE)
    try:
        names = {path.name for path in out.iterdir()} if out.exists() else set()
        if names & {TRACE_NAME, CALLS_NAME} and names <= set(OUTPUTS):
            if not force:
                raise Failure(
                    f"--out {out} holds an earlier demo; replace it with --force or name another directory",
                    code=USAGE,
                )
            clear_outputs(out)
        elif names:
            raise Failure(f"--out {out} is not empty; name a new or empty directory", code=USAGE)
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(f"--out {out} cannot be written: {reason(error)}") from error


def _run(out: Path, framework: Framework, recording_format: Format, *, realtime: bool, quiet: bool) -> Demo:
    from voicetrace.agentclash import BundleError
    from voicetrace.demo.run import DemoError, run_demo
    from voicetrace.viewer import PageError

    screen = _screen(quiet=quiet)
    try:
        with screen:
            return run_demo(
                out,
                framework=framework.value,
                realtime=realtime,
                recording_format=recording_format.value,
                listener=screen.on_change,
                on_tick=screen.on_tick,
            )
    except ImportError as error:
        raise Failure(reason(error)) from error
    except (DemoError, BundleError, PageError) as error:
        raise Failure(reason(error)) from error
    except OSError as error:
        raise Failure(f"the demo cannot be written to {out}: {reason(error)}") from error
    except KeyboardInterrupt:
        raise Failure(f"interrupted; what was captured until then is in {out}", code=130) from None


# -- while it runs -----------------------------------------------------------------------------------
class _Quiet:
    """Shows nothing; also what the other two have in common."""

    def __enter__(self) -> _Quiet:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def on_change(self, change: Change, recorder: CallRecorder) -> None:
        """The record changed; on any thread."""

    def on_tick(self, seconds: float) -> None:
        """A quarter of a second passed; on the call's loop, so this must not take long."""


class _Table(_Quiet):
    """The messages as a table that moves."""

    def __init__(self) -> None:
        self._console = console()
        self._live: Live | None = None
        self._lock = threading.Lock()
        self._messages: list[VoiceMessage] = []

    def __enter__(self) -> _Table:
        from rich.live import Live

        self._live = Live(
            self._render(0), console=self._console, auto_refresh=False, vertical_overflow="crop"
        )
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def on_change(self, change: Change, recorder: CallRecorder) -> None:
        messages = recorder.ordered()
        with self._lock:
            self._messages = messages

    def on_tick(self, seconds: float) -> None:
        if self._live is not None:
            self._live.update(self._render(seconds), refresh=True)

    def _render(self, seconds: float) -> Any:
        from rich.console import Group

        from voicetrace.cli.messages import messages_table

        with self._lock:
            messages = self._messages
        # a table higher than the window would not move but scroll: the newest rows are what matters
        room = max(3, (self._console.height - 4) // 3)
        return Group(cell(f"the call is going on: {seconds:.0f} s"), messages_table(messages[-room:]))


class _Lines(_Quiet):
    """One line a message, once it is settled: for a file or a pipe."""

    def __init__(self) -> None:
        self._shown: set[int] = set()
        self._last: dict[int, VoiceMessage] = {}

    def __enter__(self) -> _Lines:
        say("the call is going on; about 50 s")
        return self

    def __exit__(self, *_: object) -> None:
        for seq in sorted(self._last.keys() - self._shown):
            self._show(self._last[seq])

    def on_change(self, change: Change, recorder: CallRecorder) -> None:
        for message in change.settled:
            self._last[message.seq] = message
            # a user's message can be whole before its text comes; what stays without is shown at the end
            told = message.text is not None or message.role == "assistant"
            if message.committed and told and message.seq not in self._shown:
                self._show(message)

    def _show(self, message: VoiceMessage) -> None:
        from voicetrace.cli.messages import message_line

        self._shown.add(message.seq)
        say(message_line(message))
        sys.stdout.flush()


def _screen(*, quiet: bool) -> _Quiet:
    if quiet:
        return _Quiet()
    return _Table() if sys.stdout.isatty() else _Lines()


# -- afterwards --------------------------------------------------------------------------------------
def show_bars(bars: list[Bar]) -> None:
    """Print the table of bars, and below it what missed each."""
    out = table("bar", "wanted", "measured", "ok")
    for bar in bars:
        verdict = cell("yes", "green") if bar.ok else cell("NO", "bold red")
        out.add_row(cell(bar.name), cell(bar.wanted), cell(bar.measured), verdict)
    show(out)
    for bar in bars:
        for miss in bar.misses:
            say(clean(f"  {bar.name}: {miss}"))


def _written(result: Demo) -> dict[str, Path]:
    return {
        "trace": result.trace_path,
        "recording": result.recording_path,
        "journal": result.journal_path,
        "bundle": result.bundle_path,
        "page": result.page_path,
    }


def _show_written(out: Path, result: Demo) -> None:
    from voicetrace.cli.messages import messages_table

    if sys.stdout.isatty():
        show(messages_table(result.call.messages))
    say()
    for what, path in _written(result).items():
        say(clean(f"wrote {what:9} {path}"))
    say()
    say("next:")
    say(clean(f"  open {result.page_path} in a browser, to read the call and listen to it"))
    say(clean(f"  voicetrace inspect {out}"))
    say(clean(f"  voicetrace validate {result.bundle_path}"))


def _document(result: Demo, bars: list[Bar] | None, framework: Framework) -> dict[str, Any]:
    document: dict[str, Any] = {
        "framework": framework.value,
        "call_id": result.call.call_id,
        "messages": len(result.call.messages),
        "warnings": list(result.call.warnings),
        "written": {what: str(path) for what, path in _written(result).items()},
    }
    if bars is not None:
        document["passed"] = all(bar.ok for bar in bars)
        document["bars"] = [
            {
                "name": bar.name,
                "wanted": bar.wanted,
                "measured": bar.measured,
                "ok": bar.ok,
                "misses": list(bar.misses),
            }
            for bar in bars
        ]
    return document
