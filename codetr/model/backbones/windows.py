"""Two ways, with the same result, to cut the maps of Swin's blocks into windows and to join them again.

Windows are [L, B, C]: L = size * size cells of each of B = N * windows windows. TensorRT's attention kernel
reads queries, keys and values in this order; in the order [B, L, C] TensorRT would transpose them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from codetr.model.layers import device_size


class SlicedWindows:
    """A stage's maps [N, H, W, C] as windows of size x size cells, padded with zeros at the bottom and right.

    Windows are cut by padding, rolling and reshaping, for maps of a fixed size.

    Args:
        x: a map of the stage, whose shape, type and device the windows have.
        size: side of a window in cells.

    Attributes:
        mask: [B, 1, L, L], 0 or -100, to add to the logits of shifted windows.
    """

    def __init__(self, x: Tensor, size: int) -> None:
        self.size = size
        self.height, self.width = x.shape[1:3]
        padded = self.height % size != 0 or self.width % size != 0
        self._inside = [self.cut(torch.ones_like(x[..., :1]), shifted) for shifted in (False, True) if padded]
        self.mask = shifted_window_mask(*x.shape[:3], size, x.dtype, x.device)

    def cut(self, x: Tensor, shifted: bool) -> Tensor:
        """Cuts a map into windows [L, B, C], row by row."""
        x = pad_to_multiple(x, self.size)
        if shifted:
            x = x.roll((-(self.size // 2), -(self.size // 2)), dims=(1, 2))
        n, h, w, c = x.shape
        x = x.reshape(n, h // self.size, self.size, w // self.size, self.size, c).transpose(2, 3)
        return x.reshape(-1, self.size**2, c).transpose(0, 1)

    def clear_padding(self, windows: Tensor, shifted: bool) -> Tensor:
        """Returns the windows with zeros in the padding."""
        return windows * self._inside[int(shifted)] if self._inside else windows

    def join(self, windows: Tensor, shifted: bool) -> Tensor:
        """Inverts `cut` and drops the padding."""
        size, channels = self.size, windows.shape[-1]
        # Not by counts of windows, rounded up: PyTorch's older ONNX exporter fails on some of those.
        height, width = self.height + -self.height % size, self.width + -self.width % size
        x = windows.transpose(0, 1).reshape(-1, height // size, width // size, size, size, channels)
        x = x.transpose(2, 3).reshape(-1, height, width, channels)
        if shifted:
            x = x.roll((size // 2, size // 2), dims=(1, 2))
        return x[:, : self.height, : self.width]


class GatheredWindows:
    """`SlicedWindows` by gathers of rows, whose indices the stage computes once, for dynamic shapes.

    Padding, rolling and reshaping by symbols need some thirty operators of shape arithmetic in each block,
    and compilers keep them through everything between. Here a block has two gathers and no size. `cut` and
    `join` take and give maps as rows, [N * H * W, C]. A map has fewer than 2^22 cells with padding, because
    cells are counted in fp32.
    """

    def __init__(self, x: Tensor, size: int) -> None:
        images, height, width, _ = x.shape
        # No reshape leaves a size (-1) to PyTorch: as a symbol, such a size is a nested division.
        self._count = images * ((height + size - 1) // size) * ((width + size - 1) // size)
        self._cells = size**2
        height, width = (device_size(side, x.device) for side in (height, width))
        down, across = torch.ceil(height / size), torch.ceil(width / size)
        padded_height, padded_width = down * size, across * size

        # The T = L * B cells of all windows in the order of `cut`; [T] each.
        count = device_size(images, x.device) * down * across
        cell, window = _split(torch.arange(self._cells * self._count, device=x.device).float(), count)
        image_and_row, column = _split(window, across)
        image, row = _split(image_and_row, down)
        inner_row, inner_column = _split(cell, size)
        row, column = row * size + inner_row, column * size + inner_column  # in the rolled map
        self._sources, self._inside = [], []
        for shift in (0, size // 2):
            source_row, source_column = _roll(row, shift, padded_height), _roll(column, shift, padded_width)
            inside = ((source_row < height) & (source_column < width)).float()
            source = ((image * height + source_row) * width + source_column) * inside  # any cell for padding
            self._sources.append(source.long())
            self._inside.append(inside.to(x.dtype).reshape(self._cells, self._count, 1))
        region = 3.0 * _band(row, padded_height, size) + _band(column, padded_width, size)
        self.mask = _mask_between(region.reshape(self._cells, self._count).transpose(0, 1), x.dtype)

        # The U = N * H * W cells of the map in the order of `join`; [U] each.
        cells = torch.arange(x.shape[0] * x.shape[1] * x.shape[2], device=x.device).float()
        image_and_row, column = _split(cells, width)
        image, row = _split(image_and_row, height)
        self._targets = []
        for shift in (0, size // 2):
            row_of_windows, inner_row = _split(_roll(row, -shift, padded_height), size)
            column_of_windows, inner_column = _split(_roll(column, -shift, padded_width), size)
            window = (image * down + row_of_windows) * across + column_of_windows
            self._targets.append(((inner_row * size + inner_column) * count + window).long())

    def cut(self, x: Tensor, shifted: bool) -> Tensor:
        """See `SlicedWindows.cut`."""
        windows = x.index_select(0, self._sources[int(shifted)])
        return windows.reshape(self._cells, self._count, x.shape[-1])

    def clear_padding(self, windows: Tensor, shifted: bool) -> Tensor:
        """See `SlicedWindows.clear_padding`."""
        return windows * self._inside[int(shifted)]

    def join(self, windows: Tensor, shifted: bool) -> Tensor:
        """See `SlicedWindows.join`."""
        return windows.flatten(0, 1).index_select(0, self._targets[int(shifted)])


def _roll(place: Tensor, shift: int, length: Tensor) -> Tensor:
    """Shifts places along an axis cyclically by `shift` steps."""
    if shift == 0:
        return place
    place = place + shift
    return place - length * (place >= length).float() if shift > 0 else place + length * (place < 0.0).float()


def _band(place: Tensor, length: Tensor, size: int) -> Tensor:
    """Returns the band (0, 1 or 2) of places on a rolled map's axis, see `shifted_window_mask`."""
    return (place >= length - size).float() + (place >= length - size // 2).float()


def _split(number: Tensor, divisor: Tensor | int) -> tuple[Tensor, Tensor]:
    """Returns quotient and remainder of whole numbers in fp32; exact up to 2^22."""
    quotient = torch.floor((number + 0.5) / divisor)
    return quotient, number - quotient * divisor


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """Pads [N, H, W, C] with zeros at the bottom and right."""
    height, width = x.shape[1:3]
    bottom, right = -height % multiple, -width % multiple
    return F.pad(x, (0, 0, 0, right, 0, bottom)) if bottom or right else x


def shifted_window_mask(
    images: int, height: int, width: int, size: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Masks the pairs of cells in shifted windows that only the cyclic shift made neighbours.

    The shifted map has three bands along each axis: all windows but the last, the last window's first half,
    and the cells that wrapped around. Pairs of cells from different bands get -100 (upstream's value).

    Args:
        images: N.
        height, width: size of the map in cells.
        size: side of a window in cells.

    Returns:
        [B, 1, L, L], 0 or -100.
    """
    bands = []
    for length in (height, width):
        count = (length + size - 1) // size
        place = torch.arange(count * size, device=device).reshape(count, size) - (count - 1) * size
        bands.append((place >= 0).to(dtype) + (place >= size - size // 2).to(dtype))  # [count, size]
    region = 3.0 * bands[0][:, None, :, None] + bands[1][:, None]  # [down, across, size, size]
    count = images * region.shape[0] * region.shape[1]
    region = region[None].expand(images, -1, -1, -1, -1).reshape(count, size * size)
    return _mask_between(region, dtype)


def _mask_between(region: Tensor, dtype: torch.dtype) -> Tensor:
    """Regions of cells [B, L] -> [B, 1, L, L]: 0 between cells of one region, else -100."""
    return (region[:, None, :, None] != region[:, None, None]).to(dtype) * -100.0
