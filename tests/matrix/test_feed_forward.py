"""Feed-forward blocks: every backend against the reference in float64."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

import msda
from benchmarks import feed_forward
from benchmarks.feed_forward import PROBLEMS, FeedForwardProblem
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

VARIABLE = "MSDA_FEED_FORWARD"
TYPES = backends.GROUP_DTYPES


class Inputs(feed_forward.Inputs):
    """The arguments of the operator."""

    def truth(self) -> Tensor:
        return feed_forward.truth(self)

    def floor(self) -> float:
        return 0.0  # a normalised row has the size of norm_weight and norm_bias


@dataclass(frozen=True)
class Case:
    """Sizes and contents of a call."""

    rows: tuple[int, ...]  # sizes of x before the last
    channels: int = 256
    hidden: int = 2048
    seed: int = 0

    def inputs(self, dtype: torch.dtype, device: str = "cpu") -> Inputs:
        problem = FeedForwardProblem("", math.prod(self.rows), self.channels, self.hidden)
        inputs = Inputs(*problem.inputs(dtype, "cpu", self.seed))
        inputs = inputs._replace(x=inputs.x.reshape(*self.rows, self.channels))
        return map_tensors(inputs, lambda x: x.to(device))


ON_GPU = on_gpu(msda.feed_forward, VARIABLE, "hopper", backends.SIXTEEN_BIT, backends.no_sm90)
SPLIT_ON_GPU = on_gpu(msda.feed_forward, VARIABLE, "split", backends.SIXTEEN_BIT, backends.no_sm90)
HOPPER = (
    *(emulator(msda.feed_forward, VARIABLE, kernel, backends.SIXTEEN_BIT) for kernel in ("hopper", "split")),
    ON_GPU,
    SPLIT_ON_GPU,
)
"""Kernels for compute capability 9.0."""
PLAIN = plain_backends(msda.feed_forward, VARIABLE, TYPES)


@st.composite
def cases(draw: st.DrawFn, kernel: str | None) -> Case:
    """Draws a case that a kernel can run; None: any."""
    hopper = kernel in ("hopper", "split")
    return Case(
        tuple(draw(st.lists(st.integers(1, 8 if hopper else 4), max_size=3))),
        # The variance of a few numbers may be close to zero, and then the result magnifies their rounding.
        256 if hopper else draw(st.integers(16, 70)),
        64 * draw(st.integers(1, 6)) if hopper else draw(st.integers(1, 300)),
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
    Case((2, 3), 1, 1),  # a variance of zero
    Case((), 24, 40),
    Case((3,), 257, 255),
    Case((2,), 1024, 5),
    Case((2,), 16, 8192),
    Case((3,), 256, 64),
]


@matrix(PLAIN)
@pytest.mark.parametrize("case", EDGES, ids=str)
def test_edges(backend: Backend, dtype: torch.dtype, case: Case) -> None:
    backend.skip_unless_ready(dtype)
    backend.check(case.inputs(dtype, backend.device), order=7)


@matrix(HOPPER)
@pytest.mark.parametrize("hidden", [64, 192])
@pytest.mark.parametrize("rows", [0, 1, 64, 65, 300, 700])
def test_edges_of_tiles(backend: Backend, dtype: torch.dtype, rows: int, hidden: int) -> None:
    """Rows that end within a tile of 64, and several rounds on the two multiprocessors of the emulator."""
    backend.skip_unless_ready(dtype)
    backend.check(Case((rows,), hidden=hidden).inputs(dtype, backend.device), order=rows + 1)


@matrix((ON_GPU,))
@pytest.mark.parametrize("hidden", [64, 1024, 2048])
@pytest.mark.parametrize("rows", [129, 16896, 40000])
def test_more_tiles_than_multiprocessors(
    backend: Backend, dtype: torch.dtype, rows: int, hidden: int
) -> None:
    backend.skip_unless_ready(dtype)
    backend.check(Case((rows,), hidden=hidden).inputs(dtype, backend.device))


@matrix((*PLAIN, *HOPPER))
def test_hidden_numbers_are_rounded(backend: Backend, dtype: torch.dtype) -> None:
    """1 + 2^-12 becomes 1 in 16 bits, and stays in float32."""
    backend.skip_unless_ready(dtype)
    x = torch.tensor([1, -1, 1, -1]).repeat(64)
    hidden = torch.tensor([1 + 2**-12, 0, 1 + 2**-12, 0]).repeat(64)
    factors = torch.tensor([2048, 0, 0, 0]).repeat(64)
    ones, zeros = torch.ones(256), torch.zeros(256)
    inputs = Inputs(x[None], torch.eye(256), ones / 2**12, factors.diag(), -factors, ones, zeros, 1e-5)
    found = backend.compute(map_tensors(inputs, lambda x: x.to(backend.device, dtype)))
    y = x.double() + factors * (hidden.to(dtype).double() - 1)
    torch.testing.assert_close(found[0].cpu(), F.layer_norm(y, y.shape).to(dtype))


@matrix((*PLAIN, *HOPPER))
def test_numbers_that_are_not_finite(backend: Backend, dtype: torch.dtype) -> None:
    """They spoil their row only, which becomes NaN."""
    backend.skip_unless_ready(dtype)
    inputs = Case((70,), hidden=64).inputs(dtype, backend.device)
    spoiled = inputs._replace(x=inputs.x.clone())
    spoiled.x[3, 100], spoiled.x[40, 7], spoiled.x[41, 0] = torch.nan, torch.inf, -torch.inf
    others = torch.tensor([row not in (3, 40, 41) for row in range(70)])
    found, expected = backend.compute(spoiled), backend.compute(inputs)
    assert found[~others].isnan().all()
    assert torch.equal(found[others], expected[others])


# The choice.


@pytest.mark.gpu
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
@pytest.mark.parametrize("dtype", backends.SIXTEEN_BIT, ids=str)
def test_blocks_of_models(problem: FeedForwardProblem, dtype: torch.dtype) -> None:
    """The library's choice at the sizes of the benchmarks."""
    backend = on_gpu(msda.feed_forward, missing=backends.no_sm90)
    backend.skip_unless_ready(dtype)
    backend.check(Inputs(*problem.inputs(dtype)))


@pytest.mark.gpu
def test_what_hopper_cannot_run() -> None:
    """Sizes, types and addresses: the plain kernel runs, the forced one refuses."""
    ON_GPU.skip_unless_ready(torch.float16)
    fits = Case((100,), 256, 128).inputs(torch.float16, "cuda")
    slow = [
        *(Case((9,), *sizes).inputs(torch.float16, "cuda") for sizes in ((192, 128), (256, 96), (256, 2112))),
        Case((100,), 256, 128).inputs(torch.float32, "cuda"),
        fits._replace(x=misaligned(fits.x)),
        fits._replace(weight2=misaligned(fits.weight2)),
    ]
    for inputs in slow:
        on_gpu(msda.feed_forward).check(inputs)
        for backend in (ON_GPU, SPLIT_ON_GPU):
            with pytest.raises(RuntimeError, match="not supported"):
                backend.compute(inputs)
    with pytest.raises(RuntimeError, match="not supported"):
        SPLIT_ON_GPU.compute(Case((2049,), 256, 128).inputs(torch.float16, "cuda"))


def test_name_of_no_kernel(device: str) -> None:
    inputs = Case((4,), 8, 8).inputs(torch.float16, device)
    operator_checks.unknown_kernel(msda.feed_forward, inputs, VARIABLE, "plain, hopper, split")


# In PyTorch.

SMALL = Case((2, 3), 8, 12)


def test_derivatives(device: str) -> None:
    formula = functools.partial(msda.feed_forward_reference.compute, wide=torch.float64)
    inputs = Case((2, 3), 16, 12).inputs(torch.float32, device)
    operator_checks.derivatives_of_formula(msda.feed_forward, formula, inputs)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_gradients(dtype: torch.dtype, device: str) -> None:
    operator_checks.gradients(msda.feed_forward, Case((8, 16), 24, 32).inputs(dtype, device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_opcheck(dtype: torch.dtype, device: str) -> None:
    operator_checks.registration(torch.ops.msda.feed_forward.default, SMALL.inputs(dtype, device))


def test_compile(device: str) -> None:
    samples = [case.inputs(torch.float32, device) for case in (SMALL, Case((3, 8), 9, 7))]
    operator_checks.compiles(msda.feed_forward, samples)


def test_export() -> None:
    """All sizes of x but the last are dynamic."""
    tensors, others = (case.inputs(torch.float32)[:-1] for case in (SMALL, Case((4, 7), 8, 12)))
    operator = torch.ops.msda.feed_forward.default
    operator_checks.exports(operator, msda.feed_forward, tensors, others, dynamic=2)


@pytest.mark.parametrize("dtype", backends.SIXTEEN_BIT, ids=str)
def test_autocast(dtype: torch.dtype, device: str) -> None:
    inputs = SMALL.inputs(torch.float32, device)
    operator_checks.autocast(msda.feed_forward, inputs, dtype, float64=False)


def test_strided_inputs(device: str) -> None:
    inputs = SMALL.inputs(torch.float16, device)
    strided = inputs._replace(
        x=inputs.x.transpose(0, 1).contiguous().transpose(0, 1),
        weight1=inputs.weight1.T.contiguous().T,
        weight2=inputs.weight2.T.contiguous().T,
        bias2=torch.stack((inputs.bias2, inputs.bias2), 1)[:, 0],
    )
    found = msda.feed_forward(*strided)
    assert found.is_contiguous() and torch.equal(found, msda.feed_forward(*inputs))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [300, 40000])
def test_graph_replays(rows: int) -> None:
    ON_GPU.skip_unless_ready(torch.float16)
    operator_checks.replays(msda.feed_forward, Case((rows,)).inputs(torch.float16, "cuda"))


# Wrong arguments.

WRONG = (
    Row("x", lambda x: x.tolist(), ("torch.Tensor", "list"), TypeError),
    Row("x", lambda x: x.double(), ("float32, float16 or bfloat16", "torch.float64"), TypeError),
    Row("x", lambda x: x[0, 0, 0], ("[..., C]", "without dimensions")),
    Row("x", lambda x: x[..., :0], ("1 to 1024", "[2, 3, 0]")),
    Row("weight1", lambda x: x.float(), ("torch.float16 as x", "torch.float32"), TypeError),
    Row("weight1", lambda x: x[:, 1:], ("[H, C] = [12, 8]", "[12, 7]")),
    Row("weight1", lambda x: x[:0], ("1 to 8192", "[0, 8]")),
    Row("bias1", lambda x: None, ("torch.Tensor", "NoneType"), TypeError),
    Row("bias1", lambda x: x[None], ("[H] = [12]", "[1, 12]")),
    Row("weight2", lambda x: x.bfloat16(), ("torch.float16 as x", "torch.bfloat16"), TypeError),
    Row("weight2", lambda x: x.T, ("[C, H] = [8, 12]", "[12, 8]")),
    Row("bias2", lambda x: x[1:], ("[C] = [8]", "[7]")),
    Row("norm_weight", lambda x: x.float(), ("torch.float16 as x", "torch.float32"), TypeError),
    Row("norm_bias", lambda x: x[:5], ("[C] = [8]", "[5]")),
    Row("eps", lambda x: None, ("float", "None"), TypeError),
    Row("eps", lambda x: 0.0, ("above 0", "0.0")),
)
# PyTorch calls the implementation for meta tensors, which reads nothing.
ANOTHER_DEVICE = Row("bias1", lambda x: x.to("meta"), ("cpu as x", "meta"))


@pytest.mark.parametrize("row", (*WRONG, ANOTHER_DEVICE), ids=str)
def test_wrong_argument(row: Row) -> None:
    for module in (msda, msda.feed_forward_reference):
        row.check(module.feed_forward, SMALL.inputs(torch.float16))


@pytest.mark.parametrize("row", WRONG, ids=str)
def test_raw_operator_is_safe(row: Row, device: str) -> None:
    row.check_raw(torch.ops.msda.feed_forward, SMALL.inputs(torch.float16, device))


def test_too_many_numbers() -> None:
    """The plain kernel keeps rows in shared memory."""
    with pytest.raises(ValueError, match=r"^x: expected .*1 to 1024, got \[1, 1025\]"):
        msda.feed_forward(*Case((1,), 1025, 4).inputs(torch.float16))
    with pytest.raises(ValueError, match=r"^weight1: expected .*1 to 8192, got \[8193, 4\]"):
        msda.feed_forward(*Case((1,), 4, 8193).inputs(torch.float16))
