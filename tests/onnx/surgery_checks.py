"""Exports, runs and checks that the tests of the graph surgery share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from torch import Tensor, nn

from onnx_path import build, compare, surgeon
from onnx_path.nodes import attention
from onnx_path.surgeon import SurgeryReport
from tests.onnx.zoo_exporters import export_module, run_onnx


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.function(*tensors)


def export(
    module: nn.Module,
    inputs: dict[str, Tensor],
    path: Path,
    *,
    exporter: str = "torchscript",
    opset: int = 17,
    dynamic: dict | None = None,
) -> onnx.ModelProto:
    """Exports a module with one output by one of Torch's exporters, into a folder or as a file."""
    path = path / "model.onnx" if path.is_dir() else path
    export_module(
        module.eval(), inputs, path, outputs=("output",), exporter=exporter, opset=opset, dynamic=dynamic
    )
    return onnx.load(path)


def run(model: onnx.ModelProto, inputs: dict[str, Tensor]) -> np.ndarray:
    """Returns the model's only output by onnxruntime."""
    return run_onnx(model.SerializeToString(), inputs)[0]


def operators(model: onnx.ModelProto) -> Counter[str]:
    """Counts the nodes of the main graph by their type."""
    return Counter(node.op_type for node in model.graph.node)


def check_one(
    model: onnx.ModelProto,
    result: onnx.ModelProto,
    report: SurgeryReport,
    op_type: str = attention.FUSED_ATTENTION,
) -> None:
    """Asserts that the model's only attention has become one node of a valid model."""
    assert [x.op_type for x in report.of("msda")] == [op_type], report
    assert not report.near_misses
    assert report.max_error <= 1e-5
    assert operators(result)[op_type] == 1
    assert not {"GridSample", "GatherElements", "Floor"} & set(operators(result))
    assert report.nodes_after == len(result.graph.node) < len(model.graph.node) == report.nodes_before
    assert sum(x.nodes_removed for x in report.of("msda")) == report.nodes_before - report.nodes_after
    onnx.checker.check_model(result, full_check=True)


def check_engine(original: Path, engine: Path, capsys: pytest.CaptureFixture, *options: str) -> None:
    """Asserts that `onnx_path.compare` finds an engine's outputs equal to those of onnxruntime."""
    capsys.readouterr()
    status = compare.main([str(original), str(engine), *options])
    output = capsys.readouterr()
    assert status == 0, output.out + output.err


def check_rewritten_engine(
    module: nn.Module,
    inputs: dict[str, Tensor],
    kind: str,
    folder: Path,
    capsys: pytest.CaptureFixture,
    *options: str,
) -> None:
    """Asserts that the engine of a module's rewritten file equals onnxruntime on the original file.

    Args:
        inputs: to export the module and to compare on. Random numbers, as `compare` draws, are no mask.
        kind: of what the surgeon replaces.
        options: of `onnx_path.build`.
    """
    original, rewritten, numbers = (
        folder / name for name in ("original.onnx", "rewritten.onnx", "inputs.npz")
    )
    export(module, inputs, original)
    np.savez(numbers, **inputs)
    assert surgeon.main([str(original), str(rewritten), "--only", kind]) == 0, capsys.readouterr().err
    assert build.main([str(rewritten), "--out", str(folder), *options]) == 0, capsys.readouterr().err
    check_engine(original, folder / "rewritten.engine", capsys, "--inputs", str(numbers))
