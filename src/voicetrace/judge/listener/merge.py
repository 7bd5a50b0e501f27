# SPDX-License-Identifier: Apache-2.0
"""Whether to ask, asking, and what an answer changes."""

from __future__ import annotations

import hashlib
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from voicetrace.audio.errors import ClipError
from voicetrace.audio.source import Source
from voicetrace.judge.features.table import CallFeatures, Turn
from voicetrace.judge.features.track import RATE_HZ, Track
from voicetrace.judge.listener.base import LISTENED, JudgeUnavailable, Listener, Reply, Request, spending
from voicetrace.judge.listener.prompt import Answer, AnswerError, build_request, parse
from voicetrace.judge.result import Dimension, DimensionScore, Evidence, Severity
from voicetrace.judge.rubric import Rubric
from voicetrace.judge.score import Finding, combine, spot
from voicetrace.messages import Channel, Role
from voicetrace.voice_call import VoiceCall

_ORDER: Final = ("none", "warning", "flag", "critical")
_UNSURE: Final = 0.5
_SURE: Final = 0.75
_PROXY: Final = "acoustic_proxy"

logger = logging.getLogger("voicetrace")

Scores = dict[Dimension, DimensionScore]


def apply_listener(
    call: VoiceCall, features: CallFeatures, scores: Scores, listener: Listener, rubric: Rubric
) -> tuple[Scores, dict[str, str]]:
    """The scores with the listener's part in them, and what to record of it: the model, and what it cost.

    Without consent, evidence, luck of the draw, budget or answer the scores stay as they were.
    """
    reason = _why_not(call, features, scores, listener)
    if reason:
        return scores, {"listener_skipped": reason}
    answers, usage = _ask(call, features, listener)
    if isinstance(answers, str):
        logger.warning(
            "the listener %s said nothing of call %s: %s", listener.judge.identity, call.call_id, answers
        )
        return scores, {"listener_skipped": answers, **usage}
    merged = dict(scores)
    for dimension in LISTENED:
        heard = _score(features, answers, dimension, rubric)
        if heard is not None:
            merged[dimension] = merge(scores[dimension], heard)
    return merged, {"listener": listener.judge.identity, **usage}


def wants_listening(call_id: str, scores: Mapping[Dimension, DimensionScore], share: float) -> bool:
    """The sampling policy: every Flag, Critical and uncertain score, and a share of the rest by call id."""
    if any(s.severity in (Severity.FLAG, Severity.CRITICAL) for s in scores.values()):
        return True
    if any(s.score is not None and (s.confidence or 1.0) < _UNSURE for s in scores.values()):
        return True
    draw = int.from_bytes(hashlib.sha256(call_id.encode()).digest()[:8], "big") / 2**64
    return draw < share


def merge(signal: DimensionScore, heard: DimensionScore) -> DimensionScore:
    """Both in one, each kept in the evidence: the lower score; of a mere proxy and a listener, the mean."""
    if signal.score is None:
        return heard
    assert heard.score is not None
    proxy = signal.method == _PROXY
    score = (signal.score + heard.score) / 2 if proxy else min(signal.score, heard.score)
    lower = signal if signal.score <= heard.score else heard
    kept = (
        Evidence(metric="signal_score", value=signal.score),
        Evidence(metric="listener_score", value=heard.score),
    )
    far = abs(signal.score - heard.score) > 0.5
    confidence = min(signal.confidence or 1.0, heard.confidence or 1.0)
    return DimensionScore.of(
        score,
        method="hybrid",
        confidence=min(confidence, _UNSURE) if far else confidence,
        reason=lower.reason,
        evidence=(*kept, *signal.evidence, *heard.evidence),
    )


# -- asking ------------------------------------------------------------------------------------------
def _why_not(call: VoiceCall, features: CallFeatures, scores: Scores, listener: Listener) -> str:
    if not features.agent_audio or not features.agent_speech_ms:
        return "there is no agent speech to listen to"
    if not listener.consent(call):
        return "the call has no consent for a listener"
    if not wants_listening(call.call_id, scores, listener.share):
        return "not in the sample"
    spent = spending(listener.judge.identity)
    if listener.budget_usd is not None and spent.usd >= listener.budget_usd:
        return f"the budget of {listener.budget_usd:g} USD is used up"
    return ""


def _ask(
    call: VoiceCall, features: CallFeatures, listener: Listener
) -> tuple[list[Answer] | str, dict[str, str]]:
    """The answers of every pass, or why there are none; and what was used."""
    spent = spending(listener.judge.identity)
    before = replace(spent)
    answers: list[Answer] = []
    problem = ""
    for order in range(listener.passes):
        request = _request(call, features, listener, order)
        if isinstance(request, str):
            return request, {}
        found = _ask_once(request, listener)
        if isinstance(found, str):
            problem = found
            break
        answers.append(found)
    used = {
        "listener_usage": f"requests={spent.requests - before.requests},"
        f"in={spent.input_tokens - before.input_tokens},out={spent.output_tokens - before.output_tokens},"
        f"usd={spent.usd - before.usd:.6f}"
    }
    return (problem or answers), used


def _ask_once(request: Request, listener: Listener) -> Answer | str:
    """One pass, with one chance to repair an answer that cannot be used."""
    problem = ""
    for _ in range(2):
        asked = request
        if problem:
            asked = replace(
                request, text=f"{request.text}\nYour last answer could not be used: {problem}. Answer again."
            )
        reply = listener.judge.evaluate(asked)
        if isinstance(reply, JudgeUnavailable):
            return reply.reason
        _account(listener, reply)
        try:
            return parse(reply.text, request)
        except AnswerError as error:
            problem = str(error)
    return f"its answer could not be used: {problem}"


def _account(listener: Listener, reply: Reply) -> None:
    spent = spending(listener.judge.identity)
    spent.requests += 1
    spent.input_tokens += reply.input_tokens
    spent.output_tokens += reply.output_tokens
    price = (
        reply.input_tokens * listener.usd_per_million_in + reply.output_tokens * listener.usd_per_million_out
    )
    spent.usd += price / 1e6


def _request(call: VoiceCall, features: CallFeatures, listener: Listener, order: int) -> Request | str:
    path, recording = call.recording_path(), call.recording
    if path is None or recording is None:
        return "the recording is not on this machine"
    try:
        with Source(path) as source:
            held = tuple(recording.channels)
            tracks = {c: Track(source, source.column(c, held)) for c in Channel if c in held}

            def audio(turn: Turn) -> NDArray[np.int16]:
                track = tracks.get(Channel.AGENT if turn.role is Role.ASSISTANT else Channel.CALLER)
                if track is None:
                    return np.zeros(0, np.int16)
                pieces = [track.speech(s, e) for s, e in turn.ranges]
                return (np.clip(np.concatenate(pieces), -1, 1) * 32767).astype(np.int16)

            request = build_request(
                features,
                audio,
                RATE_HZ,
                order=order,
                redact=listener.redact,
                max_audio_s=listener.max_audio_s,
            )
    except ClipError as error:
        return str(error)
    return "there is no agent clip to send" if request is None else request


# -- scoring -----------------------------------------------------------------------------------------
def _score(
    features: CallFeatures, answers: Sequence[Answer], dimension: Dimension, rubric: Rubric
) -> DimensionScore | None:
    """What the listener heard of a dimension over all passes; ``None`` when it heard nothing of it."""
    levels: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    for answer in answers:
        for heard in answer.messages:
            for rating in heard.ratings:
                if rating.dimension is dimension and rating.level in _ORDER:
                    levels[heard.message_id].append((rating.level, rating.quote, rating.why))
    if not levels:
        return None
    turns = {t.message_id: t for t in features.turns}
    findings, apart = [], False
    for message_id, said in sorted(levels.items()):
        ranks = [_ORDER.index(level) for level, _, _ in said]
        apart = apart or max(ranks) - min(ranks) > 1
        score = sum(rubric.number("listener", level) for level, _, _ in said) / len(said)
        level, quote, why = max(said, key=lambda item: _ORDER.index(item[0]))
        turn = turns[message_id]
        evidence = spot(
            message_id, turn.start_ms, turn.end_ms, "listener_level", level, "none", quote or None
        )
        findings.append(Finding(score, evidence, why))
    return combine(
        findings,
        rubric,
        method="llm",
        confidence=0.4 if apart else _SURE,
        fine="the listener heard nothing wrong",
    )
