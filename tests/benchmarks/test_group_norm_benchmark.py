"""`benchmarks.group_norm`: the sizes and the methods."""

from __future__ import annotations

import pytest
import torch

from benchmarks import group_norm as benchmark
from benchmarks import operator_errors


def test_bytes_moved() -> None:
    """The map read once and the output written once, counted from the tensors."""
    for problem in benchmark.PROBLEMS[2:]:
        assert problem.bytes_moved(torch.float16) == 2 * problem.inputs(torch.float16, "cpu").x.nbytes


def test_sizes_of_the_neck() -> None:
    maps = [(problem.height, problem.width) for problem in benchmark.PROBLEMS if problem.batch == 1]
    assert maps == [(192, 288), (96, 144), (48, 72), (24, 36), (12, 18)]


@pytest.mark.parametrize("method", benchmark.METHODS)
def test_methods_agree(method: str) -> None:
    """The baselines compute the operator."""
    inputs = benchmark.NormProblem("small", 9, 14, 32, 4, batch=2).inputs(torch.float32, "cpu")
    found = benchmark.make_call(method, inputs)()
    assert operator_errors.relative_error(found, benchmark.truth(inputs)) < 1e-5
