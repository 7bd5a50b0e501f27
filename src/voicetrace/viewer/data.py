# SPDX-License-Identifier: Apache-2.0
"""A call as the JSON of its page: every word it says, and where on the recording it is.

Pure: no file is read here. Times are call-ms or ``null`` for what is not known; ranges are samples of the
recording; messages and steps refer to each other by their place in the two lists, many of them as runs.
"""

from __future__ import annotations

import base64
from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from voicetrace.judge.result import PRIORITY, DimensionScore, Evidence, NullReason
from voicetrace.messages import LLMStep, Role, State, TextSource, VoiceMessage
from voicetrace.viewer import words
from voicetrace.viewer.judgement import Judgement
from voicetrace.viewer.sound import MEDIA_TYPES, Sound
from voicetrace.voice_call import VoiceCall

_ON_CUT = ("interrupted_at_ms", "provider_audio_end_ms")
_UNITS = ("s", "ms")
_UNJUDGED = {
    NullReason.NO_AUDIO: "no audio",
    NullReason.NO_AGENT_SPEECH: "the agent did not speak",
    NullReason.NO_TEXT: "no text",
    NullReason.PROVIDER_UNAVAILABLE: "nothing here could judge it",
    NullReason.TOO_SHORT: "too short to judge",
    NullReason.NO_EVENTS: "nothing happened that it judges",
    NullReason.UNTRUSTED_TIMING: "the times cannot be trusted",
    NullReason.JUDGE_ERROR: "the judge failed",
}


def page_data(call: VoiceCall, sound: Sound, judgement: Judgement | None = None) -> dict[str, Any]:
    """Everything the page shows."""
    links = _Links(call)
    messages = [_message(call, message, sound, links) for message in call.messages]
    return {
        "call": _call(call),
        "warnings": [words.shown(warning) for warning in (*call.warnings, *sound.problems)],
        "messages": messages,
        "steps": [_step(number, step, links) for number, step in enumerate(call.llm_steps, 1)],
        "order": links.order(),
        "sound": _sound(sound),
        "duration_ms": _length_ms(call, sound),
        "judge": None if judgement is None else _judge(judgement, links.place),
    }


def title(call: VoiceCall) -> str:
    """What the page is called."""
    return f"{words.shown(call.agent_name) or 'Call'} · {words.shown(call.call_id)}"


def started(call: VoiceCall) -> str:
    """When the call began, in UTC."""
    if call.origin_unix_ms is None:
        return words.NOT_KNOWN
    try:
        moment = datetime.fromtimestamp(call.origin_unix_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{call.origin_unix_ms} ms after 1970, which is no date"
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def ended(call: VoiceCall) -> str:
    """Whether and why the call ended."""
    if not call.ended:
        return "no: it was running, or its process died"
    return words.shown(call.end_reason) if call.end_reason else f"yes; why is {words.NOT_KNOWN}"


def clock(ms: int | None) -> str:
    """Call-ms for people: ``1:07.35``; an hour later ``1:01:07.35``."""
    if ms is None:
        return words.NOT_KNOWN
    hundredths = round(ms / 10)
    minutes, rest = divmod(hundredths, 6000)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{rest // 100:02}.{rest % 100:02}"
    return f"{hours}:{minutes:02}:{seconds}" if hours else f"{minutes}:{seconds}"


def summary(call: VoiceCall) -> str:
    """The messages in one line: how many, and how many are out of the ordinary."""
    counts = [
        ("cut off", sum(m.state is State.INTERRUPTED for m in call.messages)),
        ("never played", sum(m.state is State.UNPLAYED for m in call.messages)),
        ("still open", sum(m.state is State.OPEN for m in call.messages)),
        ("outside the conversation", sum(not m.committed for m in call.messages)),
    ]
    return ", ".join(
        [_count(len(call.messages), "message"), *(f"{number} {what}" for what, number in counts if number)]
    )


def _call(call: VoiceCall) -> dict[str, Any]:
    known = {
        "call": words.shown(call.call_id),
        "framework": words.shown(f"{call.framework} {call.framework_version}".strip()),
        "started": started(call),
        "length": "" if call.duration_ms is None else clock(call.duration_ms),
        "ended": ended(call),
        "conversation": words.shown(call.conversation_id),
        "trace": words.shown(call.trace_id or ""),
    }
    return {
        "id": call.call_id,
        "title": words.shown(call.agent_name) or "Call",
        "summary": summary(call),
        "facts": [[name, value or words.NOT_KNOWN] for name, value in known.items()],
    }


def _length_ms(call: VoiceCall, sound: Sound) -> int:
    """Where the picture ends: behind everything that is known to have happened."""
    ends = [message.end_ms or message.start_ms or 0 for message in call.messages]
    ends += [step.end_ms or step.start_ms or 0 for step in call.llm_steps]
    if sound.frames:
        ends.append(sound.frames * 1000 // sound.sample_rate_hz)
    return max([call.duration_ms or 0, *ends])


def _sound(sound: Sound) -> dict[str, Any]:
    return {
        "note": words.shown(sound.note),
        "channels": list(sound.channels),
        "rate": sound.sample_rate_hz,
        "frames": sound.frames,
        "bin": sound.bin_samples,
        "peaks": [base64.b64encode(column).decode() for column in sound.peaks],
        "pieces": len(sound.pieces),
        "piece": sound.piece_samples,
        "type": MEDIA_TYPES[sound.form] if sound.form is not None else None,
        "href": sound.href,
        "lost": [
            [sound.channels.index(channel), start_ms, end_ms, words.shown(why)]
            for channel, start_ms, end_ms, why in sound.lost
        ],
    }


# -- links -------------------------------------------------------------------------------------------
class _Links:
    """Which step made and which steps read each message, as places in the two lists."""

    def __init__(self, call: VoiceCall) -> None:
        self._call = call
        self.place = {message.id: place for place, message in enumerate(call.messages)}
        self.seq = [message.seq for message in call.messages]
        by_span = {step.span_id: place for place, step in enumerate(call.llm_steps)}
        makes: dict[str, int] = {}
        self.read_by: dict[str, list[int]] = {}
        for place, step in enumerate(call.llm_steps):
            for message_id in step.output_ids:
                makes.setdefault(message_id, place)
            for read in {i for i in step.context_ids if i is not None}:
                self.read_by.setdefault(read, []).append(place)
        self.made_by: list[int | None] = []
        self.writes: list[list[int]] = [[] for _ in call.llm_steps]
        for place, message in enumerate(call.messages):
            made = None
            if message.role is Role.ASSISTANT:
                made = by_span.get(message.produced_by_span_id or "", makes.get(message.id))
            self.made_by.append(made)
            if made is not None:
                self.writes[made].append(place)

    def order(self) -> list[list[Any]]:
        """Messages in order of ``seq``; each step before what it wrote, else where its time falls."""
        latest: list[int] = []  # the latest start up to each message: rising, so it can be searched
        for message in self._call.messages:
            latest.append(max(message.start_ms or 0, latest[-1] if latest else 0))
        rows: list[tuple[int, int, int, str]] = []
        for place, step in enumerate(self._call.llm_steps):
            if self.writes[place]:
                before = self.writes[place][0]
            else:
                before = len(latest) if step.start_ms is None else bisect_right(latest, step.start_ms)
            rows.append((before, 0, place, "step"))
        rows += [(place, 1, place, "message") for place in range(len(latest))]
        return [[kind, place] for _, _, place, kind in sorted(rows)]


# -- messages ----------------------------------------------------------------------------------------
def _message(call: VoiceCall, message: VoiceMessage, sound: Sound, links: _Links) -> dict[str, Any]:
    place = links.place[message.id]
    rest = words.unheard(message)
    generated = message.generated_text if rest is None else None
    ranges = sound.ranges.get(message.id, ())
    return {
        "id": message.id,
        "seq": message.seq,
        "role": str(message.role),
        "state": str(message.state),
        "ended": words.state(message),
        "committed": message.committed,
        "text": None if message.text is None else words.shown(message.text),
        "unheard": words.shown(rest) if rest else None,
        "generated": None if generated is None else words.shown(generated),
        "worth": words.text_worth(message),
        "trust": words.trust(message),
        "start": message.start_ms,
        "end": message.end_ms,
        "cut": message.interrupted_at_ms,
        "blocks": _blocks(call, message),
        "ranges": [[sound.channels.index(channel), low, high] for channel, low, high in ranges],
        "silent": None if ranges else _silent(message, sound),
        "facts": list(_facts(message)),
        "details": list(_details(call, message)),
        "made_by": links.made_by[place],
        "maker": _maker(message, links.made_by[place]),
        "read_by": _runs(links.read_by.get(message.id, [])),
    }


def _blocks(call: VoiceCall, message: VoiceMessage) -> list[list[int]]:
    """Where the message is in the picture, in call-ms: its ranges, else its bounds."""
    segments = call.recording.segments if call.recording is not None else {}
    blocks = [
        [segments[s.segment_id].start_ms + s.start_ms, segments[s.segment_id].start_ms + s.end_ms]
        for s in message.selections
        if s.segment_id in segments
    ]
    if not blocks and message.start_ms is not None:
        blocks = [[message.start_ms, message.end_ms if message.end_ms is not None else message.start_ms]]
    return [[start, end] for start, end in blocks if start <= end]


def _silent(message: VoiceMessage, sound: Sound) -> str:
    """Why the message cannot be played."""
    if not message.selections:
        return words.no_audio(message)
    return "its audio is not here" if not sound.frames else "the recording does not hold its audio"


def _facts(message: VoiceMessage) -> Iterator[str]:
    """Short sentences that matter when reading; what is not known is said."""
    if not message.committed:
        yield ("never entered the conversation" if message.state is not State.OPEN else "not committed yet")
    if message.role is Role.USER:
        if message.text_source is not TextSource.TEXT_INPUT and message.committed:
            yield f"end of turn {_after(message.end_of_turn_ms, message.end_ms)}"
            yield f"final transcript {_after(message.transcript_final_ms, message.end_ms)}"
        return
    if message.state is State.INTERRUPTED or message.interrupted_at_ms is not None:
        yield f"cut at {clock(message.interrupted_at_ms)}"
    if message.provider_audio_end_ms is not None:
        yield f"the provider was told to keep {_seconds(message.provider_audio_end_ms)}"


def _after(ms: int | None, end_ms: int | None) -> str:
    """A moment, as what people wait for: counted from the end of the speech."""
    if ms is None or end_ms is None:
        return clock(ms)
    delta = ms - end_ms
    return f"{_seconds(abs(delta))} {'after' if delta >= 0 else 'before'} the speech ended"


def _details(call: VoiceCall, message: VoiceMessage) -> Iterator[list[str]]:
    """The record itself, by its own names, for who looks closer."""
    yield ["id", words.shown(message.id)]
    names = ["state", "committed", "text_status", "text_source", "start_ms", "end_ms", "timing_source"]
    if message.role is Role.USER:
        names += ["end_of_turn_ms", "transcript_final_ms"]
    else:
        names += ["interrupted_at_ms", "provider_audio_end_ms", "produced_by_span_id"]
    for name in names:
        value = getattr(message, name)
        if value is None and name in _ON_CUT and message.state is not State.INTERRUPTED:
            continue  # it does not apply, which is not the same as not known
        if name == "committed":
            value = "yes" if value else "no"
        if name == "timing_source":
            value = words.timing(message)
        yield [name, words.NOT_KNOWN if value is None else words.shown(str(value))]
    for s in message.selections:
        yield ["selection", f"{s.channel} {s.start_ms}–{s.end_ms} ms of {words.shown(s.segment_id)}"]  # noqa: RUF001


def _maker(message: VoiceMessage, made_by: int | None) -> str | None:
    """What is known of the step that wrote a message, when it is not in the list."""
    if message.role is not Role.ASSISTANT or made_by is not None:
        return None
    if message.produced_by_span_id is not None:
        return f"written by step {message.produced_by_span_id}, which is not in this trace"
    return "no LLM step known that wrote it"


# -- steps -------------------------------------------------------------------------------------------
def _step(number: int, step: LLMStep, links: _Links) -> dict[str, Any]:
    reads = {links.place[i] for i in step.context_ids if i in links.place}
    dropped = step.context_ids.count(None)
    other = sum(i is not None and i not in links.place for i in step.context_ids)
    writes = links.writes[number - 1]
    read = [_count(len(reads), "message")]
    read += [f"{_count(other, 'other item')}"] * bool(other)
    read += [f"{dropped} that never entered the conversation"] * bool(dropped)
    return {
        "number": number,
        "span": step.span_id,
        "name": words.shown(step.name),
        "start": step.start_ms,
        "end": step.end_ms,
        "speculative": step.speculative,
        "error": words.shown(step.error),
        "reads": _runs(sorted(reads)),
        "writes": writes,
        "read": "read " + ", ".join(read) if step.context_ids else f"what it read is {words.NOT_KNOWN}",
        "wrote": _wrote(step, writes, links),
    }


def _wrote(step: LLMStep, writes: list[int], links: _Links) -> str:
    absent = [i for i in step.output_ids if i not in links.place]
    if writes or absent:
        seqs = [f"#{links.seq[place]}" for place in writes]
        return "wrote " + ", ".join([*seqs, *(f"{words.shown(i)} (in no record)" for i in absent)])
    if step.speculative:
        return "an attempt that was dropped"
    return "wrote no message"


def _runs(places: list[int]) -> list[list[int]]:
    """``[[0, 2], [5, 5]]`` for 0, 1, 2, 5: what a step reads grows with the call, and mostly is a run."""
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][1] + 1:
            runs[-1][1] = place
        else:
            runs.append([place, place])
    return runs


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.2f} s"


# -- the judge ---------------------------------------------------------------------------------------
def _judge(judgement: Judgement, place: dict[str, int]) -> dict[str, Any]:
    overall = judgement.overall
    return {
        "judge": words.shown(judgement.judge) or words.NOT_KNOWN,
        "error": words.shown(judgement.error),
        "overall": "no score" if overall is None else f"{overall:.2f}",
        "dimensions": [
            _dimension(name.value, PRIORITY[name], found, place)
            for name, found in judgement.dimensions.items()
        ],
    }


def _dimension(name: str, priority: str, found: DimensionScore, place: dict[str, int]) -> dict[str, Any]:
    why = [] if found.null_reason is None else [_UNJUDGED[found.null_reason]]
    why += [words.shown(found.reason)] if found.reason else []
    severity = None if found.severity is None else str(found.severity)
    return {
        "name": name.replace("_", " "),
        "priority": priority,
        "score": found.score,
        "severity": severity,
        "why": ": ".join(why),
        "confidence": found.confidence,
        "evidence": [_evidence(item, place) for item in found.evidence],
    }


def _evidence(item: Evidence, place: dict[str, int]) -> dict[str, Any]:
    name, _, unit = item.metric.rpartition("_")
    if not name or unit not in _UNITS:
        name, unit = item.metric, ""
    said = words.shown(name.replace("_", " "))
    said += "" if item.value is None else f" {_value(item.value, unit)}"
    said += "" if item.threshold is None else f", threshold {_value(item.threshold, unit)}"
    return {
        "message": place.get(item.message_id or ""),
        "start": item.start_ms,
        "end": item.end_ms,
        "said": said,
        "quote": None if item.quote is None else words.shown(item.quote),
    }


def _value(value: float | str, unit: str) -> str:
    return words.shown(value) if isinstance(value, str) else f"{value:.3g} {unit}".rstrip()
