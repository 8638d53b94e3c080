"""Group normalisation of the levels of a pyramid: every backend against the reference in float64."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import msda
from benchmarks.operator_errors import TOLERANCE, relative_error
from msda.quantized_linear_reference import quantize
from tests.matrix import operator_checks
from tests.matrix.against_reference import FLOOR
from tests.matrix.map_operators import Backend, Row, emulator, matrix, on_gpu, plain_backends

VARIABLE = "MSDA_GROUP_NORM"


class Inputs(NamedTuple):
    """The arguments of the operator."""

    levels: Sequence[Tensor]
    weights: Sequence[Tensor]
    biases: Sequence[Tensor]
    num_groups: int
    eps: float
    next_scale: float | None

    def changed(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        """The inputs with every tensor changed."""
        return Inputs(*([change(x) for x in tensors] for tensors in self[:3]), *self[3:])


@dataclass(frozen=True)
class Case:
    """Sizes of a call."""

    cells: tuple[int, ...]  # of each level
    num_groups: int = 4
    group_size: int = 8
    batch: int = 2
    next_scale: float | None = None
    seed: int = 0

    def inputs(self, dtype: torch.dtype, device: str = "cpu") -> Inputs:
        """Normal numbers, with another mean and scale in each level."""
        generator = torch.Generator().manual_seed(self.seed)
        draw = functools.partial(torch.randn, generator=generator, dtype=torch.float64)
        channels, count = self.num_groups * self.group_size, len(self.cells)
        levels = [draw(self.batch, cells, channels) * (1 + i) + i for i, cells in enumerate(self.cells)]
        weights, biases = ([draw(channels) for _ in range(count)] for _ in range(2))
        inputs = Inputs(levels, weights, biases, self.num_groups, 1e-5, self.next_scale)
        return inputs.changed(lambda x: x.to(device, dtype))


def check(backend: Backend, inputs: Inputs, order: int = 0) -> None:
    """Fails unless the result is as near to the truth as its type allows, and int8 is that of the result."""
    found = backend.compute(inputs, order)
    if inputs.next_scale is not None:
        found, quantized = found
        factor = 1 / torch.tensor(inputs.next_scale, device=found.device)
        assert quantized.dtype == torch.int8 and quantized.is_contiguous()
        assert torch.equal(quantized, quantize(found.float() * factor, torch.int8))
    wide = inputs.changed(Tensor.double)
    expected = msda.group_norm_reference.group_norm_levels(*wide[:5])
    assert found.dtype == inputs.levels[0].dtype and found.shape == expected.shape and found.is_contiguous()
    first = 0
    for level in inputs.levels:  # the error of a small level counts as that of a large one
        part = slice(first, first := first + level.shape[1])
        error = relative_error(found[:, part], expected[:, part], FLOOR * level.numel() ** 0.5)
        assert error <= TOLERANCE[found.dtype], f"relative error {error:.2e} from cell {part.start}"


PLAIN = plain_backends(msda.group_norm_levels, VARIABLE)
VECTORS = tuple(make(msda.group_norm_levels, VARIABLE, "vectors") for make in (emulator, on_gpu))


@st.composite
def cases(draw: st.DrawFn, vectors: bool) -> Case:
    group_size = draw(st.integers(1, 4))
    return Case(
        tuple(draw(st.lists(st.integers(1, 150), min_size=1, max_size=8))),
        draw(st.integers(1, 20)),
        8 * group_size if vectors else group_size,
        draw(st.integers(1, 3)),
        draw(st.sampled_from([None, 0.021])),
        draw(st.integers(0, 2**16)),
    )


@matrix((*PLAIN, *VECTORS))
def test_drawn_cases(backend: Backend, dtype: torch.dtype) -> None:
    backend.skip_unless_ready(dtype)
    vectors = st.just(True) if backend.kernel == "vectors" else st.booleans()

    def check_case(case: Case) -> None:
        check(backend, case.inputs(dtype, backend.device), order=case.seed)

    operator_checks.drawn_cases(backend, vectors.flatmap(cases), check_case)


EDGES = [
    Case((960, 240, 60, 15, 4), 32, 8, 1, 0.021),  # a Co-DETR's pyramid
    Case((1, 0, 5), next_scale=0.021),
    Case((0, 3)),
    Case((1,) * 8),
    Case((7, 5), 3, 5, next_scale=0.5),
    Case((40, 3), batch=0),
]


@matrix(PLAIN)
@pytest.mark.parametrize("case", EDGES, ids=str)
def test_edges(backend: Backend, dtype: torch.dtype, case: Case) -> None:
    backend.skip_unless_ready(dtype)
    check(backend, case.inputs(dtype, backend.device), order=7)


@matrix(tuple(backend for backend in VECTORS if backend.device == "cuda"))
@pytest.mark.parametrize("batch", [1, 8])
def test_large_levels(backend: Backend, dtype: torch.dtype, batch: int) -> None:
    """A part for each multiprocessor: Co-DETR at 768x1152."""
    backend.skip_unless_ready(dtype)
    case = Case((55296, 13824, 3456, 864, 216), 32, 8, batch, 0.021)
    check(backend, case.inputs(dtype, "cuda"))


def test_maps(device: str) -> None:
    """A map [N, C, H, W] gives the numbers of its cells, in any layout in memory."""
    inputs = Case((12, 35, 6), next_scale=0.021).inputs(torch.float16, device)
    expected = msda.group_norm_levels(*inputs)
    cells, others = inputs.levels[1], inputs.levels[::2]
    innermost = cells.unflatten(1, (5, 7)).permute(0, 3, 1, 2)
    for level in (innermost, innermost.contiguous()):
        found = msda.group_norm_levels([others[0], level, others[1]], *inputs[1:])
        assert all(map(torch.equal, found, expected))


def test_one_level_is_group_norm(device: str) -> None:
    inputs = Case((300,)).inputs(torch.float16, device)
    single = (tensors[0] for tensors in inputs[:3])
    assert torch.equal(msda.group_norm_levels(*inputs), msda.group_norm(*single, *inputs[3:5]))


@pytest.mark.parametrize("next_scale", [None, 0.021])
def test_opcheck(next_scale: float | None, device: str) -> None:
    inputs = Case((5, 3), next_scale=next_scale).inputs(torch.float16, device)
    torch.library.opcheck(torch.ops.msda.group_norm_levels.default, tuple(inputs))


WRONG = (
    Row("levels", lambda x: x[0], ("list of tensors", "Tensor"), TypeError),
    Row("levels", lambda x: [], ("1 to 8 tensors", "0")),
    Row("weights", lambda x: x[:1], ("2 tensors as levels", "1")),
    Row("next_scale", lambda x: 0.0, ("above 0", "0.0")),
    Row("num_groups", lambda x: 2.0, ("int", "2.0"), TypeError),
    Row("num_groups", lambda x: 0, ("1 or more", "0")),
    Row("eps", lambda x: 0.0, ("above 0", "0.0")),
)
WRONG_ITEMS = (
    Row("levels[1]", lambda x: x.float(), ("torch.float16 as levels[0]", "torch.float32"), TypeError),
    Row("levels[1]", lambda x: x[:1], ("N and C of levels[0], 2 and 32", "[1, 3, 32]")),
    Row("levels[0]", lambda x: x[0], ("[N, S, C] or [N, C, H, W]", "[5, 32]")),
    Row("weights[1]", lambda x: x[:5], ("[C] = [32]", "[5]")),
    Row("biases[0]", lambda x: x.double(), ("torch.float16 as levels[0]", "torch.float64"), TypeError),
)


def in_list(row: Row) -> Row:
    """The wrong argument as a list with one wrong tensor."""
    name, index = row.argument.rstrip("]").split("[")

    def change(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return [row.change(x) if i == int(index) else x for i, x in enumerate(tensors)]

    return row._replace(argument=name, change=change)


@pytest.mark.parametrize("row", (*WRONG, *WRONG_ITEMS), ids=str)
def test_wrong_argument(row: Row) -> None:
    inputs = Case((5, 3)).inputs(torch.float16)
    arguments = (in_list(row) if "[" in row.argument else row).wrong(inputs)
    for module in (msda, msda.group_norm_reference):
        with pytest.raises(row.error) as caught:
            module.group_norm_levels(**arguments)
        assert str(caught.value).startswith(f"{row.argument}: "), str(caught.value)
        assert all(part in str(caught.value) for part in row.says), str(caught.value)


@pytest.mark.parametrize("row", (*WRONG, *WRONG_ITEMS), ids=str)
def test_raw_operator_is_safe(row: Row, device: str) -> None:
    inputs = Case((5, 3)).inputs(torch.float16, device)
    (in_list(row) if "[" in row.argument else row).check_raw(torch.ops.msda.group_norm_levels, inputs)
