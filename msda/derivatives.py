"""The operators and their gradients as PyTorch operations, which autograd differentiates any number of times.

The kernels compute results and gradients. The formulas here give forward-mode derivatives and derivatives of
gradients: exact, on any device, and slower than the kernels. One call holds several arrays of
[N, M, Q, K, D], with K points of all levels. `msda.reference` uses `grid_sample`, which PyTorch
differentiates once. This module imports `torch` and `msda.reference` only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from msda import reference


class _Corner(NamedTuple):
    """One of the four cells around every location. Heads M come before queries Q in this module.

    Attributes:
        index: [N, M, Q * K], the cell in S; 0 where the cell lies outside its level.
        inside: [N, M, Q, K, 1], whether the cell lies inside.
        weight_x, weight_y: [N, M, Q, K], the factors of the bilinear weight, in the type of the sums.
        slope_x, slope_y: [K], the factors' derivatives with respect to the location.
    """

    index: Tensor
    inside: Tensor
    weight_x: Tensor
    weight_y: Tensor
    slope_x: Tensor
    slope_y: Tensor

    def gather(self, cells: Tensor) -> Tensor:
        """[N, M, S, D] at the corner: [N, M, Q, K, D], zero outside."""
        index = self.index.unsqueeze(-1).expand(-1, -1, -1, cells.shape[-1])
        found = cells.gather(2, index).unflatten(2, self.inside.shape[2:4])
        return torch.where(self.inside, found, 0)

    def scatter(self, samples: Tensor, num_cells: int) -> Tensor:
        """The transpose of `gather`: sums samples [N, M, Q, K, D] by cell, [N, M, S, D]."""
        samples = torch.where(self.inside, samples, 0).flatten(2, 3)
        index = self.index.unsqueeze(-1).expand_as(samples)
        cells = samples.new_zeros(()).expand(*samples.shape[:2], num_cells, samples.shape[-1])
        return cells.scatter_add(2, index, samples)


def _corners(
    num_cells: int,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    locations: Tensor,
    sizes: Sequence[int],
    wide: torch.dtype,
) -> Iterator[_Corner]:
    """Yields the corners of locations [N, M, Q, K, 2] in float64, because float32 loses digits of a pixel.

    Args:
        sizes: the points of each level.
        wide: the type of the sums.
    """
    starts, heights, widths = (
        reference.repeat_levels(numbers.long(), sizes, 0)
        for numbers in (level_start_index, spatial_shapes[:, 0], spatial_shapes[:, 1])
    )
    # A location that is not finite counts zero: it becomes one outside every level.
    finite = locations.isfinite().all(-1, keepdim=True)
    locations = torch.where(finite, locations.clamp(-1, 2), -1)
    x, y = locations[..., 0] * widths - 0.5, locations[..., 1] * heights - 0.5
    left, top = x.detach().floor(), y.detach().floor()
    right, below = (x - left).to(wide), (y - top).to(wide)  # weights of the right and the lower cells
    columns = (left.long(), 1 - right, -widths), (left.long() + 1, right, widths)
    rows = (top.long(), 1 - below, -heights), (top.long() + 1, below, heights)
    for column, weight_x, slope_x in columns:
        for row, weight_y, slope_y in rows:
            index = starts + row * widths + column
            inside = (row >= 0) & (row < heights) & (column >= 0) & (column < widths)
            inside = inside & (index >= 0) & (index < num_cells)
            index = torch.where(inside, index, 0).flatten(2)
            yield _Corner(index, inside.unsqueeze(-1), weight_x, weight_y, slope_x, slope_y)


def _prepare(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    points_per_level: Sequence[int] | None,
) -> tuple[Tensor, Tensor, Iterator[_Corner]]:
    """Returns value as cells [N, M, S, D], the weights [N, M, Q, K], and the corners of the locations."""
    sizes = _points(sampling_locations, spatial_shapes, points_per_level)
    wide = torch.promote_types(value.dtype, torch.float32)
    shape = (*sampling_locations.shape[:3], sum(sizes))
    locations = sampling_locations.double().reshape(*shape, 2).transpose(1, 2)
    return (
        value.to(wide).transpose(1, 2),
        attention_weights.to(wide).reshape(shape).transpose(1, 2),
        _corners(value.shape[1], spatial_shapes, level_start_index, locations, sizes, wide),
    )


def _points(tensor: Tensor, spatial_shapes: Tensor, points_per_level: Sequence[int] | None) -> Sequence[int]:
    """The points of each level; `tensor` is [N, Q, M, L, P, 2] without points_per_level."""
    return points_per_level or [tensor.shape[4]] * spatial_shapes.shape[0]


def attention(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    points_per_level: Sequence[int] | None = None,
) -> Tensor:
    """Computes :func:`msda.attention`, without reading spatial_shapes and level_start_index on the host."""
    cells, weights, corners = _prepare(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights, points_per_level
    )
    output = 0
    for corner in corners:
        weight = corner.weight_x * corner.weight_y * weights
        output = output + (weight.unsqueeze(-1) * corner.gather(cells)).sum(3)
    return output.transpose(1, 2).flatten(2).to(value.dtype)


def attention_backward(
    grad_output: Tensor,
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    points_per_level: Sequence[int] | None = None,
    deterministic: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the gradients of value, sampling_locations and attention_weights."""
    cells, weights, corners = _prepare(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights, points_per_level
    )
    num_cells, heads, head_dim = value.shape[1:]
    grad = grad_output.to(cells.dtype).unflatten(-1, (heads, head_dim))
    grad = grad.transpose(1, 2).unsqueeze(3)  # [N, M, Q, 1, D]

    grad_cells = grad_x = grad_y = grad_weights = 0
    for corner in corners:
        dot = (grad * corner.gather(cells)).sum(-1)  # [N, M, Q, K]
        bilinear = corner.weight_x * corner.weight_y
        grad_weights = grad_weights + bilinear * dot
        grad_x = grad_x + corner.slope_x * corner.weight_y * weights * dot
        grad_y = grad_y + corner.weight_x * corner.slope_y * weights * dot
        grad_cells = grad_cells + corner.scatter((bilinear * weights).unsqueeze(-1) * grad, num_cells)
    grad_locations = torch.stack((grad_x, grad_y), -1).transpose(1, 2)
    return (
        grad_cells.transpose(1, 2).to(value.dtype),
        grad_locations.reshape(sampling_locations.shape).to(sampling_locations.dtype),
        grad_weights.transpose(1, 2).reshape(attention_weights.shape).to(attention_weights.dtype),
    )


def fused_attention(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    reference_points: Tensor,
    sampling_offsets: Tensor,
    attention_logits: Tensor,
    points_per_level: Sequence[int] | None = None,
) -> Tensor:
    """Computes :func:`msda.fused_attention`, without reading the levels' numbers on the host."""
    sizes = _points(sampling_offsets, spatial_shapes, points_per_level)
    wide = torch.promote_types(value.dtype, torch.float32)
    offsets = sampling_offsets.double().flatten(3, -2)
    locations = reference.sampling_locations(reference_points.double(), offsets, spatial_shapes, sizes)
    weights = attention_logits.to(wide).softmax(-1)
    return attention(value, spatial_shapes, level_start_index, locations, weights, sizes)


def fused_attention_backward(
    grad_output: Tensor,
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    reference_points: Tensor,
    sampling_offsets: Tensor,
    attention_logits: Tensor,
    points_per_level: Sequence[int] | None = None,
    reference_gradient: bool = True,
    deterministic: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Computes the gradients of value, reference_points, sampling_offsets and attention_logits.

    The gradient of reference_points is empty unless `reference_gradient`.
    """
    sizes = _points(sampling_offsets, spatial_shapes, points_per_level)
    wide = torch.promote_types(value.dtype, torch.float32)
    points = reference_points.double()
    offsets = sampling_offsets.double().flatten(3, -2)  # [N, Q, M, K, 2]
    locations = reference.sampling_locations(points, offsets, spatial_shapes, sizes)
    weights = attention_logits.to(wide).softmax(-1)
    grad_value, grad_locations, grad_weights = attention_backward(
        grad_output, value, spatial_shapes, level_start_index, locations, weights, sizes
    )
    grad_offsets = grad_locations * reference.offset_scale(points, spatial_shapes, sizes)
    grad_logits = weights * (grad_weights - (grad_weights * weights).sum(-1, keepdim=True))
    if not reference_gradient:
        grad_points = reference_points.new_empty(0)
    else:
        parts = [grad_locations]
        if points.shape[-1] == 4:
            # The scale is linear in the box, so the scale of a box of ones is its derivative.
            slope = reference.offset_scale(torch.ones_like(points), spatial_shapes, sizes)
            parts.append(grad_locations * offsets * slope)
        by_point = torch.cat(parts, -1).sum(2)  # [N, Q, K, 2 or 4]
        grad_points = torch.stack([level.sum(2) for level in by_point.split(list(sizes), 2)], 2)
    return (
        grad_value,
        grad_points.to(reference_points.dtype),
        grad_offsets.reshape(sampling_offsets.shape).to(sampling_offsets.dtype),
        grad_logits.to(attention_logits.dtype),
    )
