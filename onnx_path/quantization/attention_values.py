"""Finds the layers whose results MSDA reads as values in int8."""

from __future__ import annotations

import onnx_ir as ir

from onnx_path.nodes.attention import DOMAIN, FUSED_ATTENTION
from onnx_path.quantization.products import Product
from onnx_path.surgery.graph.traversal import attribute, constant, is_op

HEADS = 8, 32
"""Heads, and channels of a head, for which `msda.quantized_fused_attention` has fast kernels."""
LEVELS, POINTS = (3, 4, 5), 4
"""Numbers of levels, and points of each, for which it has them."""
FEWEST_CELLS = 1 << 15
"""Cells of all levels from which values are in int8.

An encoder layer's MSDA takes 135 us in place of 186. A separate kernel, of 32 us, quantises the input of the
layer that gives the values (73,656 cells, H100). Models of fewer cells were not measured.
"""


def attention_values(product: Product) -> tuple[ir.Value, ir.Node] | None:
    """Returns the values that a linear layer gives MSDA, and the Reshape that cuts them in heads.

    Between the layer and the Reshape are a bias and a mask of the padding, if any. Returns None for a layer
    that gives no such values, and where no fast kernel has the sizes or another node reads the values.
    """
    value = product.output
    while (node := _only_reader(value)) is not None and not is_op(node, "Reshape"):
        biases = is_op(node, "Add") and any(constant(x) is not None for x in node.inputs)
        if not biases and not is_op(node, "Mul"):
            return None
        value = node.outputs[0]
    reader = None if node is None else _only_reader(node.outputs[0])
    if reader is None or (reader.domain, reader.op_type) != (DOMAIN, FUSED_ATTENTION):
        return None
    return (value, node) if reader.inputs[0] is node.outputs[0] and _has_kernel(reader) else None


def _only_reader(value: ir.Value) -> ir.Node | None:
    """Returns the node that reads a value, if it is the only one. Others may read its shape."""
    readers = {use.node for use in value.uses() if not is_op(use.node, "Shape")}
    return readers.pop() if len(readers) == 1 and not value.is_graph_output() else None


def _has_kernel(attention: ir.Node) -> bool:
    value, references, logits = (attention.inputs[i].shape for i in (0, 3, 5))
    if value is None or references is None or logits is None:
        return False
    cells, levels = value[1], references[2]
    if not isinstance(cells, int) or cells < FEWEST_CELLS or levels not in LEVELS:
        return False
    points = [POINTS] * levels
    equal = list(attribute(attention, "points_per_level", points)) == points
    return equal and tuple(value[2:]) == HEADS and logits[3] == sum(points)
