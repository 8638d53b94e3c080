"""Geometry of the feature pyramid: masks, valid ratios, reference points and sine positions.

Upstream draws each image's padding mask in pixels, shrinks it to every level, and sums it up (`cumsum`) for
positions. An image fills the upper left rectangle of its padded tensor, so all of them have a closed form in
its height and width.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from codetr.model.layers import device_constant


class Pyramid(NamedTuple):
    """The geometry of a batch. S counts the cells of all levels, row by row, level after level."""

    spatial_shapes: Tensor  # [L, 2] int64, (H, W) in cells
    level_start_index: Tensor  # [L] int64
    level_of_cell: Tensor  # [S] int64
    row_of_cell: Tensor  # [1, S] fp32, within its level
    column_of_cell: Tensor  # [1, S] fp32
    valid_sizes: Tensor  # [N, L, 2] fp32, (h, w) of the image in cells
    valid_of_cell: tuple[Tensor, Tensor]  # [N, S] fp32 each: h, w of the cell's level
    valid_ratios: Tensor  # [N, L, 2] fp32, (w / W, h / H)
    centers: Tensor  # [N, S, 2] fp32, (x, y) of each cell in units of the image, beyond 1 in the padding
    padding_mask: Tensor  # [N, S] bool, True in the padding

    @property
    def reference_points(self) -> Tensor:
        """Centre of each cell in every level, [N, S, L, 2] fp32, 0..1 over the level with its padding."""
        places = torch.stack((self.column_of_cell + 0.5, self.row_of_cell + 0.5), dim=-1)  # [1, S, 2]
        # A cell gathers the numbers of its level. TensorRT would repeat a division for every cell and level.
        scales = self.valid_ratios[:, None] / self.valid_sizes.flip(-1)[:, :, None]  # [N, L, L, 2]
        return places[:, :, None] * scales.index_select(1, self.level_of_cell)


def make_pyramid(image_shapes: Tensor, input_hw: Tensor, level_hw: Tensor, num_cells: int) -> Pyramid:
    """Makes the pyramid of images in the upper left of tensors of `input_hw` pixels.

    Sizes are tensors, and one operator treats all levels. With dynamic shapes an export has two dozen
    operators here.

    Args:
        image_shapes: [N, 2], (h, w) of each image in pixels, 1..input_hw; any number type.
        input_hw: [2] fp32, height and width of the padded tensor in pixels.
        level_hw: [L, 2] fp32, height and width of each level in cells.
        num_cells: S, below 2^22 because cells are counted in fp32.
    """
    device, num_levels = image_shapes.device, level_hw.shape[0]
    heights, widths = level_hw.unbind(1)  # [L] each
    levels = torch.arange(num_levels, device=device).float()
    starts = ((levels[:, None] > levels).float() * (heights * widths)).sum(dim=1)  # [L]

    cells = torch.arange(num_cells, device=device).float()  # [S]
    level_of_cell = ((cells[:, None] >= starts).float().sum(dim=1) - 1.0).long()  # [S]
    start, width = (
        per_level.index_select(0, level_of_cell)[None] for per_level in (starts, widths)
    )  # [1, S]
    place = cells[None] - start
    row = torch.floor((place + 0.5) / width)  # exact, see `num_cells`
    column = place - row * width

    valid_sizes = _valid_sizes(image_shapes, input_hw, level_hw)
    valid_of_cell = tuple(valid.index_select(1, level_of_cell) for valid in valid_sizes.unbind(-1))
    valid_h, valid_w = valid_of_cell
    return Pyramid(
        spatial_shapes=level_hw.long(),
        level_start_index=starts.long(),
        level_of_cell=level_of_cell,
        row_of_cell=row,
        column_of_cell=column,
        valid_sizes=valid_sizes,
        valid_of_cell=valid_of_cell,
        valid_ratios=(valid_sizes / level_hw).flip(-1),
        centers=torch.stack(((column + 0.5) / valid_w, (row + 0.5) / valid_h), dim=-1),
        padding_mask=(row >= valid_h) | (column >= valid_w),
    )


def _valid_sizes(image_shapes: Tensor, input_hw: Tensor, cells: Tensor) -> Tensor:
    """Counts the cells of each level whose nearest pixel lies in the image.

    Upstream shrinks the mask by nearest interpolation: cell i takes pixel floor(i * step). Both step (pixels
    per cell) and the product are rounded to fp32. The pixel is inside when i * step < size. The count is
    therefore the first i that fails: the integer nearest to size / step, or one more.

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
    pyramid: Pyramid, level_embeds: Tensor, longest: int, temperature: float, dtype: torch.dtype
) -> Tensor:
    """Returns the sine encoding of every cell plus its level's embedding; (y, x) are 0..2 pi over the image.

    A table holds the few different values, one for each image, level, axis and place along the axis. Every
    cell gathers its two.

    Args:
        level_embeds: [L, C], added to all cells of the level.
        longest: at least the number of cells along the longest axis of a level.
        temperature: ratio of the longest to the shortest wavelength.
        dtype: type of the result; arguments of sine and cosine are fp32.

    Returns:
        [N, S, C]; the first half encodes y.
    """
    num_levels, channels = level_embeds.shape
    valid_sizes = pyramid.valid_sizes.flatten(1)[:, :, None]  # [N, 2 L, 1]: y, x of level 0, of level 1 …
    counts = torch.arange(longest + 1, device=valid_sizes.device).float()  # [longest + 1]
    table = sine_embedding(counts / (valid_sizes + 1e-6), channels // 2, temperature).to(dtype)
    table = table + level_embeds.reshape(2 * num_levels, 1, channels // 2)  # [N, 2 L, longest + 1, C / 2]
    if torch.compiler.is_exporting():
        # This product ends TensorRT's fusion, which would compute sine and cosine for every cell.
        table = table @ torch.eye(channels // 2, dtype=dtype, device=table.device)

    # The count of image cells along the axis, which stays at its end in the padding. A column outside of the
    # image has no image cells, so its y is 0. The same holds for x in a row outside.
    row, column = pyramid.row_of_cell, pyramid.column_of_cell  # [1, S]
    valid_h, valid_w = pyramid.valid_of_cell  # [N, S] each
    y = torch.minimum(row + 1.0, valid_h) * (column < valid_w).float()
    x = torch.minimum(column + 1.0, valid_w) * (row < valid_h).float()
    if torch.compiler.is_exporting():
        # Cells of the image have these counts too. What the padding has changes no output: its values are
        # masked, and the selection replaces its cells. The indices of fixed sizes are then constants, which
        # TensorRT would otherwise compute again for every channel.
        y, x = (place.expand(valid_h.shape) for place in (row + 1.0, column + 1.0))

    images = torch.arange(valid_sizes.shape[0], device=counts.device).float()[:, None]  # [N, 1]
    slot = (images * num_levels + pyramid.level_of_cell.float()) * 2.0  # [N, S]
    index = torch.stack((slot * counts.shape[0] + y, (slot + 1.0) * counts.shape[0] + x), dim=-1)  # [N, S, 2]
    rows = table.flatten(0, 2).index_select(0, index.int().flatten())
    return rows.reshape(*y.shape, channels)


def sine_embedding(x: Tensor, num_feats: int, temperature: float) -> Tensor:
    """Returns interleaved sine and cosine of 2 pi x at `num_feats` / 2 wavelengths.

    Args:
        x: [...] fp32.

    Returns:
        [..., num_feats] fp32.
    """
    exponent = torch.arange(num_feats // 2, dtype=torch.float32, device=x.device) * (2.0 / num_feats)
    angle = (x * (2.0 * math.pi))[..., None] / torch.exp(exponent * math.log(temperature))
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)


def proposal_boxes(pyramid: Pyramid) -> tuple[Tensor, Tensor]:
    """Returns one box proposal per cell: its centre, and a side of 5% of the image that doubles per level.

    Returns:
        boxes [N, S, 4] fp32, (cx, cy, w, h) in units of the image, and usable [N, S] bool: not in the
        padding, and every coordinate within 0.01..0.99.
    """
    centers = pyramid.centers
    levels = range(pyramid.spatial_shapes.shape[0])
    sides = device_constant([0.05 * 2.0**level for level in levels], torch.float32, centers.device)
    sides = sides.index_select(0, pyramid.level_of_cell)[None, :, None]  # [1, S, 1]
    boxes = torch.cat((centers, sides.expand(centers.shape[0], -1, 2)), dim=-1)  # [N, S, 4]
    usable = (boxes.amin(dim=-1) > 0.01) & (boxes.amax(dim=-1) < 0.99) & ~pyramid.padding_mask
    return boxes, usable
