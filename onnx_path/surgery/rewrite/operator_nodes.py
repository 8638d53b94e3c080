"""Drafting the replacement of a region: the operator, its inputs and its result."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnx_path import operator
from onnx_path.surgery.find.recognise_fused_inputs import FusedRoles
from onnx_path.surgery.find.recognise_msda import Roles
from onnx_path.surgery.find.samplers import NotAttention
from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.layouts.layout import LayoutError, View
from onnx_path.surgery.rewrite.draft import Draft, DraftBuilder, views_of
from onnx_path.surgery.rewrite.function_bodies import NVIDIA, NVIDIA_ATTRIBUTES, NVIDIA_DOMAIN
from onnx_path.surgery.rewrite.level_shapes import draft_level_shapes


def draft_attention(roles: Sequence[Roles], probes: Sequence[Probe], target: str) -> Draft:
    """Drafts MultiScaleDeformableAttention, or NVIDIA's plugin, for a region.

    Args:
        roles: of the region at every probe.
        probes: as many.
        target: "msda" or "nvidia".

    Raises:
        LayoutError, NotAttention: the operator's inputs cannot be made from the region's tensors.
    """
    draft = _builder(roles)
    value = draft.role([r.value for r in roles], "normal")
    locations = draft.role([r.locations for r in roles], "locations")
    weights = draft.role([r.weights for r in roles], "weights")
    inputs = [value, *draft_level_shapes(draft, roles, probes)]
    inputs += [draft.cast(x, _plugin_type(value)) for x in (locations, weights)]
    return _finished(draft, roles, operator.ATTENTION if target == "msda" else NVIDIA, inputs)


def draft_fused_attention(
    roles: Sequence[Roles], fused: Sequence[FusedRoles], probes: Sequence[Probe]
) -> Draft:
    """Drafts FusedMultiScaleDeformableAttention for a region, as `draft_attention` does.

    Args:
        roles, fused: of the region at every probe.
        probes: as many.
    """
    draft = _builder(roles)
    value = draft.role([r.value for r in roles], "normal")
    offsets = draft.role([f.sampling_offsets for f in fused], "offsets")
    logits = draft.role([f.attention_logits for f in fused], "normal")
    reference = draft.role([f.reference_points for f in fused], "points")
    inputs = [value, *draft_level_shapes(draft, roles, probes), draft.cast(reference, ir.DataType.FLOAT)]
    inputs += [draft.cast(x, _plugin_type(value)) for x in (offsets, logits)]
    return _finished(draft, roles, operator.FUSED_ATTENTION, inputs)


def _builder(roles: Sequence[Roles]) -> DraftBuilder:
    return DraftBuilder(f"{roles[0].outputs[-1].value.name}/msda")


def _plugin_type(value: ir.Value) -> ir.DataType:
    """Returns the type of the later inputs: the type of value, but plugins know no float64."""
    return ir.DataType.FLOAT if value.dtype == ir.DataType.DOUBLE else value.dtype


def _finished(draft: DraftBuilder, roles: Sequence[Roles], op_type: str, inputs: list[ir.Value]) -> Draft:
    """Adds the operator, and the nodes that make its result an end of the region."""
    sizes = roles[0].sizes
    value = inputs[0]
    if op_type == NVIDIA:
        if sizes.ragged:
            raise NotAttention(
                f"{NVIDIA} expects the same number of points at every level, got {list(sizes.points)}"
            )
        inputs[1:3] = [draft.cast(x, ir.DataType.INT32) for x in inputs[1:3]]
        result = draft.add(NVIDIA, inputs, NVIDIA_DOMAIN, **NVIDIA_ATTRIBUTES)
    else:
        attributes = dict(operator.PLUGIN_ATTRIBUTES)
        if sizes.ragged:
            attributes["points_per_level"] = list(sizes.points)
        result = draft.add(op_type, inputs, operator.DOMAIN, **attributes)
    node = draft.nodes[-1]
    result.dtype = value.dtype
    if op_type == NVIDIA:  # [N, Q, M, D]
        four = [(s.images, s.queries, s.heads, s.head_dim) for s in (r.sizes for r in roles)]
        result = draft.reshape(result, four, [(*n[:2], n[2] * n[3]) for n in four])
    end, views = _best_end(roles)
    result = draft.reshaped(result, views)
    return draft.finished(node, draft.cast(result, end.dtype or value.dtype), end)


def _best_end(roles: Sequence[Roles]) -> tuple[ir.Value, list[View]]:
    """Returns the end of the region that takes the fewest nodes, and the views that make it."""
    ends, reason = [], None
    for i, candidate in enumerate(roles[0].outputs):
        try:
            ends.append((candidate.value, views_of(tuple(r.outputs[i] for r in roles))))
        except LayoutError as error:
            reason = error
    if not ends:
        raise reason
    return min(ends, key=lambda pair: max(view.num_nodes for view in pair[1]))
