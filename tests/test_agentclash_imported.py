# SPDX-License-Identifier: Apache-2.0
"""A call that was never traced: two files and a transcript become a bundle, and nothing is guessed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile as sf

from agentclash_support import IDS, document, tree
from voicetrace.agentclash import BundleError, Evidence, call_from_audio, export_bundle, validate_bundle
from voicetrace.agentclash.imported import ImportedCall
from voicetrace.messages import State, TextStatus, TimingSource, writer_problems

RATE = 8000
# caller 500-2000, agent 2600-4000 and 4500-6000, caller 7500-8600, agent 9700-11000
CALLER = ((500, 2000), (7500, 8600))
AGENT = ((2600, 4000), (4500, 6000), (9700, 11_000))
TURNS = [
    {"speaker": "caller", "text": "Hello, a refund please."},
    {"speaker": "agent", "text": "Of course. What is the order?", "language": "en-GB"},
    {"speaker": "caller", "text": "Seven."},
    {"speaker": "agent", "text": "Done."},
]


def sound(
    path: Path, stretches: tuple[tuple[int, int], ...], length_ms: int = 12_000, rate: int = RATE
) -> Path:
    out = np.random.default_rng(4).normal(0, 4, length_ms * rate // 1000)
    for start, end in stretches:
        t = np.arange((end - start) * rate // 1000)
        out[start * rate // 1000 :][: t.size] += 7000 * np.sin(t * 0.2)
    sf.write(path, out.astype(np.int16), rate, subtype="PCM_16")
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return sound(tmp_path / "caller.wav", CALLER), sound(tmp_path / "agent.wav", AGENT)


def bundle(files: tuple[Path, Path], imported: ImportedCall, out: Path) -> Any:
    given = Evidence(caller_audio=files[0], agent_audio=files[1])
    export_bundle(imported.call, out, **IDS, evidence=given, language=imported.languages or None)
    assert validate_bundle(out) == []
    return document(out, "transcript")["turns"]


def bounds(turns: Any) -> list[Any]:
    return [(t["start_ms"], t["end_ms"]) for t in turns]


def close(got: Any, wanted: Any) -> bool:
    return bool(np.all(np.abs(np.array(got) - np.array(wanted)) <= 20))


def test_turns_without_times_are_placed_where_the_sides_take_turns(files: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"turns": TURNS}))
    imported = call_from_audio(*files, path)
    assert imported.call.warnings == ()
    assert all(writer_problems(m) == [] for m in imported.call.messages)
    turns = bundle(files, imported, tmp_path / "out")
    assert close(bounds(turns), [(500, 2000), (2600, 6000), (7500, 8600), (9700, 11_000)])
    assert [t["text"] for t in turns] == [t["text"] for t in TURNS]
    assert [t["language"] for t in turns] == ["und", "en-GB", "und", "und"]
    assert close([list(s.values()) for s in turns[1]["audio"]["selections"]], [(2600, 4000), (4500, 6000)])
    report = document(tmp_path / "out", "live_continuity_report")
    assert (report["status"], report["metrics"]["evidence_status"]) == ("passed", "available")
    assert close([report["metrics"][n] for n in ("median_first_audio_ms", "max_output_gap_ms")], [850, 500])
    manifest = json.loads((tmp_path / "out" / "voice_artifact_manifest.json").read_text())
    assert manifest["voice_session_id"] == imported.call.call_id
    assert imported.call.call_id.startswith("audio-")
    assert "caveats" not in manifest["metadata"]


def test_several_turns_in_a_row_are_parted_at_the_longest_pause(files: Any, tmp_path: Path) -> None:
    split = [
        TURNS[0],
        {"speaker": "assistant", "text": "Of course."},
        {"speaker": "assistant", "text": "What is the order?"},
        *TURNS[2:],
    ]
    turns = bundle(files, call_from_audio(*files, split), tmp_path / "out")
    assert close(bounds(turns)[1:3], [(2600, 4000), (4500, 6000)])


def test_the_longest_pause_parts_and_not_the_first(tmp_path: Path) -> None:
    files = (
        sound(tmp_path / "c.wav", CALLER[:1]),
        sound(tmp_path / "a.wav", ((2600, 3000), (3300, 4000), (5000, 6000))),
    )
    row = [TURNS[0], {"speaker": "agent", "text": "Of course."}, {"speaker": "agent", "text": "Which?"}]
    messages = call_from_audio(*files, row).call.messages
    assert close([(m.start_ms, m.end_ms) for m in messages], [(500, 2000), (2600, 4000), (5000, 6000)])
    assert [len(m.selections) for m in messages] == [1, 2, 1]


def test_turns_that_do_not_fit_are_not_guessed(files: Any, tmp_path: Path) -> None:
    imported = call_from_audio(*files, TURNS[:3])
    assert imported.call.warnings == (
        "3 of 3 transcript turns have no times and could not be placed in the audio",
    )
    turns = bundle(files, imported, tmp_path / "out")
    assert bounds(turns) == [(None, None)] * 3
    assert [t["text"] for t in turns] == [t["text"] for t in TURNS[:3]]
    report = document(tmp_path / "out", "live_continuity_report")
    assert (report["status"], report["metrics"]["speech_start_count"]) == ("degraded", 0)
    # the timeline still says when each side was heard
    markers = document(tmp_path / "out", "waveform_timeline")["markers"]
    starts = [m["offset_ms"] for m in markers if m["key"] in ("speech_start", "output_start")]
    assert close(starts, [500, 2600, 4500, 7500, 9700])
    assert {m["basis"] for m in markers} == {"audio"}


def test_more_turns_in_a_row_than_sounds_stay_unplaced(files: Any) -> None:
    row = [TURNS[0]] * 3 + TURNS[1:]
    messages = call_from_audio(*files, row).call.messages
    assert [m.start_ms is None for m in messages] == [True, True, True, False, False, False]


def test_times_are_kept_and_sharpened_by_the_audio(files: Any, tmp_path: Path) -> None:
    timed = [
        {"speaker": "user", "text": "Hello", "start_ms": 400, "end_ms": 2100.4},
        {"speaker": "agent", "text": "Of course.", "start_ms": 2500, "end_ms": 4100},
        {"speaker": "agent", "text": "Which?", "start_ms": 4400, "end_ms": 6000, "interrupted": True},
        {"speaker": "user", "text": "nobody hears this", "start_ms": 6600, "end_ms": 6900},
        {"speaker": "agent", "text": "no times"},
    ]
    imported = call_from_audio(*files, timed)
    assert imported.call.warnings == (
        "1 of 5 transcript turns have no times and could not be placed in the audio",
        "1 of 5 transcript turns have times at which nothing is heard",
    )
    messages = imported.call.messages
    assert close([(m.start_ms, m.end_ms) for m in messages[:3]], [(500, 2000), (2600, 4000), (4500, 6000)])
    assert [m.timing_source for m in messages] == [
        TimingSource.LOCAL_VAD,
        TimingSource.LOCAL_VAD,
        TimingSource.LOCAL_VAD,
        TimingSource.PROVIDER_EVENTS,
        None,
    ]
    assert (messages[2].state, messages[2].interrupted_at_ms) == (State.INTERRUPTED, messages[2].end_ms)
    assert (messages[3].start_ms, messages[3].end_ms, messages[3].selections) == (6600, 6900, [])
    assert all(writer_problems(m) == [] for m in messages)
    bundle(files, imported, tmp_path / "out")


def test_without_a_transcript_every_turn_is_there_without_its_words(files: Any, tmp_path: Path) -> None:
    imported = call_from_audio(*files)
    turns = bundle(files, imported, tmp_path / "out")
    assert close(bounds(turns), [(500, 2000), (2600, 6000), (7500, 8600), (9700, 11_000)])
    assert {(t["text"], t["text_status"]) for t in turns} == {("", TextStatus.MISSING)}
    assert document(tmp_path / "out", "transcript")["caveats"] == [
        "4 of 4 turns have no text; text_status says why."
    ]


def test_the_same_files_give_the_same_call_and_bytes(files: Any, tmp_path: Path) -> None:
    for name in ("a", "b"):
        bundle(files, call_from_audio(*files, TURNS), tmp_path / name)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    other = call_from_audio(files[1], files[0]).call.call_id
    assert other != call_from_audio(*files).call.call_id
    named = call_from_audio(
        *files, call_id="own", agent_name="front", captured_at="2026-05-13T09:30:00Z"
    ).call
    assert (named.call_id, named.agent_name, named.origin_unix_ms) == ("own", "front", 1_778_664_600_000)


def test_sides_of_two_rates_and_lengths(tmp_path: Path) -> None:
    files = sound(tmp_path / "c.flac", CALLER, 9000), sound(tmp_path / "a.wav", AGENT, rate=24_000)
    imported = call_from_audio(*files, TURNS)
    assert imported.call.duration_ms == 12_000
    turns = bundle(files, imported, tmp_path / "out")
    assert close(bounds(turns), [(500, 2000), (2600, 6000), (7500, 8600), (9700, 11_000)])


@pytest.mark.parametrize(
    ("transcript", "sentence"),
    [
        ({}, 'must be {"turns": \\[...\\]} or a list of turns, and not empty'),
        ([], "and not empty"),
        ([3], "turn 0 of the transcript must be an object, not 3"),
        (
            [{"speaker": "x", "text": "a"}],
            'turn 0 of the transcript must have a speaker, "caller" or "agent", not "x"',
        ),
        ([{"speaker": [], "text": "a"}], "must have a speaker"),
        ([{"speaker": "agent"}], "turn 0 of the transcript must have a text, not null"),
        (
            [{"speaker": "agent", "text": "a", "start_ms": 1}],
            "must have start_ms and end_ms, in this order, or neither",
        ),
        ([{"speaker": "agent", "text": "a", "start_ms": 2, "end_ms": 1}], "in this order"),
        (
            [{"speaker": "agent", "text": "a", "start_ms": -1, "end_ms": 1}],
            "start_ms must be a number of at least 0",
        ),
        (
            [{"speaker": "agent", "text": "a", "start_ms": 0, "end_ms": float("nan")}],
            "end_ms must be a number",
        ),
    ],
)
def test_transcripts_that_are_none(transcript: Any, sentence: str, files: Any) -> None:
    with pytest.raises(BundleError, match=sentence):
        call_from_audio(*files, transcript)


def test_files_that_are_none(files: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"turns": [], "turns": []}')
    with pytest.raises(BundleError, match=r'broken\.json cannot be used: .*"turns" appears twice'):
        call_from_audio(*files, broken)
    sf.write(tmp_path / "stereo.wav", np.zeros((100, 2)), RATE)
    with pytest.raises(BundleError, match=r"stereo\.wav has 2 channels; each side must be a mono file"):
        call_from_audio(tmp_path / "stereo.wav", files[1])
    with pytest.raises(BundleError, match=r"gone\.wav does not exist"):
        call_from_audio(files[0], tmp_path / "gone.wav")
    silent = sound(tmp_path / "silent.wav", ())
    with pytest.raises(BundleError, match="nothing is to be heard in the audio and there is no transcript"):
        call_from_audio(silent, silent)
    for moment in ("yesterday", "2026-05-13T09:30:00", 3):
        with pytest.raises(BundleError, match="captured_at must"):
            call_from_audio(*files, captured_at=moment)  # type: ignore[arg-type]


def test_a_silent_side_is_said(files: Any, tmp_path: Path) -> None:
    sf.write(tmp_path / "mute.wav", np.zeros(RATE * 12, np.int16), RATE)
    sides = (tmp_path / "mute.wav", files[1])
    imported = call_from_audio(*sides)
    assert {m.role for m in imported.call.messages} == {"assistant"}
    bundle(sides, dataclasses.replace(imported), tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "voice_artifact_manifest.json").read_text())
    assert manifest["metadata"]["caveats"] == ["The caller audio is silent from beginning to end."]
    assert document(tmp_path / "out", "live_continuity_report")["status"] == "degraded"
