# SPDX-License-Identifier: Apache-2.0
"""``voicetrace doctor``: what this environment will capture, and what not."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Annotated, Final

import typer

from voicetrace import __version__, semconv
from voicetrace.cli.common import PROBLEMS, PROGRAM, cell, clean, print_json, say, show, table
from voicetrace.cli.hooks import Hook, livekit_hooks, pipecat_hooks

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
    """Look at everything; slow where frameworks have to be imported."""
    report = Report()
    _versions(report)
    _extras(report)
    _frameworks(report)
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
    for name in ("opentelemetry-sdk", "livekit-agents", "pipecat-ai"):
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


# -- the frameworks ----------------------------------------------------------------------------------
def _frameworks(report: Report) -> None:
    found = [_livekit(report), _pipecat(report)]
    if not any(found):
        report.lost.append(
            "no supported framework is installed here, so no call is captured: "
            "pip install 'voicetrace[livekit]' or 'voicetrace[pipecat]'"
        )


def _livekit(report: Report) -> bool:
    """Whether LiveKit is installed."""
    facts = report.section("livekit")
    version = _version(facts, "livekit-agents")
    if version is None:
        return False
    try:
        from voicetrace.integrations.livekit import package
        from voicetrace.integrations.livekit.instrumentor import content_allowed

        supported = package.is_supported(version)
        hooks = list(livekit_hooks(supported=supported))
        allowed = content_allowed()
    except (ImportError, AttributeError) as error:
        _unusable(report, facts, "livekit-agents", version, error)
        return True
    unsupported = "not supported; only public hooks"
    facts["version"] = _how_tested(version, package.TESTED, supported=supported, unsupported=unsupported)
    _hooks(report, facts, "LiveKit", f"livekit-agents {version}", hooks)
    if not allowed:
        facts["content"] = "switched off by LiveKit's own settings"
        report.notes.append("texts are not kept, because LiveKit's own switches say so")
    return True


def _pipecat(report: Report) -> bool:
    """Whether Pipecat is installed."""
    facts = report.section("pipecat")
    version = _version(facts, "pipecat-ai")
    if version is None:
        return False
    try:
        with _quietly():
            from voicetrace.integrations.pipecat import package

            hooks = list(pipecat_hooks())
    except (ImportError, AttributeError) as error:
        _unusable(report, facts, "pipecat-ai", version, error)
        return True
    supported = package.is_supported(version)
    facts["version"] = _how_tested(version, package.TESTED, supported=supported, unsupported="not supported")
    _hooks(report, facts, "Pipecat", f"pipecat-ai {version}", hooks)
    facts["spans"] = "Pipecat's own with PipelineWorker(enable_tracing=True), else ours"
    files = os.environ.get("PIPECAT_SETUP_FILES", "").strip()
    facts["setup files"] = files or "none (PIPECAT_SETUP_FILES)"
    return True


def _version(facts: dict[str, str], name: str) -> str | None:
    version = _installed(name)
    facts["version"] = version or "not installed"
    return version


def _how_tested(version: str, tested: tuple[str, ...], *, supported: bool, unsupported: str) -> str:
    if version in tested:
        how = "tested"
    else:
        how = f"{'supported, not' if supported else f'{unsupported}; not'} tested"
    return f"{version}, {how} (tested: {', '.join(tested)})"


def _unusable(report: Report, facts: dict[str, str], name: str, version: str, error: Exception) -> None:
    facts["version"] = f"{version}, cannot be used"
    report.lost.append(f"{name} {version} cannot be instrumented: {error}")


def _hooks(report: Report, facts: dict[str, str], framework: str, what: str, hooks: list[Hook]) -> None:
    for hook, active, loss in hooks:
        facts[f"hook {hook}"] = "active" if active else "off"
        if not active:
            report.lost.append(f"{framework} hook {hook} does not fit {what}: {loss}")


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Pipecat logs a banner, and warns of itself, when it is imported; what is asked for is our report."""
    from loguru import logger

    logger.disable("pipecat")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.enable("pipecat")


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
