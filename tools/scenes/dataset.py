"""Scenes as a dataset in COCO's layout."""

from __future__ import annotations

import contextlib
import json
import multiprocessing.connection
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import cv2

from tools.scenes.classes import CLASS_NAMES
from tools.scenes.scene import DEFAULT_SIZE_PX, make_scene
from tools.scenes.sources import check_sources
from trt_plugin.atomic_files import atomic_write, new_folder

_CHUNK = 16  # scenes that a worker makes before it reports


class _Job(NamedTuple):
    """Scenes start..stop of a split, and the folder for their pictures."""

    pictures: Path
    split: str
    seed: int
    size: int
    start: int
    stop: int


def annotation_file(folder: Path, split: str) -> Path:
    """Where a split's annotations are."""
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

    The folder of the pictures appears when all of them are written. The files do not depend on the number of
    workers.

    Args:
        folder: the dataset's; made if missing; has no folder `<split>` yet, or an empty one.
        split: "train" or "val".
        count: scenes, 1 or more.
        seed: of all scenes.
        size: limit of the pictures' longer side, see `make_scene`.
        workers: processes.
        advance: called with the number of scenes that have been written since the last call.

    Raises:
        MissingSourceError: a package with fonts or photographs is not installed.
        OSError: a file cannot be written.
    """
    check_sources((split,))
    jobs = [
        _Job(folder / f".{split}.partial", split, seed, size, start, min(start + _CHUNK, count))
        for start in range(0, count, _CHUNK)
    ]
    made: dict[int, list[dict[str, Any]]] = {}
    with _new_folder(folder / split, jobs[0].pictures):
        for start, records in _run(jobs, workers):
            made[start] = records
            advance(len(records))
    document = _document(split, seed, size, [record for start in sorted(made) for record in made[start]])
    with atomic_write(annotation_file(folder, split)) as temporary:
        temporary.write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")


@contextlib.contextmanager
def _new_folder(folder: Path, partial: Path) -> Iterator[None]:
    """Makes the folder `partial`, which becomes `folder` when the block ends well and goes otherwise."""
    shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed
    with new_folder(folder.parent):
        partial.mkdir()
        try:
            yield
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _run(jobs: list[_Job], workers: int) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Does the jobs, in this process where one worker is wanted; yields as they end, in any order."""
    if workers == 1 or len(jobs) == 1:
        yield from map(_write_scenes, jobs)
        return
    # A fresh interpreter each: a fork of a process with OpenCV's threads may hang.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, len(jobs)), mp_context=context, initializer=_start_worker)
    with pool:
        try:
            pending = {pool.submit(_write_scenes, job) for job in jobs}
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _start_worker() -> None:
    """Prepares a worker: one thread, and an end when the main process has ended, however that went."""
    cv2.setNumThreads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the main process stops the workers
    main = multiprocessing.parent_process()

    def watch() -> None:
        multiprocessing.connection.wait([main.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _write_scenes(job: _Job) -> tuple[int, list[dict[str, Any]]]:
    """Makes a job's scenes and writes their pictures. Returns its start and the scenes' records."""
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
    return job.start, records


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


def default_workers() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
