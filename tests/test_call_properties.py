# SPDX-License-Identifier: Apache-2.0
"""The fold under any order, loss and doubling of events: what is written is valid and only moves forward."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from strategies import Watched, any_event, disturbed, scripted_call, start, watch
from voicetrace import events as ev
from voicetrace.call import fold
from voicetrace.journal import JournalError, JournalWriter, read_journal
from voicetrace.messages import Role, State, TextStatus


@pytest.mark.parametrize("strict", [True, False])
@given(events=st.lists(any_event, max_size=25), content=st.booleans())
def test_any_events_at_all_are_folded_without_a_broken_rule(strict, events, content):
    end = ev.CallEnded(at_ms=99_999)
    watch([start(content_captured=content), *events, end, *events[:5]], strict=strict)


@given(events=st.lists(any_event, max_size=15))
def test_a_call_whose_start_was_lost_is_folded_all_the_same(events):
    watch([*events, ev.CallEnded(at_ms=99_999)], strict=True)


@pytest.mark.parametrize("strict", [True, False])
@given(events=disturbed(scripted_call()))
def test_a_disturbed_call_is_folded_without_a_broken_rule(strict, events):
    watch(events, strict=strict)


@given(events=scripted_call())
def test_an_undisturbed_call_settles_every_record_and_starts_are_in_order(events):
    recorder = watch(events, strict=True)
    assert all(m.state is not State.OPEN for m in recorder.messages.values())
    for role in Role:  # one role's messages start one after another; the other may overlap
        bounds = [m.start_ms for m in recorder.ordered() if m.role is role and m.start_ms is not None]
        noted = any(isinstance(e, ev.MessageNoted) for e in events)
        assert noted or bounds == sorted(bounds)
    if not recorder.started.content_captured:
        for m in recorder.messages.values():
            assert (m.text, m.generated_text, m.text_status) == (None, None, TextStatus.NOT_CAPTURED)


@given(events=scripted_call(content=True))
def test_every_played_range_is_in_a_message_and_in_one_only(events):
    recorder = watch(events, strict=True)
    speeches = {e.speech_id for e in events if isinstance(e, ev.PlayoutRun)}
    agents = [m for m in recorder.messages.values() if m.role is Role.ASSISTANT and m.start_ms is not None]
    assert len(agents) >= len(speeches)


@given(events=scripted_call(content=True), data=st.data())
def test_content_off_changes_no_id_time_or_state(events, data):
    def without_text(event):
        stored = ev.to_dict(event)
        for name in ev.CONTENT_FIELDS:
            if stored.get(name):
                stored[name] = None
        if isinstance(event, ev.CallStarted):
            stored["content_captured"] = False
        return ev.from_dict(stored)

    def shape(recorder):
        return [
            m.model_dump(exclude={"text", "generated_text", "text_status"}) | {"id": m.id}
            for m in recorder.ordered()
        ]

    assert shape(fold(map(without_text, events), strict=True)) == shape(fold(events, strict=True))


@given(events=disturbed(scripted_call()), data=st.data())
def test_the_journal_read_back_gives_the_same_call_and_a_torn_one_gives_a_prefix(
    tmp_path_factory, events, data
):
    path = tmp_path_factory.mktemp("j") / "journal.jsonl"
    writer = JournalWriter(path)
    for event in events:
        writer.append(event)
    writer.close()
    whole = path.read_bytes()
    journal = read_journal(path)
    assert journal.events == tuple(events)
    assert dict(fold(journal.events).messages) == dict(fold(events).messages)
    assert fold(journal.events).steps == fold(events).steps

    header = whole.index(b"\n")
    cut = data.draw(st.integers(header, len(whole)))
    path.write_bytes(whole[:cut])
    torn = read_journal(path)
    assert torn.events == tuple(events[: len(torn.events)])
    missing = whole[cut:].strip(b"\n").count(b"\n") + (1 if whole[cut:].strip(b"\n") else 0)
    assert len(torn.events) == len(events) - missing
    watch(list(torn.events))


@given(events=st.lists(any_event, max_size=8))
def test_whatever_an_event_holds_is_read_back_equal(events):
    for event in events:
        assert ev.from_dict(ev.to_dict(event)) == event


class AnyCall(RuleBasedStateMachine):
    """Hypothesis chooses the next event knowing nothing; the watch says what broke."""

    @initialize(content=st.booleans(), strict=st.booleans())
    def begin(self, content, strict):
        self.events = []
        self.watched = Watched(strict=strict)
        self.take(start(content_captured=content))

    def take(self, event):
        self.events.append(event)
        self.watched.apply(event)

    @rule(event=any_event)
    def something_happens(self, event):
        self.take(event)

    @rule(call=scripted_call(content=True), length=st.integers(1, 6))
    def a_scene_is_told(self, call, length):
        for event in call[1 : 1 + length]:
            if not isinstance(event, ev.CallEnded):
                self.take(event)

    @rule(data=st.data())
    def something_is_told_again(self, data):
        self.take(data.draw(st.sampled_from(self.events)))

    @rule()
    def the_call_ends(self):
        self.take(ev.CallEnded(at_ms=self.watched.recorder.now_ms))

    @invariant()
    def the_deadline_is_kept(self):
        watched = getattr(self, "watched", None)
        due = watched.recorder.next_deadline_ms if watched else None
        assert due is None or isinstance(due, int)

    def teardown(self):
        if getattr(self, "watched", None) is not None:
            self.the_call_ends()
            again = fold(self.events)
            assert dict(again.messages) == dict(self.watched.recorder.messages)


TestAnyCall = AnyCall.TestCase
TestAnyCall.settings = settings(max_examples=settings().max_examples // 3, stateful_step_count=30)


def test_a_header_cut_anywhere_is_named_as_no_journal(tmp_path):
    path = tmp_path / "journal.jsonl"
    JournalWriter(path).close()
    whole = path.read_bytes()
    for cut in range(len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(JournalError, match="not a voicetrace journal"):
            read_journal(path)
