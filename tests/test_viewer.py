# SPDX-License-Identifier: Apache-2.0
"""The page of a call: what it says of each message, what it holds of the recording, how it gets on the disk.

How it looks and sounds in a browser is in ``test_viewer_browser.py``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

import voicetrace
from audio_support import tone
from viewer_support import (
    EXAMPLES,
    Page,
    example,
    long_call,
    message,
    recorded,
    short_call,
    silent_wav,
)
from voicetrace.cli import app
from voicetrace.judge.result import CallJudgement, Dimension, DimensionScore, Evidence, NullReason
from voicetrace.messages import Channel, LLMStep, State, TextStatus, VoiceMessage
from voicetrace.viewer import (
    Judgement,
    JudgementError,
    PageError,
    find_judgement,
    sound,
    words,
    write_page,
    write_pages,
)
from voicetrace.viewer.data import clock, page_data
from voicetrace.viewer.page import call_page
from voicetrace.viewer.peaks import peaks
from voicetrace.viewer.sound import Sound, sound_of
from voicetrace.voice_call import VoiceCall


def data_of(call: VoiceCall, **options: Any) -> dict[str, Any]:
    """What the page of a call is told, without its sound."""
    return page_data(call, Sound(note="The call was not recorded."), **options)


def said_of(*messages: VoiceMessage, **facts: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = data_of(VoiceCall(call_id="c", messages=messages, **facts))["messages"]
    return found


# -- words -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fields", "worth", "trust"),
    [
        ({}, "what was heard", "exact"),
        ({"text_source": "tts_input"}, "generated; may overstate what was heard", "doubtful"),
        (
            {"text_source": "realtime_output_transcript"},
            "the model's own transcript; may overstate what was heard",
            "doubtful",
        ),
        ({"role": "user", "text_source": "stt"}, "what speech recognition understood", "transcript"),
        (
            {"role": "user", "text_source": "realtime_input_transcript"},
            "the provider's transcript; the model itself heard the audio",
            "transcript",
        ),
        ({"role": "user", "text_source": "text_input"}, "typed, not spoken", "exact"),
        ({"text_source": None}, "where this text comes from is not known", "doubtful"),
        (
            {"role": "user", "text_source": "stt", "text_status": "partial"},
            "not final: what speech recognition understood",
            "doubtful",
        ),
        ({"role": "user", "text": None, "text_status": "missing"}, "transcript missing", "doubtful"),
        ({"text": None, "text_status": "missing"}, "text missing", "doubtful"),
        (
            {"text": None, "text_status": "missing", "state": "open"},
            "no text before the message ends",
            "doubtful",
        ),
        (
            {"text": None, "text_status": "not_captured"},
            "text not captured: content capture was off",
            "doubtful",
        ),
        ({"state": "unplayed", "text_source": "tts_input"}, "generated; nobody heard it", "doubtful"),
    ],
)
def test_what_a_text_is_worth(fields: dict[str, Any], worth: str, trust: str) -> None:
    [said] = said_of(message(**fields))
    assert (said["worth"], said["trust"]) == (worth, trust)


def test_values_of_a_newer_version_are_shown_as_they_are() -> None:
    usual = message().model_dump()
    newer = VoiceMessage.model_construct(
        **usual
        | {
            "id": "m",
            "state": "paused",
            "text_source": "lip_reading",
            "timing_source": "sundial",
            "role": "robot",
        }
    )
    [said] = said_of(newer)
    assert said["ended"] == "paused (not known to this version)"
    assert said["worth"] == "text source lip_reading (not known to this version)"
    assert said["trust"] == "doubtful"
    assert said["role"] == "robot"
    assert ["timing_source", "sundial (not known to this version)"] in said["details"]
    status = VoiceMessage.model_construct(**usual | {"id": "m", "text_status": "guessed"})
    assert words.text_worth(status) == "text status guessed (not known to this version)"


@pytest.mark.parametrize(
    ("heard", "generated", "rest"),
    [
        ("There are", "There are three hotels.", " three hotels."),
        ("there are three", "There are three, hotels.", " hotels."),
        ("Is it 5?", "Is it  5 ? Yes.", " ? Yes."),
        ("", "All of it.", "All of it."),
        ("Something else", "There are three hotels.", None),
        ("There are three hotels and more", "There are three hotels.", None),
        ("Grüße aus", "GRÜSSE aus Köln", " Köln"),
        ("— yes", "—  yes, no", " no"),
        (None, "All of it.", None),
        ("All", None, None),
    ],
)
def test_the_rest_that_nobody_heard(heard: str | None, generated: str | None, rest: str | None) -> None:
    status = "missing" if heard is None else "final"
    one = message(text=heard, text_status=status, generated_text=generated)
    assert words.unheard(one) == rest
    [said] = said_of(one)
    if generated is not None and rest is None:  # then it is shown whole, not struck out in the wrong place
        assert said["generated"] == generated


@given(st.text(), st.text())
def test_what_was_heard_and_the_rest_are_what_was_generated(heard: str, rest: str) -> None:
    one = message(text=heard, generated_text=heard + rest)
    assert words.unheard(one) == rest


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_text_is_shown_without_what_hides_it(text: str) -> None:
    shown = words.shown(text)
    shown.encode("utf-8")
    assert not set(shown) & set("\x00\x1b\u202e\u2066\u2069")
    assert words.shown(shown) == shown


def test_hidden_characters_are_written_out() -> None:
    assert words.shown("a\u202eb\x00\ud800\r\nc\td") == "a⟨U+202E⟩b⟨U+0000⟩⟨U+D800⟩\nc\td"
    assert words.shown("שלום\u200f!") == "שלום\u200f!"  # a mark that belongs to the script stays


@pytest.mark.parametrize(
    ("ms", "shown"),
    [(0, "0:00.00"), (7349, "0:07.35"), (59_996, "1:00.00"), (3_667_350, "1:01:07.35"), (None, "not known")],
)
def test_clock(ms: int | None, shown: str) -> None:
    assert clock(ms) == shown


# -- messages ----------------------------------------------------------------------------------------
def test_facts_of_a_turn() -> None:
    [said] = said_of(
        message(
            1,
            role="user",
            text_source="stt",
            start_ms=1000,
            end_ms=2000,
            end_of_turn_ms=2500,
            transcript_final_ms=1900,
        )
    )
    assert said["facts"] == [
        "end of turn 0.50 s after the speech ended",
        "final transcript 0.10 s before the speech ended",
    ]


def test_what_is_not_known_is_said_and_never_a_number() -> None:
    user = message(role="user", text_source="stt", start_ms=None, end_ms=None, timing_source=None)
    [said] = said_of(user)
    assert said["facts"] == ["end of turn not known", "final transcript not known"]
    assert (said["start"], said["end"], said["blocks"]) == (None, None, [])
    details = dict(said["details"])
    assert details["start_ms"] == details["timing_source"] == details["end_of_turn_ms"] == "not known"
    facts = dict(data_of(VoiceCall(call_id="c"))["call"]["facts"])
    assert {facts[name] for name in ("framework", "started", "length", "conversation", "trace")} == {
        "not known"
    }
    assert facts["ended"] == "yes; why is not known"


def test_a_cut_answer() -> None:
    call = example()
    said = {m["id"]: m for m in data_of(call)["messages"]}["item_a1"]
    assert said["ended"] == "cut off"
    assert said["cut"] == 7900
    assert said["text"].endswith("Tuesday the ninth at ten")
    assert said["unheard"].startswith(" in the morning.")
    assert "cut at 0:07.90" in said["facts"]
    realtime = {m["id"]: m for m in data_of(example("realtime"))["messages"]}["item_rt_a1"]
    assert "the provider was told to keep 2.90 s" in realtime["facts"]


def test_what_does_not_apply_is_left_out_of_the_record() -> None:
    complete, cut = said_of(message(0), message(1, state="interrupted"))
    assert "interrupted_at_ms" not in dict(complete["details"])
    assert dict(cut["details"])["interrupted_at_ms"] == "not known"


def test_why_there_is_no_audio() -> None:
    said = said_of(
        message(0, role="user", text_source="text_input", start_ms=None, end_ms=None, timing_source=None),
        message(1, state="unplayed", text_source="tts_input", start_ms=None, end_ms=None),
        message(2, state="open", text=None, text_status="missing"),
        message(3),
    )
    assert [m["silent"] for m in said] == [
        "typed: there is no audio",
        "no audio",
        "no audio before the message ends",
        "none of the recording is this message's",
    ]
    assert said[0]["facts"] == []


def test_speech_outside_the_conversation() -> None:
    noise = message(role="user", text=None, text_status="missing", text_source="stt", committed=False)
    assert said_of(noise)[0]["facts"] == ["never entered the conversation"]
    assert said_of(message(state="open", committed=False, text=None, text_status="missing"))[0]["facts"] == [
        "not committed yet"
    ]


# -- steps -------------------------------------------------------------------------------------------
def step(number: int, **fields: Any) -> LLMStep:
    return LLMStep(span_id=f"{number:016x}", trace_id="1" * 32, name="llm_node", **fields)


def test_links_between_steps_and_messages() -> None:
    data = data_of(example())
    assert [s["read"] for s in data["steps"]] == [
        "read 1 message, 1 other item",
        "read 1 message, 3 other items",
        "read 3 messages, 3 other items",
        "read 3 messages, 5 other items",
    ]
    assert [s["wrote"] for s in data["steps"]] == [
        "wrote no message",
        "wrote #2",
        "wrote no message",
        "wrote #5",
    ]
    assert [s["reads"] for s in data["steps"]] == [[[0, 0]], [[0, 0]], [[0, 2]], [[0, 2]]]
    assert [s["writes"] for s in data["steps"]] == [[], [1], [], [3]]
    assert [m["made_by"] for m in data["messages"]] == [None, 1, None, 3]
    assert [m["read_by"] for m in data["messages"]] == [[[0, 3]], [[2, 3]], [[2, 3]], []]
    # a step stands before what it wrote, else where its time falls
    assert "".join(kind[0] + str(place) for kind, place in data["order"]) == "m0s0s1m1m2s2s3m3"


def test_steps_that_wrote_nothing_or_something_unknown() -> None:
    call = VoiceCall(
        call_id="c",
        messages=(message(0, produced_by_span_id="f" * 16), message(1)),
        llm_steps=(
            step(1, speculative=True, context_ids=("item_0", None, "sys"), start_ms=500),
            step(2, output_ids=("gone",), error="rate limit \u202e", context_ids=()),
        ),
    )
    data = data_of(call)
    assert [s["wrote"] for s in data["steps"]] == ["an attempt that was dropped", "wrote gone (in no record)"]
    assert data["steps"][0]["read"] == "read 1 message, 1 other item, 1 that never entered the conversation"
    assert data["steps"][1]["read"] == "what it read is not known"
    assert data["steps"][1]["error"] == "rate limit ⟨U+202E⟩"
    assert [m["maker"] for m in data["messages"]] == [
        f"written by step {'f' * 16}, which is not in this trace",
        "no LLM step known that wrote it",
    ]
    assert data["order"] == [["message", 0], ["step", 0], ["message", 1], ["step", 1]]


def test_a_step_without_a_record_of_its_own_is_found_by_the_message() -> None:
    call = VoiceCall(
        call_id="c", messages=(message(0, produced_by_span_id=f"{1:016x}"),), llm_steps=(step(1),)
    )
    assert data_of(call)["steps"][0]["wrote"] == "wrote #0"


# -- the sound ---------------------------------------------------------------------------------------
def test_the_audio_in_the_page_is_the_recording(tmp_path: Path) -> None:
    call = short_call(tmp_path)
    page = Page(call_page(call, sound_of(call, None, tmp_path / "call.html")))
    samples = page.samples()
    found = page.data["sound"]
    assert found["type"] == "audio/flac"
    assert (found["rate"], found["channels"], len(samples)) == (24_000, ["caller", "agent"], found["frames"])
    for shown, one in zip(page.data["messages"], call.messages, strict=True):
        clip = np.concatenate([samples[low:high, channel] for channel, low, high in shown["ranges"]])
        assert np.array_equal(clip, call.clip(one).samples)
    assert len(page.data["messages"]) == 5


def test_a_message_of_several_ranges(tmp_path: Path) -> None:
    call = example()
    page = Page(call_page(call, sound_of(call, None, tmp_path / "call.html")))
    user = page.data["messages"][0]
    assert [high - low for _, low, high in user["ranges"]] == [1500 * 8, 1100 * 8]
    assert user["blocks"] == [[300, 1800], [2300, 3400]]


@pytest.mark.parametrize(("columns", "channels"), [(1, ["caller"]), (2, ["caller", "agent"])])
def test_pieces_and_peaks_cover_the_recording(tmp_path: Path, columns: int, channels: list[str]) -> None:
    rate, seconds = 8000, 21
    samples = tone(rate * seconds * columns).reshape(-1, columns)
    call = recorded(tmp_path / "r.wav", samples, rate, [(Channel.CALLER, 7500, 8900)])
    page = Page(call_page(call, sound_of(call, None, tmp_path / "call.html")))
    found = page.data["sound"]
    assert found["channels"] == channels
    assert found["pieces"] == 3
    assert found["piece"] % found["bin"] == 0
    assert np.array_equal(page.samples(), samples)
    for column, text in enumerate(found["peaks"]):
        loudest = np.abs(samples[:, column].astype(int)).reshape(-1, found["bin"]).max(axis=1)
        assert list(base64.b64decode(text)) == list(np.ceil(255 * np.sqrt(loudest / 32768)).astype(int))


def test_peaks_of_a_short_end_and_of_silence() -> None:
    frames = np.array([[0], [0], [-32768], [5], [1]], np.int16)
    assert peaks(frames, 2).tolist() == [[0], [255], [2]]
    assert peaks(frames[:0], 2).shape == (0, 1)


def test_a_larger_recording_is_compressed_and_a_longer_one_is_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate = 24_000
    samples = np.repeat(tone(rate * 12)[:, None] // 8, 2, axis=1)
    call = recorded(tmp_path / "a b.wav", samples, rate, [(Channel.AGENT, 1000, 2000)])
    page = tmp_path / "pages" / "call.html"
    assert sound_of(call, None, page).form == "flac"

    monkeypatch.setattr(sound, "EMBED_LIMIT", 100_000)
    small = sound_of(call, None, page)
    assert (small.form, small.href) == ("opus", None)
    assert small.note == "The audio is in this page, compressed (Opus); the recording itself is finer."
    assert sum(map(len, small.pieces)) < 150_000
    decoded = Page(call_page(call, small)).samples()
    assert len(decoded) == len(samples)

    monkeypatch.setattr(sound, "EMBED_LIMIT", 50_000)
    linked = sound_of(call, None, page)
    assert (linked.form, linked.pieces, linked.href) == (None, (), "../a%20b.wav")
    assert linked.note.startswith("The recording is too long to put into this page. It is linked:")
    assert linked.peaks
    assert sound_of(call, "embed", page).form == "opus"  # whoever asks for it gets it


def test_a_rate_that_opus_does_not_know_stays_lossless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = recorded(tmp_path / "r.wav", tone(22_050 * 2).reshape(-1, 2), 22_050, [(Channel.CALLER, 0, 500)])
    monkeypatch.setattr(sound, "EMBED_LIMIT", 1000)
    assert sound_of(call, "embed", tmp_path / "call.html").form == "flac"
    assert sound_of(call, None, tmp_path / "call.html").href == "r.wav"


def test_audio_that_is_left_out_or_linked(tmp_path: Path) -> None:
    call = short_call(tmp_path)
    none = sound_of(call, "none", tmp_path / "call.html")
    assert (none.note, none.pieces, none.href) == ("The audio was left out of this page.", (), None)
    assert none.peaks
    link = sound_of(call, "link", tmp_path / "call.html")
    assert link.href == f"{call.call_id}/recording.wav"
    assert "media-src blob: file: 'self';" in Page(call_page(call, link)).policy
    assert "media-src 'none'" in Page(call_page(call, none)).policy


def test_what_was_lost_of_the_audio(tmp_path: Path) -> None:
    call = short_call(tmp_path)
    path = call.recording_path()
    assert path is not None
    with path.with_suffix(".index.jsonl").open("a") as index:
        lost = {"start_ms": 900, "end_ms": 1100, "reason": "queue full"}
        index.write(json.dumps({"channel": "agent", "lost": lost}) + "\n")
    found = page_data(call, sound_of(call, "none", tmp_path / "call.html"))
    assert found["sound"]["lost"] == [[1, 900, 1100, "queue full"]]


@pytest.mark.parametrize(
    ("break_it", "note"),
    [
        (lambda path: path.unlink(), "The recording recording.wav was not there when this page was made."),
        (
            lambda path: path.write_bytes(b"RIFF no audio"),
            "The recording cannot be used: recording.wav is not audio",
        ),
        (lambda path: path.write_bytes(path.read_bytes()[:44]), "The recording recording.wav is empty."),
    ],
)
def test_a_recording_that_cannot_be_used(tmp_path: Path, break_it: Any, note: str) -> None:
    call = short_call(tmp_path)
    path = call.recording_path()
    assert path is not None
    break_it(path)
    said = page_data(call, sound_of(call, None, tmp_path / "call.html"))
    assert said["sound"]["note"].startswith(note)
    assert str(tmp_path) not in json.dumps(said["sound"])
    assert {m["silent"] for m in said["messages"]} == {"its audio is not here"}


def test_a_recording_that_was_cut_short(tmp_path: Path) -> None:
    call = short_call(tmp_path)
    path = call.recording_path()
    assert path is not None
    path.write_bytes(path.read_bytes()[: 44 + 4 * 24_000 * 17 // 10])  # 1.7 s of it
    said = page_data(call, sound_of(call, None, tmp_path / "call.html"))
    lengths = [sum(high - low for _, low, high in m["ranges"]) / 24 for m in said["messages"]]
    assert lengths == [300, 400, 300, 0, 0]
    assert said["messages"][4]["silent"] == "the recording does not hold its audio"
    assert [w.partition(" message ")[0] for w in said["warnings"]] == [
        "the recording does not hold all of"
    ] * 3


def test_a_selection_of_a_segment_that_is_not_there(tmp_path: Path) -> None:
    call = short_call(tmp_path)
    assert call.recording is not None
    call = replace(call, recording=call.recording.model_copy(update={"segments": {}}))
    said = page_data(call, sound_of(call, "none", tmp_path / "call.html"))
    assert "selects segment" in said["warnings"][0]
    assert said["messages"][0]["blocks"] == [[100, 400]]  # by its bounds


def test_a_recording_elsewhere(tmp_path: Path) -> None:
    call = short_call(tmp_path)
    assert call.recording is not None
    away = call.recording.model_copy(update={"uri": "s3://calls/one.wav?signature=secret"})
    found = sound_of(replace(call, recording=away), None, tmp_path / "call.html")
    assert found.note == "The recording is not on the machine that made this page, but at s3://calls/one.wav."


# -- the page ----------------------------------------------------------------------------------------
def page_of(call: VoiceCall) -> Page:
    return Page(call_page(call, Sound(note="The call was not recorded.")))


HOSTILE = (
    "</script><script>window.hacked=1</script><!--<img src=x onerror=alert(1)>{{data}}&amp;\u2028\x00\ud800"
)


def test_hostile_text_stays_data(tmp_path: Path) -> None:
    call = VoiceCall(
        call_id=HOSTILE,
        agent_name=HOSTILE,
        framework=HOSTILE,
        warnings=(HOSTILE,),
        messages=(message(0, id=HOSTILE, text=HOSTILE, generated_text=HOSTILE * 2),),
        llm_steps=(LLMStep(span_id=HOSTILE, trace_id=HOSTILE, name=HOSTILE, error=HOSTILE),),
    )
    page = page_of(call)
    assert page.tags.count("script") == 2
    assert "img" not in page.tags
    assert page.data["messages"][0]["text"] == words.shown(HOSTILE)
    assert page.code.startswith("// SPDX-License-Identifier: Apache-2.0\n")
    [path] = [page.path for page in write_pages([call], tmp_path / "pages")]
    assert path.parent == tmp_path / "pages"
    index = Page((tmp_path / "pages" / "index.html").read_text("utf-8"))
    assert "script" not in index.tags
    assert "img" not in index.tags


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=200))
def test_any_text_survives_the_page(text: str) -> None:
    page = page_of(VoiceCall(call_id="c", messages=(message(text=text),)))
    assert page.data["messages"][0]["text"] == words.shown(text)
    assert page.tags.count("script") == 2


def test_the_policy_allows_this_style_and_this_script_only() -> None:
    page = page_of(example())

    def digest(code: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() + "'"

    rules = dict(rule.strip().partition(" ")[::2] for rule in page.policy.split(";"))
    assert rules == {
        "default-src": "'none'",
        "script-src": digest(page.code),
        "style-src": digest(page.styles[0]),
        "media-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", page.html)
    assert " style=" not in page.html


def test_the_same_call_gives_the_same_page(tmp_path: Path) -> None:
    call = short_call(tmp_path)
    one, two = (call_page(call, sound_of(call, None, tmp_path / "call.html")) for _ in range(2))
    assert one == two


def test_a_long_call_stays_a_small_page() -> None:
    page = page_of(long_call(2000))
    assert len(page.data["messages"]) == 2000
    assert len(page.data["steps"]) == 1000
    assert page.data["steps"][999]["reads"] == [[0, 1998]]
    assert len(page.html) < 2_500_000  # what steps read is a million ids


def _contrast(one: str, other: str) -> float:
    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_colours_can_be_read_in_light_and_in_dark() -> None:
    style = page_of(example()).styles[0]
    schemes = [
        dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", block))
        for block in re.findall(r":root[^{]*\{([^}]*)\}", style)
    ]
    assert len(schemes) == 2
    for colours in schemes:
        for name in ("ink", "quiet", "user", "assistant", "cut", "doubt"):
            for paper in ("paper", "soft"):
                assert _contrast(colours[name], colours[paper]) >= 4.5, (name, paper)


# -- the judge ---------------------------------------------------------------------------------------
def judged(call_id: str = "c") -> CallJudgement:
    scores = dict.fromkeys(Dimension, DimensionScore.none(NullReason.NO_AUDIO))
    evidence = Evidence(
        message_id="item_0",
        start_ms=100,
        end_ms=900,
        metric="response_gap_s",
        value=2.5,
        threshold=2.0,
        quote="er",
    )
    scores[Dimension.LATENCY_DEAD_AIR] = DimensionScore.of(0.4, reason="slow", evidence=(evidence,))
    scores[Dimension.PACING] = DimensionScore.of(0.9)
    return CallJudgement(call_sid=call_id, judge_version="1.0", rubric_sha256="0", dimensions=scores)


def test_scores_with_their_evidence(tmp_path: Path) -> None:
    path = tmp_path / "judge.json"
    path.write_text(judged().judge_json())
    call = VoiceCall(call_id="c", messages=(message(0),))
    judgement = find_judgement(call, str(path))
    said = data_of(call, judgement=judgement)["judge"]
    assert (said["overall"], said["judge"]) == ("0.65", "1.0")
    first = said["dimensions"][0]
    assert (first["name"], first["severity"], first["score"]) == ("latency dead air", "Flag", 0.4)
    assert first["evidence"] == [
        {"message": 0, "start": 100, "end": 900, "said": "response gap 2.5 s, threshold 2 s", "quote": "er"}
    ]
    assert (said["dimensions"][1]["score"], said["dimensions"][1]["why"]) == (None, "no audio")
    assert len(said["dimensions"]) == len(Dimension)


def test_scores_beside_the_call(tmp_path: Path) -> None:
    call = short_call(tmp_path)
    assert find_judgement(call, None) is None
    beside = Path(call.source).parent / "judge.json"
    beside.write_text(json.dumps({"call_sid": call.call_id, "judge_json": json.loads(judged().judge_json())}))
    found = find_judgement(call, None)
    assert isinstance(found, Judgement)
    assert found.overall == 0.65
    beside.write_text(json.dumps({"call_sid": "another", "judge_json": json.loads(judged().judge_json())}))
    assert find_judgement(call, None) is None
    with pytest.raises(JudgementError, match="judges call another, not "):
        find_judgement(call, str(beside))


def test_scores_in_a_warehouse(tmp_path: Path) -> None:
    from datetime import UTC, datetime

    from voicetrace.judge.warehouse import StoredRow, open_warehouse

    url = f"sqlite:///{tmp_path}/judge.db"
    store = open_warehouse(url, create=True)
    row = judged("c").row(datetime(2026, 1, 1, tzinfo=UTC))
    nobody = "00000000-0000-0000-0000-000000000000"
    stored = StoredRow(workspace_id=nobody, service_id=nobody, judge_version="1.0", trace_digest="d", row=row)
    store.put([stored])
    store.close()
    found = find_judgement(VoiceCall(call_id="c"), url)
    assert found is not None
    assert found.dimensions[Dimension.LATENCY_DEAD_AIR].score == 0.4
    assert find_judgement(VoiceCall(call_id="another"), url) is None


def test_fields_of_a_newer_judge_are_passed_over(tmp_path: Path) -> None:
    document = json.loads(judged().judge_json())
    document["dimensions"]["smell"] = {"score": 1}
    document["dimensions"]["pacing"]["colour"] = "blue"
    path = tmp_path / "judge.json"
    path.write_text(json.dumps(document))
    found = find_judgement(VoiceCall(call_id="c"), str(path))
    assert found is not None
    assert found.dimensions[Dimension.PACING].score == 0.9


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("no json", "is no JSON"),
        ("[]", "is no judge's result"),
        ('{"a": 1}', "it has no dimensions"),
        ('{"dimensions": {"pacing": {"score": 7}}}', "has no valid pacing"),
        ('{"dimensions": {"pacing": 7}}', "has no valid pacing"),
    ],
)
def test_what_is_no_judgement(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "judge.json"
    path.write_text(text)
    with pytest.raises(JudgementError, match=why):
        find_judgement(VoiceCall(call_id="c"), str(path))


# -- on the disk -------------------------------------------------------------------------------------
def test_a_page_is_private_and_replaces_nothing_by_accident(tmp_path: Path) -> None:
    call, path = example(), tmp_path / "new" / "call.html"
    written = write_page(call, path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert (written.size, written.audio, written.judged) == (path.stat().st_size, "embedded", False)
    with pytest.raises(PageError, match=r"call\.html exists; replace it with --force"):
        write_page(call, path)
    before = path.stat().st_ino
    write_page(call, path, force=True)
    assert path.stat().st_ino != before
    assert [p.name for p in path.parent.iterdir()] == ["call.html"]
    with pytest.raises(PageError, match="is a directory"):
        write_page(call, path.parent, force=True)


def test_a_failing_disk_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "call.html"
    path.write_text("before")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(PageError, match=r"call\.html cannot be written: No space left on device"):
        write_page(example(), path, force=True)
    assert path.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["call.html"]


def test_pages_of_several_calls_have_names_of_their_own(tmp_path: Path) -> None:
    ids = ["a/b", "A_b", "../..", "index", "x" * 300, "a_b"]
    calls = [VoiceCall(call_id=i, warnings=("one",) * n) for n, i in enumerate(ids)]
    names = [page.path.name for page in write_pages(calls, tmp_path)]
    assert names == ["a_b.html", "A_b-2.html", "_.html", "index-2.html", "x" * 100 + ".html", "a_b-3.html"]
    index = (tmp_path / "index.html").read_text("utf-8")
    for name in names:
        assert f'<a href="{name}">' in index
    assert "2 warnings" in index
    with pytest.raises(PageError, match=r"index\.html exists"):
        write_pages(calls, tmp_path)


# -- the command -------------------------------------------------------------------------------------
def run(*args: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["view", *map(str, args)], prog_name="voicetrace")
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def test_view_writes_a_page(tmp_path: Path) -> None:
    out = tmp_path / "call.html"
    result = run(EXAMPLES / "cascaded.json", "--out", out)
    assert result.stdout.startswith(f"wrote {out} (")
    assert result.stdout.endswith("kB): The audio is in this page, lossless.\n")
    assert len(Page(out.read_text("utf-8")).data["messages"]) == 4


def test_view_of_several_calls(tmp_path: Path) -> None:
    out = tmp_path / "pages"
    said = json.loads(run(EXAMPLES, "--out", out, "--json", "--audio", "none").stdout)
    assert [(p["call_id"], p["messages"], p["audio"], p["judged"]) for p in said["pages"]] == [
        ("example-cascaded", 4, "none", False),
        ("example-realtime", 4, "none", False),
    ]
    assert said["index"] == str(out / "index.html")
    assert sorted(p.name for p in out.iterdir()) == [
        "example-cascaded.html",
        "example-realtime.html",
        "index.html",
    ]


def test_view_of_one_of_several_calls(tmp_path: Path) -> None:
    out = tmp_path / "call.html"
    run(EXAMPLES, "--out", out, "--call", "example-realtime")
    assert Page(out.read_text("utf-8")).data["call"]["id"] == "example-realtime"


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        ([EXAMPLES, "--out", "x.html"], 2, "has 2 calls: choose one with --call, or name a directory"),
        ([EXAMPLES, "--out", "x.html", "--call", "bogus"], 2, "has no call bogus; it has example-cascaded, "),
        ([EXAMPLES / "cascaded.json", "--out", "there.html"], 1, "exists; replace it with --force"),
        ([EXAMPLES / "cascaded.json", "--out", "there.html/x.html"], 1, "cannot be written: "),
        (["nowhere", "--out", "x.html"], 1, "there is no trace or journal at nowhere"),
        ([EXAMPLES / "cascaded.json", "--out", "x.html", "--audio", "loud"], 2, "'loud' is not one of"),
        ([EXAMPLES / "cascaded.json", "--out", "x.html", "--judge", "bogus://x"], 1, "names no warehouse"),
    ],
)
def test_view_refuses_in_one_line(
    args: list[str | Path], code: int, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.html").write_text("before")
    result = run(*args, code=code)
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert sentence in result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["there.html"]
    assert Path("there.html").read_text() == "before"


def test_view_opens_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    out = tmp_path / "call.html"
    run(EXAMPLES / "cascaded.json", "--out", out, "--open")
    run(EXAMPLES / "cascaded.json", "--out", tmp_path / "many", "--open")
    assert opened == [out.as_uri(), (tmp_path / "many" / "index.html").as_uri()]
    monkeypatch.setattr("webbrowser.open", lambda url: False)
    assert (
        "no browser could be started"
        in run(EXAMPLES / "cascaded.json", "--out", out, "--force", "--open", code=1).stderr
    )


def test_view_takes_the_scores_beside_the_call(tmp_path: Path) -> None:
    for name in ("cascaded.jsonl", "cascaded.flac"):
        shutil.copy(EXAMPLES / name, tmp_path)
    (tmp_path / "judge.json").write_text(judged().judge_json())
    out = tmp_path / "out" / "call.html"
    said = json.loads(run(tmp_path / "cascaded.jsonl", "--out", out, "--json").stdout)
    assert said["pages"][0]["judged"] is True
    assert Page(out.read_text("utf-8")).data["judge"]["overall"] == "0.65"


def test_an_hour_is_not_read_into_memory_at_once(tmp_path: Path) -> None:
    path = tmp_path / "long.wav"
    silent_wav(path, 3600)
    call = recorded(tmp_path / "short.wav", np.zeros((8000, 2), np.int16), 8000, [(Channel.AGENT, 0, 500)])
    assert call.recording is not None
    call = replace(call, recording=call.recording.model_copy(update={"uri": str(path)}))
    assert path.stat().st_blocks * 512 < 1_000_000
    page = call_page(call, sound_of(call, None, tmp_path / "call.html"))
    assert Page(page).data["duration_ms"] == 3_600_000


def test_states_are_all_in_words() -> None:
    for state in State:
        assert "not known" not in words.state(message(state=state))
    for status in TextStatus:
        assert "this version" not in words.text_worth(message(text_status=status))
    assert voicetrace.__version__ in page_of(example()).html
