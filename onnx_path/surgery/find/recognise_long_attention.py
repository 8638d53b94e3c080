"""Finding attention of few queries over many keys, as in the decoders that attend to all cells of a map.

TensorRT 10.6 computes an attention by one kernel, whose blocks take 64 queries of a head each and go through
all keys. The 100 queries of Mask2Former are 16 blocks: they keep 16 of an H200's 132 multiprocessors busy,
for 0.51 ms with 16,800 keys. Three kernels for scores, softmax and product fill the GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnx_path.surgery.find.samplers import NotAttention
from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.graph.traversal import attribute, is_op

FEWEST_KEYS = 2048
MOST_BLOCKS = 32
"""Attention of fewer keys, or more blocks of TensorRT's kernel, stays. Measured: Mask2Former's 16 blocks gain
with 4,200 keys and with 16,800."""

FEW_QUERIES = 32
"""For so many and fewer, the product is made in parts. TensorRT's has one block for 32 queries and 32
channels: 0.35 ms for the 8 queries and 22,223 keys of Grounding DINO (H100)."""

_BLOCK_QUERIES = 64
_LONGEST_PART = 512  # keys
_SHORTEST_PART = 64


@dataclass(frozen=True, eq=False)
class LongAttention:
    """An attention whose softmax and product are to be written otherwise.

    Attributes:
        scores: [..., queries, keys], what the softmax reads.
        values: [..., keys, channels].
        end: the result, [..., queries, channels].
        queries, keys: of each head.
        parts: the product is the sum of so many products over equal parts of the keys.
    """

    scores: ir.Value
    values: ir.Value
    end: ir.Value
    queries: int
    keys: int
    parts: int


def long_softmaxes(graph: ir.Graph, probe: Probe) -> Iterator[ir.Node]:
    """Yields the Softmax nodes over many keys of few queries, whose result a matrix product reads."""
    for node in graph:
        shape = (probe.shape(node.inputs[0]) or ()) if is_op(node, "Softmax") else ()
        if len(shape) < 2 or attribute(node, "axis", -1) % len(shape) != len(shape) - 1:
            continue
        *batch, queries, keys = shape
        blocks = math.prod(batch) * math.ceil(queries / _BLOCK_QUERIES)
        if keys >= FEWEST_KEYS and blocks <= MOST_BLOCKS and any(_products(node)):
            yield node


def recognise_long_attention(softmax: ir.Node, probes: Sequence[Probe]) -> LongAttention:
    """Finds the product behind a softmax.

    Raises:
        NotAttention: other nodes read the probabilities too, or the keys' number depends on the inputs.
    """
    scores, probabilities = softmax.inputs[0], softmax.outputs[0]
    if len(probabilities.uses()) > 1 or probabilities.is_graph_output():
        raise NotAttention("other nodes than a matrix product read its probabilities")
    (product,) = _products(softmax)
    values = product.inputs[1]
    shapes = [(probe.shape(scores), probe.shape(values)) for probe in probes]
    *_, queries, keys = shapes[0][0]
    if any(of_scores[-1] != keys for of_scores, _ in shapes):
        raise NotAttention("the number of its keys depends on the model's inputs")
    batched = all(of_scores[:-2] == of_values[:-2] for of_scores, of_values in shapes)
    parts = _parts(keys) if queries <= FEW_QUERIES and batched else 1
    return LongAttention(scores, values, product.outputs[0], queries, keys, parts)


def _products(softmax: ir.Node) -> Iterator[ir.Node]:
    for use in softmax.outputs[0].uses():
        if is_op(use.node, "MatMul") and use.idx == 0:
            yield use.node


def _parts(keys: int) -> int:
    """Returns the smallest number of equal parts of 64 to 512 keys, 1 if there is none.

    Unequal parts would need a copy of all values.
    """
    for parts in range(math.ceil(keys / _LONGEST_PART), keys // _SHORTEST_PART + 1):
        if keys % parts == 0:
            return parts
    return 1
