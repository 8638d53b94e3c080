"""`benchmarks.image_input`: the sizes and the methods."""

from __future__ import annotations

import torch

from benchmarks import image_input as benchmark
from benchmarks import operator_errors


def test_bytes_moved() -> None:
    """The image read once and the target written once, counted from the tensors."""
    for problem in benchmark.PROBLEMS:
        inputs = problem.inputs(torch.float16, "cpu")
        assert problem.bytes_moved(torch.float16) == inputs.image.nbytes + inputs.target.nbytes


def test_methods() -> None:
    """The baseline computes the operator but for its rounding of pixels, at most 1 of 255."""
    inputs = benchmark.ImageProblem("small", 90, 140, 64, 96).inputs(torch.float32, "cpu")
    expected = benchmark.truth(inputs)
    assert operator_errors.relative_error(benchmark.make_call("image_input", inputs)(), expected) == 0
    assert (benchmark.make_call("eager", inputs)() - expected).abs().max() < 1.01 / min(benchmark.STD)
