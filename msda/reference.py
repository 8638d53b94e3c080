"""Multi-scale deformable attention in plain PyTorch: the definition of correct results.

It runs on any device, in every type of the operator, with autograd. Tests compare every other implementation
with it in float64. Sampling is `torch.nn.functional.grid_sample` with bilinear interpolation, zero padding
and `align_corners=False`. This module imports `torch` and `msda.checks` only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from msda import checks


def attention(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    points_per_level: Sequence[int] | None = None,
) -> Tensor:
    """Computes :func:`msda.attention` level by level with `grid_sample`; 16-bit values in float32.

    Reads `spatial_shapes` and `level_start_index`, so it synchronises with the GPU.
    """
    sizes = checks.check_attention(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights, points_per_level
    )
    batch_size, _, num_heads, head_dim = value.shape
    num_queries = sampling_locations.shape[1]
    wide = torch.promote_types(value.dtype, torch.float32)
    locations = sampling_locations.to(wide).reshape(batch_size, num_queries, num_heads, sum(sizes), 2)
    weights = attention_weights.to(wide).reshape(batch_size, num_queries, num_heads, sum(sizes))
    # A location that is not finite counts zero, and grid_sample would misread a huge one. Both become a
    # location outside every level.
    finite = locations.isfinite().all(-1, keepdim=True)
    locations = torch.where(finite, locations.clamp(-1, 2), -1)

    output = value.new_zeros(batch_size * num_heads, head_dim, num_queries, dtype=wide)
    first_point = 0
    shapes, starts = spatial_shapes.tolist(), level_start_index.tolist()
    for (height, width), start, num_points in zip(shapes, starts, sizes, strict=True):
        points = slice(first_point, first_point + num_points)
        first_point += num_points
        level = value[:, start : start + height * width].to(wide)  # [N, H*W, M, D]
        level = level.permute(0, 2, 3, 1).reshape(batch_size * num_heads, head_dim, height, width)
        grid = 2 * locations[:, :, :, points].transpose(1, 2).flatten(0, 1) - 1  # [N*M, Q, P, 2]
        sampled = F.grid_sample(level, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        level_weights = weights[:, :, :, points].transpose(1, 2).flatten(0, 1)  # [N*M, Q, P]
        output = output + (sampled * level_weights.unsqueeze(1)).sum(-1)  # [N*M, D, Q]
    output = output.reshape(batch_size, num_heads, head_dim, num_queries)
    return output.permute(0, 3, 1, 2).reshape(batch_size, num_queries, num_heads * head_dim).to(value.dtype)


def fused_attention(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    reference_points: Tensor,
    sampling_offsets: Tensor,
    attention_logits: Tensor,
    points_per_level: Sequence[int] | None = None,
) -> Tensor:
    """Computes :func:`msda.fused_attention`: softmax and locations, then :func:`attention`."""
    sizes = checks.check_fused_attention(
        value,
        spatial_shapes,
        level_start_index,
        reference_points,
        sampling_offsets,
        attention_logits,
        points_per_level,
    )
    wide = torch.promote_types(value.dtype, torch.float32)
    weights = attention_logits.to(wide).softmax(-1)
    offsets = sampling_offsets.to(wide).flatten(3, -2)  # [N, Q, M, sum P, 2]
    locations = sampling_locations(reference_points.to(wide), offsets, spatial_shapes, sizes)
    return attention(value, spatial_shapes, level_start_index, locations, weights, sizes)


def quantized_fused_attention(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    reference_points: Tensor,
    sampling_offsets: Tensor,
    attention_logits: Tensor,
    value_scale: float,
    points_per_level: Sequence[int] | None = None,
) -> Tensor:
    """Computes :func:`msda.quantized_fused_attention` in float32, and rounds the result once.

    Reads `spatial_shapes` and `level_start_index`, so it synchronises with the GPU.
    """
    checks.check_quantized_fused_attention(
        value,
        spatial_shapes,
        level_start_index,
        reference_points,
        sampling_offsets,
        attention_logits,
        value_scale,
        points_per_level,
    )
    levels = spatial_shapes, level_start_index, reference_points
    samples = sampling_offsets.float(), attention_logits.float()
    result = fused_attention(value.float() * value_scale, *levels, *samples, points_per_level)
    return result.to(sampling_offsets.dtype).contiguous()


def sampling_locations(
    reference_points: Tensor, offsets: Tensor, spatial_shapes: Tensor, points_per_level: Sequence[int]
) -> Tensor:
    """Computes locations in [0, 1] of each level from reference points and offsets.

    Args:
        reference_points: [N, Q, L, 2] = (x, y) or [N, Q, L, 4] = (cx, cy, w, h), in [0, 1].
        offsets: [N, Q, M, sum P_l, 2]; in cells of the level for points, in half a box over P for boxes.
        spatial_shapes: [L, 2] = (H, W).
        points_per_level: P_l of each level.

    Returns:
        [N, Q, M, sum P_l, 2] = (x, y).
    """
    center = repeat_levels(reference_points[..., :2], points_per_level, -2).unsqueeze(2)  # [N, Q, 1, K, 2]
    return center + offsets * offset_scale(reference_points, spatial_shapes, points_per_level)


def offset_scale(reference_points: Tensor, spatial_shapes: Tensor, points_per_level: Sequence[int]) -> Tensor:
    """The length of a unit offset, in [0, 1] of each point's level: [N, Q, 1, K, 2], or [K, 2] for points."""
    if reference_points.shape[-1] == 2:
        return repeat_levels(1 / spatial_shapes.flip(-1).to(reference_points.dtype), points_per_level, 0)
    # Python numbers, one level at a time: a tensor of counts would be copied to the device.
    scale = [reference_points[:, :, i, 2:] * (0.5 / max(n, 1)) for i, n in enumerate(points_per_level)]
    return repeat_levels(torch.stack(scale, 2), points_per_level, 2).unsqueeze(2)


def repeat_levels(tensor: Tensor, points_per_level: Sequence[int], dim: int) -> Tensor:
    """Repeats level l of dimension `dim` P_l times: size L becomes sum P_l."""
    parts = [level.expand(*_sizes(level, dim, n)) for level, n in zip(tensor.split(1, dim), points_per_level)]
    return torch.cat(parts, dim)


def _sizes(tensor: Tensor, dim: int, size: int) -> list[int]:
    sizes = [-1] * tensor.dim()
    sizes[dim] = size
    return sizes
