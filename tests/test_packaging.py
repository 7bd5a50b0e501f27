# SPDX-License-Identifier: Apache-2.0
"""What is shipped: metadata, files, and what importing the package costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import voicetrace

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
META = distribution("voicetrace").metadata
SPDX = "# SPDX-License-Identifier: Apache-2.0"


def tracked():
    """The files of the repository; outside of one (an sdist), those of this tree."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def text_of(path):
    data = path.read_bytes()
    return None if b"\0" in data else data.decode("utf-8")


# -- metadata --------------------------------------------------------------------------------------
def test_metadata():
    assert META["Name"] == "voicetrace"
    assert META["Version"] == voicetrace.__version__
    assert META["License-Expression"] == "Apache-2.0"
    assert Version("3.11") in Requirement(f"x{META['Requires-Python']}").specifier
    assert Version("3.10") not in Requirement(f"x{META['Requires-Python']}").specifier
    assert META["Summary"]
    assert "Typing :: Typed" in META.get_all("Classifier")
    assert voicetrace.__version__ in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_typed():
    assert files("voicetrace").joinpath("py.typed").is_file()


def test_extras():
    extras = PROJECT["project"]["optional-dependencies"]
    assert sorted(META.get_all("Provides-Extra")) == sorted(extras)
    assert {"all", "judge", "livekit", "otlp", "pipecat", "server", "store"} <= extras.keys()
    [everything] = extras["all"]
    # Ray is for clusters: large, and of no use on one machine
    assert Requirement(everything).extras == extras.keys() - {"all", "ray"}
    for name, requirements in extras.items():  # what an extra brings is not also required
        required = {Requirement(r).name for r in PROJECT["project"]["dependencies"]}
        assert not required & {Requirement(r).name for r in requirements}, name


def test_entry_point():
    [script] = [e for e in distribution("voicetrace").entry_points if e.group == "console_scripts"]
    assert (script.name, script.value) == ("voicetrace", "voicetrace.cli:main")
    assert callable(script.load())


def test_constraints_are_exact_and_cover_what_is_required():
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert all(re.fullmatch(r"[a-z0-9-]+", name) and Version(pin) for name, pin in pins.items())
    assert list(pins) == sorted(pins)
    groups = PROJECT["dependency-groups"] | PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["project"]["dependencies"], *(r for group in groups.values() for r in group)]
    for requirement in map(Requirement, wanted):
        if requirement.name != "voicetrace":
            assert requirement.specifier.contains(pins[requirement.name]), requirement


# -- the public names ------------------------------------------------------------------------------
def test_public_names():
    assert voicetrace.__all__ == sorted(voicetrace.__all__)
    assert set(voicetrace.__all__) <= set(dir(voicetrace))
    for name in voicetrace.__all__:
        assert getattr(voicetrace, name) is getattr(voicetrace, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = voicetrace.nothing


def as_ruff_sorts(name):
    """Constants, then classes, then the rest."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_every_all_is_sorted():
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                names = ast.literal_eval(node.value)
                assert names in (sorted(names), sorted(names, key=as_ruff_sorts)), path
                assert len(names) == len(set(names)), path


HEAVY = {"livekit", "pipecat", "soxr", "av", "numpy", "soundfile", "fastapi", "uvicorn", "onnxruntime"}
HEAVY |= {"scipy", "obstore", "typer", "rich", "pydantic", "opentelemetry"}


def modules_after(code):
    code += "\nimport sys; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True, timeout=100
    )
    return set(done.stdout.split())


def test_importing_the_package_imports_nothing_heavy():
    assert not modules_after("import voicetrace") & HEAVY


@pytest.mark.parametrize("name", ["configure", "read_calls", "recover", "wrap_exporter", "agentclash"])
def test_a_public_name_brings_no_framework(name):
    frameworks = {"livekit", "pipecat", "fastapi", "uvicorn", "onnxruntime", "scipy", "obstore"}
    assert not modules_after(f"import voicetrace; voicetrace.{name}") & frameworks


def test_the_command_line_brings_no_framework():
    assert not modules_after("import voicetrace.cli") & {
        "livekit",
        "pipecat",
        "fastapi",
        "onnxruntime",
        "scipy",
    }


# -- the files -------------------------------------------------------------------------------------
def test_every_source_file_names_its_licence():
    paths = [p for p in tracked() if p.suffix == ".py"] + [ROOT / "Makefile"]
    assert len(paths) > 50
    for path in paths:
        assert path.read_text("utf-8").startswith(SPDX + "\n"), path
    assert SPDX in (ROOT / ".ci" / "run").read_text("utf-8").splitlines()[1]


def test_no_file_is_large():
    for path in tracked():
        assert path.stat().st_size <= 2_000_000, path


# spelled in pieces, so that this file does not contain what it looks for
HOSTS = [
    f"{host}.{end}"
    for host, end in (("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("debian", "org"))
]
PLACES = ["/" + place for place in ("work/", "root/", "home/", "opt/py", "Users/", "tmp/lk")]


def test_no_file_names_a_registry_or_a_machine():
    for path in tracked():
        text = text_of(path)
        for word in [] if text is None else HOSTS + PLACES:
            assert word not in text, f"{path.relative_to(ROOT)} holds {word}"


def test_ci_runs_what_the_readme_says():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert "set -euo pipefail" in script.read_text("utf-8")
    subprocess.run(["bash", "-n", script], check=True)
    assert "make test" in script.read_text("utf-8")
    assert "make test" in (ROOT / "README.md").read_text("utf-8")
