"""What the tensors of a region are: value, sampling locations, attention weights, and their layouts.

Letters: N images, S cells, M heads, D channels of a head, Q queries, K points of all levels. GridSample fixes
most roles (image or head, channel, row and column of the level, x and y); what is summed over are the points;
what is left in the grid are the queries. All sizes are those of one probe.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnx_path.surgery.layouts import Layout, LayoutError, concat, factors, merge, row_major, view
from onnx_path.surgery.origins import Candidate, common, origins
from onnx_path.surgery.probe import Probe
from onnx_path.surgery.regions import ANCHOR, CHANNEL, COLUMN, IMAGE, ROW, Flow, NotAttention, Region, Term


@dataclass(frozen=True)
class Sizes:
    """The operator's sizes at one probe."""

    images: int
    queries: int
    heads: int
    head_dim: int
    levels: tuple[tuple[int, int], ...]  # (H, W)
    points: tuple[int, ...]  # of each level

    @property
    def ragged(self) -> bool:
        """Levels have unlike numbers of points."""
        return len(set(self.points)) > 1

    @property
    def samples(self) -> tuple[int, ...]:
        """The shape of attention_weights."""
        points = (sum(self.points),) if self.ragged else (len(self.points), self.points[0])
        return (self.images, self.queries, self.heads, *points)


@dataclass(frozen=True, eq=False)
class Roles:
    """A region understood, at one probe.

    Attributes:
        sizes: of the operator.
        anchors: numbers of the GridSample nodes in the order of the levels.
        value, locations, weights: tensors that each can be made from, the most upstream first: one list, or
            one list a level where the levels have no tensor in common.
        outputs: the region's ends, laid out over [N, Q, M · D].
    """

    sizes: Sizes
    anchors: tuple[int, ...]
    value: tuple[tuple[Candidate, ...], ...]
    locations: tuple[tuple[Candidate, ...], ...]
    weights: tuple[tuple[Candidate, ...], ...]
    outputs: tuple[Candidate, ...]


@dataclass(frozen=True, eq=False)
class _Axes:
    """How an output's axes run through samples and weights: (size, step) with 5 + 1 coordinates each."""

    images: list[tuple[int, np.ndarray]]
    queries: list[tuple[int, np.ndarray]]
    direction: int  # ROW or COLUMN: where the queries are
    unit: int  # rows or columns between two queries

    @property
    def num_queries(self) -> int:
        return math.prod(size for size, _ in self.queries)


@dataclass(frozen=True, eq=False)
class _Tap:
    """One sample of an output element: which, relative to the element's own coordinates, and its weight.

    `axes` tells how both move from element to element.
    """

    anchor: int
    place: np.ndarray
    weight_source: ir.Value
    weight: int
    axes: _Axes


def understand(region: Region, probe: Probe) -> Roles:
    """Finds the roles of a region's tensors.

    Raises:
        NotAttention, LayoutError: they are not those of multi-scale deformable attention.
    """
    flow = region.flows[0]
    taps = list(_taps(flow))
    axes = taps[0].axes
    numbers = sorted({tap.anchor for tap in taps})
    images = {n: origins(region.anchors[n].inputs[0], probe) for n in numbers}
    grids = {n: origins(region.anchors[n].inputs[1], probe, True, 0.5, 0.5) for n in numbers}
    shapes = {n: probe.shape(region.anchors[n].inputs[0]) for n in numbers}
    if len({shape[:2] for shape in shapes.values()}) > 1:
        raise NotAttention("the sampled tensors have unlike numbers of images, heads or channels")
    batch, head_dim = next(iter(shapes.values()))[:2]
    heads = _heads(batch, images[numbers[0]][0].layout, grids[numbers[0]][0].layout, axes)

    shared = common(grids)
    first = {n: (shared or grids)[n][0].layout for n in numbers}
    by_level: dict[int, list[_Tap]] = {n: [] for n in numbers}
    for tap in taps:
        by_level[tap.anchor].append(tap)
    for n, level_taps in by_level.items():
        level_taps.sort(key=lambda tap: (_grid_offset(first[n], tap), tap.weight))
    if shared:
        order = sorted(numbers, key=lambda n: _grid_offset(first[n], by_level[n][0]))
    else:
        order = sorted(numbers, key=lambda n: (by_level[n][0].weight, n))

    def value_layout(n: int, layout: Layout) -> Layout:
        rows = merge(layout.tables[2:])  # [H · W]
        return Layout(layout.base, (*_image_and_head(layout.tables[0], heads), rows, layout.tables[1]))

    def grid_layout(n: int, layout: Layout) -> Layout:
        offsets = np.array([_grid_offset(layout, tap) for tap in by_level[n]])[:, None]
        own = by_level[n][0].axes
        queries = layout.tables[own.direction - 2][np.arange(own.num_queries) * own.unit]
        image, head = _image_and_head(layout.tables[0], heads)
        return Layout(offsets[0], (image, queries, head, offsets - offsets[0], layout.tables[3]))

    sizes = Sizes(
        batch // heads,
        axes.num_queries,
        heads,
        head_dim,
        tuple(shapes[n][2:] for n in order),
        tuple(len(by_level[n]) for n in order),
    )
    value = _joined(images, order, value_layout, (0, 2, 1, 3), 1)
    return Roles(
        sizes,
        tuple(order),
        value,
        _shaped(_joined(grids, order, grid_layout, range(5), 3), (*sizes.samples, 2), sizes),
        _shaped(_weights(by_level, order, heads, probe), sizes.samples, sizes),
        tuple(_output(end, flow, sizes) for end, flow in zip(region.ends, region.flows)),
    )


def _taps(flow: Flow) -> Iterator[_Tap]:
    places = _places(flow[0])
    for term in flow:
        rank, axes = term.rank, _axes(term)
        if any(not np.array_equal(a, b) for a, b in zip(_places(term), places, strict=True)):
            raise NotAttention("levels are summed at unlike places")
        samples = term.samples.base + merge(term.samples.tables[rank:], 5)
        weights = term.weights.base + merge(term.weights.tables[rank:])
        for place, weight in zip(samples, weights):
            if place[IMAGE] or place[CHANNEL]:
                raise NotAttention("samples of several heads or channels are summed")
            yield _Tap(int(place[ANCHOR]), place, term.weight_source, int(weight[0]), axes)


def _places(term: Term) -> list[np.ndarray]:
    """Which image or head, query and channel a tensor's axes run through: [n, 3] each."""
    axes = _axes(term)
    tables = term.samples.tables[: term.rank]
    return [
        np.stack([table[:, IMAGE], table[:, axes.direction] // axes.unit, table[:, CHANNEL]], 1)
        for table in tables
    ]


def _axes(term: Term) -> _Axes:
    parts = []
    for axis in range(term.rank):
        parts += factors(np.hstack([term.samples.tables[axis], term.weights.tables[axis]]))
    images, queries = [], []
    directions = set()
    for size, step in parts:
        moving = [i for i in (ANCHOR, IMAGE, CHANNEL, ROW, COLUMN) if step[i]]
        if len(moving) != 1 or moving[0] == ANCHOR:
            raise NotAttention("an axis of the output runs through several axes of the samples")
        if moving[0] == IMAGE:
            images.append((size, step))
        elif moving[0] != CHANNEL:
            directions.add(moving[0])
            queries.append((size, step))
        elif step[-1]:
            raise NotAttention("channels have weights of their own")
    if len(directions) > 1:
        raise NotAttention("queries run along rows and columns")
    direction = directions.pop() if directions else ROW
    steps = sorted(((int(step[direction]), size) for size, step in queries), reverse=True)
    unit = steps[-1][0] if steps else 1
    if [step for step, _ in steps] != [unit * n for n in row_major([size for _, size in steps])]:
        raise NotAttention("queries are repeated or left out")
    return _Axes(images, queries, direction, unit)


def _heads(batch: int, image: Layout, grid: Layout, axes: _Axes) -> int:
    """How many of GridSample's `batch` images are the heads of one image."""
    tables = (image.tables[0], grid.tables[0])
    seams = [parts for parts in map(factors, tables) if len(parts) == 2]
    if seams:
        return seams[0][1][0]
    if len(axes.images) == 2:
        return min(axes.images, key=lambda part: part[1][IMAGE])[0]
    # No seam: one image, one head, or both in one axis of all tensors. Heads lie closer than cells, queries.
    closer = [
        0 < abs(other.tables[0][1, 0]) < abs(other.tables[axis][1, 0])
        for other, axis in ((image, 3), (grid, axes.direction - 2))
        if batch > 1 and len(other.tables[axis]) > 1
    ]
    return batch if any(closer) else 1


def _image_and_head(table: np.ndarray, heads: int) -> tuple[np.ndarray, np.ndarray]:
    return table[::heads], table[:heads]


def _grid_offset(layout: Layout, tap: _Tap) -> int:
    rows, columns = layout.tables[1:3]
    return int(layout.base[0] + rows[tap.place[ROW], 0] + columns[tap.place[COLUMN], 0])


def _joined(candidates, order, layout_of, axes, axis) -> tuple[tuple[Candidate, ...], ...]:
    """One list of candidates for all levels, or one a level.

    Args:
        candidates: by anchor.
        order: of the levels.
        layout_of: gives the input's layout for one level.
        axes: the order of that layout's axes in the operator's input.
        axis: along which the levels follow one another there.
    """

    def level(n: int, candidate: Candidate) -> Layout:
        return layout_of(n, candidate.layout).transpose(axes)

    shared = common(candidates)
    if shared is None:
        return tuple(tuple(replace(c, layout=level(n, c)) for c in candidates[n]) for n in order)
    joined = []
    for i, candidate in enumerate(shared[order[0]]):
        try:
            layout = concat([level(n, shared[n][i]) for n in order], axis)
        except LayoutError:
            continue
        joined.append(replace(candidate, layout=layout))
    if not any(_is_view(c) for c in joined) and len(order) > 1:  # a part of it, or levels in another order
        return tuple(tuple(replace(c, layout=level(n, c)) for c in candidates[n]) for n in order)
    return (tuple(joined),)


def _is_view(candidate: Candidate) -> bool:
    try:
        view(candidate.layout, candidate.shape)
    except LayoutError:
        return False
    return True


def _shaped(parts, shape: tuple[int, ...], sizes: Sizes) -> tuple[tuple[Candidate, ...], ...]:
    """Splits points into levels where the operator wants it; parts of one level stay as they are."""
    if len(parts) > 1:
        return parts
    shaped = []
    for c in parts[0]:
        try:
            shaped.append(replace(c, layout=c.layout.reshape(shape)))
        except LayoutError:
            continue
    return (tuple(shaped),)


def _weights(by_level, order, heads: int, probe: Probe) -> tuple[tuple[Candidate, ...], ...]:
    """Candidates for the weights, [N, Q, M, K]."""
    candidates, layouts = {}, {}
    for n in order:
        axes = by_level[n][0].axes
        batch = math.prod(size for size, _ in axes.images)
        image, head = _image_and_head(_weight_table(batch, axes.images, IMAGE, 1), heads)
        queries = _weight_table(axes.num_queries, axes.queries, axes.direction, axes.unit)
        sources = {tap.weight_source for tap in by_level[n]}
        if len(sources) > 1:
            raise NotAttention("points of one level have weights from several tensors")
        source = sources.pop()
        offsets = np.array([[tap.weight] for tap in by_level[n]])
        layouts[n] = Layout(offsets[0], (image, queries, head, offsets - offsets[0]))
        candidates[n] = origins(source, probe)
        shape = probe.shape(source)
        candidates[n] = [replace(c, layout=layouts[n].after(c.layout, shape)) for c in candidates[n]]
    return _joined(candidates, order, lambda n, layout: layout, range(4), 3)


def _weight_table(size: int, parts, coordinate: int, unit: int) -> np.ndarray:
    table = np.zeros((size, 1), np.int64)
    for count, step in parts:
        table[:, 0] += np.arange(size) * unit // int(step[coordinate]) % count * int(step[-1])
    return table


def _output(end: ir.Value, flow: Flow, sizes: Sizes) -> Candidate:
    """The layout of an end of the region over [N, Q, M · D]."""
    tables = []
    for place in _places(flow[0]):
        image, head = np.divmod(place[:, 0], sizes.heads)
        row = (image * sizes.queries + place[:, 1]) * sizes.heads + head
        tables.append((row * sizes.head_dim + place[:, 2])[:, None])
    result = (sizes.images, sizes.queries, sizes.heads * sizes.head_dim)
    return Candidate(end, result, Layout(np.zeros(1, np.int64), tuple(tables)))
