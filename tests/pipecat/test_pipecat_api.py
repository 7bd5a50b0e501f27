# SPDX-License-Identifier: Apache-2.0
"""Ways in beside the processor: every worker, setup files, zero code, messages by hand; and versions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, entry_points
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import ProxyTracerProvider
from pc_doubles import Reply, Said
from pc_record import Outcome, check, leftovers, record, record_all, said, spoke
from pc_script import Script, Stage, build
from pipecat.pipeline.worker import PipelineWorker

import voicetrace
from voicetrace import settings
from voicetrace.integrations.pipecat import (
    PipecatInstrumentor,
    VoiceTraceProcessor,
    follow,
    follower,
    package,
)

ORIGINAL = vars(PipelineWorker)["run"]


def one(**changes: Any) -> Script:
    return Script(**{"said": [Said(1, 2, "one")], "until": 5, **changes})


ONE = [
    said("u1", 0, "one", [(1000, 2000)]),
    spoke("a1", 1, "Fine.", [(3240, 3480)], produced_by_span_id="llm1", selections=[]),
]


@pytest.fixture
def instrumentor() -> Iterator[PipecatInstrumentor]:
    """One that is out of force afterwards, whatever happens."""
    made = PipecatInstrumentor()
    yield made
    made.uninstrument()
    settings.reset()


def instrumented(instrumentor: PipecatInstrumentor) -> Callable[[TracerProvider], None]:
    """A `voice` for `record` that adds nothing to the pipeline."""

    def voice(provider: TracerProvider) -> None:
        instrumentor.instrument(provider)

    return voice


# -- every worker ----------------------------------------------------------------------------------------
def test_an_instrumented_process_follows_a_pipeline_that_has_no_processor_of_ours(
    tmp_path: Path, instrumentor: PipecatInstrumentor
) -> None:
    seen: list[list[str]] = []
    script = one(at=[(1.5, lambda _: seen.append([c.call_id for c in instrumentor.calls]))])
    call = check(record(lambda: script, tmp_path, voice=instrumented(instrumentor)))
    assert call.named() == ONE
    assert call.call.span_id == f"{call.spans_named('conversation')[0].context.span_id:016x}"
    assert seen == [[call.call.call_id]]
    assert instrumentor.calls == []


def test_a_worker_that_was_made_before_is_followed_too(
    tmp_path: Path, instrumentor: PipecatInstrumentor
) -> None:
    def late(_: Stage) -> None:
        instrumentor.instrument()

    call = check(record(one, tmp_path, voice=lambda _: None, on_stage=late))
    assert call.named() == ONE


def test_a_pipeline_that_is_followed_in_every_way_at_once_is_one_call(
    tmp_path: Path, instrumentor: PipecatInstrumentor
) -> None:
    def everything(provider: TracerProvider) -> VoiceTraceProcessor:
        instrumentor.instrument(provider)
        return VoiceTraceProcessor(tracer_provider=provider)

    def by_hand(stage: Stage) -> None:
        follow(stage.worker)
        follow(stage.worker)

    call = check(record(one, tmp_path, voice=everything, on_stage=by_hand))
    assert call.named() == ONE


def test_uninstrument_puts_back_what_was_there(tmp_path: Path, instrumentor: PipecatInstrumentor) -> None:
    settings.configure(directory=tmp_path)
    assert instrumentor.instrument(TracerProvider()) is instrumentor
    ours = vars(PipelineWorker)["run"]
    assert ours is not ORIGINAL
    assert ours.__wrapped__ is ORIGINAL
    assert instrumentor.instrument() is instrumentor  # twice is once
    assert vars(PipelineWorker)["run"] is ours
    assert instrumentor.is_instrumented
    instrumentor.uninstrument()
    assert vars(PipelineWorker)["run"] is ORIGINAL
    assert not instrumentor.is_instrumented
    instrumentor.uninstrument()  # harmless


def test_a_second_instrumentor_changes_nothing_and_says_so(
    tmp_path: Path, instrumentor: PipecatInstrumentor, caplog: pytest.LogCaptureFixture
) -> None:
    settings.configure(directory=tmp_path)
    instrumentor.instrument(TracerProvider())
    ours = vars(PipelineWorker)["run"]
    with caplog.at_level(logging.WARNING, "voicetrace"):
        second = PipecatInstrumentor().instrument(TracerProvider())
    assert len([r for r in caplog.records if "already instruments pipecat-ai" in r.getMessage()]) == 1
    second.uninstrument()
    assert vars(PipelineWorker)["run"] is ours
    assert second.calls == []


def test_a_name_that_someone_else_replaced_is_left_to_them(
    tmp_path: Path, instrumentor: PipecatInstrumentor, caplog: pytest.LogCaptureFixture
) -> None:
    settings.configure(directory=tmp_path)
    instrumentor.instrument(TracerProvider())
    theirs = mock.Mock()
    with mock.patch.object(PipelineWorker, "run", theirs):
        with caplog.at_level(logging.WARNING, "voicetrace"):
            instrumentor.uninstrument()
        assert vars(PipelineWorker)["run"] is theirs
    assert [r.getMessage() for r in caplog.records] == [
        "PipelineWorker.run was replaced by someone else after voicetrace; it is left as it is"
    ]
    PipelineWorker.run = ORIGINAL  # type: ignore[method-assign]


def test_uninstrument_ends_the_calls_that_go_on_and_leaves_no_handler(
    tmp_path: Path, instrumentor: PipecatInstrumentor
) -> None:
    left: list[Any] = []

    def stop(stage: Stage) -> None:
        instrumentor.uninstrument()
        left.extend(leftovers(Outcome([stage], [], [], [], [], [], [], tmp_path)))

    call = check(
        record(
            lambda: one(said=[Said(1, 2, "one"), Said(5, 6, "two")], at=[(4.5, stop)], until=9),
            tmp_path,
            voice=instrumented(instrumentor),
        )
    )
    assert left == []
    assert call.named() == ONE
    assert call.call.end_reason == "uninstrumented"
    assert call.stage.texts()[-1] == ("assistant", "Fine.")  # the pipeline went on
    assert len(call.stage.texts()) == 5


def test_a_pipeline_that_is_set_up_after_uninstrument_is_not_followed(
    tmp_path: Path, instrumentor: PipecatInstrumentor
) -> None:
    async def main(_: Any) -> list[Stage]:
        stage = build(one())
        instrumentor.instrument()
        setup = stage.worker._setup

        async def late(params: Any) -> None:
            instrumentor.uninstrument()
            await setup(params)

        stage.worker._setup = late  # type: ignore[method-assign]
        await stage.runner.add_workers(stage.worker)
        running = asyncio.create_task(stage.runner.run())
        await stage.line.started.wait()
        await stage.worker.stop_when_done()
        await running
        return [stage]

    call = record_all(main, tmp_path)
    assert (call.calls, call.live, call.warnings) == ([], [], [])
    assert leftovers(call) == []


def test_a_worker_that_cannot_be_followed_runs_as_it_would(
    tmp_path: Path, instrumentor: PipecatInstrumentor
) -> None:
    with mock.patch.object(follower.Follower, "attach", side_effect=TypeError("broken on purpose")):
        call = record(one, tmp_path, voice=instrumented(instrumentor))
    assert call.stage.texts()[-1] == ("assistant", "Fine.")
    assert call.live == []
    (warning,) = call.warnings
    assert "voicetrace's run failed: TypeError: broken on purpose" in warning


# -- zero code -------------------------------------------------------------------------------------------
def test_auto_instrumentation_finds_and_drives_the_instrumentor(tmp_path: Path) -> None:
    """What opentelemetry-instrumentation does with an entry point of its group."""
    (entry,) = entry_points(group="opentelemetry_instrumentor", name="voicetrace-pipecat")
    made = entry.load()()
    assert isinstance(made, PipecatInstrumentor)
    assert any(d.startswith("pipecat-ai") for d in made.instrumentation_dependencies())
    settings.configure(directory=tmp_path, tracer_provider=TracerProvider())
    try:
        made.instrument(skip_dep_check=True, raise_exception_on_conflict=True)
        assert made.is_instrumented_by_opentelemetry
    finally:
        made.uninstrument(skip_dep_check=True)
        settings.reset()
    assert not made.is_instrumented_by_opentelemetry
    assert vars(PipelineWorker)["run"] is ORIGINAL


# -- providers -------------------------------------------------------------------------------------------
def test_where_nobody_set_a_provider_all_pipelines_share_one_of_ours(tmp_path: Path) -> None:
    settings.configure(directory=tmp_path)
    try:
        with mock.patch("opentelemetry.trace.get_tracer_provider", return_value=ProxyTracerProvider()):
            first, second = follower.Follower(None), follower.Follower(None)
        assert isinstance(first._provider, TracerProvider)
        assert first._provider is second._provider
        assert first._spans is second._spans
    finally:
        settings.reset()
        follower._OWN.pop(tmp_path).shutdown()


# -- messages by hand ------------------------------------------------------------------------------------
def test_vt25_keys_that_were_pressed_are_a_message(tmp_path: Path) -> None:
    ids: list[str] = []

    def press(stage: Stage) -> None:
        ids.append(
            voicetrace.note_message(stage.worker, role="user", text="pressed 1", start_ms=4300, end_ms=4400)
        )

    call = check(record(lambda: one(at=[(4.4, press)]), tmp_path))
    noted = call.call.message(ids[0])
    assert (noted.text, noted.seq, noted.start_ms, noted.committed) == ("pressed 1", 2, 4300, True)
    with pytest.raises(LookupError, match="no call of this PipelineWorker is going on"):
        voicetrace.note_message(call.stage.worker, role="user", text="too late")


# -- versions --------------------------------------------------------------------------------------------
@pytest.fixture
def fresh_warning() -> Iterator[None]:
    follower._installed_version.cache_clear()
    yield
    follower._installed_version.cache_clear()


@pytest.mark.parametrize("version", ["0.0.108", "1.12.0", "1.15.0", "2.0.0rc1", "unknown"])
def test_an_untested_version_is_followed_with_one_warning(
    tmp_path: Path, fresh_warning: None, version: str
) -> None:
    with mock.patch.object(package, "installed", return_value=version):
        call = record(lambda: one(replies={"*": Reply("Fine.")}), tmp_path)
        follower.Follower(None)
    (warning,) = call.warnings
    assert warning.startswith(f"pipecat-ai {version} is not among the versions voicetrace was tested with")
    assert call.named() == ONE
    assert call.call.framework_version == version


def test_the_installed_version_is_a_supported_one() -> None:
    assert package.is_supported(package.installed())
    with mock.patch.object(package.metadata, "version", side_effect=PackageNotFoundError):
        assert package.installed() == "unknown"
