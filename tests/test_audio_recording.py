# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf

from audio_support import ORIGIN, frames, marks, onset_ms, tone, writer
from voicetrace.audio import RecordingError, RecordingFacts, RecordingWriter, encode, read_channel, read_index
from voicetrace.audio.wav import CHANNELS
from voicetrace.messages import Channel

CALLER, AGENT = CHANNELS


def channel(facts: RecordingFacts, which: Channel) -> np.ndarray:
    return np.concatenate(list(read_channel(facts.path, which)))


@pytest.mark.parametrize("ppm", [200, -200])
def test_two_hours_with_stalls_bursts_losses_and_drift(tmp_path: Path, ppm: int) -> None:
    """VT-42, VT-47: as long as the wall clock says, and every mark where it was heard."""
    rate, hours_ms = 8000, 7_200_000
    stalls = tuple((s, s + 400.0 + s % 1700) for s in range(50_000, hours_ms, 97_000))
    losses = tuple((s, s + 100.0 + s % 900) for s in range(75_000, hours_ms, 131_000))
    recording = writer(tmp_path / "call.wav", rate)
    for arrived, pcm in frames(
        length_ms=hours_ms,
        rate=rate,
        frame_ms=50,
        ppm=ppm,
        jitter_ms=3,
        stalls=stalls,
        losses=losses,
        sound=marks(30_000, rate),
    ):
        recording.write_caller(arrived, pcm, rate)
    for at in range(10_000, hours_ms, 60_000):
        recording.write_agent_run(at, tone(rate // 5))
    facts = recording.finish(hours_ms)

    assert abs(facts.duration_ms - hours_ms) < 50
    assert sf.info(facts.path).frames == hours_ms * rate // 1000
    assert facts.lost_ms == 0
    caller, agent = channel(facts, CALLER), channel(facts, AGENT)
    checked, worst = 0, 0.0
    for at in range(30_000, hours_ms - 1_000, 30_000):
        if any(low - 100 <= at < high + 1_000 for low, high in losses):
            continue
        heard = onset_ms(caller, rate, at)
        assert heard is not None, at
        worst, checked = max(worst, abs(heard - at)), checked + 1
    assert checked > 200
    assert worst <= 20
    for at in range(10_000, hours_ms, 60_000):
        assert onset_ms(agent, rate, at) == at
    assert np.count_nonzero(agent) == (hours_ms // 60_000) * rate // 5


def test_vt_41_both_channels_are_placed_absolutely(tmp_path: Path) -> None:
    rate = 16_000
    recording = writer(tmp_path / "call.wav", rate)
    for arrived, pcm in frames(length_ms=20_000, rate=rate, jitter_ms=2, sound=marks(5_000, rate)):
        recording.write_caller(arrived, pcm, rate)
        if arrived < 10_000 <= arrived + 20:
            recording.write_agent_run(10_000, tone(1_601, 7))  # both speak at once
    recording.write_agent_run(15_003, tone(800, 8))
    facts = recording.finish(20_000)
    caller, agent = channel(facts, CALLER), channel(facts, AGENT)
    for at in (5_000, 10_000, 15_000):
        assert onset_ms(caller, rate, at) == pytest.approx(at, abs=3)
    np.testing.assert_array_equal(agent[160_000:161_601], tone(1_601, 7))
    np.testing.assert_array_equal(agent[240_048:240_848], tone(800, 8))
    assert np.count_nonzero(agent) == 2_401
    assert np.count_nonzero(caller) == 4 * rate // 5


def test_vt_44_frames_are_never_changed(tmp_path: Path) -> None:
    recording = writer(tmp_path / "call.wav")
    stereo = np.stack([tone(480, 1), tone(480, 2)], axis=1)
    stereo.setflags(write=False)
    before = stereo.copy()
    for k in range(100):
        recording.write_caller((k + 1) * 20, stereo, 24_000)
    recording.write_agent_run(0, stereo.tobytes(), channels=2)
    facts = recording.finish(2_000)
    np.testing.assert_array_equal(stereo, before)
    mono = np.rint(before.mean(axis=1)).astype(np.int16)
    np.testing.assert_array_equal(channel(facts, CALLER), np.tile(mono, 100))
    np.testing.assert_array_equal(channel(facts, AGENT)[:480], mono)


@pytest.mark.parametrize("silent_frames", [False, True])
def test_vt_45_an_idle_hour_costs_nothing(tmp_path: Path, silent_frames: bool) -> None:
    """Whether a silent caller sends nothing or sends silence."""
    rate = 24_000
    recording = writer(tmp_path / "call.wav", rate)
    silence = np.zeros(rate // 20, np.int16)
    for k in range(72_000 if silent_frames else 0):
        recording.write_caller((k + 1) * 50, silence, rate)
    recording.write_agent_run(3_600_000, tone(rate))
    facts = recording.finish(3_601_000)
    status = facts.path.stat()
    assert status.st_size == 44 + 3_601 * rate * 4
    assert status.st_blocks * 512 < 250_000
    assert (tmp_path / "call.index.jsonl").stat().st_size < 40_000


def test_memory_is_flat(tmp_path: Path) -> None:
    """VT-45: six times the call, the same memory."""

    def peak(minutes: int) -> int:
        recording = writer(tmp_path / f"{minutes}.wav", 8_000)
        sound = tone(400)
        tracemalloc.start()
        for k in range(minutes * 1_200):
            stalled = (k % 600) < 30  # 1.5 s twice a minute
            recording.write_caller((k - k % 600 + 30 if stalled else k + 1) * 50.0, sound, 8_000)
            if k % 200 == 0:
                recording.write_agent_run(k * 50, tone(8_000))
        most = tracemalloc.get_traced_memory()[1]
        recording.finish(minutes * 60_000)
        tracemalloc.stop()
        return most

    peak(1)
    assert peak(12) < peak(2) + 50_000


def test_a_run_that_goes_on_is_joined_sample_by_sample(tmp_path: Path) -> None:
    recording = writer(tmp_path / "call.wav", 22_050)
    pieces = [tone(n, n) for n in (4_411, 4_407, 4_409)]
    recording.write_agent_run(1_000, pieces[0])
    recording.write_agent_run(1_221, pieces[1])  # 21 ms late
    recording.write_agent_run(1_390, pieces[2])  # before the last one ended
    recording.write_agent_run(1_700, tone(100))
    facts = recording.finish(2_000)
    agent = channel(facts, AGENT)
    joined = np.concatenate(pieces)
    np.testing.assert_array_equal(agent[22_050 : 22_050 + joined.size], joined)
    assert agent[1_700 * 22_050 // 1000 - 1] == 0
    assert agent[1_700 * 22_050 // 1000] == tone(100)[0]
    assert facts.duration_ms == 2_000


@pytest.mark.parametrize(("source", "target"), [(48_000, 24_000), (16_000, 24_000), (24_000, 22_050)])
def test_other_rates_are_resampled_in_place(tmp_path: Path, source: int, target: int) -> None:
    recording = writer(tmp_path / "call.wav", target)
    wave = (8_000 * np.sin(2 * np.pi * 440 * np.arange(source * 4) / source)).astype(np.int16)
    size = source // 50
    for k in range(200):
        if not 50 <= k < 100:  # a second is lost
            recording.write_caller((k + 1) * 20, wave[k * size : (k + 1) * size], source)
    recording.write_agent_run(500, wave[: source * 3 // 2 + 7], source)
    facts = recording.finish(4_000)
    ideal = 8_000 * np.sin(2 * np.pi * 440 * np.arange(target * 4) / target)
    caller, agent = channel(facts, CALLER).astype(float), channel(facts, AGENT).astype(float)
    edge = target // 50
    for low, high in ((0, target), (2 * target, 4 * target)):
        error = (caller - ideal)[low + edge : high - edge]
        assert np.abs(error).max() < 80
    assert not caller[target + edge : 2 * target - edge].any()
    played = int((source * 3 // 2 + 7) * target / source + 0.5)
    error = agent[target // 2 :][edge : played - edge] - ideal[edge : played - edge]
    assert np.abs(error).max() < 80
    index = read_index(facts.path)
    assert index is not None
    assert [(r.start, r.samples) for r in index.runs if r.channel is AGENT] == [(target // 2, played)]


def test_a_source_that_changes_its_rate_stays_in_place(tmp_path: Path) -> None:
    recording = writer(tmp_path / "call.wav", 24_000)
    at = 0
    for k in range(300):
        rate = (16_000, 48_000, 24_000)[k // 100]
        at += 20
        sound = np.full(rate // 50, 5_000 if k % 100 == 50 else 0, np.int16)
        recording.write_caller(at, sound, rate)
    facts = recording.finish(6_000)
    loud = np.flatnonzero(channel(facts, CALLER) > 4_000)
    for k in (50, 150, 250):
        here = loud[(loud > k * 480 - 480) & (loud < k * 480 + 960)]
        assert (here[0], here[-1]) == pytest.approx((k * 480, k * 480 + 479), abs=12)
    assert facts.lost_ms == 0


def test_encoding_can_be_done_elsewhere(tmp_path: Path) -> None:
    recording = writer(tmp_path / "call.wav", 16_000)
    recording.write_agent_run(0, tone(5_000))
    wav = recording.finish(1_000)
    facts = encode(wav, "flac")
    assert (facts.uri, facts.duration_ms, facts.format) == ("call.flac", 1_000, "flac")
    assert facts.sha256 == hashlib.sha256(facts.path.read_bytes()).hexdigest() != wav.sha256
    assert not wav.path.exists()


@pytest.mark.parametrize("wanted", ["flac", "opus"])
def test_an_encoded_recording_is_its_owners_only_as_the_wav_was(tmp_path: Path, wanted: str) -> None:
    recording = writer(tmp_path / "call.wav", 8_000)
    assert (tmp_path / "call.wav").stat().st_mode & 0o777 == 0o600
    facts = encode(recording.finish(1_000), wanted)
    assert facts.path.name in ("call.flac", "call.ogg")
    assert facts.path.stat().st_mode & 0o777 == 0o600


def test_without_soxr_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soxr", None)
    recording = writer(tmp_path / "call.wav", 24_000)
    with pytest.raises(RecordingError, match=r"voicetrace\[livekit\]"):
        recording.write_agent_run(0, tone(100), 16_000)
    recording.write_agent_run(0, tone(100), 24_000)
    assert np.count_nonzero(channel(recording.finish(100), AGENT)) == 100


def test_importing_it_imports_neither_soxr_nor_a_framework() -> None:
    code = (
        "import sys; import voicetrace.audio; "
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'soxr','av','scipy','livekit','pipecat'}))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


def test_a_channel_that_is_not_captured_stays_silent(tmp_path: Path) -> None:
    recording = writer(tmp_path / "call.wav", 8_000, channels={AGENT})
    recording.write_caller(20, tone(160), 8_000)
    recording.write_agent_run(0, tone(160))
    facts = recording.finish(1_000)
    assert facts.channels == (CALLER, AGENT)
    assert facts.lost_ms == 0
    assert not channel(facts, CALLER).any()
    assert channel(facts, AGENT).any()


def test_what_was_heard_without_consent_is_not_written(tmp_path: Path) -> None:
    """Also of a run that began before, is still held, or is delivered after recording was stopped."""
    rate = 8_000
    recording = writer(tmp_path / "call.wav", rate, recording=False)
    assert recording.resume(1_000) == "seg_0"
    for k in range(300):
        if k == 150:
            assert recording.pause(3_000) == "seg_0"
        if k == 200:
            assert recording.resume(4_000) == "seg_1"
        recording.write_caller((k + 1) * 20, tone(160, k), rate)
    recording.write_agent_run(500, tone(5 * rate))
    facts = recording.finish(6_000)
    recorded = np.zeros(6 * rate, bool)
    recorded[rate : 3 * rate] = recorded[4 * rate :] = True
    np.testing.assert_array_equal(channel(facts, CALLER) != 0, recorded)
    recorded[: rate // 2] = recorded[5 * rate + rate // 2 :] = False
    np.testing.assert_array_equal(channel(facts, AGENT) != 0, recorded)
    assert {i: (s.start_ms, s.length_ms) for i, s in recording.segments.as_mapping().items()} == {
        "seg_0": (1_000, 2_000),
        "seg_1": (4_000, 2_000),
    }


def test_the_index_says_what_was_written_and_what_was_lost(tmp_path: Path) -> None:
    rate = 8_000
    recording = writer(tmp_path / "call.wav", rate)
    for arrived, pcm in frames(length_ms=40_000, rate=rate, losses=((15_000, 16_000),)):
        recording.write_caller(arrived, pcm, rate)
    recording.note_lost(CALLER, 14_980, 15_980, "queue full")
    recording.write_agent_run(2_000, tone(1_234))
    facts = recording.finish(40_000)
    index = read_index(facts.path)
    assert index is not None
    assert index.sample_rate_hz == rate
    assert [(x.start_ms, x.end_ms, x.reason) for x in index.lost] == [(14_980, 15_980, "queue full")]
    assert facts.lost_ms == 1_000
    runs = [r for r in index.runs if r.channel is CALLER]
    assert len(runs) >= 4  # at least one each ten seconds
    written = np.zeros(40 * rate, bool)
    for run in runs:
        assert not written[run.start : run.end].any()
        written[run.start : run.end] = True
    np.testing.assert_array_equal(channel(facts, CALLER) != 0, written)
    assert [(r.start, r.samples, r.at_ms) for r in index.runs if r.channel is AGENT] == [
        (16_000, 1_234, 2_000)
    ]


def test_what_is_held_is_written_when_time_passes(tmp_path: Path) -> None:
    recording = writer(tmp_path / "call.wav", 8_000)
    recording.write_caller(100, tone(160), 8_000)
    recording.advance(300)
    assert not any(c.any() for c in read_channel(recording.path, CALLER))
    recording.advance(700)
    heard = np.concatenate(list(read_channel(recording.path, CALLER)))
    np.testing.assert_array_equal(heard[640:800], tone(160))
    index = read_index(recording.path)
    assert index is not None
    assert [(r.start, r.samples) for r in index.runs] == [(640, 160)]
    recording.close()


def test_what_lies_outside_the_call_is_cut(tmp_path: Path) -> None:
    recording = writer(tmp_path / "call.wav", 8_000)
    early = tone(8_000)
    recording.write_caller(400, early, 8_000)  # 600 ms of it from before the call
    recording.write_agent_run(900, tone(8_000))
    facts = recording.finish(1_000)
    assert facts.duration_ms == 1_000
    np.testing.assert_array_equal(channel(facts, CALLER)[:3_200], early[4_800:])
    assert facts.lost_ms == 900
    assert recording.finish(1_000) is facts


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 24_000, 48_000])
def test_flac_holds_the_same_samples(tmp_path: Path, rate: int) -> None:
    facts = []
    for kind in ("wav", "flac"):
        recording = writer(tmp_path / kind / "call.wav", rate, format=kind)
        recording.write_agent_run(333, tone(rate * 3 + 11))
        facts.append(recording.finish(5_001))
    wav, flac = facts
    assert (flac.format, flac.uri, flac.duration_ms) == ("flac", "call.flac", wav.duration_ms)
    np.testing.assert_array_equal(channel(flac, AGENT), channel(wav, AGENT))
    assert sorted(p.name for p in flac.path.parent.iterdir()) == ["call.flac", "call.index.jsonl"]


@pytest.mark.parametrize("rate", [8_000, 16_000, 24_000, 48_000])
def test_opus_has_the_right_length_and_place(tmp_path: Path, rate: int) -> None:
    recording = writer(tmp_path / "call.wav", rate, format="opus")
    wave = (8_000 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate)).astype(np.int16)
    recording.write_agent_run(2_000, wave)
    facts = recording.finish(7_013)
    assert (facts.format, facts.uri, facts.duration_ms) == ("opus", "call.ogg", 7_013)
    assert sf.info(facts.path).duration == pytest.approx(7.013, abs=0.001)
    agent = channel(facts, AGENT)
    loud = np.flatnonzero(np.abs(agent.astype(int)) > 3_000) * 1000 / rate
    assert (loud[0], loud[-1]) == pytest.approx((2_000, 3_000), abs=5)


def test_a_rate_opus_has_not_becomes_flac(tmp_path: Path) -> None:
    recording = writer(tmp_path / "call.wav", 22_050, format="opus")
    recording.write_agent_run(0, tone(5_000))
    facts = recording.finish(1_000)
    assert facts.format == "flac"
    np.testing.assert_array_equal(channel(facts, AGENT)[:5_000], tone(5_000))


def test_when_encoding_fails_the_wav_stays(tmp_path: Path) -> None:
    recording = writer(tmp_path / "call.wav", 8_000, format="flac")
    recording.write_agent_run(0, tone(5_000))
    (tmp_path / "call.flac").mkdir()
    (tmp_path / "call.flac" / "in the way").touch()
    facts = recording.finish(1_000)
    assert facts.format == "wav"
    assert "stays a WAV" in facts.note
    np.testing.assert_array_equal(channel(facts, AGENT)[:5_000], tone(5_000))
    assert not list(tmp_path.glob("*.part"))


def test_it_never_overwrites_a_recording(tmp_path: Path) -> None:
    writer(tmp_path / "call.wav").close()
    before = (tmp_path / "call.wav").read_bytes()
    with pytest.raises(RecordingError, match="could not be created"):
        writer(tmp_path / "call.wav")
    assert (tmp_path / "call.wav").read_bytes() == before


def test_audio_that_is_not_int16_is_refused(tmp_path: Path) -> None:
    recording = writer(tmp_path / "call.wav")
    with pytest.raises(ValueError, match="int16"):
        recording.write_caller(20, np.zeros(480, np.float32), 24_000)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="do not divide"):
        recording.write_agent_run(0, np.zeros(481, np.int16), channels=2)
    recording.close()
    assert isinstance(recording, RecordingWriter)
    assert recording.origin_unix_ms == ORIGIN


def test_the_first_run_is_joined_to_nothing(tmp_path: Path) -> None:
    recording = writer(tmp_path / "call.wav", 8_000)
    recording.write_agent_run(20, tone(80))
    agent = channel(recording.finish(1_000), AGENT)
    np.testing.assert_array_equal(agent.nonzero()[0], np.arange(160, 240))
