"""Layers with constant weights: linear layers and convolutions, as nodes of an onnx_ir graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from codetr.export.weight_key import weight_key
from onnx_path.fp16_exceptions import MOVES
from onnx_path.surgery.graph.traversal import FLOATS, attribute, constant, is_op


@dataclass(frozen=True, eq=False)
class Product:
    """A linear layer or convolution.

    Attributes:
        node: a MatMul, Gemm or Conv.
        weight: array as the node reads it: [K, N] (MatMul), [K, N] or [N, K] (Gemm), [O, I, h, w] (Conv).
        output_axis: axis of `weight` that holds the output channels.
    """

    node: ir.Node
    weight: np.ndarray
    output_axis: int

    @cached_property
    def key(self) -> str:
        """Hash of the weights, the same however an exporter has transposed them."""
        return weight_key(np.moveaxis(self.weight, self.output_axis, 0))

    @property
    def source(self) -> ir.Value:
        """The input that is no weight."""
        return self.node.inputs[0]

    @property
    def output(self) -> ir.Value:
        """The output, before a bias that is a node of its own."""
        return self.node.outputs[0]

    @property
    def is_convolution(self) -> bool:
        """Whether the node is a Conv."""
        return is_op(self.node, "Conv")

    @property
    def channels(self) -> tuple[int, int]:
        """The numbers of input and output channels, those of all groups of a convolution."""
        outputs = self.weight.shape[self.output_axis]
        if self.is_convolution:
            return self.weight.shape[1] * attribute(self.node, "group", 1), outputs
        return self.weight.size // max(outputs, 1), outputs

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.weight.shape))
        return f"{self.node.op_type} {self.node.name or self.output.name} [{sizes}]"


def find_products(graph: ir.Graph) -> Iterator[Product]:
    """Yields the products of a main graph, in the order of its nodes.

    A MatMul with its weights on the left, with weights of more than two dimensions, or with an identity is
    none.
    """
    for node in graph:
        if not is_op(node, "MatMul", "Gemm", "Conv") or constant(node.inputs[0]) is not None:
            continue
        weight = folded_constant(node.inputs[1])
        if weight is None or weight.dtype not in [kind.numpy() for kind in FLOATS]:
            continue
        if is_op(node, "Conv"):
            axis = 0
        elif weight.ndim != 2 or attribute(node, "transA", 0) or _is_identity(weight):
            continue
        else:
            axis = 0 if is_op(node, "Gemm") and attribute(node, "transB", 0) else 1
        yield Product(node, weight, axis)


def _is_identity(weight: np.ndarray) -> bool:
    """Returns whether a matrix is an identity; makes none to compare with, which can take gigabytes."""
    rows, columns = weight.shape
    return rows == columns == np.count_nonzero(weight) and bool((weight.diagonal() == 1).all())


def folded_constant(value: ir.Value | None) -> np.ndarray | None:
    """Returns the array of a constant, through the moves that exporters leave before its reader."""
    node = None if value is None else value.producer()
    if not is_op(node, *MOVES):
        return constant(value)
    inputs = [folded_constant(x) for x in node.inputs if x is not None]
    if any(x is None for x in inputs):
        return None
    names = (x.name for x in node.inputs if x is not None)
    return ReferenceEvaluator(ir.to_proto(node)).run(None, dict(zip(names, inputs)))[value.index()]
