"""Finding attention with a mask and an odd number of keys.

TensorRT 10.6 adds the mask inside of its attention kernel, which is slow where the rows of a mask in 16 bits
begin at odd places. Self-attention of 905 tokens in 8 heads takes 72 us with its projections, and 42 us with
keys, values and mask padded to 912 (H200; benchmarks/results/masked_attention_forms_h200.txt).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnx_path.surgery.find.samplers import NotAttention
from onnx_path.surgery.find.softmax_products import attention_softmaxes, product_with_values
from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.graph.traversal import constant, is_op

FEWEST_KEYS = 512
"""With fewer keys, copies of keys and values may cost what the kernel gains."""


@dataclass(frozen=True, eq=False)
class MaskedAttention:
    """softmax(query keys [* or / scale] + mask) values.

    Attributes:
        query: [..., queries, channels].
        keys: [..., channels, keys].
        scaling: the type of the Mul or Div behind the product and its number, if there is one.
        mask: [..., keys], added to the scores.
        values: [..., keys, channels].
        end: the result, [..., queries, channels].
        sizes: queries and keys of each head.
    """

    query: ir.Value
    keys: ir.Value
    scaling: tuple[str, ir.Value] | None
    mask: ir.Value
    values: ir.Value
    end: ir.Value
    sizes: tuple[int, int]


def masked_softmaxes(graph: ir.Graph, probe: Probe) -> Iterator[ir.Node]:
    """Yields the Softmax nodes over an odd number of keys that may have a mask."""
    for node, (*_, keys) in attention_softmaxes(graph, probe):
        if keys >= FEWEST_KEYS and keys % 2 and is_op(node.inputs[0].producer(), "Add"):
            yield node


def recognise_masked_attention(softmax: ir.Node, probes: Sequence[Probe]) -> MaskedAttention:
    """Finds the products in front of a softmax and behind it, and the mask.

    Raises:
        NotAttention: no product of two tensors with a mask, or see `product_with_values`.
    """
    behind = product_with_values(softmax, probes)
    *_, queries, keys = probes[0].shape(softmax.inputs[0])
    for scores, mask in _either_way(softmax.inputs[0].producer()):
        product, scaling = _unscaled(scores)
        if is_op(product, "MatMul") and (probes[0].shape(mask) or (1,))[-1] == keys:
            values, end = behind.inputs[1], behind.outputs[0]
            return MaskedAttention(*product.inputs, scaling, mask, values, end, (queries, keys))
    raise NotAttention("its scores are no product of two tensors with a mask for each key")


def _unscaled(scores: ir.Value) -> tuple[ir.Node | None, tuple[str, ir.Value] | None]:
    """Returns the node in front of a Mul or Div by one number, and this scaling; else the node itself."""
    node = scores.producer()
    if is_op(node, "Mul", "Div"):
        for value, number in _either_way(node):
            if (array := constant(number)) is not None and array.size == 1:
                return value.producer(), (node.op_type, number)
    return node, None


def _either_way(node: ir.Node) -> tuple[tuple[ir.Value, ir.Value], tuple[ir.Value, ir.Value]]:
    first, second = node.inputs
    return (first, second), (second, first)
