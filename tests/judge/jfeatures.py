# SPDX-License-Identifier: Apache-2.0
"""Feature tables and messages for the judge's tests, written as a conversation."""

from __future__ import annotations

from voicetrace.judge.features import AgentTurn, CallFeatures, Turn, timing
from voicetrace.judge.rubric import load
from voicetrace.messages import Role, State, TextSource, TextStatus, TimingSource, VoiceMessage

RUBRIC = load("default")


def message(role, start_ms, end_ms, text="some words", seq=0, **more):
    """A message; ``role`` is ``u`` or ``a``."""
    user = role == "u"
    state = more.pop("state", "complete")
    return VoiceMessage(
        id=more.pop("id", f"item_{role}{start_ms}"),
        role=Role.USER if user else Role.ASSISTANT,
        seq=seq,
        committed=more.pop("committed", True),
        state=State(state),
        text=text,
        text_status=TextStatus.FINAL if text is not None else TextStatus.MISSING,
        text_source=TextSource.STT if user else TextSource.TTS_INPUT,
        start_ms=start_ms,
        end_ms=end_ms,
        timing_source=more.pop(
            "timing_source", TimingSource.LOCAL_VAD if user else TimingSource.LOCAL_PLAYOUT
        ),
        interrupted_at_ms=end_ms if state == "interrupted" else None,
        **more,
    )


def table(*messages, audio=True, measured=None, tail_ms=1000, **more):
    """The features of a call with these messages; ``measured``: by message id, fields of its `AgentTurn`.

    With ``audio`` every turn is speech from its first to its last ms.
    """
    caller = tuple((m.start_ms, m.end_ms) for m in messages if m.role is Role.USER) if audio else None
    agent = tuple((m.start_ms, m.end_ms) for m in messages if m.role is Role.ASSISTANT) if audio else None
    turns = timing.turns_of(messages, None, caller, agent)
    duration = max((t.end_ms for t in turns), default=0) + tail_ms
    agents = [(i, t) for i, t in enumerate(turns) if t.role is Role.ASSISTANT]
    fields = {
        "duration_ms": duration,
        "agent_audio": audio,
        "caller_audio": audio,
        "agent_speech_ms": sum(e - s for s, e in agent or ()) if audio else None,
        "agent_sounds": bool(agent),
        "turns": turns,
        "agent_turns": tuple(AgentTurn(turn=i, **(measured or {}).get(t.message_id, {})) for i, t in agents),
        "exchanges": timing.exchanges_of(turns, duration),
        "overlaps": timing.overlaps_of(turns, agent),
        "pauses": timing.pauses_of(turns, agent),
        "expected_language": "en",
    }
    return CallFeatures(**{**fields, **more})


def turn(role, start_ms, end_ms, **more):
    """A turn as the timing functions take it."""
    return Turn(
        message_id=more.pop("message_id", f"{role}{start_ms}"),
        role=Role.USER if role == "u" else Role.ASSISTANT,
        start_ms=start_ms,
        end_ms=end_ms,
        ranges=more.pop("ranges", ((start_ms, end_ms),)),
        state=State(more.pop("state", "complete")),
        **more,
    )
