"""Decides which products become 8 bits, by what the nodes compute; names play no part.

Linear layers and convolutions of backbone, encoder and FFNs become 8 bits. Everything that is no product
stays as it is, such as MSDA, softmax, normalisations and TopK. Four kinds of products stay too:

- the layers that give MSDA, or samplers in pieces, its offsets and weights;
- heads: the layers that give outputs and top-k scores, and the layers that feed these alone;
- the decoder but its FFNs: a few hundred rows gain less than quantising them costs;
- convolutions that TensorRT does not run faster, such as the first one with its three channels.
"""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from onnx_path import fp16_exceptions as rules
from onnx_path.quantization.heads import HeadFinder, Leads
from onnx_path.quantization.products import Product, find_products
from onnx_path.quantization.rows import Rows, find_rows, selected_indices
from onnx_path.surgery.graph.element_types import Types
from onnx_path.surgery.graph.traversal import attribute, is_op, static_values

SAMPLING = "sampling offsets and attention weights"
HEADS = "heads and query selection"
DECODER = "decoder"
CONVOLUTIONS = "convolutions with groups or few channels"

FEWEST_CHANNELS = 16
"""Input channels from which a convolution becomes 8 bits."""

_NORMALISATIONS = (
    "LayerNormalization",
    "InstanceNormalization",
    "GroupNormalization",
    "RMSNormalization",
    "BatchNormalization",
)
_ACTIVATIONS = ("Relu", "Gelu", "Erf", "Sigmoid", "HardSwish", "Swish", "Tanh", "Clip", "LeakyRelu", "Elu")


class Policy:
    """The decision for every product of a main graph.

    Attributes:
        products: all products, in the order of the nodes.
        quantized: the products that become 8 bits, in this order.
        kept: the reason of each other product.
    """

    def __init__(self, graph: ir.Graph, opset: int) -> None:
        types = Types(graph, opset)
        selected = selected_indices(graph, types)
        self._graph, self._static = graph, static_values(graph)
        self._products = {product.node: product for product in find_products(graph)}
        self._heads = HeadFinder(graph, types, self._products, self._static, selected)
        self._rows = find_rows(graph, self._products, self._static, selected)
        self.products = list(self._products.values())
        self._hidden = {product: self._activated_product(product.source) for product in self.products}
        reasons = {product: self._reason(product) for product in self.products}
        self.kept: dict[Product, str] = {x: reason for x, reason in reasons.items() if reason is not None}
        self.quantized = [x for x in self.products if x not in self.kept]

    def _reason(self, product: Product) -> str | None:
        if self._heads.is_head(product):
            leads = self._heads.leads[product.output]
            samples = leads & {Leads.COORDINATES, Leads.SOFTMAX} and not leads & {Leads.SCORES, Leads.OUTPUTS}
            return SAMPLING if samples else HEADS
        if product.is_convolution:
            grouped = attribute(product.node, "group", 1) > 1
            few = product.channels[0] < FEWEST_CHANNELS or product.weight.ndim != 4
            return CONVOLUTIONS if grouped or few else None
        if self._rows[product.source] != Rows.CELLS and not self._is_feedforward(product):
            return DECODER
        return None

    def counts(self) -> tuple[int, dict[str, int]]:
        """Returns the number of products in 8 bits, and of the others by reason, the most frequent first."""
        return len(self.quantized), dict(Counter(self.kept.values()).most_common())

    def groups(self) -> dict[Product, str]:
        """Returns the group of each product, such as "block 12, FFN".

        A block ends with a sum of two features. Kinds are "convolution", "FFN" and "linear".
        """
        block, groups = 0, {}
        for node in self._graph:
            if product := self._products.get(node):
                kind = "FFN" if self._is_feedforward(product) else "linear"
                kind = "convolution" if product.is_convolution else kind
                groups[product] = f"block {block}, {kind}"
            elif is_op(node, "Add") and not self._static & set(node.inputs):
                block += all(Leads.FEATURES in self._heads.leads.get(x, ()) for x in node.inputs)
        return groups

    def _is_feedforward(self, product: Product) -> bool:
        """Returns whether a product is one of the two of an FFN, x + fc2(activation(fc1(x)))."""
        first, second = self._hidden[product], product
        if first is None:
            first, second = product, next((x for x in self.products if self._hidden[x] is product), None)
        return second is not None and self._adds_to(second.output, first.source)

    def _activated_product(self, value: ir.Value) -> Product | None:
        """Returns the product whose result a value is, after a bias and an activation."""
        pending, active = [value], False
        while pending:
            node = pending.pop().producer()
            if node in self._products:
                return self._products[node] if active else None
            active |= is_op(node, *_ACTIVATIONS)
            computed = [x for x in node.inputs if x not in self._static] if node is not None else []
            if not is_op(node, "Add", "Mul", "Div", "Cast", *_ACTIVATIONS, *rules.MOVES):
                return None
            if is_op(node, "Add") and len(computed) > 1:
                return None
            pending = computed[:1]
        return None

    def _adds_to(self, result: ir.Value, source: ir.Value) -> bool:
        """Returns whether a value is added to the stream of features that `source` is or normalises."""
        stream = self._before_moves(source)
        streams = {stream}
        if is_op(stream.producer(), *_NORMALISATIONS):
            streams.add(self._before_moves(stream.producer().inputs[0]))
        while True:
            reader = next((use.node for use in result.uses()), None)
            if not is_op(reader, "Add", "Cast", *rules.MOVES):
                return False
            others = [x for x in reader.inputs if x is not result and x not in self._static]
            if is_op(reader, "Add") and others:
                return self._before_moves(others[0]) in streams
            result = reader.outputs[0]

    def _before_moves(self, value: ir.Value) -> ir.Value:
        while is_op(value.producer(), "Cast", *rules.MOVES):
            value = value.producer().inputs[0]
        return value
