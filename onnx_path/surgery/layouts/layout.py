"""Layouts: the origin of each element of a tensor, through reshapes, transposes, slices and concatenations.

The element at (i, j, …) has the origin `base + tables[0][i] + tables[1][j] + …`. An origin is a vector of k
whole numbers: the flat index into a source tensor (k = 1), or the coordinates of a sample. One table per axis
makes tracing 20,000 queries as cheap as tracing two. MSDA produces no tensor whose origins are not such a
sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


class LayoutError(ValueError):
    """No layout, or not the requested one, expresses where elements come from."""


@dataclass(frozen=True, eq=False)
class Layout:
    """The origins of a tensor's elements.

    Attributes:
        base: [k], the origin of element (0, 0, …).
        tables: for each axis [n, k], the change of the origin along it; row 0 is zero.
    """

    base: np.ndarray
    tables: tuple[np.ndarray, ...]

    @staticmethod
    def of(shape: Sequence[int]) -> Layout:
        """Returns the layout of a tensor over itself: flat indices, row by row; k = 1."""
        if 0 in shape:
            raise LayoutError(f"a tensor of shape {list(shape)} is empty")
        strides = row_major(shape)
        tables = tuple(np.arange(n)[:, None] * stride for n, stride in zip(shape, strides))
        return Layout(np.zeros(1, np.int64), tables)

    @staticmethod
    def coordinates(shape: Sequence[int], tag: int) -> Layout:
        """Returns the layout with origins (tag, i, j, …) of the elements at (i, j, …); k = 1 + rank."""
        units = np.eye(1 + len(shape), dtype=np.int64)
        return Layout(
            units[0] * tag, tuple(np.arange(n)[:, None] * units[1 + i] for i, n in enumerate(shape))
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(table) for table in self.tables)

    def transpose(self, order: Sequence[int]) -> Layout:
        return Layout(self.base, tuple(self.tables[axis] for axis in order))

    def take(self, axis: int, indices: np.ndarray) -> Layout:
        """Selects along an axis as Slice, Split and Gather do; negative indices count from the end."""
        table = self.tables[axis][np.atleast_1d(indices)]
        return self._with(axis, table - table[0], self.base + table[0])

    def expand(self, shape: Sequence[int]) -> Layout:
        """Broadcasts to a shape: new axes and axes of size 1 repeat."""
        missing = len(shape) - len(self.tables)
        still = np.zeros((1, len(self.base)), np.int64)
        tables = []
        for table, size in zip((still,) * missing + self.tables, shape, strict=True):
            if len(table) not in (1, size):
                raise LayoutError(f"a tensor of shape {list(self.shape)} does not broadcast to {list(shape)}")
            tables.append(table if len(table) == size else np.repeat(table, size, axis=0))
        return Layout(self.base, tuple(tables))

    def reshape(self, shape: Sequence[int]) -> Layout:
        """Splits and merges axes.

        Raises:
            LayoutError: the origins along a new axis are no sum.
        """
        if math.prod(shape) != math.prod(self.shape):
            raise LayoutError(f"{list(self.shape)} has not as many elements as {list(shape)}")
        tables: list[np.ndarray] = []
        old, new = 0, 0
        while old < len(self.tables) or new < len(shape):
            first_old, first_new = old, new
            have, want = 1, 1
            while have != want or (old == first_old and new == first_new):
                if (have <= want and old < len(self.tables)) or new == len(shape):
                    have *= len(self.tables[old])
                    old += 1
                else:
                    want *= shape[new]
                    new += 1
            merged = merge(self.tables[first_old:old], len(self.base))
            tables += split(merged, shape[first_new:new])
        return Layout(self.base, tuple(tables))

    def indices(self) -> np.ndarray:
        """Returns the flat index of every element's origin (k = 1), in the layout's shape."""
        indices = self.base
        for table in self.tables:
            indices = indices[..., None, :] + table
        return indices[..., 0]

    def after(self, other: Layout, shape: Sequence[int]) -> Layout:
        """Composes this layout over a tensor T with T's layout over its own source.

        Args:
            other: the layout of T.
            shape: the sizes of T, which turn this layout's flat indices into coordinates.
        """
        start = np.unravel_index(self.base[0], shape)
        base = other.base + sum(table[i] for table, i in zip(other.tables, start))
        tables = []
        for table in self.tables:
            places = np.unravel_index(self.base[0] + table[:, 0], shape)
            origins = other.base + sum(inner[i] for inner, i in zip(other.tables, places))
            tables.append(np.broadcast_to(origins, (len(table), len(base))) - base)
        return Layout(base, tuple(tables))

    def beside(self, other: Layout) -> Layout:
        """Joins the origins of two layouts of one shape: k = k + k of `other`."""
        pairs = zip(self.tables, other.tables, strict=True)
        return Layout(np.hstack([self.base, other.base]), tuple(map(np.hstack, pairs)))

    def _with(self, axis: int, table: np.ndarray, base: np.ndarray) -> Layout:
        axis %= len(self.tables)
        return Layout(base, (*self.tables[:axis], table, *self.tables[axis + 1 :]))


def concat(layouts: Sequence[Layout], axis: int) -> Layout:
    """Joins layouts along an axis.

    Raises:
        LayoutError: they differ along another axis.
    """
    first = layouts[0]
    axis %= len(first.tables)
    for layout in layouts[1:]:
        for i, (table, expected) in enumerate(zip(layout.tables, first.tables, strict=True)):
            if i != axis and not np.array_equal(table, expected):
                raise LayoutError("the joined tensors are laid out differently")
    table = np.concatenate([layout.base - first.base + layout.tables[axis] for layout in layouts])
    return first._with(axis, table, first.base)


def merge(tables: Sequence[np.ndarray], k: int = 1) -> np.ndarray:
    """Returns the table of several axes merged to one, the last running fastest."""
    merged = np.zeros((1, k), np.int64)
    for table in tables:
        merged = (merged[:, None] + table[None]).reshape(-1, k)
    return merged


def split(table: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """Returns the tables of the axes that one axis is split into.

    Raises:
        LayoutError: the origins are no sum over these axes.
    """
    tables = []
    for size in sizes[:-1]:
        grid = table.reshape(size, -1, table.shape[1])
        outer, table = grid[:, 0], grid[0]
        if not np.array_equal(grid, outer[:, None] + table[None]):
            raise LayoutError(
                f"an axis of {math.prod(grid.shape[:2])} elements has no seam to split it by {size}"
            )
        tables.append(outer)
    return [*tables, table] if sizes else []


def factors(table: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Splits a table into axes of even steps: (size, step) each, the last running fastest; none for size 1.

    Raises:
        LayoutError: the table is not made of such axes.
    """
    size = len(table)
    if size == 1:
        return []
    even = (table == np.arange(size)[:, None] * table[1]).all(1)
    run = size if even.all() else int(np.argmin(even))
    if size % run:
        raise LayoutError(f"an axis of {size} elements has uneven steps")
    outer, _ = split(table, (size // run, run))
    return [*factors(outer), (run, table[1])]


def row_major(shape: Sequence[int]) -> list[int]:
    """Returns the strides of a contiguous tensor, in elements."""
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


@dataclass(frozen=True)
class View:
    """Makes a tensor from another with the same elements: Reshape, Transpose, Reshape."""

    source: tuple[int, ...]
    split: tuple[int, ...]
    order: tuple[int, ...]
    result: tuple[int, ...]

    @property
    def num_nodes(self) -> int:
        """The number of nodes that this takes, 0 to 3."""
        if self.order == tuple(range(len(self.order))):
            return int(self.source != self.result)
        moved = tuple(self.split[i] for i in self.order)
        return 1 + (self.split != self.source) + (moved != self.result)


def view(layout: Layout, source: Sequence[int]) -> View:
    """Returns the view that makes the tensor with a layout (k = 1) from its source.

    Raises:
        LayoutError: the tensor omits elements of the source, or repeats some.
    """
    parts = [(size, int(step[0])) for table in layout.tables for size, step in factors(table)]
    by_step = sorted(range(len(parts)), key=lambda i: -parts[i][1])
    sizes = [parts[i][0] for i in by_step]
    if (
        [parts[i][1] for i in by_step] != row_major(sizes)
        or math.prod(sizes) != math.prod(source)
        or layout.base[0]
    ):
        raise LayoutError(
            f"a tensor of shape {list(layout.shape)} is not a view of all of one of {list(source)}"
        )
    order = tuple(by_step.index(i) for i in range(len(parts)))
    kept = [i for i, size in enumerate(source) if size != 1]
    if list(order) != sorted(order) and sizes == [source[i] for i in kept]:  # spares the first Reshape
        ones = [i for i, size in enumerate(source) if size == 1]
        sizes, order = source, (*ones, *(kept[i] for i in order))
    return View(tuple(source), tuple(sizes), order, layout.shape)
