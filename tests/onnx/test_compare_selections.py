"""`python -m onnx_path.compare` with engines that output their selections."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnx_path import build, compare
from onnx_path.surgery.verify import selections
from tests.onnx.selecting_models import SCORES, masking, selecting

CASES = pytest.mark.parametrize(
    ("make", "rounding", "selection"),
    [(selecting, 2**-21, "best"), (masking, -(2**-22), "mask")],
    ids=["TopK", "threshold"],
)
"""Models, a change of their scores that is a rounding and changes the selection, and the selection."""


@pytest.fixture
def folder(tmp_path, machine) -> Path:
    """A folder with scores that nearly tie, on a machine whose engines are ONNX files."""
    np.save(tmp_path / "x.npy", SCORES)
    return tmp_path


def status_of(folder: Path, model: onnx.ModelProto, other: onnx.ModelProto, *options: str) -> int:
    onnx.save(model, folder / "model.onnx")
    onnx.save(other, folder / "engine.onnx")
    given = ["--input", f"x={folder / 'x.npy'}"]
    return compare.main([str(folder / "model.onnx"), str(folder / "engine.onnx"), *given, *options])


@CASES
def test_near_ties_are_no_difference_where_the_engine_tells_them(folder, capsys, make, rounding, selection):
    exact, off = make(0), make(rounding)
    hint = "scores that nearly tie may be the reason: TopK or thresholds select 1 times"
    assert status_of(folder, exact, off) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith(hint)
    report = folder / "report.json"
    assert status_of(folder, exact, selections.telling(off, [selection]), "--json", str(report)) == 0
    output = capsys.readouterr()
    assert output.out.endswith("\nall outputs agree\n") and output.err == ""
    assert f"onnxruntime takes the engine's: {selection}" in output.out
    content = json.loads(report.read_text())
    assert content["selections"] == [selection]
    names = [x.name for x in exact.graph.output]
    assert [x["name"] for x in content["outputs"]] == [*names, selections.scores_name(selection)]


@CASES
def test_a_fault_in_what_is_selected_from_is_one(folder, capsys, make, rounding, selection):
    """Both sides select the same, as the engine told."""
    wrong = selections.telling(make(math.copysign(0.02, rounding)), [selection])
    assert status_of(folder, make(0), wrong, "--tolerance", "1e-3") == 1
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if line.startswith(selections.scores_name(selection))]
    assert "DIFFERS" in row
    assert "--tell-selections" not in lines[-1]


@CASES
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_build_gives_the_selections(tmp_path, machine, capsys, make, rounding, selection, precision):
    source = tmp_path / "model.onnx"
    model = make(0)
    onnx.save(model, source)
    argv = [str(source), "--out", str(tmp_path / "out"), "--precision", precision, "--tell-selections"]
    assert build.main(argv) == 0, capsys.readouterr().err
    ((_, _, built),) = machine
    types = {x.name: x.type.tensor_type.elem_type for x in built.graph.output}
    choice = onnx.TensorProto.INT64 if make is selecting else onnx.TensorProto.BOOL
    assert types == {
        **{x.name: onnx.TensorProto.FLOAT for x in model.graph.output},
        selections.scores_name(selection): onnx.TensorProto.FLOAT,
        selections.choice_name(selection): choice,
    }
    onnx.checker.check_model(built, full_check=True)


# With a GPU.


@pytest.mark.gpu
@CASES
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_an_engine_tells_its_selections(tensorrt, tmp_path, capsys, make, rounding, selection, precision):
    np.save(tmp_path / "x.npy", SCORES)
    onnx.save(make(0), tmp_path / "model.onnx")
    onnx.save(make(rounding), tmp_path / "off.onnx")
    argv = [str(tmp_path / "off.onnx"), "--out", str(tmp_path), "--precision", precision]
    assert build.main([*argv, "--tell-selections"]) == 0, capsys.readouterr().err
    files = [str(tmp_path / "model.onnx"), str(tmp_path / "off.engine")]
    assert compare.main([*files, "--input", f"x={tmp_path / 'x.npy'}"]) == 0, capsys.readouterr().out
    assert f"onnxruntime takes the engine's: {selection}" in capsys.readouterr().out
