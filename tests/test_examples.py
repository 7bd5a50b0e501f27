# SPDX-License-Identifier: Apache-2.0
"""The examples run as a user would run them, and the example calls hold what the contract says of them."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import runpy
import subprocess
import sys
import threading
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile as sf

import voicetrace
from voicetrace import settings
from voicetrace.journal import append_events, read_journal
from voicetrace.messages import State, TextSource, TimingSource, writer_problems
from voicetrace.otel.otlp_json import otlp_to_spans

EXAMPLES = Path(__file__).parent.parent / "examples"
CALLS = EXAMPLES / "calls"
TELLINGS = ("cascaded", "realtime")


@pytest.fixture(params=[f"{name}{suffix}" for name in TELLINGS for suffix in (".json", ".jsonl")])
def call(request):
    [found] = voicetrace.read_calls(CALLS / request.param)
    return found


def read(name):
    [found] = voicetrace.read_calls(CALLS / f"{name}.json")
    return found


def spans(name):
    return otlp_to_spans(json.loads((CALLS / f"{name}.json").read_text("utf-8")))


def bounds(message):
    return (message.start_ms, message.end_ms)


# -- both tellings ---------------------------------------------------------------------------------
def test_read_back_without_a_warning(call):
    assert call.warnings == ()
    assert call.ended
    assert call.duration_ms == 14_000
    assert len(call.messages) == 4


def test_valid_to_the_writers_rules(call):
    assert [problem for m in call.messages for problem in writer_problems(m)] == []


def test_the_journal_and_the_trace_tell_the_same_call():
    for name in TELLINGS:
        [live] = voicetrace.read_calls(CALLS / f"{name}.jsonl")
        sent = read(name)
        assert (live.messages, live.llm_steps, live.recording) == (
            sent.messages,
            sent.llm_steps,
            sent.recording,
        )
        assert (live.call_id, live.trace_id, live.span_id) == (sent.call_id, sent.trace_id, sent.span_id)


def test_a_directory_gives_each_call_once():
    assert [c.call_id for c in voicetrace.read_calls(CALLS)] == ["example-cascaded", "example-realtime"]


def test_cross_linked(call):
    steps = {step.span_id: step for step in call.llm_steps}
    made = [m for m in call.messages if m.role == "assistant"]
    assert [(m.id,) for m in made] == [steps[m.produced_by_span_id].output_ids for m in made]
    assert [step.output_ids for step in call.llm_steps] == [(), (made[0].id,), (), (made[1].id,)]
    for message in call.messages[:-1]:
        assert call.read_by(message), message.id
    ids = {m.id for m in call.messages}
    assert ids - {made[1].id} <= set(call.llm_steps[-1].context_ids)


def test_gaps_in_the_order_are_the_tool_only_steps(call):
    assert [m.seq for m in call.messages] == [0, 2, 3, 5]


def test_a_clip_is_that_message_and_nothing_else(call):
    pitches = runpy.run_path(str(CALLS / "build.py"))["PITCHES_HZ"]
    for message, pitch in zip(call.messages, pitches, strict=False):
        clip = call.clip(message)
        assert len(clip.samples) == 8 * sum(s.end_ms - s.start_ms for s in message.selections)
        signs = np.signbit(np.asarray(clip.samples, np.int32).reshape(-1))
        crossings = np.count_nonzero(signs[1:] != signs[:-1])
        assert crossings == pytest.approx(2 * pitch * len(signs) / clip.sample_rate_hz, rel=0.01)


def test_outside_of_the_clips_the_recording_is_silent():
    for name in TELLINGS:
        samples, _ = sf.read(CALLS / f"{name}.flac", dtype="int16")
        assert len(samples) == 14_000 * 8
        for message in read(name).messages:
            for s in message.selections:
                samples[s.start_ms * 8 : s.end_ms * 8, int(s.channel == "agent")] = 0
        assert not samples.any()


def test_the_inputs_that_were_logged_align_with_the_ids():
    steps = [s for s in spans("cascaded") if "voice.context_message_ids" in s.attributes]
    assert len(steps) == 4
    for span in steps:
        items = json.loads(span.attributes["lk.pii.chat_ctx"])["items"]
        assert [item["id"] for item in items] == list(span.attributes["voice.context_message_ids"])


def test_every_message_also_has_its_own_record():
    for name in TELLINGS:
        records = [s.attributes for s in spans(name) if s.name == "voice.message"]
        assert [r["voice.message.id"] for r in records] == [
            m.id for m in sorted(read(name).messages, key=lambda m: m.end_ms)
        ]


def test_they_are_what_the_script_builds(tmp_path):
    for name in TELLINGS:  # the encoder's bytes may differ between versions, the samples may not
        (tmp_path / f"{name}.flac").write_bytes((CALLS / f"{name}.flac").read_bytes())
    runpy.run_path(str(CALLS / "build.py"))["build"](tmp_path)
    for path in CALLS.glob("*.*"):
        if path.suffix != ".py":
            assert (tmp_path / path.name).read_bytes() == path.read_bytes(), (
                f"{path.name}: run `make examples`"
            )


def test_the_script_makes_the_recordings_from_nothing(tmp_path):
    runpy.run_path(str(CALLS / "build.py"))["build"](tmp_path)
    for name in TELLINGS:
        made, rate = sf.read(tmp_path / f"{name}.flac", dtype="int16")
        committed, committed_rate = sf.read(CALLS / f"{name}.flac", dtype="int16")
        assert rate == committed_rate
        assert np.array_equal(made, committed)


# -- the facts of each -----------------------------------------------------------------------------
def test_cascaded():
    call = read("cascaded")
    assert [m.id for m in call.messages] == ["item_u1", "item_a1", "item_u2", "item_a2"]
    u1, a1, u2, a2 = call.messages
    assert [(s.start_ms, s.end_ms) for s in u1.selections] == [(300, 1800), (2300, 3400)]
    assert bounds(u1) == (300, 3400)
    assert a1.seq == 2
    assert (a1.state, a1.interrupted_at_ms, bounds(a1)) == (State.INTERRUPTED, 7900, (5000, 7900))
    assert a1.generated_text.startswith(a1.text)
    assert (u2.end_of_turn_ms, u2.transcript_final_ms) == (8900, 8950)
    assert call.llm_steps[2].start_ms == 8960
    assert u2.id in call.llm_steps[2].context_ids
    assert a2.state is State.COMPLETE
    assert {m.text_source for m in (a1, a2)} == {TextSource.PLAYOUT_ALIGNED}
    assert {m.timing_source for m in (u1, u2)} == {TimingSource.LOCAL_VAD}
    for step in call.llm_steps:  # the real instructions item is listed
        assert step.context_ids[0] == "lk.agent_task.instructions"


def test_realtime():
    call = read("realtime")
    assert [m.id for m in call.messages] == ["item_rt_u1", "item_rt_a1", "item_rt_u2", "item_rt_a2"]
    u1, a1, u2, a2 = call.messages
    assert bounds(u1) == (300, 3400)
    assert u1.end_of_turn_ms == 3600
    assert (a1.state, a1.interrupted_at_ms) == (State.INTERRUPTED, 7900)
    assert a1.end_ms - a1.start_ms == 2900
    assert a1.provider_audio_end_ms == 2900
    assert bounds(u2) == (7600, 9000)
    [move] = [
        s for s in spans("realtime") if s.attributes.get("gen_ai.tool.name") == "reschedule_appointment"
    ]
    assert move.start_unix_ns == (call.origin_unix_ms + 9150) * 1_000_000
    assert {m.text_source for m in (a1, a2)} == {TextSource.PLAYOUT_ALIGNED}
    assert {m.timing_source for m in (u1, u2)} == {TimingSource.LOCAL_RECEIPT}
    assert {m.text_source for m in (u1, u2)} == {TextSource.REALTIME_INPUT_TRANSCRIPT}
    for step in call.llm_steps:  # instructions are not an item there
        assert step.context_ids[0] == "item_rt_u1"


def test_realtime_bounds_are_receipts_less_the_silence():
    events = [e for e in read_journal(CALLS / "realtime.jsonl").events if hasattr(e, "item_id")]
    stops = [e for e in events if type(e).__name__ == "UserSpeechStopped"]
    assert [(e.at_ms, e.at_ms - e.end_ms) for e in stops] == [(3900, 500), (9500, 500)]


def test_a_journal_that_is_cut_off_is_the_call_up_to_there(tmp_path):
    lines = (CALLS / "cascaded.jsonl").read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if b'"PlayoutFinished"' in line)
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(b"".join(lines[:at]) + lines[at][:20])
    [call] = voicetrace.read_calls(torn)
    assert not call.ended
    assert [(m.seq, m.state) for m in call.messages] == [(0, "complete"), (2, "open")]
    append_events(torn, read_journal(CALLS / "cascaded.jsonl").events[at - 1 :])
    [whole] = voicetrace.read_calls(torn)
    assert whole.messages == read("cascaded").messages


# -- the programs ----------------------------------------------------------------------------------
def test_make_bundle(tmp_path):
    run_id, agent_id = "0b5ad1d6-33d6-4a7c-8a4f-5b6d0f6c7a01", "0b5ad1d6-33d6-4a7c-8a4f-5b6d0f6c7a02"
    command = [
        sys.executable,
        EXAMPLES / "make_bundle.py",
        CALLS / "cascaded.json",
        tmp_path / "b",
        run_id,
        agent_id,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.rstrip().endswith("is valid")
    assert voicetrace.agentclash.validate_bundle(tmp_path / "b") == []


def test_make_bundle_says_what_it_needs():
    done = subprocess.run(
        [sys.executable, EXAMPLES / "make_bundle.py"], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 1
    assert "SOURCE DIRECTORY RUN_ID RUN_AGENT_ID" in done.stderr


class Collector(ThreadingHTTPServer):
    """An OTLP/HTTP receiver on the loopback: keeps what it is sent."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Receive)
        self.bodies = []

    def spans(self):
        from google.protobuf.json_format import MessageToDict
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        return [
            s
            for body in self.bodies
            for s in otlp_to_spans(MessageToDict(ExportTraceServiceRequest.FromString(body)))
        ]


class Receive(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append(
            gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
        )
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def collector(monkeypatch):
    for name in [n for n in os.environ if n.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def afterwards():
    yield
    from voicetrace.integrations.livekit import LiveKitInstrumentor

    if LiveKitInstrumentor._active is not None:
        LiveKitInstrumentor._active.uninstrument()
    settings.reset()


def test_export_otlp_sends_a_call_with_its_links(collector, tmp_path, afterwards):
    pytest.importorskip("livekit.agents")
    from livekit.agents import telemetry

    provider = runpy.run_path(str(EXAMPLES / "export_otlp.py"))["set_up"]()
    assert telemetry.tracer._tracer_provider is provider  # LiveKit's own spans go there too
    # what the LiveKit adapter does for one call, by hand
    from voicetrace import events as ev
    from voicetrace.live import LiveCall
    from voicetrace.messages import TextSource
    from voicetrace.writer import Writer

    writer = Writer()
    chosen = settings.override(None, directory=tmp_path)
    assert chosen.tracer_provider is provider
    call = LiveCall(settings=chosen, framework="test", tracer_provider=provider, writer=writer, strict=True)
    tracer = provider.get_tracer("test")
    root = tracer.start_span("agent_session")
    call.bind_span(root)
    step = tracer.start_span("llm_node")
    call.start_step(step, name="llm_node", context_ids=(), speech_id="s", answers=None)
    step.end()  # long before its message is known
    call.emit(ev.SpeechCreated(at_ms=1, speech_id="s", origin="reply"))
    call.emit(ev.SpeechText(at_ms=2, speech_id="s", text="Hello.", source=TextSource.TTS_INPUT))
    provider.force_flush()
    assert "llm_node" not in {s.name for s in collector.spans()}
    call.emit(ev.PlayoutStarted(at_ms=3, speech_id="s", start_ms=3))
    call.emit(ev.PlayoutFinished(at_ms=4, speech_id="s", interrupted=False, position_ms=1))
    call.emit(ev.AssistantMessageAdded(at_ms=5, item_id="item_1", speech_id="s", text="Hello."))
    call.close("done")
    root.end()
    assert writer.drain(30)
    provider.shutdown()
    by_name = {s.name: s for s in collector.spans()}
    assert by_name["llm_node"].attributes["voice.output_message_id"] == "item_1"
    assert by_name["llm_node"].resource["service.name"] == "front-desk"
    [found] = voicetrace.read_calls(collector.spans())
    assert [(m.id, m.text) for m in found.messages] == [("item_1", "Hello.")]
    assert found.warnings == ()


async def test_wrap_livekit(tmp_path, monkeypatch, afterwards):
    """The example's entry point, as it is, around a session that has no room and needs no network."""
    pytest.importorskip("livekit.agents")
    from livekit.agents import AgentSession

    from voicetrace.demo.doubles_livekit import RealtimeSpeaker, RecordedMic, RecordedTTS
    from voicetrace.demo.script import load_clip
    from voicetrace.writer import WRITER

    monkeypatch.chdir(tmp_path)
    for name in [n for n in os.environ if n.startswith(("OTEL_", "VOICETRACE_"))]:
        monkeypatch.delenv(name)
    said = asyncio.get_running_loop().create_future()
    sessions = []

    class SessionWithoutARoom(AgentSession):
        def __init__(self, *, vad, stt, llm, tts):
            assert all((vad, stt, llm, tts))
            super().__init__(
                tts=RecordedTTS([load_clip("agent_greeting")]), turn_handling={"turn_detection": "manual"}
            )
            self.input.audio = RecordedMic(load_clip("room"))
            self.output.audio = RealtimeSpeaker()
            self.on(
                "conversation_item_added", lambda e: e.item.type == "message" and said.set_result(e.item.id)
            )
            sessions.append(self)

        async def start(self, agent, *, room):
            assert room == "the room"
            await super().start(agent)

    entrypoint = runpy.run_path(str(EXAMPLES / "wrap_livekit.py"))["entrypoint"]
    monkeypatch.setitem(entrypoint.__globals__, "AgentSession", SessionWithoutARoom)
    await entrypoint(SimpleNamespace(room="the room"))
    item_id = await asyncio.wait_for(said, 60)
    await sessions[0].aclose()
    assert await asyncio.to_thread(WRITER.drain, 30)

    [call] = voicetrace.read_calls(tmp_path / "voicetrace-calls")
    [message] = call.messages
    assert (message.id, message.text) == (item_id, "Hello, this is Northwind Travel. How can I help?")
    assert (message.state, message.committed) == (State.COMPLETE, True)
    assert call.warnings == ()
    for path in Path(call.source).parent.iterdir():  # what people said is nobody else's
        assert path.stat().st_mode & 0o077 == 0, path
    played = call.clip(message)
    assert played.samples.any()
    assert len(played.samples) / played.sample_rate_hz == pytest.approx(3.4, abs=0.1)


async def test_wrap_pipecat(tmp_path, monkeypatch, afterwards):
    """The example's bot, as it is, behind a transport that has no network, with services that need no key."""
    with warnings.catch_warnings():  # Pipecat's own, of itself
        warnings.simplefilter("ignore", DeprecationWarning)
        pytest.importorskip("pipecat.services.tts_service")
    from pipecat.transports.base_transport import BaseTransport

    from voicetrace.demo.doubles_pipecat import (
        RecordedVoice,
        ScriptedLLM,
        ScriptedSTT,
        SimInput,
        SimOutput,
        WordTTS,
    )
    from voicetrace.demo.line import CallerLine
    from voicetrace.demo.script import load_clip
    from voicetrace.integrations.pipecat import VoiceTraceProcessor
    from voicetrace.writer import WRITER

    monkeypatch.chdir(tmp_path)
    for name in [n for n in os.environ if n.startswith(("OTEL_", "VOICETRACE_"))]:
        monkeypatch.delenv(name)
    line, made, told = CallerLine(load_clip("room"), frame_s=0.02), [], asyncio.Event()

    class Transport(BaseTransport):
        def __init__(self):
            super().__init__()
            self._register_event_handler("on_client_connected")
            self._register_event_handler("on_client_disconnected")

        def input(self):
            return SimInput(line)

        def output(self):
            return SimOutput()

    class Remembered(VoiceTraceProcessor):
        async def setup(self, setup):
            await super().setup(setup)
            self.call.listeners.append(
                lambda change, _: [told.set() for m in change.messages if m.committed and m.state != "open"]
            )
            made.append(self)

    def services():
        voice = RecordedVoice([load_clip("agent_greeting")])
        return ScriptedSTT(), ScriptedLLM(()), WordTTS(voice), None

    run_bot = runpy.run_path(str(EXAMPLES / "wrap_pipecat.py"))["run_bot"]
    monkeypatch.setitem(run_bot.__globals__, "services", services)
    monkeypatch.setitem(run_bot.__globals__, "VoiceTraceProcessor", Remembered)
    transport = Transport()
    running = asyncio.create_task(run_bot(transport))
    await asyncio.wait_for(line.started.wait(), 60)
    await transport._call_event_handler("on_client_connected", transport, None)
    await asyncio.wait_for(told.wait(), 60)
    await transport._call_event_handler("on_client_disconnected", transport, None)
    await running
    assert await asyncio.to_thread(WRITER.drain, 30)

    [call] = voicetrace.read_calls(tmp_path / "voicetrace-calls")
    [message] = call.messages
    assert len(made) == 1
    assert message.text == "Hello, this is Northwind Travel. How can I help?"
    assert (message.state, message.committed, message.text_source) == (
        State.COMPLETE,
        True,
        TextSource.PLAYOUT_ALIGNED,
    )
    assert call.warnings == ()
    played = call.clip(message)
    assert played.samples.any()
    assert len(played.samples) / played.sample_rate_hz == pytest.approx(3.4, abs=0.1)
