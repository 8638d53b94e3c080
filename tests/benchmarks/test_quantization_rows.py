"""`benchmarks.quantization`: the row of a model, the agreement of outputs, failures, and the table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from benchmarks import onnx_engines, quantization, result_files, timing
from benchmarks.output_agreement import best_detections, compare_outputs, describe
from benchmarks.report import markdown, read
from tests.onnx import model_zoo, zoo_files
from tools.docs import tables

MODEL = "rt_detr"
MILLISECONDS = {"fp32": 4.0, "fp16": 2.0, "int8": 1.6, "fp8": 2.2}
MACHINE = {
    "schema_version": result_files.SCHEMA_VERSION,
    "command": "python -m benchmarks.quantization x",
    "commit": "0123456789",
    "date_utc": "2026-01-01T00:00:00Z",
    "gpu": {"name": "NVIDIA H0", "driver": "1"},
    "cuda": "13",
    "torch": "2.11.0",
    "tensorrt": "10.6.0",
}


def detections(seed: int = 0, batch: int = 2) -> dict[str, np.ndarray]:
    """Outputs of a DETR: the logits of 200 queries and 5 classes, and boxes that do not overlap."""
    count = 200
    sizes = np.tile((0.004, 0.2), (count, 1))
    places = np.column_stack([np.arange(count) / count, np.full(count, 0.5), sizes])
    logits = np.random.default_rng(seed).standard_normal((batch, count, 5)).astype(np.float32)
    return {"pred_boxes": np.stack([places] * batch).astype(np.float32), "logits": logits}


def test_row_holds_three_precisions(tmp_path, monkeypatch, capsys):
    """The quantisation to INT8 is real, of two photographs; FP8's fails. Builds and runs are stand-ins."""
    model_zoo.ZOO[MODEL].require()
    model, real, quantised = zoo_files.write(MODEL, tmp_path, full=False, batch=2), onnx_engines.command, []
    monkeypatch.setenv("CODETR_CACHE", str(tmp_path / "cache"))
    (tmp_path / "photos").mkdir()
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 256, (60, 80, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")

    def command(arguments, seconds):
        words = [str(word) for word in arguments]
        precision = words[words.index("--precision") + 1]
        if words[0] == "onnx_path.quantize":
            quantised.append(precision)
            if precision == "fp8":
                raise RuntimeError("onnx_path.quantize: no scale")
            real(arguments, seconds)
            return
        assert words[0] == "onnx_path.build" and Path(words[1]).exists()
        assert precision == ("fp32" if "fp32" in words[words.index("--out") + 1] else "fp16")
        content = {"engine_bytes": 2**21, "device_memory_bytes": 2**20, "layers": 7, "plugin_layers": []}
        Path(words[words.index("--json") + 1]).write_text(
            json.dumps({"build_seconds": 1.5, "report": content})
        )

    def run(engine, inputs, iterations):
        (images,) = inputs.values()
        assert images.shape == (2, 3, 96, 128) and abs(images.mean()) < 0.5  # normalised photographs
        outputs, precision = detections(), engine.parent.name
        if precision == "int8":
            outputs["pred_boxes"][1] += 0.5  # of one of both images
        return outputs, [MILLISECONDS[precision]] * iterations

    def measure(status: int) -> dict:
        given = [model, "--data", tmp_path / "photos", "--images", 2, "--iterations", 5]
        given += ["--work", tmp_path / "work", "--out", tmp_path / "x.json"]
        assert quantization.main(list(map(str, given))) == status
        (row,) = json.loads((tmp_path / "x.json").read_text())["results"]
        return row

    monkeypatch.setattr(timing, "require_gpu", lambda: None)
    monkeypatch.setattr(result_files, "describe", lambda module: MACHINE)
    monkeypatch.setattr(onnx_engines, "command", command)
    monkeypatch.setattr(onnx_engines, "run", run)
    row = measure(1)
    assert (row["model"], row["batch"], row["configuration"]) == (MODEL, 2, "small")
    assert row["fp8"] == {"failure": "onnx_path.quantize: no scale"}
    assert row["int8"]["quantized"] > 10 and sum(row["int8"]["kept"].values()) > 3
    assert "fp32" not in row and row["fp16"]["agreement"]["share"] == 1
    assert row["int8"]["agreement"]["share"] == 0.5 and row["int8"]["agreement"]["expected"] == 200
    line = capsys.readouterr().out
    assert (
        "rt_detr              b2  fp16 2.000 ms (100% agree)  int8 1.600 ms (1.25 times, 50% agree)" in line
    )
    assert "fp8 failed: onnx_path.quantize: no scale" in line

    # The next run uses the files of the first one. Slower 8 bits are named.
    assert quantised == ["int8", "fp8"]
    for end in ("onnx", "quantize.json"):
        (tmp_path / "work" / f"{model.stem}.fp8.{end}").write_bytes(
            (tmp_path / "work" / f"{model.stem}.int8.{end}").read_bytes()
        )
    measure(0)
    assert len(quantised) == 2
    assert "fp8 2.200 ms (slower than fp16 by 10%, 100% agree)" in capsys.readouterr().out

    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    monkeypatch.setattr(tables, "QUANTIZATION", "x.json")
    text = tables.quantization()
    assert "| RT-DETR R50 | H0 | 2 | int8 | 1.60 | 1.25 | 2 | 1 | 50% agree |" in text
    assert "`benchmarks.quantization`" in text
    assert "fp8.agreement.share" in markdown(read(tmp_path / "x.json"))


def test_jobs(tmp_path, monkeypatch):
    """The batch sizes of a model follow each other, so that the second reads the first one's ranges."""
    made: dict[str, list[str]] = {}
    monkeypatch.setattr(quantization, "draw_samples", lambda *args: ({}, {}))
    monkeypatch.setattr(quantization, "quantize", lambda path, *args: (path, {}))

    def build(model, folder, precision, seconds):
        made.setdefault(precision, []).append(model.stem)
        if precision == "fp16":
            raise RuntimeError("no kernel")

    monkeypatch.setattr(quantization, "build", build)
    files = [tmp_path / f"{name}.onnx" for name in ("x_b16", "x_b8", "x")]
    quantization.prepare(files, tmp_path, ("fp16", "int8"), None, 8, 1, jobs=3, time_only=False)
    order = ["x", "x_b8", "x_b16"]
    assert made == {"fp32": order, "fp16": order, "int8": order}


def test_table_of_failures(tmp_path, monkeypatch):
    part = {"engine_bytes": 0, "device_memory_bytes": 0, "timing": {"median_ms": 3.0}}
    rows = [
        {"model": "x", "batch": 1, "fp16": {"failure": "no kernel"}, "fp8": part},
        {"model": "y", "failure": "expected static shapes"},
    ]
    (tmp_path / "y.json").write_text(json.dumps({**MACHINE, "results": rows}))
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    monkeypatch.setattr(tables, "QUANTIZATION", "y.json")
    text = tables.quantization()
    assert (
        "| x | H0 | 1 | fp16 | failed |  |  |  |  |" in text
        and "| x | H0 | 1 | fp8 | 3.00 |  | 0 | 0 |  |" in text
    )
    assert "| y | H0 |  | int8 | failed |  |  |  |  |" in text
    assert quantization.failures(rows[0]) == ["fp16 failed: no kernel"]
    assert quantization.failures(rows[1]) == ["failed: expected static shapes"]
    assert "expected static shapes" in quantization.summary(rows[1])


@pytest.mark.parametrize("source", ["random numbers", "arrays"])
def test_samples(source, tmp_path):
    """Ranges are measured on other images than the engines run on, unless there are arrays."""
    model_zoo.ZOO["deformable_detr"].require()
    model = zoo_files.write("deformable_detr", tmp_path, full=False, batch=2)
    inputs, calibration = quantization.draw_samples(model, None, 3)
    assert [x.shape for x in inputs.values()] == [(2, 3, 96, 128), (2, 96, 128)]
    assert [len(x) for x in calibration.values()] == [4, 4]  # two runs
    assert not np.array_equal(inputs["pixel_values"], calibration["pixel_values"][:2])
    if source == "arrays":
        np.savez(tmp_path / "a.npz", **calibration)
        again, arrays = quantization.draw_samples(model, tmp_path / "a.npz", 3)
        assert np.array_equal(again["pixel_values"], calibration["pixel_values"][:2])
        assert np.array_equal(arrays["pixel_mask"], calibration["pixel_mask"])
        np.savez(tmp_path / "b.npz", images=calibration["pixel_values"])
        with pytest.raises(ValueError, match=r"b.npz: expected arrays pixel_values, pixel_mask, got images$"):
            quantization.draw_samples(model, tmp_path / "b.npz", 3)


def test_agreement_of_detections():
    """A class that changes, and a box that moves, agree no more. Scores may change. NaN never agrees."""
    reference = detections(batch=1)
    assert compare_outputs(reference, {**reference, "logits": reference["logits"] * 0.98})["share"] == 1
    few = {name: x[:, :4] for name, x in reference.items()}
    assert compare_outputs(few, few)["expected"] == 20
    assert compare_outputs(reference, {**reference, "logits": reference["logits"][..., ::-1]})["share"] < 0.6
    narrow = reference["pred_boxes"].copy()
    narrow[:, ::2, 2] *= 0.8  # IoU 0.8
    found = compare_outputs(reference, {**reference, "pred_boxes": narrow})
    kept = sum(round((row["bbox"][0] + 0.002) * 200) % 2 for row in best_detections(reference, 100))
    assert found["expected"] == 100 and found["share"] == kept / 100
    lost = {name: np.full_like(x, np.nan) for name, x in reference.items()}
    assert compare_outputs(reference, lost)["share"] == 0


def test_agreement_of_other_outputs():
    boxes = np.array([[[0, 0, 10, 10], [20, 20, 30, 30], [0, 0, 0, 0]]], np.float32)
    own = {"boxes": boxes, "scores": np.array([[0.9, 0.8, 0]]), "labels": np.array([[1, 2, -1]])}
    assert compare_outputs(own, {**own, "labels": np.array([[1, 3, -1]])})["share"] == 0.5
    random = np.random.default_rng(0)
    masks = {
        "class_queries_logits": random.standard_normal((1, 4, 3)),
        "masks_queries_logits": random.standard_normal((1, 4, 8, 8)),
    }
    other = {name: x.copy() for name, x in masks.items()}
    other["masks_queries_logits"][0, 0] *= -1
    other["class_queries_logits"][0, 1] *= -1
    assert compare_outputs(masks, other)["share"] == 0.5
    found = compare_outputs({"x": np.array([1.0, -3.0])}, {"x": np.array([1.0, -2.0])})
    assert found["difference"] == 0.25 and describe(found) == "differs by 0.25"
    assert describe(compare_outputs({"x": np.ones(2)}, {"x": np.array([1, np.inf])})) == "not finite"


def test_zoo_file_of_several_images(tmp_path):
    """The prompt of Grounding DINO is repeated too."""
    import onnxruntime

    model_zoo.ZOO["grounding_dino"].require()
    path = zoo_files.write("grounding_dino", tmp_path, full=False, batch=2)
    assert path.name == "grounding_dino_b2.onnx"
    inputs = next(onnx_engines.draw_inputs(path))
    logits, boxes = onnxruntime.InferenceSession(path).run(None, inputs)
    assert logits.shape == (2, 12, 16) and boxes.shape == (2, 12, 4)
