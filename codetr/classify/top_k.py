"""Running counts of top-1 and top-5. Imports no Torch."""

from __future__ import annotations

import numpy as np


class TopK:
    """Counts how often the label is the best class, or one of the best five, of a classifier's output.

    Attributes:
        images: number of images so far.
    """

    def __init__(self) -> None:
        self.images = 0
        self._in_top_1 = 0
        self._in_top_5 = 0

    def update(self, logits: np.ndarray, labels: np.ndarray) -> None:
        """Adds a batch.

        Of equal logits the one of the lower class ranks first, as with `numpy.argmax`. A label whose logit is
        NaN never counts.

        Args:
            logits: [N, C], larger is more likely.
            labels: int [N], from 0 to C - 1.
        """
        ranks = ranks_of_labels(logits, labels)
        self.images += len(ranks)
        self._in_top_1 += int((ranks < 1).sum())
        self._in_top_5 += int((ranks < 5).sum())

    @property
    def top1(self) -> float:
        """Share of images whose label is the best class, 0..1; NaN without images."""
        return self._in_top_1 / self.images if self.images else float("nan")

    @property
    def top5(self) -> float:
        """Share of images whose label is one of the best five classes, 0..1; NaN without images."""
        return self._in_top_5 / self.images if self.images else float("nan")


def ranks_of_labels(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns the rank of each label among its logits, 0 for the best: int [N]. NaN ranks last.

    Raises:
        ValueError: the shapes do not fit, or a label is no class.
    """
    logits, labels = np.asarray(logits), np.asarray(labels)
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise ValueError(f"expected logits [N, C] and labels [N], got {logits.shape} and {labels.shape}")
    classes = logits.shape[1]
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        raise ValueError(f"expected labels from 0 to {classes - 1}, got {labels.min()} to {labels.max()}")
    own = np.take_along_axis(logits, labels[:, None], axis=1)
    earlier = np.arange(classes) < labels[:, None]
    ranks = ((logits > own) | ((logits == own) & earlier)).sum(axis=1)
    return np.where(np.isnan(own[:, 0]), classes, ranks)
