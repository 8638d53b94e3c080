"""`python -m onnx_path.quantize`: makes an INT8 or FP8 network of an ONNX file, by Q/DQ nodes.

TensorRT 11 takes 8 bits from the file alone, as QuantizeLinear and DequantizeLinear nodes; TensorRT 10 takes
them too. `onnx_path.quantization.quantizer.Quantizer` does the same to a model in memory.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group
from cyclopts.types import PositiveFloat, PositiveInt

from codetr.cli.argument_types import Folder, InputFile, OutputFile, Parameter, compile_patterns, parsed_by
from codetr.cli.console import progress
from codetr.cli.program import run_program
from codetr.errors import ArgumentError, UsageError
from codetr.export.output_folder import check_output, check_positional_output, stage
from codetr.weights import cache_folder
from onnx_path.build import check_machine
from trt_plugin.atomic_files import new_folder, write_json
from trt_plugin.metadata import ArtifactMetadata, EightBits

if TYPE_CHECKING:
    import onnx

    from onnx_path.quantization.calibration_data import CalibrationData
    from onnx_path.quantization.quantizer import Layer, Quantizer
    from onnx_path.quantization.sensitivity import Drop, GroupDrop

PROVIDERS = {"cpu": ("CPUExecutionProvider",), "cuda": ("CUDAExecutionProvider", "CPUExecutionProvider")}
ASKED = "asked for"
TOO_SENSITIVE = "above --max-drop"

_DATA = Group("Calibration data", sort_key=1)
_LAYERS = Group("Layers in 8 bits", sort_key=2)


def parse_size(text: str) -> tuple[int, int]:
    """Parses height and width, such as "640x480".

    Raises:
        ValueError: the text has another form.
    """
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text, re.ASCII)
    if match is None:
        raise ValueError(f"expected HEIGHTxWIDTH, such as 640x640, got {text!r}")
    return int(match[1]), int(match[2])


def _colour(text: str) -> tuple[float, ...]:
    try:
        numbers = tuple(map(float, text.split(",")))
    except ValueError:
        numbers = ()
    if len(numbers) != 3 or not all(0 <= number <= 1 for number in numbers):
        expected = "expected three numbers in 0..1 for R, G and B, such as 0.485,0.456,0.406"
        raise ValueError(f"{expected}, got {text!r}")
    return numbers


@Parameter(name="*", group=_DATA)
@dataclasses.dataclass(frozen=True, kw_only=True)
class CalibrationOptions:
    """The data that the ranges of tensors are measured on."""

    data: Folder
    """Folder of photographs or of a dataset in COCO format, or .npz file with an array for each input."""
    split: str = "train"
    """Split of a COCO dataset."""
    images: PositiveInt = 64
    """Largest number of images, evenly spread over the data."""
    mean: Annotated[tuple[float, ...] | None, parsed_by(_colour, "R,G,B")] = None
    """Mean of the model's pixels in 0..1, for a file without metadata. Of ImageNet: 0.485,0.456,0.406."""
    std: Annotated[tuple[float, ...] | None, parsed_by(_colour, "R,G,B")] = None
    """Standard deviation, likewise. Of ImageNet: 0.229,0.224,0.225; 1,1,1 for pixels in 0..1."""
    size: Annotated[tuple[int, int] | None, parsed_by(parse_size, "HxW")] = None
    """Size of the pictures, for a file of dynamic sizes without metadata."""
    method: Literal["minmax", "entropy", "percentile"] | None = None
    """Measure of ranges; percentile leaves out one number in 100,000. Default: percentile, for fp8 minmax."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device that runs the model; cuda needs onnxruntime-gpu."""


@dataclasses.dataclass(frozen=True)
class QuantizationReport:
    """The result of a quantisation.

    Attributes:
        model: the file that was quantised.
        precision: "int8" or "fp8".
        method: as of the options.
        images: number of images that the ranges were measured on.
        ranges: file with the ranges.
        ranges_read: whether that file was there before.
        seconds: time of the calibration.
        layers: number of linear layers and convolutions in 8 bits.
        kept: number of other layers, by reason.
        measure: the drop's measure; None if it was not measured, as the fields below.
        drop: of the result.
        groups: drop of each group of layers alone, the largest first.
        left_out: groups that stay in 16 bits for `--max-drop`.
        engine_ms: GPU time of the engines in 8 bits and in 16 bits, in milliseconds, by `--time`.
    """

    model: str
    precision: str
    method: str
    images: int
    ranges: str
    ranges_read: bool
    seconds: float
    layers: int
    kept: Mapping[str, int]
    measure: str | None = None
    drop: float | None = None
    groups: Sequence[GroupDrop] = ()
    left_out: Sequence[str] = ()
    engine_ms: Mapping[str, float] | None = None

    def __str__(self) -> str:
        kept = ", ".join(f"{count} ({reason})" for reason, count in self.kept.items()) or "none"
        drop = "" if self.drop is None else f"; {self.measure} {self.drop:.4f}"
        return f"{self.layers} layers in {self.precision}; layers kept: {kept}{drop}"


def quantize(
    model: Annotated[InputFile, Parameter(metavar="IN.onnx")],
    out: Annotated[OutputFile, Parameter(metavar="OUT.onnx")],
    /,
    *,
    precision: EightBits,
    calibration: CalibrationOptions,
    keep: Annotated[tuple[str, ...], Parameter(metavar="REGEX", group=_LAYERS)] = (),
    sensitivity: Annotated[Folder | None, Parameter(group=_LAYERS)] = None,
    max_drop: Annotated[PositiveFloat | None, Parameter(metavar="DROP", group=_LAYERS)] = None,
    time: bool = False,
    json: OutputFile | None = None,
) -> int:
    """Quantise an ONNX file to 8 bits, with scales measured on calibration data.

    Linear layers and convolutions of backbone and encoder become 8 bits where TensorRT runs them faster.
    Sampling offsets, attention weights, heads, query selection, normalisations and softmax stay. Measured
    ranges are kept in $CODETR_CACHE, else ~/.cache/codetr, and read again for the same weights, data and
    method.

    ```
    codetr quantize model.onnx model.int8.onnx --precision int8 --data coco
    codetr build model.int8.onnx --out engines --precision fp16
    ```

    Args:
        model: float32 or 16-bit file, before or after surgery. Metadata (.json) beside it have size and
            normalisation.
        out: file to write. It gets metadata beside it if MODEL has them.
        precision: int8 has a scale for each output channel of weights, fp8 (E4M3) one for a tensor.
        keep: layers that stay, by the names of their nodes. May be repeated.
        sensitivity: folder for sensitivity.json and .png, the drop by each group of layers alone.
        max_drop: leave the worst groups in 16 bits until the drop is at most this, such as 0.005. A dataset
            of our detector drops AP; other data drop the mean relative difference of the outputs.
        time: build engines of both files and say which is faster. Needs a GPU.
        json: also write the report to this file.
    """
    check_positional_output("OUT.onnx", out, (model, model.with_suffix(".json"), json))
    check_output("json", json, (model, out, model.with_suffix(".json"), out.with_suffix(".json")))
    patterns = compile_patterns("keep", keep)

    import onnxruntime

    from onnx_path.quantization.quantizer import DEFAULT_METHODS, Quantizer
    from onnx_path.surgery.graph import model_files

    providers = PROVIDERS[calibration.device]
    if providers[0] not in onnxruntime.get_available_providers():
        problem = "this onnxruntime has no CUDA provider (pip install onnxruntime-gpu)"
        raise ArgumentError("device", f"expected cpu, {problem}, got {calibration.device}")
    original = model_files.load(model)
    model_files.check_valid(model, original)
    if time:
        check_machine((), original)
    try:
        quantizer = Quantizer(original, precision, model.parent)
    except UsageError as error:
        raise UsageError(f"{model}: {error}") from error
    data = read_data(original, model, calibration)
    method = calibration.method or DEFAULT_METHODS[precision]
    with stage("calibrate") as seconds, progress(data.runs, "calibrating") as advance:
        read = quantizer.calibrate(data, method, cache_folder() / "ranges", providers, advance)
    print(f"ranges {'read from' if read else 'kept in'} {quantizer.ranges_file}")
    layers = [x for x in quantizer.layers if not any(pattern.search(x.name) for pattern in patterns)]
    report = QuantizationReport(
        model=str(model),
        precision=precision,
        method=method,
        images=data.images,
        ranges=str(quantizer.ranges_file),
        ranges_read=read,
        seconds=round(seconds[0], 3),
        layers=len(layers),
        kept={**quantizer.kept, **({ASKED: len(quantizer.layers) - len(layers)} if keep else {})},
    )
    if sensitivity is not None or max_drop is not None:
        drop = _drop(original, model, data, calibration)
        layers, report = _search(quantizer, drop, layers, report, max_drop)
    if sensitivity is not None:
        from onnx_path.quantization.sensitivity import plot

        with new_folder(sensitivity):
            write_json(sensitivity / "sensitivity.json", dataclasses.asdict(report), allow_nan=False)
            plot(report.groups, drop.measure, sensitivity / "sensitivity.png")
    result = quantizer.quantize(layers)
    model_files.save(result, out, model)
    metadata = model.with_suffix(".json")
    if metadata.is_file():
        dataclasses.replace(ArtifactMetadata.load(metadata), precision=precision).save(
            out.with_suffix(".json")
        )
    print(f"wrote {out}: {report}")
    if time:
        from onnx_path.quantization import engine_times

        times = {precision: engine_times.engine_ms(out), "16 bits": engine_times.engine_ms(model)}
        print(engine_times.describe(times))
        report = dataclasses.replace(report, engine_ms=times)
    if json is not None:
        write_json(json, dataclasses.asdict(report), indent=2, allow_nan=False)
    return 0


def read_data(model: onnx.ModelProto, file: Path, options: CalibrationOptions) -> CalibrationData:
    """Finds the calibration data of a file.

    Raises:
        ArgumentError: there are none, or they do not fit the model's inputs.
    """
    import onnx_ir as ir

    from onnx_path.quantization import calibration_data

    graph = ir.from_proto(model)
    if options.data.is_file():
        for name in ("mean", "std", "size"):
            if getattr(options, name) is not None:
                raise ArgumentError(name, f"expected none with arrays, got {getattr(options, name)}")
        return calibration_data.array_data(graph, options.data, options.images)
    if not options.data.is_dir():
        raise ArgumentError("data", f"expected a folder or an .npz file, got {str(options.data)!r}")
    preprocessor = calibration_data.choose_preprocessor(
        graph, file.with_suffix(".json"), options.mean, options.std, options.size
    )
    files = calibration_data.find_pictures(options.data, options.split, options.images)
    return calibration_data.picture_data(graph, files, preprocessor)


def _search(
    quantizer: Quantizer,
    drop: Drop,
    layers: Sequence[Layer],
    report: QuantizationReport,
    budget: float | None,
) -> tuple[Sequence[Layer], QuantizationReport]:
    """Measures the groups of layers and returns the layers that the budget allows."""
    from onnx_path.quantization.sensitivity import leave_out, measure_groups

    count = len({layer.group for layer in layers})
    with stage(f"measure {count} groups of layers"), progress(count, "measuring") as advance:
        groups = measure_groups(quantizer, layers, drop, advance)
    with stage("measure the result"):
        chosen, left_out, found = leave_out(quantizer, layers, drop, groups, budget)
    kept = dict(report.kept)
    if left_out:
        kept[TOO_SENSITIVE] = len(layers) - len(chosen)
    names = [group.group for group in left_out]
    return chosen, dataclasses.replace(
        report, layers=len(chosen), kept=kept, measure=drop.measure, drop=found, groups=groups, left_out=names
    )


def _drop(original: onnx.ModelProto, file: Path, data: CalibrationData, options: CalibrationOptions) -> Drop:
    """Returns the drop of AP for a detector with metadata on a dataset, else the outputs' difference."""
    from codetr.dataset.coco_files import DatasetError, load_coco
    from onnx_path.quantization.sensitivity import OutputDrop, PrecisionDrop

    if options.data.is_dir() and file.with_suffix(".json").is_file():
        try:
            dataset = load_coco(options.data, options.split)
        except DatasetError:
            pass  # photographs
        else:
            wanted = set(data.files)
            pictures = tuple(picture for picture in dataset.pictures if picture.path in wanted)
            return PrecisionDrop(file, dataclasses.replace(dataset, pictures=pictures), options.device)
    return OutputDrop(original, file.parent, data, PROVIDERS[options.device])


main = partial(run_program, quantize, program="python -m onnx_path.quantize")

if __name__ == "__main__":
    sys.exit(main())
