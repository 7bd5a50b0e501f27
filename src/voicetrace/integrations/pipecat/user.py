# SPDX-License-Identifier: Apache-2.0
"""The user's side of a pipeline: VAD intervals, turns, transcripts, and the messages they become.

Read at the user aggregator's and the STT's push, in program order (pipecat-capture.md, sections 0 and 2).
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from pipecat.frames.frames import (
    Frame,
    LLMContextUserTurnFrame,
    TranscriptionFrame,
    UserMuteStartedFrame,
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


class RealtimeMessages(Protocol):
    """Says which utterances a message that was appended to the context is."""

    def user_message(self, aggregator: LLMUserAggregator) -> bool:
        """The aggregator has just appended a message; False: none that a realtime service heard."""


class UserAdapter:
    """Turns what the user aggregator and the STT push into events. Loop-affine."""

    def __init__(self, call: LiveCall, ids: ContextIds) -> None:
        self._call = call
        self._ids = ids
        self._siblings = Siblings()
        self._speaking = False
        self._heard = False  # a VAD heard something since the last turn ended
        self._muted = False
        self._turn = 0
        self._turn_open = False
        self._stopped_ms: int | None = None  # when the turn that is being closed ended
        self._committed: list[tuple[str, str]] = []  # items of the open turn, without their turn's end
        self.realtime: RealtimeMessages | None = None  # a realtime service hears the user
        self.provider_hears = False  # and its provider tells when the user speaks, better than the turns
        self.unanswered = False  # there was speech since a realtime service began to answer

    # -- the user aggregator: speech -----------------------------------------------------------------
    def vad_started(self, frame: VADUserStartedSpeakingFrame) -> None:
        """The VAD is sure that there is speech, since `start_secs`."""
        if self.provider_hears:
            return
        self._heard = True
        self.speech_started(self._call.ms(frame.timestamp - frame.start_secs), TimingSource.LOCAL_VAD)

    def vad_stopped(self, frame: VADUserStoppedSpeakingFrame) -> None:
        """The VAD is sure that there is none, since `stop_secs`."""
        if not self.provider_hears:
            self.speech_stopped(self._call.ms(frame.timestamp - frame.stop_secs), TimingSource.LOCAL_VAD)

    @property
    def speaking(self) -> bool:
        """Whether the user is speaking now."""
        return self._speaking

    def speech_started(self, start_ms: int, source: TimingSource, item_id: str | None = None) -> None:
        """The user began to speak; `item_id` where a realtime provider named the utterance."""
        if self._speaking:
            return  # the aggregator pushes the frame both ways, without linking the two
        self._speaking = True
        now = self._call.now_ms()
        self._call.emit(
            ev.UserSpeechStarted(at_ms=now, start_ms=min(start_ms, now), source=source, item_id=item_id)
        )

    def speech_stopped(self, end_ms: int, source: TimingSource, item_id: str | None = None) -> None:
        """The user fell silent."""
        if not self._speaking:
            return
        self._speaking = False
        self.unanswered = True
        now = self._call.now_ms()
        self._call.emit(
            ev.UserSpeechStopped(at_ms=now, end_ms=min(end_ms, now), source=source, item_id=item_id)
        )

    def muted(self, frame: Frame) -> None:
        """Nothing the user says from here on is heard, or no longer so."""
        self._muted = isinstance(frame, UserMuteStartedFrame)
        if self._muted and self._speaking:  # no frame will tell the end of it
            self.speech_stopped(self._call.now_ms(), TimingSource.LOCAL_RECEIPT)

    # -- the user aggregator: turns ------------------------------------------------------------------
    def turn_started(self, frame: UserStartedSpeakingFrame) -> None:
        """A turn is open until `UserStoppedSpeakingFrame`."""
        if not self._siblings.is_first(frame):
            return
        now = self._call.now_ms()
        self._stopped_ms = None
        if not self._turn_open:
            self._turn += 1
            self._turn_open = True
            self._call.emit(ev.EndOfTurnPending(at_ms=now, token=f"turn_{self._turn}"))
        if not self._heard and not self.provider_hears:
            # turn taking without a VAD, or of speech it did not hear: the turn's frames are all there is
            self.speech_started(now, TimingSource.LOCAL_RECEIPT)

    def message_added(self, aggregator: LLMUserAggregator, frame: LLMContextUserTurnFrame) -> None:
        """The aggregator has just appended this message; one turn may bring several."""
        if not self._siblings.is_first(frame):
            return
        if self.realtime is not None and self.realtime.user_message(aggregator):
            return
        ids = self._ids.of(aggregator.context)
        if ids:
            if self._stopped_ms is None:
                self._committed.append((ids[-1], frame.text))
            self._added(ids[-1], frame.text, self._stopped_ms)

    def _added(self, item_id: str, text: str, end_of_turn_ms: int | None) -> None:
        self._call.emit(
            ev.UserMessageAdded(
                at_ms=self._call.now_ms(),
                item_id=item_id,
                text=text,
                source=TextSource.STT,
                end_of_turn_ms=end_of_turn_ms,
            )
        )

    def turn_stopped(self, frame: UserStoppedSpeakingFrame) -> None:
        """The turn is over. Its message was appended just before, or is just after."""
        if not self._siblings.is_first(frame):
            return
        now = self._stopped_ms = self._call.now_ms()
        if not self._heard and not self.provider_hears:
            self.speech_stopped(now, TimingSource.LOCAL_RECEIPT)
        self._heard = self._speaking
        committed, self._committed = self._committed, []
        for item_id, text in committed[-1:]:
            self._added(item_id, text, now)  # told again: the turn's end is known only now
        if self._turn_open:
            self._turn_open = False
            # a realtime service's provider has the item already; a pipeline's message says so itself
            over = self.realtime is not None and not self._speaking
            self._call.emit(
                ev.EndOfTurnDecided(
                    at_ms=now, token=f"turn_{self._turn}", outcome="committed" if over else "done"
                )
            )

    def turn_closed(self, content: str | None) -> None:
        """What the turn brought, once all of it is in the context; ``None``: a realtime service will tell."""
        if content == "":
            self._call.emit(ev.UserTurnDropped(at_ms=self._call.now_ms()))

    # -- the STT -------------------------------------------------------------------------------------
    def transcribed(self, frame: Frame) -> None:
        """The STT is about to push a transcript. While the user is muted, transcripts go nowhere."""
        if not self._muted:
            self._call.emit(
                ev.UserTranscript(
                    at_ms=self._call.now_ms(),
                    text=getattr(frame, "text", ""),
                    final=isinstance(frame, TranscriptionFrame),
                    source=TextSource.STT,
                )
            )
