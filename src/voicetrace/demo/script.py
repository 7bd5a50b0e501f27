# SPDX-License-Identifier: Apache-2.0
"""The demo call as data: recordings with their true timings, and who says what when.

Nothing here runs a call. `load_clip` reads one recording; `Scenario` says when the caller speaks, what the
scripted speech-to-text, LLM and tool answer, and what a faithful record of the call has to contain.
Sample positions are integers in the clip's own rate; ``*_ms`` in a scenario are durations.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import soundfile as sf  # type: ignore[import-untyped,unused-ignore]

Samples = npt.NDArray[np.int16]

_SERVER_SILENCE_MS = 500  # what the OpenAI family's server waits for, unless told otherwise


@dataclass(frozen=True)
class Word:
    """A word of an agent clip: its samples are ``[start, end)``, exactly, because it was joined there."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class RecordedClip:
    """One recording: mono int16 ``samples`` (read-only, 1-D) at ``sample_rate`` Hz.

    Speech is inside ``[speech_start, speech_end)``; the samples outside are digital silence. ``words`` is
    empty for caller clips, whose words nobody times.
    """

    name: str
    text: str
    sample_rate: int
    samples: Samples = field(repr=False)
    speech_start: int
    speech_end: int
    words: tuple[Word, ...] = field(default=(), repr=False)

    @property
    def duration_s(self) -> float:
        """Length of the clip, in seconds."""
        return len(self.samples) / self.sample_rate


@cache
def catalogue() -> dict[str, dict[str, Any]]:
    """``clips.json``: what is known of each clip, by name."""
    text = (files(__package__) / "data" / "clips.json").read_text(encoding="utf-8")
    clips: dict[str, dict[str, Any]] = json.loads(text)["clips"]
    return clips


@cache
def load_clip(name: str) -> RecordedClip:
    """Read one clip of the package's data.

    Raises:
        LookupError: there is no clip of that name.
    """
    try:
        facts = catalogue()[name]
    except KeyError:
        raise LookupError(f"no demo clip {name!r}; there are {', '.join(sorted(catalogue()))}") from None
    with (files(__package__) / "data" / facts["file"]).open("rb") as file:
        samples, sample_rate = sf.read(file, dtype="int16")
    samples.flags.writeable = False
    start, end = facts["speech"]
    words = tuple(Word(w["text"], w["start"], w["end"]) for w in facts.get("words", ()))
    return RecordedClip(name, facts["text"], sample_rate, samples, start, end, words)


def tokenize(text: str) -> list[str]:
    """Cut a reply into tokens of a word with its leading space, which join to the text again."""
    words = text.split(" ")
    return [] if not text else [words[0], *(f" {word}" for word in words[1:])]


@dataclass(frozen=True)
class Cue:
    """When something begins, relative to something that happened.

    ``delay_ms`` after the agent utterance ``agent`` started or finished playing, or after the caller
    utterance ``caller`` ended (exactly one of the two is set).
    """

    delay_ms: int
    agent: str | None = None
    at: Literal["started", "finished"] = "finished"
    caller: str | None = None


@dataclass(frozen=True)
class CallerUtterance:
    """Something that sounds in the caller's room: clip ``clip``, its speech beginning at ``cue``.

    ``message`` groups utterances that belong to one user message; ``None`` for what must never become
    one. ``interims`` are ``(text, ms after the true speech start)``; ``final`` arrives ``final_delay_ms``
    after the true speech end, and not at all when it is ``None``.
    """

    clip: str
    cue: Cue
    message: str | None = None
    interims: tuple[tuple[str, int], ...] = ()
    final: str | None = None
    final_delay_ms: int = 300


@dataclass(frozen=True)
class ToolCall:
    """A function call the scripted LLM makes; ``arguments`` is JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Reply:
    """What the LLM answers when the newest thing it sees is ``heard`` (user text) or ``tool``'s result.

    ``unheard`` is the answer to the framework's own remark that somebody spoke and nothing was understood.
    """

    heard: str | None = None
    tool: str | None = None
    unheard: bool = False
    text: str = ""
    call: ToolCall | None = None
    first_token_ms: int = 180
    token_ms: int = 25


@dataclass(frozen=True)
class AgentUtterance:
    """What the agent is to speak, in order: ``heard`` says how much of it the caller gets to hear."""

    clip: str
    source: Literal["say", "reply"] = "reply"
    heard: Literal["all", "cut", "all_with_pause"] = "all"


@dataclass(frozen=True)
class Scenario:
    """One call from start to close."""

    name: str
    caller: tuple[CallerUtterance, ...]
    agent: tuple[AgentUtterance, ...]
    replies: tuple[Reply, ...]
    tool_results: dict[str, str]
    tool_ms: int = 350
    #: how long the caller must be silent before the turn is over; longer than the pause in the split turn
    endpointing_ms: int = 1000
    false_interruption_ms: int = 900
    #: how long a turn in which nothing was understood stays open, where the framework has such turns;
    #: longer than ``endpointing_ms`` and any ``final_delay_ms``
    empty_turn_ms: int = 2000
    hang_up_ms: int = 600
    #: a call that is not over by then is stuck
    limit_s: float = 120.0

    def messages(self) -> tuple[tuple[str, str], ...]:
        """``(message, text)`` of every user message that must be committed, in order of first speech."""
        said: dict[str, list[str]] = {}
        for utterance in self.caller:
            if utterance.message is not None and utterance.final is not None:
                said.setdefault(utterance.message, []).append(utterance.final)
        return tuple((message, " ".join(parts)) for message, parts in said.items())


def travel_call() -> Scenario:
    """The demo: a greeting, a turn split by a pause, a tool step, a barge-in, a cough, a false interruption.

    About 46 s in real time. The agent pauses at the false interruption and then goes on, as LiveKit's does.
    """
    return Scenario(
        name="travel",
        caller=(
            CallerUtterance(
                clip="caller_weather_1",
                cue=Cue(600, agent="agent_greeting"),
                message="weather",
                interims=(("Could you", 500),),
                final="Could you tell me",
                final_delay_ms=280,
            ),
            CallerUtterance(  # the pause: two stretches of speech, one turn
                clip="caller_weather_2",
                cue=Cue(650, caller="caller_weather_1"),
                message="weather",
                interims=(("what the", 500), ("what the weather is", 1000)),
                final="what the weather is in Paris?",
                final_delay_ms=320,
            ),
            CallerUtterance(
                clip="caller_hotel",
                cue=Cue(600, agent="agent_weather"),
                message="hotels",
                interims=(("Now which hotels", 900),),
                final="Now which hotels are near the station?",
                final_delay_ms=350,
            ),
            CallerUtterance(  # the barge-in
                clip="caller_barge_in",
                cue=Cue(3000, agent="agent_hotels", at="started"),
                message="book",
                interims=(("Sorry, just", 900),),
                final="Sorry, just book the cheapest one.",
                final_delay_ms=260,
            ),
            CallerUtterance(  # speech to a voice activity detector, and nothing to anybody else
                clip="cough",
                cue=Cue(3200, agent="agent_booked"),
            ),
            CallerUtterance(
                clip="caller_breakfast",
                cue=Cue(3300, caller="cough"),
                message="breakfast",
                interims=(("Is breakfast", 800),),
                final="Is breakfast included?",
                final_delay_ms=400,
            ),
            CallerUtterance(  # a voice in the room while the agent speaks: the false interruption
                clip="murmur",
                cue=Cue(1500, agent="agent_breakfast", at="started"),
            ),
            CallerUtterance(
                clip="caller_bye",
                cue=Cue(600, agent="agent_breakfast"),
                message="bye",
                interims=(("No, that is all.", 1100),),
                final="No, that is all. Thank you.",
                final_delay_ms=300,
            ),
        ),
        agent=(
            AgentUtterance("agent_greeting", source="say"),
            AgentUtterance("agent_weather"),
            AgentUtterance("agent_hotels", heard="cut"),
            AgentUtterance("agent_booked"),
            AgentUtterance("agent_breakfast", heard="all_with_pause"),
            AgentUtterance("agent_bye"),
        ),
        replies=(
            # the first half of the split turn alone: an answer that is generated on speculation, never spoken
            Reply(heard="Could you tell me", text="Of course. What would you like to know?"),
            Reply(
                heard="Could you tell me what the weather is in Paris?",
                call=ToolCall("get_weather", '{"city": "Paris"}'),
            ),
            Reply(tool="get_weather", text=load_clip("agent_weather").text),
            Reply(heard="Now which hotels are near the station?", text=load_clip("agent_hotels").text),
            Reply(heard="Sorry, just book the cheapest one.", text=load_clip("agent_booked").text),
            Reply(heard="Is breakfast included?", text=load_clip("agent_breakfast").text),
            Reply(heard="No, that is all. Thank you.", text=load_clip("agent_bye").text),
        ),
        tool_results={"get_weather": "sunny, 22 degrees"},
    )


def travel_call_without_resume() -> Scenario:
    """The same call where a false interruption ends the reply, as in Pipecat.

    There any voice cuts the agent for good. When nothing was understood, the framework tells the LLM so,
    and the agent asks again: one more agent utterance, and the caller's goodbye follows that one.
    About 50 s in real time.
    """
    call = travel_call()
    pardon = load_clip("agent_pardon")
    caller = list(call.caller)
    caller[-1] = replace(caller[-1], cue=Cue(600, agent="agent_pardon"))
    agent = [replace(u, heard="cut") if u.heard == "all_with_pause" else u for u in call.agent]
    agent.insert(-1, AgentUtterance("agent_pardon"))
    return replace(
        call,
        name="travel_without_resume",
        caller=tuple(caller),
        agent=tuple(agent),
        replies=(*call.replies, Reply(unheard=True, text=pardon.text)),
    )


def travel_call_realtime() -> Scenario:
    """The same call with a model that hears and speaks by itself, and whose provider takes turns.

    There each stretch of speech is an item of its own, so the split turn is two messages before one answer;
    any voice cuts the agent for good. The cough becomes no item; the murmur becomes one that never gets a
    transcript, and the agent asks again. The agent greets by an answer that it is asked for. About 50 s in
    real time.
    """
    call = travel_call_without_resume()
    caller = {utterance.clip: utterance for utterance in call.caller}
    for name in ("caller_weather_1", "caller_weather_2"):
        caller[name] = replace(caller[name], message=name.removeprefix("caller_"))
    caller["murmur"] = replace(caller["murmur"], message="murmur", final="")
    # a server tells of the end of a sound later: by the silence it waits for
    late = caller["caller_breakfast"].cue
    caller["caller_breakfast"] = replace(
        caller["caller_breakfast"], cue=replace(late, delay_ms=late.delay_ms + _SERVER_SILENCE_MS)
    )
    first, *others = call.agent
    split = "Could you tell me what the weather is in Paris?"
    answers = [
        replace(reply, heard=caller["caller_weather_2"].final) if reply.heard == split else reply
        for reply in call.replies
        if reply.heard != caller["caller_weather_1"].final
    ]
    return replace(
        call,
        name="travel_realtime",
        caller=tuple(caller.values()),
        agent=(replace(first, source="reply"), *others),
        replies=(Reply(text=load_clip(first.clip).text), *answers),
        endpointing_ms=_SERVER_SILENCE_MS,
    )
