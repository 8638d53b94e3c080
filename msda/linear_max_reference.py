"""The largest output of a linear layer, in plain PyTorch: the definition of correct results.

It runs on any device, in every type of the operator, with autograd. Tests compare every other implementation
with it in float64. This module imports `torch` and `msda.checks` only.
"""

from __future__ import annotations

from torch import Tensor

from msda import checks


def linear_max(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Computes :func:`msda.linear_max` from all outputs."""
    checks.check_linear_max(x, weight, bias)
    return (x.to(weight.dtype) @ weight.mT + bias).amax(-1)
