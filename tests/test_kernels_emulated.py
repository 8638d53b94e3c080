"""The CUDA kernels without a GPU: the real sources on the emulator of tests/cuda_emulator, against
`msda.reference` in float64 (part of `pytest -k msda`).

Besides wrong numbers, these tests find reads and writes outside of the tensors, misaligned addresses,
shuffles and barriers that a thread does not reach, memory that nobody wrote, and results that depend on the
order of threads and blocks. What they cannot see is what the compiler for the GPU makes of the sources:
test_msda.py on a GPU does.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import errors
from benchmarks.errors import TOLERANCE
from benchmarks.problems import SMALL, AttentionInputs, FusedInputs, Problem
from tests import strategies
from tests.comparison import assert_result, gradient_floors, gradients, make, reference
from tests.emulated import TYPES, Emulator, EmulatorError, NotSupported

pytest_plugins = ("tests.cuda_emulator.fixtures",)

FORWARD_KERNELS = ("automatic", "general", "many", "medium", "few")
"""What MSDA_FORWARD takes, and the library's own choice."""
BACKWARD_KERNELS = ("automatic", "general", "group", "tile")
"""What MSDA_BACKWARD takes, and the library's own choice."""
ANY_SIZE = ("automatic", "general")
"""The kernels that take every problem."""

SHORT = {torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
ORDERS = (1, 2)
EXAMPLES = settings.default.max_examples // 4


def matrix(kernels: tuple[str, ...]):
    """One row for each kernel, operator and type."""
    rows = [
        pytest.param(kernel, operator, dtype, id=f"{kernel}-{operator}-{SHORT[dtype]}")
        for kernel, operator, dtype in itertools.product(kernels, ("attention", "fused"), TYPES)
        if dtype in types_of(kernel)
    ]
    return pytest.mark.parametrize(("kernel", "operator", "dtype"), rows)


def form_of(kernel: str) -> str:
    """What a kernel takes, one of `strategies.FORMS`."""
    if kernel in ANY_SIZE:
        return "any"
    return "compiled" if kernel == "medium" else "usual"


def types_of(kernel: str) -> list[torch.dtype]:
    """The types of value that it takes."""
    form = form_of(kernel)
    if form == "compiled":
        return [dtype for dtype in TYPES if dtype.itemsize == 2]
    return [dtype for dtype in TYPES if form == "any" or dtype != torch.float64]


def forced(kernel: str) -> str | None:
    """What the emulator's functions take."""
    return None if kernel == "automatic" else kernel


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """The tensors here are so small that Torch's threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(
    emulator: Emulator, inputs: AttentionInputs | FusedInputs, kernel: str, order: int = 0
) -> torch.Tensor:
    """`emulator.forward`; skips a problem that the kernel does not take."""
    try:
        return emulator.forward(inputs, forced(kernel), order)
    except NotSupported:
        pytest.skip(f"the kernel {kernel} does not take this problem")


def run_backward(
    emulator: Emulator,
    inputs: AttentionInputs | FusedInputs,
    grad_output: torch.Tensor,
    kernel: str,
    order: int = 0,
    deterministic: bool = False,
) -> dict[str, torch.Tensor]:
    """`emulator.backward`; skips a problem that the kernel does not take."""
    try:
        return emulator.backward(inputs, grad_output, forced(kernel), order, deterministic)
    except NotSupported:
        pytest.skip(f"the kernel {kernel} does not take this problem")


def output_gradient(inputs: AttentionInputs | FusedInputs, seed: int) -> torch.Tensor:
    """A standard normal [N, Q, M * D] in value's type."""
    batch, _, num_heads, head_dim = inputs.value.shape
    shape = (batch, inputs[-2].shape[1], num_heads * head_dim)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(inputs.value.dtype)


def assert_gradients(
    found: dict[str, torch.Tensor],
    problem: Problem,
    inputs: AttentionInputs | FusedInputs,
    grad_output: torch.Tensor,
) -> None:
    """Fails unless every gradient is as near to the reference's in float64 as its type allows."""
    expected = gradients(errors.in_float64(inputs), grad_output.double(), reference)
    floors = gradient_floors(problem, inputs)
    tolerance = TOLERANCE[inputs.value.dtype]
    assert set(found) == set(expected)
    for name, gradient in found.items():
        error = errors.relative_error(gradient, expected[name], floors[name])
        assert error <= tolerance, f"{name}: relative error {error:.2e}, allowed {tolerance:.0e}"


def draw_case(data: st.DataObject, kernel: str, operator: str, smooth: bool = False) -> strategies.Case:
    """A call of the operator, of a form that the kernel takes."""
    form = form_of(kernel)
    if form == "any":
        form = data.draw(st.sampled_from(("any", "usual")), "form")
    return data.draw(strategies.cases(operator == "fused", smooth=smooth, form=form))


def small(kernels: tuple[str, ...]):
    """The rows of `matrix` times the problems of SMALL that each takes."""
    by_kernel = {
        kernel: [problem for problem in SMALL if strategies.takes(form_of(kernel), problem)]
        for kernel in kernels
    }
    rows = [
        pytest.param(*row.values, problem, id=f"{row.id}-{problem.name}")
        for row in matrix(kernels).args[1]
        for problem in by_kernel[row.values[0]]
    ]
    return pytest.mark.parametrize(("kernel", "operator", "dtype", "problem"), rows)


@matrix(FORWARD_KERNELS)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_msda_forward(
    emulator: Emulator, kernel: str, operator: str, dtype: torch.dtype, data: st.DataObject
) -> None:
    case = draw_case(data, kernel, operator)
    inputs = case.inputs(dtype)
    result = emulator.forward(inputs, forced(kernel), order=case.seed)
    assert_result(result, errors.truth(inputs), inputs, dtype)


@small(FORWARD_KERNELS)
def test_msda_small(
    emulator: Emulator, kernel: str, operator: str, dtype: torch.dtype, problem: Problem
) -> None:
    inputs = make(problem, operator, dtype, "cpu", seed=3)
    assert_result(run(emulator, inputs, kernel), errors.truth(inputs), inputs, dtype)


@matrix(FORWARD_KERNELS)
@pytest.mark.parametrize("problem", strategies.COLUMNS, ids=lambda problem: problem.name)
def test_msda_columns_of_one_tensor(
    emulator: Emulator, kernel: str, operator: str, dtype: torch.dtype, problem: Problem
) -> None:
    inputs = strategies.Case(problem, operator == "fused", packed=True, seed=12).inputs(dtype)
    assert_result(run(emulator, inputs, kernel), errors.truth(inputs), inputs, dtype)


@pytest.mark.parametrize("operator", ["attention", "fused"])
@pytest.mark.parametrize("kernel", ["many", "few"])
def test_msda_kernel_that_does_not_fit_says_so(emulator: Emulator, kernel: str, operator: str) -> None:
    """Forcing a kernel runs that kernel or none."""
    fits = make(Problem("fits", 1, ((3, 4),), 5), operator, torch.float32, "cpu")
    emulator.forward(fits, kernel)
    for problem, dtype in (
        (Problem("odd_head", 1, ((3, 4),), 5, head_dim=20), torch.float32),
        (Problem("three_cells", 1, ((1, 3),), 5), torch.float32),
        (Problem("double", 1, ((3, 4),), 5), torch.float64),
    ):
        with pytest.raises(NotSupported):
            emulator.forward(make(problem, operator, dtype, "cpu"), kernel)


@pytest.mark.parametrize("operator", ["attention", "fused"])
def test_msda_medium_that_does_not_fit_says_so(emulator: Emulator, operator: str) -> None:
    fits = Problem("fits", 1, ((3, 4), (2, 2), (2, 1)), 5)
    emulator.forward(make(fits, operator, torch.float16, "cpu"), "medium")
    for problem, dtype in (
        (fits, torch.float32),
        (replace(fits, num_heads=4), torch.float16),
        (replace(fits, head_dim=16), torch.float16),
        (replace(fits, num_points=3), torch.float16),
        (replace(fits, points_per_level=(4, 4, 3)), torch.float16),
        (replace(fits, spatial_shapes=((3, 4), (2, 2))), torch.float16),
    ):
        with pytest.raises(NotSupported):
            emulator.forward(make(problem, operator, dtype, "cpu"), "medium")


TILED = Problem("tiled", 1, ((5, 9), (3, 4), (2, 3)), 63, num_heads=3)
NARROW = Problem("narrow", 1, ((5, 9), (3, 4), (1, 3)), 60, num_heads=3)
COMPILED = Problem("compiled", 1, ((5, 9), (3, 4), (2, 3)), 63)
LINEAR = Problem("linear", 2, ((5, 9), (3, 4), (2, 3)), 11)


@matrix(FORWARD_KERNELS)
@pytest.mark.parametrize("problem", [TILED, NARROW, COMPILED, LINEAR], ids=lambda problem: problem.name)
def test_msda_order(
    emulator: Emulator, kernel: str, operator: str, dtype: torch.dtype, problem: Problem
) -> None:
    """The result does not depend on the order of threads and blocks, on what shared memory held, or on what
    lies beside the tensors: not by a bit."""
    inputs = make(problem, operator, dtype, "cpu", seed=5)
    expected = run(emulator, inputs, kernel)
    for order in ORDERS:
        assert torch.equal(run(emulator, inputs, kernel, order), expected), f"order {order}"


@matrix(FORWARD_KERNELS)
def test_msda_values_that_are_not_finite(
    emulator: Emulator, kernel: str, operator: str, dtype: torch.dtype
) -> None:
    """A NaN or infinite cell spoils the samples that read it, and no others."""
    problem = Problem("spoiled", 1, ((5, 6), (3, 2), (2, 2)), 40)
    inputs = strategies.Case(problem, operator == "fused", seed=9, smooth=True).inputs(dtype)
    for cell, number in ((7, float("nan")), (16, float("inf")), (33, -float("inf"))):
        inputs.value[0, cell, cell % 2] = number
    expected = errors.truth(inputs)
    assert not expected.isfinite().all()
    assert expected.isfinite().any()
    assert_result(run(emulator, inputs, kernel), expected, inputs, dtype)


@matrix(FORWARD_KERNELS)
def test_msda_large_values(emulator: Emulator, kernel: str, operator: str, dtype: torch.dtype) -> None:
    """Values near fp16's largest number do not overflow on the way to a result that fits."""
    problem = Problem("large", 1, ((6, 7), (3, 3)), 20, num_heads=2, num_points=8)
    inputs = make(problem, operator, dtype, "cpu", seed=10)
    inputs = inputs._replace(value=inputs.value.sign() * 60000)
    assert_result(run(emulator, inputs, kernel), errors.truth(inputs), inputs, dtype)


OUTSIDE = Problem("outside", 1, ((4, 5), (2, 3), (2, 2)), 9)
# (H, W) and start of level 1, which has 6 cells from 20 on: not inside of the 30 cells of value.
LEVELS_OUTSIDE = {
    "end": ((2, 3), 25),
    "start": ((2, 3), -1),
    "far": ((2, 3), 2**40),
    "large": ((2**31 + 2, 3), 20),
    "overflow": ((2**32, 2**32), 20),
    "empty": ((0, 3), 20),
    "negative": ((-2, -3), 20),
}


def with_level_outside(
    operator: str, dtype: torch.dtype, level: str
) -> tuple[AttentionInputs | FusedInputs, AttentionInputs | FusedInputs]:
    """Inputs whose level 1 is not inside of value, and what they mean: a level of zeros."""
    inputs = make(OUTSIDE, operator, dtype, "cpu", seed=6)
    (height, width), start = LEVELS_OUTSIDE[level]
    shapes, starts, value = (
        inputs.spatial_shapes.clone(),
        inputs.level_start_index.clone(),
        inputs.value.clone(),
    )
    shapes[1] = torch.tensor((height, width))
    starts[1] = start
    value[:, 20:26] = 0
    meaning = inputs._replace(value=value)
    return inputs._replace(spatial_shapes=shapes, level_start_index=starts), meaning


@matrix(FORWARD_KERNELS)
def test_msda_level_outside_of_value(
    emulator: Emulator, kernel: str, operator: str, dtype: torch.dtype
) -> None:
    """Level sizes are numbers on the GPU, where nobody checks them: such a level counts zero and is not
    read."""
    for level in LEVELS_OUTSIDE:
        inputs, meaning = with_level_outside(operator, dtype, level)
        assert_result(run(emulator, inputs, kernel), errors.truth(meaning), meaning, dtype)


@matrix(BACKWARD_KERNELS)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_msda_gradient(
    emulator: Emulator, kernel: str, operator: str, dtype: torch.dtype, data: st.DataObject
) -> None:
    case = draw_case(data, kernel, operator, smooth=True)
    deterministic = kernel in ANY_SIZE and data.draw(st.booleans(), "deterministic")
    inputs = case.inputs(dtype)
    grad_output = output_gradient(inputs, case.seed)
    found = emulator.backward(inputs, grad_output, forced(kernel), case.seed, deterministic)
    assert_gradients(found, case.problem, inputs, grad_output)


@small(BACKWARD_KERNELS[1:])
def test_msda_gradient_small(
    emulator: Emulator, kernel: str, operator: str, dtype: torch.dtype, problem: Problem
) -> None:
    if problem.name == "pyramid":
        problem = replace(problem, batch=1, num_heads=2)  # the largest by far
    inputs = strategies.Case(problem, operator == "fused", seed=4, smooth=True).inputs(dtype)
    grad_output = output_gradient(inputs, 4)
    found = run_backward(emulator, inputs, grad_output, kernel)
    assert_gradients(found, problem, inputs, grad_output)


@matrix(BACKWARD_KERNELS)
@pytest.mark.parametrize("reference_dim", [2, 4])
def test_msda_gradient_of_samples_that_miss(
    emulator: Emulator, kernel: str, operator: str, dtype: torch.dtype, reference_dim: int
) -> None:
    """Samples far outside ("outside": some of them are not) give zero gradients, not NaN."""
    problem = Problem("misses", 1, ((4, 5), (2, 2)), 6, 2, 16, reference_dim=reference_dim)
    grad_output = torch.ones((1, 6, 32), dtype=dtype)
    for place in ("outside", "huge", "nan", "infinite"):
        inputs = strategies.Case(problem, operator == "fused", (place,), seed=1).inputs(dtype)
        for name, gradient in run_backward(emulator, inputs, grad_output, kernel).items():
            if place == "outside":
                assert gradient.isfinite().all(), name
            else:
                assert not gradient.any(), (place, name)


@matrix(BACKWARD_KERNELS)
def test_msda_gradient_of_level_outside_of_value(
    emulator: Emulator, kernel: str, operator: str, dtype: torch.dtype
) -> None:
    """A level that is not inside of value gives what a level of zeros gives, and no cell gets a gradient from
    it."""
    for level in LEVELS_OUTSIDE:
        inputs, meaning = with_level_outside(operator, dtype, level)
        grad_output = output_gradient(inputs, 7)
        expected = gradients(errors.in_float64(meaning), grad_output.double(), reference)
        expected["value"][:, 20:26] = 0
        floors = gradient_floors(OUTSIDE, meaning)
        for name, gradient in run_backward(emulator, inputs, grad_output, kernel).items():
            error = errors.relative_error(gradient, expected[name], floors[name])
            assert error <= TOLERANCE[dtype], (level, name)


@matrix(BACKWARD_KERNELS)
@pytest.mark.parametrize("problem", [TILED, LINEAR], ids=lambda problem: problem.name)
def test_msda_gradient_order(
    emulator: Emulator, kernel: str, operator: str, dtype: torch.dtype, problem: Problem
) -> None:
    """The gradients do not depend on the order of threads and blocks, but for those of the value, which
    atomics add up: by no more than rounding."""
    inputs = strategies.Case(problem, operator == "fused", seed=8, smooth=True).inputs(dtype)
    grad_output = output_gradient(inputs, 8)
    expected = run_backward(emulator, inputs, grad_output, kernel)
    for order in ORDERS:
        found = run_backward(emulator, inputs, grad_output, kernel, order)
        for name in found:
            if name == "value":
                assert errors.relative_error(found[name], expected[name].double()) <= TOLERANCE[dtype]
            else:
                assert torch.equal(found[name], expected[name]), f"{name}, order {order}"


@matrix(("automatic",))
@pytest.mark.parametrize("problem", [TILED, LINEAR], ids=lambda problem: problem.name)
def test_msda_gradient_deterministic(
    emulator: Emulator, kernel: str, operator: str, dtype: torch.dtype, problem: Problem
) -> None:
    """Asked for deterministic gradients, no bit of any depends on the order."""
    inputs = strategies.Case(problem, operator == "fused", seed=8, smooth=True).inputs(dtype)
    grad_output = output_gradient(inputs, 8)
    expected = run_backward(emulator, inputs, grad_output, kernel, deterministic=True)
    assert_gradients(expected, problem, inputs, grad_output)
    for order in ORDERS:
        found = run_backward(emulator, inputs, grad_output, kernel, order, deterministic=True)
        for name in found:
            assert torch.equal(found[name], expected[name]), f"{name}, order {order}"


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_unknown_kernel(emulator: Emulator, direction: str) -> None:
    """A misspelt kernel is an error that lists the names; an empty name leaves the choice to the library."""
    problem = Problem("typo", 1, ((4, 5), (2, 2)), 6, 2, 16)
    inputs = make(problem, "attention", torch.float32, "cpu", seed=1)
    arguments = (inputs,) if direction == "forward" else (inputs, torch.ones(1, 6, 32))
    run = getattr(emulator, direction)
    names = FORWARD_KERNELS if direction == "forward" else BACKWARD_KERNELS
    expected = f"MSDA_{direction.upper()}: expected one of {', '.join(names[1:])}, or no value, got 'genral'"
    with pytest.raises(EmulatorError, match=f"^{re.escape(expected)}$"):
        run(*arguments, "genral")
    run(*arguments, "")
