"""The largest output of a linear layer: every backend against the reference in float64."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import msda
from benchmarks.linear_max import Inputs, truth
from tests.matrix import backends, emulated_kernels, operator_checks
from tests.matrix.map_operators import Backend, Row, emulator, matrix, on_gpu, plain_backends

VARIABLE = "MSDA_LINEAR_MAX"


@dataclass(frozen=True)
class Case:
    """Sizes and contents of a call."""

    rows: tuple[int, ...]  # sizes of x before the last
    inputs: int
    outputs: int
    scale: float = 1.0  # of the weights
    seed: int = 0

    def inputs_of(self, dtype: torch.dtype, device: str = "cpu") -> Inputs:
        """Normal numbers; with a scale of 1, x weight^T has a variance of 1."""
        generator = torch.Generator().manual_seed(self.seed)
        draw = functools.partial(torch.randn, generator=generator, dtype=torch.float64)
        wide = torch.promote_types(dtype, torch.float32)
        weight = draw(self.outputs, self.inputs) * (self.scale / math.sqrt(max(self.inputs, 1)))
        # Weights of very different sizes in one row.
        weight *= torch.exp2(-torch.randint(12, weight.shape, generator=generator).double())
        tensors = draw(*self.rows, self.inputs).to(dtype), weight.to(wide), draw(self.outputs).to(wide)
        return Inputs(*(tensor.to(device) for tensor in tensors))


BOUND = {torch.float32: 1e-6, torch.float16: 1e-6, torch.bfloat16: 1e-6, torch.float64: 1e-14}
"""Largest error, relative to the sum of the magnitudes that are added: that of float32 for 16 bits too."""


def check(backend: Backend, inputs: Inputs, order: int = 0) -> None:
    """Fails unless every result is as near to the truth as float32 allows."""
    found, expected = backend.compute(inputs, order), truth(inputs)
    assert found.dtype == inputs.weight.dtype and found.shape == expected.shape
    x, weight, bias = (tensor.double().abs() for tensor in inputs)
    added = (x @ weight.mT + bias).amax(-1)
    worst = ((found.double() - expected).abs() / added).amax() if found.numel() else torch.zeros(())
    assert worst <= BOUND[inputs.x.dtype], f"error {worst:.1e}"


TENSOR_CORE = tuple(
    make(msda.linear_max, VARIABLE, "tensor_core", backends.SIXTEEN_BIT) for make in (emulator, on_gpu)
)
OTHERS = plain_backends(msda.linear_max, VARIABLE)


@st.composite
def cases(draw: st.DrawFn, kernel: str | None) -> Case:
    """Draws a case that a kernel can run; None: any."""
    fast = kernel == "tensor_core"
    return Case(
        rows=tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))),
        inputs=draw(st.sampled_from((64, 192, 256)) if fast else st.integers(1, 300)),
        outputs=draw(st.integers(1, 80 if fast else 100)),
        scale=draw(st.sampled_from((1e-20, 1e-3, 1.0, 1e4))),
        seed=draw(st.integers(0, 2**16)),
    )


@matrix((*OTHERS, *TENSOR_CORE))
def test_drawn_cases(backend: Backend, dtype: torch.dtype) -> None:
    backend.skip_unless_ready(dtype)

    def check_case(case: Case) -> None:
        check(backend, case.inputs_of(dtype, backend.device), order=case.seed)

    operator_checks.drawn_cases(backend, cases(backend.kernel), check_case, part=4)


EDGES = [
    Case((0, 3), 256, 80),
    Case((), 256, 80),
    Case((1,), 256, 1),
    Case((2, 3), 0, 4),  # the bias alone
    Case((31,), 256, 32),  # the most outputs of the smaller form, and a part of a tile
    Case((33,), 256, 33),
    Case((700,), 256, 80),  # more tiles than warps in the emulator
    Case((700,), 192, 20),
    Case((700,), 64, 80),
    Case((40,), 256, 81),
    Case((40,), 248, 80),
]


@matrix(OTHERS)
@pytest.mark.parametrize("case", EDGES, ids=str)
def test_edges(backend: Backend, dtype: torch.dtype, case: Case) -> None:
    backend.skip_unless_ready(dtype)
    check(backend, case.inputs_of(dtype, backend.device), order=7)


@matrix(TENSOR_CORE)
@pytest.mark.parametrize("rows", [73656, 8 * 73656])
def test_cells_of_the_encoder(backend: Backend, dtype: torch.dtype, rows: int) -> None:
    if backend.emulated:
        rows = 2000
    backend.skip_unless_ready(dtype)
    check(backend, Case((rows,), 256, 80).inputs_of(dtype, backend.device))


@matrix((*OTHERS, *TENSOR_CORE))
def test_numbers_that_are_not_finite(backend: Backend, dtype: torch.dtype) -> None:
    """They spoil their row only, and NaN stays NaN."""
    backend.skip_unless_ready(dtype)
    inputs = Case((70,), 256, 5).inputs_of(dtype, backend.device)
    inputs.x[3, 100], inputs.x[40, 7] = torch.nan, torch.inf
    found = backend.compute(inputs)
    assert found[3].isnan() and not found[40].isfinite()
    finite = torch.tensor([row not in (3, 40) for row in range(70)])
    assert found[finite].isfinite().all()


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        (Case((9,), 256, 81), torch.float16),
        (Case((9,), 224, 80), torch.float16),
        (Case((9,), 256, 80), torch.float32),
    ],
    ids=str,
)
def test_sizes_that_tensor_cores_cannot_run(case: Case, dtype: torch.dtype) -> None:
    TENSOR_CORE[0].skip_unless_ready(dtype)
    inputs = case.inputs_of(dtype)
    with pytest.raises(emulated_kernels.NotSupported):
        TENSOR_CORE[0].compute(inputs)


@pytest.mark.parametrize("inputs", [64, 128, 192, 256])
def test_sizes_of_the_fast_kernel(inputs: int) -> None:
    """Exporters ask for the sizes, and builds for the type and the GPU too."""
    TENSOR_CORE[0].skip_unless_ready(torch.float16)
    ask = emulated_kernels.has_fast_linear_max
    for outputs in (1, 32, 33, 80, 81):
        expected = msda.has_fast_linear_max(inputs, outputs)
        assert expected == (inputs != 128 and outputs <= 80)
        assert [ask(inputs, outputs, dtype) for dtype in backends.SIXTEEN_BIT] == [expected] * 2
        assert not ask(inputs, outputs, torch.float32)


def test_name_of_no_kernel() -> None:
    inputs = Case((4,), 8, 8).inputs_of(torch.float16)
    operator_checks.unknown_kernel(msda.linear_max, inputs, VARIABLE, "plain, tensor_core")


# In PyTorch.


@pytest.mark.parametrize("dtype", backends.DTYPES.values(), ids=str)
def test_opcheck(dtype: torch.dtype, device: str) -> None:
    inputs = Case((2, 9), 20, 7).inputs_of(dtype, device)
    torch.library.opcheck(torch.ops.msda.linear_max.default, inputs)


def test_export() -> None:
    """All sizes of x but the last are dynamic."""
    cases = Case((2, 9), 20, 7), Case((4, 7), 20, 7, seed=1)
    tensors, others = (case.inputs_of(torch.float16) for case in cases)
    operator_checks.exports(torch.ops.msda.linear_max.default, msda.linear_max, tensors, others, dynamic=2)


WRONG = [
    Row("x", lambda x: x.tolist(), ("a torch.Tensor, got list",), TypeError),
    Row("x", Tensor.int, ("expected float32, float16, bfloat16 or float64, got torch.int32",), TypeError),
    Row("x", lambda x: x[0, 0, 0], ("[..., K], got a tensor without dimensions",)),
    Row(
        "weight",
        Tensor.half,
        ("expected torch.float32 with x of torch.float16, got torch.float16",),
        TypeError,
    ),
    Row("weight", lambda x: x[0], ("[N, K] = [1, 20], got [20]",)),
    Row("weight", lambda x: x[:0], ("[N, K] = [1, 20], got [0, 20]",)),
    Row("weight", lambda x: x[:, 1:], ("[N, K] = [7, 20], got [7, 19]",)),
    Row(
        "bias",
        Tensor.double,
        ("expected torch.float32 with x of torch.float16, got torch.float64",),
        TypeError,
    ),
    Row("bias", lambda x: x[1:], ("[N] = [7], got [6]",)),
]


@pytest.mark.parametrize("row", WRONG, ids=str)
@pytest.mark.parametrize("function", [msda.linear_max, msda.linear_max_reference.linear_max])
def test_wrong_arguments(row: Row, function: Callable[..., Tensor], device: str) -> None:
    row.check(function, Case((2, 9), 20, 7).inputs_of(torch.float16, device))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", backends.SIXTEEN_BIT, ids=str)
def test_graph_replays(dtype: torch.dtype) -> None:
    TENSOR_CORE[1].skip_unless_ready(dtype)
    operator_checks.replays(msda.linear_max, Case((73656,), 256, 80).inputs_of(dtype, "cuda"))
