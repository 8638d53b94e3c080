"""Linear layers with activation and residual, in plain PyTorch: the definition of correct results.

It runs on any device, in every type of the operator, with autograd. Tests compare every other implementation
with it in float64. This module imports `torch` and `msda.checks` only.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from msda import checks


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str
) -> Tensor:
    """Computes :func:`msda.linear`; 16-bit values in float32."""
    checks.check_linear(x, weight, bias, residual, activation)
    wide = torch.promote_types(x.dtype, torch.float32)
    product = F.linear(x.to(wide), weight.to(wide), None if bias is None else bias.to(wide))
    result = finish(product, None if residual is None else residual.to(wide), activation)
    return result.to(x.dtype).contiguous()


def finish(product: Tensor, residual: Tensor | None, activation: str) -> Tensor:
    """Computes activation(product) + residual in the tensors' type."""
    if activation != "none":
        product = {"gelu": F.gelu, "relu": F.relu}[activation](product)
    return product if residual is None else residual + product
