"""What the two export commands share: options, the model and a photo, PyTorch's detections, the files.

The commands (`onnx_path.export`, `dynamo_path.export`) never import each other, so this lies below both.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from codetr.command import (
    ArgumentParser,
    UsageError,
    check_file,
    check_writable,
    complain,
    model_config,
    positive,
    to_path,
    weights_source,
)
from codetr.compare import FP32_LEAST_SHARE, SIXTEEN_BIT_LEAST_SHARE, Comparison, compare_detections
from codetr.files import errors_about, new_folder
from codetr.network import add_graph_nms_arguments
from codetr.postprocess import apply_nms_to_batch
from codetr.preprocess import Batch, Preprocessor, load_image
from codetr.sizes import InputSizes, batch_range, fixed, size_ranges

if TYPE_CHECKING:
    import torch

    from codetr.config import NmsConfig
    from codetr.model import CoDino

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
INPUT_NAMES = ("images", "image_shapes")
OUTPUT_NAMES = ("boxes", "scores", "labels")
NMS_OUTPUT_NAMES = (*OUTPUT_NAMES, "num_detections")
"""Those of a graph with non-maximum suppression inside, see `codetr.nms.HardNms`."""
DEFAULT_SIZE = (768, 1152)
DEMO_PHOTO = Path(__file__).parent.parent / "assets" / "coffee.jpg"

Detections = tuple[np.ndarray, np.ndarray, np.ndarray]
"""boxes [N, K, 4], scores [N, K], labels [N, K]."""


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
    keep_unequal: bool
    nms: str
    nms_iou: float | None

    @property
    def model_precision(self) -> str:
        """The types of weights and activations: TF32 is float32, multiplied with fewer bits."""
        return "fp32" if self.precision == "tf32" else self.precision

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
        batch: the photo as the network's input.
        source_weights: where the weights came from.
        detections: PyTorch's for the photo, by precision: "fp32", and the one asked for. With `nms` after
            `codetr.postprocess`. Empty without a GPU.
    """

    model: CoDino
    nms: NmsConfig | None
    batch: Batch
    source_weights: str
    detections: dict[str, Detections]


def make_parser(program: str, description: str) -> argparse.ArgumentParser:
    """Makes a parser with the options that both commands have."""
    parser = ArgumentParser(prog=program, description=description)
    parser.add_argument(
        "--model", required=True, metavar="NAME|JSON", help="co_dino_swin_l, co_dino_r50 or a file"
    )
    parser.add_argument("--weights", metavar="NAME|FILE|URL", help="default: the model's published weights")
    height, width = DEFAULT_SIZE
    parser.add_argument("--height", type=positive, help=f"input height in pixels (default: {height})")
    parser.add_argument("--width", type=positive, help=f"input width in pixels (default: {width})")
    parser.add_argument(
        "--dynamic-size",
        type=size_ranges,
        metavar="MIN-OPT-MAX",
        help="heights and widths that are decided at run time, instead of --height and --width: smallest, the "
        "one to tune for, largest, each HEIGHTxWIDTH or one number, such as 512-768x1152-1344; multiples of 32",
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
        UsageError: a file that is to be read is none, the timing cache cannot be written, or options do not go
            together.
    """
    if arguments.nms_iou is not None and arguments.nms == "none":
        raise UsageError(f"--nms-iou {arguments.nms_iou:g}: goes with --nms, which is not given")
    height, width = (given or size for given, size in zip((arguments.height, arguments.width), DEFAULT_SIZE))
    ranges = fixed(height), fixed(width)
    if arguments.dynamic_size is not None:
        for option in ("height", "width"):
            if getattr(arguments, option) is not None:
                raise UsageError(f"--{option} and --dynamic-size: give one of them")
        ranges = arguments.dynamic_size
    if arguments.photo is not None:
        check_file("--photo", arguments.photo)
    if arguments.timing_cache is not None:
        check_writable("--timing-cache", arguments.timing_cache)
    given = {name: getattr(arguments, name) for name in Request.__dataclass_fields__ if name != "sizes"}
    return Request(**given, sizes=InputSizes(arguments.batch, *ranges))


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Prints a line when a step begins and its seconds when it ends."""
    print(f"{name} …", flush=True)
    started = time.perf_counter()
    yield
    print(f"{name}: {time.perf_counter() - started:.1f} s", flush=True)


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
    try:
        with errors_about(out, temporary):
            yield temporary
            files = sorted(temporary.iterdir())
            with new_folder(out):
                for file in files:
                    if (out / file.name).is_dir():
                        raise UsageError(f"--out {out}: {file.name} is a folder there, not a file")
                for file in files:
                    os.replace(file, out / file.name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def pick_device(device: str) -> torch.device:
    """Turns "auto", "cpu" or "cuda" into a device that exists here."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: PyTorch finds no GPU here (nvidia-smi shows the driver's view)")
    return torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")


def prepare(request: Request) -> Subject:
    """Loads model and photo, lets PyTorch detect if there is a GPU, and sets the model's precision.

    Raises:
        ValueError, OSError: model, weights, photo or size do not fit.
    """
    import codetr

    device = pick_device(request.device)
    config = model_config(request.model)
    weights = weights_source(config, request.weights)
    preprocessor = Preprocessor(config.mean, config.std, height=request.height, width=request.width)
    batch = _photo_batch(request, preprocessor)
    with stage(f"load {config.name}, weights {weights}"):
        model = codetr.CoDino(config).eval().requires_grad_(False)
        _check_size(model, batch)
        codetr.load_checkpoint(model, weights)
    if request.batch > 1 or request.precision == "bf16":
        model.write_out_group_norms()

    nms = _nms_inside(config.nms, request)
    detections: dict[str, Detections] = {}
    for precision in dict.fromkeys(("fp32", request.precision)):
        model.set_precision(precision)
        if device.type == "cuda":
            with stage(f"detect with PyTorch {precision}"):
                found = _detect(model.to(device), batch, device)
                if nms is not None:  # by the reference in NumPy, not by what the graph will have inside
                    found = apply_nms_to_batch(*found, **dataclasses.asdict(nms))
                detections[precision] = found
    return Subject(model.cpu(), nms, batch, weights, detections)


def exported_module(subject: Subject) -> torch.nn.Module:
    """What becomes the graph: the model, with its non-maximum suppression if that is to be inside."""
    from codetr.nms import CoDinoWithNms

    if subject.nms is None:
        return subject.model
    return CoDinoWithNms(subject.model, subject.nms.iou_threshold)


def example_inputs(subject: Subject, device: str | torch.device = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """The photo as the model's arguments: images [N, 3, H, W] fp32, image_shapes [N, 2] int64."""
    import torch

    return torch.from_numpy(subject.batch.images).to(device), torch.from_numpy(subject.batch.image_shapes).to(
        device
    )


def write_metadata(subject: Subject, request: Request, folder: Path, engine: bool = True) -> None:
    """Writes model.json: everything that whoever runs the engine needs, see `trt_plugin.ArtifactMetadata`.

    Args:
        engine: whether there is one; TensorRT's version and the GPU's name stay empty for an ONNX file alone.
    """
    import torch

    import trt_plugin
    from trt_plugin.errors import import_tensorrt

    config, images = subject.model.config, subject.batch.images
    boxes = (request.batch, config.max_per_img)
    outputs = {"boxes": ((*boxes, 4), "float32"), "scores": (boxes, "float32"), "labels": (boxes, "int64")}
    outputs["num_detections"] = (request.batch,), "int64"
    metadata = trt_plugin.ArtifactMetadata(
        model=config.name,
        inputs=_tensors(images=(images.shape, "float32"), image_shapes=((request.batch, 2), "int64")),
        outputs=_tensors(**{name: outputs[name] for name in request.output_names}),
        class_names=list(config.label_names),
        mean=list(config.mean),
        std=list(config.std),
        resize={"height": request.height, "width": request.width, "mode": "fit_pad"},
        max_per_img=config.max_per_img,
        nms=dataclasses.asdict(subject.nms or config.nms),
        nms_in_graph=subject.nms is not None,
        precision=request.precision,
        batch=request.batch,
        tensorrt_version=import_tensorrt().__version__ if engine else "",
        plugin_version=trt_plugin.PLUGIN_VERSION,
        gpu=torch.cuda.get_device_name() if engine else "",
        torch_version=torch.__version__,
        source_weights=subject.source_weights,
    )
    metadata.save(folder / "model.json")


def compare_engine(subject: Subject, request: Request, engine: Path) -> None:
    """Runs the engine on the photo and prints how its detections compare with PyTorch's.

    Raises:
        RuntimeError: the engine's detections are not PyTorch's in the same precision (see `codetr.compare`),
            and the request does not ask to keep such files.
    """
    import trt_plugin

    inputs = dict(zip(INPUT_NAMES, (subject.batch.images, subject.batch.image_shapes), strict=True))
    with trt_plugin.EngineRunner(engine) as runner:
        outputs = runner(inputs)
        found = tuple(np.array(outputs[name]) for name in OUTPUT_NAMES)
    if subject.nms is not None:
        counts, kept = outputs["num_detections"].tolist(), (found[2] >= 0).sum(axis=1).tolist()
        if counts != kept:
            raise RuntimeError(
                f"num_detections: expected the number of labels from 0 on {kept}, got {counts}"
            )
    for precision, expected in subject.detections.items():
        comparison = compare_detections(expected, found)
        print(f"engine {request.precision} against PyTorch {precision}: {comparison}", flush=True)
        if precision == request.precision:
            _require_alike(comparison, request)


def _require_alike(comparison: Comparison, request: Request) -> None:
    if request.precision == "fp32":
        share, least, what, count = comparison.equal_share, FP32_LEAST_SHARE, "equal", comparison.equal
    else:
        share, least = comparison.matched_share, SIXTEEN_BIT_LEAST_SHARE
        what, count = "matched", comparison.matched
    if share >= least:
        return
    message = (
        f"the engine's detections are not PyTorch's: expected {least:.0%} {what}, got "
        f"{count} of {comparison.count}"
    )
    if not request.keep_unequal:
        raise RuntimeError(f"{message}; nothing is kept (--keep-unequal keeps the files)")
    complain("warning", message)


def _nms_inside(published: NmsConfig, request: Request) -> NmsConfig | None:
    if request.nms == "none":
        return None
    iou = published.iou_threshold if request.nms_iou is None else request.nms_iou
    return dataclasses.replace(published, method=request.nms, iou_threshold=iou)


def _photo_batch(request: Request, preprocessor: Preprocessor) -> Batch:
    """The photo `batch` times, each turned by another 90 degrees, so that the images differ in size."""
    if request.photo is not None:
        photo = load_image(request.photo)
    elif DEMO_PHOTO.is_file():
        photo = load_image(DEMO_PHOTO)
    else:  # an installed package has no pictures
        y, x = np.mgrid[:480, :640]
        photo = np.stack([127.5 + 127.5 * np.sin(x * y / scale) for scale in (900, 1700, 4000)], -1).astype(
            np.uint8
        )
    return preprocessor.batch([np.ascontiguousarray(np.rot90(photo, turn)) for turn in range(request.batch)])


def _check_size(model: CoDino, batch: Batch) -> None:
    """Runs the model without numbers, so that a size that it refuses is its own clear error."""
    import torch

    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    shapes = {name: tensor.to("meta") for name, tensor in tensors.items()}
    inputs = (
        torch.empty(batch.images.shape, device="meta"),
        torch.empty(batch.image_shapes.shape, device="meta"),
    )
    with torch.no_grad():
        torch.func.functional_call(model, shapes, inputs)


def _detect(model: CoDino, batch: Batch, device: torch.device) -> Detections:
    """PyTorch's detections, with TF32 off."""
    import torch

    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        with torch.inference_mode():
            images, image_shapes = (torch.from_numpy(array) for array in (batch.images, batch.image_shapes))
            outputs = model(images.to(device), image_shapes.to(device))
            boxes, scores, labels = (output.cpu().numpy() for output in outputs)
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
    return boxes, scores, labels


def _tensors(**tensors: tuple[tuple[int, ...], str]) -> list[dict[str, Any]]:
    return [{"name": name, "shape": list(shape), "dtype": dtype} for name, (shape, dtype) in tensors.items()]
