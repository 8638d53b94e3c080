"""Replaces the feed-forward blocks of post-norm transformers in 16 bits by nodes `FeedForward`.

A block is

    x -> Linear with a ReLU -> Linear that adds x and normalises -> y

The pass runs before `onnx_path.tensorrt.written_out_linears`, which writes out the first layer.
"""

from __future__ import annotations

import posixpath

import onnx_ir as ir

from onnx_path.nodes.domain import PLUGIN_ATTRIBUTES
from onnx_path.nodes.linear import ACTIVATIONS, EPS
from onnx_path.opset import opset_of
from onnx_path.quantization.qdq_nodes import SIXTEEN_BITS
from onnx_path.surgery.graph.element_types import LINEARS, Types
from onnx_path.surgery.graph.traversal import attribute
from onnx_path.tensorrt.graph_passes import take_place
from trt_plugin import library
from trt_plugin.engine_error import EngineError
from trt_plugin.library import FEED_FORWARD, LINEAR


def fuse_feed_forwards(model: ir.Model) -> int:
    """Replaces the blocks that a kernel runs fast on the current GPU, in place; returns their number.

    Args:
        model: in the types that TensorRT gets.
    """
    if not any((node.domain, node.op_type) in LINEARS for node in model.graph):
        return 0
    types = Types(model.graph, opset_of(model))
    count = 0
    for second in list(model.graph):
        first = _first_layer(second)
        if first is not None and types.of[second.inputs[0]] in SIXTEEN_BITS and _is_fast(first, second):
            _replace(first, second)
            count += 1
    return count


def _first_layer(second: ir.Node) -> ir.Node | None:
    """Returns the first layer of the block that ends with a node."""
    if not _is_layer(second, "none", add_residual=1, normalise=1):
        return None
    hidden = second.inputs[0]
    first = hidden.producer()
    fits = _is_layer(first, "relu", add_residual=0, normalise=0) and second.inputs[3] is first.inputs[0]
    return first if fits and len(hidden.uses()) == 1 and not hidden.is_graph_output() else None


def _is_layer(node: ir.Node | None, activation: str, **switches: int) -> bool:
    if node is None or (node.domain, node.op_type) not in LINEARS:
        return False
    switches |= {"activation": ACTIVATIONS.index(activation), "multiply_mask": 0}
    return all(attribute(node, name, 0) == number for name, number in switches.items())


def _is_fast(first: ir.Node, second: ir.Node) -> bool:
    """Returns whether the plugin has a fast kernel for a block on the current GPU."""
    shape, weight = second.outputs[0].shape, first.inputs[1].shape
    if shape is None or weight is None:
        return False
    *sizes, channels = shape
    try:
        rows = library.rows_of_layer(sizes)
        return library.has_fast_feed_forward(rows, channels, weight[0])
    except EngineError:
        return False  # no TensorRT, so no build follows


def _replace(first: ir.Node, second: ir.Node) -> None:
    module, own_name = posixpath.split(first.name or "")
    place = own_name.removeprefix(LINEAR)  # such as "_1", of the second node of a module
    made = ir.node(
        FEED_FORWARD,
        [*first.inputs[:3], *second.inputs[1:3], *second.inputs[5:7]],
        {"eps": attribute(second, "eps", EPS)} | PLUGIN_ATTRIBUTES,
        domain=first.domain,
        name=posixpath.join(posixpath.dirname(module), FEED_FORWARD) + place,
    )
    second.graph.insert_before(second, made)
    take_place(made.outputs[0], second.outputs[0])
    first.graph.remove(first, safe=True)
