# SPDX-License-Identifier: Apache-2.0
"""The adapters' tests against other releases of the frameworks, each in an environment of its own.

    python tests/compat/run.py [livekit-agents==VERSION | pipecat-ai==VERSION ...]

Without arguments: every tested release (`package.TESTED`) but the newest, which `make test` runs against.
The tests that make each part of ours fail in turn, and those of the demo, are about us, not about the
release, and are left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUITES = {"livekit-agents": "livekit", "pipecat-ai": "pipecat"}  # distribution: its folder here and in src
TOOLS = ("hypothesis", "jsonschema", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "soxr")
OURS_ALONE = "not part_of_ours and not hook_that_fails and not any_order and not packaging and not demo"


def tested(distribution: str) -> tuple[str, ...]:
    """`package.TESTED`, read without the framework; oldest first."""
    names: dict[str, tuple[str, ...]] = {}
    source = ROOT / "src" / "voicetrace" / "integrations" / SUITES[distribution] / "package.py"
    exec(compile(source.read_text(), source, "exec"), names)
    return names["TESTED"]


def environment(requirement: str) -> Path:
    """The Python of an environment with this release and the tree as it is."""
    home = ROOT / "build" / "compat" / requirement.replace("==", "-")
    python = home / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    subprocess.run([*pip, requirement, *TOOLS, "-e", str(ROOT)], check=True)
    return python


def passes(requirement: str) -> bool:
    """Run the framework's tests against this release, and say how it went."""
    began = time.monotonic()
    suite = f"tests/{SUITES[requirement.partition('==')[0]]}"
    # a release's own unawaited coroutines are warnings here, not errors
    options = ["-q", "-n", "2", "-p", "no:cacheprovider", "-W", "default", "-k", OURS_ALONE]
    command = [str(environment(requirement)), "-m", "pytest", suite, *options]
    passed = subprocess.run(command, cwd=ROOT, env=os.environ.copy()).returncode == 0
    took = f"in {time.monotonic() - began:.0f} s"
    print(f"{requirement}: {'passed' if passed else 'FAILED'} {took}", flush=True)
    return passed


def main() -> int:
    older = [f"{name}=={version}" for name in SUITES for version in tested(name)[:-1]]
    wanted = sys.argv[1:] or older
    unknown = [w for w in wanted if w.partition("==")[0] not in SUITES or "==" not in w]
    if unknown:
        print(f"{unknown[0]} is none of {', '.join(f'{n}==VERSION' for n in SUITES)}", file=sys.stderr)
        return 2
    outcomes = [passes(requirement) for requirement in wanted]  # all of them, whatever the first one says
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
