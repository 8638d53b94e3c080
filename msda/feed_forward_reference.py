"""Feed-forward blocks in plain PyTorch: the definition of correct results.

It runs on any device, in every type of the operator, with autograd. Tests compare every other implementation
with it in float64. This module imports `torch` and `msda.checks` only.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from msda import checks


def feed_forward(
    x: Tensor,
    weight1: Tensor,
    bias1: Tensor,
    weight2: Tensor,
    bias2: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float = 1e-5,
) -> Tensor:
    """Computes :func:`msda.feed_forward`; 16-bit values in float32."""
    checks.check_feed_forward(x, weight1, bias1, weight2, bias2, norm_weight, norm_bias, eps)
    tensors = x, weight1, bias1, weight2, bias2, norm_weight, norm_bias
    return compute(*tensors, eps, torch.float32).to(x.dtype).contiguous()


def compute(
    x: Tensor,
    weight1: Tensor,
    bias1: Tensor,
    weight2: Tensor,
    bias2: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
    wide: torch.dtype,
) -> Tensor:
    """Returns the block's result in the type `wide`. Hidden numbers are rounded to x's type."""
    tensors = x, weight1, bias1, weight2, bias2, norm_weight, norm_bias
    residual, weight1, bias1, weight2, bias2, *norm = (tensor.to(wide) for tensor in tensors)
    # PyTorch cannot trace derivatives of F.linear in `torch.func` with dynamic sizes.
    hidden = (residual @ weight1.mT + bias1).relu().to(x.dtype).to(wide)
    y = residual + (hidden @ weight2.mT + bias2)
    return F.layer_norm(y, y.shape[-1:], *norm, eps)
