"""Deciding whether a region is MSDA, and which of its tensors is value, locations, weights and result.

Letters: N images, S cells, M heads, D channels of a head, Q queries, K points of all levels. A sampler fixes
most roles: image or head, channel, row and column of the level, x and y. The axes summed over are the points.
The axes that remain in the grid are the queries. All sizes are those of one probe.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnx_path.surgery.find.candidates import Candidate, common, origins
from onnx_path.surgery.find.regions import CHANNEL, COLUMN, IMAGE, ROW, SAMPLER, WEIGHT, Flow, Region, Term
from onnx_path.surgery.find.samplers import NotAttention
from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.layouts.layout import Layout, LayoutError, concat, factors, merge, row_major


@dataclass(frozen=True)
class Sizes:
    """The sizes of an MSDA operator."""

    images: int
    queries: int
    heads: int
    head_dim: int
    levels: tuple[tuple[int, int], ...]  # (H, W)
    points: tuple[int, ...]  # of each level

    @property
    def ragged(self) -> bool:
        """Whether levels have different numbers of points."""
        return len(set(self.points)) > 1

    @property
    def samples(self) -> tuple[int, ...]:
        """The shape of attention_weights."""
        points = (sum(self.points),) if self.ragged else (len(self.points), self.points[0])
        return (self.images, self.queries, self.heads, *points)


@dataclass(frozen=True, eq=False)
class Roles:
    """The roles of a region's tensors, at one probe.

    Attributes:
        sizes: of the operator.
        levels: the sampled tensors in the order of the levels.
        value, locations, weights: tensors that each can be made from, the most upstream first.
        outputs: the region's ends, laid out over [N, Q, M · D].
    """

    sizes: Sizes
    levels: tuple[Candidate, ...]
    value: tuple[Candidate, ...]
    locations: tuple[Candidate, ...]
    weights: tuple[Candidate, ...]
    outputs: tuple[Candidate, ...]


@dataclass(frozen=True, eq=False)
class _Axes:
    """The axes of a term's tensor.

    Attributes:
        places: for each axis [n, 3], the image or head, the query and the channel along it.
        images, queries: [n, 1], the flat index of the weight along all images, and along all queries.
        unit: rows of the grid between two queries.
    """

    places: list[np.ndarray]
    images: np.ndarray
    queries: np.ndarray
    unit: int


@dataclass(frozen=True, eq=False)
class _Level:
    """The taps of one level at the first element of an output, [P, 6] as in `regions.SAMPLER`."""

    taps: np.ndarray
    weights: ir.Value
    axes: _Axes

    def in_grid(self, grid: Layout) -> np.ndarray:
        """Returns the flat index [P, 1] of each tap's x, given the layout of the level's grid."""
        _, rows, columns, _ = grid.tables
        return grid.base + rows[self.taps[:, ROW]] + columns[self.taps[:, COLUMN]]


def recognise(region: Region, probe: Probe) -> Roles:
    """Finds the roles of a region's tensors.

    Raises:
        NotAttention, LayoutError: the region is not multi-scale deformable attention.
    """
    levels = _levels(region.flows[0])
    samplers = {s.number: s for s in region.samplers if s.number in levels}
    sampled = {n: s.images[probe.number] for n, s in samplers.items()}
    images = {n: origins(one, probe) for n, one in sampled.items()}
    grids = {n: s.locations[probe.number] for n, s in samplers.items()}
    shapes = {n: one.layout.shape for n, one in sampled.items()}
    if len({shape[:2] for shape in shapes.values()}) > 1:
        raise NotAttention("the sampled tensors have unlike numbers of images, heads or channels")
    shared = common(grids)
    if shared is None:
        raise NotAttention("the levels' locations are in tensors of their own")
    start = {}
    for n, level in levels.items():
        offsets = level.in_grid(shared[n][0].layout)[:, 0]
        along = np.lexsort((level.taps[:, WEIGHT], offsets))
        levels[n], start[n] = replace(level, taps=level.taps[along]), offsets[along[0]]
    order = sorted(levels, key=start.__getitem__)
    axes, (batch, head_dim) = levels[order[0]].axes, shapes[order[0]][:2]
    heads = _heads(batch, images[order[0]][0].layout, grids[order[0]][0].layout)
    sizes = Sizes(
        batch // heads,
        len(axes.queries),
        heads,
        head_dim,
        tuple(shapes[n][2:] for n in order),
        tuple(len(levels[n].taps) for n in order),
    )

    def value_layout(n: int, layout: Layout) -> Layout:
        image, channel, *cells = layout.tables
        return Layout(layout.base, (image[::heads], merge(cells), image[:heads], channel))

    def grid_layout(n: int, layout: Layout) -> Layout:
        offsets, own = levels[n].in_grid(layout), levels[n].axes
        image, rows, _, coordinate = layout.tables
        queries = rows[np.arange(len(own.queries)) * own.unit]
        return Layout(offsets[0], (image[::heads], queries, image[:heads], offsets - offsets[0], coordinate))

    def weight_layout(n: int, layout: Layout) -> Layout:
        offsets, own = levels[n].taps[:, [WEIGHT]], levels[n].axes
        tables = (own.images[::heads], own.queries, own.images[:heads], offsets - offsets[0])
        return Layout(offsets[0], tables).after(layout, probe.shape(levels[n].weights))

    weights = {n: origins(Candidate.of(level.weights, probe), probe) for n, level in levels.items()}
    value_shape = (sizes.images, sum(h * w for h, w in sizes.levels), heads, head_dim)
    return Roles(
        sizes,
        tuple(sampled[n] for n in order),
        tuple(_joined(images, order, value_layout, 1, value_shape)),
        tuple(_joined(grids, order, grid_layout, 3, (*sizes.samples, 2))),
        tuple(_joined(weights, order, weight_layout, 3, sizes.samples)),
        tuple(_output(end, flow, sizes) for end, flow in zip(region.ends, region.flows)),
    )


def _levels(flow: Flow) -> dict[int, _Level]:
    """Returns the levels of a sum by the numbers of their samplers."""
    levels: dict[int, _Level] = {}
    places = _axes(flow[0]).places
    for term in flow:
        axes = _axes(term)
        if any(not np.array_equal(a, b) for a, b in zip(axes.places, places, strict=True)):
            raise NotAttention("levels are summed at unlike places")
        taps = term.layout.base + merge(term.summed, 6)
        if taps[:, (IMAGE, CHANNEL)].any():
            raise NotAttention("it holds only some of the images, heads or channels")
        for n in np.unique(taps[:, SAMPLER]):
            if n in levels:
                raise NotAttention("points of one level have weights from several tensors")
            levels[int(n)] = _Level(taps[taps[:, SAMPLER] == n], term.weights, axes)
    return levels


def _axes(term: Term) -> _Axes:
    images, queries = [], []
    for size, step in (part for table in term.layout.tables for part in factors(table)):
        moving = [i for i in (SAMPLER, IMAGE, CHANNEL, ROW, COLUMN) if step[i]]
        if moving == [IMAGE]:
            images.append((step[IMAGE], size, step[WEIGHT]))
        elif moving == [ROW]:
            queries.append((step[ROW], size, step[WEIGHT]))
        elif moving != [CHANNEL]:
            raise NotAttention("an axis of the output runs through several axes of the samples")
        elif step[WEIGHT]:
            raise NotAttention("channels have weights of their own")
    images.sort(reverse=True)
    queries.sort(reverse=True)
    unit = int(queries[-1][0]) if queries else 1
    if [step for step, _, _ in queries] != [unit * n for n in row_major([size for _, size, _ in queries])]:
        raise NotAttention("queries are repeated or left out")
    places = [table[:, (IMAGE, ROW, CHANNEL)] // (1, unit, 1) for table in term.layout.tables]
    weights = (merge([np.arange(n)[:, None] * step for _, n, step in parts]) for parts in (images, queries))
    return _Axes(places, *weights, unit)


def _heads(batch: int, image: Layout, grid: Layout) -> int:
    """Returns how many of a sampler's `batch` images are the heads of one image."""
    tables = (image.tables[0], grid.tables[0])
    seams = [parts for parts in map(factors, tables) if len(parts) == 2]
    if seams:
        return seams[0][1][0]
    # No seam: one image, one head, or both in one axis of all tensors. Heads lie closer than cells, queries.
    closer = [
        0 < abs(other.tables[0][1, 0]) < abs(other.tables[axis][1, 0])
        for other, axis in ((image, 3), (grid, 1))
        if batch > 1 and len(other.tables[axis]) > 1
    ]
    return batch if any(closer) else 1


def _joined(candidates, order, layout_of, axis: int, shape: tuple[int, ...]) -> Iterator[Candidate]:
    """Yields the candidates that all levels share, for all levels together.

    Args:
        candidates: by sampler.
        order: the samplers in the order of the levels.
        layout_of: returns the input's layout for one level.
        axis: along which the operator's input of this shape holds the levels one after another.
    """
    for parts in zip(*(common(candidates) or {n: () for n in order}).values()):
        levels = dict(zip(candidates, parts))
        with contextlib.suppress(LayoutError):
            layout = concat([layout_of(n, levels[n].layout) for n in order], axis)
            yield replace(parts[0], layout=layout.reshape(shape))


def _output(end: ir.Value, flow: Flow, sizes: Sizes) -> Candidate:
    """Returns an end of the region, laid out over [N, Q, M · D]."""
    tables = []
    for place in _axes(flow[0]).places:
        image, head = np.divmod(place[:, 0], sizes.heads)
        row = (image * sizes.queries + place[:, 1]) * sizes.heads + head
        tables.append((row * sizes.head_dim + place[:, 2])[:, None])
    result = (sizes.images, sizes.queries, sizes.heads * sizes.head_dim)
    return Candidate(end, result, Layout(np.zeros(1, np.int64), tuple(tables)))
