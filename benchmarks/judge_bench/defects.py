# SPDX-License-Identifier: Apache-2.0
"""Planted defects, three strengths each, and controls that are none. Each changes a clean scene."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from voicetrace.judge.features.text import syllables

from . import voices
from .generate import VALUE, Line, heard_ends
from .scripts import FILLERS
from .voices import RATE

LATENCY, PRONUNCIATION, CLARITY = "latency_dead_air", "pronunciation", "clarity"
FILLER, INTERRUPTION, CONSISTENCY = "filler_silence", "interruption_handling", "audio_consistency"
PACING, WARMTH, ACCENT, IDENTITY = "pacing", "warmth_tone", "accent_quality", "voice_identity"


@dataclass(frozen=True)
class Family:
    """``dimensions``: any of them may find it; ``also``: others that it may legitimately lower."""

    name: str
    dimensions: tuple
    plant: object
    levels: tuple
    also: tuple = ()
    synthetic_only: bool = False


# -- helpers ------------------------------------------------------------------------------------------
def _middle(the, count, least=2.0):
    """Some of the agent's longer lines after the greeting, the same for every strength, more with more."""
    order = [line for line in the.agent_lines()[1:] if line.audio.size > least * RATE]
    rng = np.random.default_rng(the.seed + 11)
    picked = [order[i] for i in rng.permutation(len(order))]
    return picked[:count]


def _active(samples):
    size = samples.size // 320 * 320
    power = np.mean(samples[:size].reshape(-1, 320).astype(np.float64) ** 2, axis=1)
    return float(power[power > power.max() * 10**-2.5].mean())


def _spoken_s(samples):
    """Seconds of speech, pauses of 0.2 s and more left out."""
    size = samples.size // 320 * 320
    power = np.mean(samples[:size].reshape(-1, 320).astype(np.float64) ** 2, axis=1)
    loud = np.flatnonzero(power > power.max() * 10**-3.5)
    steps = np.diff(loud)
    return 0.02 * (1 + int(steps[steps < 10].sum())) if loud.size else 0.0


# -- latency, filler, interruption: only time moves ---------------------------------------------------
def latency(the, level, _):
    gap, count = level
    for line in _middle(the, count):
        line.gap = gap
    return the


def fillers(the, count, cache):
    voice = voices.catalogue()[the.agent_voice]
    at = the.lines.index(_middle(the, 1)[0])
    extra = [Line("agent", text, voice.say(text, cache), 0.9) for text in FILLERS[:count]]
    the.lines[at:at] = extra
    the.lines[at + len(extra)].gap = 0.9
    return the


def inner_silence(the, seconds, _):
    line = _middle(the, 1, 3.0)[0]
    cut = _quiet_place(line.audio)
    line.audio = np.concatenate(
        [line.audio[:cut], np.zeros(int(seconds * RATE), np.float32), line.audio[cut:]]
    )
    return the


def _quiet_place(audio):
    """Where it is quietest in the middle third: between words."""
    size = 400
    low, high = audio.size // 3 // size, 2 * audio.size // 3 // size
    power = [float(np.mean(audio[i * size : (i + 1) * size] ** 2)) for i in range(low, high)]
    return (low + int(np.argmin(power))) * size + size // 2


def _barge(the, yields, cache, seconds_in=1.6):
    """The caller breaks in on one agent line, which goes on for `yields` seconds."""
    agents = [
        line for line in the.agent_lines()[1:-1] if line.audio.size > (seconds_in + yields + 0.3) * RATE
    ]
    line = (
        max(agents, key=lambda x: x.audio.size)
        if agents
        else max(the.agent_lines()[1:-1], key=lambda x: x.audio.size)
    )
    at = the.lines.index(line)
    voice = voices.catalogue()[the.caller_voice]
    text = "Sorry, wait, can I just stop you there for a second, I have one more question about this."
    line.played, line.state = seconds_in + yields, "interrupted"
    said = Line("user", text, voice.say(text, cache), seconds_in, anchor="start")
    the.lines.insert(at + 1, said)
    following = the.lines[at + 2]
    if following.role == "user":
        the.lines.pop(at + 2)
        following = the.lines[at + 2]
    following.gap = 0.8
    return the


def slow_yield(the, seconds, cache):
    return _barge(the, seconds, cache)


def good_barge_in(the, _, cache):
    return _barge(the, 0.3, cache)


def talk_over(the, seconds, _):
    for line in _middle(the, 1):
        line.gap = -seconds
    return the


def false_trigger(the, count, _):
    for line in _middle(the, count, 3.0):
        line.state, line.played = "interrupted", 1.8
        for following in the.lines[the.lines.index(line) + 1 :][:1]:
            following.gap = 2.5
    return the


def backchannel(the, _, cache):
    line = max(the.agent_lines()[1:-1], key=lambda x: x.audio.size)
    at = the.lines.index(line)
    voice = voices.catalogue()[the.caller_voice]
    said = Line("user", "Mhm.", voice.say("Mhm.", cache), 1.2, anchor="start", committed=False)
    the.lines.insert(at + 1, said)
    following = the.lines[at + 2]
    _, last = heard_ends(line.audio)
    first, end = heard_ends(said.audio)
    following.gap += max(0.0, (last - (1.2 * RATE + end - first)) / RATE)
    return the


# -- what is said -----------------------------------------------------------------------------------
def read_back(the, count, cache):
    lines = [line for line in the.agent_lines() if line.wrong]
    rng = np.random.default_rng(the.seed + 13)
    voice = voices.catalogue()[the.agent_voice]
    for index in rng.permutation(len(lines))[:count]:
        line = lines[index]
        spoken, planted = [], False
        pieces = VALUE.split(line.wrong)
        choice = int(rng.integers(0, len(pieces) // 3))
        for k in range(0, len(pieces) - 1, 3):
            spoken += [pieces[k], pieces[k + 2] if k // 3 == choice else pieces[k + 1]]
            planted = True
        spoken.append(pieces[-1])
        assert planted
        line.audio = voice.say("".join(spoken), cache)
    return the


def wrong_language(the, count, cache):
    rng = np.random.default_rng(the.seed + 17)
    human = voices.catalogue()[voices.PROMPTS[["es", "fr", "it"][the.seed % 3]][0]]
    texts = [t for t in sorted(human.texts) if len(t) > 50]
    picked = rng.permutation(len(texts))
    for k, line in enumerate(_middle(the, count)):
        line.audio = human.say(texts[picked[k]], cache)
        if the.seed % 2 == 0:  # else the trace says what should have been said
            line.text = texts[picked[k]]
    return the


# -- how it sounds -----------------------------------------------------------------------------------
def noise(the, snr, _):
    def change(samples, rng):
        kind = ["white", "pink", "brown"][the.seed % 3]
        spectrum = np.fft.rfft(rng.standard_normal(samples.size))
        bins = np.maximum(1, np.arange(spectrum.size)) * RATE / samples.size
        shape = {"white": 1.0, "pink": np.maximum(bins, 50) ** -0.5, "brown": np.maximum(bins, 80) ** -1.0}[
            kind
        ]
        sound = np.fft.irfft(spectrum * shape, samples.size)
        sound *= np.sqrt(_active(samples) / 10 ** (snr / 10) / np.mean(sound**2))
        return np.clip(samples + sound, -1, 1).astype(np.float32)

    the.agent_filters.append(change)
    return the


def garble(the, share, _):
    size = 640
    rng = np.random.default_rng(the.seed + 19)
    for line in the.agent_lines():
        audio = line.audio.copy()
        count = audio.size // size
        moved = rng.permutation(count)[: int(share * count)]
        frames = audio[: count * size].reshape(count, size).copy()
        frames[np.sort(moved)] = frames[moved]
        audio[: count * size] = frames.reshape(-1)
        line.audio = audio
    return the


def volume(the, decibels, _):
    [line] = _middle(the, 1)
    sign = -1 if the.seed % 2 else 1
    gain = 10 ** (sign * decibels / 20)
    line.audio = np.clip(line.audio * gain, -1, 1).astype(np.float32)
    if sign > 0:  # louder, and not clipped
        peak = np.abs(line.audio).max()
        for other in the.agent_lines():
            other.audio = (other.audio * min(1.0, 0.9 / peak)).astype(np.float32)
    return the


def cutoff(the, count, _):
    """The last word is cut in its middle, where it is loud."""
    for k, line in enumerate(_middle(the, count)):
        _, last = heard_ends(line.audio)
        area = line.audio[max(0, last - int(0.75 * RATE)) : last - int(0.2 * RATE)]
        size = 160
        power = np.mean(area[: area.size // size * size].reshape(-1, size) ** 2, axis=1)
        loud = np.flatnonzero(power > 0.5 * power.max())
        rng = np.random.default_rng(the.seed + 23 + k)
        cut = last - int(0.75 * RATE) + (int(rng.choice(loud)) + 1) * size
        audio = line.audio[:cut].copy()
        audio[-80:] *= np.linspace(1, 0, 80)
        line.audio = np.concatenate([audio, np.zeros(RATE // 5, np.float32)])
    return the


def dropouts(the, share, _):
    rng = np.random.default_rng(the.seed + 29)
    size = 320
    for line in the.agent_lines():
        audio = line.audio.copy()
        for frame in np.flatnonzero(rng.random(audio.size // size) < share):
            audio[frame * size : (frame + 1) * size] = 0
        line.audio = audio
    return the


def clipping(the, decibels, _):
    gain = 10 ** (decibels / 20)
    for line in the.agent_lines():
        line.audio = np.clip(line.audio * gain, -0.98, 0.98).astype(np.float32)
        # turned down again, as a limiter or a telephone would
        line.audio = (line.audio * 0.5).astype(np.float32)
    return the


def speed(the, rate, _):
    """So many syllables a second of speech, whatever the voice's own rate is."""
    lines = the.agent_lines()
    spoken = sum(_spoken_s(line.audio) for line in lines)
    factor = rate * spoken / sum(syllables(line.text) for line in lines)
    for line in lines:
        line.audio = voices.stretched(line.audio, factor)
    return the


def flat(the, share, cache):
    for line in the.agent_lines():
        line.audio = _cached(cache, f"flat{share}", line.audio, lambda a: voices.flattened(a, share))
    return the


def _cached(cache, key, audio, work):
    import hashlib
    from pathlib import Path

    path = Path(cache) / f"{hashlib.sha256(key.encode() + audio.tobytes()).hexdigest()[:24]}.npy"
    if not path.exists():
        np.save(path, work(audio))
    return np.load(path)


def other_voice(the, count, cache):
    """Some turns by another voice, of another or of the same sex."""
    others = [
        v
        for n, v in sorted(voices.catalogue().items())
        if not isinstance(v, voices.Human)
        and n.split("+")[0].split("-")[0] != the.agent_voice.split("+")[0].split("-")[0]
    ]
    other = others[the.seed % len(others)]
    for line in _middle(the, count, 2.5):
        line.audio = other.say(line.text, cache)
    return the


def pitch(the, semitones, _):
    [line] = _middle(the, 1, 2.5)
    line.audio = voices.shifted(line.audio, semitones if the.seed % 2 else -semitones)
    return the


# -- controls: no defects of the agent ------------------------------------------------------------------
def echo(the, decibels, _):
    """The agent is heard in the caller's channel, late and quiet."""

    def change(channels, _spans, _the, _rng):
        leak = np.zeros_like(channels["user"])
        leak[2400:] = channels["agent"][:-2400] * 10 ** (decibels / 20)
        channels["user"] = np.clip(channels["user"] + leak, -1, 1)
        return channels

    the.mix.append(change)
    return the


def hold_music(the, seconds, _):
    """Soft music in the agent's channel while it looks something up, announced."""
    line = _middle(the, 1)[0]
    line.gap = 0.8

    def change(channels, spans, scene, _rng):
        at = scene.lines.index(line)
        start = int(spans[at][0] * RATE)
        size = int(seconds * RATE)
        t = np.arange(size) / RATE
        notes = [220, 277, 330, 440, 330, 277]
        music = (
            sum(np.sin(2 * np.pi * n * t) * (np.floor(t * 2) % len(notes) == k) for k, n in enumerate(notes))
            * 0.03
        )
        place = channels["agent"][max(0, start - size) : start]
        place += music[: place.size].astype(np.float32)
        return channels

    the.mix.append(change)
    return the


def background_talker(the, decibels, cache):
    """Somebody else speaks in the caller's room."""
    other = voices.catalogue()["flite-awb"]
    text = "And then we went down to the market, and there were so many people that we lost the others."
    talk = np.tile(other.say(text, cache), 20)

    def change(samples, _rng):
        return np.clip(samples + talk[: samples.size] * 10 ** (decibels / 20), -1, 1).astype(np.float32)

    the.caller_filters.append(change)
    return the


def missing_text(the, _, __):
    for line in the.lines:
        line.final = False
    return the


def jitter(the, milliseconds, _):
    the.jitter_ms = milliseconds
    return the


FAMILIES = [
    Family("latency", (LATENCY,), latency, ((3.6, 1), (5.5, 2), (11.0, 2)), (FILLER,)),
    Family("read_back", (PRONUNCIATION,), read_back, (1, 2, 3), (), True),
    Family(
        "noise", (CLARITY,), noise, (15, 8, 2), (CONSISTENCY, IDENTITY, PRONUNCIATION, ACCENT, WARMTH, PACING)
    ),
    Family(
        "garble", (CLARITY,), garble, (0.1, 0.3, 0.6), (CONSISTENCY, IDENTITY, PRONUNCIATION, ACCENT, PACING)
    ),
    Family("filler_repeats", (FILLER,), fillers, (2, 3, 5), (), True),
    Family("inner_silence", (FILLER,), inner_silence, (2.6, 4.0, 7.0)),
    Family("slow_yield", (INTERRUPTION,), slow_yield, (1.3, 1.8, 2.8)),
    Family("talk_over", (INTERRUPTION,), talk_over, (0.5, 0.8, 1.1)),
    Family("false_trigger", (INTERRUPTION,), false_trigger, (1, 2, 3), (CONSISTENCY, LATENCY)),
    Family("volume", (CONSISTENCY,), volume, (5, 8, 14), (CLARITY,)),
    Family("cutoff", (CONSISTENCY,), cutoff, (1, 2, 3), (CLARITY, PRONUNCIATION)),
    Family("dropouts", (CONSISTENCY,), dropouts, (0.02, 0.05, 0.1), (CLARITY, IDENTITY, PRONUNCIATION)),
    Family("clipping", (CONSISTENCY,), clipping, (9, 15, 24), (CLARITY, IDENTITY)),
    Family("fast", (PACING,), speed, (6.4, 7.4, 9.2), (CLARITY, PRONUNCIATION, WARMTH)),
    Family("slow", (PACING,), speed, (3.2, 2.5, 2.0), (CLARITY, FILLER, IDENTITY)),
    Family("flat", (WARMTH,), flat, (0.5, 0.25, 0.05), (CLARITY,)),
    Family(
        "wrong_language",
        (ACCENT,),
        wrong_language,
        (1, 2, 3),
        (CLARITY, CONSISTENCY, IDENTITY, PRONUNCIATION, PACING),
    ),
    Family("other_voice", (IDENTITY,), other_voice, (1, 2, 3), (CONSISTENCY, WARMTH, CLARITY, PACING), True),
    Family("pitch", (CONSISTENCY, IDENTITY), pitch, (2, 4, 6), (CLARITY,)),
]

CONTROLS = [
    Family("good_barge_in", (), good_barge_in, (0,)),
    Family("backchannel", (), backchannel, (0,)),
    Family("echo", (), echo, (-35, -25)),
    Family("hold_music", (), hold_music, (4.0,)),
    Family("background_talker", (), background_talker, (-20,)),
    Family("missing_text", (), missing_text, (0,)),
    Family("jitter", (), jitter, (80,)),
]
