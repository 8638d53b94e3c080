"""Classification datasets in ImageNet's layout: a folder of class folders. Imports no Torch.

    dataset = load_class_folders("imagenet/val", class_names=wordnet_ids)

The name of a class folder is a WordNet id or any other name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from codetr.dataset.bad_pictures import BadPictures
from codetr.dataset.coco_files import DatasetError
from codetr.detector.preprocess import IMAGE_SUFFIXES, ImageError, check_image, load_image
from codetr.errors import ArgumentError

_SPLITS = frozenset({"train", "val", "valid", "test"})


@dataclass(frozen=True)
class ClassPicture:
    """A picture and its class."""

    id: int  # index in the dataset
    path: Path
    label: int  # index into the dataset's class_names


@dataclass(frozen=True)
class ClassFolders:
    """A folder of class folders.

    Attributes:
        source: the folder.
        class_names: name of each label, in the network's order if one was given.
        pictures: by class folder and path.
        notes: a line for each class folder without pictures.
    """

    source: Path
    class_names: tuple[str, ...]
    pictures: tuple[ClassPicture, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.pictures)


def load_class_folders(
    folder: str | Path, class_names: Sequence[str] | None = None, *, argument: str = "dataset"
) -> ClassFolders:
    """Lists a classification dataset. It does not open the pictures.

    Args:
        folder: folder of class folders, whose pictures may lie in subfolders. Hidden files do not count.
        class_names: names or WordNet ids in the order of the network's outputs. Some may have no folder.
            Default: the sorted names of the class folders, as torchvision's ImageFolder.
        argument: name of the parameter that errors name.

    Raises:
        ArgumentError: there is no such folder, it has no class folder or no picture, or the network does not
            know a class folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ArgumentError(argument, f"expected a folder of class folders, got {folder}: no such folder")
    places = {
        place.name: place for place in folder.iterdir() if place.is_dir() and not place.name.startswith(".")
    }
    if places and places.keys() <= _SPLITS and class_names is None:
        some = folder / sorted(places)[0]
        raise ArgumentError(argument, f"expected a folder of class folders such as {some}, got {folder}")
    labels = _labels(folder, sorted(places), class_names, argument)
    pictures, notes = [], []
    for name in sorted(places):
        paths = [path for path in sorted(places[name].rglob("*")) if _is_picture(path, places[name])]
        pictures += [ClassPicture(id, path, labels[name]) for id, path in enumerate(paths, len(pictures))]
        notes += [] if paths else [f"{places[name]}: the class folder has no pictures"]
    if not pictures:
        found = f"{len(places)} class folders without pictures" if places else "no class folders"
        expected = f"expected a folder of class folders with pictures ({', '.join(sorted(IMAGE_SUFFIXES))})"
        raise ArgumentError(argument, f"{expected}, got {found} in {folder}")
    return ClassFolders(folder, tuple(class_names or sorted(places)), tuple(pictures), tuple(notes))


def _is_picture(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return path.suffix.lower() in IMAGE_SUFFIXES and not hidden and path.is_file()


def _labels(
    folder: Path, folders: Sequence[str], class_names: Sequence[str] | None, argument: str
) -> dict[str, int]:
    """Returns the label of each class folder."""
    if class_names is None:
        return {name: label for label, name in enumerate(folders)}
    labels = {name: label for label, name in enumerate(class_names)}
    known = f"one of the network's {len(class_names)} classes ({class_names[0]}, …)"
    unknown = [name for name in folders if name not in labels]
    if unknown:
        more = f" and {len(unknown) - 1} more" if unknown[1:] else ""
        text = f"expected each class folder to be {known}, got {folder / unknown[0]}{more}"
        raise ArgumentError(argument, text)
    several = {name for name, count in Counter(class_names).items() if count > 1}
    for name in folders:
        if name in several:  # ImageNet has two classes named crane
            text = f"expected a name of {known}, got {folder / name}, the name of several; use WordNet ids"
            raise ArgumentError(argument, text)
    return labels


def read_class_picture(picture: ClassPicture) -> np.ndarray:
    """Reads a picture's pixels, uint8 [H, W, 3] RGB.

    Raises:
        DatasetError: the file is missing or damaged.
    """
    try:
        return load_image(picture.path)
    except (ImageError, OSError) as error:
        raise DatasetError(str(error)) from error


def find_bad_pictures(dataset: ClassFolders, *, strict: bool = False) -> BadPictures[ClassFolders]:
    """Reads the header of every picture. Reports and counts those that cannot be used.

    The result's `usable()` is the dataset without them, and its `add` reports pictures that fail later.

    Raises:
        DatasetError: no picture can be used; or, if strict, some cannot.
    """
    bad = BadPictures(dataset, strict=strict, find_error=_header_error)
    bad.check()
    return bad


def _header_error(picture: ClassPicture) -> DatasetError | None:
    try:
        check_image(picture.path)
    except (ImageError, OSError) as error:
        return DatasetError(str(error))
    return None
