"""Pyramids for tests."""

from __future__ import annotations

import torch

from codetr.model.geometry import Pyramid, make_pyramid


def pyramid_of(
    image_shapes: torch.Tensor, input_hw: tuple[int, int], level_hw: list[tuple[int, int]]
) -> Pyramid:
    """Makes the pyramid of images in tensors of `input_hw` pixels with levels of `level_hw` cells."""
    cells = sum(h * w for h, w in level_hw)
    return make_pyramid(image_shapes, torch.tensor(input_hw).float(), torch.tensor(level_hw).float(), cells)
