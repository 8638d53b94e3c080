"""`python -m benchmarks.top_k_indices`: times of the search for the largest numbers on the GPU."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from cyclopts.types import PositiveInt
from torch import Tensor

import msda
from benchmarks.map_operators import MapOperator
from benchmarks.option_types import OneOrMore
from codetr.cli.argument_types import OutputFile
from codetr.cli.program import run_program

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

ProblemName = Literal[tuple(problem.name for problem in PROBLEMS)]
Method = Literal[tuple(METHODS)]


def measure_top_k(
    *,
    out: OutputFile | None = None,
    problems: Annotated[tuple[ProblemName, ...], OneOrMore] = tuple(problem.name for problem in PROBLEMS),
    methods: Annotated[tuple[Method, ...], OneOrMore] = tuple(METHODS),
    iterations: PositiveInt = 100,
) -> int:
    """Time the selections of Co-DETR, and compare the indices with the reference.

    The cells are the best class logits of all cells of the encoder, the pairs 80 classes of 900 queries. The
    L2 cache is cold, and warm.

    Args:
        out: result file. Default: benchmarks/results/top_k_indices_GPU.json.
        problems: sizes of the operator.
        iterations: samples of each measurement.
    """
    chosen = [problem for problem in PROBLEMS if problem.name in problems]
    return OPERATOR.measure(out, chosen, ("fp32",), methods, iterations)


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
    make_call,
    truth,
    variable="MSDA_TOP_K",
    kernels=(),
    other_results=("eager",),
)

main = functools.partial(run_program, measure_top_k, program="python -m benchmarks.top_k_indices")

if __name__ == "__main__":
    sys.exit(main())
