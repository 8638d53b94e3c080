"""The indices of the largest numbers of rows, in plain PyTorch: the definition of correct results.

It runs on any device. This module imports `torch` and `msda.checks` only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from msda import checks


def top_k_indices(x: Tensor, count: int) -> Tensor:
    """Computes :func:`msda.top_k_indices` by a stable sort."""
    checks.check_top_k_indices(x, count)
    # Adding 0 makes -0 equal to 0 for every sort.
    return torch.sort(x + 0.0, dim=1, descending=True, stable=True).indices[:, :count].int().contiguous()
