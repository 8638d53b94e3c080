"""Times group normalisation of a pyramid in one call beside a call for each level.

In the root of the source tree, on a machine with a GPU:

    python -m kernels.lab.time_group_norm_levels
"""

from __future__ import annotations

import functools

import torch

import msda
from benchmarks import timing
from benchmarks.group_norm import PROBLEMS, Inputs
from kernels.lab.timed_line import print_line

LEVELS = [problem for problem in PROBLEMS if problem.batch == 1]


def main() -> None:
    """Prints a line for each form: the levels of Co-DETR's neck for 1 and 8 images of 768x1152, in fp16.

    The L2 cache is cold.
    """
    cells = sum(problem.height * problem.width for problem in LEVELS)
    for batch in 1, 8:
        moved = 2 * 2 * batch * cells * LEVELS[0].channels  # bytes
        copies = timing.copies_for_cold_cache(moved)
        calls = [inputs_of(batch, seed) for seed in range(copies)]
        reference = msda.group_norm_reference.group_norm
        expected = torch.cat([reference(*(x.double() for x in one[:3]), *one[3:]) for one in calls[0]], 1)
        print_line(f"a call for each level, joined x {batch}", separate, calls, expected, moved)
        print_line(f"one call x {batch}", joined, calls, expected, moved)
        both = functools.partial(joined, next_scale=0.03)
        print_line(f"one call with a result in int8 x {batch}", both, calls, expected, moved)


def inputs_of(batch: int, seed: int) -> list[Inputs]:
    """Draws the cells [N, S, C] of each level, with its parameters."""
    shapes = [(batch, problem.height * problem.width, problem.channels) for problem in LEVELS]
    generator = torch.Generator("cuda").manual_seed(seed)
    draw = functools.partial(torch.randn, generator=generator, device="cuda", dtype=torch.float16)
    return [Inputs(draw(shape), draw(shape[2]), draw(shape[2]), 32) for shape in shapes]


def separate(levels: list[Inputs]) -> torch.Tensor:
    """Runs a kernel for each level, and joins the results."""
    return torch.cat([msda.group_norm(*level) for level in levels], 1)


def joined(levels: list[Inputs], next_scale: float | None = None) -> torch.Tensor:
    """Runs one kernel."""
    tensors = ([level[index] for level in levels] for index in range(3))
    results = msda.group_norm_levels(*tensors, *levels[0][3:], next_scale)
    return results if next_scale is None else results[0]


if __name__ == "__main__":
    timing.require_gpu()
    main()
