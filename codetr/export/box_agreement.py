"""Agreement of two lists of detections of the same images, such as an engine's and PyTorch's. NumPy only.

Detections are matched one to one, not by their place in the list: two scores that differ in the last digit
may swap places, which a user does not see. Rows with a negative label are padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from codetr.detector.postprocess import box_iou

FP32_BOX_TOLERANCE_PX = 0.05
FP32_SCORE_TOLERANCE = 1e-4
FP32_LEAST_SHARE = 0.99
"""Share of the detections of an fp32 engine that must equal PyTorch's within these tolerances."""
ROUNDED_LEAST_SHARE = 0.5
"""Share of PyTorch's own matches in the same precision that a rounded engine must reach.

PyTorch's matches are those of its detections in the engine's precision with its detections in fp32. Rounding
moves boxes, and random weights amplify it. A wrong engine matches next to nothing.
"""
SCORE_THRESHOLD = 0.3
"""Score from which `codetr detect` shows a detection by default."""


@dataclass(frozen=True)
class BoxAgreement:
    """Agreement of the detections found with those expected, over all images of a batch."""

    expected: int  # number of detections expected
    found: int  # number of detections found
    matched: int  # pairs of an expected and a found detection of the same label with an IoU of at least 0.5
    equal: int  # matched pairs within both tolerances
    max_box_difference_px: float  # largest coordinate difference among the matched, pixels
    median_box_difference_px: float  # median over the matched of each pair's largest coordinate difference
    max_score_difference: float  # largest score difference among the matched
    box_tolerance_px: float
    score_tolerance: float
    shown: int  # expected detections with a score of at least `SCORE_THRESHOLD`
    shown_matched: int  # matched pairs among them
    shown_max_box_difference_px: float  # largest coordinate difference among these pairs, pixels

    @property
    def count(self) -> int:
        """The larger of `expected` and `found`: a detection too many is a difference too."""
        return max(self.expected, self.found)

    @property
    def equal_share(self) -> float:
        """`equal` as a share of `count`; 1 without detections."""
        return self.equal / self.count if self.count else 1.0

    @property
    def matched_share(self) -> float:
        """`matched` as a share of `count`; 1 without detections."""
        return self.matched / self.count if self.count else 1.0

    def __str__(self) -> str:
        shown = f"{self.shown_matched} of {self.shown} detections from score {SCORE_THRESHOLD:g} on match"
        if self.shown_matched:
            shown += f", boxes within {self.shown_max_box_difference_px:.3g} px"
        found = "" if self.found == self.expected else f", {self.found} found"
        return (
            f"{shown}; with all low scores {self.matched} of {self.expected}{found}, {self.equal} within "
            f"{self.box_tolerance_px:g} px and {self.score_tolerance:g}, median "
            f"{self.median_box_difference_px:.3g} px"
        )


def compare_detections(
    expected: Sequence[np.ndarray],
    found: Sequence[np.ndarray],
    box_tolerance_px: float = FP32_BOX_TOLERANCE_PX,
    score_tolerance: float = FP32_SCORE_TOLERANCE,
) -> BoxAgreement:
    """Matches the detections of each image and measures the differences of the pairs.

    Args:
        expected: boxes [N, K, 4] (x1, y1, x2, y2, pixels), scores [N, K], labels [N, K].
        found: the same of the other implementation; K may differ.
        box_tolerance_px: largest coordinate difference of two equal boxes.
        score_tolerance: largest difference of two equal scores.
    """
    boxes, scores, is_shown = [np.zeros(0)], [np.zeros(0)], [np.zeros(0, bool)]
    for arrays in zip(*expected, *found, strict=True):
        one, other = ([array[side[2] >= 0] for array in side] for side in (arrays[:3], arrays[3:]))
        first, second = _match(one, other, box_tolerance_px, score_tolerance)
        boxes.append(np.abs(one[0][first] - other[0][second]).max(axis=1, initial=0.0))
        scores.append(np.abs(one[1][first] - other[1][second]))
        is_shown.append(one[1][first] >= SCORE_THRESHOLD)
    box_difference, score_difference, shown = map(np.concatenate, (boxes, scores, is_shown))
    real = expected[2] >= 0
    return BoxAgreement(
        expected=int(real.sum()),
        found=int((found[2] >= 0).sum()),
        matched=len(box_difference),
        equal=int(((box_difference <= box_tolerance_px) & (score_difference <= score_tolerance)).sum()),
        max_box_difference_px=float(box_difference.max(initial=0.0)),
        median_box_difference_px=float(np.median(box_difference)) if len(box_difference) else 0.0,
        max_score_difference=float(score_difference.max(initial=0.0)),
        box_tolerance_px=box_tolerance_px,
        score_tolerance=score_tolerance,
        shown=int((real & (expected[1] >= SCORE_THRESHOLD)).sum()),
        shown_matched=int(shown.sum()),
        shown_max_box_difference_px=float(box_difference[shown].max(initial=0.0)),
    )


def _match(
    one: Sequence[np.ndarray], other: Sequence[np.ndarray], box_tolerance_px: float, score_tolerance: float
) -> np.ndarray:
    """Pairs detections of one label with IoU >= 0.5, closest first; returns the indices [2, pairs]."""
    (boxes, scores, labels), (other_boxes, other_scores, other_labels) = one, other
    box_cost = np.abs(boxes[:, None].astype(np.float64) - other_boxes[None]).max(axis=-1, initial=0.0)
    score_cost = np.abs(scores[:, None].astype(np.float64) - other_scores[None])
    cost = np.maximum(box_cost / box_tolerance_px, score_cost / score_tolerance)
    # Two boxes without area have no IoU.
    iou = box_iou(boxes.astype(np.float64), other_boxes.astype(np.float64))
    overlaps = (iou >= 0.5) | (box_cost <= box_tolerance_px)
    return closest_pairs(cost, (labels[:, None] == other_labels[None]) & overlaps & np.isfinite(cost))


def closest_pairs(cost: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Pairs rows and columns, each at most once, the pair of the least cost first.

    Args:
        cost: [K, J].
        allowed: [K, J] bool, whether two may be a pair.

    Returns:
        [2, pairs] int64, ascending by row.
    """
    first, second = np.nonzero(allowed)
    order = np.argsort(cost[first, second], kind="stable")
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    for row, column in zip(first[order].tolist(), second[order].tolist(), strict=True):
        if row not in pairs and column not in taken:
            pairs[row] = column
            taken.add(column)
    return np.array(sorted(pairs.items()), dtype=np.int64).reshape(-1, 2).T
