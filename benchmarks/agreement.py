"""How the detections of two runs of one model over the same pictures agree. NumPy and pycocotools."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from codetr.results import Detections

LEAST_IOU = 0.9
"""Of boxes that agree."""


@dataclass
class Agreement:
    """Counts over pictures, after non-maximum suppression.

    A detection agrees if the other run has one of the same label with IoU >= LEAST_IOU that no other
    detection takes. Detections of one run that score at least the threshold look for partners of any score in
    the other: a score of 0.3001 that is 0.2999 there is a score difference, not a detection that is missing.

    Attributes:
        threshold: least score of the detections that have to agree.
        expected: the reference's detections.
        agreeing: of them, those with a partner.
        found: the other run's detections.
        agreeing_back: of them, those with a partner in the reference.
        worst_box_px: largest coordinate difference of the reference's detections from their partners, pixels.
        worst_score: largest score difference of these.
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
        """For JSON: the counts, the shares that they make (1 of none), and the worst differences."""
        return {
            "threshold": self.threshold,
            "least_iou": LEAST_IOU,
            "expected": self.expected,
            "agreeing": self.agreeing,
            "share": self.agreeing / self.expected if self.expected else 1.0,
            "found": self.found,
            "agreeing_back": self.agreeing_back,
            "share_back": self.agreeing_back / self.found if self.found else 1.0,
            "worst_box_px": self.worst_box_px,
            "worst_score": self.worst_score,
        }


def match(one: Detections, other: Detections) -> tuple[np.ndarray, np.ndarray]:
    """Pairs detections of one label and IoU >= LEAST_IOU, each at most once.

    The most alike come first, by score difference plus 1 - IoU, so that among several boxes of one object
    each finds its own.

    Returns:
        The indices of the pairs in both.
    """
    from pycocotools import mask

    if not len(one) or not len(other):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    iou = np.asarray(mask.iou(_xywh(one), _xywh(other), [0] * len(other)))
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
