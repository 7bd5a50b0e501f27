# SPDX-License-Identifier: Apache-2.0
"""The REST API: recent judge results as the contract has them, and one call's evidence to listen to.

The application itself is `voicetrace.judge.api.app.create_app`, which needs the ``server`` extra.
"""

from voicetrace.judge.api.auth import TokenError, Tokens, read_tokens
from voicetrace.judge.api.serve import ServeError, serve

__all__ = ["ServeError", "TokenError", "Tokens", "read_tokens", "serve"]
