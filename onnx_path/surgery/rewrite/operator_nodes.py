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
from onnx_path.surgery.rewrite.draft import Alternatives, Draft, DraftBuilder, views_of
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
    value = draft.role(_per_probe(roles, "value"), 1, "normal")
    locations = draft.role(_per_probe(roles, "locations"), 3, "locations")
    locations = _leveled(draft, locations, roles, len(roles[0].locations), (2,))
    weights = draft.role(_per_probe(roles, "weights"), 3, "weights")
    weights = _leveled(draft, weights, roles, len(roles[0].weights), ())
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
    value = draft.role(_per_probe(roles, "value"), 1, "normal")
    offsets = draft.role(_per_probe(fused, "sampling_offsets"), 3, "offsets")
    logits = draft.role(_per_probe(fused, "attention_logits"), 3, "normal")
    reference = draft.role(_per_probe(fused, "reference_points"), 3, "points", like=offsets)
    inputs = [value, *draft_level_shapes(draft, roles, probes), draft.cast(reference, ir.DataType.FLOAT)]
    inputs += [draft.cast(x, _plugin_type(value)) for x in (offsets, logits)]
    return _finished(draft, roles, operator.FUSED_ATTENTION, inputs)


def _builder(roles: Sequence[Roles]) -> DraftBuilder:
    return DraftBuilder(f"{roles[0].outputs[-1].value.name}/msda")


def _plugin_type(value: ir.Value) -> ir.DataType:
    """Returns the type of the later inputs: the type of value, but plugins know no float64."""
    return ir.DataType.FLOAT if value.dtype == ir.DataType.DOUBLE else value.dtype


def _leveled(
    draft: DraftBuilder, value: ir.Value, roles: Sequence[Roles], parts: int, last: tuple[int, ...]
) -> ir.Value:
    """Splits concatenated points into levels; an input made in one part is split already."""
    sizes = [r.sizes for r in roles]
    if parts == 1 or sizes[0].ragged:
        return value
    joined = [(s.images, s.queries, s.heads, sum(s.points), *last) for s in sizes]
    return draft.reshape(value, joined, [(*s.samples, *last) for s in sizes])


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


def _per_probe(roles: Sequence[Roles] | Sequence[FusedRoles], name: str) -> list[list[Alternatives]]:
    """Returns the candidates of a role that all probes share: for each part, each candidate at every probe.

    Raises:
        NotAttention: the role has more parts at one probe than at another.
    """
    parts = [getattr(r, name) for r in roles]
    if len({len(p) for p in parts}) > 1:
        raise NotAttention("its tensors depend on the input sizes")
    result = []
    for lists in zip(*parts):
        others = [{c.value: c for c in candidates} for candidates in lists[1:]]
        shared = [c for c in lists[0] if all(c.value in other for other in others)]
        result.append([(c, *(other[c.value] for other in others)) for c in shared])
    return result
