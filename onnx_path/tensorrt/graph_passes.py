"""What the passes that change a graph for TensorRT share. Needs no GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir
import onnx_ir.passes.common

from onnx_path.quantization.qdq_nodes import scale_of, zero_type
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


def take_place(result: ir.Value, *outputs: ir.Value) -> None:
    """Gives the readers of equal outputs to another value, and removes their nodes.

    Args:
        result: gets name, type and shape of the first output.
        outputs: of nodes with a single output.
    """
    first = outputs[0]
    result.name, result.type, result.shape = first.name, first.type, first.shape
    for output in outputs:
        ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
        output.name = f"{output.name}/replaced"
        output.producer().graph.remove(output.producer(), safe=True)


def scale_of_int8(node: ir.Node | None) -> float | None:
    """Returns the scale of a QuantizeLinear that makes int8 of a whole tensor; None for other nodes."""
    if not is_op(node, "QuantizeLinear") or zero_type(node) != ir.DataType.INT8:
        return None
    scale = scale_of(node)
    return None if scale is None or scale.ndim else float(scale)


def take_both_places(made: ir.Node, output: ir.Value, quantisers: Sequence[ir.Node]) -> None:
    """Lets a node give a result, and the same in int8 in place of the QuantizeLinear nodes behind it.

    Args:
        made: has a second output if there are quantisers.
        output: a node's only output, which the first one replaces.
        quantisers: `int8_readers` of it.
    """
    take_place(made.outputs[0], output)
    if quantisers:
        result = made.outputs[1]
        take_place(result, *(node.outputs[0] for node in quantisers))
        result.type, result.shape = ir.TensorType(ir.DataType.INT8), made.outputs[0].shape


def int8_readers(value: ir.Value) -> list[ir.Node]:
    """Returns the QuantizeLinear nodes that make int8 of a value with one scale, that of the first."""
    readers = [use.node for use in value.uses()]
    scales = [scale for scale in map(scale_of_int8, readers) if scale is not None]
    return [reader for reader in readers if scales and scale_of_int8(reader) == scales[0]]
