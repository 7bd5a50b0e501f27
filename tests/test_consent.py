# SPDX-License-Identifier: Apache-2.0
"""VT-73: recording before consent. Nothing that was said without it is kept, anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

import voicetrace
from strategies import any_event, disturbed
from strategies import scripted_call as scripted_events
from voicetrace import events as ev
from voicetrace import settings
from voicetrace.agentclash import export_bundle, validate_bundle
from voicetrace.audio import RecordingError, RecordingWriter
from voicetrace.call import CallRecorder, fold
from voicetrace.journal import FILE_NAME, read_journal_call
from voicetrace.messages import Channel, State, TextSource, TextStatus, TimingSource, VoiceMessage
from voicetrace.recovery import recover
from voicetrace.testing import ScriptedCall, scripted_call
from voicetrace.voice_call import VoiceCall

RUN = "6f1c2b1e-8f43-4e52-9d3c-0d8a4f6f1a01"


def a_call(directory: Path | None) -> ScriptedCall:
    """Consent comes at 3 s, goes at 7 s, and comes again at 11 s."""
    script = scripted_call(directory, consent="awaited")
    script.user("before-alpha", 500, 1500)
    script.agent("before-beta", 2000, 2800)
    script.consent(3000, given=True)
    script.user("within-gamma", 3500, 4500)
    script.agent("within-delta", 5000, 6500)
    script.consent(7000, given=False)
    script.user("after-epsilon", 7500, 8500)
    script.agent("after-zeta", 9000, 10500)
    script.consent(11_000, given=True)
    script.user("again-eta", 11_500, 12_500)
    return script


def texts(call: VoiceCall) -> list[tuple[str | None, TextStatus]]:
    return [(m.text, m.text_status) for m in call.messages]


WANTED = [
    (None, TextStatus.NOT_CAPTURED),
    (None, TextStatus.NOT_CAPTURED),
    ("within-gamma", TextStatus.FINAL),
    ("within-delta", TextStatus.FINAL),
    (None, TextStatus.NOT_CAPTURED),
    (None, TextStatus.NOT_CAPTURED),
    ("again-eta", TextStatus.FINAL),
]


def test_vt73_no_text_is_kept_without_consent(tmp_path: Path) -> None:
    script = a_call(tmp_path)
    call = script.finish(13_000)
    assert texts(call) == WANTED
    assert [m.start_ms for m in call.messages] == [500, 2000, 3500, 5000, 7500, 9000, 11_500]
    kept = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    kept += "".join(span.to_json() for span in script.spans()).encode()
    for word in (b"alpha", b"beta", b"epsilon", b"zeta"):
        assert word not in kept
    for word in (b"gamma", b"delta", b"eta"):
        assert word in kept


def test_vt73_no_audio_is_kept_without_consent(tmp_path: Path) -> None:
    call = a_call(tmp_path).finish(13_000)
    assert call.recording is not None
    assert [(s.start_ms, s.length_ms) for s in call.recording.segments.values()] == [
        (3000, 4000),
        (11_000, 2000),
    ]
    (recording,) = tmp_path.rglob("recording.wav")
    pcm, rate = soundfile.read(recording, dtype="int16")
    heard = np.abs(pcm).max(axis=1) > 0
    loud = {second for second in range(13) if heard[second * rate : (second + 1) * rate].any()}
    assert loud == {3, 4, 5, 6, 11, 12}
    assert [len(m.selections) for m in call.messages] == [0, 0, 1, 1, 0, 0, 1]
    clip = call.clip(call.messages[2])
    assert clip.samples.shape[0] == rate
    assert np.abs(clip.samples).max() > 1000


def test_spans_alone_tell_the_same(tmp_path: Path) -> None:
    script = a_call(tmp_path)
    script.finish(13_000)
    (call,) = voicetrace.read_calls(script.spans())
    assert texts(call) == WANTED


def test_a_killed_process_tells_the_same_after_recover(tmp_path: Path) -> None:
    call = a_call(tmp_path).finish(13_000)
    (journal,) = tmp_path.rglob(FILE_NAME)
    lines = journal.read_bytes().splitlines(keepends=True)
    end = next(i for i, line in enumerate(lines) if b'"CallEnded"' in line)
    journal.write_bytes(b"".join(lines[:end]))
    (journal.parent / "messages.json").unlink()
    report = recover(tmp_path)
    assert len(report.recovered) == 1
    assert texts(report.recovered[0]) == WANTED
    again = read_journal_call(journal)
    assert again.recording is not None
    assert call.recording is not None
    assert again.recording.segments == call.recording.segments


def test_its_bundle_is_valid(tmp_path: Path) -> None:
    call = a_call(tmp_path / "calls").finish(13_000)
    export_bundle(call, tmp_path / "bundle", run_id=RUN, run_agent_id=RUN)
    assert validate_bundle(tmp_path / "bundle") == []


def started(*, consent: bool = True) -> ev.CallStarted:
    return ev.CallStarted(at_ms=0, call_id="c", origin_unix_ms=1, framework="t", consent_given=consent)


def test_consent_withdrawn_in_the_middle_of_a_reply_leaves_none_of_its_text() -> None:
    told = [
        started(),
        ev.SpeechCreated(at_ms=100, speech_id="s", origin="reply"),
        ev.SpeechText(at_ms=100, speech_id="s", text="half of it ", source=TextSource.TTS_INPUT),
        ev.PlayoutStarted(at_ms=200, speech_id="s", start_ms=200),
        ev.ConsentChanged(at_ms=900, given=False),
        ev.SpeechText(at_ms=1000, speech_id="s", text=None, source=TextSource.TTS_INPUT),
        ev.PlayoutFinished(
            at_ms=2000, speech_id="s", interrupted=False, position_ms=1800, aligned=True, heard_text=None
        ),
        ev.AssistantMessageAdded(at_ms=2000, item_id="a", speech_id="s", text=None),
        ev.SpeechEnded(at_ms=2000, speech_id="s"),
    ]
    recorder = fold(told, strict=True)
    (message,) = recorder.ordered()
    assert (message.text, message.generated_text) == (None, None)
    # it had been written, without text; that cannot become `not_captured` (contract, section 3)
    assert message.text_status is TextStatus.MISSING
    assert recorder.warnings == ["message s: a part of it was said without consent; no text is kept"]


def user_speaks(*, until_ms: int) -> list[ev.Event]:
    return [
        ev.UserSpeechStarted(at_ms=100, start_ms=100, source=TimingSource.LOCAL_VAD),
        ev.UserTranscript(at_ms=600, text="my name", final=False, source=TextSource.STT),
        ev.ConsentChanged(at_ms=700, given=False),
        ev.UserTranscript(at_ms=until_ms, text=None, final=True, source=TextSource.STT),
        ev.UserSpeechStopped(at_ms=until_ms, end_ms=until_ms, source=TimingSource.LOCAL_VAD),
        ev.UserMessageAdded(at_ms=until_ms + 100, item_id="u", text=None, source=TextSource.STT),
    ]


def test_consent_withdrawn_in_the_middle_of_a_user_turn_leaves_none_of_its_text() -> None:
    written: list[VoiceMessage] = []
    recorder = fold([started()], strict=True)
    for event in user_speaks(until_ms=2000):
        written += recorder.apply(event).messages
    (message,) = recorder.ordered()
    assert message.committed
    assert message.text is None
    assert recorder.warnings == ["message vad_0: a part of it was said without consent; no text is kept"]
    assert TextStatus.PARTIAL in {m.text_status for m in written}
    assert message.text_status is TextStatus.MISSING


def test_a_turn_that_began_before_consent_stays_unkept() -> None:
    told = [
        started(consent=False),
        ev.UserSpeechStarted(at_ms=100, start_ms=100, source=TimingSource.LOCAL_VAD),
        ev.ConsentChanged(at_ms=700, given=True),
        ev.UserTranscript(at_ms=900, text="second half", final=True, source=TextSource.STT),
        ev.UserSpeechStopped(at_ms=1000, end_ms=1000, source=TimingSource.LOCAL_VAD),
        ev.UserMessageAdded(at_ms=1100, item_id="u", text="second half", source=TextSource.STT),
    ]
    (message,) = fold(told, strict=True).ordered()
    assert (message.text, message.text_status) == (None, TextStatus.NOT_CAPTURED)


def tell(script: ScriptedCall, at_ms: int, event: type[ev.Event], **facts: Any) -> None:
    script.clock.set_ms(at_ms)
    script.live.emit(event(at_ms=at_ms, **facts))


def everything(directory: Path, script: ScriptedCall) -> str:
    """All that was kept of a finished call: its files and its spans."""
    kept = b"".join(p.read_bytes() for p in directory.rglob("*") if p.is_file())
    return kept.decode(errors="replace") + "".join(span.to_json() for span in script.spans())


VAD, STT = TimingSource.LOCAL_VAD, TextSource.STT


def test_what_was_said_before_consent_and_is_told_after_it_is_kept_nowhere(tmp_path: Path) -> None:
    """A transcript comes after the speech; consent may come between them."""
    script = scripted_call(tmp_path, consent="awaited")
    tell(script, 500, ev.UserSpeechStarted, start_ms=500, source=VAD)
    tell(script, 600, ev.SpeechCreated, speech_id="s", origin="reply")
    tell(script, 700, ev.UserSpeechStopped, end_ms=700, source=VAD)
    script.consent(800, given=True)
    tell(script, 900, ev.UserTranscript, text="alpha-final", final=True, source=STT)
    tell(script, 950, ev.UserMessageAdded, item_id="u", text="alpha-item", source=STT)
    tell(script, 960, ev.SpeechText, speech_id="s", text="alpha-text", source=TextSource.TTS_INPUT)
    tell(script, 970, ev.PlayoutStarted, speech_id="s", start_ms=970)
    finished = {"interrupted": False, "position_ms": 500, "aligned": True, "heard_text": "alpha-heard"}
    tell(script, 1470, ev.PlayoutFinished, speech_id="s", **finished)
    tell(script, 1480, ev.AssistantMessageAdded, item_id="a", speech_id="s", text="alpha-added")
    tell(script, 1490, ev.SpeechText, speech_id="gone", text="", source=TextSource.TTS_INPUT)
    tell(script, 1500, ev.UserMessageAdded, item_id="u", text="alpha-again", source=STT)
    script.user("kept-beta", 2000, 2500)
    call = script.finish(3000)
    assert "alpha" not in everything(tmp_path, script)
    assert texts(call) == [
        (None, TextStatus.NOT_CAPTURED),
        (None, TextStatus.NOT_CAPTURED),
        ("kept-beta", TextStatus.FINAL),
    ]
    assert call.messages[0].transcript_final_ms == 900
    (live,) = voicetrace.read_calls(script.spans())
    assert texts(live) == texts(call)


def test_a_voice_that_was_heard_to_begin_before_consent_is_not_kept(tmp_path: Path) -> None:
    """Voice activity is told late: its start counts, not when it was told."""
    script = scripted_call(tmp_path, consent="awaited")
    script.consent(800, given=True)
    tell(script, 900, ev.UserSpeechStarted, start_ms=799, source=VAD)
    tell(script, 1200, ev.UserSpeechStopped, end_ms=1200, source=VAD)
    tell(script, 1300, ev.UserTranscript, text="alpha", final=True, source=STT)
    tell(script, 1400, ev.UserMessageAdded, item_id="u", text="alpha", source=STT)
    tell(script, 1500, ev.SpeechCreated, speech_id="s", origin="say")
    tell(script, 1500, ev.PlayoutStarted, speech_id="s", start_ms=799)
    tell(script, 1510, ev.SpeechText, speech_id="s", text="alpha", source=TextSource.TTS_INPUT)
    tell(script, 1600, ev.SpeechEnded, speech_id="s")
    call = script.finish(2000)
    assert texts(call) == [(None, TextStatus.NOT_CAPTURED)] * 2
    assert "alpha" not in everything(tmp_path, script)


def test_a_voice_that_begins_with_consent_and_ends_with_it_is_kept(tmp_path: Path) -> None:
    script = scripted_call(tmp_path, consent="awaited")
    script.consent(800, given=True)
    tell(script, 900, ev.UserSpeechStarted, start_ms=800, source=VAD)
    tell(script, 1200, ev.UserSpeechStopped, end_ms=1200, source=VAD)
    tell(script, 1250, ev.UserMessageAdded, item_id="u", text="beta", source=STT)
    script.consent(1300, given=False)
    call = script.finish(2000)
    assert texts(call) == [("beta", TextStatus.FINAL)]


@pytest.mark.parametrize(
    ("start_ms", "end_ms", "kept"),
    [(100, 400, False), (100, 801, False), (700, 700, False), (800, 900, True)],
)
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_a_noted_message_is_kept_by_when_it_was_said(
    tmp_path: Path, role: Literal["user", "assistant"], start_ms: int, end_ms: int, kept: bool
) -> None:
    script = scripted_call(tmp_path, consent="awaited")
    script.consent(800, given=True)
    script.clock.set_ms(1000)
    voicetrace.note_message(script.live, role=role, text="noted-alpha", start_ms=start_ms, end_ms=end_ms)
    call = script.finish(2000)
    assert [m.text for m in call.messages] == ["noted-alpha" if kept else None]
    assert ("noted-alpha" in everything(tmp_path, script)) is kept


def test_an_item_without_speech_is_kept_by_when_its_turn_ended(tmp_path: Path) -> None:
    script = scripted_call(tmp_path, consent="awaited")
    script.consent(800, given=True)
    tell(script, 900, ev.UserMessageAdded, item_id="u", text="alpha", source=STT, end_of_turn_ms=799)
    tell(script, 950, ev.UserMessageAdded, item_id="v", text="alpha", source=STT, transcript_final_ms=700)
    tell(script, 990, ev.UserMessageAdded, item_id="w", text="beta", source=STT, end_of_turn_ms=800)
    call = script.finish(2000)
    assert [m.text for m in call.messages] == [None, None, "beta"]
    assert "alpha" not in everything(tmp_path, script)


def test_consent_that_goes_and_comes_in_the_middle_leaves_no_text(tmp_path: Path) -> None:
    """The end of a text is told with consent, and is of a message that was partly said without."""
    script = scripted_call(tmp_path)
    tell(script, 100, ev.UserSpeechStarted, start_ms=100, source=VAD)
    tell(script, 200, ev.UserTranscript, text="so", final=False, source=STT)
    tell(script, 250, ev.SpeechCreated, speech_id="s", origin="reply")
    tell(script, 250, ev.SpeechText, speech_id="s", text="far ", source=TextSource.TTS_INPUT)
    tell(script, 300, ev.PlayoutStarted, speech_id="s", start_ms=300)
    script.consent(400, given=False)
    script.consent(500, given=True)
    tell(script, 600, ev.UserTranscript, text="alpha-final", final=True, source=STT)
    tell(script, 600, ev.UserSpeechStopped, end_ms=600, source=VAD)
    tell(script, 700, ev.UserMessageAdded, item_id="u", text="alpha-item", source=STT)
    tell(script, 710, ev.SpeechText, speech_id="s", text="alpha-text", source=TextSource.TTS_INPUT)
    finished = {"interrupted": False, "position_ms": 500, "aligned": True, "heard_text": "alpha-heard"}
    tell(script, 800, ev.PlayoutFinished, speech_id="s", **finished)
    tell(script, 810, ev.AssistantMessageAdded, item_id="a", speech_id="s", text="alpha-added")
    tell(script, 820, ev.SpeechEnded, speech_id="s")
    call = script.finish(2000)
    assert [(m.text, m.generated_text, m.text_status) for m in call.messages] == [
        (None, None, TextStatus.MISSING)
    ] * 2
    assert "alpha" not in everything(tmp_path, script)


def test_an_item_that_came_before_the_end_of_its_playout_is_withheld_too() -> None:
    told = [
        started(),
        ev.SpeechCreated(at_ms=100, speech_id="s", origin="reply"),
        ev.PlayoutStarted(at_ms=200, speech_id="s", start_ms=200),
        ev.AssistantMessageAdded(at_ms=300, item_id="a", speech_id="s", text="all of it"),
        ev.ConsentChanged(at_ms=400, given=False),
        ev.PlayoutFinished(at_ms=900, speech_id="s", interrupted=False, position_ms=700),
        ev.SpeechEnded(at_ms=900, speech_id="s"),
    ]
    (message,) = fold(told, strict=True).ordered()
    assert (message.state, message.text, message.text_status) == (State.COMPLETE, None, TextStatus.MISSING)


def test_a_reply_that_was_never_heard_keeps_what_was_known_of_it_with_consent() -> None:
    """None of it was said; an unplayed message has its generated text (contract, section 2)."""
    told = [
        started(),
        ev.SpeechCreated(at_ms=100, speech_id="s", origin="say"),
        ev.SpeechText(at_ms=100, speech_id="s", text="first", source=TextSource.TTS_INPUT),
        ev.PlayoutStarted(at_ms=200, speech_id="s", start_ms=200),
        ev.ConsentChanged(at_ms=300, given=False),
        ev.SpeechText(at_ms=400, speech_id="s", text=None, source=TextSource.TTS_INPUT),
        ev.PlayoutFinished(at_ms=500, speech_id="s", interrupted=True, position_ms=0),
        ev.SpeechEnded(at_ms=500, speech_id="s"),
    ]
    (message,) = fold(told, strict=True).ordered()
    assert (message.state, message.text) == (State.UNPLAYED, "first")


def test_a_reply_that_was_given_up_and_plays_without_consent_after_all_is_not_kept() -> None:
    told = [
        started(),
        ev.SpeechCreated(at_ms=100, speech_id="s", origin="reply"),
        ev.SpeechText(at_ms=100, speech_id="s", text="attempt", source=TextSource.TTS_INPUT),
        ev.SpeechEnded(at_ms=200, speech_id="s", outcome="discarded"),
        ev.ConsentChanged(at_ms=300, given=False),
        ev.PlayoutStarted(at_ms=400, speech_id="s", start_ms=400),
        ev.PlayoutFinished(at_ms=900, speech_id="s", interrupted=False, position_ms=500),
    ]
    (message,) = fold(told, strict=True).ordered()
    assert (message.text, message.text_status) == (None, TextStatus.NOT_CAPTURED)


def test_a_committed_user_who_still_speaks_when_consent_ends_is_not_kept() -> None:
    """A realtime provider answers while somebody speaks; the transcript may come with consent again."""
    told = [
        started(),
        ev.UserSpeechStarted(at_ms=100, start_ms=100, source=VAD, item_id="u"),
        ev.ResponseStarted(at_ms=200, item_ids=("u",)),
        ev.ConsentChanged(at_ms=300, given=False),
        ev.ConsentChanged(at_ms=400, given=True),
        ev.UserSpeechStopped(at_ms=500, end_ms=500, source=VAD, item_id="u"),
        ev.UserTranscript(
            at_ms=600, text="all", final=True, source=TextSource.REALTIME_INPUT_TRANSCRIPT, item_id="u"
        ),
    ]
    (message,) = fold(told, strict=True).ordered()
    assert (message.text, message.text_status) == (None, TextStatus.MISSING)


def agent_channel(recording: Path) -> np.ndarray[Any, np.dtype[np.int16]]:
    pcm, _ = soundfile.read(recording, dtype="int16")
    return np.asarray(pcm[:, 1])


def writer(path: Path) -> RecordingWriter:
    return RecordingWriter(path / "r.wav", sample_rate_hz=1000, origin_unix_ms=0)


def test_agent_audio_that_overtakes_the_withdrawal_is_taken_out(tmp_path: Path) -> None:
    """Audio may be queued on one thread while consent is withdrawn on another, or told ahead of time."""
    recording = writer(tmp_path)
    recording.write_agent_run(100, np.full(400, 9, np.int16))
    assert recording.pause(300) == "seg_0"
    recording.write_agent_run(500, np.full(100, 9, np.int16))
    assert recording.resume(700) == "seg_1"
    recording.write_agent_run(650, np.full(100, 9, np.int16))
    recording.finish(1000)
    heard = np.flatnonzero(agent_channel(recording.path))
    assert set(heard) == {*range(100, 300), *range(700, 750)}


def test_caller_audio_that_overtakes_the_withdrawal_is_taken_out(tmp_path: Path) -> None:
    recording = writer(tmp_path)
    for k in range(50):
        recording.write_caller((k + 1) * 20.0, np.full(20, 9, np.int16), 1000)
    recording.advance(2000)
    recording.pause(300)
    recording.finish(2000)
    pcm, _ = soundfile.read(recording.path, dtype="int16")
    assert np.flatnonzero(pcm[:, 0]).tolist() == list(range(300))


@pytest.mark.parametrize("rate_hz", [1000, 2000])
def test_a_run_that_is_moved_to_the_one_before_brings_nothing_over_the_boundary(
    tmp_path: Path, rate_hz: int
) -> None:
    """A run within 30 ms goes on where the one before ended: what it said later lies earlier then."""
    recording = writer(tmp_path)
    recording.write_agent_run(100, np.full(180, 9, np.int16))
    recording.pause(300)
    marked = np.where(np.arange(100 * rate_hz // 1000) < 5 * rate_hz // 1000, 7000, 3000).astype(np.int16)
    recording.write_agent_run(295, marked, rate_hz)  # 5 ms of it with consent; placed at 280
    recording.finish(1000)
    heard = agent_channel(recording.path)
    assert heard[281:284].any()
    assert np.abs(heard[290:].astype(int)).max() < 400  # the resampler rings, and no more


def test_audio_of_unconsented_stretches_is_taken_out_by_recover(tmp_path: Path) -> None:
    """The process died between the withdrawal and what it does to the file."""
    a_call(tmp_path).finish(13_000)
    (journal,) = tmp_path.rglob(FILE_NAME)
    (recording,) = tmp_path.rglob("recording.wav")
    lines = journal.read_bytes().splitlines(keepends=True)
    end = next(i for i, line in enumerate(lines) if b'"CallEnded"' in line)
    journal.write_bytes(b"".join(lines[:end]))
    (journal.parent / "messages.json").unlink()
    pcm, rate = soundfile.read(recording, dtype="int16")
    pcm[int(6.9 * rate) : int(7.3 * rate)] = 9000
    recording.write_bytes(recording.read_bytes()[:44] + pcm.tobytes())
    recover(tmp_path)
    pcm, rate = soundfile.read(recording, dtype="int16")
    assert pcm[int(6.9 * rate) : 7 * rate].all()
    assert not pcm[7 * rate : 11 * rate].any()


def test_consent_that_goes_and_comes_in_one_ms_leaves_the_new_segment_open() -> None:
    told = [
        started(),
        ev.RecordingStarted(
            at_ms=0,
            recording_id="r",
            uri="r.wav",
            format="wav",
            sample_rate_hz=1000,
            channels=tuple(Channel),
            origin_unix_ms=1,
        ),
        ev.SegmentStarted(at_ms=0, segment_id="seg_0", start_ms=0),
        ev.ConsentChanged(at_ms=500, given=False),
        ev.ConsentChanged(at_ms=500, given=True),
        ev.SegmentStarted(at_ms=500, segment_id="seg_1", start_ms=500),
        ev.TimePassed(at_ms=900),
    ]
    recording = fold(told, strict=True).recording
    assert recording is not None
    assert [(s.start_ms, s.length_ms) for s in recording.segments.values()] == [(0, 500), (500, 400)]


def test_a_disk_that_fails_at_the_withdrawal_is_said(tmp_path: Path) -> None:
    script = scripted_call(tmp_path)
    script.agent("beta", 100, 900)

    def full(*_: object) -> str:
        raise RecordingError("No space left")

    assert script.live.files._recording is not None
    script.live.files._recording.pause = full  # type: ignore[method-assign]
    script.consent(1000, given=False)
    call = script.finish(2000)
    assert any(w.startswith("the recording stopped at 1000 ms: No space left") for w in call.warnings)
    assert call.recording is not None
    assert [(s.start_ms, s.length_ms) for s in call.recording.segments.values()] == [(0, 1000)]


def test_an_error_may_quote_what_was_said_before_consent(tmp_path: Path, caplog: Any) -> None:
    script = scripted_call(tmp_path, consent="awaited")
    script.consent(800, given=True)
    tell(script, 900, ev.LLMStepStarted, span_id="0" * 15 + "1", trace_id="t", name="llm", context_ids=())
    tell(script, 950, ev.LLMStepEnded, span_id="0" * 15 + "1", error="refused: alpha")
    script.live.guard.failed("hook", ValueError("alpha"))
    script.finish(2000)
    assert "alpha" not in everything(tmp_path, script)
    assert "alpha" not in caplog.text


@given(
    events=st.one_of(st.lists(any_event, max_size=25), disturbed(scripted_events(content=True))),
    data=st.data(),
)
def test_the_journal_of_a_call_gives_the_same_messages(events: list[ev.Event], data: st.DataObject) -> None:
    """Whatever happens, and however often consent goes and comes: what was dropped is of no record."""
    script = scripted_call(None, consent="awaited")
    written: list[ev.Event] = []
    script.live.files.journal = written.append  # type: ignore[method-assign]
    script.live.recorder = CallRecorder(strict=False)
    script.live.emit(started(consent=False))
    for event in events:
        if data.draw(st.integers(0, 5)) == 0:
            script.live.set_consent(given=data.draw(st.booleans()))
        script.live.emit(event)
    again = fold(written)
    assert again.ordered() == script.live.recorder.ordered()
    assert again.warnings == script.live.recorder.warnings
    assert again.steps == script.live.recorder.steps


def test_saying_it_twice_changes_nothing(tmp_path: Path) -> None:
    script = scripted_call(tmp_path)
    script.consent(100, given=True)
    voicetrace.give_consent(script.live)
    voicetrace.withdraw_consent(script.live)
    voicetrace.withdraw_consent(script.live)
    call = script.finish(1000)
    lines = [json.loads(line) for line in next(tmp_path.rglob(FILE_NAME)).read_text().splitlines()]
    assert sum("ConsentChanged" in json.dumps(line) for line in lines) == 1
    assert call.recording is not None
    assert [(s.start_ms, s.length_ms) for s in call.recording.segments.values()] == [(0, 100)]


def test_asked_of_no_running_call_it_says_so(tmp_path: Path) -> None:
    script = scripted_call(tmp_path)
    script.finish(100)
    for function in (voicetrace.give_consent, voicetrace.withdraw_consent):
        with pytest.raises(LookupError, match=rf"{function.__name__}\(\): no call of this list is going on"):
            function([])
        with pytest.raises(LookupError, match=f"{function.__name__}"):
            function(script.live)


def test_configure_names_the_choices() -> None:
    with pytest.raises(ValueError, match=r"configure\(consent='maybe'\): choose one of 'given', 'awaited'"):
        settings.configure(consent="maybe")  # type: ignore[arg-type]


@pytest.mark.parametrize(("off_ms", "kept"), [(300, True), (299, False)])
def test_a_transcript_after_the_end_of_the_speech_is_kept_by_when_it_was_said(
    off_ms: int, kept: bool
) -> None:
    """Also while somebody speaks on: of text that came too late not even the journal has a copy."""
    recorder = fold(
        [
            started(),
            ev.UserSpeechStarted(at_ms=100, start_ms=100, source=VAD, item_id="u"),
            ev.ResponseStarted(at_ms=200, item_ids=("u",)),
        ],
        strict=True,
    )
    stop = ev.UserSpeechStopped(at_ms=300, end_ms=300, source=VAD, item_id="u")
    if kept:
        recorder.apply(stop)
    recorder.apply(ev.ConsentChanged(at_ms=off_ms, given=False))
    recorder.apply(ev.ConsentChanged(at_ms=400, given=True))
    source = TextSource.REALTIME_INPUT_TRANSCRIPT
    words = ev.UserTranscript(at_ms=450, text="all", final=True, source=source, item_id="u")
    assert recorder.apply(words).text_kept is kept
    (message,) = recorder.ordered()
    assert message.text == ("all" if kept else None)
