# SPDX-License-Identifier: Apache-2.0
"""Adapters: each turns one framework's hooks into `voicetrace.events`, and nothing else."""
