"""Finds the rows of a graph's values: cells of the input, or the few hundred queries of a decoder."""

from __future__ import annotations

from collections.abc import Container, Iterable
from enum import Enum

import onnx_ir as ir

from onnx_path import fp16_exceptions as rules
from onnx_path.nodes.attention import NVIDIA_DOMAIN
from onnx_path.surgery.graph.element_types import ATTENTIONS, Types, is_top_k
from onnx_path.surgery.graph.traversal import constant, is_op

_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32)


class Rows(Enum):
    """The rows of a value. An operator's result has the rows of its input with the largest number."""

    STATIC = 1  # known before the first image
    CELLS = 2
    QUERIES = 3


def find_rows(
    graph: ir.Graph, products: Container[ir.Node], static: set[ir.Value], selected: set[ir.Value]
) -> dict[ir.Value, Rows]:
    """Returns the rows of each value of a main graph.

    Rows that TopK selects are queries. So are those of an attention whose queries are learned.

    Args:
        graph: a main graph.
        products: its products with weights.
        static: values that depend on constants and sizes alone.
        selected: result of `selected_indices`.
    """
    rows = dict.fromkeys(static, Rows.STATIC)
    rows |= dict.fromkeys(graph.inputs, Rows.CELLS)
    for node in graph:
        inputs = [rows.get(x, Rows.STATIC) for x in node.inputs if x is not None]
        if _is_zero(node):
            kind = Rows.STATIC
        elif selects(node, selected):
            kind = Rows.QUERIES
        elif is_attention(node):  # the rows of its offsets or locations
            kind = _of_attention(inputs[3:], inputs)
        elif is_op(node, "GridSample"):
            kind = _of_attention(inputs[1:], inputs)
        elif is_op(node, *rules.PRODUCTS) and node not in products:
            kind = _of_attention(inputs[:1], inputs)
        else:
            kind = max(inputs, key=lambda x: x.value, default=Rows.STATIC)
        for value in node.outputs:
            rows.setdefault(value, kind)
    return rows


def selected_indices(graph: ir.Graph, types: Types) -> set[ir.Value]:
    """Returns the indices that TopK, a suppression or a maximum gives, and all that is computed of them."""
    found: set[ir.Value] = set()
    for node in graph:
        if is_top_k(node) or is_op(node, "NonMaxSuppression", "ArgMax"):
            found.add(node.outputs[-1])
        elif any(x in found for x in node.inputs) and not is_op(node, "Shape", "Size"):
            found.update(x for x in node.outputs if types.of.get(x) in _INTEGERS)
    return found


def selects(node: ir.Node, selected: set[ir.Value]) -> bool:
    """Returns whether a node picks the rows of selected indices."""
    return is_op(node, "Gather", "GatherElements", "GatherND") and node.inputs[1] in selected


def is_attention(node: ir.Node) -> bool:
    """Returns whether a node is an MSDA node, ours or NVIDIA's."""
    return (node.domain, node.op_type) in ATTENTIONS or node.domain == NVIDIA_DOMAIN


def _of_attention(queries: Iterable[Rows], inputs: Iterable[Rows]) -> Rows:
    """Returns the rows of an attention's result: those of its queries. Static queries are learned ones."""
    kind = max(queries, key=lambda x: x.value, default=Rows.STATIC)
    learned = kind == Rows.STATIC and any(x != Rows.STATIC for x in inputs)
    return Rows.QUERIES if learned else kind


def _is_zero(node: ir.Node) -> bool:
    """Returns whether a node multiplies by zero, as models do to give constants an input's batch size."""
    factors = [constant(x) for x in node.inputs] if is_op(node, "Mul") else []
    return any(factor is not None and not factor.any() for factor in factors)
