"""Average precision of one model in every backend and precision, against PyTorch in fp32, with the times:

    python -m benchmarks.accuracy --data scenes --model co_dino_demo \\
        --engine fp32=out/fp32/model.engine --engine fp16=out/fp16/model.engine

All variants see the same pictures, read once and fitted into the engines' height and width. PyTorch runs in
fp32 with TF32 off (the reference), TF32, fp16 and bf16 on a GPU, in fp32 without one. A variant whose AP
differs from the reference's by more than its bound is exit status 1; the result file is written all the same.
If an engine or ONNX file has non-maximum suppression inside, that one is applied to the others' detections.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import environment, report, timing
from benchmarks.agreement import Agreement
from benchmarks.arguments import add_engines, add_out, check_out, result_file, run_benchmark
from codetr.cli.command import (
    ArgumentParser,
    UsageError,
    check_file,
    complain,
    fraction,
    model_config,
    one_line,
    positive,
    to_path,
    weights_source,
)
from codetr.cli.console import progress
from codetr.config import Config
from codetr.dataset.bad_pictures import BadPictures
from codetr.dataset.coco_files import load_coco
from codetr.detector.detector import Detector
from codetr.detector.onnxruntime_backend import OnnxRuntimeBackend
from codetr.detector.preprocess import Batch, Preprocessor
from codetr.detector.sizes import ChosenSize
from codetr.detector.tensorrt_backend import TensorRTBackend
from codetr.detector.torch_backend import TORCH_PRECISIONS, TorchBackend, allow_tf32
from codetr.evaluation.coco_metrics import coco_metrics
from codetr.evaluation.detect_dataset import categories_of_labels, read_ahead, result_rows
from codetr.export.engine_check import INPUT_NAMES
from codetr.weights import DEMO
from trt_plugin import ArtifactMetadata, EngineError, EngineRunner

BOUNDS = {"fp32": 0.002, "tf32": 0.002, "fp16": 0.005, "bf16": 0.005}
"""Largest difference of a variant's AP from the reference's, by precision."""

WARMUP = 10
SECONDS = 5.0  # of timing a slow variant

Timer = Callable[[Batch, int], timing.Timing]


@dataclass
class Variant:
    """A backend in a precision, and what it has found so far.

    Attributes:
        backend: in words.
        name: of the variant.
        precision: which of the bounds holds.
        detector: runs it.
        timer: times the network alone.
        agreement: with the reference.
        rows: detections in COCO's result form.
    """

    backend: str
    name: str
    precision: str
    detector: Detector
    timer: Timer
    agreement: Agreement
    rows: list[dict[str, Any]] = field(default_factory=list)


class Prepared:
    """Stands in for every variant's preprocessor: hands out the batch that was prepared once for all."""

    def __init__(self, preprocessor: Preprocessor) -> None:
        self.preprocessor = preprocessor
        self.current: Batch | None = None

    def prepare(self, images: Sequence[np.ndarray]) -> None:
        """Sets the batch."""
        self.current = self.preprocessor.batch(images)

    def batch(self, images: Sequence[np.ndarray]) -> Batch:
        """As `Preprocessor.batch`, of the images that were prepared."""
        return self.current

    def shrinks_by_turn(self, height: int, width: int) -> bool:
        """As `Preprocessor.shrinks_by_turn`."""
        return self.preprocessor.shrinks_by_turn(height, width)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    return run_benchmark(_main, arguments, "benchmarks.accuracy")


def _main(arguments: list[str]) -> int:
    options = parse(arguments)
    config = model_config(options.model)
    dataset = load_coco(options.data, options.split)
    bad_pictures = BadPictures(
        dataclasses.replace(dataset, pictures=dataset.pictures[: options.limit]),
        program="benchmarks.accuracy",
    )
    bad_pictures.check()
    height, width = input_size(options)
    gpu = environment.slug(torch.cuda.get_device_name()) if torch.cuda.is_available() else "cpu"
    out = result_file(options.out, f"accuracy_{config.name}_{height}x{width}", gpu)
    content = run(
        options, config, bad_pictures, Preprocessor(config.mean, config.std, height=height, width=width)
    )
    content = {**environment.describe("benchmarks.accuracy", arguments), **content}
    environment.write_json(out, content)
    print(report.accuracy_table(content))
    print(out)
    missed = [f"{row['backend']} {row['variant']}" for row in content["results"] if not row["holds"]]
    if missed:
        complain("error", f"AP is out of its bound: {', '.join(missed)}", "benchmarks.accuracy")
    return 1 if missed else 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line.

    Raises:
        UsageError: a wrong argument, or a file that is none.
    """
    parser = ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--data", type=to_path, required=True, metavar="DIR", help="data set in COCO's format")
    add("--split", default="val")
    add("--limit", type=positive, metavar="N", help="only the first N pictures")
    add("--model", default=DEMO, help="as for codetr.load_config")
    add("--weights", help="as for codetr.load_checkpoint; the model's own by default")
    # On a CPU TF32 does not exist and 16 bits take hours.
    precisions = list(TORCH_PRECISIONS) if torch.cuda.is_available() else ["fp32"]
    add("--torch", nargs="*", choices=TORCH_PRECISIONS, default=precisions)
    add_engines(parser, "an engine")
    add("--onnx", action="append", default=[], type=to_path, metavar="FILE", help="for onnxruntime")
    add("--height", type=positive, help="of the network's input; default: the engines' or ONNX file's")
    add("--width", type=positive)
    add("--batch", type=positive, default=8, help="pictures at a time, where a variant takes several")
    add("--threshold", type=fraction, default=0.3, help="least score of detections that have to agree")
    add("--iterations", type=positive, default=100, help="samples of each time")
    add_out(parser)
    options = parser.parse_args(arguments)
    weights_source(options.model, options.weights)
    for option, file in _files(options):
        check_file(option, file)
    check_out(options.out)
    return options


def _files(options: argparse.Namespace) -> list[tuple[str, Path]]:
    """All engines and ONNX files, by the options that name them."""
    engines = [(f"--engine {label}", path) for label, path in options.engine]
    return engines + [("--onnx", path) for path in options.onnx]


def input_size(options: argparse.Namespace) -> tuple[int, int]:
    """The height and width of all variants' input.

    Raises:
        UsageError: none is given, or the files' are others.
    """
    sizes = {}
    if options.height is not None or options.width is not None:
        if options.height is None or options.width is None:
            raise UsageError("--height and --width: give both or neither")
        sizes["--height and --width"] = (options.height, options.width)
    for option, file in _files(options):
        try:
            resize = ArtifactMetadata.load(file.with_suffix(".json")).resize
        except EngineError as error:
            raise UsageError(f"{option}: {one_line(error)}") from error
        sizes[f"{option} {file}"] = (resize["height"], resize["width"])
    if not sizes:
        raise UsageError("--height and --width: needed without an engine or ONNX file")
    (first, size), *others = sizes.items()
    for name, other in others:
        if other != size:
            said = f"{other[0]}x{other[1]}, and {first} is for {size[0]}x{size[1]}"
            raise UsageError(f"{name}: is for pictures of {said}")
    return size


def shared_nms(options: argparse.Namespace) -> dict[str, Any]:
    """The suppression that files have inside, as arguments of `Detector.detect_batch`; none if no file has.

    Raises:
        UsageError: two files have different ones.
    """
    inside = {}
    for option, file in _files(options):
        metadata = ArtifactMetadata.load(file.with_suffix(".json"))
        if metadata.nms_in_graph:
            given = {"nms": metadata.nms["method"], "nms_iou": metadata.nms["iou_threshold"]}
            inside[f"{option} {file}"] = given
    (first, shared), *others = inside.items() or [("", {})]
    for name, other in others:
        if other != shared:
            raise UsageError(
                f"{name}: suppresses by {other}, and {first} by {shared}; compare them in two runs"
            )
    return shared


def run(
    options: argparse.Namespace, config: Config, bad_pictures: BadPictures, preprocessor: Preprocessor
) -> dict[str, Any]:
    """Runs everything; returns the result file's content, without the machine."""
    dataset = bad_pictures.usable()
    started = time.monotonic()
    shared = shared_nms(options)
    prepared = Prepared(preprocessor)
    with contextlib.ExitStack() as stack:
        variants = list(make_variants(options, config, preprocessor, stack))
        for variant in variants:
            check_alike(variant, preprocessor)
            variant.detector.backend.preprocessor = prepared
        suppression = [{} if variant.detector.backend.nms is None else shared for variant in variants]
        categories = [categories_of_labels(variant.detector.class_names, dataset) for variant in variants]
        with progress(len(dataset)) as advance:
            for chunk, images in read_ahead(dataset.pictures, options.batch, bad_pictures):
                prepared.prepare(images)
                found = [
                    variant.detector.detect_batch(images, threshold=0.0, **given)
                    for variant, given in zip(variants, suppression, strict=True)
                ]
                for variant, results, category_of in zip(variants, found, categories):
                    for picture, expected, result in zip(chunk, found[0], results):
                        variant.rows += result_rows(picture, result, category_of)
                        variant.agreement.add(expected, result)
                advance(len(chunk))
        prepared.prepare([images[0]])
        times = [variant.timer(prepared.current, options.iterations) for variant in variants]
    dataset = bad_pictures.usable()
    metrics = [coco_metrics(dataset, variant.rows) for variant in variants]
    if not metrics[0].objects:
        raise UsageError(f"{dataset.annotation_file}: no objects in the pictures, nothing to find")
    results = []
    for variant, numbers, timed in zip(variants, metrics, times, strict=True):
        difference, bound = numbers.ap - metrics[0].ap, BOUNDS[variant.precision]
        results.append(
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
    return {
        "kind": "accuracy",
        "model": config.name,
        "weights": Path(options.weights).name if options.weights else config.name,
        "data": dataset.annotation_file.name,
        "pictures": len(dataset),
        "pictures_left_out": len(bad_pictures.errors),
        "objects": metrics[0].objects,
        "classes": len(dataset.class_names),
        "height": preprocessor.height,
        "width": preprocessor.width,
        "batch": options.batch,
        "compared_with": "PyTorch fp32, TF32 off",
        "nms_in_graph": shared or None,
        "seconds": round(time.monotonic() - started, 1),
        "results": results,
    }


def make_variants(
    options: argparse.Namespace, config: Config, preprocessor: Preprocessor, stack: contextlib.ExitStack
) -> Iterator[Variant]:
    """Loads the variants, the reference first, wanted or not."""
    for precision in ("fp32", *(name for name in options.torch if name != "fp32")):
        size = ChosenSize(height=preprocessor.height, width=preprocessor.width)
        backend = TorchBackend(config, options.weights, precision=precision, size=size).load()
        detector = stack.enter_context(Detector(backend=backend))
        timer = torch_timer(backend) if backend.device.type == "cuda" else host_timer(backend)
        yield Variant("PyTorch", precision, precision, detector, timer, Agreement(options.threshold))
    for label, path in options.engine:
        try:
            backend = TensorRTBackend(path).load()
        except EngineError as error:
            raise UsageError(f"--engine {label}: {one_line(error)}") from error
        detector = stack.enter_context(Detector(backend=backend))
        precision = ArtifactMetadata.load(path.with_suffix(".json")).precision
        yield Variant(
            "TensorRT engine", label, precision, detector, engine_timer(path), Agreement(options.threshold)
        )
    for path in options.onnx:
        try:
            backend = OnnxRuntimeBackend(path).load()
        except (EngineError, ValueError) as error:
            raise UsageError(f"--onnx: {one_line(error)}") from error
        detector = stack.enter_context(Detector(backend=backend))
        name = f"onnxruntime {'GPU' if backend.device == 'cuda' else 'CPU'}"
        yield Variant(
            name,
            backend.precision,
            backend.precision,
            detector,
            host_timer(backend),
            Agreement(options.threshold),
        )


def check_alike(variant: Variant, preprocessor: Preprocessor) -> None:
    """Requires a variant to take the same input as the others."""
    own = variant.detector.backend.preprocessor
    for name in ("mean", "std", "height", "width"):
        ours, theirs = getattr(preprocessor, name), getattr(own, name)
        if not np.allclose(ours, theirs):
            raise UsageError(f"{variant.backend} {variant.name}: {name} is {theirs}, the model's is {ours}")


def torch_timer(backend: TorchBackend) -> Timer:
    """Times a model on the GPU as a CUDA graph, as engines run, without copying inputs and outputs."""

    def timer(batch: Batch, iterations: int) -> timing.Timing:
        images, shapes = torch.from_numpy(batch.images).cuda(), torch.from_numpy(batch.image_shapes).cuda()
        with torch.no_grad(), allow_tf32(torch, backend.precision == "tf32"):
            call = functools.partial(backend.model, images, shapes)
            return timing.time_graph([call], 0, iterations, WARMUP, SECONDS)

    return timer


def engine_timer(path: Path) -> Timer:
    """Times an engine on the GPU, without copying inputs and outputs; a picture's share of a batch."""

    def timer(batch: Batch, iterations: int) -> timing.Timing:
        with EngineRunner(path) as runner:
            size = runner.metadata.batch
            arrays = (np.repeat(array, size, axis=0) for array in (batch.images, batch.image_shapes))
            samples = runner.time(dict(zip(INPUT_NAMES, arrays, strict=True)), iterations, WARMUP)
        return timing.Timing([sample / size for sample in samples], 1, WARMUP, "warm")

    return timer


def host_timer(backend: TorchBackend | OnnxRuntimeBackend) -> Timer:
    """Times a backend by the host's clock, with the copies of inputs and outputs if it has any."""

    def timer(batch: Batch, iterations: int) -> timing.Timing:
        size = getattr(backend.batch, "opt", backend.batch) or 1
        images, shapes = (np.repeat(array, size, axis=0) for array in (batch.images, batch.image_shapes))
        samples: list[float] = []
        backend(images, shapes)
        while len(samples) < iterations and (len(samples) < 5 or sum(samples) * size < SECONDS * 1e3):
            started = time.perf_counter()
            backend(images, shapes)
            samples.append((time.perf_counter() - started) * 1e3 / size)
        return timing.Timing(samples, 1, 1, "warm", "the host's clock around calls, copies included")

    return timer


if __name__ == "__main__":
    sys.exit(main())
