"""Data sets in COCO's format: an annotation file and the pictures that it lists, checked from end to end.

    dataset = load_coco("coco", "val")     # coco/annotations/instances_val2017.json, coco/val2017/*.jpg

What a training or an evaluation would stumble over an hour later is found before: `load_coco` raises one line
that names the file and the annotation; `codetr.dataset.bad_pictures` names pictures that cannot be used. No Torch.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ONE_SPLIT_FILES = ("annotations.json", "_annotations.coco.json")
LAYOUTS = """DIR is in one of these layouts, here for the split train:
  COCO       annotations/instances_train.json and train/ or images/train/; a year may follow (train2017)
  Roboflow   train/_annotations.coco.json with the pictures beside it; the split val is its folder valid/
  one file   annotations.json or _annotations.coco.json and images/, for data without splits"""
"""The layouts that `load_coco` finds, for the help of commands."""

_OTHER_NAMES = {"val": ("valid",)}  # of a split: Roboflow's


class DatasetError(ValueError):
    """Data that cannot be used. One line: the file, the picture or annotation in it, what it was."""


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture and its objects.

    Attributes:
        id: the annotation file's.
        path: of the file; `codetr.dataset.bad_pictures` finds those that do not exist.
        width: pixels, as the annotation file says.
        height: pixels.
        boxes_xyxy_px: float32 [n, 4], inside the picture, x1 < x2 and y1 < y2.
        labels: int64 [n], indices into the data set's class_names.
        crowd: bool [n], True where the box is around many objects that were not annotated one by one.
        areas: float32 [n], the objects' pixels by which COCO sorts into small, medium and large; the box's
            where the file says none.
    """

    id: int
    path: Path
    width: int
    height: int
    boxes_xyxy_px: np.ndarray
    labels: np.ndarray
    crowd: np.ndarray
    areas: np.ndarray


@dataclass(frozen=True, eq=False)
class CocoDataset:
    """What an annotation file holds.

    Attributes:
        annotation_file: where it was read.
        category_ids: ascending; they may have gaps, as COCO's own.
        class_names: of the categories in that order: the name of each label.
        pictures: in the file's order, those without objects as well.
        empty_boxes: ids of annotations that are left out because their boxes are 0 wide or high, as two of
            COCO train2017.
        supercategories: names of categories that are left out because no annotation has them and they are
            other categories' supercategory, as category 0 of Roboflow's exports.
    """

    annotation_file: Path
    category_ids: tuple[int, ...]
    class_names: tuple[str, ...]
    pictures: tuple[Picture, ...]
    empty_boxes: tuple[int, ...] = ()
    supercategories: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.pictures)


def load_coco(
    folder: str | os.PathLike,
    split: str,
    *,
    annotations: str | os.PathLike | None = None,
    images: str | os.PathLike | None = None,
    keep: Collection[str] = (),
) -> CocoDataset:
    """Loads and checks one split of a data set. The pictures are not opened, see `codetr.dataset.bad_pictures`.

    The layouts that are found: `annotations/instances_<split>.json` with `<split>/` or `images/<split>/`,
    where a year may follow the split (val2017); `<split>/_annotations.coco.json` with the pictures beside it,
    where the split "val" is also found as "valid" (Roboflow's export); and, for data that has no splits,
    `annotations.json` or `_annotations.coco.json` with `images/` or the folder itself.

    Args:
        folder: of the data set.
        split: "train", "val", … or with its year, "val2017".
        annotations: annotation file, in place of the one that `folder` and `split` give.
        images: folder of the pictures, likewise.
        keep: names of categories that stay although they are only others' supercategory.

    Raises:
        DatasetError: there is no such folder or file; it is not COCO's format or contradicts itself; all
            pictures are missing. Boxes that reach over the picture's edge are no error, they are clipped.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DatasetError(f"{folder}: {'not a folder' if folder.exists() else 'no such folder'}")
    file = _annotation_file(folder, split) if annotations is None else Path(annotations)
    if not file.is_file():
        raise DatasetError(f"{file}: {'not a file' if file.exists() else 'no such file'}")
    if images is not None and not Path(images).is_dir():
        raise DatasetError(f"{images}: {'not a folder' if Path(images).exists() else 'no such folder'}")
    document = _read_json(file)
    categories = _entries(file, document, "categories")
    left_out = _supercategories(categories, _entries(file, document, "annotations"), keep)
    category_ids, class_names = _categories(file, categories, left_out)
    entries = _images(file, _entries(file, document, "images"))
    rows, empty = _objects(file, _entries(file, document, "annotations"), entries, category_ids)
    places = [Path(images)] if images is not None else _image_folders(folder, file, split)
    paths = _image_paths(file, places, entries)
    pictures = [_picture(key, paths[key], entry, rows[key]) for key, entry in entries.items()]
    return CocoDataset(
        file, category_ids, class_names, tuple(pictures), tuple(empty), tuple(left_out.values())
    )


def read_picture(picture: Picture) -> np.ndarray:
    """Reads a picture's pixels, uint8 [H, W, 3] RGB.

    Raises:
        DatasetError: it is gone or damaged, or has not the size that the annotation file says: its boxes
            would be those of another picture.
    """
    from codetr.detector.preprocess import ImageError, load_image

    try:
        pixels = load_image(picture.path)
    except (ImageError, FileNotFoundError) as error:
        raise DatasetError(str(error)) from error
    height, width = pixels.shape[:2]
    if (height, width) != (picture.height, picture.width):
        raise DatasetError(
            f"{picture.path}: the annotation file says {picture.width}x{picture.height}, the picture has "
            f"{width}x{height}"
        )
    return pixels


# Where the files are.


def split_file(folder: Path, split: str) -> Path | None:
    """The annotation file of one split, None if there is none; a file for data without splits is none.

    Raises:
        DatasetError: several years of the split are there.
    """
    if not re.fullmatch(r"[\w.-]+", split):
        raise DatasetError(f"{folder}: expected the name of a split (train, val, …), got {split!r}")
    for name in (split, *_OTHER_NAMES.get(split, ())):
        exact = folder / "annotations" / f"instances_{name}.json"
        with_year = [
            path
            for path in sorted(exact.parent.glob("instances_*.json"))
            if re.fullmatch(rf"instances_{re.escape(name)}\d+\.json", path.name)
        ]
        candidates = (exact, *with_year, folder / name / ONE_SPLIT_FILES[1])
        found = next((path for path in candidates if path.is_file()), None)
        if found in with_year and len(with_year) > 1:
            names = " and ".join(path.name for path in with_year)
            raise DatasetError(f"{exact.parent}: holds {names}, say which (split with its year)")
        if found is not None:
            return found
    return None


def _annotation_file(folder: Path, split: str) -> Path:
    candidates = [split_file(folder, split), *(folder / name for name in ONE_SPLIT_FILES)]
    found = next((path for path in candidates if path is not None and path.is_file()), None)
    if found is None:
        if next(folder.iterdir(), None) is None:
            raise DatasetError(f"{folder}: the folder is empty")
        looked = [f"{name}/{ONE_SPLIT_FILES[1]}" for name in (split, *_OTHER_NAMES.get(split, ()))]
        raise DatasetError(
            f"{folder}: no annotations of split {split!r}, looked for annotations/instances_{split}*.json, "
            f"{', '.join(looked)}, {' and '.join(ONE_SPLIT_FILES)}"
        )
    return found


def _image_folders(folder: Path, file: Path, split: str) -> list[Path]:
    """The folders that may hold the pictures, the most likely first; at least one."""
    names = dict.fromkeys((file.stem.removeprefix("instances_"), split))
    candidates = [folder / part / name for name in names for part in ("", "images")]
    candidates += [file.parent] if file.name in ONE_SPLIT_FILES and file.parent != folder else []
    existing = [path for path in candidates if path.is_dir()]
    # Some files' names begin with the folder: "val2017/000000000139.jpg".
    return [*existing, *(path for path in (folder / "images", folder) if path.is_dir())]


def _image_paths(file: Path, places: list[Path], entries: Mapping[int, dict[str, Any]]) -> dict[int, Path]:
    """The path of each image, in the place that holds the first image that is in any of them."""
    names = [entry["file_name"] for entry in entries.values()]
    place = next((path for name in names for path in places if os.path.isfile(path / name)), None)
    if place is None:
        raise DatasetError(
            f"{places[0] / names[0]}: no such picture; all of the {len(names)} that {file} lists are missing"
        )
    return {key: place / entry["file_name"] for key, entry in entries.items()}


# What is in the annotation file.

_KEYS = ("categories", "images", "annotations")
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_MOST_PIXELS = 1 << 20  # of a side; no format that Pillow reads has more


def _read_json(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_bytes())
    except OSError as error:
        raise DatasetError(f"{file}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{file}: not a JSON file ({error})") from None
    if not isinstance(document, dict):
        raise DatasetError(f"{file}: expected an object with {', '.join(_KEYS)}, got {_brief(document)}")
    return document


def _entries(file: Path, document: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """The list of objects under a key; it has at least one."""
    if key not in document:
        raise DatasetError(f"{file}: {key!r} is missing, it is not a COCO annotation file")
    entries = document[key]
    if not isinstance(entries, list):
        raise DatasetError(f"{file}: {key}: expected a list, got {_brief(entries)}")
    if not entries:
        raise DatasetError(f"{file}: {key}: the list is empty")
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise DatasetError(f"{file}: {key}[{index}]: expected an object, got {_brief(entry)}")
    return entries


def _categories(
    file: Path, entries: list[dict[str, Any]], left_out: Mapping[int, str]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The ids of the categories that are not left out, ascending, and their names."""
    names: dict[int, str] = {}
    for identifier, where, entry in _identified(file, "categories", entries):
        name = entry.get("name")
        if not isinstance(name, str) or not name:
            raise DatasetError(f"{where}: name: expected a text, got {_got(entry, 'name')}")
        if identifier in left_out:
            continue
        if name in names.values():
            raise DatasetError(f"{where}: name: {name!r} is another category's as well")
        names[identifier] = name
    ids = tuple(sorted(names))
    return ids, tuple(names[identifier] for identifier in ids)


def _supercategories(
    categories: list[dict[str, Any]], annotations: list[dict[str, Any]], keep: Collection[str]
) -> dict[int, str]:
    """Categories without annotations that are another's supercategory, name by id, but for those to keep.

    Roboflow names category 0 after the project, and so it may have the name of a class.
    """
    used = {entry.get("category_id") for entry in annotations if type(entry.get("category_id")) is int}
    found = {}
    for entry in categories:
        if type(entry.get("id")) is not int or entry["id"] in used:
            continue
        name, others = entry.get("name"), [other for other in categories if other is not entry]
        is_parent = any(other.get("supercategory") == name for other in others)
        stays = name in keep and all(other.get("name") != name for other in others)
        if isinstance(name, str) and is_parent and not stays:
            found[entry["id"]] = name
    return found


def _images(file: Path, entries: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    images: dict[int, dict[str, Any]] = {}
    for identifier, where, entry in _identified(file, "images", entries):
        if not isinstance(entry.get("file_name"), str) or not entry["file_name"]:
            raise DatasetError(f"{where}: file_name: expected a text, got {_got(entry, 'file_name')}")
        for side in ("width", "height"):
            if type(entry.get(side)) is not int or not 1 <= entry[side] <= _MOST_PIXELS:
                raise DatasetError(
                    f"{where} ({entry['file_name']}): {side}: expected a number of pixels, "
                    f"got {_got(entry, side)}"
                )
        images[identifier] = entry
    return images


def _identified(file: Path, key: str, entries: list[dict[str, Any]]) -> list[tuple[int, str, dict[str, Any]]]:
    """(id, where it stands in words, entry) of each entry; the ids are whole numbers, each there once."""
    noun = {"categories": "category", "images": "image", "annotations": "annotation"}[key]
    seen: set[int] = set()
    rows = []
    for index, entry in enumerate(entries):
        identifier = entry.get("id")
        if type(identifier) is not int:
            raise DatasetError(
                f"{file}: {key}[{index}]: id: expected a whole number, got {_got(entry, 'id')}"
            )
        if identifier in seen:
            raise DatasetError(f"{file}: {noun} {identifier}: the id is there twice")
        seen.add(identifier)
        rows.append((identifier, f"{file}: {noun} {identifier}", entry))
    return rows


_Row = tuple[tuple[float, float, float, float], int, bool, float]  # box, label, crowd, area


def _objects(
    file: Path,
    entries: list[dict[str, Any]],
    images: Mapping[int, dict[str, Any]],
    category_ids: tuple[int, ...],
) -> tuple[dict[int, list[_Row]], list[int]]:
    """The objects of each image, and the ids of annotations without extent, which are left out."""
    label_of = {identifier: label for label, identifier in enumerate(category_ids)}
    rows: dict[int, list[_Row]] = {identifier: [] for identifier in images}
    empty = []
    for identifier, where, entry in _identified(file, "annotations", entries):
        image_id, category_id = entry.get("image_id"), entry.get("category_id")
        if type(image_id) is not int or image_id not in images:
            raise DatasetError(f"{where}: image_id: expected an image's id, got {_got(entry, 'image_id')}")
        if type(category_id) is not int or category_id not in label_of:
            raise DatasetError(
                f"{where}: category_id: expected a category's id, got {_got(entry, 'category_id')}"
            )
        crowd = entry.get("iscrowd", 0)
        if crowd not in (0, 1):
            raise DatasetError(f"{where}: iscrowd: expected 0 or 1, got {_brief(crowd)}")
        box = _numbers(where, entry, "bbox", 4)
        if box[2] < 0 or box[3] < 0:
            raise DatasetError(f"{where}: bbox: expected [x, y, width, height], got {list(box)}")
        if box[2] == 0 or box[3] == 0:
            empty.append(identifier)
            continue
        image = images[image_id]
        clipped = _clip(box, image["width"], image["height"])
        if clipped is None:
            size = f"{image['width']}x{image['height']}"
            raise DatasetError(
                f"{where}: bbox: {list(box)} lies outside its picture {image['file_name']} of {size} pixels"
            )
        area = (clipped[2] - clipped[0]) * (clipped[3] - clipped[1])
        if entry.get("area") is not None:
            (area,) = _numbers(where, entry, "area", 1)
        if area < 0:
            raise DatasetError(f"{where}: area: expected a number of pixels, got {_got(entry, 'area')}")
        rows[image_id].append((clipped, label_of[category_id], bool(crowd), area))
    return rows, empty


def _numbers(where: str, entry: Mapping[str, Any], key: str, count: int) -> tuple[float, ...]:
    """The `count` numbers under a key; a single one stands there without a list."""
    values = [entry.get(key)] if count == 1 else entry.get(key)
    if (
        not isinstance(values, list)
        or len(values) != count
        # NaN is not below anything, and what float32 cannot hold is above.
        or not all(type(value) in (int, float) and abs(value) <= _FLOAT32_MAX for value in values)
    ):
        expected = "a finite number" if count == 1 else f"{count} finite numbers"
        raise DatasetError(f"{where}: {key}: expected {expected}, got {_got(entry, key)}")
    return tuple(map(float, values))


def _clip(box: tuple[float, ...], width: int, height: int) -> tuple[float, float, float, float] | None:
    """x, y, w, h to x1, y1, x2, y2 inside the picture; None if, in float32, nothing is left."""
    x1, y1 = max(box[0], 0.0), max(box[1], 0.0)
    x2, y2 = min(box[0] + box[2], float(width)), min(box[1] + box[3], float(height))
    if not (np.float32(x1) < np.float32(x2) and np.float32(y1) < np.float32(y2)):
        return None
    return x1, y1, x2, y2


def _picture(identifier: int, path: Path, entry: Mapping[str, Any], rows: list[_Row]) -> Picture:
    boxes, labels, crowd, areas = zip(*rows) if rows else ((), (), (), ())
    return Picture(
        identifier,
        path,
        entry["width"],
        entry["height"],
        np.array(boxes, dtype=np.float32).reshape(-1, 4),
        np.array(labels, dtype=np.int64),
        np.array(crowd, dtype=bool),
        np.array(areas, dtype=np.float32),
    )


def _got(entry: Mapping[str, Any], key: str) -> str:
    return _brief(entry[key]) if key in entry else "nothing"


def _brief(value: Any) -> str:
    """A value as JSON writes it, short."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
