"""Agreement of the detections of two backends over the same pictures. NumPy and pycocotools only."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from codetr.results import Detections

LEAST_IOU = 0.9
"""Smallest IoU of boxes that agree."""


@dataclass
class Agreement:
    """Counts over pictures, after non-maximum suppression.

    A detection agrees if it has a partner in the other run: same label, IoU >= LEAST_IOU, and each partner
    once. Partners may have any score, so that 0.3001 and 0.2999 are a score difference, not a missing
    detection.

    Attributes:
        threshold: score from which detections must agree.
        expected: number of the reference's detections.
        agreeing: number of them with a partner.
        found: number of the other run's detections.
        agreeing_back: number of them with a partner in the reference.
        worst_box_px: largest coordinate difference of the reference's detections from their partners, pixels.
        worst_score: largest score difference of these pairs.
    """

    threshold: float
    expected: int = 0
    agreeing: int = 0
    found: int = 0
    agreeing_back: int = 0
    worst_box_px: float = 0.0
    worst_score: float = 0.0

    def add(self, reference: Detections, other: Detections) -> None:
        """Counts a picture."""
        sure = reference.select(self.threshold)
        one, two = match(sure, other)
        boxes = np.abs(sure.boxes_xyxy_px[one] - other.boxes_xyxy_px[two])
        scores = np.abs(sure.scores[one] - other.scores[two])
        self.worst_box_px = max(self.worst_box_px, float(boxes.max(initial=0.0)))
        self.worst_score = max(self.worst_score, float(scores.max(initial=0.0)))
        self.expected += len(sure)
        self.agreeing += len(one)
        sure_back = other.select(self.threshold)
        self.found += len(sure_back)
        self.agreeing_back += len(match(sure_back, reference)[0])

    def as_dict(self) -> dict:
        """Returns counts, shares (1 without detections) and worst differences, for JSON."""
        shares = {
            "share": self.agreeing / self.expected if self.expected else 1.0,
            "share_back": self.agreeing_back / self.found if self.found else 1.0,
        }
        return {**asdict(self), "least_iou": LEAST_IOU, **shares}


def match(one: Detections, other: Detections) -> tuple[np.ndarray, np.ndarray]:
    """Pairs detections of one label and IoU >= LEAST_IOU, each at most once.

    Pairs with the smallest score difference plus 1 - IoU come first, so that equal boxes of several on one
    object find each other.

    Returns:
        The indices of the pairs in both.
    """
    from pycocotools import mask

    if not len(one) or not len(other):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    iou = np.asarray(mask.iou(*map(_xywh, (one, other)), [0] * len(other)))
    alike = (iou >= LEAST_IOU) & (one.labels[:, None] == other.labels)
    first, second = np.nonzero(alike)
    cost = np.abs(one.scores[first].astype(np.float64) - other.scores[second]) + 1 - iou[first, second]
    free, other_free = np.ones(len(one), bool), np.ones(len(other), bool)
    pairs = []
    for index in np.argsort(cost, kind="stable"):
        i, j = first[index], second[index]
        if free[i] and other_free[j]:
            free[i] = other_free[j] = False
            pairs.append((i, j))
    matched = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    return matched[:, 0], matched[:, 1]


def _xywh(detections: Detections) -> np.ndarray:
    boxes = detections.boxes_xyxy_px.astype(np.float64)
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)
