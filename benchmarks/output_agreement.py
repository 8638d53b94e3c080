"""Agreement of the outputs of two engines of a model on the same inputs. NumPy only."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks.agreement import LEAST_IOU, agreement

BEST = 100
CANDIDATES = 300
"""The best detections of an image that must agree, and those of the other engine among which partners are."""
DETECTIONS = ({"boxes", "scores", "labels"}, {"pred_boxes", "logits"})
MASKS = {"class_queries_logits", "masks_queries_logits"}

Arrays = Mapping[str, np.ndarray]
"""Tensors of a model by name."""


def compare_outputs(reference: Arrays, other: Arrays) -> dict:
    """Returns the agreement of an engine's outputs with those of fp32, and its measure."""
    names = set(reference)
    if names in DETECTIONS:
        found = agreement(best_detections(reference, BEST), best_detections(other, CANDIDATES), 0)
        measure = f"share of the best {BEST} detections of an image: same class, IoU >= {LEAST_IOU}"
        return {"measure": measure, "share": found["share"], "expected": found["expected"]}
    if names == MASKS:
        classes = [x["class_queries_logits"].argmax(-1) for x in (reference, other)]
        one, two = (x["masks_queries_logits"] > 0 for x in (reference, other))
        overlap, union = ((one & two).sum((2, 3)), (one | two).sum((2, 3)))
        agree = (classes[0] == classes[1]) & (overlap >= LEAST_IOU * union)
        measure = f"share of the queries: same class, mask of IoU >= {LEAST_IOU}"
        return {"measure": measure, "share": float(agree.mean()), "expected": agree.size}
    pairs = [(reference[name].astype(np.float64), other[name].astype(np.float64)) for name in reference]
    differences = [np.abs(a - b).mean() / max(np.abs(a).mean(), 1e-30) for a, b in pairs]
    difference = float(np.mean(differences))
    measure = "mean relative difference of the outputs"
    return {"measure": measure, "difference": difference if np.isfinite(difference) else None}


def best_detections(outputs: Arrays, count: int) -> list[dict]:
    """Returns the detections of each image with the largest scores, as rows in COCO's format.

    Args:
        outputs: of our detectors, with pixels and padding of label -1, or a query's logit for each class and
            its box (cx, cy, w, h). IoU is the same in any unit.
    """
    if "labels" in outputs:
        boxes, scores, labels = (outputs[name] for name in ("boxes", "scores", "labels"))
        boxes = boxes.astype(np.float32)
        sizes = boxes[..., 2:] - boxes[..., :2]
        corners, classes = boxes[..., :2], 1
    else:
        boxes, logits = (outputs[name].astype(np.float32) for name in ("pred_boxes", "logits"))
        sizes, classes = boxes[..., 2:], logits.shape[-1]
        corners = boxes[..., :2] - sizes / 2
        scores = (0.5 + 0.5 * np.tanh(logits / 2)).reshape(len(logits), -1)
        labels = np.broadcast_to(np.arange(classes), logits.shape).reshape(scores.shape)
    places = np.concatenate([corners, sizes], axis=-1)
    return [
        {
            "image_id": image,
            "category_id": int(labels[image, k]),
            "bbox": places[image, k // classes].tolist(),
            "score": float(scores[image, k]),
        }
        for image, order in enumerate(np.argsort(-scores, axis=1, kind="stable")[:, :count])
        for k in order
        if labels[image, k] >= 0
    ]


def describe(found: Mapping) -> str:
    """Describes an agreement in two or three words."""
    if "share" in found:
        return f"{found['share']:.0%} agree"
    return "not finite" if found["difference"] is None else f"differs by {found['difference']:.2g}"
