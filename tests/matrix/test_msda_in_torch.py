"""The operators in Torch: registration, tracing, compilation, export, autocast."""

from __future__ import annotations

import doctest
import time
from dataclasses import replace
from importlib.metadata import version

import pytest
import torch
from torch import nn

import codetr
import msda
from benchmarks import operator_errors
from benchmarks.problems import Problem
from tests.matrix import drawn_cases
from tests.matrix.against_reference import assert_result, floats, run_msda
from tests.matrix.backends import operators
from tests.matrix.drawn_cases import smooth_inputs as make

PROBLEM = Problem("op", 2, ((6, 8), (3, 4)), 10, num_heads=4, head_dim=8, num_points=3)
RAGGED = Problem("op_ragged", 1, ((6, 8), (3, 4)), 10, 4, 8, points_per_level=(2, 3), reference_dim=4)
both_problems = pytest.mark.parametrize("problem", [PROBLEM, RAGGED], ids=lambda problem: problem.name)


@operators
@both_problems
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_msda_opcheck(operator: str, problem: Problem, dtype: torch.dtype, device: str) -> None:
    """Schema, autograd registration, fake tensors, and tracing with dynamic shapes (part of `-k msda`)."""
    inputs = make(problem, operator, dtype, device, gradients=True)
    # Tracing compares gradients of two runs; CUDA's atomics and 16-bit rounding make them differ a little.
    tolerance = {"rtol": 1e-2, "atol": 1e-2} if dtype == torch.float16 else {"rtol": 1e-4, "atol": 1e-4}
    torch.library.opcheck(getattr(torch.ops.msda, operator).default, tuple(inputs), **tolerance)


@operators
@both_problems
def test_msda_backward_opcheck(operator: str, problem: Problem, device: str) -> None:
    inputs = make(problem, operator, device=device)
    backward = getattr(torch.ops.msda, f"{operator}_backward").default
    arguments = torch.randn_like(run_msda(inputs)), *inputs
    for options in ({}, {"deterministic": True}, {"reference_gradient": False}):
        if operator == "fused_attention" or "reference_gradient" not in options:
            torch.library.opcheck(backward, arguments, options, rtol=1e-4, atol=1e-4)
    # AOTAutograd does not trace second derivatives; PyTorch says so itself.
    arguments = arguments[0].requires_grad_(), *make(problem, operator, device=device, gradients=True)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(backward, arguments, test_utils=tests)


def test_docstring_examples() -> None:
    """They need no other names than those of msda and Torch."""
    tested = doctest.testmod(msda.ops, globs=vars(msda) | {"torch": torch})
    assert tested.attempted >= 27 and not tested.failed


@operators
@both_problems
def test_compile(operator: str, problem: Problem, device: str) -> None:
    """torch.compile without a graph break, forward and backward (Inductor on the GPU alone: it is slow)."""
    inputs = make(problem, operator, device=device, gradients=True)
    backend = "inductor" if device == "cuda" else "aot_eager"
    compiled = torch.compile(getattr(msda, operator), fullgraph=True, backend=backend)
    output = compiled(*inputs)
    expected = run_msda(inputs)
    torch.testing.assert_close(output, expected)
    grad_output = torch.randn_like(expected)
    found = torch.autograd.grad(output, list(floats(inputs).values()), grad_output)
    wanted = torch.autograd.grad(expected, list(floats(inputs).values()), grad_output)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


class Call(nn.Module):
    """A module that is nothing but the operator."""

    def __init__(self, operator: str, points_per_level: list[int] | None) -> None:
        super().__init__()
        self.operator = operator
        self.points_per_level = points_per_level

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return getattr(msda, self.operator)(*tensors, self.points_per_level)


@operators
@both_problems
def test_export(operator: str, problem: Problem) -> None:
    """torch.export, strict, with dynamic batch, cells and queries; the graph keeps the operator whole."""
    inputs = make(replace(problem, batch=2), operator)
    batch, cells, queries = (torch.export.Dim(name, min=1, max=4096) for name in ("N", "S", "Q"))
    rows = {0: batch, 1: queries}
    dynamic = ({0: batch, 1: cells}, None, None, *(rows for _ in inputs[3:-1]))
    module = Call(operator, inputs.points_per_level)
    program = torch.export.export(module, tuple(inputs[:-1]), dynamic_shapes=(dynamic,), strict=True)
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert getattr(torch.ops.msda, operator).default in targets
    other = replace(problem, batch=3, spatial_shapes=((5, 9), (2, 2)), num_queries=17)
    again = make(other, operator)
    torch.testing.assert_close(program.module()(*again[:-1]), run_msda(again))


@pytest.mark.gpu
@operators
def test_columns_of_one_tensor_are_not_copied(operator: str) -> None:
    problem = Problem("columns", 2, ((64, 64), (32, 32)), 5120, num_heads=8, head_dim=32)
    case = drawn_cases.Case(problem, operator == "fused_attention", packed=True)
    inputs = case.inputs(torch.float16, "cuda")
    run_msda(inputs)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    output = run_msda(inputs)
    assert torch.cuda.max_memory_allocated() - before == output.nbytes


@operators
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast(operator: str, dtype: torch.dtype, device: str) -> None:
    """Values are cast, except float64; locations keep their precision, and gradients the inputs' types."""
    inputs, wide = (
        make(PROBLEM, operator, device=device, gradients=True),
        make(PROBLEM, operator, torch.float64, device),
    )
    with torch.autocast(device, dtype):
        output = run_msda(inputs)
        assert run_msda(wide).dtype == torch.float64
    rounded = type(inputs)(*(x.detach() if isinstance(x, torch.Tensor) else x for x in inputs))
    rounded = rounded._replace(value=rounded.value.to(dtype))
    assert_result(output.detach(), operator_errors.truth(rounded), rounded, dtype)
    tensors = list(floats(inputs).values())
    for leaf, gradient in zip(tensors, torch.autograd.grad(output.float().sum(), tensors), strict=True):
        assert gradient.dtype == leaf.dtype and gradient.isfinite().all()


@operators
def test_autocast_brings_types_together(operator: str, device: str) -> None:
    """Under autocast layers hand over 16-bit tensors beside fp32 ones: all mixtures are taken."""
    inputs = make(PROBLEM, operator, device=device)
    mixed = inputs._replace(**{name: getattr(inputs, name).half() for name in inputs._fields[3:-1]})
    with torch.autocast(device, torch.bfloat16):
        output = run_msda(mixed)
    wide = mixed._replace(**{name: getattr(mixed, name).float() for name in mixed._fields[3:-1]})
    expected = run_msda(wide._replace(value=wide.value.bfloat16()))
    assert output.dtype == torch.bfloat16
    assert torch.equal(output, expected)


@operators
@pytest.mark.parametrize("sizes", [{"head_dim": 0}, {"num_heads": 0}], ids=str)
def test_heads_without_channels_and_no_heads(operator: str, sizes: dict[str, int], device: str) -> None:
    """The result is empty, and every gradient is zero."""
    inputs = make(replace(PROBLEM, **sizes), operator, device=device, gradients=True)
    output = run_msda(inputs)
    assert output.shape == (PROBLEM.batch, PROBLEM.num_queries, 0)
    gradients = torch.autograd.grad(output.sum(), list(floats(inputs).values()))
    assert not any(gradient.any() for gradient in gradients)


def test_float16_on_the_cpu_is_as_fast_as_float32() -> None:
    """The CPU converts float16 in software, so the operator converts every cell once, not every sample."""
    problem = Problem("many_samples_a_cell", 1, ((32, 32), (16, 16)), 4000)
    inputs = {dtype: problem.attention_inputs(dtype, "cpu") for dtype in (torch.float32, torch.float16)}
    seconds = {dtype: [] for dtype in inputs}
    for _ in range(5):
        for dtype, arguments in inputs.items():
            started = time.process_time()
            msda.attention(*arguments)
            seconds[dtype].append(time.process_time() - started)
    assert min(seconds[torch.float16]) < 1.8 * min(seconds[torch.float32])


def test_versions() -> None:
    assert msda.__version__ == codetr.__version__ == version("codetr-tensorrt")
