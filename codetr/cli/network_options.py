"""The options that say which network runs, where and at which size, for every command that runs one.

Imports no Torch: the detector is made when it is asked for.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from codetr.cli.command import UsageError, check_file, complain, one_line, positive, to_path, weights_source
from codetr.detector.detector import BACKENDS, FILES, NMS_METHODS, PRECISIONS, Detector
from codetr.detector.sizes import InputSizes
from codetr.detector.torch_backend import TorchBackend
from codetr.weights import DEMO

_FIXED = ("model", "weights", "precision")


def add_network_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --model, --weights, --labels, --backend, --engine, --onnx, --device, --precision, --batch,
    --max-size, --height, --width and --imgsz."""
    group = parser.add_argument_group("network")
    add = group.add_argument
    add(
        "--model",
        metavar="NAME",
        help=f"co_dino_swin_l, co_dino_r50, folder of a run, or configuration JSON; default: {DEMO}",
    )
    add(
        "--weights",
        metavar="W",
        help="checkpoint: file, URL or known name; default: beside the configuration, or as published",
    )
    add(
        "--labels",
        type=to_path,
        metavar="FILE",
        help="class names, one a line, in place of the model's",
    )
    add(
        "--backend",
        choices=BACKENDS,
        help="default: torch, or what runs the file that --engine or --onnx gives",
    )
    add(
        "--engine",
        metavar="FILE",
        help="TensorRT engine, its metadata <stem>.json beside it; holds model and weights",
    )
    add("--onnx", metavar="FILE", help="the same as an ONNX file, for onnxruntime; its metadata beside it")
    add(
        "--device",
        type=device,
        default="auto",
        help="auto (the GPU if there is one), cpu, cuda or cuda:<i>; default: auto",
    )
    add("--precision", choices=PRECISIONS, help="of the torch backend; default: fp32")
    add(
        "--batch",
        type=positive,
        default=1,
        metavar="N",
        help="pictures in one run of the network; default: 1",
    )
    group = parser.add_argument_group(
        "input size (default: as the model was published; fixed in a file exported without --dynamic-size)"
    )
    add = group.add_argument
    add("--max-size", type=positive, metavar="PX", help="limit of the resized picture's longer side")
    add("--height", type=positive, metavar="PX", help="fixed input height; pictures are fitted in and padded")
    add("--width", type=positive, metavar="PX", help="fixed input width")
    add(
        "--imgsz",
        type=image_size,
        metavar="PX|HEIGHTxWIDTH",
        help="the resized picture's longer side, larger than published too; or --height and --width in one",
    )


def add_nms_arguments(group: argparse._ArgumentGroup) -> None:
    """Adds --nms and --nms-iou."""
    group.add_argument("--nms", choices=NMS_METHODS, help="default: as the model was published")
    group.add_argument(
        "--nms-iou",
        type=fraction,
        metavar="IOU",
        help="overlap from which boxes of a class suppress each other",
    )


def add_graph_nms_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --nms and --nms-iou of an export, which say what is inside the graph."""
    parser.add_argument(
        "--nms",
        type=graph_nms_method,
        nargs="?",
        const="hard",
        default="none",
        metavar="hard|none",
        help="hard, or --nms alone: greedy non-maximum suppression in the graph, whose outputs are then "
        "final (default: none; whoever runs it does it)",
    )
    parser.add_argument(
        "--nms-iou",
        type=fraction,
        metavar="IOU",
        help="with --nms: overlap above which boxes of a class suppress each other (default: the model's)",
    )


def check_network(options: argparse.Namespace) -> None:
    """Checks what `add_network_arguments` added, and fills in backend and model where they are not given.

    Raises:
        UsageError: options contradict each other, a file is not there, or an engine's or ONNX file's metadata
            cannot be read.
    """
    if options.engine is not None and options.onnx is not None:
        raise UsageError("--engine and --onnx: give one of them")
    if options.backend is None:
        given = [backend for backend, (name, _) in FILES.items() if getattr(options, name) is not None]
        options.backend = given[0] if given else "torch"
    for backend, (name, _) in FILES.items():
        if getattr(options, name) is not None and options.backend != backend:
            raise UsageError(f"--{name}: goes with --backend {backend}, got --backend {options.backend}")
        if getattr(options, name) is None and options.backend == backend:
            raise UsageError(f"--backend {backend}: needs --{name} FILE")
    if options.imgsz is not None:
        for name in ("max_size", "height", "width"):
            if getattr(options, name) is not None:
                raise UsageError(f"--imgsz: does not go with --{name.replace('_', '-')}")
    if (options.height is None) != (options.width is None):
        raise UsageError("--height and --width: give both or neither")
    if options.height is not None and options.max_size is not None:
        raise UsageError("--max-size: does not go with --height and --width")
    if options.backend == "torch":
        _check_torch(options)
    else:
        _check_file(options, *FILES[options.backend])


def _check_file(options: argparse.Namespace, name: str, kind: str) -> None:
    """Refuses what an engine or ONNX file has fixed, and one that is not there or has no metadata."""
    file = getattr(options, name)
    for fixed in _FIXED:
        if getattr(options, fixed) is not None:
            raise UsageError(f"--{fixed.replace('_', '-')}: is fixed in the {kind} {file}, leave it out")
    if name == "engine" and not options.device.startswith(("auto", "cuda")):
        raise UsageError(f"--device {options.device}: an engine runs on a GPU, give auto, cuda or cuda:<i>")
    check_file(f"--{name}", file)
    if not Path(file).with_suffix(".json").is_file():
        raise UsageError(f"--{name} {file}: its metadata {Path(file).stem}.json is not beside it")
    from trt_plugin import ArtifactMetadata, EngineError

    try:
        metadata = ArtifactMetadata.load(Path(file).with_suffix(".json"))
        sizes = InputSizes.of_artifact(metadata)
    except (EngineError, ValueError) as error:
        raise UsageError(f"--{name}: {one_line(error)}") from error
    chosen = options.max_size, options.height, options.width
    if options.imgsz is not None:
        chosen = (None, *options.imgsz) if isinstance(options.imgsz, tuple) else (options.imgsz, None, None)
    refusal = sizes.refusal(kind, file, *chosen)
    if refusal is not None:
        name = refusal[0] if options.imgsz is None else "imgsz"
        raise UsageError(f"--{name.replace('_', '-')}: {refusal[1]}")
    for option in ("nms", "nms_iou"):
        if metadata.nms_in_graph and getattr(options, option, None) is not None:
            inside = f"{metadata.nms['method']}, IoU {metadata.nms['iou_threshold']}"
            raise UsageError(
                f"--{option.replace('_', '-')}: is fixed in the {kind} {file} ({inside}), leave it out"
            )


def _check_torch(options: argparse.Namespace) -> None:
    """Refuses an unknown model and weights that are neither a file, a URL nor a known name."""
    if options.model is None:
        if options.weights is not None:
            raise UsageError("--weights: goes with --model, whose weights they are")
        options.model = DEMO
    weights_source(options.model, options.weights)


def make_detector(options: argparse.Namespace) -> Detector:
    """Loads the network of checked options.

    Raises:
        UsageError: the ONNX file or the class names are not what they should be.
        ValueError, RuntimeError, ImportError: as `codetr.Detector`.
    """
    try:
        detector = Detector(
            options.model,
            options.weights,
            backend=options.backend,
            engine=options.engine,
            onnx=options.onnx,
            device=options.device,
            precision=options.precision or "fp32",
            max_size=options.max_size,
            height=options.height,
            width=options.width,
            imgsz=options.imgsz,
        )
    except ValueError as error:
        if options.backend != "onnxruntime":
            raise
        raise UsageError(f"--onnx: {one_line(error)}") from error
    if options.labels is not None:
        try:
            detector.rename_classes(options.labels)
        except ValueError as error:
            detector.close()
            raise UsageError(f"--{one_line(error)}") from error
    return detector


def tell_shrunk_images(detector: Detector, program: str) -> None:
    """Says on stderr how many images a file's fixed size made much smaller because of their orientation."""
    count, size = detector.shrunk_images, detector.backend.preprocessor
    if count and not isinstance(detector.backend, TorchBackend):
        complain(
            "note",
            f"{count} images shrank to fit the fixed input of {size.height}x{size.width}, which suits the "
            "other orientation; --dynamic-size of an export suits both",
            program,
        )


# Types of arguments.


def device(text: str) -> str:
    """ "auto", "cpu", "cuda" or "cuda:<number>"."""
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", text):
        raise argparse.ArgumentTypeError(f"expected auto, cpu, cuda or cuda:<number>, got {text!r}")
    return text


def image_size(text: str) -> int | tuple[int, int]:
    """A number of pixels, or HEIGHTxWIDTH."""
    match = re.fullmatch(r"([1-9]\d{0,4})(?:[x,]([1-9]\d{0,4}))?", text, re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected pixels (640) or HEIGHTxWIDTH (480x640), got {text!r}")
    return int(match[1]) if match[2] is None else (int(match[1]), int(match[2]))


def graph_nms_method(text: str) -> str:
    """What a graph can have inside, see `codetr.export.graph_nms`: "hard" or "none"."""
    if text == "soft":
        raise argparse.ArgumentTypeError(
            "expected hard or none, got 'soft', which has no short form without a loop: every choice depends "
            "on scores that all before it have lowered; leave --nms out, and codetr detect does it"
        )
    if text not in ("hard", "none"):
        raise argparse.ArgumentTypeError(f"expected hard or none, got {text!r}")
    return text


def fraction(text: str) -> float:
    """A number from 0 to 1."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 <= number <= 1.0:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got {text!r}")
    return number
