"""The truth itself: the reference against the definition, and tolerances that known mistakes exceed."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import operator_errors
from benchmarks.problems import AttentionInputs, FusedInputs, Problem
from tests.matrix import drawn_cases
from tests.matrix.against_reference import assert_result, output_floor, reference, weights_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_tolerance_is_tight(dtype: torch.dtype) -> None:
    """Mistakes that implementations have made fail the tolerance."""
    problem = Problem("wrong", 1, ((96, 144), (48, 72)), 300, num_heads=2, head_dim=8)
    inputs = problem.attention_inputs(dtype, seed=8)
    right = operator_errors.in_float64(inputs)
    expected = reference(right)
    sizes = torch.tensor(problem.spatial_shapes).flip(-1)[:, None].double()  # [L, 1, 2] = (W, H)
    locations, weights = right.sampling_locations, right.attention_weights
    corners_aligned = ((locations * (sizes - 1)) + 0.5) / sizes
    rounded = ((locations * sizes - 0.5).half().double() + 0.5) / sizes
    dropped = weights.clone()
    dropped[:, :, :, 1] = 0
    wrong = {
        "align_corners=True": right._replace(sampling_locations=corners_aligned),
        "coordinates in half": right._replace(sampling_locations=rounded),
        "x and y swapped": right._replace(sampling_locations=locations.flip(-1)),
        "one level dropped": right._replace(attention_weights=dropped),
    }
    assert_result(expected.to(dtype), expected, inputs, dtype)
    for mistake, changed in wrong.items():
        with pytest.raises(AssertionError, match="relative error"):
            assert_result(reference(changed).to(dtype), expected, inputs, dtype)
            pytest.fail(f"{mistake} passes")


def test_tolerance_sees_non_finite_results() -> None:
    """A NaN where a number belongs fails, and so does a number in the place of a NaN."""
    expected = torch.tensor([1.0, float("nan"), float("inf")], dtype=torch.float64)
    assert operator_errors.relative_error(expected.clone(), expected) == 0.0
    for wrong in ([1.0, 0.0, float("inf")], [float("nan")] * 3, [1.0, float("nan"), -float("inf")]):
        assert operator_errors.relative_error(torch.tensor(wrong), expected) == float("inf")


@given(case=st.booleans().flatmap(drawn_cases.cases))
def test_reference_is_the_definition(case: drawn_cases.Case) -> None:
    """The reference against the definition, written as loops over samples and corners."""
    inputs = case.inputs(torch.float64)
    expected = definition(case.problem, inputs)
    assert (
        operator_errors.relative_error(reference(inputs), expected, output_floor(inputs, expected)) <= 1e-12
    )


def definition(problem: Problem, inputs: AttentionInputs | FusedInputs) -> torch.Tensor:
    """The operator as loops over levels, points and cells, each with the bilinear weight of its distance."""
    weights = weights_of(inputs)
    if isinstance(inputs, FusedInputs):
        origin = problem.to_points(inputs.reference_points[..., :2])
        sizes = torch.tensor(problem.spatial_shapes, dtype=torch.float64).flip(-1)  # [L, 2] = (W, H)
        if problem.reference_dim == 2:
            scale = problem.to_points((1 / sizes)[None, None])
        else:
            counts = torch.tensor(problem.points, dtype=torch.float64)[:, None]
            scale = problem.to_points(inputs.reference_points[..., 2:] * 0.5 / counts)
        locations = origin + inputs.sampling_offsets.reshape(*weights.shape, 2) * scale
    else:
        locations = inputs.sampling_locations.reshape(*weights.shape, 2)
    batch, queries, heads, _ = weights.shape
    output = torch.zeros((batch, queries, heads, problem.head_dim), dtype=torch.float64)
    n, m = torch.arange(batch)[:, None, None], torch.arange(heads)
    first = 0
    for (height, width), start, points in zip(
        problem.spatial_shapes, inputs.level_start_index.tolist(), problem.points, strict=True
    ):
        for point in range(first, first + points):
            x = locations[..., point, 0] * width - 0.5
            y = locations[..., point, 1] * height - 0.5
            for i, j in itertools.product(range(height), range(width)):
                weight = (1 - (x - j).abs()).clamp(min=0) * (1 - (y - i).abs()).clamp(min=0)
                weight = torch.where((x - j).isfinite() & (y - i).isfinite(), weight, 0.0)
                value = inputs.value[n, start + i * width + j, m]  # [N, 1, M, D]
                output += (weight * weights[..., point])[..., None] * value
        first += points
    return output.flatten(2)
