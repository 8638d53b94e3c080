"""The options that say which network runs, where and at which size, for every command that runs one.

Imports no Torch: the detector is made when it is asked for.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import fields

from codetr.cli.command import complain, positive, to_path
from codetr.detector.detector import Detector
from codetr.detector.network_options import NetworkOptions
from codetr.detector.postprocess import NMS_METHODS
from codetr.detector.torch_backend import TORCH_PRECISIONS as PRECISIONS
from codetr.weights import DEMO

BACKENDS = ("torch", "onnxruntime", "tensorrt")


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
    """Checks what `add_network_arguments` added."""
    _network(options).make_backend()


def make_detector(options: argparse.Namespace) -> Detector:
    """Loads the network of checked options."""
    network = _network(options)
    backend = network.make_backend()
    detector = Detector(backend=backend, labels=network.labels)
    backend.load()
    return detector


def _network(options: argparse.Namespace) -> NetworkOptions:
    return NetworkOptions(**{item.name: getattr(options, item.name) for item in fields(NetworkOptions)})


def tell_shrunk_images(detector: Detector, program: str) -> None:
    """Prints `Detector.shrunk_note`."""
    if detector.shrunk_note is not None:
        complain("note", detector.shrunk_note, program)


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
