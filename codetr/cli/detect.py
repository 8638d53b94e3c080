"""The command `codetr`: `codetr detect` on pictures, `codetr train` and `codetr evaluate` on COCO-style data.

Exit status: 0, all pictures are done; 1, something failed while running, or some of many pictures could not
be processed (the others are done, and detections.json holds them); 2, wrong arguments or no readable picture.
Every failure ends in one line "codetr: error: …" on stderr (see `codetr.cli.command`); files are whole or absent.

Nothing here imports Torch: `--backend tensorrt` and `--backend onnxruntime` run without it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from codetr.cli.command import UsageError, complain, one_line, run_command
from codetr.cli.console import print_results, print_times, progress
from codetr.cli.network_options import check_network, make_detector, tell_shrunk_images
from codetr.cli.parser import make_parser
from codetr.cli.pictures import OutputFolder, Picture, find_pictures
from codetr.weights import DEMO

PROGRAM = "codetr"
_MANY = 3  # pictures from which a progress bar helps


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        argv: the arguments; default sys.argv[1:].

    Returns:
        The exit status, see the module's docstring.
    """

    def command() -> int:
        arguments = make_parser(_run_detect, _run_train, _run_evaluate).parse_args(argv)
        return arguments.run(arguments)

    return run_command(command, PROGRAM)


def _run_detect(arguments: argparse.Namespace) -> int:
    model = arguments.model
    check_network(arguments)
    if arguments.model != model:
        print(f"model: {DEMO}, which knows twenty kinds of drawn objects; for COCO's 80 classes give --model")
    pictures = find_pictures(arguments.images)
    options = {name: getattr(arguments, name) for name in ("threshold", "nms", "nms_iou", "top", "classes")}
    return _detect(pictures, arguments.out, partial(make_detector, arguments), arguments.batch, options)


def _run_train(arguments: argparse.Namespace) -> int:
    from codetr.cli.train import run_train

    return run_train(arguments)


def _run_evaluate(arguments: argparse.Namespace) -> int:
    from codetr.cli.evaluate import run_evaluate

    return run_evaluate(arguments)


@dataclass
class _Run:
    """What has been done so far."""

    found: list[tuple[str, Any]]
    times_ms: list[Mapping[str, float]]
    failures: int = 0


def _detect(
    pictures: list[Picture],
    out: Path,
    make_detector: Callable[[], Any],
    batch: int,
    options: Mapping[str, Any],
) -> int:
    """Detects in all pictures, writes and prints the results. Returns the exit status."""
    from codetr.results import coco_document, write_document

    with OutputFolder(out, pictures) as folder:
        run = _Run([], [])
        readable = list(_readable(pictures, run))
        with make_detector() as detector:
            try:
                detector.check_options(**options)
            except ValueError as error:
                raise UsageError(f"--{one_line(error)}") from error
            with progress(len(readable), shown=len(readable) >= _MANY) as advance:
                for start in range(0, len(readable), batch):
                    _detect_chunk(
                        readable[start : start + batch], detector, folder, options, run, len(pictures)
                    )
                    advance(min(batch, len(readable) - start))
            if not run.found:
                raise UsageError(f"none of the {len(pictures)} pictures could be processed")
            info = {"description": "codetr detect", "network": detector.backend.description, **options}
            write_document(
                folder.path / "detections.json", coco_document(run.found, detector.class_names, info)
            )
        print_results(run.found)
        print_times(run.times_ms)
        tell_shrunk_images(detector, PROGRAM)
        print(f"wrote {folder.summary()}")
    if run.failures:
        left_out = f"{run.failures} of {len(pictures)} pictures could not be processed"
        complain("error", f"{left_out}, see the warnings above", PROGRAM)
        return 1
    return 0


def _readable(pictures: list[Picture], run: _Run) -> Iterator[Picture]:
    """Drops pictures whose header shows that they are none, before a model is loaded for them."""
    from codetr.detector.preprocess import ImageError, check_image

    for picture in pictures:
        try:
            check_image(picture.path)
            yield picture
        except (ImageError, FileNotFoundError) as error:
            _report_unreadable(error, run, len(pictures))
    if run.failures == len(pictures):
        raise UsageError(f"none of the {len(pictures)} pictures could be read")


def _report_unreadable(error: Exception, run: _Run, total: int) -> None:
    if total == 1:
        raise UsageError(one_line(error)) from error
    _report_failure(one_line(error), run)


def _report_failure(message: str, run: _Run) -> None:
    complain("warning", f"{message}; left out", PROGRAM)
    run.failures += 1


def _detect_chunk(
    chunk: list[Picture],
    detector: Any,
    folder: OutputFolder,
    options: Mapping[str, Any],
    run: _Run,
    total: int,
) -> None:
    """Reads, detects, draws and saves the pictures of one batch."""
    from codetr.detector.preprocess import ImageError, load_image
    from codetr.draw import draw_detections

    started = time.perf_counter()
    images, names = [], []
    for picture in chunk:
        try:
            images.append(load_image(picture.path))
            names.append(picture)
        except (ImageError, FileNotFoundError) as error:
            _report_unreadable(error, run, total)
    if not images:
        return
    read = time.perf_counter()
    try:
        results = detector.detect_batch(images, **options)
    except ValueError as error:  # pictures that this network cannot take, a 5000x3 strip for one
        if total == 1:
            raise
        for picture in names:
            _report_failure(f"{picture.path}: {one_line(error)}", run)
        return
    detected = time.perf_counter()
    for picture, image, found in zip(names, images, results, strict=True):
        drawn = draw_detections(image, found.boxes_xyxy_px, found.scores, found.labels, found.class_names)
        folder.save_picture(picture, drawn)
        run.found.append((picture.name, found))
    share = 1000.0 / len(images)
    outer = {"read": (read - started) * share, "draw": (time.perf_counter() - detected) * share}
    run.times_ms.append({**outer, **results[0].times_ms})


if __name__ == "__main__":
    sys.exit(main())
