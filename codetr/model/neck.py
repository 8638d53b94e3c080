"""The neck: brings all maps of the backbone to the same channels, and adds coarser levels."""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from codetr.config import NeckConfig
from codetr.model.layers import GroupNorm


class Level(NamedTuple):
    """A map as its cells [N, S, C], row by row, S = height * width."""

    cells: Tensor
    height: int
    width: int

    def as_map(self) -> Tensor:
        """[N, C, height, width]."""
        return self.cells.transpose(1, 2).unflatten(2, (self.height, self.width))


def cells_of(x: Tensor) -> Tensor:
    """[N, C, H, W] -> cells [N, H * W, C]."""
    return x.permute(0, 2, 3, 1).flatten(1, 2)


class ConvNorm(nn.Module):
    """Convolution without bias, then group normalisation; no activation."""

    on_cells = False  # whether the form for exports of a 1 x 1 convolution is a linear layer of cells

    def __init__(
        self, in_channels: int, out_channels: int, groups: int, kernel_size: int, stride: int
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride, kernel_size // 2, bias=False)
        self.norm = GroupNorm(groups, out_channels)

    def forward(self, x: Tensor) -> Level:
        """[N, C, H, W] -> its level.

        The form for exports normalises cells, so that no reshape is left before the encoder joins the levels:
        TensorRT would copy what it reshapes. Builds remove the permutation behind a convolution.
        """
        if self.norm.written_out and self.on_cells:
            cells = self.norm(F.linear(cells_of(x), self.conv.weight.flatten(1)))
        else:
            x = self.conv(x)
            cells = self.norm(cells_of(x)) if self.norm.written_out else cells_of(self.norm(x))
        return Level(cells, *x.shape[2:])


class ChannelMapper(nn.Module):
    def __init__(self, config: NeckConfig) -> None:
        super().__init__()
        out, groups = config.out_channels, config.gn_groups
        self.convs = nn.ModuleList(ConvNorm(c, out, groups, 1, 1) for c in config.in_channels)
        extra = config.num_outs - len(config.in_channels)
        extra_channels = [config.in_channels[-1], *[out] * extra][:extra]
        self.extra_convs = nn.ModuleList(ConvNorm(c, out, groups, 3, 2) for c in extra_channels)

    def forward(self, features: list[Tensor]) -> list[Level]:
        """Maps [N, C_i, H_i, W_i] -> `num_outs` levels of out_channels; an extra one halves the last map."""
        levels = [conv(feature) for conv, feature in zip(self.convs, features, strict=True)]
        x = features[-1]
        for conv in self.extra_convs:
            levels.append(conv(x))
            x = levels[-1].as_map()
        return levels
