"""Linear layers with activation, residual, mask and norm in plain PyTorch: the definition of correct results.

It runs on any device, in every type of the operator, with autograd. Tests compare every other implementation
with it in float64. This module imports `torch` and `msda.checks` only.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from msda import checks


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str = "none",
    mask: Tensor | None = None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Computes :func:`msda.linear`; 16-bit values in float32."""
    checks.check_linear(x, weight, bias, residual, activation, mask, norm_weight, norm_bias, eps)
    wide = torch.promote_types(x.dtype, torch.float32)
    optional = (bias, residual, mask, norm_weight, norm_bias)
    bias, residual, mask, *norm = (None if tensor is None else tensor.to(wide) for tensor in optional)
    result = finish(F.linear(x.to(wide), weight.to(wide), bias), residual, activation, mask, *norm, eps)
    return result.to(x.dtype).contiguous()


def finish(
    product: Tensor,
    residual: Tensor | None,
    activation: str,
    mask: Tensor | None = None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Computes (activation(product) + residual) * mask, or its LayerNorm, in the tensors' type."""
    if activation != "none":
        product = {"gelu": F.gelu, "relu": F.relu}[activation](product)
    result = product if residual is None else residual + product
    result = result if mask is None else result * mask
    if norm_weight is None:
        return result
    return F.layer_norm(result, norm_weight.shape, norm_weight, norm_bias, eps)
