# SPDX-License-Identifier: Apache-2.0
"""Pipecat under scripted calls: the real pipeline, on virtual time."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Iterator

import pytest

# this folder is called like the package, and is no substitute for it
if importlib.util.find_spec("pipecat.pipeline") is None:
    collect_ignore_glob = ["*"]
else:
    with warnings.catch_warnings():
        # its own, once: it imports `audioop`, and subclasses a class of its own that it has deprecated
        warnings.simplefilter("ignore", DeprecationWarning)
        import pipecat.services.tts_service  # noqa: F401


@pytest.fixture(autouse=True)
def _no_leftovers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No switch of the developer's own environment reaches a test, and Pipecat's log stays off the screen."""
    for name in (
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "PIPECAT_SETUP_FILES",
        "PIPECAT_LOG_LLM_CONTEXT",
        "VOICETRACE_DIR",
    ):
        monkeypatch.delenv(name, raising=False)
    from loguru import logger

    logger.remove()
    yield
    logger.remove()
    logger.add(sys.stderr)
