"""Finding bilinear samplers: GridSample nodes, and gathers with arithmetic that compute the same.

Sampling by gathers takes the Floor of pixel coordinates, gathers the four cells around each, and sums them by
shares. Whether it equals GridSample is proven on numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnx_ir as ir

from onnx_path.surgery.find.candidates import Candidate, affine_source, common, origins
from onnx_path.surgery.graph import onnx_session
from onnx_path.surgery.graph.partial_models import NotClosed
from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.graph.traversal import SHAPE_OPS, attribute, is_op
from onnx_path.surgery.layouts.layout import LayoutError, concat
from onnx_path.surgery.layouts.movement import is_movement
from onnx_path.surgery.verify import proof
from onnx_path.surgery.verify.report import NearMiss

_GRID_SAMPLE = """<ir_version: 8, opset_import: ["" : 16]>
sampler (float[B, C, H, W] image, float[B, rows, columns, 2] grid) => (float[B, C, rows, columns] result) {
    result = GridSample(image, grid)
}"""

GATHERS = ("Gather", "GatherElements", "GatherND")
CORNERS = 4


class NotAttention(ValueError):
    """Samples, or their sum, that are not multi-scale deformable attention, and why."""


@dataclass(frozen=True, eq=False)
class Sampler:
    """Nodes that sample as MSDA does: bilinear, with zeros outside, corners not aligned.

    Attributes:
        name: of the node, or of its result.
        result: the samples, [B, C, rows, columns] or [B, C, rows].
        form: "GridSample" or "gather".
        images: at each probe, the sampled tensor [B, C, H, W].
        locations: at each probe, tensors that the locations [B, rows, columns, 2] can be made from, 0 to 1
            across the level, the most upstream first.
        number: of the sampler in the graph.
    """

    name: str
    result: ir.Value
    form: str
    images: tuple[Candidate, ...]
    locations: tuple[tuple[Candidate, ...], ...]
    number: int = 0


def find_samplers(
    graph: ir.Graph, probes: Sequence[Probe], seed: int
) -> tuple[list[Sampler], list[NearMiss]]:
    """Returns the samplers of a sorted graph in its order, and other GridSample nodes with a reason."""
    by_gathers = {group[-1].producer(): group for group in _gather_groups(graph)}
    samplers, misses = [], []
    for node in graph:
        sampler = None
        if is_op(node, "GridSample"):
            try:
                sampler = _grid_sample(node, probes)
            except NotAttention as error:
                misses.append(NearMiss("msda", node.name or node.outputs[0].name, str(error)))
        elif node in by_gathers:
            sampler = _proven(*by_gathers[node], probes, seed)
        if sampler is not None:
            samplers.append(replace(sampler, number=len(samplers)))
    return samplers, misses


# GridSample


def _grid_sample(node: ir.Node, probes: Sequence[Probe]) -> Sampler:
    mode = attribute(node, "mode", "bilinear")
    if mode not in ("bilinear", "linear"):
        raise NotAttention(f"it samples by mode {mode}, not bilinear")
    if (padding := attribute(node, "padding_mode", "zeros")) != "zeros":
        raise NotAttention(f"its padding is {padding}, not zeros")
    if attribute(node, "align_corners", 0):
        raise NotAttention("it aligns corners")
    for probe in probes:
        shapes = [probe.shape(x) for x in (*node.inputs, *node.outputs)]
        if None in shapes:
            raise NotAttention(
                "its sizes cannot be found, it depends on operators that onnxruntime does not know"
            )
        if len(shapes[0]) != 4:
            raise NotAttention(f"it samples from a tensor of {len(shapes[0])} dimensions, not 4")
        if any(0 in shape for shape in shapes):
            raise NotAttention("it samples nothing at the sizes tried")
    image, grid = node.inputs
    return Sampler(
        name=node.name or node.outputs[0].name,
        result=node.outputs[0],
        form="GridSample",
        images=tuple(Candidate.of(image, probe) for probe in probes),
        locations=tuple(
            tuple(origins(Candidate.of(grid, probe, 0.5, 0.5), probe, affine_source)) for probe in probes
        ),
    )


# Gathers


def _gather_groups(graph: ir.Graph) -> Iterator[tuple[frozenset[ir.Node], list[ir.Node], ir.Value]]:
    """Yields Floor nodes, the four gathers that they decide, and the tensor in which these are added.

    There is one Floor node for x and y together, or one for each.
    """
    floors: dict[ir.Value, frozenset[ir.Node]] = {}
    groups: dict[tuple, list[ir.Node]] = {}
    for node in graph:
        found = frozenset().union(*(floors.get(x, frozenset()) for x in node.inputs if x is not None))
        if is_op(node, "Floor"):
            found = frozenset((node,))
        elif is_op(node, *GATHERS) and floors.get(node.inputs[1]):
            *_, top = _sampled_tensors(node.inputs[0])
            groups.setdefault((floors[node.inputs[1]], top), []).append(node)
            continue
        elif is_op(node, *SHAPE_OPS) or not found:
            continue
        floors.update({value: found for value in node.outputs})
    for (sources, _), gathers in groups.items():
        if len(gathers) == CORNERS and len(sources) < 3 and (result := _sum(graph, gathers)) is not None:
            yield sources, gathers, result


def _sum(graph: ir.Graph, gathers: Sequence[ir.Node]) -> ir.Value | None:
    """Returns the tensor in which all gathers have been added."""
    parts: dict[ir.Value, frozenset[ir.Node]] = {node.outputs[0]: frozenset((node,)) for node in gathers}
    for node in graph:
        given = [parts[x] for x in node.inputs if x in parts]
        if not given or node in gathers:
            continue
        single = len(given) == 1 and (is_movement(node) or is_op(node, "Mul"))
        if single or is_op(node, "Add", "Sum"):
            parts[node.outputs[0]] = frozenset().union(*given)
            if len(parts[node.outputs[0]]) == len(gathers):
                return node.outputs[0]
    return None


def _proven(
    floors: Iterable[ir.Node],
    gathers: Sequence[ir.Node],
    result: ir.Value,
    probes: Sequence[Probe],
    seed: int,
) -> Sampler | None:
    """Returns the sampler that gathers and their sum are, None if they equal no GridSample."""
    for sampler in _hypotheses(floors, gathers[0], result, probes):
        by_value = [{c.value: c for c in own} for own in sampler.locations]
        top = next((x for x in by_value[0] if all(x in own for own in by_value)), None)
        if top is None:
            continue
        try:
            for probe, image, own in zip(probes, sampler.images, by_value):
                kinds = {image.value: "normal", top: "locations"}
                replacement = _by_grid_sample(sampler, image, own[top], probe)
                proof.prove(probe, sampler.result, kinds, replacement, seed)
            return sampler
        except (NotClosed, proof.Disagreement, onnx_session.CannotRun):
            continue
    return None


def _by_grid_sample(sampler: Sampler, image: Candidate, locations: Candidate, probe: Probe):
    """Returns a function that computes a sampler's result by GridSample."""
    session = onnx_session.Session(onnx.parser.parse_model(_GRID_SAMPLE))

    def run(tensors: proof.Tensors) -> np.ndarray:
        arrays = []
        for c in (image, locations):
            numbers = tensors[c.value].astype(np.float64).reshape(-1)[c.layout.indices()]
            arrays.append((numbers * c.scale + c.shift).astype(np.float32))
        (result,) = session.run({"image": arrays[0], "grid": 2 * arrays[1] - 1})
        return result.reshape(probe.shape(sampler.result))

    return run


def _hypotheses(
    floors: Iterable[ir.Node], gather: ir.Node, result: ir.Value, probes: Sequence[Probe]
) -> Iterator[Sampler]:
    """Yields the samplers that gathers like one of them could be, for proof to choose from."""
    shapes = [probe.shape(result) for probe in probes]
    if any(shape is None or len(shape) not in (3, 4) for shape in shapes):
        return
    for value in _sampled_tensors(gather.inputs[0]):
        for sizes in _sizes(gather, value, shapes, probes):
            for xy in itertools.permutations(floors):
                try:
                    each = zip(sizes, shapes, probes)
                    locations = [_locations([x.inputs[0] for x in xy], *one) for one in each]
                    own = [Candidate.of(value, probe) for probe in probes]
                    images = [replace(c, layout=c.layout.reshape(n)) for c, n in zip(own, sizes)]
                except (LayoutError, NotAttention):
                    continue
                yield Sampler(result.name, result, "gather", tuple(images), tuple(map(tuple, locations)))


def _sampled_tensors(value: ir.Value) -> Iterator[ir.Value]:
    """Yields a value and the tensors that it was moved from, also without its border."""
    while True:
        yield value
        node = value.producer()
        if not (is_movement(node) or is_op(node, "Pad")) or is_op(node, "Concat", "Split", "Slice"):
            return
        value = node.inputs[0]


def _sizes(
    gather: ir.Node, value: ir.Value, shapes: Sequence[tuple[int, ...]], probes: Sequence[Probe]
) -> Iterator[list[tuple[int, ...]]]:
    """Yields the sizes [B, C, H, W] that a sampled tensor could have, at every probe."""
    own = [probe.shape(value) for probe in probes]
    if any(shape is None for shape in own):
        return
    if all(len(shape) == 4 and shape[:2] == result[:2] for shape, result in zip(own, shapes)):
        yield own
        return
    cells = [int(np.prod(shape)) // (result[0] * result[1]) for shape, result in zip(own, shapes)]
    for widths in _widths(gather.inputs[1], probes):
        if all(n % w == 0 for n, w in zip(cells, widths)):
            yield [(*result[:2], n // w, w) for result, n, w in zip(shapes, cells, widths)]


def _widths(indices: ir.Value, probes: Sequence[Probe]) -> list[tuple[int, ...]]:
    """Returns the single numbers, at every probe, that enter the indices of cells: one is the width."""
    pending, seen, found = [indices], set(), {}
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


def _locations(
    pixels: Sequence[ir.Value], size: tuple[int, ...], shape: tuple[int, ...], probe: Probe
) -> list[Candidate]:
    """Returns the tensors that the locations [B, rows, columns, 2] can be made from.

    Args:
        pixels: the coordinates (x, y) in cells: one tensor [..., 2], or one for each.
        size: [B, C, H, W] of the sampled tensor.
        shape: of the sampler's result.
    """
    columns = {}
    for i, extent in enumerate((size[3], size[2])):
        start = Candidate.of(
            pixels[i % len(pixels)], probe, 1 / extent, 0.5 / extent
        )  # (pixel + 0.5) / extent
        layout = start.layout
        if len(pixels) == 1:
            layout = layout.take(len(layout.tables) - 1, np.array([i]))
        layout = layout.reshape((size[0], *(shape[2:] if len(shape) == 4 else (shape[2], 1)), 1))
        columns[i] = origins(replace(start, layout=layout), probe, affine_source)
    joint = common(columns)
    if joint is None:
        raise NotAttention("x and y come from different tensors")
    found = []
    for x, y in zip(*joint.values()):
        scale, shift = float(f"{x.scale:.9g}"), round(x.shift, 9)  # 1 and 0 but for roundings
        try:
            found.append(replace(x, layout=concat([x.layout, y.layout], -1), scale=scale, shift=shift))
        except LayoutError:
            continue
    return found
