"""Small blocks of window attention that write it in the ways that Swin Transformers do."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Way:
    """How a block is written.

    Attributes:
        window_size, shift: in cells.
        heads, head_dim: M and D.
        joint: one linear layer to queries, keys and values, not three.
        qkv_bias: these layers have a bias.
        scale: what is scaled: "queries", "keys" or "logits".
        factor: of the scale, times 1 / sqrt(D).
        table: the bias is gathered from a table of relative positions; None: there is none.
        masked: added to the logits of masked pairs.
        image_by_image: the mask is added under the shape [N, windows, M, L, L].
        gathers: the roll is a Gather, not Slice and Concat.
        flat: the map is [N, H · W, C], not [N, H, W, C].
        projection: a linear layer follows the attention.
    """

    window_size: int = 7
    shift: int = 3
    heads: int = 2
    head_dim: int = 16
    joint: bool = True
    qkv_bias: bool = True
    scale: str = "queries"
    factor: float = 1.0
    table: bool = True
    masked: float = -100.0
    image_by_image: bool = True
    gathers: bool = False
    flat: bool = False
    projection: bool = True


class WindowBlock(nn.Module):
    """Window attention of a map [N, H, W, C] or [N, H · W, C]; the result has the map's shape.

    Args:
        way: how it is written.
        height, width: H and W.
    """

    def __init__(self, way: Way, height: int, width: int) -> None:
        super().__init__()
        self.way, self.height, self.width = way, height, width
        channels, side = way.heads * way.head_dim, 2 * way.window_size - 1
        torch.manual_seed(0)
        parts = (3 * channels,) if way.joint else (channels,) * 3
        self.layers = nn.ModuleList([nn.Linear(channels, n, bias=way.qkv_bias) for n in parts])
        self.projection = nn.Linear(channels, channels) if way.projection else nn.Identity()
        self.table = nn.Parameter(torch.randn(side**2, way.heads)) if way.table else None
        place = torch.cartesian_prod(*[torch.arange(way.window_size)] * 2)
        step = place[:, None] - place + way.window_size - 1
        self.register_buffer("index", step[..., 0] * side + step[..., 1])

    def forward(self, x: Tensor) -> Tensor:
        way, channels = self.way, x.shape[-1]
        images, size, shape = x.shape[0], way.window_size, x.shape
        x = F.pad(
            x.reshape(images, self.height, self.width, channels),
            (0, 0, 0, -self.width % size, 0, -self.height % size),
        )
        down, across = x.shape[1] // size, x.shape[2] // size
        x = self.rolled(x, -way.shift)
        x = x.reshape(images, down, size, across, size, channels).transpose(2, 3)
        windows = x.reshape(images * down * across, size**2, channels)
        windows = self.projection(self.attended(windows, self.mask(down, across)))
        x = windows.reshape(images, down, across, size, size, channels).transpose(2, 3)
        x = self.rolled(x.reshape(images, down * size, across * size, channels), way.shift)
        return x[:, : self.height, : self.width].reshape(shape)

    def rolled(self, x: Tensor, shift: int) -> Tensor:
        """Rolls rows and columns."""
        if not self.way.shift:
            return x
        if not self.way.gathers:
            return torch.roll(x, (shift, shift), (1, 2))
        for axis in (1, 2):
            x = x.index_select(axis, torch.arange(x.shape[axis]).roll(shift, 0))
        return x

    def mask(self, down: int, across: int) -> Tensor | None:
        """The mask, [windows, L, L]."""
        way, size = self.way, self.way.window_size
        if not way.shift:
            return None
        region = torch.zeros(down * size, across * size)
        bands = (slice(0, -size), slice(-size, -way.shift), slice(-way.shift, None))
        for i, rows in enumerate(bands):
            for j, columns in enumerate(bands):
                region[rows, columns] = 3 * i + j
        region = region.reshape(down, size, across, size).transpose(1, 2).reshape(-1, size**2)
        apart = region[:, None] != region[:, :, None]
        return torch.zeros(apart.shape).masked_fill(apart, way.masked)

    def attended(self, windows: Tensor, mask: Tensor | None) -> Tensor:
        """Attention inside windows [B, L, C]."""
        way, (count, cells, channels) = self.way, windows.shape
        if way.joint:
            qkv = self.layers[0](windows).reshape(count, cells, 3, way.heads, way.head_dim)
            query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        else:
            query, key, value = (
                layer(windows).reshape(count, cells, way.heads, way.head_dim).transpose(1, 2)
                for layer in self.layers
            )
        factor = way.factor * way.head_dim**-0.5
        query = query * factor if way.scale == "queries" else query
        key = key * factor if way.scale == "keys" else key
        logits = query @ key.transpose(-2, -1)
        logits = logits * factor if way.scale == "logits" else logits
        if self.table is not None:
            logits = logits + self.table[self.index].permute(2, 0, 1).unsqueeze(0)
        if mask is not None and way.image_by_image:
            logits = logits.reshape(-1, len(mask), way.heads, cells, cells) + mask[:, None]
            logits = logits.reshape(count, way.heads, cells, cells)
        elif mask is not None:
            logits = logits + mask[:, None].repeat(count // len(mask), 1, 1, 1)
        return (self.weights(logits) @ value).transpose(1, 2).reshape(count, cells, channels)

    def weights(self, logits: Tensor) -> Tensor:
        """The attention weights; near misses compute others."""
        return logits.softmax(-1)


def inputs(way: Way, height: int, width: int, images: int = 2) -> dict[str, Tensor]:
    """A map of random numbers."""
    sides = (height * width,) if way.flat else (height, width)
    return {"x": torch.randn(images, *sides, way.heads * way.head_dim)}
