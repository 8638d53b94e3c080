"""What the passes that change a graph for TensorRT share. Needs no GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
import onnx_ir.passes.common

from onnx_path.surgery.graph.traversal import is_op


def run_passes(model: onnx.ModelProto, folder: Path, *passes: Callable[[ir.Model], int]) -> int:
    """Runs passes over a model, in place; returns the number of their changes.

    Args:
        model: stays as it is if no pass changes it.
        folder: location of weights outside of the model.
        passes: change the main graph of a model in place, and return the number of their changes.
    """
    changed = ir.from_proto(model)
    ir.external_data.set_base_dir(changed.graph, folder)
    count = sum(run(changed) for run in passes)
    if count:
        model.CopyFrom(ir.to_proto(changed))
    return count


def replace_nodes(model: ir.Model, op_type: str, replace: Callable[[ir.Node], bool]) -> int:
    """Replaces standard nodes of a type in place; returns their number.

    Args:
        model: its main graph. Shapes are inferred first.
        op_type: such as "TopK".
        replace: replaces a node, by `take_place`, and returns whether it did.
    """
    nodes = [node for node in model.graph if is_op(node, op_type)]
    if nodes:
        ir.passes.common.ShapeInferencePass()(model)
    count = sum(map(replace, nodes))
    if count:
        ir.passes.common.RemoveUnusedNodesPass()(model)
    return count


def take_place(result: ir.Value, output: ir.Value) -> None:
    """Gives an output's name, type, shape and readers to another value, and removes the output's node."""
    node = output.producer()
    result.name, result.type, result.shape = output.name, output.type, output.shape
    ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
    output.name = f"{output.name}/replaced"
    node.graph.remove(node, safe=True)
