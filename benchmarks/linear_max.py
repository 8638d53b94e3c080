"""`python -m benchmarks.linear_max`: times and errors of the largest output of a linear layer on the GPU."""

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
from benchmarks.map_operators import MapOperator, truth_by

METHODS = {
    "linear_max": "msda.linear_max",
    "plain": "msda.linear_max with MSDA_LINEAR_MAX=plain",
    "eager": "torch.nn.functional.linear in float32, then amax",
}


class Inputs(NamedTuple):
    """The arguments of `msda.linear_max`."""

    x: Tensor
    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class LinearMaxProblem:
    """Sizes of one call of the operator."""

    name: str
    rows: int
    inputs_of_row: int = 256
    outputs_of_row: int = 80

    def bytes_moved(self, dtype: torch.dtype) -> int:
        """Returns the bytes of x, weights and result, each once."""
        weights = self.outputs_of_row * (self.inputs_of_row + 1)
        return dtype.itemsize * self.rows * self.inputs_of_row + 4 * (weights + self.rows)

    def inputs(self, dtype: torch.dtype, device: str = "cuda", seed: int = 0) -> Inputs:
        """Draws normal numbers, with which x weight^T has a variance of 1."""
        generator = torch.Generator(device).manual_seed(seed)
        draw = functools.partial(torch.randn, generator=generator, device=device)
        weight = draw(self.outputs_of_row, self.inputs_of_row) / self.inputs_of_row**0.5
        return Inputs(draw(self.rows, self.inputs_of_row).to(dtype), weight, draw(self.outputs_of_row))


PROBLEMS = (
    LinearMaxProblem("cells_608x608", 30_785),
    LinearMaxProblem("cells_768x1152", 73_656),
    LinearMaxProblem("cells_768x1152_batch8", 8 * 73_656),
    LinearMaxProblem("cells_demo_640x640", 34_100, 192, 20),
)


def make_call(method: str, inputs: Inputs) -> Callable[[], Tensor]:
    """Returns a call of a method. Its result is [M]."""
    if method == "eager":
        return lambda: F.linear(inputs.x.float(), inputs.weight, inputs.bias).amax(-1)
    return lambda: msda.linear_max(*inputs)


truth = truth_by(msda.linear_max_reference.linear_max)
OPERATOR = MapOperator(
    "benchmarks.linear_max",
    METHODS,
    PROBLEMS,
    make_call,
    truth,
    variable="MSDA_LINEAR_MAX",
    kernels=("plain",),
)

main = OPERATOR.program(
    """Time the best class logits of all cells of Co-DETR's encoder, and compare them with the reference.

    The L2 cache is cold. Problems that fit into it are timed with a warm cache too.
    """,
)

if __name__ == "__main__":
    sys.exit(main())
