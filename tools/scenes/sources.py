"""The fonts and photographs that scenes are drawn with: files inside permissively licensed Python packages.

Nothing here is copied into this project: the files are looked up in the installed packages (`pip install
codetr-tensorrt[scenes]`). Train and val share no font family and no photograph.
The comments name licences and authors.

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


class MissingSourceError(UsageError):
    """A package that holds fonts or photographs is not installed, or lacks a file."""


def _files(package: str, folder: str, *names: str) -> tuple[Source, ...]:
    return tuple(Source(package, f"{folder}/{name}") for name in names)


_DEJAVU = (f"DejaVu{face}.ttf" for face in ("Sans", "Sans-Bold", "SansMono-Bold", "Serif", "Serif-Bold"))

FONTS: dict[str, tuple[Source, ...]] = {
    "train": (
        # Bitstream Vera, permissive
        *_files("matplotlib", "mpl-data/fonts/ttf", *_DEJAVU),
        # Apache-2.0
        *_files("font_roboto", "files", "Roboto-Regular.ttf", "Roboto-Bold.ttf", "Roboto-Black.ttf"),
        # OFL-1.1
        *_files("font_source_sans_pro", "files", "SourceSansPro-Semibold.ttf", "SourceSansPro-Black.ttf"),
        *_files("font_source_serif_pro", "files", "SourceSerifPro-Semibold.ttf", "SourceSerifPro-Bold.ttf"),
        *_files("font_manrope", "files", "Manrope-SemiBold.ttf", "Manrope-ExtraBold.ttf"),
        *_files("font_fredoka_one", "files", "FredokaOne-Regular.ttf"),
    ),
    "val": (
        # OFL-1.1
        *_files("font_lato", "files", "Lato-Regular.ttf", "Lato-Bold.ttf", "Lato-Black.ttf"),
        *_files("font_hanken_grotesk", "files", "HankenGrotesk-Medium.otf", "HankenGrotesk-Bold.otf"),
        # Apache-2.0
        *_files("font_caladea", "files", "Caladea-Regular.ttf", "Caladea-Bold.ttf"),
        # STIX, permissive
        *_files("matplotlib", "mpl-data/fonts/ttf", "STIXGeneralBol.ttf"),
    ),
}

PHOTOS: dict[str, tuple[Source, ...]] = {
    "train": (
        # astronaut, hubble_deep_field: NASA, public domain. rocket: SpaceX, public domain.
        # coffee: Rachel Michetti, CC0. camera: Lav Varshney, CC0. retina, brick, gravel: CC0.
        *_files("skimage", "data", "astronaut.png", "coffee.png", "rocket.jpg", "camera.png"),
        *_files("skimage", "data", "hubble_deep_field.jpg", "retina.jpg", "brick.png", "gravel.png"),
        # flower: vultilion, CC BY 2.0
        *_files("sklearn", "datasets/images", "flower.jpg"),
        # grace_hopper: US Navy, public domain
        *_files("matplotlib", "mpl-data/sample_data", "grace_hopper.jpg"),
    ),
    "val": (
        # chelsea: Stefan van der Walt, CC0. grass: CC0. coins: Brooklyn Museum, no known restrictions.
        *_files("skimage", "data", "chelsea.png", "grass.png", "coins.png"),
        # china: danielbuechele, CC BY 2.0
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
        f"the scenes need {source.file} of the package {source.package}, no such file: "
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
