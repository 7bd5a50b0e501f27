# SPDX-License-Identifier: Apache-2.0
"""Puts this folder on the path, for what the tests of several folders share."""
