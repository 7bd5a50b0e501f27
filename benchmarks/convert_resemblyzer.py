# SPDX-License-Identifier: Apache-2.0
"""Makes the speaker encoder that voicetrace ships from Resemblyzer's checkpoint, without torch.

    pip download --no-deps resemblyzer==0.1.4 && unzip -o Resemblyzer-0.1.4-*.whl resemblyzer/pretrained.pt
    python benchmarks/convert_resemblyzer.py resemblyzer/pretrained.pt OUT.onnx    # needs onnx

The three LSTM layers and the projection become one ONNX graph: mel pieces ``(pieces, 160, 40)`` in, unit
vectors ``(pieces, 256)`` out. Matrices are 8-bit integers with a scale per row and block of columns, but
for the first layer's, whose range is too wide for that: they are 16-bit floats.
"""

from __future__ import annotations

import collections
import hashlib
import pickle
import struct
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHECKPOINT = "39373b86598fa3da9fcddee6142382efe09777e8d37dc9c0561f41f0070f134e"
HIDDEN, BANDS, FRAMES = 256, 40, 160


class Checkpoint(pickle.Unpickler):
    """Torch's legacy format: names stay names, a tensor becomes (storage, offset, shape)."""

    def find_class(self, module, name):
        if name == "_rebuild_tensor_v2":
            return lambda storage, offset, shape, *_: (storage[2], offset, shape)
        return collections.OrderedDict if name == "OrderedDict" else name

    def persistent_load(self, pid):
        return pid


def read(path):
    """The parameters by name, as float32 arrays."""
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != CHECKPOINT:
        raise SystemExit(f"{path} is not Resemblyzer 0.1.4's checkpoint")
    with path.open("rb") as file:
        for _ in range(3):
            pickle.Unpickler(file).load()
        tree = Checkpoint(file).load()
        at = {}
        for key in pickle.Unpickler(file).load():
            size = struct.unpack("<q", file.read(8))[0]
            at[key] = file.tell()
            file.seek(4 * size, 1)
    state = tree["model_state"]
    return {
        name: np.frombuffer(data, "<f4", int(np.prod(shape)), at[key] + 4 * offset).reshape(shape)
        for name, (key, offset, shape) in state.items()
    }


class Graph:
    def __init__(self):
        self.nodes, self.constants = [], []

    def constant(self, name, value):
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(self, kind, inputs, output, **attributes):
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def weight(self, name, value, half):
        """A matrix, stored small, that is float32 when the graph runs."""
        if half:
            return self.node("Cast", [self.constant(name + ".half", value.astype(np.float16))], name, to=1)
        block = 64
        rows, columns = value.shape
        blocks = value.reshape(rows, columns // block, block)
        scale = np.abs(blocks).max(axis=2, keepdims=True) / 127
        small = np.round(blocks / scale).astype(np.int8)
        self.constant(name + ".small", small)
        self.constant(name + ".scale", scale.astype(np.float32))
        self.node("Cast", [name + ".small"], name + ".cast", to=1)
        self.node("Mul", [name + ".cast", name + ".scale"], name + ".blocks")
        self.constant(name + ".shape", np.array([rows, columns], np.int64))
        return self.node("Reshape", [name + ".blocks", name + ".shape"], name)


def gates(value):
    """Torch orders the gates i, f, g, o; ONNX orders them i, o, f, c."""
    i, f, g, o = np.split(value, 4)
    return np.concatenate([i, o, f, g])


def build(w):
    g = Graph()
    g.constant("axis0", np.array([0], np.int64))
    signal = g.node("Transpose", ["mel"], "frames_first", perm=[1, 0, 2])
    for layer in range(3):
        n = f"l{layer}"
        into = g.weight(n + ".ih", gates(w[f"lstm.weight_ih_{n}"]), layer == 0)
        back = g.weight(n + ".hh", gates(w[f"lstm.weight_hh_{n}"]), layer == 0)
        bias = np.concatenate([gates(w[f"lstm.bias_ih_{n}"]), gates(w[f"lstm.bias_hh_{n}"])])
        g.node("Unsqueeze", [into, "axis0"], n + ".W")
        g.node("Unsqueeze", [back, "axis0"], n + ".R")
        g.constant(n + ".B", bias[None])
        g.nodes.append(
            helper.make_node(
                "LSTM",
                [signal, n + ".W", n + ".R", n + ".B"],
                [n + ".Y", n + ".last"],
                hidden_size=HIDDEN,
                name=n,
            )
        )
        g.constant(n + ".axis", np.array([1], np.int64))
        signal = g.node("Squeeze", [n + ".Y", n + ".axis"], n + ".out")
    last = g.node("Squeeze", ["l2.last", "axis0"], "last")
    g.weight("linear.w", w["linear.weight"], False)
    g.constant("linear.b", w["linear.bias"])
    g.node("Gemm", [last, "linear.w", "linear.b"], "raw", transB=1)
    g.node("Relu", ["raw"], "positive")
    g.node("LpNormalization", ["positive"], "embedding", axis=1, p=2)
    graph = helper.make_graph(
        g.nodes,
        "resemblyzer-ge2e",
        [helper.make_tensor_value_info("mel", TensorProto.FLOAT, ["pieces", FRAMES, BANDS])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["pieces", HIDDEN])],
        g.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.doc_string = "Resemblyzer 0.1.4 (Resemble AI, Apache-2.0), parameters quantised; see NOTICE.md"
    onnx.checker.check_model(model)
    return model.SerializeToString()


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_bytes(build(read(source)))
    print(target, target.stat().st_size, hashlib.sha256(target.read_bytes()).hexdigest())
