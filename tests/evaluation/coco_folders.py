"""Small datasets in COCO format for tests: a document, and folders with its pictures."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Size = tuple[int, int]
SIZES: tuple[Size, ...] = ((64, 48), (40, 56), (32, 32))  # (width, height) of the pictures

DOCUMENT: dict[str, Any] = {
    "info": {"description": "three pictures"},
    "images": [
        {"id": 7, "file_name": "a.jpg", "width": 64, "height": 48},
        {"id": 3, "file_name": "b.jpg", "width": 40, "height": 56},
        {"id": 9, "file_name": "c.jpg", "width": 32, "height": 32},
    ],
    "categories": [
        {"id": 18, "name": "dog", "supercategory": "animal"},
        {"id": 1, "name": "person", "supercategory": "person"},
        {"id": 3, "name": "car", "supercategory": "vehicle"},
    ],
    "annotations": [
        {"id": 11, "image_id": 7, "category_id": 3, "bbox": [10, 8.5, 20, 30], "area": 451.5, "iscrowd": 0},
        {"id": 12, "image_id": 3, "category_id": 18, "bbox": [0, 0, 40, 56], "area": 2240, "iscrowd": 1},
        {"id": 13, "image_id": 7, "category_id": 1, "bbox": [-4, 40, 10, 20]},
    ],
}
"""Its ids have gaps and no order. It has a crowd, a box over the edge, an area that differs from the
box's, and a picture without objects."""


def document() -> dict[str, Any]:
    """Returns a copy of `DOCUMENT`."""
    return copy.deepcopy(DOCUMENT)


def write_dataset(
    folder: Path,
    contents: Any = DOCUMENT,
    annotations: str = "annotations/instances_val2017.json",
    images: str = "val2017",
    names: Sequence[str] = ("a.jpg", "b.jpg", "c.jpg"),
    sizes: Sequence[Size] = SIZES,
) -> Path:
    """Writes the annotation file (text, or an object for JSON) and pictures of noise. Returns the folder."""
    file = folder / annotations
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(contents if isinstance(contents, str) else json.dumps(contents), encoding="utf-8")
    for seed, (name, (width, height)) in enumerate(zip(names, sizes, strict=True)):
        pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
        path = folder / images / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return folder
