# SPDX-License-Identifier: Apache-2.0
"""The user's side of a pipeline: VAD intervals, turns, transcripts, and the messages they become.

Read at the user aggregator's and the STT's push, in program order (pipecat-capture.md, sections 0 and 2).
"""

from __future__ import annotations

from collections import deque
from typing import Final

from pipecat.frames.frames import (
    Frame,
    InterimTranscriptionFrame,
    LLMContextUserTurnFrame,
    TranscriptionFrame,
    UserMuteStartedFrame,
    UserMuteStoppedFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.aggregators.llm_response_universal import LLMUserAggregator

from voicetrace import events as ev
from voicetrace.integrations.pipecat.ids import ContextIds
from voicetrace.live import LiveCall
from voicetrace.messages import TextSource, TimingSource

_REMEMBERED: Final = 64


class Siblings:
    """Tells the first of two frames that were broadcast both ways from its twin."""

    def __init__(self) -> None:
        self._seen: deque[int] = deque(maxlen=_REMEMBERED)

    def is_first(self, frame: Frame) -> bool:
        """True once for a frame and its sibling."""
        if frame.id in self._seen or frame.broadcast_sibling_id in self._seen:
            return False
        self._seen.append(frame.id)
        return True


class UserAdapter:
    """Turns what the user aggregator and the STT push into events. Loop-affine."""

    def __init__(self, call: LiveCall, ids: ContextIds) -> None:
        self._call = call
        self._ids = ids
        self._siblings = Siblings()
        self._speaking = False
        self._has_vad = False
        self._muted = False
        self._turn = 0
        self._turn_open = False
        self._committed: list[tuple[str, str | None]] = []  # items of the open turn, without their turn's end

    # -- the user aggregator -------------------------------------------------------------------------
    def pushed(self, aggregator: LLMUserAggregator, frame: Frame) -> None:
        """The aggregator is about to push a frame; the context already holds what it stands for."""
        if isinstance(frame, VADUserStartedSpeakingFrame):
            self._has_vad = True
            self._speech_started(frame.timestamp - frame.start_secs, TimingSource.LOCAL_VAD)
        elif isinstance(frame, VADUserStoppedSpeakingFrame):
            self._speech_stopped(frame.timestamp - frame.stop_secs, TimingSource.LOCAL_VAD)
        elif isinstance(frame, UserStartedSpeakingFrame):
            if self._siblings.is_first(frame):
                self._turn_started()
        elif isinstance(frame, LLMContextUserTurnFrame):
            if self._siblings.is_first(frame):
                self._message_added(aggregator, frame)
        elif isinstance(frame, UserStoppedSpeakingFrame):
            if self._siblings.is_first(frame):
                self._turn_stopped()
        elif isinstance(frame, UserMuteStartedFrame):
            self._muted = True
        elif isinstance(frame, UserMuteStoppedFrame):
            self._muted = False

    def _speech_started(self, unix_seconds: float, source: TimingSource) -> None:
        if self._speaking:
            return  # the aggregator pushes the frame both ways, without linking the two
        self._speaking = True
        now = self._call.now_ms()
        start_ms = min(self._call.ms(unix_seconds), now)
        self._call.emit(ev.UserSpeechStarted(at_ms=now, start_ms=start_ms, source=source))

    def _speech_stopped(self, unix_seconds: float, source: TimingSource) -> None:
        if not self._speaking:
            return
        self._speaking = False
        now = self._call.now_ms()
        end_ms = min(self._call.ms(unix_seconds), now)
        self._call.emit(ev.UserSpeechStopped(at_ms=now, end_ms=end_ms, source=source))

    def _turn_started(self) -> None:
        if not self._turn_open:
            self._turn += 1
            self._turn_open = True
            self._call.emit(ev.EndOfTurnPending(at_ms=self._call.now_ms(), token=f"turn_{self._turn}"))
        if not self._has_vad:
            # turn detection of its own, without a VAD here: the turn's frames are all there is
            self._speech_started(
                self._call.precise_ms() / 1000 + self._call.origin_unix_ms / 1000, TimingSource.LOCAL_RECEIPT
            )

    def _message_added(self, aggregator: LLMUserAggregator, frame: LLMContextUserTurnFrame) -> None:
        ids = self._ids.sync(aggregator.context.messages)
        if not ids:
            return
        self._committed.append((ids[-1], frame.text))
        self._call.emit(
            ev.UserMessageAdded(
                at_ms=self._call.now_ms(), item_id=ids[-1], text=frame.text, source=TextSource.STT
            )
        )

    def _turn_stopped(self) -> None:
        now = self._call.now_ms()
        if not self._has_vad:
            self._speech_stopped(self._call.origin_unix_ms / 1000 + now / 1000, TimingSource.LOCAL_RECEIPT)
        committed, self._committed = self._committed, []
        for item_id, text in committed[-1:]:
            # told again: the turn's end is known only now
            self._call.emit(
                ev.UserMessageAdded(
                    at_ms=now, item_id=item_id, text=text, source=TextSource.STT, end_of_turn_ms=now
                )
            )
        if self._turn_open:
            self._turn_open = False
            self._call.emit(ev.EndOfTurnDecided(at_ms=now, token=f"turn_{self._turn}", outcome="done"))
        if not committed:
            self._call.emit(ev.UserTurnDropped(at_ms=now))

    # -- the STT -------------------------------------------------------------------------------------
    def transcribed(self, frame: Frame) -> None:
        """The STT is about to push a frame. While the user is muted, transcripts go nowhere."""
        if self._muted or not isinstance(frame, TranscriptionFrame | InterimTranscriptionFrame):
            return
        self._call.emit(
            ev.UserTranscript(
                at_ms=self._call.now_ms(),
                text=frame.text,
                final=isinstance(frame, TranscriptionFrame),
                source=TextSource.STT,
            )
        )
