"""Linear layers of a sum: every backend against the reference in float64."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import msda
from benchmarks import linear_of_sum
from benchmarks.linear_of_sum import PROBLEMS, LinearOfSumProblem
from tests.matrix import backends, operator_checks
from tests.matrix.map_operators import (
    Backend,
    Row,
    emulator,
    map_tensors,
    matrix,
    misaligned,
    on_gpu,
    plain_backends,
)

VARIABLE = "MSDA_LINEAR_OF_SUM"
TYPES = backends.GROUP_DTYPES


class Inputs(linear_of_sum.Inputs):
    """The arguments of the operator."""

    def truth(self) -> Tensor:
        return linear_of_sum.truth(self)

    def floor(self) -> float:
        return math.sqrt(math.prod(self.x.shape[:-1]) * len(self.weight))  # numbers of size 1


@dataclass(frozen=True)
class Case:
    """Sizes and contents of a call."""

    rows: tuple[int, ...]  # sizes of x before the last
    inputs_of_row: int = 256
    outputs_of_row: int = 480
    seed: int = 0

    def inputs(self, dtype: torch.dtype, device: str = "cpu") -> Inputs:
        problem = LinearOfSumProblem("", math.prod(self.rows), self.inputs_of_row, self.outputs_of_row)
        inputs = Inputs(*problem.inputs(dtype, "cpu", self.seed))
        shape = (*self.rows, self.inputs_of_row)
        inputs = inputs._replace(x=inputs.x.reshape(shape), addend=inputs.addend.reshape(shape))
        return map_tensors(inputs, lambda x: x.to(device))


ON_GPU = on_gpu(msda.linear_of_sum, VARIABLE, "hopper", backends.SIXTEEN_BIT, backends.no_sm90)
HOPPER = (emulator(msda.linear_of_sum, VARIABLE, "hopper", backends.SIXTEEN_BIT), ON_GPU)
PLAIN = plain_backends(msda.linear_of_sum, VARIABLE, TYPES)


@st.composite
def cases(draw: st.DrawFn, kernel: str | None) -> Case:
    """Draws a case that a kernel can run; None: any."""
    hopper = kernel == "hopper"
    return Case(
        tuple(draw(st.lists(st.integers(1, 8 if hopper else 4), max_size=3))),
        8 * draw(st.integers(1, 32)) if hopper else draw(st.integers(1, 70)),
        32 * draw(st.integers(1, 16)) if hopper else draw(st.integers(1, 70)),
        draw(st.integers(0, 2**16)),
    )


@matrix((*PLAIN, *HOPPER))
def test_drawn_cases(backend: Backend, dtype: torch.dtype) -> None:
    backend.skip_unless_ready(dtype)

    def check(case: Case) -> None:
        backend.check(case.inputs(dtype, backend.device), order=case.seed)

    operator_checks.drawn_cases(backend, cases(backend.kernel), check)


EDGES = [
    Case((0, 3), 16, 8),
    Case((3,), 16, 0),
    Case((2, 3), 1, 1),
    Case((), 24, 40),
    Case((3,), 257, 255),
    Case((3,), 256, 480),
]


@matrix(PLAIN)
@pytest.mark.parametrize("case", EDGES, ids=str)
def test_edges(backend: Backend, dtype: torch.dtype, case: Case) -> None:
    backend.skip_unless_ready(dtype)
    backend.check(case.inputs(dtype, backend.device), order=7)


@matrix(HOPPER)
@pytest.mark.parametrize("sizes", [(64, 32), (72, 256), (192, 288), (256, 512)], ids=str)
@pytest.mark.parametrize("rows", [0, 1, 64, 65, 300, 700])
def test_edges_of_tiles(backend: Backend, dtype: torch.dtype, rows: int, sizes: tuple[int, int]) -> None:
    """Rows that end within a tile of 64, and several tiles for each of the emulator's two multiprocessors."""
    backend.skip_unless_ready(dtype)
    backend.check(Case((rows,), *sizes).inputs(dtype, backend.device), order=rows + 1)


@matrix((ON_GPU,))
@pytest.mark.parametrize("sizes", [(64, 96), (192, 384), (256, 480)], ids=str)
@pytest.mark.parametrize("rows", [129, 8448, 73656])
def test_more_tiles_than_multiprocessors(
    backend: Backend, dtype: torch.dtype, rows: int, sizes: tuple[int, int]
) -> None:
    """Many calls in a row: the times at which tiles arrive differ."""
    backend.skip_unless_ready(dtype)
    inputs = Case((rows,), *sizes).inputs(dtype, backend.device)
    backend.check(inputs)
    first = backend.compute(inputs)
    assert all(torch.equal(backend.compute(inputs), first) for _ in range(20))


@matrix((*PLAIN, *HOPPER))
def test_sums_are_rounded(backend: Backend, dtype: torch.dtype) -> None:
    """1 + 2^-12 becomes 1 in 16 bits, and stays in float32."""
    backend.skip_unless_ready(dtype)
    one, zeros = torch.ones(1, 64), torch.zeros(64)
    inputs = Inputs(one, one / 2**12, 2**12 * torch.eye(64), zeros - 2**12)
    found = backend.compute(map_tensors(inputs, lambda x: x.to(backend.device, dtype)))
    assert torch.equal(found.cpu(), torch.full((1, 64), float(dtype == torch.float32), dtype=dtype))


@matrix((*PLAIN, *HOPPER))
def test_numbers_that_are_not_finite(backend: Backend, dtype: torch.dtype) -> None:
    """They spoil their row only."""
    backend.skip_unless_ready(dtype)
    inputs = Case((70,), 128, 64).inputs(dtype, backend.device)
    spoiled = inputs._replace(x=inputs.x.clone(), addend=inputs.addend.clone())
    spoiled.x[3, 100], spoiled.addend[40, 7], spoiled.x[41, 0] = torch.nan, torch.inf, -torch.inf
    others = torch.tensor([row not in (3, 40, 41) for row in range(70)])
    found, expected = backend.compute(spoiled), backend.compute(inputs)
    assert not found[~others].isfinite().any()
    assert torch.equal(found[others], expected[others])


# The choice.


@pytest.mark.gpu
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
@pytest.mark.parametrize("dtype", backends.SIXTEEN_BIT, ids=str)
def test_layers_of_models(problem: LinearOfSumProblem, dtype: torch.dtype) -> None:
    """The library's choice at the sizes of the benchmarks."""
    backend = on_gpu(msda.linear_of_sum, missing=backends.no_sm90)
    backend.skip_unless_ready(dtype)
    backend.check(Inputs(*problem.inputs(dtype)))


@pytest.mark.gpu
def test_what_hopper_cannot_run() -> None:
    """Sizes, types and addresses: the plain kernel runs, the forced one refuses."""
    ON_GPU.skip_unless_ready(torch.float16)
    fits = Case((100,), 64, 96).inputs(torch.float16, "cuda")
    slow = [
        *(Case((9,), *sizes).inputs(torch.float16, "cuda") for sizes in ((260, 96), (66, 96), (64, 90))),
        Case((9,), 64, 544).inputs(torch.float16, "cuda"),
        Case((100,), 64, 96).inputs(torch.float32, "cuda"),
        fits._replace(x=misaligned(fits.x)),
        fits._replace(addend=misaligned(fits.addend)),
        fits._replace(weight=misaligned(fits.weight)),
    ]
    for inputs in slow:
        on_gpu(msda.linear_of_sum).check(inputs)
        with pytest.raises(RuntimeError, match="not supported"):
            ON_GPU.compute(inputs)


def test_name_of_no_kernel(device: str) -> None:
    inputs = Case((4,), 8, 8).inputs(torch.float16, device)
    operator_checks.unknown_kernel(msda.linear_of_sum, inputs, VARIABLE, "plain, hopper")


# In PyTorch.

SMALL = Case((2, 3), 8, 12)


def test_derivatives(device: str) -> None:
    formula = functools.partial(msda.linear_of_sum_reference.compute, wide=torch.float64)
    inputs = SMALL.inputs(torch.float32, device)
    operator_checks.derivatives_of_formula(msda.linear_of_sum, formula, inputs)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_gradients(dtype: torch.dtype, device: str) -> None:
    operator_checks.gradients(msda.linear_of_sum, Case((8, 16), 24, 32).inputs(dtype, device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_opcheck(dtype: torch.dtype, device: str) -> None:
    operator_checks.registration(torch.ops.msda.linear_of_sum.default, SMALL.inputs(dtype, device))


def test_compile(device: str) -> None:
    samples = [case.inputs(torch.float32, device) for case in (SMALL, Case((3, 8), 9, 7))]
    operator_checks.compiles(msda.linear_of_sum, samples)


def test_export() -> None:
    """All sizes of x but the last are dynamic."""
    tensors, others = (case.inputs(torch.float32) for case in (SMALL, Case((4, 7), 8, 12)))
    operator = torch.ops.msda.linear_of_sum.default
    operator_checks.exports(operator, msda.linear_of_sum, tensors, others, dynamic=2)


@pytest.mark.parametrize("dtype", backends.SIXTEEN_BIT, ids=str)
def test_autocast(dtype: torch.dtype, device: str) -> None:
    inputs = SMALL.inputs(torch.float32, device)
    operator_checks.autocast(msda.linear_of_sum, inputs, dtype, float64=False)


def test_strided_inputs(device: str) -> None:
    inputs = SMALL.inputs(torch.float16, device)
    strided = inputs._replace(
        x=inputs.x.transpose(0, 1).contiguous().transpose(0, 1),
        weight=inputs.weight.T.contiguous().T,
        bias=torch.stack((inputs.bias, inputs.bias), 1)[:, 0],
    )
    found = msda.linear_of_sum(*strided)
    assert found.is_contiguous() and torch.equal(found, msda.linear_of_sum(*inputs))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [300, 40000])
def test_graph_replays(rows: int) -> None:
    ON_GPU.skip_unless_ready(torch.float16)
    operator_checks.replays(msda.linear_of_sum, Case((rows,)).inputs(torch.float16, "cuda"))


# Wrong arguments.

WRONG = (
    Row("x", lambda x: x.tolist(), ("torch.Tensor", "list"), TypeError),
    Row("x", lambda x: x.double(), ("float32, float16 or bfloat16", "torch.float64"), TypeError),
    Row("x", lambda x: x[0, 0, 0], ("[..., K]", "without dimensions")),
    Row("addend", lambda x: x.float(), ("torch.float16 as x", "torch.float32"), TypeError),
    Row("addend", lambda x: x[:1], ("[..., K] = [2, 3, 8]", "[1, 3, 8]")),
    Row("weight", lambda x: x.bfloat16(), ("torch.float16 as x", "torch.bfloat16"), TypeError),
    Row("weight", lambda x: x[:, 1:], ("[N, K] = [12, 8]", "[12, 7]")),
    Row("weight", lambda x: x[0], ("[N, K]", "[8]")),
    Row("bias", lambda x: None, ("torch.Tensor", "NoneType"), TypeError),
    Row("bias", lambda x: x[1:], ("[N] = [12]", "[11]")),
)
# PyTorch calls the implementation for meta tensors, which reads nothing.
ANOTHER_DEVICE = Row("bias", lambda x: x.to("meta"), ("cpu as x", "meta"))


@pytest.mark.parametrize("row", (*WRONG, ANOTHER_DEVICE), ids=str)
def test_wrong_argument(row: Row) -> None:
    for module in (msda, msda.linear_of_sum_reference):
        row.check(module.linear_of_sum, SMALL.inputs(torch.float16))


@pytest.mark.parametrize("row", WRONG, ids=str)
def test_raw_operator_is_safe(row: Row, device: str) -> None:
    row.check_raw(torch.ops.msda.linear_of_sum, SMALL.inputs(torch.float16, device))
