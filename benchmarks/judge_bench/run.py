# SPDX-License-Identifier: Apache-2.0
"""Plan, make and measure the benchmark's calls. Features are kept: scoring again needs no audio."""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import sqlite3
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from voicetrace.judge.features import CallFeatures, extract
from voicetrace.judge.features.extract import Options
from voicetrace.judge.providers import Providers

from . import defects, generate, scripts, voices

HUMAN = voices.PROMPTS["en"][0]
SETS = {
    "calibration": {
        "scripts": scripts.CALIBRATION,
        "agents": ("hibari", "hibari-5"),
        "synthetic": ("hibari", "hibari-5"),
        "callers": ("flite-awb", "flite-rms"),
        "seed": 100,
    },
    "test": {
        "scripts": scripts.TEST,
        "agents": ("joe", "joe+5", HUMAN),
        "synthetic": ("joe", "joe+5"),
        "callers": ("flite-slt", "flite-rms"),
        "seed": 500,
    },
}


@dataclass(frozen=True)
class Item:
    set: str
    family: str
    level: int
    seed: int
    agent: str
    caller: str
    script: int
    telephone: bool
    variant: str = ""

    @property
    def name(self):
        return f"{self.family}-{self.level}-{self.seed}{'-' + self.variant if self.variant else ''}"


VARIANTS = ("gain-12", "gain+6", "rate8k", "rate48k", "mulaw", "padding", "jitter")


def plan(which, seeds, clean):
    """Every call of a set: defects by strength and seed, controls, clean calls, and clean calls changed."""
    kit = SETS[which]
    items = []

    def item(family, level, k, synthetic, variant=""):
        agents = kit["synthetic"] if synthetic else kit["agents"]
        return Item(
            which,
            family,
            level,
            kit["seed"] + k,
            agents[k % len(agents)],
            kit["callers"][(k // 2) % 2],
            k % len(kit["scripts"]),
            (k // len(agents)) % 3 == 1,
            variant,
        )

    items += [item("clean", 0, k, False) for k in range(clean)]
    items += [item("invariance", 0, k, False, v) for k in range(seeds) for v in ("", *VARIANTS)]
    for family in defects.FAMILIES:
        items += [
            item(family.name, n, k, family.synthetic_only)
            for k in range(seeds)
            for n in range(len(family.levels))
        ]
    for family in defects.CONTROLS:
        items += [
            item(family.name, n, k, family.synthetic_only)
            for k in range(seeds)
            for n in range(len(family.levels))
        ]
    items += [item(kind, 0, 0, False) for kind in ("silence", "white_noise", "music", "empty")]
    return items


def build(item, cache):
    """The item's scene."""
    script = SETS[item.set]["scripts"][item.script]
    if item.agent == HUMAN:
        the = generate.human_scene(item.caller, item.seed, cache, script, item.name)
    else:
        the = generate.scene(script, item.agent, item.caller, item.seed, cache, item.name)
    family = next((f for f in (*defects.FAMILIES, *defects.CONTROLS) if f.name == item.family), None)
    if family is not None:
        the = family.plant(the.copy(), family.levels[item.level], cache)
    if item.telephone or item.variant == "mulaw":
        the.agent_filters.append(lambda x, _: voices.telephone(x))
        the.caller_filters.append(lambda x, _: voices.telephone(x))
    if item.variant.startswith("gain"):
        gain = 10 ** (float(item.variant[4:]) / 20)
        for filters in (the.agent_filters, the.caller_filters):
            filters.append(lambda x, _: (x * gain).astype(np.float32))
    if item.variant.startswith("rate"):
        the.rate = int(item.variant[4:-1]) * 1000
    if item.variant == "padding":
        the.lines[0].gap += 5.0
        the.tail += 5.0
    if item.variant == "jitter":
        the.jitter_ms = 80
    if item.family in ("silence", "white_noise", "music"):
        the.agent_filters.append(instead(item.family))
    if item.family == "empty":
        the.lines = []
        the.tail = 20.0
    return the


def instead(kind):
    """Something in the place of the agent's speech."""

    def change(samples, rng):
        if kind == "silence":
            return np.zeros_like(samples)
        if kind == "white_noise":
            return (0.05 * rng.standard_normal(samples.size)).astype(np.float32)
        t = np.arange(samples.size) / voices.RATE
        chords = [(220, 277, 330), (196, 247, 294), (175, 220, 262), (196, 247, 330)]
        step = (t // 1.2).astype(int) % len(chords)
        tone = sum(np.sin(2 * np.pi * np.array([c[k] for c in chords])[step] * t) for k in range(3))
        return (0.06 * tone * np.exp(-1.5 * (t % 1.2))).astype(np.float32)

    return change


class Memory:
    """What a model said of the same samples before: most turns of a family's calls are the same."""

    def __init__(self, path):
        self._db = sqlite3.connect(path, timeout=60)
        self._db.execute("create table if not exists said (key blob primary key, value blob)")

    def wrap(self, name, function):
        def remembered(*args):
            key = hashlib.sha256(name.encode())
            for arg in args:
                for part in arg if isinstance(arg, list | tuple) else [arg]:
                    key.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
                    key.update(b"|")
            row = self._db.execute("select value from said where key = ?", (key.digest(),)).fetchone()
            if row is not None:
                return pickle.loads(row[0])
            value = function(*args)
            with self._db:
                self._db.execute(
                    "insert or replace into said values (?, ?)", (key.digest(), pickle.dumps(value))
                )
            return value

        return remembered

    def wrap_each(self, name, function):
        """As `wrap`, for a function of many pieces: only those that are new are asked about."""

        def remembered(pieces, language):
            found = {}

            def one(piece, _language):
                raise LookupError

            for index, piece in enumerate(pieces):
                with contextlib.suppress(LookupError):
                    found[index] = self.wrap(name, one)(piece, language)
            new = [i for i in range(len(pieces)) if i not in found]
            for index, value in zip(new, function([pieces[i] for i in new], language), strict=True):
                found[index] = self.wrap(name, lambda *_, v=value: v)(pieces[index], language)
            return [found[i] for i in range(len(pieces))]

        return remembered


class Remembering(Providers):
    """The real providers, with a memory in front of each."""

    def __init__(self, memory, weights=None):
        super().__init__(weights)
        self._wrapped = {}
        real = Providers(weights)

        for name, methods in {
            "vad": ("segments",),
            "mos": ("__call__",),
            "loss": ("__call__",),
            "pitch": ("semitones",),
            "speaker": ("embed",),
            "asr": ("hear", "support"),
            "asr_multilingual": ("hear", "support", "language"),
        }.items():
            thing = getattr(real, name)
            if thing is None:
                continue
            calls = {}
            for method in methods:
                function = getattr(thing, method)
                if method == "segments":
                    inner = memory.wrap("vad", lambda pieces, f=function: f(pieces))
                    calls[method] = lambda pieces, f=inner: f(list(pieces))
                elif method == "hear":
                    calls[method] = memory.wrap_each(f"{name}.{method}", function)
                else:
                    calls[method] = memory.wrap(f"{name}.{method}", function)
            face = type(name, (), {m: staticmethod(c) for m, c in calls.items() if m != "__call__"})()
            if "__call__" in calls:
                face = calls["__call__"]
            self.__dict__[name] = face


def measure(items, out, cache, weights=None, note=print):
    """Extract the features of every item that has none yet; they lie under ``out/features``."""
    providers = Remembering(Memory(Path(cache) / "models.sqlite"), weights)
    for done, item in enumerate(items, 1):
        path = Path(out) / "features" / item.set / f"{item.name}.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory() as folder:
                call = generate.render(build(item, cache), folder)
                features = extract(call, providers, Options())
            path.write_text(features.to_json(), "utf-8")
        if done % 20 == 0:
            note(f"{item.set}: {done} of {len(items)} calls")


def features_of(item, out):
    path = Path(out) / "features" / item.set / f"{item.name}.json"
    return CallFeatures.from_json(path.read_text("utf-8"))
