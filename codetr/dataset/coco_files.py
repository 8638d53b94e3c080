"""Datasets in COCO format: an annotation file and its pictures.

    dataset = load_coco("coco", "val")     # coco/annotations/instances_val2017.json, coco/val2017/*.jpg

`load_coco` checks the whole annotation file; its errors are one line that names the file and the annotation.
`codetr.dataset.bad_pictures` finds pictures that cannot be used. Imports no Torch.
"""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
from pydantic import Field
from typing_extensions import NotRequired, TypedDict

from codetr.errors import UsageError

ONE_SPLIT_FILES = ("annotations.json", "_annotations.coco.json")

_OTHER_NAMES = {"val": ("valid",)}  # Roboflow's name of a split

_Text = Annotated[str, Field(min_length=1)]
_Pixels = Annotated[int, Field(ge=1, le=1_000_000)]
_Coordinate = Annotated[float, Field(ge=-1e30, le=1e30)]
_Extent = Annotated[float, Field(ge=0, le=1e30)]


class _Category(TypedDict):
    id: int
    name: _Text
    supercategory: NotRequired[Any]


class _Image(TypedDict):
    id: int
    file_name: _Text
    width: _Pixels
    height: _Pixels


class _Annotation(TypedDict):
    id: int
    image_id: int
    category_id: int
    bbox: tuple[_Coordinate, _Coordinate, _Extent, _Extent]  # x, y, width, height
    area: NotRequired[_Extent | None]
    iscrowd: NotRequired[Literal[0, 1]]


class _Document(TypedDict):
    categories: Annotated[list[_Category], Field(min_length=1)]
    images: Annotated[list[_Image], Field(min_length=1)]
    annotations: Annotated[list[_Annotation], Field(min_length=1)]


_SCHEMA = pydantic.TypeAdapter(_Document)


class DatasetError(UsageError):
    """A dataset cannot be used. The message is one line: the file, the annotation or picture, the problem."""


@dataclass(frozen=True, eq=False)
class CocoPicture:
    """A picture and its n objects."""

    id: int  # in the annotation file
    path: Path  # the file may not exist, see `codetr.dataset.bad_pictures`
    width: int  # pixels, as the annotation file states
    height: int
    boxes_xyxy_px: np.ndarray  # float32 [n, 4], inside the picture, x1 < x2 and y1 < y2
    labels: np.ndarray  # int64 [n], indices into the dataset's class_names
    crowd: np.ndarray  # bool [n], True for a box around many objects without boxes of their own
    areas: np.ndarray  # float32 [n], pixels, by which COCO sorts into small, medium and large

    @property
    def wide(self) -> bool:
        """Whether it is at least as wide as high."""
        return self.width >= self.height


@dataclass(frozen=True, eq=False)
class CocoDataset:
    """The content of an annotation file.

    Categories are left out of it if no annotation has them and they are the supercategory of others, such as
    category 0 of Roboflow's exports.
    """

    annotation_file: Path
    category_ids: tuple[int, ...]  # ascending; they may have gaps, such as COCO's
    class_names: tuple[str, ...]  # name of each label, in the order of the category ids
    pictures: tuple[CocoPicture, ...]  # in the file's order, those without objects included
    supercategories: tuple[str, ...] = ()  # names of the categories that are left out

    def __len__(self) -> int:
        return len(self.pictures)

    @property
    def source(self) -> Path:
        """The file that names the dataset in messages."""
        return self.annotation_file

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for each category that is left out."""
        words = "is no class, it has no annotations and is the supercategory of others"
        return tuple(f"{self.annotation_file}: category {name!r} {words}" for name in self.supercategories)


def load_coco(
    folder: str | os.PathLike,
    split: str,
    *,
    annotations: str | os.PathLike | None = None,
    images: str | os.PathLike | None = None,
    keep: Collection[str] = (),
) -> CocoDataset:
    """Loads and checks one split of a dataset. It does not open the pictures.

    `codetr train --help` lists the layouts. A box that reaches over the edge of its picture is clipped.

    Args:
        split: "train", "val", …, or with its year, "val2017".
        annotations: annotation file. Default: the one that `folder` and `split` give.
        keep: names of categories that stay even if they are only the supercategory of others.

    Raises:
        DatasetError: there is no such folder or file; the file is not in COCO format or contradicts itself;
            or all pictures are missing.
    """
    folder = Path(folder)
    for place in (folder, *([] if images is None else [images])):
        if not os.path.isdir(place):
            raise DatasetError(f"{place}: no such folder")
    file = _annotation_file(folder, split) if annotations is None else Path(annotations)
    document = _read(file)
    left_out = _supercategories(document, keep)
    names = {
        category["id"]: category["name"]
        for category in document["categories"]
        if category["id"] not in left_out
    }
    category_ids = tuple(sorted(names))
    class_names = tuple(names[identifier] for identifier in category_ids)
    _check_unique(file, "category", "name", class_names)
    places = [Path(images)] if images is not None else _image_folders(folder, file, split)
    files = [image["file_name"] for image in document["images"]]
    # The pictures that exist tell the folder.
    place = next((place for name in files for place in places if (place / name).is_file()), None)
    if place is None:
        every = f"all of the {len(files)} that {file} lists are missing"
        raise DatasetError(f"{places[0] / files[0]}: no such picture; {every}")
    pictures = _pictures(file, document, category_ids, place)
    return CocoDataset(file, category_ids, class_names, pictures, tuple(left_out.values()))


def read_picture(picture: CocoPicture) -> np.ndarray:
    """Reads a picture's pixels, uint8 [H, W, 3] RGB.

    Raises:
        DatasetError: the file is missing or damaged, or its size differs from the annotation file's: the
            boxes belong to another picture.
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


# Places of the files.


def split_file(folder: Path, split: str) -> Path | None:
    """Finds the annotation file of one split; None if there is none. A file without splits does not count.

    Raises:
        DatasetError: the folder has several years of the split.
    """
    for name in (split, *_OTHER_NAMES.get(split, ())):
        exact = folder / "annotations" / f"instances_{name}.json"
        years = sorted(exact.parent.glob(f"instances_{name}*.json"))
        years = [path for path in years if path.stem.removeprefix(exact.stem).isdigit()]
        if len(years) > 1 and not exact.is_file():
            names = " and ".join(path.name for path in years)
            raise DatasetError(f"{exact.parent}: has {names}, expected a split with its year")
        for candidate in (exact, *years, folder / name / ONE_SPLIT_FILES[1]):
            if candidate.is_file():
                return candidate
    return None


def _annotation_file(folder: Path, split: str) -> Path:
    candidates = [split_file(folder, split), *(folder / name for name in ONE_SPLIT_FILES)]
    found = next((path for path in candidates if path is not None and path.is_file()), None)
    if found is None:
        looked = [f"{name}/{ONE_SPLIT_FILES[1]}" for name in (split, *_OTHER_NAMES.get(split, ()))]
        raise DatasetError(
            f"{folder}: no annotations of split {split!r}, looked for annotations/instances_{split}*.json, "
            f"{', '.join(looked)}, {' and '.join(ONE_SPLIT_FILES)}"
        )
    return found


def _image_folders(folder: Path, file: Path, split: str) -> list[Path]:
    """Returns the folders that may hold the pictures, the most likely first; at least one."""
    names = dict.fromkeys((file.stem.removeprefix("instances_"), split))
    candidates = [folder / part / name for name in names for part in ("", "images")]
    candidates += [file.parent] if file.name in ONE_SPLIT_FILES and file.parent != folder else []
    # The names in some files begin with the folder: "val2017/000000000139.jpg".
    return [path for path in (*candidates, folder / "images", folder) if path.is_dir()]


# Content of the annotation file.


def _read(file: Path) -> _Document:
    """Reads the file by its schema. Ids of categories and images differ, and those in annotations exist."""
    try:
        document = _SCHEMA.validate_json(file.read_bytes().removeprefix(codecs.BOM_UTF8), strict=True)
    except OSError as error:
        raise DatasetError(f"{file}: {error.strerror or error}") from error
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"]).lstrip(".")
        known = first["type"] not in ("json_invalid", "missing")
        got = f", got {json.dumps(first['input']):.60}" if known else ""
        raise DatasetError(f"{file}: {f'{place}: ' if place else ''}{first['msg']}{got}") from None
    for noun, key in (("category", "categories"), ("image", "images")):
        _check_unique(file, noun, "id", [entry["id"] for entry in document[key]])
    images = {image["id"] for image in document["images"]}
    categories = {category["id"] for category in document["categories"]}
    for annotation in document["annotations"]:
        for key, known in (("image_id", images), ("category_id", categories)):
            if annotation[key] not in known:
                noun = key.removesuffix("_id")
                raise DatasetError(
                    f"{file}: annotation {annotation['id']}: {key}: expected the id of an entry, "
                    f"there is no {noun} {annotation[key]}"
                )
    return document


def _check_unique(file: Path, noun: str, key: str, values: Iterable[int | str]) -> None:
    seen = set()
    for value in values:
        if value in seen:
            raise DatasetError(f"{file}: {noun} {value!r}: the {key} occurs twice")
        seen.add(value)


def _supercategories(document: _Document, keep: Collection[str]) -> dict[int, str]:
    """Returns categories without annotations that are the supercategory of others, but for those to keep.

    Roboflow names category 0 after the project, which may have the name of a class.

    Returns:
        Names by id.
    """
    used = {annotation["category_id"] for annotation in document["annotations"]}
    found = {}
    for category in document["categories"]:
        name, others = category["name"], [other for other in document["categories"] if other is not category]
        is_parent = any(other.get("supercategory") == name for other in others)
        stays = name in keep and all(other["name"] != name for other in others)
        if category["id"] not in used and is_parent and not stays:
            found[category["id"]] = name
    return found


def _pictures(
    file: Path, document: _Document, category_ids: tuple[int, ...], folder: Path
) -> tuple[CocoPicture, ...]:
    label_of = {identifier: label for label, identifier in enumerate(category_ids)}
    images = {image["id"]: image for image in document["images"]}
    rows: dict[int, list[tuple[Any, ...]]] = {identifier: [] for identifier in images}
    for annotation in document["annotations"]:
        image, (x, y, width, height) = images[annotation["image_id"]], annotation["bbox"]
        if not width or not height:  # COCO train2017 has two such boxes
            continue
        x1, y1 = max(x, 0.0), max(y, 0.0)
        x2, y2 = min(x + width, float(image["width"])), min(y + height, float(image["height"]))
        if not (np.float32(x1) < np.float32(x2) and np.float32(y1) < np.float32(y2)):
            raise DatasetError(
                f"{file}: annotation {annotation['id']}: bbox: {list(annotation['bbox'])} lies outside its "
                f"picture {image['file_name']} of {image['width']}x{image['height']} pixels"
            )
        area = annotation.get("area")
        area = (x2 - x1) * (y2 - y1) if area is None else area
        label = label_of[annotation["category_id"]]
        rows[image["id"]].append(((x1, y1, x2, y2), label, annotation.get("iscrowd", 0), area))
    pictures = []
    for image in document["images"]:
        entries = rows[image["id"]]
        boxes, labels, crowd, areas = zip(*entries) if entries else ((), (), (), ())
        pictures.append(
            CocoPicture(
                image["id"],
                folder / image["file_name"],
                image["width"],
                image["height"],
                np.array(boxes, dtype=np.float32).reshape(-1, 4),
                np.array(labels, dtype=np.int64),
                np.array(crowd, dtype=bool),
                np.array(areas, dtype=np.float32),
            )
        )
    return tuple(pictures)
