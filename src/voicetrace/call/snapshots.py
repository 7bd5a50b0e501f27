# SPDX-License-Identifier: Apache-2.0
"""What a record in the making looks like now, as the message that is written."""

from __future__ import annotations

from voicetrace.call.drafts import Draft, SpeechDraft, UserDraft
from voicetrace.call.recording import Tape
from voicetrace.messages import Channel, Role, State, TextStatus, TimingSource, VoiceMessage


def snapshot(draft: Draft, tape: Tape, *, call_ended: bool) -> VoiceMessage | None:
    """The record as of now; ``None`` while there is nothing to write."""
    if isinstance(draft, SpeechDraft):
        return _assistant(draft, tape) if draft.visible else None
    return _user(draft, tape, call_ended) if draft.visible or draft.settled else None


def _user(draft: UserDraft, tape: Tape, call_ended: bool) -> VoiceMessage:
    closed = draft.closed()
    text, status = _user_text(draft, call_ended)
    was = draft.last.text_status if draft.last is not None else None
    if status is TextStatus.PARTIAL and was is TextStatus.MISSING:
        text, status = None, TextStatus.MISSING  # never back to partial (contract, section 3)
    # an absurd range is taken out; the start that was already written stays
    start = draft.last.start_ms if draft.last is not None else None
    start = draft.ranges[0][0] if draft.ranges else start
    return VoiceMessage(
        id=draft.key,
        role=Role.USER,
        seq=draft.seq,
        committed=draft.committed,
        state=State.COMPLETE if draft.settled and not draft.speaking else State.OPEN,
        text_status=status,
        text=text,
        text_source=draft.source,
        start_ms=start,
        end_ms=max(e for _, e in closed) if closed else None,
        timing_source=draft.timing if start is not None else None,
        end_of_turn_ms=draft.end_of_turn_ms,
        transcript_final_ms=draft.transcript_final_ms,
        selections=[] if draft.muted else tape.selections(closed, Channel.CALLER),
    )


def _user_text(draft: UserDraft, call_ended: bool) -> tuple[str | None, TextStatus]:
    if not draft.captured:
        return None, TextStatus.NOT_CAPTURED
    if draft.withheld:
        return None, TextStatus.MISSING
    if draft.last is not None and draft.last.text_status is TextStatus.FINAL:
        return draft.last.text, TextStatus.FINAL
    if draft.committed and draft.text:
        return draft.text, TextStatus.FINAL
    if draft.settled and (not draft.committed or draft.answered or call_ended):
        return None, TextStatus.MISSING
    partial = " ".join(t for t in (*draft.finals, draft.interim) if t)
    return (partial, TextStatus.PARTIAL) if partial else (None, TextStatus.MISSING)


def _assistant(draft: SpeechDraft, tape: Tape) -> VoiceMessage:
    unplayed = draft.state is State.UNPLAYED
    ranges = [] if unplayed else draft.ranges()
    recorded = [] if unplayed or draft.muted else draft.recorded_ranges()
    # a start counts once something is known to have played: it may turn out that nothing did
    over = draft.state is not State.OPEN
    begun = [s.start_ms for s in draft.segments if s.played or (over and s.finish is None)]
    starts = [s for s, _ in ranges] + [s for s in begun if s is not None]
    played = not unplayed and bool(starts)
    return VoiceMessage(
        id=draft.key,
        role=Role.ASSISTANT,
        seq=draft.seq,
        committed=draft.committed,
        state=draft.state,
        text_status=draft.status if draft.captured else TextStatus.NOT_CAPTURED,
        text=draft.text,
        generated_text=draft.generated_out,
        text_source=draft.source_out,
        start_ms=min(starts) if played else None,
        end_ms=max((e for _, e in ranges), default=None) if played else None,
        timing_source=TimingSource.LOCAL_PLAYOUT if played else None,
        interrupted_at_ms=draft.interrupted_at_ms,
        provider_audio_end_ms=draft.provider_audio_end_ms,
        selections=tape.selections(recorded, Channel.AGENT),
        produced_by_span_id=draft.step,
    )
