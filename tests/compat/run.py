# SPDX-License-Identifier: Apache-2.0
"""The LiveKit adapter's tests against other releases, each in an environment of its own.

    python tests/compat/run.py [VERSION ...]

Without arguments: every tested release (`package.TESTED`) but the newest, which `make test` runs against.
The tests that make each part of ours fail in turn are about us, not about the release, and are left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLS = ("hypothesis", "jsonschema", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "soxr")
OURS_ALONE = "not part_of_ours and not hook_that_fails and not any_order and not packaging"


def tested() -> tuple[str, ...]:
    """`package.TESTED`, read without the framework."""
    names: dict[str, tuple[str, ...]] = {}
    source = ROOT / "src" / "voicetrace" / "integrations" / "livekit" / "package.py"
    exec(compile(source.read_text(), source, "exec"), names)
    return names["TESTED"]


def environment(version: str) -> Path:
    """The Python of an environment with this release and the tree as it is."""
    home = ROOT / "build" / "compat" / version
    python = home / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    subprocess.run([*pip, f"livekit-agents=={version}", *TOOLS, "-e", str(ROOT)], check=True)
    return python


def main() -> int:
    failed = []
    for version in sys.argv[1:] or sorted(tested())[:-1]:
        began = time.monotonic()
        # a release's own unawaited coroutines are warnings here, not errors
        command = [str(environment(version)), "-m", "pytest", "tests/livekit", "-q", "-n", "2"]
        options = ["-p", "no:cacheprovider", "-W", "default", "-k", OURS_ALONE]
        code = subprocess.run([*command, *options], cwd=ROOT, env=os.environ.copy()).returncode
        took = f"in {time.monotonic() - began:.0f} s"
        print(f"livekit-agents {version}: {'passed' if code == 0 else 'FAILED'} {took}", flush=True)
        failed += [version] if code else []
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
