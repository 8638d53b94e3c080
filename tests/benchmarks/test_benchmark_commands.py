"""Command lines of the benchmarks without a GPU, and the files that they write."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import result_files, timing

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = ["--weights", "co_dino_swin_l"]
ENGINE = ["--engine", "e=pyproject.toml"]  # a file that exists


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
@pytest.mark.parametrize(
    "module",
    [
        "msda",
        "detector",
        "sanitize",
        "training",
        "window_attention",
        "group_norm",
        "linear",
        "linear_max",
        "linear_of_sum",
        "quantized_layer_norm",
        "feed_forward",
        "quantized_feed_forward",
        "top_k_indices",
        "image_input",
    ],
)
def test_without_gpu(module: str, capsys) -> None:
    assert importlib.import_module(f"benchmarks.{module}").main([]) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert f"benchmarks.{module}: error: " in printed.err and "needs an NVIDIA GPU" in printed.err


@pytest.mark.parametrize(
    ("module", "arguments", "named"),
    [
        ("msda", ["--iterations", "0"], "--iterations"),
        ("msda", ["--problems"], "--problems"),
        ("msda", ["--methods", "magic"], "--methods"),
        ("msda", ["--out", "."], "--out: expected a file that can be written"),
        ("batch", ["--gpus", "-1"], "--gpus"),
        ("detector", ["--model", "nope"], "--model: model 'nope': expected one of"),
        ("detector", ["--weights", "nowhere.pth"], "--weights: expected a file"),
        ("detector", ["--engine", "fp32"], "--engine: expected LABEL=FILE, got 'fp32'"),
        ("detector", ["--engine", "fp32=nowhere"], "--engine: expected a file, got 'nowhere'"),
        ("detector", ["--torch", "int4"], "--torch"),
        ("engines", [], "--engine"),
        ("engines", [*ENGINE, *ENGINE], "--engine: expected a label for each engine, got e twice"),
        ("repeats", ENGINE, "--engine: expected pyproject.json beside it"),
        ("report", [], "FILE"),
        ("sanitize", ["--only", "("], "--only: expected a regular expression, got '('"),
        ("serving", ["--clients", "0"], "--clients"),
        ("sizes", [*WEIGHTS, *ENGINE, "--sizes", "768"], "--sizes: expected HEIGHTxWIDTH"),
        ("quantization", [], "FILE.onnx"),
        (
            "quantization",
            ["pyproject.toml", "--data", "onnx_path"],
            "--data: expected a folder of photo",
        ),
        ("quantization", ["pyproject.toml", "--precision", "int4"], "--precision"),
        ("surgery", [], "FILE.onnx"),
        ("surgery", ["pyproject.toml"], "pyproject.toml: expected an ONNX file"),
        ("training", ["--problem", "co_dino_r50"], "expected MODEL:HEIGHTxWIDTH:BATCH"),
        ("window_attention", ["--methods", "magic"], "--methods"),
        ("group_norm", ["--problems"], "--problems"),
        ("linear", ["--problems"], "--problems"),
        ("linear_max", ["--dtypes", "int8"], "--dtypes"),
        ("linear_of_sum", ["--dtypes", "fp64"], "--dtypes"),
        ("quantized_layer_norm", ["--dtypes", "fp32"], "--dtypes"),
        ("feed_forward", ["--dtypes", "fp64"], "--dtypes"),
        ("quantized_feed_forward", ["--dtypes", "fp32"], "--dtypes"),
        ("top_k_indices", ["--iterations", "0"], "--iterations"),
        ("image_input", ["--dtypes", "fp64"], "--dtypes"),
    ],
)
def test_wrong_arguments(module: str, arguments: list[str], named: str, capsys, monkeypatch) -> None:
    """They are one line before anything is measured, and need no GPU."""
    monkeypatch.chdir(ROOT)
    if module == "batch":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    if module in ("surgery", "quantization"):
        pytest.importorskip("onnx", reason="onnx is not installed")
    assert importlib.import_module(f"benchmarks.{module}").main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and named in printed.err


def test_statistics() -> None:
    found = timing.Timing([float(sample) for sample in range(100, -1, -1)]).summary
    assert found == {"median_ms": 50.0, "p05_ms": 5.0, "p95_ms": 95.0, "min_ms": 0.0, "samples": 101}


def test_result_file(tmp_path: Path, monkeypatch) -> None:
    """It is named after the GPU, whole or missing, and says where it comes from."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(timing, "require_gpu", lambda: None)
    monkeypatch.setattr(result_files, "describe", lambda module: {"gpu": {"name": "NVIDIA H100 80GB HBM3"}})
    result = result_files.ResultFile("benchmarks.msda", None)
    assert result.path == Path("benchmarks/results/msda_h100_80gb_hbm3.json")
    result.add({"error": float("nan")}, "a line")
    with pytest.raises(ValueError):
        result.write()
    assert list(tmp_path.iterdir()) == []
    result.rows = [{"error": 1.5}]
    content = result.write(photo="x.jpg")
    assert list(content) == ["gpu", "kind", "photo", "seconds", "results"] and content["kind"] == "msda"
    assert json.loads(result.path.read_text()) == content


def test_record_of_the_machine(monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["msda", "--out", "a b.json"])
    record = result_files.describe("benchmarks.msda")
    assert record["command"] == "python -m benchmarks.msda --out 'a b.json'"
    assert record["torch"] == torch.__version__ and record["cpu"] and len(record["commit"]) >= 7
    assert bool(record["gpu"]) == torch.cuda.is_available()
