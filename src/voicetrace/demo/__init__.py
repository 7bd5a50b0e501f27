# SPDX-License-Identifier: Apache-2.0
"""A whole LiveKit call, offline and in real time, whose truth is known.

`voicetrace.demo.script` holds the recordings and the scenario as data and needs nothing but numpy and
soundfile. `voicetrace.demo.doubles_livekit` and `voicetrace.demo.livekit_call` need the ``livekit`` extra.
"""
