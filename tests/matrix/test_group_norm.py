"""Group normalisation: every backend against the reference in float64, and against PyTorch's."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

import msda
from benchmarks.operator_errors import TOLERANCE, relative_error
from tests.matrix import backends, emulated_kernels, operator_checks
from tests.matrix.against_reference import FLOOR
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

VARIABLE, KERNELS = "MSDA_GROUP_NORM", (None, "plain", "vectors")


class Inputs(NamedTuple):
    """The arguments of the operator."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    num_groups: int
    eps: float

    def truth(self) -> Tensor:
        return msda.group_norm_reference.group_norm(*map_tensors(self, Tensor.double))

    def floor(self) -> float:
        """FLOOR times the norm of as many normal numbers as the result has, see `relative_error`."""
        return FLOOR * self.x.numel() ** 0.5


@dataclass(frozen=True)
class Case:
    """Sizes and contents of a call."""

    num_groups: int
    group_size: int
    batch: int = 1
    height: int = 5
    width: int = 7
    offset: float = 0.0
    eps: float = 1e-5
    seed: int = 0
    flat: bool = False  # [N, S, C]

    def inputs(self, dtype: torch.dtype, device: str = "cpu") -> Inputs:
        """Normal numbers, with a mean of their own in each image: multiples of `offset`."""
        generator = torch.Generator().manual_seed(self.seed)
        draw = functools.partial(torch.randn, generator=generator, dtype=torch.float64)
        channels = self.num_groups * self.group_size
        x = draw(self.batch, self.height, self.width, channels)
        x += self.offset * torch.arange(1, self.batch + 1).reshape(-1, 1, 1, 1)
        x = x.flatten(1, 2) if self.flat else x
        inputs = Inputs(x, draw(channels), draw(channels), self.num_groups, self.eps)
        return map_tensors(inputs, lambda x: x.to(device, dtype))


@st.composite
def cases(draw: st.DrawFn, vectors: bool) -> Case:
    group_size = draw(st.integers(1, 6))
    return Case(
        num_groups=draw(st.integers(1, 20)),
        group_size=8 * group_size if vectors else group_size,
        batch=draw(st.integers(1, 3)),
        height=draw(st.integers(1, 20)),
        width=draw(st.integers(1, 20)),
        offset=draw(st.sampled_from((0.0, 10.0))),
        eps=draw(st.sampled_from((1e-5, 0.5))),
        seed=draw(st.integers(0, 2**16)),
        flat=draw(st.booleans()),
    )


EMULATED = tuple(emulator(msda.group_norm, VARIABLE, kernel) for kernel in KERNELS)
ON_GPU = tuple(on_gpu(msda.group_norm, VARIABLE, kernel) for kernel in KERNELS)
ALL = (Backend("torch-cpu", msda.group_norm), *EMULATED, *ON_GPU)
FORCED = tuple(backend for backend in ALL if backend.kernel)


@matrix(ALL)
def test_drawn_cases(backend: Backend, dtype: torch.dtype) -> None:
    backend.skip_unless_ready(dtype)
    vectors = st.just(True) if backend.kernel == "vectors" else st.booleans()

    def check(case: Case) -> None:
        backend.check(case.inputs(dtype, backend.device), order=case.seed)

    operator_checks.drawn_cases(backend, vectors.flatmap(cases), check)


FORMS = [
    Case(32, 8, 1, 24, 36),  # a Co-DETR's neck
    Case(32, 8, 2, 9, 31),
    Case(1, 8, 2, 40, 40),  # one vector a cell (two in float): 512 cells at once
    Case(1, 8, 1, 100, 300),  # more cells than the emulator's blocks have in shared memory
    Case(512, 8, 1, 3, 5),  # a column for each thread in 16 bits, too many in float
    Case(3, 32, 5, 7, 3),  # threads without a row, more images than the emulator's multiprocessors
    Case(8, 8, 1, 1, 1),
]


@matrix(tuple(backend for backend in ALL if backend.kernel != "vectors"))
@pytest.mark.parametrize("case", FORMS, ids=str)
def test_forms(backend: Backend, dtype: torch.dtype, case: Case) -> None:
    """The library's choice, for the ends of the vectors kernel's range and beyond."""
    backend.skip_unless_ready(dtype)
    backend.check(case.inputs(dtype, backend.device), order=7)


@matrix(tuple(backend for backend in ON_GPU if backend.kernel == "vectors"))
@pytest.mark.parametrize("batch", [1, 5])
def test_large_maps(backend: Backend, dtype: torch.dtype, batch: int) -> None:
    """One image has more cells than shared memory holds; with five, a multiprocessor has two blocks."""
    backend.skip_unless_ready(dtype)
    backend.check(Case(8, 8, batch, 480, 480).inputs(dtype, backend.device), order=7)


@matrix(FORCED)
def test_mean_far_from_zero(backend: Backend, dtype: torch.dtype) -> None:
    """E[x^2] - E[x]^2 in float would have no correct digit here."""
    backend.skip_unless_ready(dtype)
    inputs = Case(4, 16, 2, 12, 17).inputs(dtype, backend.device)
    far = inputs._replace(x=(inputs.x.double() * 8).round().add(2000).to(dtype))
    output, expected = backend.compute(far), far.truth()
    allowed = {torch.float64: 1e-11, torch.float32: 1e-4}.get(dtype, TOLERANCE[dtype])
    assert relative_error(output, expected) <= allowed


@matrix(FORCED)
def test_equal_numbers(backend: Backend, dtype: torch.dtype) -> None:
    """Their variance is zero, or the square of a rounding error, and never NaN."""
    backend.skip_unless_ready(dtype)
    for number in (0.0, 1.1, -1000.3, 3e4):
        inputs = Case(4, 16, 2, 9, 31).inputs(dtype, backend.device)
        output = backend.compute(inputs._replace(x=torch.full_like(inputs.x, number)))
        # A rounding error of the mean times weight / sqrt(eps).
        rounding = torch.finfo(torch.promote_types(dtype, torch.float32)).eps * abs(number)
        allowed = 4 * rounding * inputs.eps**-0.5 + torch.finfo(dtype).eps
        scale = 1 + inputs.weight.double().abs().max() + inputs.bias.double().abs().max()
        assert ((output.double() - inputs.bias.double()).abs() <= allowed * scale).all()


@matrix(FORCED)
def test_value_that_is_not_finite(backend: Backend, dtype: torch.dtype) -> None:
    """NaN and infinity spoil their image and group only."""
    backend.skip_unless_ready(dtype)
    for number in (torch.nan, torch.inf, -torch.inf):
        inputs = Case(4, 8, batch=2).inputs(dtype, backend.device)
        inputs.x[1, 2, 3, 17] = number
        spoiled = backend.compute(inputs).isnan()
        assert spoiled[1, :, :, 16:24].all() and spoiled.sum() == 5 * 7 * 8


@pytest.mark.parametrize("argument", ["x", "weight", "bias"])
def test_pointer_that_is_not_aligned(argument: str) -> None:
    """The plain kernel runs; the one that reads vectors refuses."""
    emulator_or_skip()
    inputs = Case(4, 8).inputs(torch.float16)
    inputs = inputs._replace(**{argument: misaligned(getattr(inputs, argument))})
    choice, plain, vectors = EMULATED
    assert torch.equal(choice.compute(inputs), plain.compute(inputs))
    choice.check(inputs)
    with pytest.raises(emulated_kernels.NotSupported):
        vectors.compute(inputs)


def test_name_of_no_kernel(device: str) -> None:
    inputs = Case(4, 8).inputs(torch.float16, device)
    operator_checks.unknown_kernel(msda.group_norm, inputs, VARIABLE, "plain, vectors")


@pytest.mark.parametrize("shape", [(0, 5, 6, 4), (2, 0, 6, 4), (2, 5, 0, 4), (2, 5, 6, 0)], ids=str)
def test_empty(shape: tuple[int, int, int, int], device: str) -> None:
    x, parameter = torch.zeros(shape, device=device), torch.zeros(shape[3], device=device)
    assert msda.group_norm(x, parameter, parameter, 2).shape == shape


def test_layouts(device: str) -> None:
    """Tensors that are not contiguous. The result is."""
    inputs = Case(4, 8).inputs(torch.float32, device)
    strided = map_tensors(inputs, lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0))
    output = msda.group_norm(*strided)
    assert output.is_contiguous()
    torch.testing.assert_close(output, msda.group_norm(*inputs))


def test_equals_pytorch(device: str) -> None:
    inputs = Case(4, 6, 2, offset=3.0).inputs(torch.float32, device)
    x, weight, bias, num_groups, eps = inputs
    expected = F.group_norm(x.permute(0, 3, 1, 2), num_groups, weight, bias, eps).permute(0, 2, 3, 1)
    torch.testing.assert_close(msda.group_norm(*inputs), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(msda.group_norm(*inputs[:4]), expected, rtol=1e-4, atol=1e-5)


# In PyTorch.

SMALL = Case(2, 3, batch=2)


def test_derivatives(device: str) -> None:
    inputs = Case(2, 2, height=2, width=3, eps=0.1).inputs(torch.float64, device)
    operator_checks.derivatives(msda.group_norm, inputs)


@pytest.mark.parametrize("dtype", backends.DTYPES.values(), ids=str)
def test_gradients(dtype: torch.dtype, device: str) -> None:
    operator_checks.gradients(msda.group_norm, SMALL.inputs(dtype, device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_opcheck(dtype: torch.dtype, device: str) -> None:
    operator_checks.registration(torch.ops.msda.group_norm.default, SMALL.inputs(dtype, device))


def test_compile(device: str) -> None:
    cases = SMALL, Case(2, 3, 3, 8, 6)
    operator_checks.compiles(msda.group_norm, [case.inputs(torch.float32, device) for case in cases])


def test_export() -> None:
    """Batch, height and width are dynamic."""
    cases = SMALL, Case(2, 3, batch=3, height=2, width=11)
    tensors, others = (case.inputs(torch.float32)[:3] for case in cases)
    operator = torch.ops.msda.group_norm.default
    operator_checks.exports(operator, lambda *x: msda.group_norm(*x, 2), tensors, others, dynamic=3)


@pytest.mark.parametrize("dtype", backends.SIXTEEN_BIT, ids=str)
def test_autocast(dtype: torch.dtype, device: str) -> None:
    operator_checks.autocast(msda.group_norm, SMALL.inputs(torch.float32, device), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", backends.SIXTEEN_BIT, ids=str)
@pytest.mark.parametrize("height", [24, 192])
def test_cuda_graph_on_another_stream(dtype: torch.dtype, height: int) -> None:
    inputs = Case(32, 8, 1, height, 288).inputs(dtype, "cuda")
    output = operator_checks.replays(msda.group_norm, inputs)
    assert relative_error(output, inputs.truth()) <= TOLERANCE[dtype]


@pytest.mark.gpu
def test_kernels_that_overlap() -> None:
    """Calls in a row share work memory. No kernel reads what the next or the last call's has written."""
    many = [Case(32, 8, 1, 96, 144, seed=seed).inputs(torch.float16, "cuda") for seed in range(8)]
    expected = [msda.group_norm(*inputs) for inputs in many]
    torch.cuda.synchronize()
    for _ in range(50):
        found = [msda.group_norm(*inputs) for inputs in many]
        assert all(map(torch.equal, found, expected))
    for inputs, output in zip(many, found, strict=True):
        assert relative_error(output, inputs.truth()) <= TOLERANCE[torch.float16]


# Wrong arguments.

WRONG = (
    Row("x", lambda x: x.tolist(), ("torch.Tensor", "list"), TypeError),
    Row("x", lambda x: x.int(), ("float32, float16, bfloat16 or float64", "torch.int32"), TypeError),
    Row("x", lambda x: x[0, 0], ("[N, H, W, C] or [N, S, C]", "[7, 6]")),
    Row("weight", lambda x: x.half(), ("torch.float32 as x", "torch.float16"), TypeError),
    Row("weight", lambda x: x[:5], ("[C] = [6]", "[5]")),
    Row("bias", lambda x: None, ("torch.Tensor", "NoneType"), TypeError),
    Row("bias", lambda x: x.double(), ("torch.float32 as x", "torch.float64"), TypeError),
    Row("bias", lambda x: x[None], ("[C] = [6]", "[1, 6]")),
    Row("num_groups", lambda x: 2.0, ("int", "2.0"), TypeError),
    Row("num_groups", lambda x: 0, ("1 or more", "0")),
    Row("eps", lambda x: None, ("float", "None"), TypeError),
    Row("eps", lambda x: 0.0, ("above 0", "0.0")),
    Row("eps", lambda x: float("nan"), ("finite", "nan")),
    Row("eps", lambda x: float("inf"), ("finite", "inf")),
)
# PyTorch calls the implementation for meta tensors, which reads nothing.
ANOTHER_DEVICE = Row("bias", lambda x: x.to("meta"), ("cpu as x", "meta"))


@pytest.mark.parametrize("row", (*WRONG, ANOTHER_DEVICE), ids=str)
def test_wrong_argument(row: Row) -> None:
    for module in (msda, msda.group_norm_reference):
        row.check(module.group_norm, SMALL.inputs(torch.float32))


@pytest.mark.parametrize("num_groups", [4, 5, 7])
def test_groups_that_do_not_divide_the_channels(num_groups: int, device: str) -> None:
    inputs = SMALL.inputs(torch.float32, device)._replace(num_groups=num_groups)
    with pytest.raises(ValueError, match=rf"^x: .* multiple of num_groups = {num_groups}, .*\[2, 5, 7, 6\]"):
        msda.group_norm(*inputs)
    with pytest.raises((RuntimeError, ValueError), match="multiple of num_groups"):
        torch.ops.msda.group_norm(*inputs)


@pytest.mark.parametrize("row", WRONG, ids=str)
def test_raw_operator_is_safe(row: Row, device: str) -> None:
    row.check_raw(torch.ops.msda.group_norm, SMALL.inputs(torch.float32, device))
