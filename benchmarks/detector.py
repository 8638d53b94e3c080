"""`python -m benchmarks.detector`: times of a detector on the GPU, in PyTorch and as TensorRT engines."""

from __future__ import annotations

import copy
import functools
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from cyclopts.types import PositiveInt

import codetr
import trt_plugin
from benchmarks import timing
from benchmarks.option_types import EngineFiles, ModelName, OneOrMore, WeightsName
from benchmarks.result_files import ResultFile
from codetr.cli.argument_types import InputFile, OutputFile, Parameter
from codetr.cli.program import run_program
from codetr.detector.postprocess import apply_nms_to_batch
from codetr.detector.preprocess import Batch, Preprocessor, load_image
from codetr.detector.torch_backend import allow_tf32
from codetr.export.box_agreement import BoxAgreement, compare_detections
from codetr.export.engine_check import DEMO_PHOTO, DetectionArrays
from codetr.export.request import INPUT_NAMES, OUTPUT_NAMES
from codetr.weights import choose_weights, model_config

TORCH_VARIANTS = {"fp32": ("fp32", False), "tf32": ("fp32", True), "fp16": ("fp16", False)}
"""Variants of PyTorch: the model's precision, and whether fp32 products and convolutions use TF32."""
TorchVariants = tuple[Literal[tuple(TORCH_VARIANTS)], ...]

WARMUP = 20
EAGER_SECONDS = 3.0
GRAPH_SECONDS = 20.0


def measure_detector(
    *,
    model: ModelName = "co_dino_swin_l",
    weights: WeightsName | None = None,
    seed: int = 0,
    height: PositiveInt = 768,
    width: PositiveInt = 1152,
    batch: PositiveInt = 1,
    photo: InputFile = DEMO_PHOTO,
    variants: Annotated[TorchVariants, OneOrMore, Parameter(name="--torch")] = tuple(TORCH_VARIANTS),
    engine: EngineFiles = (),
    iterations: PositiveInt = 100,
    out: OutputFile | None = None,
) -> int:
    """Time a detector on the GPU, in PyTorch and as TensorRT engines, and compare the detections.

    PyTorch runs as a CUDA graph and eagerly. Every variant sees the same photo. Its detections are compared
    with PyTorch's in fp32. An engine must hold the same weights.

    ```
    python -m benchmarks.detector --model co_dino_swin_l --engine fp16=out/fp16/model.engine
    ```

    Args:
        weights: checkpoint. Default: random weights by the seed.
        seed: seed of random weights.
        photo: image of the input. A batch repeats it.
        variants: variants of PyTorch. fp32 always runs.
        engine: engine for this size. May be repeated.
        iterations: samples of each measurement.
        out: result file. Default: a file in benchmarks/results.
    """
    config = model_config(model)
    if weights is not None:
        choose_weights(model, config, weights)
    result = ResultFile("benchmarks.detector", out, f"detector_{config.name}_{height}x{width}")
    network = codetr.CoDino(config).eval().requires_grad_(False)
    codetr.load_checkpoint(network, weights or codetr.seeded_state_dict(network, seed))
    preprocessor = Preprocessor(config.mean, config.std, height=height, width=width)
    images = preprocessor.batch([load_image(photo)] * batch)
    expected: DetectionArrays | None = None
    for variant in dict.fromkeys(("fp32", *variants)):
        measured, found = measure_torch(network, variant, images, iterations)
        expected = expected or found
        for row in measured:
            add(result, row, expected, found)
    for file in engine:
        row, found = measure_engine(file.label, file.path, images, iterations)
        nms = row["engine_nms"]
        add(result, row, expected if nms is None else apply_nms_to_batch(*expected, **nms), found)
    result.write(
        model=config.name,
        weights=weights or f"seeded, seed {seed}",
        height=height,
        width=width,
        batch=batch,
        photo=photo.name,
        compared_with="the detections of PyTorch fp32, TF32 off",
    )
    print(result.path)
    return 0


def add(result: ResultFile, row: dict, expected: DetectionArrays, found: DetectionArrays) -> None:
    """Adds a row with the differences of its detections."""
    agreement = compare_detections(expected, found)
    line = f"{row['backend']:16} {row['variant']:5} {timing.spread(row['timing'])}; {agreement}"
    result.add({**row, "detections": detections(agreement)}, line)


def measure_torch(
    model: codetr.CoDino, variant: str, batch: Batch, iterations: int
) -> tuple[list[dict], DetectionArrays]:
    """Times one variant of PyTorch, as a CUDA graph and eagerly. `model` stays on the CPU as it is."""
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


def measure_engine(label: str, path: Path, batch: Batch, iterations: int) -> tuple[dict, DetectionArrays]:
    """Times an engine without the copies of inputs and outputs; returns the row and the detections."""
    inputs = dict(zip(INPUT_NAMES, (batch.images, batch.image_shapes), strict=True))
    with trt_plugin.EngineRunner(path) as runner:
        outputs = runner(inputs)
        found = tuple(np.array(outputs[name]) for name in OUTPUT_NAMES)
        samples = runner.time(inputs, iterations, WARMUP)
        metadata = runner.metadata
    row = {
        "backend": "TensorRT engine",
        "variant": label,
        "engine_bytes": path.stat().st_size,
        "engine_precision": metadata.precision if metadata else None,
        "engine_nms": metadata.nms if metadata and metadata.nms_in_graph else None,
        "timing": timing.Timing(samples, warmup=WARMUP).as_dict(),
    }
    return row, found


def detections(agreement: BoxAgreement) -> dict:
    """Returns the differences of detections for JSON."""
    return {**asdict(agreement), "equal_share": agreement.equal_share}


main = functools.partial(run_program, measure_detector, program="python -m benchmarks.detector")

if __name__ == "__main__":
    sys.exit(main())
