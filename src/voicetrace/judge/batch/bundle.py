# SPDX-License-Identifier: Apache-2.0
"""A bundle read back as a call that can be judged: its messages, and its two sides as one recording.

Our own bundles carry every message as it was recorded. Others have a transcript, and who spoke when is found
in the audio (`voicetrace.agentclash.call_from_audio`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from voicetrace import semconv
from voicetrace.messages import Channel, Recording, Segment, Selection, VoiceMessage
from voicetrace.voice_call import VoiceCall

if TYPE_CHECKING:
    from voicetrace.audio.pcm import Samples

_SEGMENT: Final = "bundle"
_BLOCK: Final = 1 << 16


def artifacts_of(root: Path) -> tuple[dict[str, Any], dict[str, Path]]:
    """The manifest, and the files of the bundle by kind.

    Raises:
        ValueError: the manifest cannot be read.
    """
    from voicetrace.agentclash.manifest import MANIFEST_NAME, path_problem
    from voicetrace.agentclash.problems import load_json

    data, problems = load_json(root / MANIFEST_NAME)
    listed = data.get("artifacts") if isinstance(data, dict) else None
    if problems or not isinstance(data, dict) or not isinstance(listed, list):
        raise ValueError(
            f"{MANIFEST_NAME} cannot be read: {problems[0] if problems else 'no list of artifacts'}"
        )
    found: dict[str, Path] = {}
    for artifact in listed:
        kind, path = (artifact.get(n) if isinstance(artifact, dict) else None for n in ("kind", "path"))
        if isinstance(kind, str) and isinstance(path, str) and path_problem(path) is None:
            found.setdefault(kind, root / path)
    return data, found


def call_of_bundle(root: Path, folder: Path) -> VoiceCall:
    """The call; its recording is written into ``folder`` as two channels, caller and agent.

    Raises:
        BundleError, ValueError, OSError: the bundle has no such audio, or cannot be read.
    """
    from voicetrace.agentclash import call_from_audio
    from voicetrace.agentclash.manifest import ArtifactKind

    manifest, files = artifacts_of(root)
    caller, agent = files.get(ArtifactKind.CALLER_AUDIO), files.get(ArtifactKind.AGENT_AUDIO)
    if caller is None or agent is None:
        raise ValueError("the bundle has no audio of both sides in it")
    transcript = files.get(ArtifactKind.TRANSCRIPT)
    call = call_from_audio(caller, agent, transcript, call_id=_session(manifest)).call
    path = folder / "recording.wav"
    rate_hz, duration_ms = _join(caller, agent, path)
    messages = _recorded(files) or tuple(
        m.model_copy(update={"selections": [_ours(s) for s in m.selections]}) for m in call.messages
    )
    recording = Recording(
        recording_id=call.call_id,
        uri=path.absolute().as_uri(),
        format="wav",
        sample_rate_hz=rate_hz,
        channels=[Channel.CALLER, Channel.AGENT],
        origin_unix_ms=call.origin_unix_ms or 0,
        segments={_SEGMENT: Segment(start_ms=0, length_ms=duration_ms)},
    )
    return replace(call, messages=messages, recording=recording, duration_ms=duration_ms)


def _session(manifest: dict[str, Any]) -> str | None:
    name = manifest.get("voice_session_id")
    return name if isinstance(name, str) and name.strip() else None


def _ours(selection: Selection) -> Selection:
    return selection.model_copy(update={"segment_id": _SEGMENT})


def _recorded(files: dict[str, Path]) -> tuple[VoiceMessage, ...]:
    """The messages of one of our bundles; where in the audio they are, its transcript says in call-ms."""
    from voicetrace.agentclash.manifest import ArtifactKind
    from voicetrace.agentclash.problems import load_json
    from voicetrace.otel.salvage import Problems, salvage_message

    raw, transcript = files.get(ArtifactKind.RAW_PROVIDER_TRACE), files.get(ArtifactKind.TRANSCRIPT)
    if raw is None or transcript is None:
        return ()
    places: dict[str, list[dict[str, Any]]] = {}
    for turn in _rows(load_json(transcript)[0], "turns"):
        audio, name = turn.get("audio"), turn.get("message_id")
        if isinstance(audio, dict) and isinstance(name, str):
            channel = Channel.CALLER if turn.get("speaker") == "caller" else Channel.AGENT
            found = audio.get("selections")
            places[name] = [
                {**s, "segment_id": _SEGMENT, "channel": channel.value}
                for s in (found if isinstance(found, list) else [])
                if isinstance(s, dict)
            ]
    messages: list[VoiceMessage] = []
    for event in _rows(load_json(raw)[0], "events"):
        name = event.get("message_id")
        if event.get("event_type") == semconv.MESSAGE_RECORD and isinstance(name, str):
            entry = {k: v for k, v in event.items() if k not in ("message_id", "event_type", "sequence")}
            entry["selections"] = places.get(name, [])
            message = salvage_message(name, entry, Problems(), last_seq=len(messages))
            if message is not None:
                messages.append(message)
    return tuple(sorted(messages, key=lambda m: m.seq))


def _rows(data: Any, name: str) -> list[dict[str, Any]]:
    found = data.get(name) if isinstance(data, dict) else None
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def _join(caller: Path, agent: Path, target: Path) -> tuple[int, int]:
    """Write both sides as one file; its rate, and its length in ms."""
    import numpy as np
    import soundfile as sf  # type: ignore[import-untyped,unused-ignore]

    from voicetrace.audio.source import Source

    with Source(caller) as left, Source(agent) as right:
        rate = max(left.sample_rate_hz, right.sample_rate_hz)
        length = 0
        with sf.SoundFile(target, "w", rate, 2, format="WAV", subtype="PCM_16") as out:
            for a, b in _in_step(_side(left, rate), _side(right, rate)):
                frames = np.zeros((max(len(a), len(b)), 2), np.int16)
                frames[: len(a), 0], frames[: len(b), 1] = a, b
                out.write(frames)
                length += len(frames)
    return rate, round(length * 1000 / rate)


def _side(source: Any, rate: int) -> Iterator[Samples]:
    import numpy as np

    if source.sample_rate_hz == rate:
        yield from (block[:, 0] for block in source.blocks(_BLOCK))
        return
    from scipy.signal import resample_poly  # type: ignore[import-untyped,unused-ignore]

    divisor = np.gcd(rate, source.sample_rate_hz)
    whole = source.read(0, source.frames)[:, 0].astype(np.float32)
    made = resample_poly(whole, rate // divisor, source.sample_rate_hz // divisor)
    samples = np.clip(np.rint(made), -32768, 32767).astype(np.int16)
    for at in range(0, len(samples), _BLOCK):
        yield samples[at : at + _BLOCK]


def _in_step(left: Iterator[Samples], right: Iterator[Samples]) -> Iterator[tuple[Samples, Samples]]:
    """Blocks of the same size from both, the shorter side with nothing at its end."""
    from itertools import zip_longest

    import numpy as np

    nothing = np.zeros(0, np.int16)
    return zip_longest(left, right, fillvalue=nothing)
