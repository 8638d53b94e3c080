"""Linear layers of a sum in plain PyTorch: the definition of correct results.

It runs on any device, in every type of the operator, with autograd. Tests compare every other implementation
with it in float64. This module imports `torch` and `msda.checks` only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from msda import checks


def linear_of_sum(x: Tensor, addend: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Computes :func:`msda.linear_of_sum`; products of 16-bit values in float32."""
    checks.check_linear_of_sum(x, addend, weight, bias)
    return compute(x, addend, weight, bias, torch.float32).to(x.dtype).contiguous()


def compute(x: Tensor, addend: Tensor, weight: Tensor, bias: Tensor, wide: torch.dtype) -> Tensor:
    """Returns the result in the type `wide`. The sum is rounded to x's type."""
    # PyTorch cannot trace derivatives of F.linear in `torch.func` with dynamic sizes.
    return (x + addend).to(wide) @ weight.to(wide).mT + bias.to(wide)
