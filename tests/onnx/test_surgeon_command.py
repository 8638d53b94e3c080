"""The command `codetr surgeon`: files, options, report and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from onnx_path.nodes import attention
from onnx_path.surgeon import main
from onnx_path.surgery.rewrite.function_bodies import NVIDIA
from onnx_path.surgery.verify.proof import relative_error
from tests.onnx import attention_layers as layers
from tests.onnx import window_layers
from tests.onnx.surgery_checks import Function, export, operators, run

ONE = "MultiScaleDeformableAttention, 3 levels, 2 points, 2 heads x 4 channels (GridSample)"


@pytest.fixture
def file(stacked: onnx.ModelProto, tmp_path: Path) -> Path:
    onnx.save(stacked, tmp_path / "in.onnx")
    return tmp_path / "in.onnx"


def surgeon(*words: object) -> int:
    return main([str(word) for word in words])


def test_rewrites_a_file_and_reports(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    out, report = tmp_path / "new" / "out.onnx", tmp_path / "report.json"
    assert surgeon(file, out, "--json", report, "--expect", "1") == 0
    error = capsys.readouterr().err
    assert "replaced /Transpose_" in error and f"Fused{ONE}" in error
    assert f"wrote {out}: 1 MSDA replaced" in error
    assert operators(onnx.load(out))[attention.FUSED_ATTENTION] == 1
    written = json.loads(report.read_text())
    assert written["replacements"][0]["points"] == [2, 2, 2]
    assert not written["replacements"][0]["output"].endswith("/decomposed")
    assert written["nodes_before"] > written["nodes_after"]
    assert {x.name for x in out.parent.iterdir()} == {"out.onnx"}


def test_options(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    out, report = tmp_path / "out.onnx", tmp_path / "report.json"
    options = ["--target", "nvidia", "--no-function-body", "--no-check", "--no-fuse", "--seed", "7"]
    assert surgeon(file, out, *options) == 0
    printed = capsys.readouterr().err
    assert "outputs: not compared" in printed and "already" not in printed
    model = onnx.load(out)
    assert operators(model)[NVIDIA] == 1 and not model.functions
    assert surgeon(out, tmp_path / "again.onnx", "--expect", "0", "--json", report) == 0
    assert f"(already in the file read: 1 {NVIDIA})" in capsys.readouterr().err
    assert json.loads(report.read_text())["already"] == {NVIDIA: 1}


def test_a_model_without_attention_is_copied(tmp_path: Path, capsys: pytest.CaptureFixture):
    out = tmp_path / "elsewhere" / "out.onnx"
    model = export(nn.Linear(3, 4), {"x": torch.randn(2, 3)}, tmp_path)
    assert surgeon(tmp_path / "model.onnx", out) == 0
    assert onnx.load(out) == model
    assert "found nothing to replace" in capsys.readouterr().err


def test_another_number_than_expected_fails(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    out = tmp_path / "new" / "out.onnx"
    assert surgeon(file, out, "--expect", "6", "--json", tmp_path / "report.json") == 1
    assert capsys.readouterr().err.endswith(f"{out} is not written: 1 MSDA replaced, expected 6\n")
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]

    module = Function(lambda features, places: F.grid_sample(features, places).sigmoid())
    export(module, {"features": torch.randn(2, 4, 6, 8), "places": torch.rand(2, 5, 1, 2)}, file)
    assert surgeon(file, out, "--expect", "1") == 1
    assert "0 MSDA replaced, expected 1; kept /GridSample" in capsys.readouterr().err

    way = window_layers.Way(window_size=6)  # a near miss, but none of MSDA
    export(window_layers.WindowBlock(way, 15, 22), window_layers.inputs(way, 15, 22), file)
    assert surgeon(file, out, "--expect", "1") == 1
    assert capsys.readouterr().err.endswith("0 MSDA replaced, expected 1\n")


@pytest.mark.parametrize("folder", [".", "elsewhere"])
def test_weights_in_another_file(folder: str, stacked: onnx.ModelProto, tmp_path: Path):
    source, out = tmp_path / "in.onnx", tmp_path / folder / "out.onnx"
    onnx.save(deepcopy(stacked), source, save_as_external_data=True, location="weights.bin", size_threshold=0)
    weights = (tmp_path / "weights.bin").read_bytes()
    assert surgeon(source, out) == 0
    assert (tmp_path / "weights.bin").read_bytes() == weights
    names = {x.name for x in out.parent.iterdir()}
    beside = {"in.onnx", "out.onnx", "weights.bin"}
    assert names == (beside if folder == "." else {"out.onnx", "out.onnx.data"})
    inputs = layers.inputs()
    assert relative_error(run(stacked, inputs), run(onnx.load(out), inputs)) <= 1e-5


def _not_valid(file: Path) -> None:
    model = onnx.load(file)
    model.graph.node[-1].input[0] = "nothing"
    onnx.save(model, file)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.write_bytes(b"no model" * 9), "not an ONNX file, or a part of one is missing"),
        (_not_valid, "not a valid ONNX model"),
    ],
    ids=["garbage", "not-valid"],
)
def test_unusable_files(damage: Callable, message: str, file: Path, capsys: pytest.CaptureFixture):
    damage(file)
    before = set(file.parent.iterdir())
    assert surgeon(file, file.parent / "out.onnx") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line and str(file) in line
    assert set(file.parent.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["in.onnx", "in.onnx"], "OUT.onnx"),
        (["in.onnx", "note/out.onnx"], "OUT.onnx"),
        (["in.onnx", "out.onnx", "--json", "in.onnx"], "--json"),
        (["in.onnx", "out.onnx", "--target", "trt"], "--target"),
    ],
)
def test_wrong_options(words: list[str], named: str, file: Path, monkeypatch, capsys: pytest.CaptureFixture):
    monkeypatch.chdir(file.parent)
    Path("note").write_text("a file")
    before = set(Path().rglob("*"))
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line
    assert set(Path().rglob("*")) == before
