"""`python -m benchmarks.linear_of_sum`: times and errors of linear layers of a sum on the GPU."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import msda
from benchmarks.linear import CELLS
from benchmarks.map_operators import MapOperator

METHODS = {
    "linear_of_sum": "msda.linear_of_sum",
    "plain": "msda.linear_of_sum with MSDA_LINEAR_OF_SUM=plain",
    "linear": "msda.linear of the sum by PyTorch",
    "eager": "torch.nn.functional.linear of the sum",
}


class Inputs(NamedTuple):
    """The arguments of `msda.linear_of_sum`."""

    x: Tensor
    addend: Tensor
    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class LinearOfSumProblem:
    """Sizes of one call of the operator."""

    name: str
    rows: int
    inputs_of_row: int = 256
    outputs_of_row: int = 480

    def bytes_moved(self, dtype: torch.dtype) -> int:
        """Returns the bytes of all tensors, each once."""
        weights = self.outputs_of_row * (self.inputs_of_row + 1)
        return dtype.itemsize * (self.rows * (2 * self.inputs_of_row + self.outputs_of_row) + weights)

    def inputs(self, dtype: torch.dtype, device: str = "cuda", seed: int = 0) -> Inputs:
        """Draws normal numbers, with which the product has a variance of 1."""
        generator = torch.Generator(device).manual_seed(seed)

        def draw(*shape: int, variance: float = 1.0) -> Tensor:
            return (torch.randn(shape, generator=generator, device=device) * variance**0.5).to(dtype)

        terms = (draw(self.rows, self.inputs_of_row, variance=0.5) for _ in range(2))
        weight = draw(self.outputs_of_row, self.inputs_of_row, variance=1 / self.inputs_of_row)
        return Inputs(*terms, weight, draw(self.outputs_of_row))


PROBLEMS = (
    LinearOfSumProblem("offsets_768x1152", CELLS),
    LinearOfSumProblem("offsets_768x1152_batch8", 8 * CELLS),
    LinearOfSumProblem("offsets_800x1333_4_levels", 22_223, outputs_of_row=384),
    *(LinearOfSumProblem(f"rows_{rows}", rows) for rows in (8192, 4096)),
)


def make_call(method: str, inputs: Inputs) -> Callable[[], Tensor]:
    """Returns a call of a method. Its result is [M, N]."""
    if method in ("linear", "eager"):
        layer = msda.linear if method == "linear" else F.linear
        return lambda: layer(inputs.x + inputs.addend, inputs.weight, inputs.bias)
    return functools.partial(msda.linear_of_sum, *inputs)


def truth(inputs: Inputs) -> Tensor:
    """Returns the reference's result in float64, with the sum rounded to x's type."""
    return msda.linear_of_sum_reference.compute(*inputs, torch.float64)


OPERATOR = MapOperator(
    "benchmarks.linear_of_sum",
    METHODS,
    PROBLEMS,
    make_call,
    truth,
    variable="MSDA_LINEAR_OF_SUM",
    kernels=("plain",),
)

main = OPERATOR.program(
    """Time linear layers of a sum at the sizes of encoders; compare them with the reference.

    The L2 cache is cold. Problems that fit into it are timed with a warm cache too.
    """,
    dtypes=("fp16",),
    choices=("fp32", "fp16", "bf16"),
    about_dtypes="types of all tensors.",
)

if __name__ == "__main__":
    sys.exit(main())
