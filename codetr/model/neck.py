"""The neck: brings all maps of the backbone to the same channels, and adds coarser levels."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from codetr.config import NeckConfig
from codetr.model.layers import GroupNorm


class ConvNorm(nn.Module):
    """Convolution without bias, then group normalisation; no activation."""

    def __init__(
        self, in_channels: int, out_channels: int, groups: int, kernel_size: int, stride: int
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride, kernel_size // 2, bias=False)
        self.norm = GroupNorm(groups, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        if self.norm.written_out and self.conv.kernel_size == (1, 1):
            # The encoder takes cells, so that no reshape is left between norm and encoder: TensorRT copies
            # what it reshapes before it joins the levels.
            cells = F.linear(x.permute(0, 2, 3, 1).flatten(1, 2), self.conv.weight.flatten(1))
            return self.norm(cells).unflatten(1, x.shape[2:]).permute(0, 3, 1, 2)
        return self.norm(self.conv(x))


class ChannelMapper(nn.Module):
    def __init__(self, config: NeckConfig) -> None:
        super().__init__()
        out, groups = config.out_channels, config.gn_groups
        self.convs = nn.ModuleList(ConvNorm(c, out, groups, 1, 1) for c in config.in_channels)
        extra = config.num_outs - len(config.in_channels)
        extra_channels = [config.in_channels[-1], *[out] * extra][:extra]
        self.extra_convs = nn.ModuleList(ConvNorm(c, out, groups, 3, 2) for c in extra_channels)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Maps [N, C_i, H_i, W_i] -> `num_outs` maps [N, out_channels, ...]; an extra map halves the last."""
        outs = [conv(feature) for conv, feature in zip(self.convs, features, strict=True)]
        x = features[-1]
        for conv in self.extra_convs:
            x = conv(x)
            outs.append(x)
        return outs
