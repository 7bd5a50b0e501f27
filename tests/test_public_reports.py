# SPDX-License-Identifier: Apache-2.0
"""Field reports whose lesson is about the whole call rather than one module, each a test with its number.

The others lie beside what they test; the last test here says that none is missing.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import voicetrace
from voicetrace import events as ev
from voicetrace.agentclash import BundleError, export_bundle
from voicetrace.agentclash.reports import LiveContinuityMetrics
from voicetrace.messages import State, TextSource
from voicetrace.testing import ScriptedCall, scripted_call
from voicetrace.voice_call import VoiceCall

ROOT = Path(__file__).parents[1]
RUN = "6f1c2b1e-8f43-4e52-9d3c-0d8a4f6f1a01"


def report(call: VoiceCall, directory: Path) -> dict[str, Any]:
    """The call's live continuity report, out of its bundle."""
    export_bundle(call, directory, run_id=RUN, run_agent_id=RUN)
    (found,) = directory.rglob("*live_continuity*.json")
    document = json.loads(found.read_text("utf-8"))
    assert isinstance(document, dict)
    return document


def test_vt34_latency_is_what_was_heard_from_audio_to_audio(tmp_path: Path) -> None:
    """Not the sum of what the stages say of themselves: the caller heard nothing from 3 s to 5 s."""
    script = scripted_call(tmp_path / "calls")
    script.user("Are you open?", 1000, 3000)
    script.agent("Yes, we are.", 5000, 6000)
    call = script.finish(7000)
    found = report(call, tmp_path / "bundle")
    assert found["metrics"]["median_first_audio_ms"] == 2000
    assert [e["first_audio_latency_ms"] for e in found["exchanges"]] == [2000]


def test_vt35_what_was_cut_before_it_was_heard_has_no_latency_rather_than_zero(tmp_path: Path) -> None:
    script = scripted_call(tmp_path / "calls")
    script.user("Hello?", 1000, 2000)
    for event in (
        ev.SpeechCreated(at_ms=2300, speech_id="s", origin="reply"),
        ev.SpeechText(at_ms=2400, speech_id="s", text="Yes, hello.", source=TextSource.TTS_INPUT),
        ev.AssistantMessageAdded(at_ms=2500, item_id="a", speech_id="s", text="", cut=True),
        ev.SpeechEnded(at_ms=2500, speech_id="s"),
    ):
        script.live.emit(event)
    call = script.finish(4000)
    agent = call.message("a")
    assert agent.state is State.UNPLAYED
    assert not {"start_ms", "end_ms", "interrupted_at_ms"} & agent.to_wire().keys()
    found = report(call, tmp_path / "bundle")
    assert "median_first_audio_ms" not in found["metrics"]
    assert [e["first_audio_latency_ms"] for e in found["exchanges"]] == [None]


def a_call(directory: Path | None) -> ScriptedCall:
    script = scripted_call(directory)
    script.agent("Hello.", 200, 1200, say=True)
    script.user("Are you open?", 2000, 3000)
    script.agent("Yes, we are, until eight.", 4000, 6000, heard="Yes, we are,")
    return script


def test_vt36_a_messages_bounds_are_its_audio(tmp_path: Path) -> None:
    script = a_call(tmp_path)
    call = script.finish(7000)
    assert [(m.start_ms, m.end_ms) for m in call.messages] == [(200, 1200), (2000, 3000), (4000, 6000)]
    records = [s for s in script.spans() if s.name == "voice.message"]
    told = {s.attributes["voice.message.seq"]: s.attributes for s in records if s.attributes}
    for message in call.messages:
        assert told[message.seq]["voice.message.start_ms"] == message.start_ms
        assert told[message.seq]["voice.message.end_ms"] == message.end_ms
        clip = call.clip(message)
        assert message.end_ms is not None
        assert message.start_ms is not None
        assert len(clip.samples) * 1000 == (message.end_ms - message.start_ms) * clip.sample_rate_hz


def test_vt38_dead_air_is_not_counted_while_the_caller_speaks(tmp_path: Path) -> None:
    script = scripted_call(tmp_path / "calls")
    script.user("I want to", 1000, 2000)
    script.agent("One moment.", 2500, 3000)
    script.user("actually wait, let me explain that at length", 3200, 9000)
    script.agent("Of course.", 9500, 10_500)
    found = report(script.finish(11_000), tmp_path / "bundle")
    assert "max_output_gap_ms" not in found["metrics"]  # six seconds without the agent, and none of them dead
    assert found["metrics"]["median_first_audio_ms"] == 500


def test_vt39_every_metric_says_where_it_begins_and_ends() -> None:
    page = (ROOT / "specs" / "agentclash.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for name in LiveContinuityMetrics.model_fields:
        if name == "evidence_status":
            continue  # no measurement
        described = [row for row in rows if f"`{name}`" in row]
        assert described, f"{name} is not described"
        assert len(described[0].split("|")[2].split()) >= 6, f"{name} is hardly described"


def test_vt52_every_optional_part_may_be_absent(tmp_path: Path) -> None:
    """No recorder, no steps, nobody speaks: everything that reads a call still does."""
    script = scripted_call()
    call = script.finish(1000)
    (read,) = voicetrace.read_calls(script.spans())
    for found in (call, read):
        assert (found.messages, found.llm_steps, found.recording) == ((), (), None)
    silent = a_call(None).finish(7000)
    assert silent.recording is None
    assert [m.selections for m in silent.messages] == [[], [], []]
    with pytest.raises(BundleError, match="has no recording, and a bundle needs caller and agent audio"):
        export_bundle(silent, tmp_path / "bundle", run_id=RUN, run_agent_id=RUN)
    assert not (tmp_path / "bundle").exists()


def test_vt71_what_we_write_has_names_of_ours_or_standard_ones() -> None:
    for span in a_call(None).spans():
        for key in span.attributes or {}:
            assert key.startswith(("voice.", "voicetrace.", "gen_ai."))


REPORTS = (
    *(1, 2, 3, 6, 7, 8, 10, 11, 12, 14, 15, 17, 18, 19, 22, 23, 24, 25, 26, 28, 30, 32, 34, 35, 36, 38, 39),
    *(41, 42, 44, 45, 47, 48, 49, 52, 53, 54, 55, 56, 57, 58, 61, 62, 63, 64, 66, 67, 69, 70, 71, 73, 74, 75),
    *(77, 80),
)


def test_every_report_has_a_test_that_bears_its_number() -> None:
    named = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for name in re.findall(r"def (test_\w+)", path.read_text("utf-8")):
            named |= {int(n) for n in re.findall(r"vt_?(\d+)", name)}
    assert sorted(set(REPORTS) - named) == []
