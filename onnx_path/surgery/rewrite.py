"""The nodes that replace a region: the operator, its inputs made from the region's tensors, its result."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnx_path import operator
from onnx_path.surgery.bodies import NVIDIA, NVIDIA_ATTRIBUTES, NVIDIA_DOMAIN
from onnx_path.surgery.draft import Alternatives, Draft, Sources, views_of
from onnx_path.surgery.fusion import FusedRoles
from onnx_path.surgery.layouts import LayoutError, View
from onnx_path.surgery.probe import Probe
from onnx_path.surgery.regions import NotAttention, Region
from onnx_path.surgery.roles import Roles, Sizes


def draft_attention(
    region: Region,
    roles: Sequence[Roles],
    probes: Sequence[Probe],
    shapes: ir.Value,
    starts: ir.Value,
    target: str,
) -> tuple[Draft, ir.Value]:
    """Drafts the operator for a region.

    Args:
        region: as found at the first probe.
        roles: at each probe.
        probes: as many.
        shapes, starts: spatial_shapes and level_start_index, int64.
        target: msda or nvidia.

    Returns:
        The draft, and which end of the region its result replaces.

    Raises:
        LayoutError, NotAttention: the operator's inputs cannot be made from the region's tensors.
    """
    draft = Draft(f"{region.ends[-1].name}/msda")
    sources = Sources(draft, probes)
    sizes = [r.sizes for r in roles]
    try:
        value = sources.role(per_probe(roles, "value"), 1, "normal")
        locations = sources.role(per_probe(roles, "locations"), 3, "locations")
        locations = _leveled(sources, locations, sizes, len(roles[0].locations), (2,))
        weights = sources.role(per_probe(roles, "weights"), 3, "weights")
        weights = _leveled(sources, weights, sizes, len(roles[0].weights), ())
        inputs = [value, shapes, starts, *(draft.cast(x, _of_plugin(value)) for x in (locations, weights))]
        return draft, finish(sources, roles, operator.ATTENTION, inputs, target)
    except (LayoutError, NotAttention):
        draft.discard()
        raise


def draft_fused_attention(
    region: Region,
    roles: Sequence[Roles],
    fused: Sequence[FusedRoles],
    probes: Sequence[Probe],
    shapes: ir.Value,
    starts: ir.Value,
) -> tuple[Draft, ir.Value]:
    """Drafts the fused operator for a region, as `draft_attention`."""
    draft = Draft(f"{region.ends[-1].name}/msda")
    sources = Sources(draft, probes)
    try:
        value = sources.role(per_probe(roles, "value"), 1, "normal")
        offsets = sources.role(per_probe(fused, "sampling_offsets"), 3, "offsets")
        logits = sources.role(per_probe(fused, "attention_logits"), 3, "normal")
        reference = sources.role(per_probe(fused, "reference_points"), 3, "points", like=offsets)
        reference = draft.cast(reference, ir.DataType.FLOAT)
        inputs = [
            value,
            shapes,
            starts,
            reference,
            *(draft.cast(x, _of_plugin(value)) for x in (offsets, logits)),
        ]
        return draft, finish(sources, roles, operator.FUSED_ATTENTION, inputs, "msda")
    except (LayoutError, NotAttention):
        draft.discard()
        raise


def _of_plugin(value: ir.Value) -> ir.DataType:
    """Type of the later inputs where they are not float32: value's, but plugins know no float64."""
    return ir.DataType.FLOAT if value.dtype == ir.DataType.DOUBLE else value.dtype


def _leveled(
    sources: Sources, value: ir.Value, sizes: Sequence[Sizes], parts: int, last: tuple[int, ...]
) -> ir.Value:
    """Splits joined points into levels; what was made in one part is split already."""
    if parts == 1 or sizes[0].ragged:
        return value
    joined = [(s.images, s.queries, s.heads, sum(s.points), *last) for s in sizes]
    return sources.reshape(value, joined, [(*s.samples, *last) for s in sizes])


def finish(
    sources: Sources, roles: Sequence[Roles], op_type: str, inputs: list[ir.Value], target: str
) -> ir.Value:
    """Adds the operator and what makes its result an end of the region; returns that end."""
    draft, sizes = sources.draft, roles[0].sizes
    value = inputs[0]
    if target == "nvidia":
        if sizes.ragged:
            raise NotAttention(
                f"{NVIDIA} wants the same number of points at every level, here {list(sizes.points)}"
            )
        inputs[1:3] = [draft.cast(x, ir.DataType.INT32) for x in inputs[1:3]]
        result = draft.add(NVIDIA, inputs, NVIDIA_DOMAIN, **NVIDIA_ATTRIBUTES)
        draft.operator = draft.nodes[-1]
        four = [(s.images, s.queries, s.heads, s.head_dim) for s in (r.sizes for r in roles)]
        result = sources.reshape(result, four, [(*n[:2], n[2] * n[3]) for n in four])
    else:
        attributes = dict(operator.PLUGIN_ATTRIBUTES)
        if sizes.ragged:
            attributes["points_per_level"] = list(sizes.points)
        result = draft.add(op_type, inputs, operator.DOMAIN, **attributes)
        draft.operator = draft.nodes[-1]
    result.dtype = value.dtype
    ends = per_probe_outputs(roles)
    best = min(ends, key=lambda pair: (max(v.num_nodes for v in pair[1]), ends.index(pair)))
    end, views = best
    result = sources.reshaped(result, views)
    draft.result = draft.cast(result, end.dtype or value.dtype)
    return end


def per_probe_outputs(roles: Sequence[Roles]) -> list[tuple[ir.Value, list[View]]]:
    """The ends that a result can be brought to, with how."""
    ends, reason = [], None
    for i, candidate in enumerate(roles[0].outputs):
        try:
            ends.append((candidate.value, views_of(tuple(r.outputs[i] for r in roles))))
        except LayoutError as error:
            reason = error
    if not ends:
        raise reason
    return ends


def per_probe(roles: Sequence[Roles] | Sequence[FusedRoles], name: str) -> list[list[Alternatives]]:
    """A role's candidates that all probes agree on: for each part, each candidate at every probe.

    Raises:
        NotAttention: the probes understand the region differently.
    """
    parts = [getattr(r, name) for r in roles]
    if len({len(p) for p in parts}) > 1:
        raise NotAttention("what it is depends on the input sizes")
    result = []
    for lists in zip(*parts):
        others = [{c.value: c for c in candidates} for candidates in lists[1:]]
        shared = [c for c in lists[0] if all(c.value in other for other in others)]
        result.append([(c, *(other[c.value] for other in others)) for c in shared])
    return result
