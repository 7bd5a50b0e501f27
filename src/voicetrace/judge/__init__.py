# SPDX-License-Identifier: Apache-2.0
"""The Voice Judge: ten audio dimensions per call, with evidence one can press play on."""
