"""What the benchmarks' command lines share: how they run, and the options --engine and --out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from codetr.cli.command import check_file, check_writable, run_command, to_path


def run_benchmark(command: Callable[[list[str]], int], arguments: Sequence[str] | None, module: str) -> int:
    """Runs a benchmark with its arguments (default: sys.argv[1:]) and returns its exit status.

    Args:
        command: gets the arguments as a list, which result files tell.
        module: as in `python -m module`; stands before errors.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    return run_command(lambda: command(given), module)


def add_engines(parser: argparse.ArgumentParser, explanation: str, required: bool = False) -> None:
    """Adds --engine LABEL=FILE; the parsed value is a list of (label, path)."""
    parser.add_argument(
        "--engine",
        action="append",
        default=[],
        required=required,
        type=_engine,
        metavar="LABEL=FILE",
        help=f"{explanation}; may be given several times",
    )


def check_engines(engines: Sequence[tuple[str, Path]]) -> None:
    """Raises UsageError naming the first engine whose file is not there."""
    for label, path in engines:
        check_file(f"--engine {label}", path)


def add_out(parser: argparse.ArgumentParser) -> None:
    """Adds --out FILE."""
    parser.add_argument("--out", type=to_path, help="result file; below benchmarks/results by default")


def check_out(out: Path | None) -> None:
    """Raises UsageError if --out was given and cannot be written."""
    if out:
        check_writable("--out", out)


def result_file(out: Path | None, stem: str, machine: str) -> Path:
    """--out, or else benchmarks/results/STEM_MACHINE.json; raises UsageError if it cannot be written."""
    path = out or Path("benchmarks/results") / f"{stem}_{machine}.json"
    check_writable("--out", path)
    return path


def _engine(text: str) -> tuple[str, Path]:
    label, separator, path = text.partition("=")
    if not separator or not label or not path:
        raise argparse.ArgumentTypeError(f"expected LABEL=FILE, got {text!r}")
    return label, Path(path)
