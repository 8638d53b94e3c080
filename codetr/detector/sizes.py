"""Sizes of a network's input: what an export allows, and what a caller chooses. Imports no Torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from codetr.errors import ArgumentError

SIZE_DIVISOR = 32
"""Dynamic heights and widths are multiples of this, so that every map of the backbone halves evenly."""


class SizeRange(NamedTuple):
    """Smallest, usual and largest value of one dimension; all equal for a fixed dimension."""

    min: int
    opt: int
    max: int

    @property
    def dynamic(self) -> bool:
        """Whether the size is known only at run time."""
        return self.min < self.max

    def __str__(self) -> str:
        return "-".join(map(str, self)) if self.dynamic else str(self.opt)


def fixed(size: int) -> SizeRange:
    """Returns the range that holds one size."""
    return SizeRange(size, size, size)


@dataclass(frozen=True)
class InputSizes:
    """Sizes of the inputs `images` [N, 3, H, W] and `image_shapes` [N, 2] of an exported network."""

    batch: SizeRange  # N
    height: SizeRange  # H in pixels
    width: SizeRange

    @classmethod
    def of_artifact(cls, metadata: Any) -> InputSizes:
        """Reads the sizes of an exported file.

        Args:
            metadata: a `trt_plugin.ArtifactMetadata`.

        Raises:
            ValueError: pictures cannot be padded to the file's heights and widths.
        """
        usual = [metadata.batch, 3, metadata.resize["height"], metadata.resize["width"]]
        shapes = metadata.profiles.get("images", dict.fromkeys(SizeRange._fields, usual))
        batch, _, height, width = zip(*(shapes[name] for name in SizeRange._fields))
        result = cls(SizeRange(*batch), SizeRange(*height), SizeRange(*width))
        if result.resizable and any(side % SIZE_DIVISOR for side in (*height, *width)):
            expected = f"heights and widths that are multiples of {SIZE_DIVISOR}"
            raise ValueError(f"profiles: expected {expected}, got images {shapes}")
        return result

    @property
    def dynamic(self) -> bool:
        """Whether any size is known only at run time."""
        return self.batch.dynamic or self.resizable

    @property
    def resizable(self) -> bool:
        """Whether the height or the width is known only at run time."""
        return self.height.dynamic or self.width.dynamic

    def shapes(self) -> dict[str, list[int]]:
        """Returns the shape of each input, with -1 for a dynamic size."""
        n, h, w = (-1 if size.dynamic else size.opt for size in (self.batch, self.height, self.width))
        return {"images": [n, 3, h, w], "image_shapes": [n, 2]}

    def profiles(self) -> dict[str, dict[str, list[int]]]:
        """Returns the "min", "opt" and "max" shape of each input that has a dynamic size."""
        profiles: dict[str, dict[str, list[int]]] = {"images": {}, "image_shapes": {}}
        for which in SizeRange._fields:
            n, h, w = (getattr(size, which) for size in (self.batch, self.height, self.width))
            profiles["images"][which] = [n, 3, h, w]
            profiles["image_shapes"][which] = [n, 2]
        return {name: profiles[name] for name, shape in self.shapes().items() if -1 in shape}

    def __str__(self) -> str:
        return f"{self.batch} x 3 x {self.height} x {self.width}"


@dataclass(frozen=True)
class ChosenSize:
    """The input size that a caller chooses. Without a choice pictures are resized as the model was published.

    The fields are arguments of `codetr.Detector`; `imgsz` may also be text, "640" or "480x640".

    Raises:
        ArgumentError: a size is not positive, or two choices contradict each other.
    """

    max_size: int | None = None
    height: int | None = None
    width: int | None = None
    imgsz: int | tuple[int, int] | str | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("max_size", "height", "width") if getattr(self, name) is not None]
        for name in given:
            if getattr(self, name) < 1:
                raise ArgumentError(name, f"expected a positive number of pixels, got {getattr(self, name)}")
        if self.imgsz is not None:
            if given:
                raise ArgumentError("imgsz", f"expected alone, got {' and '.join(given)} too")
            object.__setattr__(self, "imgsz", _image_size(self.imgsz))
        if (self.height is None) != (self.width is None):
            missing = "height" if self.height is None else "width"
            raise ArgumentError(missing, "expected a size, height and width belong together, got none")
        if self.height is not None and self.max_size is not None:
            raise ArgumentError("max_size", "expected none with a fixed height and width")

    @property
    def height_width(self) -> tuple[int, int] | None:
        """The fixed height and width, or None."""
        if isinstance(self.imgsz, tuple):
            return self.imgsz
        return None if self.height is None else (self.height, self.width)

    def scale(self, published: Sequence[int] | None) -> tuple[int, int] | None:
        """Returns the limits (long side, short side) of a resized picture; None for no limit.

        Args:
            published: the model's own limits; None if they are not known.
        """
        if isinstance(self.imgsz, int):
            return self.imgsz, self.imgsz
        if self.max_size is None:
            return None if published is None else (max(published), min(published))
        limits = published or (self.max_size,)
        return min(max(limits), self.max_size), min(min(limits), self.max_size)

    def check_fits(self, sizes: InputSizes, file: str) -> None:
        """Checks that an exported file can take the size.

        Args:
            file: kind and path of the file, for the message.

        Raises:
            ArgumentError: the file has a fixed size, or one outside of its range was chosen.
        """
        names = ("imgsz", "max_size", "height", "width")
        given = next((name for name in names if getattr(self, name) is not None), None)
        if given is not None and not sizes.resizable:
            raise ArgumentError(given, f"is fixed in the {file}, leave it out")
        for name, size in zip(("height", "width"), self.height_width or ()):
            least, _, most = getattr(sizes, name)
            if size % SIZE_DIVISOR or not least <= size <= most:
                expected = f"a multiple of {SIZE_DIVISOR} from {least} to {most}, the range of the {file}"
                problem = f"expected {expected}, got {size}"
                raise ArgumentError(name if self.imgsz is None else "imgsz", problem)


def _image_size(imgsz: object) -> int | tuple[int, int]:
    words = "x".join(map(str, imgsz)) if isinstance(imgsz, (tuple, list)) else str(imgsz)
    match = re.fullmatch(r"([1-9]\d{0,4})(?:[x,]([1-9]\d{0,4}))?", words, re.ASCII)
    if match is None:
        raise ArgumentError("imgsz", f"expected pixels (640) or HEIGHTxWIDTH (480x640), got {imgsz!r}")
    return int(match[1]) if match[2] is None else (int(match[1]), int(match[2]))
