"""`python -m benchmarks.accuracy`: average precision and times of a model in every backend and precision."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from cyclopts.types import NormFloat, PositiveInt

from benchmarks import timing
from benchmarks.agreement import agreement
from benchmarks.option_types import EngineFiles, ModelName, OneOrMore, WeightsName
from benchmarks.result_files import ResultFile
from codetr.cli.argument_types import Folder, InputFile, OutputFile, Parameter
from codetr.cli.console import progress
from codetr.cli.program import complain, run_program
from codetr.dataset.bad_pictures import BadPictures
from codetr.dataset.coco_files import load_coco, read_picture
from codetr.detector.detector import Detector
from codetr.detector.onnxruntime_backend import OnnxRuntimeBackend
from codetr.detector.preprocess import Batch, Preprocessor
from codetr.detector.sizes import ChosenSize
from codetr.detector.tensorrt_backend import TensorRTBackend
from codetr.detector.torch_backend import TORCH_PRECISIONS, TorchBackend, allow_tf32
from codetr.errors import ArgumentError, UsageError
from codetr.evaluation import coco_metrics, detect_all
from codetr.export.request import INPUT_NAMES
from codetr.weights import DEMO, choose_weights, model_config
from trt_plugin import ArtifactMetadata, EngineRunner

BOUNDS = {"fp32": 0.002, "tf32": 0.002, "fp16": 0.005, "bf16": 0.005, "int8": 0.01, "fp8": 0.01}
"""Largest difference of a variant's AP from the reference's, by precision."""

WARMUP = 10
SECONDS = 5.0  # of timing a slow variant


class Variant(NamedTuple):
    """A backend in a precision, which selects the bound."""

    kind: str
    name: str
    precision: str
    backend: TorchBackend | TensorRTBackend | OnnxRuntimeBackend


def measure_accuracy(
    *,
    data: Folder,
    split: str = "val",
    limit: PositiveInt | None = None,
    model: ModelName = DEMO,
    weights: WeightsName | None = None,
    variants: Annotated[
        tuple[Literal[TORCH_PRECISIONS], ...] | None, OneOrMore, Parameter(name="--torch")
    ] = None,
    engine: EngineFiles = (),
    onnx: tuple[InputFile, ...] = (),
    height: PositiveInt | None = None,
    width: PositiveInt | None = None,
    batch: PositiveInt = 8,
    threshold: NormFloat = 0.3,
    iterations: PositiveInt = 100,
    out: OutputFile | None = None,
) -> int:
    """Compute average precision of one model in every backend and precision, with times.

    All variants see the same pictures, read once and fitted into the height and width of the engines. PyTorch
    in fp32 with TF32 off is the reference. The exit status is 1 if the AP of a variant differs from the
    reference's by more than its bound; the result file is written in any case. If an engine or ONNX file has
    non-maximum suppression inside, the other variants apply the same one.

    ```
    python -m benchmarks.accuracy --data scenes --engine fp32=out/fp32/model.engine
    ```

    Args:
        data: folder of a dataset in COCO format.
        limit: number of pictures, the first ones. Default: all.
        weights: checkpoint. Default: the model's own.
        variants: precisions of PyTorch. fp32 always runs. Default: all on a GPU.
        engine: TensorRT engine. May be repeated.
        onnx: ONNX file for onnxruntime. May be repeated.
        height: height of the network's input. Default: that of the engines or ONNX files.
        width: width of the network's input.
        batch: pictures at a time, for variants that take several.
        threshold: least score of the detections that have to agree.
        iterations: samples of each time.
        out: result file. Default: a file in benchmarks/results.
    """
    config = model_config(model)
    weights = None if weights is None else choose_weights(model, config, weights)
    files = [(f"engine {file.label} {file.path}", file.path) for file in engine]
    files += [(f"onnx {path}", path) for path in onnx]
    if files and height is None and width is None:
        resize = ArtifactMetadata.load(files[0][1].with_suffix(".json")).resize
        height, width = resize["height"], resize["width"]
    size = ChosenSize(height=height, width=width)
    if height is None:
        raise ArgumentError("height", "expected a size, there is no engine or ONNX file, got none")
    shared = shared_nms(files)
    dataset = load_coco(data, split)
    bad = BadPictures(
        dataclasses.replace(dataset, pictures=dataset.pictures[:limit]), program="benchmarks.accuracy"
    )
    bad.check()
    result = ResultFile(
        "benchmarks.accuracy", out, f"accuracy_{config.name}_{height}x{width}", needs_gpu=False
    )
    if variants is None:  # a CPU has no TF32, and 16 bits take hours there
        variants = TORCH_PRECISIONS if torch.cuda.is_available() else ()
    preprocessor = Preprocessor(config.mean, config.std, height=height, width=width)
    chosen = [
        Variant("PyTorch", name, name, TorchBackend(config, weights, precision=name, size=size))
        for name in dict.fromkeys(("fp32", *variants))
    ]
    for file in engine:
        backend = TensorRTBackend(file.path)
        chosen.append(Variant("TensorRT engine", file.label, backend.metadata.precision, backend))
    for path in onnx:
        backend = OnnxRuntimeBackend(path)
        chosen.append(Variant("onnxruntime", backend.precision, backend.precision, backend))
    for variant in chosen:
        check_alike(variant, preprocessor)
        variant.backend.preprocessor = preprocessor
    reference = None
    for variant in chosen:
        backend = variant.backend
        suppression = {} if backend.nms is None else shared
        dataset = bad.usable()
        with Detector(backend=backend.load()) as detector, progress(len(dataset)) as advance:
            run = detect_all(detector, dataset, batch=batch, advance=advance, bad_pictures=bad, **suppression)
            metrics = coco_metrics(dataset, run.rows, run.pictures)
            if not metrics.objects:
                raise UsageError(f"{dataset.annotation_file}: no objects in the pictures")
            timed = measure_time(backend, preprocessor.batch([read_picture(run.pictures[-1])]), iterations)
        reference = reference or (run.rows, metrics)
        difference, bound = metrics.ap - reference[1].ap, BOUNDS[variant.precision]
        row = {
            "backend": variant.kind,
            "variant": variant.name,
            "precision": variant.precision,
            "network": backend.description,
            "ap_difference": difference,
            "bound": bound,
            "holds": abs(difference) <= bound,
            "agreement": agreement(reference[0], run.rows, threshold),
            "timing": timed.as_dict(),
            "metrics": metrics.as_dict(),
        }
        line = (
            f"{variant.kind} {variant.name}: AP {metrics.ap:.4f} ({difference:+.4f}), AP50 {metrics.ap50:.4f}"
        )
        share = f"{row['agreement']['share']:.2%} of the detections agree"
        result.add(row, f"{line}, {share}, {timing.spread(row['timing'])}")
    result.write(
        model=config.name,
        weights=Path(weights).name if weights else config.name,
        data=dataset.annotation_file.name,
        pictures=len(run.pictures),
        pictures_left_out=len(bad.errors),
        objects=metrics.objects,
        classes=len(dataset.class_names),
        height=height,
        width=width,
        batch=batch,
        compared_with="PyTorch fp32, TF32 off",
        nms_in_graph=shared or None,
    )
    missed = [f"{row['backend']} {row['variant']}" for row in result.rows if not row["holds"]]
    if missed:
        complain("error", f"AP is out of its bound: {', '.join(missed)}", "benchmarks.accuracy")
    return 1 if missed else 0


def shared_nms(files: Sequence[tuple[str, Path]]) -> dict[str, Any]:
    """Returns the suppression inside the files as arguments of `Detector.detect_batch`; {} without one.

    Raises:
        UsageError: two files differ.
    """
    shared, first = {}, ""
    for name, file in files:
        metadata = ArtifactMetadata.load(file.with_suffix(".json"))
        if metadata.nms_in_graph:
            own = {"nms": metadata.nms["method"], "nms_iou": metadata.nms["iou_threshold"]}
            if shared and own != shared:
                raise UsageError(f"--{name}: expected the suppression of --{first}, {shared}, got {own}")
            shared, first = own, name
    return shared


def check_alike(variant: Variant, preprocessor: Preprocessor) -> None:
    """Raises UsageError unless a variant takes the same input as the others."""
    own = variant.backend.preprocessor
    for name in ("mean", "std", "height", "width"):
        ours, theirs = getattr(preprocessor, name), getattr(own, name)
        if not np.allclose(ours, theirs):
            raise UsageError(f"{variant.kind} {variant.name}: {name} is {theirs}, expected {ours}")


def measure_time(
    backend: TorchBackend | TensorRTBackend | OnnxRuntimeBackend, batch: Batch, iterations: int
) -> timing.Timing:
    """Times a loaded network alone on a batch of one picture.

    PyTorch on the GPU runs as a CUDA graph, like an engine. Both are timed without the copies of inputs and
    outputs. Times of a larger fixed batch are divided by it.
    """
    if isinstance(backend, TorchBackend) and backend.device.type == "cuda":
        images, shapes = (torch.from_numpy(array).cuda() for array in (batch.images, batch.image_shapes))
        with torch.no_grad(), allow_tf32(torch, backend.precision == "tf32"):
            call = partial(backend.model, images, shapes)
            return timing.time_graph([call], 0, iterations, WARMUP, SECONDS)
    size = getattr(backend.batch, "opt", backend.batch) or 1
    arrays = [np.repeat(array, size, axis=0) for array in (batch.images, batch.image_shapes)]
    if isinstance(backend, TensorRTBackend):
        with EngineRunner(backend.file) as runner:
            samples = runner.time(dict(zip(INPUT_NAMES, arrays, strict=True)), iterations, WARMUP)
        return timing.Timing([sample / size for sample in samples], warmup=WARMUP)
    samples = []
    backend(*arrays)
    while len(samples) < iterations and (len(samples) < 5 or sum(samples) * size < SECONDS * 1e3):
        started = time.perf_counter()
        backend(*arrays)
        samples.append((time.perf_counter() - started) * 1e3 / size)
    return timing.Timing(samples, warmup=1, method="the host's clock around calls, copies included")


main = partial(run_program, measure_accuracy, program="python -m benchmarks.accuracy")

if __name__ == "__main__":
    sys.exit(main())
