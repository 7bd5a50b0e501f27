# SPDX-License-Identifier: Apache-2.0
"""The live continuity report: whether the agent felt live, from a call's messages and its audio.

What is measured (times in ms):

* ``median_first_audio_ms``, ``p90_first_audio_ms``: from the end of a turn of user speech to the first
  played agent audio that answers it (p90 by linear interpolation between ranks);
* ``max_output_gap_ms``, ``median_output_gap_ms``: silences inside an answer, found in the agent's audio
  (`vad`: at least `VadSettings.min_silence_ms` long), and between its messages where there is no audio;
* ``speech_no_output_count`` and ``_ratio``: turns of committed user speech that no agent audio answered;
* ``speech_start_during_output_count``: the user began while the agent was heard;
* ours: ``max_talk_over_ms``, how long the agent went on at most after committed user speech began; and
  ``median_first_sound_ms``, as the first but to the first *sound*: synthetic speech begins with silence.

The status is the worst that `THRESHOLDS` gives. It is ``degraded`` instead, whatever the numbers, when the
evidence is: a bound is the arrival of an event rather than a time of the audio, a message's audio is
missing or silent, the audio itself is missing, the call has not ended, or nothing was said.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from voicetrace.agentclash import timing
from voicetrace.agentclash.manifest import SCHEMA_VERSION
from voicetrace.agentclash.reports import LIVE_CONTINUITY
from voicetrace.messages import Channel, Role, State, TimingSource, VoiceMessage
from voicetrace.voice_call import VoiceCall

if TYPE_CHECKING:
    from voicetrace.agentclash.vad import Activity

Thresholds = Mapping[str, tuple[float, float]]

THRESHOLDS: Final[Thresholds] = {
    "median_first_audio_ms": (1200, 3000),
    "p90_first_audio_ms": (2000, 5000),
    "max_output_gap_ms": (2000, 3000),
    "speech_no_output_ratio": (0, 0.25),
    "max_talk_over_ms": (1000, 3000),
}
"""Metric: above the first value the call is ``warn``, above the second ``failed``."""


def continuity_report(
    call: VoiceCall,
    audio: Mapping[Channel, Activity] | None = None,
    thresholds: Thresholds | None = None,
) -> dict[str, Any]:
    """The report as the JSON object to write. Pure; the same call gives the same report.

    Args:
        call: the call; its messages say who spoke when.
        audio: where each side of the audio holds sound. Without, the evidence is degraded.
        thresholds: replace those of `THRESHOLDS` that they name.

    Raises:
        ValueError: a threshold is none we know, or its two values are no ascending finite numbers.
    """
    limits = thresholds_with(thresholds)
    exchanges = timing.exchanges(call)
    caveats = evidence_caveats(call, exchanges, audio)
    agent = audio.get(Channel.AGENT) if audio else None
    sounds = timing.first_sounds(call, agent) if agent else {}
    metrics = continuity_metrics(call, exchanges, agent)
    metrics["evidence_status"] = "degraded" if caveats else "available"
    status, reasons = _status(metrics, limits)
    if caveats:
        status = "degraded"
    return {
        "schema_version": SCHEMA_VERSION,
        "type": LIVE_CONTINUITY,
        "status": status,
        "passed": status == "passed",
        "input": call.call_id,
        "metrics": metrics,
        "caveats": caveats,
        "agentclash_notes": reasons + _notes(call),
        "thresholds": {
            name: {"warn_above": warn, "fail_above": fail} for name, (warn, fail) in limits.items()
        },
        "exchanges": [
            {
                "message_ids": list(e.user_ids),
                "end_of_speech_ms": e.end_of_speech_ms,
                "answer_id": e.answer_id,
                "first_audio_at_ms": e.first_audio_ms,
                "first_audio_latency_ms": e.latency_ms,
                "first_sound_at_ms": sounds.get(e.answer_id or ""),
            }
            for e in exchanges
        ],
    }


def thresholds_with(own: Thresholds | None) -> dict[str, tuple[float, float]]:
    """`THRESHOLDS` with one's own in their place.

    Raises:
        ValueError: a name is none we know, or its two values are no ascending finite numbers.
    """
    for name, (warn, fail) in (own or {}).items():
        if name not in THRESHOLDS:
            raise ValueError(f"there is no threshold {name!r}; there are {', '.join(THRESHOLDS)}")
        if not (math.isfinite(warn) and math.isfinite(fail) and 0 <= warn <= fail):
            raise ValueError(f"threshold {name} must be two numbers, 0 <= warn <= fail, not {warn}, {fail}")
    return {**THRESHOLDS, **(own or {})}


def continuity_metrics(
    call: VoiceCall, exchanges: list[timing.Exchange], agent: Activity | None = None
) -> dict[str, Any]:
    """The numbers; what could not be measured is absent."""
    speech, output = timing.stretches(call, Role.USER), timing.stretches(call, Role.ASSISTANT)
    latencies = [e.latency_ms for e in exchanges if e.latency_ms is not None]
    gaps = [gap.end_ms - gap.start_ms for gap in timing.output_gaps(call, agent)]
    unanswered = sum(e.answer_id is None for e in exchanges)
    during = [(s, o) for s in speech for o in output if _starts_within(s, o)]
    metrics: dict[str, Any] = {
        "speech_start_count": len(speech),
        "speech_stop_count": sum(s.end_ms is not None for s in speech),
        "output_event_count": len(output),
        "speech_no_output_count": unanswered,
        "speech_start_during_output_count": len({(s.message.id, s.start_ms) for s, _ in during}),
    }
    if latencies:
        metrics["median_first_audio_ms"] = round(statistics.median(latencies))
        metrics["p90_first_audio_ms"] = round(percentile(latencies, 0.9))
    if agent is not None:
        sounds = timing.first_sounds(call, agent)
        heard = [max(0, sounds[e.answer_id] - e.end_of_speech_ms) for e in exchanges if e.answer_id in sounds]
        if heard:
            metrics["median_first_sound_ms"] = round(statistics.median(heard))
    if gaps:
        metrics["max_output_gap_ms"] = max(gaps)
        metrics["median_output_gap_ms"] = round(statistics.median(gaps))
    if exchanges:
        metrics["speech_no_output_ratio"] = round(unanswered / len(exchanges), 4)
    talk_over = [_overlap(s, o) for s, o in during if s.message.committed]
    if talk_over:
        metrics["max_talk_over_ms"] = max(talk_over)
    return metrics


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share lies, interpolated between ranks; needs at least one value."""
    ranked = sorted(values)
    position = share * (len(ranked) - 1)
    low = int(position)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (position - low)


def evidence_caveats(
    call: VoiceCall, exchanges: list[timing.Exchange], audio: Mapping[Channel, Activity] | None = None
) -> list[str]:
    """Why the evidence is degraded, one sentence each; empty when it is whole."""
    spoken = [m for m in call.messages if timing.is_spoken(m)]
    heard = {s.message.id for role in Role for s in timing.stretches(call, role) if s.end_ms is not None}
    receipt = [m for m in spoken if m.timing_source is TimingSource.LOCAL_RECEIPT]
    out: list[str] = []
    if receipt:
        out.append(f"{_messages(len(receipt))} bounded by the arrival of events, not by the audio itself.")
    silent_users = [m for m in spoken if m.role is Role.USER and m.id not in heard]
    if silent_users:
        out.append(f"{_messages(len(silent_users), 'user ')} without audio bounds.")
    silent_agent = [m for m in spoken if _should_be_heard(m) and m.id not in heard]
    if silent_agent:
        out.append(f"{_messages(len(silent_agent), 'agent ')} without bounds of the played audio.")
    for channel in Channel:
        activity = (audio or {}).get(channel)
        if activity is None:
            out.append(f"There is no {channel} audio to hold the messages' bounds against.")
            continue
        role, kind = (Role.USER, "user ") if channel is Channel.CALLER else (Role.ASSISTANT, "agent ")
        bounded = [s for s in timing.stretches(call, role) if s.end_ms is not None]
        sounding = {s.message.id for s in bounded if not activity.is_silent(s.start_ms, s.end_ms or 0)}
        silent = len({s.message.id for s in bounded} - sounding)
        if silent:
            out.append(f"{_messages(silent, kind)} silent in the {channel} audio.")
    if not call.ended:
        out.append("The call has not ended, or its end is not known.")
    if not exchanges:
        out.append("There is no committed user speech whose end is known, so no answer could be timed.")
    return out


def _should_be_heard(message: VoiceMessage) -> bool:
    return message.role is Role.ASSISTANT and message.state is not State.UNPLAYED


def _messages(count: int, kind: str = "") -> str:
    return f"{count} {kind}message{' is' if count == 1 else 's are'}"


def _starts_within(speech: timing.Stretch, output: timing.Stretch) -> bool:
    return output.start_ms <= speech.start_ms and (output.end_ms is None or speech.start_ms < output.end_ms)


def _overlap(speech: timing.Stretch, output: timing.Stretch) -> int:
    ends = [end for end in (speech.end_ms, output.end_ms) if end is not None]
    return max(0, min(ends) - speech.start_ms) if ends else 0


def _status(metrics: dict[str, Any], limits: Thresholds) -> tuple[str, list[str]]:
    status, reasons = "passed", []
    for name, (warn, fail) in limits.items():
        value = metrics.get(name)
        if value is None or value <= warn:
            continue
        limit, verdict = (fail, "failed") if value > fail else (warn, "warn")
        reasons.append(f"{name} is {value:g}, above {limit:g}: {verdict}.")
        if status != "failed":
            status = verdict
    return status, reasons


def _notes(call: VoiceCall) -> list[str]:
    """How the evidence was made, where that is worth knowing."""
    out: list[str] = []
    heard = {s.message.id for s in timing.stretches(call, Role.ASSISTANT)}
    by_order = sum(not a.linked for message_id, a in timing.answers(call).items() if message_id in heard)
    if by_order:
        out.append(
            f"{_messages(by_order, 'agent ')} paired with user speech by order: no LLM step names them."
        )
    dropped = sum(m.role is Role.USER and not m.committed for m in call.messages)
    if dropped:
        out.append(f"{_messages(dropped, 'user ')} not committed to the conversation and expected no answer.")
    return out
