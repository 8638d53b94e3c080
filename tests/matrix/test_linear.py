"""Linear layers with activation, residual, mask and norm: every backend against the reference in float64."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

import msda
from benchmarks.operator_errors import TOLERANCE, relative_error
from msda.checks import ACTIVATIONS
from tests.matrix import backends, emulated_kernels, operator_checks
from tests.matrix.map_operators import (
    Backend,
    Row,
    emulator_or_skip,
    map_tensors,
    matrix,
    misaligned,
    on_gpu,
    plain_backends,
)

VARIABLE = "MSDA_LINEAR"


class Inputs(NamedTuple):
    """The arguments of the operator."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    residual: Tensor | None
    activation: str
    mask: Tensor | None = None
    norm_weight: Tensor | None = None
    norm_bias: Tensor | None = None
    eps: float = 1e-5

    def truth(self) -> Tensor:
        return msda.linear_reference.linear(*map_tensors(self, Tensor.double))

    def floor(self) -> float:
        """The norms of what is added, which may cancel, see `relative_error`."""
        if self.norm_weight is not None:
            return 0.0  # a normalised row has the size of norm_weight and norm_bias
        wide = map_tensors(self, Tensor.double)
        parts = (wide._replace(residual=None, activation="none", mask=None).truth(), wide.residual)
        return sum(float(part.norm()) for part in parts if part is not None)


@dataclass(frozen=True)
class Case:
    """Sizes and contents of a call."""

    rows: tuple[int, ...]  # sizes of x before the last
    inputs: int
    outputs: int
    activation: str = "none"
    residual: bool = False
    masked: bool = False
    normed: bool = False
    bias: bool = True
    seed: int = 0

    def arguments(self, dtype: torch.dtype, device: str = "cpu") -> Inputs:
        """Normal numbers, with which x weight^T has a variance of 1."""
        generator = torch.Generator().manual_seed(self.seed)
        draw = functools.partial(torch.randn, generator=generator, dtype=torch.float64)
        inputs = Inputs(
            draw(*self.rows, self.inputs),
            draw(self.outputs, self.inputs) / math.sqrt(max(self.inputs, 1)),
            draw(self.outputs) if self.bias else None,
            draw(*self.rows, self.outputs) if self.residual else None,
            self.activation,
            # Zeros as of padded cells, and other numbers, which show that the kernel multiplies by them.
            draw(*self.rows, 1).relu() if self.masked else None,
            *((draw(self.outputs), draw(self.outputs)) if self.normed else ()),
        )
        return map_tensors(inputs, lambda x: x.to(device, dtype))


PRODUCT, MASKED = ("none", False, False, False), ("none", False, True, False)
SUM, GELU, RELU = ("none", True, False, False), ("gelu", False, False, False), ("relu", False, False, False)
NORM, SUM_NORM = ("none", False, False, True), ("none", True, False, True)
FORMS = {
    "pingpong_64x192": (SUM, NORM, SUM_NORM),
    "pingpong_64x256": (PRODUCT, GELU, MASKED, NORM, SUM_NORM),
    "pingpong_128x64": (SUM,),
    "pingpong_128x128": (PRODUCT, GELU, RELU, SUM),
    "cooperative_128x192": (SUM,),
    "cooperative_128x256": (GELU,),
}
"""Activation, residual, mask and norm of the forms of each kernel of CUTLASS, as in linear_choice.h."""
NORMED_OUTPUTS = {"pingpong_64x192": 192, "pingpong_64x256": 256}
"""N of the forms with a normalisation."""


@st.composite
def cases(draw: st.DrawFn, kernel: str | None) -> Case:
    """Draws a case that a kernel can run; None: any."""
    every = *itertools.product(ACTIVATIONS, (False, True), (False, True), (False,)), NORM, SUM_NORM
    form = draw(st.sampled_from(FORMS.get(kernel, every)))
    wide = kernel in FORMS
    sizes = st.integers(1, 80).map(lambda size: 8 * size) if wide else st.integers(1, 50)
    outputs = draw(sizes)
    if form in (NORM, SUM_NORM):
        # The variance of a few numbers may be close to zero, and then the result magnifies their rounding.
        outputs = NORMED_OUTPUTS[kernel] if wide else max(outputs, 16)
    return Case(
        tuple(draw(st.lists(st.integers(1, 24 if wide else 8), max_size=3))),
        draw(sizes),
        outputs,
        *form,
        bias=draw(st.booleans()),
        seed=draw(st.integers(0, 2**16)),
    )


CUTLASS = tuple(
    on_gpu(msda.linear, VARIABLE, kernel, backends.SIXTEEN_BIT, backends.no_sm90) for kernel in FORMS
)
ALL = (*plain_backends(msda.linear, VARIABLE), *CUTLASS)


@matrix(ALL)
def test_drawn_cases(backend: Backend, dtype: torch.dtype) -> None:
    backend.skip_unless_ready(dtype)

    def check(case: Case) -> None:
        backend.check(case.arguments(dtype, backend.device), order=case.seed)

    operator_checks.drawn_cases(backend, cases(backend.kernel), check)


EDGES = [
    Case((16,), 16, 16),  # one tile of the plain kernel
    Case((17,), 17, 33, "gelu", residual=True, masked=True),
    Case((), 5, 3, "relu", residual=True, masked=True),
    Case((2, 3), 1, 1, bias=False),
    Case((2, 3), 0, 4, "gelu", residual=True),  # the bias alone
    Case((0, 3), 8, 16, residual=True, masked=True),
    Case((2, 3), 8, 0),
    Case((17,), 17, 33, residual=True, normed=True),
    Case((2, 3), 8, 1, normed=True),  # norm_bias alone
    Case((0, 3), 8, 16, residual=True, normed=True),
    Case((2, 3), 0, 16, residual=True, normed=True),
    Case((2, 3), 8, 0, normed=True),
]


@matrix(tuple(backend for backend in ALL if backend not in CUTLASS))
@pytest.mark.parametrize("case", EDGES, ids=str)
def test_edges(backend: Backend, dtype: torch.dtype, case: Case) -> None:
    backend.skip_unless_ready(dtype)
    backend.check(case.arguments(dtype, backend.device), order=7)


@matrix(CUTLASS)
@pytest.mark.parametrize("rows", [1, 63, 64, 129, 40000])
def test_edges_of_tiles(backend: Backend, dtype: torch.dtype, rows: int) -> None:
    """Rows and columns that end within a tile, before one and with more tiles than multiprocessors."""
    backend.skip_unless_ready(dtype)
    for form in FORMS[backend.kernel]:
        sizes = ((8, 8), (64, 256), (72, 520), (1544, 192))
        if form in (NORM, SUM_NORM):
            sizes = ((inputs, NORMED_OUTPUTS[backend.kernel]) for inputs, _ in sizes)
        for inputs, outputs in sizes:
            case = Case((rows,), inputs, outputs, *form, bias=rows != 63)
            backend.check(case.arguments(dtype, backend.device))


# Kernels that won a measurement on an H200, by M, K, N, activation, residual, mask and normalisation.
FASTEST = [
    ((55296, 192, 576, *PRODUCT), "pingpong_128x128"),
    ((13824, 384, 1152, *PRODUCT), "pingpong_128x128"),
    ((3456, 768, 2304, *PRODUCT), "pingpong_128x128"),
    ((864, 1536, 4608, *PRODUCT), "pingpong_64x256"),
    ((73656, 256, 256, *PRODUCT), "pingpong_64x256"),
    ((55296, 192, 768, *GELU), "cooperative_128x256"),
    ((13824, 384, 1536, *GELU), "cooperative_128x256"),
    ((3456, 768, 3072, *GELU), "pingpong_128x128"),
    ((864, 1536, 6144, *GELU), "pingpong_64x256"),
    ((900, 256, 2048, *RELU), "pingpong_128x128"),
    ((55296, 192, 192, *SUM), "pingpong_128x64"),
    ((13824, 384, 384, *SUM), "pingpong_128x64"),
    ((3456, 768, 768, *SUM), "cooperative_128x192"),
    ((864, 1536, 1536, *SUM), "pingpong_64x192"),
    ((55296, 768, 192, *SUM), "pingpong_64x192"),
    ((13824, 1536, 384, *SUM), "pingpong_128x128"),
    ((3456, 3072, 768, *SUM), "cooperative_128x192"),
    ((864, 6144, 1536, *SUM), "pingpong_64x192"),
    ((73656, 256, 256, *MASKED), "pingpong_64x256"),  # the only form with a mask
    ((73656, 256, 256, *NORM), "pingpong_64x256"),  # the only form of this N
    ((73656, 2048, 256, *SUM_NORM), "pingpong_64x256"),
    ((900, 256, 256, *SUM_NORM), "pingpong_64x256"),
    ((34100, 512, 192, *SUM_NORM), "pingpong_64x192"),
    ((34100, 192, 192, *NORM), "pingpong_64x192"),
    ((900, 256, 128, *SUM_NORM), "plain"),  # a row is no tile
    ((900, 256, 512, *NORM), "plain"),
    ((900, 256, 256, "gelu", True, False, False), "plain"),  # no form has both
    ((900, 256, 256, "relu", False, True, False), "plain"),
]


@pytest.mark.parametrize(("problem", "kernel"), FASTEST, ids=str)
def test_choice(problem: tuple, kernel: str) -> None:
    """The rule of linear_choice.h chooses the fastest kernel of each layer of Swin-L."""
    emulator_or_skip()
    assert emulated_kernels.fastest_linear(*problem) == kernel


@pytest.mark.gpu
@pytest.mark.parametrize("problem", [problem for problem, kernel in FASTEST if kernel != "plain"], ids=str)
@pytest.mark.parametrize("dtype", backends.SIXTEEN_BIT, ids=str)
def test_layers_of_models(problem: tuple, dtype: torch.dtype) -> None:
    """The library's choice runs, and not PyTorch's operations."""
    backend = on_gpu(msda.linear, missing=backends.no_sm90)
    backend.skip_unless_ready(dtype)
    rows, *sizes = problem
    inputs = Case((rows,), *sizes).arguments(dtype, "cuda")
    assert torch.ops.msda.has_fast_linear(**inputs._asdict())
    backend.check(inputs)


@pytest.mark.gpu
def test_pytorch_computes_what_no_kernel_runs_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes, types and addresses that CUTLASS does not take; the forced kernels refuse them."""
    if reason := backends.no_sm90(torch.float16):
        pytest.skip(reason)
    fits = Case((100,), 64, 64).arguments(torch.float16, "cuda")
    slow = [
        Case((100,), 60, 64).arguments(torch.float16, "cuda"),
        Case((100,), 64, 60).arguments(torch.bfloat16, "cuda"),
        Case((100,), 64, 64).arguments(torch.float32, "cuda"),
        Case((100,), 64, 64, "gelu", residual=True).arguments(torch.float16, "cuda"),
        Case((100,), 64, 64, residual=True, masked=True).arguments(torch.float16, "cuda"),
        Case((100,), 64, 64, residual=True, normed=True).arguments(torch.float16, "cuda"),
        Case((100,), 64, 512, normed=True).arguments(torch.bfloat16, "cuda"),
        fits._replace(x=misaligned(fits.x)),
    ]
    assert torch.ops.msda.has_fast_linear(**fits._asdict())
    for inputs in slow:
        assert not torch.ops.msda.has_fast_linear(**inputs._asdict())
        expected = msda.linear_reference.finish(F.linear(*inputs[:3]), *inputs[3:])
        assert torch.equal(msda.linear(*inputs), expected)
    monkeypatch.setenv(VARIABLE, "pingpong_128x128")
    for inputs in slow:
        with pytest.raises(RuntimeError, match="not supported"):
            msda.linear(*inputs)


def test_value_that_is_not_finite() -> None:
    """NaN and infinity spoil their row only, also behind ReLU."""
    emulator_or_skip()
    for number in (torch.nan, torch.inf):
        inputs = Case((5,), 20, 20, "relu").arguments(torch.float16)
        inputs.x[2, 7] = number
        for run in (emulated_kernels.linear, msda.linear):
            output = run(*inputs)
            assert output[[0, 1, 3, 4]].isfinite().all() and not output[2].isfinite().all()


def test_name_of_no_kernel(device: str) -> None:
    inputs = Case((4,), 8, 8).arguments(torch.float16, device)
    operator_checks.unknown_kernel(msda.linear, inputs, VARIABLE, "plain, pingpong_.*")


def test_kernel_that_is_not_in_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator has no kernels of CUTLASS, as builds for other architectures."""
    emulator_or_skip()
    monkeypatch.setenv(VARIABLE, "pingpong_128x128")
    with pytest.raises(emulated_kernels.NotSupported):
        emulated_kernels.linear(*Case((4,), 8, 8).arguments(torch.float16))


# In PyTorch.

SMALL = Case((2, 3), 4, 5, "gelu", residual=True, masked=True)
SMALL_NORM = Case((2, 3), 4, 5, residual=True, normed=True)


DIFFERENTIATED = *(Case((2, 3), 4, 5, kind, residual=True, masked=True) for kind in ACTIVATIONS), SMALL_NORM


@pytest.mark.parametrize("case", DIFFERENTIATED, ids=str)
def test_derivatives(case: Case, device: str) -> None:
    operator_checks.derivatives(msda.linear, case.arguments(torch.float64, device))


@pytest.mark.parametrize("missing", ["bias", "residual", "mask"])
def test_gradients_without_an_optional_tensor(missing: str, device: str) -> None:
    some = SMALL.arguments(torch.float64, device)._replace(**{missing: None})
    inputs, tensors = operator_checks.with_gradients(some)
    found = torch.autograd.grad(msda.linear(*inputs).square().sum(), tensors)
    expected = torch.autograd.grad(inputs.truth().square().sum(), tensors)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", backends.DTYPES.values(), ids=str)
def test_gradients(dtype: torch.dtype, device: str) -> None:
    for case in (
        Case((8, 16), 24, 32, "gelu", residual=True, masked=True),
        Case((8, 16), 24, 32, residual=True, normed=True),
    ):
        operator_checks.gradients(msda.linear, case.arguments(dtype, device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_opcheck(dtype: torch.dtype, device: str) -> None:
    for case in (SMALL, SMALL_NORM):
        operator_checks.registration(torch.ops.msda.linear.default, case.arguments(dtype, device))


def test_compile(device: str) -> None:
    for cases in (
        (SMALL, Case((3, 8), 6, 2, "gelu", residual=True, masked=True)),
        (SMALL_NORM, Case((3, 8), 6, 7, residual=True, normed=True)),
    ):
        operator_checks.compiles(msda.linear, [case.arguments(torch.float32, device) for case in cases])


def test_export() -> None:
    """All sizes of x but the last are dynamic."""
    tensors, others = (case.arguments(torch.float32)[:3] for case in (SMALL, Case((4, 7), 4, 5)))
    operator, call = torch.ops.msda.linear.default, functools.partial(msda.linear, activation="relu")
    operator_checks.exports(operator, call, tensors, others, dynamic=2)


@pytest.mark.parametrize("dtype", backends.SIXTEEN_BIT, ids=str)
def test_autocast(dtype: torch.dtype, device: str) -> None:
    for case in (SMALL, SMALL_NORM):
        operator_checks.autocast(msda.linear, case.arguments(torch.float32, device), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", backends.SIXTEEN_BIT, ids=str)
@pytest.mark.parametrize("kernel", FORMS)
def test_cuda_graph_on_another_stream(dtype: torch.dtype, kernel: str, monkeypatch) -> None:
    if reason := backends.no_sm90(dtype):
        pytest.skip(reason)
    monkeypatch.setenv(VARIABLE, kernel)
    outputs = NORMED_OUTPUTS.get(kernel, 768)
    inputs = Case((3456,), 768, outputs, *FORMS[kernel][-1]).arguments(dtype, "cuda")
    output = operator_checks.replays(msda.linear, inputs)
    assert relative_error(output, inputs.truth()) <= TOLERANCE[dtype]


# Wrong arguments.

WRONG = (
    Row("x", lambda x: x.tolist(), ("torch.Tensor", "list"), TypeError),
    Row("x", lambda x: x.int(), ("float32, float16, bfloat16 or float64", "torch.int32"), TypeError),
    Row("x", lambda x: x[0, 0, 0], ("[..., K]", "without dimensions")),
    Row("weight", lambda x: x.half(), ("torch.float32 as x", "torch.float16"), TypeError),
    Row("weight", lambda x: x[:, 1:], ("[N, K] = [5, 4]", "[5, 3]")),
    Row("weight", lambda x: x[0], ("[N, K]", "[4]")),
    Row("bias", lambda x: 1.0, ("torch.Tensor", "float"), TypeError),
    Row("bias", lambda x: x.double(), ("torch.float32 as x", "torch.float64"), TypeError),
    Row("bias", lambda x: x[None], ("[N] = [5]", "[1, 5]")),
    Row("residual", lambda x: x[..., 1:], ("[..., N] = [2, 3, 5]", "[2, 3, 4]")),
    Row("residual", lambda x: x[:1], ("[..., N] = [2, 3, 5]", "[1, 3, 5]")),
    Row("mask", lambda x: x > 0, ("torch.float32 as x", "torch.bool"), TypeError),
    Row("mask", lambda x: x.squeeze(-1), ("[..., 1] = [2, 3, 1]", "[2, 3]")),
    Row("mask", lambda x: x[:, 1:], ("[..., 1] = [2, 3, 1]", "[2, 2, 1]")),
    Row("activation", lambda x: "silu", ("none, gelu, relu", "'silu'")),
    Row("activation", lambda x: None, ("none, gelu, relu", "None")),
)
WRONG_NORM = (
    Row("norm_weight", lambda x: None, ("a tensor with norm_bias", "None")),
    Row("norm_bias", lambda x: None, ("a tensor with norm_weight", "None")),
    Row("norm_weight", lambda x: x[1:], ("[N] = [5]", "[4]")),
    Row("norm_bias", lambda x: x.half(), ("torch.float32 as x", "torch.float16"), TypeError),
    Row("activation", lambda x: "gelu", ("none with norm_weight", "'gelu'")),
    Row("mask", lambda x: torch.ones(2, 3, 1), ("None with norm_weight", "[2, 3, 1]")),
    Row("eps", lambda x: "1e-5", ("a float", "'1e-5'"), TypeError),
    Row("eps", lambda x: 0.0, ("above 0", "0.0")),
)
EVERY_WRONG = [*((row, SMALL) for row in WRONG), *((row, SMALL_NORM) for row in WRONG_NORM)]
# PyTorch calls the implementation for meta tensors, which reads nothing.
ANOTHER_DEVICE = Row("bias", lambda x: x.to("meta"), ("cpu as x", "meta"))


@pytest.mark.parametrize(("row", "case"), (*EVERY_WRONG, (ANOTHER_DEVICE, SMALL)), ids=str)
def test_wrong_argument(row: Row, case: Case) -> None:
    for module in (msda, msda.linear_reference):
        row.check(module.linear, case.arguments(torch.float32))


@pytest.mark.parametrize(("row", "case"), EVERY_WRONG, ids=str)
def test_raw_operator_is_safe(row: Row, case: Case, device: str) -> None:
    row.check_raw(torch.ops.msda.linear, case.arguments(torch.float32, device))
