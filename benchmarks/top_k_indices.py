"""`python -m benchmarks.top_k_indices`: times of the search for the largest numbers on the GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

import msda
from benchmarks.map_operators import MapOperator

METHODS = {
    "top_k_indices": "msda.top_k_indices",
    "eager": "torch.topk, sorted; the order of equal numbers is not specified",
}


class Inputs(NamedTuple):
    """The arguments of `msda.top_k_indices`."""

    x: Tensor
    count: int


@dataclass(frozen=True)
class TopKProblem:
    """Sizes of one call of the operator."""

    name: str
    rows: int
    size: int
    count: int

    def bytes_moved(self, dtype: torch.dtype) -> int:
        """Returns the bytes of numbers and indices, each once."""
        return self.rows * (dtype.itemsize * self.size + 4 * self.count)

    def inputs(self, dtype: torch.dtype, device: str = "cuda", seed: int = 0) -> Inputs:
        """Draws numbers as class logits: around -5."""
        generator = torch.Generator(device).manual_seed(seed)
        x = torch.randn(self.rows, self.size, generator=generator, device=device, dtype=dtype)
        return Inputs(x - 5.0, self.count)


PROBLEMS = (
    TopKProblem("cells_608x608", 1, 30_785, 900),
    TopKProblem("cells_768x1152", 1, 73_656, 900),
    TopKProblem("cells_768x1152_batch8", 8, 73_656, 900),
    TopKProblem("cells_1280x1920", 1, 204_600, 900),
    TopKProblem("pairs", 1, 72_000, 300),
    TopKProblem("pairs_batch8", 8, 72_000, 300),
)


def make_call(method: str, inputs: Inputs) -> Callable[[], Tensor]:
    """Returns a call of a method. Its result is [N, K]."""
    if method == "eager":
        return lambda: inputs.x.topk(inputs.count, dim=1).indices
    return lambda: msda.top_k_indices(*inputs)


def truth(inputs: Inputs) -> Tensor:
    """Returns the reference's result."""
    return msda.top_k_reference.top_k_indices(*inputs).double()


OPERATOR = MapOperator(
    "benchmarks.top_k_indices",
    METHODS,
    PROBLEMS,
    make_call,
    truth,
    variable="MSDA_TOP_K",
    other_results=("eager",),
)

main = OPERATOR.program(
    """Time the selections of Co-DETR, and compare the indices with the reference.

    The cells are the best class logits of all cells of the encoder, the pairs 80 classes of 900 queries. The
    L2 cache is cold, and warm.
    """,
    dtypes=("fp32",),
    choices=("fp32",),
)

if __name__ == "__main__":
    sys.exit(main())
