# SPDX-License-Identifier: Apache-2.0
"""What the pages show works: their code runs, their links lead somewhere, their pictures are pictures."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import voicetrace

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "specs").glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language):
    """Every code block of a language: (page:line, code)."""
    found = []
    for page in PAGES:
        text = page.read_text("utf-8")
        for match in BLOCK.finditer(text):
            if match[1] == language:
                line = text.count("\n", 0, match.start()) + 1
                found.append(pytest.param(match[2], id=f"{page.name}:{line}"))
    assert found
    return found


COMMANDS = [
    pytest.param(line, id=line[:40])
    for block in blocks("bash")
    for line in block.values[0].splitlines()
    if line
]


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A directory as a reader of the page has it: the examples, and calls of one's own."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for name in ("cascaded", "realtime"):  # each call in a folder of its own, as live ones are
        folder = tmp_path / "voicetrace-calls" / name
        folder.mkdir(parents=True)
        shutil.copy(ROOT / "examples" / "calls" / f"{name}.jsonl", folder / "journal.jsonl")
        shutil.copy(ROOT / "examples" / "calls" / f"{name}.flac", folder)
    for name in [n for n in os.environ if n.startswith(("OTEL_", "VOICETRACE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_only_known_languages():
    used = {match[1] for page in PAGES for match in BLOCK.finditer(page.read_text("utf-8"))}
    assert used <= {"", "python", "bash", "json"}


@pytest.mark.parametrize("code", blocks("python"))
def test_python(code, workplace, capsys):
    if "livekit" in code:
        pytest.importorskip("livekit.agents")
    names = {"__name__": "page"}
    exec(compile(code, "page", "exec"), names)
    if "read_calls" in code:
        assert "Can we make it Wednesday instead?" in capsys.readouterr().out
        assert len(list(workplace.glob("*.wav"))) == 8
    elif "entrypoint" in code:
        assert callable(names["entrypoint"])  # run by test_examples, in its longer form
    else:
        assert "assert " in code  # it says itself what it shows


@pytest.mark.parametrize("code", blocks("json"))
def test_json(code):
    json.loads(code)


@pytest.mark.parametrize("line", COMMANDS)
def test_bash(line, workplace):
    command, *arguments = shlex.split(line, comments=True)
    if command == "make":
        assert re.search(rf"^{arguments[0]}:.*##", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    elif command == "pip":
        import tomllib

        extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
            "optional-dependencies"
        ]
        assert re.fullmatch(r"\.\[(\w+)\]", arguments[-1])[1] in extras
    else:
        assert command == "voicetrace"
        if arguments[0] == "validate" and arguments[1] == "bundle":  # what the line before it wrote
            [call] = voicetrace.read_calls("examples/calls/cascaded.json")
            run = {
                "run_id": "0b5ad1d6-33d6-4a7c-8a4f-5b6d0f6c7a01",
                "run_agent_id": "0b5ad1d6-33d6-4a7c-8a4f-5b6d0f6c7a02",
            }
            voicetrace.agentclash.export_bundle(call, "bundle", **run)
        program = Path(sys.executable).with_name("voicetrace")
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=100)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text("utf-8")):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 100


# -- the picture -----------------------------------------------------------------------------------
SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_in_the_readme_is_a_whole_call():
    root = ElementTree.parse(ROOT / "docs" / "call.svg").getroot()
    assert root.tag == f"{SVG}svg"
    kinds = [element.get("class", "") for element in root.iter(f"{SVG}rect")]
    assert sum("user" in kind for kind in kinds) >= 5
    assert sum("assistant" in kind for kind in kinds) >= 5
    assert sum("uncommitted" in kind for kind in kinds) == 2
    assert any(element.get("class") == "knife" for element in root.iter(f"{SVG}path"))
    assert "Grand Central" in " ".join(e.text for e in root.iter(f"{SVG}tspan") if e.get("class") == "cut")


def test_drawing_a_call(tmp_path, monkeypatch):
    monkeypatch.setattr(
        sys,
        "argv",
        ["draw_call.py", str(ROOT / "examples" / "calls" / "cascaded.json"), str(tmp_path / "c.svg")],
    )
    runpy.run_path(str(ROOT / "docs" / "draw_call.py"), run_name="__main__")
    root = ElementTree.parse(tmp_path / "c.svg").getroot()
    boxes = [e for e in root.iter(f"{SVG}rect") if e.get("class", "").startswith("box")]
    px_per_s = 1160 / 26
    assert [
        (round(float(b.get("x")) / px_per_s, 1), round(float(b.get("width")) / px_per_s, 1)) for b in boxes
    ] == [
        (0.3, 1.5),
        (2.3, 1.1),
        (5.0, 2.9),
        (7.6, 0.8),
        (10.1, 3.0),
    ]
    drawn = " ".join(" ".join(e.itertext()) for e in root.iter(f"{SVG}text"))
    assert "Can we make it Wednesday" in drawn
    [knife] = [e for e in root.iter(f"{SVG}path") if e.get("class") == "knife"]
    assert knife.get("d").startswith(f"M{7.9 * px_per_s:.1f} ")


def test_a_call_without_a_recording_is_not_drawn(tmp_path, monkeypatch):
    shutil.copy(ROOT / "examples" / "calls" / "cascaded.json", tmp_path)
    draw = runpy.run_path(str(ROOT / "docs" / "draw_call.py"))["draw"]
    [call] = voicetrace.read_calls(tmp_path / "cascaded.json")
    with pytest.raises(ValueError, match="example-cascaded has no recording"):
        draw(call)
