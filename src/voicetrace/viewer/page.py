# SPDX-License-Identifier: Apache-2.0
"""The HTML of a call, and of a list of calls: one file each, that needs nothing and nobody else.

The Content-Security-Policy lets the page's own style and script run, by their digests, and nothing else:
no network, no text that turns out to be markup. What calls say is JSON in which ``<`` does not occur, and the
script puts it into the page as text.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote

from voicetrace import __version__
from voicetrace.viewer import words
from voicetrace.viewer.data import clock, ended, page_data, started, summary, title
from voicetrace.viewer.judgement import Judgement
from voicetrace.viewer.sound import Sound
from voicetrace.voice_call import VoiceCall

_PLACE: Final = re.compile(r"\{\{(\w+)\}\}")


def call_page(call: VoiceCall, sound: Sound, judgement: Judgement | None = None) -> str:
    """The page of a call."""
    style, script = _asset("page.css"), _asset("page.js")
    media = "blob: file: 'self'" if sound.href is not None else "'none'"
    return _filled(
        "page.html",
        policy=f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        f"media-src {media}; base-uri 'none'; form-action 'none'",
        title=html.escape(title(call)),
        version=html.escape(__version__),
        style=style,
        script=script,
        data=_json(page_data(call, sound, judgement)),
        pieces="\n".join(
            f'<script type="text/plain" id="piece-{number}">{base64.b64encode(piece).decode()}</script>'
            for number, piece in enumerate(sound.pieces)
        ),
    )


@dataclass(frozen=True)
class Entry:
    """A call in the list: where its page is."""

    call: VoiceCall
    name: str


def index_page(entries: Iterable[Entry]) -> str:
    """The list of calls; it has no script."""
    style = _asset("page.css")
    rows = "\n".join(_row(entry) for entry in entries)
    return _filled(
        "index.html",
        policy=f"default-src 'none'; style-src '{_digest(style)}'; base-uri 'none'; form-action 'none'",
        version=html.escape(__version__),
        style=style,
        rows=rows,
    )


def _row(entry: Entry) -> str:
    call = entry.call
    warnings = len(call.warnings)
    cells = [
        started(call),
        words.shown(call.agent_name) or words.NOT_KNOWN,
        clock(call.duration_ms),
        summary(call),
        f"{warnings} warning{'s' * (warnings != 1)}" if warnings else "no warnings",
        ended(call),
    ]
    link = f'<a href="{html.escape(quote(entry.name))}">{html.escape(words.shown(call.call_id))}</a>'
    return f'<tr><th scope="row">{link}</th>' + "".join(f"<td>{html.escape(c)}</td>" for c in cells) + "</tr>"


def _filled(name: str, **values: str) -> str:
    """A template with its places filled, once: a value that looks like a place stays as it is."""
    return _PLACE.sub(lambda found: values[found[1]], _asset(name))


def _asset(name: str) -> str:
    return files("voicetrace.viewer").joinpath("assets", name).read_text("utf-8")


def _digest(code: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()


def _json(document: Any) -> str:
    """ASCII without ``<``, ``>`` and ``&``: nothing in it ends a script, or opens a comment."""
    text = json.dumps(document, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
