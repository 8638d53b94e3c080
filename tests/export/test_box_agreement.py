"""Agreement of two lists of detections."""

from __future__ import annotations

import numpy as np
import pytest

from codetr.export.box_agreement import compare_detections


def detections(*rows: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows (x1, y1, x2, y2, score, label) -> boxes, scores, labels of one image."""
    table = np.array(rows, dtype=np.float32).reshape(1, -1, 6)
    return table[..., :4], table[..., 4], table[..., 5].astype(np.int64)


def test_comparison_matches_by_content_not_by_place():
    one, two = (10, 10, 50, 50, 0.9, 3), (60, 60, 90, 99, 0.9, 3)
    comparison = compare_detections(detections(one, two), detections(two, one))
    assert (comparison.matched, comparison.equal, comparison.max_box_difference_px) == (2, 2, 0)


@pytest.mark.parametrize(
    ("other", "matched", "equal"),
    [
        ((10.03, 10, 50, 50, 0.9, 3), 1, 1),
        ((10.2, 10, 50, 50, 0.9, 3), 1, 0),
        ((10, 10, 50, 50, 0.91, 3), 1, 0),
        ((10, 10, 50, 50, 0.9, 4), 0, 0),
        ((30, 30, 70, 70, 0.9, 3), 0, 0),
        ((float("nan"), 10, 50, 50, 0.9, 3), 0, 0),
    ],
)
def test_comparison_counts(other, matched, equal):
    comparison = compare_detections(detections((10, 10, 50, 50, 0.9, 3)), detections(other))
    assert (comparison.expected, comparison.matched, comparison.equal) == (1, matched, equal)
    assert comparison.equal_share == equal


def test_comparison_matches_one_to_one():
    box = (10, 10, 50, 50, 0.9, 3)
    comparison = compare_detections(detections(box, box), detections(box, (0, 0, 5, 5, 0.9, 3)))
    assert (comparison.expected, comparison.matched, comparison.equal_share) == (2, 1, 0.5)
