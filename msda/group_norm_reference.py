"""Group normalisation of maps with channels innermost, in plain PyTorch: the definition of correct results.

It runs on any device, in every type of the operator, with autograd. Tests compare every other implementation
with it in float64. This module imports `torch` and `msda.checks` only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from msda import checks


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
