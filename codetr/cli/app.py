"""The program `codetr`: every command of the repository, each imported when it runs.

A new command is a line here, and a function that takes annotated parameters and returns an exit status.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import App, Group

import codetr
from codetr.cli.program import make_app, run_program

PICTURES = Group("Pictures and datasets", sort_key=1)
FILES = Group("ONNX files and engines", sort_key=2)
COMMANDS = (
    (PICTURES, "detect", "codetr.cli.detect:detect", "Detect objects in pictures."),
    (PICTURES, "serve", "codetr.cli.serve:serve", "Serve detection over HTTP, with a web page."),
    (PICTURES, "batch", "codetr.cli.batch:batch", "Detect objects in any number of pictures, by Ray Data."),
    (PICTURES, "train", "codetr.cli.train:train", "Train a detector or a classifier on a dataset."),
    (PICTURES, "evaluate", "codetr.cli.evaluate:evaluate", "Compute COCO's average precision on a dataset."),
    (PICTURES, "dataset", "codetr.cli.dataset:app", "Arrange downloaded datasets."),
    (FILES, "export", "codetr.cli.export:export", "Export a detector as ONNX file and TensorRT engine."),
    (FILES, "surgeon", "onnx_path.surgeon:surgeon", "Replace MSDA and window attention by one node each."),
    (FILES, "quantize", "onnx_path.quantize:quantize", "Quantise any DETR's ONNX file to INT8 or FP8."),
    (FILES, "build", "onnx_path.build:build", "Build a TensorRT engine of an ONNX file."),
    (FILES, "compare", "onnx_path.compare:compare", "Compare an engine with its ONNX file, layer by layer."),
    (FILES, "sweep", "onnx_path.sweep:sweep", "Measure networks in every precision, batch size and runtime."),
    (FILES, "inspect", "trt_plugin.inspect:inspect", "Show the layers, tensors and times of an engine."),
    (FILES, "refit", "codetr.cli.refit:refit", "Give an engine other weights without a new build."),
    (
        FILES,
        "triton-repository",
        "codetr.cli.triton_repository:triton_repository",
        "Write a model repository for the Triton server.",
    ),
)
"""(group, name, "module:function", line in the list of commands)."""


def make_front_door(chosen: str | None = None) -> App:
    """Makes the app with all commands.

    Args:
        chosen: the command whose help is its own docstring. The others show their line of `COMMANDS`, for
            which nothing is imported. None: every command shows its docstring.
    """
    app = make_app(
        "codetr",
        "Object detection with Co-DETR, in PyTorch, as an ONNX file or as a TensorRT engine.",
        version=codetr.__version__,
    )
    for group, name, function, summary in COMMANDS:
        app.command(function, name=name, help=None if chosen in (None, name) else summary, group=group)
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `codetr` and returns its exit status, see `codetr.cli.program`."""
    words = sys.argv[1:] if argv is None else list(argv)
    return run_program(make_front_door(words[0] if words else ""), words, "codetr")
