"""Pictures that cannot be used: found before a run, named once, counted and left out. No Torch."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from codetr.cli.command import complain, one_line
from codetr.dataset.coco_files import CocoDataset, DatasetError, Picture, read_picture

_READERS = 16  # threads that read headers; they wait for the disk more than they compute
_TELL_S = 10.0  # between two lines on how far a check is


def check_pictures(
    pictures: Sequence[Picture], program: str = "codetr", shown: bool = True
) -> dict[int, DatasetError]:
    """Reads the header of every picture, in threads.

    1000 JPEG pictures of 640x480 take 0.2 s on two cores, from the page cache. Pixels that are damaged are
    not found. A check that lasts prints on stderr every ten seconds how far it is.

    Args:
        pictures: to check.
        program: name before what is printed.
        shown: whether to print.

    Returns:
        The error that `read_picture` raises, by the index of the picture, of those that are missing, are no
        pictures, or have not the size that the annotation file says.
    """
    errors = {}
    told = time.monotonic()
    # Pillow warns of large pictures, which are welcome; set here, as threads share the filters.
    with warnings.catch_warnings(), ThreadPoolExecutor(_READERS, "check") as pool:
        warnings.simplefilter("ignore")
        for index, error in enumerate(pool.map(_picture_error, pictures)):
            if error is not None:
                errors[index] = error
            if shown and time.monotonic() - told >= _TELL_S:
                told = time.monotonic()
                complain("checking", f"{index + 1} of {len(pictures)} pictures", program)
    return errors


def _picture_error(picture: Picture) -> DatasetError | None:
    from PIL import ExifTags, Image

    try:
        with Image.open(picture.path) as image:
            # The general method: that of PNG files decodes the pixels to reach what stands behind them.
            turned = Image.Image.getexif(image).get(ExifTags.Base.Orientation) in (5, 6, 7, 8)
            size = image.size[::-1] if turned else image.size
        if size == (picture.width, picture.height):
            return None
    except Exception:  # read_picture says in its words what it is
        pass
    try:
        read_picture(picture)
    except DatasetError as error:
        return error
    return None


class LeftOut:
    """The pictures of a dataset that cannot be used: each is named once on stderr and counted.

    Args:
        dataset: whose pictures are to be used.
        strict: a picture that cannot be used is an error.
        shown: whether to print; one of many processes does for what all of them find.
        program: name before what is printed.

    Attributes:
        errors: by the picture's id.
    """

    def __init__(
        self, dataset: CocoDataset, *, strict: bool = False, shown: bool = True, program: str = "codetr"
    ) -> None:
        self.dataset, self.strict, self.shown, self.program = dataset, strict, shown, program
        self.errors: dict[int, DatasetError] = {}

    @property
    def words(self) -> str:
        """As "3 of 500 pictures of <annotation file>"."""
        return f"{len(self.errors)} of {len(self.dataset)} pictures of {self.dataset.annotation_file}"

    def check(self) -> None:
        """Checks all pictures before they are used, see `check_pictures`, and names the bad ones.

        Raises:
            DatasetError: no picture can be used; or, if strict, some cannot.
        """
        pictures = self.dataset.pictures
        found = check_pictures(pictures, self.program, self.shown)
        self.errors = {pictures[index].id: error for index, error in found.items()}
        if not found:
            return
        first = one_line(next(iter(found.values())))
        if len(found) == len(pictures):
            file = self.dataset.annotation_file
            raise DatasetError(f"{first}; none of the {len(pictures)} pictures of {file} can be used")
        for error in found.values():
            self._tell("error" if self.strict else "warning", one_line(error))
        if self.strict:
            raise DatasetError(f"--strict: {self.words} cannot be used")
        self._tell("warning", f"{self.words} cannot be used and are left out")

    def add(self, picture: Picture, error: DatasetError) -> None:
        """Names and counts a picture that could not be read, unless that has been done.

        Raises:
            DatasetError: the error, if strict.
        """
        if self.strict:
            raise error
        if picture.id not in self.errors:
            self.errors[picture.id] = error
            complain("warning", f"{one_line(error)}; left out", self.program)

    def tell_supercategories(self) -> None:
        """Says which categories `load_coco` has left out."""
        for name in self.dataset.supercategories:
            file = self.dataset.annotation_file
            words = "is no class, it has no annotations and is the supercategory of others"
            self._tell("note", f"{file}: category {name!r} {words}")

    def usable(self) -> CocoDataset:
        """The dataset without the pictures that are known to be bad."""
        pictures = tuple(picture for picture in self.dataset.pictures if picture.id not in self.errors)
        return dataclasses.replace(self.dataset, pictures=pictures)

    def _tell(self, kind: str, message: str) -> None:
        if self.shown:
            complain(kind, message, self.program)
