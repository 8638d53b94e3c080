"""Folds batch norms into the convolutions before them, and layer scales into linear layers.

A convolution or linear layer in 8 bits fuses with the sum, activation and quantisation behind it, but only if
no other node stands between them.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_path.quantization.products import Product, find_products, folded_constant
from onnx_path.surgery.graph.traversal import add_constant, attribute, is_op


def fold_batch_norms(graph: ir.Graph) -> None:
    """Folds products and sums with a number for each channel into the products before them, in place.

    Exporters write a frozen batch norm as such a product and sum, other batch norms as one node. A linear
    layer's product is a LayerScale (arXiv 2103.17239), as in DINOv2.
    """
    for product in list(find_products(graph)):
        if product.is_convolution or is_op(product.node, "MatMul"):
            _fold(graph, product)


def _fold(graph: ir.Graph, product: Product) -> None:
    channels, output = product.channels[1], product.output
    bias = product.node.inputs[2] if len(product.node.inputs) > 2 else None
    shift = np.zeros(channels) if bias is None else folded_constant(bias)
    if shift is None:
        return
    scale, folded = np.ones(1), []
    while (norm := _read_norm(output, product)) is not None:
        node, factor, summand = norm
        scale, shift = scale * factor, shift * factor + summand
        output = node.outputs[0]
        folded.append(node)
    if not folded or (scale.size == 1 and not product.is_convolution):
        return
    others = [1] * product.weight.ndim
    others[product.output_axis] = -1
    scaled = product.weight.astype(np.float64) * scale.reshape(others)
    weight, bias = (
        add_constant(graph, f"{product.output.name}/folded_{name}", array.astype(product.weight.dtype))
        for name, array in (("weight", scaled), ("bias", shift))
    )
    product.node.replace_input_with(1, weight)
    result = product.output
    if product.is_convolution:
        product.node.resize_inputs(3)
        product.node.replace_input_with(2, bias)
    else:
        added = ir.node("Add", (result, bias))
        graph.insert_after(product.node, added)
        result = added.outputs[0]
        result.name = f"{product.output.name}/folded"
    ir.convenience.replace_all_uses_with(output, result)
    graph.remove(reversed(folded), safe=True)


def _read_norm(value: ir.Value, product: Product) -> tuple[ir.Node, np.ndarray, np.ndarray] | None:
    """Returns the node that scales or shifts a product's channels, its factors and its summands."""
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output() or uses[0].node.outputs[0].is_graph_output():
        return None
    node, channels = uses[0].node, product.channels[1]
    if product.is_convolution and is_op(node, "BatchNormalization") and len(node.outputs) == 1:
        numbers = [folded_constant(x) for x in node.inputs[1:]]
        if any(x is None for x in numbers):
            return None
        gamma, beta, mean, variance = (x.astype(np.float64) for x in numbers)
        factor = gamma / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
        return node, factor, beta - mean * factor
    if not is_op(node, "Mul", "Add"):
        return None
    number = folded_constant(node.inputs[1 - uses[0].idx])
    column = (channels, *[1] * (product.weight.ndim - 2))  # a number for each channel, beside a map or a row
    if number is None or (number.size > 1 and number.shape[-len(column) :] != column):
        return None
    if number.size not in (1, channels):
        return None
    number = number.astype(np.float64).reshape(-1)
    return (node, number, np.zeros(1)) if is_op(node, "Mul") else (node, np.ones(1), number)
