"""Linear layers with 8-bit inputs: every backend against the reference, which has exact sums."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import msda
from benchmarks.linear import PROBLEMS
from benchmarks.linear import QuantizedInputs as Inputs
from benchmarks.operator_errors import TOLERANCE, relative_error
from msda.checks import ACTIVATIONS, EIGHT_BIT_TYPES, SIXTEEN_BIT_TYPES
from msda.quantized_linear_reference import quantize
from tests.matrix import backends, emulated_kernels, operator_checks
from tests.matrix.map_operators import (
    Backend,
    Row,
    emulator,
    emulator_or_skip,
    map_tensors,
    matrix,
    misaligned,
    on_gpu,
)

VARIABLE = "MSDA_QUANTIZED_LINEAR"
INT8, FP8 = EIGHT_BIT_TYPES
LARGEST = {INT8: 127, FP8: 448}


@dataclass(frozen=True)
class Case:
    """Sizes and contents of a call."""

    rows: tuple[int, ...]  # sizes of x before the last
    inputs: int
    outputs: int
    activation: str = "none"
    residual: bool = False
    masked: bool = False
    quantized: bool = False
    bias: bool = True
    dtype: torch.dtype = torch.float16
    seed: int = 0

    def arguments(self, eight_bits: torch.dtype, device: str = "cpu") -> Inputs:
        """Numbers of the whole range, with which the sum has a variance of about 1. A quantised result
        saturates above 3.
        """
        generator = torch.Generator().manual_seed(self.seed)
        draw = functools.partial(torch.randn, generator=generator)
        largest = LARGEST[eight_bits]
        x, weight = (
            quantize(draw(*rows, self.inputs) * (largest / 2), eight_bits)
            for rows in (self.rows, (self.outputs,))
        )
        usual = (largest / 2) ** 2 * math.sqrt(max(self.inputs, 1))
        inputs = Inputs(
            x,
            weight,
            (0.5 + torch.rand(self.outputs, generator=generator)) / usual,
            draw(self.outputs) if self.bias else None,
            draw(*self.rows, self.outputs).to(self.dtype) if self.residual else None,
            self.activation,
            # Zeros as of padded cells, and other numbers, which show that the kernel multiplies by them.
            draw(*self.rows, 1).relu().to(self.dtype) if self.masked else None,
            3 / largest if self.quantized else None,
            self.dtype,
        )
        return map_tensors(inputs, lambda x: x.to(device))


def truth(inputs: Inputs) -> Tensor:
    return msda.quantized_linear_reference.quantized_linear(*inputs)


def step_at(x: Tensor) -> Tensor:
    """The distance of E4M3's numbers near each number: three bits of fraction, from 2^-6 on."""
    return torch.exp2(x.abs().clamp(min=2.0**-6).log2().floor() - 3)


def check(backend: Backend, inputs: Inputs, order: int = 0) -> None:
    """Fails unless the result has the bits of the truth, or is as near as GELU and float32 sums allow."""
    output, expected = backend.compute(inputs, order), truth(inputs)
    assert output.dtype == expected.dtype and output.shape == expected.shape
    if inputs.x.dtype == INT8 and inputs.activation != "gelu":
        assert torch.equal(output, expected)
        return
    if inputs.output_scale is None:
        error = relative_error(output, expected.double())
        assert error <= TOLERANCE[output.dtype]
        return
    found, expected = output.float(), expected.float()
    differences = (found - expected).abs()
    if output.dtype == INT8:
        assert not differences.numel() or differences.max() <= 1
        assert (differences > 0).sum() <= 1 + 0.01 * differences.numel()
        return
    # A step more or less. Near zero the steps are smaller than the errors of tensor cores, which add E4M3's
    # products in fewer bits than float32 has: 0.5% of the usual sum, whose deviation is 1.
    largest = torch.maximum(found.abs(), expected.abs())
    assert (differences <= step_at(largest) + 5e-3 / inputs.output_scale).all()
    assert (differences > 0).sum() <= 1 + 0.04 * differences.numel()


MASKED, RESIDUAL, QUANTIZED = (False, True, False), (True, False, False), (False, False, True)
PRODUCT, MASKED_QUANTIZED = (False, False, False), (False, True, True)
FORMS = {
    (INT8, "rows"): (PRODUCT, MASKED, QUANTIZED, MASKED_QUANTIZED),
    (INT8, "pingpong_64x256"): (PRODUCT, MASKED),
    (INT8, "pingpong_128x128"): (PRODUCT, MASKED, RESIDUAL, QUANTIZED),
    (INT8, "cooperative_128x192"): (RESIDUAL,),
    (FP8, "pingpong_64x128"): (PRODUCT, MASKED, QUANTIZED),
    (FP8, "pingpong_64x192"): (RESIDUAL,),
    (FP8, "cooperative_128x128"): (PRODUCT, MASKED, RESIDUAL, QUANTIZED),
}
"""Residual, mask and 8-bit result of the forms of each fast kernel, as in quantized_linear_choice.h."""


@st.composite
def cases(draw: st.DrawFn, kernel: str | None, eight_bits: torch.dtype) -> Case:
    """Draws a case that a kernel can run; None: any."""
    every = tuple(itertools.product((False, True), repeat=3))
    wide = (eight_bits, kernel) in FORMS
    form = draw(st.sampled_from(FORMS.get((eight_bits, kernel), every)))
    sizes = st.integers(1, 40).map(lambda size: 16 * size) if wide else st.integers(1, 50)
    inputs = outputs = sizes
    if kernel == "rows":
        inputs = st.integers(1, 48).filter(lambda size: not 32 < size <= 40).map(lambda size: 16 * size)
        outputs = st.integers(1, 6).map(lambda size: size * (64 if form[2] else 32))
    return Case(
        tuple(draw(st.lists(st.integers(1, 24 if wide and kernel != "rows" else 8), max_size=3))),
        draw(inputs),
        draw(outputs),
        draw(st.sampled_from(ACTIVATIONS)),
        *form,
        bias=draw(st.booleans()),
        dtype=draw(st.sampled_from(SIXTEEN_BIT_TYPES)),
        seed=draw(st.integers(0, 2**16)),
    )


ROWS, *CUTLASS = (
    on_gpu(msda.quantized_linear, VARIABLE, kernel, (eight_bits,), backends.no_sm90)
    for eight_bits, kernel in FORMS
)
FAST = (emulator(msda.quantized_linear, VARIABLE, "rows", (INT8,)), ROWS, *CUTLASS)
PLAIN = (
    Backend("torch-cpu", msda.quantized_linear, dtypes=EIGHT_BIT_TYPES),
    emulator(msda.quantized_linear, VARIABLE, "plain", EIGHT_BIT_TYPES),
    on_gpu(msda.quantized_linear, VARIABLE, None, EIGHT_BIT_TYPES),
    on_gpu(msda.quantized_linear, VARIABLE, "plain", EIGHT_BIT_TYPES),
)


@matrix((*PLAIN, *FAST))
def test_drawn_cases(backend: Backend, dtype: torch.dtype) -> None:
    backend.skip_unless_ready(dtype)

    def check_case(case: Case) -> None:
        check(backend, case.arguments(dtype, backend.device), order=case.seed)

    operator_checks.drawn_cases(backend, cases(backend.kernel, dtype), check_case)


EDGES = [
    Case((16,), 16, 16),  # one tile of the plain kernel
    Case((17,), 17, 33, "gelu", residual=True, masked=True),
    Case((), 5, 3, "relu", residual=True, masked=True, quantized=True),
    Case((2, 3), 1, 1, bias=False),
    Case((2, 3), 0, 4, "gelu", residual=True),  # the bias alone
    Case((0, 3), 8, 16, residual=True, masked=True, quantized=True),
    Case((2, 3), 8, 0, quantized=True),
    Case((40,), 6144, 5, "relu"),
]


@matrix(PLAIN)
@pytest.mark.parametrize("case", EDGES, ids=str)
def test_edges(backend: Backend, dtype: torch.dtype, case: Case) -> None:
    backend.skip_unless_ready(dtype)
    check(backend, case.arguments(dtype, backend.device), order=7)


@matrix(tuple(CUTLASS))
@pytest.mark.parametrize("rows", [1, 63, 64, 129, 40000])
def test_edges_of_tiles(backend: Backend, dtype: torch.dtype, rows: int) -> None:
    """Rows and columns that end within a tile, before one and with more tiles than multiprocessors."""
    backend.skip_unless_ready(dtype)
    for form, activation in itertools.product(FORMS[dtype, backend.kernel], ACTIVATIONS):
        for inputs, outputs in ((16, 16), (128, 256), (144, 528), (1552, 192)):
            case = Case((rows,), inputs, outputs, activation, *form, bias=rows != 63)
            check(backend, case.arguments(dtype, backend.device))


@matrix(FAST[:2])
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"),
    [(1, 16, 64), (64, 128, 128), (65, 144, 320), (300, 272, 192), (700, 768, 64), (20, 48, 3072)],
)
def test_edges_of_chunks(backend: Backend, dtype: torch.dtype, rows: int, inputs: int, outputs: int) -> None:
    """Rows and columns that end within a chunk of 128 x 128; chunks of the same rows in two blocks."""
    backend.skip_unless_ready(dtype)
    for form, activation in zip(itertools.cycle(FORMS[dtype, "rows"]), ACTIVATIONS * 2, strict=False):
        case = Case((rows,), inputs, outputs, activation, *form, bias=rows != 64)
        check(backend, case.arguments(dtype, backend.device), order=rows)


@matrix((ROWS,))
@pytest.mark.parametrize("form", FORMS[INT8, "rows"], ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), [(192, 768), (256, 256), (384, 1152), (512, 96), (768, 2304)])
def test_more_chunks_than_multiprocessors(
    backend: Backend, dtype: torch.dtype, inputs: int, outputs: int, form: tuple[bool, bool, bool]
) -> None:
    backend.skip_unless_ready(dtype)
    outputs = 128 if form[2] and outputs == 96 else outputs
    check(backend, Case((40000,), inputs, outputs, "none", *form).arguments(dtype, backend.device))


# Rounding.


@matrix((*PLAIN, *FAST))
def test_ties_and_saturation(backend: Backend, dtype: torch.dtype) -> None:
    """Halves round to even, numbers out of range become the largest ones."""
    backend.skip_unless_ready(dtype)
    quantised = [form for form in FORMS.get((dtype, backend.kernel), (QUANTIZED,)) if form == QUANTIZED]
    if not quantised:
        pytest.skip("the kernel has no 8-bit results")
    given = torch.tensor(
        [-127, -5, -3, -1, 0, 1, 3, 5, 7, 127] if dtype == INT8 else [-448, -18, -17, 17, 18, 448]
    )
    x = torch.zeros(len(given), 16)
    x[:, 0] = given
    weight, scale = torch.eye(64, 16), torch.ones(64)
    scale[0] = 0.5 if dtype == INT8 else 1
    bias = torch.zeros(64)
    inputs = Inputs(x.to(dtype), weight.to(dtype), scale, bias, None, "none", None, 1.0, torch.float16)
    inputs = map_tensors(inputs, lambda x: x.to(backend.device))
    expected = [-64, -2, -2, 0, 0, 0, 2, 2, 4, 64] if dtype == INT8 else [-448, -18, -16, 16, 18, 448]
    assert backend.compute(inputs)[:, 0].tolist() == expected
    far = inputs._replace(bias=inputs.bias + 1000)
    assert (backend.compute(far).float() == (127 if dtype == INT8 else 448)).all()
    far = far._replace(bias=-far.bias)
    assert (backend.compute(far).float() == (-128 if dtype == INT8 else -448)).all()


def test_every_number_of_8_bits() -> None:
    """The plain kernel reads and writes every number of both types."""
    emulator_or_skip()
    for dtype in EIGHT_BIT_TYPES:
        every = torch.arange(256, dtype=torch.uint8).view(dtype)[:, None]
        one = torch.ones(1, 1).to(dtype)
        found = emulated_kernels.quantized_linear(
            every, one, torch.ones(1), None, None, "none", None, 1.0, torch.float16
        )
        is_number = ~every.float().isnan()
        assert torch.equal(found.float()[is_number], every.float()[is_number])
        assert found.float()[~is_number].isnan().all()


# The choice.


@pytest.mark.parametrize("eight_bits", EIGHT_BIT_TYPES, ids=str)
def test_choice(eight_bits: torch.dtype) -> None:
    """Every layer of Swin-L and of the encoder has a fast kernel; other endings have none."""
    emulator_or_skip()
    fastest = functools.partial(emulated_kernels.fastest_quantized_linear, eight_bits=eight_bits)
    for problem in PROBLEMS:
        sizes = problem.rows, problem.inputs_of_row, problem.outputs_of_row
        form = problem.activation, problem.residual, problem.masked
        kernel = fastest(sizes, (*form, problem.activation != "none"))
        switches = problem.residual, problem.masked, problem.activation != "none"
        assert switches in FORMS[eight_bits, kernel]
    for form in (("none", True, True, False), ("none", True, False, True)):
        assert fastest((900, 256, 256), form) == "plain"
    form = "none", *MASKED_QUANTIZED
    assert fastest((900, 256, 256), form) == ("rows" if eight_bits == INT8 else "plain")


# M, K, N, activation, switches, and the kernel in INT8 and in FP8. The times in INT8 are those of
# benchmarks/results/quantized_linear_forms_h100.txt, in us; those with "rows" are in
# quantized_linear_rows_h200.txt.
BY_SIZE = [
    # 86, and 208 with 64x192
    ((73656, 2048, 256), "none", RESIDUAL, "pingpong_128x128", "cooperative_128x128"),
    ((73656, 256, 256), "none", MASKED, "rows", "cooperative_128x128"),
    ((73656, 256, 2048), "relu", QUANTIZED, "rows", "cooperative_128x128"),
    ((55296, 192, 768), "gelu", QUANTIZED, "rows", "cooperative_128x128"),
    # 36.6, and 38.7 with 128x128
    ((55296, 768, 192), "none", RESIDUAL, "cooperative_128x192", "pingpong_64x192"),
    # 16.8, and 19.7 with 128x128
    ((3456, 3072, 768), "none", RESIDUAL, "cooperative_128x192", "pingpong_64x192"),
    # 19.6, and 25.9 with 128x192
    ((864, 6144, 1536), "none", RESIDUAL, "pingpong_128x128", "pingpong_64x192"),
    # 13.4, and 22 with 256x128
    ((864, 1536, 4608), "none", PRODUCT, "pingpong_64x256", "pingpong_64x128"),
]


@pytest.mark.parametrize(("sizes", "activation", "switches", "int8", "fp8"), BY_SIZE, ids=str)
def test_choice_by_size(sizes: tuple, activation: str, switches: tuple, int8: str, fp8: str) -> None:
    emulator_or_skip()
    fastest = functools.partial(emulated_kernels.fastest_quantized_linear, sizes, (activation, *switches))
    assert (fastest(INT8), fastest(FP8)) == (int8, fp8)


@pytest.mark.gpu
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
@pytest.mark.parametrize("eight_bits", EIGHT_BIT_TYPES, ids=str)
def test_layers_of_swin(problem: object, eight_bits: torch.dtype) -> None:
    """The library's choice at the sizes of the benchmarks, with an 8-bit result behind an activation."""
    backend = on_gpu(msda.quantized_linear, missing=backends.no_sm90)
    backend.skip_unless_ready(eight_bits)
    sizes = (problem.rows,), problem.inputs_of_row, problem.outputs_of_row
    form = problem.activation, problem.residual, problem.masked, problem.activation != "none"
    check(backend, Case(*sizes, *form).arguments(eight_bits, "cuda"))


@pytest.mark.gpu
def test_what_no_fast_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes and addresses that only the plain kernel takes: the forced ones refuse."""
    if reason := backends.no_sm90(torch.float16):
        pytest.skip(reason)
    fits = Case((100,), 64, 64).arguments(INT8, "cuda")
    slow = [
        Case((100,), 56, 64).arguments(INT8, "cuda"),
        Case((100,), 64, 60).arguments(INT8, "cuda"),
        Case((100,), 64, 56, quantized=True).arguments(INT8, "cuda"),
        Case((100,), 64, 64, residual=True, quantized=True).arguments(INT8, "cuda"),
        fits._replace(x=misaligned(fits.x)),
    ]
    for inputs in slow:
        assert torch.equal(msda.quantized_linear(*inputs), truth(inputs))
    for kernel in ("pingpong_128x128", "rows"):
        monkeypatch.setenv(VARIABLE, kernel)
        for inputs in slow:
            with pytest.raises(RuntimeError, match="not supported"):
                msda.quantized_linear(*inputs)


def test_what_rows_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many inputs or outputs, and a residual."""
    emulator_or_skip()
    monkeypatch.setenv(VARIABLE, "rows")
    for sizes in ((640, 64), (784, 64), (16, 3136), (16, 48), (16, 64, "none", True)):
        with pytest.raises(emulated_kernels.NotSupported):
            emulated_kernels.quantized_linear(*Case((4,), *sizes).arguments(INT8))


def test_name_of_no_kernel() -> None:
    inputs = Case((4,), 8, 8).arguments(INT8)
    operator_checks.unknown_kernel(msda.quantized_linear, inputs, VARIABLE, "plain, rows, pingpong_.*")


def test_kernel_that_is_not_in_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator has no kernels of CUTLASS, as builds for other architectures."""
    emulator_or_skip()
    monkeypatch.setenv(VARIABLE, "pingpong_128x128")
    with pytest.raises(emulated_kernels.NotSupported):
        emulated_kernels.quantized_linear(*Case((4,), 16, 16).arguments(INT8))


# In PyTorch.

SMALL = Case((2, 3), 4, 5, "gelu", residual=True, masked=True)


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("eight_bits", EIGHT_BIT_TYPES, ids=str)
def test_opcheck(eight_bits: torch.dtype, quantized: bool, device: str) -> None:
    case = Case((2, 3), 4, 5, "gelu", residual=True, masked=True, quantized=quantized)
    operator = torch.ops.msda.quantized_linear.default
    operator_checks.registration_of_8_bits(operator, case.arguments(eight_bits, device), eight_bits)


def test_strided_inputs(device: str) -> None:
    inputs = SMALL.arguments(INT8, device)
    strided = inputs._replace(
        x=inputs.x.transpose(0, 1).contiguous().transpose(0, 1), weight=inputs.weight.T.contiguous().T
    )
    assert torch.equal(msda.quantized_linear(*strided), msda.quantized_linear(*inputs))


@pytest.mark.parametrize("quantized", [False, True])
def test_export(quantized: bool) -> None:
    """All sizes of x but the last are dynamic."""
    tensors, others = (case.arguments(INT8)[:3] for case in (SMALL, Case((4, 3), 4, 5)))
    call = functools.partial(msda.quantized_linear, output_scale=0.5 if quantized else None)
    operator_checks.exports(torch.ops.msda.quantized_linear.default, call, tensors, others, dynamic=2)


@pytest.mark.gpu
@pytest.mark.parametrize("eight_bits", EIGHT_BIT_TYPES, ids=str)
@pytest.mark.parametrize("form", [MASKED, RESIDUAL, QUANTIZED], ids=["masked", "residual", "quantized"])
def test_graph_replays(form: tuple[bool, bool, bool], eight_bits: torch.dtype) -> None:
    if reason := backends.no_sm90(torch.float16):
        pytest.skip(reason)
    inputs = Case((300,), 256, 512, "none", *form).arguments(eight_bits, "cuda")

    def run(*inputs: Any) -> Tensor:
        # PyTorch cannot compare 8-bit floats.
        return msda.quantized_linear(*inputs).view(torch.uint8)

    operator_checks.replays(run, inputs, lambda inputs: inputs.scale.mul_(0.5))


# Wrong arguments.

WRONG = (
    Row("x", lambda x: x.tolist(), ("torch.Tensor", "list"), TypeError),
    Row("x", lambda x: x.int(), ("int8 or float8_e4m3fn", "torch.int32"), TypeError),
    Row("x", lambda x: x[0, 0, 0], ("[..., K]", "without dimensions")),
    Row("weight", lambda x: x.half(), ("torch.int8 as x", "torch.float16"), TypeError),
    Row("weight", lambda x: x[:, 1:], ("[N, K] = [5, 4]", "[5, 3]")),
    Row("scale", lambda x: x[0], ("[N] = [5]", "[]")),
    Row("scale", lambda x: x.half(), ("torch.float32", "torch.float16"), TypeError),
    Row("scale", lambda x: None, ("torch.Tensor", "NoneType"), TypeError),
    Row("bias", lambda x: x.half(), ("torch.float32", "torch.float16"), TypeError),
    Row("bias", lambda x: x[None], ("[N] = [5]", "[1, 5]")),
    Row("residual", lambda x: x[..., 1:], ("[..., N] = [2, 3, 5]", "[2, 3, 4]")),
    Row("residual", lambda x: x.float(), ("torch.float16", "torch.float32"), TypeError),
    Row("mask", lambda x: x > 0, ("torch.float16", "torch.bool"), TypeError),
    Row("mask", lambda x: x.squeeze(-1), ("[..., 1] = [2, 3, 1]", "[2, 3]")),
    Row("activation", lambda x: "silu", ("none, gelu, relu", "'silu'")),
    Row("output_scale", lambda x: 0.0, ("above 0", "0.0")),
    Row("output_scale", lambda x: math.inf, ("finite", "inf")),
    Row("output_scale", lambda x: 1e-45, ("reciprocal", "1e-45")),
    Row("output_scale", lambda x: "half", ("float", "'half'"), TypeError),
    Row("dtype", lambda x: torch.float32, ("torch.float16 or torch.bfloat16", "torch.float32"), TypeError),
)
# PyTorch calls the implementation for meta tensors, which reads nothing.
ANOTHER_DEVICE = Row("bias", lambda x: x.to("meta"), ("cpu as x", "meta"))


@pytest.mark.parametrize("row", (*WRONG, ANOTHER_DEVICE), ids=str)
def test_wrong_argument(row: Row) -> None:
    for module in (msda, msda.quantized_linear_reference):
        row.check(module.quantized_linear, SMALL.arguments(INT8))


@pytest.mark.parametrize("row", WRONG, ids=str)
def test_raw_operator_is_safe(row: Row, device: str) -> None:
    row.check_raw(torch.ops.msda.quantized_linear, SMALL.arguments(INT8, device))


def test_too_many_inputs() -> None:
    """Sums of more products could exceed 32 bits."""
    x = torch.zeros(1, 2**17, dtype=INT8)
    with pytest.raises(ValueError, match=r"^x: expected .* K up to 131071, got \[1, 131072\]"):
        msda.quantized_linear(x, x, torch.ones(1))
