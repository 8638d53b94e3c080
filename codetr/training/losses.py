"""Formulas of the losses, element by element. `codetr.training.criterion` weights and normalises them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

AREA_EPS = 1e-12
"""Least area in divisions, in units of the image. No object is so small."""


def corners(boxes_cxcywh: Tensor) -> Tensor:
    """Converts (cx, cy, w, h) to (x1, y1, x2, y2), both [..., 4]."""
    center, half = boxes_cxcywh[..., :2], 0.5 * boxes_cxcywh[..., 2:]
    return torch.cat((center - half, center + half), dim=-1)


def overlaps(boxes: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Computes IoU and generalised IoU (arXiv 1902.09630) of boxes, whose leading dimensions broadcast.

    Both are invariant to the scale of an axis, so that pixels (upstream's units) give the same.

    Args:
        boxes, others: [..., 4], (x1, y1, x2, y2), x1 <= x2 and y1 <= y2.

    Returns:
        IoU [...] in 0..1 and GIoU [...] in -1..1.
    """
    top_left, bottom_right = boxes[..., :2], boxes[..., 2:]
    other_top_left, other_bottom_right = others[..., :2], others[..., 2:]
    area = _area(bottom_right - top_left)
    other_area = _area(other_bottom_right - other_top_left)
    shared_sides = torch.minimum(bottom_right, other_bottom_right) - torch.maximum(top_left, other_top_left)
    hull_sides = torch.maximum(bottom_right, other_bottom_right) - torch.minimum(top_left, other_top_left)
    shared = _area(shared_sides.clamp(min=0.0))
    hull = _area(hull_sides).clamp(min=AREA_EPS)
    union = (area + other_area - shared).clamp(min=AREA_EPS)
    iou = shared / union
    return iou, iou - (hull - union) / hull


def _area(sides: Tensor) -> Tensor:
    """Returns areas [...] of sides [..., 2], without `prod`, whose backward waits for the device."""
    width, height = sides.unbind(dim=-1)
    return width * height


def quality_focal_loss(logits: Tensor, quality: Tensor) -> Tensor:
    """Computes the quality focal loss with beta = 2 (arXiv 2006.04388).

    It is |quality - score|^2 times the cross-entropy.

    Args:
        logits: [...].
        quality: [...], the score to learn: the IoU of the box for the class of the matched object, else 0.
            No gradient flows into it.

    Returns:
        [...], at least 0; 0 where the score is the quality, if that is 0 or 1.
    """
    distance = quality - logits.sigmoid()
    return distance.square() * F.binary_cross_entropy_with_logits(logits, quality, reduction="none")


def focal_cost(logits: Tensor) -> Tensor:
    """Computes the matching cost of a class: the focal loss (arXiv 1708.02002) with it minus without it.

    It is negative for good scores. Alpha is 0.25 and gamma 2.

    Args:
        logits: [...], of the object's class.

    Returns:
        [...].
    """
    score = logits.sigmoid()
    as_object = -(score + 1e-12).log() * 0.25 * (1.0 - score).pow(2.0)
    as_background = -(1.0 - score + 1e-12).log() * 0.75 * score.pow(2.0)
    return as_object - as_background
