# SPDX-License-Identifier: Apache-2.0
"""What listens: small models behind one registry, each of which may be missing.

A provider that is missing makes the dimensions that need it null with a reason; it is never a guess. Every
judgement records the digest of every weight file that was used (`Providers.digests`).
"""

from voicetrace.judge.providers.registry import NAMES, ProviderError, Providers
from voicetrace.judge.providers.weights import WeightsError

__all__ = ["NAMES", "ProviderError", "Providers", "WeightsError"]
