"""NMS against brute force that follows the published algorithm one box at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from codetr.detector.postprocess import apply_nms


def draw(seed: int, count: int = 60, classes: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Boxes in a few crowds, of every overlap."""
    random = np.random.default_rng(seed)
    crowd = random.integers(0, 4, count)[:, None]
    boxes = [40, 40, 80, 90] + 10 * crowd * [1, -1, 1, -1] + random.normal(0, 2, (count, 4))
    boxes = boxes.astype(np.float32)
    return boxes, random.uniform(0, 1, count).astype(np.float32), random.integers(0, classes, count)


def iou(a: np.ndarray, b: np.ndarray) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    area = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
    return float(width * height / (area - width * height))


def brute_force(boxes, scores, labels, method, threshold, decay="linear", sigma=0.5, min_score=1e-3):
    """A list of (box, score, label) candidates: take the best, change the rest, repeat."""
    rest = [[box, float(score), int(label)] for box, score, label in zip(boxes, scores, labels)]
    kept = []
    while rest:
        best = rest.pop(max(range(len(rest)), key=lambda i: rest[i][1]))
        kept.append(best)
        for other in rest:
            overlap = iou(best[0], other[0]) if best[2] == other[2] else 0.0
            if method == "hard":
                other[1] *= overlap <= threshold
            elif decay == "gaussian":
                other[1] *= math.exp(-overlap * overlap / sigma)
            elif overlap >= threshold:
                other[1] *= 1 - overlap
        rest = [other for other in rest if (other[1] > 0 if method == "hard" else other[1] >= min_score)]
    return kept


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("method", "iou_threshold", "options"),
    [
        ("hard", 0.5, {}),
        ("hard", 0.8, {}),
        ("soft", 0.8, {}),
        ("soft", 0.3, {"min_score": 0.1}),
        ("soft", 0.3, {"decay": "gaussian"}),
        ("soft", 0.3, {"decay": "gaussian", "sigma": 0.1, "min_score": 0.05}),
    ],
)
def test_equals_brute_force(seed, method, iou_threshold, options):
    boxes, scores, labels = draw(seed)
    got = apply_nms(boxes, scores, labels, method, iou_threshold, **options)
    expected = brute_force(boxes, scores, labels, method, iou_threshold, **options)
    kept = [item[1] for item in expected]
    assert kept and (len(kept) < len(boxes) or sum(kept) < scores.sum() - 0.1), "nothing was suppressed"
    np.testing.assert_array_equal(got[0], [item[0] for item in expected])
    np.testing.assert_allclose(got[1], kept, rtol=1e-5)
    np.testing.assert_array_equal(got[2], [item[2] for item in expected])


def test_thresholds_of_the_two_methods():
    """At exactly the threshold soft-NMS acts and hard NMS does not."""
    boxes, scores, labels = [[0, 0, 10, 10], [0, 0, 10, 5]], [0.9, 0.8], [0, 0]
    for method, kept in (("hard", [0.9, 0.8]), ("soft", [0.9, 0.4])):
        np.testing.assert_allclose(apply_nms(boxes, scores, labels, method, iou_threshold=0.5)[1], kept)


def test_low_scores_go_but_for_the_first():
    boxes, labels = [[0, 0, 1, 1], [5, 5, 6, 6], [8, 8, 9, 9]], [0, 0, 0]
    assert apply_nms(boxes, [5e-4, 2e-4, 1e-4], labels)[1].tolist() == pytest.approx([5e-4])
    assert len(apply_nms(boxes, [5e-4, 2e-4, 1e-4], labels, min_score=0.0)[1]) == 3


def test_equal_scores_keep_their_order():
    boxes = np.arange(12).reshape(3, 4) * 100.0
    for method in ("soft", "hard", "none"):
        np.testing.assert_array_equal(apply_nms(boxes, [0.5] * 3, [0, 1, 2], method)[2], [0, 1, 2])


@pytest.mark.parametrize("method", ["soft", "hard", "none"])
def test_nothing_and_limits_and_empty_boxes(method):
    for value in apply_nms(np.zeros((0, 4)), np.zeros(0), np.zeros(0, int), method):
        assert len(value) == 0
    boxes, scores, labels = draw(0)
    before = boxes.copy(), scores.copy(), labels.copy()
    assert len(apply_nms(boxes, scores, labels, method, max_per_img=5)[0]) == 5
    for value, copy in zip((boxes, scores, labels), before):
        np.testing.assert_array_equal(value, copy)
    got = apply_nms([[3, 3, 3, 3], [3, 3, 3, 3]], [0.5, 0.4], [0, 0], method)
    assert got[1].tolist() == pytest.approx([0.5, 0.4])


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (60, {"method": "fast"}, "method: expected soft, hard or none, got 'fast'"),
        (60, {"decay": "cubic"}, "decay: expected linear or gaussian, got 'cubic'"),
        (59, {}, r"expected \[K, 4\], \[K\], \[K\], got \(59, 4\), \(60,\), \(60,\)"),
    ],
)
def test_wrong_arguments(rows, options, message):
    boxes, scores, labels = draw(0)
    with pytest.raises(ValueError, match=message):
        apply_nms(boxes[:rows], scores, labels, **options)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("options", [{}, {"decay": "gaussian"}, {"iou_threshold": 0.3, "min_score": 0.3}])
def test_boxes_that_overlap_none(seed, options):
    """Some boxes are crowded and others alone, and scores below `min_score` among both."""
    boxes, scores, labels = draw(seed, count=40, classes=2)
    boxes[::3] += np.random.default_rng(seed).uniform(500, 5000, (len(boxes[::3]), 1)).astype(np.float32)
    given = {"iou_threshold": 0.8, **options}
    got = apply_nms(boxes, scores, labels, **given)
    threshold = given.pop("iou_threshold")
    expected = brute_force(boxes, scores, labels, "soft", threshold, **given)
    np.testing.assert_array_equal(got[0], [item[0] for item in expected])
    np.testing.assert_allclose(got[1], [item[1] for item in expected], rtol=1e-5)


@pytest.mark.parametrize("method", ["soft", "hard"])
@pytest.mark.parametrize("seed", range(5))
def test_boxes_below_a_threshold_change_none_above(method, seed):
    """`Detector.detect_batch` drops them first."""
    boxes, scores, labels = draw(seed)
    after = apply_nms(boxes, scores, labels, method, 0.5)
    high = scores >= 0.4
    before = apply_nms(boxes[high], scores[high], labels[high], method, 0.5)
    for one, other in zip(after, before, strict=True):
        np.testing.assert_array_equal(one[after[1] >= 0.4], other[before[1] >= 0.4])
