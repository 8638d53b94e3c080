"""Feed-forward blocks in int8, in plain PyTorch: the definition of correct results.

It runs on any device, without derivatives. Tests compare every other implementation with it. This module
imports `torch`, `msda.checks` and `msda.quantized_linear_reference` only.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from msda import checks
from msda.quantized_linear_reference import quantize_by


def quantized_feed_forward(
    x: Tensor,
    weight1: Tensor,
    scale1: Tensor,
    bias1: Tensor,
    weight2: Tensor,
    scale2: Tensor,
    bias2: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    x_scale: float,
    hidden_scale: float,
    eps: float,
    next_scale: float | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes :func:`msda.quantized_feed_forward` in float64.

    Numbers are rounded to float32 before they are divided by a scale.
    """
    layers = weight1, scale1, bias1, weight2, scale2, bias2, norm_weight, norm_bias
    numbers = x_scale, hidden_scale, eps
    checks.check_quantized_feed_forward(x, *layers, *numbers, next_scale)

    def quantized(numbers: Tensor, scale: float) -> Tensor:
        return quantize_by(numbers.float(), scale, torch.int8)

    product = quantized(x, x_scale).double() @ weight1.double().T
    hidden = quantized((product * scale1.double() + bias1.double()).relu(), hidden_scale).double()
    y = x.double() + hidden @ weight2.double().T * scale2.double() + bias2.double()
    normalised = F.layer_norm(y, y.shape[-1:], norm_weight.double(), norm_bias.double(), eps)
    result = normalised.to(x.dtype).contiguous()
    return result if next_scale is None else (result, quantized(result, next_scale))
