"""Small attention layers that write multi-scale deformable attention in the ways that models do.

Each way is a function of value [N, S, M, D], levels [(H, W), …], locations [N, Q, M, K, 2], weights [N, Q, M,
K] and the points of each level, and returns [N, Q, M * D].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.onnx.zoo_exporters import gathered_samples

Levels = Sequence[tuple[int, int]]
LEVELS = ((6, 8), (3, 4), (2, 2))
POINTS = (2, 2, 2)
RAGGED = (2, 4, 1)
HEADS, HEAD_DIM = 2, 4


def by_stack(value, levels, locations, weights, points) -> Tensor:
    """Deformable DETR: levels are split from value, samples are stacked, one product and one sum follow."""
    images, _, heads, width = value.shape
    queries, num_levels = locations.shape[1], len(levels)
    grids = (2 * locations - 1).reshape(images, queries, heads, num_levels, points[0], 2)
    samples = []
    for i, (part, (h, w)) in enumerate(zip(value.split([h * w for h, w in levels], 1), levels)):
        level = part.flatten(2).transpose(1, 2).reshape(images * heads, width, h, w)
        grid = grids[:, :, :, i].transpose(1, 2).flatten(0, 1)
        samples.append(F.grid_sample(level, grid, mode="bilinear", padding_mode="zeros", align_corners=False))
    weights = weights.transpose(1, 2).reshape(images * heads, 1, queries, sum(points))
    result = (torch.stack(samples, -2).flatten(-2) * weights).sum(-1)
    return result.view(images, heads * width, queries).transpose(1, 2).contiguous()


def grid_sample(level: Tensor, grid: Tensor) -> Tensor:
    return F.grid_sample(level, grid, align_corners=False)


def by_concat(value, levels, locations, weights, points, sample=grid_sample) -> Tensor:
    """D-FINE and RT-DETRv2: heads before cells, any number of points per level, samples concatenated."""
    images, _, heads, width = value.shape
    queries = locations.shape[1]
    maps = value.permute(0, 2, 3, 1).flatten(0, 1).split([h * w for h, w in levels], -1)
    grids = (2 * locations - 1).permute(0, 2, 1, 3, 4).flatten(0, 1).split(list(points), 2)
    samples = [
        sample(part.reshape(images * heads, width, h, w), grid)
        for part, grid, (h, w) in zip(maps, grids, levels)
    ]
    weights = weights.permute(0, 2, 1, 3).reshape(images * heads, 1, queries, sum(points))
    result = (torch.cat(samples, -1) * weights).sum(-1).reshape(images, heads * width, queries)
    return result.permute(0, 2, 1)


def by_addition(value, levels, locations, weights, points) -> Tensor:
    """Our reference: slices of value, each level weighted and added to a sum that begins with zeros."""
    images, _, heads, width = value.shape
    queries = locations.shape[1]
    output = value.new_zeros(images * heads, width, queries)
    start, first = 0, 0
    for (h, w), count in zip(levels, points):
        level = value[:, start : start + h * w].permute(0, 2, 3, 1).reshape(images * heads, width, h, w)
        grid = 2 * locations[:, :, :, first : first + count].transpose(1, 2).flatten(0, 1) - 1
        share = weights[:, :, :, first : first + count].transpose(1, 2).flatten(0, 1)
        output = output + (grid_sample(level, grid) * share.unsqueeze(1)).sum(-1)
        start, first = start + h * w, first + count
    return output.reshape(images, heads * width, queries).transpose(1, 2)


def by_gathers(value, levels, locations, weights, points) -> Tensor:
    """Bilinear sampling by gathers from the flattened level, corners outside masked."""
    return by_concat(value, levels, locations, weights, points, gathered_samples)


def by_padded_gathers(value, levels, locations, weights, points) -> Tensor:
    """OpenMMLab: bilinear sampling by gathers from the level with a border of zeros, corners clamped."""
    return by_concat(value, levels, locations, weights, points, _padded_samples)


class Attention(nn.Module):
    """Deformable attention of queries [N, Q, C], memory [N, S, C] and references [N, Q, L or 1, 2 or 4]."""

    def __init__(
        self, way: Callable, levels: Levels = LEVELS, points: Sequence[int] = POINTS, softmax: bool = True
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        width = HEADS * HEAD_DIM
        self.way, self.levels, self.points, self.softmax = way, levels, tuple(points), softmax
        self.value = nn.Linear(width, width)
        self.offsets = nn.Linear(width, HEADS * sum(points) * 2)
        self.weights = nn.Linear(width, HEADS * sum(points))
        self.output = nn.Linear(width, width)
        nn.init.normal_(self.offsets.bias, std=1.5)

    def forward(self, queries: Tensor, memory: Tensor, references: Tensor) -> Tensor:
        images, count = queries.shape[:2]
        value = self.value(memory).reshape(images, -1, HEADS, HEAD_DIM)
        offsets = self.offsets(queries).reshape(images, count, HEADS, sum(self.points), 2)
        weights = self.weights(queries).reshape(images, count, HEADS, sum(self.points))
        weights = weights.softmax(-1) if self.softmax else weights.sigmoid()
        locations = self.locations(references, offsets)
        return queries + self.output(self.way(value, self.levels, locations, weights, self.points))

    def locations(self, references: Tensor, offsets: Tensor) -> Tensor:
        """[N, Q, M, K, 2]"""
        level_of_point = [level for level, count in enumerate(self.points) for _ in range(count)]
        if references.shape[2] > 1:
            references = references[:, :, level_of_point]
        references = references[:, :, None]
        if references.shape[-1] == 2:
            sizes = torch.tensor([(w, h) for h, w in self.levels], dtype=offsets.dtype)[level_of_point]
            return references + offsets / sizes
        counts = torch.tensor(self.points, dtype=offsets.dtype)[level_of_point].unsqueeze(-1)
        return references[..., :2] + offsets / counts * references[..., 2:] * 0.5


def inputs(
    images: int = 1,
    queries: int = 5,
    columns: int = 2,
    levels: Levels = LEVELS,
    reference_levels: int | None = None,
) -> dict[str, Tensor]:
    """Example inputs of `Attention`, by name."""
    generator = torch.Generator().manual_seed(0)
    cells = sum(h * w for h, w in levels)
    references = torch.rand(images, queries, reference_levels or len(levels), columns, generator=generator)
    return {
        "queries": torch.randn(images, queries, 8, generator=generator),
        "memory": torch.randn(images, cells, 8, generator=generator),
        "references": references,
    }


def _padded_samples(level: Tensor, grid: Tensor) -> Tensor:
    batch, width, h, w = level.shape
    x, y = ((grid[..., 0] + 1) * w - 1) / 2, ((grid[..., 1] + 1) * h - 1) / 2
    padded = F.pad(level, (1, 1, 1, 1)).reshape(batch, width, (h + 2) * (w + 2))
    x, y = x.reshape(batch, -1), y.reshape(batch, -1)
    left, top = x.floor().long(), y.floor().long()
    result = 0
    for dx in (0, 1):
        for dy in (0, 1):
            column, line = left + dx, top + dy
            share = (x - (left + 1 - dx)).abs() * (y - (top + 1 - dy)).abs()
            cell = (line + 1).clamp(0, h + 1) * (w + 2) + (column + 1).clamp(0, w + 1)
            corner = padded.gather(2, cell.unsqueeze(1).expand(-1, width, -1))
            result = result + corner * share.unsqueeze(1)
    return result.reshape(batch, width, *grid.shape[1:3])
