"""`benchmarks.batch` on the CPU: its rows, its figures and its timeline."""

from __future__ import annotations

import json

import pytest

from benchmarks.pipeline import make_pictures
from codetr.detector.pipeline import Span
from tests.detector.exported_metadata import write_onnx

pytest.importorskip("ray", reason="Ray is not installed")
benchmark = pytest.importorskip("benchmarks.batch", reason="pyarrow is not installed")


def test_rows(tmp_path, capsys):
    network = write_onnx(tmp_path)
    make_pictures(tmp_path / "pictures", 72, 128, count=3)
    files = {name: tmp_path / f"{name}.json" for name in ("out", "timeline", "pictures", "onnx")}
    files |= {"pictures": tmp_path / "pictures", "onnx": network}
    options = [word for name, file in files.items() for word in (f"--{name}", str(file))]
    assert benchmark.main([*options, "--device", "cpu", "--gpus", "0", "--count", "20", "--batch", "2"]) == 0
    content = json.loads(files["out"].read_text())
    alone, row = content["results"]
    assert (alone["stage"], alone["batch"]) == ("network", 2)
    assert (row["stage"], row["gpus"], row["batches"]) == ("batch", 0, [10])
    assert row["of_network"] == pytest.approx(row["images_per_second"] / alone["images_per_second"])
    events = json.loads(files["timeline"].read_text())["traceEvents"]
    assert len(events) == 20 and len({event["pid"] for event in events}) == 1
    assert "batch, 0 GPUs: " in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model.json",
        "model.onnx",
        "out.json",
        "pictures",
        "timeline.json",
    ]


def test_summary():
    """Two GPUs with a picture a second each. One waits for its pictures during the first second."""
    spans = {
        "1": [Span("a", float(i), i + (i == 0), i + 1.0) for i in range(10)],
        "2": [Span("a", float(i), float(i), i + 1.0) for i in range(10)],
    }
    row = benchmark.summary(benchmark.job.Summary(rows=20, errors=0, new=20, seconds=12.0), spans)
    assert row["images_per_second"] == pytest.approx(2)
    assert row["steady"] == pytest.approx(15 / 7)  # from the third end at 2 s to the eighteenth at 9 s
    assert row["waits_for_pictures"] == pytest.approx(0.05) and row["idle"] == pytest.approx(0.05)
    assert row["batches"] == [10, 10]
