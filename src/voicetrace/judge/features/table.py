# SPDX-License-Identifier: Apache-2.0
"""The table of one call's features: plain numbers, by message. ``*_ms`` are call-ms; absent means unknown."""

from __future__ import annotations

from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field

from voicetrace.messages import Role, State, TextSource, TextStatus, TimingSource

VERSION: Final = 1


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Turn(_Model):
    """What somebody said in one go: a message, or a stretch of speech that no message names.

    ``start_ms`` and ``end_ms`` are where its sound begins and ends: the message's bounds, moved to the edges
    of the speech that they mean. ``ranges`` are its stretches, likewise.
    """

    message_id: str | None
    role: Role
    start_ms: int
    end_ms: int
    ranges: tuple[tuple[int, int], ...]
    state: State = State.COMPLETE
    committed: bool = True
    text: str | None = None
    text_status: TextStatus = TextStatus.MISSING
    text_source: TextSource | None = None
    timing_source: TimingSource | None = None
    interrupted_at_ms: int | None = None
    speech_ms: int | None = None
    """How much speech the audio holds within the ranges; ``None`` where there is no audio to ask."""

    @property
    def length_ms(self) -> int:
        """From its first sound to its last."""
        return self.end_ms - self.start_ms


class AgentTurn(_Model):
    """What was measured of one agent turn. ``turn`` is its place in `CallFeatures.turns`."""

    turn: int
    loudness_lufs: float | None = None
    spike_lu: float | None = None
    """How far the loudest 400 ms is above the turn's own loudness."""
    clipped_share: float | None = None
    dropouts_per_s: float | None = None
    end_level_db: float | None = None
    """Level of its last 40 ms, relative to the turn: near 0 is a cut, below -15 a natural end."""
    mos_signal: float | None = None
    mos_background: float | None = None
    mos_overall: float | None = None
    loss_mos: float | None = None
    narrow: bool | None = None
    """It came through a telephone's band: nothing above 4 kHz."""
    crowded_share: float | None = None
    """Of a narrow turn: the share of its samples near its peak, which clipping leaves crowded."""
    pitch_st: float | None = None
    """Median pitch, semitones above 55 Hz."""
    pitch_sd_st: float | None = None
    syllables: int | None = None
    heard: str | None = None
    heard_log_probability: float | None = None
    character_errors: float | None = None
    """Edit distance of what was heard to what should have been said, per character."""
    missing_end: bool | None = None
    """The last two words or more of the text were not heard at the end."""
    language: str | None = None
    language_probability: float | None = None


class Exchange(_Model):
    """A user turn and the agent's first sound after it. ``gap_ms``: the silence between; negative: none."""

    user: int
    answer: int | None
    gap_ms: int
    after_interruption: bool = False


class Overlap(_Model):
    """Both spoke at once. ``kind`` is ``barge_in``, ``talk_over``, ``backchannel`` or ``false_trigger``.

    ``value_ms``: of a barge-in, how long the agent went on; of a talk-over, how long both spoke; of a
    backchannel, how soon after it the agent stopped (-1: it did not); of a false trigger, 0.
    """

    kind: str
    user: int | None
    agent: int
    at_ms: int
    value_ms: int


class Pause(_Model):
    """The agent had the floor and nobody spoke."""

    turn: int
    start_ms: int
    end_ms: int


class ReadBack(_Model):
    """A value of the text that was not what was heard. ``support`` is the text's own log-probability."""

    turn: int
    said: str
    heard: str
    support: float | None


class CallFeatures(_Model):
    """Everything that scoring needs of one call."""

    version: int = VERSION
    duration_ms: int = 0
    agent_audio: bool = False
    caller_audio: bool = False
    agent_speech_ms: int | None = None
    """Speech in the agent's channel; ``None`` where nothing could tell speech from other sound."""
    agent_sounds: bool = False
    turns: tuple[Turn, ...] = ()
    agent_turns: tuple[AgentTurn, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    overlaps: tuple[Overlap, ...] = ()
    pauses: tuple[Pause, ...] = ()
    similarities: tuple[tuple[float | None, ...], ...] = ()
    """How alike the voices of ``agent_turns`` are, each with each; ``None``: too short to tell."""
    read_backs: tuple[ReadBack, ...] = ()
    values_checked: int | None = None
    """How many values of the agent's text were held against what was heard; ``None``: nobody listened."""
    expected_language: str | None = None
    caller_language: str | None = None
    caller_language_probability: float | None = None
    agent_text_language: str | None = None
    agent_text_language_probability: float | None = None
    missing: dict[str, str] = Field(default_factory=dict)
    """Providers that were not available, and why."""

    def turn_of(self, measured: AgentTurn) -> Turn:
        """The turn that a measurement is of."""
        return self.turns[measured.turn]

    def to_json(self) -> str:
        """One compact JSON object."""
        return self.model_dump_json(exclude_defaults=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The table of `to_json`.

        Raises:
            ValueError: it is no such table, or one of another version.
        """
        table = cls.model_validate_json(text)
        if table.version != VERSION:
            raise ValueError(
                f"the features are of version {table.version}, this release reads {VERSION}: extract anew"
            )
        return table
