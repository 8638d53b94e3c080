"""Runs engines on one photo again and again, and counts the runs that give other bits:

    python -m benchmarks.repeats --engine fp16=out/model.engine --runs 1000

The detector's own kernels give the same bits in every run; some of TensorRT's own do not.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.arguments import add_engines, add_out, check_engines, check_out, run_benchmark
from benchmarks.detector import compared
from benchmarks.engines import measure_all
from codetr.cli.command import ArgumentParser, check_file, positive, to_path
from codetr.detector.preprocess import Preprocessor, load_image
from codetr.export.engine_check import DEMO_PHOTO, INPUT_NAMES, OUTPUT_NAMES

DIFFERENCES = ("max_score_difference", "max_box_difference_px")


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    return run_benchmark(_main, arguments, "benchmarks.repeats")


def _main(arguments: list[str]) -> int:
    options = parse(arguments)

    def measured(label: str, path: Path) -> dict:
        return measure(label, path, options.photo, options.runs)

    measure_all("benchmarks.repeats", arguments, options, measured, line, photo=options.photo.name)
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line.

    Raises:
        UsageError: a wrong argument, or a file that is none.
    """
    parser = ArgumentParser(prog="python -m benchmarks.repeats", description=__doc__.split(":\n")[0])
    add_engines(parser, "an engine of one of the exports, with its .json beside it", required=True)
    parser.add_argument("--runs", type=positive, default=1000, help="of each engine (default: %(default)s)")
    parser.add_argument("--photo", type=to_path, default=DEMO_PHOTO)
    add_out(parser)
    options = parser.parse_args(arguments)
    check_file("--photo", options.photo)
    check_engines(options.engine)
    for label, path in options.engine:
        check_file(f"--engine {label}: the metadata beside it", path.with_suffix(".json"))
    check_out(options.out)
    return options


def measure(label: str, path: Path, photo: Path, runs: int) -> dict:
    """One engine's row of the result file; at its usual size and batch, replaying a CUDA graph."""
    import trt_plugin

    with trt_plugin.EngineRunner(path) as runner:
        metadata = runner.metadata
        size = {key: metadata.resize[key] for key in ("height", "width")}
        batch = Preprocessor(metadata.mean, metadata.std, **size).batch([load_image(photo)] * metadata.batch)
        inputs = dict(zip(INPUT_NAMES, (batch.images, batch.image_shapes), strict=True))
        runner(inputs)  # the next calls replay its graph
        found = repeat(lambda: runner(inputs), runs)
    return {
        "variant": label,
        "model": metadata.model,
        "precision": metadata.precision,
        "batch": metadata.batch,
        **size,
        **found,
    }


def repeat(call: Callable[[], Mapping[str, np.ndarray]], runs: int) -> dict:
    """Counts what a call gives.

    Args:
        call: runs an engine; returns its outputs by name, in fresh arrays.
        runs: how many times.

    Returns:
        "runs"; "distinct" results among them; how many runs give "different" bits from the most frequent
        result; and how far their detections are from its: the largest differences, and how many of its
        "detections" the worst of them "matches".
    """
    counts: Counter[bytes] = Counter()
    detections = {}
    for _ in range(runs):
        outputs = call()
        key = b"".join(outputs[name].tobytes() for name in sorted(outputs))
        counts[key] += 1
        detections.setdefault(key, tuple(outputs[name] for name in OUTPUT_NAMES))
    usual, count = counts.most_common(1)[0]
    size = detections[usual][OUTPUT_NAMES.index("scores")].size
    others = [compared(detections[usual], x)["detections"] for key, x in detections.items() if key != usual]
    return {
        "runs": runs,
        "distinct": len(counts),
        "different": runs - count,
        "detections": size,
        "matches": min((other["matched"] for other in others), default=size),
        **{key: max((other[key] for other in others), default=0.0) for key in DIFFERENCES},
    }


def line(found: dict) -> str:
    """A row in one line."""
    text = f"{found['variant']}: {found['different']} of {found['runs']} runs give other bits"
    if not found["different"]:
        return text
    return (
        f"{text}, {found['distinct']} results: scores by {found['max_score_difference']:.2g}, "
        f"boxes by {found['max_box_difference_px']:.2g} px"
    )


if __name__ == "__main__":
    sys.exit(main())
