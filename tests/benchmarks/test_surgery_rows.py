"""`benchmarks.surgery`: the row of a model, and its failures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from benchmarks import onnx_engines, result_files, surgery, timing
from tests.onnx import model_zoo, swin_models, zoo_files

MODEL = "rt_detr"


def test_row_holds_surgery_and_both_engines(tmp_path, monkeypatch, capsys):
    """The surgeon is real. A build writes a report, and runs take 4 ms and, rewritten, 2 ms."""
    model_zoo.ZOO[MODEL].require()
    original, real = zoo_files.write(MODEL, tmp_path, full=False), onnx_engines.command

    def command(arguments, seconds):
        words = [str(word) for word in arguments]
        if words[0] == "onnx_path.surgeon":
            real(arguments, seconds)
            return
        assert words[0] == "onnx_path.build"
        assert words[words.index("--precision") + 1] == "fp16"
        content = {"engine_bytes": 100, "device_memory_bytes": 10, "layers": 7, "plugin_layers": ["a"]}
        Path(words[words.index("--json") + 1]).write_text(
            json.dumps({"build_seconds": 1.5, "report": content})
        )

    def run(engine, inputs, iterations):
        assert [array.shape for array in inputs.values()] == [(1, 3, 96, 128)]
        return {}, [2.0 if "msda" in engine.name else 4.0] * iterations

    def failing(engine, inputs, iterations):
        if "msda" not in engine.name:
            raise RuntimeError("no\nkernel")
        return run(engine, inputs, iterations)

    def measure(status: int) -> dict:
        given = [original, "--work", tmp_path / "work", "--out", tmp_path / "x.json", "--iterations", 5]
        assert surgery.main(list(map(str, given))) == status
        (row,) = json.loads((tmp_path / "x.json").read_text())["results"]
        return row

    monkeypatch.setattr(timing, "require_gpu", lambda: None)
    monkeypatch.setattr(result_files, "describe", lambda module: {"gpu": {"name": "NVIDIA H0"}})
    monkeypatch.setattr(onnx_engines, "command", command)
    monkeypatch.setattr(onnx_engines, "run", run)
    row = measure(0)
    assert row["model"] == MODEL and row["configuration"] == "small"
    layers = model_zoo.ZOO[MODEL].layers
    assert row["replaced"] == row["kinds"]["msda"] == row["expected_attentions"] == layers
    assert row["nodes"][0] > row["nodes"][1]
    assert row["largest_relative_difference"] < 1e-5
    assert row["original"]["timing"]["samples"] == 5
    assert row["rewritten"]["plugin_layers"] == 1
    assert "original 4.000 ms  rewritten 2.000 ms  2.00 times" in capsys.readouterr().out

    # Further runs use the files of the first one.
    monkeypatch.setattr(onnx_engines, "command", None)
    monkeypatch.setattr(
        onnx_engines,
        "read_metadata",
        lambda path: {"model": path.stem, "configuration": "small", "expected_attentions": 9},
    )
    monkeypatch.setattr(onnx_engines, "run", failing)
    row = measure(1)
    assert row["original"]["failure"] == "no kernel" and row["rewritten"]["timing"]["median_ms"] == 2.0
    assert surgery.failures(row)[1].endswith(" attentions replaced, expected 9")


def test_window_attention_of_a_classifier(tmp_path, monkeypatch):
    """Builds and runs are stand-ins. A file without MSDA is no failure."""
    swin_models.SWINS["swin_torchvision"].require()
    original, real = zoo_files.write("swin_torchvision", tmp_path, full=False, batch=2), onnx_engines.command
    built = []

    def command(arguments, seconds):
        if arguments[0] == "onnx_path.surgeon":
            real(arguments, seconds)
            return
        built.append(Path(arguments[1]).name)
        raise RuntimeError("no GPU")

    monkeypatch.setattr(timing, "require_gpu", lambda: None)
    monkeypatch.setattr(result_files, "describe", lambda module: {"gpu": {"name": "NVIDIA H0"}})
    monkeypatch.setattr(onnx_engines, "command", command)
    monkeypatch.chdir(tmp_path)
    given = [str(original), "--only", "window-attention", "--work", str(tmp_path / "work")]
    assert surgery.main(given) == 1
    result = json.loads(Path("benchmarks/results/surgery_window-attention_fp16_h0.json").read_text())
    (row,) = result["results"]
    assert row["replaced"] == row["kinds"]["window-attention"] == swin_models.SMALL_BLOCKS
    assert built == ["swin_torchvision_b2.onnx", "swin_torchvision_b2.window-attention.onnx"]
    assert surgery.failures(row) == ["no GPU"] * 2


@pytest.mark.parametrize(
    ("code", "seconds", "message"),
    [
        ("import time; time.sleep(60)", 1, "bad: not done after 1 s"),
        ("import os; os._exit(3)", 60, "bad: exit status 3"),
        ("raise SystemExit('codetr: error: x.onnx: no model')", 60, "bad: x.onnx: no model"),
    ],
)
def test_commands_that_fail(code, seconds, message, monkeypatch, tmp_path):
    (tmp_path / "bad.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=f"^{message}$"):
        onnx_engines.command(["bad"], seconds)
