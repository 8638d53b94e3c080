"""Runs engines of dynamic shapes at many sizes and batches, times them, and compares what they find:

    python -m benchmarks.sizes --model co_dino_swin_l --weights weights.pth --engine fp16=out/model.engine

Every image of a batch is the photo turned by another 90 degrees, so that images differ in size. An engine's
detections are compared with PyTorch's in fp32 (TF32 off) and in the engine's own precision.
"""

from __future__ import annotations

import argparse
import copy
import functools
import re
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from benchmarks import environment, timing
from benchmarks.arguments import add_engines, add_out, check_engines, check_out, result_file, run_benchmark
from benchmarks.detector import Detections, compared, measure_engine
from codetr.cli.command import (
    ArgumentParser,
    check_file,
    model_config,
    positive,
    to_path,
    weights_source,
)
from codetr.detector.preprocess import Preprocessor, load_image
from codetr.export.engine_check import DEMO_PHOTO, detect_with_torch, turned

if TYPE_CHECKING:
    import codetr

SIZES = ((512, 512), (608, 608), (768, 1152), (1024, 768), (1344, 1344))
BATCHES = (1, 3, 8)
DEVICE = torch.device("cuda")


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    return run_benchmark(_main, arguments, "benchmarks.sizes")


def _main(arguments: list[str]) -> int:
    options = parse(arguments)
    timing.require_gpu()
    config = model_config(options.model)
    gpu = environment.slug(torch.cuda.get_device_name())
    out = result_file(options.out, f"sizes_{config.name}", gpu)
    environment.write_json(out, run(options, arguments))
    print(out)
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line.

    Raises:
        UsageError: a wrong argument, or a file that is none.
    """
    parser = ArgumentParser(prog="python -m benchmarks.sizes", description=__doc__.split(":\n")[0])
    parser.add_argument("--model", default="co_dino_swin_l", help="as for codetr.load_config")
    parser.add_argument(
        "--weights", required=True, help="as for codetr.load_checkpoint; what the engines hold"
    )
    add_engines(parser, "an engine whose profile has all the sizes and batches", required=True)
    parser.add_argument(
        "--sizes", nargs="+", type=_size, default=SIZES, metavar="HxW", help="default: five, 512 to 1344"
    )
    parser.add_argument(
        "--batches", nargs="+", type=positive, default=BATCHES, metavar="N", help="default: 1 3 8"
    )
    parser.add_argument("--photo", type=to_path, default=DEMO_PHOTO)
    parser.add_argument("--iterations", type=positive, default=50, help="samples of each measurement")
    add_out(parser)
    options = parser.parse_args(arguments)
    weights_source(options.model, options.weights)
    check_file("--photo", options.photo)
    check_engines(options.engine)
    check_out(options.out)
    return options


def run(options: argparse.Namespace, arguments: list[str]) -> dict:
    """Measures everything; returns the result file's content."""
    import codetr

    started = time.monotonic()
    config = model_config(options.model)
    model = codetr.CoDino(config).eval().requires_grad_(False)
    codetr.load_checkpoint(model, options.weights)
    in_precision = functools.cache(functools.partial(on_gpu, model))
    photo = load_image(options.photo)
    results = []
    for height, width in options.sizes:
        preprocessor = Preprocessor(config.mean, config.std, height=height, width=width)
        for count in options.batches:
            batch = preprocessor.batch(turned(photo, count))
            by_torch: dict[str, Detections] = {}
            for label, path in options.engine:
                row, found, _ = measure_engine(label, path, batch, options.iterations)
                row = {"height": height, "width": width, "batch": count, **row}
                for precision in ("fp32", row["engine_precision"]):
                    if precision not in by_torch:
                        tf32 = precision == "tf32"
                        by_torch[precision] = detect_with_torch(in_precision(precision), batch, DEVICE, tf32)
                    key = "detections" if precision == "fp32" else "detections_in_its_precision"
                    row[key] = compared(by_torch[precision], found)["detections"]
                results.append(row)
                report(row)
    return {
        **environment.describe("benchmarks.sizes", arguments),
        "kind": "sizes",
        "model": config.name,
        "weights": str(options.weights),
        "photo": options.photo.name,
        "compared_with": "the detections of PyTorch, TF32 off, in fp32 and in the engine's precision",
        "seconds": round(time.monotonic() - started, 1),
        "results": results,
    }


def on_gpu(model: codetr.CoDino, precision: str) -> codetr.CoDino:
    """A copy of a model, which stays as it is."""
    return copy.deepcopy(model).set_precision("fp32" if precision == "tf32" else precision).to(DEVICE)


def report(row: dict) -> None:
    """Prints one line."""
    same = row.get("detections_in_its_precision", row["detections"])
    print(
        f"{row['variant']:10} {row['batch']} x {row['height']}x{row['width']} "
        f"{row['timing']['median_ms']:8.3f} ms; {same['matched']} of {same['expected']} match, "
        f"{same['equal']} equal, boxes within {same['max_box_difference_px']:.3g} px "
        f"(half of them {same['median_box_difference_px']:.2g}), "
        f"scores {same['max_score_difference']:.2g} of PyTorch in {row['engine_precision']}",
        flush=True,
    )


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9][0-9]*)x([1-9][0-9]*)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected HEIGHTxWIDTH, such as 768x1152, got {text!r}")
    return int(match[1]), int(match[2])


if __name__ == "__main__":
    sys.exit(main())
