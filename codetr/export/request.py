"""What the two export commands share: options, the model and a photo, PyTorch's detections, the files.

The commands (`onnx_path.export`, `dynamo_path.export`) never import each other, so this lies below both.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codetr.cli.command import (
    ArgumentParser,
    UsageError,
    check_file,
    check_writable,
    model_config,
    positive,
    to_path,
    weights_source,
)
from codetr.cli.network_options import add_graph_nms_arguments
from codetr.detector.preprocess import fit_size, rescale_size
from codetr.detector.sizes import SIZE_DIVISOR, InputSizes, batch_range, fixed, size_ranges
from codetr.export.engine_check import OUTPUT_NAMES, Check, make_checks, photo_batches
from codetr.files import removed_after
from trt_plugin.atomic_files import errors_about, new_folder

if TYPE_CHECKING:
    import torch

    from codetr.config import Config, NmsConfig
    from codetr.model import CoDino

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
NMS_OUTPUT_NAMES = (*OUTPUT_NAMES, "num_detections")
"""Those of a graph with non-maximum suppression inside, see `codetr.export.graph_nms.HardNms`."""
_PICTURE = (3000, 4000)
"""Height and width of the picture that tells how far a fixed size is from the configuration's."""
_FAR_FROM_OWN_SIZE = 0.25
"""By which share of the configuration's size a picture may be smaller or larger without a note."""


@dataclass(frozen=True)
class Request:
    """What an export command was asked for; the fields are its options."""

    model: str
    weights: str | None
    sizes: InputSizes
    precision: str
    out: Path
    photo: Path | None
    device: str
    timing_cache: Path | None
    optimization_level: int | None
    refittable: bool
    keep_unequal: bool
    nms: str
    nms_iou: float | None

    @property
    def output_names(self) -> tuple[str, ...]:
        """Of the graph."""
        return OUTPUT_NAMES if self.nms == "none" else NMS_OUTPUT_NAMES


@dataclass(frozen=True)
class Subject:
    """A loaded model with the photo that it is compared on.

    Attributes:
        model: on the CPU, in the precision asked for.
        nms: what is inside the graph, else None.
        checks: the photo, first at the size that the export is tuned for.
        source_weights: where the weights came from.
    """

    model: CoDino
    nms: NmsConfig | None
    checks: list[Check]
    source_weights: str


def make_parser(program: str, description: str) -> argparse.ArgumentParser:
    """Makes a parser with the options that both commands have."""
    parser = ArgumentParser(prog=program, description=description)
    parser.add_argument(
        "--model",
        required=True,
        metavar="NAME|RUN|JSON",
        help="co_dino_swin_l, co_dino_r50, folder of a run, or file",
    )
    parser.add_argument(
        "--weights", metavar="NAME|FILE|URL", help="default: beside the configuration, or as published"
    )
    parser.add_argument(
        "--height",
        type=positive,
        metavar="PX",
        help="input height (default: the configuration's); a fixed landscape size shrinks portrait pictures, "
        "--dynamic-size takes both",
    )
    parser.add_argument(
        "--width", type=positive, metavar="PX", help="input width (default: the configuration's)"
    )
    parser.add_argument(
        "--dynamic-size",
        type=size_ranges,
        metavar="MIN-OPT-MAX",
        help="heights and widths that are decided at run time, instead of --height and --width: smallest, "
        "the one to tune for, largest, each HEIGHTxWIDTH or one number, such as 512-768x1152-1344; multiples "
        "of 32",
    )
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="fp32",
        help="tf32 is fp32 whose matrices are multiplied with 10 bits of mantissa (default: fp32, without)",
    )
    parser.add_argument(
        "--batch",
        type=batch_range,
        default=fixed(1),
        metavar="N|A-B",
        help="images in one run; 1-8: decided at run time and tuned for 1, 1-4-8: tuned for 4 (default: 1)",
    )
    parser.add_argument(
        "--out", required=True, type=to_path, metavar="DIR", help="folder that the files are written to"
    )
    parser.add_argument(
        "--photo", type=to_path, metavar="FILE", help="compare on this picture (default: one we ship)"
    )
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="cpu builds no engine"
    )
    parser.add_argument(
        "--timing-cache", type=to_path, metavar="FILE", help="read and updated; makes rebuilds quick"
    )
    parser.add_argument(
        "--optimization-level", type=int, choices=range(6), metavar="0..5", help="TensorRT's; default 3"
    )
    parser.add_argument(
        "--refittable",
        action="store_true",
        help="weights of the engine can be exchanged afterwards, without a new build",
    )
    add_graph_nms_arguments(parser)
    parser.add_argument(
        "--keep-unequal",
        action="store_true",
        help="keep the files of an engine that differs from PyTorch",
    )
    return parser


def request_from(arguments: argparse.Namespace) -> Request:
    """Takes the shared options out of what `make_parser`'s parser returned.

    Raises:
        UsageError: a file that is to be read is none, the timing cache cannot be written, or options do not
            go together.
    """
    if arguments.nms_iou is not None and arguments.nms == "none":
        raise UsageError(f"--nms-iou {arguments.nms_iou:g}: goes with --nms, which is not given")
    sizes = _sizes(arguments)
    if arguments.photo is not None:
        check_file("--photo", arguments.photo)
    if arguments.timing_cache is not None:
        check_writable("--timing-cache", arguments.timing_cache)
    given = {name: getattr(arguments, name) for name in Request.__dataclass_fields__ if name != "sizes"}
    return Request(**given, sizes=sizes)


def own_size(config: Config) -> tuple[int, int]:
    """Height and width of the smallest input that holds every landscape picture as the model resizes it."""
    height, width = (-(-side // SIZE_DIVISOR) * SIZE_DIVISOR for side in sorted(config.resize_scale))
    return height, width


def _sizes(arguments: argparse.Namespace) -> InputSizes:
    """The input's sizes: those of the options, else the configuration's."""
    given = {"height": arguments.height, "width": arguments.width}
    if arguments.dynamic_size is None:
        own = own_size(model_config(arguments.model))
        sides = (side or default for side, default in zip(given.values(), own, strict=True))
        return InputSizes(arguments.batch, *map(fixed, sides))
    for option, side in given.items():
        if side is not None:
            raise UsageError(f"--{option} and --dynamic-size: give one of them")
    return InputSizes(arguments.batch, *arguments.dynamic_size)


def size_note(sizes: InputSizes, config: Config) -> str | None:
    """Says that an export's pictures are much smaller or larger than the model was trained for, else None.

    Args:
        sizes: of the export's input.
        config: the model's; `resize_scale` is the size that it was trained for.
    """
    height, width = own_size(config)
    if sizes.resizable:
        if sizes.height.max >= min(config.resize_scale) and sizes.width.max >= max(config.resize_scale):
            return None
        return (
            f"--dynamic-size ends at {sizes.height.max}x{sizes.width.max}, and {config.name} was trained for "
            f"{height}x{width}: export with that as the largest size, or {width} for portrait pictures too"
        )
    theirs = fit_size(*_PICTURE, sizes.height.opt, sizes.width.opt)
    ours = rescale_size(*_PICTURE, config.resize_scale)
    if abs(theirs[0] / ours[0] - 1.0) <= _FAR_FROM_OWN_SIZE:
        return None
    return (
        f"{sizes.height}x{sizes.width} resizes a 4:3 picture to {theirs[0]}x{theirs[1]}, and {config.name} "
        f"was trained for {ours[0]}x{ours[1]}: export with --height {height} --width {width} or "
        "--dynamic-size"
    )


@contextmanager
def stage(name: str) -> Iterator[list[float]]:
    """Prints a line when a step begins and its seconds when it ends; yields a list that gets them."""
    print(f"{name} …", flush=True)
    started, seconds = time.perf_counter(), []
    yield seconds
    seconds.append(time.perf_counter() - started)
    print(f"{name}: {seconds[0]:.1f} s", flush=True)


@contextmanager
def staged_folder(out: Path) -> Iterator[Path]:
    """Gives an empty temporary folder; its files move into `out` if the block succeeds, else they are gone.

    Raises:
        UsageError: `out` is a file, or nothing can be written there.
        OSError: one of the files cannot be written; names `out`, not the temporary folder.
    """
    existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    temporary = existing / f".codetr-{secrets.token_hex(6)}"
    try:
        if not existing.is_dir():
            raise NotADirectoryError("is a file, not a folder")
        temporary.mkdir()
    except OSError as error:
        raise UsageError(f"--out {out}: cannot write there ({error.strerror or error})") from error
    with removed_after(temporary), errors_about(out, temporary):
        yield temporary
        files = sorted(temporary.iterdir())
        with new_folder(out):
            for file in files:
                if (out / file.name).is_dir():
                    raise UsageError(f"--out {out}: {file.name} is a folder there, not a file")
            for file in files:
                os.replace(file, out / file.name)


def pick_device(device: str) -> torch.device:
    """Turns "auto", "cpu" or "cuda" into a device that exists here."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: PyTorch finds no GPU here (nvidia-smi shows the driver's view)")
    return torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")


def prepare(request: Request) -> Subject:
    """Loads model and photo, lets PyTorch detect if there is a GPU, and sets the model's precision.

    Prints a line if pictures become much smaller or larger than the model was trained for.

    Raises:
        ValueError, OSError: model, weights, photo or size do not fit.
    """
    device = pick_device(request.device)
    config = model_config(request.model)
    weights = weights_source(request.model, request.weights)
    note = size_note(request.sizes, config)
    if note is not None:
        print(f"note: {note}", flush=True)
    batches = photo_batches(request, config.mean, config.std)
    with stage(f"load {config.name}, weights {weights}"):
        model = load_model(config, weights, request, [batch.images.shape for batch in batches])

    nms = _nms_inside(config.nms, request)
    precisions = tuple(dict.fromkeys(("fp32", request.precision)))
    if device.type != "cuda":
        checks = make_checks(model, batches, precisions, None, nms)
    else:
        with stage(f"detect with PyTorch {' and '.join(precisions)}"):
            checks = make_checks(model, batches, precisions, device, nms)
    return Subject(model.cpu(), nms, checks, weights)


def load_model(
    config: Config, weights: str, request: Request, shapes: Sequence[tuple[int, ...]] = ()
) -> CoDino:
    """Loads a model on the CPU in float32, written as the request's sizes and precision need it.

    Args:
        shapes: of images that it must be able to take.

    Raises:
        ValueError, OSError: the weights do not fit, or the model refuses one of the shapes.
    """
    import codetr

    model = codetr.CoDino(config).eval().requires_grad_(False)
    for shape in shapes:
        _check_size(model, shape)
    if request.sizes.resizable:
        _check_smallest(model, min(request.sizes.height.min, request.sizes.width.min))
    codetr.load_checkpoint(model, weights)
    model.fold_batch_norms()
    if request.sizes.resizable or request.precision == "bf16":
        model.write_out_group_norms()
    if request.sizes.resizable:
        model.gather_windows()
    return model


def exported_module(subject: Subject) -> torch.nn.Module:
    """What becomes the graph: the model, with its non-maximum suppression if that is to be inside."""
    from codetr.export.graph_nms import CoDinoWithNms

    if subject.nms is None:
        return subject.model
    return CoDinoWithNms(subject.model, subject.nms.iou_threshold)


def example_inputs(request: Request, device: str | torch.device = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """Arguments to trace the model with: images [N, 3, H, W] fp32, image_shapes [N, 2] int64.

    A dynamic size must look like no other and not like 1, or the trace takes it for a fixed one.
    """
    import torch

    sizes = request.sizes
    n, h, w = sizes.batch.opt, sizes.height.opt, sizes.width.opt
    if sizes.batch.dynamic:
        n = max(2, n)
    if h == w and sizes.width.dynamic:
        w = sizes.width.min if w > sizes.width.min else sizes.width.max
    return torch.zeros(n, 3, h, w, device=device), torch.tensor([[h, w]], device=device).repeat(n, 1)


def dynamic_shapes(request: Request) -> tuple[dict, dict] | None:
    """What `torch.export.export` is told of the inputs' sizes; None if all are fixed."""
    from torch.export import Dim

    sizes = request.sizes
    if not sizes.dynamic:
        return None
    images: dict[int, Any] = {}
    if sizes.batch.dynamic:
        images[0] = Dim("batch", min=sizes.batch.min, max=sizes.batch.max)
    for axis, name, size in ((2, "rows", sizes.height), (3, "columns", sizes.width)):
        if size.dynamic:  # in units, so that every division by a stride is known to leave no rest
            images[axis] = SIZE_DIVISOR * Dim(
                name, min=size.min // SIZE_DIVISOR, max=size.max // SIZE_DIVISOR
            )
    return images, {axis: size for axis, size in images.items() if axis == 0}


def write_metadata(
    subject: Subject,
    request: Request,
    folder: Path,
    engine: bool = True,
    build_seconds: float | None = None,
) -> None:
    """Writes model.json: everything that whoever runs the engine needs, see `trt_plugin.ArtifactMetadata`.

    Args:
        engine: whether there is one; TensorRT's version and the GPU's name stay empty for an ONNX file alone.
        build_seconds: what TensorRT took to build it.
    """
    import torch

    import trt_plugin
    from trt_plugin.engine_error import import_tensorrt

    config, sizes = subject.model.config, request.sizes
    resize = {"height": sizes.height.opt, "width": sizes.width.opt, "mode": "fit_pad"}
    # Pictures fill a fixed size that a caller chose. The model's own size is rounded up, and they do not.
    if sizes.resizable or (sizes.height.opt, sizes.width.opt) == own_size(config):
        resize["scale"] = sorted(config.resize_scale, reverse=True)
    shapes = sizes.shapes()
    boxes = (shapes["images"][0], config.max_per_img)
    outputs = {"boxes": ((*boxes, 4), "float32"), "scores": (boxes, "float32"), "labels": (boxes, "int64")}
    outputs["num_detections"] = boxes[:1], "int64"
    metadata = trt_plugin.ArtifactMetadata(
        model=config.name,
        inputs=_tensors(images=(shapes["images"], "float32"), image_shapes=(shapes["image_shapes"], "int64")),
        outputs=_tensors(**{name: outputs[name] for name in request.output_names}),
        class_names=list(config.label_names),
        mean=list(config.mean),
        std=list(config.std),
        resize=resize,
        max_per_img=config.max_per_img,
        nms=dataclasses.asdict(subject.nms or config.nms),
        nms_in_graph=subject.nms is not None,
        precision=request.precision,
        batch=sizes.batch.opt,
        profiles=sizes.profiles(),
        refittable=engine and request.refittable,
        tensorrt_version=import_tensorrt().__version__ if engine else "",
        plugin_version=trt_plugin.PLUGIN_VERSION,
        gpu=torch.cuda.get_device_name() if engine else "",
        torch_version=torch.__version__,
        source_weights=subject.source_weights,
        build_seconds=None if build_seconds is None else round(build_seconds, 1),
    )
    metadata.save(folder / "model.json")


def _nms_inside(published: NmsConfig, request: Request) -> NmsConfig | None:
    if request.nms == "none":
        return None
    iou = published.iou_threshold if request.nms_iou is None else request.nms_iou
    return dataclasses.replace(published, method=request.nms, iou_threshold=iou)


def _check_size(model: CoDino, images_shape: tuple[int, ...]) -> None:
    """Runs the model without numbers, so that a size that it refuses is its own clear error."""
    import torch

    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    shapes = {name: tensor.to("meta") for name, tensor in tensors.items()}
    inputs = torch.empty(images_shape, device="meta"), torch.empty(images_shape[0], 2, device="meta")
    with torch.no_grad():
        torch.func.functional_call(model, shapes, inputs)


def _check_smallest(model: CoDino, smallest: int) -> None:
    """Raises ValueError where a level may be one cell wide: for an export, that is a case of its own."""
    coarsest = model.backbone.first_stride << (model.config.num_levels - 1)  # pixels of a cell
    if smallest <= coarsest:
        least = (coarsest // SIZE_DIVISOR + 1) * SIZE_DIVISOR
        raise ValueError(
            f"--dynamic-size: sizes begin at {smallest} pixels, where the coarsest level is one cell; "
            f"{model.config.name} needs {least} or more, or a fixed --height and --width"
        )


def _tensors(**tensors: tuple[tuple[int, ...], str]) -> list[dict[str, Any]]:
    return [{"name": name, "shape": list(shape), "dtype": dtype} for name, (shape, dtype) in tensors.items()]
