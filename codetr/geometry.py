"""Where the cells of the feature pyramid lie: masks, valid ratios, reference points and sine positions.

Upstream draws each image's padding mask in pixels, shrinks it to every level, and sums it up (`cumsum`) for
positions. An image fills the upper left rectangle of its padded tensor, so all of that has a closed form in
its height and width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from codetr.layers import device_constant


class Pyramid(NamedTuple):
    """The geometry of a batch. S counts the cells of all levels, row by row, levels one after the other."""

    level_hw: tuple[tuple[int, int], ...]  # the same as spatial_shapes, on the host
    spatial_shapes: Tensor  # [L, 2] int64, (H, W) in cells
    level_start_index: Tensor  # [L] int64
    valid_sizes: Tensor  # [N, L, 2] fp32, (h, w) of the image in cells
    valid_ratios: Tensor  # [N, L, 2] fp32, (w / W, h / H)
    centers: Tensor  # [N, S, 2] fp32, (x, y) of each cell in units of the image, beyond 1 in the padding
    padding_mask: Tensor  # [N, S] bool, True in the padding

    @property
    def reference_points(self) -> Tensor:
        """[N, S, L, 2] fp32: each cell's centre in every level, 0..1 over the level with its padding."""
        return self.centers[:, :, None] * self.valid_ratios[:, None]


def make_pyramid(
    image_shapes: Tensor, input_hw: tuple[int, int], level_hw: Sequence[tuple[int, int]]
) -> Pyramid:
    """Lays out a batch of images in the upper left of tensors of `input_hw` pixels.

    Args:
        image_shapes: [N, 2], (h, w) of each image in pixels, 1..input_hw; any number type.
        input_hw: height and width of the padded tensor in pixels.
        level_hw: height and width of each level in cells.
    """
    device = image_shapes.device
    level_hw = tuple((h, w) for h, w in level_hw)
    starts = [0]
    for h, w in level_hw[:-1]:
        starts.append(starts[-1] + h * w)
    sizes = [size for hw in level_hw for size in hw]
    spatial_shapes = device_constant(sizes, torch.int64, device).view(-1, 2)
    level_start_index = device_constant(starts, torch.int64, device)

    cells = spatial_shapes.float()  # [L, 2]
    valid_sizes = _valid_sizes(image_shapes, device_constant(list(input_hw), torch.float32, device), cells)

    centers, masks = [], []
    for level, (h, w) in enumerate(level_hw):
        valid_h, valid_w = valid_sizes[:, level].unsqueeze(-1).unbind(1)  # [N, 1] each
        y = torch.arange(h, dtype=torch.float32, device=device)
        x = torch.arange(w, dtype=torch.float32, device=device)
        center_y = ((y + 0.5) / valid_h)[:, :, None].expand(-1, -1, w)  # [N, H, W]
        center_x = ((x + 0.5) / valid_w)[:, None, :].expand(-1, h, -1)  # [N, H, W]
        centers.append(torch.stack((center_x, center_y), dim=-1).flatten(1, 2))
        masks.append(((y >= valid_h)[:, :, None] | (x >= valid_w)[:, None, :]).flatten(1))
    return Pyramid(
        level_hw=level_hw,
        spatial_shapes=spatial_shapes,
        level_start_index=level_start_index,
        valid_sizes=valid_sizes,
        valid_ratios=(valid_sizes / cells).flip(-1),
        centers=torch.cat(centers, dim=1),
        padding_mask=torch.cat(masks, dim=1),
    )


def _valid_sizes(image_shapes: Tensor, input_hw: Tensor, cells: Tensor) -> Tensor:
    """Counts the cells of each level whose nearest pixel lies in the image.

    Upstream shrinks the mask by nearest interpolation: cell i takes pixel floor(i * step), where step is
    pixels per cell rounded to fp32 and the product is rounded too. That pixel is inside when i * step < size,
    so the count is the first i for which this fails: the integer nearest to size / step, or one more.

    Args:
        image_shapes: [N, 2]; input_hw: [2] fp32; cells: [L, 2] fp32.

    Returns:
        [N, L, 2] fp32.
    """
    sizes = image_shapes.float()[:, None]  # [N, 1, 2]
    step = input_hw / cells  # [L, 2]
    nearest = torch.round(sizes / step)  # [N, L, 2]
    return torch.minimum(nearest + (nearest * step < sizes).float(), cells)


def encoder_positions(
    pyramid: Pyramid, num_feats: int, temperature: float, dtype: torch.dtype
) -> list[Tensor]:
    """Sine encoding of every cell, (y, x), normalised to 0..2 pi over the image.

    Args:
        num_feats: per axis.
        dtype: of the result; arguments of sine and cosine are fp32.

    Returns:
        For each level [N, H * W, 2 * num_feats].
    """
    positions = []
    for level, (h, w) in enumerate(pyramid.level_hw):
        valid_h, valid_w = pyramid.valid_sizes[:, level].unsqueeze(-1).unbind(1)  # [N, 1] each
        axes, inside = [], []
        for cells, valid in ((h, valid_h), (w, valid_w)):
            index = torch.arange(cells, dtype=torch.float32, device=valid.device)
            # The running count of image cells along the axis, which stays at its end in the padding.
            count = torch.minimum(index + 1.0, valid)
            embedding = sine_embedding(count / (valid + 1e-6), num_feats, temperature)
            axes.append(embedding.to(dtype))  # [N, cells, num_feats]
            inside.append(index < valid)  # [N, cells]
        # A column outside the image has no image cells to count: its y is 0. So is x in a row outside.
        zero = sine_embedding(torch.zeros_like(valid_h), num_feats, temperature).to(dtype)
        zero = zero[:, :, None]  # [N, 1, 1, num_feats]
        y = torch.where(inside[1][:, None, :, None], axes[0][:, :, None], zero)  # [N, H, W, num_feats]
        x = torch.where(inside[0][:, :, None, None], axes[1][:, None], zero)  # [N, H, W, num_feats]
        positions.append(torch.cat((y, x), dim=-1).flatten(1, 2))
    return positions


def sine_embedding(x: Tensor, num_feats: int, temperature: float) -> Tensor:
    """Interleaved sine and cosine of 2 pi x at `num_feats` / 2 wavelengths.

    Args:
        x: [...] fp32.

    Returns:
        [..., num_feats] fp32.
    """
    exponent = torch.arange(num_feats // 2, dtype=torch.float32, device=x.device) * (2.0 / num_feats)
    angle = (x * (2.0 * math.pi))[..., None] / torch.exp(exponent * math.log(temperature))
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)


def proposal_boxes(pyramid: Pyramid) -> tuple[Tensor, Tensor]:
    """One box proposal per cell: its centre, and a side of 5% of the image that doubles with each level.

    Returns:
        boxes [N, S, 4] fp32, (cx, cy, w, h) in units of the image, and usable [N, S] bool: not in the
        padding, and every coordinate within 0.01..0.99.
    """
    sides = [
        torch.full((1, h * w, 2), 0.05 * 2.0**level, dtype=torch.float32, device=pyramid.centers.device)
        for level, (h, w) in enumerate(pyramid.level_hw)
    ]
    sides = torch.cat(sides, dim=1).expand(pyramid.centers.shape[0], -1, -1)
    boxes = torch.cat((pyramid.centers, sides), dim=-1)  # [N, S, 4]
    usable = (boxes.amin(dim=-1) > 0.01) & (boxes.amax(dim=-1) < 0.99) & ~pyramid.padding_mask
    return boxes, usable
