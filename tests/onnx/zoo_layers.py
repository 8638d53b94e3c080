"""Layers with MSDA from networks that no installed package has, in their published structure and small.

Sources: BEVFormer (arXiv 2203.17270), Mask DINO (arXiv 2206.02777), ViT-Adapter (arXiv 2205.08534) as in
DINOv2's segmentation.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.onnx.attention_layers import Levels, by_stack
from tests.onnx.zoo_exporters import randomise

HEADS, POINTS = 4, 4
WIDTH = 32


class DeformableAttention(nn.Module):
    """The projections of MSDA around the sampling of Deformable DETR.

    Args:
        levels: (H, W) of each level.
        query_width: channels of the queries.
        images: images of value for each image of the queries, which project offsets and weights for all.
        points: per level.
        ratio: channels of value per channel of the input.
        projects: whether a linear layer follows.
    """

    def __init__(
        self,
        levels: Levels,
        query_width: int = WIDTH,
        images: int = 1,
        points: int = POINTS,
        ratio: float = 1.0,
        projects: bool = True,
    ) -> None:
        super().__init__()
        self.levels, self.images, self.points, self.width = levels, images, points, int(WIDTH * ratio)
        samples = images * HEADS * len(levels) * points
        self.value_proj = nn.Linear(WIDTH, self.width)
        self.sampling_offsets = nn.Linear(query_width, 2 * samples)
        self.attention_weights = nn.Linear(query_width, samples)
        self.output_proj = nn.Linear(self.width, WIDTH) if projects else nn.Identity()

    def forward(self, queries: Tensor, references: Tensor, memory: Tensor) -> Tensor:
        """Attends from queries [N, Q, C] at references [N · images, Q, L or 1, 2 or 4] to memory.

        References [N · images, Q, 1, Z, 2] have Z heights, which share the points of every level.
        """
        n, q, _ = queries.shape
        shape = (n, q, HEADS, self.images, len(self.levels), self.points)
        value = self.value_proj(memory).reshape(len(memory), -1, HEADS, self.width // HEADS)
        offsets = self.sampling_offsets(queries).view(*shape, 2).permute(3, 0, 1, 2, 4, 5, 6).flatten(0, 1)
        weights = self.attention_weights(queries).view(*shape[:4], -1).softmax(-1)
        weights = weights.permute(3, 0, 1, 2, 4).flatten(0, 1)
        sizes = torch.tensor([(w, h) for h, w in self.levels], dtype=offsets.dtype)
        if references.dim() == 5:
            heights = references.shape[3]
            offsets = (offsets / sizes[:, None]).unflatten(4, (self.points // heights, heights))
            locations = references[:, :, None, :, None] + offsets
        elif references.shape[-1] == 2:
            locations = references[:, :, None, :, None] + offsets / sizes[:, None]
        else:
            centres, extents = references[:, :, None, :, None].split(2, -1)
            locations = centres + offsets / self.points * extents * 0.5
        locations = locations.reshape(len(memory), q, HEADS, -1, 2)
        points = (self.points,) * len(self.levels)
        return self.output_proj(by_stack(value, self.levels, locations, weights, points))


class TemporalAttention(nn.Module):
    """BEVFormer's temporal self-attention: a queue of two bird's-eye views, whose results are averaged."""

    level = (10, 12)

    def __init__(self) -> None:
        super().__init__()
        self.attention = DeformableAttention([self.level], 2 * WIDTH, images=2, projects=False)
        self.output_proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, view: Tensor, previous: Tensor, shift: Tensor) -> tuple[Tensor]:
        """Attends from view [1, Q, C] to itself and the previous view, which the car's motion shifts."""
        grid = centres([self.level])[None, :, None]
        queries = torch.cat([previous, view], -1)
        references = torch.cat([grid + shift, grid])
        result = self.attention(queries, references, torch.cat([previous, view])).permute(1, 2, 0)
        result = (result[..., :1] + result[..., 1:]) / 2
        return (view + self.output_proj(result.permute(2, 0, 1)),)


class SpatialAttention(nn.Module):
    """BEVFormer's spatial cross-attention: cameras, four heights of each query, results summed over cameras.

    Args:
        gather: makes [1, Q, C] of the results of all cameras [cameras, Q, C] and of the references.
    """

    levels, cameras, heights = ((12, 20), (6, 10)), 3, 4

    def __init__(self, gather=None) -> None:
        super().__init__()
        self.gather = gather or (lambda results, references: results.sum(0, keepdim=True))
        self.attention = DeformableAttention(self.levels, points=8, projects=False)
        self.output_proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, view: Tensor, features: Tensor, references: Tensor) -> tuple[Tensor]:
        """Attends from view [1, Q, C] to features [cameras, S, C] at references [cameras, Q, heights, 2]."""
        queries = view.expand(self.cameras, -1, -1)
        results = self.attention(queries, references[:, :, None], features)
        inside = ((references > 0) & (references < 1)).all(-1).any(-1)
        count = inside.sum(0).clamp(min=1)[None, :, None]
        return (view + self.output_proj(self.gather(results, references) / count),)


class MaskDino(nn.Module):
    """Mask DINO: an encoder layer, and a decoder layer on queries [Q, N, C] with classes, masks and boxes."""

    levels = ((4, 5), (8, 10), (16, 20))  # coarse levels first

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 4, 4)
        self.downsample = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, 2, 2) for _ in self.levels[1:])
        self.encoder = DeformableAttention(self.levels)
        self.norm = nn.LayerNorm(WIDTH)
        self.decoder = DeformableAttention(self.levels)
        self.classes, self.box_head, self.mask_head = (nn.Linear(WIDTH, n) for n in (5, 4, WIDTH))

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        maps = [self.stem(pixel_values)]
        for layer in self.downsample:
            maps.insert(0, layer(maps[0]))
        memory = torch.cat([x.flatten(2).transpose(1, 2) for x in maps], 1)
        valid = torch.ones(len(memory), len(self.levels), 2) - memory.mean().sigmoid() / 4
        references = centres(self.levels)[None, :, None] * valid[:, None]
        memory = self.norm(memory + self.encoder(memory, references, memory))
        best = self.classes(memory).amax(-1).topk(12).indices  # two stages: queries are cells
        queries = memory.gather(1, best[..., None].expand(-1, -1, WIDTH)).transpose(0, 1)
        boxes = self.box_head(queries).sigmoid()
        references = boxes[:, :, None] * torch.cat([valid, valid], -1)[None]
        result = self.decoder(queries.transpose(0, 1), references.transpose(0, 1), memory).transpose(0, 1)
        queries = self.norm(queries + result).transpose(0, 1)
        h, w = self.levels[-1]
        pixels = memory[:, -h * w :].transpose(1, 2).unflatten(2, (h, w))
        masks = torch.einsum("bqc,bchw->bqhw", self.mask_head(queries), pixels)
        return (
            self.classes(queries),
            masks,
            (self.box_head(queries) + boxes.transpose(0, 1).logit()).sigmoid(),
        )


class VitAdapter(nn.Module):
    """ViT-Adapter on DINOv2: tokens take from three levels (injector), the levels from tokens (extractor)."""

    levels, tokens = ((16, 24), (8, 12), (4, 6)), (9, 13)

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 14, 14)
        self.pyramid = nn.ModuleList(nn.Conv2d(3, WIDTH, stride, stride) for stride in (8, 16, 32))
        self.query_norm, self.feature_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.injector = DeformableAttention(self.levels, ratio=0.5)
        self.extractor = DeformableAttention([self.tokens], ratio=0.5)
        self.gamma = nn.Parameter(torch.ones(WIDTH))
        self.feed_forward = nn.Linear(WIDTH, WIDTH)

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.patches(pixel_values).flatten(2).transpose(1, 2)
        features = torch.cat([layer(pixel_values).flatten(2).transpose(1, 2) for layer in self.pyramid], 1)
        of_tokens, of_levels = (centres(x)[None, :, None] for x in ([self.tokens], self.levels))
        taken = self.injector(self.query_norm(tokens), of_tokens, self.feature_norm(features))
        tokens = tokens + self.gamma * taken
        tokens = tokens + F.gelu(self.feed_forward(tokens))
        features = features + self.extractor(self.query_norm(features), of_levels, self.feature_norm(tokens))
        return tokens, features


def centres(levels: Levels) -> Tensor:
    """The centres (x, y) of all cells, 0 to 1: [cells, 2]."""
    parts = []
    for h, w in levels:
        y, x = torch.meshgrid((torch.arange(h) + 0.5) / h, (torch.arange(w) + 0.5) / w, indexing="ij")
        parts.append(torch.stack([x, y], -1).flatten(0, 1))
    return torch.cat(parts)


# Makers of the zoo: full -> the module and example inputs by name. There is one size.


def bevformer_temporal(full: bool):
    cells = TemporalAttention.level[0] * TemporalAttention.level[1]
    inputs = {"view": torch.randn(1, cells, WIDTH), "previous": torch.randn(1, cells, WIDTH)}
    return randomise(TemporalAttention()), inputs | {"shift": 0.1 * torch.randn(1, 1, 1, 2)}


def bevformer_spatial(full: bool):
    layer = SpatialAttention()
    cells = sum(h * w for h, w in layer.levels)
    return randomise(layer), {
        "view": torch.randn(1, 30, WIDTH),
        "features": torch.randn(layer.cameras, cells, WIDTH),
        "references": torch.rand(layer.cameras, 30, layer.heights, 2) * 1.4 - 0.2,
    }


def mask_dino(full: bool):
    return randomise(MaskDino()), {"pixel_values": torch.randn(1, 3, 64, 80)}


def vit_adapter(full: bool):
    return randomise(VitAdapter()), {"pixel_values": torch.randn(1, 3, 128, 192)}
