# SPDX-License-Identifier: Apache-2.0
"""One fictional call, told twice: by a cascaded agent and by a realtime one.

A patient asks when her appointment is, cuts the answer short, and moves it. Both tellings are lists of
events, as an adapter would emit them. The fold makes the messages of them, and this script the files:

* ``<name>.jsonl``  the journal, as a live call leaves it
* ``<name>.json``   the trace, OTLP in JSON: the call span, turns, LLM steps, tools, message records
* ``<name>.flac``   the recording; each message is a tone of its own pitch, so that a clip is recognisable

``python examples/calls/build.py [DIRECTORY]`` writes them; the same bytes every time, but for the FLAC
files, whose bytes are the encoder's. Those are left alone while their samples are right.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile as sf  # type: ignore[import-untyped,unused-ignore]
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

from voicetrace import events as ev
from voicetrace import semconv
from voicetrace.call import CallRecorder, fold
from voicetrace.journal import MARK, VERSION
from voicetrace.messages import Channel, Role, TextSource, TimingSource
from voicetrace.otel.attributes import call_attributes, step_attributes
from voicetrace.otel.encode import call_attributes as with_messages
from voicetrace.otel.encode import encode_entry
from voicetrace.otel.otlp_json import write_trace
from voicetrace.otel.records import record_attributes

Item = dict[str, Any]  # an item of the agent's chat context

HERE = Path(__file__).parent
RATE_HZ = 8000
LENGTH_MS = 14_000
PITCHES_HZ = (200, 250, 400, 500, 800, 1000)  # all divide the rate: a period is a whole number of samples

ASKED = "I have an appointment with Doctor Adler. When is it again?"
ANSWER = (
    "Your appointment with Doctor Adler is on Tuesday the ninth at ten in the morning. "
    "Please bring your insurance card and arrive ten minutes early."
)
HEARD = "Your appointment with Doctor Adler is on Tuesday the ninth at ten"
MOVE = "Can we make it Wednesday instead?"
MOVED = "Done. You are booked for Wednesday the tenth at ten."


@dataclass(frozen=True)
class Other:
    """A span that is no message's and no LLM step's: a turn, or a tool that ran."""

    name: str
    span_id: str
    parent_id: str
    start_ms: int
    end_ms: int
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Telling:
    """One telling of the call: what happened, and what else its trace holds."""

    name: str
    events: tuple[ev.Event, ...]
    others: tuple[Other, ...]
    inputs: dict[str, list[Item]] = field(default_factory=dict)  # span id -> logged chat context


def _opening(name: str, trace_id: str, span_id: str, origin_unix_ms: int) -> list[ev.Event]:
    return [
        ev.CallStarted(
            at_ms=0,
            call_id=f"example-{name}",
            origin_unix_ms=origin_unix_ms,
            framework="livekit",
            framework_version="1.8.9",
            agent_name="front-desk",
            conversation_id=f"conversation-{name}",
        ),
        ev.CallSpanBound(
            at_ms=0,
            trace_id=trace_id,
            span_id=span_id,
            name=semconv.LK_SPAN_SESSION,
            start_unix_ms=origin_unix_ms,
        ),
        ev.RecordingStarted(
            at_ms=10,
            recording_id=f"example-{name}",
            uri=f"{name}.flac",
            format="flac",
            sample_rate_hz=RATE_HZ,
            channels=(Channel.CALLER, Channel.AGENT),
            origin_unix_ms=origin_unix_ms,
        ),
        ev.SegmentStarted(at_ms=10, segment_id="seg_0", start_ms=0),
    ]


def _voice(start_ms: int, end_ms: int) -> list[ev.Event]:
    """Speech as a local VAD tells it: some 80 ms late at its start, 200 ms at its end."""
    vad = TimingSource.LOCAL_VAD
    return [
        ev.UserSpeechStarted(at_ms=start_ms + 80, start_ms=start_ms, source=vad),
        ev.UserSpeechStopped(at_ms=end_ms + 200, end_ms=end_ms, source=vad),
    ]


def _said(at_ms: int, text: str) -> ev.Event:
    return ev.UserTranscript(at_ms=at_ms, text=text, final=True, source=TextSource.STT)


def _turn_over(at_ms: int, token: str) -> list[ev.Event]:
    return [
        ev.EndOfTurnPending(at_ms=at_ms - 300, token=token),
        ev.EndOfTurnDecided(at_ms=at_ms, token=token, outcome="committed"),
    ]


def cascaded() -> Telling:
    """Speech to text, LLM, text to speech. LiveKit keeps one handle over a reply's tool steps."""
    trace_id, call = "c0ffee00c0ffee00c0ffee00c0ffee01", "ca11000000000001"
    turn_1, turn_2 = "7a00000000000001", "7a00000000000002"
    steps = [f"11a000000000000{n}" for n in (1, 2, 3, 4)]
    system: Item = {"id": "lk.agent_task.instructions", "type": "message", "role": "system"}
    u1: Item = {"id": "item_u1", "type": "message", "role": "user", "content": [ASKED]}
    look_up: Item = {"id": "item_t1/fnc_0", "type": "function_call", "name": "find_appointment"}
    looked_up: Item = {
        "id": "item_t1_output",
        "type": "function_call_output",
        "output": "Tuesday the ninth, 10:00",
    }
    a1: Item = {
        "id": "item_a1",
        "type": "message",
        "role": "assistant",
        "content": [HEARD],
        "interrupted": True,
    }
    u2: Item = {"id": "item_u2", "type": "message", "role": "user", "content": [MOVE]}
    move: Item = {"id": "item_t2/fnc_0", "type": "function_call", "name": "reschedule_appointment"}
    moved: Item = {
        "id": "item_t2_output",
        "type": "function_call_output",
        "output": "Wednesday the tenth, 10:00",
    }
    context = [system, u1]
    inputs = {
        steps[0]: context,
        steps[1]: [*context, look_up, looked_up],
        steps[2]: [*context, look_up, looked_up, a1, u2],
        steps[3]: [*context, look_up, looked_up, a1, u2, move, moved],
    }

    def step(at_ms: int, number: int, speech_id: str, parent: str, answers: str) -> list[ev.Event]:
        span_id = steps[number]
        return [
            ev.SpeechCreated(at_ms=at_ms, speech_id=speech_id, origin="reply"),
            ev.LLMStepStarted(
                at_ms=at_ms,
                span_id=span_id,
                trace_id=trace_id,
                name=semconv.LK_SPAN_LLM_NODE,
                context_ids=tuple(item["id"] for item in inputs[span_id]),
                speech_id=speech_id,
                answers=answers,
                parent_span_id=parent,
            ),
        ]

    def generated(at_ms: int, speech_id: str, text: str) -> ev.Event:
        return ev.SpeechText(at_ms=at_ms, speech_id=speech_id, text=text, source=TextSource.TTS_INPUT)

    origin = 1_780_909_200_000
    events: list[ev.Event] = [
        *_opening("cascaded", trace_id, call, origin),
        # the patient pauses in mid-turn: one message with two ranges
        *_voice(300, 1800),
        _said(2050, "I have an appointment with Doctor Adler."),
        *_voice(2300, 3400),
        _said(3650, "When is it again?"),
        *_turn_over(3900, "eou_1"),
        ev.UserMessageAdded(at_ms=3950, item_id="item_u1", text=ASKED, source=TextSource.STT),
        # the first step only calls a tool: its number, 1, is used up and never written
        *step(3960, 0, "speech_r1", turn_1, "item_u1"),
        ev.LLMStepEnded(at_ms=4250, span_id=steps[0]),
        ev.SpeechEnded(at_ms=4450, speech_id="speech_r1"),
        *step(4450, 1, "speech_r1_2", turn_1, "item_u1"),
        generated(4800, "speech_r1_2", ANSWER[:83]),
        ev.PlayoutStarted(at_ms=5000, speech_id="speech_r1_2", start_ms=5000),
        generated(5100, "speech_r1_2", ANSWER[83:]),
        ev.LLMStepEnded(at_ms=5120, span_id=steps[1]),
        # the patient interrupts; the sink stops at 7900 and says so a little later
        ev.UserSpeechStarted(at_ms=7680, start_ms=7600, source=TimingSource.LOCAL_VAD),
        ev.PlayoutRun(at_ms=7910, speech_id="speech_r1_2", start_ms=5000, end_ms=7900),
        ev.PlayoutFinished(
            at_ms=7920,
            speech_id="speech_r1_2",
            interrupted=True,
            position_ms=2900,
            aligned=True,
            heard_text=HEARD,
        ),
        ev.AssistantMessageAdded(
            at_ms=7930, item_id="item_a1", speech_id="speech_r1_2", text=HEARD, cut=True
        ),
        ev.SpeechEnded(at_ms=7940, speech_id="speech_r1_2"),
        ev.UserSpeechStopped(at_ms=8600, end_ms=8400, source=TimingSource.LOCAL_VAD),
        # the turn is decided before its transcript is final
        *_turn_over(8900, "eou_2"),
        _said(8950, MOVE),
        ev.UserMessageAdded(at_ms=8955, item_id="item_u2", text=MOVE, source=TextSource.STT),
        *step(8960, 2, "speech_r2", turn_2, "item_u2"),
        ev.LLMStepEnded(at_ms=9240, span_id=steps[2]),
        ev.SpeechEnded(at_ms=9600, speech_id="speech_r2"),
        *step(9600, 3, "speech_r2_2", turn_2, "item_u2"),
        generated(9950, "speech_r2_2", MOVED),
        ev.LLMStepEnded(at_ms=9980, span_id=steps[3]),
        ev.PlayoutStarted(at_ms=10_100, speech_id="speech_r2_2", start_ms=10_100),
        ev.PlayoutRun(at_ms=13_110, speech_id="speech_r2_2", start_ms=10_100, end_ms=13_100),
        ev.PlayoutFinished(
            at_ms=13_115,
            speech_id="speech_r2_2",
            interrupted=False,
            position_ms=3000,
            aligned=True,
            heard_text=MOVED,
        ),
        ev.AssistantMessageAdded(at_ms=13_120, item_id="item_a2", speech_id="speech_r2_2", text=MOVED),
        ev.SpeechEnded(at_ms=13_130, speech_id="speech_r2_2"),
        ev.CallEnded(at_ms=LENGTH_MS, reason="participant_disconnected"),
    ]
    others = (
        Other("agent_turn", turn_1, call, 3960, 7940, {"lk.generation_id": "speech_r1_2"}),
        _tool("70010000000000c1", turn_1, 4260, 4440, look_up, looked_up),
        Other("agent_turn", turn_2, call, 8960, 13_130, {"lk.generation_id": "speech_r2_2"}),
        _tool("70010000000000c2", turn_2, 9250, 9590, move, moved),
    )
    return Telling("cascaded", tuple(events), others, inputs)


def realtime() -> Telling:
    """A speech-to-speech model with a server VAD that waits for 500 ms of silence.

    The integration knows of the 500 ms and takes them off the receipt of "speech stopped". This provider's
    own turn detection is quicker than its VAD: a response is under way when the stop is announced.
    """
    trace_id, call = "c0ffee00c0ffee00c0ffee00c0ffee02", "ca11000000000002"
    turn_1, turn_2 = "7b00000000000001", "7b00000000000002"
    steps = [f"22b000000000000{n}" for n in (1, 2, 3, 4)]
    silence_ms, receipt = 500, TimingSource.LOCAL_RECEIPT
    contexts: list[tuple[str | None, ...]] = [
        ("item_rt_u1",),
        ("item_rt_u1", "item_rt_t1", "item_rt_t1_output"),
        ("item_rt_u1", "item_rt_t1", "item_rt_t1_output", "item_rt_a1", "item_rt_u2"),
        (
            *("item_rt_u1", "item_rt_t1", "item_rt_t1_output", "item_rt_a1", "item_rt_u2"),
            *("item_rt_t2", "item_rt_t2_output"),
        ),
    ]

    def response(at_ms: int, number: int, speech_id: str, parent: str, *new: str) -> list[ev.Event]:
        """A response is created: it answers the user items that no response had before."""
        return [
            ev.ResponseStarted(at_ms=at_ms, item_ids=new, span_id=steps[number]),
            ev.SpeechCreated(at_ms=at_ms, speech_id=speech_id, origin="realtime"),
            ev.LLMStepStarted(
                at_ms=at_ms,
                span_id=steps[number],
                trace_id=trace_id,
                name=semconv.LK_SPAN_REALTIME,
                context_ids=contexts[number],
                speech_id=speech_id,
                parent_span_id=parent,
            ),
        ]

    def stopped(receipt_ms: int, item_id: str) -> ev.Event:
        return ev.UserSpeechStopped(
            at_ms=receipt_ms, end_ms=receipt_ms - silence_ms, source=receipt, item_id=item_id
        )

    def transcribed(at_ms: int, text: str, item_id: str) -> ev.Event:
        return ev.UserTranscript(
            at_ms=at_ms,
            text=text,
            final=True,
            source=TextSource.REALTIME_INPUT_TRANSCRIPT,
            item_id=item_id,
        )

    def generated(at_ms: int, speech_id: str, text: str) -> ev.Event:
        source = TextSource.REALTIME_OUTPUT_TRANSCRIPT
        return ev.SpeechText(at_ms=at_ms, speech_id=speech_id, text=text, source=source)

    origin = 1_780_909_260_000
    events: list[ev.Event] = [
        *_opening("realtime", trace_id, call, origin),
        ev.UserSpeechStarted(at_ms=300, start_ms=300, source=receipt, item_id="item_rt_u1"),
        *response(3600, 0, "speech_rt1", turn_1, "item_rt_u1"),
        stopped(3900, "item_rt_u1"),
        transcribed(4100, ASKED, "item_rt_u1"),
        ev.LLMStepEnded(at_ms=4150, span_id=steps[0]),
        ev.SpeechEnded(at_ms=4350, speech_id="speech_rt1"),
        *response(4400, 1, "speech_rt1_2", turn_1),
        generated(4900, "speech_rt1_2", ANSWER),
        ev.PlayoutStarted(at_ms=5000, speech_id="speech_rt1_2", start_ms=5000),
        ev.UserSpeechStarted(at_ms=7600, start_ms=7600, source=receipt, item_id="item_rt_u2"),
        ev.PlayoutRun(at_ms=7905, speech_id="speech_rt1_2", start_ms=5000, end_ms=7900),
        ev.PlayoutFinished(
            at_ms=7910,
            speech_id="speech_rt1_2",
            interrupted=True,
            position_ms=2900,
            aligned=True,
            heard_text=HEARD,
        ),
        ev.ProviderTruncated(at_ms=7915, speech_id="speech_rt1_2", audio_end_ms=2900),
        ev.AssistantMessageAdded(
            at_ms=7920, item_id="item_rt_a1", speech_id="speech_rt1_2", text=HEARD, cut=True
        ),
        ev.SpeechEnded(at_ms=7925, speech_id="speech_rt1_2"),
        ev.LLMStepEnded(at_ms=7930, span_id=steps[1]),
        *response(9100, 2, "speech_rt2", turn_2, "item_rt_u2"),
        ev.LLMStepEnded(at_ms=9140, span_id=steps[2]),
        stopped(9500, "item_rt_u2"),
        ev.SpeechEnded(at_ms=9550, speech_id="speech_rt2"),
        transcribed(9580, MOVE, "item_rt_u2"),
        *response(9600, 3, "speech_rt2_2", turn_2),
        generated(9950, "speech_rt2_2", MOVED),
        ev.PlayoutStarted(at_ms=10_100, speech_id="speech_rt2_2", start_ms=10_100),
        ev.PlayoutRun(at_ms=13_110, speech_id="speech_rt2_2", start_ms=10_100, end_ms=13_100),
        ev.PlayoutFinished(
            at_ms=13_115,
            speech_id="speech_rt2_2",
            interrupted=False,
            position_ms=3000,
            aligned=True,
            heard_text=MOVED,
        ),
        ev.AssistantMessageAdded(at_ms=13_120, item_id="item_rt_a2", speech_id="speech_rt2_2", text=MOVED),
        ev.SpeechEnded(at_ms=13_130, speech_id="speech_rt2_2"),
        ev.LLMStepEnded(at_ms=13_140, span_id=steps[3]),
        ev.CallEnded(at_ms=LENGTH_MS, reason="participant_disconnected"),
    ]
    look_up = {"id": "item_rt_t1", "name": "find_appointment"}
    move = {"id": "item_rt_t2", "name": "reschedule_appointment"}
    others = (
        Other("agent_turn", turn_1, call, 3600, 7930, {"lk.generation_id": "speech_rt1_2"}),
        _tool("70010000000000d1", turn_1, 4160, 4340, look_up, {"output": "Tuesday the ninth, 10:00"}),
        Other("agent_turn", turn_2, call, 9100, 13_140, {"lk.generation_id": "speech_rt2_2"}),
        _tool("70010000000000d2", turn_2, 9150, 9540, move, {"output": "Wednesday the tenth, 10:00"}),
    )
    return Telling("realtime", tuple(events), others)


def _tool(span_id: str, parent: str, start_ms: int, end_ms: int, call: Item, output: Item) -> Other:
    return Other(
        "function_tool",
        span_id,
        parent,
        start_ms,
        end_ms,
        {
            semconv.GEN_AI_OPERATION_NAME: "execute_tool",
            "gen_ai.tool.name": call["name"],
            "gen_ai.tool.call.id": call["id"],
            "gen_ai.tool.call.result": output["output"],
        },
    )


# -- the recording -------------------------------------------------------------------------------
def tones(recorder: CallRecorder) -> npt.NDArray[np.int16]:
    """What the recording holds, int16 [samples, 2]: silence, and one triangle tone per message's ranges."""
    samples = np.zeros((LENGTH_MS * RATE_HZ // 1000, 2), np.int16)
    for message, pitch_hz in zip(recorder.ordered(), PITCHES_HZ, strict=False):
        period = RATE_HZ // pitch_hz
        channel = 0 if message.role is Role.USER else 1
        for selection in message.selections:
            first, last = (ms * RATE_HZ // 1000 for ms in (selection.start_ms, selection.end_ms))
            phase = np.arange(last - first) % period
            # whole numbers only: the same samples on every machine
            triangle = np.minimum(phase, period - phase) * (4 * 8000 // period) - 8000
            samples[first:last, channel] = triangle
    return samples


def _recording(telling: Telling, directory: Path) -> Path:
    """The recording's file, made anew only when what it holds is not right."""
    wanted = tones(fold(telling.events, strict=True))
    path = directory / f"{telling.name}.flac"
    if path.exists():
        found, rate = sf.read(path, dtype="int16")
        if rate == RATE_HZ and np.array_equal(found, wanted):
            return path
    sf.write(path, wanted, RATE_HZ, format="FLAC", subtype="PCM_16")
    return path


def with_recording(telling: Telling, recording: Path) -> list[ev.Event]:
    """The events, and at their end the news that the recording is whole."""
    digest = hashlib.sha256(recording.read_bytes()).hexdigest()
    finished = ev.RecordingFinished(
        at_ms=LENGTH_MS, uri=recording.name, format="flac", duration_ms=LENGTH_MS, sha256=digest
    )
    return [*telling.events, finished]


# -- the trace -----------------------------------------------------------------------------------
def spans(telling: Telling, recorder: CallRecorder) -> list[ReadableSpan]:
    """The spans of the telling, the call span first, then in order of their start."""
    start, bound, end = recorder.started, recorder.span, recorder.ended
    assert start is not None
    assert bound is not None
    assert end is not None
    assert recorder.recording is not None
    origin = start.origin_unix_ms
    resource = Resource({semconv.SERVICE_NAME: "front-desk"})
    ours = InstrumentationScope(semconv.INSTRUMENTATION_NAME, schema_url=semconv.SCHEMA_URL)
    livekit = InstrumentationScope("livekit-agents", "1.8.9")

    def span(
        scope: InstrumentationScope,
        name: str,
        span_id: str,
        parent_id: str | None,
        bounds_ms: tuple[int, int],
        attributes: dict[str, Any],
    ) -> ReadableSpan:
        def context(an_id: str) -> SpanContext:
            sampled = TraceFlags(TraceFlags.SAMPLED)
            return SpanContext(int(bound.trace_id, 16), int(an_id, 16), is_remote=False, trace_flags=sampled)

        return ReadableSpan(
            name=name,
            context=context(span_id),
            parent=context(parent_id) if parent_id else None,
            resource=resource,
            attributes=attributes,
            kind=SpanKind.INTERNAL,
            start_time=(origin + bounds_ms[0]) * 1_000_000,
            end_time=(origin + bounds_ms[1]) * 1_000_000,
            instrumentation_scope=scope,
        )

    entries = [(m.id, encode_entry(m)) for m in recorder.ordered()]
    attributes = call_attributes(recorder, final=True) | {semconv.GEN_AI_AGENT_NAME: start.agent_name}
    attributes[semconv.VOICE_RECORDING] = json.dumps(recorder.recording.to_wire(), separators=(",", ":"))
    call = span(
        livekit,
        bound.name,
        bound.span_id,
        None,
        (0, end.at_ms),
        with_messages(entries, attributes=attributes),
    )
    rest = [
        span(livekit, o.name, o.span_id, o.parent_id, (o.start_ms, o.end_ms), o.attributes)
        for o in telling.others
    ]
    for step in recorder.steps:
        assert step.start_ms is not None
        assert step.end_ms is not None
        said = step_attributes(step) | {semconv.VOICE_CONTEXT_MESSAGE_COUNT: len(step.context_ids)}
        if step.span_id in telling.inputs:
            said[semconv.LK_CHAT_CTX] = json.dumps({"items": telling.inputs[step.span_id]})
        bounds = (step.start_ms, step.end_ms)
        rest.append(span(livekit, step.name, step.span_id, step.parent_span_id, bounds, said))
    for message in recorder.ordered():
        assert message.end_ms is not None
        at = (message.end_ms, message.end_ms)
        flat = record_attributes(message, 1, start.call_id, start.conversation_id)
        record_id = f"{message.seq:02d}" + bound.span_id[2:]
        rest.append(span(ours, semconv.MESSAGE_RECORD, record_id, bound.span_id, at, dict(flat)))
    return [call, *sorted(rest, key=lambda s: s.start_time or 0)]


# -- files ---------------------------------------------------------------------------------------
def write_journal(path: Path, events: Sequence[ev.Event]) -> None:
    """The journal's file; its process is long gone."""
    lines = [{MARK: VERSION, "pid": 0}, *map(ev.to_dict, events)]
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), "utf-8")


def build(directory: Path = HERE) -> None:
    """Write the files of both tellings into a directory."""
    for telling in (cascaded(), realtime()):
        events = with_recording(telling, _recording(telling, directory))
        write_journal(directory / f"{telling.name}.jsonl", events)
        write_trace(directory / f"{telling.name}.json", spans(telling, fold(events, strict=True)))


if __name__ == "__main__":
    build(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
