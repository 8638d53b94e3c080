"""Linear layers with activation, residual, mask and norm: every backend against the reference in float64."""

from __future__ import annotations

import doctest
import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import msda
from benchmarks.operator_errors import TOLERANCE, relative_error
from msda.checks import ACTIVATIONS
from tests.matrix import backends, emulated_kernels
from tests.matrix.cuda_emulator import compile_for_cpu
from tests.matrix.map_operators import (
    Backend,
    Row,
    check_autocast,
    check_compile,
    check_gradients,
    check_registration,
    check_replays,
    matrix,
    skip_unless_ready,
    with_gradients,
)


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

    def map(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        """Changes every tensor."""
        return Inputs(*(change(x) if isinstance(x, Tensor) else x for x in self))

    def truth(self) -> Tensor:
        return msda.linear_reference.linear(*self.map(Tensor.double))

    def floor(self) -> float:
        """The norms of what is added, which may cancel, see `relative_error`."""
        if self.norm_weight is not None:
            return 0.0  # a normalised row has the size of norm_weight and norm_bias
        wide = self.map(Tensor.double)
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
        return Inputs(
            draw(*self.rows, self.inputs),
            draw(self.outputs, self.inputs) / math.sqrt(max(self.inputs, 1)),
            draw(self.outputs) if self.bias else None,
            draw(*self.rows, self.outputs) if self.residual else None,
            self.activation,
            # Zeros as of padded cells, and other numbers, which show that the kernel multiplies by them.
            draw(*self.rows, 1).relu() if self.masked else None,
            *((draw(self.outputs), draw(self.outputs)) if self.normed else ()),
        ).map(lambda x: x.to(device, dtype))


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


EMULATED = tuple(
    Backend(
        f"emulator{name}",
        emulated_kernels.linear,
        missing=lambda dtype: compile_for_cpu.missing(),
        variable="MSDA_LINEAR",
        kernel=kernel,
    )
    for name, kernel in (("", None), ("-plain", "plain"))
)
on_gpu = functools.partial(Backend, run=msda.linear, device="cuda", variable="MSDA_LINEAR")
CUTLASS = tuple(
    on_gpu(f"torch-cuda-{kernel}", dtypes=backends.SIXTEEN_BIT, missing=backends.no_sm90, kernel=kernel)
    for kernel in FORMS
)
ALL = (
    Backend("torch-cpu", msda.linear),
    *EMULATED,
    on_gpu("torch-cuda", missing=backends.no_gpu),
    on_gpu("torch-cuda-plain", missing=backends.no_gpu, kernel="plain"),
    *CUTLASS,
)


@matrix(ALL)
def test_drawn_cases(backend: Backend, dtype: torch.dtype) -> None:
    skip_unless_ready(backend, dtype)

    @settings(max_examples=settings.default.max_examples // (2 if backend.emulated else 1))
    @given(case=cases(backend.kernel))
    def check(case: Case) -> None:
        backend.check(case.arguments(dtype, backend.device), order=case.seed)

    check()


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
    skip_unless_ready(backend, dtype)
    backend.check(case.arguments(dtype, backend.device), order=7)


@matrix(CUTLASS)
@pytest.mark.parametrize("rows", [1, 63, 64, 129, 40000])
def test_edges_of_tiles(backend: Backend, dtype: torch.dtype, rows: int) -> None:
    """Rows and columns that end within a tile, before one and with more tiles than multiprocessors."""
    skip_unless_ready(backend, dtype)
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
    if reason := compile_for_cpu.missing():
        pytest.skip(reason)
    assert emulated_kernels.fastest_linear(*problem) == kernel


@pytest.mark.gpu
@pytest.mark.parametrize("problem", [problem for problem, kernel in FASTEST if kernel != "plain"], ids=str)
@pytest.mark.parametrize("dtype", backends.SIXTEEN_BIT, ids=str)
def test_layers_of_models(problem: tuple, dtype: torch.dtype) -> None:
    """The library's choice runs, and not PyTorch's operations."""
    backend = on_gpu("torch-cuda", missing=backends.no_sm90)
    skip_unless_ready(backend, dtype)
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
    shifted = torch.empty(fits.x.numel() + 1, dtype=fits.x.dtype, device="cuda")[1:].view_as(fits.x)
    slow = [
        Case((100,), 60, 64).arguments(torch.float16, "cuda"),
        Case((100,), 64, 60).arguments(torch.bfloat16, "cuda"),
        Case((100,), 64, 64).arguments(torch.float32, "cuda"),
        Case((100,), 64, 64, "gelu", residual=True).arguments(torch.float16, "cuda"),
        Case((100,), 64, 64, residual=True, masked=True).arguments(torch.float16, "cuda"),
        Case((100,), 64, 64, residual=True, normed=True).arguments(torch.float16, "cuda"),
        Case((100,), 64, 512, normed=True).arguments(torch.bfloat16, "cuda"),
        fits._replace(x=shifted.copy_(fits.x)),
    ]
    assert torch.ops.msda.has_fast_linear(**fits._asdict())
    for inputs in slow:
        assert not torch.ops.msda.has_fast_linear(**inputs._asdict())
        expected = msda.linear_reference.finish(F.linear(*inputs[:3]), *inputs[3:])
        assert torch.equal(msda.linear(*inputs), expected)
    monkeypatch.setenv("MSDA_LINEAR", "pingpong_128x128")
    for inputs in slow:
        with pytest.raises(RuntimeError, match="not supported"):
            msda.linear(*inputs)


def test_value_that_is_not_finite() -> None:
    """NaN and infinity spoil their row only, also behind ReLU."""
    if reason := compile_for_cpu.missing():
        pytest.skip(reason)
    for number in (torch.nan, torch.inf):
        inputs = Case((5,), 20, 20, "relu").arguments(torch.float16)
        inputs.x[2, 7] = number
        for run in (emulated_kernels.linear, msda.linear):
            output = run(*inputs)
            assert output[[0, 1, 3, 4]].isfinite().all() and not output[2].isfinite().all()


def test_name_of_no_kernel(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    inputs = Case((4,), 8, 8).arguments(torch.float16, device)
    monkeypatch.setenv("MSDA_LINEAR", "fastest")
    run, error = msda.linear, RuntimeError
    if device == "cpu":
        if reason := compile_for_cpu.missing():
            pytest.skip(reason)
        run, error = emulated_kernels.linear, emulated_kernels.EmulatorError
    with pytest.raises(
        error, match=r"MSDA_LINEAR: expected one of plain, pingpong_.*, or no value.*'fastest'"
    ):
        run(*inputs)


def test_kernel_that_is_not_in_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator has no kernels of CUTLASS, as builds for other architectures."""
    if reason := compile_for_cpu.missing():
        pytest.skip(reason)
    monkeypatch.setenv("MSDA_LINEAR", "pingpong_128x128")
    with pytest.raises(emulated_kernels.NotSupported):
        emulated_kernels.linear(*Case((4,), 8, 8).arguments(torch.float16))


# In PyTorch.

SMALL = Case((2, 3), 4, 5, "gelu", residual=True, masked=True)
SMALL_NORM = Case((2, 3), 4, 5, residual=True, normed=True)


DIFFERENTIATED = *(Case((2, 3), 4, 5, kind, residual=True, masked=True) for kind in ACTIVATIONS), SMALL_NORM


@pytest.mark.parametrize("case", DIFFERENTIATED, ids=str)
def test_derivatives(case: Case, device: str) -> None:
    """First derivatives in both modes, second derivatives, torch.func and vmap."""
    inputs, tensors = with_gradients(case.arguments(torch.float64, device))
    names = [name for name, value in inputs._asdict().items() if isinstance(value, Tensor)]

    def run(*tensors: Tensor) -> Tensor:
        return msda.linear(*inputs._replace(**dict(zip(names, tensors, strict=True))))

    assert torch.autograd.gradcheck(run, tensors, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(run, tensors)
    expected = torch.autograd.grad(run(*tensors).square().sum(), tensors)
    every = tuple(range(len(tensors)))
    found = torch.func.grad(lambda *x: run(*x).square().sum(), every)(*(x.detach() for x in tensors))
    torch.testing.assert_close(found, expected)
    samples = [torch.stack((x, 2 * x, -x)).detach() for x in tensors]
    mapped = torch.vmap(run)(*samples)
    torch.testing.assert_close(mapped, torch.stack([run(*(x[i] for x in samples)) for i in range(3)]))
    for mapped_too in ({0}, {0, len(tensors) - 1}):  # rows alone, and with the mask or norm_bias
        dims = [1 if i in mapped_too else None for i in every]
        given = [samples[i].movedim(0, 1) if i in mapped_too else x for i, x in enumerate(tensors)]
        expected = run(*(2 * x if i in mapped_too else x for i, x in enumerate(tensors)))
        torch.testing.assert_close(torch.vmap(run, tuple(dims))(*given)[1], expected)


@pytest.mark.parametrize("missing", ["bias", "residual", "mask"])
def test_gradients_without_an_optional_tensor(missing: str, device: str) -> None:
    inputs, tensors = with_gradients(SMALL.arguments(torch.float64, device)._replace(**{missing: None}))
    found = torch.autograd.grad(msda.linear(*inputs).square().sum(), tensors)
    expected = torch.autograd.grad(inputs.truth().square().sum(), tensors)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", backends.DTYPES.values(), ids=str)
def test_gradients(dtype: torch.dtype, device: str) -> None:
    for case in (
        Case((8, 16), 24, 32, "gelu", residual=True, masked=True),
        Case((8, 16), 24, 32, residual=True, normed=True),
    ):
        check_gradients(msda.linear, case.arguments(dtype, device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_opcheck(dtype: torch.dtype, device: str) -> None:
    for case in (SMALL, SMALL_NORM):
        check_registration(torch.ops.msda.linear.default, case.arguments(dtype, device))


def test_compile(device: str) -> None:
    for cases in (
        (SMALL, Case((3, 8), 6, 2, "gelu", residual=True, masked=True)),
        (SMALL_NORM, Case((3, 8), 6, 7, residual=True, normed=True)),
    ):
        check_compile(msda.linear, [case.arguments(torch.float32, device) for case in cases])


def test_export() -> None:
    """torch.export, strict, with dynamic rows; the graph keeps the operator whole."""

    class Call(nn.Module):
        def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return msda.linear(x, weight, bias, activation="relu")

    batch, cells = (torch.export.Dim(name, min=1, max=4096) for name in ("N", "S"))
    tensors = SMALL.arguments(torch.float32)[:3]
    program = torch.export.export(
        Call(), tensors, dynamic_shapes=({0: batch, 1: cells}, None, None), strict=True
    )
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert targets == [torch.ops.msda.linear.default]
    again = Case((4, 7), 4, 5).arguments(torch.float32)[:3]
    torch.testing.assert_close(program.module()(*again), Call()(*again))


@pytest.mark.parametrize("dtype", backends.SIXTEEN_BIT, ids=str)
def test_autocast(dtype: torch.dtype, device: str) -> None:
    for case in (SMALL, SMALL_NORM):
        check_autocast(msda.linear, case.arguments(torch.float32, device), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", backends.SIXTEEN_BIT, ids=str)
@pytest.mark.parametrize("kernel", FORMS)
def test_cuda_graph_on_another_stream(dtype: torch.dtype, kernel: str, monkeypatch) -> None:
    if reason := backends.no_sm90(dtype):
        pytest.skip(reason)
    monkeypatch.setenv("MSDA_LINEAR", kernel)
    outputs = NORMED_OUTPUTS.get(kernel, 768)
    inputs = Case((3456,), 768, outputs, *FORMS[kernel][-1]).arguments(dtype, "cuda")
    output = check_replays(msda.linear, inputs)
    assert relative_error(output, inputs.truth()) <= TOLERANCE[dtype]


def test_docstring_example() -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(msda.linear, globs={"torch": torch})
    example.globs["linear"] = msda.linear
    assert doctest.DocTestRunner().run(example).failed == 0


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
    """The registered operator, called without the public function's checks, raises too."""
    with pytest.raises((RuntimeError, TypeError, ValueError)):
        torch.ops.msda.linear(**row.wrong(case.arguments(torch.float32, device)))
