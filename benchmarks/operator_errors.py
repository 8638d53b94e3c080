"""Errors of the operators' results against `msda.reference` in float64, on the same rounded inputs."""

from __future__ import annotations

import math

import torch

import msda.reference
from benchmarks.problems import AttentionInputs, FusedInputs

TOLERANCE = {
    # Everything is double: some hundred additions round.
    torch.float64: 1e-12,
    # Coordinates, weights and sums are float: 1e-7 an operation, and coordinates of hundreds of cells.
    torch.float32: 1e-5,
    # Sums are float, so only the output rounds: by half a unit in the last place, 2^-11 of the value for half
    # and 2^-8 for bfloat16. Twice that is allowed.
    torch.float16: 1e-3,
    torch.bfloat16: 8e-3,
}
"""Largest relative L2 error of a result, by the value's type."""

SAMPLES_AT_ONCE = 1 << 26
"""Largest N * chunk * M * K * D. The reference holds a few arrays of so many float64 numbers, 0.5 GB each."""


def in_float64(inputs: AttentionInputs | FusedInputs) -> AttentionInputs | FusedInputs:
    """Returns the inputs with every floating-point tensor in float64."""
    wide = (x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs)
    return type(inputs)(*wide)


def truth(inputs: AttentionInputs | FusedInputs) -> torch.Tensor:
    """Returns the reference's result in float64, [N, Q, M * D], on the inputs' device."""
    wide = in_float64(inputs)
    operator = msda.reference.fused_attention if isinstance(inputs, FusedInputs) else msda.reference.attention
    num_queries = wide[-2].shape[1]
    batch, _, num_heads, head_dim = wide.value.shape
    points = wide[-2].flatten(3).shape[-1]
    chunk = max(1, SAMPLES_AT_ONCE // max(1, batch * num_heads * head_dim * points))
    if num_queries <= chunk:
        return operator(*wide)
    # Arguments 3 up to points_per_level have the queries in their second dimension.
    parts = []
    for start in range(0, num_queries, chunk):
        per_query = (tensor[:, start : start + chunk] for tensor in wide[3:-1])
        parts.append(operator(*wide[:3], *per_query, wide[-1]))
    return torch.cat(parts, 1)


def relative_error(actual: torch.Tensor, expected: torch.Tensor, floor: float = 0.0) -> float:
    """Returns the relative L2 error ||actual - expected|| / max(||expected||, floor).

    It is infinite if the shapes differ, or if other elements are NaN, +inf or -inf.

    Args:
        actual: any shape, any floating-point type.
        expected: the same shape, float64.
        floor: norm of the expected result below which the error is absolute, for results close to zero.
    """
    if actual.shape != expected.shape:
        return math.inf
    actual, expected = actual.detach().double(), expected.detach().double().to(actual.device)
    finite = expected.isfinite()
    if not torch.equal(actual.isfinite(), finite):
        return math.inf
    same = torch.where(finite, 0.0, actual), torch.where(finite, 0.0, expected)
    if not torch.equal(*(x.nan_to_num(nan=1.0, posinf=2.0, neginf=3.0) for x in same)):
        return math.inf
    difference = torch.where(finite, actual - expected, 0.0).norm().item()
    scale = max(torch.where(finite, expected, 0.0).norm().item(), floor)
    if difference == 0.0:
        return 0.0
    return difference / scale if scale > 0.0 else math.inf
