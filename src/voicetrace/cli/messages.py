# SPDX-License-Identifier: Apache-2.0
"""The messages of a call as a table and as lines, for `demo` and `inspect`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.table import Table

from voicetrace.cli.common import cell, seconds, table
from voicetrace.messages import Role, State, TextStatus, VoiceMessage

Links = Mapping[str, tuple[str, str]]
"""Message id -> (made by, read by), as step numbers."""


def who(message: VoiceMessage) -> str:
    """The speaker as the contract names it, and whether it stayed outside the conversation."""
    return str(message.role) if message.committed or message.state is State.OPEN else f"{message.role} *"


def shown_text(message: VoiceMessage) -> str:
    """What was said or heard; of a cut reply also where it was cut and what nobody heard."""
    text, generated = message.text, message.generated_text
    if message.state is State.UNPLAYED:
        return f"[never played] {text or ''}".rstrip()
    if text is None:
        if message.text_status is TextStatus.NOT_CAPTURED:
            return "(not captured)"
        return "..." if message.state is State.OPEN else "(no text)"
    if generated is None:
        return text
    if generated.startswith(text):
        return f"{text} [cut, not heard:{generated[len(text) :]}]"
    return f"{text} [generated: {generated}]"


def messages_table(messages: Iterable[VoiceMessage], links: Links | None = None) -> Table:
    """One row a message, in the order given; ``links`` adds who made it and who read it."""
    columns = ["seq", "who", "state", "from-to (s)"]
    out = table(*columns, "text", *(("made by", "read by") if links is not None else ()))
    for message in messages:
        style = {State.OPEN: "dim", State.INTERRUPTED: "yellow"}.get(message.state, "")
        row = [
            cell(str(message.seq)),
            cell(who(message), "cyan" if message.role is Role.USER else "green"),
            cell(str(message.state), style),
            cell(seconds(message.start_ms, message.end_ms)),
            cell(shown_text(message)),
        ]
        if links is not None:
            row += [cell(part) for part in links.get(message.id, ("", ""))]
        out.add_row(*row)
    return out


def message_line(message: VoiceMessage) -> str:
    """The same row as one line, for an output that is no terminal."""
    where = seconds(message.start_ms, message.end_ms)
    row = cell(f"{message.seq:>3}  {who(message):9}  {message.state:11}  {where:>13}  {shown_text(message)}")
    return row.plain
