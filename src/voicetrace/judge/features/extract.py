# SPDX-License-Identifier: Apache-2.0
"""The one pass over a call: its audio is read turn by turn, and only numbers and words stay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from voicetrace.agentclash.vad import activity_of
from voicetrace.audio.errors import ClipError
from voicetrace.audio.source import Source
from voicetrace.judge import readback
from voicetrace.judge.features import signal, text, timing
from voicetrace.judge.features.table import AgentTurn, CallFeatures, ReadBack, Turn
from voicetrace.judge.features.track import RATE_HZ, Track
from voicetrace.judge.providers import NAMES, Providers
from voicetrace.judge.providers.mos import WINDOW, Dnsmos, Mos, normalised
from voicetrace.messages import Channel, Role, State, TextStatus
from voicetrace.voice_call import VoiceCall

if TYPE_CHECKING:
    from voicetrace.judge.providers.asr import Heard, Recogniser

Floats = NDArray[np.float32]

_MIN_SPEECH_MS: Final = 300
_MOS_SPEECH_MS: Final = 1000
_MOS_HOP: Final = WINDOW // 2
_FINE_MOS: Final = 2.9  # where the rubric's curve is 1
_SPEAKER_SPEECH_MS: Final = 1600
_LANGUAGE_SPEECH_MS: Final = 2500
_PAD_MS: Final = 40
_ODD_LOG_PROBABILITY: Final = -0.5
_ODD_ERRORS: Final = 0.35
_LAST_WORDS: Final = 12
_AT_A_TIME: Final = 280 * RATE_HZ  # ten of the recogniser's windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What may be chosen about the pass; the defaults are what the rubric was measured with.

    ``language``: the language the agent should speak (ISO 639-1), where the service says so.
    ``lexicon``: words that must not be mistaken for one another. ``mos_windows`` bounds the windows of 9 s
    that are judged for noise and loss in one call, spread evenly over its turns. ``language_turns``:
    likewise, the turns whose spoken language is asked for.
    """

    language: str | None = None
    lexicon: frozenset[str] = readback.LEXICON
    mos_windows: int = 24
    language_turns: int = 6


@dataclass(slots=True)
class _Work:
    """What is gathered about one agent turn while the pass runs."""

    index: int
    turn: Turn
    values: dict[str, float | int | str | bool | None] = field(default_factory=dict)
    embedding: Floats | None = None
    windows: list[Floats] = field(default_factory=list)


def extract(call: VoiceCall, providers: Providers, options: Options | None = None) -> CallFeatures:
    """Measure a call. Never guesses: what no provider could tell is absent, and why is in ``missing``.

    Raises:
        ClipError: the call has a recording and its file is not here or cannot be read.
        WeightsError: a weight file is not what it should be.
    """
    options = options or Options()
    missing = {name: reason for name in NAMES if (reason := providers.missing(name))}
    with _tracks(call) as (caller, agent):
        caller_speech, agent_speech = (_speech(track, providers) for track in (caller, agent))
        turns = timing.turns_of(call.messages, call.recording, caller_speech, agent_speech)
        duration = max(
            [t.end_ms for t in turns]
            + [x.duration_ms for x in (caller, agent) if x]
            + [call.duration_ms or 0]
        )
        work = [_Work(i, t) for i, t in enumerate(turns) if t.role is Role.ASSISTANT]
        if agent is not None:
            _measure(work, agent, agent_speech, providers, options)
        language = options.language
        caller_text = " ".join(t.text for t in turns if t.role is Role.USER and t.text)
        caller_guess = _guess(providers, caller_text)
        if caller is not None and providers.asr_multilingual is not None:
            caller_guess = _spoken_language(caller, turns, providers) or caller_guess
        if language is None and caller_guess is not None:
            language = caller_guess[0]
        agent_guess = _guess(
            providers, " ".join(t.text for t in turns if t.role is Role.ASSISTANT and t.text)
        )
        read_backs: list[ReadBack] | None = None
        if agent is not None:
            read_backs = _listen(work, agent, providers, options, language or "en")
            _ask_language(work, agent, agent_speech, providers, options, language)
    return CallFeatures(
        duration_ms=duration,
        agent_audio=agent is not None,
        caller_audio=caller is not None,
        agent_speech_ms=None
        if agent_speech is None or providers.vad is None
        else sum(e - s for s, e in agent_speech),
        agent_sounds=bool(agent_speech),
        turns=turns,
        agent_turns=tuple(AgentTurn(turn=w.index, **w.values) for w in work),  # type: ignore[arg-type]
        exchanges=timing.exchanges_of(turns, duration),
        overlaps=timing.overlaps_of(turns, agent_speech),
        pauses=timing.pauses_of(turns, agent_speech),
        similarities=_similarities(work),
        read_backs=tuple(read_backs or ()),
        values_checked=None
        if read_backs is None
        else sum(readback.count_values(_text(w.turn), options.lexicon) for w in work),
        expected_language=language,
        caller_language=caller_guess[0] if caller_guess else None,
        caller_language_probability=_rounded(caller_guess[1]) if caller_guess else None,
        agent_text_language=agent_guess[0] if agent_guess else None,
        agent_text_language_probability=_rounded(agent_guess[1]) if agent_guess else None,
        missing=missing,
    )


# -- the audio ---------------------------------------------------------------------------------------
@contextmanager
def _tracks(call: VoiceCall) -> Iterator[tuple[Track | None, Track | None]]:
    recording, path = call.recording, call.recording_path()
    if recording is None:
        yield None, None
        return
    if path is None:
        raise ClipError(f"the recording of call {call.call_id} is not on this machine but at {recording.uri}")
    with Source(path) as source:
        held = tuple(recording.channels)
        yield tuple(  # type: ignore[misc]
            Track(source, source.column(channel, held)) if channel in held else None for channel in Channel
        )


def _speech(track: Track | None, providers: Providers) -> timing.Ranges | None:
    """Where a channel holds speech; without a detector, where it holds sound."""
    if track is None:
        return None
    if providers.vad is not None:
        return providers.vad.segments(track.pieces())
    pieces = ((piece * 32767).astype(np.int16) for piece in track.pieces())
    return tuple((i.start_ms, i.end_ms) for i in activity_of(pieces, RATE_HZ).intervals)


def _measure(
    work: Sequence[_Work], track: Track, speech: timing.Ranges | None, providers: Providers, options: Options
) -> None:
    budget = _mos_windows(work, options.mos_windows)
    ready: list[_Work] = []
    for item, windows in zip(work, budget, strict=True):
        turn = item.turn
        spoken = turn.speech_ms or 0
        if spoken < _MIN_SPEECH_MS:
            continue
        values = item.values
        samples = np.concatenate([track.speech(s, e) for s, e in turn.ranges])
        native = np.concatenate([track.native(s, e) for s, e in turn.ranges])
        blocks = signal.blocks_lufs(samples, RATE_HZ)
        loudness = signal.gated_lufs(blocks)
        if loudness is not None:
            values["loudness_lufs"] = _rounded(loudness)
            values["spike_lu"] = _rounded(float(blocks.max()) - loudness)
        values["clipped_share"] = round(signal.clipped_share(native), 5)
        values["dropouts_per_s"] = _rounded(signal.dropouts(native, track.rate_hz) * 1000 / spoken)
        # the last sound may lie after the last edge of speech that the detector saw
        tail = track.native(max(turn.start_ms, turn.end_ms - 2000), turn.end_ms + 150)
        ending = signal.end_level_db(tail, track.rate_hz)
        values["end_level_db"] = None if ending is None else _rounded(ending)
        voice = _voice(track, turn, speech)
        level = normalised(samples)
        values["narrow"] = narrow = signal.is_narrow(samples, RATE_HZ)
        if narrow:
            values["crowded_share"] = round(signal.crowded_share(native), 5)
        item.windows = _windows(level, windows) if windows else []
        if windows and providers.loss is not None:
            values["loss_mos"] = _rounded(min(providers.loss(piece) for piece in item.windows))
        if providers.pitch is not None:
            pitch = providers.pitch.semitones(normalised(voice))
            if pitch.size >= 20:
                values["pitch_st"] = _rounded(float(np.median(pitch)))
                values["pitch_sd_st"] = _rounded(_spread(pitch))
        if providers.speaker is not None and spoken >= _SPEAKER_SPEECH_MS:
            item.embedding = providers.speaker.embed(voice)
        said = _text(turn)
        if said:
            values["syllables"] = text.syllables(said)
        if providers.mos is not None:
            _opinions(ready, item, providers.mos)
    if providers.mos is not None:
        _settle(ready, providers.mos)


def _opinions(ready: list[_Work], item: _Work, mos: Dnsmos) -> None:
    """Gather short turns until one window is full; long ones have windows of their own."""
    if len(item.windows) == 1 and item.windows[0].size < WINDOW - RATE_HZ:
        if sum(w.windows[0].size for w in ready) + item.windows[0].size > WINDOW:
            _settle(ready, mos)
        ready.append(item)
    elif item.windows:
        _say(item, [mos(window) for window in item.windows])


def _settle(ready: list[_Work], mos: Dnsmos) -> None:
    """Judge short turns together, as one window costs the same however full it is; if bad, each alone."""
    if ready:
        together = mos(np.concatenate([w.windows[0] for w in ready]))
        for item in ready:
            fine = together.overall >= _FINE_MOS or len(ready) == 1
            _say(item, [together if fine else mos(item.windows[0])])
    ready.clear()


def _say(item: _Work, scores: Sequence[Mos]) -> None:
    item.values["mos_signal"] = _rounded(min(s.signal for s in scores))
    item.values["mos_background"] = _rounded(min(s.background for s in scores))
    item.values["mos_overall"] = _rounded(min(s.overall for s in scores))
    item.windows = []


def _spread(pitch: NDArray[np.float64]) -> float:
    """Standard deviation of pitch, octave errors of the detector left out."""
    near = pitch[np.abs(pitch - np.median(pitch)) <= 10]
    return float(near.std())


def _voice(track: Track, turn: Turn, speech: timing.Ranges | None) -> Floats:
    """The turn's speech at 16 kHz with the silences cut out."""
    parts = [
        (max(s, low), min(e, high))
        for s, e in speech or ()
        for low, high in turn.ranges
        if s < high and e > low
    ]
    pieces = [track.speech(s, e) for s, e in parts or turn.ranges]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)


def _mos_windows(work: Sequence[_Work], most: int) -> list[int]:
    """How many windows each turn gets: all it holds while there is room, else an even spread over turns."""
    wanted = [
        0 if (w.turn.speech_ms or 0) < _MOS_SPEECH_MS
        else max(1, 1 + (sum(e - s for s, e in w.turn.ranges) * RATE_HZ // 1000 - WINDOW) // _MOS_HOP)
        for w in work
    ]  # fmt: skip
    if sum(wanted) <= most:
        return wanted
    asked = [i for i, n in enumerate(wanted) if n]
    chosen = {asked[int(k)] for k in np.linspace(0, len(asked) - 1, min(most, len(asked)))}
    out = [1 if i in chosen else 0 for i in range(len(wanted))]
    left = most - sum(out)
    for index in sorted(chosen):
        more = min(left, wanted[index] - 1)
        out[index] += more
        left -= more
    return out


def _windows(samples: Floats, count: int) -> list[Floats]:
    if samples.size <= WINDOW or count == 1:
        return [samples[:WINDOW]]
    starts = np.linspace(0, samples.size - WINDOW, count).astype(int)
    return [samples[s : s + WINDOW] for s in starts]


def _similarities(work: Sequence[_Work]) -> tuple[tuple[float | None, ...], ...]:
    if not any(w.embedding is not None for w in work):
        return ()
    return tuple(
        tuple(
            None if a.embedding is None or b.embedding is None else _rounded(float(a.embedding @ b.embedding))
            for b in work
        )
        for a in work
    )


# -- language ----------------------------------------------------------------------------------------
def _guess(providers: Providers, said: str) -> tuple[str, float] | None:
    return providers.text_language(said) if providers.text_language is not None else None


def _spoken_language(caller: Track, turns: Sequence[Turn], providers: Providers) -> tuple[str, float] | None:
    """The caller's language, from up to 28 s of what they said, when that is 10 s or more."""
    assert providers.asr_multilingual is not None
    pieces, length = [], 0
    for turn in turns:
        if turn.role is Role.USER and (turn.speech_ms or 0) >= _MIN_SPEECH_MS and length < 28_000:
            pieces.append(caller.speech(turn.start_ms, turn.end_ms))
            length += turn.length_ms
    if length < 10_000:
        return None
    return providers.asr_multilingual.language(np.concatenate(pieces)[: 28 * RATE_HZ])


def _ask_language(
    work: Sequence[_Work],
    track: Track,
    speech: timing.Ranges | None,
    providers: Providers,
    options: Options,
    expected: str | None,
) -> None:
    """The language of agent turns: of the text, and as spoken where there is reason to ask.

    Asking costs as much as recognising, so only turns are listened to that the recogniser could make
    nothing of, or whose text is in another language; all of them, up to a limit, where nobody recognised.
    """
    listener = providers.asr_multilingual
    asked = 0
    for item in work:
        written = _guess(providers, _text(item.turn))
        guess = written
        long = (item.turn.speech_ms or 0) >= _LANGUAGE_SPEECH_MS
        if (
            listener is not None
            and long
            and asked < options.language_turns
            and _is_odd(item, written, expected)
        ):
            asked += 1
            guess = listener.language(normalised(_voice(track, item.turn, speech))) or written
        if guess is not None:
            item.values["language"] = guess[0]
            item.values["language_probability"] = _rounded(guess[1])


def _is_odd(item: _Work, written: tuple[str, float] | None, expected: str | None) -> bool:
    if "heard" not in item.values or (written is not None and written[0] != expected):
        return True
    sure, errors = item.values.get("heard_log_probability"), item.values.get("character_errors")
    return (isinstance(sure, float) and sure < _ODD_LOG_PROBABILITY) or (
        isinstance(errors, float) and errors > _ODD_ERRORS
    )


# -- words -------------------------------------------------------------------------------------------
def _listen(
    work: Sequence[_Work],
    track: Track,
    providers: Providers,
    options: Options,
    language: str,
) -> list[ReadBack] | None:
    """What was heard of each turn, and the values that contradict the text; ``None`` when nobody listened."""
    asr = providers.asr if language == "en" else providers.asr_multilingual
    if asr is None:
        return None
    heard_of = [w for w in work if (w.turn.speech_ms or 0) >= _MIN_SPEECH_MS]
    doubts: list[tuple[_Work, Floats, Heard, list[readback.Contradiction]]] = []
    for item, clip, heard in _heard(heard_of, track, asr, language):
        item.values["heard"] = heard.text
        if heard.log_probability is not None:
            item.values["heard_log_probability"] = _rounded(heard.log_probability)
        said = _text(item.turn)
        if not said:
            continue
        item.values["character_errors"] = _rounded(readback.character_errors(said, heard.text))
        if item.turn.state is State.COMPLETE:
            item.values["missing_end"] = readback.misses_end(said, heard.text)
        found = readback.contradictions(said, heard.text, options.lexicon)
        if item.turn.state is not State.COMPLETE:
            # a value at the end was being said when it was cut
            found = [f for f in found if len(heard.text) - f.heard_at[1] >= _LAST_WORDS]
        if found:
            doubts.append((item, clip, heard, found))
    second = providers.asr_multilingual
    if second is not None and second is not asr and doubts:
        # the larger model is asked too, of these turns only: a value is wrong where both hear another one
        again = second.hear([clip for _, clip, _, _ in doubts], language)
        doubts = [
            (item, clip, heard, readback.shared(found, _text(item.turn), other.text, options.lexicon))
            for (item, clip, heard, found), other in zip(doubts, again, strict=True)
        ]
    return [
        _supported(item, clip, heard, doubt, asr, language)
        for item, clip, heard, found in doubts
        for doubt in found
    ]


def _heard(
    work: Sequence[_Work], track: Track, asr: Recogniser, language: str
) -> Iterator[tuple[_Work, Floats, Heard]]:
    """Each turn with its audio and what was heard in it; a few minutes at a time, however long the call."""
    some: list[tuple[_Work, Floats]] = []
    for item in work:
        ranges = item.turn.ranges
        clip = np.concatenate([track.speech(s - _PAD_MS, e + _PAD_MS) for s, e in ranges])
        if some and sum(c.size for _, c in some) + clip.size > _AT_A_TIME:
            yield from _heard_together(some, asr, language)
            some = []
        some.append((item, normalised(clip)))
    yield from _heard_together(some, asr, language)


def _heard_together(
    some: Sequence[tuple[_Work, Floats]], asr: Recogniser, language: str
) -> Iterator[tuple[_Work, Floats, Heard]]:
    for (item, clip), heard in zip(some, asr.hear([clip for _, clip in some], language), strict=True):
        yield item, clip, heard


def _supported(
    item: _Work, clip: Floats, heard: Heard, found: readback.Contradiction, asr: Recogniser, language: str
) -> ReadBack:
    """A contradiction with how probable the text's own value is, given the audio."""
    said = _text(item.turn)
    value = said[found.said_at[0] : found.said_at[1]]
    # what the text says, as it is written and as the recogniser would have written it
    as_heard = heard.text[: found.heard_at[0]] + found.said + heard.text[found.heard_at[1] :]
    support = [
        asr.support(clip, said, value, language),
        asr.support(clip, as_heard, found.said, language),
    ]
    known = [s for s in support if s is not None]
    return ReadBack(
        turn=item.index,
        said=value,
        heard=heard.text[found.heard_at[0] : found.heard_at[1]],
        support=_rounded(max(known)) if known else None,
    )


def _text(turn: Turn) -> str:
    """What should have been said: the text, where it is final."""
    if turn.text_status is not TextStatus.FINAL or not turn.text:
        return ""
    return turn.text


def _rounded(value: float) -> float:
    return round(float(value), 4)
