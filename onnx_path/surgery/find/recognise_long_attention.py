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

from onnx_path.surgery.find.softmax_products import attention_softmaxes, product_with_values
from onnx_path.surgery.graph.probe import Probe

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
    for node, (*batch, queries, keys) in attention_softmaxes(graph, probe):
        blocks = math.prod(batch) * math.ceil(queries / _BLOCK_QUERIES)
        if keys >= FEWEST_KEYS and blocks <= MOST_BLOCKS:
            yield node


def recognise_long_attention(softmax: ir.Node, probes: Sequence[Probe]) -> LongAttention:
    """Finds the product behind a softmax.

    Raises:
        NotAttention: see `product_with_values`.
    """
    product = product_with_values(softmax, probes)
    scores, values = softmax.inputs[0], product.inputs[1]
    shapes = [(probe.shape(scores), probe.shape(values)) for probe in probes]
    *_, queries, keys = shapes[0][0]
    batched = all(of_scores[:-2] == of_values[:-2] for of_scores, of_values in shapes)
    parts = _parts(keys) if queries <= FEW_QUERIES and batched else 1
    return LongAttention(scores, values, product.outputs[0], queries, keys, parts)


def _parts(keys: int) -> int:
    """Returns the smallest number of equal parts of 64 to 512 keys, 1 if there is none.

    Unequal parts would need a copy of all values.
    """
    for parts in range(math.ceil(keys / _LONGEST_PART), keys // _SHORTEST_PART + 1):
        if keys % parts == 0:
            return parts
    return 1
