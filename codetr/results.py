"""The detections of one picture, and a document of many pictures in COCO's form. Imports no Torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from codetr.coco_classes import category_ids_for


@dataclass(frozen=True)
class Detections:
    """The detections of one picture, best score first.

    Attributes:
        boxes_xyxy_px: float32 [K, 4], x1 y1 x2 y2 in pixels of the original picture, inside it.
        scores: float32 [K], 0..1.
        labels: int64 [K], indices into class_names.
        class_names: a name for each label of the model.
        height: height of the original picture, pixels.
        width: width of the original picture, pixels.
        times_ms: by stage ("preprocess", "inference", "postprocess"), this picture's share of its batch.
    """

    boxes_xyxy_px: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]
    height: int
    width: int
    times_ms: Mapping[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.scores)

    def select(
        self, threshold: float = 0.0, top: int | None = None, labels: Sequence[int] | None = None
    ) -> Detections:
        """Returns the detections with score >= threshold, at most `top` of them, best first.

        Args:
            labels: the classes to return. Default: all.
        """
        wanted = self.scores >= threshold
        if labels is not None:
            wanted &= np.isin(self.labels, labels)
        order = np.argsort(-self.scores, kind="stable")
        keep = order[wanted[order]][:top]
        return replace(
            self, boxes_xyxy_px=self.boxes_xyxy_px[keep], scores=self.scores[keep], labels=self.labels[keep]
        )

    def names(self) -> list[str]:
        """Returns the class name of each detection."""
        return [self.class_names[label] for label in self.labels.tolist()]

    def as_dicts(self) -> list[dict[str, Any]]:
        """Returns a dictionary per detection: category_id, category_name, bbox (x, y, w, h), score."""
        ids = category_ids_for(self.class_names)
        rows = zip(self.boxes_xyxy_px.tolist(), self.scores.tolist(), self.labels.tolist(), strict=True)
        return [
            {
                "category_id": ids[label],
                "category_name": self.class_names[label],
                "bbox": [round(x1, 3), round(y1, 3), round(x2 - x1, 3), round(y2 - y1, 3)],
                "score": round(score, 6),
            }
            for (x1, y1, x2, y2), score, label in rows
        ]


def image_ids_for(file_names: Sequence[str]) -> list[int]:
    """Returns an id for each picture: its name if all are numbers (000000000139.jpg), else 1, 2, 3, …"""
    stems = [Path(name).stem for name in file_names]
    numbers = [int(stem) for stem in stems if stem.isascii() and stem.isdigit()]
    return numbers if len(set(numbers)) == len(stems) else list(range(1, len(stems) + 1))


def coco_document(
    pictures: Sequence[tuple[str, Detections]],
    class_names: Sequence[str],
    info: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Builds the document that `codetr detect` writes as detections.json.

    The document is a COCO annotation file with a score in every annotation, so that `pycocotools.coco.COCO`
    and annotation tools read it. Its "annotations" are a COCO results list for `COCO.loadRes`.

    Args:
        pictures: (file name, detections) of each picture.
        class_names: a name for each label. COCO's 80 names get COCO's category ids, others the label index.
    """
    ids = image_ids_for([name for name, _ in pictures])
    images, annotations = [], []
    for image_id, (name, found) in zip(ids, pictures, strict=True):
        images.append({"id": image_id, "file_name": name, "width": found.width, "height": found.height})
        for row in found.as_dicts():
            place = {"id": len(annotations) + 1, "image_id": image_id, "file_name": name}
            area = round(row["bbox"][2] * row["bbox"][3], 3)
            annotations.append({**place, **row, "area": area, "iscrowd": 0})
    classes = zip(category_ids_for(class_names), class_names, strict=True)
    categories = [{"id": category_id, "name": name} for category_id, name in classes]
    return {"info": dict(info or {}), "images": images, "categories": categories, "annotations": annotations}
