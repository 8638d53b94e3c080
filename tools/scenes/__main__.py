"""`python -m tools.scenes`: writes a dataset of scenes."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Annotated

from cyclopts.types import NonNegativeInt, PositiveInt
from cyclopts.validators import Number

from codetr.cli.argument_types import Folder, Parameter
from codetr.cli.program import run_program
from codetr.errors import ArgumentError
from codetr.export.output_folder import staged_folder


def write_scenes(
    *,
    out: Folder,
    train: NonNegativeInt = 0,
    val: NonNegativeInt = 0,
    seed: NonNegativeInt = 0,
    size: Annotated[int, Parameter(validator=Number(gte=160), metavar="PX")] = 640,
    workers: PositiveInt | None = None,
) -> int:
    """Draw scenes with objects of twenty classes, a dataset in COCO's layout.

    The same seed gives the same scenes, with any number of workers. The dataset appears when all scenes are
    drawn.

    Args:
        out: folder of the dataset.
        train: number of scenes for training.
        val: number of scenes for validation.
        seed: seed of all scenes.
        size: limit of the longer side.
        workers: processes. Default: one for each core.
    """
    from codetr.cli.console import progress
    from tools.scenes.scene_dataset import write_split
    from tools.scenes.sources import check_sources

    counts = {name: count for name, count in (("train", train), ("val", val)) if count}
    if not counts:
        raise ArgumentError("train", "expected --train or --val above 0, got 0 for both")
    for taken in (*counts, "annotations"):
        if (out / taken).exists():
            raise ArgumentError("out", f"expected a folder without {taken}, got {out}")
    check_sources(tuple(counts))
    workers = workers or os.cpu_count() or 1
    with staged_folder(out) as folder, progress(sum(counts.values()), doing="drawing") as advance:
        for split, count in counts.items():
            write_split(folder, split, count, seed, size=size, workers=workers, advance=advance)
    written = " and ".join(f"{count} {split} scenes" for split, count in counts.items())
    print(f"wrote {written} to {out}")
    return 0


main = partial(run_program, write_scenes, program="python -m tools.scenes")

if __name__ == "__main__":
    sys.exit(main())
