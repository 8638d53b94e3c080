"""The attention module around the operator, with the parameter names of the published checkpoints.

Deformable DETR, arXiv:2010.04159, section 4.1 and appendix A.4 (initialisation).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from msda.ops import fused_attention, linear


class MultiScaleDeformableAttention(nn.Module):
    """Multi-scale deformable attention: each query samples a few points of every level, at learned offsets.

    Args:
        embed_dims: channels C of queries, values and results; a multiple of `num_heads`.
        num_heads: M.
        num_levels: L.
        num_points: P, points of each level and head; or P_l for each level, such as [4, 4, 6].

    Parameters have the names of Deformable DETR's checkpoints: `sampling_offsets`, `attention_weights`,
    `value_proj`, `output_proj`, each a `nn.Linear`.

    Raises:
        ValueError: naming the argument, what it should be and what it was.
    """

    def __init__(
        self,
        embed_dims: int = 256,
        num_heads: int = 8,
        num_levels: int = 4,
        num_points: int | Sequence[int] = 4,
    ):
        super().__init__()
        for name, size in {"num_heads": num_heads, "num_levels": num_levels}.items():
            if size < 1:
                raise ValueError(f"{name}: expected 1 or more, got {size}")
        points = [num_points] * num_levels if isinstance(num_points, int) else list(num_points)
        if len(points) != num_levels or min(points) < 1:
            raise ValueError(
                f"num_points: expected a number of 1 or more, or one for each of num_levels = {num_levels}, "
                f"got {num_points}"
            )
        if embed_dims < 1 or embed_dims % num_heads:
            raise ValueError(f"embed_dims: expected a multiple of num_heads = {num_heads}, got {embed_dims}")
        self.embed_dims = embed_dims
        self.num_heads = num_heads
        self.num_levels = num_levels
        self.num_points = num_points
        self.points_per_level = points
        self.sampling_offsets = nn.Linear(embed_dims, num_heads * sum(points) * 2)
        self.attention_weights = nn.Linear(embed_dims, num_heads * sum(points))
        self.value_proj = nn.Linear(embed_dims, embed_dims)
        self.output_proj = nn.Linear(embed_dims, embed_dims)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialises offsets as a star, and the weights of all points as equal."""
        self.sampling_offsets.bias.copy_(star(self.num_heads, self.points_per_level).flatten())
        nn.init.zeros_(self.sampling_offsets.weight)
        nn.init.zeros_(self.attention_weights.weight)
        nn.init.zeros_(self.attention_weights.bias)
        for projection in (self.value_proj, self.output_proj):
            nn.init.xavier_uniform_(projection.weight)
            nn.init.zeros_(projection.bias)

    def forward(
        self,
        query: Tensor,
        value: Tensor,
        reference_points: Tensor,
        spatial_shapes: Tensor,
        level_start_index: Tensor,
        key_padding_mask: Tensor | None = None,
        residual: Tensor | None = None,
        norm: nn.LayerNorm | None = None,
    ) -> Tensor:
        """Attends from `query` to `value`.

        Args:
            query: [N, Q, C], with its position added.
            value: [N, S, C], all levels, flattened row by row and concatenated.
            reference_points: [N, Q, L, 2] = (x, y) or [N, Q, L, 4] = (cx, cy, w, h), in [0, 1]; float32
                with queries of any type but float64, which need float64.
            spatial_shapes: [L, 2] = (H, W), int32 or int64.
            level_start_index: [L], first cell of each level.
            key_padding_mask: [N, S] bool, True for cells of `value` that are padding; they count as zero.
            residual: [N, Q, C], added to the result. None: zeros.
            norm: normalises the C channels of the sum. None: no normalisation.

        Returns:
            [N, Q, C].
        """
        if query.dim() != 3 or query.shape[-1] != self.embed_dims:
            raise ValueError(f"query: expected [N, Q, C] with C = {self.embed_dims}, got {list(query.shape)}")
        if value.dim() != 3 or value.shape[-1] != self.embed_dims:
            raise ValueError(f"value: expected [N, S, C] with C = {self.embed_dims}, got {list(value.shape)}")
        if norm is not None and (norm.normalized_shape != (self.embed_dims,) or norm.bias is None):
            raise ValueError(f"norm: expected a norm of {self.embed_dims} channels with a bias, got {norm}")
        if key_padding_mask is None:
            value = self.value_proj(value)
        elif key_padding_mask.shape != value.shape[:2] or key_padding_mask.dtype != torch.bool:
            raise ValueError(
                f"key_padding_mask: expected [N, S] = {list(value.shape[:2])} of torch.bool, "
                f"got {list(key_padding_mask.shape)} of {key_padding_mask.dtype}"
            )
        elif torch.compiler.is_exporting():
            # TensorRT 10.6 leaves the product with the mask a kernel of its own. It takes 23 us in an encoder
            # layer and 34 us in a decoder layer (73,656 cells of 256 fp16 channels, H200, profile of the
            # Swin-L engine).
            mask = key_padding_mask.logical_not().unsqueeze(-1).to(value.dtype)
            value = linear(value, self.value_proj.weight, self.value_proj.bias, mask=mask)
        else:
            value = self.value_proj(value).masked_fill(key_padding_mask.unsqueeze(-1), 0)
        heads, equal = self.num_heads, isinstance(self.num_points, int)
        points = (self.num_levels, self.num_points) if equal else (sum(self.points_per_level),)
        attended = fused_attention(
            value.unflatten(-1, (heads, -1)),
            spatial_shapes,
            level_start_index,
            reference_points,
            self.sampling_offsets(query).unflatten(-1, (heads, *points, 2)),
            self.attention_weights(query).unflatten(-1, (heads, -1)),
            None if equal else self.points_per_level,
        )
        if torch.compiler.is_exporting():
            weight, bias = self.output_proj.weight, self.output_proj.bias
            return linear(attended, weight, bias, residual, **arguments_of_norm(norm))
        projected = self.output_proj(attended)
        result = projected if residual is None else residual + projected
        return result if norm is None else norm(result)


def arguments_of_norm(norm: nn.LayerNorm | None) -> dict[str, Tensor | float]:
    """Returns the arguments of `msda.linear` that normalise its result, none without a norm."""
    return {} if norm is None else {"norm_weight": norm.weight, "norm_bias": norm.bias, "eps": norm.eps}


def star(num_heads: int, points_per_level: Sequence[int], device: torch.device | None = None) -> Tensor:
    """Returns the initial offsets in cells: head m has direction 2 pi m / M, point p lies p + 1 cells away.

    Returns:
        [M, K, 2], K points of all levels.
    """
    angles = torch.arange(num_heads, device=device) * (2 * math.pi / num_heads)
    directions = torch.stack([angles.cos(), angles.sin()], -1)  # [M, 2]
    directions = directions / directions.abs().amax(-1, keepdim=True)
    distances = torch.cat([torch.arange(1, points + 1, device=device) for points in points_per_level])
    return directions[:, None] * distances[:, None]
