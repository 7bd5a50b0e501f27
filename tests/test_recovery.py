# SPDX-License-Identifier: Apache-2.0
"""`recover`: what a killed process left becomes a finished call (VT-62)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from voicetrace import events as ev
from voicetrace import read_calls, recovery
from voicetrace.audio import RecordingWriter, repair
from voicetrace.call import fold
from voicetrace.journal import JournalWriter, read_journal
from voicetrace.messages import Channel, State, TextSource, TimingSource, writer_problems
from voicetrace.recovery import recover

ORIGIN = 1_700_000_000_000
RATE = 8000
STEP = "00000000000000b1"


def story() -> list[ev.Event]:
    """A greeting, a user turn, and a reply that is being played when the story stops."""
    return [
        ev.CallStarted(at_ms=0, call_id="call-1", origin_unix_ms=ORIGIN, framework="livekit"),
        ev.CallSpanBound(
            at_ms=1,
            trace_id="0" * 31 + "a",
            span_id="0" * 15 + "c",
            name="agent_session",
            start_unix_ms=ORIGIN,
        ),
        ev.RecordingStarted(
            at_ms=2,
            recording_id="call-1",
            uri="recording.wav",
            format="wav",
            sample_rate_hz=RATE,
            channels=(Channel.CALLER, Channel.AGENT),
            origin_unix_ms=ORIGIN,
        ),
        ev.SegmentStarted(at_ms=2, segment_id="seg_0", start_ms=0),
        ev.SpeechCreated(at_ms=10, speech_id="speech_1", origin="say"),
        ev.SpeechText(at_ms=10, speech_id="speech_1", text="Hello.", source=TextSource.TTS_INPUT),
        ev.PlayoutStarted(at_ms=100, speech_id="speech_1", start_ms=100),
        ev.PlayoutRun(at_ms=900, speech_id="speech_1", start_ms=100, end_ms=900),
        ev.PlayoutFinished(
            at_ms=900,
            speech_id="speech_1",
            interrupted=False,
            position_ms=800,
            aligned=True,
            heard_text="Hello.",
        ),
        ev.AssistantMessageAdded(at_ms=900, item_id="item_1", speech_id="speech_1", text="Hello."),
        ev.SpeechEnded(at_ms=901, speech_id="speech_1"),
        ev.UserSpeechStarted(at_ms=1500, start_ms=1450, source=TimingSource.LOCAL_VAD),
        ev.UserSpeechStopped(at_ms=2900, end_ms=2400, source=TimingSource.LOCAL_VAD),
        ev.UserTranscript(at_ms=3000, text="Hi there.", final=True, source=TextSource.STT),
        ev.SpeechCreated(at_ms=3100, speech_id="speech_2", origin="reply"),
        ev.LLMStepStarted(
            at_ms=3100,
            span_id=STEP,
            trace_id="0" * 31 + "a",
            name="llm_node",
            context_ids=("item_1", "item_2"),
            speech_id="speech_2",
            answers="item_2",
        ),
        ev.UserMessageAdded(at_ms=3150, item_id="item_2", text="Hi there.", source=TextSource.STT),
        ev.SpeechText(at_ms=3300, speech_id="speech_2", text="How can I help?", source=TextSource.TTS_INPUT),
        ev.LLMStepEnded(at_ms=3400, span_id=STEP),
        ev.PlayoutStarted(at_ms=3500, speech_id="speech_2", start_ms=3500),
        ev.TimePassed(at_ms=4200),
    ]


def leave(folder, events, *, tail: bytes = b"", record: bool = True):
    """What a killed process leaves: an unlocked journal, a recording with open sizes."""
    folder.mkdir(parents=True)
    journal = JournalWriter(folder / "journal.jsonl")
    for event in events:
        journal.append(event)
    journal.close()
    if tail:
        with (folder / "journal.jsonl").open("ab") as file:
            file.write(tail)
    if record and any(isinstance(e, ev.RecordingStarted) for e in events):
        writer = RecordingWriter(folder / "recording.wav", sample_rate_hz=RATE, origin_unix_ms=ORIGIN)
        writer.write_agent_run(100, np.arange(1, 1 + RATE * 800 // 1000, dtype=np.int16))
        writer.close()
    return folder / "journal.jsonl"


def test_a_dead_call_becomes_whole(tmp_path):
    leave(tmp_path / "call-1", story())
    report = recover(tmp_path)
    (call,) = report.recovered
    assert [(m.id, m.state, m.committed, m.text) for m in call.messages] == [
        ("item_1", State.COMPLETE, True, "Hello."),
        ("item_2", State.COMPLETE, True, "Hi there."),
        ("speech_2", State.INTERRUPTED, False, "How can I help?"),
    ]
    cut = call.messages[2]
    assert (cut.start_ms, cut.interrupted_at_ms, cut.text_source) == (3500, 4200, TextSource.TTS_INPUT)
    assert cut.produced_by_span_id == STEP
    assert all(not writer_problems(m) for m in call.messages)
    assert call.ended
    assert call.end_reason == "process died"
    assert call.recording.duration_ms == 4200
    assert call.clip(call.messages[0]).samples.tolist() == list(range(1, 6401))


def test_the_recovered_trace_reads_the_same_as_the_recovered_journal(tmp_path):
    leave(tmp_path / "call-1", story())
    (call,) = recover(tmp_path).recovered
    (read,) = read_calls(tmp_path / "call-1" / "trace.json")
    assert read.messages == call.messages
    assert [(s.span_id, s.context_ids, s.output_ids) for s in read.llm_steps] == [
        (STEP, ("item_1", "item_2"), ())
    ]
    assert (read.trace_id, read.span_id) == ("0" * 31 + "a", "0" * 15 + "c")
    assert read.recording.sha256 == call.recording.sha256
    assert read.attributes["voice.recovered"] is True
    document = json.loads((tmp_path / "call-1" / "messages.json").read_text())
    assert document["voice.messages"] == {m.id: m.to_wire() for m in call.messages}


def test_recovering_again_changes_nothing(tmp_path):
    path = leave(tmp_path / "call-1", story())
    recover(tmp_path)
    before = {p.name: p.read_bytes() for p in path.parent.iterdir()}
    again = recover(tmp_path)
    assert again.recovered == []
    assert again.finished == [path]
    assert {p.name: p.read_bytes() for p in path.parent.iterdir()} == before


@pytest.mark.parametrize("kept", range(1, len(story())))
def test_a_call_that_stopped_anywhere_is_recovered_with_valid_records(tmp_path, kept):
    events = story()[:kept]
    leave(tmp_path / "call-1", events)
    (call,) = recover(tmp_path).recovered
    live = fold(events).ordered()
    ended = {m.id: m for m in live if m.state is not State.OPEN}
    assert ended.items() <= {m.id: m for m in call.messages}.items()
    assert all(m.state is not State.OPEN and not writer_problems(m) for m in call.messages)


def test_a_torn_last_line_is_no_loss(tmp_path):
    whole = leave(tmp_path / "call-1", story())
    data = whole.read_bytes()
    last = data.rstrip(b"\n").rfind(b"\n") + 1
    for cut in range(last, len(data)):
        folder = tmp_path / f"cut-{cut}"
        folder.mkdir()
        (folder / "journal.jsonl").write_bytes(data[:cut])
        report = recover(folder)
        assert [m.id for m in report.recovered[0].messages] == ["item_1", "item_2", "speech_2"]
        assert read_journal(folder / "journal.jsonl").ended


def test_files_that_are_no_journal_are_named_skipped_and_kept(tmp_path):
    bad = {
        "empty": b"",
        "garbage": bytes(range(256)) * 50,
        "json": b'{"hello": 1}\n',
        "future": b'{"voicetrace_journal": 99}\n{"event":"CallStarted"}\n',
        "headless": b'{"voicetrace_journal": 1}\n' + json.dumps(ev.to_dict(story()[5])).encode() + b"\n",
    }
    for name, data in bad.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "journal.jsonl").write_bytes(data)
    leave(tmp_path / "good", story())
    report = recover(tmp_path)
    assert [c.call_id for c in report.recovered] == ["call-1"]
    assert sorted(s.path.parent.name for s in report.skipped) == sorted(bad)
    assert all(str(s.path) in s.reason for s in report.skipped)
    for name, data in bad.items():
        assert (tmp_path / name / "journal.jsonl").read_bytes() == data


def test_half_garbage_keeps_what_is_good_and_says_which_lines_were_not(tmp_path):
    path = leave(tmp_path / "call-1", story())
    lines = path.read_bytes().split(b"\n")
    lines[7:7] = [b"\x00\xff not json", b'{"event":"Unheard","at_ms":1}', b"[1,2"]
    path.write_bytes(b"\n".join(lines))
    (call,) = recover(tmp_path).recovered
    assert [m.id for m in call.messages] == ["item_1", "item_2", "speech_2"]
    named = [w for w in call.warnings if "skipped" in w]
    assert [w.split(" ")[0].rpartition(":")[2] for w in named] == ["8", "9", "10"]
    assert path.read_bytes().startswith(b"\n".join(lines)[:-1])


def test_a_running_call_is_left_alone(tmp_path):
    (tmp_path / "live").mkdir()
    journal = JournalWriter(tmp_path / "live" / "journal.jsonl")
    for event in story():
        journal.append(event)
    before = journal.path.read_bytes()
    try:
        report = recover(tmp_path)
        assert report.running == [journal.path]
        assert report.recovered == []
        assert journal.path.read_bytes() == before
    finally:
        journal.close()
    assert len(recover(tmp_path).recovered) == 1


def test_a_call_that_ended_but_was_killed_while_finishing_is_finished(tmp_path):
    leave(tmp_path / "call-1", [*story(), ev.CallEnded(at_ms=4300, reason="hang up")])
    (call,) = recover(tmp_path).recovered
    assert call.end_reason == "hang up"
    assert call.recording.sha256 is not None


def test_journals_that_share_a_folder_do_not_share_their_outputs(tmp_path):
    for name in ("first", "second"):
        journal = leave(tmp_path / name, story()[:1] + story()[4:])
        journal.rename(tmp_path / f"{name}.jsonl")
    report = recover(tmp_path)
    assert len(report.recovered) == 2
    for name in ("first", "second"):
        assert (tmp_path / f"{name}.messages.json").exists()
        (read,) = read_calls(tmp_path / f"{name}.trace.json")
        assert len(read.messages) == 3
    assert len(recover(tmp_path).finished) == 2


def test_a_recording_elsewhere_is_not_touched(tmp_path):
    events = story()
    outside = tmp_path / "outside.wav"
    RecordingWriter(outside, sample_rate_hz=RATE, origin_unix_ms=ORIGIN).close()
    before = outside.read_bytes()
    events[2] = replace(events[2], uri="../outside.wav")
    leave(tmp_path / "call-1", events, record=False)
    (call,) = recover(tmp_path).recovered
    assert outside.read_bytes() == before
    assert any("does not lie beside the journal" in w for w in call.warnings)


def test_a_lost_recording_is_said(tmp_path):
    leave(tmp_path / "call-1", story(), record=False)
    (call,) = recover(tmp_path).recovered
    assert any("does not exist" in w for w in call.warnings)
    assert call.recording.sha256 is None


def test_spans_that_had_left_are_not_sent_again(tmp_path):
    leave(tmp_path / "call-1", [*story(), ev.LLMStepExported(at_ms=4000, span_id=STEP)])
    exporter = InMemorySpanExporter()
    recover(tmp_path, exporter=exporter)
    assert [s.name for s in exporter.get_finished_spans()] == ["agent_session"]


def test_a_refusing_exporter_leaves_the_call_to_be_recovered_again(tmp_path):
    class Refuses(InMemorySpanExporter):
        def export(self, spans):
            return SpanExportResult.FAILURE

    leave(tmp_path / "call-1", story())
    first = recover(tmp_path, exporter=Refuses())
    assert first.recovered == []
    assert "refused" in first.skipped[0].reason
    exporter = InMemorySpanExporter()
    again = recover(tmp_path, exporter=exporter)
    assert len(again.recovered) == 1
    assert [s.name for s in exporter.get_finished_spans()] == ["agent_session", "llm_node"]


def test_no_such_directory(tmp_path):
    with pytest.raises(FileNotFoundError, match="no directory of calls"):
        recover(tmp_path / "nowhere")


def test_two_that_recover_the_same_calls_at_once_finish_each_once(tmp_path, monkeypatch):
    path = leave(tmp_path / "call-1", story()[:-1])
    others = []

    def in_the_middle(*args, **kwargs):
        others.append(recover(tmp_path))
        return repair(*args, **kwargs)

    monkeypatch.setattr(recovery, "repair", in_the_middle)
    assert len(recover(tmp_path).recovered) == 1
    assert [(o.recovered, o.running) for o in others] == [([], [path])]
    assert [type(e).__name__ for e in read_journal(path).events].count("CallEnded") == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_what_is_named_as_a_journal_and_is_no_file_is_skipped(tmp_path):
    (tmp_path / "a" / "journal.jsonl").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    os.mkfifo(tmp_path / "b" / "journal.jsonl")
    skipped = recover(tmp_path).skipped
    assert [s.path.parent.name for s in skipped] == ["a", "b"]
    assert all("no regular file" in s.reason for s in skipped)


@pytest.mark.parametrize("bad", ["a/b", "", "0" * 16, "xyz", "\ud800"])
def test_damaged_ids_cost_the_call_nothing_but_them(tmp_path, bad):
    events = [
        replace(e, span_id=bad) if isinstance(e, ev.CallSpanBound | ev.LLMStepStarted) else e for e in story()
    ]
    leave(tmp_path / "call-1", events)
    (call,) = recover(tmp_path).recovered
    (read,) = read_calls(tmp_path / "call-1" / "trace.json")
    assert [(m.id, m.text) for m in read.messages] == [(m.id, m.text) for m in call.messages]
    assert len(recover(tmp_path).finished) == 1


def test_a_journal_that_nothing_can_be_made_of_does_not_keep_the_others_from_their_end(tmp_path, monkeypatch):
    for name in ("call-1", "call-2"):
        leave(tmp_path / name, story())
    real = recovery.call_spans

    def failing(recorder, **kwargs):
        if "call-1" in kwargs["messages_uri"]:
            raise OverflowError("too big")
        return real(recorder, **kwargs)

    monkeypatch.setattr(recovery, "call_spans", failing)
    report = recover(tmp_path)
    assert [Path(c.source).parent.name for c in report.recovered] == ["call-2"]
    assert [s.path.parent.name for s in report.skipped] == ["call-1"]
    assert report.skipped[0].reason.endswith("cannot be recovered: OverflowError: too big")


CHILD = """
import os, signal, sys
from pathlib import Path
import numpy as np
sys.path.insert(0, sys.argv[3])
from test_recovery import story
from voicetrace import events as ev
from voicetrace.journal import JournalWriter
from voicetrace.live import LiveCall
from voicetrace.settings import Settings
from voicetrace.writer import WRITER

limit, append = int(sys.argv[2]), JournalWriter.append
written = 0
def counting(self, event):
    global written
    append(self, event)
    written += 1
    if written == limit:
        os.kill(os.getpid(), signal.SIGKILL)
JournalWriter.append = counting
call = LiveCall(settings=Settings(directory=Path(sys.argv[1]), audio="both"), framework="livekit")
call.files.start_recording(8000)
for event in story()[4:]:
    call.emit(event)
    call.files.agent_audio(event.at_ms, np.ones(80, np.int16).tobytes(), 8000, 1)
    WRITER.drain(10)
call.close()
WRITER.drain(10)
"""


@pytest.mark.parametrize("limit", [1, 4, 9, 13, 17, 20, 21])
def test_a_process_killed_after_any_line_is_recovered(tmp_path, limit):
    killed = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), str(limit), str(Path(__file__).parent)],
        check=False,
        timeout=60,
    )
    assert killed.returncode == -9
    (path,) = tmp_path.glob("*/journal.jsonl")
    journalled = read_journal(path)
    assert len(journalled.events) == limit
    ended = {m.id: m for m in fold(journalled.events).ordered() if m.state is not State.OPEN}
    (call,) = recover(tmp_path).recovered
    found = {m.id: m for m in call.messages}
    assert ended.keys() <= found.keys()
    assert all(found[i].text == m.text for i, m in ended.items())
    assert all(m.state is not State.OPEN and not writer_problems(m) for m in call.messages)
