"""The fonts and photographs that scenes are drawn with: files inside permissively licensed Python packages.

Nothing here is copied into this project: the files are looked up in the installed packages (`pip install
codetr-tensorrt[scenes]`). Train and val share no font family and no photograph.

| fonts                                   | package               | licence                    | split |
|-----------------------------------------|-----------------------|----------------------------|-------|
| DejaVu Sans, Sans Mono, Serif           | matplotlib            | Bitstream Vera, permissive | train |
| Roboto                                  | font-roboto           | Apache-2.0                 | train |
| Source Sans Pro                         | font-source-sans-pro  | OFL-1.1                    | train |
| Source Serif Pro                        | font-source-serif-pro | OFL-1.1                    | train |
| Manrope                                 | font-manrope          | OFL-1.1                    | train |
| Fredoka One                             | font-fredoka-one      | OFL-1.1                    | train |
| Lato                                    | font-lato             | OFL-1.1                    | val   |
| Hanken Grotesk                          | font-hanken-grotesk   | OFL-1.1                    | val   |
| Caladea                                 | font-caladea          | Apache-2.0                 | val   |
| STIX General                            | matplotlib            | STIX, permissive           | val   |

| photographs                             | package               | licence                    | split |
|-----------------------------------------|-----------------------|----------------------------|-------|
| astronaut, hubble_deep_field (NASA)     | scikit-image          | public domain              | train |
| rocket (SpaceX)                         | scikit-image          | public domain              | train |
| coffee (Rachel Michetti)                | scikit-image          | CC0                        | train |
| camera (Lav Varshney)                   | scikit-image          | CC0                        | train |
| retina, brick, gravel                   | scikit-image          | CC0                        | train |
| flower (vultilion)                      | scikit-learn          | CC BY 2.0                  | train |
| grace_hopper (US Navy)                  | matplotlib            | public domain              | train |
| chelsea (Stefan van der Walt)           | scikit-image          | CC0                        | val   |
| grass                                   | scikit-image          | CC0                        | val   |
| coins (Brooklyn Museum)                 | scikit-image          | no known restrictions      | val   |
| china (danielbuechele)                  | scikit-learn          | CC BY 2.0                  | val   |

Other pictures of these packages are left out because their licence is not stated (moon, motorcycle), because
letters or digits are in them (page, text, clock_motion), or because they are no photographs.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from codetr.errors import UsageError

SPLITS = ("train", "val")
_LONGEST_PHOTO_PX = 900  # larger ones are reduced once, for no scene shows more


class Source(NamedTuple):
    """A file of an installed package."""

    package: str  # as it is imported
    file: str  # inside the package

    @property
    def distribution(self) -> str:
        """Name of the package for pip."""
        known = {"skimage": "scikit-image", "sklearn": "scikit-learn"}
        return known.get(self.package, self.package.replace("_", "-"))


class MissingSourceError(UsageError):
    """A package that holds fonts or photographs is not installed, or lacks a file."""


def _files(package: str, folder: str, *names: str) -> tuple[Source, ...]:
    return tuple(Source(package, f"{folder}/{name}") for name in names)


_DEJAVU = (f"DejaVu{face}.ttf" for face in ("Sans", "Sans-Bold", "SansMono-Bold", "Serif", "Serif-Bold"))

FONTS: dict[str, tuple[Source, ...]] = {
    "train": (
        *_files("matplotlib", "mpl-data/fonts/ttf", *_DEJAVU),
        *_files("font_roboto", "files", "Roboto-Regular.ttf", "Roboto-Bold.ttf", "Roboto-Black.ttf"),
        *_files("font_source_sans_pro", "files", "SourceSansPro-Semibold.ttf", "SourceSansPro-Black.ttf"),
        *_files("font_source_serif_pro", "files", "SourceSerifPro-Semibold.ttf", "SourceSerifPro-Bold.ttf"),
        *_files("font_manrope", "files", "Manrope-SemiBold.ttf", "Manrope-ExtraBold.ttf"),
        *_files("font_fredoka_one", "files", "FredokaOne-Regular.ttf"),
    ),
    "val": (
        *_files("font_lato", "files", "Lato-Regular.ttf", "Lato-Bold.ttf", "Lato-Black.ttf"),
        *_files("font_hanken_grotesk", "files", "HankenGrotesk-Medium.otf", "HankenGrotesk-Bold.otf"),
        *_files("font_caladea", "files", "Caladea-Regular.ttf", "Caladea-Bold.ttf"),
        *_files("matplotlib", "mpl-data/fonts/ttf", "STIXGeneralBol.ttf"),
    ),
}

_TRAIN_PHOTOS = ("astronaut.png", "coffee.png", "rocket.jpg", "camera.png", "hubble_deep_field.jpg")
PHOTOS: dict[str, tuple[Source, ...]] = {
    "train": (
        *_files("skimage", "data", *_TRAIN_PHOTOS, "retina.jpg", "brick.png", "gravel.png"),
        *_files("sklearn", "datasets/images", "flower.jpg"),
        *_files("matplotlib", "mpl-data/sample_data", "grace_hopper.jpg"),
    ),
    "val": (
        *_files("skimage", "data", "chelsea.png", "grass.png", "coins.png"),
        *_files("sklearn", "datasets/images", "china.jpg"),
    ),
}


def locate(source: Source) -> Path:
    """Finds a source's file, without importing its package.

    Raises:
        MissingSourceError: the package is not installed, or holds no such file.
    """
    spec = find_spec(source.package)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        if (Path(folder) / source.file).is_file():
            return Path(folder) / source.file
    raise MissingSourceError(
        f"the scenes need {source.file} of the package {source.distribution}, no such file: "
        "pip install 'codetr-tensorrt[scenes]'"
    )


def check_sources(splits: tuple[str, ...]) -> None:
    """Raises `MissingSourceError` if a file for scenes of these splits is missing."""
    for split in splits:
        for source in (*FONTS[split], *PHOTOS[split]):
            locate(source)


@cache
def photo(source: Source) -> np.ndarray:
    """Reads a photograph: uint8 [H, W, 3], RGB, its longer side at most 900 pixels."""
    from PIL import Image

    with Image.open(locate(source)) as opened:
        image = np.array(opened.convert("RGB"))
    scale = _LONGEST_PHOTO_PX / max(image.shape[:2])
    if scale < 1:
        image = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    image.setflags(write=False)  # shared by all scenes
    return image
