# SPDX-License-Identifier: Apache-2.0
"""A call that was never traced, as a `VoiceCall`: two audio files, and a transcript if there is one.

When somebody was heard is found in the audio (`vad`); each side has its own file, so who spoke needs no
guess. The transcript gives the words. A turn is placed in the audio by the times it has. Turns without
times are placed only where that takes no guess: the sides must take turns in the audio exactly as in the
transcript. Then a side's sound between two of the other's is its turn's, and several turns in a row are
parted at the longest pauses. What cannot be placed keeps its words, has no bounds, and is said in the
call's warnings.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from voicetrace.agentclash import problems as p
from voicetrace.agentclash.artifacts import BundleError
from voicetrace.agentclash.validate import digest
from voicetrace.messages import (
    Channel,
    Recording,
    Role,
    Segment,
    Selection,
    State,
    TextStatus,
    TimingSource,
    VoiceMessage,
)
from voicetrace.voice_call import VoiceCall

if TYPE_CHECKING:
    from voicetrace.agentclash.vad import Activity, Interval, VadSettings

PathLike = str | os.PathLike[str]

_SEGMENT: Final = "seg_0"
_ROLE: Final = {Channel.CALLER: Role.USER, Channel.AGENT: Role.ASSISTANT}
_SPEAKERS: Final = {
    "caller": Channel.CALLER, "user": Channel.CALLER, "agent": Channel.AGENT, "assistant": Channel.AGENT,
}  # fmt: skip
_SLACK_MS: Final = 500  # how far a transcript's times may be off the sound they mean


@dataclass(frozen=True)
class ImportedCall:
    """The call, and the language of each message for which the transcript names one."""

    call: VoiceCall
    languages: Mapping[str, str] = field(default_factory=dict)


def call_from_audio(
    caller: PathLike,
    agent: PathLike,
    transcript: PathLike | Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    call_id: str | None = None,
    agent_name: str = "",
    captured_at: str | None = None,
    vad: VadSettings | None = None,
) -> ImportedCall:
    """Read a call from its two sides. Blocking; the audio is streamed.

    Args:
        caller: the caller's side, a mono file that starts at call-ms 0.
        agent: the agent's side as it was heard, likewise.
        transcript: a JSON file, or what is in one: ``{"turns": [...]}`` or the list itself. A turn has
            ``speaker`` (``caller`` or ``agent``) and ``text``, and may have ``start_ms``, ``end_ms``,
            ``language`` and ``interrupted``. Without a transcript every turn is there, without its words.
        call_id: how the call is called; by default named after the digest of its audio.
        agent_name: the agent's name.
        captured_at: when call-ms 0 was, as RFC 3339 with a zone.
        vad: what counts as sound.

    Raises:
        BundleError: a file cannot be read or is not mono, the transcript is not as described, or nothing
            is to be heard and there is no transcript.
    """
    turns = _turns(transcript)
    activity = {Channel.CALLER: _listen(caller, vad), Channel.AGENT: _listen(agent, vad)}
    duration_ms = max(found.duration_ms for found in activity.values())
    placed, warnings = (_untold(activity), []) if turns is None else _place(turns, activity)
    if not placed:
        raise BundleError(
            "nothing is to be heard in the audio and there is no transcript, so there is no call"
        )
    messages = tuple(_message(seq, turn, duration_ms) for seq, turn in enumerate(placed))
    digests = [digest(Path(path))[0] for path in (caller, agent)]
    name = call_id or f"audio-{hashlib.sha256(''.join(digests).encode()).hexdigest()[:16]}"
    origin = _origin(captured_at)
    call = VoiceCall(
        call_id=name,
        messages=messages,
        # the caller's file; the agent's is another one, in step with it from the same origin
        recording=Recording(
            recording_id=name,
            uri=Path(caller).absolute().as_uri(),
            format=Path(caller).suffix.lstrip(".") or "wav",
            sample_rate_hz=_rate(caller),
            channels=[Channel.CALLER],
            origin_unix_ms=origin or 0,
            segments={_SEGMENT: Segment(start_ms=0, length_ms=duration_ms)},
        ),
        warnings=tuple(warnings),
        origin_unix_ms=origin,
        duration_ms=duration_ms,
        agent_name=agent_name,
    )
    languages = {m.id: turn.language for m, turn in zip(messages, placed, strict=True) if turn.language}
    return ImportedCall(call, languages)


@dataclass
class _Turn:
    """A turn of the transcript, or one that was only heard, and the sound it was given."""

    channel: Channel
    text: str | None
    start_ms: int | None = None
    end_ms: int | None = None
    language: str = ""
    interrupted: bool = False
    sound: list[Interval] = field(default_factory=list)


def _listen(path: PathLike, vad: VadSettings | None) -> Activity:
    # numpy and libsndfile only when audio is really read
    from voicetrace.agentclash.vad import activity_of
    from voicetrace.audio import ClipError
    from voicetrace.audio.source import Source

    try:
        with Source(Path(path)) as source:
            if source.channels != 1:
                raise BundleError(
                    f"{path} has {source.channels} channels; each side must be a mono file of its own"
                )
            blocks = (block[:, 0] for block in source.blocks(1 << 16))
            return activity_of(blocks, source.sample_rate_hz, vad)
    except ClipError as error:
        raise BundleError(f"the audio cannot be read: {error}") from error


def _rate(path: PathLike) -> int:
    from voicetrace.audio.source import Source

    with Source(Path(path)) as source:
        return source.sample_rate_hz


def _origin(captured_at: str | None) -> int | None:
    if captured_at is None:
        return None
    try:
        moment = datetime.fromisoformat(captured_at)
    except (ValueError, TypeError) as error:
        raise BundleError(f"captured_at must be an RFC 3339 time, not {captured_at!r}") from error
    if moment.tzinfo is None:
        raise BundleError(f"captured_at must have a time zone, as 2026-05-13T09:30:00Z, not {captured_at!r}")
    return round(moment.timestamp() * 1000)


# -- the transcript ----------------------------------------------------------------------------------
def _turns(given: PathLike | Mapping[str, Any] | Sequence[Any] | None) -> list[_Turn] | None:
    if given is None:
        return None
    data: Any = given
    if isinstance(given, str | os.PathLike):
        data, problems = p.load_json(Path(given))
        if problems:
            raise BundleError(f"the transcript {given} cannot be used: {problems[0]}")
    rows = data.get("turns") if isinstance(data, Mapping) else data
    if not isinstance(rows, list | tuple) or not rows:
        raise BundleError('the transcript must be {"turns": [...]} or a list of turns, and not empty')
    return [_turn(index, row) for index, row in enumerate(rows)]


def _turn(index: int, row: Any) -> _Turn:
    at = f"turn {index} of the transcript"
    if not isinstance(row, Mapping):
        raise BundleError(f"{at} must be an object, not {p.shown(row)}")
    speaker, text = row.get("speaker"), row.get("text")
    if not isinstance(speaker, str) or speaker not in _SPEAKERS:
        raise BundleError(f'{at} must have a speaker, "caller" or "agent", not {p.shown(speaker)}')
    if not isinstance(text, str):
        raise BundleError(f"{at} must have a text, not {p.shown(text)}")
    times: list[int | None] = []
    for name in ("start_ms", "end_ms"):
        value: Any = row.get(name)
        if value is not None and (not p.is_number(value) or value < 0):
            raise BundleError(f"{at}: {name} must be a number of at least 0, not {p.shown(value)}")
        times.append(None if value is None else round(value))
    start, end = times
    if (start is None) != (end is None) or (start is not None and end is not None and end < start):
        raise BundleError(f"{at} must have start_ms and end_ms, in this order, or neither")
    language = row.get("language")
    return _Turn(
        _SPEAKERS[speaker],
        None if p.blank(text) else text,
        start,
        end,
        language if isinstance(language, str) else "",
        row.get("interrupted") is True,
    )


# -- placing it in the audio -------------------------------------------------------------------------
def _untold(activity: Mapping[Channel, Activity]) -> list[_Turn]:
    """Every turn that was heard, without its words."""
    return [_Turn(channel, None, sound=sound) for channel, sound in _runs(activity)]


def _runs(activity: Mapping[Channel, Activity]) -> list[tuple[Channel, list[Interval]]]:
    """The sound of both sides by its start, a side's own in a row put together."""
    heard = sorted(
        ((interval, channel) for channel, found in activity.items() for interval in found.intervals),
        key=lambda item: (item[0].start_ms, item[1] is Channel.AGENT),
    )
    runs: list[tuple[Channel, list[Interval]]] = []
    for interval, channel in heard:
        if runs and runs[-1][0] is channel:
            runs[-1][1].append(interval)
        else:
            runs.append((channel, [interval]))
    return runs


def _place(turns: list[_Turn], activity: Mapping[Channel, Activity]) -> tuple[list[_Turn], list[str]]:
    timed = [turn for turn in turns if turn.start_ms is not None]
    for channel in Channel:
        _by_time([turn for turn in timed if turn.channel is channel], activity[channel])
    if not timed:
        _by_order(turns, _runs(activity))
    lost = sum(not turn.sound and turn.start_ms is None for turn in turns)
    unheard = sum(not turn.sound and turn.start_ms is not None for turn in turns)
    warnings = []
    if lost:
        warnings.append(
            f"{lost} of {len(turns)} transcript turns have no times and could not be placed in the audio"
        )
    if unheard:
        warnings.append(f"{unheard} of {len(turns)} transcript turns have times at which nothing is heard")
    return turns, warnings


def _by_time(turns: list[_Turn], heard: Activity) -> None:
    """Give each turn the sound around its times; between two turns of a side it is parted half-way."""
    turns = sorted(turns, key=lambda turn: (turn.start_ms or 0, turn.end_ms or 0))
    for index, turn in enumerate(turns):
        assert turn.start_ms is not None
        assert turn.end_ms is not None
        low, high = turn.start_ms - _SLACK_MS, turn.end_ms + _SLACK_MS
        if index:
            low = max(low, ((turns[index - 1].end_ms or 0) + turn.start_ms) // 2)
        if index + 1 < len(turns):
            high = min(high, (turn.end_ms + (turns[index + 1].start_ms or 0)) // 2)
        turn.sound = heard.within(low, high) if low < high else []


def _by_order(turns: list[_Turn], runs: list[tuple[Channel, list[Interval]]]) -> None:
    """Give each turn its sound if both sides take turns in the audio as they do in the transcript."""
    told: list[list[_Turn]] = []
    for turn in turns:
        if told and told[-1][0].channel is turn.channel:
            told[-1].append(turn)
        else:
            told.append([turn])
    if [group[0].channel for group in told] != [channel for channel, _ in runs]:
        return
    for group, (_, sound) in zip(told, runs, strict=True):
        if len(group) > len(sound):
            continue
        pauses = sorted(range(1, len(sound)), key=lambda i: sound[i - 1].end_ms - sound[i].start_ms)
        cuts = [0, *sorted(pauses[: len(group) - 1]), len(sound)]
        for turn, low, high in zip(group, cuts, cuts[1:], strict=False):
            turn.sound = sound[low:high]


def _message(seq: int, turn: _Turn, duration_ms: int) -> VoiceMessage:
    start, end, timing = turn.start_ms, turn.end_ms, TimingSource.PROVIDER_EVENTS
    if turn.sound:
        start, end, timing = turn.sound[0].start_ms, turn.sound[-1].end_ms, TimingSource.LOCAL_VAD
    cut = turn.interrupted and turn.channel is Channel.AGENT and end is not None
    return VoiceMessage(
        id=f"turn_{seq + 1}",
        role=_ROLE[turn.channel],
        seq=seq,
        committed=True,
        state=State.INTERRUPTED if cut else State.COMPLETE,
        text=turn.text,
        text_status=TextStatus.MISSING if turn.text is None else TextStatus.FINAL,
        start_ms=start,
        end_ms=end,
        timing_source=None if start is None else timing,
        interrupted_at_ms=end if cut else None,
        selections=[
            Selection(segment_id=_SEGMENT, channel=turn.channel, start_ms=a, end_ms=min(b, duration_ms))
            for a, b in turn.sound
        ],
    )
