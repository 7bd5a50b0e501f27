# SPDX-License-Identifier: Apache-2.0
"""Real transports on loopback, in real time: a WebSocket with a real client, WebRTC with a real peer.

What is asserted does not depend on how fast the machine is: texts follow from the samples that were played.
"""

from __future__ import annotations

import asyncio
import fractions
import importlib.util
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pc_doubles import LEAD_S, RATE, WORD_SAMPLES, EnergyVAD, FakeLLM, Reply, word_samples
from pc_script import words
from pipecat.frames import frames
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.processors.frame_processor import FrameDirection
from pipecat.transports.base_transport import BaseTransport
from pipecat.turns.user_stop import SpeechTimeoutUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies
from pipecat.workers.runner import WorkerRunner

import voicetrace
from voicetrace import settings
from voicetrace.demo.doubles_pipecat import ScriptedSTT
from voicetrace.integrations.pipecat import VoiceTraceProcessor
from voicetrace.messages import Channel, Role, State, VoiceMessage
from voicetrace.voice_call import VoiceCall
from voicetrace.writer import WRITER

STORY = " ".join("One two three four five six seven eight nine ten." for _ in range(6))  # of 12 s
CHUNK = RATE * 40 // 1000  # what a transport writes at once
AMPLITUDE = 8000


class Ear(ScriptedSTT):
    """Understands the next text each time the VAD has heard the end of a sound."""

    def __init__(self, texts: list[str]) -> None:
        super().__init__(name="stt")
        self._texts = texts

    async def process_frame(self, frame: frames.Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, frames.VADUserStoppedSpeakingFrame) and self._texts:
            self.create_task(self._result(self._texts.pop(0), True), name="result")


class Bot:
    """An agent behind a transport, with voicetrace in its pipeline."""

    def __init__(self, transport: BaseTransport) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(voicetrace.wrap_exporter(self.exporter)))
        self.voice = VoiceTraceProcessor(tracer_provider=self.provider)
        user, assistant = LLMContextAggregatorPair(
            LLMContext([{"role": "system", "content": "Be brief."}]),
            user_params=LLMUserAggregatorParams(
                vad_analyzer=EnergyVAD(),
                user_turn_strategies=UserTurnStrategies(
                    stop=[SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=0.2)]
                ),
            ),
        )
        stages = [
            transport.input(),
            Ear(["story", "stop"]),
            user,
            FakeLLM({"story": Reply(STORY, pace=0), "stop": Reply("Okay.")}),
            words(),
            transport.output(),
            assistant,
        ]
        self.worker = PipelineWorker(
            Pipeline([*stages, self.voice]), enable_rtvi=False, idle_timeout_secs=None
        )
        self.started, self.done = asyncio.Event(), asyncio.Event()
        self.worker.add_event_handler("on_pipeline_started", self._on_started)
        transport.add_event_handler("on_client_disconnected", self._on_gone)

    async def _on_started(self, *_: Any) -> None:
        assert self.voice.call is not None
        self.voice.call.listeners.append(self._on_change)
        self.started.set()

    def _on_change(self, change: Any, _: Any) -> None:
        if any(m.text == "Okay." and m.committed and m.state is State.COMPLETE for m in change.messages):
            self.done.set()

    async def _on_gone(self, *_: Any) -> None:
        await self.worker.cancel(reason="the client left")

    async def run(self) -> None:
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(self.worker)
        await runner.run()


class Caller:
    """The other end: speaks when it is told to, and keeps what it hears."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.heard: list[np.ndarray] = []
        self._news = asyncio.Event()
        self._loud = 0
        self._spoken = 0

    def talk(self, seconds: float) -> None:
        """Make a sound from now on."""
        self._loud = round(seconds * self.rate)

    def speech(self, samples: int) -> np.ndarray:
        """The next samples of the microphone."""
        loud = min(self._loud, samples)
        self._loud -= loud
        self._spoken += samples
        self._news.set()
        square = np.where(np.arange(samples) % (self.rate // 400) < self.rate // 800, AMPLITUDE, -AMPLITUDE)
        return np.where(np.arange(samples) < loud, square, 0).astype(np.int16)

    def hear(self, samples: np.ndarray) -> None:
        """Audio of the agent came."""
        self.heard.append(samples)
        self._news.set()

    async def hears(self, enough: Callable[[np.ndarray], bool]) -> None:
        """Wait for audio."""
        await self._until(lambda: enough(np.concatenate([np.zeros(0, np.int16), *self.heard])))

    async def stays(self, seconds: float) -> None:
        """Go on listening while so much more of the microphone is sent."""
        enough = self._spoken + seconds * self.rate
        await self._until(lambda: self._spoken >= enough)

    async def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            self._news.clear()
            await self._news.wait()


async def converse(caller: Caller, bot: Bot) -> None:
    """Ask for a story, stop it after half a second of it, and hear the answer out."""
    await bot.started.wait()
    caller.talk(0.6)
    await caller.hears(lambda heard: np.count_nonzero(heard) > RATE // 2)
    caller.talk(0.6)
    await bot.done.wait()
    await caller.stays(0.2)  # a transport may be a chunk ahead of what sounds


@asynccontextmanager
async def recording(directory: Path) -> AsyncIterator[None]:
    settings.configure(directory=directory, audio="both")
    try:
        yield
    finally:
        assert await asyncio.to_thread(WRITER.drain, 60)
        assert await asyncio.to_thread(WRITER.drain, 60)
        settings.reset()


def the_call(directory: Path, bot: Bot) -> VoiceCall:
    """The call as it was kept, told the same by the spans."""
    bot.provider.shutdown()
    (call,) = voicetrace.read_calls(directory)
    (told,) = voicetrace.read_calls(bot.exporter.get_finished_spans())
    assert told.messages == call.messages
    assert call.warnings == ()
    assert bot.voice.call is not None
    assert not bot.voice.call.guard.failures
    return call


def check(call: VoiceCall) -> tuple[VoiceMessage, VoiceMessage]:
    """The four messages; returns the agent's."""
    assert [(m.role, m.state, m.committed) for m in call.messages] == [
        (Role.USER, State.COMPLETE, True),
        (Role.ASSISTANT, State.INTERRUPTED, True),
        (Role.USER, State.COMPLETE, True),
        (Role.ASSISTANT, State.COMPLETE, True),
    ]
    u1, a1, u2, a2 = call.messages
    assert (u1.text, u2.text, a2.text) == ("story", "stop", "Okay.")
    assert [m.timing_source for m in call.messages] == [*["local_vad", "local_playout"] * 2]
    assert u1.end_ms <= a1.start_ms < u2.start_ms < a1.end_ms <= u2.end_ms <= a2.start_ms
    steps = call.llm_steps
    assert [m.produced_by_span_id for m in (a1, a2)] == [s.span_id for s in steps]
    assert list(steps[1].context_ids[1:]) == [u1.id, a1.id, u2.id]
    # the caller's clips are the sound that was made, the silence around it aside
    for message in (u1, u2):
        clip = np.abs(call.clip(message).samples.astype(np.int32))
        assert np.mean(clip > AMPLITUDE // 2) > 0.5
    # the agent's are the samples that were synthesised, from the first, and the text is what they say
    expected = np.concatenate([np.zeros(int(LEAD_S * RATE), np.int16), *(word_samples(n) for n in range(60))])
    played = call.clip(a1).samples
    assert np.array_equal(played, expected[: played.size])
    whole = round((played.size - LEAD_S * RATE) / WORD_SAMPLES)
    assert 2 <= whole < 60
    assert a1.text == " ".join(STORY.split()[:whole])
    assert a1.generated_text == STORY
    assert a1.text_source == a2.text_source == "playout_aligned"
    assert a1.interrupted_at_ms == a1.end_ms
    assert call.clip(a2).samples.size == int(LEAD_S * RATE) + WORD_SAMPLES
    assert call.recording is not None
    assert call.recording.channels == [Channel.CALLER, Channel.AGENT]
    return a1, a2


# -- WebSocket -----------------------------------------------------------------------------------------
@asynccontextmanager
async def served(app: Any) -> AsyncIterator[int]:
    """The app behind a real server on this loop; its port."""
    import uvicorn

    class Server(uvicorn.Server):
        def install_signal_handlers(self) -> None:
            pass

    server = Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off"))
    ready = asyncio.Event()
    startup = server.startup

    async def started(*args: Any, **kwargs: Any) -> None:
        await startup(*args, **kwargs)
        ready.set()

    server.startup = started  # type: ignore[method-assign]
    serving = asyncio.create_task(server._serve())
    await ready.wait()
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await serving


async def test_a_call_over_a_websocket(tmp_path: Path) -> None:
    fastapi = pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    from pipecat.serializers.protobuf import ProtobufFrameSerializer
    from pipecat.transports.websocket.fastapi import FastAPIWebsocketParams, FastAPIWebsocketTransport
    from websockets.asyncio.client import connect

    app, bots = fastapi.FastAPI(), asyncio.Queue[Bot]()
    ended = asyncio.Event()

    async def answer(websocket: Any) -> None:
        await websocket.accept()
        params = FastAPIWebsocketParams(
            audio_in_enabled=True,
            audio_in_sample_rate=16_000,
            audio_out_enabled=True,
            audio_out_sample_rate=RATE,
            audio_out_end_silence_secs=0,
            serializer=ProtobufFrameSerializer(),
        )
        bot = Bot(FastAPIWebsocketTransport(websocket=websocket, params=params))
        bots.put_nowait(bot)
        await bot.run()
        ended.set()

    answer.__annotations__["websocket"] = fastapi.WebSocket
    app.websocket("/call")(answer)
    codec = ProtobufFrameSerializer()
    caller = Caller(16_000)

    async def speak(socket: Any) -> None:
        began, step = time.monotonic(), 0.02
        for n in range(10_000):
            pcm = caller.speech(round(step * caller.rate)).tobytes()
            await socket.send(await codec.serialize(frames.OutputAudioRawFrame(pcm, caller.rate, 1)))
            await asyncio.sleep(began + (n + 1) * step - time.monotonic())

    async def listen(socket: Any) -> None:
        async for data in socket:
            frame = await codec.deserialize(data)
            if isinstance(frame, frames.InputAudioRawFrame):
                assert (frame.sample_rate, frame.num_channels) == (RATE, 1)
                caller.hear(np.frombuffer(frame.audio, np.int16))

    async with recording(tmp_path), served(app) as port:
        async with connect(f"ws://127.0.0.1:{port}/call") as socket:
            both = [asyncio.create_task(speak(socket)), asyncio.create_task(listen(socket))]
            bot = await bots.get()
            await converse(caller, bot)
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        await ended.wait()
    call = the_call(tmp_path, bot)
    a1, a2 = check(call)
    assert call.end_reason == "cancelled"
    # what came over the wire is what the record says was played; at most the chunk that was in flight more
    heard = np.concatenate(caller.heard)
    first, second = (call.clip(m).samples for m in (a1, a2))
    assert np.array_equal(heard[: first.size], first)
    assert np.array_equal(heard[-second.size :], second)
    assert 0 <= heard.size - first.size - second.size <= CHUNK


# -- WebRTC --------------------------------------------------------------------------------------------
@pytest.mark.skipif(importlib.util.find_spec("aiortc") is None, reason="needs aiortc")
async def test_a_call_over_webrtc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import aioice.ice
    from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription
    from aiortc.mediastreams import MediaStreamError, MediaStreamTrack
    from av import AudioFrame
    from pipecat.transports.base_transport import TransportParams
    from pipecat.transports.smallwebrtc.connection import SmallWebRTCConnection
    from pipecat.transports.smallwebrtc.transport import SmallWebRTCTransport

    monkeypatch.setattr(aioice.ice, "get_host_addresses", lambda **_: ["127.0.0.1"])
    logging.getLogger("aioice").setLevel(logging.WARNING)
    caller = Caller(48_000)

    class Microphone(MediaStreamTrack):
        kind = "audio"

        def __init__(self) -> None:
            super().__init__()
            self._sent = 0
            self._began = time.monotonic()

        async def recv(self) -> AudioFrame:
            await asyncio.sleep(self._began + self._sent / caller.rate - time.monotonic())
            samples = caller.speech(caller.rate // 50)
            frame = AudioFrame.from_ndarray(samples[None, :], layout="mono")
            frame.sample_rate, frame.pts = caller.rate, self._sent
            frame.time_base = fractions.Fraction(1, caller.rate)
            self._sent += samples.size
            return frame

    peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    peer.addTrack(Microphone())
    listening: list[asyncio.Task[None]] = []

    async def listen(track: Any) -> None:
        with suppress(MediaStreamError):
            while True:
                frame = await track.recv()
                # stereo, of 48 kHz; the silence between words is not quite silent after Opus
                samples = frame.to_ndarray().reshape(-1)[:: 2 * 48_000 // RATE]
                caller.hear(np.where(np.abs(samples) > 20, samples, 0).astype(np.int16))

    @peer.on("track")
    def on_track(track: Any) -> None:
        listening.append(asyncio.create_task(listen(track)))

    connection = SmallWebRTCConnection()
    async with recording(tmp_path):
        await peer.setLocalDescription(await peer.createOffer())
        await connection.initialize(peer.localDescription.sdp, peer.localDescription.type)
        params = TransportParams(
            audio_in_enabled=True,
            audio_in_sample_rate=16_000,
            audio_out_enabled=True,
            audio_out_sample_rate=RATE,
            audio_out_end_silence_secs=0,
        )
        transport = SmallWebRTCTransport(webrtc_connection=connection, params=params)
        bot, connected = Bot(transport), asyncio.Event()

        @transport.event_handler("on_client_connected")
        async def on_client_connected(*_: Any) -> None:
            connected.set()

        running = asyncio.create_task(bot.run())
        answer = connection.get_answer()
        await peer.setRemoteDescription(RTCSessionDescription(sdp=answer["sdp"], type=answer["type"]))
        await connected.wait()
        await converse(caller, bot)
        await peer.close()
        await connection.disconnect()
        await bot.worker.cancel(reason="the peer left")
        await running
        for task in listening:
            task.cancel()
    check(the_call(tmp_path, bot))
