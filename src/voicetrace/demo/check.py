# SPDX-License-Identifier: Apache-2.0
"""Is the record of the demo call true? Each `Bar` compares one thing the record says with what happened.

The record is a `VoiceCall`, the truth a `GroundTruth` from the doubles' own samples and clocks. Nothing
here runs a call or needs a framework, so that every bar can be missed on purpose in a test.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from voicetrace.audio import ClipError
from voicetrace.messages import LLMStep, Role, VoiceMessage
from voicetrace.voice_call import VoiceCall

if TYPE_CHECKING:
    from voicetrace.demo.truth import AgentTruth, CallerTruth, GroundTruth

USER_BOUND_MS: Final = 120
USER_MEDIAN_MS: Final = 60
AGENT_BOUND_MS: Final = 25
CUT_WORDS: Final = 1
_LOSSLESS: Final = ("wav", "flac")
_LOSSY_CLIP_MS: Final = 20


@dataclass(frozen=True)
class Bar:
    """One thing that was compared: what must hold, what was measured, and whether it holds.

    ``values`` are the single measurements (ms, words or counts) behind ``measured``; ``misses`` says one
    sentence for each thing that is wrong, and is empty when the bar is met.
    """

    name: str
    wanted: str
    measured: str
    misses: tuple[str, ...] = ()
    values: tuple[float, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the bar is met."""
        return not self.misses


def check_call(
    truth: GroundTruth, call: VoiceCall, *, journal: VoiceCall, bundle_problems: Sequence[str] = ()
) -> list[Bar]:
    """Compare a call with the truth, bar by bar; every bar is always in the list.

    ``call`` is what the spans say and ``journal`` what the journal says; both must say the same.
    ``bundle_problems`` is what `validate_bundle` said of the call's bundle.
    """
    matched = _Matched(truth, call)
    return [
        *_user_bounds(matched),
        _agent_bounds(matched),
        _clips(matched),
        _heard_on_cut(matched),
        _faults("messages lost, doubled or out of order", _message_faults(matched)),
        _faults("links to LLM steps that are wrong", _link_faults(matched)),
        _faults("warnings", [*call.warnings, *(w for w in journal.warnings if w not in call.warnings)]),
        _faults("differences between spans and journal", _differences(call, journal)),
        _faults("problems of the bundle", bundle_problems),
    ]


# -- which record is which truth ---------------------------------------------------------------------
@dataclass(frozen=True)
class _Expected:
    """One message that must be in the record once. `text`: all that was said, or generated."""

    name: str
    role: Role
    text: str
    start_unix: float
    agent: AgentTruth | None = None
    sounds: tuple[CallerTruth, ...] = ()


class _Matched:
    """The truth's messages and the record's, paired by role and text; what is left over is a fault."""

    def __init__(self, truth: GroundTruth, call: VoiceCall) -> None:
        self.truth = truth
        self.call = call
        self.origin_unix_ms = call.origin_unix_ms or 0
        self.expected = sorted(_expected(truth), key=lambda e: e.start_unix)
        self.committed = [m for m in call.messages if m.committed]
        self.uncommitted = [m for m in call.messages if not m.committed]
        self.noises = [c for c in truth.caller if c.message is None]
        self.records: dict[str, list[VoiceMessage]] = {
            e.name: [m for m in self.committed if m.role is e.role and _whole_text(m) == e.text]
            for e in self.expected
        }

    def ms(self, unix_seconds: float) -> float:
        return unix_seconds * 1000 - self.origin_unix_ms

    def pairs(self) -> Iterator[tuple[_Expected, VoiceMessage]]:
        """Each truth with its record; those that have none are counted elsewhere."""
        for expected in self.expected:
            if self.records[expected.name]:
                yield expected, self.records[expected.name][0]

    def agents(self) -> Iterator[tuple[AgentTruth, VoiceMessage]]:
        for expected, message in self.pairs():
            if expected.agent is not None:
                yield expected.agent, message


def _expected(truth: GroundTruth) -> Iterator[_Expected]:
    for name, text in truth.messages:
        sounds = tuple(c for c in truth.caller if c.message == name)
        yield _Expected(f"user {name}", Role.USER, text, sounds[0].start_unix, sounds=sounds)
    for agent in truth.agent:
        yield _Expected(f"agent {agent.clip}", Role.ASSISTANT, agent.text, agent.runs[0][0], agent=agent)


def _whole_text(message: VoiceMessage) -> str:
    return (message.generated_text or message.text or "").strip()


# -- times -------------------------------------------------------------------------------------------
def _user_bounds(matched: _Matched) -> list[Bar]:
    errors: dict[str, float] = {}
    misses: list[str] = []
    for expected, message in matched.pairs():
        if expected.role is Role.USER:
            _compare_ranges(matched, message, expected.name, expected.sounds, errors, misses)
    misses += [
        f"{name} is off by {error:+.0f} ms" for name, error in errors.items() if abs(error) > USER_BOUND_MS
    ]
    sizes = [abs(e) for e in errors.values()]
    worst = max(sizes, default=float("nan"))
    median = statistics.median(sizes) if sizes else float("nan")
    if not sizes:
        misses.append("no bound of a user message could be compared")
    values = tuple(errors.values())
    return [
        Bar(
            "user bounds, each",
            f"within {USER_BOUND_MS} ms of the true speech",
            f"worst {worst:.0f} ms of {len(sizes)}",
            tuple(misses),
            values,
        ),
        Bar(
            "user bounds, median",
            f"within {USER_MEDIAN_MS} ms",
            f"{median:.0f} ms",
            () if median <= USER_MEDIAN_MS else (f"the median is {median:.0f} ms",),
            values,
        ),
    ]


def _compare_ranges(
    matched: _Matched,
    message: VoiceMessage,
    name: str,
    sounds: Sequence[CallerTruth],
    errors: dict[str, float],
    misses: list[str],
) -> None:
    """Every stretch of speech where they are known (from the selections), and the outer bounds always."""
    spans = _ranges(matched.call, message)
    truths = [(matched.ms(s.start_unix), matched.ms(s.end_unix)) for s in sounds]
    if message.start_ms is None or message.end_ms is None:
        misses.append(f"{name} has no bounds")
        return
    errors[f"{name} start"] = message.start_ms - truths[0][0]
    errors[f"{name} end"] = message.end_ms - truths[-1][1]
    if spans and len(spans) != len(truths):
        misses.append(f"{name} was {len(truths)} stretches of speech and has {len(spans)} ranges")
        return
    for number, ((start, end), (true_start, true_end)) in enumerate(zip(spans, truths, strict=False)):
        if number > 0:
            errors[f"{name} range {number + 1} start"] = start - true_start
        if number < len(truths) - 1:
            errors[f"{name} range {number + 1} end"] = end - true_end


def _ranges(call: VoiceCall, message: VoiceMessage) -> list[tuple[int, int]]:
    """The message's selections in call-ms."""
    segments = call.recording.segments if call.recording is not None else {}
    return [
        (segments[s.segment_id].start_ms + s.start_ms, segments[s.segment_id].start_ms + s.end_ms)
        for s in message.selections
        if s.segment_id in segments
    ]


def _agent_bounds(matched: _Matched) -> Bar:
    errors: dict[str, float] = {}
    misses: list[str] = []
    for agent, message in matched.agents():
        if message.start_ms is None or message.end_ms is None:
            misses.append(f"{agent.clip} has no bounds")
            continue
        began, _, _ = agent.runs[0]
        last, _, length = agent.runs[-1]
        errors[f"{agent.clip} start"] = message.start_ms - matched.ms(began)
        errors[f"{agent.clip} end"] = message.end_ms - matched.ms(last + length)
    misses += [
        f"{name} is off by {error:+.1f} ms" for name, error in errors.items() if abs(error) > AGENT_BOUND_MS
    ]
    if not errors:
        misses.append("no bound of an agent message could be compared")
    worst = max((abs(e) for e in errors.values()), default=float("nan"))
    return Bar(
        "agent bounds",
        f"within {AGENT_BOUND_MS} ms of what the sink played",
        f"worst {worst:.1f} ms of {len(errors)}",
        tuple(misses),
        tuple(errors.values()),
    )


# -- audio and text ----------------------------------------------------------------------------------
def _clips(matched: _Matched) -> Bar:
    recording = matched.call.recording
    lossless = recording is None or recording.format in _LOSSLESS
    misses: list[str] = []
    whole = [(a, m) for a, m in matched.agents() if not a.cut]
    for agent, message in whole:
        try:
            clip = matched.call.clip(message)
        except ClipError as error:
            misses.append(str(error))
            continue
        if not lossless:
            difference = clip.duration_ms - round(len(agent.samples) * 1000 / agent.sample_rate)
            if abs(difference) > _LOSSY_CLIP_MS:
                misses.append(f"the clip of {agent.clip} is {difference:+d} ms longer than what played")
        elif clip.sample_rate_hz != agent.sample_rate or not np.array_equal(clip.samples, agent.samples):
            misses.append(
                f"the clip of {agent.clip} has {clip.samples.size} samples at {clip.sample_rate_hz} Hz and "
                f"differs from the {len(agent.samples)} at {agent.sample_rate} Hz that played"
            )
    if not whole:
        misses.append("no agent message was played whole")
    wanted = (
        "equal to what played, every sample" if lossless else f"as long, {recording and recording.format}"
    )
    return Bar(
        "clips of messages played whole",
        wanted,
        f"{len(whole) - len(misses) if whole else 0} of {len(whole)}",
        tuple(misses),
        (float(len(misses)),),
    )


def _heard_on_cut(matched: _Matched) -> Bar:
    misses: list[str] = []
    measured: list[str] = []
    values: list[float] = []
    for agent, message in matched.agents():
        if not agent.cut:
            continue
        heard, said = list(agent.heard_words()), (message.text or "").split()
        whole = agent.text.split()
        off = len(said) - len(heard)
        values.append(off)
        measured.append(f"{len(said)} words, {len(heard)} played to the end")
        if said != whole[: len(said)]:
            misses.append(f"the text heard of {agent.clip} is not the beginning of what was said")
        if abs(off) > CUT_WORDS:
            misses.append(f"the text heard of {agent.clip} is {off:+d} words off")
        if message.state != "interrupted":
            misses.append(f"{agent.clip} was cut and its state is {message.state}")
    if not measured:
        misses.append("the record has no message that was cut")
    return Bar(
        "text heard on the cut reply",
        f"the words that played, ± {CUT_WORDS}",
        "; ".join(measured) or "none",
        tuple(misses),
        tuple(values),
    )


# -- messages and links ------------------------------------------------------------------------------
def _faults(what: str, faults: Iterable[str]) -> Bar:
    found = tuple(faults)
    return Bar(what, "0", str(len(found)), found, (float(len(found)),))


def _message_faults(matched: _Matched) -> list[str]:
    faults: list[str] = []
    claimed: set[str] = set()
    for expected in matched.expected:
        records = matched.records[expected.name]
        claimed |= {m.id for m in records}
        if not records:
            faults.append(f"{expected.name} is lost")
        elif len(records) > 1:
            faults.append(f"{expected.name} is there {len(records)} times")
        elif expected.agent is not None and not expected.agent.cut:
            message = records[0]
            if message.text != expected.text or message.state != "complete":
                faults.append(f"{expected.name} was played whole and is {message.state}: {message.text!r}")
    faults += [
        f"the provider was told to cut {agent.clip} at {agent.truncated_ms} ms, "
        f"the record says {message.provider_audio_end_ms}"
        for agent, message in matched.agents()
        if message.provider_audio_end_ms != agent.truncated_ms
    ]
    faults += [
        f"{m.role} message {m.id} was never said: {_whole_text(m)!r}"
        for m in matched.committed
        if m.id not in claimed
    ]
    # committed messages begin in the order of seq; a barge-in is numbered after the speech it cut
    order = [m.id for _, m in matched.pairs()]
    if order != [m.id for m in matched.committed if m.id in set(order)]:
        faults.append("the messages are not in the order in which they began")
    seqs = Counter(m.seq for m in matched.call.messages)
    faults += [f"seq {seq} is used {count} times" for seq, count in seqs.items() if count > 1]
    faults += _noise_faults(matched)
    return faults


def _noise_faults(matched: _Matched) -> list[str]:
    """A sound that is no message is an uncommitted user record without text, once."""
    faults = []
    if len(matched.uncommitted) != len(matched.noises):
        faults.append(
            f"{len(matched.noises)} sounds were no message; "
            f"{len(matched.uncommitted)} records are uncommitted"
        )
    faults += [
        f"uncommitted message {m.id} is {m.role}, {m.state}, {m.text_status}"
        for m in matched.uncommitted
        if m.role is not Role.USER or m.state != "complete" or m.text_status != "missing"
    ]
    for noise, message in zip(matched.noises, matched.uncommitted, strict=False):
        start, end = matched.ms(noise.start_unix), matched.ms(noise.end_unix)
        if message.start_ms is None or message.end_ms is None:
            faults.append(f"uncommitted message {message.id} has no bounds")
        elif message.start_ms > end or message.end_ms < start:  # where such a sound begins is anyone's guess
            faults.append(f"uncommitted message {message.id} is not where {noise.clip} sounded")
    return faults


def _link_faults(matched: _Matched) -> list[str]:
    call, truth = matched.call, matched.truth
    steps, calls = call.llm_steps, truth.llm_calls
    if len(steps) != len(calls):
        return [f"the LLM was called {len(calls)} times and the record has {len(steps)} steps"]
    faults: list[str] = []
    made: dict[int, str] = {}
    names = _item_names(matched)
    for agent, message in matched.agents():
        if agent.llm_call is None:
            if message.produced_by_span_id is not None or call.produced_by(message) is not None:
                faults.append(f"{agent.clip} was said without the LLM and names a step")
            continue
        step = steps[agent.llm_call]
        made[agent.llm_call] = message.id
        if message.produced_by_span_id != step.span_id:
            faults.append(f"{agent.clip} names step {message.produced_by_span_id}, it was {step.span_id}")
    for number, step in enumerate(steps):
        want = (made[number],) if number in made else ()
        if step.output_ids != want:
            faults.append(f"LLM call {number} made {want or 'nothing'}, its span says {step.output_ids}")
        unused = number not in made and not calls[number].tool_calls
        if step.speculative != unused:
            faults.append(
                f"LLM call {number} was {'' if unused else 'not '}speculative, its span says otherwise"
            )
        faults += _context_faults(matched, number, step, names)
    return faults


def _item_names(matched: _Matched) -> dict[str, str]:
    """The record's id of each item that has a name only: the item's message has its text, once."""
    if matched.truth.items_have_ids:
        return {}
    names: dict[str, str] = {}
    for item in matched.truth.items:
        same = [m.id for m in matched.committed if m.role.value == item["role"] and m.text == item["text"]]
        if len(same) == 1:
            names[str(item["id"])] = same[0]
    return names


def _context_faults(matched: _Matched, number: int, step: LLMStep, names: dict[str, str]) -> list[str]:
    """The ids the LLM saw, where an id that never committed is null, or the id its message got.

    Items without an id of their own keep the one they were first listed with, which no other has.
    """
    seen = matched.truth.llm_calls[number].context_item_ids
    if len(seen) != len(step.context_ids):
        return [f"LLM call {number} saw {len(seen)} items, its span lists {len(step.context_ids)}"]
    # what a later call saw as well, tool calls and results included, is in the context for good
    lasting = {str(item["id"]) for item in matched.truth.items}
    lasting.update(i for later in matched.truth.llm_calls[number + 1 :] for i in later.context_item_ids)
    newest = {m.id for m in matched.committed if m.role is Role.USER}
    earlier: set[str] = set()
    faults = []
    for position, (saw, listed) in enumerate(zip(seen, step.context_ids, strict=True)):
        # only the newest input can be an attempt's own
        attempt = position == len(seen) - 1 and saw not in lasting
        if not matched.truth.items_have_ids and listed is not None and listed not in names.values():
            names.setdefault(saw, listed)
        is_it = listed == (saw if matched.truth.items_have_ids else names.get(saw))
        fine = (listed is None or listed in newest - earlier) if attempt else is_it
        if not fine:
            faults.append(f"LLM call {number} saw {saw} at {position}, its span lists {listed}")
        if listed is not None:
            earlier.add(listed)
    return faults


def _differences(call: VoiceCall, journal: VoiceCall) -> list[str]:
    mine, theirs = ({m.id: m for m in c.messages} for c in (call, journal))
    ids = sorted(mine.keys() | theirs.keys())
    out = [f"message {i} differs" for i in ids if mine.get(i) != theirs.get(i)]
    if [m.id for m in call.messages] != [m.id for m in journal.messages]:
        out.append("the messages are in another order")
    if [_link(s) for s in call.llm_steps] != [_link(s) for s in journal.llm_steps]:
        out.append("the LLM steps differ")
    facts = [(c.recording.sha256, c.recording.segments) if c.recording else None for c in (call, journal)]
    if facts[0] != facts[1]:
        out.append("the recording differs")
    if (call.call_id, call.origin_unix_ms) != (journal.call_id, journal.origin_unix_ms):
        out.append("the call's id or origin differs")
    return out


def _link(step: LLMStep) -> tuple[object, ...]:
    return (step.span_id, step.trace_id, step.context_ids, step.output_ids, step.speculative)
