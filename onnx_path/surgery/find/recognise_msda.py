"""Deciding whether a region is MSDA, and which of its tensors is value, locations, weights and result.

Letters: N images, S cells, M heads, D channels of a head, Q queries, K points of all levels. A sampler fixes
most
roles: image or head, channel, row and column of the level, x and y. The axes summed over are the points. The
axes that remain in the grid are the queries. All sizes are those of one probe.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """An output's axes through samples and weights: (size, step), where a step has six coordinates."""

    images: list[tuple[int, np.ndarray]]
    queries: list[tuple[int, np.ndarray]]
    unit: int  # rows between two queries

    @property
    def num_queries(self) -> int:
        return math.prod(size for size, _ in self.queries)


@dataclass(frozen=True, eq=False)
class _Tap:
    """One sample and its weight at the first element of an output, as in `regions.SAMPLER`.

    `axes` tells how both move from element to element.
    """

    place: np.ndarray
    weights: ir.Value
    axes: _Axes


def recognise(region: Region, probe: Probe) -> Roles:
    """Finds the roles of a region's tensors.

    Raises:
        NotAttention, LayoutError: the region is not multi-scale deformable attention.
    """
    flow = region.flows[0]
    taps = list(_taps(flow))
    axes = taps[0].axes
    samplers = {sampler.number: sampler for sampler in region.samplers}
    numbers = sorted({int(tap.place[SAMPLER]) for tap in taps})
    levels = {n: samplers[n].images[probe.number] for n in numbers}
    images = {n: origins(level, probe) for n, level in levels.items()}
    grids = {n: samplers[n].locations[probe.number] for n in numbers}
    shapes = {n: level.layout.shape for n, level in levels.items()}
    if len({shape[:2] for shape in shapes.values()}) > 1:
        raise NotAttention("the sampled tensors have unlike numbers of images, heads or channels")
    batch, head_dim = next(iter(shapes.values()))[:2]
    heads = _heads(batch, images[numbers[0]][0].layout, grids[numbers[0]][0].layout)

    shared = common(grids)
    if shared is None:
        raise NotAttention("the levels' locations are in tensors of their own")
    first = {n: shared[n][0].layout for n in numbers}
    by_level: dict[int, list[_Tap]] = {n: [] for n in numbers}
    for tap in taps:
        by_level[int(tap.place[SAMPLER])].append(tap)
    for n, level_taps in by_level.items():
        level_taps.sort(key=lambda tap: (_grid_offset(first[n], tap), tap.place[WEIGHT]))
    order = sorted(numbers, key=lambda n: _grid_offset(first[n], by_level[n][0]))

    def value_layout(n: int, layout: Layout) -> Layout:
        rows = merge(layout.tables[2:])  # [H · W]
        return Layout(layout.base, (*_image_and_head(layout.tables[0], heads), rows, layout.tables[1]))

    def grid_layout(n: int, layout: Layout) -> Layout:
        offsets = np.array([_grid_offset(layout, tap) for tap in by_level[n]])[:, None]
        own = by_level[n][0].axes
        queries = layout.tables[1][np.arange(own.num_queries) * own.unit]
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
    return Roles(
        sizes,
        tuple(levels[n] for n in order),
        tuple(_joined(images, order, value_layout, (0, 2, 1, 3), 1)),
        _shaped(_joined(grids, order, grid_layout, range(5), 3), (*sizes.samples, 2)),
        _shaped(_weights(by_level, order, heads, probe), sizes.samples),
        tuple(_output(end, flow, sizes) for end, flow in zip(region.ends, region.flows)),
    )


def _taps(flow: Flow) -> Iterator[_Tap]:
    places = _places(flow[0])
    for term in flow:
        axes = _axes(term)
        if any(not np.array_equal(a, b) for a, b in zip(_places(term), places, strict=True)):
            raise NotAttention("levels are summed at unlike places")
        for place in term.layout.base + merge(term.summed, 6):
            if place[IMAGE] or place[CHANNEL]:
                raise NotAttention("it holds only some of the images, heads or channels")
            yield _Tap(place, term.weights, axes)


def _places(term: Term) -> list[np.ndarray]:
    """Returns the image or head, the query and the channel along each axis of a tensor: [n, 3] each."""
    axes = _axes(term)
    return [
        np.stack([table[:, IMAGE], table[:, ROW] // axes.unit, table[:, CHANNEL]], 1)
        for table in term.layout.tables
    ]


def _axes(term: Term) -> _Axes:
    images, queries = [], []
    for size, step in (part for table in term.layout.tables for part in factors(table)):
        moving = [i for i in (SAMPLER, IMAGE, CHANNEL, ROW, COLUMN) if step[i]]
        if moving == [IMAGE]:
            images.append((size, step))
        elif moving == [ROW]:
            queries.append((size, step))
        elif moving != [CHANNEL]:
            raise NotAttention("an axis of the output runs through several axes of the samples")
        elif step[WEIGHT]:
            raise NotAttention("channels have weights of their own")
    steps = sorted(((int(step[ROW]), size) for size, step in queries), reverse=True)
    unit = steps[-1][0] if steps else 1
    if [step for step, _ in steps] != [unit * n for n in row_major([size for _, size in steps])]:
        raise NotAttention("queries are repeated or left out")
    return _Axes(images, queries, unit)


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


def _image_and_head(table: np.ndarray, heads: int) -> tuple[np.ndarray, np.ndarray]:
    return table[::heads], table[:heads]


def _grid_offset(layout: Layout, tap: _Tap) -> int:
    rows, columns = layout.tables[1:3]
    return int(layout.base[0] + rows[tap.place[ROW], 0] + columns[tap.place[COLUMN], 0])


def _joined(candidates, order, layout_of, axes, axis) -> Iterator[Candidate]:
    """Yields the candidates that all levels share, for all levels together.

    Args:
        candidates: by sampler.
        order: of the levels.
        layout_of: returns the input's layout for one level.
        axes: the order of that layout's axes in the operator's input.
        axis: along which the operator's input holds the levels one after another.
    """
    for parts in zip(*(common(candidates) or {n: () for n in order}).values()):
        levels = dict(zip(candidates, parts))
        with contextlib.suppress(LayoutError):
            layouts = [layout_of(n, levels[n].layout).transpose(axes) for n in order]
            yield replace(parts[0], layout=concat(layouts, axis))


def _shaped(candidates: Iterable[Candidate], shape: tuple[int, ...]) -> tuple[Candidate, ...]:
    """Splits points into levels where the operator expects it."""
    return tuple(replace(c, layout=c.layout.reshape(shape)) for c in candidates)


def _weights(by_level: Mapping[int, Sequence[_Tap]], order, heads: int, probe: Probe) -> Iterator[Candidate]:
    """Returns the candidates for the weights, [N, Q, M, K]."""
    candidates = {}
    for n in order:
        axes = by_level[n][0].axes
        batch = math.prod(size for size, _ in axes.images)
        image, head = _image_and_head(_weight_table(batch, axes.images, IMAGE, 1), heads)
        queries = _weight_table(axes.num_queries, axes.queries, ROW, axes.unit)
        sources = {tap.weights for tap in by_level[n]}
        if len(sources) > 1:
            raise NotAttention("points of one level have weights from several tensors")
        source = sources.pop()
        offsets = np.array([[tap.place[WEIGHT]] for tap in by_level[n]])
        layout = Layout(offsets[0], (image, queries, head, offsets - offsets[0]))
        candidates[n] = origins(replace(Candidate.of(source, probe), layout=layout), probe)
    return _joined(candidates, order, lambda n, layout: layout, range(4), 3)


def _weight_table(size: int, parts, coordinate: int, unit: int) -> np.ndarray:
    table = np.zeros((size, 1), np.int64)
    for count, step in parts:
        table[:, 0] += np.arange(size) * unit // int(step[coordinate]) % count * int(step[WEIGHT])
    return table


def _output(end: ir.Value, flow: Flow, sizes: Sizes) -> Candidate:
    """Returns an end of the region, laid out over [N, Q, M · D]."""
    tables = []
    for place in _places(flow[0]):
        image, head = np.divmod(place[:, 0], sizes.heads)
        row = (image * sizes.queries + place[:, 1]) * sizes.heads + head
        tables.append((row * sizes.head_dim + place[:, 2])[:, None])
    result = (sizes.images, sizes.queries, sizes.heads * sizes.head_dim)
    return Candidate(end, result, Layout(np.zeros(1, np.int64), tuple(tables)))
