"""Linear layers with activation, residual and mask, in plain PyTorch: the definition of correct results.

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
) -> Tensor:
    """Computes :func:`msda.linear`; 16-bit values in float32."""
    checks.check_linear(x, weight, bias, residual, activation, mask)
    wide = torch.promote_types(x.dtype, torch.float32)
    bias, residual, mask = (None if tensor is None else tensor.to(wide) for tensor in (bias, residual, mask))
    result = finish(F.linear(x.to(wide), weight.to(wide), bias), residual, activation, mask)
    return result.to(x.dtype).contiguous()


def finish(product: Tensor, residual: Tensor | None, activation: str, mask: Tensor | None = None) -> Tensor:
    """Computes (activation(product) + residual) * mask in the tensors' type."""
    if activation != "none":
        product = {"gelu": F.gelu, "relu": F.relu}[activation](product)
    result = product if residual is None else residual + product
    return result if mask is None else result * mask
