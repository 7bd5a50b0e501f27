# SPDX-License-Identifier: Apache-2.0
"""Writing ``voice.messages``: one JSON string that is valid whatever its size (architecture, "On the wire").

Each message is encoded once, when it changes; the map is a join of those fragments, so that writing it
costs a copy and not an encoding of the whole call.
"""

from __future__ import annotations

import json
import logging
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import version
from typing import Any, Final

from opentelemetry.trace import Span

from voicetrace import semconv
from voicetrace.messages import VoiceMessage

logger = logging.getLogger("voicetrace.otel")

# A gRPC peer refuses a whole request above 4 MiB, and the call span carries more than the map. A quarter
# of that leaves room for both and is still about 1,500 messages, far more than a call has.
DEFAULT_MAX_BYTES: Final = 1_000_000

_MAX_INT: Final = 2**63 - 1
_REQUIRED: Final = ("role", "seq", "committed", "state", "text_status", "selections")

Fragment = tuple[str, str]


@dataclass(frozen=True, slots=True)
class EncodedMessages:
    """The map as JSON, how many messages it leaves out, and how many it holds."""

    json: str
    omitted: int
    kept: int


class Entries:
    """The entries of a call's map while it grows: each encoded when it changes, all in order of ``seq``.

    So that writing the map on the event loop costs a copy, however long the call is.
    """

    def __init__(self) -> None:
        self._order: list[tuple[int, str]] = []
        self._encoded: dict[str, str] = {}

    def put(self, message: VoiceMessage) -> None:
        """Encode a message that is new, or has changed."""
        if message.id not in self._encoded:
            insort(self._order, (message.seq, message.id))
        self._encoded[message.id] = encode_entry(message)

    def drop(self, message_id: str) -> None:
        """Forget a key that was renamed; one that is not there is nothing."""
        if self._encoded.pop(message_id, None) is not None:
            # what is renamed is a message that goes on, so it stands near the end
            at = next(n for n in range(len(self._order) - 1, -1, -1) if self._order[n][1] == message_id)
            del self._order[at]

    def fragments(self) -> list[Fragment]:
        """The ``(id, entry JSON)`` pairs as they stand now."""
        encoded = self._encoded
        return [(message_id, encoded[message_id]) for _, message_id in self._order]


def encode_entry(message: VoiceMessage) -> str:
    """One entry of ``voice.messages`` as compact JSON, without the message's id.

    Always valid Unicode (a lone surrogate becomes U+FFFD) and integers within 63 bits (an absurd optional
    value is left out): protobuf would drop the whole attribute for either.
    """
    wire = {
        key: _within_63_bits(value) if key in _REQUIRED else value
        for key, value in message.to_wire().items()
        if key in _REQUIRED or not isinstance(value, int) or abs(value) <= _MAX_INT
    }
    return valid_unicode(json.dumps(wire, ensure_ascii=False, separators=(",", ":"), allow_nan=False))


def valid_unicode(text: str) -> str:
    """The text with lone surrogates replaced; the text itself when it has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def encode_messages(
    fragments: Sequence[Fragment], *, max_bytes: int | None, max_chars: int | None = None
) -> EncodedMessages:
    """Join ``(id, entry JSON)`` pairs, in order of ``seq``, into the JSON of the whole map.

    Where a limit (UTF-8 bytes, or characters for the SDK's attribute limit) would be passed, the map ends
    at the message before, so the result is valid JSON for any limit of at least two.
    """
    parts: list[str] = []
    bytes_used = chars_used = 2
    for message_id, entry in fragments:
        part = _key(message_id) + entry
        separator = 1 if parts else 0
        chars = len(part) + separator
        size = chars if part.isascii() else len(part.encode()) + separator
        if max_bytes is not None and bytes_used + size > max_bytes:
            break
        if max_chars is not None and chars_used + chars > max_chars:
            break
        parts.append(part)
        bytes_used += size
        chars_used += chars
    return EncodedMessages("{" + ",".join(parts) + "}", len(fragments) - len(parts), len(parts))


@lru_cache(maxsize=4096)
def _key(message_id: str) -> str:
    """The id as a JSON key; cached because the map is written again and again while a call runs."""
    return json.dumps(valid_unicode(message_id), ensure_ascii=False) + ":"


def call_attributes(
    fragments: Sequence[Fragment],
    *,
    attributes: Mapping[str, Any] | None = None,
    messages_uri: str | None = None,
    max_bytes: int | None = DEFAULT_MAX_BYTES,
    max_chars: int | None = None,
    structured: bool = False,
) -> dict[str, Any]:
    """The call span's attributes, ``voice.messages`` last.

    Last, because an SDK over its count limit drops the oldest. When messages are left out,
    ``voice.messages.omitted`` says how many and ``voice.messages.uri`` (if given) where the full map is.
    ``max_chars`` is the SDK's attribute length limit (`value_length_limit`), if it has one.
    """
    structured = structured and _structured_supported()
    if structured:
        max_chars = None  # in a structured value the SDK cuts only the texts
    encoded = encode_messages(fragments, max_bytes=max_bytes, max_chars=max_chars)
    out = dict(attributes or {})
    if encoded.omitted:
        out[semconv.VOICE_MESSAGES_OMITTED] = encoded.omitted
    if messages_uri is not None:
        out[semconv.VOICE_MESSAGES_URI] = messages_uri
    out.pop(semconv.VOICE_MESSAGES, None)
    out[semconv.VOICE_MESSAGES] = (
        {valid_unicode(key): json.loads(entry) for key, entry in fragments[: encoded.kept]}
        if structured
        else encoded.json
    )
    return out


def set_call_attributes(
    span: Span,
    fragments: Sequence[Fragment],
    *,
    attributes: Mapping[str, Any] | None = None,
    messages_uri: str | None = None,
    max_bytes: int | None = DEFAULT_MAX_BYTES,
    structured: bool = False,
) -> int:
    """Set `call_attributes` on a live call span and return how many messages were left out.

    Reads ``voice.messages`` back: where the SDK's length limit cut the string, it is written again within
    that limit, so it stays valid JSON. Does nothing on a span that does not record.
    """
    if not span.is_recording():
        return 0

    def write(max_chars: int | None) -> dict[str, Any]:
        values = call_attributes(
            fragments,
            attributes=attributes,
            messages_uri=messages_uri,
            max_bytes=max_bytes,
            max_chars=max_chars,
            structured=structured,
        )
        # one by one: set_attributes() checks nothing in order when one value is refused
        for name, value in values.items():
            span.set_attribute(name, value)
        return values

    values = write(value_length_limit(span))
    written, stored = values[semconv.VOICE_MESSAGES], _stored(span).get(semconv.VOICE_MESSAGES)
    if isinstance(written, str) and isinstance(stored, str) and len(stored) < len(written):
        values = write(len(stored))
    return int(values.get(semconv.VOICE_MESSAGES_OMITTED, 0))


def id_list(ids: Sequence[str | None]) -> list[str | None] | str:
    """A list of ids as an attribute value: a list, or a JSON string where that would be lost.

    Exporters before 1.45 drop the whole attribute when one of its entries is None.
    """
    if None not in ids or sdk_version() >= (1, 45):
        return list(ids)
    return json.dumps(ids, ensure_ascii=False, separators=(",", ":"))


@cache
def sdk_version() -> tuple[int, int]:
    """Major and minor version of the installed OpenTelemetry SDK."""
    major, minor = version("opentelemetry-sdk").split(".")[:2]
    return int(major), int(minor)


def value_length_limit(span: object) -> int | None:
    """The SDK's limit on the length of a string attribute, in characters; None: none, or not known."""
    limit = getattr(getattr(span, "_limits", None), "max_span_attribute_length", None)
    return limit if isinstance(limit, int) else None


def _stored(span: Span) -> Mapping[str, Any]:
    attributes = getattr(span, "attributes", None)
    return attributes if isinstance(attributes, Mapping) else {}


def _within_63_bits(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return max(-_MAX_INT, min(_MAX_INT, value))
    return value


@cache
def _structured_supported() -> bool:
    """Map attributes are silently dropped by SDKs before 1.45; says so once."""
    if sdk_version() >= (1, 45):
        return True
    logger.warning(
        "opentelemetry-sdk %d.%d cannot write structured attributes (1.45 can): "
        "voice.messages is written as a JSON string",
        *sdk_version(),
    )
    return False
