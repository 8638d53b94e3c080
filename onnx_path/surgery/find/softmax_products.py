"""Finding attention that is written out: a Softmax over keys, and the matrix product with the values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnx_path.surgery.find.samplers import NotAttention
from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.graph.traversal import attribute, is_op


def attention_softmaxes(graph: ir.Graph, probe: Probe) -> Iterator[tuple[ir.Node, Sequence[int]]]:
    """Yields the Softmax nodes over the last axis whose result a matrix product reads, and the sizes of their
    scores, [..., queries, keys]."""
    for node in graph:
        shape = (probe.shape(node.inputs[0]) or ()) if is_op(node, "Softmax") else ()
        if len(shape) < 2 or attribute(node, "axis", -1) % len(shape) != len(shape) - 1:
            continue
        if any(_products(node)):
            yield node, shape


def product_with_values(softmax: ir.Node, probes: Sequence[Probe]) -> ir.Node:
    """Returns the matrix product that reads a softmax of `attention_softmaxes`.

    Raises:
        NotAttention: other nodes read the probabilities too, or the keys' number depends on the inputs.
    """
    scores, probabilities = softmax.inputs[0], softmax.outputs[0]
    if len(probabilities.uses()) > 1 or probabilities.is_graph_output():
        raise NotAttention("other nodes than a matrix product read its probabilities")
    if len({probe.shape(scores)[-1] for probe in probes}) > 1:
        raise NotAttention("the number of its keys depends on the model's inputs")
    (product,) = _products(softmax)
    return product


def _products(softmax: ir.Node) -> Iterator[ir.Node]:
    for use in softmax.outputs[0].uses():
        if is_op(use.node, "MatMul") and use.idx == 0:
            yield use.node
