"""Group normalisation of maps with channels innermost, in plain PyTorch: the definition of correct results.

It runs on any device, in every type of the operator, with autograd. Tests compare every other implementation
with it in float64. This module imports `torch`, `msda.checks` and `msda.quantized_linear_reference` only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from msda import checks
from msda.quantized_linear_reference import quantize_by


def group_norm(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> Tensor:
    """Computes :func:`msda.group_norm` from differences to the mean; 16-bit values in float32."""
    checks.check_group_norm(x, weight, bias, num_groups, eps)
    wide = torch.promote_types(x.dtype, torch.float32)
    groups = x.to(wide).unflatten(-1, (num_groups, x.shape[-1] // num_groups))  # [N, ..., G, C / G]
    axes = (*range(1, x.dim() - 1), -1)
    differences = groups - groups.mean(axes, keepdim=True)
    variance = differences.square().mean(axes, keepdim=True)
    normalised = (differences * torch.rsqrt(variance + eps)).flatten(-2)
    return (normalised * weight.to(wide) + bias.to(wide)).to(x.dtype).contiguous()


def group_norm_levels(
    levels: Sequence[Tensor],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    num_groups: int,
    eps: float,
    next_scale: float | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes :func:`msda.group_norm_levels` level by level.

    A result in int8 is rounded to float32 before it is scaled.
    """
    checks.check_group_norm_levels(levels, weights, biases, num_groups, eps, next_scale)
    tensors = zip(map(cells_of, levels), weights, biases, strict=True)
    result = torch.cat([group_norm(*level, num_groups, eps) for level in tensors], 1)
    if next_scale is None:
        return result
    return result, quantize_by(result.float(), next_scale, torch.int8)


def cells_of(level: Tensor) -> Tensor:
    """Returns the cells [N, S, C] of a level, which may be a map [N, C, H, W]; a view if it can be one."""
    return level.permute(0, 2, 3, 1).flatten(1, 2) if level.dim() == 4 else level
