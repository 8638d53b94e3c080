"""Swin Transformer (arXiv 2103.14030) in MMDetection's form: any input size, a norm on each stage's map.

Maps have their cells in one axis, [N, H * W, C]: TensorRT 10.6 joins a linear layer with its bias and its
activation in three dimensions, but not in four (kernels/lab/README.md has times).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import msda
from codetr.config import SwinConfig
from codetr.model.layers import DropPath, FeedForward, Linear


class WindowAttention(nn.Module):
    """Self-attention inside windows of cells, with a learned bias per relative position."""

    def __init__(self, channels: int, num_heads: int, window_size: int, shift: int, qkv_bias: bool) -> None:
        super().__init__()
        self.window_size = window_size
        self.shift = shift
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window_size - 1) ** 2, num_heads))
        index = relative_position_index(window_size)
        self.register_buffer("relative_position_index", index, persistent=False)  # [L, L]
        self.register_parameter("folded_bias", None)  # [heads, L, L] in place of the table, in exports
        self.qkv = Linear(channels, 3 * channels, bias=qkv_bias)
        self.proj = Linear(channels, channels)
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)

    def position_bias(self) -> Tensor:
        """Returns the bias of each pair of a window's cells, [heads, L, L]."""
        if self.folded_bias is not None:
            return self.folded_bias
        return self.relative_position_bias_table[self.relative_position_index].permute(2, 0, 1)

    @torch.no_grad()
    def fold_bias(self) -> None:
        """Replaces the table by the bias of every pair, which is then a constant of an exported graph."""
        self.folded_bias = nn.Parameter(self.position_bias().contiguous(), requires_grad=False)
        del self.relative_position_bias_table, self.relative_position_index

    def forward(self, x: Tensor, size: tuple[int, int], residual: Tensor | None = None) -> Tensor:
        """[N, H * W, C] and (H, W) -> [N, H * W, C], with the residual if there is one.

        Padding cells are zeros, and their qkv is the bias.
        """
        qkv = self.qkv(x).unflatten(1, size)
        attended = msda.window_attention(
            qkv, self.position_bias(), self.qkv.bias, self.window_size, self.shift
        )
        return self.proj(attended.flatten(1, 2), residual)


class SwinBlock(nn.Module):
    def __init__(
        self, channels: int, num_heads: int, config: SwinConfig, shifted: bool, drop_path_rate: float
    ) -> None:
        super().__init__()
        shift = config.window_size // 2 if shifted else 0
        self.norm1 = nn.LayerNorm(channels)
        self.attn = WindowAttention(channels, num_heads, config.window_size, shift, config.qkv_bias)
        self.norm2 = nn.LayerNorm(channels)
        self.mlp = FeedForward(channels, config.mlp_ratio * channels, channels, "gelu")
        self.drop_path = DropPath(drop_path_rate)

    def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """[N, H * W, C] and (H, W) -> [N, H * W, C]."""
        if self.training:
            x = x + self.drop_path(self.attn(self.norm1(x), size))
            return x + self.drop_path(self.mlp(self.norm2(x)))
        x = self.attn(self.norm1(x), size, x)
        return self.mlp(self.norm2(x), x)


class PatchMerging(nn.Module):
    """Joins 2 x 2 cells into one of twice the channels. Upstream's order: channel, then row, then column."""

    def __init__(self, channels: int, norm: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * channels) if norm else nn.Identity()
        self.reduction = nn.Linear(4 * channels, 2 * channels, bias=False)

    def forward(self, x: Tensor, size: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
        """[N, H * W, C] and (H, W) -> [N, h * w, 2 C] and (h, w), h = ceil(H / 2), w = ceil(W / 2)."""
        height, width = size
        x = x.unflatten(1, size)
        if height % 2 or width % 2:
            x = F.pad(x, (0, 0, 0, width % 2, 0, height % 2))
        n, height, width, c = x.shape
        h, w = height // 2, width // 2
        x = x.reshape(n * h, 2, w, 2, c).permute(0, 2, 4, 1, 3)  # [N * h, w, C, 2, 2]
        return self.reduction(self.norm(x.reshape(n, h * w, 4 * c))), (h, w)


class PatchEmbed(nn.Module):
    """Turns patches of the image into vectors.

    The convolution is computed as a linear layer of patches: for a convolution of the image TensorRT changes
    the order of elements before and behind it, which takes longer than the product.
    """

    def __init__(self, channels: int, patch_size: int, norm: bool) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.projection = nn.Conv2d(3, channels, patch_size, patch_size)
        self.norm = nn.LayerNorm(channels) if norm else nn.Identity()

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """[N, 3, H, W] -> [N, h * w, C] and (h, w), h = ceil(H / patch), w = ceil(W / patch)."""
        height, width = x.shape[2:]
        side = self.patch_size
        bottom, right = -height % side, -width % side
        if bottom or right:
            x = F.pad(x, (0, right, 0, bottom))
        n, _, height, width = x.shape
        h, w = height // side, width // side
        x = x.reshape(n, 3, h, side, w, side).permute(0, 2, 4, 1, 3, 5)
        patches = x.reshape(n, h * w, 3 * side**2)
        return self.norm(F.linear(patches, self.projection.weight.flatten(1), self.projection.bias)), (h, w)


class SwinStage(nn.Module):
    def __init__(
        self, channels: int, num_heads: int, config: SwinConfig, drop_path_rates: list[float], last: bool
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            SwinBlock(channels, num_heads, config, shifted=index % 2 == 1, drop_path_rate=rate)
            for index, rate in enumerate(drop_path_rates)
        )
        self.downsample = None if last else PatchMerging(channels, config.patch_norm)

    def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """[N, H * W, C] and (H, W) -> the map [N, H * W, C], which `downsample` halves for the next stage."""
        for block in self.blocks:
            x = block(x, size)
        return x


class SwinTransformer(nn.Module):
    """The backbone."""

    gives_cells = True

    def __init__(self, config: SwinConfig) -> None:
        super().__init__()
        self.first_stride = config.patch_size  # pixels per cell of the finest map; then twice as many a map
        channels = config.out_channels
        last = len(channels) - 1
        # The rate grows evenly from 0 in the first block of the network to the configured one in the last.
        rates = torch.linspace(0.0, config.drop_path_rate, sum(config.depths)).split(config.depths)
        self.patch_embed = PatchEmbed(channels[0], config.patch_size, config.patch_norm)
        self.stages = nn.ModuleList(
            SwinStage(channels[i], config.num_heads[i], config, rates[i].tolist(), last=i == last)
            for i in range(last + 1)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(c) for c in channels)

    def forward(self, x: Tensor) -> list[Tensor]:
        """[N, 3, H, W] -> maps [N, C_i, ceil(H / s), ceil(W / s)], s = 4, 8, 16, 32."""
        x, size = self.patch_embed(x)
        outs = []
        for stage, norm in zip(self.stages, self.norms, strict=True):
            x = stage(x, size)
            outs.append(norm(x).unflatten(1, size).permute(0, 3, 1, 2).contiguous())
            if stage.downsample is not None:
                x, size = stage.downsample(x, size)
        return outs


def relative_position_index(size: int) -> Tensor:
    """Returns the row of the bias table for each (query, key) pair of a window's cells.

    Returns:
        [size * size, size * size] int64.
    """
    row, column = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    cells = torch.stack((row.flatten(), column.flatten()))  # [2, L]
    offset = cells[:, :, None] - cells[:, None, :] + size - 1  # [2, L, L], 0 .. 2 size - 2
    return offset[0] * (2 * size - 1) + offset[1]
