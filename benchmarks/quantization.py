"""`python -m benchmarks.quantization`: engines of DETRs' ONNX files in 16 and 8 bits."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from cyclopts.types import PositiveInt

from benchmarks import onnx_engines
from benchmarks.option_types import OneOrMore
from benchmarks.output_agreement import Arrays, compare_outputs, describe
from benchmarks.result_files import ResultFile
from codetr.classify.pictures import IMAGENET_MEAN, IMAGENET_STD
from codetr.cli.argument_types import Folder, InputFile, OutputFile, Parameter
from codetr.cli.program import run_program
from codetr.detector.preprocess import IMAGE_SUFFIXES, load_image
from codetr.errors import ArgumentError, one_line
from onnx_path.quantization.calibration_data import Stretch
from onnx_path.quantization.placement import FORMATS

PRECISIONS = ("fp16", "int8", "fp8")


def measure_quantization(
    *files: Annotated[InputFile, Parameter(metavar="FILE.onnx")],
    precision: Annotated[tuple[Literal[PRECISIONS], ...], OneOrMore] = PRECISIONS,
    data: Folder | None = None,
    images: PositiveInt = 8,
    iterations: PositiveInt = 100,
    seconds: PositiveInt = 1800,
    jobs: PositiveInt = 1,
    time_only: bool = False,
    work: Folder | None = None,
    out: OutputFile | None = None,
) -> int:
    """Time engines of DETRs' ONNX files in fp16, INT8 and FP8, and compare their outputs with fp32.

    `codetr quantize` makes the 8-bit files, `codetr build` all engines. The engines run as CUDA graphs on the
    same inputs. An engine of fp32, without TF32, has the outputs to agree with; it is not timed, so it is
    built at optimization level 1. Random weights exaggerate rounding. A row has its measure of agreement:

    - detectors: the share of the 100 best detections of fp32 with a partner of the same class and IoU >= 0.9;
    - Mask2Former: the share of queries with the same class and a mask of IoU >= 0.9;
    - other models: the mean relative difference of the outputs.

    The result file is written after each model.

    ```
    python -m tests.onnx.zoo_files zoo
    python -m tests.onnx.zoo_files zoo --batch 8
    for file in zoo/*.onnx; do codetr surgeon $file operators/${file##*/} --only msda window-attention; done
    python -m benchmarks.quantization operators/*.onnx --data photos --jobs 4
    ```

    Args:
        files: float32 models after surgery, with static shapes.
        precision: precisions to measure. fp16 is what the others are compared with in time.
        data: folder of photographs, or .npz file with the arrays of all models. Default: random numbers.
        images: images that ranges are measured on, of photographs and random numbers. The engines run on
            others.
        iterations: samples of each measurement.
        seconds: limit of one quantisation or build.
        jobs: files of a model and precision that are made at the same time, all of them before the
            measurements. TensorRT then chooses kernels by times that other builds disturb.
        time_only: compare no outputs with fp32, such as those of a larger batch of a measured model.
        work: folder to keep the files in. Those of an earlier run, whose data must be the same, are used
            again. Default: a temporary one.
        out: result file. Default: benchmarks/results/quantization_GPU.json.
    """
    if data is not None and not data.is_file() and not find_pictures(data):
        raise ArgumentError("data", f"expected a folder of photographs or an .npz file, got {str(data)!r}")
    with tempfile.TemporaryDirectory(prefix="quantization-") as temporary:
        folder = work or Path(temporary)
        if jobs > 1:
            folder.mkdir(parents=True, exist_ok=True)
            prepare(files, folder, precision, data, images, seconds, jobs, time_only)
        return onnx_engines.measure_files(
            files,
            lambda path, folder: measure(
                path, folder, precision, data, images, seconds, iterations, time_only
            ),
            failures,
            summary,
            lambda: ResultFile("benchmarks.quantization", out),
            folder,
            data=str(data or "random numbers"),
            images=images,
        )


def prepare(
    files: Sequence[Path],
    folder: Path,
    precisions: tuple[str, ...],
    data: Path | None,
    images: int,
    seconds: int,
    jobs: int,
    time_only: bool,
) -> None:
    """Quantises files and builds their engines, several at the same time. `measure` tells what fails."""

    def make(precision: str, paths: Iterable[Path]) -> None:
        for path in paths:  # the batch sizes of a model, of which the later ones read the first one's ranges
            with contextlib.suppress(RuntimeError, ValueError, OSError):
                model = path
                if precision in FORMATS:
                    _, calibration = draw_samples(path, data, images)
                    model, _ = quantize(path, folder, precision, calibration, seconds)
                build(model, folder, precision, seconds)

    models: dict[str, list[Path]] = {}
    for path in files:
        models.setdefault(re.sub(r"_b\d+$", "", path.stem), []).append(path)
    with ThreadPoolExecutor(jobs) as pool:
        made = precisions if time_only else ("fp32", *precisions)
        for paths, precision in itertools.product(models.values(), made):
            pool.submit(make, precision, sorted(paths, key=lambda path: (len(path.stem), path.stem)))


def build(model: Path, folder: Path, precision: str, seconds: int) -> dict:
    """Builds an engine, that of fp32 quickly, unless an earlier run did.

    Raises:
        RuntimeError: the command failed.
    """
    quick = ("--optimization-level", "1") if precision == "fp32" else ()
    form = "fp32" if precision == "fp32" else "fp16"
    return onnx_engines.build(model, folder / precision, form, seconds, *quick)


def measure(
    path: Path,
    folder: Path,
    precisions: tuple[str, ...],
    data: Path | None,
    images: int,
    seconds: int,
    iterations: int,
    time_only: bool,
) -> dict:
    """Quantises a file, builds and times its engines. A failure is part of the row.

    A command that takes longer than `seconds` has failed.
    """
    try:
        inputs, calibration = draw_samples(path, data, images)
    except (ValueError, OSError) as error:
        return {"failure": one_line(error)}
    batch = len(next(iter(inputs.values())))
    row: dict = {"model": path.stem.removesuffix(f"_b{batch}"), "batch": batch}

    reference = {}
    if not time_only:
        try:
            build(path, folder, "fp32", seconds)
            reference, _ = onnx_engines.run(folder / "fp32" / f"{path.stem}.engine", inputs, 1)
        except RuntimeError as error:
            row["fp32"] = {"failure": str(error)}
    for precision in precisions:
        model, layers = path, {}
        try:
            if precision != "fp16":
                model, layers = quantize(path, folder, precision, calibration, seconds)
        except RuntimeError as error:
            row[precision] = {"failure": str(error)}
            continue
        place = folder / precision
        part, outputs = onnx_engines.measure_engine(model, place, "fp16", lambda: inputs, seconds, iterations)
        row[precision] = layers | part
        if reference and outputs:
            row[precision]["agreement"] = compare_outputs(reference, outputs)
    return row


def draw_samples(path: Path, data: Path | None, images: int) -> tuple[Arrays, Arrays]:
    """Returns the inputs of one run, for the engines, and arrays of others to measure ranges on.

    The photographs to measure on are the same for every batch size that divides `images`, so the ranges of a
    model's first file serve its others.

    Raises:
        ValueError: a shape is not static, or the data do not fit the model's inputs.
        OSError: the data cannot be read.
    """
    draws = onnx_engines.draw_inputs(path)
    inputs = next(draws)
    if data is not None and data.is_file():
        with np.load(data) as content:
            arrays = dict(content)
        if set(arrays) != set(inputs):
            raise ValueError(f"{data}: expected arrays {', '.join(inputs)}, got {', '.join(arrays)}")
        return {name: arrays[name][: len(x)].astype(x.dtype) for name, x in inputs.items()}, arrays
    batch = len(next(iter(inputs.values())))
    runs = list(itertools.islice(draws, -(-images // batch)))
    calibration = {name: np.concatenate([run[name] for run in runs]) for name in inputs}
    if data is not None:
        name = next((name for name, x in inputs.items() if x.ndim == 4), None)
        if name is None:
            raise ValueError(f"{path}: expected an input of images [N, 3, H, W], got {', '.join(inputs)}")
        files = find_pictures(data)
        measured = [files[i * len(files) // images] for i in range(images)]
        others = [file for file in files if file not in measured] or files
        preprocessor = Stretch(IMAGENET_MEAN, IMAGENET_STD, inputs[name].shape[2:])  # as the zoo
        for array, pictures in ((inputs[name], others), (calibration[name], measured)):
            for i in range(len(array)):
                picture = load_image(pictures[i % len(pictures)])
                array[i] = preprocessor.batch([picture]).images[0]
    return inputs, calibration


def find_pictures(folder: Path) -> list[Path]:
    """Returns the pictures below a folder."""
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES)


def quantize(
    path: Path, folder: Path, precision: str, calibration: Arrays, seconds: int
) -> tuple[Path, dict]:
    """Quantises a file, unless an earlier run did. Returns the 8-bit file and the numbers of its layers.

    Raises:
        RuntimeError: the command failed.
    """
    result, report = (folder / f"{path.stem}.{precision}.{end}" for end in ("onnx", "quantize.json"))
    if not (result.exists() and report.exists()):
        with tempfile.TemporaryDirectory(dir=folder) as temporary:  # other calls may run beside this one
            data = Path(temporary, "calibration.npz")
            np.savez(data, **calibration)
            words = ["onnx_path.quantize", path, result, "--precision", precision, "--data", data]
            onnx_engines.command([*words, "--json", report], seconds)
    found = json.loads(report.read_text(encoding="utf-8"))
    return result, {"quantized": found["layers"], "kept": found["kept"], "method": found["method"]}


def failures(row: dict) -> list[str]:
    """Lists the failures of a model."""
    parts = {"": row} | {f"{name} ": row.get(name, {}) for name in ("fp32", *PRECISIONS)}
    return [f"{name}failed: {part['failure']}" for name, part in parts.items() if "failure" in part]


def summary(row: dict) -> str:
    """Describes a row on one line."""
    base = row.get("fp16", {}).get("timing", {}).get("median_ms")
    parts = [f"{row['model']:20} b{row.get('batch', '?')}"]
    for precision in PRECISIONS:
        part = row.get(precision, {})
        if "timing" in part:
            time, notes = part["timing"]["median_ms"], []
            if base and precision != "fp16":
                slower = f"slower than fp16 by {time / base - 1:.0%}"
                notes.append(slower if time > 1.005 * base else f"{base / time:.2f} times")
            notes += [describe(part["agreement"])] if "agreement" in part else []
            parts.append(f"{precision} {time:.3f} ms" + (f" ({', '.join(notes)})" if notes else ""))
    return "  ".join([*parts, *failures(row)])


main = functools.partial(run_program, measure_quantization, program="python -m benchmarks.quantization")

if __name__ == "__main__":
    sys.exit(main())
