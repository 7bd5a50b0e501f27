# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import hashlib
import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf

from audio_support import call_of, frames, tone, writer
from voicetrace.audio import ClipError, RecordingError, clip_message, read_channel, repair
from voicetrace.audio import wav as wav_module
from voicetrace.audio.index import IndexWriter, index_path
from voicetrace.messages import Channel

RATE = 8_000


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A recording as a killed process leaves it: never finished."""
    recording = writer(tmp_path / "call.wav", RATE)
    for arrived, pcm in frames(length_ms=4_000, rate=RATE):
        recording.write_caller(arrived, pcm, RATE)
    recording.write_agent_run(1_000, tone(RATE))
    recording.write_agent_run(3_000, tone(RATE // 2, 2))
    recording.close()
    return recording.path


def agent(path: Path) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int16), *read_channel(path, Channel.AGENT)])


def test_killed_at_any_byte_it_can_be_read(killed: Path, tmp_path: Path) -> None:
    whole, index = killed.read_bytes(), index_path(killed).read_bytes()
    wanted = agent(killed)
    cuts = [*range(44, 60), *random.Random(5).sample(range(60, len(whole)), 150), len(whole) - 1, len(whole)]
    path = tmp_path / "torn.wav"
    for cut in cuts:
        path.write_bytes(whole[:cut])
        index_path(path).write_bytes(index[: random.Random(cut).randrange(len(index))])
        whole_frames = (cut - 44) // 4
        with sf.SoundFile(path) as file:
            heard = file.read(dtype="int16", always_2d=True)
        assert len(heard) == whole_frames
        np.testing.assert_array_equal(heard[:, 1], wanted[:whole_frames])
        np.testing.assert_array_equal(agent(path), wanted[:whole_frames])
        call, message = call_of(path, RATE, [(1_000, 2_000)])
        if whole_frames > RATE:
            there = min(whole_frames, 2 * RATE) - RATE
            np.testing.assert_array_equal(clip_message(call, message).samples, tone(RATE)[:there])
        else:
            with pytest.raises(ClipError, match="ends before"):
                clip_message(call, message)
        facts = repair(path)
        assert facts.duration_ms == round(whole_frames * 1000 / RATE)
        assert path.stat().st_size == 44 + whole_frames * 4


def test_a_killed_process_leaves_what_it_wrote(tmp_path: Path) -> None:
    """SIGKILL in the middle of a call, for real."""
    path = tmp_path / "call.wav"
    code = f"""
        import os, signal, pathlib, numpy as np
        from voicetrace.audio import RecordingWriter
        w = RecordingWriter(pathlib.Path({str(path)!r}), sample_rate_hz=8000, origin_unix_ms=0)
        for k in range(100):
            w.write_caller((k + 1) * 20, np.full(160, k + 1, np.int16), 8000)
        w.write_agent_run(500, np.full(801, 7, np.int16))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert done.returncode == -signal.SIGKILL
    facts = repair(path, end_ms=2_500)
    assert facts.duration_ms == 2_500
    caller = np.concatenate(list(read_channel(path, Channel.CALLER)))
    np.testing.assert_array_equal(caller[:16_000], np.repeat(np.arange(1, 101), 160))
    call, message = call_of(path, 8_000, [(500, 600)])
    np.testing.assert_array_equal(clip_message(call, message).samples, np.full(801, 7))


def test_repair_gives_sizes_length_and_digest(killed: Path) -> None:
    before = agent(killed)
    with killed.open("ab") as file:
        file.write(b"\x01\x02\x03")  # a torn frame
    facts = repair(killed, end_ms=6_000)
    data = killed.read_bytes()
    assert facts.duration_ms == 6_000
    assert facts.sha256 == hashlib.sha256(data).hexdigest()
    assert int.from_bytes(data[4:8], "little") == len(data) - 8
    assert int.from_bytes(data[40:44], "little") == len(data) - 44 == 6 * RATE * 4
    np.testing.assert_array_equal(agent(killed)[: before.size], before)
    assert repair(killed, end_ms=6_000) == facts
    assert repair(killed, end_ms=1_000) == facts  # audio is never cut away


def test_repair_takes_what_was_encoded(tmp_path: Path) -> None:
    recording = writer(tmp_path / "call.wav", RATE, format="flac")
    recording.write_agent_run(0, tone(RATE))
    facts = recording.finish(1_500)
    assert repair(tmp_path / "call.wav") == facts


def test_repair_removes_a_half_encoded_file(killed: Path) -> None:
    part = killed.with_name("call.flac.part")
    part.write_bytes(b"fLaC")
    repair(killed)
    assert not part.exists()


@pytest.mark.parametrize(
    "content", [b"", b"hello, I am a text", b"RIFF\xff\xff\xff\xffWAVE", b"RIFF" + bytes(60)]
)
def test_what_is_no_recording_is_named_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.wav"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=r"notes\.wav is not a two-channel WAV"):
        repair(path)
    assert path.read_bytes() == content


def test_another_wav_is_kept_too(tmp_path: Path) -> None:
    sf.write(tmp_path / "mono.wav", tone(100), RATE)
    before = (tmp_path / "mono.wav").read_bytes()
    with pytest.raises(RecordingError, match="left as it is"):
        repair(tmp_path / "mono.wav")
    assert (tmp_path / "mono.wav").read_bytes() == before
    with pytest.raises(RecordingError, match="does not exist"):
        repair(tmp_path / "gone.wav")


def test_vt_44_a_full_disk_is_one_error_and_the_rest_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = writer(tmp_path / "call.wav", RATE)
    recording.write_agent_run(0, tone(RATE))

    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(wav_module.os, "pwrite", full)
        with pytest.raises(RecordingError, match=r"call\.wav could not be written.*No space left"):
            recording.write_agent_run(2_000, tone(RATE))
    assert recording.failed
    for k in range(100):
        recording.write_caller(3_000 + k * 20, tone(160), RATE)
    recording.write_agent_run(4_000, tone(RATE))
    recording.advance(6_000)
    recording.note_lost(Channel.CALLER, 0, 500, "queue full")
    assert recording.lost_ms == 1_000 + 2_000 + 1_000 + 500
    facts = recording.finish(7_000)
    assert facts.lost_ms == recording.lost_ms
    assert "stopped early" in facts.note
    assert facts.duration_ms == 1_000
    np.testing.assert_array_equal(agent(facts.path), tone(RATE))
    assert recording.segments.as_mapping()["seg_0"].length_ms == 1_000  # type: ignore[union-attr]


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """A limit on the file's size, set by the system: the write that meets it is torn."""
    path = tmp_path / "call.wav"
    code = f"""
        import pathlib, resource, signal, numpy as np
        from voicetrace.audio import RecordingError, RecordingWriter
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_001, 100_001))
        w = RecordingWriter(pathlib.Path({str(path)!r}), sample_rate_hz=8000, origin_unix_ms=0)
        errors = 0
        for k in range(500):
            try:
                w.write_caller((k + 1) * 20, np.full(160, k + 1, np.int16), 8000)
            except RecordingError:
                errors += 1
        print(errors, w.lost_ms, w.finish(10_000).duration_ms)
    """
    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    errors, lost_ms, duration_ms = map(int, out.stdout.split())
    assert errors == 1
    assert duration_ms == round((100_001 - 44) // 4 / 8)
    assert lost_ms == pytest.approx(10_000 - duration_ms, abs=40)
    assert sf.info(path).frames == (100_001 - 44) // 4


def test_an_index_that_cannot_be_written_fails_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = writer(tmp_path / "call.wav", RATE)

    def full(self: IndexWriter, line: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(IndexWriter, "_line", full)
    with pytest.raises(RecordingError, match="No space left"):
        recording.write_agent_run(0, tone(RATE))
    recording.write_agent_run(1_000, tone(RATE))
    np.testing.assert_array_equal(agent(recording.finish(2_000).path), tone(RATE))


def test_a_directory_that_cannot_be_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordingError, match="could not be created"):
        writer(tmp_path / "file" / "call.wav")


def test_a_recording_beyond_4_gib_leaves_its_sizes_open() -> None:
    assert wav_module.header(24_000, 1 << 32)[40:44] == b"\xff" * 4
    assert wav_module.header(24_000, 100)[40:44] == (100).to_bytes(4, "little")
