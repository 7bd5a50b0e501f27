# SPDX-License-Identifier: Apache-2.0
"""`record`: a scripted call with voicetrace in its pipeline, and what is left; `check` what always holds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from loguru import logger
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pc_script import PushLog, Script, Stage, play
from pc_time import run_virtually

import voicetrace
from voicetrace import settings
from voicetrace.integrations.pipecat import VoiceTraceProcessor
from voicetrace.journal import is_journal, journals_in, read_journal_call
from voicetrace.live import LiveCall
from voicetrace.messages import Channel, Role, VoiceMessage, writer_problems
from voicetrace.voice_call import VoiceCall
from voicetrace.writer import Writer


class InlineWriter(Writer):
    """Does each job at once, so that a call and its journal are the same every time."""

    def __init__(self) -> None:
        super().__init__()
        self._one_at_a_time = threading.RLock()  # exported spans are told on another thread

    def submit(self, job: Callable[..., None], *args: Any) -> None:
        try:
            with self._one_at_a_time:
                job(*args)
        except Exception:
            logging.getLogger("voicetrace").exception("voicetrace: a write job failed; other calls go on")

    def submit_audio(self, size: int, job: Callable[..., None], *args: Any) -> bool:
        self.submit(job, *args)
        return True


@dataclass
class Outcome:
    """One run: what the framework did, and what voicetrace made of it."""

    stages: list[Stage]
    log: list[str]
    calls: list[VoiceCall]
    spans: list[ReadableSpan]
    live: list[LiveCall]
    #: what voicetrace logged at warning level or above
    warnings: list[str]
    #: what Pipecat logged at warning level or above
    complaints: list[str]
    directory: Path

    @property
    def stage(self) -> Stage:
        return self.stages[0]

    @property
    def call(self) -> VoiceCall:
        assert len(self.calls) == 1, f"{len(self.calls)} calls"
        return self.calls[0]

    def named(self, call: VoiceCall | None = None) -> list[dict[str, Any]]:
        """The messages as logged, ids replaced: ``u1``, ``a1`` by order, spans ``llm1``; none left out."""
        call = call or self.call
        steps = {s.span_id: f"llm{n}" for n, s in enumerate(call.llm_steps, 1)}
        out = []
        for name, message in names_of(call):
            wire = {"id": name, **message.to_wire()}
            if "produced_by_span_id" in wire:
                wire["produced_by_span_id"] = steps[wire["produced_by_span_id"]]
            out.append(wire)
        return out

    def steps(self, call: VoiceCall | None = None) -> list[dict[str, Any]]:
        """The LLM steps: what each had in context (messages by name, others ``other``), and what it made."""
        call = call or self.call
        names = {m.id: name for name, m in names_of(call)}
        return [
            {
                "context": [None if i is None else names.get(i, "other") for i in s.context_ids],
                "output": [names.get(i) for i in s.output_ids],
                "speculative": s.speculative,
            }
            for s in call.llm_steps
        ]

    def spans_named(self, name: str) -> list[ReadableSpan]:
        return sorted((s for s in self.spans if s.name == name), key=lambda s: s.start_time or 0)

    def everything_written(self) -> bytes:
        """Every byte on disk and every attribute of ours on a span."""
        files = [p.read_bytes() for p in sorted(self.directory.rglob("*")) if p.is_file()]
        ours = [
            f"{k}={v}" for s in self.spans for k, v in (s.attributes or {}).items() if k.startswith("voice")
        ]
        return b"\n".join([*files, *(o.encode() for o in ours)])


def names_of(call: VoiceCall) -> list[tuple[str, VoiceMessage]]:
    counts = {"user": 0, "assistant": 0}
    out = []
    for message in call.messages:
        counts[message.role.value] += 1
        out.append((f"{message.role.value[0]}{counts[message.role.value]}", message))
    return out


def said(
    name: str, seq: int, text: str | None, ranges: list[tuple[int, int]], **changes: Any
) -> dict[str, Any]:
    """A user message as logged: heard by the VAD, understood and committed unless `changes` say otherwise."""
    spoken: dict[str, Any] = {}
    if ranges:
        start, end = ranges[0][0], ranges[-1][1]
        spoken = {
            "start_ms": start,
            "end_ms": end,
            "timing_source": "local_vad",
            "end_of_turn_ms": end + 1000,
            "transcript_final_ms": end + 200,
        }
    return _record(name, "user", seq, text, "stt", spoken, changes)


def noise(name: str, seq: int, ranges: list[tuple[int, int]], **changes: Any) -> dict[str, Any]:
    """A user record of which nothing was understood."""
    nothing = {"text_source": None, "end_of_turn_ms": None, "transcript_final_ms": None}
    return said(name, seq, None, ranges, **{"committed": False, **nothing, **changes})


def spoke(
    name: str, seq: int, text: str | None, ranges: list[tuple[int, int]], **changes: Any
) -> dict[str, Any]:
    """An agent message as logged: played to its end and committed unless `changes` say otherwise."""
    played = (
        {"start_ms": ranges[0][0], "end_ms": ranges[-1][1], "timing_source": "local_playout"}
        if ranges
        else {}
    )
    selections = [
        {"segment_id": "seg_0", "channel": "agent", "start_ms": start, "end_ms": end} for start, end in ranges
    ]
    return _record(
        name, "assistant", seq, text, "playout_aligned", {**played, "selections": selections}, changes
    )


def _record(
    name: str,
    role: str,
    seq: int,
    text: str | None,
    source: str,
    more: dict[str, Any],
    changes: dict[str, Any],
) -> dict[str, Any]:
    record = {
        "id": name,
        "role": role,
        "seq": seq,
        "committed": True,
        "state": "complete",
        "text_status": "missing" if text is None else "final",
        "text": text,
        "text_source": source,
        "selections": [],
        **more,
        **changes,
    }
    return {k: v for k, v in record.items() if v is not None}


def check(
    outcome: Outcome,
    *,
    warnings: Sequence[str] = (),
    linked: bool = True,
    clean: bool = True,
    clips: bool = True,
) -> Outcome:
    """What holds for every call: nothing of ours failed, spans and journal tell the same, audio is exact."""
    assert outcome.warnings == []
    for live in outcome.live:
        assert not live.guard.failures
    for call in outcome.calls:
        assert call.ended
        assert list(call.warnings) == list(warnings)
        for message in call.messages:
            assert writer_problems(message) == []
    spans = {f"{s.context.span_id:016x}": s for s in outcome.spans}
    for call in outcome.calls:
        assert call.span_id is not None
        check_spans(call, spans, linked=linked)
    check_ids(outcome)
    for stage, call in zip(outcome.stages, outcome.calls, strict=False):
        if clips and call.recording and Channel.AGENT in call.recording.channels:
            check_clips(stage, call)
    if clean:
        assert leftovers(outcome) == []
    return outcome


def check_spans(call: VoiceCall, spans: dict[str, ReadableSpan], *, linked: bool = True) -> None:
    """The call span carries the journal's messages, and every LLM span what its step says."""
    attributes = dict(spans[call.span_id or ""].attributes or {})
    assert json.loads(attributes["voice.messages"]) == {m.id: m.to_wire() for m in call.messages}
    assert attributes["voice.origin_unix_ms"] == call.origin_unix_ms
    assert attributes["voice.call_id"] == call.call_id
    for step in call.llm_steps if linked else ():
        found = dict(spans[step.span_id].attributes or {})
        assert list(found["voice.context_message_ids"]) == list(step.context_ids)
        assert found["voice.context_message_count"] == len(step.context_ids)
        assert found.get("voice.output_message_id") == (step.output_ids[0] if step.output_ids else None)
        assert found.get("voice.speculative", False) == step.speculative
    read = {c.call_id: c for c in voicetrace.read_calls(spans.values())}[call.call_id]
    assert [(m.id, m) for m in read.messages] == [(m.id, m) for m in call.messages]


def check_ids(outcome: Outcome) -> None:
    """Committed user messages are in the context that the model saw, and no id is there twice."""
    for call in outcome.calls:
        for step in call.llm_steps:
            ids = [i for i in step.context_ids if i is not None]
            assert len(set(ids)) == len(ids)
        assert len({m.seq for m in call.messages}) == len(call.messages)


def check_clips(stage: Stage, call: VoiceCall) -> None:
    """Each agent message's clip holds the samples that the speaker played for it, and nothing else."""
    played = np.concatenate([u.played() for u in stage.parts.speaker.utterances] or [np.zeros(0, np.int16)])
    at = 0
    for message in call.messages:
        if message.role is Role.ASSISTANT and message.selections:
            clip = call.clip(message).samples
            assert clip.size
            assert np.array_equal(clip, played[at : at + clip.size]), message.text
            at += clip.size
    assert at == played.size


def leftovers(outcome: Outcome) -> list[str]:
    """Handlers and attributes of ours that are still on the framework's objects."""
    found = []
    for stage in outcome.stages:
        for owner in (stage.worker, *_all_processors(stage.worker.pipeline)):
            if isinstance(owner, VoiceTraceProcessor):
                continue
            for event, handlers in owner._event_handlers.items():
                found += [f"{owner.name} {event}" for h in handlers.handlers if _is_ours(h)]
            found += [f"{owner.name} {name}" for name, value in vars(owner).items() if _is_ours(value)]
        observers = stage.worker._observer._observers
        found += [f"{type(o).__name__}" for o in observers if type(o).__module__.startswith("voicetrace.int")]
    return found


def _is_ours(value: Any) -> bool:
    module = getattr(value, "__module__", None) or ""
    return callable(value) and module.startswith("voicetrace.integrations")


def _all_processors(of: Any) -> list[Any]:
    return [of, *(p for child in of.processors for p in _all_processors(child))]


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextlib.contextmanager
def _captured_warnings() -> Iterator[list[str]]:
    handler = _Warnings()
    log = logging.getLogger("voicetrace")
    log.addHandler(handler)
    try:
        yield handler.messages
    finally:
        log.removeHandler(handler)


def record_all(
    main: Callable[[Callable[[Script], Awaitable[Stage]]], Awaitable[list[Stage]]],
    directory: Path,
    *,
    voice: Callable[[TracerProvider], Any] | None = None,
    configure: dict[str, Any] | None = None,
    provider: Callable[[], TracerProvider] | None = None,
    exporter: Any = None,
    writer: Writer | None = None,
    complaints: Sequence[str] = (),
    on_stage: Callable[[Stage], None] | None = None,
    strict: bool = True,
) -> Outcome:
    """Run a coroutine that plays calls, each with `voice` in its pipeline, and gather what is left.

    `main` is given a function that plays one script. ``voice`` makes the processor; ``None`` for a
    processor of another kind, or nothing at all, as it returns.
    """
    memory = InMemorySpanExporter()
    tracer_provider = provider() if provider else TracerProvider()
    tracer_provider.add_span_processor(
        SimpleSpanProcessor(voicetrace.wrap_exporter(exporter if exporter is not None else memory))
    )
    live: list[LiveCall] = []
    logs: list[str] = []
    made = LiveCall.__init__
    settings.configure(directory=directory, **(configure or {}))
    writer = writer or InlineWriter()
    voice = voice or (lambda p: VoiceTraceProcessor(tracer_provider=p, name="voicetrace"))

    def remember(call: LiveCall, **kwargs: Any) -> None:
        live.append(call)
        made(call, **kwargs)

    async def play_one(script: Script) -> Stage:
        log = PushLog()

        def listen(stage: Stage) -> None:
            log.listen(stage)
            if on_stage is not None:
                on_stage(stage)

        extra = voice(tracer_provider)
        script = replace(script, extra=[*script.extra, *([extra] if extra is not None else [])])
        stage = await play(script, on_stage=listen)
        logs.extend(log.settle(stage))
        return stage

    messages: list[str] = []
    sink = logger.add(lambda m: messages.append(m.record["message"]), level="WARNING")
    remember.__kwdefaults__ = made.__kwdefaults__
    with _captured_warnings() as warnings, contextlib.ExitStack() as stack:
        stack.callback(logger.remove, sink)
        stack.callback(settings.reset)
        ours = {"writer": writer, "strict": strict, "clock": lambda: time.time()}  # virtual by then
        stack.enter_context(mock.patch.dict(made.__kwdefaults__, ours))
        stack.enter_context(mock.patch.object(LiveCall, "__init__", remember))
        stack.enter_context(mock.patch.object(trace, "get_tracer_provider", return_value=tracer_provider))
        stages = run_virtually(lambda: main(play_one))
        assert writer.drain(10)
        assert writer.drain(10)  # the end of a call is queued by the job before it
        tracer_provider.shutdown()
    unexpected = [m for m in messages if not any(re.match(c, m) for c in complaints)]
    assert unexpected == [], unexpected
    journals = journals_in(directory) if directory.is_dir() else []
    order = {call.call_id: n for n, call in enumerate(live)}
    found = [read_journal_call(p) for p in journals if is_journal(p)]
    return Outcome(
        stages=stages,
        log=logs,
        calls=sorted(found, key=lambda c: order[c.call_id]),
        spans=list(memory.get_finished_spans()),
        live=live,
        warnings=warnings,
        complaints=messages,
        directory=directory,
    )


def record(script: Callable[[], Script], directory: Path, **kwargs: Any) -> Outcome:
    """Run one call; see `record_all`. The script is a function, as for `run_script`."""

    async def main(play_one: Callable[[Script], Awaitable[Stage]]) -> list[Stage]:
        return [await play_one(script())]

    return record_all(main, directory, **kwargs)


def record_many(scripts: Sequence[Callable[[], Script]], directory: Path, **kwargs: Any) -> Outcome:
    """Run calls at the same time, in one process."""

    async def main(play_one: Callable[[Script], Awaitable[Stage]]) -> list[Stage]:
        return list(await asyncio.gather(*(play_one(script()) for script in scripts)))

    return record_all(main, directory, **kwargs)
