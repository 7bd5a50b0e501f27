# SPDX-License-Identifier: Apache-2.0
"""The contract's sentences (sections 2-4, architecture's decisions, field reports), one test each."""

from __future__ import annotations

import dataclasses

import pytest

from strategies import SPANS, start, watch
from voicetrace import events as ev
from voicetrace.call import CallRecorder, ContractError, fold
from voicetrace.messages import Channel, Role, Selection, State, TextSource, TextStatus, TimingSource

STT, TYPED = TextSource.STT, TextSource.TEXT_INPUT
RT_IN, RT_OUT = TextSource.REALTIME_INPUT_TRANSCRIPT, TextSource.REALTIME_OUTPUT_TRANSCRIPT


# -- a call as a list of short sentences -------------------------------------------------------------
def begin(at, item=None, source=TimingSource.LOCAL_VAD):
    return ev.UserSpeechStarted(at_ms=at, start_ms=at, source=source, item_id=item)


def stop(at, end=None, item=None):
    return ev.UserSpeechStopped(
        at_ms=at, end_ms=at if end is None else end, source=TimingSource.LOCAL_VAD, item_id=item
    )


def words(at, text, final=True, item=None, source=STT):
    return ev.UserTranscript(at_ms=at, text=text, final=final, source=source, item_id=item)


def pending(at, token="eou"):
    return ev.EndOfTurnPending(at_ms=at, token=token)


def decided(at, outcome="committed", token="eou"):
    return ev.EndOfTurnDecided(at_ms=at, token=token, outcome=outcome)


def user_item(at, item, text="", source=STT, **more):
    return ev.UserMessageAdded(at_ms=at, item_id=item, text=text, source=source, **more)


def created(at, speech="sp", origin="reply"):
    return ev.SpeechCreated(at_ms=at, speech_id=speech, origin=origin)


def text(at, words, speech="sp", source=TextSource.TTS_INPUT):
    return ev.SpeechText(at_ms=at, speech_id=speech, text=words, source=source)


def playing(at, speech="sp"):
    return ev.PlayoutStarted(at_ms=at, speech_id=speech, start_ms=at)


def run(begin, end, speech="sp"):
    return ev.PlayoutRun(at_ms=end, speech_id=speech, start_ms=begin, end_ms=end)


def finished(at, position, speech="sp", cut=False, heard=None):
    return ev.PlayoutFinished(
        at_ms=at,
        speech_id=speech,
        interrupted=cut,
        position_ms=position,
        aligned=heard is not None,
        heard_text=heard,
    )


def item(at, item="item_a", speech="sp", words="", cut=False):
    return ev.AssistantMessageAdded(at_ms=at, item_id=item, speech_id=speech, text=words, cut=cut)


def over(at, speech="sp", outcome="done"):
    return ev.SpeechEnded(at_ms=at, speech_id=speech, outcome=outcome)


def step(at, span=SPANS[0], speech="sp", context=(), answers=None):
    return ev.LLMStepStarted(
        at_ms=at,
        span_id=span,
        trace_id="t",
        name="llm",
        context_ids=context,
        speech_id=speech,
        answers=answers,
    )


def response(at, *items):
    return ev.ResponseStarted(at_ms=at, item_ids=items)


def passed(at):
    return ev.TimePassed(at_ms=at)


def end(at):
    return ev.CallEnded(at_ms=at)


def call(*events, **how):
    return watch([start(**how), *events], strict=True)


def only(recorder):
    (message,) = recorder.messages.values()
    return message


SAID = (created(0), text(1, "Hello there. "), text(2, "How are you?"), playing(100))


# -- section 2: identity -----------------------------------------------------------------------------
def test_a_user_record_starts_as_vad_seq_and_moves_to_the_items_id():
    r = CallRecorder(strict=True)
    r.apply(begin(10))
    r.apply(words(50, "hi", final=False))
    assert list(r.messages) == ["vad_0"]
    r.apply(stop(100))
    change = r.apply(user_item(200, "item_u", "hi"))
    assert change.moved == (("vad_0", "item_u"),)
    assert list(r.messages) == ["item_u"]


def test_an_assistant_record_is_keyed_by_speech_id_until_its_item_is_added():
    r = call(*SAID, run(100, 900))
    assert list(r.messages) == ["sp"]
    assert list(call(*SAID, run(100, 900), finished(900, 800), item(910)).messages) == ["item_a"]


def test_speech_that_never_gets_an_item_keeps_its_speech_id():
    message = only(call(*SAID, run(100, 900), finished(900, 800), over(950)))
    assert (message.id, message.committed, message.state) == ("sp", False, State.COMPLETE)


def test_the_old_key_never_appears_again_even_as_a_providers_item_id():
    r = call(begin(10), stop(100), user_item(200, "item_u", "hi"), user_item(300, "vad_0", "again"), end(400))
    assert list(r.messages) == ["item_u"]
    assert any("vad_0" in w for w in r.warnings)


def test_an_item_id_that_looks_like_ours_collides_with_nothing():
    r = call(user_item(1, "vad_1", "typed", source=TYPED), begin(10), stop(20), end(9000))
    assert {m.id: m.seq for m in r.ordered()} == {"vad_1": 0, "vad_1#2": 1}


def test_one_id_is_one_message_across_roles():
    r = call(user_item(1, "x", "hi"), *SAID, run(100, 900), finished(900, 800), item(910, "x"), end(1000))
    assert r.messages["x"].role is Role.USER
    assert r.messages["sp"].committed is False


def test_seq_is_taken_at_vad_start_and_at_speech_creation():
    r = call(
        created(0),
        text(0, "Welcome"),
        begin(5),
        stop(50),
        playing(60),
        run(60, 90),
        finished(90, 30),
        over(95),
        end(9000),
    )
    assert [m.id for m in r.ordered()] == ["sp", "vad_1"]


# -- section 3: fields only move forward -------------------------------------------------------------
def test_partial_is_a_user_transcript_that_is_not_final_yet():
    message = only(call(begin(10), words(50, "he", final=False)))
    assert (message.text, message.text_status, message.state) == ("he", TextStatus.PARTIAL, State.OPEN)


def test_an_open_assistant_entry_has_no_text():
    message = only(call(*SAID, run(100, 500)))
    assert (message.text, message.text_status, message.state) == (None, TextStatus.MISSING, State.OPEN)


def test_an_assistant_entry_is_never_partial_when_interrupted():
    message = only(call(*SAID, run(100, 500), finished(510, 400, cut=True, heard="Hello"), over(520)))
    assert (message.text, message.text_status) == ("Hello", TextStatus.FINAL)


def test_a_late_transcript_moves_missing_to_final_and_sets_transcript_final_ms():
    spoken = (begin(10, "i"), stop(900, item="i"), response(1000, "i"), response(4000))
    assert only(call(*spoken)).text_status is TextStatus.MISSING
    message = only(call(*spoken, words(5000, "late", item="i", source=RT_IN)))
    assert (message.text, message.text_status, message.transcript_final_ms) == (
        "late",
        TextStatus.FINAL,
        5000,
    )


def test_the_item_told_again_with_its_text_is_a_late_transcript_too():
    message = only(
        call(begin(1), stop(9), user_item(10, "i", source=RT_IN), user_item(80, "i", "late", source=RT_IN))
    )
    assert (message.text, message.transcript_final_ms) == ("late", 80)


def test_never_back_to_partial_from_missing():
    r = call(
        begin(10, "i"),
        stop(900, item="i"),
        response(1000, "i"),
        response(4000),
        words(5000, "la", False, "i", RT_IN),
    )
    assert only(r).text_status is TextStatus.MISSING


def test_partial_becomes_missing_when_the_next_response_is_created():
    spoken = (begin(10, "i"), words(20, "he", False, "i", RT_IN), stop(900, item="i"), response(1000, "i"))
    assert only(call(*spoken)).text_status is TextStatus.PARTIAL
    assert only(call(*spoken, response(4000))).text_status is TextStatus.MISSING


def test_partial_becomes_missing_at_close():
    spoken = (begin(10, "i"), words(20, "he", False, "i", RT_IN), stop(900, item="i"), response(1000, "i"))
    assert only(call(*spoken, end(2000))).text_status is TextStatus.MISSING


def test_vt64_a_terminal_state_is_never_overwritten():
    cut = (*SAID, run(100, 500), finished(510, 400, cut=True, heard="Hello"), item(515), over(520))
    later = (playing(600), run(600, 900), finished(900, 800, heard="Hello there."), over(950), end(1000))
    assert only(call(*cut, *later)) == only(call(*cut, end(1000)))


def test_with_content_off_records_keep_ids_times_and_states():
    how = (
        begin(10),
        words(20, None),
        stop(90),
        user_item(100, "u", None),
        created(110),
        text(111, None),
        playing(120),
    )
    r = call(
        *how,
        run(120, 300),
        finished(300, 180, heard=None),
        item(310, words=None),
        end(400),
        content_captured=False,
    )
    assert [(m.id, m.state, m.text_status) for m in r.ordered()] == [
        ("u", State.COMPLETE, TextStatus.NOT_CAPTURED),
        ("item_a", State.COMPLETE, TextStatus.NOT_CAPTURED),
    ]
    assert all(m.text is None and m.generated_text is None for m in r.ordered())
    assert (r.messages["item_a"].start_ms, r.messages["item_a"].end_ms) == (120, 300)


def test_text_that_reaches_the_fold_with_content_off_is_still_not_written():
    r = call(
        begin(1),
        words(2, "secret"),
        stop(9),
        user_item(10, "u", "secret"),
        *SAID,
        end(99),
        content_captured=False,
    )
    assert "secret" not in str(dict(r.messages))


def test_a_text_lost_to_redaction_is_not_captured_in_its_own_message_only():
    r = call(
        created(0, "s1", "say"),
        text(1, None, "s1"),
        over(2, "s1"),
        created(3, "s2", "say"),
        text(4, "ok", "s2"),
        over(5, "s2"),
    )
    assert [m.text_status for m in r.ordered()] == [TextStatus.NOT_CAPTURED, TextStatus.FINAL]


# -- section 4: user ---------------------------------------------------------------------------------
def test_an_item_takes_every_vad_interval_since_the_previous_commit():
    message = only(
        call(begin(100), stop(400), begin(600), stop(900), decided(1000), user_item(1100, "u", "a b"))
    )
    assert (message.start_ms, message.end_ms, message.end_of_turn_ms) == (100, 900, 1000)


def test_speech_in_progress_at_the_commit_belongs_to_the_next_message():
    r = call(
        begin(100),
        stop(400),
        words(450, "one"),
        begin(600),
        decided(700),
        user_item(710, "u1", "one"),
        stop(900),
        words(950, "two"),
        decided(1000, token="b"),
        user_item(1010, "u2", "two"),
    )
    first, second = r.ordered()
    assert (first.id, first.start_ms, first.end_ms) == ("u1", 100, 400)
    assert (second.id, second.start_ms, second.end_ms) == ("u2", 600, 900)


def test_vt28_several_finals_are_joined_when_the_item_has_no_text_of_its_own():
    message = only(call(begin(1), words(10, "one"), words(20, "two"), stop(30), user_item(40, "u", "")))
    assert (message.text, message.transcript_final_ms) == ("one two", 20)


def test_a_final_transcript_told_twice_counts_once():
    said = words(10, "one")
    assert only(call(begin(1), said, said, stop(30), user_item(40, "u", ""))).text == "one"


def test_the_items_own_text_wins_over_the_transcripts():
    assert only(call(begin(1), words(10, "one"), stop(30), user_item(40, "u", "One."))).text == "One."


def test_a_text_of_spaces_is_no_text():
    message = only(call(begin(1), words(10, "  "), stop(30), user_item(40, "u", " \n"), end(50)))
    assert (message.text, message.text_status) == (None, TextStatus.MISSING)


def test_the_stale_start_of_stt_turn_mode_is_replaced_by_the_receipt():
    again = ev.UserSpeechStarted(at_ms=1200, start_ms=500, source=TimingSource.LOCAL_VAD)
    r = call(begin(500), stop(900), again, stop(1500), *recording(0), user_item(1600, "u", "x"))
    assert [(s.start_ms, s.end_ms) for s in only(r).selections] == [(500, 900), (1200, 1500)]


def test_vt30_turn_taking_by_stt_alone_gives_a_record_without_bounds():
    message = only(call(words(100, "hello"), user_item(200, "u", "hello")))
    assert (message.text, message.start_ms, message.timing_source) == ("hello", None, None)
    assert message.transcript_final_ms == 100


def test_vt24_many_interims_without_an_item_id_are_one_record():
    r = call(
        begin(1),
        *(words(n, f"w{n}", final=False) for n in range(10, 60, 10)),
        stop(70),
        user_item(80, "u", "w"),
    )
    assert list(r.messages) == ["u"]


# -- section 4: uncommitted --------------------------------------------------------------------------
def test_uncommitted_speech_is_written_after_the_timeout_and_not_before():
    assert only(call(begin(10), stop(1000), passed(3999))).state is State.OPEN
    message = only(call(begin(10), words(500, "hm"), stop(1000), passed(4000)))
    assert (message.state, message.committed, message.text, message.text_status) == (
        State.COMPLETE,
        False,
        None,
        TextStatus.MISSING,
    )


def test_the_timeout_is_configurable_and_is_the_next_deadline():
    r = call(begin(10), stop(1000), uncommitted_timeout_ms=500)
    assert r.next_deadline_ms == 1500
    r.apply(passed(1500))
    assert only(r).state is State.COMPLETE
    assert r.next_deadline_ms is None


def test_uncommitted_speech_waits_while_an_end_of_turn_is_in_progress():
    r = call(begin(10), stop(1000), pending(1100), passed(60_000))
    assert r.messages["vad_0"].state is State.OPEN
    assert r.next_deadline_ms is None
    r.apply(decided(60_100, "dropped"))
    r.apply(passed(60_200))
    assert only(r).state is State.COMPLETE


def test_a_decision_told_before_its_start_leaves_nothing_pending():
    r = call(begin(10), stop(1000), decided(1100, "dropped"), pending(1100), passed(9000))
    assert only(r).state is State.COMPLETE


def test_speech_that_goes_on_is_not_uncommitted():
    assert call(begin(10), stop(1000), begin(1200), passed(60_000)).messages["vad_0"].state is State.OPEN


def test_a_late_item_attaches_to_uncommitted_speech():
    message = only(call(begin(10), stop(1000), passed(5000), user_item(6000, "u", "hi")))
    assert (message.id, message.committed, message.text, message.start_ms) == ("u", True, "hi", 10)


def test_a_late_item_does_not_attach_once_the_user_spoke_again():
    r = call(
        begin(10), stop(1000), passed(5000), begin(5100), stop(5500), user_item(6000, "u", "hi"), end(6100)
    )
    assert [(m.id, m.start_ms) for m in r.ordered()] == [("vad_0", 10), ("u", 5100)]


def test_a_turn_that_was_transcribed_and_dropped_is_uncommitted_without_text():
    message = only(
        call(begin(10), words(500, "no"), stop(900), decided(1000), ev.UserTurnDropped(at_ms=1001))
    )
    assert (message.committed, message.state, message.text) == (False, State.COMPLETE, None)


def test_a_dropped_turn_takes_no_later_item():
    r = call(
        begin(10),
        stop(900),
        decided(1000),
        ev.UserTurnDropped(at_ms=1001),
        user_item(1100, "u", "x"),
        end(1200),
    )
    assert [(m.id, m.committed) for m in r.ordered()] == [("vad_0", False), ("u", True)]


def test_a_turn_that_was_cleared_takes_no_later_item():
    r = call(
        begin(10),
        words(500, "no"),
        stop(900),
        ev.UserTurnCleared(at_ms=1000),
        begin(1100),
        stop(1500),
        user_item(1600, "u", "yes"),
        end(1700),
    )
    assert [(m.id, m.committed, m.start_ms, m.end_ms) for m in r.ordered()] == [
        ("vad_0", False, 10, 900),
        ("u", True, 1100, 1500),
    ]


def test_speech_that_goes_on_when_the_turn_is_cleared_is_split_there():
    r = call(
        begin(10),
        stop(200),
        begin(500),
        ev.UserTurnCleared(at_ms=700),
        stop(900),
        user_item(1000, "u", "rest"),
        end(1100),
    )
    assert [(m.id, m.committed, m.start_ms, m.end_ms) for m in r.ordered()] == [
        ("vad_0", False, 10, 700),
        ("u", True, 700, 900),
    ]
    assert not r.warnings


def test_a_clear_leaves_what_is_over_or_named_as_it_is():
    ended = call(
        begin(10),
        stop(100),
        decided(200),
        ev.UserTurnCleared(at_ms=250),
        user_item(300, "u", "kept"),
        end(400),
    )
    assert [(m.id, m.committed) for m in ended.ordered()] == [("u", True)]
    assert call(ev.UserTurnCleared(at_ms=1), end(2)).ordered() == []
    speech = ev.UserSpeechStarted(at_ms=10, start_ms=10, source=TimingSource.PROVIDER_EVENTS, item_id="i")
    named = call(speech, ev.UserTurnCleared(at_ms=50), stop(100, item="i"), end(200))
    assert [(m.id, m.start_ms, m.end_ms) for m in named.ordered()] == [("i", 10, 100)]


def test_the_frameworks_end_of_turn_time_names_the_turn():
    turns = (begin(10), stop(100), decided(200, token="a"), begin(300), stop(400), decided(1200, token="b"))
    r = call(*turns, user_item(1300, "u2", "two", end_of_turn_ms=1190))
    assert [(m.id, m.committed, m.start_ms) for m in r.ordered()] == [("vad_0", False, 10), ("u2", True, 300)]


# -- section 4: assistant ----------------------------------------------------------------------------
def test_text_is_what_was_aligned_and_generated_text_is_set_when_it_differs():
    message = only(
        call(
            *SAID,
            run(100, 500),
            finished(510, 400, cut=True, heard="Hello there."),
            item(515, words="Hello there."),
        )
    )
    assert (message.text, message.generated_text) == ("Hello there.", "Hello there. How are you?")
    assert message.text_source is TextSource.PLAYOUT_ALIGNED


def test_generated_text_is_absent_when_all_of_it_was_heard():
    message = only(
        call(*SAID, run(100, 500), finished(510, 400, heard="Hello there. How are you?"), over(520))
    )
    assert (message.text, message.generated_text) == ("Hello there. How are you?", None)


def test_segments_of_one_speech_are_one_message_and_lost_spaces_are_no_difference():
    r = call(
        *SAID,
        run(100, 500),
        finished(510, 400, heard="Hello there."),
        playing(600),
        run(600, 900),
        finished(910, 300, heard="How are you?"),
        item(920),
        over(930),
    )
    message = only(r)
    assert (message.text, message.generated_text) == ("Hello there. How are you?", None)
    assert (message.start_ms, message.end_ms, message.state) == (100, 900, State.COMPLETE)


@pytest.mark.parametrize("source", [TextSource.TTS_INPUT, RT_OUT])
def test_vt11_vt12_vt14_without_alignment_the_generated_text_says_its_source(source):
    message = only(
        call(
            created(0),
            text(1, "All of it.", source=source),
            playing(9),
            finished(99, 90, cut=True),
            over(100),
        )
    )
    assert (message.text, message.text_source, message.generated_text) == ("All of it.", source, None)


def test_tool_only_speech_is_never_written_and_leaves_a_gap_in_seq():
    r = call(
        begin(1),
        stop(9),
        user_item(10, "u", "x"),
        created(20, "t"),
        over(30, "t"),
        *SAID,
        run(100, 200),
        over(300),
        end(400),
    )
    assert [m.seq for m in r.ordered()] == [0, 2]


def test_a_playout_that_was_announced_and_empty_is_tool_only_too():
    assert not call(created(0), playing(10), finished(10, 0), over(20), end(30)).messages


@pytest.mark.parametrize("cut", [True, False])
def test_vt03_vt06_text_without_audio_is_unplayed_with_its_text(cut):
    message = only(
        call(*SAID, finished(200, 0, cut=cut), item(210, words="Hello there. How are you?"), over(220))
    )
    assert (message.state, message.text) == (State.UNPLAYED, "Hello there. How are you?")
    assert (message.text_source, message.start_ms, message.selections) == (TextSource.TTS_INPUT, None, [])


def test_vt08_text_interrupted_before_playout_is_kept():
    message = only(call(created(0), text(1, "Never spoken"), over(5)))
    assert (message.state, message.text, message.committed) == (State.UNPLAYED, "Never spoken", False)


def test_a_queued_say_that_is_cancelled_is_unplayed_and_uncommitted():
    message = only(call(created(0, origin="say"), text(1, "Queued"), over(5)))
    assert (message.state, message.text, message.committed) == (State.UNPLAYED, "Queued", False)


def test_vt01_vt02_vt19_an_interrupted_reply_keeps_the_heard_part():
    r = call(
        *SAID,
        run(100, 600),
        ev.ProviderTruncated(at_ms=610, speech_id="sp", audio_end_ms=500),
        finished(620, 500, cut=True, heard="Hello"),
        item(630, words="Hello", cut=True),
        over(640),
    )
    message = only(r)
    assert (message.state, message.text, message.provider_audio_end_ms) == (State.INTERRUPTED, "Hello", 500)
    assert message.generated_text == "Hello there. How are you?"


def test_vt66_an_interruption_has_its_time_its_duration_and_its_text():
    message = only(call(*SAID, run(100, 600), finished(620, 500, cut=True, heard="Hello"), over(640)))
    assert (message.interrupted_at_ms, message.end_ms - message.start_ms, message.text) == (600, 500, "Hello")


def test_a_barge_in_that_only_pauses_is_cut_where_the_audio_stopped():
    r = call(
        *SAID,
        run(100, 3420),
        ev.PlayoutStopped(at_ms=3420, speech_id="sp", stopped_ms=3420),
        finished(4471, 3320, cut=True, heard="Hello"),
        over(4480),
    )
    assert only(r).interrupted_at_ms == 3420


def test_without_runs_the_cut_is_where_the_agent_fell_silent():
    stopped = ev.PlayoutStopped(at_ms=3420, speech_id="sp", stopped_ms=3420)
    assert only(call(*SAID, stopped, finished(4471, 3000, cut=True), over(4480))).interrupted_at_ms == 3420


def test_a_false_interruption_that_resumes_is_complete_with_two_ranges():
    r = call(
        *recording(0),
        *SAID,
        run(100, 500),
        run(900, 1400),
        finished(1410, 900, heard="Hello there. How are you?"),
        over(1420),
    )
    message = only(r)
    assert message.state is State.COMPLETE
    assert [(s.start_ms, s.end_ms) for s in message.selections] == [(100, 500), (900, 1400)]


def test_t15_audio_without_a_heard_word_has_no_text_but_says_what_was_generated():
    message = only(call(*SAID, run(100, 180), finished(190, 80, cut=True, heard=""), over(200)))
    assert (message.text, message.text_status, message.state) == (None, TextStatus.MISSING, State.INTERRUPTED)
    assert (message.generated_text, message.text_source) == (
        "Hello there. How are you?",
        TextSource.PLAYOUT_ALIGNED,
    )


def test_t14_a_failed_tts_is_interrupted_where_the_audio_ended_with_text_that_may_overstate():
    message = only(
        call(*SAID, run(100, 500), finished(510, 400, heard="Hello there."), item(520, cut=True), over(530))
    )
    assert (message.state, message.interrupted_at_ms, message.text_source) == (
        State.INTERRUPTED,
        500,
        TextSource.TTS_INPUT,
    )


def test_a_sink_without_runs_is_described_by_its_start_and_position():
    message = only(call(*SAID, finished(1000, 850), over(1010)))
    assert (message.start_ms, message.end_ms, message.state) == (100, 950, State.COMPLETE)


def test_a_run_told_after_its_segments_finish_is_still_that_segments():
    r = call(*SAID, run(100, 300), finished(900, 700, heard="Hello"), run(500, 900), item(910), over(920))
    assert (only(r).state, only(r).end_ms) == (State.COMPLETE, 900)


def test_vt18_audio_told_after_the_speech_was_over_is_still_a_message():
    r = call(created(0), over(5), playing(10), run(10, 90), finished(90, 80), end(100))
    assert (only(r).start_ms, only(r).end_ms, only(r).state) == (10, 90, State.COMPLETE)


def test_played_without_an_item_is_uncommitted():
    assert (
        only(call(*SAID, run(100, 500), finished(510, 400, cut=True, heard=""), over(520))).committed is False
    )


def test_an_item_that_comes_after_its_speech_was_given_up_makes_a_message():
    message = only(call(created(0), over(5), item(10, words="Hello"), end(20)))
    assert (message.id, message.committed, message.state, message.text) == (
        "item_a",
        True,
        State.UNPLAYED,
        "Hello",
    )


def test_the_text_of_a_late_item_fills_what_was_missing():
    message = only(call(created(0), playing(10), finished(90, 80), over(95), item(99, words="Hello")))
    assert (message.text, message.text_status) == ("Hello", TextStatus.FINAL)


def test_everything_told_twice_changes_nothing():
    events = [
        begin(10),
        stop(90),
        decided(95),
        user_item(99, "u", "x"),
        *SAID[:1],
        playing(100),
        run(100, 500),
        finished(510, 400, heard="Hi"),
        item(520),
        over(530),
        end(600),
    ]
    twice = [e for event in events for e in (event, event)]
    assert dict(call(*twice).messages) == dict(call(*events).messages)


# -- decisions 3, 4, 6: steps, speculation, typed ----------------------------------------------------
def test_a_handles_tool_steps_are_records_of_their_own():
    r = call(
        created(0, "s"),
        text(1, "Let me see.", "s"),
        playing(2, "s"),
        run(2, 50, "s"),
        finished(51, 48, "s"),
        over(60, "s"),
        created(60, "s_2"),
        text(70, "Done.", "s_2"),
        playing(80, "s_2"),
        run(80, 99, "s_2"),
        end(100),
    )
    assert [(m.id, m.seq) for m in r.ordered()] == [("s", 0), ("s_2", 1)]


def test_a_discarded_attempt_is_not_written_and_its_step_is_speculative():
    r = call(
        created(0),
        step(1, context=("sys", "u_x"), answers="u_x"),
        text(2, "Guess"),
        over(5, outcome="discarded"),
        end(9),
    )
    assert not r.messages
    (attempt,) = r.steps
    assert (attempt.speculative, attempt.output_ids, attempt.context_ids) == (True, (), ("sys", None))


def test_an_attempt_at_a_turn_that_never_committed_is_speculative_without_being_called_so():
    r = call(created(0), step(1, context=("u_x",), answers="u_x"), text(2, "Guess"), over(5), end(9))
    assert not r.messages
    assert r.steps[0].speculative


def test_a_later_context_names_no_id_that_never_committed():
    r = call(
        step(1, SPANS[0], "s1", ("u_x",), "u_x"),
        user_item(2, "u", "hi"),
        step(3, SPANS[1], "s2", ("u_x", "u"), "u"),
        end(9),
    )
    assert r.steps[1].context_ids == (None, "u")


def test_an_item_committed_after_its_step_settled_takes_the_mark_back():
    r = call(created(0), step(1, context=("u",), answers="u"), over(5), user_item(6, "u", "hi"))
    assert (r.steps[0].speculative, r.steps[0].context_ids) == (False, ("u",))


def test_an_output_is_named_only_when_committed_and_written():
    r = call(
        created(0),
        step(1),
        text(2, "Hi"),
        playing(3),
        run(3, 50),
        finished(51, 47, cut=True, heard=""),
        over(60),
    )
    assert (r.steps[0].output_ids, only(r).produced_by_span_id) == ((), SPANS[0])
    r = call(created(0), step(1), item(5, words=""), over(9), end(10))
    assert (r.steps[0].output_ids, dict(r.messages)) == ((), {})


def test_an_item_that_comes_after_its_step_settled_is_told_again():
    r = CallRecorder(strict=True)
    told = [
        s
        for e in (
            created(0),
            step(1),
            text(2, "Hi"),
            playing(3),
            run(3, 9),
            finished(9, 6),
            over(10),
            item(11),
        )
        for s in r.apply(e).steps
    ]
    assert [s.output_ids for s in told] == [(), ("item_a",)]


def test_a_say_has_no_step():
    assert (
        only(
            call(created(0, origin="say"), text(1, "Welcome"), playing(2), run(2, 9), over(10), end(11))
        ).produced_by_span_id
        is None
    )


def test_typed_input_takes_its_seq_before_the_reply_and_has_no_bounds():
    r = call(
        ev.UserTextSubmitted(at_ms=1, token="t", text="hi"),
        created(2),
        text(3, "Hello"),
        over(4),
        user_item(5, "u", "hi", source=TYPED, token="t"),
    )
    typed, _ = r.ordered()
    assert (typed.id, typed.seq, typed.text, typed.text_source, typed.start_ms) == ("u", 0, "hi", TYPED, None)


def test_typed_input_does_not_take_the_spoken_turn():
    r = call(begin(1), stop(50), user_item(60, "t", "typed", source=TYPED), user_item(70, "u", "spoken"))
    assert [(m.id, m.start_ms) for m in r.ordered()] == [("u", 1), ("t", None)]


def test_vt25_a_message_can_be_noted_by_hand():
    note = ev.MessageNoted(at_ms=50, message_id="dtmf", role=Role.USER, text="5#", start_ms=10, end_ms=40)
    said = ev.MessageNoted(
        at_ms=60, message_id="jingle", role=Role.ASSISTANT, text="Please wait", start_ms=50, end_ms=60
    )
    user, agent = call(note, said).ordered()
    assert (user.text, user.committed, user.state, user.start_ms) == ("5#", True, State.COMPLETE, 10)
    assert (agent.text, agent.state, agent.end_ms) == ("Please wait", State.COMPLETE, 60)


# -- realtime ----------------------------------------------------------------------------------------
def test_new_user_items_are_paired_oldest_first_and_committed_without_a_transcript():
    r = call(begin(10), stop(100), response(150, "i1"), begin(200), stop(300), response(400, "i2"))
    assert [(m.id, m.start_ms, m.committed, m.end_of_turn_ms) for m in r.ordered()] == [
        ("i1", 10, True, 150),
        ("i2", 200, True, 400),
    ]


def test_oldest_is_by_start_also_after_a_record_was_renamed():
    r = call(
        begin(10, "a"),
        stop(100, item="a"),
        begin(200, "b"),
        stop(300, item="b"),
        words(310, "b!", item="b", source=RT_IN),
        response(400, "a", "b"),
    )
    assert [(m.id, m.start_ms, m.text) for m in r.ordered()] == [("a", 10, None), ("b", 200, "b!")]


def test_a_transcript_that_names_its_item_goes_to_the_oldest_utterance_without_one():
    r = call(words(5, "first", item="a", source=RT_IN), begin(10), stop(20), response(30, "a"))
    assert r.messages["a"].text == "first"
    r = call(begin(1), stop(9), decided(10), begin(20), stop(30), words(40, "one", item="a", source=RT_IN))
    assert [(m.id, m.start_ms) for m in r.ordered()] == [("a", 1), ("vad_1", 20)]


def test_without_items_the_record_keeps_its_key_and_is_committed_when_answered():
    r = call(begin(10), stop(100), response(150))
    assert (only(r).id, only(r).committed, only(r).end_of_turn_ms) == ("vad_0", True, 150)


def test_a_response_without_new_items_commits_nothing_when_the_provider_names_items():
    r = call(
        begin(10), stop(100), response(150, "i1"), begin(200), stop(300), response(310), response(400, "i2")
    )
    assert [m.id for m in r.ordered()] == ["i1", "i2"]


def test_a_response_that_was_asked_for_commits_no_speech_of_a_provider_without_items():
    asked = ev.ResponseStarted(at_ms=150, item_ids=(), unnamed=False)
    assert not only(call(begin(10), stop(100), asked, end(200))).committed


def named(at, item_id):
    return ev.UserItemNamed(at_ms=at, item_id=item_id)


def test_an_item_made_of_an_utterance_parts_it_from_the_next():
    r = call(begin(10), stop(100), named(110, "i1"), begin(200), stop(300), response(310, "i1", "i2"))
    assert [(m.id, m.start_ms, m.end_ms, m.committed) for m in r.ordered()] == [
        ("i1", 10, 100, True),
        ("i2", 200, 300, True),
    ]


def test_an_item_named_while_the_user_still_speaks_waits_for_its_response():
    r = call(begin(10), named(50, "i1"), stop(100), response(150, "i1"))
    assert (only(r).id, only(r).end_ms) == ("i1", 100)


def test_an_item_named_twice_or_late_names_no_other_utterance():
    r = call(
        begin(10),
        stop(100),
        named(110, "i1"),
        begin(200),
        stop(300),
        named(310, "i1"),
        end(400),
        named(500, "x"),
    )
    assert [m.id for m in r.ordered()] == ["i1", "vad_1"]


def test_vt23_a_late_transcript_without_an_item_id_goes_to_the_answered_utterance():
    r = call(
        begin(10),
        stop(100),
        response(150),
        begin(300),
        words(350, "the first", source=RT_IN),
        stop(500),
        end(600),
    )
    first, second = r.ordered()
    assert (first.text, first.transcript_final_ms, second.text) == ("the first", 350, None)


def test_vt22_an_utterance_never_transcribed_is_missing_with_its_bounds():
    message = only(call(begin(10), stop(100), response(150, "i"), end(900)))
    assert (message.text_status, message.text_source, message.end_ms) == (TextStatus.MISSING, RT_IN, 100)


def test_vt26_a_tool_call_first_loses_no_user_text():
    r = call(
        begin(10, "i"),
        stop(100, item="i"),
        response(150, "i"),
        created(160, "tool", "realtime"),
        over(170, "tool"),
        words(180, "book it", item="i", source=RT_IN),
    )
    assert only(r).text == "book it"


def test_the_end_of_turn_of_an_item_that_came_first_is_when_the_generation_starts():
    r = call(begin(10, "i"), stop(100, item="i"), user_item(120, "i", "hi", source=RT_IN), response(150, "i"))
    assert only(r).end_of_turn_ms == 150


def test_a_late_response_pairs_with_speech_that_settled_uncommitted():
    assert only(call(begin(10), stop(100), passed(9000), response(9100, "i"))).id == "i"


def test_the_providers_own_times_are_named_as_such():
    assert (
        only(call(begin(10, "i", TimingSource.PROVIDER_EVENTS), stop(90, item="i"))).timing_source
        is TimingSource.PROVIDER_EVENTS
    )


def test_a_stop_told_twice_does_not_end_another_utterance():
    r = call(
        begin(10, "a"),
        stop(90, item="a"),
        begin(100, "b"),
        stop(110, item="a"),
        stop(200, item="b"),
        response(210, "a", "b"),
    )
    assert [(m.start_ms, m.end_ms) for m in r.ordered()] == [(10, 90), (100, 200)]


def test_a_response_of_several_messages_makes_one_record_each():
    r = call(
        created(0, "m1", "realtime"),
        step(1, speech="m1"),
        created(2, "m2", "realtime"),
        step(2, speech="m2"),
        text(3, "One.", "m1", RT_OUT),
        text(4, "Two.", "m2", RT_OUT),
        playing(5, "m1"),
        run(5, 50, "m1"),
        finished(50, 45, "m1"),
        playing(51, "m2"),
        run(51, 99, "m2"),
        finished(99, 48, "m2"),
        item(100, "m1", "m1"),
        item(101, "m2", "m2"),
        over(110, "m1"),
        over(110, "m2"),
    )
    assert [(m.id, m.text, m.start_ms) for m in r.ordered()] == [("m1", "One.", 5), ("m2", "Two.", 51)]
    assert r.steps[0].output_ids == ("m1", "m2")
    assert {m.produced_by_span_id for m in r.messages.values()} == {SPANS[0]}


def test_a_hand_off_from_cascaded_to_realtime_and_back_follows_the_active_rules():
    r = call(
        begin(1),
        stop(9),
        decided(10),
        user_item(11, "c1", "one"),
        begin(20, "i"),
        stop(30, item="i"),
        response(40, "i"),
        begin(50),
        stop(60),
        decided(61, token="z"),
        user_item(62, "c2", "two"),
    )
    assert [(m.id, m.committed) for m in r.ordered()] == [("c1", True), ("i", True), ("c2", True)]


# -- close -------------------------------------------------------------------------------------------
def test_vt07_close_ends_what_is_playing_at_the_played_position():
    message = only(call(*SAID, run(100, 700), end(5000)))
    assert (message.state, message.interrupted_at_ms, message.text) == (
        State.INTERRUPTED,
        700,
        "Hello there. How are you?",
    )


def test_close_ends_everything_that_is_open():
    r = call(
        begin(1), stop(9), decided(10), created(11, "a"), text(12, "Queued", "a"), *SAID, begin(150), end(900)
    )
    assert {m.id: m.state for m in r.ordered()} == {
        "vad_0": State.COMPLETE,
        "a": State.UNPLAYED,
        "sp": State.INTERRUPTED,
        "vad_3": State.COMPLETE,
    }
    assert r.messages["vad_3"].end_ms == 900


def test_close_ends_a_committed_user_who_was_still_speaking():
    message = only(call(begin(10), user_item(50, "u", "hi"), end(90)))
    assert (message.state, message.end_ms) == (State.COMPLETE, 90)


def test_vt49_a_playout_that_never_finished_stays_open_until_close_and_is_said():
    r = call(*SAID, run(100, 700), over(800))
    assert only(r).state is State.OPEN
    r.apply(end(900))
    assert only(r).state is State.INTERRUPTED
    assert any("never reported as finished" in w for w in r.warnings)


def test_after_the_end_a_late_transcript_still_fills_what_is_missing():
    r = call(
        begin(10, "i"),
        stop(90, item="i"),
        response(100, "i"),
        end(200),
        words(300, "late", item="i", source=RT_IN),
    )
    assert only(r).text == "late"


def test_after_the_end_nothing_new_starts():
    r = call(end(10), begin(20), stop(30), *SAID, run(100, 200), words(300, "x"), passed(9000))
    assert not r.messages


# -- decision 11: what cannot be ---------------------------------------------------------------------
@pytest.mark.parametrize("wrong", [5, 10**12])
def test_vt32_speech_that_cannot_end_then_has_no_bounds_and_a_warning(wrong):
    r = call(begin(1000), stop(1500, end=wrong), user_item(1600, "u", "hi"))
    assert (only(r).start_ms, only(r).end_ms, only(r).selections) == (None, None, [])
    assert any("cannot end" in w for w in r.warnings)


def test_vt32_a_start_already_written_stays_when_the_end_cannot_be():
    message = only(
        call(begin(1000), words(1100, "h", final=False), stop(1500, end=5), user_item(1600, "u", "hi"))
    )
    assert (message.start_ms, message.end_ms) == (1000, None)


@pytest.mark.parametrize("wrong", [5, 99_999])
def test_an_end_of_turn_outside_the_call_so_far_is_left_out(wrong):
    r = call(begin(1000), stop(1500), user_item(1600, "u", "hi", end_of_turn_ms=wrong))
    assert only(r).end_of_turn_ms is None
    assert any("end of turn" in w for w in r.warnings)


def test_vt32_a_transcript_200_s_after_the_speech_has_no_time():
    r = call(
        begin(1000), stop(1500), passed(400_000), user_item(400_001, "u", "hi", transcript_final_ms=399_000)
    )
    assert only(r).transcript_final_ms is None
    assert any("final transcript" in w for w in r.warnings)


def test_a_playout_of_more_than_a_day_has_no_end():
    r = call(*SAID, finished(900, 10**12), over(910))
    assert (only(r).start_ms, only(r).end_ms, only(r).state) == (100, None, State.COMPLETE)


def test_a_source_of_the_other_role_is_not_taken_over():
    r = call(
        words(1, "hi", source=TextSource.TTS_INPUT),
        created(2),
        text(3, "yo", source=STT),
        playing(4),
        run(4, 9),
        finished(9, 5),
        over(10),
    )
    assert [m.text_source for m in r.ordered()] == [None, TextSource.TTS_INPUT]


def test_a_recording_without_a_sample_rate_is_ignored():
    r = call(*recording(0, rate=0))
    assert r.recording is None
    assert r.warnings


# -- the recording -----------------------------------------------------------------------------------
def recording(at, channels=tuple(Channel), rate=24_000):
    return (
        ev.RecordingStarted(
            at_ms=at,
            recording_id="r",
            uri="r.wav",
            format="wav",
            sample_rate_hz=rate,
            channels=channels,
            origin_unix_ms=0,
        ),
        ev.SegmentStarted(at_ms=at, segment_id="seg", start_ms=at),
    )


def test_selections_are_segment_ms_of_the_messages_own_channel():
    r = call(*recording(50), begin(100), stop(400), user_item(450, "u", "x"))
    assert only(r).selections == [
        Selection(segment_id="seg", channel=Channel.CALLER, start_ms=50, end_ms=350)
    ]


def test_selections_follow_the_recording_also_when_it_is_told_late():
    late = call(begin(100), stop(400), user_item(450, "u", "x"), *recording(50))
    assert (
        only(late).selections
        == only(call(*recording(50), begin(100), stop(400), user_item(450, "u", "x"))).selections
    )


def test_a_segment_that_ends_takes_its_selections_with_it():
    r = call(
        *recording(0),
        begin(100),
        stop(400),
        user_item(450, "u", "x"),
        ev.SegmentEnded(at_ms=460, segment_id="seg", end_ms=300),
    )
    assert [(s.start_ms, s.end_ms) for s in only(r).selections] == [(100, 300)]
    assert r.recording.segments["seg"].length_ms == 300


def test_a_channel_that_is_not_recorded_gives_no_selection():
    assert only(call(*recording(0, channels=(Channel.AGENT,)), begin(100), stop(400))).selections == []


def test_what_plays_where_nothing_is_recorded_keeps_its_bounds_and_has_no_selections():
    def elsewhere(speech, start, end, *, recorded):
        yield ev.PlayoutStarted(at_ms=start, speech_id=speech, start_ms=start, recorded=recorded)
        yield ev.PlayoutRun(at_ms=end, speech_id=speech, start_ms=start, end_ms=end)
        yield ev.PlayoutFinished(at_ms=end, speech_id=speech, interrupted=False, position_ms=end - start)

    r = call(
        *recording(0, channels=(Channel.AGENT,)),
        ev.SpeechCreated(at_ms=10, speech_id="s", origin="say"),
        *elsewhere("s", 100, 300, recorded=False),
        *elsewhere("s", 500, 900, recorded=True),
    )
    message = only(r)
    assert (message.start_ms, message.end_ms) == (100, 900)
    assert [(s.start_ms, s.end_ms) for s in message.selections] == [(500, 900)]


def test_the_recording_has_its_digest_only_when_finished():
    r = call(*recording(0))
    assert (r.recording.sha256, r.recording.duration_ms) == (None, None)
    r.apply(ev.RecordingFinished(at_ms=9, uri="r.flac", format="flac", duration_ms=9, sha256="ab"))
    assert (r.recording.uri, r.recording.sha256, r.recording.duration_ms) == ("r.flac", "ab", 9)


# -- strict ------------------------------------------------------------------------------------------
def test_a_broken_rule_raises_when_strict_and_is_said_when_not(monkeypatch):
    monkeypatch.setattr("voicetrace.call.recorder.writer_problems", lambda message: ["made up"])
    with pytest.raises(ContractError, match="made up"):
        CallRecorder(strict=True).apply(user_item(1, "u", "hi"))
    lenient = CallRecorder()
    lenient.apply(user_item(1, "u", "hi"))
    assert (dict(lenient.messages), lenient.warnings) == ({}, ["not written, message u: made up"])


def test_content_may_be_withdrawn_before_anything_was_said_and_not_later():
    started = ev.CallStarted(at_ms=0, call_id="c", origin_unix_ms=0, framework="f")
    withdrawn = dataclasses.replace(started, content_captured=False)
    message = only(
        fold([started, withdrawn, begin(10), stop(100), words(110, None), user_item(150, "i", None)])
    )
    assert message.text_status is TextStatus.NOT_CAPTURED
    late = fold([started, begin(10), stop(100), withdrawn])
    assert late.started == started
    assert late.warnings == ["the call was started twice"]
