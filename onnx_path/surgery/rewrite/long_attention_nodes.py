"""Drafting attention over many keys in standard operators that TensorRT runs by kernels of their own."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnx_path.surgery.find.recognise_long_attention import LongAttention
from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.rewrite.draft import Draft, DraftBuilder


def draft_long_attention(attention: LongAttention, probes: Sequence[Probe], opset: int) -> Draft:
    """Drafts softmax and product of an attention.

    The softmax is exp(scores - max - log(sum)). TensorRT recognises it in no other form than Softmax, or
    exp(scores - max) / sum.

    Raises:
        LayoutError: sizes that change with the model's inputs cannot be computed.
    """
    draft = DraftBuilder(f"{attention.end.name}/msda")
    scores, values = (draft.source(x, "normal") for x in (attention.scores, attention.values))
    last = draft.constant([-1])
    wide = scores if scores.dtype == ir.DataType.DOUBLE else draft.cast(scores, ir.DataType.FLOAT)
    if opset >= 18:  # the axes are an attribute before, and an input since
        largest = draft.add("ReduceMax", [wide, last])
    else:
        largest = draft.add("ReduceMax", [wide], axes=[-1])
    below = draft.add("Sub", [wide, largest])
    total = draft.add("ReduceSum", [draft.add("Exp", [below]), last])
    weights = draft.add("Exp", [draft.add("Sub", [below, draft.add("Log", [total])])])
    weights = draft.cast(weights, scores.dtype)
    if attention.parts > 1:
        result = _product_in_parts(draft, weights, values, attention, probes)
    else:
        result = draft.add("MatMul", [weights, values])
    return draft.finish(result, attention.end)


def _product_in_parts(
    draft: DraftBuilder,
    weights: ir.Value,
    values: ir.Value,
    attention: LongAttention,
    probes: Sequence[Probe],
) -> ir.Value:
    """Adds the sum of products over parts of the keys, which TensorRT computes at the same time."""
    parts = attention.parts
    before = [probe.shape(attention.scores) for probe in probes]
    after = [(*batch, queries, parts, keys // parts) for *batch, queries, keys in before]
    weights = draft.reshape(weights, before, after)
    *batch, queries, part, key = range(len(after[0]))
    weights = draft.add("Transpose", [weights], perm=[*batch, part, queries, key])
    before = [probe.shape(attention.values) for probe in probes]
    after = [(*batch, parts, keys // parts, channels) for *batch, keys, channels in before]
    products = draft.add("MatMul", [weights, draft.reshape(values, before, after)])
    return draft.add("ReduceSum", [products, draft.constant([-3])], keepdims=0)
