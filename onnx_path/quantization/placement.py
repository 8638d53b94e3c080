"""Inserts Q/DQ nodes into an onnx_ir graph, where TensorRT fuses them.

A tensor is quantised once, right behind the node that computes it, for all products that read it. Weights are
stored in 8 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from codetr.export.quantization_scales import LARGEST, scales_of
from onnx_path.quantization.attention_values import attention_values
from onnx_path.quantization.products import Product
from onnx_path.surgery.graph.traversal import add_constant, free_name, is_op

Edge = tuple[ir.Node, int]
"""A node and the place of one of its inputs."""


@dataclass(frozen=True)
class NumberFormat:
    """An 8-bit type.

    Attributes:
        name: "int8" or "fp8".
        type: of the quantised tensors.
        per_channel: whether each output channel of weights has a scale of its own.
    """

    name: str
    type: ir.DataType
    per_channel: bool

    def encode(self, array: np.ndarray) -> np.ndarray:
        """Rounds scaled numbers to the type, half to even."""
        most = LARGEST[self.name]
        clipped = np.clip(array, -most, most)
        return (np.rint(clipped) if self.type == ir.DataType.INT8 else clipped).astype(self.type.numpy())


FORMATS = {
    "int8": NumberFormat("int8", ir.DataType.INT8, per_channel=True),
    "fp8": NumberFormat("fp8", ir.DataType.FLOAT8E4M3FN, per_channel=False),
}


def find_sources(graph: ir.Graph, products: Iterable[Product], precision: str) -> dict[ir.Value, list[Edge]]:
    """Returns the tensors to quantise, and the inputs that read them in 8 bits.

    MSDA reads its values in int8, see `attention_values`. A sum that ends a convolutional block reads its
    skip connection in 8 bits, so that TensorRT adds it in the kernel of the other convolution. The skip
    connection is the block's input, or a convolution of it.
    """
    by_node = {product.node: product for product in products}
    convolutions = {product.output for product in by_node.values() if product.is_convolution}
    sources: dict[ir.Value, list[Edge]] = {}
    for product in by_node.values():
        sources.setdefault(product.source, []).append((product.node, 0))
        values = attention_values(product) if precision == "int8" else None
        if values is not None:
            sources[values[0]] = [(values[1], 0)]
    for node in graph:
        if not is_op(node, "Add") or convolutions.isdisjoint(node.inputs):
            continue
        one, other = node.inputs
        if one in sources and other in convolutions:
            sources[one].append((node, 0))
        elif one in convolutions and (other in sources or other in convolutions):
            sources.setdefault(other, []).append((node, 1))
    return sources


def insert_nodes(
    graph: ir.Graph,
    products: Iterable[Product],
    ranges: Mapping[str, float],
    form: NumberFormat,
) -> None:
    """Quantises the weights of products and the tensors of `find_sources`, in place.

    Args:
        graph: of opset 19 or later.
        products: of the graph.
        ranges: largest magnitude of each tensor by its name, positive and finite.
        form: the 8-bit type.
    """
    writer = _Writer(graph, form)
    for value, edges in find_sources(graph, products, form.name).items():
        quantized = writer.quantize(value, ranges[value.name])
        for node, place in edges:
            node.replace_input_with(place, quantized)
    for product in products:
        product.node.replace_input_with(1, writer.store(product))


class _Writer:
    def __init__(self, graph: ir.Graph, form: NumberFormat) -> None:
        self._graph, self._form = graph, form
        values = {x for node in graph for x in (*node.inputs, *node.outputs) if x is not None}
        self._names = {x.name for x in (*values, *graph.inputs, *graph.initializers.values())}
        self._stored: dict[tuple[str, int], ir.Value] = {}
        self._zero: ir.Value | None = None

    def quantize(self, value: ir.Value, largest: float) -> ir.Value:
        """Adds the Q/DQ nodes of a tensor and returns their result."""
        kind = ir.DataType.FLOAT if value.dtype is None else value.dtype
        scale = self._constant(
            f"{value.name}/scale", scales_of(np.float32(largest), self._form.name).astype(kind.numpy())
        )
        if self._zero is None:
            self._zero = self._constant("zero_point", np.zeros((), self._form.type.numpy()))
        narrow = self._value(f"{value.name}/{self._form.name}", self._form.type, value.shape)
        wide = self._value(f"{value.name}/dequantized", kind, value.shape)
        nodes = [
            ir.node("QuantizeLinear", [value, scale, self._zero], outputs=[narrow], name=narrow.name),
            ir.node("DequantizeLinear", [narrow, scale, self._zero], outputs=[wide], name=wide.name),
        ]
        if value.producer() is None:
            self._graph.insert_before(self._graph[0], nodes)
        else:
            self._graph.insert_after(value.producer(), nodes)
        return wide

    def store(self, product: Product) -> ir.Value:
        """Adds the weights of a product in 8 bits, once for all products that share them."""
        axis, weight = product.output_axis, product.weight
        key = (product.key, axis)
        if key not in self._stored:
            others = tuple(i for i in range(weight.ndim) if i != axis or not self._form.per_channel)
            largest = np.abs(weight.astype(np.float32)).max(others, keepdims=True, initial=0.0)
            scale = scales_of(largest, self._form.name)
            name = product.node.inputs[1].name
            narrow = self._constant(
                f"{name}/{self._form.name}", self._form.encode(weight.astype(np.float32) / scale)
            )
            scales = self._constant(
                f"{name}/scale",
                (scale.reshape(-1) if self._form.per_channel else scale.reshape(())).astype(weight.dtype),
            )
            self._stored[key] = self._value(
                f"{name}/dequantized", ir.DataType.from_numpy(weight.dtype), ir.Shape(weight.shape)
            )
            node = ir.node(
                "DequantizeLinear",
                [narrow, scales],
                {"axis": axis} if self._form.per_channel else {},
                outputs=[self._stored[key]],
                name=f"{name}/dequantize",
            )
            self._graph.insert_before(self._graph[0], node)
        return self._stored[key]

    def _constant(self, name: str, array: np.ndarray) -> ir.Value:
        return add_constant(self._graph, free_name(name, self._names), array)

    def _value(self, name: str, kind: ir.DataType, shape: ir.Shape | None) -> ir.Value:
        return ir.Value(name=free_name(name, self._names), type=ir.TensorType(kind), shape=shape)
