"""Sizes of an export's input: fixed, or ranges with the size that an engine is tuned for. No Torch."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

SIZE_DIVISOR = 32
"""A dynamic height or width is a multiple of this: every map of the backbone then halves evenly."""


class Range(NamedTuple):
    """Smallest, usual and largest of a size; all the same where it is fixed."""

    min: int
    opt: int
    max: int

    @property
    def dynamic(self) -> bool:
        """Whether the size is decided at run time."""
        return self.min < self.max

    def __str__(self) -> str:
        return "-".join(map(str, self)) if self.dynamic else str(self.opt)


def fixed(size: int) -> Range:
    """The range of one size."""
    return Range(size, size, size)


@dataclass(frozen=True)
class InputSizes:
    """Of `images` [N, 3, H, W] and `image_shapes` [N, 2].

    Attributes:
        batch: N.
        height, width: H and W in pixels.
    """

    batch: Range
    height: Range
    width: Range

    @classmethod
    def of_artifact(cls, metadata: Any) -> InputSizes:
        """The sizes of an exported file, of its `trt_plugin.ArtifactMetadata`.

        Raises:
            ValueError: heights and widths that pictures cannot be padded to.
        """
        usual = [metadata.batch, 3, metadata.resize["height"], metadata.resize["width"]]
        shapes = metadata.profiles.get("images", dict.fromkeys(Range._fields, usual))
        batch, _, height, width = (Range(*sizes) for sizes in zip(*(shapes[name] for name in Range._fields)))
        result = cls(batch, height, width)
        if result.resizable and any(side % SIZE_DIVISOR for side in (*height, *width)):
            raise ValueError(
                f"profiles: expected heights and widths that are multiples of {SIZE_DIVISOR}, "
                f"got images {shapes}"
            )
        return result

    @property
    def dynamic(self) -> bool:
        """Whether any of them is decided at run time."""
        return self.batch.dynamic or self.resizable

    @property
    def resizable(self) -> bool:
        """Whether height or width is decided at run time."""
        return self.height.dynamic or self.width.dynamic

    def refusal(
        self, kind: str, file: str | Path, max_size: int | None, height: int | None, width: int | None
    ) -> tuple[str, str] | None:
        """Finds the first size that a caller gave and the exported file cannot follow.

        Args:
            kind: "engine" or "ONNX file".
            file: path of the file.
            max_size, height, width: as `codetr.Detector` has them.

        Returns:
            (name of the argument, what is wrong with it), or None.
        """
        for name, size in (("max_size", max_size), ("height", height), ("width", width)):
            if size is None:
                continue
            if not self.resizable:
                return name, f"is fixed in the {kind} {file}, leave it out"
            if name == "max_size":
                continue
            least, _, most = getattr(self, name)
            if size % SIZE_DIVISOR or not least <= size <= most:
                return name, (
                    f"expected a multiple of {SIZE_DIVISOR} from {least} to {most}, the range of {file}, "
                    f"got {size}"
                )
        return None

    def shapes(self) -> dict[str, list[int]]:
        """Shape of each input, -1 for a size decided at run time."""
        n, h, w = (-1 if size.dynamic else size.opt for size in (self.batch, self.height, self.width))
        return {"images": [n, 3, h, w], "image_shapes": [n, 2]}

    def profiles(self) -> dict[str, dict[str, list[int]]]:
        """Smallest ("min"), usual ("opt") and largest ("max") shape of each input with a dynamic size."""
        profiles: dict[str, dict[str, list[int]]] = {"images": {}, "image_shapes": {}}
        for which in Range._fields:
            n, h, w = (getattr(size, which) for size in (self.batch, self.height, self.width))
            profiles["images"][which] = [n, 3, h, w]
            profiles["image_shapes"][which] = [n, 2]
        return {name: profiles[name] for name, shape in self.shapes().items() if -1 in shape}

    def __str__(self) -> str:
        return f"{self.batch} x 3 x {self.height} x {self.width}"


def batch_range(text: str) -> Range:
    """Type of an argument: "4"; "1-8", tuned for the first; or "1-4-8", tuned for the one between."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?(?:-(\d+))?", text, re.ASCII)
    numbers = [int(number) for number in match.groups() if number is not None] if match else []
    if not numbers or numbers[0] < 1:
        raise argparse.ArgumentTypeError(
            f"expected a whole number above 0, or a range such as 1-8, got {text!r}"
        )
    if len(numbers) == 2:
        numbers.insert(1, numbers[0])
    return _ordered(text, numbers if len(numbers) == 3 else numbers * 3)


def size_ranges(text: str) -> tuple[Range, Range]:
    """Type of an argument: MIN-OPT-MAX, each one number of pixels (a square) or HEIGHTxWIDTH.

    Returns:
        Of height and width, multiples of `SIZE_DIVISOR`.
    """
    match = re.fullmatch(r"-".join([r"(\d+)(?:x(\d+))?"] * 3), text, re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"expected MIN-OPT-MAX, such as 512-768x1152-1344 (HEIGHTxWIDTH, or one number), got {text!r}"
        )
    heights = [int(number) for number in match.groups()[::2]]
    widths = [int(width or height) for height, width in zip(heights, match.groups()[1::2])]
    wrong = next((size for size in (*heights, *widths) if size < 1 or size % SIZE_DIVISOR), None)
    if wrong is not None:
        raise argparse.ArgumentTypeError(f"expected multiples of {SIZE_DIVISOR}, got {wrong} in {text!r}")
    return _ordered(text, heights), _ordered(text, widths)


def _ordered(text: str, numbers: list[int]) -> Range:
    if numbers != sorted(numbers):
        raise argparse.ArgumentTypeError(f"expected MIN <= OPT <= MAX, got {text!r}")
    return Range(*numbers)


def reshape_target(sizes: Sequence[int | None], stays: Sequence[bool]) -> tuple[int, ...] | None:
    """The constant shape that makes a reshape give a shape of symbols: 0 copies a size, -1 is what is left.

    Args:
        sizes: of the result, None for a symbol.
        stays: whether the size is that of the same dimension before.

    Returns:
        None if a constant cannot say it: two sizes or more would be left over, or one is 0 itself.
    """
    target = tuple(
        size if size is not None else 0 if same else -1 for size, same in zip(sizes, stays, strict=True)
    )
    return target if target.count(-1) <= 1 and 0 not in sizes else None
