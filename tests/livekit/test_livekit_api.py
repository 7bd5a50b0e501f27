# SPDX-License-Identifier: Apache-2.0
"""Ways in beside `instrument()`: one session, zero code, messages by hand; and LiveKit's own switches."""

from __future__ import annotations

import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from livekit.agents import Agent, AgentSession, telemetry
from livekit.agents.voice import agent_activity, agent_session
from lk_doubles import Reply, Said
from lk_script import FrameworkLog, Script, Stage, build, check, play, run_script, run_scripts, said, spoke
from opentelemetry.sdk.trace import TracerProvider

import voicetrace
from voicetrace import settings
from voicetrace.cli import doctor
from voicetrace.cli.hooks import livekit_hooks
from voicetrace.integrations.livekit import LiveKitInstrumentor, instrumentor, package, trace_session

ONE = Script(
    said=[Said(1, 2, "one"), Said(4, 5, "two")],
    replies={"one": Reply("First answer"), "two": Reply("Second answer")},
    until=8,
)


# -- one session -----------------------------------------------------------------------------------------
def test_one_session_may_be_followed_without_any_global_patch(tmp_path: Path) -> None:
    names = [
        (AgentSession, "start"),
        (AgentSession, "say"),
        (AgentSession, "generate_reply"),
        (agent_activity, "perform_llm_inference"),
        (agent_activity.AgentActivity, "_realtime_generation_task"),
    ]
    before = [vars(owner)[name] for owner, name in names]
    agent = Agent(instructions="Be brief.", id="agent")
    seen: dict[str, Any] = {}

    async def followed_and_not(log: FrameworkLog) -> list[Stage]:
        stage = build(ONE, log)
        seen["traced"] = traced = trace_session(stage.session, tracer_provider=seen["provider"])
        assert traced.call is None
        assert [vars(owner)[name] for owner, name in names] == before
        script = Script(**{**vars(ONE), "agent": lambda: agent})
        script.at = [(0.5, lambda _: seen.update(call=traced.call))]
        stage.script = script
        await play(script, log, stage)
        traced.stop()
        traced.stop()  # harmless
        assert not {"start", "say", "generate_reply"} & set(vars(stage.session))
        assert "llm_node" not in vars(agent)
        other = await play(ONE, FrameworkLog())
        return [stage, other]

    def provider() -> TracerProvider:
        seen["provider"] = TracerProvider()
        return seen["provider"]

    outcome = check(run_scripts(followed_and_not, tmp_path, instrument=False, provider=provider))
    assert seen["call"].closed
    assert outcome.named() == [
        said("u1", 0, "one", [(1000, 2000)]),
        spoke("a1", 1, "First answer", [(2740, 3140)], produced_by_span_id="llm1", selections=[]),
        said("u2", 2, "two", [(4000, 5000)]),
        spoke("a2", 3, "Second answer", [(5740, 6140)], produced_by_span_id="llm2", selections=[]),
    ]
    assert outcome.steps()[1] == {
        "context": ["instructions", "other", "u1", "a1", "u2"],
        "output": ["a2"],
        "speculative": False,
    }


def test_a_followed_session_is_not_followed_twice(tmp_path: Path) -> None:
    async def both(log: FrameworkLog) -> list[Stage]:
        stage = build(ONE, log)
        traced = trace_session(stage.session)
        assert traced.call is None
        await play(ONE, log, stage)
        traced.stop()
        return [stage]

    outcome = check(run_scripts(both, tmp_path))
    assert len(outcome.calls) == 1


def test_only_a_session_can_be_followed() -> None:
    with pytest.raises(TypeError, match="takes an AgentSession, not str"):
        trace_session("session")  # type: ignore[arg-type]


# -- zero code -------------------------------------------------------------------------------------------
def test_auto_instrumentation_finds_and_drives_the_instrumentor(tmp_path: Path) -> None:
    """What opentelemetry-instrumentation does with an entry point of its group."""
    (entry,) = entry_points(group="opentelemetry_instrumentor", name="voicetrace-livekit")
    made = entry.load()()
    assert isinstance(made, LiveKitInstrumentor)
    assert any(d.startswith("livekit-agents") for d in made.instrumentation_dependencies())
    settings.configure(directory=tmp_path, tracer_provider=TracerProvider())
    try:
        made.instrument(skip_dep_check=True, raise_exception_on_conflict=True)
        assert made.is_instrumented_by_opentelemetry
    finally:
        made.uninstrument(skip_dep_check=True)
        settings.reset()
    assert not made.is_instrumented_by_opentelemetry


# -- messages by hand ------------------------------------------------------------------------------------
def test_vt25_keys_that_were_pressed_are_a_message(tmp_path: Path) -> None:
    ids: list[str] = []

    def press(stage: Stage) -> None:
        ids.append(
            voicetrace.note_message(stage.session, role="user", text="pressed 1", start_ms=3300, end_ms=3400)
        )

    outcome = check(run_script(Script(**{**vars(ONE), "at": [(3.4, press)]}), tmp_path))
    noted = outcome.call.message(ids[0])
    assert (noted.text, noted.seq, noted.start_ms, noted.end_ms, noted.committed) == (
        "pressed 1",
        2,
        3300,
        3400,
        True,
    )
    with pytest.raises(LookupError, match="no call of this AgentSession is going on"):
        voicetrace.note_message(outcome.stage.session, role="user", text="too late")
    with pytest.raises(LookupError, match="no call of this list"):
        voicetrace.note_message([], role="user", text="nobody's")
    with pytest.raises(ValueError, match="caller"):
        voicetrace.note_message(outcome.stage.session, role="caller", text="x")  # type: ignore[arg-type]


# -- consent ---------------------------------------------------------------------------------------------
def test_vt73_nothing_said_before_consent_is_kept(tmp_path: Path) -> None:
    script = Script(
        said=[Said(1, 2, "secretquestion"), Said(8, 9, "openquestion")],
        replies={"secretquestion": Reply("secretanswer"), "openquestion": Reply("openanswer")},
        until=13,
        at=[(7, lambda stage: voicetrace.give_consent(stage.session))],
    )
    outcome = run_script(script, tmp_path, configure={"audio": "both", "consent": "awaited"})
    assert [m.text for m in outcome.call.messages] == [None, None, "openquestion", "openanswer"]
    assert [bool(m.selections) for m in outcome.call.messages] == [False, False, True, True]
    kept = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    assert b"openanswer" in kept
    assert b"secret" not in kept


# -- LiveKit's switches ----------------------------------------------------------------------------------
SECRET = Script(said=[Said(1, 2, "secretquestion")], replies={"*": Reply("secretanswer")}, until=5)


def _nothing_secret(outcome: Any) -> None:
    assert [m.text_status.value for m in outcome.call.messages] == ["not_captured", "not_captured"]
    assert b"secret" not in outcome.everything_written()


def test_a_provider_that_may_hold_no_pii_gets_no_text(tmp_path: Path) -> None:
    if not hasattr(telemetry.utils, "allow_pii_from_env"):
        pytest.skip("this release has no such switch")

    def provider() -> TracerProvider:
        made = TracerProvider()
        telemetry.set_tracer_provider(made, allow_pii=False)
        return made

    _nothing_secret(check(run_script(SECRET, tmp_path, provider=provider)))


def test_redaction_that_is_decided_inside_start_keeps_every_text_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = agent_session._resolve_recording_options
    monkeypatch.setattr(
        agent_session, "_resolve_recording_options", lambda record: {**resolve(record), "redaction": True}
    )
    _nothing_secret(check(run_script(SECRET, tmp_path)))


def test_redaction_of_the_whole_project_keeps_every_text_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "redaction_enabled" if hasattr(telemetry.utils, "redaction_enabled") else "_redaction_enabled"
    monkeypatch.setattr(telemetry.utils, name, lambda *_: True)
    _nothing_secret(check(run_script(SECRET, tmp_path)))


def test_the_private_switches_are_looked_up_and_not_relied_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release without them leaves the text to our own switch."""
    monkeypatch.setattr(instrumentor, "telemetry", SimpleNamespace(utils=SimpleNamespace()))
    assert instrumentor.content_allowed()


def test_the_extra_asks_for_the_releases_that_are_supported() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    extra = project["project"]["optional-dependencies"]["livekit"]
    (wanted,) = [r.replace(" ", "") for r in extra if r.startswith("livekit-agents")]
    (supported,) = [r.replace(" ", "") for r in package._instruments]
    assert wanted == supported
    oldest, newest = (".".join(map(str, v)) for v in (package.OLDEST, package.NEWEST))
    assert wanted == f"livekit-agents>={oldest},<{newest.removesuffix('.0')}"
    assert package.is_supported(package.TESTED[0])
    assert package.is_supported(package.TESTED[-1])


# -- doctor ----------------------------------------------------------------------------------------------
def test_doctor_names_every_function_that_is_replaced(tmp_path: Path) -> None:
    settings.configure(directory=tmp_path)
    instrumentor = LiveKitInstrumentor().instrument(TracerProvider())
    try:
        replaced = {name for _, name, _, _ in instrumentor._patches._done}
    finally:
        instrumentor.uninstrument()
        settings.reset()
    named = {hook.rpartition(".")[2] for hook, _, _ in livekit_hooks(supported=True)}
    assert replaced <= named
    assert all(active for _, active, _ in livekit_hooks(supported=True))


@pytest.mark.parametrize("name", ["start", "say", "generate_reply", "clear_user_turn"])
def test_doctor_says_what_is_lost_without_a_hook(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AgentSession, name, None)
    off = {hook: loss for hook, active, loss in livekit_hooks(supported=True) if not active}
    assert list(off) == [f"AgentSession.{name}"]
    assert all(off.values())


@pytest.mark.parametrize("release", ["1.7.0", "1.9.0"])
def test_doctor_says_what_is_lost_in_a_release_that_is_not_supported(
    release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = doctor._installed
    monkeypatch.setattr(doctor, "_installed", lambda n: release if n == "livekit-agents" else installed(n))
    report = doctor.examine()
    assert report.facts["livekit"]["version"].startswith(f"{release}, not supported; only public hooks")
    off = [line for line in report.lost if line.startswith("LiveKit hook ")]
    assert [line.split()[2] for line in off] == ["perform_llm_inference", "_realtime_generation_task"]
