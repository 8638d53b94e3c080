"""Replaces the feed-forward blocks of post-norm transformers in int8 by nodes `QuantizedFeedForward`.

A block is

    x -> QuantizeLinear -> QuantizedLinear with a ReLU and a result in int8
      -> QuantizedLinear that adds x -> LayerNormalization

The pass runs behind `onnx_path.tensorrt.fused_quantized_linears`. It knows the nodes by what they compute,
not by names.
"""

from __future__ import annotations

import math
import posixpath
from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from onnx_path.nodes.domain import DOMAIN, PLUGIN_ATTRIBUTES
from onnx_path.nodes.linear import ACTIVATIONS
from onnx_path.quantization.qdq_nodes import scale_of, zero_type
from onnx_path.surgery.graph.traversal import attribute, is_op
from onnx_path.tensorrt.fused_quantized_layer_norms import type_of_norm
from trt_plugin.library import QUANTIZED_FEED_FORWARD, QUANTIZED_LINEAR


@dataclass(frozen=True, eq=False)
class _Block:
    quantiser: ir.Node
    first: ir.Node
    second: ir.Node
    norm: ir.Node

    @property
    def x(self) -> ir.Value:
        return self.quantiser.inputs[0]


def fuse_feed_forwards(graph: ir.Graph, is_fast: Callable[[int, int, int], bool]) -> int:
    """Replaces the blocks of a main graph, in place; returns their number.

    Args:
        graph: behind `fuse_layers`.
        is_fast: tells whether a kernel runs a block of M rows, C channels and H hidden numbers fast. Blocks
            whose number of rows is dynamic stay.
    """
    count = 0
    for node in list(graph):
        block = _block(node)
        if block is None:
            continue
        shape, hidden = block.second.outputs[0].shape, block.first.inputs[1].shape[0]
        if shape.is_static() and is_fast(math.prod(shape[:-1]), shape[-1], hidden):
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
    if not is_op(quantiser, "QuantizeLinear") or zero_type(quantiser) != ir.DataType.INT8:
        return None
    scale = scale_of(quantiser)
    if scale is None or scale.ndim or dtype != second.outputs[0].dtype:
        return None
    return _Block(quantiser, first, second, norm) if second.inputs[4] is quantiser.inputs[0] else None


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
        "x_scale": float(scale_of(quantiser)),
        "hidden_scale": attribute(first, "output_scale", None),
        "eps": attribute(norm, "epsilon", 1e-5),
    }
    made = ir.node(
        QUANTIZED_FEED_FORWARD,
        [block.x, *first.inputs[1:4], *second.inputs[1:4], *norm.inputs[1:]],
        attributes | PLUGIN_ATTRIBUTES,
        domain=DOMAIN,
        name=posixpath.join(posixpath.dirname(module), QUANTIZED_FEED_FORWARD) + place,
    )
    graph, result, old = norm.graph, made.outputs[0], norm.outputs[0]
    result.type, result.shape = ir.TensorType(second.outputs[0].dtype), second.outputs[0].shape
    graph.insert_before(norm, made)
    ir.convenience.replace_all_uses_with(old, result, replace_graph_outputs=True)
    name, old.name = old.name, f"{old.name}/replaced"
    result.name = name
    graph.remove([norm, second, first], safe=True)
    if not quantiser.outputs[0].uses() and not quantiser.outputs[0].is_graph_output():
        graph.remove(quantiser, safe=True)
