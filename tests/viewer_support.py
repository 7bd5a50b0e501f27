# SPDX-License-Identifier: Apache-2.0
"""Calls to look at, and what is in their pages."""

from __future__ import annotations

import base64
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import soundfile as sf

import voicetrace
from voicetrace.audio.wav import header
from voicetrace.messages import Channel, LLMStep, Recording, Role, Segment, Selection, VoiceMessage
from voicetrace.testing import scripted_call
from voicetrace.voice_call import VoiceCall

EXAMPLES = Path(__file__).parent.parent / "examples" / "calls"


def example(name: str = "cascaded") -> VoiceCall:
    [call] = voicetrace.read_calls(EXAMPLES / f"{name}.jsonl")
    return call


def short_call(directory: Path | None, **options: Any) -> VoiceCall:
    """Five messages in four seconds: a greeting, a question, a cut answer, a noise, a short answer."""
    script = scripted_call(directory, **options)
    script.agent("Hello.", 100, 400, say=True)
    script.user("Which hotels are near?", 600, 1000)
    script.agent("There are three hotels.", 1400, 1900, heard="There are")
    script.noise(2100, 2300)
    script.agent("Anything else?", 6000, 6300)
    return script.finish(6500)


def message(number: int = 0, **fields: Any) -> VoiceMessage:
    """A complete message of the agent, unless `fields` say otherwise."""
    usual: dict[str, Any] = {
        "id": f"item_{number}",
        "role": "assistant",
        "seq": number,
        "committed": True,
        "state": "complete",
        "text_status": "final",
        "text": "Good day.",
        "text_source": "playout_aligned",
        "start_ms": 1000 * number,
        "end_ms": 1000 * number + 800,
        "timing_source": "local_playout",
    }
    kept = {name: value for name, value in (usual | fields).items() if value is not None}
    return VoiceMessage(**kept)


def long_call(messages: int) -> VoiceCall:
    """So many messages, each answer written by a step that read everything before it; no audio."""
    said = [
        message(n, text=f"This is message {n}.")
        if n % 2
        else message(n, role="user", text=f"And this is {n}.", text_source="stt", timing_source="local_vad")
        for n in range(messages)
    ]
    steps = [
        LLMStep(
            span_id=f"{n + 1:016x}",
            trace_id="0" * 31 + "1",
            name="llm_node",
            context_ids=tuple(m.id for m in said[:n]),
            output_ids=(said[n].id,),
            start_ms=1000 * n - 150,
            end_ms=1000 * n - 20,
        )
        for n in range(1, messages, 2)
    ]
    return VoiceCall(
        call_id="long", messages=tuple(said), llm_steps=tuple(steps), duration_ms=1000 * messages
    )


def recorded(
    path: Path, samples: np.ndarray, rate: int, spans: list[tuple[Channel, int, int]], **facts: Any
) -> VoiceCall:
    """A call with one message for each (channel, start, end), over this recording; without a sidecar."""
    sf.write(path, samples, rate, subtype="PCM_16")
    segments = {"seg_0": Segment(start_ms=0, length_ms=len(samples) * 1000 // rate)}
    messages = tuple(
        message(
            n,
            role=Role.USER if channel is Channel.CALLER else Role.ASSISTANT,
            text_source="stt" if channel is Channel.CALLER else "playout_aligned",
            start_ms=start,
            end_ms=end,
            selections=[Selection(segment_id="seg_0", channel=channel, start_ms=start, end_ms=end)],
        )
        for n, (channel, start, end) in enumerate(spans)
    )
    recording = Recording(
        recording_id="r",
        uri=str(path),
        format="wav",
        sample_rate_hz=rate,
        channels=list(Channel)[: samples.shape[1]],
        origin_unix_ms=0,
        segments=segments,
    )
    return VoiceCall(call_id="recorded", messages=messages, recording=recording, **facts)


def silent_wav(path: Path, seconds: int, rate: int = 24_000) -> None:
    """An hour of silence costs nothing: a hole in the file."""
    with path.open("wb") as file:
        file.write(header(rate, seconds * rate * 4))
        file.truncate(44 + seconds * rate * 4)


class Page(HTMLParser):
    """A page's parts, as a browser would tell them apart."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.html = html
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.styles: list[str] = []
        self.policy = ""
        self.tags: list[str] = []
        self._open: str | None = None
        self._attributes: dict[str, str | None] = {}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"] or ""
        self._open, self._attributes = tag, found
        if tag == "script":
            self.scripts.append((found, ""))

    def handle_data(self, data: str) -> None:
        if self._open == "script":
            attributes, before = self.scripts[-1]
            self.scripts[-1] = (attributes, before + data)
        elif self._open == "style":
            self.styles.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._open = None

    @property
    def data(self) -> dict[str, Any]:
        [text] = [text for attributes, text in self.scripts if attributes.get("id") == "data"]
        found: dict[str, Any] = json.loads(text)
        return found

    @property
    def code(self) -> str:
        [text] = [text for attributes, text in self.scripts if "type" not in attributes]
        return text

    def samples(self) -> np.ndarray:
        """The audio in the page, its pieces one after the other."""
        pieces = [base64.b64decode(text) for a, text in self.scripts if re.match("piece-", a.get("id") or "")]
        return np.concatenate([sf.read(io.BytesIO(p), dtype="int16", always_2d=True)[0] for p in pieces])
