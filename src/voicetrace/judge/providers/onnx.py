# SPDX-License-Identifier: Apache-2.0
"""ONNX models run the same way everywhere: on the CPU, on one thread: the same bytes, the same score."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def session(path: Path) -> Any:
    """An inference session of one thread; a pool of processes is what uses more cores."""
    import onnxruntime  # type: ignore[import-not-found,import-untyped,unused-ignore]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
