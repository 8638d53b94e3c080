"""`benchmarks.placements`: each placement has more layers in 8 bits, in engines of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from benchmarks import onnx_engines, placements, result_files, timing
from tests.onnx import model_zoo, zoo_files


def test_placements(tmp_path: Path, monkeypatch, capsys):
    """The files are real, builds and runs are stand-ins. FP8's convolutions fail."""
    model_zoo.ZOO["rt_detr"].require()
    model, built = zoo_files.write("rt_detr", tmp_path, full=False), []

    def measure(path, folder, precision, inputs, seconds, iterations):
        assert path in built and inputs()["pixel_values"].shape[0] == 1
        if path.stem == "fp8_and_all_convolutions":
            return {"failure": "no kernel"}, {}
        return {"timing": timing.Timing([2.0]).as_dict()}, {}

    monkeypatch.setattr(timing, "require_gpu", lambda: None)
    monkeypatch.setattr(result_files, "describe", lambda module: {"gpu": {"name": "NVIDIA H0"}})
    monkeypatch.setattr(onnx_engines, "build", lambda path, *rest: built.append(path))
    monkeypatch.setattr(onnx_engines, "measure_engine", measure)
    out = tmp_path / "result.json"
    assert placements.main([str(model), "--jobs", "2", "--work", str(tmp_path / "w"), "--out", str(out)]) == 1
    printed = capsys.readouterr().out
    assert "int8  policy" in printed and "layers  failed: no kernel" in printed
    rows = json.loads(out.read_text())["results"]
    assert [row["placement"] for row in rows] == ["none", *placements.PLACEMENTS, *placements.PLACEMENTS]
    int8 = {row["placement"]: row["quantized"] for row in rows if row["precision"] == "int8"}
    assert all(count > int8["policy"] for name, count in int8.items() if name != "policy")
