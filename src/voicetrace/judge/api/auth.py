# SPDX-License-Identifier: Apache-2.0
"""Bearer tokens, one or more a workspace. A token opens its own workspace and no other."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from uuid import UUID

_SHA256: Final = re.compile(r"sha256:[0-9a-f]{64}")
_SHORTEST: Final = 16
_NOBODY: Final = hashlib.sha256(b"").digest()


class TokenError(ValueError):
    """The tokens cannot be used as they are given."""


class Tokens:
    """The tokens of all workspaces, kept as digests.

    Args:
        tokens: workspace UUID to a token or several (so that one can be replaced without a gap). A token is
            written as it is, or as ``sha256:<hex>`` of it.

    Raises:
        TokenError: a workspace is no UUID, or a token is empty or shorter than 16 characters.
    """

    def __init__(self, tokens: Mapping[str, str | Iterable[str]] | None = None) -> None:
        self._digests: dict[str, tuple[bytes, ...]] = {}
        for workspace, some in (tokens or {}).items():
            try:
                name = str(UUID(workspace))
            except (ValueError, AttributeError, TypeError) as error:
                raise TokenError(f"tokens are by workspace, and {workspace!r} is no UUID") from error
            listed = [some] if isinstance(some, str) else list(some)
            if not listed:
                raise TokenError(f"workspace {name} has an empty list of tokens")
            self._digests[name] = tuple(_digest(name, token) for token in listed)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def open(self, workspace_id: str, token: str) -> bool:
        """Whether the token is one of the workspace's. Takes as long whether it is or not."""
        given = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        known = self._digests.get(workspace_id, (_NOBODY,))
        found = False
        for digest in known:
            found |= hmac.compare_digest(digest, given)
        return found and workspace_id in self._digests


def read_tokens(path: Path) -> Tokens:
    """Tokens from a JSON file: ``{"<workspace>": "<token>" or ["<token>", ...]}``.

    Raises:
        TokenError: the file cannot be read or is not that.
    """
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TokenError(f"the tokens {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise TokenError(f"the tokens {path} are no JSON: {error}") from error
    fine = isinstance(data, dict) and all(
        isinstance(v, str) or (isinstance(v, list) and all(isinstance(t, str) for t in v))
        for v in data.values()
    )
    if not fine or not data:
        raise TokenError(f'{path} must be {{"<workspace UUID>": "<token>" or ["<token>", ...], ...}}')
    return Tokens(data)


def is_loopback(host: str) -> bool:
    """Whether a host to bind is this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _digest(workspace: str, token: str) -> bytes:
    if _SHA256.fullmatch(token):
        return bytes.fromhex(token.removeprefix("sha256:"))
    if len(token) < _SHORTEST or token.strip() != token:
        raise TokenError(
            f"a token of workspace {workspace} is shorter than {_SHORTEST} characters or has spaces around it"
        )
    return hashlib.sha256(token.encode()).digest()
