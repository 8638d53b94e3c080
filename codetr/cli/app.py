"""The program `codetr`: every command of the repository, each imported when it runs.

A new command is a line here, and a function that takes annotated parameters and returns an exit status.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import Group

import codetr
from codetr.cli.program import make_app, run_program

PICTURES = Group("Pictures and datasets", sort_key=1)
FILES = Group("ONNX files and engines", sort_key=2)
COMMANDS = (
    (PICTURES, "detect", "codetr.cli.detect:detect", "Detect objects in pictures."),
    (PICTURES, "train", "codetr.cli.train:train", "Train a model on a dataset in COCO format."),
    (PICTURES, "evaluate", "codetr.cli.evaluate:evaluate", "Compute COCO's average precision on a dataset."),
    (FILES, "export", "codetr.cli.export:export", "Export a detector as ONNX file and TensorRT engine."),
    (FILES, "surgeon", "onnx_path.surgeon:surgeon", "Replace the MSDA of any DETR's ONNX file by one node."),
    (FILES, "build", "onnx_path.build:build", "Build a TensorRT engine of an ONNX file."),
    (FILES, "compare", "onnx_path.compare:compare", "Compare an engine with its ONNX file, layer by layer."),
    (FILES, "inspect", "trt_plugin.inspect:inspect", "Show the layers, tensors and times of an engine."),
    (FILES, "refit", "codetr.cli.refit:refit", "Give an engine other weights without a new build."),
)
"""(group, name, "module:function", line in the list of commands)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `codetr` and returns its exit status, see `codetr.cli.program`.

    Args:
        argv: the arguments; default: `sys.argv[1:]`.
    """
    app = make_app(
        "codetr",
        "Object detection with Co-DETR, in PyTorch, as an ONNX file or as a TensorRT engine.",
        version=codetr.__version__,
    )
    words = sys.argv[1:] if argv is None else list(argv)
    for group, name, function, summary in COMMANDS:
        # The command's own docstring is its help. The list of commands takes the line, and imports nothing.
        app.command(function, name=name, help=None if name in words[:1] else summary, group=group)
    return run_program(app, words, "codetr")
