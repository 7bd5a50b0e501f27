# SPDX-License-Identifier: Apache-2.0
"""Puts this folder on the path, for what the tests of several folders share, and fixes what Hypothesis draws.

The same examples every time, so that a change is judged by what it changed. To look for new ones:
``HYPOTHESIS_PROFILE=thorough``; what that finds becomes an ``@example``.
"""

import os

from hypothesis import HealthCheck, settings

_CALM = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
settings.register_profile("ci", max_examples=60, deadline=None, suppress_health_check=_CALM, derandomize=True)
settings.register_profile("thorough", max_examples=5000, deadline=None, suppress_health_check=_CALM)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
