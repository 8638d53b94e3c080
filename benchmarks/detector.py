"""Times a whole detector on the GPU, in PyTorch and as TensorRT engines, and compares their detections:

    python -m benchmarks.detector --model co_dino_swin_l --height 768 --width 1152 \\
        --engine fp32=out/fp32/model.engine --engine fp16=out/fp16/model.engine

PyTorch runs in fp32, TF32 and fp16, as a CUDA graph and eagerly. Every variant sees the same photo, and its
detections are compared with PyTorch's in fp32. Weights are seeded unless a checkpoint is given; an engine
must have been built from the same ones.
"""

from __future__ import annotations

import argparse
import copy
import functools
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks import environment, timing
from benchmarks.arguments import add_engines, add_out, check_engines, check_out, result_file, run_benchmark
from codetr.cli.command import (
    ArgumentParser,
    check_file,
    model_config,
    positive,
    to_path,
    weights_source,
)
from codetr.detector.postprocess import apply_nms_to_batch
from codetr.detector.preprocess import Batch, Preprocessor, load_image
from codetr.detector.torch_backend import allow_tf32
from codetr.export.box_agreement import Comparison, compare_detections
from codetr.export.engine_check import DEMO_PHOTO, INPUT_NAMES, OUTPUT_NAMES

if TYPE_CHECKING:
    import codetr

TORCH_VARIANTS = {"fp32": ("fp32", False), "tf32": ("fp32", True), "fp16": ("fp16", False)}
"""PyTorch's variants: the model's precision, and whether fp32 products and convolutions use TF32."""

WARMUP = 20
EAGER_SECONDS = 3.0
GRAPH_SECONDS = 20.0

Detections = tuple[np.ndarray, np.ndarray, np.ndarray]


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    return run_benchmark(_main, arguments, "benchmarks.detector")


def _main(arguments: list[str]) -> int:
    options = parse(arguments)
    timing.require_gpu()
    config = model_config(options.model)
    gpu = environment.slug(torch.cuda.get_device_name())
    stem = f"detector_{config.name}_{options.height}x{options.width}"
    out = result_file(options.out, stem, gpu)
    environment.write_json(out, run(options, config, arguments))
    print(out)
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line.

    Raises:
        UsageError: a wrong argument, or a file that is none.
    """
    parser = ArgumentParser(prog="python -m benchmarks.detector", description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="co_dino_swin_l", help="as for codetr.load_config")
    parser.add_argument("--weights", help="as for codetr.load_checkpoint; seeded weights by default")
    parser.add_argument("--seed", type=int, default=0, help="of seeded weights")
    parser.add_argument("--height", type=positive, default=768)
    parser.add_argument("--width", type=positive, default=1152)
    parser.add_argument("--batch", type=positive, default=1)
    parser.add_argument("--photo", type=to_path, default=DEMO_PHOTO)
    parser.add_argument("--torch", nargs="*", choices=list(TORCH_VARIANTS), default=list(TORCH_VARIANTS))
    add_engines(parser, "an engine to time, built for this size")
    parser.add_argument("--iterations", type=positive, default=100, help="samples of each measurement")
    add_out(parser)
    options = parser.parse_args(arguments)
    model_config(options.model)
    if options.weights is not None:
        weights_source(options.model, options.weights)
    check_file("--photo", options.photo)
    check_engines(options.engine)
    check_out(options.out)
    return options


def run(options: argparse.Namespace, config: codetr.Config, arguments: list[str]) -> dict:
    """Measures everything; returns the result file's content."""
    import codetr

    started = time.monotonic()
    model = codetr.CoDino(config).eval().requires_grad_(False)
    codetr.load_checkpoint(model, options.weights or codetr.seeded_state_dict(model, options.seed))
    preprocessor = Preprocessor(config.mean, config.std, height=options.height, width=options.width)
    batch = preprocessor.batch([load_image(options.photo)] * options.batch)
    results: list[dict] = []
    expected: Detections | None = None
    # fp32 comes first, wanted or not: all others are compared with its detections.
    for variant in ("fp32", *(name for name in options.torch if name != "fp32")):
        rows, found = measure_torch(model, variant, batch, options.iterations)
        expected = found if expected is None else expected
        results.extend({**row, **compared(expected, found)} for row in rows)
        report(results[-len(rows) :])
    for label, path in options.engine:
        row, found, nms = measure_engine(label, path, batch, options.iterations)
        wanted = expected if nms is None else apply_nms_to_batch(*expected, **nms)
        results.append({**row, **compared(wanted, found)})
        report(results[-1:])
    return {
        **environment.describe("benchmarks.detector", arguments),
        "kind": "detector",
        "model": config.name,
        "weights": options.weights or f"seeded, seed {options.seed}",
        "height": options.height,
        "width": options.width,
        "batch": options.batch,
        "photo": options.photo.name,
        "compared_with": "the detections of PyTorch fp32, TF32 off",
        "seconds": round(time.monotonic() - started, 1),
        "results": results,
    }


def measure_torch(
    model: codetr.CoDino, variant: str, batch: Batch, iterations: int
) -> tuple[list[dict], Detections]:
    """Times one variant of PyTorch, as a CUDA graph and eagerly; the model on the CPU stays as it is."""
    precision, tf32 = TORCH_VARIANTS[variant]
    with torch.no_grad(), allow_tf32(torch, tf32):
        on_gpu = copy.deepcopy(model).set_precision(precision).to("cuda")
        images = torch.from_numpy(batch.images).cuda()
        image_shapes = torch.from_numpy(batch.image_shapes).cuda()

        call = functools.partial(on_gpu, images, image_shapes)
        found = tuple(tensor.cpu().numpy() for tensor in call())
        graph = timing.time_graph([call], 0, iterations, WARMUP, GRAPH_SECONDS)
        eager = timing.time_eager(call, iterations, 3, EAGER_SECONDS)
        peak = torch.cuda.max_memory_allocated()
    del on_gpu, call
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    rows = [
        {"backend": f"torch {kind}", "variant": variant, "peak_memory_bytes": peak, "timing": timed.as_dict()}
        for kind, timed in (("CUDA graph", graph), ("eager", eager))
    ]
    return rows, found


def measure_engine(
    label: str, path: Path, batch: Batch, iterations: int
) -> tuple[dict, Detections, dict | None]:
    """Times an engine through the runner, without the copies of inputs and outputs.

    Returns:
        The result's row, the engine's detections, and the parameters of the suppression inside, if any.
    """
    import trt_plugin

    inputs = dict(zip(INPUT_NAMES, (batch.images, batch.image_shapes), strict=True))
    with trt_plugin.EngineRunner(path) as runner:
        outputs = runner(inputs)
        found = tuple(np.array(outputs[name]) for name in OUTPUT_NAMES)
        samples = runner.time(inputs, iterations, WARMUP)
        metadata = runner.metadata
    nms = metadata.nms if metadata and metadata.nms_in_graph else None
    timed = timing.Timing(samples, 1, WARMUP, "warm")
    row = {
        "backend": "TensorRT engine",
        "variant": label,
        "engine_bytes": path.stat().st_size,
        "engine_precision": metadata.precision if metadata else None,
        "engine_nms": nms,
        "timing": timed.as_dict(),
    }
    return row, found, nms


def compared(expected: Detections, found: Detections) -> dict:
    """How detections differ from the expected ones, for JSON."""
    comparison: Comparison = compare_detections(expected, found)
    return {"detections": {**asdict(comparison), "equal_share": comparison.equal_share}}


def report(rows: Sequence[dict]) -> None:
    """Prints one line for each result."""
    for row in rows:
        spread, same = row["timing"], row["detections"]
        print(
            f"{row['backend']:16} {row['variant']:5} {spread['median_ms']:8.3f} ms "
            f"({spread['p05_ms']:.3f} to {spread['p95_ms']:.3f}, {spread['samples']} samples); "
            f"{same['matched']} of {same['expected']} match, {same['equal']} equal, "
            f"boxes within {same['max_box_difference_px']:.3g} px, scores {same['max_score_difference']:.2g}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
