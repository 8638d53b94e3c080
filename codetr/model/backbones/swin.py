"""Swin Transformer (arXiv 2103.14030) in MMDetection's form: any input size, a norm on each stage's map."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codetr.config import SwinConfig
from codetr.model.backbones.windows import GatheredWindows, SlicedWindows, pad_to_multiple
from codetr.model.layers import DropPath, FeedForward


class WindowAttention(nn.Module):
    """Self-attention inside windows of cells, with a learned bias per relative position.

    TensorRT fuses the chain of matmul, add, softmax and matmul, with bias and mask, into one kernel. It
    computes queries, keys and values in one product; from three linear layers it does so in 8 bits too.
    """

    def __init__(self, channels: int, num_heads: int, window_size: int, qkv_bias: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = (channels // num_heads) ** -0.5
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window_size - 1) ** 2, num_heads))
        index = relative_position_index(window_size)
        self.register_buffer("relative_position_index", index, persistent=False)  # [L, L]
        self.qkv = nn.Linear(channels, 3 * channels, bias=qkv_bias)
        self.proj = nn.Linear(channels, channels)
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x: [L, B, C], B windows of L cells; mask: [B, 1, L, L], added to the logits -> [L, B, C]."""
        weights = self.qkv.weight.chunk(3)
        biases = (None, None, None) if self.qkv.bias is None else self.qkv.bias.chunk(3)
        query, key, value = (
            F.linear(x, *layer).unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0, 3)
            for layer in zip(weights, biases, strict=True)
        )  # [B, heads, L, D] each
        position_bias = self.relative_position_bias_table[self.relative_position_index]  # [L, L, heads]
        logits = (query * self.scale) @ key.transpose(-2, -1) + position_bias.permute(2, 0, 1)
        if mask is not None:
            logits = logits + mask
        out = logits.softmax(dim=-1) @ value  # [B, heads, L, D]
        return self.proj(out.permute(2, 0, 1, 3).flatten(2))


class SwinBlock(nn.Module):
    def __init__(
        self, channels: int, num_heads: int, config: SwinConfig, shifted: bool, drop_path_rate: float
    ) -> None:
        super().__init__()
        self.shifted = shifted
        self.norm1 = nn.LayerNorm(channels)
        self.attn = WindowAttention(channels, num_heads, config.window_size, config.qkv_bias)
        self.norm2 = nn.LayerNorm(channels)
        self.mlp = FeedForward(channels, config.mlp_ratio * channels, channels, nn.GELU)
        self.drop_path = DropPath(drop_path_rate)

    def forward(self, x: Tensor, windows: SlicedWindows | GatheredWindows) -> Tensor:
        """A map in the form of `windows`, [N, H, W, C] or rows [N * H * W, C] -> the same form.

        The norm follows the cut. Before it, TensorRT would take two kernels for norm and cut.
        """
        cells = windows.clear_padding(self.norm1(windows.cut(x, self.shifted)), self.shifted)
        attended = self.attn(cells, windows.mask if self.shifted else None)
        x = x + self.drop_path(windows.join(attended, self.shifted))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class PatchMerging(nn.Module):
    """Joins 2 x 2 cells into one of twice the channels. Upstream's order: channel, then row, then column."""

    def __init__(self, channels: int, norm: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * channels) if norm else nn.Identity()
        self.reduction = nn.Linear(4 * channels, 2 * channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[N, H, W, C] -> [N, ceil(H / 2), ceil(W / 2), 2 C]."""
        x = pad_to_multiple(x, 2)
        n, h, w, c = x.shape
        x = x.reshape(n * (h // 2), 2, w // 2, 2, c).permute(0, 2, 4, 1, 3)  # [N * H/2, W/2, C, 2, 2]
        return self.reduction(self.norm(x.reshape(n, h // 2, w // 2, 4 * c)))


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

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, H, W] -> [N, ceil(H / patch), ceil(W / patch), C]."""
        height, width = x.shape[2:]
        side = self.patch_size
        bottom, right = -height % side, -width % side
        if bottom or right:
            x = F.pad(x, (0, right, 0, bottom))
        n, _, height, width = x.shape
        x = x.reshape(n, 3, height // side, side, width // side, side).permute(0, 2, 4, 1, 3, 5)
        patches = x.reshape(n, height // side, width // side, 3 * side**2)
        return self.norm(F.linear(patches, self.projection.weight.flatten(1), self.projection.bias))


class SwinStage(nn.Module):
    def __init__(
        self, channels: int, num_heads: int, config: SwinConfig, drop_path_rates: list[float], last: bool
    ) -> None:
        super().__init__()
        self.window_size = config.window_size
        self.blocks = nn.ModuleList(
            SwinBlock(channels, num_heads, config, shifted=index % 2 == 1, drop_path_rate=rate)
            for index, rate in enumerate(drop_path_rates)
        )
        self.downsample = nn.Identity() if last else PatchMerging(channels, config.patch_norm)

    def forward(self, x: Tensor, gathered: bool) -> tuple[Tensor, Tensor]:
        """[N, H, W, C] -> the stage's map [N, H, W, C] and the next stage's input."""
        n, h, w, c = x.shape
        windows = (GatheredWindows if gathered else SlicedWindows)(x, self.window_size)
        x = x.reshape(n * h * w, c) if gathered else x
        for block in self.blocks:
            x = block(x, windows)
        x = x.reshape(n, h, w, c) if gathered else x
        return x, self.downsample(x)


class SwinTransformer(nn.Module):
    """The backbone."""

    def __init__(self, config: SwinConfig) -> None:
        super().__init__()
        self.first_stride = config.patch_size  # pixels per cell of the finest map; then twice as many a map
        self.gathers_windows = False  # whether `GatheredWindows` cuts the windows, for dynamic shapes
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
        x = self.patch_embed(x)
        outs = []
        for stage, norm in zip(self.stages, self.norms, strict=True):
            out, x = stage(x, self.gathers_windows)
            outs.append(norm(out).permute(0, 3, 1, 2).contiguous())
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
