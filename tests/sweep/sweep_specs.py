"""The small classifier of the sweep's tests, and its cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnx_path.sweeping.cells import Cell, CellSpec
from onnx_path.sweeping.networks import find_network

pytest.importorskip("timm", reason="timm is not installed")

CLASSES = ("apple", "pear")
SMALL = "test_resnet"  # a network of timm for tests


def command(folder: Path, dataset: Path, out: Path, *options: str) -> list[str]:
    given = [str(folder / "own.pth"), "--network", SMALL, "--dataset", str(dataset), "--out", str(out)]
    given += ["--iterations", "6", "--seconds", "1", "--size", "32x32", "--calibration-images", "8"]
    return [*given, "--compare", "--inputs", "12", *options]


def spec_of(folder: Path, tmp_path: Path, **changes: object) -> CellSpec:
    network = find_network(str(folder / "own.pth"), SMALL, None, (32, 32))
    cell = Cell("own", "torch", "fp32", 2, "any")
    return CellSpec(**{"network": network, "cell": cell, "folder": str(tmp_path), "iterations": 5, **changes})
