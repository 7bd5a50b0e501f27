# SPDX-License-Identifier: Apache-2.0
"""Draw a recorded call as SVG: both voices, each message over its audio, and what of it was heard.

``python docs/draw_call.py SOURCE OUT.svg``, where SOURCE is whatever `voicetrace.read_calls` takes. The
picture in the README is of one run of ``make demo``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt
import soundfile as sf  # type: ignore[import-untyped,unused-ignore]

import voicetrace
from voicetrace.messages import Channel, Role, Selection, State, VoiceMessage
from voicetrace.voice_call import VoiceCall

WIDTH, MARGIN = 1200, 20
ROW_S = 26.0
PX_PER_S = (WIDTH - 2 * MARGIN) / ROW_S
ABOVE_H, WAVE_H, STEP_H, BELOW_H, AXIS_H = 30, 44, 14, 66, 30
ROW_H = ABOVE_H + 2 * WAVE_H + STEP_H + BELOW_H + AXIS_H
CHAR_PX, LINE_PX, MAX_LINES = 6.3, 14, 4

STYLE = """
  .paper { fill: #ffffff; stroke: #d8dee4; }
  text { font: 12px system-ui, sans-serif; fill: #1f2328; }
  .small { font-size: 10px; fill: #656d76; }
  .cut { fill: #8c959f; text-decoration: line-through; }
  .none { font-style: italic; fill: #8c959f; }
  .line { stroke: #d8dee4; }
  .user { fill: #0969da; } .assistant { fill: #8250df; }
  .box { fill-opacity: 0.12; stroke-opacity: 0.55; }
  .box.user { stroke: #0969da; } .box.assistant { stroke: #8250df; }
  .box.uncommitted { fill: #8c959f; stroke: #8c959f; stroke-dasharray: 3 2; }
  .knife { stroke: #cf222e; stroke-width: 1.5; }
  .step { fill: #bf8700; } .speculative { fill: none; stroke: #bf8700; stroke-dasharray: 2 2; }
"""


def draw(call: VoiceCall) -> str:
    """The picture of a call, as an SVG document.

    Raises:
        ValueError: the call has no recording here.
    """
    path = call.recording_path()
    if path is None or call.recording is None or not path.is_file():
        raise ValueError(f"call {call.call_id} has no recording to draw")
    samples, rate = sf.read(path, dtype="int16", always_2d=True)
    rows = math.ceil(len(samples) / rate / ROW_S)
    height = rows * ROW_H + 2 * MARGIN + 10
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
        f"<title>{len(call.messages)} messages over their audio, {len(samples) / rate:.0f} s</title>"
        f"<style>{STYLE}</style>"
        f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>'
    )
    parts = [head]
    for row in range(rows):
        shown = _Row(call, row)
        parts.append(f'<g transform="translate({MARGIN} {MARGIN + row * ROW_H})">')
        parts += shown.axis(len(samples) / rate)
        for channel, middle in ((Channel.CALLER, shown.caller_y), (Channel.AGENT, shown.agent_y)):
            if channel in call.recording.channels:
                voice = samples[:, call.recording.channels.index(channel)]
                parts.append(shown.wave(voice, rate, channel, middle))
        parts += shown.steps()
        parts += [piece for message in call.messages for piece in shown.message(message)]
        parts.append("</g>")
    legend = (
        '<tspan class="user">blue</tspan> the caller · '
        '<tspan class="assistant">violet</tspan> the agent, as played · '
        '<tspan class="cut">struck out</tspan> generated, never heard · '
        "dashed: speech that became no message of the conversation · "
        "ochre: LLM steps, dashed: an attempt that was dropped"
    )
    parts.append(f'<text class="small" x="{MARGIN}" y="{height - 10}">{legend}</text></svg>\n')
    return "\n".join(parts)


class _Row:
    """A stretch of `ROW_S` seconds of the call; y grows downwards from its top."""

    caller_y = ABOVE_H + WAVE_H / 2
    steps_y = ABOVE_H + WAVE_H
    agent_y = ABOVE_H + WAVE_H + STEP_H + WAVE_H / 2
    axis_y = ABOVE_H + 2 * WAVE_H + STEP_H + BELOW_H

    def __init__(self, call: VoiceCall, number: int) -> None:
        self.call = call
        self.start_s = number * ROW_S

    def x(self, ms: float) -> float:
        return (min(max(ms / 1000, self.start_s), self.start_s + ROW_S) - self.start_s) * PX_PER_S

    def holds(self, start_ms: float, end_ms: float) -> bool:
        return end_ms / 1000 > self.start_s and start_ms / 1000 < self.start_s + ROW_S

    def axis(self, length_s: float) -> Iterator[str]:
        y = self.axis_y
        yield f'<path class="line" d="M0 {y}H{self.x(length_s * 1000):.0f}"/>'
        for second in range(int(self.start_s), int(min(self.start_s + ROW_S, length_s)) + 1, 2):
            x = self.x(second * 1000)
            yield f'<path class="line" d="M{x:.0f} {y}v4"/>'
            if x < WIDTH - 3 * MARGIN:
                yield f'<text class="small" x="{x:.0f}" y="{y + 14}">{second} s</text>'

    def wave(self, voice: npt.NDArray[np.int16], rate: int, channel: Channel, middle: float) -> str:
        """The loudest sample of every two pixels, up and down, as one shape."""
        piece = voice[int(self.start_s * rate) : int((self.start_s + ROW_S) * rate)].astype(np.int32)
        step = int(2 * rate / PX_PER_S)
        piece = piece[: len(piece) // step * step].reshape(-1, step)
        loudest = max(1, int(np.abs(voice.astype(np.int32)).max()))
        tops = np.abs(piece).max(axis=1) / loudest * (WAVE_H / 2 - 2)
        xs = np.arange(len(tops)) * step / rate * PX_PER_S
        there = [f"{x:.1f} {middle - top:.1f}" for x, top in zip(xs, tops, strict=True)]
        back = [f"{x:.1f} {middle + top:.1f}" for x, top in zip(xs[::-1], tops[::-1], strict=True)]
        role = Role.USER if channel is Channel.CALLER else Role.ASSISTANT
        return f'<path class="{role}" d="M{"L".join(there + back)}Z"/>'

    def steps(self) -> Iterator[str]:
        for step in self.call.llm_steps:
            if step.start_ms is None or step.end_ms is None or not self.holds(step.start_ms, step.end_ms):
                continue
            x, width = self.x(step.start_ms), max(2.0, self.x(step.end_ms) - self.x(step.start_ms))
            kind = "speculative" if step.speculative else "step"
            yield _box(kind, x, self.steps_y + 4, width, 6)

    def message(self, message: VoiceMessage) -> Iterator[str]:
        """A box over each of its ranges, where it was cut, and its words."""
        if (
            message.start_ms is None
            or message.end_ms is None
            or not self.holds(message.start_ms, message.end_ms)
        ):
            return
        user = message.role is Role.USER
        top = (self.caller_y if user else self.agent_y) - WAVE_H / 2
        kind = f"box {message.role}" + ("" if message.committed else " uncommitted")
        ranges = [(s.start_ms, s.end_ms) for s in self._in_call_ms(message)] or [
            (message.start_ms, message.end_ms)
        ]
        for start, end in ranges:
            if self.holds(start, end):
                x, width = self.x(start), self.x(end) - self.x(start)
                yield _box(kind, x, top, width, WAVE_H)
        if message.state is State.INTERRUPTED and message.interrupted_at_ms is not None:
            x = self.x(message.interrupted_at_ms)
            yield f'<path class="knife" d="M{x:.1f} {top - 3}v{WAVE_H + 6}"/>'
        if message.start_ms / 1000 >= self.start_s:
            yield from self._words(message, user=user)

    def _in_call_ms(self, message: VoiceMessage) -> list[Selection]:
        assert self.call.recording is not None
        segments = self.call.recording.segments
        moved = []
        for s in message.selections:
            begin = segments[s.segment_id].start_ms
            moved.append(s.model_copy(update={"start_ms": s.start_ms + begin, "end_ms": s.end_ms + begin}))
        return moved

    def _words(self, message: VoiceMessage, *, user: bool) -> Iterator[str]:
        """The text, wrapped into the room up to the next message of the same voice."""
        assert message.start_ms is not None
        later = [m.start_ms for m in self.call.messages if m.role is message.role and m.start_ms is not None]
        until = min((ms for ms in later if ms > message.start_ms), default=math.inf)
        x = self.x(message.start_ms)
        chars = max(8, int((self.x(until) - x - 8) / CHAR_PX))
        heard = (message.text or "").split()
        words = [(word, "") for word in heard]
        words += [(word, "cut") for word in (message.generated_text or "").split()[len(heard) :]]
        lines = _wrapped(words or [("(no text)", "none")], chars)
        first = ABOVE_H - 6 - (len(lines) - 1) * LINE_PX if user else self.agent_y + WAVE_H / 2 + LINE_PX
        for number, line in enumerate(lines):
            spans = " ".join(f'<tspan class="{kind}">{escape(text)}</tspan>' for text, kind in line)
            yield f'<text x="{x:.1f}" y="{first + number * LINE_PX:.0f}">{spans}</text>'


def _box(kind: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" rx="2"/>'


def _wrapped(words: list[tuple[str, str]], chars: int) -> list[list[tuple[str, str]]]:
    """Words as lines of at most `chars`; neighbours of one kind are joined, what is too much becomes "…"."""
    lines: list[list[tuple[str, str]]] = [[]]
    used = 0
    for word, kind in words:
        if used and used + len(word) > chars:
            if len(lines) == MAX_LINES:
                lines[-1].append(("…", kind))
                break
            lines.append([])
            used = 0
        line = lines[-1]
        if line and line[-1][1] == kind:
            line[-1] = (f"{line[-1][0]} {word}", kind)
        else:
            line.append((word, kind))
        used += len(word) + 1
    return lines


def main() -> None:
    """Draw the one call of a source."""
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, target = sys.argv[1:]
    calls = [call for call in voicetrace.read_calls(source) if call.recording_path() is not None]
    if len(calls) != 1:
        sys.exit(f"{source} holds {len(calls)} recorded calls; draw_call.py draws one")
    Path(target).write_text(draw(calls[0]), encoding="utf-8")


if __name__ == "__main__":
    main()
