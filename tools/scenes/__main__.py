"""`python -m tools.scenes`: writes a dataset of scenes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from codetr.cli.command import ArgumentParser, UsageError, check_writable, positive, run_command, to_path

PROGRAM = "tools.scenes"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status, see `codetr.cli.command`."""

    def command() -> int:
        return _write(_parser().parse_args(argv))

    return run_command(command, PROGRAM)


def _parser() -> argparse.ArgumentParser:
    parser = ArgumentParser(
        prog="python -m tools.scenes",
        description="Makes scenes with twenty classes of drawn objects, a dataset in COCO's layout. The same "
        "seed gives the same scenes, with any number of workers.",
    )
    add = parser.add_argument
    add("--out", type=to_path, required=True, metavar="DIR", help="folder of the dataset; made if missing")
    add("--train", type=_count, default=0, metavar="N", help="scenes for training (default: 0)")
    add("--val", type=_count, default=0, metavar="N", help="held-out scenes (default: 0)")
    add("--seed", type=_count, default=0, metavar="S", help="default: 0")
    add("--size", type=_size, default=640, metavar="PX", help="limit of the longer side (default: 640)")
    add("--workers", type=positive, metavar="W", help="processes (default: one a core)")
    return parser


def _write(arguments: argparse.Namespace) -> int:
    from codetr.cli.console import progress
    from tools.scenes.dataset import annotation_file, default_workers, write_split
    from tools.scenes.sources import MissingSourceError, check_sources

    counts = {name: count for name, count in (("train", arguments.train), ("val", arguments.val)) if count}
    if not counts:
        raise UsageError("--train, --val: give the number of scenes of at least one, both are 0")
    for split in counts:
        file = annotation_file(arguments.out, split)
        pictures = arguments.out / split
        for taken in (file, pictures):
            if taken.is_file() or (taken.is_dir() and any(taken.iterdir())):
                raise UsageError(f"--out {arguments.out}: {taken} exists already; give another folder")
        check_writable("--out", file)
    try:
        check_sources(tuple(counts))
    except MissingSourceError as error:
        raise UsageError(str(error)) from error
    with progress(sum(counts.values()), shown=True, doing="drawing") as advance:
        for split, count in counts.items():
            write_split(
                arguments.out,
                split,
                count,
                arguments.seed,
                size=arguments.size,
                workers=arguments.workers or default_workers(),
                advance=advance,
            )
    written = " and ".join(f"{count} {split} scenes" for split, count in counts.items())
    print(f"wrote {written} to {arguments.out}")
    return 0


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number, 0 or more, got {text!r}")
    return int(text)


def _size(text: str) -> int:
    if not text.isdecimal() or int(text) < 160:
        raise argparse.ArgumentTypeError(f"expected a whole number of pixels, 160 or more, got {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
