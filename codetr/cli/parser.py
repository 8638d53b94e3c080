"""The command line's arguments: which there are and what they mean."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from codetr import __version__
from codetr.cli.command import ArgumentParser
from codetr.evaluation.arguments import add_evaluate
from codetr.training.arguments import add_train

Command = Callable[[argparse.Namespace], int]


def make_parser(run_train: Command, run_evaluate: Command) -> argparse.ArgumentParser:
    """Makes the parser of `codetr`. Its result's `run` is the chosen command's function.

    A wrong command line is a `UsageError`, not an exit.
    """
    parser = ArgumentParser(
        prog="codetr",
        description="Object detection with Co-DETR, in PyTorch, as an ONNX file or as a TensorRT engine.",
    )
    parser.add_argument("--version", action="version", version=f"codetr {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_train(commands, run_train)
    add_evaluate(commands, run_evaluate)
    return parser
