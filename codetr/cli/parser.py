"""The command line's arguments: which there are and what they mean."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from codetr import __version__
from codetr.cli.command import ArgumentParser, positive, to_path
from codetr.cli.network_options import add_network_arguments, add_nms_arguments, fraction
from codetr.evaluation.arguments import add_evaluate
from codetr.training.arguments import add_train

Command = Callable[[argparse.Namespace], int]


def make_parser(run_detect: Command, run_train: Command, run_evaluate: Command) -> argparse.ArgumentParser:
    """Makes the parser of `codetr`. Its result's `run` is the chosen command's function.

    A wrong command line is a `UsageError`, not an exit.
    """
    parser = ArgumentParser(
        prog="codetr",
        description="Object detection with Co-DETR, in PyTorch, as an ONNX file or as a TensorRT engine.",
    )
    parser.add_argument("--version", action="version", version=f"codetr {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_detect(commands, run_detect)
    add_train(commands, run_train)
    add_evaluate(commands, run_evaluate)
    return parser


def _add_detect(commands: Any, run: Command) -> None:
    detect = commands.add_parser(
        "detect",
        help="detect objects in pictures",
        description="Detects objects in pictures: writes each with its boxes drawn, and detections.json.",
        epilog="""examples:
  codetr detect scene.jpg
  codetr detect apple.jpg --model runs/fruit --conf 0.5 --classes apple pear
  codetr detect street.jpg --model co_dino_swin_l --precision fp16 --out found
  codetr detect photos/ 'more/**/*.png' --engine model.engine --batch 4 --out found
  codetr detect photo.jpg --onnx model.onnx --device cpu --out found

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
        default=Path("out"),
        metavar="DIR",
        help="folder for the pictures and detections.json; made if missing; default: out",
    )

    add_network_arguments(detect)
    group = detect.add_argument_group("detections")
    add = group.add_argument
    add("--threshold", "--conf", type=fraction, default=0.3, metavar="S", help="least score; default: 0.3")
    add(
        "--classes",
        nargs="+",
        metavar="CLASS",
        help="only these classes, by name or by number from 0",
    )
    add("--top", type=positive, metavar="K", help="at most K detections a picture, the best")
    add_nms_arguments(group)
