"""Folds batch norms into the convolutions before them.

TensorRT fuses a convolution in 8 bits with the sum, activation and quantisation behind it, but only if no
other node stands between them.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_path.quantization.products import Product, find_products, folded_constant
from onnx_path.surgery.graph.traversal import attribute, is_op


def fold_batch_norms(graph: ir.Graph) -> None:
    """Folds products and sums with a number for each channel into the convolutions before them, in place.

    Exporters write a frozen batch norm as such a product and sum, other batch norms as one node.
    """
    for product in list(find_products(graph)):
        if product.is_convolution:
            _fold(graph, product)


def _fold(graph: ir.Graph, product: Product) -> None:
    weight, output = product.weight, product.output
    bias = product.node.inputs[2] if len(product.node.inputs) > 2 else None
    shift = np.zeros(len(weight)) if bias is None else folded_constant(bias)
    if shift is None:
        return
    scale, folded = np.ones(len(weight)), []
    while (norm := _read_norm(output, weight)) is not None:
        node, factor, summand = norm
        scale, shift = scale * factor, shift * factor + summand
        output = node.outputs[0]
        folded.append(node)
    if not folded:
        return
    scaled = weight.astype(np.float64) * scale.reshape(-1, *[1] * (weight.ndim - 1))
    for place, (name, array) in enumerate((("weight", scaled), ("bias", shift)), start=1):
        tensor = ir.tensor(array.astype(weight.dtype), name=f"{product.output.name}/folded_{name}")
        value = ir.val(tensor.name, const_value=tensor)
        graph.register_initializer(value)
        if place == len(product.node.inputs):
            product.node.resize_inputs(place + 1)
        product.node.replace_input_with(place, value)
    ir.convenience.replace_all_uses_with(output, product.output)
    graph.remove(reversed(folded), safe=True)


def _read_norm(value: ir.Value, weight: np.ndarray) -> tuple[ir.Node, np.ndarray, np.ndarray] | None:
    """Returns the node that scales or shifts a convolution's channels, with both numbers of each channel."""
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output() or uses[0].node.outputs[0].is_graph_output():
        return None
    node, channels = uses[0].node, len(weight)
    if is_op(node, "BatchNormalization") and len(node.outputs) == 1:
        numbers = [folded_constant(x) for x in node.inputs[1:]]
        if any(x is None for x in numbers):
            return None
        gamma, beta, mean, variance = (x.astype(np.float64) for x in numbers)
        factor = gamma / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
        return node, factor, beta - mean * factor
    if not is_op(node, "Mul", "Add"):
        return None
    number = folded_constant(node.inputs[1 - uses[0].idx])
    if number is None or (number.size > 1 and number.shape[1 - weight.ndim :] != _column(weight)):
        return None
    if number.size not in (1, channels):
        return None
    number = np.broadcast_to(number.astype(np.float64).reshape(-1), channels)
    if is_op(node, "Mul"):
        return node, number, np.zeros(channels)
    return node, np.ones(channels), number


def _column(weight: np.ndarray) -> tuple[int, ...]:
    """Returns the shape of one number a channel beside a map."""
    return (len(weight), *[1] * (weight.ndim - 2))
