# SPDX-License-Identifier: Apache-2.0
"""The source separation (media policy) report: what became of speech and background when audio was split.

All ratios are ratios of energy, 0..1. Signals are cut into windows of 200 ms; *speech windows* are those in
which the speech sounds (`vad`), *background windows* those in which the background is loud enough to be
heard (-65 dBFS), in both cases by the reference where there is one, else by the stem itself.

**With references** (the true speech ``s`` and background ``b`` of the same recording), each stem is taken
apart by least squares, in every window: ``stem = a*s + c*b + rest``. Then

* ``dialogue_retention_ratio``: energy of ``a*s`` in the speech stem over that of ``s``, in speech windows; a
  window gives at most its own energy, so one that came out louder does not make up for one that was lost;
* ``background_preservation_ratio``: the same for ``c*b`` in the background stem, in background windows;
* ``speech_drop_risk``: the share of speech windows that kept less than `DROPPED_BELOW` of their energy;
* ``background_leakage_in_dialogue_ratio``: energy of ``c*b`` in the speech stem over that of both parts,
  ``a*s`` and ``c*b``; ``dialogue_leakage_in_background_ratio``: ``a*s`` in the background stem, likewise.

**From the two stems alone** only what one stem shares with the other is visible: in a window the share of a
stem's energy that is linearly coherent with the other one (their squared correlation). In speech windows
that part of the background stem is leaked speech, and retention is what the speech stem holds of both; in
windows without speech that part of the speech stem is leaked background, and preservation is what the
background stem holds of both. Speech that neither stem holds cannot be seen, so the report is ``degraded``.

Stems and references start at the same sample and have one rate; a tail that not all have is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from voicetrace.agentclash.artifacts import BundleError
from voicetrace.agentclash.manifest import SCHEMA_VERSION
from voicetrace.agentclash.reports import SOURCE_SEPARATION, validate_report

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from voicetrace.audio.source import Source

WINDOW_MS: Final = 200
DROPPED_BELOW: Final = 0.25
"""A speech window that kept less of its energy than this (6 dB less) counts as dropped."""
_LENGTH_TOLERANCE_MS: Final = 20
_MIN_WINDOWS: Final = 5  # a second of speech or background: from less nothing can be said

SEPARATION_THRESHOLDS: Final[Mapping[str, float]] = {
    "dialogue_retention_ratio": 0.8,
    "background_preservation_ratio": 0.6,
    "speech_drop_risk": 0.1,
    "background_leakage_in_dialogue_ratio": 0.2,
    "dialogue_leakage_in_background_ratio": 0.2,
}
"""The first two must reach their value to pass, the others must not exceed it."""
_AT_LEAST: Final = ("dialogue_retention_ratio", "background_preservation_ratio")

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class References:
    """The true signals behind the stems: the speech and the background that were mixed."""

    speech: PathLike
    background: PathLike


def source_separation_report(
    metrics: Mapping[str, float],
    *,
    thresholds: Mapping[str, float] | None = None,
    caveats: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The report from numbers somebody measured. ``degraded`` when ``caveats`` say that the evidence is weak.

    Args:
        metrics: the ratios, by the contract's names; the first three are required, others are kept.
        thresholds: replace those of `SEPARATION_THRESHOLDS` that they name.
        caveats: what a scorer should know about the evidence.
        notes: how the evidence was produced.

    Raises:
        BundleError: a ratio is missing or outside 0..1, or a threshold is none we know.
    """
    limits = {**SEPARATION_THRESHOLDS, **(thresholds or {})}
    unknown = sorted(set(limits) - set(SEPARATION_THRESHOLDS))
    if unknown:
        raise BundleError(
            f"there is no threshold {unknown[0]!r}; there are {', '.join(SEPARATION_THRESHOLDS)}"
        )
    reasons = []
    for name, limit in limits.items():
        value = metrics.get(name)
        if not isinstance(value, int | float):
            continue
        if name in _AT_LEAST and value < limit:
            reasons.append(f"{name} is {value:.4g}, below {limit:g}: failed.")
        elif name not in _AT_LEAST and value > limit:
            reasons.append(f"{name} is {value:.4g}, above {limit:g}: failed.")
    status = "degraded" if caveats else "failed" if reasons else "passed"
    report: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "type": SOURCE_SEPARATION,
        "status": status,
        "passed": status == "passed",
        "metrics": dict(metrics),
        "caveats": list(caveats),
        "agentclash_notes": [*reasons, *notes],
        "thresholds": limits,
    }
    problems = validate_report(report)
    if problems:
        raise BundleError(f"the source separation report would not be valid: {'; '.join(problems)}")
    return report


def measure_separation(
    speech: PathLike,
    background: PathLike,
    *,
    references: References | None = None,
    thresholds: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The report from two stems, mono files, and the references if there are any. Streamed; blocking.

    Raises:
        BundleError: a file cannot be read, is not mono, is of another rate, or holds too little to judge.
    """
    # numpy and libsndfile only when audio is really read
    from voicetrace.audio import ClipError

    paths = [Path(speech), Path(background)]
    if references is not None:
        paths += [Path(references.speech), Path(references.background)]
    caveats: list[str] = []
    try:
        speaking, lengths = _speech_windows(paths[2] if references else paths[0])
        with ExitStack() as stack:
            sources = [_mono(path, stack) for path in paths]
            rates = {source.sample_rate_hz for source in sources}
            if len(rates) > 1:
                found = " and ".join(map(str, sorted(rates)))
                raise BundleError(f"stems and references must have one sample rate, not {found} Hz")
            spread = max(s.frames for s in sources) - min(s.frames for s in sources)
            if spread * 1000 > _LENGTH_TOLERANCE_MS * sources[0].sample_rate_hz:
                spread_ms = spread * 1000 // sources[0].sample_rate_hz
                caveats.append(
                    f"Stems and references differ in length by {spread_ms} ms; the common part was measured."
                )
            tally: _Tally = _WithReferences() if references else _StemsOnly()
            for n, window in enumerate(_windows(sources)):
                tally.add(window, n < lengths and speaking[n])
    except ClipError as error:
        raise BundleError(f"a stem cannot be read: {error}") from error
    if references is None:
        caveats.append(
            "There was no reference, so the stems were held against each other; "
            "speech or background that neither holds cannot be seen."
        )
    counts = f"{tally.speech_windows} with speech, {tally.background_windows} with background"
    notes = (f"Measured in windows of {WINDOW_MS} ms: {counts}.",)
    return source_separation_report(
        tally.metrics(), thresholds=thresholds, caveats=tuple(caveats), notes=notes
    )


def _mono(path: Path, stack: ExitStack) -> Source:
    from voicetrace.audio.source import Source

    source = stack.enter_context(Source(path))
    if source.channels != 1:
        raise BundleError(f"{path} has {source.channels} channels; a stem or reference must be mono")
    return source


def _speech_windows(path: Path) -> tuple[list[bool], int]:
    """For each window, whether speech sounds in at least half of it."""
    from voicetrace.agentclash.vad import VadSettings, activity_of

    with ExitStack() as stack:
        source = _mono(path, stack)
        blocks = (block[:, 0] for block in source.blocks(1 << 16))
        activity = activity_of(blocks, source.sample_rate_hz, VadSettings(min_silence_ms=100))
    count = -(-activity.duration_ms // WINDOW_MS)
    sounding = [0] * count
    for start, end in activity.intervals:
        for window in range(start // WINDOW_MS, min(count, -(-end // WINDOW_MS))):
            low, high = window * WINDOW_MS, (window + 1) * WINDOW_MS
            sounding[window] += min(end, high) - max(start, low)
    return [ms * 2 >= WINDOW_MS for ms in sounding], count


def _windows(sources: list[Source]) -> Iterator[list[NDArray[np.float64]]]:
    import numpy as np

    size = sources[0].sample_rate_hz * WINDOW_MS // 1000
    many = size * 64
    frames = min(source.frames for source in sources)
    for start in range(0, frames - size + 1, many):
        end = min(start + many, frames)
        blocks = [source.read(start, end)[:, 0].astype(np.float64) / 32768 for source in sources]
        for at in range(0, min(b.size for b in blocks) - size + 1, size):
            cut = [block[at : at + size] for block in blocks]
            yield [x - x.mean() for x in cut]


_AUDIBLE: Final = 10 ** (-65 / 10)  # mean square of a window that can be heard


class _Tally:
    """Sums over windows; what they are sums of is the two subclasses' own."""

    def __init__(self) -> None:
        self.speech_windows = 0
        self.background_windows = 0
        self.dropped = 0
        self.kept = {"speech": 0.0, "background": 0.0}
        self.whole = {"speech": 0.0, "background": 0.0}
        self.leaked = {"speech": 0.0, "background": 0.0}  # of this, into the other's stem
        self.stem = {"speech": 0.0, "background": 0.0}  # what the stem holds of both

    def add(self, window: list[NDArray[np.float64]], speaking: bool) -> None:
        raise NotImplementedError

    def metrics(self) -> dict[str, float]:
        if self.speech_windows < _MIN_WINDOWS or self.background_windows < _MIN_WINDOWS:
            raise BundleError(
                f"the stems hold {self.speech_windows} windows of {WINDOW_MS} ms with speech and "
                f"{self.background_windows} with background; {_MIN_WINDOWS} of each are needed"
            )

        def ratio(part: float, whole: float) -> float:
            return round(min(1.0, part / whole), 6) if whole > 0 else 0.0

        return {
            "dialogue_retention_ratio": ratio(self.kept["speech"], self.whole["speech"]),
            "background_preservation_ratio": ratio(self.kept["background"], self.whole["background"]),
            "speech_drop_risk": ratio(self.dropped, self.speech_windows),
            "background_leakage_in_dialogue_ratio": ratio(self.leaked["background"], self.stem["speech"]),
            "dialogue_leakage_in_background_ratio": ratio(self.leaked["speech"], self.stem["background"]),
        }


class _WithReferences(_Tally):
    def add(self, window: list[NDArray[np.float64]], speaking: bool) -> None:
        speech, background, s, b = window
        speech_energy, background_energy = float(s @ s), float(b @ b)
        in_speech = _parts(speech, s, b)
        in_background = _parts(background, s, b)
        if speaking:
            kept = min(in_speech[0], speech_energy)
            self.speech_windows += 1
            self.kept["speech"] += kept
            self.whole["speech"] += speech_energy
            self.dropped += kept < DROPPED_BELOW * speech_energy
        if background_energy > _AUDIBLE * b.size:
            self.background_windows += 1
            self.kept["background"] += min(in_background[1], background_energy)
            self.whole["background"] += background_energy
        self.leaked["background"] += in_speech[1]
        self.stem["speech"] += sum(in_speech)
        self.leaked["speech"] += in_background[0]
        self.stem["background"] += sum(in_background)


class _StemsOnly(_Tally):
    def add(self, window: list[NDArray[np.float64]], speaking: bool) -> None:
        speech, background = window
        speech_energy, background_energy = float(speech @ speech), float(background @ background)
        both = float(speech @ background)
        product = speech_energy * background_energy
        coherent = both * both / product if product else 0.0
        self.stem["speech"] += speech_energy
        self.stem["background"] += background_energy
        if speaking:
            leaked = coherent * background_energy
            self.speech_windows += 1
            self.leaked["speech"] += leaked
            self.kept["speech"] += speech_energy
            self.whole["speech"] += speech_energy + leaked
            self.dropped += speech_energy < DROPPED_BELOW * (speech_energy + leaked)
        elif background_energy > _AUDIBLE * background.size:
            leaked = coherent * speech_energy
            self.leaked["background"] += leaked
            self.kept["background"] += background_energy
            self.whole["background"] += background_energy + leaked
        if background_energy > _AUDIBLE * background.size:
            self.background_windows += not speaking


def _parts(stem: NDArray[np.float64], s: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[float, float]:
    """The energies of speech and background in a stem, by least squares over the two references."""
    ss, bb, sb = float(s @ s), float(b @ b), float(s @ b)
    xs, xb = float(stem @ s), float(stem @ b)
    determinant = ss * bb - sb * sb
    if determinant <= 1e-9 * ss * bb or ss == 0 or bb == 0:  # one is silent, or they are the same
        if ss >= bb:
            return (xs * xs / ss if ss else 0.0), 0.0
        return 0.0, xb * xb / bb
    a, c = (xs * bb - xb * sb) / determinant, (xb * ss - xs * sb) / determinant
    return a * a * ss, c * c * bb
