"""Agreement of the detections of two backends over the same pictures. NumPy only."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from codetr.detector.postprocess import box_iou
from codetr.evaluation.coco_metrics import Rows
from codetr.export.box_agreement import closest_pairs

LEAST_IOU = 0.9
"""Smallest IoU of boxes that agree."""


def agreement(reference: Rows, other: Rows, threshold: float) -> dict[str, Any]:
    """Compares detections after non-maximum suppression.

    A detection agrees if it has a partner in the other run: same category, IoU >= LEAST_IOU, and each partner
    once. Partners may have any score, so that 0.3001 and 0.2999 are a score difference, not a missing
    detection.

    Args:
        threshold: score from which detections must agree.

    Returns:
        expected: number of the reference's detections; agreeing: number of them with a partner; found,
        agreeing_back: the same of the other run; share, share_back: of those with a partner, 1 without
        detections; worst_box_px, worst_score: largest coordinate difference, in pixels, and score difference
        of the reference's detections from their partners.
    """
    one, two = _by_picture(reference), _by_picture(other)
    found = {"threshold": threshold, "least_iou": LEAST_IOU}
    for names, (here, there) in (
        (("expected", "agreeing", "share"), (one, two)),
        (("found", "agreeing_back", "share_back"), (two, one)),
    ):
        nothing = np.zeros((0, 6))
        sure = {picture: rows[rows[:, 4] >= threshold] for picture, rows in here.items()}
        pairs = [_match(rows, there.get(picture, nothing)) for picture, rows in sure.items()]
        differences = np.abs(np.concatenate([nothing, *(a - b for a, b in pairs)]))
        counts = sum(map(len, sure.values())), len(differences)
        found |= zip(names, (*counts, counts[1] / counts[0] if counts[0] else 1.0))
        if here is one:
            found["worst_box_px"] = float(differences[:, :4].max(initial=0.0))
            found["worst_score"] = float(differences[:, 4].max(initial=0.0))
    return found


def _by_picture(rows: Rows) -> dict[int, np.ndarray]:
    """Returns x1, y1, x2, y2, score and category of the detections of each picture, [n, 6]."""
    pictures = defaultdict(list)
    for row in rows:
        x, y, width, height = row["bbox"]
        pictures[row["image_id"]].append((x, y, x + width, y + height, row["score"], row["category_id"]))
    return {picture: np.array(found) for picture, found in pictures.items()}


def _match(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the partners of both, each at most once; the most alike in score and place come first."""
    iou = box_iou(one[:, :4], other[:, :4])
    cost = np.abs(one[:, None, 4] - other[:, 4]) + 1 - iou
    first, second = closest_pairs(cost, (iou >= LEAST_IOU) & (one[:, None, 5] == other[:, 5]))
    return one[first], other[second]
