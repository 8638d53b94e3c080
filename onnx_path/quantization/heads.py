"""Finds the products whose results are coordinates, attention weights, scores or outputs, not features."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import onnx_ir as ir

from onnx_path import fp16_exceptions as rules
from onnx_path.quantization.products import Product
from onnx_path.quantization.rows import is_attention, selects
from onnx_path.surgery.graph.element_types import Types
from onnx_path.surgery.graph.traversal import has_subgraph, is_op


class Leads(Enum):
    """Where a value leads before the next product or normalisation."""

    COORDINATES = 1
    SCORES = 2
    SOFTMAX = 3
    OUTPUTS = 4
    FEATURES = 5


class HeadFinder:
    """The answers for every product of a main graph.

    A product is a head if its result becomes coordinates, attention weights, scores or outputs before another
    product reads it. A linear layer is part of a head if heads alone read its result: the hidden layers of a
    box head, and the layer before the class and box heads of a query selection.

    Attributes:
        leads: where each value leads.
    """

    def __init__(
        self,
        graph: ir.Graph,
        types: Types,
        products: Mapping[ir.Node, Product],
        static: set[ir.Value],
        selected: set[ir.Value],
    ) -> None:
        """Follows the graph from its outputs back.

        Args:
            graph: a main graph.
            types: types of its values.
            products: its products.
            static: values that depend on constants and sizes alone.
            selected: result of `rows.selected_indices`.
        """
        self._types, self._products, self._static, self._selected = types, products, static, selected
        self.leads: dict[ir.Value, set[Leads]] = {}
        self._feeds_heads: dict[ir.Value, bool | None] = {}
        for node in reversed(list(graph)):
            for value in node.outputs:
                self._close(value)

    def is_head(self, product: Product) -> bool:
        """Returns whether a product belongs to a head."""
        leads = self.leads[product.output]
        if leads & {Leads.COORDINATES, Leads.SCORES, Leads.SOFTMAX} or leads == {Leads.OUTPUTS}:
            return True
        return not product.is_convolution and bool(self._feeds_heads[product.output])

    def _close(self, value: ir.Value) -> None:
        """Fills the entries of a value, whose readers have theirs."""
        leads: set[Leads] = {Leads.OUTPUTS} if value.is_graph_output() else set()
        readers = [True] if value.is_graph_output() else []
        for use in value.uses():
            leads |= self._leads_by(use.node, use.idx)
            readers.append(self._feeds_heads_by(use.node, use.idx))
        self.leads[value] = leads
        known = [x for x in readers if x is not None]
        self._feeds_heads[value] = all(known) if known else None

    def _leads_by(self, node: ir.Node, place: int) -> set[Leads]:
        """Returns where an input of a node leads."""
        value = node.inputs[place]
        if is_attention(node):
            return {Leads.COORDINATES if place >= 3 else Leads.FEATURES}
        precise, reason = rules.float32_inputs(node)
        if any(x is value for x in precise):
            return {Leads.SCORES if reason == rules.SCORES else Leads.COORDINATES}
        if is_op(node, "Shape", "Size") or value not in self._types.of:
            return set()
        if node in self._products or has_subgraph(node) or not is_op(node, node.op_type):
            return {Leads.FEATURES}
        beyond = set().union(*(self.leads[x] for x in node.outputs if x in self.leads))
        if is_op(node, *rules.PRODUCTS):  # of two tensors
            return (beyond - {Leads.SOFTMAX}) | ({Leads.FEATURES} if Leads.SOFTMAX in beyond else set())
        if is_op(node, *rules.HEAVY):
            return {Leads.FEATURES}
        if is_op(node, "Softmax", "LogSoftmax"):
            return beyond | {Leads.SOFTMAX}
        if is_op(node, *rules.COMPARES):
            return {Leads.OUTPUTS}
        if selects(node, self._selected):
            return beyond - {Leads.FEATURES}
        return beyond

    def _feeds_heads_by(self, node: ir.Node, place: int) -> bool | None:
        """Returns whether all that a node makes of an input are heads; None if it makes no feature of it."""
        value = node.inputs[place]
        if is_op(node, "Shape", "Size") or selects(node, self._selected):
            return None
        if is_attention(node):
            return place >= 3
        if node in self._products:
            return self.is_head(self._products[node])
        if is_op(node, *rules.PRODUCTS):  # of two tensors, such as the similarity to the words of a prompt
            return Leads.SCORES in self._leads_by(node, place)
        if any(x is value for x in rules.float32_inputs(node)[0]) or is_op(node, *rules.COMPARES):
            return True
        sums = is_op(node, "Add", "Sum") and sum(x not in self._static for x in node.inputs) > 1
        passes = is_op(node, "LayerNormalization", "Cast", *rules.FOLLOWING) and not is_op(node, "Softmax")
        if sums or not passes:
            return False
        return all(self._feeds_heads[x] is not False for x in node.outputs)
