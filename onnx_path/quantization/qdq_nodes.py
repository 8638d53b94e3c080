"""Questions about QuantizeLinear and DequantizeLinear nodes of an onnx_ir graph."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_path.surgery.graph.traversal import attribute, constant

EIGHT_BITS = {ir.DataType.INT8: "int8", ir.DataType.FLOAT8E4M3FN: "fp8"}
SIXTEEN_BITS = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def scale_of(node: ir.Node) -> np.ndarray | None:
    """Returns the constant scale of a node without blocks and zero point, as float32."""
    scale = constant(node.inputs[1])
    zero = constant(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else np.zeros(1)
    if scale is None or zero is None or scale.ndim > 1 or attribute(node, "block_size", 0):
        return None
    return None if zero.astype(np.float32).any() else scale.astype(np.float32)


def zero_type(node: ir.Node) -> ir.DataType | None:
    """Returns the type of a node's zero point, that of the numbers in 8 bits; None if it has none."""
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return None
    zero = constant(node.inputs[2])
    return None if zero is None else ir.DataType.from_numpy(zero.dtype)
