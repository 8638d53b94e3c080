"""Differences of a cell's outputs from those of the network in PyTorch fp32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from codetr.detector.postprocess import box_iou
from codetr.export.box_agreement import closest_pairs

RANKS = 10
SHOWN = 5


class OutputDifferences:
    """Share of equal numbers, over all inputs.

    Args:
        rtol, atol: tolerances of `numpy.isclose`.
    """

    def __init__(self, rtol: float, atol: float) -> None:
        self._tolerances = {"rtol": rtol, "atol": atol}
        self._inputs = self._close = self._numbers = 0

    def update(self, expected: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> None:
        """Adds the outputs of a batch, each [N, …]."""
        self._inputs += len(expected[0])
        for one, other in zip(expected, found, strict=True):
            self._close += int(np.isclose(other, one, **self._tolerances).sum())
            self._numbers += one.size

    def report(self) -> dict:
        """Returns the part of a result, see `onnx_path.sweeping.results_schema`."""
        return {
            "inputs": self._inputs,
            **self._tolerances,
            "close": self._close / self._numbers if self._numbers else 1.0,
        }


class ClassifierDifferences(OutputDifferences):
    """Beside equal numbers, the differences at each rank of the answer.

    At rank r stand the r-th best class of the reference and of the cell: whether they differ, and by how much
    their probabilities do.

    Args:
        class_names: name of each label.
    """

    def __init__(self, rtol: float, atol: float, class_names: Sequence[str]) -> None:
        super().__init__(rtol, atol)
        self._names = class_names
        ranks = min(RANKS, len(class_names))
        self._errors, self._others = np.zeros(ranks), np.zeros(ranks)
        self._example: dict | None = None

    def update(self, expected: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> None:
        """Adds the only output of a batch, logits [N, classes]."""
        super().update(expected, found)
        ranks = len(self._errors)
        (labels, scores), (other_labels, other_scores) = (_ranked(x, ranks) for (x,) in (expected, found))
        self._errors += np.abs(scores - other_scores).sum(axis=0)
        self._others += (labels != other_labels).sum(axis=0)
        if self._example is None:
            self._example = {
                "reference": self._words(labels[0], scores[0]),
                "got": self._words(other_labels[0], other_scores[0]),
            }

    def report(self) -> dict:
        rows = zip(self._errors / max(1, self._inputs), self._others / max(1, self._inputs), strict=True)
        by_rank = [
            {"rank": rank, "mean_abs_error": float(error), "disagreement": float(share)}
            for rank, (error, share) in enumerate(rows, 1)
        ]
        return {**super().report(), "by_rank": by_rank, "example": self._example}

    def _words(self, labels: np.ndarray, scores: np.ndarray) -> list[list]:
        rows = zip(labels[:SHOWN].tolist(), scores[:SHOWN].tolist(), strict=True)
        return [[self._names[label], score] for label, score in rows if np.isfinite(score)]


class DetectorDifferences:
    """The share of detections with a partner, and the partners' differences by rank.

    The share is over the detections of PyTorch or those of the cell, whichever are more.
    """

    def __init__(self) -> None:
        self._inputs = self._matched = self._count = 0
        self._boxes: list[list[float]] = [[] for _ in range(RANKS)]
        self._scores: list[list[float]] = [[] for _ in range(RANKS)]

    def update(self, expected: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> None:
        """Adds a batch of (boxes [N, K, 4] in pixels, scores [N, K], labels [N, K]).

        A partner has the same label and an IoU of at least 0.5. Rows with a negative label do not count.
        """
        for arrays in zip(*expected, *found, strict=True):
            one, other = ([array[side[2] >= 0] for array in side] for side in (arrays[:3], arrays[3:]))
            order = np.argsort(-one[1], kind="stable")
            boxes, scores, labels = (array[order] for array in one)
            box_px = np.abs(boxes[:, None].astype(np.float64) - other[0][None]).max(axis=-1, initial=0.0)
            overlap = box_iou(boxes.astype(np.float64), other[0].astype(np.float64)) >= 0.5
            first, second = closest_pairs(box_px, overlap & (labels[:, None] == other[2][None]))
            self._inputs += 1
            self._matched += len(first)
            self._count += max(len(labels), len(other[2]))
            for rank, partner in zip(first.tolist(), second.tolist(), strict=True):
                if rank < RANKS:
                    self._boxes[rank].append(box_px[rank, partner])
                    self._scores[rank].append(abs(float(scores[rank]) - float(other[1][partner])))

    def report(self) -> dict:
        """Returns the part of a result, see `onnx_path.sweeping.results_schema`."""
        by_rank = [
            {"rank": rank, "box_px": float(np.mean(boxes)), "score": float(np.mean(scores))}
            for rank, (boxes, scores) in enumerate(zip(self._boxes, self._scores, strict=True), 1)
            if boxes
        ]
        matched = self._matched / self._count if self._count else 1.0
        return {"inputs": self._inputs, "matched": matched, "by_rank": by_rank}


def _ranked(logits: np.ndarray, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns labels and probabilities of the best classes, both [N, ranks]."""
    exponents = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    probabilities = exponents / exponents.sum(axis=1, keepdims=True)
    labels = np.argsort(-logits, axis=1, kind="stable")[:, :ranks]
    return labels, np.take_along_axis(probabilities, labels, axis=1)
