# SPDX-License-Identifier: Apache-2.0
"""For your tests: a clock you set, spans in memory, and calls that follow a script.

    from voicetrace.testing import scripted_call

    script = scripted_call(tmp_path)                     # without a directory: no files, no audio
    script.agent("Hello, how can I help?", 200, 1800, say=True)
    script.user("Book the cheapest one.", 2400, 4000)
    script.agent("Done. It is booked for tonight.", 5000, 6000, heard="Done. It is")
    call = script.finish()                               # a VoiceCall
    script.spans()                                       # the same call as spans

A script runs through the same code as a live call (journal, fold, spans, recording), on a fake clock, so
it takes no time and always gives the same messages. Every ``*_ms`` is call-ms, in rising order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import format_span_id

from voicetrace import events as ev
from voicetrace import semconv
from voicetrace.journal import FILE_NAME, read_journal_call
from voicetrace.live import LiveCall
from voicetrace.messages import TextSource, TimingSource
from voicetrace.otel import wrap_exporter
from voicetrace.reader import read_calls
from voicetrace.settings import Settings
from voicetrace.voice_call import VoiceCall
from voicetrace.writer import Writer

Samples = npt.NDArray[np.int16]

__all__ = ["FakeClock", "MemorySpans", "ScriptedCall", "scripted_call"]

RATE_HZ: Final = 24_000
_FRAME_MS: Final = 20
_DISK_DEADLINE_S: Final = 30.0


class FakeClock:
    """A clock that stands still until told: calling it gives Unix seconds, as ``time.time`` does."""

    def __init__(self, start_unix: float = 1_700_000_000.0) -> None:
        self.start_unix = start_unix
        self._ms = 0

    def __call__(self) -> float:
        """The time now, in Unix seconds."""
        return self.start_unix + self._ms / 1000

    def set_ms(self, ms: int) -> None:
        """Let it be ``ms`` after the start; time never goes back."""
        self._ms = max(self._ms, ms)


class MemorySpans:
    """A tracer provider whose spans stay in memory, behind a wrapped exporter as a user's would be."""

    def __init__(self, service_name: str = "voicetrace-testing") -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(resource=Resource({semconv.SERVICE_NAME: service_name}))
        self.provider.add_span_processor(SimpleSpanProcessor(wrap_exporter(self._exporter)))

    def close(self) -> tuple[ReadableSpan, ...]:
        """Shut the provider down, which lets held spans go, and give every span."""
        self.provider.shutdown()
        return self._exporter.get_finished_spans()


class ScriptedCall:
    """A call built line by line; made by `scripted_call`. Not thread-safe.

    The conversation's context grows as it would: an agent line that is not ``say`` is one LLM step that
    read every committed message before it.
    """

    def __init__(self, directory: Path | None, settings: Settings) -> None:
        self.clock = FakeClock()
        self.memory = MemorySpans()
        writer = self._writer = Writer()
        self.live = LiveCall(
            settings=settings,
            framework="scripted",
            framework_version="1",
            tracer_provider=self.memory.provider,
            clock=self.clock,
            writer=writer,
            strict=True,
        )
        self.agent_audio: dict[str, Samples] = {}
        self._tracer = self.memory.provider.get_tracer(semconv.INSTRUMENTATION_NAME)
        self._root = self._tracer.start_span(semconv.SPAN_CALL, start_time=self._now_ns())
        self.live.bind_span(self._root, own=False)
        self._directory = directory
        self._context: list[str] = []
        self._count = 0
        self._spans: tuple[ReadableSpan, ...] = ()
        if directory is not None:
            self.live.files.start_recording(RATE_HZ)
            writer.drain(_DISK_DEADLINE_S)  # the recording exists before anybody speaks, as on a live call

    # -- the script --------------------------------------------------------------------------------
    def user(self, text: str, start_ms: int, end_ms: int, *, item_id: str | None = None) -> str:
        """The user says ``text``; returns the message's id."""
        self._speech(start_ms, end_ms)
        self._emit(ev.UserTranscript, end_ms + 200, text=text, final=True, source=TextSource.STT)
        key = self._next_id(item_id)
        self._emit(ev.EndOfTurnPending, end_ms + 200, token=key)
        self._emit(ev.EndOfTurnDecided, end_ms + 300, token=key, outcome="committed")
        self._emit(ev.UserMessageAdded, end_ms + 300, item_id=key, text=text, source=TextSource.STT)
        self._context.append(key)
        return key

    def noise(self, start_ms: int, end_ms: int) -> None:
        """The caller makes a sound that is no message: it stays uncommitted, without text."""
        self._speech(start_ms, end_ms)
        self._emit(ev.TimePassed, end_ms + self.live.settings.uncommitted_timeout_ms)

    def agent(
        self,
        text: str,
        start_ms: int,
        end_ms: int,
        *,
        heard: str | None = None,
        say: bool = False,
        item_id: str | None = None,
    ) -> str:
        """The agent says ``text``, of which ``heard`` is played before it is cut (default: all of it).

        Returns the message's id. ``say``: without the LLM.
        """
        key = self._next_id(item_id)
        speech = f"speech_{key}"
        asked_ms = max(0, start_ms - 200)
        self._emit(ev.SpeechCreated, asked_ms, speech_id=speech, origin="say" if say else "reply")
        if not say:
            self._step(asked_ms, start_ms, speech)
        self._emit(ev.SpeechText, start_ms, speech_id=speech, text=text, source=TextSource.TTS_INPUT)
        self._emit(ev.PlayoutStarted, start_ms, speech_id=speech, start_ms=start_ms)
        samples = _tone((end_ms - start_ms) * RATE_HZ // 1000, 330)
        self.agent_audio[key] = samples
        self.live.files.agent_audio(start_ms, samples.tobytes(), RATE_HZ, 1)
        self._emit(ev.PlayoutRun, end_ms, speech_id=speech, start_ms=start_ms, end_ms=end_ms)
        self._emit(
            ev.PlayoutFinished,
            end_ms,
            speech_id=speech,
            interrupted=heard is not None,
            position_ms=end_ms - start_ms,
            aligned=True,
            heard_text=text if heard is None else heard,
        )
        self._emit(
            ev.AssistantMessageAdded,
            end_ms,
            item_id=key,
            speech_id=speech,
            text=text if heard is None else heard,
            cut=heard is not None,
        )
        self._emit(ev.SpeechEnded, end_ms, speech_id=speech)
        self._context.append(key)
        return key

    def consent(self, at_ms: int, *, given: bool) -> None:
        """The caller agrees that what is said is kept, or no longer agrees."""
        self.clock.set_ms(at_ms)
        self.live.set_consent(given=given)
        self._writer.drain(_DISK_DEADLINE_S)

    def fault(self, message: str, at_ms: int) -> None:
        """Something was not captured: a warning of the call."""
        self._emit(ev.CaptureFault, at_ms, message=message)

    # -- the end -----------------------------------------------------------------------------------
    def finish(self, end_ms: int | None = None, reason: str = "hung up") -> VoiceCall:
        """End the call and give it as read back: from its journal, or without a directory from its spans.

        Raises:
            TimeoutError: the disk did not take the call's files in time.
        """
        if not self.live.closed:
            if end_ms is not None:
                self.clock.set_ms(end_ms)
            done = threading.Event()
            self.live.on_closed.append(lambda _: done.set())
            self.live.close(reason)
            self._root.end(end_time=self._now_ns())
            if not done.wait(_DISK_DEADLINE_S):
                raise TimeoutError(f"the disk took more than {_DISK_DEADLINE_S:g} s for the call's files")
            self._spans = self.memory.close()
        if self._directory is not None:
            return read_journal_call(self._directory / self.live.call_id / FILE_NAME)
        return read_calls(self._spans)[0]

    def spans(self) -> tuple[ReadableSpan, ...]:
        """Every span of the call, ended: the call's, its LLM steps', and the messages' records."""
        self.finish()
        return self._spans

    # -- parts -------------------------------------------------------------------------------------
    def _emit(self, event: type[ev.Event], at_ms: int, **facts: Any) -> None:
        self.clock.set_ms(at_ms)
        self.live.emit(event(at_ms=self.live.now_ms(), **facts))

    def _speech(self, start_ms: int, end_ms: int) -> None:
        self._emit(ev.UserSpeechStarted, start_ms, start_ms=start_ms, source=TimingSource.LOCAL_VAD)
        samples = _tone((end_ms - start_ms) * RATE_HZ // 1000, 220)
        size = RATE_HZ * _FRAME_MS // 1000
        for at in range(0, samples.size, size):
            frame = samples[at : at + size]
            arrived_ms = start_ms + (at + frame.size) * 1000 / RATE_HZ
            self.live.files.caller_audio(arrived_ms, frame.tobytes(), RATE_HZ, 1)
        self._emit(ev.UserSpeechStopped, end_ms, end_ms=end_ms, source=TimingSource.LOCAL_VAD)

    def _step(self, start_ms: int, end_ms: int, speech: str) -> None:
        self.clock.set_ms(start_ms)
        span = self._tracer.start_span(
            "llm_node", context=trace.set_span_in_context(self._root), start_time=self._now_ns()
        )
        self.live.start_step(
            span, name="llm_node", context_ids=tuple(self._context), speech_id=speech, answers=None
        )
        self.clock.set_ms(end_ms)
        span.end(end_time=self._now_ns())
        self._emit(ev.LLMStepEnded, end_ms, span_id=format_span_id(span.get_span_context().span_id))

    def _next_id(self, given: str | None) -> str:
        self._count += 1
        return given or f"item_{self._count}"

    def _now_ns(self) -> int:
        return int(self.clock() * 1000) * 1_000_000


def scripted_call(
    directory: Path | str | None = None,
    *,
    content: Literal["full", "none"] = "full",
    recording_format: Literal["wav", "flac", "opus"] = "wav",
    consent: Literal["given", "awaited"] = "given",
    redact: Callable[[str], str] | None = None,
) -> ScriptedCall:
    """An empty script. With a directory the call leaves a journal and a recording there."""
    path = None if directory is None else Path(directory)
    settings = Settings(
        directory=path,
        content=content,
        audio="off" if path is None else "both",
        recording_format=recording_format,
        consent=consent,
        redact=redact,
    )
    return ScriptedCall(path, settings)


def _tone(samples: int, hz: int) -> Samples:
    return (8000 * np.sin(2 * np.pi * hz * np.arange(samples) / RATE_HZ)).astype(np.int16)
