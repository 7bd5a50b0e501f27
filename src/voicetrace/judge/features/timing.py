# SPDX-License-Identifier: Apache-2.0
"""Who spoke when: turns snapped to the audio, and what lies between and on top of them.

The messages say whose words they are; the audio says when they sounded. A bound moves to the edge of the
speech it means, up to 250 ms outwards, so that receipt jitter and the silence that a synthesiser puts around
speech do not count as somebody's pause. A call whose messages have no bounds is told from the audio alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from voicetrace.judge.features.table import Exchange, Overlap, Pause, Turn
from voicetrace.judge.features.text import is_backchannel
from voicetrace.messages import Recording, Role, Segment, State, VoiceMessage

Range = tuple[int, int]
Ranges = tuple[Range, ...]

SNAP_MS: Final = 250
_ONE_TURN_MS: Final = 700
BARGE_IN_MS: Final = 600
"""Shorter speech over the agent is a backchannel: it asks for nothing."""
TRIGGER_MS: Final = 1000
_ON_TOP_MS: Final = 100
_LAST_WORD_MS: Final = 3000


def turns_of(
    messages: Sequence[VoiceMessage],
    recording: Recording | None,
    caller: Ranges | None,
    agent: Ranges | None,
) -> tuple[Turn, ...]:
    """Every turn that sounded, in order of its start.

    ``caller`` and ``agent`` are the speech found in the channels, ``None`` for one nobody listened to.
    """
    turns = []
    bounded = False
    for message in messages:
        speech = caller if message.role is Role.USER else agent
        ranges = _ranges(message, recording)
        if not ranges:
            continue
        bounded = True
        ranges = tuple(_snapped(r, speech) for r in ranges)
        turns.append(
            Turn(
                message_id=message.id,
                role=message.role,
                start_ms=ranges[0][0],
                end_ms=max(end for _, end in ranges),
                ranges=ranges,
                state=message.state,
                committed=message.committed,
                text=message.text,
                text_status=message.text_status,
                text_source=message.text_source,
                timing_source=message.timing_source,
                interrupted_at_ms=message.interrupted_at_ms,
                speech_ms=None if speech is None else overlap_ms(ranges, speech),
            )
        )
    if not bounded:
        turns = [*_from_audio(Role.USER, caller), *_from_audio(Role.ASSISTANT, agent)]
    return tuple(sorted(turns, key=lambda t: (t.start_ms, t.end_ms, t.role, t.message_id or "")))


def exchanges_of(turns: Sequence[Turn], end_ms: int) -> tuple[Exchange, ...]:
    """Each committed user turn with the agent's first sound after it.

    Consecutive user turns are one, ended by the last. A turn that the agent speaks into has its answer at
    once. One that nobody answered counts only when the call went on for three seconds more: the last word
    of a call needs no answer.
    """
    out: list[Exchange] = []
    for index, turn in enumerate(turns):
        if turn.role is not Role.USER or not turn.committed or _is_aside(turn, turns):
            continue
        later = turns[index + 1 :]
        again = next(
            (t for t in later if t.role is Role.USER and t.committed and not _is_aside(t, turns)), None
        )
        answer = next(
            (
                (i, t)
                for i, t in enumerate(turns)
                if t.role is Role.ASSISTANT and t.end_ms > turn.end_ms and t.start_ms > turn.start_ms
            ),
            None,
        )
        if answer is not None and again is not None and again.start_ms <= answer[1].start_ms:
            continue  # the user went on before any answer: the later turn is what was answered
        cut = any(
            t.role is Role.ASSISTANT
            and t.state is State.INTERRUPTED
            and t.start_ms < turn.start_ms
            and turn.start_ms - TRIGGER_MS <= t.end_ms <= turn.end_ms + TRIGGER_MS
            for t in turns
        )
        if answer is None:
            if again is None and end_ms - turn.end_ms > _LAST_WORD_MS:
                out.append(
                    Exchange(user=index, answer=None, gap_ms=end_ms - turn.end_ms, after_interruption=cut)
                )
            continue
        gap = answer[1].start_ms - turn.end_ms
        out.append(Exchange(user=index, answer=answer[0], gap_ms=gap, after_interruption=cut))
    return tuple(out)


def pauses_of(turns: Sequence[Turn], agent: Ranges | None) -> tuple[Pause, ...]:
    """Silences while the agent had the floor: inside a turn, and between its turns with no user between."""
    out: list[Pause] = []
    own = [(i, t) for i, t in enumerate(turns) if t.role is Role.ASSISTANT]
    users = [r for t in turns if t.role is Role.USER for r in t.ranges]
    for index, turn in own:
        heard = _within(agent, turn) if agent is not None else list(turn.ranges)
        for (_, low), (high, _) in pairwise(heard):
            if high > low and not _any(users, low, high):
                out.append(Pause(turn=index, start_ms=low, end_ms=high))
    for (index, turn), (_, following) in pairwise(own):
        low, high = turn.end_ms, following.start_ms
        if high > low and turn.state is not State.INTERRUPTED and not _any(users, low - _ON_TOP_MS, high):
            out.append(Pause(turn=index, start_ms=low, end_ms=high))
    return tuple(sorted(out, key=lambda p: (p.start_ms, p.end_ms)))


def overlaps_of(turns: Sequence[Turn], agent: Ranges | None) -> tuple[Overlap, ...]:
    """Where both spoke at once, and agents that were stopped by nobody."""
    out: list[Overlap] = []
    own = [(i, t) for i, t in enumerate(turns) if t.role is Role.ASSISTANT]
    for index, turn in enumerate(turns):
        if turn.role is not Role.USER:
            continue
        for start, end in turn.ranges:
            for agent_index, spoken in own:
                rest = _rest(spoken, agent, (start, end))
                if rest is not None:
                    out.append(_spoken_over(index, turn, (start, end), agent_index, spoken, rest))
                elif start < spoken.start_ms < end - _ON_TOP_MS:
                    both = min(end, spoken.end_ms) - spoken.start_ms
                    out.append(
                        Overlap(
                            kind="talk_over",
                            user=index,
                            agent=agent_index,
                            at_ms=spoken.start_ms,
                            value_ms=both,
                        )
                    )
    for agent_index, spoken in own:
        if spoken.state is State.INTERRUPTED:
            # it may have been stopped in a pause, after its last sound
            at = max(spoken.end_ms, spoken.interrupted_at_ms or 0)
            near = [
                t
                for t in turns
                if t.role is Role.USER
                and any(s - _ON_TOP_MS <= at and e >= at - TRIGGER_MS for s, e in t.ranges)
            ]
            if not near:
                out.append(Overlap(kind="false_trigger", user=None, agent=agent_index, at_ms=at, value_ms=0))
    return tuple(sorted(out, key=lambda o: (o.at_ms, o.agent, o.kind)))


def overlap_ms(ranges: Sequence[Range], speech: Sequence[Range]) -> int:
    """How much of the ranges is speech."""
    return sum(max(0, min(e, f) - max(s, t)) for s, e in ranges for t, f in speech)


# -- parts -----------------------------------------------------------------------------------------
def _ranges(message: VoiceMessage, recording: Recording | None) -> Ranges:
    """A message's stretches in call-ms: its selections, else its bounds."""
    segments: dict[str, Segment] = recording.segments if recording is not None else {}
    ranges = [
        (segments[s.segment_id].start_ms + s.start_ms, segments[s.segment_id].start_ms + s.end_ms)
        for s in message.selections
        if s.segment_id in segments and s.end_ms > s.start_ms
    ]
    if not ranges and message.start_ms is not None and message.end_ms is not None:
        ranges = [(message.start_ms, message.end_ms)] if message.end_ms > message.start_ms else []
    return tuple(sorted(ranges))


def _snapped(bounds: Range, speech: Ranges | None) -> Range:
    """The bounds of the speech that lies within these; where there is none, as they were.

    Speech may begin or end up to 250 ms outside; what reaches further belongs to a neighbour too, and is cut
    at the bound.
    """
    start, end = bounds
    own = [(s, e) for s, e in speech or () if min(e, end) - max(s, start) >= min(_ON_TOP_MS, end - start)]
    if not own:
        return bounds
    low, high = own[0][0], own[-1][1]
    return (low if low >= start - SNAP_MS else start, high if high <= end + SNAP_MS else end)


def _from_audio(role: Role, speech: Ranges | None) -> list[Turn]:
    joined: list[list[Range]] = []
    for part in speech or ():
        if joined and part[0] - joined[-1][-1][1] < _ONE_TURN_MS:
            joined[-1].append(part)
        else:
            joined.append([part])
    return [
        Turn(
            message_id=None,
            role=role,
            start_ms=parts[0][0],
            end_ms=parts[-1][1],
            ranges=((parts[0][0], parts[-1][1]),),
            speech_ms=sum(e - s for s, e in parts),
        )
        for parts in joined
    ]


def _is_aside(turn: Turn, turns: Sequence[Turn]) -> bool:
    """A user turn that asks for no answer: a word of assent while the agent speaks."""
    over = any(
        t.role is Role.ASSISTANT and t.start_ms < turn.start_ms < t.end_ms and t.end_ms >= turn.end_ms
        for t in turns
    )
    return over and (turn.length_ms < BARGE_IN_MS or is_backchannel(turn.text))


def _within(speech: Ranges, turn: Turn) -> list[Range]:
    return [
        (max(s, turn.start_ms), min(e, turn.end_ms))
        for s, e in speech
        if s < turn.end_ms and e > turn.start_ms
    ]


def _any(ranges: Sequence[Range], low: int, high: int) -> bool:
    return any(s < high and e > low for s, e in ranges)


def _rest(spoken: Turn, agent: Ranges | None, speech: Range) -> Range | None:
    """What the agent still says of a turn into which somebody speaks; ``None`` when they do not."""
    start, end = speech
    if not spoken.start_ms + _ON_TOP_MS <= start < spoken.end_ms - _ON_TOP_MS:
        return None
    parts = _within(agent, spoken) if agent is not None else list(spoken.ranges)
    after = [(max(s, start), e) for s, e in parts if e > start + _ON_TOP_MS and s < end]
    return (after[0][0], after[-1][1]) if after else None


def _spoken_over(
    index: int, turn: Turn, speech: Range, agent_index: int, spoken: Turn, rest: Range
) -> Overlap:
    start, end = speech
    if end - start < BARGE_IN_MS or is_backchannel(turn.text):
        stopped = spoken.state is State.INTERRUPTED and rest[1] - end < TRIGGER_MS
        value = max(0, rest[1] - start) if stopped else -1
        return Overlap(kind="backchannel", user=index, agent=agent_index, at_ms=start, value_ms=value)
    return Overlap(
        kind="barge_in", user=index, agent=agent_index, at_ms=start, value_ms=min(rest[1], end) - start
    )
