# SPDX-License-Identifier: Apache-2.0
"""From a call to numbers: `extract` reads messages and audio once; scoring needs nothing else.

A `CallFeatures` is JSON (`to_json`, `from_json`): kept beside the scores, it lets a changed rubric score a
call again without its audio.
"""

from voicetrace.judge.features.extract import extract
from voicetrace.judge.features.table import AgentTurn, CallFeatures, Exchange, Overlap, Pause, Turn

__all__ = ["AgentTurn", "CallFeatures", "Exchange", "Overlap", "Pause", "Turn", "extract"]
