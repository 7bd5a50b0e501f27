# SPDX-License-Identifier: Apache-2.0
"""`judge_call` from end to end: on scripted calls, with whatever providers are installed here."""

from __future__ import annotations

import json
import pickle
import sys
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module

import pytest

from voicetrace.agentclash import export_bundle
from voicetrace.judge import Dimension, Judge, judge_call
from voicetrace.judge.dimensions import score_features
from voicetrace.judge.features import CallFeatures, extract
from voicetrace.judge.judging import judgement_of
from voicetrace.judge.listener import FakeAudioJudge, Listener, consent_to_all
from voicetrace.judge.providers import ProviderError, Providers
from voicetrace.judge.providers.asr import Heard
from voicetrace.judge.result import NullReason
from voicetrace.judge.rubric import RubricError, load
from voicetrace.testing import scripted_call

NONE = Judge(providers=frozenset())
ID = "6f1f9a50-54b1-4f0b-9a51-0d9d0a3a1a01"


@pytest.fixture
def call(tmp_path):
    pytest.importorskip("scipy", reason="needs voicetrace[judge]")
    script = scripted_call(tmp_path)
    script.agent("Hello, how can I help you with your booking?", 200, 2600, say=True)
    script.user("Book the cheapest one for Monday please.", 3000, 5000)
    script.agent("Done. It is booked for Monday, for fifteen dollars.", 9100, 12_000)
    return script.finish()


def test_a_call_without_any_provider(call):
    judgement = judge_call(call, judge=NONE)
    assert judgement.dimensions[Dimension.LATENCY_DEAD_AIR].score == 0.363  # 4.1 s of silence
    assert judgement.dimensions[Dimension.CLARITY].null_reason is NullReason.PROVIDER_UNAVAILABLE
    assert judgement.providers == {}
    assert set(judgement.dimensions) == set(Dimension)
    assert set(judgement.inputs) == {"trace_sha256", "audio_sha256"}
    row = judgement.row(datetime(2026, 1, 1, tzinfo=UTC))
    assert row.flag_count == 1
    assert json.loads(row.judge_json)["dimensions"]["latency_dead_air"]["severity"] == "Flag"


def test_tones_are_no_speech(call):
    if not Providers().available("vad"):
        pytest.skip(Providers().missing("vad"))
    judgement = judge_call(call, judge=Judge())
    assert {d.null_reason for d in judgement.dimensions.values()} == {NullReason.NO_AGENT_SPEECH}
    assert judgement.overall is None


def test_a_call_without_a_recording():
    script = scripted_call()
    script.user("Book the cheapest one.", 300, 2000)
    script.agent("Done. It is booked for tonight.", 2900, 6000)
    judgement = judge_call(script.finish(), judge=NONE)
    assert judgement.dimensions[Dimension.LATENCY_DEAD_AIR].score == 1.0
    assert judgement.dimensions[Dimension.CLARITY].null_reason is NullReason.NO_AUDIO
    assert "audio_sha256" not in judgement.inputs


def test_the_same_bytes_give_the_same_judgement(call, tmp_path):
    once, again = judge_call(call, judge=NONE), judge_call(call, judge=Judge(providers=frozenset()))
    assert once == again
    [folder] = [p for p in tmp_path.iterdir() if p.is_dir()]
    assert judge_call(folder, judge=NONE) == once
    when = datetime(2026, 1, 1, tzinfo=UTC)
    assert once.row(when).model_dump_json() == again.row(when).model_dump_json()


def test_a_bundle_is_judged_as_its_call(call, tmp_path):
    root = tmp_path / "bundles" / "b"
    export_bundle(call, root, run_id=ID, run_agent_id=ID)
    judgement, direct = judge_call(root, judge=NONE), judge_call(call, judge=NONE)
    assert judgement.call_sid == direct.call_sid
    assert {d: s.score for d, s in judgement.dimensions.items()} == {
        d: s.score for d, s in direct.dimensions.items()
    }
    assert set(judgement.inputs) == {"bundle_sha256"}
    assert judge_call(root / "voice_artifact_manifest.json", judge=NONE) == judgement
    (root / "voice_artifact_manifest.json").write_text("{}")
    with pytest.raises(ValueError, match="cannot be judged"):
        judge_call(root, judge=NONE)


class Hears:
    """A recogniser that hears one and the same sentence, in which the text's own value is improbable."""

    def __init__(self, text):
        self.text = text

    def hear(self, pieces, language="en"):
        return [Heard(self.text, -0.1) for _ in pieces]

    def support(self, samples, text, value, language="en"):
        return -6.0

    def language(self, samples):
        return None


@pytest.mark.parametrize(
    ("second", "severity"),
    [("It is booked for fifty dollars", "Critical"), ("It is booked for fifteen dollars", "None")],
)
def test_a_wrong_value_is_one_that_both_recognisers_hear(call, second, severity):
    providers = Providers(enabled=frozenset())
    providers.__dict__.update(
        asr=Hears("It is booked for fifty dollars"), asr_multilingual=Hears(second), vad=None
    )
    scores = score_features(extract(call, providers), load("default"))
    assert scores[Dimension.PRONUNCIATION].severity == severity


def test_a_long_call_is_heard_a_few_minutes_at_a_time(call, monkeypatch):
    asked = []
    module = import_module("voicetrace.judge.features.extract")

    class Counts(Hears):
        def hear(self, pieces, language="en"):
            asked.append(len(pieces))
            return super().hear(pieces, language)

    def heard(seconds):
        asked.clear()
        monkeypatch.setattr(module, "_AT_A_TIME", seconds * 16_000)
        providers = Providers(enabled=frozenset())
        providers.__dict__.update(asr=Counts("It is booked for fifty dollars"), vad=None)
        return extract(call, providers)

    whole = heard(280)
    assert asked == [2]
    assert heard(3) == whole
    assert asked == [1, 1]


def test_a_rubric_scores_kept_features_without_audio(call):
    features = extract(call, NONE.loaded())
    kept = CallFeatures.from_json(features.to_json())
    assert judgement_of(call, kept, NONE) == judge_call(call, judge=NONE)
    strict = judgement_of(call, kept, replace(NONE, rubric="eva"))
    assert strict.dimensions[Dimension.LATENCY_DEAD_AIR].score == 0.0
    assert strict.rubric_sha256 != NONE.rubric_sha256


def test_a_version_says_all_that_decides_a_score():
    listener = Listener(judge=FakeAudioJudge(lambda _: ""), consent=consent_to_all)
    judges = [
        NONE,
        replace(NONE, rubric="eva"),
        replace(NONE, language="es"),
        replace(NONE, lexicon=frozenset({"aspirin"})),
        replace(NONE, mos_windows=3),
        replace(NONE, listener=listener),
    ]
    assert len({j.version for j in judges}) == len(judges)
    assert NONE.version == Judge(providers=frozenset()).version
    assert NONE.version.startswith("1.")


def test_a_judge_is_picklable():
    judge = Judge(rubric="tau_voice", providers=frozenset({"pitch"}), language="de")
    before = judge.version
    copy = pickle.loads(pickle.dumps(judge))
    assert copy == judge
    assert copy.version == before


def test_a_path_of_no_or_many_calls(tmp_path):
    with pytest.raises(FileNotFoundError):
        judge_call(tmp_path / "none", judge=NONE)
    for n in range(2):
        script = scripted_call(tmp_path)
        script.agent("Hello.", 200, 1200 + n, say=True)
        script.finish()
    with pytest.raises(ValueError, match="holds 2 calls"):
        judge_call(tmp_path, judge=NONE)


def test_without_scipy_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    script = scripted_call(tmp_path)
    script.agent("Hello, how can I help you with your booking?", 200, 2600, say=True)
    with pytest.raises(ImportError, match=r"voicetrace\[judge\]"):
        judge_call(script.finish(), judge=NONE)


def test_a_judge_that_cannot_be():
    with pytest.raises(RubricError, match="there is no rubric"):
        _ = Judge(rubric="strict").rubric_sha256
    with pytest.raises(ProviderError, match="no provider 'ears'"):
        _ = Judge(providers=frozenset({"ears"})).version


def test_a_listener_is_part_of_the_judgement(call):
    fake = FakeAudioJudge(lambda _: "")
    judgement = judge_call(call, judge=replace(NONE, listener=Listener(judge=fake, consent=lambda _: False)))
    assert judgement.providers["listener_skipped"]
    assert fake.requests == []
