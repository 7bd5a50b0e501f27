# SPDX-License-Identifier: Apache-2.0
"""What a bundle may do to us: each bad input is refused in one clear line, and nothing leaves its place.

Also what an interrupted export leaves behind: never half a bundle that validates.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentclash_support import IDS, make_call, tree
from voicetrace.agentclash import BundleError, export_bundle, validate_bundle, validate_path
from voicetrace.cli import app

MANIFEST = "voice_artifact_manifest.json"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return export_bundle(make_call(tmp_path), tmp_path / "bundle", **IDS).parent


def edit(bundle: Path, **changes: Any) -> None:
    """Change the manifest's first artifact, which is the agent's audio."""
    path = bundle / MANIFEST
    data = json.loads(path.read_text())
    data["artifacts"][0].update(changes)
    path.write_text(json.dumps(data))


def validated(path: Path) -> list[str]:
    """The lines `voicetrace validate` prints; they are those of the library."""
    result = CliRunner().invoke(app, ["validate", str(path)], prog_name="voicetrace")
    lines = result.stdout.splitlines()
    assert result.exit_code == 1, result.output
    assert result.stderr == ""
    assert lines == validate_path(path)
    return lines


def one_line(path: Path, *words: str) -> None:
    [line] = validated(path)
    for word in words:
        assert word in line, line


# -- tampering ---------------------------------------------------------------------------------------
def test_a_changed_byte(bundle: Path) -> None:
    with (bundle / "artifacts" / "agent.wav").open("r+b") as file:
        file.seek(5000)
        file.write(b"\x01\x02")
    one_line(bundle, "$.artifacts[0].checksum_sha256: differs from the digest of", '"artifacts/agent.wav"')


def test_a_changed_size(bundle: Path) -> None:
    edit(bundle, size_bytes=7)
    one_line(bundle, "$.artifacts[0].size_bytes: says 7, and", '"artifacts/agent.wav"', "has 160044 bytes")


def test_a_missing_file_is_named(bundle: Path) -> None:
    (bundle / "artifacts" / "agent.wav").unlink()
    one_line(bundle, "$.artifacts[0].path:", "is not in the bundle", '(key "agent_audio")')


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("../agent.wav", "must not contain '..'"),
        ("..", "must not contain '..'"),
        ("a/../../b", "must not contain '..'"),
        ("a/../b", "must not contain '..'"),
        ("artifacts/..", "must not contain '..'"),
        ("/etc/passwd", "must be relative to the bundle"),
        ("//host/share", "must be relative to the bundle"),
        ("C:/windows/x.wav", "must be relative to the bundle"),
        ("c:x.wav", "must be relative to the bundle"),
        ("..\\..\\x.wav", "must use forward slashes only"),
        ("C:\\x.wav", "must use forward slashes only"),
        ("artifacts\\agent.wav", "must use forward slashes only"),
        ("\\\\host\\share", "must use forward slashes only"),
    ],
)
def test_paths_that_leave_or_trick(path: str, words: str, bundle: Path) -> None:
    # a file of that name beside and above the bundle must not be read either
    (bundle.parent / "agent.wav").write_bytes((bundle / "artifacts" / "agent.wav").read_bytes())
    edit(bundle, path=path)
    one_line(bundle, "$.artifacts[0].path: ", words)


@pytest.mark.parametrize("what", ["file", "folder", "chain"])
def test_links_that_leave(what: str, bundle: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    if what == "folder":
        shutil.move(bundle / "artifacts", outside)
        (bundle / "artifacts").symlink_to(outside)
        lines = validated(bundle)
        assert len(lines) == 9
        assert all("leaves the bundle through a symbolic link" in line for line in lines)
        return
    shutil.move(bundle / "artifacts" / "agent.wav", outside)
    if what == "chain":
        (bundle / "link").symlink_to(outside)
        (bundle / "artifacts" / "agent.wav").symlink_to("../link")
    else:
        (bundle / "artifacts" / "agent.wav").symlink_to(outside)
    one_line(bundle, "$.artifacts[0].path:", "leaves the bundle through a symbolic link")


# -- documents ---------------------------------------------------------------------------------------
def rewritten(bundle: Path, old: str, new: str) -> None:
    path = bundle / MANIFEST
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_duplicate_keys(bundle: Path) -> None:
    rewritten(bundle, '"schema_version":', '"schema_version": "2026-05-13",\n  "schema_version":')
    one_line(bundle, '$: the key "schema_version" appears twice in one object')


def test_duplicate_artifacts(bundle: Path) -> None:
    edit(bundle, key="caller_audio")
    one_line(bundle, '$.artifacts[1].key: repeats the key "caller_audio" of $.artifacts[0]')


def test_upper_case_digests(bundle: Path) -> None:
    sha = json.loads((bundle / MANIFEST).read_text())["artifacts"][0]["checksum_sha256"]
    rewritten(bundle, sha, sha.upper())
    one_line(bundle, "$.artifacts[0].checksum_sha256: must be 64 lower-case hex digits, not")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_numbers_json_does_not_have(value: str, bundle: Path, tmp_path: Path) -> None:
    rewritten(bundle, '"size_bytes": 160044', f'"size_bytes": {value}')
    one_line(bundle, f"{value} is no JSON value")
    report = tmp_path / "report.json"
    report.write_text(f'{{"type": "agentclash.voice.live_continuity_eval.v1", "x": {value}}}')
    one_line(report, f"{value} is no JSON value")


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"artifacts":'])
@pytest.mark.parametrize("closed", [True, False])
def test_ten_megabytes_of_nesting(opening: bytes, closed: bool, bundle: Path, tmp_path: Path) -> None:
    depth = 10_000_000 // len(opening)
    closing = {b"[": b"]", b'{"a":': b"1" + b"}", b'[{"artifacts":': b"1}]"}[opening]
    data = opening * depth + (closing * depth if closed and len(closing) == 1 else b"")
    lone = tmp_path / "deep.json"
    for path in (lone, bundle / MANIFEST):
        path.write_bytes(data)
    one_line(lone, "$: ", "nested too deeply")
    one_line(bundle, "$: ", "nested too deeply")
    # and as a report inside a bundle
    fresh = export_bundle(make_call(tmp_path), tmp_path / "fresh", **IDS).parent
    (fresh / "artifacts" / "live_continuity_report.json").write_bytes(data)
    lines = validated(fresh)
    assert lines[-1] == "artifacts/live_continuity_report.json $: is nested too deeply"


def test_a_document_larger_than_any_is_not_read(bundle: Path) -> None:
    path = bundle / MANIFEST
    with path.open("r+b") as file:
        file.truncate(65 * 2**20)  # a hole: it takes no disk
    one_line(bundle, "$: is larger than 64 MiB")


# -- nothing is written outside ----------------------------------------------------------------------
def test_an_export_writes_into_its_own_directory_only(tmp_path: Path) -> None:
    call = make_call(tmp_path)
    before = tree(tmp_path)
    out = tmp_path / "a" / "out"
    export_bundle(call, out, **IDS)
    written = {name for name in tree(tmp_path) if name not in before}
    assert written
    assert all(name.startswith("a/out/") for name in written)
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["out"]


@pytest.mark.parametrize("call_id", ["../../evil", "/etc/evil", "a\\b", "x" * 4000, "a\nb"])
def test_a_calls_own_words_name_no_file(call_id: str, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    export_bundle(make_call(tmp_path, call_id=call_id), out, **IDS)
    assert validate_bundle(out) == []
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == ["out"]


def test_links_in_an_earlier_bundle_are_replaced_and_not_followed(bundle: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    for name in ("artifacts/agent.wav", "artifacts/transcript.json"):
        (bundle / name).unlink()
        (bundle / name).symlink_to(outside)
    (bundle / "call_import.json").symlink_to(outside)
    export_bundle(make_call(tmp_path), bundle, **IDS)
    assert outside.read_bytes() == b"mine"
    assert validate_bundle(bundle) == []
    assert not (bundle / "call_import.json").is_symlink()


# -- an interrupted export ---------------------------------------------------------------------------
EXPORT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from agentclash_support import IDS, make_call
from voicetrace.agentclash import export_bundle
root, out = Path(sys.argv[2]), Path(sys.argv[3])
first, second = make_call(root, call_id="first"), make_call(root, call_id="second")
print("ready", flush=True)
while True:
    for call in (first, second):
        export_bundle(call, out, **IDS)
"""


def killed_after(seconds: float, root: Path, out: Path) -> None:
    command = [sys.executable, "-c", EXPORT, str(Path(__file__).parent), str(root), str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=seconds)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs SIGKILL")
def test_a_killed_export_leaves_no_half_bundle_that_validates(tmp_path: Path) -> None:
    """Killed again and again, anywhere: what validates is one of the two bundles to the byte."""
    expected = []
    for name in ("first", "second"):
        export_bundle(make_call(tmp_path, call_id=name), tmp_path / name, **IDS)
        expected.append(tree(tmp_path / name))
    rng = random.Random(7)
    killed = tmp_path / "killed"
    killed.mkdir()
    (tmp_path / "in").mkdir()
    for n in range(12):
        out = killed / "out"
        if n % 3 == 0:
            shutil.rmtree(out, ignore_errors=True)
        killed_after(rng.uniform(0, 0.25), tmp_path / "in", out)
        for found in [out, *killed.glob(".out.*.partial")]:
            if not found.exists():
                continue
            problems = validate_bundle(found)
            assert all("\n" not in line for line in problems)
            if not problems:
                assert tree(found) in expected, f"run {n}: {found.name} validates and is half a bundle"
        # the next export clears away what the killed one left, and is whole
        shutil.rmtree(out, ignore_errors=True)
        export_bundle(make_call(tmp_path / "in", call_id="first"), out, **IDS)
        assert tree(out) == expected[0]
        assert sorted(p.name for p in killed.iterdir()) == ["out"]


def test_what_is_left_at_every_step_of_a_replacement_is_invalid_or_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, step by step: stopped before each file is put in its place."""
    out = tmp_path / "out"
    export_bundle(make_call(tmp_path, call_id="first"), out, **IDS)
    before = tree(out)
    export_bundle(make_call(tmp_path, call_id="second"), tmp_path / "second", **IDS)
    after = tree(tmp_path / "second")
    saved = tmp_path / "saved"
    shutil.copytree(out, saved)
    replace = Path.replace
    seen = []
    for stop in range(12):
        shutil.rmtree(out)
        shutil.copytree(saved, out)
        left = iter(range(stop))

        def stopping(self: Path, target: Path, left: Any = left) -> Path:
            if next(left, None) is None:
                raise OSError(28, "No space left on device")
            return replace(self, target)

        monkeypatch.setattr(Path, "replace", stopping)
        try:
            export_bundle(make_call(tmp_path, call_id="second"), out, **IDS)
        except BundleError as error:
            assert "No space left on device" in str(error)  # noqa: PT017
        monkeypatch.undo()
        state = tree(out)
        seen.append("before" if state == before else "after" if state == after else "between")
        assert (validate_bundle(out) == []) == (seen[-1] != "between")
    assert seen[0] == "before"
    assert seen[-1] == "after"
    assert "between" in seen
    assert not list(tmp_path.glob(".*partial"))


def test_a_running_exports_directory_is_not_cleared_away(tmp_path: Path) -> None:
    from voicetrace.agentclash.target import build_beside

    with build_beside(tmp_path / "out") as running:
        (running / "x").write_text("mine")
        export_bundle(make_call(tmp_path), tmp_path / "out", **IDS)
        assert (running / "x").read_text() == "mine"
    assert not running.exists()
    left = tmp_path / ".out.0123456789ab.partial"
    left.mkdir()
    foreign = tmp_path / ".out.notours.partial"
    foreign.mkdir()
    export_bundle(make_call(tmp_path), tmp_path / "out", **IDS)
    assert not left.exists()
    assert foreign.exists()
