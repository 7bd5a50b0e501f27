# SPDX-License-Identifier: Apache-2.0
"""Make the demo's recordings again: ``python -m voicetrace.demo.make_data [DIR]``.

Needs the ``flite`` program (Debian/Ubuntu: ``apt-get install flite``) and ``soxr``. Everything else is
numpy with a fixed seed, so two runs with the same flite write the same samples.

The agent's utterances are synthesised **word by word** and joined with a fixed gap. That costs some
melody and buys what the demo needs: word timings that are true of the samples by construction.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile as sf  # type: ignore[import-untyped,unused-ignore]

Samples = npt.NDArray[np.int16]

CALLER_RATE = 16_000
AGENT_RATE = 24_000
CALLER_VOICE = "slt"
AGENT_VOICE = "rms"
AGENT_STRETCH = 0.7  # single words come out slow
WORD_GAP_MS = 30
SENTENCE_GAP_MS = 160
PEAK = 0.5
#: samples are kept to 12 significant bits: FLAC then stores a third less and nobody can hear it
STEP = 16
#: a sample counts as speech when it is above this share of the clip's peak
SPEECH_THRESHOLD = 0.02

CALLER_TEXTS = {
    "caller_weather_1": "Could you tell me",
    "caller_weather_2": "what the weather is in Paris?",
    "caller_hotel": "Now which hotels are near the station?",
    "caller_barge_in": "Sorry, just book the cheapest one.",
    "caller_breakfast": "Is breakfast included?",
    "caller_bye": "No, that is all. Thank you.",
}
AGENT_TEXTS = {
    "agent_greeting": "Hello, this is Northwind Travel. How can I help?",
    "agent_weather": "It is sunny in Paris, with twenty two degrees.",
    "agent_hotels": (
        "There are three hotels near the station. The first one is the Grand Central, "
        "with large rooms and a rooftop bar. The second one is the Garden Inn. "
        "The third one is the Station Lodge."
    ),
    "agent_booked": "Done. The Station Lodge is booked for tonight.",
    "agent_breakfast": "Yes, breakfast is included, and it is served from seven until ten in the morning.",
    "agent_pardon": "Sorry, I did not catch that. Is there anything else?",
    "agent_bye": "Have a good trip. Goodbye.",
}


def flite(text: str, voice: str, stretch: float = 1.0) -> Samples:
    """Speak ``text`` with one of flite's built-in 16 kHz voices; ``stretch`` < 1 speaks faster."""
    program = shutil.which("flite")
    if program is None:
        raise RuntimeError("flite is not installed; on Debian or Ubuntu run: apt-get install flite")
    with tempfile.TemporaryDirectory() as folder:
        wav = Path(folder) / "speech.wav"
        subprocess.run(  # noqa: S603
            [program, "-voice", voice, "-set", f"duration_stretch={stretch}", "-t", text, "-o", str(wav)],
            check=True,
        )
        samples, rate = sf.read(wav, dtype="int16")
    if rate != CALLER_RATE:
        raise RuntimeError(f"flite voice {voice!r} gave {rate} Hz, expected {CALLER_RATE} Hz")
    return np.asarray(samples, dtype=np.int16)


def speech_bounds(samples: npt.NDArray[Any]) -> tuple[int, int]:
    """First and one-past-last sample above the speech threshold."""
    level = np.abs(samples.astype(np.float64))
    loud = np.flatnonzero(level > level.max() * SPEECH_THRESHOLD)
    return int(loud[0]), int(loud[-1]) + 1


def to_int16(samples: npt.NDArray[np.float64], peak: float = PEAK) -> Samples:
    """Scale to ``peak`` of full scale and round to `STEP`."""
    scaled = samples / np.abs(samples).max() * peak * 32767
    quantised: Samples = (np.round(scaled / STEP) * STEP).astype(np.int16)
    return quantised


def caller_clip(text: str) -> tuple[Samples, dict[str, Any]]:
    """A whole utterance with 80 ms of silence around the speech."""
    speech = flite(text, CALLER_VOICE).astype(np.float64)
    start, end = speech_bounds(speech)
    edge = np.zeros(CALLER_RATE * 80 // 1000)
    samples = to_int16(np.concatenate([edge, speech[start:end], edge]))
    return samples, {"text": text}


def agent_clip(text: str) -> tuple[Samples, dict[str, Any]]:
    """An utterance joined from single words; ``words`` are sample ranges in it."""
    import soxr  # type: ignore[import-untyped,unused-ignore]  # only to make the data again

    parts: list[npt.NDArray[np.float64]] = [np.zeros(AGENT_RATE * 40 // 1000)]
    words: list[dict[str, Any]] = []
    position = len(parts[0])
    for word in text.split():
        spoken = soxr.resample(
            flite(word, AGENT_VOICE, AGENT_STRETCH).astype(np.float64), CALLER_RATE, AGENT_RATE, "VHQ"
        )
        start, end = speech_bounds(spoken)
        # each word at the same level, as a speaker would; flite's single words differ a lot
        piece = spoken[start:end] / np.abs(spoken).max()
        words.append({"text": word, "start": position, "end": position + len(piece)})
        gap = SENTENCE_GAP_MS if word[-1] in ".?!" else WORD_GAP_MS
        parts += [piece, np.zeros(AGENT_RATE * gap // 1000)]
        position += len(piece) + len(parts[-1])
    return to_int16(np.concatenate(parts)), {"text": text, "words": words}


def cough(seed: int = 7) -> tuple[Samples, dict[str, Any]]:
    """Two barks: a voiced "huh" under breath noise, with a cough's sharp attack and fast decay.

    Voiced early, so that the VAD hears its start within 80 ms whatever the phase of its windows.
    """
    noise = np.random.default_rng(seed)
    voiced = flite("huh", CALLER_VOICE).astype(np.float64)
    start, end = speech_bounds(voiced)
    voiced = voiced[start:end] / np.abs(voiced).max()
    bark = np.zeros(CALLER_RATE * 280 // 1000)
    bark[: min(len(bark), len(voiced))] = voiced[: len(bark)]
    time = np.arange(len(bark)) / CALLER_RATE
    envelope = np.minimum(time / 0.006, 1.0) * np.exp(-time / 0.25)
    bark = (bark + 0.05 * noise.standard_normal(len(bark))) * envelope
    edge = np.zeros(CALLER_RATE * 80 // 1000)
    return to_int16(np.concatenate([edge, bark, np.zeros(CALLER_RATE // 20), 0.7 * bark, edge])), {"text": ""}


def murmur() -> tuple[Samples, dict[str, Any]]:
    """Somebody else in the caller's room: voiced, half a second and more, and no words for the caller."""
    voiced = flite("mm hmm", AGENT_VOICE, 0.9).astype(np.float64)
    start, end = speech_bounds(voiced)
    edge = np.zeros(CALLER_RATE * 80 // 1000)
    return to_int16(np.concatenate([edge, voiced[start:end], edge])), {"text": ""}


def room(seconds: int = 3, seed: int = 11, rms: float = 14.0) -> tuple[Samples, dict[str, Any]]:
    """Low-level noise falling with frequency, shaped in the frequency domain, so it loops without a seam."""
    size = CALLER_RATE * seconds
    spectrum = np.fft.rfft(np.random.default_rng(seed).standard_normal(size))
    hertz = np.fft.rfftfreq(size, 1 / CALLER_RATE)
    spectrum *= np.where(hertz < 40, 0.0, 1 / np.sqrt(np.maximum(hertz, 40)))
    shaped = np.fft.irfft(spectrum, size)
    return np.round(shaped / shaped.std() * rms).astype(np.int16), {"text": ""}


def build(folder: Path) -> dict[str, Any]:
    """Write every clip and ``clips.json`` into ``folder``; returns what ``clips.json`` holds."""
    folder.mkdir(parents=True, exist_ok=True)
    made: dict[str, tuple[Samples, int, dict[str, Any]]] = {}
    for name, text in CALLER_TEXTS.items():
        samples, facts = caller_clip(text)
        made[name] = (samples, CALLER_RATE, facts)
    for name, text in AGENT_TEXTS.items():
        samples, facts = agent_clip(text)
        made[name] = (samples, AGENT_RATE, facts)
    for name, (samples, facts) in {"cough": cough(), "murmur": murmur(), "room": room()}.items():
        made[name] = (samples, CALLER_RATE, facts)

    clips: dict[str, Any] = {}
    for name, (samples, rate, facts) in made.items():
        sf.write(folder / f"{name}.flac", samples, rate, subtype="PCM_16", compression_level=1.0)
        start, end = (0, len(samples)) if name == "room" else speech_bounds(samples)
        clips[name] = {
            "file": f"{name}.flac",
            "sample_rate": rate,
            "samples": len(samples),
            "speech": [start, end],
            "sha256": hashlib.sha256(samples.astype("<i2").tobytes()).hexdigest(),
            **facts,
        }
    catalogue = {"version": 1, "clips": clips}
    (folder / "clips.json").write_text(json.dumps(catalogue, indent=1) + "\n", encoding="utf-8")
    return catalogue


if __name__ == "__main__":
    build(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "data")
