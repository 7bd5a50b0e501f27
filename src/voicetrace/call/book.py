# SPDX-License-Identifier: Apache-2.0
"""What all parts of the fold share: the records in the making under their keys, and the call's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from voicetrace import events as ev
from voicetrace.call.drafts import Draft, SpeechDraft, UserDraft
from voicetrace.messages import VoiceMessage

E = TypeVar("E", bound=ev.Event)

# What takes an event of each kind.
Handlers = dict[type[ev.Event], Callable[[Any], None]]


@dataclass(slots=True)
class Book:
    """The records of one call. It owns ids and order; what is in a record is its part's affair."""

    started: ev.CallStarted | None = None
    ended: ev.CallEnded | None = None
    unconsented: list[tuple[int, int | None]] = field(default_factory=list)
    """The stretches without consent, in call-ms; the end of the one that goes on is ``None``."""
    now_ms: int = 0
    warnings: list[str] = field(default_factory=list)
    drafts: dict[str, Draft] = field(default_factory=dict)
    """All records in the making, by key."""
    speeches: dict[str, SpeechDraft] = field(default_factory=dict)
    """The assistant's among them, by speech id."""
    messages: dict[str, VoiceMessage] = field(default_factory=dict)
    """The last snapshot of each record that was written."""
    touched: dict[int, Draft] = field(default_factory=dict)
    """What the current event may have changed."""
    text_kept: bool = False
    """Whether a record took the current event's text."""
    moved: list[tuple[str, str]] = field(default_factory=list)
    """The keys that the current event renamed: (old, new)."""
    _seq: int = 0
    _old_keys: set[str] = field(
        default_factory=set
    )  # keys that were moved away from; they never appear again

    @property
    def content(self) -> bool:
        """Whether the call keeps texts now."""
        return self.consented and (self.started.content_captured if self.started else True)

    @property
    def consented(self) -> bool:
        """Whether what is said now may be kept."""
        return not self.unconsented or self.unconsented[-1][1] is not None

    def consent(self, at_ms: int, *, given: bool) -> None:
        """From now on what is said may be kept, or may not."""
        if given and not self.consented:
            start, _ = self.unconsented[-1]
            self.unconsented[-1] = (start, max(start, at_ms))
        elif not given and self.consented:
            self.unconsented.append((at_ms, None))

    def unkept(self, ranges: Iterable[tuple[int, int | None]]) -> bool:
        """Whether any of it, in call-ms, was said without consent."""
        return any(
            (until is None or start < until) and (end is None or end > begin or start >= begin)
            for start, end in ranges
            for begin, until in self.unconsented
        )

    def withhold(self, draft: Draft) -> None:
        """A part of it was said without consent: no text of it is kept."""
        if draft.keeps_text:
            draft.withhold()
            self.touch(draft)
            if draft.withheld:
                self.warn(f"message {draft.key}: a part of it was said without consent; no text is kept")

    def admit(self, draft: Draft, event: E) -> E:
        """The event as this record may take it: without its text where it keeps none."""
        self.text_kept = self.text_kept or draft.keeps_text
        return event if draft.keeps_text else cast("E", ev.without_content(event))

    @property
    def uncommitted_timeout_ms(self) -> int:
        """How long the end of some speech may be past without an item."""
        return self.started.uncommitted_timeout_ms if self.started else 3000

    def touch(self, draft: Draft) -> None:
        """The event may have changed this record; it is written if it did."""
        self.touched[id(draft)] = draft

    def touch_all(self) -> None:
        """The event may have changed every record."""
        for draft in self.drafts.values():
            self.touch(draft)

    def mute(self, draft: Draft) -> None:
        """Its text was redacted: what says the same aloud must go too, where the user wants that (VT-70)."""
        if not draft.muted and self.started is not None and self.started.mute_redacted:
            draft.muted = True
            self.touch(draft)
            self.warn("the audio of messages whose text was redacted is silenced")

    def warn(self, sentence: str) -> None:
        """Something is doubtful; said once."""
        if sentence not in self.warnings:
            self.warnings.append(sentence)

    def next_seq(self) -> int:
        """The next place in the order of the call's messages."""
        seq, self._seq = self._seq, self._seq + 1
        return seq

    def is_free(self, key: str, draft: Draft | None = None) -> bool:
        """Whether a record may take this id; say so when it may not."""
        holder = self.drafts.get(key)
        if holder is draft and holder is not None:
            return True
        if holder is None and key not in self._old_keys:
            return True
        owner = "another message's" if holder is not None else "the former key of another message"
        self.warn(f"id {key} is already {owner}; it is not given again")
        return False

    def free_key(self, wanted: str) -> str:
        """The key, or one like it when a framework's id already looks like that."""
        key, n = wanted, 1
        while key in self.drafts or key in self._old_keys:
            n += 1
            key = f"{wanted}#{n}"
        return key

    def move(self, draft: Draft, key: str) -> bool:
        """Give a record its item's id. The old key never appears again (contract, section 2)."""
        if not self.is_free(key, draft):
            return False
        if isinstance(draft, UserDraft):
            draft.named = True
        if draft.key == key:
            return True
        old = draft.key
        del self.drafts[old]
        self._old_keys.add(old)
        self.drafts[key] = draft
        draft.key = key
        if self.messages.pop(old, None) is not None:
            self.moved.append((old, key))
        return True
