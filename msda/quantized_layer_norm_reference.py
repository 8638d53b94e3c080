"""Layer normalisation with a result in 8 bits, in plain PyTorch: the definition of correct results.

It runs on any device, without derivatives. Tests compare every other implementation with it. This module
imports `torch`, `msda.checks` and `msda.quantized_linear_reference` only.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from msda import checks
from msda.quantized_linear_reference import quantize_by


def quantized_layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, scale: float, dtype: torch.dtype
) -> Tensor:
    """Computes :func:`msda.quantized_layer_norm` in float64, rounded once to float32 before it is scaled."""
    checks.check_quantized_layer_norm(x, weight, bias, eps, scale, dtype)
    wide, weight, bias = (tensor.double() for tensor in (x, weight, bias))
    normalised = F.layer_norm(wide, wide.shape[-1:], weight, bias, eps).float()
    return quantize_by(normalised, scale, dtype).contiguous()
