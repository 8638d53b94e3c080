"""Window attention: every backend against `msda.window_reference` in float64, and against torchvision's."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torchvision.models import swin_transformer

import msda
from tests.matrix import backends, emulated_kernels, operator_checks
from tests.matrix.against_reference import FLOOR
from tests.matrix.map_operators import (
    ALL_TYPES,
    Backend,
    Row,
    emulator,
    emulator_or_skip,
    map_tensors,
    matrix,
    misaligned,
    on_gpu,
)

VARIABLE = "MSDA_WINDOW"
KERNELS = {
    None: ALL_TYPES,
    "plain": ALL_TYPES,
    "rows": backends.GROUP_DTYPES,
    "tensor_core": backends.SIXTEEN_BIT,
}
TUNED_WINDOWS, TUNED_HEADS = (7, 8, 12, 16), (16, 32, 64)


class Inputs(NamedTuple):
    """The arguments of the operator."""

    qkv: Tensor
    bias: Tensor
    padding: Tensor | None
    window_size: int
    shift: int
    output_scale: float | None = None

    def truth(self) -> Tensor:
        return msda.window_reference.window_attention(*map_tensors(self, Tensor.double))

    def floor(self) -> float:
        """FLOOR times the norm that the result would have with equal weights and no padding, see
        `relative_error`. A few cells in a padding of zeros can have weights that are all rounding."""
        values = self.qkv.double().unflatten(-1, (3, -1))[..., 2, :]
        return FLOOR * values.norm().item() / self.window_size


@dataclass(frozen=True)
class Case:
    """Sizes and contents of a call."""

    window_size: int
    head_dim: int
    batch: int = 1
    height: int = 9
    width: int = 10
    num_heads: int = 2
    shift: int = 0
    padded: bool = True
    quantized: bool = False
    spread: float = 1.0
    seed: int = 0

    def inputs(self, dtype: torch.dtype, device: str = "cpu") -> Inputs:
        """Normal numbers, with `spread` times as large queries and biases. A quantised result saturates."""
        generator = torch.Generator().manual_seed(self.seed)
        draw = functools.partial(torch.randn, generator=generator, dtype=torch.float64)
        channels, cells = self.num_heads * self.head_dim, self.window_size**2
        qkv = draw(self.batch, self.height, self.width, 3 * channels)
        qkv[..., :channels] *= self.spread
        bias = self.spread * draw(self.num_heads, cells, cells)
        padding = draw(3 * channels) if self.padded else None
        scale = 0.5 / 127 if self.quantized else None
        inputs = Inputs(qkv, bias, padding, self.window_size, self.shift, scale)
        return map_tensors(inputs, lambda x: x.to(device, dtype))


@st.composite
def cases(draw: st.DrawFn, tuned: bool) -> Case:
    window = draw(st.sampled_from(TUNED_WINDOWS) if tuned else st.integers(1, 9))
    side = st.integers(1, window + 3 if window > 12 else 2 * window + 3)
    return Case(
        window_size=window,
        head_dim=draw(st.sampled_from(TUNED_HEADS) if tuned else st.integers(1, 40)),
        batch=draw(st.integers(1, 2)),
        height=draw(side),
        width=draw(side),
        num_heads=draw(st.integers(1, 3)),
        shift=draw(st.one_of(st.just(0), st.just(window // 2), st.integers(0, window - 1))),
        padded=draw(st.booleans()),
        quantized=draw(st.booleans()),
        spread=draw(st.sampled_from((1.0, 4.0))),
        seed=draw(st.integers(0, 2**16)),
    )


EMULATED = tuple(emulator(msda.window_attention, VARIABLE, *row) for row in KERNELS.items())
ON_GPU = tuple(on_gpu(msda.window_attention, VARIABLE, *row) for row in KERNELS.items())
ALL = (Backend("torch-cpu", msda.window_attention), *EMULATED, *ON_GPU)


def check(backend: Backend, inputs: Inputs, order: int = 0) -> None:
    """Fails unless the result is near the truth, or in int8 near the backend's own result without a scale."""
    if inputs.output_scale is None:
        backend.check(inputs, order)
        return
    wide = backend.compute(inputs._replace(output_scale=None), order)
    scaled = wide.double() / inputs.output_scale
    errors = (backend.compute(inputs, order).double() - scaled.clamp(-128, 127)).abs()
    rounding = torch.finfo(wide.dtype).eps + 4 * torch.finfo(torch.float32).eps
    assert (errors <= 0.5 + rounding * scaled.abs()).all()


@matrix(ALL)
def test_drawn_cases(backend: Backend, dtype: torch.dtype) -> None:
    backend.skip_unless_ready(dtype)
    tuned = st.just(True) if backend.kernel in ("rows", "tensor_core") else st.booleans()

    def check_case(case: Case) -> None:
        check(backend, case.inputs(dtype, backend.device), order=case.seed)

    operator_checks.drawn_cases(backend, tuned.flatmap(cases), check_case)


FORMS = [Case(w, d, 2, w + 3, 2 * w, shift=w // 2) for w in TUNED_WINDOWS for d in TUNED_HEADS]


@matrix(tuple(backend for backend in ALL if backend.kernel == "tensor_core"))
@pytest.mark.parametrize("case", FORMS, ids=lambda case: f"{case.window_size}x{case.head_dim}")
def test_every_form(backend: Backend, dtype: torch.dtype, case: Case) -> None:
    """Every compiled form, with padding, shift and more windows than a block has at once."""
    backend.skip_unless_ready(dtype)
    for quantized in (False, True):
        check(backend, replace(case, quantized=quantized).inputs(dtype, backend.device), order=7)


@matrix(ALL)
def test_rounding_to_int8(backend: Backend, dtype: torch.dtype) -> None:
    """Halves are rounded to even, and large numbers saturate. NaN gives 0."""
    backend.skip_unless_ready(dtype)
    halves = torch.arange(-134.5, 135, 1, device=backend.device)  # 270 exact halves, but for large bfloat16
    steps = torch.cat((halves, halves.new_tensor([torch.nan, torch.inf])))
    qkv = torch.zeros(1, 8, 8, 3 * steps.numel(), dtype=dtype, device=backend.device)
    qkv[..., -steps.numel() :] = steps * 0.25
    inputs = Inputs(qkv, qkv.new_zeros(17, 64, 64), None, 8, 0, 0.25)  # 17 heads of 16 channels
    result = backend.compute(inputs)
    expected = steps.to(dtype).float().nan_to_num(nan=0.0).round().clamp(-128, 127)
    assert torch.equal(result.float(), expected.expand(result.shape))


@matrix(tuple(backend for backend in ALL if backend.kernel))
def test_extreme_logits(backend: Backend, dtype: torch.dtype) -> None:
    """A maximum that rises in every step, logits of hundreds, keys that the bias excludes."""
    backend.skip_unless_ready(dtype)
    for window in (7, 12):
        inputs = Case(window, 32, shift=window // 2, height=13).inputs(dtype, backend.device)
        cells = window**2
        rising = torch.arange(cells, device=backend.device) * (300 / cells)
        backend.check(inputs._replace(bias=inputs.bias + rising.round().to(dtype)))
        backend.check(inputs._replace(bias=inputs.bias + rising.flip(0).round().to(dtype)))
        excluded = inputs.bias.clone()
        excluded[:, ::2, cells // 3 :] = -torch.inf
        excluded[:, 1::2, : cells // 2] = -torch.inf
        backend.check(inputs._replace(bias=excluded))


@matrix(tuple(backend for backend in ALL if backend.kernel))
@pytest.mark.parametrize("part", ["query", "key", "value"])
def test_nan(backend: Backend, dtype: torch.dtype, part: str) -> None:
    """In a query it spoils its cell, in a key its window, in a value a channel of its window; of its head."""
    backend.skip_unless_ready(dtype)
    inputs = Case(12, 16, height=24, width=24).inputs(dtype, backend.device)
    channel = 32 * ("query", "key", "value").index(part)  # the first of head 0
    inputs.qkv[0, 2, 3, channel] = torch.nan
    expected = torch.zeros(1, 24, 24, 32, dtype=torch.bool, device=backend.device)
    if part == "query":
        expected[0, 2, 3, :16] = True
    else:
        expected[0, :12, :12, : 16 if part == "key" else 1] = True
    assert torch.equal(backend.compute(inputs).isnan(), expected)


def test_pointer_that_is_not_aligned() -> None:
    """The plain kernel runs; those that read vectors refuse."""
    emulator_or_skip()
    inputs = Case(7, 16).inputs(torch.float16)
    inputs = inputs._replace(qkv=misaligned(inputs.qkv))
    EMULATED[0].check(inputs)
    for backend in EMULATED[2:]:
        with pytest.raises(emulated_kernels.NotSupported):
            backend.compute(inputs)


def test_name_of_no_kernel(device: str) -> None:
    inputs = Case(7, 16).inputs(torch.float16, device)
    operator_checks.unknown_kernel(msda.window_attention, inputs, VARIABLE, "plain, rows, tensor_core")


@pytest.mark.parametrize("scale", [None, 0.5])
@pytest.mark.parametrize("shape", [(0, 5, 6), (2, 0, 6), (2, 5, 0)], ids=str)
def test_empty(shape: tuple[int, int, int], scale: float | None, device: str) -> None:
    bias = torch.zeros(2, 9, 9, device=device)
    result = msda.window_attention(torch.zeros(*shape, 24, device=device), bias, None, 3, 1, scale)
    assert result.shape == (*shape, 8) and result.dtype == (torch.float32 if scale is None else torch.int8)


def test_layouts(device: str) -> None:
    """Tensors that are not contiguous."""
    inputs = Case(7, 16, shift=3).inputs(torch.float32, device)
    strided = map_tensors(inputs, lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0))
    torch.testing.assert_close(msda.window_attention(*strided), msda.window_attention(*inputs))


# Against Swin.


@pytest.mark.parametrize("shift", [0, 3])
def test_equals_torchvision(shift: int, device: str) -> None:
    """Padding and mask as in torchvision, for a map that no window covers along an axis."""
    x, weight = torch.randn(2, 9, 17, 32, device=device), torch.randn(96, 32, device=device) / 4
    qkv_bias, bias = torch.randn(96, device=device), torch.randn(2, 49, 49, device=device)
    identity = torch.eye(32, device=device)
    expected = swin_transformer.shifted_window_attention(
        x, weight, identity, bias[None], [7, 7], 2, [shift, shift], qkv_bias=qkv_bias
    )
    found = msda.window_attention(x @ weight.T + qkv_bias, bias, qkv_bias, 7, shift)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


# In PyTorch.

SMALL = Case(3, 4, batch=2, height=5, width=7, shift=1)


@pytest.mark.parametrize("padded", [False, True])
def test_derivatives(padded: bool, device: str) -> None:
    case = Case(2, 2, batch=1, height=3, width=4, num_heads=1, shift=1, padded=padded)
    operator_checks.derivatives(msda.window_attention, case.inputs(torch.float64, device))


@pytest.mark.parametrize("dtype", backends.DTYPES.values(), ids=str)
def test_gradients(dtype: torch.dtype, device: str) -> None:
    operator_checks.gradients(msda.window_attention, SMALL.inputs(dtype, device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("case", [SMALL, Case(4, 3, padded=False)], ids=["padded", "not_padded"])
def test_opcheck(case: Case, dtype: torch.dtype, device: str) -> None:
    operator_checks.registration(torch.ops.msda.window_attention.default, case.inputs(dtype, device))


def test_opcheck_of_int8(device: str) -> None:
    inputs = replace(SMALL, quantized=True).inputs(torch.float32, device)
    operator = torch.ops.msda.window_attention.default
    operator_checks.registration_of_8_bits(operator, inputs, torch.int8)


def test_int8_has_no_derivatives(device: str) -> None:
    inputs, _ = operator_checks.with_gradients(replace(SMALL, quantized=True).inputs(torch.float32, device))
    assert not msda.window_attention(*inputs).requires_grad


def test_opcheck_of_backward(device: str) -> None:
    backward = torch.ops.msda.window_attention_backward.default
    for case in (SMALL, Case(4, 3, padded=False)):
        inputs = case.inputs(torch.float32, device)
        grad_output = torch.randn_like(msda.window_attention(*inputs))
        torch.library.opcheck(backward, (grad_output, *inputs[:5]), rtol=1e-4, atol=1e-4)


def test_compile(device: str) -> None:
    cases = SMALL, Case(3, 4, 3, 8, 6, shift=1)
    operator_checks.compiles(msda.window_attention, [case.inputs(torch.float32, device) for case in cases])


def test_export() -> None:
    """Batch, height and width are dynamic."""
    cases = SMALL, Case(3, 4, batch=3, height=2, width=11)
    tensors, others = (case.inputs(torch.float32)[:3] for case in cases)
    operator = torch.ops.msda.window_attention.default
    operator_checks.exports(operator, lambda *x: msda.window_attention(*x, 3, 1), tensors, others, dynamic=3)


@pytest.mark.parametrize("dtype", backends.SIXTEEN_BIT, ids=str)
def test_autocast(dtype: torch.dtype, device: str) -> None:
    operator_checks.autocast(msda.window_attention, SMALL.inputs(torch.float32, device), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", backends.SIXTEEN_BIT, ids=str)
def test_cuda_graph_on_another_stream(dtype: torch.dtype) -> None:
    operator_checks.replays(msda.window_attention, Case(12, 32, 2, 50, 70, 6, shift=6).inputs(dtype, "cuda"))


# Wrong arguments.


WRONG = (
    Row("qkv", lambda x: x.tolist(), ("torch.Tensor", "list"), TypeError),
    Row("qkv", lambda x: x.int(), ("float32, float16, bfloat16 or float64", "torch.int32"), TypeError),
    Row("qkv", lambda x: x[0], ("[N, H, W, 3 * C]", "[5, 7, 24]")),
    Row("qkv", lambda x: x[..., :-3], ("multiple of the 2 heads", "[2, 5, 7, 21]")),
    Row("bias", lambda x: x.half(), ("torch.float32 as qkv", "torch.float16"), TypeError),
    Row("bias", lambda x: x[0], ("[heads, L, L]", "[9, 9]")),
    Row("bias", lambda x: x[:, :4, :4], ("[2, 9, 9]", "[2, 4, 4]")),
    Row("padding", lambda x: 0.0, ("torch.Tensor", "float"), TypeError),
    Row("padding", lambda x: x.double(), ("torch.float32 as qkv", "torch.float64"), TypeError),
    Row("padding", lambda x: x[:8], ("[3 * C] = [24]", "[8]")),
    Row("window_size", lambda x: 3.0, ("int", "3.0"), TypeError),
    Row("window_size", lambda x: 0, ("1 or more", "0")),
    Row("shift", lambda x: None, ("int", "None"), TypeError),
    Row("shift", lambda x: -1, ("window_size - 1 = 2", "-1")),
    Row("shift", lambda x: 3, ("window_size - 1 = 2", "got 3")),
    Row("output_scale", lambda x: "half", ("a float or None", "'half'"), TypeError),
    *(
        Row("output_scale", lambda x, scale=scale: scale, ("above 0 that is finite", str(scale)))
        for scale in (0.0, -0.1, 1e-45, torch.inf, torch.nan)
    ),
)
# PyTorch calls the implementation for meta tensors, which reads nothing.
ANOTHER_DEVICE = Row("bias", lambda x: x.to("meta"), ("cpu as qkv", "meta"))


@pytest.mark.parametrize("row", (*WRONG, ANOTHER_DEVICE), ids=str)
def test_wrong_argument(row: Row) -> None:
    arguments = SMALL.inputs(torch.float32)
    for module in (msda, msda.window_reference):
        row.check(module.window_attention, arguments)


@pytest.mark.parametrize("row", WRONG, ids=str)
def test_raw_operator_is_safe(row: Row, device: str) -> None:
    row.check_raw(torch.ops.msda.window_attention, SMALL.inputs(torch.float32, device))
