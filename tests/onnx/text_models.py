"""Small ONNX models from onnx's text form."""

from __future__ import annotations

import numpy as np
import onnx


def text_model(
    body: str, inputs: str, outputs: str, opset: int = 18, *, domains: str = "", **constants: np.ndarray
) -> onnx.ModelProto:
    """Returns a model of nodes in text form, such as "h = MatMul(x, W) y = Relu(h)".

    Args:
        body: the nodes. `[name]` before a node is its name.
        inputs, outputs: such as "float[N, 3] x".
        domains: further domains, separated by spaces, of version 1.
        constants: arrays of the initializers.
    """
    imports = "".join(f', "{domain}" : 1' for domain in domains.split())
    text = f'<ir_version: 10, opset_import: ["" : {opset}{imports}]> g ({inputs}) => ({outputs}) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(x, name) for name, x in constants.items())
    return model
