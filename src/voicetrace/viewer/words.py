# SPDX-License-Identifier: Apache-2.0
"""The record in plain words: what a text is worth, how a message ended, why there is no audio.

Values of a newer version are shown as they are, marked as not known here; nothing is guessed.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final, Literal

from voicetrace.messages import Role, State, TextSource, TextStatus, TimingSource, VoiceMessage

NOT_KNOWN: Final = "not known"

_STATES: Final = {
    State.OPEN: "still open",
    State.COMPLETE: "complete",
    State.INTERRUPTED: "cut off",
    State.UNPLAYED: "never played",
}
_SOURCES: Final = {
    TextSource.PLAYOUT_ALIGNED: "what was heard",
    TextSource.TTS_INPUT: "generated; may overstate what was heard",
    TextSource.REALTIME_OUTPUT_TRANSCRIPT: "the model's own transcript; may overstate what was heard",
    TextSource.STT: "what speech recognition understood",
    TextSource.REALTIME_INPUT_TRANSCRIPT: "the provider's transcript; the model itself heard the audio",
    TextSource.TEXT_INPUT: "typed, not spoken",
}
_TIMINGS: Final = {
    TimingSource.LOCAL_VAD: "voice detection here",
    TimingSource.LOCAL_PLAYOUT: "what was played here",
    TimingSource.LOCAL_RECEIPT: "when the provider's events arrived",
    TimingSource.PROVIDER_EVENTS: "the provider's own clock",
}
_EXACT: Final = (TextSource.PLAYOUT_ALIGNED, TextSource.TEXT_INPUT)
_TRANSCRIPTS: Final = (TextSource.STT, TextSource.REALTIME_INPUT_TRANSCRIPT)

# what would reorder or hide the text around it, or cannot be shown at all
_HIDDEN: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
_WORD: Final = re.compile(r"\S+")


def shown(text: str) -> str:
    """The text with what cannot be seen written out: ``⟨U+202E⟩``. Line ends and tabs stay."""
    text = text.replace("\r\n", "\n")
    return _HIDDEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)


def foreign(value: object) -> str:
    """A value this version does not know."""
    return f"{shown(str(value))} ({NOT_KNOWN} to this version)"


def state(message: VoiceMessage) -> str:
    """How the message ended, if it did."""
    return _STATES.get(message.state) or foreign(message.state)


def text_worth(message: VoiceMessage) -> str:
    """What the text is, or why there is none."""
    status = message.text_status
    if status is TextStatus.NOT_CAPTURED:
        return "text not captured: content capture was off"
    if status is TextStatus.MISSING:
        if message.state is State.OPEN:
            return "no text before the message ends"
        return "transcript missing" if message.role is Role.USER else "text missing"
    if status is TextStatus.PARTIAL:
        return f"not final: {_worth_of_text(message)}"
    if status is TextStatus.FINAL:
        return _worth_of_text(message)
    return f"text status {foreign(status)}"  # type: ignore[unreachable]  # a newer version may have more


def _worth_of_text(message: VoiceMessage) -> str:
    if message.state is State.UNPLAYED:
        return "generated; nobody heard it"
    if message.text_source is None:
        return f"where this text comes from is {NOT_KNOWN}"
    return _SOURCES.get(message.text_source) or f"text source {foreign(message.text_source)}"


def trust(message: VoiceMessage) -> Literal["exact", "transcript", "doubtful"]:
    """Whether the text is what was heard or typed, what somebody understood, or maybe neither."""
    if message.text is None or message.text_status is not TextStatus.FINAL or message.state is State.UNPLAYED:
        return "doubtful"
    if message.text_source in _EXACT:
        return "exact"
    return "transcript" if message.text_source in _TRANSCRIPTS else "doubtful"


def timing(message: VoiceMessage) -> str:
    """Whose clock the bounds come from."""
    if message.timing_source is None:
        return NOT_KNOWN
    known = _TIMINGS.get(message.timing_source)
    return foreign(message.timing_source) if known is None else f"{message.timing_source} ({known})"


def no_audio(message: VoiceMessage) -> str:
    """Why nothing of the recording is this message's."""
    if message.text_source is TextSource.TEXT_INPUT:
        return "typed: there is no audio"
    if message.state is State.UNPLAYED:
        return "no audio"
    if message.state is State.OPEN:
        return "no audio before the message ends"
    return "none of the recording is this message's"


def unheard(message: VoiceMessage) -> str | None:
    """The rest of what was generated behind what was heard; ``None`` where it is no plain continuation.

    Alignment may have other spaces, capitals and punctuation than the model wrote: words are compared.
    """
    heard, generated = message.text, message.generated_text
    if generated is None or heard is None:
        return None
    if generated.startswith(heard):
        return generated[len(heard) :]
    said = [_bare(word) for word in heard.split()]
    words = list(_WORD.finditer(generated))
    if len(said) > len(words) or any(bare != _bare(word[0]) for bare, word in zip(said, words, strict=False)):
        return None
    return generated[words[len(said) - 1].end() if said else 0 :]


def _bare(word: str) -> str:
    letters = "".join(c for c in word if unicodedata.category(c)[0] in "LNM")
    return letters.casefold() or word
