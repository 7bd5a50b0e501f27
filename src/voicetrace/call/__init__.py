# SPDX-License-Identifier: Apache-2.0
"""The pure fold from events to messages. No I/O, no clock, no OpenTelemetry, no framework.

The same events give the same messages, live or read back from a journal. The fold never raises for what
a framework did (late, doubled, lost or absurd facts become warnings and absent fields); it raises only
when `strict` and its own rules are broken, which is a bug here and fails in tests.

`recorder` takes each event to the part it concerns: `user` (turns and their items), `speech` (what the
assistant said and what played of it), `steps` (which messages an LLM step read and wrote), `recording` (where
they lie in the audio). The parts work on `drafts` in one `book`, which owns ids and order; `snapshots` writes
what they became.

Not thread-safe: one owner applies the events of one call, in the order in which they were journalled.
"""

from voicetrace.call.recorder import CallRecorder, Change, ContractError, fold

__all__ = ["CallRecorder", "Change", "ContractError", "fold"]
