"""The neck's form for exports against PyTorch's convolutions and group norms."""

from __future__ import annotations

import pytest
import torch

from codetr.config import NeckConfig
from codetr.model.layers import GroupNorm
from codetr.model.neck import ChannelMapper

CHANNELS = (48, 96)


@pytest.mark.parametrize(
    ("offset", "dtype", "tolerance"),
    [(0.0, torch.float32, 1e-6), (30.0, torch.float32, 1e-6), (0.0, torch.float16, 1e-3)],
)
@torch.no_grad()
def test_form_for_exports(offset, dtype, tolerance):
    """Maps of two images, the second with another mean; the extra map has a convolution of 3 x 3."""
    neck = ChannelMapper(NeckConfig(in_channels=CHANNELS, out_channels=64, num_outs=3, gn_groups=16)).eval()
    norms = [module for module in neck.modules() if isinstance(module, GroupNorm)]
    for norm in norms:
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    features = [torch.randn(2, c, 24 // i, 36 // i) + offset for i, c in enumerate(CHANNELS, 1)]
    features = [feature * torch.tensor([1.0, 3.0]).reshape(2, 1, 1, 1) for feature in features]
    expected = neck(features)
    for norm in norms:
        norm.written_out = True
    found = neck.to(dtype)([feature.to(dtype) for feature in features])
    for one, other in zip(found, expected, strict=True):
        assert one.cells.dtype == dtype and one.as_map().shape == other.as_map().shape
        assert (one.cells.float() - other.cells).norm() < tolerance * other.cells.norm()


@torch.no_grad()
def test_equal_numbers():
    """Their variance is no NaN."""
    norm = GroupNorm(4, 16)
    x = torch.randn(64, 1, 4).repeat_interleave(4, 2).mul(1000).expand(64, 63, 16)
    norm.written_out = True
    assert norm(x).isfinite().all()
