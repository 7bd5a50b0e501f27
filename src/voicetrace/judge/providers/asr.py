# SPDX-License-Identifier: Apache-2.0
"""What speech says: Whisper (MIT) on CTranslate2 (MIT), without the packages around it.

One window of 30 s costs the same however much of it is speech, so turns are packed into windows and their
words are told apart afterwards by where in the window each was said (`hear`). `support` asks the other way
round: how probable a given text is for given audio.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from voicetrace.judge.providers.language import Guess
from voicetrace.judge.providers.mel import power_mel

RATE_HZ: Final = 16_000
WINDOW: Final = 30 * RATE_HZ
_ROOM: Final = 28 * RATE_HZ
_PAUSE: Final = int(0.6 * RATE_HZ)
_FRAME: Final = RATE_HZ // 50
_MAX_TOKENS: Final = 220

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Heard:
    """What was heard in one piece of audio, and the mean log-probability of its tokens."""

    text: str
    log_probability: float | None


class Recogniser:
    """One Whisper model, loaded once, on one thread, greedy: the same audio gives the same words.

    Raises:
        ValueError: the folder of the model lacks its tokenizer.
    """

    def __init__(self, path: Path) -> None:
        import ctranslate2  # type: ignore[import-untyped,import-not-found,unused-ignore]
        from tokenizers import Tokenizer  # type: ignore[import-not-found,unused-ignore]

        folder = path.parent
        if not (folder / "tokenizer.json").is_file():
            raise ValueError(f"the model in {folder} has no tokenizer.json beside it")
        self._ct2: Any = ctranslate2
        self._model: Any = ctranslate2.models.Whisper(
            str(folder), device="cpu", compute_type="int8", inter_threads=1, intra_threads=1
        )
        self._tokens: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.multilingual = bool(self._model.is_multilingual)
        self._end = self._tokens.token_to_id("<|endoftext|>")

    def hear(self, pieces: Sequence[Floats], language: str = "en") -> list[Heard]:
        """What each piece of 16 kHz mono speech says. A piece longer than a window is heard in parts."""
        parts = [(index, part) for index, piece in enumerate(pieces) for part in _parts(piece)]
        texts: list[list[str]] = [[] for _ in pieces]
        scores: list[list[float]] = [[] for _ in pieces]
        for window in _packed(parts):
            self._hear_window(window, language, texts, scores)
        return [
            Heard(" ".join(text).strip(), sum(score) / len(score) if score else None)
            for text, score in zip(texts, scores, strict=True)
        ]

    def language(self, samples: Floats) -> Guess | None:
        """The language of the first 30 s of speech; ``None`` for a model of one language."""
        if not self.multilingual:
            return None
        [ranked] = self._model.detect_language(self._encode(samples))
        token, probability = ranked[0]
        return Guess(token.strip("<|>"), float(probability))

    def support(self, samples: Floats, text: str, value: str, language: str = "en") -> float | None:
        """The least log-probability of the tokens of ``value`` when this audio is taken to say ``text``.

        ``None`` when ``value`` is not in ``text``, or the text is too long for a window.
        """
        at = text.find(value)
        encoding = self._tokens.encode(" " + text, add_special_tokens=False)
        if at < 0 or not 0 < len(encoding.ids) <= _MAX_TOKENS:
            return None
        samples = samples[:WINDOW]
        frames = max(1, samples.size // (_FRAME // 2))
        [found] = self._model.align(
            self._encode(samples), self._prompt(language), [encoding.ids], min(3000, frames)
        )
        low, high = at + 1, at + 1 + len(value)
        probabilities = [
            p
            for p, (start, end) in zip(found.text_token_probs, encoding.offsets, strict=False)
            if start < high and end > low
        ]
        return float(np.log(max(1e-9, min(probabilities)))) if probabilities else None

    # -- parts -------------------------------------------------------------------------------------
    def _hear_window(
        self,
        window: list[tuple[int, Floats]],
        language: str,
        texts: list[list[str]],
        scores: list[list[float]],
    ) -> None:
        samples, starts = _joined(window)
        encoded = self._encode(samples)
        prompt = self._prompt(language)
        [result] = self._model.generate(
            encoded, [prompt], beam_size=1, max_length=448, suppress_blank=True, no_repeat_ngram_size=0
        )
        tokens = [token for token in result.sequences_ids[0] if token < self._end]
        if not tokens:
            return
        frames = min(3000, max(1, samples.size // (_FRAME // 2)))
        [aligned] = self._model.align(encoded, prompt, [tokens], frames)
        said_at: dict[int, int] = {}
        for token, frame in aligned.alignments:
            said_at.setdefault(token, frame)
        words: dict[int, list[int]] = {}
        turn = 0
        for position, token in enumerate(tokens):
            begins_word = self._tokens.id_to_token(token).startswith("Ġ") or position == 0
            if begins_word:  # a word belongs where it begins, whole
                at = said_at.get(position, 0) * _FRAME
                turn = max(turn, int(np.searchsorted(starts, at + _PAUSE // 2, side="right")) - 1)
            words.setdefault(turn, []).append(position)
        for turn, positions in words.items():
            owner = window[turn][0]
            texts[owner].append(self._tokens.decode([tokens[p] for p in positions]).strip())
            probabilities = [
                aligned.text_token_probs[p] for p in positions if p < len(aligned.text_token_probs)
            ]
            scores[owner] += [float(np.log(max(1e-9, p))) for p in probabilities]

    def _encode(self, samples: Floats) -> Any:
        padded = np.zeros(WINDOW, np.float32)
        padded[: min(WINDOW, samples.size)] = samples[:WINDOW]
        log = np.log10(np.maximum(power_mel(padded, 80)[:, :3000], 1e-10))
        features = ((np.maximum(log, log.max() - 8) + 4) / 4).astype(np.float32)
        storage = self._ct2.StorageView.from_array(np.ascontiguousarray(features[None]))
        return self._model.encode(storage)

    def _prompt(self, language: str) -> list[int]:
        names = ["<|startoftranscript|>"]
        if self.multilingual:
            names += [f"<|{language}|>", "<|transcribe|>"]
        return [self._tokens.token_to_id(name) for name in [*names, "<|notimestamps|>"]]


def _parts(piece: Floats) -> list[Floats]:
    count = max(1, -(-piece.size // _ROOM))
    return [np.asarray(part, np.float32) for part in np.array_split(piece, count)]


def _packed(parts: list[tuple[int, Floats]]) -> list[list[tuple[int, Floats]]]:
    windows: list[list[tuple[int, Floats]]] = []
    room = 0
    for index, part in parts:
        if not windows or part.size + _PAUSE > room:
            windows.append([])
            room = _ROOM
        windows[-1].append((index, part))
        room -= part.size + _PAUSE
    return windows


def _joined(window: list[tuple[int, Floats]]) -> tuple[Floats, NDArray[np.int64]]:
    pause = np.zeros(_PAUSE, np.float32)
    starts, pieces, at = [], [], 0
    for _, part in window:
        starts.append(at)
        pieces += [part, pause]
        at += part.size + _PAUSE
    return np.concatenate(pieces), np.array(starts, np.int64)
