"""`benchmarks.quantized_layer_norm`: the sizes and the methods."""

from __future__ import annotations

import pytest
import torch

from benchmarks import operator_errors
from benchmarks import quantized_layer_norm as benchmark


def test_bytes_moved() -> None:
    """Inputs read once and the output written once, counted from the tensors."""
    for problem in benchmark.PROBLEMS[2:4]:
        inputs = problem.inputs(torch.float16, "cpu")
        expected = sum(x.nbytes for x in inputs[:3]) + inputs.x.numel()
        assert problem.bytes_moved(torch.float16) == expected


def test_sizes_of_swin() -> None:
    sizes = [(problem.rows, problem.channels) for problem in benchmark.PROBLEMS[:8]]
    blocks = [(55296, 192), (13824, 384), (3456, 768), (864, 1536)]
    assert sizes == [*blocks, (13824, 768), (3456, 1536), (864, 3072), (73656, 256)]


@pytest.mark.parametrize("method", benchmark.METHODS)
def test_methods_agree(method: str) -> None:
    """They compute the operator, but for steps of 8 bits where a 16-bit result was rounded first."""
    inputs = benchmark.LayerNormProblem("small", 40, 192).inputs(torch.float16, "cpu")
    found = benchmark.make_call(method, inputs)()
    if method == "layer_norm":
        found = (found / inputs.scale).round().clamp(-128, 127)
    if method == "fp8":
        inputs = inputs._replace(dtype=torch.float8_e4m3fn)
    assert operator_errors.relative_error(found, benchmark.truth(inputs)) < 5e-3
