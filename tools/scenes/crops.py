"""`python -m tools.scenes.crops`: cuts a classification dataset from scenes, one object a picture.

Each picture is a square around one object of a scene of its own, with its surroundings. Train and val share
neither fonts nor photographs nor textures, as the scenes.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import numpy as np
from cyclopts.types import NonNegativeInt, PositiveInt

from codetr.cli.argument_types import Folder
from codetr.cli.program import run_program
from codetr.errors import ArgumentError
from tools.scenes import camera_effects
from tools.scenes.backgrounds import background
from tools.scenes.canvas import Canvas
from tools.scenes.object_classes import CLASS_NAMES, NOTHING
from tools.scenes.scene import STRENGTH
from tools.scenes.scene_dataset import run_in_processes, write_jpeg
from tools.scenes.sources import SPLITS, check_sources

SMALLEST_PX, LARGEST_PX = 96, 160
_SCENE_PX = 280  # side of the scene that a crop is cut from
_DISTRACTORS = 3.0  # mean number in a scene


def make_crop(seed: int, split: str, index: int) -> tuple[np.ndarray, int, int]:
    """Makes a picture of one object. It depends only on the arguments and the installed packages.

    The geometric mean of the object's sides is 0.3 to 0.8 of the picture's side. The whole object lies in the
    middle 7/8 of the picture, and distractors hide at most 40% of it.

    Args:
        seed: 0 or more.
        split: "train" or "val", which selects fonts, photographs and textures; train is a little harder.
        index: the picture's number in its split, 0 or more. The classes take turns.

    Returns:
        uint8 [S, S, 3], RGB, S from 96 to 160; the label, an index into `CLASS_NAMES`; JPEG quality, 75..95.

    Raises:
        MissingSourceError: a package with fonts or photographs is not installed.
    """
    label = index % len(CLASS_NAMES)
    # The last number tells these draws from those of `make_scene`.
    rng = np.random.default_rng([seed, SPLITS.index(split), index, 1])
    while True:
        side = int(rng.integers(SMALLEST_PX, LARGEST_PX + 1))
        canvas = Canvas(background(rng, split, _SCENE_PX, _SCENE_PX)[0], rng, split)
        canvas.add(label, side * float(np.exp(rng.uniform(np.log(0.3), np.log(0.8)))))
        if not canvas.boxes:  # the object found no place where it stands out
            continue
        for _ in range(int(rng.poisson(_DISTRACTORS))):
            canvas.add(NOTHING, side * rng.uniform(0.1, 0.35))
        window = _window(rng, canvas.boxes[0], side)
        if window is not None:
            break
    image = camera_effects.apply(
        rng, canvas.image, canvas.smallest_px, canvas.least_contrast, STRENGTH[split]
    )
    return np.ascontiguousarray(image[window]), label, int(rng.integers(75, 96))


def _window(
    rng: np.random.Generator, box: tuple[float, float, float, float], side: int
) -> tuple[slice, slice] | None:
    """Places a square at random so that the whole object is inside; None if there is no such place.

    The margin is what the centre crop of an evaluation (224 of 256 pixels) cuts off.
    """
    margin, starts = side // 16, []
    for low, high in ((box[1], box[3]), (box[0], box[2])):
        if low <= 0 or high >= _SCENE_PX:  # the scene's border may cut the object off
            return None
        first = max(0, int(np.ceil(high)) + margin - side)
        last = min(int(low) - margin, _SCENE_PX - side)
        if first > last:
            return None
        starts.append(int(rng.integers(first, last + 1)))
    return slice(starts[0], starts[0] + side), slice(starts[1], starts[1] + side)


def _write_crop(folder: Path, split: str, seed: int, index: int) -> None:
    image, label, quality = make_crop(seed, split, index)
    write_jpeg(folder / CLASS_NAMES[label] / f"{index:06d}.jpg", image, quality)


def write_crops(
    out: Folder,
    /,
    *,
    train: NonNegativeInt = 0,
    val: NonNegativeInt = 0,
    seed: NonNegativeInt = 0,
    workers: PositiveInt | None = None,
) -> int:
    """Draw a classification dataset of twenty classes, one object a picture of 96 to 160 pixels.

    The same seed gives the same pictures, with any number of workers. The dataset appears when all pictures
    are drawn: OUT/train and OUT/val with a folder for each class.

    Args:
        out: folder of the dataset.
        train: number of pictures for training.
        val: number of pictures for validation, with other fonts, photographs and textures.
        seed: seed of all pictures.
        workers: processes. Default: one for each core.
    """
    from codetr.cli.console import progress
    from codetr.export.output_folder import staged_folder

    counts = {name: count for name, count in (("train", train), ("val", val)) if count}
    if not counts:
        raise ArgumentError("train", "expected --train or --val above 0, got 0 for both")
    for split, count in counts.items():
        if count < len(CLASS_NAMES):
            raise ArgumentError(
                split, f"expected {len(CLASS_NAMES)} or more, one for each class, got {count}"
            )
        if (out / split).exists():
            raise ArgumentError(split, f"expected a folder without {split}, got {out}")
    check_sources(tuple(counts))
    workers = workers or os.cpu_count() or 1
    with staged_folder(out) as folder, progress(sum(counts.values()), doing="drawing") as advance:
        for split, count in counts.items():
            for name in CLASS_NAMES:
                (folder / split / name).mkdir(parents=True)
            for _ in run_in_processes(
                functools.partial(_write_crop, folder / split, split, seed), count, workers
            ):
                advance(1)
    written = " and ".join(f"{count} {split} pictures" for split, count in counts.items())
    print(f"wrote {written} to {out}")
    return 0


main = functools.partial(run_program, write_crops, program="python -m tools.scenes.crops")

if __name__ == "__main__":
    sys.exit(main())
