"""Finds pictures that cannot be used, before a run; reports, counts and leaves them out. Imports no Torch."""

from __future__ import annotations

import dataclasses
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from codetr.dataset.coco_files import CocoPicture, DatasetError, read_picture
from codetr.errors import one_line

_READERS = 16  # threads that read headers; they wait for the disk more than they compute
_REPORT_S = 10.0  # seconds between two reports of a long check


class Dataset(Protocol):
    """A dataclass with pictures: `CocoDataset`, or `codetr.classify.class_folders.ClassFolders`."""

    pictures: Sequence[Any]  # each has an `id`
    source: Path  # the file or folder that the user gave
    notes: Sequence[str]  # lines for the user


D = TypeVar("D", bound=Dataset)


def coco_picture_error(picture: CocoPicture) -> DatasetError | None:
    """Returns the error of `read_picture`, unless the header shows the stated size."""
    from PIL import ExifTags, Image

    try:
        with Image.open(picture.path) as image:
            # The general method: that of PNG files decodes the pixels to reach the data behind them.
            turned = Image.Image.getexif(image).get(ExifTags.Base.Orientation) in (5, 6, 7, 8)
            size = image.size[::-1] if turned else image.size
        if size == (picture.width, picture.height):
            return None
    except Exception:  # read_picture words the error
        pass
    try:
        read_picture(picture)
    except DatasetError as error:
        return error
    return None


class BadPictures(Generic[D]):
    """The pictures of a dataset that cannot be used. Each is reported once on stderr and counted.

    Args:
        strict: a picture that cannot be used is an error.
        shown: whether to report the results of `check`, which all processes of a run find.
        find_error: reads the header of a picture and returns the error, or None.
    """

    def __init__(
        self,
        dataset: D,
        *,
        strict: bool = False,
        shown: bool = True,
        program: str = "codetr",
        find_error: Callable[[Any], DatasetError | None] = coco_picture_error,
    ) -> None:
        self.dataset, self.strict, self.shown, self.program = dataset, strict, shown, program
        self.find_error = find_error
        self.errors: dict[int, DatasetError] = {}  # by the picture's id

    def __str__(self) -> str:
        return f"{len(self.errors)} of {len(self.dataset.pictures)} pictures of {self.dataset.source}"

    def check(self) -> None:
        """Reports the dataset's notes. Reads the header of every picture in threads and reports the bad ones.

        1000 JPEG pictures of 640x480 take 0.2 s on two cores, from the page cache. It does not find damaged
        pixels.

        Raises:
            DatasetError: no picture can be used; or, if strict, some cannot.
        """
        for note in self.dataset.notes:
            self._report("note", note)
        pictures, reported = self.dataset.pictures, time.monotonic()
        # Pillow warns about large pictures. The filter stands here because threads share it.
        with warnings.catch_warnings(), ThreadPoolExecutor(_READERS, "check") as pool:
            warnings.simplefilter("ignore")
            for index, error in enumerate(pool.map(self.find_error, pictures)):
                if error is not None:
                    self.errors[pictures[index].id] = error
                if time.monotonic() - reported >= _REPORT_S:
                    reported = time.monotonic()
                    self._report("checking", f"{index + 1} of {len(pictures)} pictures")
        if not self.errors:
            return
        if len(self.errors) == len(pictures):
            first, file = one_line(self.errors[pictures[0].id]), self.dataset.source
            raise DatasetError(f"{first}; none of the {len(pictures)} pictures of {file} can be used")
        for error in self.errors.values():
            self._report("error" if self.strict else "warning", one_line(error))
        if self.strict:
            raise DatasetError(f"--strict: {self} cannot be used")
        self._report("warning", f"{self} cannot be used and are left out")

    def add(self, picture: Any, error: DatasetError) -> None:
        """Reports and counts a picture that could not be read, the first time.

        Raises:
            DatasetError: `error`, if strict.
        """
        if self.strict:
            raise error
        if picture.id not in self.errors:
            self.errors[picture.id] = error
            print(f"{self.program}: warning: {one_line(error)}; left out", file=sys.stderr, flush=True)

    def usable(self) -> D:
        """Returns the dataset without the pictures that cannot be used."""
        pictures = tuple(picture for picture in self.dataset.pictures if picture.id not in self.errors)
        return dataclasses.replace(self.dataset, pictures=pictures)

    def _report(self, kind: str, message: str) -> None:
        if self.shown:
            print(f"{self.program}: {kind}: {message}", file=sys.stderr, flush=True)
