"""MSDA of int8 values: every backend against the reference in float64."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import msda
from benchmarks.operator_errors import TOLERANCE, relative_error, truth
from benchmarks.problems import Problem, pyramid
from benchmarks.problems import QuantizedFusedInputs as Inputs
from tests.matrix import backends, drawn_cases, emulated_kernels, operator_checks
from tests.matrix.drawn_cases import Case
from tests.matrix.map_operators import Backend, Row, emulator, map_tensors, matrix, misaligned, on_gpu

VARIABLE = "MSDA_FORWARD"
TYPES = backends.SIXTEEN_BIT
SCALE = 3 / 127  # of normal numbers

SMALL = Problem("small", 2, ((5, 9), (3, 4), (2, 3)), 71)
NARROW = replace(SMALL, name="narrow", spatial_shapes=((1, 9), (3, 4), (2, 1)))
ENCODER = Problem("encoder", 2, ((9, 17), (5, 9), (3, 5), (2, 3)), 9 * 17 + 5 * 9 + 3 * 5 + 2 * 3)


def inputs_of(case: Case, dtype: torch.dtype, device: str = "cpu") -> Inputs:
    """A case with its value rounded to int8."""
    return Inputs.of(case.inputs(dtype, device), SCALE)


def check(backend: Backend, inputs: Inputs, order: int = 0) -> None:
    """Fails unless the result is as near to the truth as its type allows.

    Weights are rounded to 2^-15, so the error of a result near zero is that of one of 0.1.
    """
    found = backend.compute(inputs, order)
    assert found.dtype == inputs.sampling_offsets.dtype and found.is_contiguous()
    error = relative_error(found, truth(inputs.dequantized()), 0.1 * math.sqrt(found.numel()))
    assert error <= TOLERANCE[found.dtype], f"relative error {error:.2e}"


def rows(kernel: str | None) -> tuple[Backend, Backend]:
    makers = emulator, on_gpu
    return tuple(make(msda.quantized_fused_attention, VARIABLE, kernel, TYPES) for make in makers)


CPU = Backend("torch-cpu", msda.quantized_fused_attention, dtypes=TYPES)
FAST = (*rows("many"), *rows("few"))
ANY = (CPU, *rows(None), *rows("general"))


@st.composite
def cases(draw: st.DrawFn, kernel: str | None) -> Case:
    """Draws a case that a kernel can run; None: any."""
    fast = kernel in ("many", "few")
    case = draw(drawn_cases.cases(fused=True, form="known_levels" if fast else "any"))
    if kernel == "few":
        case = replace(case, problem=replace(case.problem, reference_dim=4))
    return replace(case, wide_locations=False)


@matrix((*ANY, *FAST))
def test_drawn_cases(backend: Backend, dtype: torch.dtype) -> None:
    backend.skip_unless_ready(dtype)

    def check_case(case: Case) -> None:
        check(backend, inputs_of(case, dtype, backend.device), order=case.seed)

    operator_checks.drawn_cases(backend, cases(backend.kernel), check_case)


@matrix((*ANY, *FAST))
@pytest.mark.parametrize("boxes", [False, True])
@pytest.mark.parametrize("problem", [SMALL, NARROW, ENCODER], ids=lambda problem: problem.name)
def test_paths_of_the_kernels(backend: Backend, dtype: torch.dtype, problem: Problem, boxes: bool) -> None:
    """Queries in order, a level with a single row, and the cells of the levels in tiles."""
    backend.skip_unless_ready(dtype)
    problem = replace(problem, reference_dim=4 if boxes or backend.kernel == "few" else 2)
    check(backend, inputs_of(Case(problem, fused=True), dtype, backend.device), order=3)


@matrix((*ANY, *FAST))
def test_largest_numbers(backend: Backend, dtype: torch.dtype) -> None:
    """-128 everywhere, on which all weights add up to 1."""
    backend.skip_unless_ready(dtype)
    problem = replace(ENCODER, reference_dim=4 if backend.kernel == "few" else 2)
    inputs = inputs_of(Case(problem, fused=True), dtype, backend.device)
    inputs = inputs._replace(
        value=torch.full_like(inputs.value, -128),
        sampling_offsets=torch.zeros_like(inputs.sampling_offsets),
        reference_points=torch.full_like(inputs.reference_points, 0.5),
        value_scale=1.0,
    )
    found = backend.compute(inputs)
    torch.testing.assert_close(found, torch.full_like(found, -128), rtol=2e-3, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("batch", [1, 2])
def test_encoder_of_a_model(dtype: torch.dtype, batch: int) -> None:
    """The library's choice for an encoder of Co-DINO at 320x480."""
    backend = on_gpu(msda.quantized_fused_attention)
    backend.skip_unless_ready(dtype)
    levels = pyramid(320, 480)
    problem = Problem("encoder", batch, levels, sum(h * w for h, w in levels))
    inputs = inputs_of(Case(problem, fused=True), dtype, "cuda")
    check(backend, inputs)
    assert torch.equal(backend.compute(inputs), backend.compute(inputs))


# The choice.


@pytest.mark.parametrize("kernel", ["many", "few", "medium"])
def test_what_fast_kernels_cannot_run(kernel: str, device: str) -> None:
    """Sizes and addresses: the general kernel runs, the forced one refuses."""
    chosen, forced = (row for name in (None, kernel) for row in rows(name) if row.device == device)
    chosen.skip_unless_ready(torch.float16)
    others = {"num_heads": 4}, {"head_dim": 16}, {"num_points": 3}
    problems = [replace(SMALL, **change) for change in others] + [replace(SMALL, spatial_shapes=((5, 9),))]
    slow = [inputs_of(Case(problem, fused=True), torch.float16, device) for problem in problems]
    fits = inputs_of(Case(SMALL, fused=True), torch.float16, device)
    slow.append(fits._replace(value=misaligned(fits.value)))
    for inputs in slow:
        check(chosen, inputs)
        with pytest.raises((RuntimeError, emulated_kernels.NotSupported), match="upported"):
            forced.compute(inputs)


def test_name_of_no_kernel() -> None:
    inputs = inputs_of(Case(SMALL, fused=True), torch.float16)
    names = "general, many, medium, few"
    operator_checks.unknown_kernel(msda.quantized_fused_attention, inputs, VARIABLE, names)


# In PyTorch.


def small(device: str = "cpu") -> Inputs:
    problem = Problem("", 1, ((3, 4), (2, 3)), 5, num_heads=2, head_dim=4, num_points=2)
    return inputs_of(Case(problem, fused=True), torch.float16, device)


def test_opcheck(device: str) -> None:
    operator = torch.ops.msda.quantized_fused_attention.default
    operator_checks.registration_of_8_bits(operator, small(device), torch.int8)


def test_points_of_each_level(device: str) -> None:
    problem = Problem("", 1, ((3, 4), (2, 3)), 5, num_heads=2, head_dim=4, points_per_level=(3, 1))
    inputs = inputs_of(Case(problem, fused=True), torch.float16, device)
    found = msda.quantized_fused_attention(*inputs)
    assert relative_error(found, truth(inputs.dequantized())) <= TOLERANCE[torch.float16]


def test_export() -> None:
    """The number of queries is dynamic."""
    inputs = small()

    class Call(torch.nn.Module):
        def forward(self, references: Tensor, offsets: Tensor, logits: Tensor) -> Tensor:
            return msda.quantized_fused_attention(*inputs[:3], references, offsets, logits, SCALE)

    queries = torch.export.Dim("queries", min=2)
    program = torch.export.export(Call(), tuple(inputs[3:6]), dynamic_shapes=[{1: queries}] * 3)
    targets = [node.target for node in program.graph.nodes]
    assert torch.ops.msda.quantized_fused_attention.default in targets
    some = [x[:, :3] for x in inputs[3:6]]
    torch.testing.assert_close(program.module()(*some), Call()(*some))


@pytest.mark.gpu
def test_graph_replays() -> None:
    on_gpu(msda.quantized_fused_attention).skip_unless_ready(torch.float16)
    inputs = inputs_of(Case(ENCODER, fused=True), torch.float16, "cuda")
    operator_checks.replays(msda.quantized_fused_attention, inputs)


# Wrong arguments.

WRONG: tuple[Row, ...] = (
    Row("value", lambda x: x.tolist(), ("torch.Tensor", "list"), TypeError),
    Row("value", lambda x: x.half(), ("torch.int8", "torch.float16"), TypeError),
    Row("value", lambda x: x[0], ("[N, S, M, D]", "[18, 2, 4]")),
    Row("spatial_shapes", lambda x: x.float(), ("int32 or int64", "torch.float32"), TypeError),
    Row("level_start_index", lambda x: x[:1], ("[L] = [2]", "[1]")),
    Row("reference_points", lambda x: x.half(), ("torch.float32", "torch.float16"), TypeError),
    Row("reference_points", lambda x: x[:, :4], ("[N, Q, L, 2]", "[1, 4, 2, 2]")),
    Row("sampling_offsets", lambda x: x.float(), ("float16 or bfloat16", "torch.float32"), TypeError),
    Row("sampling_offsets", lambda x: x[:, :, :1], ("[N, Q, M, L, P, 2]", "[1, 5, 1, 2, 2, 2]")),
    Row("attention_logits", lambda x: x.bfloat16(), ("torch.float16 as sampling_offsets",), TypeError),
    Row("attention_logits", lambda x: x[..., :3], ("[N, Q, M, L * P]", "[1, 5, 2, 3]")),
    Row("value_scale", lambda x: 0.0, ("above 0", "0.0")),
    Row("value_scale", lambda x: None, ("a float", "None"), TypeError),
    Row("points_per_level", lambda x: [2], ("2 numbers", "[2]")),
)


def inputs_for(row: Row, device: str = "cpu") -> Inputs:
    """Small inputs; their offsets have points in one dimension for a row about points_per_level."""
    inputs = small(device)
    if row.argument == "points_per_level":
        return inputs._replace(sampling_offsets=inputs.sampling_offsets.flatten(3, 4))
    return inputs


@pytest.mark.parametrize("row", WRONG, ids=str)
def test_wrong_argument(row: Row) -> None:
    for function in (msda.quantized_fused_attention, msda.reference.quantized_fused_attention):
        row.check(function, inputs_for(row))


@pytest.mark.parametrize("row", WRONG, ids=str)
def test_raw_operator_is_safe(row: Row, device: str) -> None:
    row.check_raw(torch.ops.msda.quantized_fused_attention, inputs_for(row, device))


def test_strided_inputs(device: str) -> None:
    inputs = small(device)
    strided = map_tensors(inputs, lambda x: torch.stack((x, x), -1)[..., 0])
    found, expected = (msda.quantized_fused_attention(*x) for x in (strided, inputs))
    assert torch.equal(found, expected)
