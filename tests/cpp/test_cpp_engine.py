"""`codetr_detect`: engines detect as in Python. Needs a GPU."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

import trt_plugin
from codetr.detector.detector import Detector
from codetr.results import Detections
from tests.cpp.detect_program import COFFEE, SCENES, needs_program, options_of, read_document, refused, run
from tests.golden_models import arguments, save_weights, without

pytestmark = [needs_program, pytest.mark.gpu]


def export(given: list[str]) -> None:
    """Builds an engine by the ONNX path."""
    pytest.importorskip("tensorrt", reason="TensorRT is not installed")
    pytest.importorskip("polygraphy", reason="polygraphy is not installed")
    from onnx_path.export import main

    assert main(given) == 0


def plugins() -> list[object]:
    return ["--plugins", trt_plugin.library_path()]


def check_detections(document: dict, expected: list[Detections]) -> None:
    """Checks a document against the detections of Python's detector with the same engine."""
    assert len(document["annotations"]) > 5 * len(expected)
    for image, found in zip(document["images"], expected, strict=True):
        rows = [row for row in document["annotations"] if row["image_id"] == image["id"]]
        assert [row["category_id"] for row in rows] == [row["category_id"] for row in found.as_dicts()]
        boxes = np.array([row["bbox"] for row in rows])
        np.testing.assert_allclose(boxes, [row["bbox"] for row in found.as_dicts()], atol=0.1)
        np.testing.assert_allclose([row["score"] for row in rows], found.scores, atol=1e-3)


@pytest.mark.parametrize("nms", ["none", "hard"])
def test_engine_detects_as_in_python(tmp_path, nms):
    """Pictures of several sizes, with and without a CUDA graph."""
    options = {"batch": 2, "precision": "fp16", "nms": nms}
    export(arguments(save_weights(tmp_path), tmp_path / "engine", "codino_swin_tiny", **options))
    engine = tmp_path / "engine/model.engine"
    files = [COFFEE, *SCENES[:2]]
    with Detector(backend="tensorrt", engine=engine) as detector:
        expected = detector.detect(files, threshold=0.0, batch=2)
    for flags in ([], ["--no-cuda-graph"]):
        out = tmp_path / f"out{len(flags)}"
        options = ["--threshold", 0, "--out", out, "--benchmark", 10, *flags]
        run("--engine", engine, *plugins(), *files, *options)
        document, info = read_document(out / "detections.json")
        ways = [summary["how"] for summary in info["benchmark"]["runs"]]
        assert ways == (["no CUDA graph"] if flags else ["CUDA graph", "no CUDA graph"])
        assert all(0 < summary["p05_ms"] <= summary["p95_ms"] for summary in info["benchmark"]["runs"])
        check_detections(document, expected)


def test_engine_of_dynamic_sizes_detects_as_in_python(tmp_path):
    """Wide and tall pictures, alone and together, with a graph of the current shape."""
    given = {"batch": "1-4", "precision": "fp32", "dynamic-size": "96-96x128-256"}
    given = arguments(save_weights(tmp_path), tmp_path / "engine", "codino_swin_tiny", **given)
    export(without(given, "--height", "--width"))
    engine = tmp_path / "engine/model.engine"
    files = []
    with Image.open(COFFEE) as photo:
        # The first shape again, at once and after others.
        for size in (*[(400, 20)] * 3, (400, 240), (130, 400), (240, 400), (400, 340), (400, 20)):
            files.append(tmp_path / f"{len(files)}.png")
            photo.resize(size).save(files[-1])
    for batch in (1, 3, 8):
        with Detector(backend="tensorrt", engine=engine) as detector:
            expected = detector.detect(files, threshold=0.0, batch=batch)
        for flags in ([], ["--no-cuda-graph"]):
            out = tmp_path / f"out{batch}{len(flags)}.json"
            options = ["--threshold", 0, "--json", out, "--benchmark", 5, "--batch", batch, *flags]
            run("--engine", engine, *plugins(), *files, *options)
            document, info = read_document(out)
            check_detections(document, expected)
            benchmark = info["benchmark"]
            shape = [benchmark[name] for name in ("batch", "height", "width")]
            assert shape == {1: [1, 96, 256], 3: [3, 96, 256], 8: [4, 256, 256]}[batch]
            assert len(benchmark["runs"]) == 2 - len(flags)
    for sizes in ({"max_size": 160}, {"height": 128, "width": 224}):
        with Detector(backend="tensorrt", engine=engine, **sizes) as detector:
            expected = detector.detect(files, threshold=0.0)
        run("--engine", engine, *plugins(), *files, "--threshold", 0, "--json", out, *options_of(sizes))
        check_detections(read_document(out)[0], expected)


def test_metadata_of_another_engine_is_refused(tmp_path):
    export(arguments(save_weights(tmp_path), tmp_path))
    path = tmp_path / "model.json"
    fields = json.loads(path.read_text())
    images = next(tensor for tensor in fields["inputs"] if tensor["name"] == "images")
    images["shape"][0] = 7
    path.write_text(json.dumps(fields))
    message = refused("--engine", tmp_path / "model.engine", *plugins(), COFFEE, status=1)
    assert "its metadata is that of another engine: " in message and "[7, 3, " in message
