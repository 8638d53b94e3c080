"""The pictures that a command reads (files, folders, globs), and the folder that it writes to."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from codetr.detector.preprocess import IMAGE_SUFFIXES
from codetr.draw import draw_detections
from codetr.errors import ArgumentError, UsageError
from codetr.results import Detections
from trt_plugin.atomic_files import atomic_write, new_folder

JPEG = {"format": "JPEG", "quality": 92, "subsampling": 0}
"""How annotated pictures are saved. Chroma subsampling would smear their thin coloured lines."""


@dataclass(frozen=True)
class Picture:
    """One input."""

    path: Path
    name: str  # path below the folder that all inputs share, with "/"; the file_name in detections.json
    output_name: str  # file name of the annotated picture


def find_pictures(arguments: Sequence[str]) -> list[Picture]:
    """Expands files, folders and globs ("**" reaches subfolders), in order, each file once.

    A folder or glob gives the files with a picture's suffix. A file may have any suffix.

    Raises:
        UsageError: there is no such file, a folder holds no picture, or a glob matches none.
    """
    paths: dict[Path, Path] = {}
    for argument in arguments:
        for path in _expand(argument):
            paths.setdefault(path.resolve(), path)
    absolute = [Path(os.path.abspath(path)) for path in paths.values()]
    shared = os.path.commonpath([path.parent for path in absolute])
    taken: set[str] = set()
    return [
        Picture(path, printable(full.relative_to(shared).as_posix()), _free_name(path.stem, taken))
        for path, full in zip(paths.values(), absolute, strict=True)
    ]


def _expand(argument: str) -> list[Path]:
    path = Path(argument)
    if argument and path.is_file():
        return [path]
    if argument and path.is_dir():
        entries = sorted(path.iterdir())
        missing = f"{argument}: the folder holds no picture (looked for {', '.join(sorted(IMAGE_SUFFIXES))})"
    elif glob.has_magic(argument):
        entries = [Path(match) for match in sorted(glob.glob(argument, recursive=True))]
        missing = f"{argument}: no picture matches"
    else:
        raise UsageError(f"{argument}: no such file" if argument else "IMAGE: expected a path, got ''")
    found = [
        entry
        for entry in entries
        if entry.suffix.lower() in IMAGE_SUFFIXES and not entry.name.startswith(".") and entry.is_file()
    ]
    if not found:
        raise UsageError(missing)
    return found


def printable(path: str) -> str:
    """Replaces bytes of a file's name that are not UTF-8, which terminals and JSON do not take."""
    return os.fsencode(path).decode("utf-8", "replace")


def _free_name(stem: str, taken: set[str]) -> str:
    """Returns <stem>.jpg, or <stem>_2.jpg, … where that is taken. Some file systems do not tell A from a."""
    names = itertools.chain([f"{stem}.jpg"], (f"{stem}_{number}.jpg" for number in itertools.count(2)))
    name = next(name for name in names if name.lower() not in taken)
    taken.add(name.lower())
    return name


def draw_on(image: Any, found: Detections) -> np.ndarray:
    """Draws detections on a picture; returns uint8 [H, W, 3], RGB.

    Args:
        image: uint8 [H, W, 3], RGB, or a `trt_plugin.image_input.DeviceImage`.
    """
    pixels = image if isinstance(image, np.ndarray) else image.to_host()
    return draw_detections(pixels, found.boxes_xyxy_px, found.scores, found.labels, found.class_names)


def save_jpeg(pixels: np.ndarray, path: Path) -> None:
    """Writes an annotated picture."""
    with atomic_write(path) as temporary:
        Image.fromarray(pixels).save(temporary, **JPEG)


def save_crops(image: Any, found: Detections, folder: Path, prefix: str) -> None:
    """Writes the pixels of each box to <folder>/<class>/<prefix>_<rank>.jpg, the best score first.

    Args:
        image: as for `draw_on`.
    """
    pixels = image if isinstance(image, np.ndarray) else image.to_host()
    edges = np.hstack((np.floor(found.boxes_xyxy_px[:, :2]), np.ceil(found.boxes_xyxy_px[:, 2:])))
    for rank, (name, box) in enumerate(zip(found.names(), edges.astype(int).tolist(), strict=True), 1):
        left, top, right, bottom = box
        crop = pixels[top : max(bottom, top + 1), left : max(right, left + 1)]
        if crop.size:  # a box on the right or lower border may have no pixel
            path = folder / re.sub(r"[^\w .-]", "_", name) / f"{prefix}_{rank}.jpg"
            save_jpeg(np.ascontiguousarray(crop), path)


@contextlib.contextmanager
def output_folder(path: Path, pictures: Sequence[Picture] = ()) -> Iterator[None]:
    """Creates the folder for results; an error in the block removes it if nothing was written.

    Args:
        pictures: the inputs, which no output may replace.

    Raises:
        ArgumentError: the folder cannot be written, or an output would replace an input.
    """
    inputs = {picture.path.resolve() for picture in pictures}
    for target in (path / picture.output_name for picture in pictures):
        if target.resolve() in inputs:
            raise ArgumentError("out", f"expected another folder, {target} would replace an input")
    with contextlib.ExitStack() as created:
        try:
            created.enter_context(new_folder(path))
            tempfile.TemporaryFile(dir=path).close()
        except OSError as error:
            reason = "it is a file" if path.is_file() else error.strerror
            raise ArgumentError("out", f"expected a folder to write, got {path} ({reason})") from error
        yield
