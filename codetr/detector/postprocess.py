"""Non-maximum suppression of detections in NumPy. `codetr.export.graph_nms` is its form inside a graph.

Meaning and defaults are those of mmcv's `batched_nms` in upstream's configuration of Co-DINO: classes do not
suppress each other, and soft-NMS (arXiv 1704.04503) decays scores linearly from IoU 0.8.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

NMS_METHODS = ("soft", "hard", "none")


def apply_nms(
    boxes: np.ndarray,
    scores: np.ndarray,
    labels: np.ndarray,
    method: Literal["soft", "hard", "none"] = "soft",
    iou_threshold: float = 0.8,
    *,
    decay: Literal["linear", "gaussian"] = "linear",
    sigma: float = 0.5,
    min_score: float = 1e-3,
    max_per_img: int | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Suppresses detections that overlap a better one of the same class.

    Args:
        boxes: [K, 4], (x1, y1, x2, y2), any unit.
        scores: [K].
        labels: [K].
        method: "hard" drops boxes whose IoU with a kept one is above the threshold. "soft" lowers their
            scores and drops them below `min_score`. "none" only sorts.
        iou_threshold: for "hard", and for "soft" with linear decay.
        decay: for "soft": the factor 1 - IoU from the threshold on ("linear"), or exp(-IoU^2 / sigma) for
            all.
        sigma: see `decay`.
        min_score: see `method`.
        max_per_img: largest number of kept boxes.

    Returns:
        boxes, scores (fp32, lowered by soft-NMS) and labels of the kept boxes, best first.

    Raises:
        ValueError: unknown method or decay, or shapes that do not match.
    """
    boxes = np.asarray(boxes, dtype=np.float32)
    scores = np.asarray(scores, dtype=np.float32)
    labels = np.asarray(labels)
    count = len(scores)
    if scores.ndim != 1 or boxes.shape != (count, 4) or labels.shape != (count,):
        got = f"{boxes.shape}, {scores.shape}, {labels.shape}"
        raise ValueError(f"boxes, scores, labels: expected [K, 4], [K], [K], got {got}")
    if method == "none":
        keep = np.argsort(-scores, kind="stable")
    elif method == "hard":
        keep = _hard_nms(_class_wise_iou(boxes, labels), scores, iou_threshold)
    elif method == "soft":
        iou = _class_wise_iou(boxes, labels)
        if decay == "linear":
            factors = np.where(iou >= iou_threshold, 1 - iou, np.float32(1))
        elif decay == "gaussian":
            factors = np.exp(-(iou**2) / np.float32(sigma))
        else:
            raise ValueError(f"decay: expected linear or gaussian, got {decay!r}")
        keep, scores = _soft_nms(factors, scores, min_score)
    else:
        raise ValueError(f"method: expected soft, hard or none, got {method!r}")
    keep = keep[:max_per_img]
    return boxes[keep], scores[keep], labels[keep]


def apply_nms_to_batch(
    boxes: np.ndarray, scores: np.ndarray, labels: np.ndarray, **options: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Applies `apply_nms` to each image and pads the results, as a network with NMS in its graph does.

    Args:
        boxes: [N, K, 4], (x1, y1, x2, y2), any unit.
        scores: [N, K].
        labels: [N, K].
        options: arguments of `apply_nms`.

    Returns:
        boxes [N, K, 4], scores [N, K], labels [N, K]: the kept ones, best first. The remaining rows are zero,
        with label -1.

    Raises:
        ValueError: as `apply_nms`.
    """
    padded = np.zeros_like(boxes), np.zeros_like(scores), np.full_like(labels, -1)
    for image in range(len(scores)):
        for rows, kept in zip(padded, apply_nms(boxes[image], scores[image], labels[image], **options)):
            rows[image, : len(kept)] = kept
    return padded


def box_iou(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns the IoU of every pair of boxes, [K, 4] and [J, 4] -> [K, J]; 0 where both have no area."""
    x1, y1, x2, y2 = boxes[:, None].transpose(2, 0, 1)
    other_x1, other_y1, other_x2, other_y2 = others.T
    width = np.minimum(x2, other_x2) - np.maximum(x1, other_x1)
    height = np.minimum(y2, other_y2) - np.maximum(y1, other_y1)
    intersection = width.clip(min=0) * height.clip(min=0)
    union = (x2 - x1) * (y2 - y1) + (other_x2 - other_x1) * (other_y2 - other_y1) - intersection
    return np.divide(intersection, union, out=np.zeros_like(union), where=union > 0)


def _class_wise_iou(boxes: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns the IoU [K, K] fp32, zero between classes and between two empty boxes."""
    return np.where(labels[:, None] == labels, box_iou(boxes, boxes), np.float32(0))


def _hard_nms(iou: np.ndarray, scores: np.ndarray, threshold: float) -> np.ndarray:
    """Returns the kept indices, best first."""
    kept = []
    suppressed = np.zeros(len(scores), dtype=bool)
    for index in np.argsort(-scores, kind="stable"):
        if not suppressed[index]:
            kept.append(index)
            suppressed |= iou[index] > threshold
    return np.array(kept, dtype=np.int64)


def _soft_nms(factors: np.ndarray, scores: np.ndarray, min_score: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the kept indices, best first, and all lowered scores.

    Once a box is kept, its row of `factors` [K, K] multiplies the scores of the others. As in mmcv, the first
    box is kept even below `min_score`.

    Most boxes overlap no other of their class, so no score depends on theirs. Python's loop runs over the
    others alone.
    """
    scores = scores.copy()
    if not len(scores):
        return np.zeros(0, dtype=np.int64), scores
    kept = scores >= min_score
    kept[np.argmax(scores)] = True
    others = factors != 1
    np.fill_diagonal(others, False)
    alive = kept & (others | others.T)[:, kept].any(axis=1)
    kept &= ~alive
    while alive.any():
        best = int(np.argmax(np.where(alive, scores, -np.inf)))
        kept[best], alive[best] = True, False
        scores[alive] *= factors[best, alive]
        alive &= scores >= min_score
    order = np.argsort(-scores, kind="stable")
    return order[kept[order]], scores
