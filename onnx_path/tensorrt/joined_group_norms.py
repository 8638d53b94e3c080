"""Replaces the GroupNorm nodes of a pyramid by one node `GroupNormLevels`, for TensorRT. Needs no GPU.

Before:

    map of a convolution -> Transpose -> Reshape -> GroupNorm -> Concat -> x
    cells of a linear layer -> GroupNorm -> the same Concat

Behind: one node reads maps and cells, and gives x. TensorRT keeps the maps of convolutions with channels
innermost, as the plugin reads them, so that nothing is moved. If a QuantizeLinear makes int8 of x, the node
gives its result too.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from msda.checks import MAX_NORM_LEVELS
from onnx_path.nodes.domain import DOMAIN, PLUGIN_ATTRIBUTES
from onnx_path.opset import opset_of
from onnx_path.surgery.graph.element_types import GROUP_NORMS, Types
from onnx_path.surgery.graph.traversal import attribute, is_op
from onnx_path.tensorrt.graph_passes import int8_readers, scale_of_int8, take_both_places
from trt_plugin.library import GROUP_NORM, GROUP_NORM_LEVELS

_VECTOR = 8  # channels; TensorRT fills the cells of other maps


def join_group_norms(model: ir.Model) -> int:
    """Replaces the nodes whose results one Concat joins, and others that read a map; returns their number.

    Args:
        model: in the types that TensorRT gets, changed in place.
    """
    norms = [node for node in model.graph if (node.domain, node.op_type) in GROUP_NORMS]
    if not norms:
        return 0
    ir.passes.common.ShapeInferencePass()(model)
    types = Types(model.graph, opset_of(model))
    groups = [group for group in _joined(model.graph) if _are_alike(group, types)]
    together = {node for group in groups for node in group}
    groups += [[node] for node in norms if node not in together and _map_of(node) is not None]
    for group in groups:
        _replace(group, join=group[0] in together)
    if groups:
        ir.passes.common.RemoveUnusedNodesPass()(model)
    return sum(map(len, groups))


def _joined(graph: ir.Graph) -> Iterator[list[ir.Node]]:
    """Yields the GroupNorm nodes before a Concat of cells, where these are all of its inputs."""
    for concat in graph:
        if not is_op(concat, "Concat") or attribute(concat, "axis", 0) not in (1, -2):
            continue
        norms = [value.producer() for value in concat.inputs]
        if all(node is not None and (node.domain, node.op_type) in GROUP_NORMS for node in norms):
            yield norms


def _are_alike(norms: Sequence[ir.Node], types: Types) -> bool:
    """Returns whether one node can take the place of several, whose results have a single reader."""
    if len(norms) > MAX_NORM_LEVELS or len(set(norms)) < len(norms):
        return False
    kinds = set()
    for node in norms:
        result, (x, weight) = node.outputs[0], node.inputs[:2]
        is_cells = x.shape is not None and len(x.shape) == 3
        if not is_cells or len(result.uses()) != 1 or result.is_graph_output() or weight.shape is None:
            return False
        numbers = attribute(node, "num_groups", None), attribute(node, "eps", None)
        kinds.add((*numbers, weight.shape[0], types.of.get(weight)))
    return len(kinds) == 1


def _map_of(node: ir.Node) -> ir.Value | None:
    """Returns the map [N, C, H, W] of a convolution, of which a GroupNorm reads the cells [N, S, C]."""
    cells = node.inputs[0]
    move = _sole_producer(cells, "Reshape")
    transposition = move and _sole_producer(move.inputs[0], "Transpose")
    if transposition is None or list(attribute(transposition, "perm", ())) != [0, 2, 3, 1]:
        return None
    source = transposition.inputs[0]
    shape, channels = cells.shape, node.inputs[1].shape
    if shape is None or channels is None or len(shape) != 3 or not is_op(source.producer(), "Conv"):
        return None
    # With N and C in their places, the Reshape joins rows and columns.
    same = source.shape is not None and shape[0] == source.shape[0] and shape[2] == channels[0]
    return source if same and channels[0] % _VECTOR == 0 else None


def _sole_producer(value: ir.Value, op_type: str) -> ir.Node | None:
    """Returns the node that gives a value to one reader alone, if it has a type."""
    node = value.producer()
    sole = len(value.uses()) == 1 and not value.is_graph_output()
    return node if sole and is_op(node, op_type) else None


def _replace(norms: Sequence[ir.Node], join: bool) -> None:
    last = norms[-1].outputs[0].uses()[0].node if join else norms[0]
    output = last.outputs[0]
    quantisers = int8_readers(output)
    tensors = []
    for node in norms:
        source = _map_of(node)
        tensors += [node.inputs[0] if source is None else source, *node.inputs[1:]]
    attributes = {
        "num_levels": len(norms),
        "num_groups": attribute(norms[0], "num_groups", None),
        "eps": attribute(norms[0], "eps", None),
        "next_scale": scale_of_int8(quantisers[0]) if quantisers else 0.0,
    }
    module, own_name = posixpath.split(norms[0].name or "")
    place = own_name.removeprefix(GROUP_NORM)  # such as "_1", of the second node of a module
    made = ir.node(
        GROUP_NORM_LEVELS,
        tensors,
        attributes | PLUGIN_ATTRIBUTES,
        domain=DOMAIN,
        num_outputs=2 if quantisers else 1,
        name=posixpath.join(module, GROUP_NORM_LEVELS) + place,
    )
    last.graph.insert_before(last, made)
    take_both_places(made, output, quantisers)
