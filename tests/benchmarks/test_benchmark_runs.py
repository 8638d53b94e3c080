"""The benchmarks' commands from options to result file, with stand-ins for the GPU and the engines."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from benchmarks import detector, engines, msda, repeats, result_files, sizes, timing
from codetr.export.engine_check import detect_with_torch
from tests.engines.engine_samples import METADATA, SUMMARY, recorded
from tests.engines.plugin_engines import save
from tests.engines.test_inspect_command import plan
from tests.golden_models import GOLDEN, load_golden, save_weights
from trt_plugin.inspection.engine_summary import EngineTimes
from trt_plugin.inspection.layer_kinds import LAYER_KINDS, MSDA


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
        timed = timing.Timing([1.0] * iterations).as_dict()
        return [{"backend": "torch eager", "variant": variant, "timing": timed}], found(model, batch)

    def measure_engine(label, path, batch, iterations):
        timed = timing.Timing([1.0]).as_dict()
        boxes, scores, labels = found(load_golden(name)[0], batch)
        labels[:, 1:] = -1  # all but the best are suppressed
        row = {"backend": "TensorRT engine", "variant": label, "timing": timed}
        return row | {"engine_nms": {"method": "hard", "iou_threshold": 0.0}}, (boxes, scores, labels)

    monkeypatch.setattr(detector, "measure_torch", measure_torch)
    monkeypatch.setattr(detector, "measure_engine", measure_engine)
    (tmp_path / "e").touch()
    out = tmp_path / "detector.json"
    given = ["--model", GOLDEN / f"{name}.json", "--weights", save_weights(tmp_path)[name], "--height", 96]
    given += ["--width", 128, "--torch", "fp16", "--engine", f"a={tmp_path / 'e'}", "--out", out]
    assert detector.main([str(word) for word in given]) == 0
    content = json.loads(out.read_text())
    assert seen == ["fp32", "fp16"]
    assert (content["height"], content["width"], content["batch"]) == (96, 128, 1)
    *by_torch, engine = content["results"]
    assert all(row["detections"]["equal_share"] == 1.0 for row in by_torch)
    assert engine["detections"]["found"] == 1 <= engine["detections"]["expected"] < 100


def test_row_of_an_engine(tmp_path, monkeypatch, capsys) -> None:
    layers = recorded("onnx")
    (tmp_path / "a.engine").touch()
    dataclasses.replace(METADATA, build_seconds=89.9).save(tmp_path / "a.json")
    monkeypatch.setattr(engines, "read_engine", lambda path, libraries: (SUMMARY, layers, ""))
    times = EngineTimes([10.2, 11.2, 12.2], True, {layer.name: layer.time_ms for layer in layers.layers})
    monkeypatch.setattr(engines, "measure", lambda path, runs, warmup: times)
    given = ["--engine", f"a={tmp_path / 'a.engine'}", "--plugins", __file__, "--out", tmp_path / "x.json"]
    assert engines.main(list(map(str, given))) == 0
    assert "a: 11.200 ms (10.200 to 12.200, 3 samples), 102 layers, 3.0 MiB" in capsys.readouterr().out
    (found,) = json.loads((tmp_path / "x.json").read_text())["results"]
    assert found["timing"]["median_ms"] == 11.2 and found["build_seconds"] == 89.9
    assert found["layers"] == 102 and found["plugins"] == {"FusedMultiScaleDeformableAttention": 3}
    assert found["inputs"] == {"images": [2, 3, 8, 8]}
    assert sum(part["layers"] for part in found["kinds"].values()) == 102
    assert sum(part["ms"] for part in found["kinds"].values()) == pytest.approx(layers.time_ms, abs=1e-3)
    assert list(found["kinds"]) == [kind for kind in LAYER_KINDS if kind in found["kinds"]]


@pytest.mark.gpu
def test_engines_are_measured(tmp_path, capsys) -> None:
    path = save(tmp_path, plan("DETAILED"))
    out = tmp_path / "engines.json"
    assert engines.main(["--engine", f"a={path}", "--iterations", "5", "--out", str(out)]) == 0
    (found,) = json.loads(out.read_text())["results"]
    assert found["plugins"] == {"FusedMultiScaleDeformableAttention": 1}
    assert found["kinds"][MSDA]["ms"] > 0 and found["timing"]["samples"] == 5
    assert engines.main(["--engine", f"a={save(tmp_path, plan('NONE'))}", "--out", str(out)]) == 2
    assert "--engine: expected detailed profiling verbosity, a was built" in capsys.readouterr().err


def test_repeats_counts_runs_with_other_bits(tmp_path, monkeypatch, capsys) -> None:
    def outputs(score: float, left: float = 10.0) -> dict[str, np.ndarray]:
        boxes = np.array([[[left, 10, 50, 50], [100, 100, 200, 150]]], np.float32)
        scores, labels = np.array([[0.9, score]], np.float32), np.array([[3, 5]])
        return {"boxes": boxes, "scores": scores, "labels": labels}

    calls = iter([outputs(0.5, 10.5), *[outputs(0.5)] * 5, outputs(0.502), outputs(0.5), *[outputs(0.5)] * 8])
    monkeypatch.setattr(
        repeats,
        "measure",
        lambda label, path, photo, runs: {"variant": label, **repeats.repeat(lambda: next(calls), runs)},
    )
    for name in ("a.engine", "a.json"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert repeats.main(["--engine", "x=a.engine", "--engine", "y=a.engine", "--runs", "8"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "x: 2 of 8 runs give other bits, 3 results: scores by 0.002, boxes by 0.5 px",
        "y: 0 of 8 runs give other bits",
        "benchmarks/results/repeats_h0.json",
    ]
    content = json.loads((tmp_path / "benchmarks/results/repeats_h0.json").read_text())
    assert (content["kind"], content["photo"]) == ("repeats", "coffee.jpg")
    other, same = content["results"]
    assert (other["distinct"], other["different"], other["detections"], other["matches"]) == (3, 2, 2, 2)
    assert (same["different"], same["matches"], same["max_score_difference"]) == (0, 2, 0)


def test_sizes_compares_every_size_and_batch_in_the_engines_precision(tmp_path, monkeypatch, capsys) -> None:
    """The stand-in for the engine finds the same as PyTorch in its precision."""
    name = "codino_swin_tiny"
    model, _ = load_golden(name)
    seen = []

    def measure(label, path, batch, iterations):
        seen.append((batch.images.shape, {tuple(shape) for shape in batch.image_shapes.tolist()}))
        found = detect_with_torch(sizes.on_gpu(model, "fp16"), batch, sizes.DEVICE, tf32=False)
        timed = timing.Timing([1.0]).as_dict()
        return {"variant": label, "engine_precision": "fp16", "timing": timed}, found

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
