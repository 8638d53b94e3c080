"""One model in several backends gives the same detections, and the benchmark of their accuracy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import accuracy, report
from benchmarks.agreement import agreement
from tests.evaluation.coco_folders import document, write_dataset
from tests.evaluation.tiny_detector import HEIGHT, command, results


@pytest.fixture(scope="module")
def onnx(tiny) -> Path:
    """The model as an ONNX file with its metadata."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    from onnx_path.export import main

    given = [*tiny.network(), "--device", "cpu", "--out", tiny.data / "onnx"]
    assert main(list(map(str, given))) == 0
    return tiny.data / "onnx/model.onnx"


def test_onnxruntime_gives_the_same(tiny, onnx, tmp_path, capsys):
    """The whole command with both backends: files, table, numbers."""
    given = ["--data", tiny.data, "--device", "cpu"]
    assert command(*given, *tiny.network(), "--batch", 3, "--per-class", "--out", tmp_path / "a/b") == 0
    torch_printed = capsys.readouterr()
    assert command(*given, "--onnx", onnx, "--batch", 2, "--out", tmp_path / "onnx") == 0
    onnx_printed = capsys.readouterr()
    assert torch_printed.err == ""
    # The file's input is upright, and the pictures are not.
    assert onnx_printed.err.startswith("codetr: note: ") and onnx_printed.err.count("\n") == 1
    assert sorted(path.name for path in (tmp_path / "onnx").iterdir()) == ["detections.json", "metrics.json"]
    (expected, rows), (found, onnx_rows) = results(tmp_path / "a/b"), results(tmp_path / "onnx")
    assert 0.8 < expected["metrics"]["ap"] < 1
    assert found["metrics"] == pytest.approx(expected["metrics"], abs=1e-3)
    assert len(rows) == len(onnx_rows) > 48
    np.testing.assert_allclose([row["score"] for row in onnx_rows], [row["score"] for row in rows], atol=1e-5)
    assert f"AP {expected['metrics']['ap']:.3f}  AP50 " in torch_printed.out
    assert "medium -" in torch_printed.out  # no object has this size
    assert "\nwine glass " in torch_printed.out and "\nwine glass " not in onnx_printed.out
    assert "48 objects in 4 pictures" in onnx_printed.out
    assert "onnxruntime" in found["network"] and "PyTorch" in expected["network"]
    assert expected["options"]["height"] == HEIGHT and expected["options"]["data"] == str(tiny.data)
    assert {"torch", "pycocotools", "onnxruntime"} <= set(found["versions"])
    assert len(found["per_class"]) == 80 and found["per_class"][1]["category_id"] == 3


@pytest.mark.slow
def test_quantisation_measures_average_precision(tiny, onnx, tmp_path, monkeypatch):
    """The drop of a detector on a dataset is that of AP; the quantised file is evaluated like any other."""
    from onnx_path.quantize import main

    monkeypatch.setenv("CODETR_CACHE", str(tmp_path / "cache"))
    out, report = tmp_path / "quantized.onnx", tmp_path / "report.json"
    given = [onnx, out, "--precision", "int8", "--data", tiny.data, "--split", "val"]
    given += ["--max-drop", 1, "--json", report]
    assert main(list(map(str, given))) == 0
    found = json.loads(report.read_text())
    assert found["measure"] == "drop of AP" and len(found["groups"]) > 5 and found["images"] == 4
    evaluated = ["--data", tiny.data, "--device", "cpu", "--onnx"]
    assert command(*evaluated, onnx, "--out", tmp_path / "before") == 0
    assert command(*evaluated, out, "--out", tmp_path / "after") == 0
    before, after = (results(tmp_path / name)[0]["metrics"]["ap"] for name in ("before", "after"))
    assert found["drop"] == pytest.approx(before - after, abs=1e-6)


def test_benchmark(tiny, onnx, tmp_path, capsys):
    """Every variant of this machine on the same pictures, with table, picture and result file."""
    out = tmp_path / "accuracy.json"
    given = ["--data", tiny.data, *tiny.network()[:4], "--onnx", onnx, "--torch", "tf32", "--threshold", 0.05]
    given += ["--batch", 3, "--iterations", 2, "--out", out]
    assert accuracy.main(list(map(str, given))) == 0
    printed = capsys.readouterr()
    content = report.read(out)
    reference, tf32, runtime = content["results"]
    assert reference["backend"] == tf32["backend"] == "PyTorch"
    assert "onnxruntime" in runtime["backend"]
    for row in content["results"]:
        assert row["holds"] and row["bound"] == 0.002
        difference = row["metrics"]["ap"] - reference["metrics"]["ap"]
        assert abs(difference) < 1e-3 and row["ap_difference"] == pytest.approx(difference)
        assert row["agreement"]["share"] == row["agreement"]["share_back"] == 1.0
        assert row["agreement"]["expected"] > 20
        assert row["timing"]["median_ms"] > 0
    assert runtime["agreement"]["worst_box_px"] < 0.05
    assert content["height"] == HEIGHT and content["pictures"] == 4  # the size is the ONNX file's
    assert "PyTorch fp32: AP 0." in printed.out and "| metrics.ap | 0." in report.markdown(content)
    assert all(picture.stat().st_size > 1000 for picture in report.draw(content, tmp_path, "accuracy"))


def test_benchmark_reports_a_missed_bound(tiny, tmp_path, capsys, monkeypatch):
    """Exit status 1. The result file is written in any case."""
    monkeypatch.setitem(accuracy.BOUNDS, "tf32", -1.0)
    out = tmp_path / "accuracy.json"
    given = ["--data", tiny.data, *tiny.network(), "--torch", "tf32", "--iterations", 1, "--out", out]
    assert accuracy.main(list(map(str, given))) == 1
    assert capsys.readouterr().err == "benchmarks.accuracy: error: AP is out of its bound: PyTorch tf32\n"
    assert [row["holds"] for row in json.loads(out.read_text())["results"]] == [True, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data", "{data}"), "--height: expected a size"),
        (
            ("--data", "{data}", "--height", "64"),
            "--width: expected a size, height and width belong together",
        ),
        (
            ("--data", "{data}", "--height", "128", "--width", "96"),
            "instances_val2017.json: the model lacks 1 of its 3 classes: dragon",
        ),
        (
            ("--data", "{tiny}", "--height", "128", "--width", "64", "--onnx", "{tiny}/onnx/model.onnx"),
            "onnxruntime fp32: width is 96, expected 64",
        ),
    ],
)
def test_benchmark_refuses(tiny, onnx, arguments, message, tmp_path, capsys):
    """One line, exit status 2, no result file."""
    contents = document()
    contents["categories"][0]["name"] = "dragon"
    write_dataset(tmp_path, contents)
    given = [text.format(data=tmp_path, tiny=tiny.data) for text in arguments]
    given += ["--out", str(tmp_path / "out.json")]
    assert accuracy.main([*given, *map(str, tiny.network()[:4])]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and message in printed.err
    assert not (tmp_path / "out.json").exists()


def test_agreement():
    """One-to-one, the most alike first, in both directions."""
    runs = [], []

    def picture(*found):
        """Adds a picture with boxes, scores and labels of both runs."""
        image = len({row["image_id"] for run in runs for row in run})
        for run, detections in zip(runs, found):
            run += [
                {"image_id": image, "category_id": label, "bbox": box, "score": score}
                for box, score, label in zip(*detections)
            ]

    # the first two have swapped scores, the third is just below the threshold and a pixel off
    picture(
        ([[0, 0, 50, 50], [0, 0, 50, 51], [60, 60, 30, 30]], [0.9, 0.5, 0.31], [0, 0, 1]),
        ([[0, 0, 50, 51], [0, 0, 50, 50], [60, 60, 30, 31]], [0.92, 0.5, 0.29], [0, 0, 1]),
    )
    found = agreement(*runs, 0.3)
    assert [found[name] for name in ("expected", "agreeing", "found", "agreeing_back")] == [3, 3, 2, 2]
    assert found["worst_box_px"] == 1
    assert found["worst_score"] == pytest.approx(0.02, abs=1e-6)
    # another label, too small an overlap, one partner for two
    picture(([[0, 0, 9, 9]], [0.8], [0]), ([[0, 0, 9, 9]], [0.8], [2]))
    picture(([[0, 0, 10, 10]], [0.8], [0]), ([[0, 0, 10, 8.9]], [0.8], [0]))
    picture(([[0, 0, 9, 9]] * 2, [0.8, 0.7], [0, 0]), ([[0, 0, 9, 9]], [0.75], [0]))
    found = agreement(*runs, 0.3)
    assert [found[name] for name in ("expected", "agreeing", "found", "agreeing_back")] == [7, 4, 5, 3]
    assert found["share"] == 4 / 7 and found["share_back"] == 3 / 5
