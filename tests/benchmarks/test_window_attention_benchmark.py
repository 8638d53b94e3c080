"""`benchmarks.window_attention`: the sizes and the methods."""

from __future__ import annotations

import pytest
import torch

from benchmarks import operator_errors, report
from benchmarks import window_attention as benchmark


def test_bytes_moved() -> None:
    """Every input but the padding read once and the output written once, counted from the tensors."""
    for problem in benchmark.PROBLEMS[7::8]:
        inputs = problem.inputs(torch.float16, "cpu")
        assert problem.bytes_moved(torch.float16) == inputs.qkv.nbytes * 4 // 3 + inputs.bias.nbytes


def test_sizes_of_swin() -> None:
    maps = [(problem.height, problem.width) for problem in benchmark.PROBLEMS[::2]]
    assert maps[:4] == [(192, 288), (96, 144), (48, 72), (24, 36)]
    assert maps[4:] == [(200, 336), (100, 168), (50, 84), (25, 42)]


@pytest.mark.parametrize("method", ["window_attention", "eager", "sdpa"])
def test_methods_agree(method: str, monkeypatch) -> None:
    """The baselines compute the operator, with padding and shift."""
    for height, shift in ((14, 0), (17, 3)):
        inputs = benchmark.WindowProblem("small", height, 24, 2, 7, shift).inputs(torch.float32, "cpu")
        found = benchmark.make_call(method, inputs)()
        assert operator_errors.relative_error(found, benchmark.truth(inputs)) < 1e-5


def test_report() -> None:
    row = {
        "problem": {"name": "stage0"},
        "dtype": "fp16",
        "method": "window_attention",
        "relative_error": 1e-4,
    }
    text = report.operator_tables({"results": [row | {"timing": {"median_ms": 0.0364}}]})
    assert "| fp16; median us | stage0 |" in text and "| window_attention | 36.4 | 1.0e-04 |" in text
