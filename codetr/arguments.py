"""The command line's arguments: which there are, what they mean, and what is no number of theirs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

from codetr.command import ArgumentParser, positive, to_path
from codetr.evaluation.arguments import add_evaluate
from codetr.training.arguments import add_train

Command = Callable[[argparse.Namespace], int]


def make_parser(run_detect: Command, run_train: Command, run_evaluate: Command) -> argparse.ArgumentParser:
    """Makes the parser of `codetr`. Its result's `run` is the chosen command's function.

    A wrong command line is a `UsageError`, not an exit.
    """
    parser = ArgumentParser(
        prog="codetr", description="Object detection with Co-DETR, in PyTorch or as a TensorRT engine."
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_detect(commands, run_detect)
    add_train(commands, run_train)
    add_evaluate(commands, run_evaluate)
    return parser


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"codetr {version('codetr-tensorrt')}"
    except PackageNotFoundError:
        return "codetr, not installed as a package"


def _add_detect(commands: Any, run: Command) -> None:
    detect = commands.add_parser(
        "detect",
        help="detect objects in pictures",
        description="Detects objects in pictures: writes each with its boxes drawn, and detections.json.",
        epilog="""examples:
  codetr detect scene.jpg --out found
  codetr detect street.jpg --model co_dino_swin_l --precision fp16 --out found
  codetr detect photos/ 'more/**/*.png' --engine model.engine --batch 4 --out found

exit status: 0 all done; 1 a failure, or some of many pictures were left out (each is named);
2 wrong arguments or no readable picture""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    detect.set_defaults(run=run)
    add = detect.add_argument
    add(
        "images",
        type=lambda text: str(to_path(text)),
        nargs="+",
        metavar="IMAGE",
        help="file, folder (its pictures, not its subfolders) or quoted glob",
    )
    add(
        "--out",
        type=to_path,
        required=True,
        metavar="DIR",
        help="folder for the pictures and detections.json; made if missing",
    )

    group = detect.add_argument_group("network")
    add = group.add_argument
    add(
        "--model",
        metavar="NAME",
        help="co_dino_swin_l, co_dino_r50, or a configuration JSON; default: co_dino_demo, which comes along",
    )
    add(
        "--weights",
        metavar="W",
        help="checkpoint: file, URL or known name; default: the model's published weights",
    )
    add("--backend", choices=("torch", "tensorrt"), help="default: torch, or tensorrt when --engine is given")
    add(
        "--engine",
        metavar="E",
        help="TensorRT engine, its metadata <stem>.json beside it; holds model and weights",
    )
    add(
        "--device",
        type=_device,
        default="auto",
        help="auto (the GPU if there is one), cpu, cuda or cuda:<i>; default: auto",
    )
    add("--precision", choices=("fp32", "tf32", "fp16", "bf16"), help="of the torch backend; default: fp32")
    add(
        "--batch",
        type=positive,
        default=1,
        metavar="N",
        help="pictures in one run of the network; default: 1",
    )

    group = detect.add_argument_group("input size (torch backend; default: as the model was published)")
    add = group.add_argument
    add("--max-size", type=positive, metavar="PX", help="limit of the resized picture's longer side")
    add("--height", type=positive, metavar="PX", help="fixed input height; pictures are fitted in and padded")
    add("--width", type=positive, metavar="PX", help="fixed input width")

    group = detect.add_argument_group("detections")
    add = group.add_argument
    add("--threshold", type=_fraction, default=0.3, metavar="S", help="least score; default: 0.3")
    add("--top", type=positive, metavar="K", help="at most K detections a picture, the best")
    add("--nms", choices=("soft", "hard", "none"), help="default: as the model was published")
    add(
        "--nms-iou",
        type=_fraction,
        metavar="IOU",
        help="overlap from which boxes of a class suppress each other",
    )


def _device(text: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", text):
        raise argparse.ArgumentTypeError(f"expected auto, cpu, cuda or cuda:<number>, got {text!r}")
    return text


def _fraction(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 <= number <= 1.0:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got {text!r}")
    return number
