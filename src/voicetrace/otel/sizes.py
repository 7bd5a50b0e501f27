# SPDX-License-Identifier: Apache-2.0
"""How big a span is in OTLP, about, and how to cut a batch by size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from opentelemetry.sdk.trace import ReadableSpan

# A batch processor cuts by count (512), not by bytes, and a gRPC peer refuses the whole request above
# 4 MiB. So a big span travels alone, where it can fail only itself, and the others in requests that
# stay well below that limit even where the estimate is off.
ALONE_BYTES: Final = 1_000_000
REQUEST_BYTES: Final = 2_000_000


def estimated_size(span: ReadableSpan) -> int:
    """About how many bytes the span is in OTLP; its resource is not counted."""
    size = 150 + len(span.name) + attributes_size(span.attributes or {})
    size += sum(40 + len(event.name) + attributes_size(event.attributes or {}) for event in span.events)
    size += sum(40 + attributes_size(link.attributes or {}) for link in span.links)
    return size + len(span.status.description or "")


def attributes_size(attributes: Mapping[str, Any]) -> int:
    """About how many bytes the attributes are in OTLP."""
    size = 0
    for key, value in attributes.items():
        plain = type(value) is str and value.isascii()  # nearly every value, and this runs for every span
        size += 8 + len(key) + (len(value) if plain else _value_size(value))
    return size


def _value_size(value: Any) -> int:
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode(errors="replace"))
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, Mapping):
        return attributes_size(value)
    if isinstance(value, Sequence):
        return sum(4 + _value_size(item) for item in value)
    return 9


def requests(spans: Sequence[ReadableSpan]) -> Iterator[tuple[ReadableSpan, ...]]:
    """Cut spans into requests: a big one alone, the others together up to `REQUEST_BYTES`."""
    together: list[ReadableSpan] = []
    total = 0
    for span in spans:
        size = estimated_size(span)
        if size > ALONE_BYTES:
            yield (span,)
            continue
        if together and total + size > REQUEST_BYTES:
            yield tuple(together)
            together, total = [], 0
        together.append(span)
        total += size
    if together:
        yield tuple(together)
