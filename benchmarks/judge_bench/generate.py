# SPDX-License-Identifier: Apache-2.0
"""From a script to a call: lines in time, two channels, and the trace that a real capture would have left."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import soundfile

from voicetrace.messages import (
    Channel,
    Recording,
    Role,
    Segment,
    Selection,
    State,
    TextSource,
    TextStatus,
    TimingSource,
    VoiceMessage,
)
from voicetrace.voice_call import VoiceCall

from . import voices
from .voices import RATE

VALUE = re.compile(r"\{([^|}]*)\|([^}]*)\}")


@dataclass
class Line:
    """One message: `gap` seconds after the end of the line before it (negative: over it)."""

    role: str
    text: str
    audio: np.ndarray
    gap: float
    wrong: str = ""
    state: str = "complete"
    committed: bool = True
    played: float | None = None
    """Seconds after which it was cut, where it was."""
    anchor: str = "end"
    """What `gap` counts from: the ``end`` or the ``start`` of the line before."""
    final: bool = True


@dataclass
class Scene:
    name: str
    lines: list
    agent_voice: str
    caller_voice: str
    seed: int
    tail: float = 1.0
    rate: int = RATE
    agent_filters: list = field(default_factory=list)
    caller_filters: list = field(default_factory=list)
    mix: list = field(default_factory=list)
    """Functions of (caller, agent, spans) that change the finished channels."""
    jitter_ms: int = 0
    language: str | None = None

    def copy(self):
        return replace(
            self,
            lines=[replace(line) for line in self.lines],
            agent_filters=list(self.agent_filters),
            caller_filters=list(self.caller_filters),
            mix=list(self.mix),
        )

    def agent_lines(self):
        return [line for line in self.lines if line.role == "agent"]


def scene(script, agent, caller, seed, cache, name=""):
    """A clean call: the script as two voices say it, with natural gaps."""
    rng = np.random.default_rng(seed)
    lines = []
    for role, raw in script:
        voice = voices.catalogue()[agent if role == "agent" else caller]
        text, wrong = VALUE.sub(r"\1", raw), VALUE.sub(r"\2", raw)
        gap = rng.uniform(0.45, 1.0) if role == "agent" else rng.uniform(0.3, 1.2)
        lines.append(Line(role, text, voice.say(text, cache), gap, wrong if wrong != text else ""))
        if wrong != text:
            lines[-1].wrong = raw
    lines[0].gap = 0.4
    return Scene(name, lines, agent, caller, seed)


def human_scene(caller, seed, cache, script, name=""):
    """A clean call whose agent is a recorded human: prompts in the place of the script's agent lines."""
    rng = np.random.default_rng(seed)
    human = voices.catalogue()[voices.PROMPTS["en"][0]]
    texts = sorted(human.texts)
    picked = [texts[i] for i in rng.permutation(len(texts))[: sum(r == "agent" for r, _ in script)]]
    lines = []
    for role, raw in script:
        if role == "agent":
            text = picked.pop()
            lines.append(Line(role, text, human.say(text, cache), rng.uniform(0.45, 1.0)))
        else:
            text = VALUE.sub(r"\1", raw)
            lines.append(Line(role, text, voices.catalogue()[caller].say(text, cache), rng.uniform(0.3, 1.2)))
    lines[0].gap = 0.4
    return Scene(name, lines, human.name, caller, seed)


def heard_ends(audio):
    """Where a clip begins and ends to be heard, in samples."""
    loud = np.flatnonzero(np.abs(audio) > 0.01)
    return (int(loud[0]), int(loud[-1]) + 1) if loud.size else (0, audio.size)


def render(the, folder, suffix=".flac"):
    """Write the recording, and give the call as `read_calls` would."""
    spans, at, last = [], 0.0, (0.0, 0.0)
    for line in the.lines:
        low, high = (x / RATE for x in heard_ends(line.audio))
        base = last[1] if line.anchor == "end" else last[0]
        start = max(0.0, base + line.gap - low)
        length = (
            line.audio.size / RATE if line.played is None else min(line.played + low, line.audio.size / RATE)
        )
        spans.append((start, start + length))
        end = start + (min(high, length) if line.played is None else length)
        last = (start + low, max(end, last[1] if line.anchor == "start" else 0.0))
        at = max(at, start + length)
    total = int((at + the.tail) * RATE)
    channels = {"user": np.zeros(total, np.float32), "agent": np.zeros(total, np.float32)}
    for line, (start, end) in zip(the.lines, spans, strict=True):
        low, size = int(start * RATE), int((end - start) * RATE)
        clip = line.audio[:size]
        if line.played is not None and clip.size:
            clip = clip.copy()
            fade = min(160, clip.size)
            clip[-fade:] *= np.linspace(1, 0, fade)
        channels[line.role][low : low + clip.size] += clip
    rng = np.random.default_rng(the.seed + 77)
    for change in the.agent_filters:
        channels["agent"] = change(channels["agent"], rng)
    for change in the.caller_filters:
        channels["user"] = change(channels["user"], rng)
    for change in the.mix:
        channels = change(channels, spans, the, rng)
    stereo = np.stack([channels["user"], channels["agent"]], axis=1)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"call{suffix}"
    if the.rate != RATE:
        from math import gcd

        from scipy.signal import resample_poly

        g = gcd(the.rate, RATE)
        stereo = resample_poly(stereo, the.rate // g, RATE // g, axis=0)
    pcm = np.clip(np.round(stereo * 32767), -32768, 32767).astype(np.int16)
    soundfile.write(path, pcm, the.rate, subtype="PCM_16")
    return call_of(the, spans, path, len(pcm) * 1000 // the.rate)


def call_of(the, spans, path, duration_ms):
    rng = np.random.default_rng(the.seed + 5)
    messages = []
    for seq, (line, (start, end)) in enumerate(zip(the.lines, spans, strict=True)):
        low, high = round(start * 1000), round(end * 1000)
        if line.role == "user":
            first, last = heard_ends(line.audio)
            low, high = round((start + first / RATE) * 1000), round((start + last / RATE) * 1000)
        if the.jitter_ms:
            shift = rng.integers(-the.jitter_ms, the.jitter_ms + 1, 2)
            low, high = max(0, low + int(shift[0])), high + int(shift[1])
        user = line.role == "user"
        channel = Channel.CALLER if user else Channel.AGENT
        cut = line.state == "interrupted"
        messages.append(
            VoiceMessage(
                id=f"item_{seq}",
                role=Role.USER if user else Role.ASSISTANT,
                seq=seq,
                committed=line.committed,
                state=State(line.state),
                text=line.text if line.final else None,
                text_status=TextStatus.FINAL if line.final else TextStatus.MISSING,
                text_source=TextSource.STT if user else TextSource.TTS_INPUT,
                start_ms=low,
                end_ms=high,
                timing_source=TimingSource.LOCAL_VAD if user else TimingSource.LOCAL_PLAYOUT,
                interrupted_at_ms=high if cut else None,
                selections=[Selection(segment_id="seg_0", channel=channel, start_ms=low, end_ms=high)],
            )
        )
    recording = Recording(
        recording_id=the.name,
        uri=str(path),
        format=path.suffix[1:],
        sample_rate_hz=the.rate,
        channels=[Channel.CALLER, Channel.AGENT],
        origin_unix_ms=1_800_000_000_000 + the.seed * 1000,
        duration_ms=duration_ms,
        segments={"seg_0": Segment(start_ms=0, length_ms=duration_ms)},
    )
    return VoiceCall(
        call_id=the.name,
        messages=tuple(messages),
        recording=recording,
        origin_unix_ms=recording.origin_unix_ms,
        duration_ms=duration_ms,
        framework="bench",
        source=str(path.parent),
    )
