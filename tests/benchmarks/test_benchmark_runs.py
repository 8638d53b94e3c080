"""The benchmarks' commands from options to result file, with stand-ins for the GPU and the engines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import detector, engines, msda, repeats, result_files, sizes, timing
from codetr.export.engine_check import detect_with_torch
from tests.golden_models import GOLDEN, load_golden, save_weights


@pytest.fixture(autouse=True)
def gpu(monkeypatch) -> None:
    """Stands in for a GPU."""
    monkeypatch.setattr(timing, "require_gpu", lambda: None)
    monkeypatch.setattr(result_files, "describe", lambda module: {"gpu": {"name": "NVIDIA H0"}})


def test_operators_are_measured_and_a_failure_is_a_status(tmp_path, monkeypatch, capsys) -> None:
    def measure(problem, distribution, dtype, methods, engines, bandwidth, iterations):
        for method in methods:
            yield {"method": method, "dtype": dtype, **({"failure": "no"} if dtype == "bf16" else {})}

    monkeypatch.setattr(timing, "copy_bandwidth", lambda: 4e12)
    monkeypatch.setattr(msda, "measure", measure)
    monkeypatch.setattr(msda, "summary", str)
    out = tmp_path / "msda.json"
    given = ["--problems", "codino_decoder_608x608", "--methods", "plugin", "attention", "--out", str(out)]
    assert msda.main([*given, "--distributions", "near", "--dtypes", "fp16"]) == 0
    content = json.loads(out.read_text())
    assert list(content["methods"]) == ["plugin", "attention"] and len(content["results"]) == 2
    assert content["copy_bandwidth_bytes_per_second"] == 4e12
    assert msda.main(given) == 1
    assert "12 measurements, 4 failed" in capsys.readouterr().out


def test_detector_compares_with_fp32(tmp_path, monkeypatch) -> None:
    """PyTorch in fp32 runs unasked, and an engine that suppresses is compared with suppressed detections."""
    name = "codino_resnet_tiny"
    seen = []

    def found(model, batch):
        return detect_with_torch(model, batch, torch.device("cpu"), tf32=False)

    def measure_torch(model, variant, batch, iterations):
        seen.append(variant)
        timed = timing.Timing([1.0] * iterations, 1, 1, "warm").as_dict()
        return [{"backend": "torch eager", "variant": variant, "timing": timed}], found(model, batch)

    def measure_engine(label, path, batch, iterations):
        timed = timing.Timing([1.0], 1, 1, "warm").as_dict()
        boxes, scores, labels = found(load_golden(name)[0], batch)
        labels[:, 1:] = -1  # all but the best are suppressed
        row = {"backend": "TensorRT engine", "variant": label, "timing": timed}
        return row, (boxes, scores, labels), {"method": "hard", "iou_threshold": 0.0}

    monkeypatch.setattr(detector, "measure_torch", measure_torch)
    monkeypatch.setattr(detector, "measure_engine", measure_engine)
    (tmp_path / "e").touch()
    out = tmp_path / "detector.json"
    given = ["--model", GOLDEN / f"{name}.json", "--weights", save_weights(tmp_path)[name], "--height", 96]
    given += ["--width", 128, "--torch", "fp16", "--engine", f"a={tmp_path / 'e'}", "--out", out]
    assert detector.main([str(word) for word in given]) == 0
    content = json.loads(out.read_text())
    assert seen == ["fp32", "fp16"] and (content["height"], content["width"], content["batch"]) == (
        96,
        128,
        1,
    )
    *by_torch, engine = content["results"]
    assert all(row["detections"]["equal_share"] == 1.0 for row in by_torch)
    assert engine["detections"]["found"] == 1 <= engine["detections"]["expected"] < 100


def test_engines_are_measured_in_turn(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(
        engines, "measure_engine", lambda label, path, *_: {"variant": label, "name": path.name}
    )
    monkeypatch.setattr(engines, "line", str)
    given = ["--engine", f"a={__file__}", "--engine", f"b={__file__}", "--out", str(tmp_path / "x.json")]
    assert engines.main([*given, "--plugins", __file__]) == 0
    assert json.loads((tmp_path / "x.json").read_text())["results"] == [
        {"variant": label, "name": Path(__file__).name} for label in "ab"
    ]


def test_repeats_counts_runs_with_other_bits() -> None:
    def outputs(score: float, left: float = 10.0) -> dict[str, np.ndarray]:
        boxes = np.array([[[left, 10, 50, 50], [100, 100, 200, 150]]], np.float32)
        scores, labels = np.array([[0.9, score]], np.float32), np.array([[3, 5]])
        return {"boxes": boxes, "scores": scores, "labels": labels}

    given = [outputs(0.5, 10.5), *[outputs(0.5)] * 5, outputs(0.502), outputs(0.5)]
    calls = iter(given)
    found = repeats.repeat(lambda: next(calls), len(given))
    assert found == {
        "runs": 8,
        "distinct": 3,
        "different": 2,
        "detections": 2,
        "matches": 2,
        "max_score_difference": pytest.approx(0.002, rel=1e-3),
        "max_box_difference_px": 0.5,
    }
    text = repeats.line({"variant": "fp16", **found})
    assert text == "fp16: 2 of 8 runs give other bits, 3 results: scores by 0.002, boxes by 0.5 px"
    same = repeats.repeat(lambda: outputs(0.5), 3)
    assert (same["different"], same["matches"], same["max_score_difference"]) == (0, 2, 0)
    assert repeats.line({"variant": "fp32", **same}) == "fp32: 0 of 3 runs give other bits"


def test_repeats_writes_a_row_for_every_engine(tmp_path, monkeypatch, capsys) -> None:
    for name in ("a.engine", "a.json"):
        (tmp_path / name).touch()
    row = {"different": 0, "runs": 7}
    monkeypatch.setattr(repeats, "measure", lambda label, path, photo, runs: {"variant": label, **row})
    monkeypatch.chdir(tmp_path)
    assert repeats.main(["--engine", "x=a.engine", "--engine", "y=a.engine"]) == 0
    *lines, path = capsys.readouterr().out.splitlines()
    assert lines == [f"{label}: 0 of 7 runs give other bits" for label in "xy"]
    assert path == "benchmarks/results/repeats_h0.json"
    content = json.loads((tmp_path / path).read_text())
    assert (content["kind"], content["photo"]) == ("repeats", "coffee.jpg")
    assert content["results"] == [{"variant": label, **row} for label in "xy"]


def test_sizes_compares_every_size_and_batch_in_the_engines_precision(tmp_path, monkeypatch, capsys) -> None:
    """The stand-in for the engine finds the same as PyTorch in its precision."""
    name = "codino_swin_tiny"
    model, _ = load_golden(name)
    seen = []

    def measure(label, path, batch, iterations):
        seen.append((batch.images.shape, {tuple(shape) for shape in batch.image_shapes.tolist()}))
        found = detect_with_torch(sizes.on_gpu(model, "fp16"), batch, sizes.DEVICE, tf32=False)
        return {"variant": label, "engine_precision": "fp16", "timing": {"median_ms": 1.0}}, found, None

    monkeypatch.setattr(sizes, "measure_engine", measure)
    monkeypatch.setattr(sizes, "DEVICE", torch.device("cpu"))
    (tmp_path / "e").touch()
    out = tmp_path / "sizes.json"
    given = ["--model", GOLDEN / f"{name}.json", "--weights", save_weights(tmp_path)[name], "--out", out]
    given += ["--engine", f"a={tmp_path / 'e'}", "--sizes", "96x128", "128x96", "--batches", "1", "2"]
    assert sizes.main([str(word) for word in given]) == 0
    rows = json.loads(out.read_text())["results"]
    found = [(row["height"], row["width"], row["batch"]) for row in rows]
    assert found == [(96, 128, 1), (96, 128, 2), (128, 96, 1), (128, 96, 2)]
    assert seen[1][0] == (2, 3, 96, 128) and len(seen[1][1]) == 2, "images differ in size"
    for row in rows:
        exact, rounded = row["detections_in_its_precision"], row["detections"]
        assert exact["matched"] == exact["expected"] and exact["max_box_difference_px"] == 0.0
        assert rounded["max_box_difference_px"] > 0.0
    assert len(capsys.readouterr().out.splitlines()) == 5
