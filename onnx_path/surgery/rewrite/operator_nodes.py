"""Drafting the replacement of a region: the operator, its inputs and its result."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnx_path.nodes import attention
from onnx_path.surgery.find.recognise_fused_inputs import FusedRoles
from onnx_path.surgery.find.recognise_msda import Roles
from onnx_path.surgery.find.samplers import NotAttention
from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.layouts.layout import LayoutError, View
from onnx_path.surgery.rewrite.draft import Draft, DraftBuilder, views_of
from onnx_path.surgery.rewrite.function_bodies import NVIDIA, NVIDIA_ATTRIBUTES, NVIDIA_DOMAIN
from onnx_path.surgery.rewrite.level_shapes import draft_level_shapes


def draft_attention(
    op_type: str, roles: Sequence[Roles], fused: Sequence[FusedRoles], probes: Sequence[Probe]
) -> Draft:
    """Drafts an operator for a region, and the nodes that make its result an end of the region.

    Args:
        op_type: `attention.FUSED_ATTENTION`, `attention.ATTENTION` or NVIDIA's plugin.
        roles: of the region at every probe.
        fused: as many, for the fused operator; none for the others.

    Raises:
        LayoutError, NotAttention: the operator's inputs cannot be made from the region's tensors.
    """
    sizes = roles[0].sizes
    if op_type == NVIDIA and sizes.ragged:
        points = list(sizes.points)
        raise NotAttention(f"{NVIDIA} expects the same number of points at every level, got {points}")
    draft = DraftBuilder(f"{roles[0].outputs[-1].value.name}/msda")
    value = draft.role([r.value for r in roles], "normal")
    others = []
    if fused:
        offsets = draft.role([f.sampling_offsets for f in fused], "offsets")
        logits = draft.role([f.attention_logits for f in fused], "normal")
        reference = draft.role([f.reference_points for f in fused], "points")
        others = [draft.cast(reference, ir.DataType.FLOAT), offsets, logits]
    else:
        others = [draft.role([r.locations for r in roles], "locations")]
        others += [draft.role([r.weights for r in roles], "weights")]
    shapes = draft_level_shapes(draft, roles, probes)
    dtype = ir.DataType.FLOAT if value.dtype == ir.DataType.DOUBLE else value.dtype  # plugins know no float64
    others[-2:] = [draft.cast(x, dtype) for x in others[-2:]]
    if op_type == NVIDIA:
        shapes = [draft.cast(x, ir.DataType.INT32) for x in shapes]
        result = draft.add(NVIDIA, [value, *shapes, *others], NVIDIA_DOMAIN, **NVIDIA_ATTRIBUTES)
    else:
        ragged = {"points_per_level": list(sizes.points)} if sizes.ragged else {}
        attributes = attention.PLUGIN_ATTRIBUTES | ragged
        result = draft.add(op_type, [value, *shapes, *others], attention.DOMAIN, **attributes)
    if op_type == NVIDIA:  # [N, Q, M, D]
        four = [(s.images, s.queries, s.heads, s.head_dim) for s in (r.sizes for r in roles)]
        result = draft.reshape(result, four, [(*n[:2], n[2] * n[3]) for n in four])
    end, views = _best_end(roles)
    return draft.finish(draft.reshaped(result, views), end)


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
