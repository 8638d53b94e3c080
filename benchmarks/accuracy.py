"""`python -m benchmarks.accuracy`: average precision and times of a model in every backend and precision."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from cyclopts import Parameter
from cyclopts.types import NormFloat, PositiveInt

from benchmarks import report, timing
from benchmarks.agreement import Agreement
from benchmarks.option_types import EngineFile, EngineFiles, ModelName, OneOrMore, WeightsName
from benchmarks.result_files import ResultFile
from codetr.cli.argument_types import Folder, InputFile, OutputFile
from codetr.cli.console import progress
from codetr.cli.program import complain, run_program
from codetr.config import Config
from codetr.dataset.bad_pictures import BadPictures
from codetr.dataset.coco_files import load_coco
from codetr.detector.detector import Detector
from codetr.detector.onnxruntime_backend import OnnxRuntimeBackend
from codetr.detector.preprocess import Batch, Preprocessor
from codetr.detector.sizes import ChosenSize
from codetr.detector.tensorrt_backend import TensorRTBackend
from codetr.detector.torch_backend import TORCH_PRECISIONS, TorchBackend, allow_tf32
from codetr.errors import ArgumentError, UsageError
from codetr.evaluation.coco_metrics import coco_metrics
from codetr.evaluation.detect_dataset import categories_of_labels, read_ahead, result_rows
from codetr.export.request import INPUT_NAMES
from codetr.weights import DEMO, choose_weights, model_config
from trt_plugin import ArtifactMetadata, EngineRunner

BOUNDS = {"fp32": 0.002, "tf32": 0.002, "fp16": 0.005, "bf16": 0.005}
"""Largest difference of a variant's AP from the reference's, by precision."""

WARMUP = 10
SECONDS = 5.0  # of timing a slow variant

Timer = Callable[[Batch, int], timing.Timing]
"""Times a network on a batch of one picture with a number of samples."""


@dataclass
class Variant:
    """A backend in a precision, and its detections so far.

    Attributes:
        backend: in words.
        name: of the variant.
        precision: selects the bound.
        detector: runs it.
        timer: times the network alone.
        agreement: with the reference.
        rows: detections in COCO's result format.
    """

    backend: str
    name: str
    precision: str
    detector: Detector
    timer: Timer
    agreement: Agreement = field(default_factory=lambda: Agreement(0.3))
    rows: list[dict[str, Any]] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with `argv` (default: sys.argv[1:]) and returns its exit status."""
    return run_program(measure_accuracy, argv, "python -m benchmarks.accuracy")


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
    height, width = input_size(height, width, files)
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
    with contextlib.ExitStack() as stack:
        chosen = []
        size = ChosenSize(height=height, width=width)
        for variant in load_variants(config, weights, variants, engine, onnx, size):
            stack.enter_context(variant.detector)
            check_alike(variant, preprocessor)
            variant.detector.backend.preprocessor = preprocessor
            variant.agreement = Agreement(threshold)
            chosen.append(variant)
        times = detect(chosen, bad, preprocessor, shared, batch, iterations)
    dataset = bad.usable()
    metrics = [coco_metrics(dataset, variant.rows) for variant in chosen]
    if not metrics[0].objects:
        raise UsageError(f"{dataset.annotation_file}: no objects in the pictures")
    for variant, numbers, timed in zip(chosen, metrics, times, strict=True):
        difference, bound = numbers.ap - metrics[0].ap, BOUNDS[variant.precision]
        result.rows.append(
            {
                "backend": variant.backend,
                "variant": variant.name,
                "precision": variant.precision,
                "network": variant.detector.backend.description,
                "ap_difference": difference,
                "bound": bound,
                "holds": abs(difference) <= bound,
                "agreement": variant.agreement.as_dict(),
                "timing": timed.as_dict(),
                "metrics": numbers.as_dict(),
            }
        )
    content = result.write(
        model=config.name,
        weights=Path(weights).name if weights else config.name,
        data=dataset.annotation_file.name,
        pictures=len(dataset),
        pictures_left_out=len(bad.errors),
        objects=metrics[0].objects,
        classes=len(dataset.class_names),
        height=height,
        width=width,
        batch=batch,
        compared_with="PyTorch fp32, TF32 off",
        nms_in_graph=shared or None,
    )
    print(report.accuracy_table(content))
    print(result.path)
    missed = [f"{row['backend']} {row['variant']}" for row in result.rows if not row["holds"]]
    if missed:
        complain("error", f"AP is out of its bound: {', '.join(missed)}", "benchmarks.accuracy")
    return 1 if missed else 0


def input_size(height: int | None, width: int | None, files: Sequence[tuple[str, Path]]) -> tuple[int, int]:
    """Returns the height and width of the input of all variants.

    Args:
        height, width: the caller's choice.
        files: names and paths of engines and ONNX files, whose metadata hold their sizes.

    Raises:
        ArgumentError: there is no size.
        UsageError: two sizes differ.
    """
    sizes = {}
    if (height is None) != (width is None):
        raise ArgumentError("height", "expected with --width, both or neither, got one of them")
    if height is not None:
        sizes["--height and --width"] = (height, width)
    for name, file in files:
        resize = ArtifactMetadata.load(file.with_suffix(".json")).resize
        sizes[f"--{name}"] = (resize["height"], resize["width"])
    if not sizes:
        raise ArgumentError("height", "expected a size, there is no engine or ONNX file, got none")
    (first, size), *others = sizes.items()
    for name, other in others:
        if other != size:
            raise UsageError(f"{name}: expected {size[0]}x{size[1]} as of {first}, got {other[0]}x{other[1]}")
    return size


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


def detect(
    variants: Sequence[Variant],
    bad: BadPictures,
    preprocessor: Preprocessor,
    shared: dict[str, Any],
    batch: int,
    iterations: int,
) -> list[timing.Timing]:
    """Runs all variants on the pictures, which fills their rows; returns their times."""
    dataset = bad.usable()
    suppression = [{} if variant.detector.backend.nms is None else shared for variant in variants]
    categories = [categories_of_labels(variant.detector.class_names, dataset) for variant in variants]
    with progress(len(dataset)) as advance:
        for chunk, images in read_ahead(dataset.pictures, batch, bad):
            found = [
                variant.detector.detect_batch(images, threshold=0.0, **given)
                for variant, given in zip(variants, suppression, strict=True)
            ]
            for variant, results, category_of in zip(variants, found, categories):
                for picture, expected, result in zip(chunk, found[0], results):
                    variant.rows += result_rows(picture, result, category_of)
                    variant.agreement.add(expected, result)
            advance(len(chunk))
    last = preprocessor.batch([images[0]])
    return [variant.timer(last, iterations) for variant in variants]


def load_variants(
    config: Config,
    weights: str | None,
    precisions: Sequence[str],
    engines: Sequence[EngineFile],
    onnx: Sequence[Path],
    size: ChosenSize,
) -> Iterator[Variant]:
    """Loads PyTorch's variants, the reference first, then the engines and the ONNX files."""
    for precision in dict.fromkeys(("fp32", *precisions)):
        backend = TorchBackend(config, weights, precision=precision, size=size).load()
        timer = time_torch if backend.device.type == "cuda" else time_on_host
        yield Variant("PyTorch", precision, precision, Detector(backend=backend), partial(timer, backend))
    for file in engines:
        detector = Detector(backend=TensorRTBackend(file.path).load())
        precision = ArtifactMetadata.load(file.path.with_suffix(".json")).precision
        yield Variant("TensorRT engine", file.label, precision, detector, partial(time_engine, file.path))
    for path in onnx:
        backend = OnnxRuntimeBackend(path).load()
        name, precision = f"onnxruntime {'GPU' if backend.device == 'cuda' else 'CPU'}", backend.precision
        timer = partial(time_on_host, backend)
        yield Variant(name, precision, precision, Detector(backend=backend), timer)


def check_alike(variant: Variant, preprocessor: Preprocessor) -> None:
    """Raises UsageError unless a variant takes the same input as the others."""
    own = variant.detector.backend.preprocessor
    for name in ("mean", "std", "height", "width"):
        ours, theirs = getattr(preprocessor, name), getattr(own, name)
        if not np.allclose(ours, theirs):
            raise UsageError(f"{variant.backend} {variant.name}: {name} is {theirs}, the model's is {ours}")


def time_torch(backend: TorchBackend, batch: Batch, iterations: int) -> timing.Timing:
    """Times a model on the GPU as a CUDA graph, like an engine, without the copies of inputs and outputs."""
    images, shapes = torch.from_numpy(batch.images).cuda(), torch.from_numpy(batch.image_shapes).cuda()
    with torch.no_grad(), allow_tf32(torch, backend.precision == "tf32"):
        call = partial(backend.model, images, shapes)
        return timing.time_graph([call], 0, iterations, WARMUP, SECONDS)


def time_engine(path: Path, batch: Batch, iterations: int) -> timing.Timing:
    """Times an engine on the GPU, without the copies of inputs and outputs, divided by the batch."""
    with EngineRunner(path) as runner:
        size = runner.metadata.batch
        arrays = (np.repeat(array, size, axis=0) for array in (batch.images, batch.image_shapes))
        samples = runner.time(dict(zip(INPUT_NAMES, arrays, strict=True)), iterations, WARMUP)
    return timing.Timing([sample / size for sample in samples], warmup=WARMUP)


def time_on_host(backend: TorchBackend | OnnxRuntimeBackend, batch: Batch, iterations: int) -> timing.Timing:
    """Times a backend by the host's clock, with the copies of inputs and outputs."""
    size = getattr(backend.batch, "opt", backend.batch) or 1
    images, shapes = (np.repeat(array, size, axis=0) for array in (batch.images, batch.image_shapes))
    samples: list[float] = []
    backend(images, shapes)
    while len(samples) < iterations and (len(samples) < 5 or sum(samples) * size < SECONDS * 1e3):
        started = time.perf_counter()
        backend(images, shapes)
        samples.append((time.perf_counter() - started) * 1e3 / size)
    return timing.Timing(samples, warmup=1, method="the host's clock around calls, copies included")


if __name__ == "__main__":
    sys.exit(main())
