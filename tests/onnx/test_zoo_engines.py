"""TensorRT's engines of the zoo's rewritten files against onnxruntime's outputs of the files as exported."""

from __future__ import annotations

import json

import pytest

from onnx_path import build, compare, surgeon
from tests.onnx import model_zoo


@pytest.mark.gpu
@pytest.mark.parametrize("name", model_zoo.ZOO)
def test_engine_of_the_rewritten_file_equals_onnxruntime_on_the_original(
    tensorrt, name, timing_cache, zoo_folder, tmp_path, capsys
):
    entry = model_zoo.ZOO[name]
    entry.require()
    original, rewritten = model_zoo.export(name, zoo_folder), tmp_path / "rewritten.onnx"
    assert surgeon.main([str(original), str(rewritten)]) == 0, capsys.readouterr().err
    report = tmp_path / "report.json"
    options = ["--out", str(tmp_path), "--json", str(report), "--optimization-level", "1"]
    options += ["--timing-cache", str(timing_cache)]
    assert build.main([str(rewritten), *options]) == 0, capsys.readouterr().err
    assert len(json.loads(report.read_text())["report"]["plugin_layers"]) == entry.layers
    capsys.readouterr()
    status = compare.main([str(original), str(tmp_path / "rewritten.engine")])
    output = capsys.readouterr()
    assert status == 0, output.out + output.err
