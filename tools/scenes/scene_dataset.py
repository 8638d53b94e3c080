"""Scenes as a dataset in COCO's layout."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cv2

from tools.scenes.object_classes import CLASS_NAMES
from tools.scenes.scene import DEFAULT_SIZE_PX, make_scene
from tools.scenes.sources import check_sources
from trt_plugin.atomic_files import atomic_write, new_folder

_CHUNK = 16  # scenes of a job


class _Job(NamedTuple):
    """Scenes start..stop of a split, and the folder for their pictures."""

    pictures: Path
    split: str
    seed: int
    size: int
    start: int
    stop: int


def annotation_file(folder: Path, split: str) -> Path:
    """Returns the path of a split's annotations."""
    return folder / "annotations" / f"instances_{split}.json"


def write_split(
    folder: Path,
    split: str,
    count: int,
    seed: int,
    *,
    size: int = DEFAULT_SIZE_PX,
    workers: int = 1,
    advance: Callable[[int], None] = lambda count: None,
) -> None:
    """Writes `folder/<split>/000000.jpg` … and, last, `folder/annotations/instances_<split>.json`.

    The folder of the pictures appears when all of them are written. The files do not depend on `workers`.

    Args:
        folder: of the dataset. It is made if it is missing, and has no folder `<split>`, or an empty one.
        split: "train" or "val".
        count: number of scenes, 1 or more.
        seed: of all scenes.
        size: limit of the pictures' longer side, see `make_scene`.
        workers: processes.
        advance: called with the number of scenes since the last call.

    Raises:
        MissingSourceError: a package with fonts or photographs is not installed.
        OSError: a file cannot be written.
    """
    check_sources((split,))
    jobs = [
        _Job(folder / f".{split}.partial", split, seed, size, start, min(start + _CHUNK, count))
        for start in range(0, count, _CHUNK)
    ]
    scenes: list[dict[str, Any]] = []
    with _new_folder(folder / split, jobs[0].pictures):
        for records in _run(jobs, workers):
            scenes += records
            advance(len(records))
    document = _document(split, seed, size, scenes)
    with atomic_write(annotation_file(folder, split)) as temporary:
        temporary.write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")


@contextlib.contextmanager
def _new_folder(folder: Path, partial: Path) -> Iterator[None]:
    """Makes the folder `partial`, which becomes `folder` at the end of the block."""
    shutil.rmtree(partial, ignore_errors=True)  # of a killed run
    with new_folder(folder.parent):
        partial.mkdir()
        try:
            yield
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _run(jobs: list[_Job], workers: int) -> Iterator[list[dict[str, Any]]]:
    """Runs the jobs, in this process if one worker is wanted; yields their results in order."""
    if workers == 1 or len(jobs) == 1:
        yield from map(_write_scenes, jobs)
        return
    # Fresh interpreters, for a fork of a process with OpenCV's threads may hang.
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(workers, len(jobs)), _start_worker) as pool:
        yield from pool.imap(_write_scenes, jobs)


def _start_worker() -> None:
    cv2.setNumThreads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the pool ends the workers


def _write_scenes(job: _Job) -> list[dict[str, Any]]:
    """Makes the scenes of a job and writes their pictures. Returns a record for each scene."""
    records = []
    for index in range(job.start, job.stop):
        scene = make_scene(job.seed, job.split, index, job.size)
        path = job.pictures / f"{index:06d}.jpg"
        options = [cv2.IMWRITE_JPEG_QUALITY, scene.jpeg_quality]
        _, data = cv2.imencode(".jpg", cv2.cvtColor(scene.image, cv2.COLOR_RGB2BGR), options)
        path.write_bytes(data)
        height, width = scene.image.shape[:2]
        records.append(
            {
                "file_name": path.name,
                "size": (width, height),
                "boxes": scene.boxes_xyxy_px.tolist(),
                "labels": scene.labels.tolist(),
            }
        )
    return records


def _document(split: str, seed: int, size: int, records: list[dict[str, Any]]) -> dict[str, Any]:
    """COCO's document: ids count from 1, boxes are x, y, width, height, an area is its box's."""
    images, annotations = [], []
    for image_id, record in enumerate(records, start=1):
        width, height = record["size"]
        images.append({"id": image_id, "file_name": record["file_name"], "width": width, "height": height})
        for (x0, y0, x1, y1), label in zip(record["boxes"], record["labels"]):
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image_id,
                    "category_id": label + 1,
                    "bbox": [x0, y0, x1 - x0, y1 - y0],
                    "area": (x1 - x0) * (y1 - y0),
                    "iscrowd": 0,
                }
            )
    categories = [{"id": label, "name": name} for label, name in enumerate(CLASS_NAMES, start=1)]
    info = {"description": "tools.scenes", "split": split, "seed": seed, "size": size}
    return {"info": info, "images": images, "annotations": annotations, "categories": categories}
