# SPDX-License-Identifier: Apache-2.0
"""Every bar of the demo's check is met by a true record, and missed by one that is wrong in just that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voicetrace.demo.check import Bar, check_call
from voicetrace.demo.truth import AgentTruth, CallerTruth, GroundTruth, LLMCall, WordTruth
from voicetrace.messages import State, TextStatus, VoiceMessage
from voicetrace.testing import RATE_HZ, scripted_call
from voicetrace.voice_call import VoiceCall

ORIGIN = 1_700_000_000.0
CUT_TEXT = "There are three hotels near the station."
CUT_HEARD = "There are three hotels"


@dataclass
class Case:
    """One call and what truly happened in it; tests bend either."""

    call: VoiceCall
    journal: VoiceCall
    truth: GroundTruth
    bundle_problems: list[str]

    def bars(self) -> dict[str, Bar]:
        found = check_call(self.truth, self.call, journal=self.journal, bundle_problems=self.bundle_problems)
        return {bar.name: bar for bar in found}

    def missed(self) -> set[str]:
        return {name for name, bar in self.bars().items() if not bar.ok}

    def change(self, said: str, /, **update: Any) -> None:
        """Change the message that said this, in both readings."""

        def changed(message: VoiceMessage) -> VoiceMessage:
            return message.model_copy(update=update) if message.text == said else message

        self.set_messages(tuple(changed(m) for m in self.call.messages))

    def set_messages(self, messages: tuple[VoiceMessage, ...]) -> None:
        assert messages != self.call.messages
        self.call = replace(self.call, messages=messages)
        self.journal = replace(self.journal, messages=messages)

    def change_agent(self, number: int, **update: Any) -> None:
        """Change what truly happened to one utterance of the agent."""
        spoken = list(self.truth.agent)
        spoken[number] = replace(spoken[number], **update)
        self.truth = replace(self.truth, agent=tuple(spoken))

    def change_step(self, number: int, **update: Any) -> None:
        steps = list(self.call.llm_steps)
        steps[number] = steps[number].model_copy(update=update)
        self.call = replace(self.call, llm_steps=tuple(steps))
        self.journal = replace(self.journal, llm_steps=tuple(steps))


def caller(clip: str, start_ms: int, end_ms: int, message: str | None) -> CallerTruth:
    return CallerTruth(clip, ORIGIN + start_ms / 1000, ORIGIN + end_ms / 1000, "", message)


def agent(
    clip: str, text: str, start_ms: int, end_ms: int, samples: Any, llm_call: int | None, heard: str = ""
) -> AgentTruth:
    played = len((heard or text).split())
    return AgentTruth(
        clip=clip,
        source="say" if llm_call is None else "reply",
        text=text,
        sample_rate=RATE_HZ,
        samples=samples,
        generated_samples=len(samples),
        runs=((ORIGIN + start_ms / 1000, 0.0, (end_ms - start_ms) / 1000),),
        cut=bool(heard),
        words=tuple(
            WordTruth(word, 0.0, 0.0, "all" if n < played else "none") for n, word in enumerate(text.split())
        ),
        llm_call=llm_call,
    )


def llm_call(ordinal: int, *context: str) -> LLMCall:
    return LLMCall(ordinal, ORIGIN, list(context), "")


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """A greeting, a question, a cut answer, a cough, another question, and an answer."""
    script = scripted_call(tmp_path)
    hello = script.agent("Hello there.", 200, 1200, say=True)
    hotels = script.user("Which hotels?", 2000, 3000)
    cut = script.agent(CUT_TEXT, 4000, 5000, heard=CUT_HEARD)
    script.noise(6000, 6400)
    bye = script.user("Thank you.", 10_000, 11_000)
    last = script.agent("Goodbye.", 12_000, 13_000)
    journal = script.finish(14_000)
    call = replace(journal, events=())
    truth = GroundTruth(
        scenario="checked",
        started_unix=ORIGIN,
        ended_unix=ORIGIN + 14,
        line_started_unix=ORIGIN,
        caller_rate=RATE_HZ,
        caller_samples=np.zeros(0, np.int16),
        framework_events=(),
        messages=(("hotels", "Which hotels?"), ("bye", "Thank you.")),
        caller=(
            caller("hotels", 1950, 2970, "hotels"),
            caller("cough", 5990, 6390, None),
            caller("bye", 9960, 10_990, "bye"),
        ),
        agent=(
            agent("hello", "Hello there.", 200, 1200, script.agent_audio[hello], None),
            agent("cut", CUT_TEXT, 4000, 5000, script.agent_audio[cut], 0, CUT_HEARD),
            agent("bye", "Goodbye.", 12_000, 13_000, script.agent_audio[last], 1),
        ),
        llm_calls=(
            llm_call(0, hello, hotels),
            llm_call(1, hello, hotels, cut, bye),
        ),
        items=tuple({"id": i} for i in (hello, hotels, cut, bye, last)),
    )
    return Case(call, journal, truth, [])


BARS = (
    "user bounds, each",
    "user bounds, median",
    "agent bounds",
    "clips of messages played whole",
    "text heard on the cut reply",
    "messages lost, doubled or out of order",
    "links to LLM steps that are wrong",
    "warnings",
    "differences between spans and journal",
    "problems of the bundle",
)


def test_a_true_record_meets_every_bar(case: Case) -> None:
    bars = case.bars()
    assert tuple(bars) == BARS
    assert not case.missed(), bars
    assert bars["user bounds, each"].measured == "worst 50 ms of 4"
    assert bars["agent bounds"].measured == "worst 0.0 ms of 6"
    assert bars["clips of messages played whole"].measured == "2 of 2"
    assert bars["text heard on the cut reply"].measured == "4 words, 4 played to the end"


def late_user(case: Case) -> None:
    case.change("Which hotels?", start_ms=2080)


def no_user_bounds(case: Case) -> None:
    case.change("Which hotels?", start_ms=None, end_ms=None)


def late_cough(case: Case) -> None:
    update = {"start_ms": 6500, "end_ms": 6600}
    changed = [m if m.committed else m.model_copy(update=update) for m in case.call.messages]
    case.set_messages(tuple(changed))


def merged_ranges(case: Case) -> None:
    """The turn was two stretches of speech, the record has one range."""
    first, *rest = case.truth.caller
    halves = (replace(first, end_unix=ORIGIN + 2.3), replace(first, start_unix=ORIGIN + 2.6))
    case.truth = replace(case.truth, caller=(*halves, *rest))


def all_users_late(case: Case) -> None:
    earlier = [
        replace(c, start_unix=c.start_unix - 0.065, end_unix=c.end_unix - 0.065) for c in case.truth.caller
    ]
    case.truth = replace(case.truth, caller=tuple(earlier))


def late_agent(case: Case) -> None:
    case.change("Goodbye.", start_ms=12_026)


def early_agent_end(case: Case) -> None:
    case.change("Goodbye.", end_ms=12_974)


def one_sample_differs(case: Case) -> None:
    samples = case.truth.agent[0].samples.copy()
    samples[100] += 1
    case.change_agent(0, samples=samples)


def one_sample_less(case: Case) -> None:
    case.change_agent(2, samples=case.truth.agent[2].samples[:-1])


def no_clip(case: Case) -> None:
    case.change("Goodbye.", selections=[])


def two_words_more(case: Case) -> None:
    case.change(CUT_HEARD, text=f"{CUT_HEARD} near the")


def two_words_less(case: Case) -> None:
    case.change(CUT_HEARD, text="There are")


def other_words(case: Case) -> None:
    case.change(CUT_HEARD, text="There are four hotels")


def cut_is_complete(case: Case) -> None:
    case.change(CUT_HEARD, state=State.COMPLETE)


def lost_message(case: Case) -> None:
    case.set_messages(tuple(m for m in case.call.messages if m.text != "Thank you."))


def doubled_message(case: Case) -> None:
    extra = case.call.messages[-1].model_copy(update={"id": "item_again", "seq": 99})
    case.set_messages((*case.call.messages, extra))


def invented_message(case: Case) -> None:
    extra = case.call.messages[-1].model_copy(
        update={"id": "item_new", "seq": 99, "text": "Never said.", "produced_by_span_id": None}
    )
    case.set_messages((*case.call.messages, extra))


def swapped_messages(case: Case) -> None:
    first, second, *rest = case.call.messages
    case.set_messages((second, first, *rest))


def same_seq(case: Case) -> None:
    case.change("Goodbye.", seq=0)


def wrong_role(case: Case) -> None:
    case.change("Thank you.", role="assistant")


def uncommitted_message(case: Case) -> None:
    case.change("Thank you.", committed=False)


def played_whole_but_interrupted(case: Case) -> None:
    case.change("Goodbye.", state=State.INTERRUPTED, interrupted_at_ms=13_000)


def cough_is_lost(case: Case) -> None:
    case.set_messages(tuple(m for m in case.call.messages if m.committed))


def cough_has_text(case: Case) -> None:
    update = {"text": "Hm", "text_status": TextStatus.FINAL}
    changed = [m if m.committed else m.model_copy(update=update) for m in case.call.messages]
    case.set_messages(tuple(changed))


def wrong_step(case: Case) -> None:
    case.change("Goodbye.", produced_by_span_id=case.call.llm_steps[0].span_id)


def step_for_a_greeting(case: Case) -> None:
    case.change("Hello there.", produced_by_span_id=case.call.llm_steps[0].span_id)


def wrong_output(case: Case) -> None:
    case.change_step(1, output_ids=(case.call.messages[0].id,))


def no_output(case: Case) -> None:
    case.change_step(1, output_ids=())


def wrong_context(case: Case) -> None:
    ids = case.call.llm_steps[1].context_ids
    case.change_step(1, context_ids=(*ids[:-1], ids[0]))


def committed_id_is_null(case: Case) -> None:
    case.change_step(1, context_ids=(None, *case.call.llm_steps[1].context_ids[1:]))


def shorter_context(case: Case) -> None:
    case.change_step(1, context_ids=case.call.llm_steps[1].context_ids[:-1])


def not_speculative(case: Case) -> None:
    case.change_step(1, speculative=True)


def lost_step(case: Case) -> None:
    case.call = replace(case.call, llm_steps=case.call.llm_steps[:1])
    case.journal = replace(case.journal, llm_steps=case.call.llm_steps)


def warned(case: Case) -> None:
    case.call = replace(case.call, warnings=("caller audio from 300 ms was lost",))


def warned_in_the_journal(case: Case) -> None:
    case.journal = replace(case.journal, warnings=("line 3 is no event",))


def journal_differs(case: Case) -> None:
    messages = [m.model_copy(update={"end_of_turn_ms": 1}) for m in case.journal.messages]
    case.journal = replace(case.journal, messages=tuple(messages))


def journal_step_differs(case: Case) -> None:
    case.journal = replace(case.journal, llm_steps=case.journal.llm_steps[:1])


def recording_differs(case: Case) -> None:
    assert case.journal.recording is not None
    other = case.journal.recording.model_copy(update={"sha256": "0" * 64})
    case.journal = replace(case.journal, recording=other)


def cut_elsewhere(case: Case) -> None:
    case.change_agent(1, truncated_ms=980)


def another_origin(case: Case) -> None:
    case.journal = replace(case.journal, origin_unix_ms=1)


def broken_bundle(case: Case) -> None:
    case.bundle_problems = ["$.artifacts[0].path: is not in the bundle"]


EACH, MEDIAN, AGENT, CLIPS, CUT, MESSAGES, LINKS, WARNINGS, SAME, BUNDLE = BARS


@pytest.mark.parametrize(
    ("bend", "missed"),
    [
        (late_user, {EACH}),
        (no_user_bounds, {EACH}),
        (late_cough, {MESSAGES}),
        (merged_ranges, {EACH}),
        (all_users_late, {MEDIAN}),
        (late_agent, {AGENT}),
        (early_agent_end, {AGENT}),
        (one_sample_differs, {CLIPS}),
        (one_sample_less, {CLIPS}),
        (no_clip, {CLIPS}),
        (two_words_more, {CUT}),
        (two_words_less, {CUT}),
        (other_words, {CUT}),
        (cut_is_complete, {CUT}),
        (lost_message, {MESSAGES}),
        (doubled_message, {MESSAGES}),
        (invented_message, {MESSAGES}),
        (swapped_messages, {MESSAGES}),
        (same_seq, {MESSAGES}),
        (wrong_role, {MESSAGES}),
        (uncommitted_message, {MESSAGES}),
        (played_whole_but_interrupted, {MESSAGES}),
        (cut_elsewhere, {MESSAGES}),
        (cough_is_lost, {MESSAGES}),
        (cough_has_text, {MESSAGES}),
        (wrong_step, {LINKS}),
        (step_for_a_greeting, {LINKS}),
        (wrong_output, {LINKS}),
        (no_output, {LINKS}),
        (wrong_context, {LINKS}),
        (committed_id_is_null, {LINKS}),
        (shorter_context, {LINKS}),
        (not_speculative, {LINKS}),
        (lost_step, {LINKS}),
        (warned, {WARNINGS}),
        (warned_in_the_journal, {WARNINGS}),
        (journal_differs, {SAME}),
        (journal_step_differs, {SAME}),
        (recording_differs, {SAME}),
        (another_origin, {SAME}),
        (broken_bundle, {BUNDLE}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_wrong_record_misses_its_bar(case: Case, bend: Callable[[Case], None], missed: set[str]) -> None:
    bend(case)
    assert case.missed() == missed
    assert all(bar.misses for bar in case.bars().values() if bar.name in missed)


@pytest.mark.parametrize("word", [" near", None])
def test_one_word_more_or_less_of_a_cut_reply_is_allowed(case: Case, word: str | None) -> None:
    case.change(CUT_HEARD, text=CUT_HEARD + word if word else "There are three")
    assert not case.missed()


def test_a_record_without_messages_misses_what_cannot_be_compared(case: Case) -> None:
    case.set_messages(())
    assert case.missed() >= {EACH, MEDIAN, AGENT, CLIPS, CUT, MESSAGES, LINKS}


def test_an_attempt_that_never_committed_is_null_and_speculative(case: Case) -> None:
    """A third LLM call, on an item that never entered the conversation; its span comes first."""
    attempt = case.call.llm_steps[0].model_copy(
        update={
            "span_id": "a" * 16,
            "output_ids": (),
            "speculative": True,
            "context_ids": (case.call.messages[0].id, None),
        }
    )
    steps = (attempt, *case.call.llm_steps)
    case.call, case.journal = (replace(c, llm_steps=steps) for c in (case.call, case.journal))
    ids = [case.call.messages[0].id, "item_attempt"]
    case.truth = replace(case.truth, llm_calls=(llm_call(0, *ids), *case.truth.llm_calls))
    case.change_agent(1, llm_call=1)
    case.change_agent(2, llm_call=2)
    assert not case.missed()

    case.change_step(0, speculative=False)
    assert case.missed() == {LINKS}
    case.change_step(0, speculative=True, context_ids=(ids[0], "item_attempt"))
    assert case.missed() == {LINKS}


def test_an_adopted_attempt_is_listed_under_the_id_that_committed(case: Case) -> None:
    """The LLM saw an id of the attempt's own; the record lists the committed message in its place."""
    first, second = case.truth.llm_calls
    seen = replace(second, context_item_ids=[*second.context_item_ids[:-1], "item_attempt"])
    case.truth = replace(case.truth, llm_calls=(first, seen))
    assert not case.missed()
    older = case.call.llm_steps[1].context_ids[1]
    case.change_step(1, context_ids=(*case.call.llm_steps[1].context_ids[:-1], older))
    assert case.missed() == {LINKS}


def test_items_without_ids_of_their_own_are_known_by_their_text_and_keep_the_id_they_got(case: Case) -> None:
    """Pipecat's context has no ids: the truth has names, the record its own ids."""
    messages = {m.id: m for m in case.call.messages}
    names = {item["id"]: f"ctx_{n}" for n, item in enumerate(case.truth.items)}
    items = tuple({"id": names[i], "role": messages[i].role.value, "text": messages[i].text} for i in names)
    first, second = (
        replace(c, context_item_ids=[names[i] for i in c.context_item_ids]) for c in case.truth.llm_calls
    )
    case.truth = replace(case.truth, items_have_ids=False, items=items, llm_calls=(first, second))
    assert not case.missed()
    hello, hotels, cut, bye = case.call.llm_steps[1].context_ids
    case.change_step(1, context_ids=(hello, cut, hotels, bye))
    assert case.missed() == {LINKS}
    # an item that is no message: any id, but always the same one, and nobody else's
    tool = {"id": "ctx_tool", "role": "tool", "text": "{}"}
    seen = [replace(c, context_item_ids=["ctx_tool", *c.context_item_ids]) for c in (first, second)]
    case.truth = replace(case.truth, items=(tool, *items), llm_calls=tuple(seen))
    for second_id, right in (("msg_tool", True), ("msg_other", False), (hello, False)):
        case.change_step(0, context_ids=("msg_tool", hello, hotels))
        case.change_step(1, context_ids=(second_id, hello, hotels, cut, bye))
        assert case.missed() == (set() if right else {LINKS})


def test_a_call_of_a_tool_made_no_message_and_is_not_speculative(case: Case) -> None:
    step = case.call.llm_steps[0].model_copy(update={"span_id": "b" * 16, "output_ids": ()})
    steps = (step, *case.call.llm_steps)
    case.call, case.journal = (replace(c, llm_steps=steps) for c in (case.call, case.journal))
    asked = LLMCall(0, ORIGIN, case.truth.llm_calls[0].context_item_ids, "", tool_calls=["get_weather"])
    case.truth = replace(case.truth, llm_calls=(asked, *case.truth.llm_calls))
    case.change_agent(1, llm_call=1)
    case.change_agent(2, llm_call=2)
    assert not case.missed()
    case.change_step(0, speculative=True)
    assert case.missed() == {LINKS}


def test_a_lossy_recording_is_compared_by_length(case: Case) -> None:
    for name in ("call", "journal"):
        call = getattr(case, name)
        assert call.recording is not None
        recording = call.recording.model_copy(update={"format": "opus"})
        setattr(case, name, replace(call, recording=recording))
    case.change_agent(0, samples=case.truth.agent[0].samples + np.int16(3))
    assert not case.missed()
    case.change_agent(0, samples=case.truth.agent[0].samples[: RATE_HZ // 2])
    assert case.missed() == {CLIPS}
