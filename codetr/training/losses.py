"""Formulas of the losses, element by element; weights and normalisation are the criterion's."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

AREA_EPS = 1e-12
"""Areas below this, in units of the image, count as this in divisions; no object is so small."""


def corners(boxes_cxcywh: Tensor) -> Tensor:
    """(cx, cy, w, h) -> (x1, y1, x2, y2), both [..., 4]."""
    center, half = boxes_cxcywh[..., :2], 0.5 * boxes_cxcywh[..., 2:]
    return torch.cat((center - half, center + half), dim=-1)


def overlaps(boxes: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """IoU and generalised IoU (arXiv 1902.09630) of boxes, whose leading dimensions broadcast.

    Neither changes with the scale of an axis: pixels (upstream's units) and units of the image give the same.

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
    """[..., 2] -> [...]. Not `prod`, whose backward waits for the device to count zeros."""
    width, height = sides.unbind(dim=-1)
    return width * height


def quality_focal_loss(logits: Tensor, quality: Tensor) -> Tensor:
    """Quality focal loss with beta = 2 (arXiv 2006.04388): |quality - score|^2 times the cross-entropy.

    Args:
        logits: [...].
        quality: [...], the score to learn: the IoU of the box for the class of the object that the query is
            matched to, 0 for all else. No gradient flows into it.

    Returns:
        [...], at least 0; 0 where the score is the quality, if that is 0 or 1.
    """
    distance = quality - logits.sigmoid()
    return distance.square() * F.binary_cross_entropy_with_logits(logits, quality, reduction="none")


def focal_cost(logits: Tensor, alpha: float = 0.25, gamma: float = 2.0, eps: float = 1e-12) -> Tensor:
    """What calling a query an object of a class adds to the focal loss (arXiv 1708.02002).

    The loss with the class as the label less the loss without: negative for good scores.

    Args:
        logits: [...], of the object's class.

    Returns:
        [...].
    """
    score = logits.sigmoid()
    as_object = -(score + eps).log() * alpha * (1.0 - score).pow(gamma)
    as_background = -(1.0 - score + eps).log() * (1.0 - alpha) * score.pow(gamma)
    return as_object - as_background
