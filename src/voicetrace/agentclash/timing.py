# SPDX-License-Identifier: Apache-2.0
"""When who was heard, and which agent audio answered which user speech. All times are call-ms.

Only what the messages say is used. Audio ranges come from a message's selections, moved from segment ms
to call-ms; where it has none, from its outer bounds. An answer is found through the LLM step that made it:
the last user message in that step's context is what it answers. Only a message without such a step (a
`say()`, a call read without LLM spans) is taken to answer the user message before it in ``seq``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from voicetrace.messages import Channel, Role, TextSource, VoiceMessage
from voicetrace.voice_call import VoiceCall

if TYPE_CHECKING:
    from voicetrace.agentclash.vad import Activity

UNANSWERED_AFTER_MS: Final = 3000
"""User speech without an answer for this long is unanswered, also when the user then speaks again; sooner,
it is one turn spoken in two goes."""

GAP_MIN_MS: Final = 20
"""Shorter breaks between two stretches of output are rounding: one audio frame. This holds where only the
messages are known; in the audio itself a pause is a gap from `VadSettings.min_silence_ms` on."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Unbroken audio of one message; ``end_ms`` is ``None`` while it is not known."""

    message: VoiceMessage
    start_ms: int
    end_ms: int | None


@dataclass(frozen=True, slots=True)
class Exchange:
    """One turn of user speech, of one message or several, and the first agent audio that answers it."""

    user_ids: tuple[str, ...]
    end_of_speech_ms: int
    answer_id: str | None
    first_audio_ms: int | None

    @property
    def latency_ms(self) -> int | None:
        """From the end of the user's speech to the answer's first audio; 0 when that came before the end."""
        return None if self.first_audio_ms is None else max(0, self.first_audio_ms - self.end_of_speech_ms)


@dataclass(frozen=True, slots=True)
class Gap:
    """Silence between two stretches of the same answer, before the message with this id went on."""

    message_id: str
    start_ms: int
    end_ms: int


def in_order(call: VoiceCall) -> list[VoiceMessage]:
    """The call's messages by ``seq``, and by start where a number is shared."""
    return sorted(call.messages, key=lambda m: (m.seq, m.start_ms if m.start_ms is not None else -1, m.id))


def ranges(call: VoiceCall, message: VoiceMessage) -> list[tuple[int, int]]:
    """The message's selections as call-ms ranges, ascending, touching ones joined; empty without any."""
    segments = call.recording.segments if call.recording else {}
    own = Channel.CALLER if message.role is Role.USER else Channel.AGENT
    found = sorted(
        (segments[s.segment_id].start_ms + s.start_ms, segments[s.segment_id].start_ms + s.end_ms)
        for s in message.selections
        if s.channel is own and s.segment_id in segments and s.end_ms > s.start_ms
    )
    out: list[tuple[int, int]] = []
    for start, end in found:
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return out


def stretches(call: VoiceCall, role: Role) -> list[Stretch]:
    """Everything this role was heard saying, by time."""
    out: list[Stretch] = []
    for message in call.messages:
        if message.role is not role:
            continue
        found = ranges(call, message)
        if found:
            out += [Stretch(message, start, end) for start, end in found]
        elif message.start_ms is not None and (message.end_ms is None or message.end_ms > message.start_ms):
            out.append(Stretch(message, message.start_ms, message.end_ms))
    return sorted(out, key=lambda s: (s.start_ms, s.message.seq))


@dataclass(frozen=True, slots=True)
class Answer:
    """Which user message an agent message answers; ``linked`` when an LLM step's context says so."""

    user_id: str
    linked: bool


def answers(call: VoiceCall) -> dict[str, Answer]:
    """What each agent message answers, by message id; without those that answer nobody, as a greeting."""
    by_span = {step.span_id: step for step in call.llm_steps}
    by_output = {output: step for step in reversed(call.llm_steps) for output in step.output_ids}
    users = {m.id for m in call.messages if m.role is Role.USER}
    out: dict[str, Answer] = {}
    last_committed: str | None = None
    for message in in_order(call):
        if message.role is Role.USER:
            last_committed = message.id if message.committed else last_committed
            continue
        step = by_span.get(message.produced_by_span_id or "") or by_output.get(message.id)
        read = next((i for i in reversed(step.context_ids if step else ()) if i in users), None)
        if read is not None:
            out[message.id] = Answer(read, linked=True)
        elif last_committed is not None:
            out[message.id] = Answer(last_committed, linked=False)
    return out


def exchanges(call: VoiceCall) -> list[Exchange]:
    """The turns of committed user speech whose end is known, in order, each with its answer if it got one."""
    speech: dict[str, list[Stretch]] = {}
    for stretch in stretches(call, Role.USER):
        speech.setdefault(stretch.message.id, []).append(stretch)
    answered = answers(call)
    first: dict[str, Stretch] = {}
    for stretch in stretches(call, Role.ASSISTANT):
        answer = answered.get(stretch.message.id)
        if answer is not None:
            first.setdefault(answer.user_id, stretch)

    out: list[Exchange] = []
    waiting: list[str] = []
    waiting_since = 0
    for user in in_order(call):
        heard = speech.get(user.id, [])
        end = heard[-1].end_ms if heard else None
        if not user.committed or end is None:
            continue
        if waiting and heard[0].start_ms - waiting_since >= UNANSWERED_AFTER_MS:
            out.append(Exchange(tuple(waiting), waiting_since, None, None))
            waiting = []
        waiting.append(user.id)
        waiting_since = end
        if user.id in first:
            heard_first = first[user.id]
            out.append(Exchange(tuple(waiting), end, heard_first.message.id, heard_first.start_ms))
            waiting = []
    if waiting:
        out.append(Exchange(tuple(waiting), waiting_since, None, None))
    return out


def output_gaps(call: VoiceCall, agent: Activity | None = None) -> list[Gap]:
    """Silences inside one agent message, and between two that answer the same user message.

    With the agent's audio, silence is what is silent in it; without, it is what no message covers. A gap in
    which the user spoke is none. The agent's second prompt after the user stayed silent counts: what the
    listener heard was dead air.
    """
    speech = stretches(call, Role.USER)
    shortest = GAP_MIN_MS if agent is None else agent.min_silence_ms
    out: list[Gap] = []
    for reply in _replies(call):
        last_end: int | None = None
        for message_id, start, end in _sounds(reply, agent):
            if last_end is not None and start - last_end >= shortest:
                spoke = any(s.start_ms < start and (s.end_ms is None or s.end_ms > last_end) for s in speech)
                if not spoke:
                    out.append(Gap(message_id, last_end, start))
            last_end = end if last_end is None or end is None else max(last_end, end)
            if end is None:
                break
    return out


def _replies(call: VoiceCall) -> Iterator[list[Stretch]]:
    """Output that belongs together: of one message, or of several that answer the same user message."""
    answered = answers(call)
    reply: list[Stretch] = []
    for stretch in stretches(call, Role.ASSISTANT):
        if reply and not _same_answer(answered, reply[-1].message, stretch.message):
            yield reply
            reply = []
        reply.append(stretch)
    if reply:
        yield reply


def _sounds(reply: list[Stretch], agent: Activity | None) -> Iterator[tuple[str, int, int | None]]:
    for stretch in reply:
        if agent is None or stretch.end_ms is None:
            yield stretch.message.id, stretch.start_ms, stretch.end_ms
            continue
        for start, end in agent.within(stretch.start_ms, stretch.end_ms):
            yield stretch.message.id, start, end


def first_sounds(call: VoiceCall, agent: Activity) -> dict[str, int]:
    """When the first sound of each agent message is in its audio; without those that have none."""
    out: dict[str, int] = {}
    for stretch in stretches(call, Role.ASSISTANT):
        if stretch.end_ms is not None and stretch.message.id not in out:
            for start, _ in agent.within(stretch.start_ms, stretch.end_ms)[:1]:
                out[stretch.message.id] = start
    return out


def _same_answer(answered: dict[str, Answer], a: VoiceMessage, b: VoiceMessage) -> bool:
    if a.id == b.id:
        return True
    first = answered.get(a.id)
    return first is not None and first.linked and first == answered.get(b.id)


def is_spoken(message: VoiceMessage) -> bool:
    """Tell whether a message should have audio: everything but typed input."""
    return message.text_source is not TextSource.TEXT_INPUT
