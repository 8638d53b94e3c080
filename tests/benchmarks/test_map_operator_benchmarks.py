"""The benchmarks of operators on maps and rows: bytes, sizes, and methods that compute the operator."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import (
    feed_forward,
    group_norm,
    image_input,
    linear,
    linear_max,
    linear_of_sum,
    quantized_feed_forward,
    quantized_layer_norm,
    report,
    top_k_indices,
    window_attention,
)
from benchmarks.operator_errors import relative_error


def total(inputs: Sequence[Any]) -> int:
    return sum(x.nbytes for x in inputs if isinstance(x, Tensor))


LINEARS = (*linear.PROBLEMS[12:16], linear.PROBLEMS[17], *linear.PROBLEMS[20:23])
MOVED = {
    feed_forward: (feed_forward.PROBLEMS[2:], lambda x: total(x) + x.x.nbytes),
    group_norm: (group_norm.PROBLEMS[2:], lambda x: 2 * x.x.nbytes),
    image_input: (image_input.PROBLEMS, total),
    linear: (LINEARS, lambda x: total(x) + 2 * len(x.x) * len(x.weight)),
    linear_max: (linear_max.PROBLEMS[::3], lambda x: total(x) + 4 * len(x.x)),
    linear_of_sum: (linear_of_sum.PROBLEMS[2:], lambda x: total(x) + 2 * len(x.x) * len(x.weight)),
    quantized_feed_forward: (quantized_feed_forward.PROBLEMS[4:6], lambda x: total(x) + x.x.nbytes),
    quantized_layer_norm: (quantized_layer_norm.PROBLEMS[2:4], lambda x: total(x[:3]) + x.x.numel()),
    top_k_indices: (top_k_indices.PROBLEMS, lambda x: total(x) + 4 * len(x.x) * x.count),
    window_attention: (window_attention.PROBLEMS[7::8], lambda x: x.qkv.nbytes * 4 // 3 + x.bias.nbytes),
}
"""Some problems of each benchmark, and the bytes of inputs and output that one of them reads and writes."""


@pytest.mark.parametrize("benchmark", MOVED, ids=lambda benchmark: benchmark.__name__)
def test_bytes_moved(benchmark: ModuleType) -> None:
    """Every tensor once, counted from the tensors. Parameters of group norms and padding are left out."""
    problems, count = MOVED[benchmark]
    for problem in problems:
        assert problem.bytes_moved(torch.float16) == count(problem.inputs(torch.float16, "cpu"))


def test_sizes_of_models() -> None:
    """Maps and rows of Swin, the neck and the encoder for the usual images."""
    maps = [(problem.height, problem.width) for problem in group_norm.PROBLEMS if problem.batch == 1]
    assert maps == [(192, 288), (96, 144), (48, 72), (24, 36), (12, 18)]
    maps = [(problem.height, problem.width) for problem in window_attention.PROBLEMS[::2]]
    assert maps[:4] == [(192, 288), (96, 144), (48, 72), (24, 36)]
    assert maps[4:] == [(200, 336), (100, 168), (50, 84), (25, 42)]
    sizes = {problem.name: (problem.rows, problem.inputs_of_row) for problem in linear.PROBLEMS}
    stages = [(55296, 192), (13824, 384), (3456, 768), (864, 1536)]
    assert [sizes[f"swin_l_768x1152_stage{stage}_qkv"] for stage in range(4)] == stages
    assert sizes["encoder_768x1152_value"] == (73656, 256)
    assert sizes["encoder_768x1152_fc2_norm"] == (73656, 2048)
    norms = [(problem.rows, problem.channels) for problem in quantized_layer_norm.PROBLEMS[:8]]
    assert norms == [*stages, (13824, 768), (3456, 1536), (864, 3072), (73656, 256)]
    for benchmark in (feed_forward, quantized_feed_forward):
        blocks = {(problem.channels, problem.hidden) for problem in benchmark.PROBLEMS}
        assert benchmark.PROBLEMS[0].rows == 73656 and blocks == {(256, 2048)}


FORMS = ("gelu", False), ("none", True), ("none", False, True), ("none", True, False, True)
SMALL = [
    (feed_forward, feed_forward.FeedForwardProblem("small", 40, 64, 96), torch.float32),
    (group_norm, group_norm.NormProblem("small", 9, 14, 32, 4, batch=2), torch.float32),
    (image_input, image_input.ImageProblem("small", 90, 140, 64, 96), torch.float32),
    *((linear, linear.LinearProblem("small", 63, 24, 40, *form), torch.float32) for form in FORMS),
    (linear_max, linear_max.LinearMaxProblem("small", 50, 64, 20), torch.float16),
    (linear_of_sum, linear_of_sum.LinearOfSumProblem("small", 50, 64, 20), torch.float32),
    (top_k_indices, top_k_indices.TopKProblem("small", 2, 500, 30), torch.float32),
    (window_attention, window_attention.WindowProblem("small", 14, 24, 2, 7, 0), torch.float32),
    (window_attention, window_attention.WindowProblem("small", 17, 24, 2, 7, 3), torch.float32),
]

BOUNDS = {linear_max: 1e-6, image_input: 0, top_k_indices: 0}
"""Relative errors that the methods stay below, where it is not 1e-5; 0 where they make none."""


@pytest.mark.parametrize(("benchmark", "problem", "dtype"), SMALL, ids=str)
def test_methods_agree(benchmark: ModuleType, problem: Any, dtype: torch.dtype) -> None:
    """The baselines compute the operator, but for methods that are said to have another result."""
    inputs = problem.inputs(dtype, "cpu")
    for method in benchmark.METHODS.keys() - benchmark.OPERATOR.other_results:
        found = benchmark.make_call(method, inputs)()
        error = relative_error(found, benchmark.truth(inputs))
        assert error == 0 or error < BOUNDS.get(benchmark, 1e-5), method


def test_image_input_without_rounding() -> None:
    """The baseline does not round pixels, which moves a number by 1 of 255 at most."""
    inputs = image_input.ImageProblem("small", 90, 140, 64, 96).inputs(torch.float32, "cpu")
    differences = image_input.make_call("eager", inputs)() - image_input.truth(inputs)
    assert differences.abs().max() < 1.01 / min(image_input.STD)


def test_largest_numbers_by_pytorch() -> None:
    """No two numbers are equal, so that their order is specified."""
    inputs = top_k_indices.TopKProblem("small", 2, 500, 30).inputs(torch.float32, "cpu")
    assert torch.equal(top_k_indices.make_call("eager", inputs)(), top_k_indices.truth(inputs).long())


@pytest.mark.parametrize("method", quantized_layer_norm.METHODS)
def test_layer_norms_in_8_bits(method: str) -> None:
    """They compute the operator, but for steps of 8 bits where a 16-bit result was rounded first."""
    inputs = quantized_layer_norm.LayerNormProblem("small", 40, 192).inputs(torch.float16, "cpu")
    found = quantized_layer_norm.make_call(method, inputs)()
    if method == "layer_norm":
        found = (found / inputs.scale).round().clamp(-128, 127)
    if method == "fp8":
        inputs = inputs._replace(dtype=torch.float8_e4m3fn)
    assert relative_error(found, quantized_layer_norm.truth(inputs)) < 5e-3


@pytest.mark.parametrize("method", quantized_feed_forward.METHODS)
def test_feed_forward_blocks_in_8_bits(method: str) -> None:
    """They compute the operator, but for sums that were rounded to 16 bits first."""
    problem = quantized_feed_forward.FeedForwardProblem("small", 40, 64, 96)
    inputs = problem.inputs(torch.float16, "cpu")
    found = quantized_feed_forward.make_call(method, inputs)()
    assert relative_error(found, quantized_feed_forward.truth(inputs)) < 2e-3


@pytest.mark.parametrize("method", linear.EIGHT_BITS)
@pytest.mark.parametrize("form", FORMS[:3], ids=str)
def test_linear_layers_in_8_bits(method: str, form: tuple) -> None:
    """They compute the operator of quantised numbers: E4M3 has three bits behind the first."""
    inputs = linear.LinearProblem("small", 63, 64, 48, *form).inputs(torch.float16, "cpu")
    found = linear.make_call(method, inputs)().float()
    found *= linear.quantized(inputs, linear.EIGHT_BITS[method]).output_scale or 1
    assert relative_error(found, linear.truth(inputs)) < 2**-4


def test_product_of_cublas_in_8_bits() -> None:
    inputs = linear.LinearProblem("small", 63, 64, 48).inputs(torch.float16, "cpu")
    eight_bits = linear.quantized(inputs, torch.int8)
    found = linear.make_call("cublas_int8", inputs)()
    assert torch.equal(found, (eight_bits.x.double() @ eight_bits.weight.double().T).int())


def test_report() -> None:
    row = {
        "problem": {"name": "stage0"},
        "dtype": "fp16",
        "method": "window_attention",
        "relative_error": 1e-4,
    }
    text = report.operator_tables({"results": [row | {"timing": {"median_ms": 0.0364}}]})
    assert "| fp16; median us | stage0 |" in text and "| window_attention | 36.4 | 1.0e-04 |" in text
