"""What the passes that replace single standard nodes for TensorRT share. Needs no GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
import onnx_ir.passes.common

from onnx_path.surgery.graph.traversal import is_op


def replace_nodes(
    model: onnx.ModelProto, op_type: str, replace: Callable[[ir.Node], bool], folder: Path | None = None
) -> int:
    """Replaces standard nodes of a type in place; returns their number.

    Args:
        model: its main graph. Shapes are inferred first.
        op_type: such as "TopK".
        replace: replaces a node, by `take_place`, and returns whether it did.
        folder: location of weights outside of the model, if `replace` reads weights.
    """
    if not any(node.op_type == op_type for node in model.graph.node):
        return 0
    changed = ir.from_proto(model)
    if folder is not None:
        ir.external_data.set_base_dir(changed.graph, folder)
    ir.passes.common.ShapeInferencePass()(changed)
    count = sum(replace(node) for node in list(changed.graph) if is_op(node, op_type))
    if count:
        ir.passes.common.RemoveUnusedNodesPass()(changed)
        model.CopyFrom(ir.to_proto(changed))
    return count


def take_place(result: ir.Value, output: ir.Value) -> None:
    """Gives an output's name, type, shape and readers to another value, and removes the output's node."""
    node = output.producer()
    result.name, result.type, result.shape = output.name, output.type, output.shape
    ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
    output.name = f"{output.name}/replaced"
    node.graph.remove(node, safe=True)
