"""COCO's twelve metrics of detections, computed by pycocotools. Imports no Torch."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from codetr.dataset.coco_files import CocoDataset, CocoPicture

MAX_DETECTIONS = 100
"""COCO counts this number of detections of a picture, the best."""

Rows = Sequence[Mapping[str, Any]]
"""Detections in COCO's result form: image_id, category_id, bbox (x, y, width, height) and score of each."""


@dataclass(frozen=True)
class ClassMetrics:
    """Average precision of one class, NaN without objects."""

    name: str
    category_id: int
    objects: int  # in the pictures, without crowds
    ap: float  # over IoU 0.5 to 0.95
    ap50: float
    ap75: float


@dataclass(frozen=True)
class Metrics:
    """Average precision (AP) and recall (AR), as https://cocodataset.org/#detection-eval defines them.

    All are from 0 to 1, or NaN if the pictures have no such object.

    The areas are those of the annotations.
    """

    ap: float  # over the IoU thresholds 0.5, 0.55, …, 0.95
    ap50: float  # at IoU 0.5
    ap75: float
    ap_small: float  # of objects below 32² pixels
    ap_medium: float  # from 32² to 96²
    ap_large: float
    ar1: float  # with the best detection of each picture and class
    ar10: float  # with the best 10
    ar100: float
    ar_small: float  # with the best 100, by size
    ar_medium: float
    ar_large: float
    per_class: tuple[ClassMetrics, ...]  # in the order of the category ids
    pictures: int
    objects: int  # in the pictures, without crowds

    def precisions(self) -> dict[str, float | None]:
        """Returns AP, AP50, AP75, APs, APm and APl by these names of COCO, with None for NaN."""
        numbers = (self.ap, self.ap50, self.ap75, self.ap_small, self.ap_medium, self.ap_large)
        names = ("AP", "AP50", "AP75", "APs", "APm", "APl")
        return {name: None if math.isnan(x) else x for name, x in zip(names, numbers)}

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields by name for JSON, with None for NaN."""
        whole, *per_class = (
            {name: None if value != value else value for name, value in vars(part).items()}
            for part in (self, *self.per_class)
        )
        return {**whole, "per_class": per_class}


def coco_metrics(dataset: CocoDataset, rows: Rows, pictures: Sequence[CocoPicture] | None = None) -> Metrics:
    """Computes the metrics.

    Args:
        pictures: the evaluated pictures. Default: all of the dataset.
    """
    pictures = dataset.pictures if pictures is None else pictures
    fields = ("boxes_xyxy_px", "labels", "crowd", "areas")
    objects = [
        {
            "image_id": picture.id,
            "category_id": dataset.category_ids[label],
            "bbox": [x1, y1, x2 - x1, y2 - y1],
            "area": area,
            "iscrowd": int(crowd),
        }
        for picture in pictures
        for (x1, y1, x2, y2), label, crowd, area in zip(*(getattr(picture, name).tolist() for name in fields))
    ]
    truth, found = (_index(dataset, pictures, entries) for entries in (objects, rows))
    evaluation = COCOeval(truth, found, "bbox")
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints every step
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    labels = np.concatenate([np.zeros(0, np.int64), *(p.labels[~p.crowd] for p in pictures)])
    counts = np.bincount(labels, minlength=len(dataset.class_names)).tolist()
    # [IoU, recall, class, area, most detections]: all areas, 100 detections
    precision = evaluation.eval["precision"][:, :, :, 0, -1]
    thresholds = np.round(evaluation.params.iouThrs, 2).tolist()
    per_class = tuple(
        ClassMetrics(
            name,
            category_id,
            counts[label],
            _mean(precision[:, :, label]),
            _mean(precision[thresholds.index(0.5), :, label]),
            _mean(precision[thresholds.index(0.75), :, label]),
        )
        for label, (category_id, name) in enumerate(
            zip(dataset.category_ids, dataset.class_names, strict=True)
        )
    )
    numbers = [float(number) if number >= 0 else math.nan for number in evaluation.stats]
    return Metrics(*numbers, per_class, len(pictures), sum(counts))


def _index(dataset: CocoDataset, pictures: Sequence[CocoPicture], rows: Iterable[Mapping[str, Any]]) -> Any:
    """Returns a list of objects or detections as pycocotools' class."""
    annotations = []
    # Ids start at 1: pycocotools takes id 0 for an object without a match.
    for identifier, row in enumerate(rows, 1):
        area = row["bbox"][2] * row["bbox"][3]
        annotations.append({"area": area, "iscrowd": 0, **row, "id": identifier})
    coco = COCO()
    coco.dataset = {
        "images": [
            {"id": picture.id, "width": picture.width, "height": picture.height} for picture in pictures
        ],
        "categories": [
            {"id": identifier, "name": name}
            for identifier, name in zip(dataset.category_ids, dataset.class_names, strict=True)
        ],
        "annotations": annotations,
    }
    with contextlib.redirect_stdout(io.StringIO()):
        coco.createIndex()
    return coco


def _mean(precision: np.ndarray) -> float:
    """Returns the mean without the entries of -1, which pycocotools writes for classes without objects."""
    there = precision[precision > -1]
    return float(there.mean()) if there.size else math.nan
