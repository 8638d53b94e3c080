"""Drafting the replacement of a padding mask: a node `Linear`, which multiplies by the mask."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_path.domain import DOMAIN, PLUGIN_ATTRIBUTES
from onnx_path.linear import EPS, LINEAR
from onnx_path.surgery.find.recognise_masks import MaskedLinear
from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.rewrite.draft import Draft, DraftBuilder


def draft_mask(masked: MaskedLinear, probes: Sequence[Probe]) -> Draft:
    """Drafts the node of a linear layer with a mask.

    Raises:
        LayoutError: sizes that change with the model's inputs cannot be computed.
    """
    end, layer = masked.end, masked.layer
    prefix = f"{end.name}/msda"
    draft = DraftBuilder(prefix)
    x, mask = draft.tensor(masked.x), draft.tensor(masked.mask)
    draft.kinds |= {masked.x: "normal", masked.mask: "mask"}

    def weight(name: str, array: np.ndarray) -> ir.Value:
        return draft.initializer(f"{prefix}/{name}", np.ascontiguousarray(array, x.dtype.numpy()))

    if not masked.keeps:
        mask = draft.add("Not", [mask])
    rows = [probe.shape(masked.x)[:-1] for probe in probes]
    given = [probe.shape(masked.mask) for probe in probes]
    mask = draft.cast(draft.reshape(mask, given, [(*sizes, 1) for sizes in rows]), x.dtype)
    bias = weight("bias", layer.bias)
    inputs = [x, weight("weight", layer.weight.T), bias, bias, mask, bias, bias]
    numbers = {"activation": 0, "add_residual": 0, "multiply_mask": 1, "normalise": 0, "eps": EPS}
    result = draft.add(LINEAR, inputs, DOMAIN, **numbers, **PLUGIN_ATTRIBUTES)
    made = [(*sizes, len(layer.bias)) for sizes in rows]
    result = draft.reshape(result, made, [probe.shape(end) for probe in probes])
    result = draft.cast(result, end.dtype or x.dtype)
    constants = tuple(draft.constants.values())
    return Draft(tuple(draft.nodes), draft.stand_ins, constants, draft.kinds, result, end)
