# SPDX-License-Identifier: Apache-2.0
"""`run_script`: a scripted call through the real AgentSession, in virtual time, and what is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import numpy as np
from livekit.agents import Agent, AgentSession, llm, telemetry
from livekit.agents.types import APIConnectOptions
from livekit.agents.voice import TranscriptSynchronizer, io
from livekit.agents.voice.agent_session import SessionConnectOptions
from livekit.agents.voice.events import EventTypes
from lk_doubles import FakeLLM, FakeMic, FakeSTT, FakeTTS, FakeVAD, Reply, Said, Speaker, TextSink
from lk_time import EPOCH, run_virtually
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel

import voicetrace
from voicetrace import settings
from voicetrace.integrations.livekit import LiveKitInstrumentor
from voicetrace.journal import is_journal, journals_in, read_journal_call
from voicetrace.live import LiveCall
from voicetrace.messages import Channel, Role, VoiceMessage, writer_problems
from voicetrace.voice_call import VoiceCall
from voicetrace.writer import Writer

EVENTS = [e for e in get_args(EventTypes) if e != "metrics_collected"]  # deprecated: subscribing warns (T3)
_RANDOM_ID = re.compile(r"\b(?:item|speech|FNC|call|AJ|task|fnc|msg|lk)_[0-9a-f]{12}\b")


class InlineWriter(Writer):
    """Does each job at once, so that a call and its journal are the same every time.

    LiveKit ends some spans on threads of its own: one job at a time, as on the writer's one thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self._one_at_a_time = threading.RLock()

    def submit(self, job: Callable[..., None], *args: Any) -> None:
        try:
            with self._one_at_a_time:
                job(*args)
        except Exception:
            logging.getLogger("voicetrace").exception("voicetrace: a write job failed; other calls go on")

    def submit_audio(self, size: int, job: Callable[..., None], *args: Any) -> bool:
        self.submit(job, *args)
        return True


# -- the script --------------------------------------------------------------------------------------
@dataclass
class Script:
    """What happens in a call, in seconds since it began; the session is started at 0."""

    said: Sequence[Said] = ()
    replies: dict[str, Reply] = field(default_factory=lambda: {"*": Reply("Fine.")})
    agent: Callable[[], Agent] = lambda: Agent(instructions="Be brief.", id="agent")
    at: Sequence[tuple[float, Callable[[Stage], Any]]] = ()
    until: float = 10.0
    speaker: Callable[[], io.AudioOutput | None] = Speaker
    synced: bool = True
    mic: bool = False
    tts: Callable[[], Any] = FakeTTS
    turn: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    start: dict[str, Any] = field(default_factory=dict)
    closes: bool = True


@dataclass
class Stage:
    """The doubles of one running call."""

    script: Script
    session: AgentSession[None]
    began: float
    speaker: Any
    text_sink: TextSink
    llm: FakeLLM
    stt: FakeSTT
    mic: FakeMic | None
    synchronizer: TranscriptSynchronizer | None = None
    handles: list[Any] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)


def build(script: Script, log: FrameworkLog) -> Stage:
    """The real session around the doubles."""
    began = time.time()
    stt, model = FakeSTT(script.said, began), FakeLLM(script.replies)
    turn: dict[str, Any] = {
        "turn_detection": "vad",
        "endpointing": {"min_delay": 0.5, "max_delay": 1.0},
        "interruption": {"mode": "vad", "min_duration": 0.5, "false_interruption_timeout": 1.0},
        "preemptive_generation": {"enabled": False},
    }
    for name, value in script.turn.items():
        turn[name] = {**turn[name], **value} if isinstance(value, dict) and name in turn else value
    session: AgentSession[None] = AgentSession(
        turn_handling=turn,  # type: ignore[arg-type]
        conn_options=SessionConnectOptions(
            llm_conn_options=APIConnectOptions(max_retry=0),
            tts_conn_options=APIConnectOptions(max_retry=0),
        ),
        **{
            "stt": stt,
            "llm": model,
            "tts": script.tts(),
            "vad": FakeVAD(script.said, began),
            "use_tts_aligned_transcript": True,
            "aec_warmup_duration": None,
            "session_close_transcript_timeout": 0.3,
            "user_away_timeout": None,
            **script.options,
        },
    )
    speaker, text_sink = script.speaker(), TextSink()
    stage = Stage(script, session, began, speaker, text_sink, model, stt, FakeMic() if script.mic else None)
    if stage.mic is not None:
        session.input.audio = stage.mic
    if speaker is not None and script.synced:
        sync = TranscriptSynchronizer(next_in_chain_audio=speaker, next_in_chain_text=text_sink)
        stage.synchronizer = sync
        session.output.audio, session.output.transcription = sync.audio_output, sync.text_output
    elif speaker is not None:
        session.output.audio, session.output.transcription = speaker, text_sink
    else:
        session.output.transcription = text_sink
    log.listen(stage)
    return stage


async def play(script: Script, log: FrameworkLog, stage: Stage | None = None) -> Stage:
    """Run one call as scripted. Actions run in tasks of their own, as an application's code would."""
    stage = stage or build(script, log)
    await stage.session.start(script.agent(), **script.start)
    running = []
    for at, action in sorted(script.at, key=lambda pair: pair[0]):
        await asyncio.sleep(stage.began + at - time.time())
        result = action(stage)
        if isinstance(result, Awaitable):
            running.append(asyncio.ensure_future(result))
    await asyncio.sleep(max(0.0, stage.began + script.until - time.time()))
    if script.closes:
        await stage.session.aclose()
    if stage.synchronizer is not None:
        await stage.synchronizer.aclose()
    for task in running:
        await task
    log.settle(stage)
    return stage


# -- what the framework did ----------------------------------------------------------------------------
class FrameworkLog:
    """Everything the framework announced and played, in order, with virtual times; random ids renamed."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[str, str] = {}

    def listen(self, stage: Stage) -> None:
        for name in EVENTS:
            stage.session.on(name, lambda event, name=name: self.add(name, event))
        if stage.speaker is not None:
            for name in ("playback_started", "playback_progressed", "playback_finished"):
                stage.speaker.on(name, lambda event, name=name: self.add(name, vars(event)))

    def settle(self, stage: Stage) -> None:
        self.add("history", stage.session.history)
        self.add("contexts", stage.llm.contexts)
        self.add("heard", [(round(at - EPOCH, 4), s) for at, s in stage.stt.heard])
        self.add("text", stage.text_sink.texts)
        if stage.speaker is not None:
            played = [(s.cut, int(s.played().astype(int).sum())) for s in stage.speaker.segments]
            self.add("played", played)

    def add(self, name: str, what: Any) -> None:
        at = round((time.time() - EPOCH) * 1000, 1)
        line = f"{at} {name} {json.dumps(_plain(what), sort_keys=True)}"
        self.lines.append(_RANDOM_ID.sub(self._name, line))

    def _name(self, found: re.Match[str]) -> str:
        return self._names.setdefault(found[0], f"#{len(self._names)}")


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return round(value - EPOCH if value > EPOCH else value, 4)
    if isinstance(value, BaseModel):
        return {n: _plain(v) for n, v in vars(value).items()}  # not by attribute: some are deprecated
    if isinstance(value, llm.ChatContext):
        return _plain(list(value.items))
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(v) for v in value]
    if value is None or isinstance(value, str | int | bool):
        return value
    if hasattr(value, "num_steps"):  # a speech handle
        return [value.id, value.num_steps, value.interrupted, value.done(), value.scheduled]
    return f"{type(value).__name__}: {value}" if isinstance(value, Exception) else type(value).__name__


# -- what is left of it --------------------------------------------------------------------------------
@dataclass
class Outcome:
    """One run: what the framework did, and what voicetrace made of it."""

    stages: list[Stage]
    log: list[str]
    calls: list[VoiceCall]
    spans: list[ReadableSpan]
    live: list[LiveCall]
    warnings: list[str]
    """What voicetrace logged at warning level or above."""
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
        """The LLM steps: what each had in context (messages by name, others by kind), and what it made."""
        call = call or self.call
        names = {m.id: name for name, m in names_of(call)}

        def name(item: str | None) -> str | None:
            if item is None or item in names:
                return names.get(item or "")
            return "instructions" if item.startswith("lk.agent_task") else "other"

        return [
            {
                "context": [name(i) for i in s.context_ids],
                "output": [name(i) for i in s.output_ids],
                "speculative": s.speculative,
            }
            for s in call.llm_steps
        ]

    def span(self, name: str) -> ReadableSpan:
        found = [s for s in self.spans if s.name == name]
        assert len(found) == 1, f"{len(found)} spans named {name}"
        return found[0]

    def spans_named(self, name: str) -> list[ReadableSpan]:
        return sorted((s for s in self.spans if s.name == name), key=lambda s: s.start_time or 0)

    def journal_bytes(self) -> bytes:
        return b"".join(p.read_bytes() for p in journals_in(self.directory))

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
    """A user message as logged: spoken, understood and committed unless `changes` say otherwise."""
    spoken: dict[str, Any] = {}
    if ranges:
        start, end = ranges[0][0], ranges[-1][1]
        spoken = {
            "start_ms": start,
            "end_ms": end,
            "timing_source": "local_vad",
            "end_of_turn_ms": end + 500,
            "transcript_final_ms": end + 200,
        }
    return _record(name, "user", seq, text, "stt", spoken, changes)


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


def check(outcome: Outcome, *, warnings: Sequence[str] = (), linked: bool = True) -> Outcome:
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
    if any(c.recording and Channel.AGENT in c.recording.channels for c in outcome.calls):
        check_clips(outcome)
    return outcome


def check_spans(call: VoiceCall, spans: dict[str, ReadableSpan], *, linked: bool = True) -> None:
    """The call span carries the journal's messages, and every LLM span what its step says."""
    attributes = dict(spans[call.span_id or ""].attributes or {})
    assert json.loads(attributes["voice.messages"]) == {m.id: m.to_wire() for m in call.messages}
    assert attributes["voice.origin_unix_ms"] == call.origin_unix_ms
    assert attributes["voice.call_id"] == call.call_id
    for step in call.llm_steps if linked else ():
        found = dict(spans[step.span_id].attributes or {})
        ids = found["voice.context_message_ids"]  # as JSON where an older SDK takes no null in a list
        assert list(json.loads(ids) if isinstance(ids, str) else ids) == list(step.context_ids)
        assert found["voice.context_message_count"] == len(step.context_ids)
        assert found.get("voice.output_message_id") == (step.output_ids[0] if step.output_ids else None)
        assert found.get("voice.speculative", False) == step.speculative
    read = {c.call_id: c for c in voicetrace.read_calls(spans.values())}[call.call_id]
    assert [(m.id, m) for m in read.messages] == [(m.id, m) for m in call.messages]


def check_clips(outcome: Outcome) -> None:
    """Each agent message's clip holds the samples that the sink played for it, and nothing else."""
    speakers = [s for stage in outcome.stages for s in (stage.speaker, *stage.notes.get("speakers", ()))]
    segments = sorted(
        (g for s in speakers for g in s.segments if g.position), key=lambda g: g.started_unix or 0
    )
    played = np.concatenate([g.played() for g in segments] or [np.zeros(0, np.int16)])
    at = 0
    for call in outcome.calls:
        for message in call.messages:
            if message.role is Role.ASSISTANT and message.selections:
                clip = call.clip(message).samples
                assert clip.size
                assert np.array_equal(clip, played[at : at + clip.size]), message.text
                at += clip.size
    assert at == played.size


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


def run_scripts(
    main: Callable[[FrameworkLog], Awaitable[list[Stage]]],
    directory: Path,
    *,
    instrument: bool = True,
    configure: dict[str, Any] | None = None,
    provider: Callable[[], TracerProvider] | None = None,
    exporter: Any = None,
    writer: Writer | None = None,
    before: Callable[[LiveKitInstrumentor], Any] | None = None,
    keep: bool = False,
) -> Outcome:
    """Run a coroutine that plays calls, with voicetrace around it or not, and gather what is left.

    ``before`` is called after `instrument`, and may return a context manager to be open while it runs.
    """
    memory = InMemorySpanExporter()
    tracer_provider = provider() if provider else TracerProvider()
    tracer_provider.add_span_processor(
        SimpleSpanProcessor(voicetrace.wrap_exporter(exporter if exporter is not None else memory))
    )
    log, live = FrameworkLog(), []
    made = LiveCall.__init__
    settings.configure(directory=directory, **(configure or {}))
    writer = writer or InlineWriter()
    native = telemetry.tracer._tracer_provider

    def remember(call: LiveCall, **kwargs: Any) -> None:
        live.append(call)
        made(call, **kwargs)

    remember.__kwdefaults__ = made.__kwdefaults__
    with _captured_warnings() as warnings, contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(made.__kwdefaults__, {"writer": writer, "strict": True}))
        stack.enter_context(mock.patch.object(LiveCall, "__init__", remember))
        instrumentor = LiveKitInstrumentor()
        if instrument:
            instrumentor.instrument(tracer_provider)
        else:
            telemetry.set_tracer_provider(tracer_provider)
        try:
            opened = before(instrumentor) if before else None
            with opened if opened is not None else contextlib.nullcontext():
                stages = run_virtually(lambda: main(log))
                assert writer.drain(10)
                assert writer.drain(10)  # the end of a call is queued by the job before it
                if not keep:
                    tracer_provider.shutdown()
        finally:
            if not keep:
                instrumentor.uninstrument()
                telemetry.tracer.set_provider(native)
                settings.reset()
    journals = journals_in(directory) if directory.is_dir() else []
    found = [read_journal_call(p) for p in journals if is_journal(p)]
    return Outcome(
        stages=stages,
        log=log.lines,
        calls=found,
        spans=list(memory.get_finished_spans()),
        live=live,
        warnings=warnings,
        directory=directory,
    )


def run_script(script: Script, directory: Path, **kwargs: Any) -> Outcome:
    """Run one call; see `run_scripts`."""

    async def main(log: FrameworkLog) -> list[Stage]:
        return [await play(script, log)]

    return run_scripts(main, directory, **kwargs)
