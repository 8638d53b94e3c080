"""Bilinear sampling written with gathers, turned into GridSample, so that what follows knows one form only.

Such sampling takes the Floor of pixel coordinates, gathers the four cells around each, and sums them by
shares. What it computes is proven on numbers before a GridSample stands for it. The nodes never reach the
output: a sampler that no attention takes up is put back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnx_path.surgery.draft import Draft, Sources
from onnx_path.surgery.graph import SHAPE_OPS, is_op
from onnx_path.surgery.layouts import Layout, LayoutError, concat
from onnx_path.surgery.movement import is_movement
from onnx_path.surgery.origins import Candidate, common, origins
from onnx_path.surgery.probe import Probe
from onnx_path.surgery.regions import NotAttention

GATHERS = ("Gather", "GatherElements", "GatherND")
CORNERS = 4


@dataclass(frozen=True, eq=False)
class Sampler:
    """Four gathers and their sum.

    Attributes:
        floors: the Floor nodes: one of x and y, or two.
        gathers: the nodes that read the corners.
        result: the sum.
    """

    floors: tuple[ir.Node, ...]
    gathers: tuple[ir.Node, ...]
    result: ir.Value


def samplers(graph: ir.Graph, skip: Collection[str]) -> Iterator[Sampler]:
    """Finds four gathers by the same Floor nodes whose results are weighted and added.

    Args:
        graph: in an order in which it can run.
        skip: names of results that are known to be something else.
    """
    floors: dict[ir.Value, frozenset[ir.Node]] = {}
    groups: dict[tuple, list[ir.Node]] = {}
    for node in graph:
        found = frozenset().union(*(floors.get(x, frozenset()) for x in node.inputs if x is not None))
        if is_op(node, "Floor"):
            found = frozenset((node,))
        elif is_op(node, *GATHERS) and floors.get(node.inputs[1]):
            groups.setdefault((floors[node.inputs[1]], _top(node.inputs[0])), []).append(node)
            continue
        elif is_op(node, *SHAPE_OPS) or not found:
            continue
        floors.update({value: found for value in node.outputs})
    for (sources, _), gathers in groups.items():
        result = _sum(graph, gathers) if len(gathers) == CORNERS and len(sources) < 3 else None
        if result is not None and result.name not in skip:
            yield Sampler(tuple(sorted(sources, key=list(graph).index)), tuple(gathers), result)


def draft(sampler: Sampler, probes: Sequence[Probe], opset: int) -> Iterator[Draft]:
    """Drafts GridSample nodes that could stand for a sampler, for proof to choose from.

    Args:
        sampler: as found.
        probes: of the graph.
        opset: of the model.
    """
    shapes = [probe.shape(sampler.result) for probe in probes]
    if any(shape is None or len(shape) not in (3, 4) for shape in shapes):
        return
    for value in _images(sampler.gathers[0].inputs[0]):
        for sizes in _sizes(sampler, value, shapes, probes):
            for floors in (sampler.floors, sampler.floors[::-1])[: len(sampler.floors)]:
                try:
                    yield _drafted(sampler, value, sizes, floors, shapes, probes, opset)
                except (LayoutError, NotAttention):
                    continue


def _top(value: ir.Value) -> ir.Value:
    """The tensor that gathers read from, before it is moved or gets a border."""
    return list(_images(value))[-1]


def _images(value: ir.Value) -> Iterator[ir.Value]:
    """A value, and the tensors that it was moved from, also without its border."""
    while True:
        yield value
        node = value.producer()
        if not (is_movement(node) or is_op(node, "Pad")) or is_op(node, "Concat", "Split", "Slice"):
            return
        value = node.inputs[0]


def _sum(graph: ir.Graph, gathers: Sequence[ir.Node]) -> ir.Value | None:
    """The tensor at which all gathers have been added."""
    parts: dict[ir.Value, frozenset[ir.Node]] = {node.outputs[0]: frozenset((node,)) for node in gathers}
    for node in graph:
        given = [parts[x] for x in node.inputs if x in parts]
        if not given or node in gathers:
            continue
        moved = is_movement(node) and len(given) == 1
        weighted = is_op(node, "Mul") and len(given) == 1
        if moved or weighted or is_op(node, "Add", "Sum"):
            parts[node.outputs[0]] = frozenset().union(*given)
            if len(parts[node.outputs[0]]) == len(gathers):
                return node.outputs[0]
    return None


def _sizes(
    sampler: Sampler, value: ir.Value, shapes: Sequence[tuple[int, ...]], probes: Sequence[Probe]
) -> Iterator[list[tuple[int, ...]]]:
    """What [B, C, H, W] a tensor could be, at every probe."""
    own = [probe.shape(value) for probe in probes]
    if any(shape is None for shape in own):
        return
    if all(len(shape) == 4 and shape[:2] == result[:2] for shape, result in zip(own, shapes)):
        yield own
        return
    cells = [int(np.prod(shape)) // (result[0] * result[1]) for shape, result in zip(own, shapes)]
    for widths in _widths(sampler, probes):
        if all(n % w == 0 for n, w in zip(cells, widths)):
            yield [(*result[:2], n // w, w) for result, n, w in zip(shapes, cells, widths)]


def _widths(sampler: Sampler, probes: Sequence[Probe]) -> list[tuple[int, ...]]:
    """Whole numbers that the indices of cells are computed with, each at every probe: one is the width."""
    pending, seen, found = [sampler.gathers[0].inputs[1]], set(), {}
    while pending:
        value = pending.pop()
        if value in seen or value is None:
            continue
        seen.add(value)
        arrays = [probe.value(value) for probe in probes]
        if all(array is not None and array.size == 1 for array in arrays):
            number = tuple(int(array.reshape(-1)[0]) for array in arrays)
            if min(number) > 0:
                found[number] = None
        elif arrays[0] is None and not is_op(value.producer(), "Floor") and value.producer() is not None:
            pending += value.producer().inputs
    return list(found)


def _drafted(
    sampler: Sampler,
    value: ir.Value,
    sizes: Sequence[tuple[int, ...]],
    floors: Sequence[ir.Node],
    shapes: Sequence[tuple[int, ...]],
    probes: Sequence[Probe],
    opset: int,
) -> Draft:
    made = Draft(f"{sampler.result.name}/sampler")
    sources = Sources(made, probes)
    try:
        grids = [
            _grids([floor.inputs[0] for floor in floors], size, shape, probe)
            for size, shape, probe in zip(sizes, shapes, probes)
        ]
        images = [
            Candidate(value, probe.shape(value), _reshaped(probe.shape(value), s))
            for s, probe in zip(sizes, probes)
        ]
        image = sources.role([[tuple(images)]], 0, "normal")
        shared = [
            c.value for c in grids[0] if all(any(d.value is c.value for d in other) for other in grids[1:])
        ]
        choices = [tuple(next(c for c in one if c.value is v) for one in grids) for v in shared]
        grid = sources.role([choices], 0, "grid")
    except (LayoutError, NotAttention):
        made.discard()
        raise
    mode = "linear" if opset >= 20 else "bilinear"
    result = made.add("GridSample", [image, grid], mode=mode, padding_mode="zeros", align_corners=0)
    made.operator = made.nodes[-1]
    four = [shape if len(shape) == 4 else (*shape, 1) for shape in shapes]
    made.result = made.cast(sources.reshape(result, four, shapes), sampler.result.dtype)
    return made


def _reshaped(shape: tuple[int, ...], new: tuple[int, ...]) -> Layout:
    return Layout.of(shape).reshape(new)


def _grids(
    pixels: Sequence[ir.Value], size: tuple[int, ...], shape: tuple[int, ...], probe: Probe
) -> list[Candidate]:
    """Tensors that the grid [B, rows, columns, 2] can be made from, by way of the pixel coordinates.

    Args:
        pixels: the coordinates (x, y), one tensor [..., 2] or one for each.
        size: [B, C, H, W] of the image.
        shape: of the sampler's result.
        probe: of the graph.
    """
    columns = {}
    for i, extent in enumerate((size[3], size[2])):
        value = pixels[i % len(pixels)]
        layout = Layout.of(probe.shape(value))
        if len(pixels) == 1:
            layout = layout.take(len(layout.tables) - 1, np.array([i]))
        layout = layout.reshape((size[0], *(shape[2:] if len(shape) == 4 else (shape[2], 1)), 1))
        # pixel = ((grid + 1) · extent - 1) / 2, see GridSample without aligned corners
        columns[i] = origins(value, probe, True, 2 / extent, 1 / extent - 1, layout)
    joint = common(columns)
    if joint is None:
        raise NotAttention("x and y come from different tensors")
    found = []
    for x, y in zip(joint[0], joint[1]):
        scale, shift = (round(number, 9) for number in (x.scale, x.shift))
        try:
            layout = concat([x.layout, y.layout], -1)
        except LayoutError:
            continue
        found.append(Candidate(x.value, x.shape, layout, scale, shift))
    return found
