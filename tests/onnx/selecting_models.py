"""Two small models that select by TopK and by a threshold, from scores with a rounding or a fault."""

from __future__ import annotations

import numpy as np
import onnx

from tests.onnx.text_models import text_model

SCORES = np.float32([[1, 1 + 2**-22, 0.5, 3, 2, -1]])
PAYLOAD = np.float32([[5, 1], [-3, 2], [7, 7], [0, 4], [9, -9], [2, 2]])


def selecting(change: float, indices: str = "indices") -> onnx.ModelProto:
    """Returns a model that gathers rows by the four best of six scores, the first of which is changed."""
    constants = {"change": np.float32([[change, 0, 0, 0, 0, 0]]), "four": np.int64([4])}
    body = f"scores = Add(x, change) [select] best, {indices} = TopK(scores, four)"
    outputs = "float[1, 4] best"
    if indices:
        body += " flat = Reshape(indices, rows) picked = Gather(payload, flat)"
        outputs += ", float[4, 2] picked"
        constants |= {"payload": PAYLOAD, "rows": np.int64([-1])}
    return text_model(body, "float[1, 6] x", outputs, 17, **constants)


def masking(change: float) -> onnx.ModelProto:
    """Returns a model that sums the rows whose score is below 0.5. `change` is added to all scores.

    Sizes alone decide its second comparison.
    """
    body = """scores = Add(x, change) [mask] mask = Less(scores, half) weights = Cast<to = 1>(mask)
        sum = MatMul(weights, payload) size = Shape(x) smaller = Less(size, size)"""
    constants = {"change": np.float32(change), "half": np.float32(0.5), "payload": PAYLOAD}
    return text_model(body, "float[1, 6] x", "float[1, 2] sum", 17, **constants)
