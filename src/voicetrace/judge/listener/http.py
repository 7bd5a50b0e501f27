# SPDX-License-Identifier: Apache-2.0
"""JSON over HTTP for the adapters: one POST, a bounded number of tries, and no exception for the caller."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, Final

from voicetrace.judge.listener.base import JudgeUnavailable

_LONGEST_WAIT_S: Final = 20.0
_RETRIED: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


def post_json(
    url: str, body: Mapping[str, Any], headers: Mapping[str, str], *, timeout_s: float, tries: int
) -> dict[str, Any] | JudgeUnavailable:
    """The JSON object of a 200 answer; else why there is none. Waits as the service asks, 20 s at most."""
    if not url.startswith(("https://", "http://")):
        return JudgeUnavailable(f"{url} is no http address")
    data = json.dumps(body).encode()
    reason = "no try was allowed"
    for attempt in range(tries):
        request = urllib.request.Request(  # noqa: S310  the scheme was checked
            url, data, {"Content-Type": "application/json", **headers}, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310
                answer = json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                detail = error.read(300).decode("utf-8", "replace")
            reason = f"the service answered {error.code}: {' '.join(detail.split())[:200]}"
            if error.code not in _RETRIED:
                return JudgeUnavailable(reason)
            if attempt + 1 < tries:
                time.sleep(_wait_s(error.headers.get("Retry-After"), attempt))
        except (OSError, ValueError) as error:
            reason = f"the service cannot be reached: {error}"
            if attempt + 1 < tries:
                time.sleep(_wait_s(None, attempt))
        else:
            return (
                answer
                if isinstance(answer, dict)
                else JudgeUnavailable("the service answered no JSON object")
            )
    return JudgeUnavailable(reason)


def key_of(variable: str) -> str | JudgeUnavailable:
    """The key in an environment variable: read when used, so that none is pickled or logged."""
    key = os.environ.get(variable, "").strip()
    return key or JudgeUnavailable(f"the environment variable {variable} holds no key for the listener")


def _wait_s(asked: str | None, attempt: int) -> float:
    try:
        wanted = float(asked) if asked else 0.5 * 2**attempt
    except ValueError:
        wanted = 0.5 * 2**attempt
    return min(_LONGEST_WAIT_S, max(0.0, wanted))
