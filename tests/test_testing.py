# SPDX-License-Identifier: Apache-2.0
"""The helpers that ship to users: a scripted call is a call like any other, and the same each time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import voicetrace
from voicetrace import semconv
from voicetrace.messages import writer_problems
from voicetrace.testing import RATE_HZ, FakeClock, MemorySpans, ScriptedCall, scripted_call


def conversation(script: ScriptedCall) -> None:
    script.agent("Hello, how can I help?", 200, 1800, say=True)
    script.user("Book the cheapest one.", 2400, 4000)
    script.agent("Done. It is booked for tonight.", 5000, 6000, heard="Done. It is")
    script.noise(7000, 7300)


@pytest.mark.parametrize("with_files", [True, False])
def test_a_script_is_a_call(with_files: bool, tmp_path: Path) -> None:
    script = scripted_call(tmp_path if with_files else None)
    conversation(script)
    call = script.finish(12_000, "caller left")
    assert [(m.role, m.committed, m.state, m.text) for m in call.messages] == [
        ("assistant", True, "complete", "Hello, how can I help?"),
        ("user", True, "complete", "Book the cheapest one."),
        ("assistant", True, "interrupted", "Done. It is"),
        ("user", False, "complete", None),
    ]
    assert [(m.start_ms, m.end_ms) for m in call.messages] == [
        (200, 1800),
        (2400, 4000),
        (5000, 6000),
        (7000, 7300),
    ]
    assert (call.duration_ms, call.end_reason, call.warnings) == (12_000, "caller left", ())
    [step] = call.llm_steps
    assert step.context_ids == (call.messages[0].id, call.messages[1].id)
    assert step.output_ids == (call.messages[2].id,)
    assert call.produced_by(call.messages[2]) == step
    assert not [p for m in call.messages for p in writer_problems(m)]
    assert script.finish() == call
    assert bool(list(tmp_path.iterdir())) == with_files


def test_spans_and_journal_of_a_script_agree(tmp_path: Path) -> None:
    script = scripted_call(tmp_path)
    conversation(script)
    call = script.finish()
    [from_spans] = voicetrace.read_calls(script.spans())
    assert from_spans.messages == call.messages
    assert from_spans.llm_steps == call.llm_steps
    assert from_spans.warnings == ()
    names = [span.name for span in script.spans()]
    assert names.count(semconv.SPAN_CALL) == names.count("llm_node") == 1
    assert script.spans() is script.spans()


def test_two_runs_of_a_script_give_the_same_messages(tmp_path: Path) -> None:
    readings = []
    for name in ("one", "two"):
        script = scripted_call(tmp_path / name)
        conversation(script)
        call = script.finish()
        readings.append([m.model_copy(update={"produced_by_span_id": None}) for m in call.messages])
    assert readings[0] == readings[1]


@pytest.mark.parametrize("recording_format", ["wav", "flac"])
def test_the_recording_of_a_script_holds_its_audio(tmp_path: Path, recording_format: str) -> None:
    script = scripted_call(tmp_path, recording_format=recording_format)  # type: ignore[arg-type]
    key = script.agent("Hello.", 200, 1200)
    script.user("Hi.", 1500, 1900)
    call = script.finish()
    clip = call.clip(call.message(key))
    assert clip.sample_rate_hz == RATE_HZ
    assert np.array_equal(clip.samples, script.agent_audio[key])
    assert call.clip(call.messages[1]).duration_ms == 400


def test_a_script_without_content_keeps_no_text() -> None:
    script = scripted_call(content="none")
    script.user("secret words", 100, 900)
    script.agent("more secret words", 1000, 1900)
    call = script.finish()
    assert [(m.text, m.generated_text, m.text_status) for m in call.messages] == [
        (None, None, "not_captured")
    ] * 2
    assert "secret" not in str([dict(span.attributes or {}) for span in script.spans()])


def test_the_clock_never_goes_back() -> None:
    clock = FakeClock(1000.0)
    clock.set_ms(500)
    clock.set_ms(200)
    assert clock() == 1000.5


def test_memory_spans_gives_what_was_ended() -> None:
    memory = MemorySpans()
    tracer = memory.provider.get_tracer("test")
    tracer.start_span("ended").end()
    tracer.start_span("open")
    assert [span.name for span in memory.close()] == ["ended"]
