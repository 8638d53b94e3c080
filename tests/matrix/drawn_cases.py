"""Strategies of hypothesis for the operator: sizes, contents, memory layouts and types.

A `Case` is what hypothesis drew: small and printable, so that a failing example can be read and run again. It
makes its tensors on any device. `smooth` cases keep every sample away from the kinks of bilinear
interpolation, which are at the cell centres: the derivative is not defined there, and implementations may
differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from hypothesis import assume
from hypothesis import strategies as st

from benchmarks.problems import AttentionInputs, FusedInputs, Problem

POSITIONS = ("inside", "centres", "borders", "edges", "outside", "huge", "nan", "infinite")
"""Where samples lie. centres: exactly on cell centres; borders: exactly between cells; edges: 0, 1 and half a
cell beyond either, where a sample begins to count; outside: up to two levels away. Huge, NaN and infinite
samples count zero."""

LAYOUTS = ("contiguous", "strided", "expanded", "transposed", "unaligned")
"""Memory of a tensor. strided: every second element; expanded: one batch entry with stride 0; transposed:
batch and second dimension swapped in memory; unaligned: the tensor begins one element into its storage."""

GROUP_HEADS = (16, 32, 64)
"""The channels of a head that the group kernels are compiled for (kernels/include/msda/forward_choice.h)."""

FORMS = ("any", "one_of_heads", "known_levels")
"""Problems that a kernel takes: any; heads of GROUP_HEADS; or `has_known_levels` of forward_choice.h."""

RAGGED = ((2, 0, 5),)
"""Ragged lists for a backend that is built for one list, for example a TensorRT engine."""

COLUMNS = (
    Problem("columns_16_bytes", 2, ((5, 9), (3, 4), (2, 3), (2, 2), (2, 2)), 71, num_heads=8),
    Problem("columns_of_pairs", 2, ((5, 9), (3, 4), (2, 3)), 71, num_heads=2, head_dim=16, num_points=3),
    Problem("columns_of_numbers", 2, ((5, 9),), 71, num_heads=1, head_dim=8, num_points=3),
)
"""For packed cases: queries whose 16-bit numbers have different alignments, which decide the kernel."""


@dataclass(frozen=True)
class Case:
    """One drawn call of the operator.

    Attributes:
        problem: its sizes.
        fused: `fused_attention` instead of `attention`.
        positions: which of POSITIONS occur; one is picked at random for every sample.
        layouts: memory of the three large tensors: value, locations or offsets, weights or logits.
        packed: the last two are columns of one tensor [N, Q, 3 * M * K], whose memory is layouts[1].
        wide_locations: locations and weights (offsets and logits) in fp32 beside a 16-bit value.
        index_dtype: of spatial_shapes and level_start_index.
        seed: of the numbers.
        smooth: samples keep 0.1 cells away from cell centres; `positions` is ignored.
    """

    problem: Problem
    fused: bool
    positions: tuple[str, ...] = ("inside",)
    layouts: tuple[str, str, str] = ("contiguous",) * 3
    packed: bool = False
    wide_locations: bool = False
    index_dtype: torch.dtype = torch.int64
    seed: int = 0
    smooth: bool = False

    def inputs(self, dtype: torch.dtype, device: str = "cpu") -> AttentionInputs | FusedInputs:
        """The arguments of the operator, already rounded to their types.

        Args:
            dtype: of value; the rest follows.
            device: "cpu" or "cuda"; the numbers are the same on both.
        """
        problem = self.problem
        generator = torch.Generator().manual_seed(self.seed)
        value_shape = (problem.batch, problem.num_cells, problem.num_heads, problem.head_dim)
        value = torch.randn(value_shape, generator=generator, dtype=torch.float64)
        shape = (problem.batch, problem.num_queries, problem.num_heads, problem.total_points)
        cells = self._cells(generator, shape)  # [N, Q, M, K, 2], pixels of the level
        logits = torch.randn(shape, generator=generator, dtype=torch.float64)
        small = torch.float32 if self.wide_locations and dtype.itemsize == 2 else dtype
        locations = (cells + 0.5) / self._level_sizes()
        shapes, starts = problem.index_tensors(device, self.index_dtype)
        points = None if problem.points_per_level is None else list(problem.points_per_level)

        def lay_out(*tensors: torch.Tensor) -> Iterator[torch.Tensor]:
            tensors = tuple(tensor.to(small) for tensor in tensors)
            if self.packed:
                projection = torch.cat([tensor.flatten(2) for tensor in tensors], -1)
                columns = [math.prod(tensor.shape[2:]) for tensor in tensors]
                parts = with_layout(projection, self.layouts[1], device).split(columns, -1)
                return (part.unflatten(-1, x.shape[2:]) for part, x in zip(parts, tensors, strict=True))
            return (
                with_layout(x, layout, device) for x, layout in zip(tensors, self.layouts[1:], strict=True)
            )

        value = with_layout(value.to(dtype), self.layouts[0], device)
        if not self.fused:
            weights = problem.per_level(logits.softmax(-1))
            locations = problem.per_level(locations)
            return AttentionInputs(value, shapes, starts, *lay_out(locations, weights), points)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        reference = torch.rand(
            (*shape[:2], problem.num_levels, problem.reference_dim), generator=generator, dtype=torch.float64
        )
        reference[..., 2:] = reference[..., 2:] * 0.5 + 0.05
        reference = reference.to(wide)
        origin = problem.to_points(reference[..., :2].double())
        offsets = (locations - origin) / problem.cells_to_unit(reference.double())
        return FusedInputs(
            value,
            shapes,
            starts,
            reference.to(device),
            *lay_out(problem.per_level(offsets), logits),
            points,
        )

    def _level_sizes(self) -> torch.Tensor:
        """(W, H) of each point's level: [K, 2] float64."""
        levels = torch.tensor(self.problem.spatial_shapes, dtype=torch.float64).flip(-1)
        return levels.repeat_interleave(torch.tensor(self.problem.points), 0)

    def _cells(self, generator: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
        """Sample positions [N, Q, M, K, 2] = (x, y) in cells of the level; 0 is the first cell's centre."""
        sizes = self._level_sizes()
        uniform = torch.rand((*shape, 2), generator=generator, dtype=torch.float64)
        if self.smooth:
            # -2 .. size - 1: some samples lie outside, or half outside.
            cell = (uniform * (sizes + 2)).floor() - 2
            fraction = torch.rand((*shape, 2), generator=generator, dtype=torch.float64)
            return cell + 0.1 + 0.8 * fraction
        cell = (uniform * sizes).floor()
        sign = (torch.rand((*shape, 2), generator=generator) < 0.5).double() * 2 - 1
        choices = {
            "inside": uniform * sizes - 0.5,
            "centres": cell,
            "borders": cell - 0.5,
            "edges": torch.where(sign > 0, sizes, -1.0) - 0.5 * (uniform * 3).floor() * sign,
            "outside": (uniform - 0.5) * 5 * sizes,
            "huge": sign * 10.0 ** (4 + 30 * uniform),
            "nan": torch.full_like(uniform, math.nan),
            "infinite": sign * math.inf,
        }
        pick = torch.randint(len(self.positions), (*shape, 2), generator=generator)
        # One coordinate in four picks alone, so that (nan, inside) and (border, outside) occur too.
        own = torch.rand((*shape, 1), generator=generator) < 0.25
        pick = torch.where(own, pick, pick[..., :1])
        candidates = torch.stack([choices[name] for name in self.positions])
        return candidates.gather(0, pick[None])[0]


def smooth_inputs(
    problem: Problem,
    operator: str,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 21,
    gradients: bool = False,
) -> AttentionInputs | FusedInputs:
    """Inputs whose samples keep away from the kinks; with `gradients`, floating tensors want theirs."""
    inputs = Case(problem, operator != "attention", seed=seed, smooth=True).inputs(dtype, device)
    for tensor in inputs[:-1] if gradients else ():
        tensor.requires_grad_(tensor.is_floating_point())
    return inputs


def takes(form: str, problem: Problem) -> bool:
    """Whether kernels of one of FORMS take a problem's heads, levels and points."""
    if form == "any":
        return True
    if form == "known_levels":
        size = problem.num_heads, problem.head_dim, problem.num_points, problem.points_per_level
        return problem.num_cells >= 4 and size == (8, 32, 4, None) and 3 <= problem.num_levels <= 5
    return problem.num_cells >= 4 and problem.head_dim in GROUP_HEADS


def with_layout(tensor: torch.Tensor, layout: str, device: str = "cpu") -> torch.Tensor:
    """Equal numbers in another memory layout ("expanded" repeats the first batch entry instead)."""
    if layout == "expanded" and tensor.shape[0] > 0:
        return tensor[:1].contiguous().to(device).expand(tensor.shape)
    if layout == "strided":
        wide = torch.full((*tensor.shape, 2), math.nan, dtype=tensor.dtype, device=device)
        wide[..., 0] = tensor.to(device)
        return wide[..., 0]
    if layout == "transposed":
        return tensor.transpose(0, 1).contiguous().to(device).transpose(0, 1)
    if layout == "unaligned":
        late = torch.full((tensor.numel() + 1,), math.nan, dtype=tensor.dtype, device=device)
        late[1:] = tensor.reshape(-1).to(device)
        return late[1:].view(tensor.shape)
    return tensor.contiguous().to(device)


def levels(min_levels: int = 1, max_levels: int = 4) -> st.SearchStrategy[tuple[tuple[int, int], ...]]:
    """Level sizes: each side 1 to 9 cells, often one cell; or each side 2 to 9, because kernels take another
    path for a level with a single row or column."""
    side = st.integers(1, 9)
    any_size = st.one_of(
        st.tuples(side, side), st.just((1, 1)), st.tuples(st.just(1), side), st.tuples(side, st.just(1))
    )
    wide_side = st.integers(2, 9)
    lists = [
        st.lists(size, min_size=min_levels, max_size=max_levels)
        for size in (st.tuples(wide_side, wide_side), any_size)
    ]
    return st.one_of(lists).map(tuple)


@st.composite
def problems(draw: st.DrawFn, ragged: Iterable[tuple[int, ...]] | None = None) -> Problem:
    """Draws sizes, Q = 0 and N = 0 among them.

    Args:
        ragged: the only ragged lists to draw from; None draws any.
    """
    points = None
    if draw(st.booleans()):
        if ragged is None:
            lists = st.lists(st.integers(0, 6), min_size=1, max_size=4).filter(any).map(tuple)
        else:
            lists = st.sampled_from(tuple(ragged))
        points = draw(lists)
    shapes = draw(levels(len(points), len(points)) if points else levels())
    return Problem(
        name="drawn",
        batch=draw(st.sampled_from((1, 2, 3, 0))),
        spatial_shapes=shapes,
        num_queries=draw(st.integers(0, 12) | st.integers(13, 70)),
        num_heads=draw(st.sampled_from((1, 2, 3, 5, 8))),
        head_dim=draw(st.sampled_from((1, 2, 3, 4, 7, 8, 12, 16, 20, 32, 33, 40, 64))),
        num_points=draw(st.sampled_from((1, 2, 3, 4, 5, 8))),
        points_per_level=points,
        reference_dim=draw(st.sampled_from((2, 4))),
    )


@st.composite
def cases(
    draw: st.DrawFn,
    fused: bool,
    ragged: Iterable[tuple[int, ...]] | None = None,
    smooth: bool = False,
    form: str = "any",
) -> Case:
    """Draws a call of one of FORMS; see `problems` and `Case` for the other parameters."""
    layout = st.sampled_from([layout for layout in LAYOUTS if form == "any" or layout != "unaligned"])
    problem = draw(problems(ragged))
    packed = draw(st.booleans())
    if form == "known_levels":
        sizes = {"num_heads": 8, "head_dim": 32, "num_points": 4, "points_per_level": None}
        problem = replace(problem, spatial_shapes=draw(levels(3, 5)), **sizes)
        assume(problem.num_cells >= 4)
    elif form == "one_of_heads":
        assume(problem.num_cells >= 4)
        # Those kernels read an offset's x and y at once.
        assume(not packed or problem.num_heads * problem.total_points % 2 == 0)
        problem = replace(problem, head_dim=draw(st.sampled_from(GROUP_HEADS)))
    return Case(
        problem=problem,
        fused=fused,
        positions=("inside",) if smooth else tuple(draw(st.sets(st.sampled_from(POSITIONS), min_size=1))),
        layouts=draw(st.tuples(layout, layout, layout)),
        packed=packed,
        wide_locations=form != "known_levels" and draw(st.booleans()),
        index_dtype=draw(st.sampled_from((torch.int64, torch.int32))),
        seed=draw(st.integers(0, 2**16)),
        smooth=smooth,
    )
