"""Finding what the fused operator computes itself: softmax, and locations from reference points and offsets.

With references of two columns, locations = reference + offsets / (W, H). With four columns, locations =
(cx, cy) + offsets / P · (w, h) · 0.5. The weights are softmax(logits) over the points of all levels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnx_path.surgery.find.candidates import Candidate, origins
from onnx_path.surgery.find.recognise_msda import Parts, Roles, Sizes
from onnx_path.surgery.find.samplers import NotAttention
from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.graph.traversal import attribute, is_op
from onnx_path.surgery.layouts.layout import Layout, LayoutError, concat
from onnx_path.surgery.layouts.movement import moved, source_of

HEAD = 2  # the axis of the heads in locations


@dataclass(frozen=True, eq=False)
class FusedRoles:
    """The tensors that the fused operator's inputs can be made from, at one probe, as in `Roles`.

    Attributes:
        reference_points: [N, Q, L, 2 or 4], or the two parts (cx, cy) and (w, h).
        sampling_offsets: [N, Q, M, L, P, 2] or [N, Q, M, K, 2].
        attention_logits: [N, Q, M, K].
    """

    reference_points: Parts
    sampling_offsets: Parts
    attention_logits: Parts


@dataclass(frozen=True, eq=False)
class _Factor:
    """One factor of a product.

    Attributes:
        origins: the tensors that it was moved from, the nearest last; empty for a static factor.
        inverse: whether the product is divided by it.
        numbers: of a static factor, one for every point and coordinate: [K, 2].
    """

    origins: tuple[Candidate, ...] = ()
    inverse: bool = False
    numbers: np.ndarray | None = None


def recognise_fused(roles: Roles, probe: Probe) -> FusedRoles:
    """Finds the inputs of softmax and locations.

    Raises:
        NotAttention, LayoutError: the graph computes weights or locations in another way.
    """
    if len(roles.locations) > 1 or len(roles.weights) > 1 or not roles.locations[0] or not roles.weights[0]:
        raise NotAttention("levels have locations or weights of their own")
    logits = _logits(roles.weights[0][0], roles.sizes, probe)
    top = roles.locations[0][0]
    node = top.value.producer()
    if not is_op(node, "Add") or (top.scale, top.shift) != (1, 0):
        raise NotAttention("locations are no sum")
    sides = [top.operand(x, probe) for x in node.inputs]
    for centre, offset in (sides, sides[::-1]):
        if not _moves(centre.layout, HEAD):
            reference, offsets = _locations(centre, offset, roles.sizes, probe)
            return FusedRoles(reference, (offsets,), (logits,))
    raise NotAttention("each head has its own reference points")


def _logits(weights: Candidate, sizes: Sizes, probe: Probe) -> tuple[Candidate, ...]:
    node = weights.value.producer()
    if not is_op(node, "Softmax"):
        raise NotAttention("weights are no softmax")
    axis = attribute(node, "axis", -1) % len(weights.shape)
    layout = weights.layout.reshape((*sizes.samples[:3], sum(sizes.points)))
    along = np.unravel_index(layout.tables[3][:, 0] + layout.base[0], weights.shape)
    still = all((places == places[0]).all() for i, places in enumerate(along) if i != axis)
    if not still or len(set(along[axis])) != weights.shape[axis]:
        raise NotAttention("the softmax is not over all points")
    return tuple(origins(Candidate(node.inputs[0], weights.shape, layout), probe))


def _moves(layout: Layout, axis: int) -> bool:
    return bool(layout.tables[axis].any())


def _locations(centre: Candidate, offset: Candidate, sizes: Sizes, probe: Probe):
    """Returns the parts of the reference points, and the candidates for the offsets."""
    points = np.array(sizes.points)
    widths_heights = np.array([(w, h) for h, w in sizes.levels], np.float64)
    centres = origins(centre, probe)
    factors = list(_factors(offset, sizes, probe, {c.value for c in centres}))
    scale = np.ones((int(points.sum()), 2))
    tensors = []
    for factor in factors:
        if factor.numbers is not None:
            scale = scale / factor.numbers if factor.inverse else scale * factor.numbers
        elif factor.inverse:
            raise NotAttention("offsets are divided by a tensor that depends on the model's inputs")
        else:
            tensors.append(factor)
    offsets = [f for f in tensors if _moves(f.origins[-1].layout, HEAD)] or tensors[:1]
    boxes = [f for f in tensors if f not in offsets]
    if len(offsets) != 1 or len(boxes) > 1:
        raise NotAttention("locations are made of more than references and offsets")
    expected = (0.5 / points)[:, None] if boxes else 1 / widths_heights
    expected = np.broadcast_to(np.repeat(expected, points, axis=0), scale.shape)
    if not np.allclose(scale, expected, rtol=1e-6, atol=0):
        raise NotAttention("offsets are in units of their own")
    centres = tuple(_leveled(centres, sizes))
    if not centres:
        raise NotAttention("reference points differ between heads or points")
    if not boxes:
        return (centres,), offsets[0].origins
    extents = tuple(_leveled(boxes[0].origins, sizes))
    joined = tuple(_boxes(centres, extents))
    return ((joined,) if joined else (centres, extents)), offsets[0].origins


def _boxes(centres: Sequence[Candidate], extents: Sequence[Candidate]) -> Iterator[Candidate]:
    """Yields tensors that hold both: (cx, cy, w, h)."""
    for centre in centres:
        for extent in extents:
            if centre.value is extent.value and centre.shape[-1] == 4:
                yield replace(centre, layout=concat([centre.layout, extent.layout], -1))


def _leveled(candidates: Iterable[Candidate], sizes: Sizes) -> Iterator[Candidate]:
    """Yields the candidates that hold one entry for each level, under that layout."""
    for candidate in candidates:
        with contextlib.suppress(LayoutError):  # one entry for each point, say: a later one may do
            yield replace(candidate, layout=_of_levels(candidate.layout, sizes))


def _of_levels(layout: Layout, sizes: Sizes) -> Layout:
    """Reduces a layout [N, Q, M, L, P, 2] or [N, Q, M, K, 2] to [N, Q, L, 2].

    Raises:
        LayoutError: heads or points of a level differ.
    """
    image, query, head, point, column = _of_points(layout, sizes).tables
    starts = np.cumsum([0, *sizes.points])[:-1]
    level = point[starts]
    if head.any() or not np.array_equal(np.repeat(level, sizes.points, axis=0), point):
        raise LayoutError("reference points differ between heads or points")
    return Layout(layout.base, (image, query, level, column))


def _factors(
    candidate: Candidate,
    sizes: Sizes,
    probe: Probe,
    whole: Collection[ir.Value],
    inverse: bool = False,
) -> Iterator[_Factor]:
    """Splits a product into its factors, through movements and divisions.

    Args:
        candidate: the product, under the layout of the locations.
        sizes: of the attention.
        probe: of the graph.
        whole: products that are not split, such as reference points scaled by valid ratios.
        inverse: whether the factors divide.
    """
    trail = [candidate]
    while True:
        at = trail[-1]
        node = at.value.producer()
        still = not any(_moves(at.layout, axis) for axis in range(3))
        if still and probe.is_static(at.value):
            layout = _of_points(at.layout, sizes)
            places = layout.base[0] + layout.tables[3] + layout.tables[4].T
            numbers = probe.value(at.value).reshape(-1)[places].astype(np.float64)
            yield _Factor(inverse=inverse, numbers=numbers)
            return
        if is_op(node, "Mul", "Div") and at.value not in whole:
            for i, x in enumerate(node.inputs):
                divisor = is_op(node, "Div") and i == 1
                yield from _factors(at.operand(x, probe), sizes, probe, whole, inverse ^ divisor)
            return
        if is_op(node, "Concat") and (joined := _joined(at, sizes, probe, whole)) is not None:
            numbers, source = joined
            # The Concat, and tensors moved from it, hold the products.
            nearer = trail[::-1] if (numbers == 1).all() else ()
            yield _Factor(inverse=inverse, numbers=numbers)
            yield _Factor((*origins(source, probe), *nearer), inverse)
            return
        source = source_of(at.value)
        if source is None or probe.shape(source) is None:
            break
        shape = probe.shape(source)
        try:
            layout = at.layout.after(moved(node, at.value, [Layout.of(shape)], probe), at.shape)
        except LayoutError:
            break
        trail.append(Candidate(source, shape, layout))
    yield _Factor(tuple(trail[::-1]), inverse)


def _joined(
    at: Candidate, sizes: Sizes, probe: Probe, whole: Collection[ir.Value]
) -> tuple[np.ndarray, Candidate] | None:
    """Splits a Concat of products of one tensor with a number for each level, such as (w, h) · 0.5 / P_l.

    Returns:
        The numbers [K, 2] and the tensor, or None if the Concat is another.
    """
    try:
        source, layout, scale = _scaled(at.value, probe, whole)
        layout = at.layout.after(layout, at.shape)
        numbers = scale.reshape(-1)[_of_points(at.layout, sizes).indices()]
    except LayoutError:
        return None
    if source is at.value or (numbers != numbers[:1, :1, :1]).any():
        return None
    return numbers[0, 0, 0], Candidate(source, probe.shape(source), layout)


def _scaled(
    value: ir.Value, probe: Probe, whole: Collection[ir.Value]
) -> tuple[ir.Value, Layout, np.ndarray]:
    """Finds a tensor such that every element of a value is a multiple of one of its elements.

    Returns:
        The tensor, at worst the value itself; the value's layout over it; the factors, in the value's shape.

    Raises:
        LayoutError: no layout expresses how the parts come from the tensor.
    """
    shape = probe.shape(value)
    if shape is None:
        raise LayoutError(f"{value.name}: known only when the model runs")
    itself = value, Layout.of(shape), np.ones(shape)
    node = value.producer()
    if value in whole:
        return itself
    if is_op(node, "Mul", "Div"):
        known = [i for i, x in enumerate(node.inputs) if probe.is_static(x)]
        if known not in ([0], [1]) or (known == [0] and is_op(node, "Div")):
            return itself
        source, layout, scale = _scaled(node.inputs[1 - known[0]], probe, whole)
        numbers = probe.value(node.inputs[known[0]]).astype(np.float64)
        scale = np.broadcast_to(scale / numbers if is_op(node, "Div") else scale * numbers, shape)
        return source, layout.expand(shape), scale
    if is_op(node, "Concat"):
        parts = [_scaled(x, probe, whole) for x in node.inputs]
        if len({source for source, _, _ in parts}) > 1:
            return itself
        axis = attribute(node, "axis", 0)
        return (
            parts[0][0],
            concat([layout for _, layout, _ in parts], axis),
            np.concatenate([scale for _, _, scale in parts], axis),
        )
    below = source_of(value)
    if below is None:
        return itself
    source, layout, scale = _scaled(below, probe, whole)
    step = moved(node, value, [Layout.of(scale.shape)], probe)
    return source, step.after(layout, scale.shape), scale.reshape(-1)[step.indices()]


def _of_points(layout: Layout, sizes: Sizes) -> Layout:
    """Reshapes a layout of locations to [N, Q, M, K, 2]."""
    return layout.reshape((*sizes.samples[:3], sum(sizes.points), 2))
