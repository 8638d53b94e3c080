"""The request of an export: the options that both export commands share. Imports no Torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal, get_args

from cyclopts import types

from codetr.cli.argument_types import Folder, InputFile, OutputFile, Parameter, parsed_by
from codetr.config import Config
from codetr.detector.preprocess import fit_size, rescale_size
from codetr.detector.sizes import SIZE_DIVISOR, InputSizes, SizeRange, fixed
from codetr.errors import ArgumentError
from codetr.export.output_folder import check_output
from codetr.weights import choose_weights, model_config
from trt_plugin.engine_error import EngineError
from trt_plugin.metadata import AnyPrecision, ArtifactMetadata, EightBits, Precision

INPUT_NAMES = ("images", "image_shapes")
OUTPUT_NAMES = ("boxes", "scores", "labels")
NMS_OUTPUT_NAMES = (*OUTPUT_NAMES, "num_detections")
"""Outputs of a graph with non-maximum suppression, see `codetr.export.graph_nms.HardNms`."""
_PHOTO_SIZE = (3000, 4000)
"""Height and width of the image by which `size_note` compares a fixed size with the configuration's."""
_USUAL_SCALES = (0.75, 1.25)
"""An export that resizes this image by such a factor of the configuration's size gets no note."""


def _batch_range(text: str) -> SizeRange:
    """Parses "4", "1-8" (tuned for 1) or "1-4-8" (tuned for 4)."""
    match = re.fullmatch(r"([1-9]\d*)(?:-(\d+))?(?:-(\d+))?", text, re.ASCII)
    if match is None:
        raise ValueError(f"expected a number above 0, or a range such as 1-8 or 1-4-8, got {text!r}")
    first, second, third = (number and int(number) for number in match.groups())
    if second is None:
        return fixed(first)
    return _ordered(text, [first, first, second] if third is None else [first, second, third])


def _size_ranges(text: str) -> tuple[SizeRange, SizeRange]:
    """Parses MIN-OPT-MAX, each HEIGHTxWIDTH or one number, into the ranges of height and width."""
    match = re.fullmatch(r"-".join([r"(\d+)(?:x(\d+))?"] * 3), text, re.ASCII)
    if match is None:
        raise ValueError(f"expected MIN-OPT-MAX, such as 512-768x1152-1344, got {text!r}")
    heights = [int(number) for number in match.groups()[::2]]
    widths = [int(width or height) for height, width in zip(heights, match.groups()[1::2])]
    wrong = next((size for size in (*heights, *widths) if size < 1 or size % SIZE_DIVISOR), None)
    if wrong is not None:
        raise ValueError(f"expected multiples of {SIZE_DIVISOR}, got {wrong} in {text!r}")
    return _ordered(text, heights), _ordered(text, widths)


def _ordered(text: str, numbers: list[int]) -> SizeRange:
    if numbers != sorted(numbers):
        raise ValueError(f"expected MIN <= OPT <= MAX, got {text!r}")
    return SizeRange(*numbers)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """Options of `onnx_path.export` and `dynamo_path.export`.

    Raises:
        ArgumentError: options contradict each other, the timing cache cannot be written, or `out` has a
            model.json that no export wrote.
    """

    model: Annotated[str, Parameter(metavar="NAME|RUN|JSON")]
    """co_dino_swin_l, co_dino_r50, the folder of a training run, or a configuration file."""
    out: Folder
    """Folder for the files."""
    weights: Annotated[str | None, Parameter(metavar="NAME|FILE|URL")] = None
    """Checkpoint. Default: the file beside the configuration, else the published one."""
    height: Annotated[types.PositiveInt | None, Parameter(metavar="PX")] = None
    """Fixed input height. Default: the configuration's. A landscape size shrinks portrait images."""
    width: Annotated[types.PositiveInt | None, Parameter(metavar="PX")] = None
    """Fixed input width. Default: the configuration's."""
    dynamic_size: Annotated[tuple[SizeRange, SizeRange] | None, parsed_by(_size_ranges, "MIN-OPT-MAX")] = None
    """Dynamic height and width, such as 512-768x1152-1344: HEIGHTxWIDTH or one number, multiples of 32."""
    batch: Annotated[SizeRange, parsed_by(_batch_range, "N|A-B")] = fixed(1)  # noqa: RUF009
    """Images in a run. 1-8 is a dynamic batch tuned for 1 image, 1-4-8 one tuned for 4."""
    precision: AnyPrecision = "fp32"
    """tf32 is fp32 with matrix products of 10 mantissa bits; int8 and fp8 are fp16 with 8-bit layers."""
    calibration_data: Folder | None = None
    """With int8 and fp8: photographs or a COCO dataset (its split train), to measure ranges on."""
    calibration_images: types.PositiveInt = 64
    """Largest number of these pictures."""
    nms: Annotated[list[Literal["hard", "none"]] | None, Parameter(consume_multiple=(0, 1))] = None
    """--nms or --nms hard puts greedy non-maximum suppression into the graph. Its outputs are then final."""
    nms_iou: Annotated[types.NormFloat | None, Parameter(metavar="IOU")] = None
    """With --nms: the overlap above which boxes of a class suppress each other. Default: the model's."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """On a cpu the export ends before the engine."""
    photo: InputFile | None = None
    """Photo for the comparison with PyTorch. Default: one in the repository."""
    timing_cache: OutputFile | None = None
    """TensorRT's timing cache, read and updated. It makes a second build quick."""
    optimization_level: Literal[0, 1, 2, 3, 4, 5] | None = None
    """TensorRT's builder optimization level. Default: 3."""
    refittable: bool = False
    """Build an engine that takes other weights without a new build."""
    keep_unequal: bool = False
    """Keep the files of an engine whose detections differ from PyTorch's."""

    def __post_init__(self) -> None:
        if self.nms_iou is not None and self.nms_method == "none":
            raise ArgumentError("nms_iou", f"expected --nms with it, got {self.nms_iou:g} alone")
        for name in ("height", "width"):
            if self.dynamic_size is not None and getattr(self, name) is not None:
                raise ArgumentError(name, f"expected none with --dynamic-size, got {getattr(self, name)}")
        check_output("timing_cache", self.timing_cache)
        self._check_metadata()
        if self.quantized and (self.calibration_data is None or not self.calibration_data.is_dir()):
            problem = f"expected a folder of pictures with {self.precision}, got {self.calibration_data}"
            raise ArgumentError("calibration_data", problem)
        if self.quantized and self.refittable:
            problem = (
                f"expected no {self.precision} with it: the scales in the engine fit its own weights only"
            )
            raise ArgumentError("refittable", problem)
        for name in ("calibration_data", "calibration_images"):
            if not self.quantized and getattr(self, name) != getattr(ExportRequest, name):
                raise ArgumentError(name, f"expected int8 or fp8 with it, got {self.precision}")

    def _check_metadata(self) -> None:
        """Refuses to overwrite another model.json, such as the configuration in the folder of a run."""
        path = self.out / "model.json"
        try:
            if path.is_file():
                ArtifactMetadata.load(path)
        except EngineError as error:
            problem = f"expected a folder of its own, got {self.out}, whose model.json is no export's"
            raise ArgumentError("out", problem) from error

    @property
    def quantized(self) -> bool:
        """Whether layers become 8 bits."""
        return self.precision in get_args(EightBits)

    @property
    def model_precision(self) -> Precision:
        """Precision of the model before its layers become 8 bits, in which PyTorch runs it."""
        return "fp16" if self.quantized else self.precision

    @property
    def nms_method(self) -> str:
        """Non-maximum suppression in the graph: "hard" or "none"."""
        return "none" if self.nms is None else "".join(self.nms) or "hard"

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the graph's outputs, in order."""
        return OUTPUT_NAMES if self.nms_method == "none" else NMS_OUTPUT_NAMES

    @cached_property
    def config(self) -> Config:
        """The model's configuration."""
        return model_config(self.model)

    @cached_property
    def source_weights(self) -> str:
        """The checkpoint, its default filled in."""
        return choose_weights(self.model, self.config, self.weights)

    @cached_property
    def sizes(self) -> InputSizes:
        """Batch, height and width of the input, with the configuration's size as the default."""
        if self.dynamic_size is not None:
            return InputSizes(self.batch, *self.dynamic_size)
        height, width = own_size(self.config)
        return InputSizes(self.batch, fixed(self.height or height), fixed(self.width or width))


def own_size(config: Config) -> tuple[int, int]:
    """Returns height and width of the smallest input that holds every resized landscape image."""
    height, width = (-(-side // SIZE_DIVISOR) * SIZE_DIVISOR for side in sorted(config.resize_scale))
    return height, width


def size_note(sizes: InputSizes, config: Config) -> str | None:
    """Describes an input that resizes images far from the training's size; None if it is close."""
    height, width = own_size(config)
    if sizes.resizable:
        if sizes.height.max >= min(config.resize_scale) and sizes.width.max >= max(config.resize_scale):
            return None
        return (
            f"--dynamic-size ends at {sizes.height.max}x{sizes.width.max}, and {config.name} was trained for "
            f"{height}x{width}: export with that as the largest size, or {width} for portrait images too"
        )
    actual = fit_size(*_PHOTO_SIZE, sizes.height.opt, sizes.width.opt)
    trained = rescale_size(*_PHOTO_SIZE, config.resize_scale)
    if _USUAL_SCALES[0] <= actual[0] / trained[0] <= _USUAL_SCALES[1]:
        return None
    return (
        f"{sizes.height}x{sizes.width} resizes a 4:3 image to {actual[0]}x{actual[1]}, and {config.name} was "
        f"trained for {trained[0]}x{trained[1]}: export with --height {height} --width {width} or "
        "--dynamic-size"
    )
