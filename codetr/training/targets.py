"""The objects of a batch of pictures, which training compares the detector's answers with."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor


class FlatTargets(NamedTuple):
    """The T objects of N images in one list, without padding.

    Attributes:
        boxes_cxcywh: [T, 4] fp32, units of the image.
        labels: [T] int64.
        image: [T] int64, index of the object's image.
        place: [T] int64, index of the object in its image.
        counts: objects of each image, on the host.
    """

    boxes_cxcywh: Tensor
    labels: Tensor
    image: Tensor
    place: Tensor
    counts: tuple[int, ...]


class Targets(NamedTuple):
    """The objects of a batch of N images.

    Attributes:
        boxes_cxcywh: per image [n_i, 4] fp32, (cx, cy, w, h) in units of the image (its own height and width,
            not those of the padded tensor that holds it).
        labels: per image [n_i] int64, 0..num_classes-1.
        image_shapes: [N, 2], (h, w) of each image in pixels.
    """

    boxes_cxcywh: tuple[Tensor, ...]
    labels: tuple[Tensor, ...]
    image_shapes: Tensor

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of objects of each image."""
        return tuple(len(labels) for labels in self.labels)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Targets:
        """Copies the targets to a device."""
        return Targets(
            tuple(boxes.to(device, non_blocking=non_blocking) for boxes in self.boxes_cxcywh),
            tuple(labels.to(device, non_blocking=non_blocking) for labels in self.labels),
            self.image_shapes.to(device, non_blocking=non_blocking),
        )

    def flatten(self) -> FlatTargets:
        """Joins the objects of all images without waiting for the device.

        Raises:
            ValueError: a list lacks an entry per image, or an image's boxes and labels differ in number.
        """
        images = self.image_shapes.shape[0]
        if not len(self.boxes_cxcywh) == len(self.labels) == images:
            raise ValueError(
                f"targets: expected boxes and labels of {images} images (as image_shapes has), "
                f"got {len(self.boxes_cxcywh)} and {len(self.labels)}"
            )
        for index, (boxes, labels) in enumerate(zip(self.boxes_cxcywh, self.labels)):
            if boxes.shape != (len(labels), 4):
                raise ValueError(
                    f"targets: image {index} has {len(labels)} labels, expected boxes of shape "
                    f"[{len(labels)}, 4], got {list(boxes.shape)}"
                )
        counts = self.counts
        device = self.image_shapes.device
        image = chain.from_iterable([index] * count for index, count in enumerate(counts))
        place = chain.from_iterable(range(count) for count in counts)
        # From pinned memory, since a copy from ordinary memory may wait for the kernels before it.
        where = torch.tensor([list(image), list(place)], dtype=torch.int64, pin_memory=device.type == "cuda")
        image, place = where.to(device, non_blocking=True).unbind(0)
        return FlatTargets(
            boxes_cxcywh=torch.cat(self.boxes_cxcywh).float(),
            labels=torch.cat(self.labels),
            image=image,
            place=place,
            counts=counts,
        )
