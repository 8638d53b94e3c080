"""Replaces CumSum by a matrix product, for TensorRT. Needs no GPU.

TensorRT 10.6 runs CumSum as a loop, with a few kernels for each number of the axis. The DETRs of Transformers
number the cells of their padding masks so, along both sides of each level.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common

from onnx_path.surgery.graph.traversal import attribute, constant, is_op

_LONGEST = 1024  # numbers along the axis; the constant has the square of them


def write_out_cumulative_sums(model: onnx.ModelProto) -> int:
    """Replaces float32 sums along one of the last two axes by products with a triangle of ones, in place.

    Sums of whole numbers stay exact. Others round in another order, and a non-finite number reaches the whole
    row. Sums along an axis of unknown length, or of more than 1024 numbers, stay.

    Returns:
        The number of nodes that were replaced.
    """
    if not any(node.op_type == "CumSum" for node in model.graph.node):
        return 0
    changed = ir.from_proto(model)
    ir.passes.common.ShapeInferencePass()(changed)
    count = sum(_write_out(node) for node in list(changed.graph) if is_op(node, "CumSum"))
    if count:
        ir.passes.common.RemoveUnusedNodesPass()(changed)
        model.CopyFrom(ir.to_proto(changed))
    return count


def _write_out(node: ir.Node) -> bool:
    x, output = node.inputs[0], node.outputs[0]
    axes = constant(node.inputs[1])
    if x.dtype != ir.DataType.FLOAT or x.shape is None or axes is None:
        return False
    from_end = int(axes.item()) % len(x.shape) - len(x.shape)
    length = x.shape[from_end]
    if from_end < -2 or not isinstance(length, int) or length > _LONGEST:
        return False
    exclusive, reverse = (bool(attribute(node, name, 0)) for name in ("exclusive", "reverse"))
    ones = np.triu(np.ones((length, length), np.float32), int(exclusive))  # [from, to] of a row
    if reverse != (from_end == -2):
        ones = np.ascontiguousarray(ones.T)
    triangle = ir.val(f"{output.name}_ones", const_value=ir.tensor(ones))
    node.graph.register_initializer(triangle)
    product = ir.node("MatMul", (x, triangle) if from_end == -1 else (triangle, x), name=node.name)
    result = product.outputs[0]
    result.name, result.type, result.shape = output.name, output.type, output.shape
    node.graph.insert_before(node, product)
    ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
    node.graph.remove(node, safe=True)
    return True
