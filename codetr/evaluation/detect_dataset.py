"""Runs a detector on a dataset and collects detections in COCO's result format. Imports no Torch."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from codetr.dataset.bad_pictures import BadPictures
from codetr.dataset.coco_files import CocoDataset, CocoPicture, DatasetError, read_picture
from codetr.detector.detector import Detector
from codetr.detector.pipeline import detect_each
from codetr.evaluation.coco_metrics import MAX_DETECTIONS, Metrics, coco_metrics
from codetr.results import Detections

_READERS = 8  # threads; decoding releases Python's lock


@dataclass(frozen=True)
class Run:
    """The detections of a detector in a dataset."""

    pictures: tuple[CocoPicture, ...]  # without those that were left out
    # detections in COCO's result format: image_id, category_id, bbox, score
    rows: list[dict[str, Any]] = field(repr=False)
    # throughput from reading to the final detections. The first batch, which warms up, does not count if
    # there are several
    pictures_per_s: float
    # time of a picture by stage ("preprocess", "inference", "postprocess"), the median over these batches;
    # empty if the detector measures none
    times_ms: dict[str, float]


def evaluate(detector: Detector, dataset: CocoDataset, **options: Any) -> Metrics:
    """Detects objects in the pictures of a dataset and computes average precision.

    Args:
        detector: `LiveModel` is the backend for a model in memory.
        dataset: see `codetr.dataset.coco_files.load_coco`.
        options: of `detect_all`.

    Raises:
        DatasetError: the detector lacks classes of the dataset, or a picture cannot be read, or is one that
            the network cannot take, such as a strip of 5000x3 pixels.
    """
    run = detect_all(detector, dataset, **options)
    return coco_metrics(dataset, run.rows, run.pictures)


def detect_all(
    detector: Detector,
    dataset: CocoDataset,
    *,
    batch: int = 1,
    limit: int | None = None,
    top: int = MAX_DETECTIONS,
    nms: str | None = None,
    nms_iou: float | None = None,
    advance: Callable[[int], None] = lambda count: None,
    bad_pictures: BadPictures | None = None,
) -> Run:
    """Detects objects, the first half of `evaluate`, with its errors.

    Args:
        batch: pictures in one run of the network.
        limit: number of pictures, the first ones. Default: all.
        top: number of detections of a picture that count, the best.
        nms, nms_iou: see `codetr.Detector.detect`. Default: the model's.
        advance: called with the number of pictures after each batch.
        bad_pictures: records pictures that cannot be read, or that the network cannot take, and leaves them
            out. Default: they are errors.
    """
    category_of = categories_of_labels(detector.class_names, dataset)
    looked_at: list[CocoPicture] = []
    rows: list[dict[str, Any]] = []
    batches: list[tuple[int, float, dict[str, float]]] = []
    started = time.perf_counter()
    for chunk, images in read_ahead(dataset.pictures[:limit], batch, bad_pictures):
        results = detect_each(detector, images, threshold=0.0, nms=nms, nms_iou=nms_iou)
        times_of_pictures = []
        for picture, found in zip(chunk, results, strict=True):
            if isinstance(found, Detections):
                rows += result_rows(picture, found, category_of, top)
                looked_at.append(picture)
                times_of_pictures.append(found.times_ms)
                continue
            error = DatasetError(f"{picture.path}: {found}")
            if bad_pictures is None:
                raise error from found
            bad_pictures.add(picture, error)
        now = time.perf_counter()
        if times_of_pictures:
            batches.append((len(times_of_pictures), now - started, times_of_pictures[0]))
        started = now
        advance(len(chunk))
    counts, seconds, times = zip(*(batches[1:] or batches or [(0, 0.0, {})]))
    medians = {stage: statistics.median(run[stage] for run in times) for stage in times[0]}
    return Run(tuple(looked_at), rows, sum(counts) / max(sum(seconds), 1e-9), medians)


def read_ahead(
    pictures: Sequence[Any],
    batch: int,
    bad_pictures: BadPictures | None = None,
    read: Callable[[Any], np.ndarray] = read_picture,
) -> Iterator[tuple[Sequence[Any], list[np.ndarray]]]:
    """Reads pictures in threads, two batches ahead of the consumer.

    Args:
        read: reads one picture. Default: pixels of a `CocoPicture`, uint8 [H, W, 3].

    Yields:
        (pictures, results of `read`) of each batch; the last may be smaller.

    Raises:
        DatasetError: a picture cannot be read, and `bad_pictures`, which would record it, is None or strict.
    """
    workers = min(_READERS, os.cpu_count() or 1)
    coming = iter(pictures)
    with ThreadPoolExecutor(workers, "read") as pool:
        waiting = deque(
            pool.submit(read, picture) for picture in itertools.islice(coming, 2 * batch + workers)
        )
        try:
            chunk, images = [], []
            for picture in pictures:
                reading = waiting.popleft()
                try:
                    images.append(reading.result())
                    chunk.append(picture)
                except DatasetError as error:
                    if bad_pictures is None:
                        raise
                    bad_pictures.add(picture, error)
                waiting.extend(pool.submit(read, after) for after in itertools.islice(coming, 1))
                if len(chunk) == batch:
                    yield chunk, images
                    chunk, images = [], []
            if chunk:
                yield chunk, images
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def result_rows(
    picture: CocoPicture, found: Detections, category_of: Sequence[int | None], top: int = MAX_DETECTIONS
) -> list[dict[str, Any]]:
    """Returns a picture's detections in COCO's result format, best first, without other classes.

    Numbers are rounded (1/1000 pixel, score 1e-6), so that the written file gives the same metrics.
    """
    rows = []
    boxes, scores, labels = found.boxes_xyxy_px.tolist(), found.scores.tolist(), found.labels.tolist()
    for (x1, y1, x2, y2), score, label in zip(boxes, scores, labels, strict=True):
        if category_of[label] is not None:
            rows.append(
                {
                    "image_id": picture.id,
                    "category_id": category_of[label],
                    "bbox": [round(x1, 3), round(y1, 3), round(x2 - x1, 3), round(y2 - y1, 3)],
                    "score": round(score, 6),
                }
            )
    return rows[:top]


def categories_of_labels(class_names: Sequence[str], dataset: CocoDataset) -> tuple[int | None, ...]:
    """Returns the dataset's category id of each label of a detector, by name; None for a class that it lacks.

    A model without class names ("class 0", "class 1", …) has the classes of the dataset in the order of the
    category ids, if their number is the same.

    Raises:
        DatasetError: the dataset has a class that the detector lacks.
    """
    by_name = dict(zip(dataset.class_names, dataset.category_ids, strict=True))
    unnamed = tuple(f"class {label}" for label in range(len(class_names)))
    if tuple(class_names) == unnamed and len(class_names) == len(by_name):
        return dataset.category_ids
    lacking = [name for name in dataset.class_names if name not in set(class_names)]
    if lacking:
        others = [name for name in class_names if name not in by_name] or class_names
        raise DatasetError(
            f"{dataset.annotation_file}: the model lacks {len(lacking)} of its {len(by_name)} classes: "
            f"{_examples(lacking)}; the model has {len(class_names)}, among them {_examples(others)}"
        )
    return tuple(by_name.get(name) for name in class_names)


def _examples(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
