"""Linear layers with 8-bit inputs in plain PyTorch: the definition of correct results.

It runs on any device, without derivatives. Tests compare every other implementation with it. This module
imports `torch`, `msda.checks` and `msda.linear_reference` only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from msda import checks
from msda.linear_reference import finish


def quantized_linear(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str = "none",
    mask: Tensor | None = None,
    output_scale: float | None = None,
    dtype: torch.dtype = torch.float16,
) -> Tensor:
    """Computes :func:`msda.quantized_linear`.

    float64 holds the sums of the products exactly, for int8 and for E4M3. They are rounded to float32 once.
    Every step behind them rounds to float32, and sum * scale + bias is one step.
    """
    checks.check_quantized_linear(x, weight, scale, bias, residual, activation, mask, output_scale, dtype)
    sums = (x.double() @ weight.double().T).float()
    scaled = sums.double() * scale.double()  # exact
    product = (scaled if bias is None else scaled + bias.double()).float()
    residual, mask = (None if tensor is None else tensor.float() for tensor in (residual, mask))
    result = finish(product, residual, activation, mask)
    if output_scale is None:
        return result.to(dtype)
    return quantize_by(result, output_scale, x.dtype)


def quantize_by(x: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Quantises x / scale, as the kernels do: times the reciprocal of the scale in float32."""
    return quantize(x * (1 / torch.tensor(scale, dtype=torch.float32, device=x.device)), dtype)


def quantize(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounds float32 to int8 or E4M3, half to even, and saturates, as ONNX's QuantizeLinear. int8 has no NaN
    and gets 0.
    """
    if dtype == torch.int8:
        return x.nan_to_num(nan=0.0).round().clamp(-128, 127).to(dtype)
    return x.clamp(-448, 448).to(dtype)
