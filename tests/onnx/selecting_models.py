"""Two small models that select by TopK and by a threshold, from scores with a rounding or a fault."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")

from onnx.helper import make_node  # noqa: E402
from onnx.helper import make_tensor_value_info as make_tensor  # noqa: E402

SCORES = np.float32([[1, 1 + 2**-22, 0.5, 3, 2, -1]])
PAYLOAD = np.float32([[5, 1], [-3, 2], [7, 7], [0, 4], [9, -9], [2, 2]])


def selecting(change: float, indices: str = "indices") -> onnx.ModelProto:
    """Picks rows by the four best of six scores, the first of which is changed: as a rounding, or a fault."""
    constants = {
        "change": np.float32([[change, 0, 0, 0, 0, 0]]),
        "four": np.int64([4]),
        "payload": PAYLOAD,
        "rows": np.int64([-1]),
    }
    nodes = [
        make_node("Add", ["x", "change"], ["scores"]),
        make_node("TopK", ["scores", "four"], ["best", indices], name="select"),
    ]
    outputs = [make_tensor("best", onnx.TensorProto.FLOAT, [1, 4])]
    if indices:
        nodes += [
            make_node("Reshape", [indices, "rows"], ["flat"]),
            make_node("Gather", ["payload", "flat"], ["picked"]),
        ]
        outputs.append(make_tensor("picked", onnx.TensorProto.FLOAT, [4, 2]))
    return _model(nodes, outputs, constants)


def masking(change: float, op_type: str = "Less") -> onnx.ModelProto:
    """Adds up the rows whose score is on one side of 0.5; the scores are changed: a rounding, or a fault."""
    constants = {"change": np.float32(change), "half": np.float32(0.5), "payload": PAYLOAD}
    nodes = [
        make_node("Add", ["x", "change"], ["scores"]),
        make_node(op_type, ["scores", "half"], ["mask"], name="mask"),
        make_node("Cast", ["mask"], ["weights"], to=onnx.TensorProto.FLOAT),
        make_node("MatMul", ["weights", "payload"], ["sum"]),
        make_node("Shape", ["x"], ["size"]),
        make_node("Less", ["size", "size"], ["smaller"]),  # which sizes alone decide
    ]
    return _model(nodes, [make_tensor("sum", onnx.TensorProto.FLOAT, [1, 2])], constants)


def _model(
    nodes: list[onnx.NodeProto], outputs: list[onnx.ValueInfoProto], constants: dict[str, np.ndarray]
) -> onnx.ModelProto:
    graph = onnx.helper.make_graph(
        nodes,
        "selections",
        [make_tensor("x", onnx.TensorProto.FLOAT, [1, 6])],
        outputs,
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
