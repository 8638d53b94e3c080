"""Scenes as a dataset in COCO's layout."""

from __future__ import annotations

import functools
import json
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from tools.scenes.object_classes import CLASS_NAMES
from tools.scenes.scene import DEFAULT_SIZE_PX, make_scene

_CHUNK = 16  # scenes of a worker's job


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
    """Writes `folder/<split>/000000.jpg` … and `folder/annotations/instances_<split>.json`.

    The files do not depend on `workers`. Ids count from 1. The area of an object is that of its box.

    Args:
        folder: folder of the dataset. It is created if it is missing, and has no folder `<split>`.
        count: number of scenes, 1 or more.
        size: limit of the pictures' longer side, see `make_scene`.
        advance: called with the number of scenes since the last call.

    Raises:
        MissingSourceError: a package with fonts or photographs is not installed.
        OSError: a file cannot be written.
    """
    pictures = folder / split
    pictures.mkdir(parents=True)
    annotation_file(folder, split).parent.mkdir(exist_ok=True)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    write = functools.partial(_write_scene, pictures, split, seed, size)
    for image, objects in run_in_processes(write, count, workers):
        images.append(image)
        annotations += [{"id": id, **entry} for id, entry in enumerate(objects, len(annotations) + 1)]
        advance(1)
    document = {
        "info": {"description": "tools.scenes", "split": split, "seed": seed, "size": size},
        "images": images,
        "annotations": annotations,
        "categories": [{"id": label, "name": name} for label, name in enumerate(CLASS_NAMES, start=1)],
    }
    annotation_file(folder, split).write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")


def run_in_processes(write: Callable[[int], Any], count: int, workers: int) -> Iterator[Any]:
    """Yields the results of `write` for 0 to `count` in order, in this process if one worker is enough."""
    if workers == 1 or count <= _CHUNK:
        yield from map(write, range(count))
        return
    # Fresh interpreters, for a fork of a process with OpenCV's threads may hang.
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(workers, -(-count // _CHUNK)), _start_worker) as pool:
        yield from pool.imap(write, range(count), _CHUNK)


def _start_worker() -> None:
    cv2.setNumThreads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the pool ends the workers


def write_jpeg(path: Path, image: np.ndarray, quality: int) -> None:
    """Writes a picture, uint8 [H, W, 3] RGB, as JPEG file of a quality from 0 to 100."""
    options = [cv2.IMWRITE_JPEG_QUALITY, quality]
    _, data = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), options)
    path.write_bytes(data)


def _write_scene(folder: Path, split: str, seed: int, size: int, index: int) -> tuple[dict, list[dict]]:
    """Writes the picture of a scene. Returns COCO's entries of the image, and of its objects without ids."""
    scene = make_scene(seed, split, index, size)
    path = folder / f"{index:06d}.jpg"
    write_jpeg(path, scene.image, scene.jpeg_quality)
    height, width = scene.image.shape[:2]
    objects = [
        {
            "image_id": index + 1,
            "category_id": label + 1,
            "bbox": [x0, y0, x1 - x0, y1 - y0],
            "area": (x1 - x0) * (y1 - y0),
            "iscrowd": 0,
        }
        for (x0, y0, x1, y1), label in zip(scene.boxes_xyxy_px.tolist(), scene.labels.tolist())
    ]
    return {"id": index + 1, "file_name": path.name, "width": width, "height": height}, objects
