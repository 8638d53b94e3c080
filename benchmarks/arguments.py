"""The options --engine and --out, which several benchmarks have."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from codetr.command import check_file, check_writable, to_path


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
