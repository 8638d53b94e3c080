"""The objects of a batch of pictures, which training compares the detector's answers with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor


class Targets(NamedTuple):
    """The T objects of a batch of N images, those of the first image first; see `make_targets`.

    Boxes are in units of the image: of its own height and width, not of those of the padded tensor around it.
    """

    boxes_cxcywh: Tensor  # [T, 4] fp32, (cx, cy, w, h)
    labels: Tensor  # [T] int64, 0..num_classes-1
    image_shapes: Tensor  # [N, 2], (h, w) of each image in pixels
    image: Tensor  # [T] int64, index of the object's image
    place: Tensor  # [T] int64, index of the object in its image
    counts: Sequence[int]  # objects of each image, on the host


def make_targets(
    boxes_cxcywh: Tensor, labels: Tensor, image_shapes: Tensor, counts: Sequence[int]
) -> Targets:
    """Makes targets of tensors on one device, without waiting for it."""
    device = image_shapes.device
    image = chain.from_iterable([index] * count for index, count in enumerate(counts))
    place = chain.from_iterable(range(count) for count in counts)
    # From pinned memory, since a copy from ordinary memory may wait for the kernels before it.
    where = torch.tensor([list(image), list(place)], dtype=torch.int64, pin_memory=device.type == "cuda")
    image, place = where.to(device, non_blocking=True).unbind(0)
    return Targets(boxes_cxcywh, labels, image_shapes, image, place, counts)
