"""Feed-forward blocks in int8: every backend against exact sums in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

import msda
from benchmarks.quantized_feed_forward import PROBLEMS, FeedForwardProblem, Inputs
from msda.quantized_linear_reference import quantize
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

VARIABLE = "MSDA_QUANTIZED_FEED_FORWARD"
TYPES = backends.SIXTEEN_BIT


@dataclass(frozen=True)
class Case:
    """Sizes and contents of a call."""

    rows: tuple[int, ...]  # sizes of x before the last
    channels: int = 256
    hidden: int = 2048
    seed: int = 0
    next_scale: float | None = None

    def inputs(self, dtype: torch.dtype, device: str = "cpu") -> Inputs:
        problem = FeedForwardProblem("", math.prod(self.rows), self.channels, self.hidden)
        inputs = problem.inputs(dtype, "cpu", self.seed)
        inputs = inputs._replace(x=inputs.x.reshape(*self.rows, self.channels))
        inputs = inputs._replace(next_scale=self.next_scale)
        return map_tensors(inputs, lambda x: x.to(device))


def check(backend: Backend, inputs: Inputs, order: int = 0) -> None:
    """Fails unless every result is that of a number as near to the truth as float32 allows.

    A hidden number that float32 cannot tell from a tie of two steps may round to either of them.
    """
    results = backend.compute(inputs, order)
    found = results
    if inputs.next_scale is not None:
        found, quantized = results
        factor = 1 / torch.tensor(inputs.next_scale, device=found.device)
        assert quantized.is_contiguous() and quantized.dtype == torch.int8
        assert torch.equal(quantized, quantize(found.float() * factor, torch.int8))
    assert found.dtype == inputs.x.dtype and found.shape == inputs.x.shape and found.is_contiguous()
    wide = map_tensors(inputs, Tensor.double)
    # As the kernels: x times the reciprocal of its scale, in float32.
    q = quantize(inputs.x.float() * (1 / torch.tensor(inputs.x_scale, device=inputs.x.device)), torch.int8)
    product = q.double() @ wide.weight1.T * wide.scale1
    hidden = (product + wide.bias1).relu() / inputs.hidden_scale
    error = 1e-6 * (product.abs() + wide.bias1.abs()) / inputs.hidden_scale
    least, most = (quantize((hidden + sign * error).relu(), torch.int8).double() for sign in (-1, 1))
    chosen = quantize(hidden, torch.int8).double()
    # Such numbers are rare.
    assert (most != least).sum() <= 2 + 1e-3 * hidden.numel()

    product = chosen @ wide.weight2.T * wide.scale2
    y = wide.x + product + wide.bias2
    step = (most - least) @ (wide.weight2.abs() * wide.scale2[:, None]).T
    error = step + 1e-6 * (wide.x.abs() + product.abs() + wide.bias2.abs())
    mean = y.mean(-1, keepdim=True)
    deviation = ((y - mean).square().mean(-1, keepdim=True) + inputs.eps).sqrt()
    normalised = (y - mean) / deviation
    # Errors of the mean, and of the deviation, which differs by at most the errors' root mean square.
    others = error.mean(-1, keepdim=True) + normalised.abs() * error.square().mean(-1, keepdim=True).sqrt()
    error = wide.norm_weight.abs() * ((error + others) / deviation + 1e-6 * normalised.abs())
    truth = normalised * wide.norm_weight + wide.norm_bias
    error = 1.1 * error + 1e-6 * wide.norm_bias.abs()
    assert ((truth - error).to(found.dtype) <= found).all()
    assert (found <= (truth + error).to(found.dtype)).all()


ON_GPU = on_gpu(msda.quantized_feed_forward, VARIABLE, "hopper", TYPES, backends.no_sm90)
HOPPER = (emulator(msda.quantized_feed_forward, VARIABLE, "hopper", TYPES), ON_GPU)
PLAIN = plain_backends(msda.quantized_feed_forward, VARIABLE, TYPES)


@st.composite
def cases(draw: st.DrawFn, kernel: str | None) -> Case:
    """Draws a case that a kernel can run; None: any."""
    hopper = kernel == "hopper"
    return Case(
        tuple(draw(st.lists(st.integers(1, 8 if hopper else 4), max_size=3))),
        256 if hopper else draw(st.integers(1, 70)),
        64 * draw(st.integers(1, 6)) if hopper else draw(st.integers(1, 300)),
        draw(st.integers(0, 2**16)),
        draw(st.sampled_from([None, 0.021])),
    )


@matrix((*PLAIN, *HOPPER))
def test_drawn_cases(backend: Backend, dtype: torch.dtype) -> None:
    backend.skip_unless_ready(dtype)

    def check_case(case: Case) -> None:
        check(backend, case.inputs(dtype, backend.device), order=case.seed)

    operator_checks.drawn_cases(backend, cases(backend.kernel), check_case)


EDGES = [
    Case((0, 3), 16, 8),
    Case((2, 3), 1, 1, next_scale=0.5),  # a variance of zero
    Case((), 24, 40, next_scale=0.021),
    Case((3,), 257, 255),
    Case((2,), 1024, 5),
    Case((2,), 3, 8192),
    Case((3,), 256, 64),
]


@matrix(PLAIN)
@pytest.mark.parametrize("case", EDGES, ids=str)
def test_edges(backend: Backend, dtype: torch.dtype, case: Case) -> None:
    backend.skip_unless_ready(dtype)
    check(backend, case.inputs(dtype, backend.device), order=7)


@matrix(HOPPER)
@pytest.mark.parametrize(("hidden", "next_scale"), [(64, 0.021), (192, None)])
@pytest.mark.parametrize("rows", [0, 1, 64, 65, 300, 700])
def test_edges_of_tiles(
    backend: Backend, dtype: torch.dtype, rows: int, hidden: int, next_scale: float | None
) -> None:
    """Rows that end within a tile of 64, and several rounds on the two multiprocessors of the emulator."""
    backend.skip_unless_ready(dtype)
    case = Case((rows,), hidden=hidden, next_scale=next_scale)
    check(backend, case.inputs(dtype, backend.device), order=rows + 1)


@matrix((ON_GPU,))
@pytest.mark.parametrize(("hidden", "next_scale"), [(64, 0.021), (1024, None), (2048, 0.5)])
@pytest.mark.parametrize("rows", [129, 16896, 40000])
def test_more_tiles_than_multiprocessors(
    backend: Backend, dtype: torch.dtype, rows: int, hidden: int, next_scale: float | None
) -> None:
    backend.skip_unless_ready(dtype)
    check(backend, Case((rows,), hidden=hidden, next_scale=next_scale).inputs(dtype, backend.device))


# Rounding.


def identity(dtype: torch.dtype, device: str) -> Inputs:
    """256 channels whose products are the quantised numbers: hidden numbers are half of x, and count 64
    times.
    """
    eye, zeros, ones = torch.eye(256, dtype=torch.int8), torch.zeros(256), torch.ones(256)
    x, norm = zeros[None].to(dtype), (ones.to(dtype), zeros.to(dtype))
    inputs = Inputs(x, eye, ones / 2, zeros, eye, 64 * ones, zeros, *norm, 1.0, 1.0, 1e-5)
    return map_tensors(inputs, lambda x: x.to(device))


@matrix((*PLAIN, *HOPPER))
def test_ties(backend: Backend, dtype: torch.dtype) -> None:
    """Halves of x and of hidden numbers round to even."""
    backend.skip_unless_ready(dtype)
    x = torch.tensor([-5, 1, 3, 5, 7, 9, 0.5, 1.5, 2.5, 3.5, 4.5, 6, 8, 10, 12, 0]).repeat(16)
    expected = torch.tensor([0, 0, 2, 2, 4, 4, 0, 1, 1, 2, 2, 3, 4, 5, 6, 0]).repeat(16)
    inputs = identity(dtype, backend.device)
    found = backend.compute(inputs._replace(x=x[None].to(inputs.x)))
    y = x.double() + 64 * expected
    torch.testing.assert_close(found[0].cpu(), F.layer_norm(y, y.shape).to(dtype))


@matrix((*PLAIN, *HOPPER))
def test_saturation(backend: Backend, dtype: torch.dtype) -> None:
    """Numbers out of range become the largest ones."""
    backend.skip_unless_ready(dtype)
    x = torch.tensor([-1000, -128, 127, 128, 1000, 0, 50, 60]).repeat(32)
    expected = torch.tensor([108, 108, 127, 127, 127, 127, 127, 127]).repeat(32)
    inputs = identity(dtype, backend.device)
    inputs = inputs._replace(x=x[None].to(inputs.x), bias1=inputs.bias1 + 172)
    y = x.double() + 64 * expected
    torch.testing.assert_close(backend.compute(inputs)[0].cpu(), F.layer_norm(y, y.shape).to(dtype))


@matrix(PLAIN)
def test_largest_sums(backend: Backend, dtype: torch.dtype) -> None:
    """They fit into 32 bits."""
    backend.skip_unless_ready(dtype)
    inputs = Case((1,), 1024, 8192).inputs(dtype, backend.device)
    least = {name: torch.full_like(getattr(inputs, name), -128) for name in ("weight1", "weight2")}
    inputs = inputs._replace(x=inputs.x - 1000, scale1=inputs.scale1 / 1000, **least)
    check(backend, inputs)


@matrix((*PLAIN, *HOPPER))
def test_numbers_that_are_not_finite(backend: Backend, dtype: torch.dtype) -> None:
    """They spoil their row only, which becomes NaN."""
    backend.skip_unless_ready(dtype)
    inputs = Case((70,), hidden=64, next_scale=0.021).inputs(dtype, backend.device)
    spoiled = inputs._replace(x=inputs.x.clone())
    spoiled.x[3, 100], spoiled.x[40, 7], spoiled.x[41, 0] = torch.nan, torch.inf, -torch.inf
    others = torch.tensor([row not in (3, 40, 41) for row in range(70)])
    for found, expected in zip(backend.compute(spoiled), backend.compute(inputs), strict=True):
        assert torch.equal(found[others], expected[others])
        spoiled_rows = found[~others]
        assert (spoiled_rows == 0 if found.dtype == torch.int8 else spoiled_rows.isnan()).all()


# The choice.


@pytest.mark.gpu
@pytest.mark.parametrize("problem", PROBLEMS[:-1], ids=lambda problem: problem.name)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_blocks_of_models(problem: FeedForwardProblem, dtype: torch.dtype) -> None:
    """The library's choice at the sizes of the benchmarks."""
    backend = on_gpu(msda.quantized_feed_forward, missing=backends.no_sm90)
    backend.skip_unless_ready(dtype)
    check(backend, problem.inputs(dtype))


@pytest.mark.gpu
def test_what_hopper_cannot_run() -> None:
    """Sizes and addresses: the plain kernel runs, the forced one refuses."""
    ON_GPU.skip_unless_ready(torch.float16)
    fits = Case((100,), 256, 128).inputs(torch.float16, "cuda")
    slow = [
        *(Case((9,), *sizes).inputs(torch.float16, "cuda") for sizes in ((192, 128), (256, 96), (256, 2112))),
        fits._replace(x=misaligned(fits.x)),
        fits._replace(weight2=misaligned(fits.weight2)),
    ]
    for inputs in slow:
        check(on_gpu(msda.quantized_feed_forward), inputs)
        with pytest.raises(RuntimeError, match="not supported"):
            ON_GPU.compute(inputs)


def test_name_of_no_kernel() -> None:
    inputs = Case((4,), 8, 8).inputs(torch.float16)
    operator_checks.unknown_kernel(msda.quantized_feed_forward, inputs, VARIABLE, "plain, hopper")


# In PyTorch.


def small(device: str = "cpu") -> Inputs:
    return Case((2, 3), 8, 12, next_scale=0.021).inputs(torch.float16, device)


@pytest.mark.parametrize("next_scale", [None, 0.021])
def test_opcheck(device: str, next_scale: float | None) -> None:
    operator = torch.ops.msda.quantized_feed_forward.default
    inputs = small(device)._replace(next_scale=next_scale)
    operator_checks.registration_of_8_bits(operator, inputs, torch.int8)


def test_strided_inputs(device: str) -> None:
    inputs = small(device)
    strided = inputs._replace(
        x=inputs.x.transpose(0, 1).contiguous().transpose(0, 1),
        weight1=inputs.weight1.T.contiguous().T,
        weight2=inputs.weight2.T.contiguous().T,
        bias2=torch.stack((inputs.bias2, inputs.bias2), 1)[:, 0],
    )
    expected = msda.quantized_feed_forward(*inputs)
    for found, same in zip(msda.quantized_feed_forward(*strided), expected, strict=True):
        assert found.is_contiguous() and torch.equal(found, same)


def test_export() -> None:
    """All sizes of x but the last are dynamic."""
    tensors, numbers = small()[:9], small()[9:]

    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        return msda.quantized_feed_forward(*tensors, *numbers)

    others = Case((4, 3), 8, 12).inputs(torch.float16)[:9]
    operator_checks.exports(torch.ops.msda.quantized_feed_forward.default, call, tensors, others, dynamic=2)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [300, 40000])
def test_graph_replays(rows: int) -> None:
    ON_GPU.skip_unless_ready(torch.float16)
    inputs = Case((rows,), next_scale=0.021).inputs(torch.float16, "cuda")

    def run(*inputs: Tensor) -> Tensor:
        return torch.stack([output.float() for output in msda.quantized_feed_forward(*inputs)])

    operator_checks.replays(run, inputs)


# Wrong arguments.

WRONG = (
    Row("x", lambda x: x.tolist(), ("torch.Tensor", "list"), TypeError),
    Row("x", lambda x: x.float(), ("float16 or bfloat16", "torch.float32"), TypeError),
    Row("x", lambda x: x[0, 0, 0], ("[..., C]", "without dimensions")),
    Row("x", lambda x: x[..., :0], ("1 to 1024", "[2, 3, 0]")),
    Row("weight1", lambda x: x.half(), ("torch.int8", "torch.float16"), TypeError),
    Row("weight1", lambda x: x[:, 1:], ("[H, C] = [12, 8]", "[12, 7]")),
    Row("weight1", lambda x: x[:0], ("1 to 8192", "[0, 8]")),
    Row("scale1", lambda x: x.half(), ("torch.float32", "torch.float16"), TypeError),
    Row("scale1", lambda x: x[1:], ("[H] = [12]", "[11]")),
    Row("bias1", lambda x: None, ("torch.Tensor", "NoneType"), TypeError),
    Row("bias1", lambda x: x[None], ("[H] = [12]", "[1, 12]")),
    Row("weight2", lambda x: x.int(), ("torch.int8", "torch.int32"), TypeError),
    Row("weight2", lambda x: x.T, ("[C, H] = [8, 12]", "[12, 8]")),
    Row("scale2", lambda x: x.double(), ("torch.float32", "torch.float64"), TypeError),
    Row("scale2", lambda x: x[1:], ("[C] = [8]", "[7]")),
    Row("bias2", lambda x: x.half(), ("torch.float32", "torch.float16"), TypeError),
    Row("norm_weight", lambda x: x.float(), ("torch.float16 as x", "torch.float32"), TypeError),
    Row("norm_bias", lambda x: x[:5], ("[C] = [8]", "[5]")),
    Row("x_scale", lambda x: 0.0, ("above 0", "0.0")),
    Row("x_scale", lambda x: None, ("a float", "None"), TypeError),
    Row("hidden_scale", lambda x: math.inf, ("finite", "inf")),
    Row("hidden_scale", lambda x: 1e-45, ("reciprocal", "1e-45")),
    Row("next_scale", lambda x: 0.0, ("above 0", "0.0")),
    Row("next_scale", lambda x: "1", ("a float or None", "'1'"), TypeError),
    Row("eps", lambda x: None, ("float", "None"), TypeError),
    Row("eps", lambda x: 0.0, ("above 0", "0.0")),
)
# PyTorch calls the implementation for meta tensors, which reads nothing.
ANOTHER_DEVICE = Row("bias1", lambda x: x.to("meta"), ("cpu as x", "meta"))


@pytest.mark.parametrize("row", (*WRONG, ANOTHER_DEVICE), ids=str)
def test_wrong_argument(row: Row) -> None:
    for module in (msda, msda.quantized_feed_forward_reference):
        row.check(module.quantized_feed_forward, small())


@pytest.mark.parametrize("row", WRONG, ids=str)
def test_raw_operator_is_safe(row: Row, device: str) -> None:
    row.check_raw(torch.ops.msda.quantized_feed_forward, small(device))


def test_too_many_numbers() -> None:
    """The plain kernel keeps rows in shared memory."""
    with pytest.raises(ValueError, match=r"^x: expected .*1 to 1024, got \[1, 1025\]"):
        msda.quantized_feed_forward(*Case((1,), 1025, 4).inputs(torch.float16))
    with pytest.raises(ValueError, match=r"^weight1: expected .*1 to 8192, got \[8193, 4\]"):
        msda.quantized_feed_forward(*Case((1,), 4, 8193).inputs(torch.float16))
