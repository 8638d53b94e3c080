"""Replaces TopK of long rows by nodes `TopKIndices`, for TensorRT. Needs no GPU.

TensorRT 10.6 searches a row with one thread block, which takes several times as long as the plugin.
"""

from __future__ import annotations

import onnx_ir as ir

from onnx_path.nodes.domain import DOMAIN, PLUGIN_ATTRIBUTES
from onnx_path.nodes.top_k_indices import TOP_K_INDICES
from onnx_path.surgery.graph.traversal import attribute, constant
from onnx_path.tensorrt.graph_passes import replace_nodes, take_place

_SHORTEST = 8192  # numbers of a row
_MOST = 1024  # numbers to find, for which the plugin has a fast kernel


def replace_top_k(model: ir.Model) -> int:
    """Replaces searches for the largest float32 numbers of rows whose values nothing reads, in place.

    The rows have a static length of 8192 or more, and are searched for up to 1024 numbers. A model without
    other plugins of ours stays: its engines need no library.

    Returns:
        The number of nodes that were replaced.
    """
    has_plugins = any(node.domain == DOMAIN for node in model.graph)
    return replace_nodes(model, "TopK", _replace) if has_plugins else 0


def _replace(node: ir.Node) -> bool:
    x, (values, indices), numbers = node.inputs[0], node.outputs, constant(node.inputs[1])
    if values.uses() or values.is_graph_output() or not attribute(node, "largest", 1):
        return False
    if x.dtype != ir.DataType.FLOAT or x.shape is None or len(x.shape) != 2 or numbers is None:
        return False
    size, count = x.shape[1], int(numbers.item())
    if attribute(node, "axis", -1) % 2 != 1 or not isinstance(size, int) or size < _SHORTEST or count > _MOST:
        return False
    made = ir.node(
        TOP_K_INDICES,
        [x],
        {"count": count} | PLUGIN_ATTRIBUTES,
        domain=DOMAIN,
        name=f"{node.name}/{TOP_K_INDICES}",
    )
    made.outputs[0].name = f"{indices.name}/int32"
    cast = ir.node("Cast", made.outputs, {"to": ir.DataType.INT64.value}, name=f"{node.name}/Cast")
    node.graph.insert_before(node, [made, cast])
    take_place(cast.outputs[0], indices)
    return True
