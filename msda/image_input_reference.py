"""Image input in plain PyTorch: the definition of correct results, to the last bit.

It runs on any device. This module imports `torch` and `msda.checks` only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from msda import checks

_ONE = 2048.0  # a weight of 1 in OpenCV's fixed point


def image_input(
    image: Tensor,
    target: Tensor,
    size: tuple[int, int],
    mean: Sequence[float],
    std: Sequence[float],
    bgr: bool = False,
) -> None:
    """Computes :func:`msda.image_input`, with the normalisation in float32."""
    checks.check_image_input(image, target, size, mean, std, bgr)
    pixels = resize(image.flip(2) if bgr else image, size).permute(2, 0, 1).float()
    mean, std = (
        torch.tensor(x, dtype=torch.float32, device=image.device).reshape(3, 1, 1) for x in (mean, std)
    )
    target.zero_()
    target[:, : size[0], : size[1]] = ((pixels - mean) / std).to(target.dtype)


def resize(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Resizes uint8 [H, W, C] to size (h, w) in OpenCV's arithmetic of INTER_LINEAR, without antialiasing.

    Source: cv::resize. Weights have 11 bits. Outside of the image both positions are its border. Along a row
    the first one then has the whole weight; along a column the two still share it, which rounds differently.
    """
    left, right, left_weight, right_weight = _taps(image.shape[1], size[1], image.device, along_row=True)
    above, below, above_weight, below_weight = _taps(image.shape[0], size[0], image.device, along_row=False)
    wide = image.int()
    rows = (wide[:, left] * left_weight[:, None] + wide[:, right] * right_weight[:, None]) >> 4
    first = (rows[above] * above_weight[:, None, None]) >> 16
    second = (rows[below] * below_weight[:, None, None]) >> 16
    return ((first + second + 2) >> 2).to(torch.uint8)


def _taps(size: int, resized: int, device: torch.device, along_row: bool) -> tuple[Tensor, ...]:
    """Returns the two positions of each position of a resized axis, and their weights, int32 [resized]."""
    scale = 1.0 / (resized / size)
    positions = torch.arange(resized, dtype=torch.float64, device=device)
    places = ((positions + 0.5) * scale - 0.5).float()
    first = places.floor().int()
    fractions = places - places.floor()
    if along_row:
        fractions = fractions.where((first >= 0) & (first < size - 1), 0.0)
    weights = ((1 - fractions) * _ONE).round().int(), (fractions * _ONE).round().int()
    return first.clamp(0, size - 1), (first + 1).clamp(0, size - 1), *weights
