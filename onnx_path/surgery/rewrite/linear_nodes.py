"""Drafting the replacement of a linear layer: one node for product, bias, and activation or residual."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_path.nodes.domain import DOMAIN, PLUGIN_ATTRIBUTES
from onnx_path.nodes.linear import ACTIVATIONS, EPS, LINEAR
from onnx_path.surgery.find.recognise_linears import FusedLinear
from onnx_path.surgery.find.recognise_windows import Linear
from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.rewrite.draft import Draft, DraftBuilder


def draft_linear(linear: FusedLinear, probes: Sequence[Probe]) -> Draft:
    """Drafts the node of a linear layer with an activation or a residual.

    Raises:
        LayoutError: sizes that change with the model's inputs cannot be computed.
    """
    end, residual = linear.end, None
    draft = DraftBuilder(f"{end.name}/msda")
    outputs, inputs = len(linear.layer.bias), linear.layer.weight.shape[0]
    given, ends = ([probe.shape(value) for probe in probes] for value in (linear.x, end))
    rows = [sizes[:-1] for sizes in (ends if ends[0][-1] == outputs else given)]
    x = draft.reshape(draft.source(linear.x, "normal"), given, [(*sizes, inputs) for sizes in rows])
    made = [(*sizes, outputs) for sizes in rows]
    if linear.residual is not None:
        added = [probe.shape(linear.residual) for probe in probes]
        residual = draft.reshape(draft.source(linear.residual, "normal"), added, made)
    result = add_linear(draft, x, linear.layer, linear.activation, residual=residual)
    result = draft.reshape(result, made, ends)
    return draft.finish(result, end)


def add_linear(
    draft: DraftBuilder,
    x: ir.Value,
    layer: Linear,
    activation: str = "none",
    *,
    residual: ir.Value | None = None,
    mask: ir.Value | None = None,
) -> ir.Value:
    """Adds a node `Linear` and returns its result [..., N].

    Args:
        draft: gets the node and its weights.
        x: [..., K].
        layer: the linear layer.
        activation: one of `onnx_path.nodes.linear.ACTIVATIONS`.
        residual: [..., N].
        mask: [..., 1], of x's type.
    """
    weight, bias = (
        draft.initializer(f"{draft.prefix}/{name}", np.ascontiguousarray(array, x.dtype.numpy()))
        for name, array in (("weight", layer.weight.T), ("bias", layer.bias))
    )
    optional = (bias if tensor is None else tensor for tensor in (residual, mask))
    inputs = [x, weight, bias, *optional, bias, bias]
    numbers = {
        "activation": ACTIVATIONS.index(activation),
        "add_residual": int(residual is not None),
        "multiply_mask": int(mask is not None),
        "normalise": 0,
        "eps": EPS,
    }
    return draft.add(LINEAR, inputs, DOMAIN, **numbers, **PLUGIN_ATTRIBUTES)
