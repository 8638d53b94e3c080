"""The matrix of the operator, forward: every backend x type against `msda.reference` in float64.

`pytest -k msda` runs the whole matrix. HYPOTHESIS_PROFILE=thorough draws more examples.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import operator_errors
from benchmarks.problems import DISTRIBUTIONS, REAL, SMALL, Problem
from tests.matrix import backends, drawn_cases, outside_levels
from tests.matrix.against_reference import assert_result, make
from tests.matrix.backends import Backend, matrix, operators
from tests.matrix.emulated_kernels import NotSupported

ORDERS = (1, 2)
TILED = Problem("tiled", 1, ((5, 9), (3, 4), (2, 3)), 63, num_heads=3)
NARROW = Problem("narrow", 1, ((5, 9), (3, 4), (1, 3)), 60, num_heads=3)
KNOWN_LEVELS = Problem("known_levels", 1, ((5, 9), (3, 4), (2, 3)), 63)
LINEAR = Problem("linear", 2, ((5, 9), (3, 4), (2, 3)), 11)


@matrix()
def test_drawn_cases(backend: Backend, operator: str, dtype: torch.dtype) -> None:
    backend.skip_unless_ready(dtype)

    @backend.examples()
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        case = data.draw(backend.cases(operator))
        inputs = case.inputs(dtype, backend.device)
        assert_result(backend.compute(inputs, order=case.seed), operator_errors.truth(inputs), inputs, dtype)

    check()


@matrix(problems=SMALL)
def test_small(backend: Backend, operator: str, dtype: torch.dtype, problem: Problem) -> None:
    backend.skip_unless_ready(dtype)
    for distribution in DISTRIBUTIONS[: 1 if backend.emulated else None]:  # the emulator is slow
        inputs = make(problem, operator, dtype, backend.device, distribution=distribution, seed=3)
        assert_result(backend.compute(inputs), operator_errors.truth(inputs), inputs, dtype)


@matrix(problems=drawn_cases.COLUMNS)
@pytest.mark.parametrize("reference_dim", [2, 4])
def test_columns_of_one_tensor(
    backend: Backend, operator: str, dtype: torch.dtype, problem: Problem, reference_dim: int
) -> None:
    """Offsets and logits (locations and weights) are columns of one tensor, as one layer makes them."""
    backend.skip_unless_ready(dtype)
    problem = replace(problem, reference_dim=reference_dim)
    case = drawn_cases.Case(problem, operator == "fused_attention", packed=True, seed=12)
    inputs = case.inputs(dtype, backend.device)
    assert not (inputs[-3].is_contiguous() or inputs[-2].is_contiguous())
    assert_result(backend.compute(inputs), operator_errors.truth(inputs), inputs, dtype)


@matrix(lambda backend: backend.device == "cuda" and backend.unchecked, REAL)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_real_size(
    backend: Backend, operator: str, dtype: torch.dtype, problem: Problem, distribution: str
) -> None:
    """The engines of the tests are built for small sizes; benchmarks.msda checks the plugin at these."""
    backend.skip_unless_ready(dtype)
    inputs = make(problem, operator, dtype, backend.device, distribution=distribution, seed=4)
    assert_result(backend.compute(inputs), operator_errors.truth(inputs), inputs, dtype)


@matrix(problems=[Problem("spoiled", 1, ((5, 6), (3, 2), (2, 2)), 40)])
def test_values_that_are_not_finite(
    backend: Backend, operator: str, dtype: torch.dtype, problem: Problem
) -> None:
    """A NaN or infinite cell spoils the samples that read it, and no others."""
    backend.skip_unless_ready(dtype)
    case = drawn_cases.Case(problem, operator == "fused_attention", seed=9, smooth=True)
    inputs = case.inputs(dtype, backend.device)
    for cell, number in ((7, float("nan")), (16, float("inf")), (33, -float("inf"))):
        inputs.value[0, cell, cell % 2] = number
    expected = operator_errors.truth(inputs)
    assert expected.isfinite().any() and not expected.isfinite().all()
    assert_result(backend.compute(inputs), expected, inputs, dtype)


@matrix(problems=[Problem("large", 1, ((6, 7), (3, 3), (2, 2)), 20)])
def test_large_values(backend: Backend, operator: str, dtype: torch.dtype, problem: Problem) -> None:
    """Values near fp16's largest number do not overflow on the way to a result that fits."""
    backend.skip_unless_ready(dtype)
    inputs = make(problem, operator, dtype, backend.device, seed=10)
    inputs = inputs._replace(value=inputs.value.sign() * 60000)
    assert_result(backend.compute(inputs), operator_errors.truth(inputs), inputs, dtype)


@matrix(lambda backend: backend.unchecked, [outside_levels.PROBLEM])
def test_level_outside_of_value(
    backend: Backend, operator: str, dtype: torch.dtype, problem: Problem
) -> None:
    """On a GPU nothing checks the level sizes: a level outside of value counts zero and is not read."""
    backend.skip_unless_ready(dtype)
    for level in outside_levels.LEVELS:
        inputs, meaning = outside_levels.inputs(operator, dtype, backend.device, level)
        result = backend.compute(inputs, unchecked=True)
        assert_result(result, operator_errors.truth(meaning), meaning, dtype)


@matrix(problems=[TILED, NARROW, KNOWN_LEVELS, LINEAR])
def test_deterministic(backend: Backend, operator: str, dtype: torch.dtype, problem: Problem) -> None:
    """Two runs give the same bits; so do, on the emulator, other orders of threads and blocks, other contents
    of shared memory and other numbers beside the tensors."""
    backend.skip_unless_ready(dtype)
    inputs = make(problem, operator, dtype, backend.device, seed=5)
    expected = backend.compute(inputs)
    for order in ORDERS:
        assert torch.equal(backend.compute(inputs, order), expected), f"order {order}"


GROUP = Problem("group", 1, ((3, 4),), 5)
THREE_LEVELS = Problem("three_levels", 1, ((3, 4), (2, 2), (2, 1)), 5)
UNSUPPORTED = {
    "emulator-many-group": (
        (replace(GROUP, head_dim=20), torch.float32),
        (replace(GROUP, spatial_shapes=((1, 3),)), torch.float32),
        (GROUP, torch.float64),
    ),
    "emulator-medium": (
        (THREE_LEVELS, torch.float32),
        (replace(THREE_LEVELS, num_heads=4), torch.float16),
        (replace(THREE_LEVELS, head_dim=16), torch.float16),
        (replace(THREE_LEVELS, num_points=3), torch.float16),
        (replace(THREE_LEVELS, points_per_level=(4, 4, 3)), torch.float16),
        (replace(THREE_LEVELS, spatial_shapes=((3, 4), (2, 2))), torch.float16),
    ),
}
UNSUPPORTED["emulator-few-tile"] = UNSUPPORTED["emulator-many-group"]


@operators
@pytest.mark.parametrize("backend", [b for b in backends.ALL if b.name in UNSUPPORTED], ids=lambda b: b.name)
def test_forced_kernel_that_does_not_fit(backend: Backend, operator: str) -> None:
    """The forced kernel runs, or none."""
    backend.skip_unless_ready(torch.float16)
    backend.compute(make(THREE_LEVELS, operator, torch.float16, "cpu"))
    for problem, dtype in UNSUPPORTED[backend.name]:
        with pytest.raises(NotSupported):
            backend.compute(make(problem, operator, dtype, "cpu"))


@pytest.mark.gpu
def test_forced_kernel_that_does_not_fit_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSDA_FORWARD", "many")
    with pytest.raises(RuntimeError, match="not supported"):
        backends.run_unchecked(make(GROUP, "attention", torch.float64, "cuda"))
