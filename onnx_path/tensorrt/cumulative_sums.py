"""Replaces CumSum by a matrix product, for TensorRT. Needs no GPU.

TensorRT 10.6 runs CumSum as a loop, with a few kernels for each number of the axis. The DETRs of Transformers
number the cells of their padding masks so, along both sides of each level.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_path.surgery.graph.traversal import add_constant, attribute, constant
from onnx_path.tensorrt.graph_passes import replace_nodes, take_place

_LONGEST = 1024  # numbers along the axis; the constant has the square of them


def write_out_cumulative_sums(model: ir.Model) -> int:
    """Replaces float32 sums along one of the last two axes by products with a triangle of ones, in place.

    Sums of whole numbers stay exact. Others round in another order, and a non-finite number reaches the whole
    row. Sums of more than 1024 numbers stay, and those of unknown length in fewer than three dimensions: they
    may be sums of all cells. Other lengths that ONNX's shape inference does not find, as behind the paddings
    of a Swin backbone, are computed by nodes, which TensorRT evaluates if its shapes are static.

    Returns:
        The number of nodes that were replaced.
    """
    return replace_nodes(model, "CumSum", _write_out)


def _write_out(node: ir.Node) -> bool:
    x, output = node.inputs[0], node.outputs[0]
    axes = constant(node.inputs[1])
    if x.dtype != ir.DataType.FLOAT or x.shape is None or axes is None:
        return False
    from_end = int(axes.item()) % len(x.shape) - len(x.shape)
    length = x.shape[from_end]
    too_long = length > _LONGEST if isinstance(length, int) else len(x.shape) < 3
    if from_end < -2 or too_long:
        return False
    exclusive, reverse = (bool(attribute(node, name, 0)) for name in ("exclusive", "reverse"))
    lower = reverse != (from_end == -2)  # the triangle of a row has [from, to]
    if isinstance(length, int):
        ones = np.triu(np.ones((length, length), np.float32), int(exclusive))
        triangle = _constant(node, "ones", np.ascontiguousarray(ones.T) if lower else ones)
    else:
        triangle = _computed_triangle(node, len(x.shape) + from_end, exclusive, lower)
    product = ir.node("MatMul", (x, triangle) if from_end == -1 else (triangle, x), name=node.name)
    node.graph.insert_before(node, product)
    take_place(product.outputs[0], output)
    return True


def _computed_triangle(node: ir.Node, axis: int, exclusive: bool, lower: bool) -> ir.Value:
    """Inserts nodes that compute the triangle of ones for an axis of unknown length."""

    def add(op_type: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        added = ir.node(op_type, inputs, attributes)
        node.graph.insert_before(node, added)
        added.outputs[0].name = f"{node.outputs[0].name}_{op_type.lower()}"
        return added.outputs[0]

    zero, one = (_constant(node, str(number), np.array(number)) for number in (0, 1))
    length = add("Gather", add("Shape", node.inputs[0]), _constant(node, "axis", np.array(axis)))
    row = add("Range", zero, length, one)
    sides = add("Reshape", row, _constant(node, "column", np.array([-1, 1]))), row
    inside = add("Less" if exclusive else "LessOrEqual", *(reversed(sides) if lower else sides))
    return add("Cast", inside, to=ir.DataType.FLOAT.value)


def _constant(node: ir.Node, name: str, content: np.ndarray) -> ir.Value:
    return add_constant(node.graph, f"{node.outputs[0].name}_{name}", content)
