"""`benchmarks.linear`: the sizes and the methods."""

from __future__ import annotations

import pytest
import torch

from benchmarks import linear as benchmark
from benchmarks import operator_errors


def test_bytes_moved() -> None:
    """Every tensor read once and the output written once, counted from the tensors."""
    for problem in (*benchmark.PROBLEMS[12:16], benchmark.PROBLEMS[17], *benchmark.PROBLEMS[20:23]):
        tensors = [x for x in problem.inputs(torch.float16, "cpu") if isinstance(x, torch.Tensor)]
        output = 2 * problem.rows * problem.outputs_of_row
        assert problem.bytes_moved(torch.float16) == sum(x.nbytes for x in tensors) + output


def test_sizes_of_swin_and_encoder() -> None:
    sizes = {problem.name: (problem.rows, problem.inputs_of_row) for problem in benchmark.PROBLEMS}
    found = [sizes[f"swin_l_768x1152_stage{stage}_qkv"] for stage in range(4)]
    assert found == [(55296, 192), (13824, 384), (3456, 768), (864, 1536)]
    assert sizes["encoder_768x1152_value"] == (73656, 256)
    assert sizes["encoder_768x1152_fc2_norm"] == (73656, 2048)


@pytest.mark.parametrize("method", [x for x in benchmark.METHODS if x not in benchmark.OTHER_RESULTS])
@pytest.mark.parametrize(
    "form", [("gelu", False), ("none", True), ("none", False, True), ("none", True, False, True)], ids=str
)
def test_methods_agree(method: str, form: tuple) -> None:
    """The baseline computes the operator."""
    inputs = benchmark.LinearProblem("small", 63, 24, 40, *form).inputs(torch.float32, "cpu")
    found = benchmark.make_call(method, inputs)()
    assert operator_errors.relative_error(found, benchmark.truth(inputs)) < 1e-5


@pytest.mark.parametrize("method", benchmark.EIGHT_BITS)
@pytest.mark.parametrize("form", [("gelu", False), ("none", True), ("none", False, True)], ids=str)
def test_methods_in_8_bits(method: str, form: tuple) -> None:
    """They compute the operator of quantised numbers: E4M3 has three bits behind the first."""
    inputs = benchmark.LinearProblem("small", 63, 64, 48, *form).inputs(torch.float16, "cpu")
    found = benchmark.make_call(method, inputs)().float()
    eight_bits = benchmark.quantized(inputs, benchmark.EIGHT_BITS[method])
    found *= eight_bits.output_scale or 1
    assert operator_errors.relative_error(found, benchmark.truth(inputs)) < 2**-4


def test_product_of_cublas_in_8_bits() -> None:
    inputs = benchmark.LinearProblem("small", 63, 64, 48).inputs(torch.float16, "cpu")
    eight_bits = benchmark.quantized(inputs, torch.int8)
    found = benchmark.make_call("cublas_int8", inputs)()
    assert torch.equal(found, (eight_bits.x.double() @ eight_bits.weight.double().T).int())
