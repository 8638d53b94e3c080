"""`python -m benchmarks.sizes`: engines with dynamic shapes at many sizes and batches."""

from __future__ import annotations

import copy
import functools
import itertools
import sys
from typing import Annotated, Any

import torch
from cyclopts.types import PositiveInt

import codetr
from benchmarks import timing
from benchmarks.detector import detections, measure_engine
from benchmarks.option_types import EngineFiles, ModelName, OneOrMore, WeightsName
from benchmarks.result_files import ResultFile
from codetr.cli.argument_types import InputFile, OutputFile, parsed_by
from codetr.cli.program import run_program
from codetr.detector.preprocess import Batch, Preprocessor, load_image
from codetr.export.box_agreement import compare_detections
from codetr.export.engine_check import DEMO_PHOTO, DetectionArrays, detect_with_torch, turned
from codetr.weights import choose_weights, model_config
from onnx_path.quantize import parse_size

SIZES = ((512, 512), (608, 608), (768, 1152), (1024, 768), (1344, 1344))
BATCHES = (1, 3, 8)
DEVICE = torch.device("cuda")


def measure_sizes(
    *,
    weights: WeightsName,
    engine: EngineFiles,
    model: ModelName = "co_dino_swin_l",
    sizes: Annotated[
        tuple[Any, ...], parsed_by(parse_size, "HxW", several=True, consume_multiple=(1, 1000))
    ] = SIZES,
    batches: Annotated[tuple[PositiveInt, ...], OneOrMore] = BATCHES,
    photo: InputFile = DEMO_PHOTO,
    iterations: PositiveInt = 50,
    out: OutputFile | None = None,
) -> int:
    """Run engines with dynamic shapes at many sizes and batches, time them, and compare the detections.

    Every image of a batch is the photo, turned by 90 degrees more, so that the images differ in size. The
    detections are compared with PyTorch's in fp32 (TF32 off) and in the engine's own precision.

    ```
    python -m benchmarks.sizes --weights weights.pth --engine fp16=out/model.engine
    ```

    Args:
        weights: checkpoint that the engines hold.
        engine: engine whose optimization profile has all sizes and batches. May be repeated.
        sizes: heights and widths of the input.
        batches: numbers of images.
        photo: image of the input.
        iterations: samples of each measurement.
        out: result file. Default: a file in benchmarks/results.
    """
    config = model_config(model)
    choose_weights(model, config, weights)
    result = ResultFile("benchmarks.sizes", out, f"sizes_{config.name}")
    network = codetr.CoDino(config).eval().requires_grad_(False)
    codetr.load_checkpoint(network, weights)
    in_precision = functools.cache(functools.partial(on_gpu, network))
    picture = load_image(photo)
    for (height, width), count in itertools.product(sizes, batches):
        preprocessor = Preprocessor(config.mean, config.std, height=height, width=width)
        batch = preprocessor.batch(turned(picture, count))

        @functools.cache
        def by_torch(precision: str, batch: Batch = batch) -> DetectionArrays:
            return detect_with_torch(in_precision(precision), batch, DEVICE, precision == "tf32")

        for file in engine:
            row, found = measure_engine(file.label, file.path, batch, iterations)
            own = row["engine_precision"]
            agreement = compare_detections(by_torch(own), found)
            row = {"height": height, "width": width, "batch": count, **row}
            row["detections"] = detections(compare_detections(by_torch("fp32"), found))
            if own != "fp32":
                row["detections_in_its_precision"] = detections(agreement)
            size = f"{count} x {height}x{width}"
            line = f"{file.label:10} {size} {timing.spread(row['timing'])}; PyTorch in {own}: {agreement}"
            result.add(row, line)
    result.write(
        model=config.name,
        weights=str(weights),
        photo=photo.name,
        compared_with="the detections of PyTorch, TF32 off, in fp32 and in the engine's precision",
    )
    print(result.path)
    return 0


def on_gpu(model: codetr.CoDino, precision: str) -> codetr.CoDino:
    """Returns a copy of a model on the GPU, in a precision."""
    return copy.deepcopy(model).set_precision("fp32" if precision == "tf32" else precision).to(DEVICE)


main = functools.partial(run_program, measure_sizes, program="python -m benchmarks.sizes")

if __name__ == "__main__":
    sys.exit(main())
