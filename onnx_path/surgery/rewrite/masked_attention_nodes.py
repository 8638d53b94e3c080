"""Drafting attention with a mask and an odd number of keys, which are padded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_path.surgery.find.recognise_masked_attention import MaskedAttention
from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.rewrite.draft import Draft, DraftBuilder

_MULTIPLE = 8  # of keys, 16 bytes of 16-bit numbers


def draft_masked_attention(attention: MaskedAttention, probes: Sequence[Probe]) -> Draft:
    """Drafts the attention with more keys, which its mask hides.

    The mask of a new key is negative infinity, so its probability is 0.
    """
    draft = DraftBuilder(f"{attention.end.name}/msda")
    more = -attention.sizes[1] % _MULTIPLE

    def padded(value: ir.Value, axis: int, number: float) -> ir.Value:
        """Adds `more` numbers at the end of an axis, which is counted from the last."""
        pads = np.zeros(2 * len(probes[0].shape(value)), np.int64)
        pads[axis] = more
        source = draft.source(value, "normal")
        return draft.add(
            "Pad", [source, draft.constant(pads), draft.constant(np.array(number, value.dtype.numpy()))]
        )

    scores = draft.add("MatMul", [draft.source(attention.query, "normal"), padded(attention.keys, -1, 0.0)])
    if attention.scaling is not None:
        op_type, number = attention.scaling
        scores = draft.add(op_type, [scores, draft.tensor(number)])
    scores = draft.add("Add", [scores, padded(attention.mask, -1, -np.inf)])
    weights = draft.add("Softmax", [scores], axis=-1)
    return draft.finish(draft.add("MatMul", [weights, padded(attention.values, -2, 0.0)]), attention.end)
