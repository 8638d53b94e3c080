"""Inputs with a level that does not lie inside of value."""

from __future__ import annotations

import torch

from benchmarks.problems import AttentionInputs, FusedInputs, Problem
from tests.matrix.against_reference import make

PROBLEM = Problem("outside", 1, ((4, 5), (2, 3), (2, 2)), 9)
CELLS = slice(20, 26)
"""The cells of level 1, of the 30 cells of value."""

LEVELS = {
    "end": ((2, 3), 25),
    "start": ((2, 3), -1),
    "far": ((2, 3), 2**40),
    "large": ((2**31 + 2, 3), 20),
    "overflow": ((2**32, 2**32), 20),
    "empty": ((0, 3), 20),
    "negative": ((-2, -3), 20),
}
"""(H, W) and start of level 1."""


def inputs(
    operator: str, dtype: torch.dtype, device: str, level: str
) -> tuple[AttentionInputs | FusedInputs, AttentionInputs | FusedInputs]:
    """Inputs whose level 1 is one of LEVELS, and inputs of the same meaning: a level of zeros."""
    valid = make(PROBLEM, operator, dtype, device, seed=6)
    shapes, starts, value = (tensor.clone() for tensor in (valid.spatial_shapes, valid[2], valid.value))
    size, start = LEVELS[level]
    shapes[1] = torch.tensor(size)
    starts[1] = start
    value[:, CELLS] = 0
    return valid._replace(spatial_shapes=shapes, level_start_index=starts), valid._replace(value=value)
