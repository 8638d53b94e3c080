"""Replaces the feed-forward blocks of post-norm transformers in int8 by nodes `QuantizedFeedForward`.

A block is

    x -> QuantizeLinear -> QuantizedLinear with a ReLU and a result in int8
      -> QuantizedLinear that adds x -> LayerNormalization -> y

If a QuantizeLinear reads y, the node gives its result too.

The pass runs behind `onnx_path.tensorrt.fused_quantized_linears`. It knows the nodes by what they compute,
not by names.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from onnx_path.nodes.domain import DOMAIN, PLUGIN_ATTRIBUTES
from onnx_path.nodes.linear import ACTIVATIONS
from onnx_path.surgery.graph.traversal import attribute
from onnx_path.tensorrt.fused_quantized_layer_norms import type_of_norm
from onnx_path.tensorrt.graph_passes import int8_readers, scale_of_int8, take_both_places
from trt_plugin import library
from trt_plugin.library import QUANTIZED_FEED_FORWARD, QUANTIZED_LINEAR


@dataclass(frozen=True, eq=False)
class _Block:
    quantiser: ir.Node
    first: ir.Node
    second: ir.Node
    norm: ir.Node
    next_quantisers: list[ir.Node]  # of y, with one scale

    @property
    def x(self) -> ir.Value:
        return self.quantiser.inputs[0]


def fuse_quantized_feed_forwards(graph: ir.Graph, is_fast: Callable[[int, int, int], bool]) -> int:
    """Replaces the blocks of a main graph, in place; returns their number.

    Args:
        graph: behind `fuse_layers`.
        is_fast: tells whether a kernel runs a block of M rows, C channels and H hidden numbers fast.
    """
    count = 0
    for node in list(graph):
        block = _block(node)
        if block is None:
            continue
        *sizes, channels = block.second.outputs[0].shape
        rows, hidden = library.rows_of_layer(sizes), block.first.inputs[1].shape[0]
        if is_fast(rows, channels, hidden):
            _replace(block)
            count += 1
    return count


def _block(norm: ir.Node) -> _Block | None:
    """Returns the block that ends with a LayerNormalization."""
    dtype = type_of_norm(norm)
    if dtype is None:
        return None
    second = _layer(norm.inputs[0], "none", add_residual=1)
    first = second and _layer(second.inputs[0], "relu", add_residual=0)
    quantiser = first and first.inputs[0].producer()
    if scale_of_int8(quantiser) is None or dtype != second.outputs[0].dtype:
        return None
    if second.inputs[4] is not quantiser.inputs[0]:
        return None
    return _Block(quantiser, first, second, norm, int8_readers(norm.outputs[0]))


def _layer(value: ir.Value, activation: str, add_residual: int) -> ir.Node | None:
    """Returns the node `QuantizedLinear` of a value with a single reader, if it has these switches."""
    node = value.producer()
    if node is None or (node.domain, node.op_type) != (DOMAIN, QUANTIZED_LINEAR):
        return None
    switches = {
        "activation": ACTIVATIONS.index(activation),
        "add_residual": add_residual,
        "multiply_mask": 0,
    }
    fits = all(attribute(node, name, None) == number for name, number in switches.items())
    return node if fits and len(value.uses()) == 1 and not value.is_graph_output() else None


def _replace(block: _Block) -> None:
    quantiser, first, second, norm = block.quantiser, block.first, block.second, block.norm
    module, own_name = posixpath.split(first.name or "")
    place = own_name.removeprefix(QUANTIZED_LINEAR)  # such as "_1", of the second node of a module
    attributes = {
        "x_scale": scale_of_int8(quantiser),
        "hidden_scale": attribute(first, "output_scale", None),
        "eps": attribute(norm, "epsilon", 1e-5),
        "next_scale": scale_of_int8(block.next_quantisers[0]) if block.next_quantisers else 0.0,
    }
    made = ir.node(
        QUANTIZED_FEED_FORWARD,
        [block.x, *first.inputs[1:4], *second.inputs[1:4], *norm.inputs[1:]],
        attributes | PLUGIN_ATTRIBUTES,
        domain=DOMAIN,
        num_outputs=2 if block.next_quantisers else 1,
        name=posixpath.join(posixpath.dirname(module), QUANTIZED_FEED_FORWARD) + place,
    )
    graph, wide = norm.graph, second.outputs[0]
    graph.insert_before(norm, made)
    norm.outputs[0].type, norm.outputs[0].shape = wide.type, wide.shape
    take_both_places(made, norm.outputs[0], block.next_quantisers)
    graph.remove([second, first], safe=True)
    if not quantiser.outputs[0].uses() and not quantiser.outputs[0].is_graph_output():
        graph.remove(quantiser, safe=True)
