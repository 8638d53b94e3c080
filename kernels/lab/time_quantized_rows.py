"""Times kernel `rows` of linear layers with int8 inputs beside those of CUTLASS.

In the root of the source tree, on a machine with a GPU of compute capability 9.0:

    python -m kernels.lab.time_quantized_rows
"""

from __future__ import annotations

import dataclasses
import os

import torch

import msda
from benchmarks import timing
from benchmarks.linear import PROBLEMS, LinearProblem, quantized
from kernels.lab.timed_line import print_line

VARIABLE = "MSDA_QUANTIZED_LINEAR"
KERNELS = "rows", "pingpong_64x256", "pingpong_128x128", "cooperative_128x192"
"""Those of quantized_linear_choice.h for int8."""


def main() -> None:
    """Prints a line for each kernel that can run a problem.

    The problems are layers of Swin-L and of Co-DETR's encoder for 1 and 8 images of 768x1152, with a cold L2
    cache. Results have 8 bits behind an activation, and the values of MSDA (masked) in both types.
    """
    for problem in PROBLEMS:
        if problem.normed:
            continue
        for batch in 1, 8:
            time_problem(dataclasses.replace(problem, rows=batch * problem.rows), f"{problem.name} x {batch}")


def time_problem(problem: LinearProblem, title: str) -> None:
    """Times a layer, and a masked one with an 8-bit result too."""
    moved = problem.bytes_moved(torch.float16) // 2
    copies = timing.copies_for_cold_cache(moved)
    inputs = [quantized(problem.inputs(torch.float16, seed=seed), torch.int8) for seed in range(copies)]
    forms = {title: inputs}
    if problem.masked:
        forms[f"{title} in int8"] = [one._replace(output_scale=6 / 127) for one in inputs]
    for name, calls in forms.items():
        expected = msda.quantized_linear_reference.quantized_linear(*calls[0]).double()
        for kernel in KERNELS:
            os.environ[VARIABLE] = kernel
            try:
                msda.quantized_linear(*calls[0])
            except RuntimeError as error:
                if "not supported" not in str(error):
                    raise
                continue
            print_line(f"{name} {kernel}", lambda one: msda.quantized_linear(*one), calls, expected, moved)


if __name__ == "__main__":
    timing.require_gpu()
    main()
