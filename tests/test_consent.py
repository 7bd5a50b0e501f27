# SPDX-License-Identifier: Apache-2.0
"""VT-73: recording before consent. Nothing that was said without it is kept, anywhere."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

import voicetrace
from voicetrace import events as ev
from voicetrace import settings
from voicetrace.agentclash import export_bundle, validate_bundle
from voicetrace.call import fold
from voicetrace.journal import FILE_NAME, read_journal_call
from voicetrace.messages import TextSource, TextStatus, TimingSource, VoiceMessage
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
    assert recorder.warnings == [
        "message s: consent ended in the middle of it; no text is kept",
        "message a: a part of its text was not captured",
    ]


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
    assert recorder.warnings == ["message vad_0: consent ended in the middle of it; no text is kept"]
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
