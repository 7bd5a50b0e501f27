# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile as sf
from hypothesis import given, settings
from hypothesis import strategies as st

from audio_support import call_of, frames, tone, writer
from voicetrace.audio import Clip, ClipError, clip_message
from voicetrace.audio.index import Index, Run, index_path
from voicetrace.audio.source import Source
from voicetrace.messages import Channel, Segment
from voicetrace.voice_call import VoiceCall

RATES = [8_000, 16_000, 22_050, 24_000, 48_000]


def ms_bounds(start_ms: int, samples: int, rate: int) -> tuple[int, int]:
    """What an adapter says of a run: whole ms."""
    return start_ms, start_ms + round(samples * 1000 / rate)


@pytest.mark.parametrize("kind", ["wav", "flac"])
@pytest.mark.parametrize("rate", RATES)
def test_a_clip_is_its_run_to_the_sample(tmp_path: Path, rate: int, kind: str) -> None:
    """Runs of no whole number of ms, one directly behind the other."""
    recording = writer(tmp_path / "call.wav", rate, format=kind)
    runs, at = [], 501
    for k, extra in enumerate((0, 1, rate // 1000 // 2 + 1, rate // 1000 - 1)):
        pcm = tone(rate // 2 + extra, k)
        recording.write_agent_run(at, pcm)
        runs.append((at, pcm))
        at = ms_bounds(at, pcm.size, rate)[1]
    facts = recording.finish(at + 500)
    for start, pcm in runs:
        call, message = call_of(facts.path, rate, [ms_bounds(start, pcm.size, rate)])
        clip = clip_message(call, message)
        np.testing.assert_array_equal(clip.samples, pcm)
        assert (clip.sample_rate_hz, clip.start_ms, clip.channel) == (rate, start, Channel.AGENT)
        assert clip.duration_ms == round(pcm.size * 1000 / rate)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(RATES),
    st.lists(
        st.tuples(st.integers(-12, 60), st.integers(40, 4_000), st.sampled_from([round, int])), max_size=12
    ),
)
def test_no_clip_holds_a_sample_of_another_message(rate: int, plan: list[tuple[int, int, type[int]]]) -> None:
    """Whichever way the ms were rounded, also where runs were joined or said to overlap by a little."""
    lines, wanted, at, end = [], [], 20.0, 0
    for gap_ms, samples, rounding in plan:
        start_ms = max(0, int(at) + gap_ms, lines[-1].at_ms + 15 if lines and lines[-1].at_ms else 0)
        samples += rate // 25
        start = start_ms * rate // 1000
        if end and start <= end + 30 * rate // 1000:
            start = end
        lines.append(Run(Channel.AGENT, start, samples, start_ms))
        end = start + samples
        wanted.append((start_ms, rounding(start_ms + samples * 1000 / rate), start, end))
        at = start_ms + samples * 1000 / rate
    index = Index(rate, tuple(lines))
    for start_ms, end_ms, low, high in wanted:
        assert index.samples_of(Channel.AGENT, start_ms, end_ms) == (low, high)


def test_without_the_index_a_clip_is_exact_to_the_ms(tmp_path: Path) -> None:
    recording = writer(tmp_path / "call.wav", 24_000)
    pcm = tone(24_000 + 11)
    recording.write_agent_run(700, pcm)
    facts = recording.finish(3_000)
    index_path(facts.path).unlink()
    call, message = call_of(facts.path, 24_000, [(700, 1_700)])
    np.testing.assert_array_equal(clip_message(call, message).samples, pcm[:24_000])


def test_a_damaged_index_is_used_as_far_as_it_goes(tmp_path: Path) -> None:
    recording = writer(tmp_path / "call.wav", 24_000)
    pcm = tone(24_000 + 11)
    recording.write_agent_run(700, pcm)
    facts = recording.finish(3_000)
    with index_path(facts.path).open("a") as file:
        file.write('null\n{"channel":"agent"}\n{"channel":"x","start":1,"samples":2}\n{"chan')
    call, message = call_of(facts.path, 24_000, [(700, 1_700)])
    np.testing.assert_array_equal(clip_message(call, message).samples, pcm)
    index_path(facts.path).write_text("not json\n")
    assert clip_message(call, message).samples.size == 24_000


def test_a_message_of_several_ranges_is_their_concatenation(tmp_path: Path) -> None:
    """A false interruption: paused and resumed, with another run between."""
    rate = 24_000
    recording = writer(tmp_path / "call.wav", rate)
    first, other, second = tone(12_007, 1), tone(4_800, 2), tone(7_213, 3)
    recording.write_agent_run(1_000, first)
    recording.write_agent_run(2_000, other)
    recording.write_agent_run(3_000, second)
    facts = recording.finish(5_000)
    call, message = call_of(facts.path, rate, [(1_000, 1_500), (3_000, 3_301)])
    clip = call.clip(message)
    np.testing.assert_array_equal(clip.samples, np.concatenate([first, second]))
    assert clip.start_ms == 1_000


def test_a_selection_over_a_pause_keeps_the_pause(tmp_path: Path) -> None:
    rate = 8_000
    recording = writer(tmp_path / "call.wav", rate)
    recording.write_agent_run(1_000, tone(4_000, 1))
    recording.write_agent_run(2_000, tone(4_003, 2))
    facts = recording.finish(5_000)
    call, message = call_of(facts.path, rate, [(1_000, 2_500)])
    samples = clip_message(call, message).samples
    assert samples.size == 8_000 + 4_003
    assert not samples[4_000:8_000].any()


def test_part_of_a_run_is_that_part(tmp_path: Path) -> None:
    """Two messages in one run: cut where the ms say, even when the run was moved."""
    rate = 8_000
    recording = writer(tmp_path / "call.wav", rate)
    recording.write_agent_run(1_000, tone(8_000, 1))
    both = tone(16_000, 2)
    recording.write_agent_run(2_025, both)  # joined: 25 ms earlier
    facts = recording.finish(6_000)
    parts = []
    for bounds in ((2_025, 3_025), (3_025, 4_025)):
        call, message = call_of(facts.path, rate, [bounds])
        parts.append(clip_message(call, message).samples)
    np.testing.assert_array_equal(np.concatenate(parts), both)


def test_selections_count_from_their_segment(tmp_path: Path) -> None:
    rate = 8_000
    recording = writer(tmp_path / "call.wav", rate)
    pcm = tone(4_001)
    recording.write_agent_run(7_000, pcm)
    facts = recording.finish(9_000)
    segments = {
        "seg_0": Segment(start_ms=0, length_ms=100),
        "seg_1": Segment(start_ms=6_000, length_ms=3_000),
    }
    call, message = call_of(facts.path, rate, [(1_000, 1_500)], segments=segments, segment_id="seg_1")
    clip = clip_message(call, message)
    np.testing.assert_array_equal(clip.samples, pcm)
    assert clip.start_ms == 7_000


def test_a_caller_clip_is_what_was_heard_then(tmp_path: Path) -> None:
    rate = 16_000
    recording = writer(tmp_path / "call.wav", rate)
    said = [pcm for _, pcm in frames(length_ms=5_000, rate=rate)]
    for arrived, pcm in frames(length_ms=5_000, rate=rate):
        recording.write_caller(arrived, pcm, rate)
    facts = recording.finish(5_000)
    call, message = call_of(facts.path, rate, [(1_111, 2_222), (3_000, 3_001)], channel=Channel.CALLER)
    whole = np.concatenate(said)
    np.testing.assert_array_equal(
        clip_message(call, message).samples,
        np.concatenate([whole[1_111 * 16 : 2_222 * 16], whole[48_000:48_016]]),
    )


@pytest.mark.parametrize("rate", [8_000, 16_000, 24_000, 48_000])
def test_a_clip_of_opus_has_the_length_and_the_sound(tmp_path: Path, rate: int) -> None:
    recording = writer(tmp_path / "call.wav", rate, format="opus")
    wave = (8_000 * np.sin(2 * np.pi * 440 * np.arange(rate + 7) / rate)).astype(np.int16)
    recording.write_agent_run(2_345, wave)
    facts = recording.finish(5_000)
    call, message = call_of(facts.path, rate, [(2_345, 3_345)])
    clip = clip_message(call, message)
    assert clip.samples.size * rate // clip.sample_rate_hz == wave.size
    likeness = np.corrcoef(clip.samples.astype(float), wave.astype(float))[0, 1]
    assert likeness > 0.99


def test_recordings_of_others_are_read_by_ms(tmp_path: Path) -> None:
    """Mono, other rates, floats, extra chunks: whatever libsndfile reads."""
    pcm = tone(44_100)
    for name, options in {
        "mono.wav": {},
        "float.wav": {"subtype": "FLOAT"},
        "ext.wav": {"format": "WAVEX"},
        "mono.flac": {},
    }.items():
        # libsndfile writes integers into a float file unscaled, which nobody else does
        sf.write(tmp_path / name, pcm / 32768 if "FLOAT" in options.values() else pcm, 44_100, **options)
        call, message = call_of(tmp_path / name, 44_100, [(100, 600)], channels=(Channel.AGENT,))
        np.testing.assert_allclose(clip_message(call, message).samples, pcm[4_410:26_460], atol=1)


def test_only_what_is_needed_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import voicetrace.audio.source as source

    recording = writer(tmp_path / "call.wav", 24_000)
    recording.write_agent_run(7_000_000, tone(24_000))
    facts = recording.finish(7_200_000)
    reads: list[int] = []
    real = source.os.pread
    monkeypatch.setattr(source.os, "pread", lambda fd, n, at: reads.append(n) or real(fd, n, at))
    call, message = call_of(facts.path, 24_000, [(7_000_000, 7_001_000)])
    assert clip_message(call, message).samples.size == 24_000
    assert sum(reads) == 24_000 * 4


@pytest.mark.parametrize("name", ["clip.wav", "clip.flac", "clip.ogg", "clip.opus"])
def test_saving(tmp_path: Path, name: str) -> None:
    clip = Clip(tone(24_001), 24_000, 5, Channel.AGENT)
    path = clip.save(tmp_path / name)
    back, rate = sf.read(path, dtype="int16")
    assert (back.size, rate) == (24_001, 24_000)
    if name in ("clip.wav", "clip.flac"):
        np.testing.assert_array_equal(back, clip.samples)


def test_what_cannot_be_saved_is_said(tmp_path: Path) -> None:
    clip = Clip(tone(10), 22_050, 0, Channel.AGENT)
    with pytest.raises(ClipError, match=r"not as clip\.mp3"):
        clip.save(tmp_path / "clip.mp3")
    with pytest.raises(ClipError, match="no rate of 22050"):
        clip.save(tmp_path / "clip.ogg")
    with pytest.raises(ClipError, match="cannot be saved"):
        clip.save(tmp_path / "nowhere" / "clip.wav")


def test_what_cannot_be_cut_is_said(tmp_path: Path) -> None:
    recording = writer(tmp_path / "call.wav", 8_000)
    recording.write_agent_run(0, tone(800))
    path = recording.finish(1_000).path

    call, message = call_of(path, 8_000, [(0, 100)])
    with pytest.raises(ClipError, match="the call was not recorded"):
        clip_message(VoiceCall(call_id="c", messages=(message,)), message)
    with pytest.raises(ClipError, match=r"message m of call c.*none of the recording is selected"):
        clip_message(call, message.model_copy(update={"selections": []}))
    with pytest.raises(ClipError, match="segment seg_9"):
        clip_message(*call_of(path, 8_000, [(0, 100)], segment_id="seg_9"))
    with pytest.raises(ClipError, match="does not exist"):
        clip_message(*call_of(tmp_path / "gone.wav", 8_000, [(0, 100)]))
    with pytest.raises(ClipError, match="ends before"):
        clip_message(*call_of(path, 8_000, [(1_000, 1_100)]))
    with pytest.raises(ClipError, match="no agent channel"):
        clip_message(*call_of(path, 8_000, [(0, 100)], channels=(Channel.CALLER,)))
    (tmp_path / "text.wav").write_text("hello")
    with pytest.raises(ClipError, match="not audio"):
        clip_message(*call_of(tmp_path / "text.wav", 8_000, [(0, 100)]))
    call, message = call_of(path, 8_000, [(0, 100)])
    assert call.recording is not None
    elsewhere = VoiceCall(
        "c", (message,), recording=call.recording.model_copy(update={"uri": "s3://b/call.wav"})
    )
    with pytest.raises(ClipError, match=r"s3://b/call\.wav"):
        clip_message(elsewhere, message)


def test_a_stretch_ends_before_the_run_that_begins_at_its_end() -> None:
    """Also when that run was said to begin before the one before it ended, and was moved."""
    lines = (Run(Channel.AGENT, 0, 8_000, 0), Run(Channel.AGENT, 8_000, 8_000, 499))
    index = Index(8_000, lines)
    assert index.samples_of(Channel.AGENT, 0, 500) == (0, 4_000)
    assert index.samples_of(Channel.AGENT, 499, 1_499) == (8_000, 16_000)
    assert index.samples_of(Channel.CALLER, 0, 500) == (0, 4_000)


@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE"])
def test_float_files_are_read_at_their_level(subtype: str, tmp_path: Path) -> None:
    path = tmp_path / "float.wav"
    sf.write(path, np.array([0.5, -0.25, 1.5, -1.5, np.nan]), 8000, subtype=subtype)
    with Source(path) as source:
        assert source.read(0, 5)[:, 0].tolist() == [16384, -8192, 32767, -32768, 0]
