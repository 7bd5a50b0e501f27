# SPDX-License-Identifier: Apache-2.0
"""The life of pipelines, workers and providers: whose call it is, how it ends, what is left behind."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NoOpTracerProvider
from pc_doubles import FakeLLM, Reply, Said
from pc_record import Outcome, check, leftovers, record, record_all, record_many, said, spoke
from pc_script import Parts, Script, Stage, build, plain, play, push, speak
from pipecat.bus import BusBridgeProcessor
from pipecat.frames import frames
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext, LLMSpecificMessage
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.workers.llm import LLMWorker
from pipecat.workers.runner import WorkerRunner

import voicetrace
from virtual_time import EPOCH
from voicetrace.integrations.pipecat import VoiceTraceProcessor, follow

LONG = "One two three four five six seven eight. Nine ten eleven twelve thirteen fourteen."
STORY = {"story": Reply(LONG), "*": Reply("Okay.")}


def one(**changes: Any) -> Script:
    return Script(**{"said": [Said(1, 2, "one")], "until": 5, **changes})


ONE = [
    said("u1", 0, "one", [(1000, 2000)]),
    spoke("a1", 1, "Fine.", [(3240, 3480)], produced_by_span_id="llm1", selections=[]),
]


# -- the ends of a call --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("ends", "reason"),
    [
        ("end", "EndFrame"),
        ("end_worker", "EndFrame"),
        ("stop", "StopFrame"),
        ("cancel", "cancelled"),
        ("cancel_worker", "cancelled"),
        ("cancel_runner", "cancelled"),
        ("cancel_task", "cancelled"),
    ],
)
def test_vt07_every_way_to_end_a_call_while_the_agent_speaks(tmp_path: Path, ends: Any, reason: str) -> None:
    call = check(
        record(
            lambda: Script(said=[Said(1, 2, "story")], replies=STORY, until=4, ends=ends),
            tmp_path,
            configure={"audio": "agent"},
            complaints=["runner-.* dangling tasks detected"] if ends == "stop" else [],
        ),
        clips=reason != "cancelled",
    )
    whole = spoke("a1", 1, LONG, [(3380, 6220)], produced_by_span_id="llm1")
    cut = spoke(
        "a1",
        1,
        "One two three",
        [(3380, 3980)],  # the framework never tells of the chunk of 40 ms that is being written
        state="interrupted",
        interrupted_at_ms=3980,
        generated_text=LONG,
        produced_by_span_id="llm1",
    )
    assert call.named()[1] == (cut if reason == "cancelled" else whole)
    assert call.call.end_reason == reason
    (conversation,) = call.spans_named("conversation")
    assert json.loads((conversation.attributes or {})["voice.messages"])  # it was still recording


def test_an_idle_call_is_ended_by_its_timeout(tmp_path: Path) -> None:
    call = record(
        lambda: Script(greeting="Hi there", until=5, ends="wait", worker={"idle_timeout_secs": 5}),
        tmp_path,
        complaints=["Idle", r"\.\.\.and cancelling the runner"],
    )
    check(call)
    assert call.call.end_reason == "cancelled"
    assert [m["text"] for m in call.named()] == ["Hi there"]


class Crash(FrameProcessor):
    """Raises at the first text of the model."""

    fatal = False

    async def process_frame(self, frame: frames.Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, frames.LLMTextFrame):
            if self.fatal:
                await self.push_error("it broke", fatal=True)
                return
            raise ValueError("it broke")
        await self.push_frame(frame, direction)


@pytest.mark.filterwarnings("ignore:`push_error.fatal=True:DeprecationWarning")
@pytest.mark.parametrize("fatal", [False, True])
def test_a_crash_in_a_processor_ends_the_call_no_worse_than_the_framework_does(
    tmp_path: Path, fatal: bool
) -> None:
    def crashing(parts: Parts) -> list[FrameProcessor]:
        crash = Crash(name="crash")
        crash.fatal = fatal
        return [*plain(parts)[:4], crash, *plain(parts)[4:]]

    call = record(
        lambda: one(shape=crashing, ends="wait" if fatal else "end"),
        tmp_path,
        complaints=["crash", "PipelineWorker", ".*broke"],
    )
    check(call)
    assert [m["text"] for m in call.named()][:1] == ["one"]
    assert call.call.end_reason == ("cancelled" if fatal else "EndFrame")
    assert call.named()[1:] in (
        [],
        [
            spoke(
                "a1",
                1,
                "Fine.",
                [],
                state="unplayed",
                committed=False,
                text_source="tts_input",
                produced_by_span_id="llm1",
            )
        ],
    )


class Stuck(FrameProcessor):
    """Never gets ready."""

    def __init__(self, where: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._where = where

    async def setup(self, setup: Any) -> None:
        await super().setup(setup)
        if self._where == "setup":
            await asyncio.Event().wait()

    async def process_frame(self, frame: frames.Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if self._where == "start":
            await asyncio.Event().wait()
        await self.push_frame(frame, direction)


@pytest.mark.parametrize("where", ["setup", "start"])
def test_a_pipeline_that_never_starts_is_a_call_without_messages(tmp_path: Path, where: str) -> None:
    async def main(_: Any) -> list[Stage]:
        voice = VoiceTraceProcessor(name="voicetrace")
        stage = build(
            Script(
                shape=lambda parts: [*plain(parts)[:-1], voice, Stuck(where, name="stuck"), parts.assistant],
                worker={"setup_timeout_secs": 1.0, "start_timeout_secs": 1.0},
            )
        )
        await stage.runner.add_workers(stage.worker)
        await stage.runner.run()
        return [stage]

    call = record_all(main, tmp_path, complaints=[".*"])
    assert call.warnings == []
    assert call.call.ended
    assert call.call.messages == ()
    assert call.call.end_reason == "the pipeline never started"
    assert leftovers(call) == ["_UntilStarted"]  # only the worker that is gone still knows of it
    assert call.call.span_id in {f"{s.context.span_id:016x}" for s in call.spans}


def test_a_stopped_pipeline_goes_on_in_another_worker_as_another_call(tmp_path: Path) -> None:
    attached: list[list[int]] = []

    def count(stage: Stage) -> None:
        parts = stage.parts
        attached.append(
            [
                len(owner._event_handlers[event].handlers)
                for owner, event in (
                    (parts.llm, "on_before_push_frame"),
                    (parts.speaker, "on_before_push_frame"),
                    (parts.user, "on_before_push_frame"),
                    (parts.tts, "on_tts_request"),
                )
            ]
        )

    async def main(play_one: Callable[[Script], Any]) -> list[Stage]:
        first = build(Script(said=[], until=2, ends="stop"))
        voice = VoiceTraceProcessor(name="voicetrace")
        processors = [*plain(first.parts), voice]
        for text in ("in the first run", "in the second run"):
            worker = PipelineWorker(Pipeline(processors), enable_tracing=True, enable_rtvi=False)
            started = asyncio.Event()
            worker.add_event_handler("on_pipeline_started", lambda *_, started=started: started.set())
            runner = WorkerRunner(handle_sigint=False)
            await runner.add_workers(worker)
            running = asyncio.create_task(runner.run())
            await started.wait()
            count(first)
            await worker.queue_frame(frames.TTSSpeakFrame(text))
            await asyncio.sleep(3)
            await worker.queue_frame(frames.StopFrame())
            await running
        first.worker = worker
        for processor in processors:
            await processor.cleanup()
        return [first]

    call = record_all(main, tmp_path, complaints=["runner-.* dangling tasks detected"])
    assert [[m.text for m in c.messages] for c in call.calls] == [["in the first run"], ["in the second run"]]
    assert [c.end_reason for c in call.calls] == ["StopFrame", "StopFrame"]
    assert attached[0] == attached[1]
    assert leftovers(call) == []


# -- many calls ----------------------------------------------------------------------------------------
def test_vt57_sixty_four_pipelines_at_once_do_not_hear_each_other(tmp_path: Path) -> None:
    def script(number: int) -> Callable[[], Script]:
        start = 1 + number % 7 / 10
        return lambda: Script(
            said=[Said(start, start + 1, f"question {number}")],
            replies={f"question {number}": Reply(f"Answer {number} it is.")},
            until=5,
        )

    call = record_many([script(n) for n in range(64)], tmp_path)
    check(call)
    assert len(call.calls) == 64
    for number, found in enumerate(call.calls):
        start = 1000 + number % 7 * 100
        assert call.named(found) == [
            said("u1", 0, f"question {number}", [(start, start + 1000)]),
            {
                **call.named(found)[1],
                "seq": 1,
                "text": f"Answer {number} it is.",
                "committed": True,
                "state": "complete",
                "produced_by_span_id": "llm1",
            },
        ]
        assert call.steps(found) == [{"context": ["other", "u1"], "output": ["a1"], "speculative": False}]
    assert len({c.trace_id for c in call.calls}) == 64


# -- spans ---------------------------------------------------------------------------------------------
def test_vt55_vt56_vt61_one_trace_whose_call_span_closes_last(tmp_path: Path) -> None:
    call = check(record(one, tmp_path))
    (root,) = call.spans_named("conversation")
    assert root.parent is None
    assert call.call.span_id == f"{root.context.span_id:016x}"
    assert {s.context.trace_id for s in call.spans} == {root.context.trace_id}
    ids = {s.context.span_id for s in call.spans}
    assert all(s.parent is not None and s.parent.span_id in ids for s in call.spans if s is not root)
    assert (root.end_time or 0) >= max(s.end_time or 0 for s in call.spans)
    assert call.spans[-1] is root


def test_vt58_voicetrace_does_not_turn_on_the_tracing_that_is_off(tmp_path: Path) -> None:
    call = check(record(lambda: one(tracing=False), tmp_path))
    assert call.named() == ONE
    assert {s.name for s in call.spans} == {"voicetrace.call", "voicetrace.llm_step", "voice.message"}
    (root,) = call.spans_named("voicetrace.call")
    (step,) = call.spans_named("voicetrace.llm_step")
    assert step.parent is not None
    assert step.parent.span_id == root.context.span_id
    assert (step.start_time, step.end_time) == ((EPOCH + 3) * 10**9, (EPOCH * 10 + 31) * 10**8 + 20 * 10**6)
    silent = record(lambda: one(tracing=False), tmp_path / "without", voice=lambda _: None)
    assert (silent.spans, silent.calls, silent.live) == ([], [], [])


def test_without_turn_tracking_the_call_has_a_span_of_ours_and_the_steps_pipecats(tmp_path: Path) -> None:
    call = check(record(lambda: one(worker={"enable_turn_tracking": False}), tmp_path))
    assert call.named() == ONE
    assert call.spans_named("conversation") == []
    assert [s.name for s in call.spans if s.name in ("voicetrace.call", "llm")] == ["llm", "voicetrace.call"]


class Untraced(FakeLLM):
    """A service without a tracing decorator, as Nova Sonic's or Ultravox's."""

    _process_context = inspect.unwrap(FakeLLM._process_context)  # type: ignore[assignment]


def test_a_service_that_traces_nothing_has_a_step_of_ours_in_pipecats_own_trace(tmp_path: Path) -> None:
    call = check(record(lambda: one(llm=lambda script: Untraced(script.replies, name="llm")), tmp_path))
    assert call.named() == ONE
    assert call.spans_named("llm") == []
    (root,) = call.spans_named("conversation")
    (step,) = call.spans_named("voicetrace.llm_step")
    assert step.parent is not None
    assert step.parent.span_id == root.context.span_id
    assert call.steps() == [{"context": ["other", "u1"], "output": ["a1"], "speculative": False}]


def test_a_sampler_that_drops_every_span_leaves_a_whole_journal(tmp_path: Path) -> None:
    call = record(one, tmp_path, provider=lambda: TracerProvider(sampler=ALWAYS_OFF))
    assert call.spans == []
    assert [m.text for m in call.call.messages] == ["one", "Fine."]
    assert call.call.ended
    assert call.warnings == []
    assert not call.live[0].guard.failures


def test_a_call_goes_on_when_its_provider_is_shut_down_and_its_spans_are_kept(tmp_path: Path) -> None:
    provider = TracerProvider()
    call = record(lambda: one(at=[(0.5, lambda _: provider.shutdown())]), tmp_path, provider=lambda: provider)
    assert [m.text for m in call.call.messages] == ["one", "Fine."]
    assert call.call.warnings == (
        "the tracer provider was shut down before the call ended; its spans are in trace.json",
    )
    assert call.spans_named("conversation") == []
    (read,) = voicetrace.read_calls(Path(call.call.source).with_name("trace.json"))
    assert list(read.messages) == list(call.call.messages)
    assert [s.output_ids for s in read.llm_steps] == [s.output_ids for s in call.call.llm_steps]
    assert (read.trace_id, read.span_id) == (call.call.trace_id, call.call.span_id)
    assert not call.live[0].guard.failures


def test_without_an_sdk_provider_there_is_still_a_journal(tmp_path: Path) -> None:
    class Silent(NoOpTracerProvider):
        def add_span_processor(self, processor: Any) -> None:
            pass

        def shutdown(self) -> None:
            pass

    call = record(one, tmp_path, provider=Silent)  # type: ignore[arg-type]
    assert [m.text for m in call.call.messages] == ["one", "Fine."]
    assert call.call.ended
    assert not call.live[0].guard.failures


def test_spans_that_go_to_another_provider_than_ours(tmp_path: Path) -> None:
    other = TracerProvider()
    call = record(one, tmp_path, voice=lambda _: VoiceTraceProcessor(tracer_provider=other))
    assert [m.text for m in call.call.messages] == ["one", "Fine."]
    assert call.call.ended
    assert not call.live[0].guard.failures
    other.shutdown()


# -- content -------------------------------------------------------------------------------------------
def test_vt74_with_content_off_no_text_is_written_anywhere(tmp_path: Path) -> None:
    call = check(
        record(
            lambda: Script(
                greeting="secret greeting",
                said=[Said(1.5, 2.5, "secret question", interims=((2.0, "secret"),))],
                replies={"*": Reply("secret answer it is.")},
                until=7,
            ),
            tmp_path,
            configure={"content": "none"},
        )
    )
    assert [(m.role.value, m.state.value, m.text_status.value) for m in call.call.messages] == [
        ("assistant", "complete", "not_captured"),
        ("user", "complete", "not_captured"),
        ("assistant", "complete", "not_captured"),
    ]
    assert b"secret" not in call.everything_written()
    assert call.call.messages[1].start_ms == 1500


def test_vt70_texts_are_redacted_before_they_are_kept(tmp_path: Path) -> None:
    call = check(
        record(
            lambda: Script(greeting="Hi Anna", said=[Said(1, 2, "I am Anna")], until=6),
            tmp_path,
            configure={"redact": lambda text: text.replace("Anna", "[name]")},
        )
    )
    assert [m.text for m in call.call.messages] == ["Hi [name]", "I am [name]", "Fine."]
    assert b"Anna" not in call.everything_written()


# -- several workers -----------------------------------------------------------------------------------
async def with_a_helper(attach: Callable[[PipelineWorker], Any]) -> Stage:
    """The voice is one worker, the model another, over a bus inside the process."""
    stage = build(Script(replies={"*": Reply("From afar.")}))
    parts, runner = stage.parts, stage.runner
    bridge = BusBridgeProcessor(bus=runner.bus, worker_name="voice")
    helper = LLMWorker("model", llm=parts.llm, bridged=(), active=True)
    attach(helper)
    shape = [parts.mic, parts.stt, parts.user, bridge, parts.tts, parts.speaker, parts.assistant]
    stage.worker = PipelineWorker(
        Pipeline([*shape, *([] if os.environ.get("PIPECAT_SETUP_FILES") else [VoiceTraceProcessor()])]),
        name="voice",
        enable_tracing=True,
        enable_rtvi=False,
    )
    await runner.add_workers(helper, stage.worker)
    started = asyncio.Event()
    stage.worker.add_event_handler("on_pipeline_started", lambda *_: started.set())
    stage.running = asyncio.create_task(runner.run())
    await started.wait()
    await stage.line.started.wait()
    stage.began = stage.line.started_unix or time.time()
    speak(stage, Said(1, 2, "one"))
    await asyncio.sleep(6)
    await runner.end("over")  # of all workers; the voice's own end would leave the helper waiting
    await asyncio.wait([stage.running], timeout=10)
    assert stage.running.done()
    return stage


@pytest.mark.parametrize("how", ["by hand", "setup file"])
def test_a_model_in_another_worker_answers_for_the_call_that_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "setup file":
        file = tmp_path / "trace_everything.py"
        file.write_text("from voicetrace.integrations.pipecat import setup_pipeline_worker\n")
        monkeypatch.setenv("PIPECAT_SETUP_FILES", str(file))

    async def main(_: Any) -> list[Stage]:
        return [await with_a_helper(follow if how == "by hand" else lambda _: None)]

    call = check(
        record_all(
            main,
            tmp_path / "calls",
            complaints=["runner-.* dangling", "runner-.* has no setup_worker_runner"],
        )
    )
    assert call.named() == [
        said("u1", 0, "one", [(1000, 2000)]),
        {
            **call.named()[1],
            "text": "From afar.",
            "committed": True,
            "state": "complete",
            "produced_by_span_id": "llm1",
        },
    ]
    assert call.steps() == [{"context": ["other", "u1"], "output": ["a1"], "speculative": False}]
    # an LLMWorker traces nothing, so the step is ours, in the call's own trace
    (step,) = call.spans_named("voicetrace.llm_step")
    assert f"{step.context.trace_id:032x}" == call.call.trace_id


# -- contexts ------------------------------------------------------------------------------------------
def change_context(change: Callable[[list[Any]], Any]) -> Callable[[Stage], None]:
    return lambda stage: change(stage.context.messages)


def ids_seen(call: Outcome) -> list[tuple[str | None, ...]]:
    return [s.context_ids for s in call.call.llm_steps]


TWO_TURNS = {"said": [Said(1, 2, "one"), Said(5, 6, "two")], "until": 9}


def test_ids_stay_with_their_messages_when_the_context_is_copied(tmp_path: Path) -> None:
    call = check(
        record(
            lambda: Script(
                **TWO_TURNS,
                at=[
                    (
                        4.5,
                        push(
                            lambda stage: frames.LLMMessagesUpdateFrame(
                                messages=copy.deepcopy(stage.context.messages)
                            )
                        ),
                    )
                ],
            ),
            tmp_path,
        )
    )
    first, second = ids_seen(call)
    assert second[:2] == first
    assert call.steps()[1]["context"] == ["other", "u1", "a1", "u2"]


def test_ids_of_what_is_left_survive_a_trim_and_a_summary(tmp_path: Path) -> None:
    def summarise(messages: list[Any]) -> None:
        messages[:] = [messages[0], {"role": "user", "content": "summary"}, messages[-1]]

    call = check(record(lambda: Script(**TWO_TURNS, at=[(4.5, change_context(summarise))]), tmp_path))
    first, second = ids_seen(call)
    assert second[0] == first[0]
    assert call.steps()[1]["context"] == ["other", "other", "a1", "u2"]
    assert second[1] not in first


def test_equal_messages_keep_ids_of_their_own(tmp_path: Path) -> None:
    call = check(
        record(
            lambda: Script(
                said=[Said(1, 2, "same"), Said(5, 6, "same"), Said(9, 10, "same")],
                at=[(8.5, lambda stage: stage.context.set_messages(copy.deepcopy(stage.context.messages)))],
                until=13,
            ),
            tmp_path,
        )
    )
    assert call.steps()[-1]["context"] == ["other", "u1", "a1", "u2", "a2", "u3"]


def test_messages_that_are_no_dicts_or_hold_images_have_ids_as_any(tmp_path: Path) -> None:
    image = {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
    }

    def odd(messages: list[Any]) -> None:
        messages.append(LLMSpecificMessage(llm="openai", message={"role": "user", "content": "x"}))
        messages.append(image)

    call = check(
        record(
            lambda: Script(
                **TWO_TURNS,
                at=[
                    (4.0, change_context(odd)),
                    (4.5, lambda stage: stage.context.set_messages(copy.deepcopy(stage.context.messages))),
                    (8.5, change_context(lambda messages: messages.pop(3))),  # the log reads dicts only
                ],
            ),
            tmp_path,
        ),
    )
    assert call.steps()[1]["context"] == ["other", "u1", "a1", "other", "other", "u2"]


def test_a_context_that_two_workers_share_has_one_set_of_ids(tmp_path: Path) -> None:
    shared = LLMContext([{"role": "system", "content": "Be brief."}])

    async def main(_: Any) -> list[Stage]:
        stages = []
        with mock.patch("pc_script.LLMContext", return_value=shared):
            for start in (1, 4):
                stage = await play(
                    Script(
                        said=[Said(start, start + 1, f"from {start}")],
                        until=7,
                        extra=[VoiceTraceProcessor()],
                        ends="end",
                    )
                )
                stages.append(stage)
        return stages

    call = record_all(main, tmp_path)
    first, second = call.calls
    assert first.llm_steps[0].context_ids == second.llm_steps[0].context_ids[:2]
    assert second.llm_steps[0].context_ids[1:3] == tuple(m.id for m in first.messages)
