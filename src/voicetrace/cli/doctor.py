# SPDX-License-Identifier: Apache-2.0
"""``voicetrace doctor``: what this environment will capture, and what not."""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Annotated, Final

import typer

from voicetrace import __version__, semconv
from voicetrace.cli.common import PROBLEMS, PROGRAM, cell, clean, print_json, say, show, table

EXAMPLE = "Example: voicetrace doctor --json"

_LOW_DISK_BYTES: Final = 500 * 1024 * 1024
_VALUE_LIMITS: Final = ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT")
_COUNT_LIMITS: Final = ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "OTEL_ATTRIBUTE_COUNT_LIMIT")
_FEW_ATTRIBUTES: Final = 64


@dataclass
class Report:
    """What was found: facts by section, what is lost against one's will, and what by choice."""

    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def section(self, name: str) -> dict[str, str]:
        """The facts of a section."""
        return self.facts.setdefault(name, {})


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("doctor", short_help="What will be captured here, and what is lost.", epilog=EXAMPLE)(doctor)


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Everything, for a machine.")] = False,
) -> None:
    """Say what will be captured in this environment, and what is lost.

    It looks at this environment's packages, variables and disk; what your own code passes to configure()
    it cannot see. Exits with 1 when something is lost that nobody chose to lose.
    """
    report = examine()
    if json:
        print_json({"ok": not report.lost, "facts": report.facts, "lost": report.lost, "notes": report.notes})
    else:
        _show(report)
    if report.lost:
        raise typer.Exit(PROBLEMS)


def examine() -> Report:
    """Look at everything; slow where LiveKit has to be imported."""
    report = Report()
    _versions(report)
    _extras(report)
    _livekit(report)
    _spans(report)
    _settings(report)
    return report


def _show(report: Report) -> None:
    for name, facts in report.facts.items():
        say(name)
        out = table("", "")
        out.show_header = False
        for key, value in facts.items():
            out.add_row(cell(f"  {key}"), cell(value))
        show(out)
        say()
    for title, lines in (("lost", report.lost), ("by choice", report.notes)):
        if lines:
            say(f"{title}:")
            for line in lines:
                say(clean(f"  - {line}"))
    if not report.lost:
        say("nothing is lost against your will")


# -- what is installed -------------------------------------------------------------------------------
def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _versions(report: Report) -> None:
    facts = report.section("versions")
    facts["voicetrace"] = __version__
    facts["python"] = platform.python_version()
    for name in ("opentelemetry-sdk", "livekit-agents"):
        facts[name] = _installed(name) or "not installed"


def _extras(report: Report) -> None:
    facts = report.section("extras")
    for extra, names in _extra_packages().items():
        missing = [name for name in names if _installed(name) is None]
        facts[extra] = "installed" if not missing else f"missing {', '.join(missing)}"


def _extra_packages() -> dict[str, list[str]]:
    """The packages of each extra, from our own metadata."""
    try:
        requirements = metadata.requires(PROGRAM) or []
    except metadata.PackageNotFoundError:  # run from a source tree that is not installed
        return {}
    extras: dict[str, list[str]] = {}
    for requirement in requirements:
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", requirement)
        if name is not None and extra is not None and extra.group(1) != "all":
            extras.setdefault(extra.group(1), []).append(name.group())
    return extras


# -- LiveKit -----------------------------------------------------------------------------------------
def _livekit(report: Report) -> None:
    facts = report.section("livekit")
    version = _installed("livekit-agents")
    if version is None:
        facts["agents"] = "not installed"
        report.lost.append(
            "no supported framework is installed here, so no call is captured: "
            "pip install 'voicetrace[livekit]'"
        )
        return
    try:
        from voicetrace.integrations.livekit import package
        from voicetrace.integrations.livekit.instrumentor import content_allowed
    except (ImportError, AttributeError) as error:
        facts["agents"] = f"{version}, cannot be used"
        report.lost.append(f"livekit-agents {version} cannot be instrumented: {error}")
        return
    supported = package.is_supported(version)
    if version in package.TESTED:
        tested = "tested"
    else:
        tested = f"{'supported, not' if supported else 'not supported; only public hooks; not'} tested"
    facts["agents"] = f"{version}, {tested} (tested: {', '.join(package.TESTED)})"
    for hook, active, loss in _livekit_hooks(supported=supported):
        facts[f"hook {hook}"] = "active" if active else "off"
        if not active:
            report.lost.append(f"LiveKit hook {hook} does not fit livekit-agents {version}: {loss}")
    if not content_allowed():
        facts["content"] = "switched off by LiveKit's own settings"
        report.notes.append("texts are not kept, because LiveKit's own switches say so")


def _livekit_hooks(*, supported: bool) -> Iterator[tuple[str, bool, str]]:
    """Each hook: its name, whether it would be active, and what is lost without it."""
    from livekit.agents import AgentSession
    from livekit.agents.voice import agent_activity, io

    from voicetrace.integrations.livekit.instrumentor import LLM_KEYWORDS
    from voicetrace.integrations.livekit.realtime import GENERATION_KEYWORDS
    from voicetrace.integrations.patches import takes_keywords

    yield "AgentSession.start", callable(getattr(AgentSession, "start", None)), "no call is captured"
    yield "AgentSession.say", callable(getattr(AgentSession, "say", None)), "texts of say() are missing"
    yield (
        "AgentSession.generate_reply",
        callable(getattr(AgentSession, "generate_reply", None)),
        "typed input is numbered late",
    )
    inference = getattr(agent_activity, "perform_llm_inference", None)
    fits = supported and takes_keywords(inference, LLM_KEYWORDS)
    yield "perform_llm_inference", fits, "a reply cut before its first sound has no text"
    task = getattr(agent_activity.AgentActivity, "_realtime_generation_task", None)
    fits = supported and takes_keywords(task, GENERATION_KEYWORDS)
    yield "_realtime_generation_task", fits, "messages of one realtime response are not told apart"
    sink = all(callable(getattr(io.AudioOutput, name, None)) for name in ("capture_frame", "flush"))
    yield "AudioOutput.capture_frame", sink, "the agent's audio is not recorded"


# -- where spans go ----------------------------------------------------------------------------------
def _spans(report: Report) -> None:
    from opentelemetry import trace

    from voicetrace import settings
    from voicetrace.otel.setup import SPANS_FILE, otlp_endpoint, otlp_exporter

    facts = report.section("spans")
    current = trace.get_tracer_provider()
    own = not isinstance(current, trace.ProxyTracerProvider | trace.NoOpTracerProvider)
    facts["provider"] = f"{type(current).__name__}, set in this process" if own else "none set: one of ours"
    endpoint, directory = otlp_endpoint(), settings.current().directory
    if endpoint:
        exporter = otlp_exporter()
        facts["exporter"] = f"OTLP to {_without_secret(endpoint)}" if exporter is not None else "missing"
        if exporter is None:
            report.lost.append(
                "an OTLP endpoint is set and its exporter is missing: pip install 'voicetrace[otlp]'"
            )
        else:
            exporter.shutdown()
    else:
        facts["exporter"] = f"file {directory / SPANS_FILE}" if directory is not None else "none"
    report.lost += _span_losses()


def _without_secret(endpoint: str) -> str:
    return re.sub(r"//[^/@]*@", "//...@", endpoint)


def _span_losses() -> Iterator[str]:
    """What the standard variables of OpenTelemetry take away."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        yield "OTEL_SDK_DISABLED=true: no span leaves; only the journal is kept"
    sampler = os.environ.get("OTEL_TRACES_SAMPLER", "").strip().lower()
    if sampler and sampler not in ("always_on", "parentbased_always_on"):
        yield f"OTEL_TRACES_SAMPLER={sampler}: calls that are not sampled have no spans, only a journal"
    for name in _VALUE_LIMITS:
        if os.environ.get(name, "").strip():
            yield f"{name} cuts {semconv.VOICE_MESSAGES} in the middle; only messages.json has it whole"
    for name in _COUNT_LIMITS:
        value = os.environ.get(name, "").strip()
        if value.isdecimal() and int(value) < _FEW_ATTRIBUTES:
            yield f"{name}={value} drops the oldest attributes of a span"


# -- what is kept ------------------------------------------------------------------------------------
def _settings(report: Report) -> None:
    from voicetrace import settings

    chosen = settings.current()
    facts = report.section("kept")
    facts["content"] = chosen.content
    facts["audio"] = chosen.audio
    facts["directory"] = str(chosen.directory.absolute()) if chosen.directory is not None else "none"
    if chosen.content == "none":
        report.notes.append(f"texts are not kept ({semconv.ENV_CAPTURE_CONTENT})")
    if chosen.audio == "off":
        report.notes.append('audio is not recorded unless your code says configure(audio="both")')
    if chosen.directory is None:
        report.notes.append("nothing is written to disk: a crash loses the call")
        return
    problem = _disk_problem(chosen.directory)
    facts["disk"] = problem or f"writable, {_free(chosen.directory) / 2**30:.1f} GiB free"
    if problem:
        report.lost.append(f"journals and recordings: {problem}")
    elif _free(chosen.directory) < _LOW_DISK_BYTES:
        report.lost.append(f"the disk of {chosen.directory} is nearly full: recordings will stop")


def _existing(directory: Path) -> Path:
    """The directory, or the nearest parent that is there."""
    path = directory.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _disk_problem(directory: Path) -> str:
    """Why nothing can be written there; empty when it can be. Leaves nothing behind."""
    path = _existing(directory)
    if not path.is_dir():
        return f"{path} is no directory"
    try:
        with tempfile.TemporaryFile(dir=path):
            return ""
    except OSError as error:
        return f"{path} cannot be written: {error.strerror}"


def _free(directory: Path) -> int:
    return shutil.disk_usage(_existing(directory)).free
