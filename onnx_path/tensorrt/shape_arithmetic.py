"""Removes shape arithmetic from an exported file with dynamic sizes. Needs no GPU.

The exporter computes every size of every Reshape by nodes of its own. Most sizes can stand in a constant
shape: 0 copies the size of the same dimension, and one size may be -1.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from codetr.export.constant_reshape import constant_reshape
from onnx_path.surgery.graph.traversal import add_constant


def remove_shape_arithmetic(model: ir.Model) -> None:
    """Gives reshapes constant shapes where one exists, and merges equal nodes, in place.

    The model comes from PyTorch's exporter, with the shape of every tensor.
    """
    from onnx_ir.convenience import get_const_tensor
    from onnx_ir.passes.common import CommonSubexpressionEliminationPass, RemoveUnusedNodesPass

    constants: dict[tuple[int, ...], ir.Value] = {}
    for node in model.graph:
        if node.op_type != "Reshape" or node.domain or get_const_tensor(node.inputs[1]) is not None:
            continue
        target = _constant_shape(node.inputs[0].shape, node.outputs[0].shape)
        if target is None:
            continue
        if target not in constants:
            name = "reshape_to_" + "_".join(map(str, target)).replace("-", "m")
            constants[target] = add_constant(model.graph, name, np.array(target, dtype=np.int64))
        node.replace_input_with(1, constants[target])
        node.attributes.pop("allowzero", None)
    CommonSubexpressionEliminationPass()(model)
    RemoveUnusedNodesPass()(model)


def _constant_shape(before: ir.Shape | None, after: ir.Shape | None) -> tuple[int, ...] | None:
    """Returns `constant_reshape` for two shapes; None if one of them is unknown."""
    if before is None or after is None:
        return None
    stays = [
        axis < len(before) and not isinstance(size, int) and size.value is not None and before[axis] == size
        for axis, size in enumerate(after)
    ]
    return constant_reshape([size if isinstance(size, int) else None for size in after], stays)
