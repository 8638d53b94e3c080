"""`benchmarks.linear_max` and `benchmarks.top_k_indices`: the sizes and the methods."""

from __future__ import annotations

import pytest
import torch

from benchmarks import linear_max, operator_errors, top_k_indices


def test_bytes_moved() -> None:
    """Every tensor once, counted from the tensors."""
    for problem in (linear_max.PROBLEMS[0], linear_max.PROBLEMS[-1]):
        inputs = problem.inputs(torch.float16, "cpu")
        assert problem.bytes_moved(torch.float16) == sum(x.nbytes for x in inputs) + 4 * problem.rows
    for problem in top_k_indices.PROBLEMS:
        inputs = problem.inputs(torch.float32, "cpu")
        indices = top_k_indices.make_call("top_k_indices", inputs)()
        assert problem.bytes_moved(torch.float32) == inputs.x.nbytes + indices.nbytes


@pytest.mark.parametrize("method", linear_max.METHODS)
def test_methods_of_linear_max_agree(method: str) -> None:
    inputs = linear_max.LinearMaxProblem("small", 50, 64, 20).inputs(torch.float16, "cpu")
    found = linear_max.make_call(method, inputs)()
    assert operator_errors.relative_error(found, linear_max.truth(inputs)) < 1e-6


@pytest.mark.parametrize("method", top_k_indices.METHODS)
def test_methods_of_top_k_indices_agree(method: str) -> None:
    inputs = top_k_indices.TopKProblem("small", 2, 500, 30).inputs(torch.float32, "cpu")
    found = top_k_indices.make_call(method, inputs)()
    assert operator_errors.relative_error(found, top_k_indices.truth(inputs)) == 0
