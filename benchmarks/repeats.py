"""`python -m benchmarks.repeats`: runs of an engine whose results differ in bits.

The detector's own kernels give the same bits in every run. Some of TensorRT's kernels do not.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
from cyclopts.types import PositiveInt

import trt_plugin
from benchmarks.option_types import EngineFiles
from benchmarks.result_files import ResultFile
from codetr.cli.argument_types import InputFile, OutputFile
from codetr.cli.program import run_program
from codetr.detector.preprocess import Preprocessor, load_image
from codetr.errors import ArgumentError
from codetr.export.box_agreement import compare_detections
from codetr.export.engine_check import DEMO_PHOTO
from codetr.export.request import INPUT_NAMES, OUTPUT_NAMES

DIFFERENCES = ("max_score_difference", "max_box_difference_px")


def measure_repeats(
    *,
    engine: EngineFiles,
    runs: PositiveInt = 1000,
    photo: InputFile = DEMO_PHOTO,
    out: OutputFile | None = None,
) -> int:
    """Run engines on one photo many times, and count the runs whose results differ in bits.

    ```
    python -m benchmarks.repeats --engine fp16=out/model.engine --runs 1000
    ```

    Args:
        engine: engine of an export, with its metadata (.json) beside it. May be repeated.
        runs: runs of each engine.
        photo: image of the input.
        out: result file. Default: benchmarks/results/repeats_GPU.json.
    """
    for file in engine:
        if not file.path.with_suffix(".json").is_file():
            raise ArgumentError(
                "engine", f"expected {file.path.with_suffix('.json')} beside it, no such file"
            )
    result = ResultFile("benchmarks.repeats", out)
    for file in engine:
        row = measure(file.label, file.path, photo, runs)
        result.add(row, line(row))
    result.write(photo=photo.name)
    print(result.path)
    return 0


def measure(label: str, path: Path, photo: Path, runs: int) -> dict:
    """Runs an engine at the size and batch that it is tuned for, and returns its row."""
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
    """Counts the results of a call.

    Args:
        call: runs an engine and returns its outputs by name, in fresh arrays.

    Returns:
        runs; distinct: number of different results; different: runs that differ from the most frequent
        result; detections: the number in that result; matches: the smallest number of them that a different
        result matches; the largest differences of scores and boxes from that result.
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
    others = [
        asdict(compare_detections(detections[usual], other))
        for key, other in detections.items()
        if key != usual
    ]
    return {
        "runs": runs,
        "distinct": len(counts),
        "different": runs - count,
        "detections": size,
        "matches": min((other["matched"] for other in others), default=size),
        **{key: max((other[key] for other in others), default=0.0) for key in DIFFERENCES},
    }


def line(found: dict) -> str:
    """Describes a row on one line."""
    text = f"{found['variant']}: {found['different']} of {found['runs']} runs give other bits"
    if not found["different"]:
        return text
    return (
        f"{text}, {found['distinct']} results: scores by {found['max_score_difference']:.2g}, "
        f"boxes by {found['max_box_difference_px']:.2g} px"
    )


main = partial(run_program, measure_repeats, program="python -m benchmarks.repeats")

if __name__ == "__main__":
    sys.exit(main())
