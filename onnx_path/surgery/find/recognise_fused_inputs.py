"""Finding what the fused operator computes itself: softmax, and locations from reference points and offsets.

With references of two columns, locations = reference + offsets / (W, H). With four columns, locations =
(cx, cy) + offsets / P · (w, h) · 0.5. The weights are softmax(logits) over the points of all levels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnx_path.surgery.find.candidates import Candidate, origins, static_factor
from onnx_path.surgery.find.recognise_msda import Roles, Sizes
from onnx_path.surgery.find.samplers import NotAttention
from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.graph.traversal import is_op
from onnx_path.surgery.layouts.layout import Layout, LayoutError, concat


@dataclass(frozen=True, eq=False)
class FusedRoles:
    """The tensors that the fused operator's inputs can be made from, at one probe, as in `Roles`.

    Attributes:
        reference_points: [N, Q, L, 2 or 4].
        sampling_offsets: [N, Q, M, L, P, 2] or [N, Q, M, K, 2].
        attention_logits: [N, Q, M, K].
    """

    reference_points: tuple[Candidate, ...]
    sampling_offsets: tuple[Candidate, ...]
    attention_logits: tuple[Candidate, ...]


def recognise_fused(roles: Roles, probe: Probe) -> FusedRoles:
    """Finds the inputs of softmax and locations. Numbers, such as 0.5 / P, are left to the proof.

    Raises:
        NotAttention, LayoutError: the graph computes weights or locations in another way.
    """
    sizes, weights, locations = roles.sizes, roles.weights[0], roles.locations[0]
    softmax, total = weights.value.producer(), locations.value.producer()
    if not is_op(softmax, "Softmax"):
        raise NotAttention("weights are no softmax")
    if not is_op(total, "Add") or (locations.scale, locations.shift) != (1, 0):
        raise NotAttention("locations are no sum")
    layout = weights.layout.reshape((*sizes.samples[:3], sum(sizes.points)))
    logits = origins(Candidate(softmax.inputs[0], weights.shape, layout), probe)
    centre, offset = sorted((locations.operand(x, probe) for x in total.inputs), key=_differs_by_head)
    centres = origins(centre, probe)
    factors = list(_factors(offset, probe, {c.value for c in centres}))
    offsets = [trail for trail in factors if _differs_by_head(trail[-1])] or factors[:1]
    boxes = [trail for trail in factors if trail not in offsets]
    if len(offsets) != 1 or len(boxes) > 1:
        raise NotAttention("locations are made of more than references and offsets")
    references = tuple(_leveled(centres, sizes))
    if not references:
        raise NotAttention("reference points differ between heads or points")
    if boxes:
        references = tuple(_boxes(references, tuple(_leveled(boxes[0], sizes))))
        if not references:
            raise NotAttention("centres and sizes of boxes are in tensors of their own")
    return FusedRoles(references, tuple(offsets[0]), tuple(logits))


def _differs_by_head(candidate: Candidate) -> bool:
    return bool(candidate.layout.tables[2].any())


def _factors(at: Candidate, probe: Probe, whole: set[ir.Value]) -> Iterator[list[Candidate]]:
    """Splits a product into its factors without static ones, and yields the origins of each.

    Products in `whole`, such as reference points scaled by valid ratios, are not split.
    """
    trail = origins(at, probe, static_factor)
    node = trail[0].value.producer()
    if is_op(node, "Mul", "Div") and whole.isdisjoint(c.value for c in trail):
        for x in node.inputs:
            yield from _factors(trail[0].operand(x, probe), probe, whole)
    else:
        yield trail


def _boxes(centres: Sequence[Candidate], extents: Sequence[Candidate]) -> Iterator[Candidate]:
    """Yields tensors that hold both: (cx, cy, w, h)."""
    for centre in centres:
        for extent in extents:
            if centre.value is extent.value and centre.shape[-1] == 4:
                yield replace(centre, layout=concat([centre.layout, extent.layout], -1))


def _leveled(candidates: Sequence[Candidate], sizes: Sizes) -> Iterator[Candidate]:
    """Yields the candidates that hold one entry for each level, under that layout."""
    for candidate in candidates:
        with contextlib.suppress(LayoutError):  # one entry for each point, say: a later one may do
            yield replace(candidate, layout=_of_levels(candidate.layout, sizes))


def _of_levels(layout: Layout, sizes: Sizes) -> Layout:
    """Reduces a layout [N, Q, M, L, P, 2] or [N, Q, M, K, 2] to [N, Q, L, 2].

    Raises:
        LayoutError: heads or points of a level differ.
    """
    points = (*sizes.samples[:3], sum(sizes.points), 2)
    image, query, head, point, column = layout.reshape(points).tables
    starts = np.cumsum([0, *sizes.points])[:-1]
    level = point[starts]
    if head.any() or not np.array_equal(np.repeat(level, sizes.points, axis=0), point):
        raise LayoutError("reference points differ between heads or points")
    return Layout(layout.base, (image, query, level, column))
