"""Layer normalisation with a result in 8 bits: every backend against float64."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import msda
from benchmarks.quantized_layer_norm import Inputs
from msda.checks import EIGHT_BIT_TYPES
from msda.quantized_linear_reference import quantize
from tests.matrix import backends, emulated_kernels, operator_checks
from tests.matrix.map_operators import Backend, Row, emulator, matrix, misaligned, on_gpu, plain_backends

VARIABLE = "MSDA_QUANTIZED_LAYER_NORM"
INT8, FP8 = EIGHT_BIT_TYPES
LARGEST = {INT8: 127, FP8: 448}
EPS = 1e-5


@dataclass(frozen=True)
class Case:
    """Sizes and contents of a call."""

    rows: tuple[int, ...]  # sizes of x before the last
    channels: int
    mean: float = 0.0
    deviation: float = 1.0
    seed: int = 0

    def inputs(self, dtype: torch.dtype, eight_bits: torch.dtype, device: str = "cpu") -> Inputs:
        """Normal numbers; a result saturates above 3."""
        generator = torch.Generator().manual_seed(self.seed)
        draw = functools.partial(torch.randn, generator=generator)
        x = draw(*self.rows, self.channels) * self.deviation + self.mean
        tensors = (tensor.to(device, dtype) for tensor in (x, draw(self.channels), draw(self.channels)))
        return Inputs(*tensors, EPS, 3 / LARGEST[eight_bits], eight_bits)


def check(backend: Backend, inputs: Inputs, order: int = 0) -> None:
    """Fails unless every result is that of a number as near to the truth as float32 allows."""
    found = backend.compute(inputs, order)
    assert found.dtype == inputs.dtype and found.shape == inputs.x.shape
    x, weight, bias = (tensor.double() for tensor in inputs[:3])
    mean = x.mean(-1, keepdim=True)
    deviation = ((x - mean).square().mean(-1, keepdim=True) + EPS).sqrt()
    normalised = (x - mean) / deviation
    truth = normalised * weight + bias
    # Roundings of the mean, of a row's factor, and of the sum.
    error = 1e-6 * (weight.abs() * (normalised.abs() + mean.abs() / deviation) + bias.abs())
    least, most = (
        quantize(((truth + sign * error) / inputs.scale).float(), inputs.dtype).float() for sign in (-1, 1)
    )
    found = found.float()
    assert ((least <= found) & (found <= most)).all()
    # Rounding decides few of them, unless a row's numbers are nearly equal.
    decided = (least < most) & (mean.abs() < 100 * deviation)
    assert decided.sum() <= 2 + 0.05 * truth.numel()


FLOATS = (*backends.SIXTEEN_BIT, torch.float32)
VECTORS = tuple(
    make(msda.quantized_layer_norm, VARIABLE, "vectors", backends.SIXTEEN_BIT) for make in (emulator, on_gpu)
)
OTHERS = plain_backends(msda.quantized_layer_norm, VARIABLE, FLOATS)
eight_bits = pytest.mark.parametrize("eight_bits", EIGHT_BIT_TYPES, ids=str)


@st.composite
def cases(draw: st.DrawFn, kernel: str | None) -> Case:
    """Draws a case that a kernel can run; None: any."""
    vectors = st.integers(1, 512).map(lambda count: 8 * count)
    few = vectors.filter(lambda channels: channels <= 512)  # where a warp has several rows
    return Case(
        rows=tuple(draw(st.lists(st.integers(1, 9), max_size=3))),
        channels=draw(few | vectors if kernel == "vectors" else st.integers(1, 300)),
        mean=draw(st.sampled_from((0.0, 1.0, -20.0))),
        deviation=draw(st.sampled_from((0.1, 1.0, 30.0))),
        seed=draw(st.integers(0, 2**16)),
    )


@eight_bits
@matrix((*OTHERS, *VECTORS))
def test_drawn_cases(backend: Backend, dtype: torch.dtype, eight_bits: torch.dtype) -> None:
    backend.skip_unless_ready(dtype)

    def check_case(case: Case) -> None:
        check(backend, case.inputs(dtype, eight_bits, backend.device), order=case.seed)

    operator_checks.drawn_cases(backend, cases(backend.kernel), check_case, part=4)


EDGES = [
    Case((0, 3), 192),
    Case((2, 3), 0),
    Case((), 192),
    Case((3,), 1),  # a variance of zero
    Case((33,), 4097),
    Case((5,), 4104),
    Case((7,), 100),
]


@eight_bits
@matrix(OTHERS)
@pytest.mark.parametrize("case", EDGES, ids=str)
def test_edges(backend: Backend, dtype: torch.dtype, eight_bits: torch.dtype, case: Case) -> None:
    backend.skip_unless_ready(dtype)
    check(backend, case.inputs(dtype, eight_bits, backend.device), order=7)


@eight_bits
@matrix(VECTORS)
@pytest.mark.parametrize("channels", [8, 96, 104, 128, 192, 256, 384, 520, 768, 1024, 1536, 3072, 4096])
def test_every_layout(backend: Backend, dtype: torch.dtype, eight_bits: torch.dtype, channels: int) -> None:
    """Rows of 4 to 128 lanes with 3 or 4 vectors each, and more rows than all blocks have at once."""
    backend.skip_unless_ready(dtype)
    rows = 300_000 // channels if backend.emulated else 4_000_000 // channels
    check(backend, Case((rows + 1,), channels, mean=0.5).inputs(dtype, eight_bits, backend.device), order=3)


BIASES = {
    INT8: ([-1000, -2.5, -1.5, -0.5, 0, 0.5, 1.5, 2.5], [-128, -2, -2, 0, 0, 0, 2, 2]),
    FP8: ([-1000, -18, -17, 0, 0.25, 17, 18, 1000], [-448, -18, -16, 0, 0.25, 16, 18, 448]),
}
"""Numbers before and after they are quantised with a scale of 1."""


@eight_bits
@matrix((*OTHERS, *VECTORS))
def test_rows_of_equal_numbers(backend: Backend, dtype: torch.dtype, eight_bits: torch.dtype) -> None:
    """They give bias, whose halves round to even, and which saturates."""
    backend.skip_unless_ready(dtype)
    x = torch.full((5, 192), 3.0, dtype=dtype, device=backend.device)
    given, expected = BIASES[eight_bits]
    bias = torch.tensor(given, dtype=dtype, device=backend.device).repeat(24)
    found = backend.compute(Inputs(x, torch.ones_like(bias), bias, EPS, 1.0, eight_bits)).float()
    assert torch.equal(found.cpu(), torch.tensor(expected).float().repeat(24).expand(5, -1))


@eight_bits
@matrix((*OTHERS, *VECTORS))
def test_numbers_that_are_not_finite(backend: Backend, dtype: torch.dtype, eight_bits: torch.dtype) -> None:
    """They spoil their row only, which becomes NaN; int8 has no NaN and gets 0."""
    backend.skip_unless_ready(dtype)
    inputs = Case((70,), 192).inputs(dtype, eight_bits, backend.device)
    spoiled = inputs._replace(x=inputs.x.clone())
    spoiled.x[3, 100], spoiled.x[40, 7], spoiled.x[41, 0] = torch.nan, torch.inf, -torch.inf
    found, expected = (backend.compute(x).float() for x in (spoiled, inputs))
    others = torch.tensor([row not in (3, 40, 41) for row in range(70)])
    assert torch.equal(found[others], expected[others])
    wrong = found[~others]
    assert (wrong == 0).all() if eight_bits == INT8 else wrong.isnan().all()


@pytest.mark.parametrize(
    ("channels", "dtype"),
    [(100, torch.float16), (4104, torch.bfloat16), (192, torch.float32)],
    ids=str,
)
def test_sizes_that_vectors_cannot_run(channels: int, dtype: torch.dtype) -> None:
    VECTORS[0].skip_unless_ready(dtype)
    with pytest.raises(emulated_kernels.NotSupported):
        VECTORS[0].compute(Case((9,), channels).inputs(dtype, INT8))


@pytest.mark.gpu
def test_addresses_that_vectors_cannot_run() -> None:
    VECTORS[1].skip_unless_ready(torch.float16)
    inputs = Case((100,), 192).inputs(torch.float16, INT8, "cuda")
    moved = inputs._replace(x=misaligned(inputs.x))
    check(on_gpu(msda.quantized_layer_norm), moved)
    with pytest.raises(RuntimeError, match="not supported"):
        VECTORS[1].compute(moved)


def test_name_of_no_kernel() -> None:
    inputs = Case((4,), 8).inputs(torch.float16, INT8)
    operator_checks.unknown_kernel(msda.quantized_layer_norm, inputs, VARIABLE, "plain, vectors")


# In PyTorch.


def small(eight_bits: torch.dtype = INT8, device: str = "cpu") -> Inputs:
    return Case((2, 3), 8).inputs(torch.float16, eight_bits, device)


@eight_bits
def test_opcheck(eight_bits: torch.dtype, device: str) -> None:
    operator = torch.ops.msda.quantized_layer_norm.default
    operator_checks.registration_of_8_bits(operator, small(eight_bits, device), eight_bits)


def test_strided_inputs(device: str) -> None:
    inputs = small(device=device)
    strided = inputs._replace(x=inputs.x.transpose(0, 1).contiguous().transpose(0, 1))
    found = msda.quantized_layer_norm(*strided)
    assert found.is_contiguous() and torch.equal(found, msda.quantized_layer_norm(*inputs))


def test_export() -> None:
    """All sizes of x but the last are dynamic."""

    def call(*tensors: Tensor) -> Tensor:
        return msda.quantized_layer_norm(*tensors, EPS, 0.5, torch.int8)

    others = Case((4, 3), 8).inputs(torch.float16, INT8)[:3]
    operator_checks.exports(torch.ops.msda.quantized_layer_norm.default, call, small()[:3], others, dynamic=2)


@pytest.mark.gpu
@eight_bits
@pytest.mark.parametrize(("rows", "channels"), [(55296, 192), (864, 1536)])
def test_graph_replays(rows: int, channels: int, eight_bits: torch.dtype) -> None:
    """Blocks that begin before the last kernel has ended read what it has written."""
    VECTORS[1].skip_unless_ready(torch.float16)

    def run(*inputs: Any) -> Tensor:
        # PyTorch cannot compare 8-bit floats.
        return msda.quantized_layer_norm(inputs[0] + 1, *inputs[1:]).view(torch.uint8)

    operator_checks.replays(run, Case((rows,), channels).inputs(torch.float16, eight_bits, "cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "channels"), [(55296, 192), (864, 1536)])
def test_kernels_that_overlap(rows: int, channels: int) -> None:
    """The next layer begins early and reads all that the norm has written, and the next norm its result."""
    VECTORS[1].skip_unless_ready(torch.float16)
    inputs = Case((rows,), channels).inputs(torch.float16, INT8, "cuda")
    weight = torch.randint(-127, 128, (channels, channels), dtype=INT8, device="cuda")
    scale = torch.full((channels,), 1e-5, device="cuda")

    def run(wait: Callable[[], None]) -> Tensor:
        x = inputs.x
        for _ in range(4):
            narrow = msda.quantized_layer_norm(x, *inputs[1:])
            wait()
            x = msda.quantized_linear(narrow, weight, scale, residual=x)
            wait()
        return x

    expected = run(torch.cuda.synchronize)
    for _ in range(50):
        assert torch.equal(run(lambda: None), expected)


# Wrong arguments.

WRONG = (
    Row("x", lambda x: x.tolist(), ("torch.Tensor", "list"), TypeError),
    Row("x", lambda x: x.double(), ("float32, float16 or bfloat16", "torch.float64"), TypeError),
    Row("x", lambda x: x[0, 0, 0], ("[..., C]", "without dimensions")),
    Row("weight", lambda x: x.float(), ("torch.float16 as x", "torch.float32"), TypeError),
    Row("weight", lambda x: x[:5], ("[C] = [8]", "[5]")),
    Row("bias", lambda x: None, ("torch.Tensor", "NoneType"), TypeError),
    Row("bias", lambda x: x.bfloat16(), ("torch.float16 as x", "torch.bfloat16"), TypeError),
    Row("bias", lambda x: x[None], ("[C] = [8]", "[1, 8]")),
    Row("eps", lambda x: None, ("float", "None"), TypeError),
    Row("eps", lambda x: 0.0, ("above 0", "0.0")),
    Row("eps", lambda x: math.inf, ("finite", "inf")),
    Row("scale", lambda x: 0.0, ("above 0", "0.0")),
    Row("scale", lambda x: 1e-45, ("reciprocal", "1e-45")),
    Row("scale", lambda x: None, ("a float", "None"), TypeError),
    Row("dtype", lambda x: torch.uint8, ("torch.int8 or torch.float8_e4m3fn", "torch.uint8"), TypeError),
)
# PyTorch calls the implementation for meta tensors, which reads nothing.
ANOTHER_DEVICE = Row("bias", lambda x: x.to("meta"), ("cpu as x", "meta"))


@pytest.mark.parametrize("row", (*WRONG, ANOTHER_DEVICE), ids=str)
def test_wrong_argument(row: Row) -> None:
    for module in (msda, msda.quantized_layer_norm_reference):
        row.check(module.quantized_layer_norm, small())


@pytest.mark.parametrize("row", WRONG, ids=str)
def test_raw_operator_is_safe(row: Row, device: str) -> None:
    row.check_raw(torch.ops.msda.quantized_layer_norm, small(device=device))
